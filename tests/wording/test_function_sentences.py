"""The sentences about functions of two profiles."""

import re
from collections.abc import Mapping
from dataclasses import replace

import pytest

from counted import profile
from perfbisect.core.domain.facts import ChangeFacts
from perfbisect.core.explain.evidence import Cause, Evidence, Explanation, Sureness
from perfbisect.core.explain.functions import function_rows, waiter_rows
from perfbisect.wording.functions import notes, sentences

Samples = Mapping[tuple[str, ...], int]

SEARCH, COPY = ("main", "scan", "search"), ("main", "insert", "copy@libc.so.6")
HOT = {("main", "scan"): 4000, SEARCH: 9000, ("main", "insert"): 7000, COPY: 5000}


def said(
    after: Samples,
    *changed: str,
    callers: Mapping[str, tuple[str, ...]] | None = None,
    before: Samples = HOT,
    known: bool = True,
) -> str:
    change = ChangeFacts("c", "p", changed, callers or {}, 1) if known else None
    rows = function_rows([profile("p", before)], [profile("c", after)], change)
    return " ".join(sentences(Explanation("p", "c", functions=rows, unit="us", changed=changed, change_known=known)))


SLOWER = {**HOT, SEARCH: 12_300, ("main", "insert"): 7600}
RENAMED = {stack: number for stack, number in HOT.items() if stack != SEARCH} | {("main", "scan", "find"): 9050}


@pytest.mark.parametrize(
    ("after", "changed", "text"),
    [
        pytest.param(
            SLOWER, ("search",), "85 % (77 to 92 %) of the loss is in `search`, which this commit changes.", id="changed"
        ),
        pytest.param(
            {**HOT, SEARCH: 6000},
            ("search",),
            "100 % (88 to 112 %) of the gain is in `search`, which this commit changes.",
            id="an improvement",
        ),
        pytest.param(
            {**SLOWER, ("main", "insert"): 9000},
            ("search", "insert"),
            "100 % (95 to 105 %) of the loss is in or below functions that this commit changes: `search` (62 %), `insert` (38 %).",
            id="two functions",
        ),
        pytest.param(
            {**HOT, COPY: 8300},
            ("insert",),
            "100 % (88 to 112 %) of the loss is in `copy`, called below `insert`, which this commit changes.",
            id="below a changed function",
        ),
        pytest.param(
            SLOWER,
            ("Page::insert",),
            "85 % (77 to 92 %) of the loss is in `search`, which this commit does not change; 15 % is in or below functions that it changes.",
            id="more elsewhere",
        ),
        pytest.param(
            {**HOT, SEARCH: 12_300},
            ("cold",),
            "100 % (89 to 111 %) of the loss is in `search`, which this commit does not change: it shows only there.",
            id="only elsewhere",
        ),
        pytest.param(HOT, ("search",), "The whole cost of an operation in their profiles does not differ beyond noise.", id="the same"),
        pytest.param(
            {stack: round(1.012 * number) for stack, number in HOT.items()},
            ("search",),
            "The whole cost of an operation in their profiles does not differ beyond noise.",
            id="within noise",
        ),
    ],
)  # fmt: skip
def test_where_the_loss_is(after: Samples, changed: tuple[str, ...], text: str) -> None:
    assert text in said(after, *changed)


def test_changed_functions_in_the_profiles_are_named_with_their_shares() -> None:
    """Also where their cost does not differ beyond noise; the smallest and those that were named are left out."""
    same = said(HOT, "search", "cold")
    assert re.search(
        r"does not differ beyond noise\. This commit changes `search` \(\d+ % of the cost of an operation\)\.$", same
    )
    assert said(SLOWER, "search").endswith("of the loss is in `search`, which this commit changes.")
    found = function_rows([profile("p", HOT)], [profile("c", SLOWER)], ChangeFacts("c", "p", ("insert",), {}, 1))
    by_count = Explanation("p", "c", functions=found, unit="us", metric="instructions/o")
    assert re.fullmatch(
        r"This commit changes `insert` \(\d+ % of the cost of an operation\)\.", " ".join(sentences(by_count))
    )


