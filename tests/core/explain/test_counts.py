"""Instructions by function: reading the counts that a host prints, and explaining a change by longer or more calls."""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from counted import profile, run
from perfbisect.core.domain.events import ChangedFunctions, Profiled
from perfbisect.core.domain.facts import ChangeFacts, ProfileFacts
from perfbisect.core.explain.explanation import NO_RUNS, explanation, is_mostly_by_more_calls
from perfbisect.core.explain.profiles import MAX_CALL_PAIRS, chain_frames, subtract_short_execution
from perfbisect.wording.functions import location_and_behaviour


def test_counts_of_the_short_execution_are_subtracted() -> None:
    """executions.txt has the output of a host for a short execution and for a longer execution."""
    short, long = (each.splitlines() for each in Path(__file__).with_name("executions.txt").read_text().split("\n\n"))
    stacks, calls = subtract_short_execution(short, long)
    assert stacks == {"bench;hash (bench)": 500, "bench;hash (bench);mix (bench)": 30, "bench;[libm.so.6]": 2}
    assert calls == {"main (bench);hash (bench)": 10}
    whole, all_calls = subtract_short_execution([], long)
    assert whole["bench;main (bench)"] == 90
    assert all_calls["[unknown];start (bench)"] == 1


LINE = st.one_of(
    st.text(),
    st.builds("\t".join, st.lists(st.text(st.characters(exclude_characters="\t")), max_size=6)),
    st.builds("{}\t{}\t{}\t{}".format, st.integers(), st.sampled_from(["1", "calls", "x"]), st.text(), st.text()),
)


@given(short=st.lists(LINE), long=st.lists(LINE))
def test_any_output_of_a_host_is_read_without_error(short: Sequence[str], long: Sequence[str]) -> None:
    stacks, calls = subtract_short_execution(short, long)
    assert all(cost > 0 and "\n" not in text for text, cost in stacks.items())
    assert all(number > 0 and text.count(";") == 1 for text, number in calls.items())


def test_number_of_call_pairs_is_bounded() -> None:
    _, calls = subtract_short_execution(
        [], (f"{number}\tcalls\tf{number} (/b)\tg (/b)" for number in range(1, MAX_CALL_PAIRS + 9))
    )
    assert (len(calls), min(calls.values())) == (MAX_CALL_PAIRS, 9)


def counted(commit: str, costs: Mapping[str, float], calls: Mapping[str, float], operations: int = 100) -> Profiled:
    """A count, given instructions and calls of one operation. The key "hash mix" is function mix, inlined into hash."""

    def frame(name: str) -> str:
        return f"{name} (bench)" if "@" not in name else f"{name.replace('@', ' (')})"

    def chain(names: str) -> str:
        return ";".join(map(frame, names.split()))

    stacks = {f"bench;{chain(names)}": operations * cost for names, cost in costs.items()}
    pairs = {chain(names): operations * number for names, number in calls.items()}
    facts = ProfileFacts(commit, commit, "h", operations, 1.0, "instructions", stacks, samples=0, calls=pairs)
    return Profiled(0 if commit == "p" else 1, facts)


PARENT = {"main": 20.0, "insert": 40.0, "hash": 400.0, "hash mix": 200.0, "copy@libc.so.6": 40.0}
CALLS_BEFORE = {"main insert": 1.0, "insert hash": 2.0, "hash copy@libc.so.6": 4.0}


def change(*functions: str, calls: Mapping[str, float] | None = None, **costs: float) -> list[Any]:
    """The counts of the parent, and of a commit that changes ``functions`` and has these calls and costs."""
    parent, culprit = counted("p", PARENT, CALLS_BEFORE), counted("c", PARENT | costs, CALLS_BEFORE | (calls or {}))
    return [parent, culprit, ChangedFunctions(1, ChangeFacts("c", "p", functions, files=1))]


CULPRITS = tomllib.loads(Path(__file__).with_name("counts.toml").read_text())["culprit"]


@pytest.mark.parametrize("culprit", CULPRITS, ids=lambda culprit: culprit["said"][:40])
def test_longer_calls_are_distinguished_from_more_calls(culprit: Any) -> None:
    costs, said = culprit["costs"], culprit["said"]
    found = explanation(
        change(*culprit["changed"], calls=culprit.get("calls", {}), **costs), "p", "c", metric="instructions/o"
    )
    assert " ".join(filter(None, location_and_behaviour(found))).startswith(said)
    more = sum(cost - PARENT.get(name, 0.0) for name, cost in costs.items())
    assert sum(row.difference for row in found.counts) == pytest.approx(more)
    assert not found.functions, "profiles of time are another table"
    assert is_mostly_by_more_calls(found) is ("times as often" in said)


def test_inlined_function_is_shown_with_its_containing_function() -> None:
    events = change("insert", calls={"insert hash": 4.0}, **{"hash": 800.0, "hash mix": 400.0})
    found = {row.function: row for row in explanation(events, "p", "c").counts}
    assert (found["mix"].inlined_into, found["mix"].below_changed, found["mix"].calls) == ("hash", "insert", None)


