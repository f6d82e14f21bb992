"""The table of counters of two builds: from which runs, with which interval, in which order."""

from dataclasses import replace
from random import Random

import pytest

from counted import BLOATED, FULL, changed, counted, run
from perfbisect.core.domain.events import Unexplained
from perfbisect.core.domain.facts import RunFacts
from perfbisect.core.explain.classes import classify
from perfbisect.core.explain.evidence import Cause, Sureness, counter_rows
from perfbisect.core.explain.explanation import explanation


def noisy(operations: int, wobble: float, instructions: float = 1.0) -> RunFacts:
    facts = changed(operations, instructions=instructions)
    return replace(facts, counters={name: (value or 0) * (1 + wobble) for name, value in facts.counters.items()})


def test_paired_runs_are_compared_within_their_pair() -> None:
    """A disturbance of both builds cancels in their ratio. Runs without a partner are left out."""
    random = Random(7)

    def cpu(name: str, ms: float) -> RunFacts:
        return replace(run(1000), round=name, counters={"task-clock": ms})

    slow = {name: random.uniform(1, 3) for name in ("r1", "r2", "r3", "r4")}
    parent = [cpu("other", 40.0), *(cpu(name, 10.0 * factor) for name, factor in slow.items())]
    culprit = [*(cpu(name, 11.0 * each * random.uniform(0.999, 1.001)) for name, each in slow.items()), cpu("", 50.0)]
    found = explanation([], "p", "c", (parent, culprit))
    [row] = [row for row in found.counters if row.name == "cpu/o"]
    assert 1.095 < row.ratio.low < 1.1 < row.ratio.high < 1.105


def test_interval_of_a_counter_counts_rounds_and_not_counter_groups() -> None:
    """Four counter groups that share the visits of three rounds are not four times three rounds."""
    parent, culprit = [run()] * 3, [noisy(200_000, wobble, 1.05) for wobble in (0.0, 0.02, -0.02)]
    one = counter_rows({"a": parent}, {"a": culprit})
    four = counter_rows(dict.fromkeys("abcd", parent), dict.fromkeys("abcd", culprit))
    assert one == four
    row = next(row for row in one if row.name == "instructions/o")
    assert row.rounds == 3 and row.ratio.low < 1.05 < row.ratio.high
    assert not row.is_significant, "three rounds that differ by 2 % do not show a change of 5 %"


def test_counter_rows_are_ordered_by_change_relative_to_noise() -> None:
    wobbling = [changed(200_000, instructions=1.01 + d / 1000, dTLB_load_misses=1.3 + d) for d in (0.2, -0.2, 0.1, 0.0)]
    names = [row.name for row in counter_rows({"": [run()] * 4}, {"": wobbling})]
    assert names.index("instructions/o") < names.index("dTLB-load-misses/o")


def test_counters_that_perf_extrapolated_are_marked_and_less_sure() -> None:
    runs = [BLOATED] * 3, [replace(BLOATED, running={"instructions": 0.6})] * 3
    sure, less = (classify(counter_rows({"": [run()] * 3}, {"": each}))[0] for each in runs)
    assert [(each.sure, each.rows[0].share) for each in (sure, less)] == [(Sureness.SURE, 1.0), (Sureness.LIKELY, 0.6)]


@pytest.mark.parametrize("rounds", [1, 2, 3])
def test_runs_of_the_search_are_used_if_few_rounds_were_counted(rounds: int) -> None:
    usual = [run()] * 6, [noisy(140_000, wobble, 1.42) for wobble in (0.01, -0.01) * 3]
    found = explanation(counted([run()] * rounds, [BLOATED] * rounds), "p", "c", usual)
    assert {row.rounds for row in found.counters if row.name == "instructions/o"} == {6 if rounds < 3 else 3}


@pytest.mark.parametrize(("searched", "later"), [(0.01, 0.1), (0.1, 0.01)])
def test_more_precise_interval_of_a_counter_is_used(searched: float, later: float) -> None:
    """A counter may be in the runs of the search and in later runs."""

    def runs(wobble: float, rounds: int, marked: float = 1.0) -> tuple[list[RunFacts], list[RunFacts]]:
        slow = [changed(200_000, task_clock=1.11 * (1 + wobble * (-1) ** number)) for number in range(rounds)]
        return [run()] * rounds, [replace(each, running={"cycles": marked}) for each in slow]

    usual, events = runs(searched, 12, marked=0.6), counted(*runs(later, 6), "software")
    both, alone = (explanation(events, "p", "c", each) for each in (usual, ([], [])))
    before = explanation([], "p", "c", usual)
    [found, first, second] = ({row.name: row for row in each.counters} for each in (both, before, alone))
    assert found["cpu/o"] == (first if searched < later else second)["cpu/o"]
    assert found["cpu/o"].is_significant, "the less precise runs have no effect"
    assert found["cycles/o"] == second["cycles/o"], "perf did not extrapolate the later count"


def test_ratio_of_a_counter_is_the_quotient_of_the_two_values_shown() -> None:
    counts = (2, 7, 98, 7), (14, 7, 1, 3)
    sides = ([run(counters={**FULL, "cpu-migrations": float(each)}) for each in side] for side in counts)
    rows = counter_rows(*({"": runs} for runs in sides))
    assert {row.name for row in rows} >= {"cpu-migrations/o"}
    assert [row.culprit / row.parent for row in rows] == pytest.approx([row.ratio.middle for row in rows])


@pytest.mark.parametrize("wobble", [0.001, 0.1])
def test_quotient_of_two_counters_uses_the_runs_of_both_counters(wobble: float) -> None:
    """CPU time is more precise in one set of runs, and time in the other set: both come from one set."""
    usual = [run()] * 4, [changed(150_000 + 9000 * sign, task_clock=1.02) for sign in (1, -1) * 2]
    later = [run()] * 4, [changed(100_000, task_clock=1.35 + wobble * sign) for sign in (1, -1) * 2]
    found = explanation(counted(*later, "software"), "p", "c", usual)
    rows = {row.name: row.ratio.middle for row in found.counters}
    assert rows["time/o"] / rows["cpu/o"] == pytest.approx(rows["time/cpu"])
    assert rows["cycles/o"] * rows["ipc"] == pytest.approx(rows["instructions/o"])


def test_runs_are_paired_by_round_and_counter_group() -> None:
    events = [
        *counted([run()] * 2, [BLOATED] * 2),
        *counted([], [run()], "caches"),
        Unexplained("profiles", "perf record is not permitted"),
    ]
    found = explanation(events, "p", "c", ([run()], [BLOATED]))
    assert found.classes[0].cause is Cause.INSTRUCTIONS and {row.rounds for row in found.counters} == {2}
    assert found.missing == ("profiles: perf record is not permitted",)