def test_single_functions_may_differ_where_the_whole_is_too_noisy() -> None:
    few = {("main", "scan"): 40, SEARCH: 30, ("main", "insert"): 90}
    assert said({**few, SEARCH: 75, ("main", "insert"): 70}, "less", callers={"less": ("search",)}, before=few) == (
        "The whole cost of an operation in their profiles does not differ beyond noise, but single functions do:"
        " 90.0 µs more in `search`, into which `less` is inlined, which this commit changes."
    )


def test_what_is_inlined_is_named_with_the_function_around_it() -> None:
    text = said(SLOWER, "less", callers={"less": ("compare",), "compare": ("search",)})
    assert "is in `search`, into which `less` is inlined, which this commit changes." in text


def test_a_small_difference_is_said_with_doubt() -> None:
    assert said({**HOT, SEARCH: 9480}, "search").startswith("Probably: 100 %")


def test_cost_that_moved_is_no_loss() -> None:
    assert said(RENAMED, "search", "find") == (
        "The whole cost of an operation in their profiles does not differ beyond noise."
        " Cost moved from `search` to `find` (18,000 µs an operation); the whole does not differ beyond noise."
    )
    assert said({**RENAMED, ("main", "insert"): 9000}, "search", "find", "insert").endswith(
        "of the loss is in `insert`, which this commit changes."
        " Cost moved from `search` to `find` (18,000 µs an operation); that is no part of it."
    )
    split = {stack: number for stack, number in RENAMED.items() if stack[-1] != "find"}
    split |= {("main", "scan", "low"): 5000, ("main", "scan", "high"): 4000}
    assert "Cost moved from `search` to `low` and `high` (18,000 µs" in said(split)


SPLIT = {stack: number for stack, number in HOT.items() if stack != SEARCH}


def test_what_is_left_of_a_cost_that_moved_is_said() -> None:
    """Renamed or split, and 10 % slower at most: all of the loss is there."""
    text = said({**RENAMED, ("main", "scan", "find"): 9800}, "search", "find")
    assert re.fullmatch(
        r"100 % \(\d+ to \d+ %\) of the loss is left in `find`, to which the cost of `search` moved"
        r" \(18,000 µs an operation\)\.",
        text.removeprefix("Probably: "),
    )
    text = said({**SPLIT, ("main", "scan", "low"): 5300, ("main", "scan", "high"): 4500})
    assert "of the loss is left in `low` and `high`, to which the cost of `search` moved" in text
    text = said({**RENAMED, ("main", "scan", "find"): 8300}, "search", "find")
    assert "of the gain is in `find`, to which the cost of `search` moved (16,600 µs an operation)." in text


def test_what_is_left_in_spite_of_another_difference_is_said_as_well() -> None:
    other = {**RENAMED, ("main", "scan", "find"): 9800, ("main", "insert"): 9000}
    text = said(other, "find")
    assert "of the loss is in `insert`, which this commit does not change." in text
    assert "of the loss is left in `find`, to which" in text
    assert "no part" not in text
    faster = said({**RENAMED, ("main", "scan", "find"): 8300, ("main", "insert"): 9000}, "insert")
    assert faster.endswith("(16,600 µs an operation), where it is 1,400 µs less.")
    even = said({**RENAMED, ("main", "scan", "find"): 9800, ("main", "insert"): 6250})
    assert "the whole cost" in even.lower()
    assert even.endswith("Cost moved from `search` to `find` (18,000 µs an operation), where it is 1,600 µs more.")


