"""Frames of stacks: what is written is what is read."""

import pytest

from perfbisect.core.domain.profiles import frame, frames, read_frame, source_name


@pytest.mark.parametrize(
    ("function", "binary", "text"),
    [
        ("row_search_mvcc", "mysqld", "row_search_mvcc (mysqld)"),
        (
            "std::vector<int>::at(unsigned long) const",
            "db_bench",
            "std::vector<int>::at(unsigned long) const (db_bench)",
        ),
        ("int (&edge<int>()) [3]", "a.out", "int (&edge<int>()) [3] (a.out)"),
        ("vfs_read", "[kernel]", "vfs_read ([kernel])"),
        ("clock_gettime", "[vdso]", "clock_gettime ([vdso])"),
    ],
)
def test_a_frame_is_read_as_it_was_written(function: str, binary: str, text: str) -> None:
    assert frame(function, binary) == text
    assert read_frame(text) == (function, binary)


@pytest.mark.parametrize(
    ("binary", "text", "read"),
    [
        ("libz.so.1", "[libz.so.1]", ("[libz.so.1]", "libz.so.1")),
        ("[kernel]", "[kernel]", ("[kernel]", "[kernel]")),
        ("", "[unknown]", ("[unknown]", "[unknown]")),
    ],
)
def test_addresses_without_a_symbol_are_one_frame(binary: str, text: str, read: tuple[str, str]) -> None:
    assert frame("", binary) == text
    assert read_frame(text) == read


def test_no_name_can_end_a_frame_or_a_line() -> None:
    written = frame("a;b\nc", "odd;name (deleted)")
    assert written == "a:b:c (odd:name [deleted])"
    assert read_frame(written) == ("a:b:c", "odd:name [deleted]")
    assert frames(f"program;{written};{frame('d', 'libc.so.6')}") == (written, "d (libc.so.6)")


def test_a_program_has_no_binary() -> None:
    assert read_frame("mysqld") == ("mysqld", "")

    assert frames("mysqld") == ()


@pytest.mark.parametrize(
    ("function", "source"),
    [
        ("node_search", "node_search"),
        ("node_search.cold", "node_search"),
        ("node_search.part.0.isra.0", "node_search"),
        ("node_search.constprop.12", "node_search"),
        ("Set::add(int) [clone .cold]", "Set::add(int)"),
        ("Set::add(int) [clone .isra.0] [clone .part.3]", "Set::add(int)"),
        ("file.c", "file.c"),
        (".part", ".part"),
    ],
)
def test_the_function_in_the_source(function: str, source: str) -> None:
    assert source_name(function) == source
