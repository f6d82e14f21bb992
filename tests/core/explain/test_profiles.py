"""Profiles: frames that are read as they were written, names of functions, and folded stacks from what hosts print."""

import pytest

from perfbisect.core.explain.profiles import (
    KERNEL,
    MOST,
    NAME,
    RARE,
    UNKNOWN,
    binary,
    fold,
    frame,
    frames,
    program,
    read_frame,
    readable,
    same,
    short,
    source_name,
    split,
    stack,
)


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
        ("", "libz.so.1", "[libz.so.1]"),  # addresses without a symbol are one frame
        ("", "[kernel]", "[kernel]"),
        ("", UNKNOWN, UNKNOWN),
    ],
)
def test_a_frame_is_read_as_it_was_written(function: str, binary: str, text: str) -> None:
    assert frame(function, binary) == text
    assert read_frame(text) == (function or text, binary)


def test_no_name_can_end_a_frame_or_a_line() -> None:
    written = frame("a;b\nc", "odd;name (deleted)")
    assert written == "a:b:c (odd:name [deleted])"
    assert read_frame(written) == ("a:b:c", "odd:name [deleted]")
    assert frames(f"program;{written};{frame('d', 'libc.so.6')}") == (written, "d (libc.so.6)")


def test_a_program_has_no_binary_and_no_frame_may_lack_one() -> None:
    assert read_frame("mysqld") == ("mysqld", "")
    assert frames("mysqld") == ()
    assert frame("", "") == UNKNOWN


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


@pytest.mark.parametrize(
    ("function", "scope", "own"),
    [
        ("row_search_mvcc", "", "row_search_mvcc"),
        ("node_search.constprop.0", "", "node_search"),
        ("memcpy@plt", "", "memcpy"),
        ("B<int>::insert(std::string const&)", "B", "insert"),
        ("void ns::B<int>::insert(int) const [clone .cold]", "B", "insert"),
        ("std::vector<std::pair<int, int>>::push_back(std::pair<int, int>&&)", "vector", "push_back"),
        ("(anonymous namespace)::f(int)", "", "f"),
        ("n::B::~B()", "B", "~B"),
        ("B::operator==(int) const", "B", "operator=="),
        ("operator ==", "", "operator=="),
        ("B::operator()(int)", "B", "operator()"),
        ("std::operator<< <char>(std::ostream&)", "std", "operator<<"),
        ("B::operator bool() const", "B", "operatorbool"),
        ("B::operator new[](unsigned long)", "B", "operatornew[]"),
        ('operator"" _km(long double)', "", 'operator""_km'),
        ("B::operator->() const", "B", "operator->"),
        ("ns::operators::Page::insert(int)", "Page", "insert"),
        ("engine::operator::next", "operator", "next"),
        ("operator_of(int)", "", "operator_of"),
        ("scan(Table*)::{lambda(int)#1}::operator()(int) const", "", "scan"),
        ("engine::page::insert::h0123456789abcdef", "page", "insert"),
        ("engine::page::insert::{{closure}}::h0123456789abcdef", "page", "insert"),
        ("main.(*Tree).Insert", "", "Insert"),
        ("f[abi:cxx11](int)", "", "f"),
        ("[libz.so.1]", "", ""),
        ("", "", ""),
    ],
)
def test_scope_and_own_name(function: str, scope: str, own: str) -> None:
    assert split(function) == (scope, own)


def test_names_mean_one_function_unless_their_scopes_differ() -> None:
    assert same("ns::Page::insert(int) const", "Page::insert")
    assert same("insert", "Page::insert")
    assert not same("Tree::insert(int)", "Page::insert")
    assert not same("[libz.so.1]", "[libz.so.1]"), "addresses without a name"


def test_operators_are_shown_whole() -> None:
    assert short("ns::operators::Page::insert(int)") == "ns::operators::Page::insert"
    assert short("ns::B::operator()(int) const") == "ns::B::operator()(int) const"


LIBC = "/usr/lib/x86_64-linux-gnu/libc.so.6"


def test_equal_stacks_are_one() -> None:
    """Chains may differ by what is not kept: the path of a binary."""
    lines = [
        "2000\t2\tserver\tleaf (/a/server)\tmain (/a/server)",
        "1000\t1\tserver\tleaf (/b/server)\tmain (/b/server)",
        "5000\t5\tserver\tmain (/a/server)",
        "lost\t7",
    ]
    folded = fold(lines, per_unit=1000)
    assert folded.stacks == {"server;main (server);leaf (server)": 3.0, "server;main (server)": 5.0}
    assert (folded.samples, folded.lost) == (8, 7)
    assert folded.alone == pytest.approx(5 / 8)


@pytest.mark.parametrize(
    "line", ["", "a\tb\tc", "12", "12\t1", "-1\t1\tserver\tf (/x)", "perf: something\tis wrong", "lost\t"]
)
def test_a_line_of_anything_else_is_left_out_or_has_no_frame(line: str) -> None:
    folded, none = fold([line]), fold([])
    assert set(folded.stacks) <= {f"{UNKNOWN};{UNKNOWN}"}
    assert (none.stacks, none.samples, none.alone) == ({}, 0, 0.0)