def test_below_a_function_into_which_a_changed_one_is_inlined() -> None:
    """Neither the sentence nor the note says that the commit changes `insert`; `outer` has no cost of its own."""
    inlined = "into which a function that this commit changes is inlined"
    deep = ("main", "outer", "copy@libc.so.6")
    for around, why in (("insert", "into which `less` is inlined, which this commit changes"), ("outer", inlined)):
        before = {**HOT, deep: 1000}
        change = ChangeFacts("c", "p", ("less",), {"less": (around,)}, 1)
        after = {**before, (COPY if around == "insert" else deep): 9000}
        rows = function_rows([profile("p", before)], [profile("c", after)], change)
        found = Explanation("p", "c", functions=rows, unit="us", changed=("less",), change_known=True)
        assert f"is in `copy`, called below `{around}`, {why}." in " ".join(sentences(found))
        assert next(notes(rows[0], found.changed)) == f"below {around}, {inlined}"
        assert next(notes(rows[0], (around,))) == f"below {around}, changed by this commit"


def test_without_the_change_nothing_is_said_about_it() -> None:
    assert said(SLOWER, known=False) == "85 % (77 to 92 %) of the loss is in `search`."


def test_a_loss_that_is_everywhere_names_nothing() -> None:
    many = {("main", f"f{number}"): 100 for number in range(150)}
    assert said(dict.fromkeys(many, 115), before=many) == (
        "The loss is spread over many functions: none of them differs beyond noise."
    )


def test_names_are_short_and_steer_no_terminal() -> None:
    long = "void store::Page<std::string>::insert(std::string const&, int) const"
    assert "in `store::Page::insert`" in said({**HOT, ("main", long): 4000})
    assert "\x1b" not in said({**HOT, ("main", "evil\x1b[2J"): 4000})
    assert len(said({**HOT, ("main", "f" * 5000): 4000})) < 300


def test_without_profiles_nothing_is_said() -> None:
    assert sentences(Explanation("p", "c", changed=("f",), change_known=True)) == ()


IDLE, FLUSH = ("main", "scan", "schedule@[kernel]"), ("main", "log", "fdatasync@libc.so.6", "schedule@[kernel]")


def waited(causes: tuple[Cause, ...], after: Samples, rounds: int = 2, longer: float = 1.0) -> str:
    change = ChangeFacts("c", "p", ("log",), {}, 1)
    parent, culprit = (
        replace(profile(commit, stacks), off_cpu=True, seconds=seconds)
        for commit, stacks, seconds in (("p", {IDLE: 900}, 10.0), ("c", after, 10.0 * longer))
    )
    rows = waiter_rows([parent] * rounds, [culprit] * rounds, change)
    classes = tuple(Evidence(cause, None, Sureness.SURE) for cause in causes)
    return " ".join(
        sentences(Explanation("p", "c", classes, waits=rows, unit="us", changed=("log",), change_known=True))
    )


def test_where_a_commit_waits_longer() -> None:
    """All waits are in the kernel's scheduler, and this one was called by way of libc: the engine's own function is named."""
    said = waited((Cause.WAITING,), {IDLE: 900, FLUSH: 2000})
    assert re.fullmatch(r"100 % \(\d+ to \d+ %\) of the longer waiting is in `log`, which this commit changes\.", said)


@pytest.mark.parametrize(
    ("causes", "after"),
    [
        pytest.param((Cause.INSTRUCTIONS,), {IDLE: 900, FLUSH: 2000}, id="another reason"),
        pytest.param((Cause.WAITING,), {IDLE: 930}, id="no longer than noise"),
        pytest.param((Cause.WAITING,), {IDLE: 400}, id="shorter"),
        pytest.param((Cause.WAITING,), {FLUSH: 300}, id="less of one, more of another"),
    ],
)
def test_waiting_that_says_nothing(causes: tuple[Cause, ...], after: Samples) -> None:
    assert waited(causes, after) == ""


def test_one_round_does_not_show_how_much_waits_vary() -> None:
    assert waited((Cause.WAITING,), {IDLE: 900, FLUSH: 2000}, rounds=1) == ""


def test_threads_without_work_wait_as_long_as_others_work() -> None:
    """An operation that takes three times as long, for whatever reason, has three times the idle waiting."""
    assert waited((Cause.WAITING,), {IDLE: 2700}, longer=3.0) == ""
    assert "is in `log`" in waited((Cause.WAITING,), {IDLE: 2700, FLUSH: 2000}, longer=3.0)