def test_sentence_of_counts_does_not_repeat_sentence_of_times() -> None:
    times = [Profiled(1, profile(commit, {("main", "hash"): n})) for commit, n in (("p", 5000), ("c", 9000))]
    of_time, of_counts = location_and_behaviour(explanation([*times, *change("hash", hash=440.0)], "p", "c"))
    assert of_time.endswith(" of the loss is in `hash`, which this commit changes.")
    assert of_counts == "`hash` executes 40 more instructions an operation (+10 %), called as often as before."


@pytest.mark.parametrize("calls", [2.0, 0.001])
def test_function_without_samples_is_gone_only_if_counts_agree(calls: float) -> None:
    """The parent has samples of `copy`, and the commit has none. Exact counts show whether `copy` is still called."""
    times = [
        Profiled(
            number, profile(commit, {("main",): 4000, ("main", "insert"): 900, ("main", "insert", "copy"): copies})
        )
        for number, commit, copies in ((0, "p", 5000), (1, "c", 0))
    ]
    pair = "insert copy"
    events = [
        counted("p", {"insert": 40.0, "copy": 400.0}, {pair: 2.0}),
        counted("c", {"insert": 40.0, "copy": 4.0}, {pair: calls}),
    ]
    change = ChangedFunctions(1, ChangeFacts("c", "p", ("insert",), files=1))
    _, said = location_and_behaviour(explanation([*times, *events, change], "p", "c"))
    gone = "`copy` (51 % of the parent's cost) is no longer called."
    assert said.endswith(
        "396 fewer instructions an operation (×0.010), called as often as before." if calls > 1 else gone
    )


@pytest.mark.parametrize(
    ("cost", "how"),
    [
        (440.0, "takes 44 % less time, though it executes 40 more instructions an operation (+10 %)"),
        (360.0, "takes 44 % less time, but executes only 40 fewer instructions an operation (−10 %)"),
        (200.0, "executes 200 fewer instructions an operation (−50 %)"),
    ],
)
def test_sentence_says_if_instructions_do_not_explain_the_time(cost: float, how: str) -> None:
    times = [Profiled(1, profile(commit, {("main", "hash@bench"): n})) for commit, n in (("p", 9000), ("c", 5000))]
    _, said = location_and_behaviour(explanation([*times, *change("hash", hash=cost)], "p", "c"))
    beside = ": memory or branches take less time there." if "time" in how else "."
    assert said == f"`hash` {how}, called as often as before{beside}"


def test_unchanged_function_of_a_library_is_mentioned_once() -> None:
    copy = "copy@libc.so.6"
    times = [Profiled(1, profile(commit, {("@kv", copy): n})) for commit, n in (("p", 5000), ("c", 9000))]
    of_time, of_counts = location_and_behaviour(explanation([*times, *change("hash", **{copy: 90.0})], "p", "c"))
    assert of_time.endswith("`copy` (called by `[kv]`), which this commit does not change; this commit changes `hash`.")
    assert of_counts.startswith("`copy` executes 50 more")


def test_new_function_is_named_with_its_instructions() -> None:
    events = [
        counted(commit, {"main": 100.0, name: cost}, {})
        for commit, name, cost in (("p", "old", 4e3), ("c", "new", 4.2e3))
    ]
    said, _ = location_and_behaviour(explanation(events, "p", "c"))
    assert said == "`new` executes 4,200 instructions an operation, and none before."


def test_calls_between_parts_of_a_function_are_not_counted() -> None:
    calls = {"main hash": 2.0, "hash hash.part.0": 1.0, "hash hash": 3.0}
    events = [counted(commit, {"hash": cost, "hash.part.0": 9.0}, calls) for commit, cost in (("p", 50.0), ("c", 60.0))]
    [row] = explanation(events, "p", "c").counts
    assert (row.parent, row.culprit, row.calls) == (59, 69, (5, 5))


def test_run_counts_as_one_operation_if_operations_are_unknown() -> None:
    events = [counted(commit, {"hash": cost}, {}, operations=1) for commit, cost in (("p", 5e6), ("c", 6e6))]
    found = explanation(events, "p", "c")
    assert location_and_behaviour(found) == ("`hash` executes 1.00 million more instructions a run (+20 %).", "")
    fixed_length = [replace(run(1, {}), reported=200.0)], [replace(run(1, {}), reported=100.0)]
    assert explanation(events, "p", "c", fixed_length, metric="rate").counts == (), "they do not do the same work"


@pytest.mark.parametrize("depth", [1, 3])
def test_sampled_instructions_have_an_interval(depth: int) -> None:
    def sampled(commit: str, share: int) -> Profiled:
        names = [f"{name} (/bench)" for name in ("hash", "insert", "main")[:depth]]
        stacks = {";".join(["bench", *chain_frames(names)]): 1e6 * share, "bench;other (bench)": 3e9}
        facts = ProfileFacts(commit, commit, "h", 1000, 1.0, "instructions", stacks, samples=3000 + share)
        return Profiled(0, facts)

    found = explanation([sampled("p", 2000), sampled("c", 4000)], "p", "c")
    first = found.counts[0]
    assert (first.function, first.calls) == ("hash", None)
    assert first.difference == pytest.approx(2e6)
    assert 0.01 < first.error / first.difference < 0.1
    assert "`hash` executes 2.00 million (± 150,000) more instructions an operation (+100 %)" in " ".join(
        location_and_behaviour(found)
    )
    assert explanation([sampled("p", 2000)], "p", "c").classes[0].detail == NO_RUNS
