"""Sentences about functions of two profiles, compared with functions.txt. To accept others, delete it and run twice."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import chain

from counted import profile
from perfbisect.core.domain.facts import ChangeFacts
from perfbisect.core.explain.calls import calls_in_one_build, locate_difference
from perfbisect.core.explain.evidence import Cause, Evidence, Explanation, Sureness
from perfbisect.core.explain.functions import function_rows, off_cpu_rows
from perfbisect.core.explain.profiles import non_system_functions, waits_by_kind
from perfbisect.wording.functions import location_and_behaviour
from perfbisect.wording.reasons import function_notes
from pinned import pinned

Samples = Mapping[tuple[str, ...], int]

SEARCH, COPY = ("main", "scan", "search"), ("main", "insert", "copy@libc.so.6")
HOT = {("main", "scan"): 4000, SEARCH: 9000, ("main", "insert"): 7000, COPY: 5000}


SLOWER = {**HOT, SEARCH: 12_300, ("main", "insert"): 7600}
RENAMED = {stack: number for stack, number in HOT.items() if stack != SEARCH} | {("main", "scan", "find"): 9050}
SPLIT = {stack: number for stack, number in HOT.items() if stack != SEARCH}
FEW = {("main", "scan"): 40, SEARCH: 30, ("main", "insert"): 90}
MANY = {("main", f"f{number}"): 100 for number in range(150)}
FIND, LOW, HIGH, INSERT = *(("main", "scan", name) for name in ("find", "low", "high")), ("main", "insert")
LONG = "void store::Page<std::string>::insert(std::string const&, int) const"
# Profiles like the profiles of public reports: a replaced callee, a missing callee, generated code, another path.
REPLY = ("main", "aeMain", "zrangeCommand", "addReplyDouble")
PRINTED = (*REPLY, "snprintf@libc.so.6", "vfprintf@libc.so.6")
SENT = {
    ("main", "aeMain", "writeToClient", "write@[kernel]"): 4000,
    ("main", "aeMain", "zrangeCommand"): 900,
    REPLY: 100,
}
DOUBLES = {
    (*PRINTED, "__GI___printf_fp_l@libc.so.6"): 2300,
    (*PRINTED, "hack_digit@libc.so.6"): 2600,
    PRINTED: 900,
    **SENT,
}
GRISU = {(*REPLY, "fpconv_dtoa", "grisu2"): 500, (*REPLY, "fpconv_dtoa"): 300, **SENT, REPLY: 130}
MATCH = ("main", "RE2::Match(StringPiece const&) const", "re2::DFA::SearchFFF(re2::DFA::SearchParams*)")
LOOP = (*MATCH, "bool re2::DFA::InlinedSearchLoop<true, false, true>(re2::DFA::SearchParams*)")
SCAN = {LOOP: 1200, (*LOOP, "__memchr_avx2@libc.so.6"): 700, MATCH: 700, ("main",): 400}
RANKED = ("main", "aeMain", "call", "zrangeGenericCommand")
RANGE = {(*RANKED, "addReply"): 900, (*RANKED, "zslGetElementByRank"): 150, (*RANKED, "addReply", "memcpy@libc.so.6"): 500,
         ("main", "aeMain", "readQuery", "read@[kernel]"): 2500}  # fmt: skip
WALKED = {**RANGE, (*RANKED, "zslGetElementByRank"): 2100, (*RANKED, "zslGetElementByRank", "sdscmp"): 1700,
          (*RANKED, "addReply"): 2300, ("main", "aeMain", "readQuery", "read@[kernel]"): 3000}  # fmt: skip
GC = ("main", "apply", "gc")
PROTECT = ("commit", "mprotect@libc.so.6", "change_pte_range@[kernel]")
PROTECTED = [("main", outer, *PROTECT) for outer in ("release", "alloc")]
FORMAT = ("main", "fmt::v8::detail::vformat_to<char>(fmt::v8::detail::buffer<char>&, int)")
WRITTEN = (*FORMAT, "fmt::v8::detail::bigint::multiply(unsigned int)")


@dataclass(frozen=True)
class Case:
    """The samples of parent and culprit, and the functions that the culprit changes."""

    after: Samples
    changed: tuple[str, ...] = ()
    callers: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    before: Samples = field(default_factory=lambda: HOT)
    known: bool = True
    metric: str = "qps"


CASES = {
    "changed": Case(SLOWER, ("search",)),
    "an improvement": Case({**HOT, SEARCH: 6000}, ("search",)),
    "two functions": Case({**SLOWER, INSERT: 9000}, ("search", "insert")),
    "below a changed function": Case({**HOT, COPY: 8300}, ("insert",)),
    "more elsewhere": Case(SLOWER, ("Page::insert",)),
    "only elsewhere": Case({**HOT, SEARCH: 12_300}, ("cold",)),
    "the same; changed functions are named with their shares": Case(HOT, ("search", "cold")),
    "within noise": Case({stack: round(1.012 * number) for stack, number in HOT.items()}, ("search",)),
    "a count": Case(SLOWER, ("insert",), metric="instructions/o"),
    "single functions, the whole too noisy": Case(
        {**FEW, SEARCH: 75, INSERT: 70}, ("less",), {"less": ("search",)}, before=FEW
    ),
    "inlined": Case(SLOWER, ("less",), {"less": ("compare",), "compare": ("search",)}),
    "a small difference": Case({**HOT, SEARCH: 9480}, ("search",)),
    "cost that moved": Case(RENAMED, ("search", "find")),
    "cost that moved, and a loss": Case({**RENAMED, INSERT: 9000}, ("search", "find", "insert")),
    "cost that moved to two": Case({**SPLIT, LOW: 5000, HIGH: 4000}),
    "renamed and slower": Case({**RENAMED, FIND: 9800}, ("search", "find")),
    "split and slower": Case({**SPLIT, LOW: 5300, HIGH: 4500}),
    "renamed and faster": Case({**RENAMED, FIND: 8300}, ("search", "find")),
    "left in spite of another difference": Case({**RENAMED, FIND: 9800, INSERT: 9000}, ("find",)),
    "moved and faster, a loss elsewhere": Case({**RENAMED, FIND: 8300, INSERT: 9000}, ("insert",)),
    "moved and slower, a gain elsewhere": Case({**RENAMED, FIND: 9800, INSERT: 6250}),
    "the change is not known": Case(SLOWER, known=False),
    "three of many": Case({**MANY, **dict.fromkeys([*MANY][:3], 300)}, before=MANY),
    "everywhere": Case(dict.fromkeys(MANY, 115), before=MANY),
    "two of three, each within noise": Case({**FEW, SEARCH: 50, INSERT: 128}, ("search",), before=FEW),
    "a long name": Case({**HOT, ("main", LONG): 4000}),
    "a hostile name": Case({**HOT, ("main", "evil\x1b[2J"): 4000}),
    "a callee is replaced by a faster one": Case(GRISU, ("addReplyDouble", "fpconv_dtoa", "grisu2"), before=DOUBLES),
    "a callee is replaced by a slower one": Case(DOUBLES, ("addReplyDouble", "fpconv_dtoa", "grisu2"), before=GRISU),
    "a scan is lost": Case(
        {LOOP: 14_000, MATCH: 700, ("main",): 400},
        ("Prog::ConfigurePrefixAccel",),
        {"Prog::ConfigurePrefixAccel": ("RE2::Match",)},
        before=SCAN,
    ),
    "generated code": Case(
        {("pcre2_match", "@[jit]"): 9000, ("main",): 500},
        ("compile_charclass",),
        before={("pcre2_match", "@[jit]"): 2200, ("main",): 500},
    ),
    "another path": Case(WALKED, ("zrangeGenericCommand",), before=RANGE),
    "a function of a library": Case(
        {WRITTEN: 9000, FORMAT: 400}, ("bigint::multiply",), before={FORMAT: 380, WRITTEN: 40}
    ),
    "inlined into its caller": Case({**SPLIT, ("main", "scan"): 13_050}, ("scan", "search")),
    "no longer called": Case({stack: number for stack, number in HOT.items() if stack != SEARCH}, ("search", "scan")),
    "a system call is gone, of which a part is below a changed function": Case(
        {("main", "alloc", "memset@libc.so.6"): 2000, ("main",): 900},
        ("release",),
        before={
            **dict.fromkeys(PROTECTED, 2000),
            ("main", "alloc", "memset@libc.so.6"): 3500,
            ("main",): 900,
        },
    ),
    "a program without symbols": Case({("@kv",): 30_000}, ("search",), before={("@kv",): 25_000}),
    "what is said to be inlined into main may never run": Case(SLOWER, ("cold",), {"cold": ("main",)}),
    "callers that the compiler hid before": Case(
        {("main", "apply"): 9000, (*GC, "bytes"): 9700, (*GC, "mark"): 6000, INSERT: 9000},
        before={
            ("main", "apply"): 6000,
            ("main", "apply", "bytes"): 4500,
            (*GC, "bytes"): 3500,
            (*GC, "mark"): 4000,
            INSERT: 9000,
        },
    ),
    "a very long name": Case({**HOT, ("main", "f" * 5000): 4000}),
}


def sentences_of(case: Case) -> str:
    """The sentences about the functions of a case."""
    change = ChangeFacts("c", "p", case.changed, case.callers, 1) if case.known else None
    both = [profile("p", case.before)], [profile("c", case.after)]
    rows = function_rows(both, change)
    seen = non_system_functions(chain(*both))
    place = locate_difference(both, rows, change, seen)
    facts = {"changed": case.changed, "change_known": case.known, "metric": case.metric, "location": place}
    facts |= {} if place else {"calls": calls_in_one_build(both, rows, change, seen)}
    return " ".join(filter(None, location_and_behaviour(Explanation("p", "c", functions=rows, unit="us", **facts))))


def test_sentences_about_functions_equal_functions_txt() -> None:
    texts = {name: sentences_of(case) for name, case in CASES.items()}
    pinned("wording/functions.txt", "".join(f"{name}\n  {text}\n" for name, text in texts.items()))
    assert not [name for name, text in texts.items() if "\x1b" in text or len(text) > 400]


def test_sentence_says_that_a_changed_function_is_inlined_into_a_caller() -> None:
    """The commit changes `less`, inlined into ``around``. No text says that the commit changes `insert`."""
    inlined, why = (
        "into which a function that this commit changes is inlined",
        "into which `less` is inlined, which this commit changes",
    )
    deep = ("main", "outer", "copy@libc.so.6")
    for around in ("insert", "outer"):
        before = {**HOT, deep: 1000}
        change = ChangeFacts("c", "p", ("less",), {"less": (around,)}, 1)
        after = {**before, (COPY if around == "insert" else deep): 9000}
        both = [profile("p", before)], [profile("c", after)]
        rows = function_rows(both, change)
        place = locate_difference(both, rows, change, non_system_functions(chain(*both)))
        found = Explanation("p", "c", functions=rows, location=place, unit="us", changed=("less",), change_known=True)
        assert f"is in `copy`, called below `{around}`, {why}." in " ".join(location_and_behaviour(found))
        assert next(function_notes(rows[0], found.changed)) == f"called below {around}, {inlined}"
        assert next(function_notes(rows[0], (around,))) == f"called below {around}, which this commit changes"


def kernel(*functions: str) -> tuple[str, ...]:
    """The stack of a thread that waits in these functions of the kernel."""
    return ("main", *(f"{name}@[kernel]" for name in functions), "schedule@[kernel]")


def test_sentence_names_the_kind_of_longer_waits() -> None:
    """Functions of the kernel show the kind. A function of the program with such a name shows nothing."""
    lock, disk = kernel("do_futex", "futex_wait"), kernel("ext4_sync_file", "io_schedule")
    client, other, named = kernel("do_epoll_wait"), kernel("do_nanosleep"), ("main", "my_futex", "schedule@[kernel]")
    before = {lock: 300, disk: 200, client: 500, other: 100, named: 100}
    parent = replace(profile("p", before), off_cpu=True)
    culprit = replace(profile("c", {**before, lock: 900, other: 900, named: 900}), off_cpu=True)
    rows = off_cpu_rows(([waits_by_kind(parent)] * 2, [waits_by_kind(culprit)] * 2))
    assert {row.function for row in rows} == {"locks (futex)", "storage", "others' answers (sockets, pipes)"}
    waits, waiting = off_cpu_rows(([parent] * 2, [culprit] * 2)), (Evidence(Cause.WAITING, None, Sureness.SURE),)
    found = Explanation("p", "c", waiting, waits=waits, kinds_of_waits=rows, unit="us")
    sentence = "In an operation, this commit waits 1.20 ms (± 72.0 µs) longer for locks (futex)."
    assert sentence in location_and_behaviour(found)
    assert "locks" not in " ".join(location_and_behaviour(replace(found, classes=())))


IDLE, FLUSH = ("main", "scan", "schedule@[kernel]"), ("main", "log", "fdatasync@libc.so.6", "schedule@[kernel]")


def waited(after: Samples, cause: Cause = Cause.WAITING, rounds: int = 2, longer: float = 1.0) -> str:
    change = ChangeFacts("c", "p", ("log",), {}, 1)
    parent, culprit = (
        replace(profile(commit, stacks), off_cpu=True, seconds=seconds)
        for commit, stacks, seconds in (("p", {IDLE: 900}, 10.0), ("c", after, 10.0 * longer))
    )
    rows, classes = (
        off_cpu_rows(([parent] * rounds, [culprit] * rounds), change),
        (Evidence(cause, None, Sureness.SURE),),
    )
    found = Explanation("p", "c", classes, waits=rows, unit="us", changed=("log",), change_known=True)
    return " ".join(filter(None, location_and_behaviour(found)))


def test_sentence_names_the_function_that_waits_longer() -> None:
    """The innermost frames are functions of the kernel and libc. The sentence names the function of the program."""
    longer = {IDLE: 900, FLUSH: 2000}
    assert waited(longer).endswith(" of the longer waiting is in `log`, which this commit changes.")
    assert waited(longer, Cause.INSTRUCTIONS) == "", "another reason"
    assert waited(longer, rounds=1) == "", "one round does not show how much waits vary"
    # A longer wait within noise, a shorter wait, and a wait in place of another wait.
    assert [waited(after) for after in ({IDLE: 930}, {IDLE: 400}, {FLUSH: 300})] == [""] * 3
    without_profiles = Explanation("p", "c", changed=("f",), change_known=True)
    assert location_and_behaviour(without_profiles) == ("", "")
    # Threads without work wait until the run ends.
    assert waited({IDLE: 2700}, longer=3.0) == ""
    assert "is in `log`" in waited({IDLE: 2700, FLUSH: 2000}, longer=3.0)
