"""Profiles: stored frames, names of functions, and the folded stacks of the output of perf."""

from pathlib import Path

import pytest

from perfbisect.core.explain.profiles import (
    KERNEL,
    MAX_NAME,
    MAX_STACKS,
    RARE,
    UNKNOWN,
    binary_name,
    chain_frames,
    folded_stacks,
    frame,
    may_be_same,
    program_name,
    read_frame,
    scope_and_name,
    short_name,
    source_name,
    stack_frames,
    stored_frame,
)


def names(kind: str) -> dict[str, str]:
    """The names of the section ``kind`` of names.txt, and the expected result for each name."""
    _, _, rest = Path(__file__).with_name("names.txt").read_text().partition(f"## {kind}\n")
    assert rest
    rows = (line.split(" →") for line in rest.partition("\n\n")[0].splitlines())
    return {given: expected.strip() for given, expected in rows}


def test_stored_frame_is_read_back_as_function_and_binary() -> None:
    vector = "std::vector<int>::at(unsigned long) const"
    for function, file in ((vector, "a.out"), ("int (&edge<int>()) [3]", "a"), ("f", "[vdso]")):
        assert frame(function, file) == f"{function} ({file})"
        assert read_frame(frame(function, file)) == (function, file)
    for file in ("libz.so.1", "[kernel]", UNKNOWN):  # all addresses without a symbol are one frame
        text = f"[{file.strip('[]')}]"
        assert (frame("", file), read_frame(text)) == (text, (text, file))


def test_separators_in_names_are_replaced_in_frames() -> None:
    written = frame("a;b\nc", "odd;name (deleted)")
    assert written == "a:b:c (odd:name [deleted])"
    assert read_frame(written) == ("a:b:c", "odd:name [deleted]")
    assert stack_frames(f"program;{written};{frame('d', 'libc.so.6')}") == (written, "d (libc.so.6)")


def test_first_name_of_a_stack_is_the_program_and_not_a_frame() -> None:
    assert (read_frame("mysqld"), stack_frames("mysqld"), frame("", "")) == (("mysqld", ""), (), UNKNOWN)


def test_function_names_are_read_as_names_txt_lists() -> None:
    for function, source in names("function in the source").items():
        assert source_name(function) == source
    for function, expected in names("own name, and its scope").items():
        own, _, scope = expected.partition(" of ")
        assert scope_and_name(function) == (scope, own)
    for text, expected in names("frame of perf").items():
        assert stored_frame(text) == expected


def test_equal_names_are_one_function_unless_their_scopes_differ() -> None:
    assert may_be_same("ns::Page::insert(int) const", "Page::insert")
    assert may_be_same("insert", "Page::insert")
    assert not may_be_same("Tree::insert(int)", "Page::insert")
    assert not may_be_same("[libz.so.1]", "[libz.so.1]"), "addresses without a name"
    assert short_name("ns::operators::Page::insert(int)") == "Page::insert"
    assert short_name("ns::B::operator()(int) const") == "B::operator()"


def test_costs_of_equal_stacks_are_added() -> None:
    """Stacks that differ only in the paths of binaries are equal."""
    lines = [
        "2000\t2\tserver\tleaf (/a/server)\tmain (/a/server)",
        "1000\t1\tserver\tleaf (/b/server)\tmain (/b/server)",
        "5000\t5\tserver\tmain (/a/server)",
        "lost\t7",
    ]
    folded = folded_stacks(lines, per_unit=1000)
    assert folded.stacks == {"server;main (server);leaf (server)": 3.0, "server;main (server)": 5.0}
    assert (folded.samples, folded.lost, folded.alone) == (8, 7, pytest.approx(5 / 8))


def test_malformed_profile_line_is_skipped_or_has_no_known_frame() -> None:
    for line in ("", "a\tb\tc", "12", "12\t1", "-1\t1\tserver\tf (/x)", "perf: something\tis wrong", "lost\t"):
        assert set(folded_stacks([line]).stacks) <= {f"{UNKNOWN};{UNKNOWN}"}
    none = folded_stacks([])
    assert (none.stacks, none.samples, none.alone) == ({}, 0, 0.0)


def test_long_function_names_are_cut_in_the_middle() -> None:
    short = stored_frame(f"begin{'x' * 5000}end (/srv/store)")
    assert len(short) <= MAX_NAME + len(" (store)")
    assert short.startswith("beginx") and short.endswith("xend (store)")


def test_kernel_modules_have_one_binary_name() -> None:
    paths = ("[kernel]", "[guest.kernel.kallsyms]", "[nf_tables]", "/lib/modules/6/ext4.ko.xz")
    assert {binary_name(path) for path in paths} == {KERNEL}


def test_adjacent_frames_without_symbols_are_merged() -> None:
    # Frames of a recursive function stay apart.
    chain = ["leaf (/x)", "[unknown] (/x)", "[unknown] (/x)", "walk (/x)", "walk (/x)", "[unknown] (/x)", "main (/x)"]
    assert chain_frames(chain) == ["main (x)", "[x]", "walk (x)", "walk (x)", "[x]", "leaf (x)"]


def test_callers_that_the_host_left_out_are_one_rare_frame() -> None:
    folded = folded_stacks([f"5\t2\tserver\tleaf (/server)\t{RARE}"])
    assert folded.stacks == {f"server;{RARE};leaf (server)": 5.0}
    assert folded.alone == 0, "the function had callers"


def test_unknown_outer_frames_of_a_stack_are_left_out() -> None:
    """The name of a thread contains no separator of frames."""
    assert chain_frames(["leaf (/x)", "f (/x)", "[unknown] ([unknown])", "[unknown] (//anon)"]) == ["f (x)", "leaf (x)"]
    assert chain_frames(["[unknown] ([unknown])"]) == chain_frames([]) == [UNKNOWN]
    assert (program_name("a;b  c "), program_name("  ")) == ("a:b c", UNKNOWN)


def test_costs_of_functions_are_kept_if_there_are_too_many_stacks() -> None:
    """The cheapest stacks lose their callers."""
    costs = range(1, 3 * MAX_STACKS)
    lines = [f"{cost}\t1\tp\tleaf{cost % 10} (/x)\tcaller{cost} (/x)\tmain (/x)" for cost in costs]
    stacks = folded_stacks(lines).stacks
    kept = {text: cost for text, cost in stacks.items() if RARE not in text}
    assert kept == {f"p;main (x);caller{cost} (x);leaf{cost % 10} (x)": cost for cost in costs[-MAX_STACKS:]}
    assert len(stacks) == MAX_STACKS + 10
    own: dict[str, float] = {}
    for text, cost in stacks.items():
        own[stack_frames(text)[-1]] = own.get(stack_frames(text)[-1], 0.0) + cost
    assert own == {f"leaf{n} (x)": sum(range(n or 10, 3 * MAX_STACKS, 10)) for n in range(10)}