@pytest.mark.parametrize(
    ("text", "frame"),
    [
        ("row_search_mvcc (/opt/mysql/bin/mysqld)", "row_search_mvcc (mysqld)"),
        ("shop::Store<shop::Item>::put (/srv/bench/store)", "shop::Store<shop::Item>::put (store)"),
        ("(anonymous namespace)::pick (/srv/bench/store)", "(anonymous namespace)::pick (store)"),
        ("operator new (/usr/lib/libstdc++.so.6.0.30)", "operator new (libstdc++.so.6.0.30)"),
        ("std::function<void (int)>::operator() (/srv/store)", "std::function<void (int)>::operator() (store)"),
        (f"__libc_start_main@@GLIBC_2.34 ({LIBC})", "__libc_start_main (libc.so.6)"),
        ("malloc@plt (/srv/store)", "malloc@plt (store)"),
        ("vfs_read ([kernel.kallsyms])", "vfs_read ([kernel])"),
        ("ext4_file_read_iter ([ext4])", "ext4_file_read_iter ([kernel])"),
        ("[unknown] ([kernel.kallsyms])", "[kernel]"),
        ("__vdso_clock_gettime ([vdso])", "__vdso_clock_gettime ([vdso])"),
        ("[unknown] (/usr/sbin/mariadbd)", "[mariadbd]"),
        ("old (/usr/sbin/mariadbd (deleted))", "old (mariadbd)"),
        ("[unknown] (/tmp/perf-4711.map)", "[jit]"),
        ("lua_add (/tmp/perf-4711.map)", "lua_add ([jit])"),
        ("[unknown] (//anon)", UNKNOWN),
        ("[unknown] ([heap])", UNKNOWN),
        ("[unknown] ([unknown])", UNKNOWN),
        ("no binary at all", "no binary at all ([unknown])"),
        ("a;b (/x;y)", "a:b (x:y)"),
    ],
)
def test_frames_of_perf(text: str, frame: str) -> None:
    assert readable(text) == frame


def test_long_names_are_cut_in_the_middle() -> None:
    short = readable(f"begin{'x' * 5000}end (/srv/store)")
    assert len(short) <= NAME + len(" (store)")
    assert short.startswith("beginx")
    assert short.endswith("xend (store)")


def test_binaries_of_the_kernel() -> None:
    assert {
        binary(path) for path in ("[kernel]", "[guest.kernel.kallsyms]", "[nf_tables]", "/lib/modules/6/ext4.ko.xz")
    } == {KERNEL}


def test_neighbours_without_symbols_are_one_frame_and_recursion_is_kept() -> None:
    chain = ["leaf (/x)", "[unknown] (/x)", "[unknown] (/x)", "walk (/x)", "walk (/x)", "[unknown] (/x)", "main (/x)"]
    assert stack(chain) == ["main (x)", "[x]", "walk (x)", "walk (x)", "[x]", "leaf (x)"]


def test_callers_that_a_host_left_out_are_as_those_left_out_here() -> None:
    folded = fold([f"5\t2\tserver\tleaf (/server)\t{RARE}"])
    assert folded.stacks == {f"server;{RARE};leaf (server)": 5.0}
    assert folded.alone == 0, "it had callers"


def test_what_is_not_known_at_the_outer_end_is_left_out() -> None:
    assert stack(["leaf (/x)", "f (/x)", "[unknown] ([unknown])", "[unknown] (//anon)"]) == ["f (x)", "leaf (x)"]
    assert stack(["[unknown] ([unknown])"]) == stack([]) == [UNKNOWN]


def test_the_name_of_a_thread_ends_no_frame() -> None:
    assert program("a;b  c ") == "a:b c"
    assert program("  ") == UNKNOWN


def test_of_many_stacks_the_costs_of_functions_are_kept() -> None:
    """The callers of the cheapest are not."""
    lines = [f"{number}\t1\tp\tleaf{number % 10} (/x)\tcaller{number} (/x)\tmain (/x)" for number in range(1, 3 * MOST)]
    folded = fold(lines)
    assert sum(RARE not in text for text in folded.stacks) == MOST
    assert len(folded.stacks) == MOST + 10
    assert sum(folded.stacks.values()) == sum(range(1, 3 * MOST))
    own: dict[str, float] = {}
    for text, cost in folded.stacks.items():
        own[frames(text)[-1]] = own.get(frames(text)[-1], 0.0) + cost
    assert own == {f"leaf{n} (x)": sum(range(n or 10, 3 * MOST, 10)) for n in range(10)}
    dearest = max(folded.stacks, key=lambda text: folded.stacks[text] if RARE not in text else 0.0)
    assert dearest == f"p;main (x);caller{3 * MOST - 1} (x);leaf{(3 * MOST - 1) % 10} (x)"
