"""The choice between paired and interleaved runs, in simulated worlds where paired runs are better or worse."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from perfbisect.core.domain.events import RunFinished
from perfbisect.core.domain.facts import RunFacts
from perfbisect.core.domain.graph import Graph
from perfbisect.core.domain.orders import Decision, Found, Measure, NotReproduced, PairingComparison, Purpose
from perfbisect.core.domain.settings import PAIRS_FIRST, Pairing, Policy
from perfbisect.core.inference.observations import Observation, Reading, read_observations
from perfbisect.core.inference.relative_speed import ratios_of_candidates_to_good, split_by_measurement_kind
from perfbisect.core.search.pairing import compare_pairings
from perfbisect.simulate.hunt import simulate_hunt
from perfbisect.simulate.world import HostModel, World
from perfbisect.wording.quantities import ratio
from perfbisect.wording.trials import pairing_chosen
from simulated_worlds import decide, found

LINE = Graph.straight_history(40)
SHARED = HostModel(noise=0.15, own_noise=0.005, layout=0.001, outliers=0.0)  # a shared machine
QUIET = HostModel(noise=0.005, own_noise=0.005, layout=0.001, outliers=0.0)
AUTO, PAIRED = Policy(pairing=Pairing.AUTO), Policy(pairing=Pairing.PAIRED)


def rounds(seen: Sequence[Observation]) -> list[Reading]:
    return [each for each in seen if isinstance(each, Reading) and each.partner is not None]


def test_paired_runs_find_a_culprit_that_interleaved_runs_miss() -> None:
    outcome, in_turns = (
        simulate_hunt(World(LINE, {26: -0.05}, SHARED), rules) for rules in (AUTO, Policy(max_runs=100))
    )
    step = found(outcome.verdict)
    assert (step.candidate, step.together) == (26, True)
    assert step.ratio.low < 0.95 < step.ratio.high
    assert outcome.runs < 60 and not isinstance(in_turns.verdict, Found)


def test_large_drop_is_found_without_paired_runs() -> None:
    outcome = simulate_hunt(World(LINE, {26: -0.30}, QUIET, seed=1), AUTO)
    assert (found(outcome.verdict).candidate, found(outcome.verdict).together) == (26, False)
    assert not rounds(outcome.observations)


def test_runs_stay_interleaved_if_paired_runs_disturb_each_other() -> None:
    noisy = replace(QUIET, noise=0.028, kept=0.1)
    outcomes = [simulate_hunt(World(LINE, {26: -0.14}, noisy, seed=seed), AUTO) for seed in range(6)]
    steps = [found(outcome.verdict) for outcome in outcomes]
    assert {(step.candidate, step.together) for step in steps} == {(26, False)}
    assert {len(rounds(outcome.observations)) for outcome in outcomes} == {0, PAIRS_FIRST}


def until_chosen(world: World, **more: float) -> tuple[list[Observation], Decision, PairingComparison]:
    """The observations until the pairing is chosen, and that decision; ``more`` are further fields of each reading."""
    log: list[Observation] = []
    while not (decision := decide(LINE, log, AUTO)).pairing_comparison:
        assert isinstance(decision.order, Measure)
        for each in world.measure(decision.order):
            is_more = more and isinstance(each, Reading)
            log.append(replace(each, cpu_value=each.value, **more) if is_more else each)  # type: ignore[union-attr,call-arg]
    return log, decision, decision.pairing_comparison


def test_builds_that_mostly_wait_are_measured_interleaved() -> None:
    """Two builds at the same time would share, for example, one disk."""
    log, decision, ways = until_chosen(World(LINE, {26: -0.2}, SHARED, seed=1), log_wait=3)
    assert not rounds(log)
    assert "interleaved: the builds wait for 95 % of their time, and paired runs may" in pairing_chosen(ways).why
    assert isinstance(decision.order, Measure)


def test_change_of_waiting_time_is_found_after_comparison_of_cpu_time() -> None:
    waiting = replace(SHARED, noise=0.1, waits=0.02, stalls=1.0, starved=(1.0, 0.01))
    switched = 0
    for seed in range(6):
        outcome = simulate_hunt(World(LINE, {26: -0.03}, waiting, seed=seed), AUTO)
        assert found(outcome.verdict).candidate == 26
        by_cpu = [each.with_cpu_time for each in outcome.observations if isinstance(each, Reading)]
        decision = decide(LINE, by_cpu, PAIRED)
        switched += decision.pairing_comparison is not None and decision.pairing_comparison.differ_by_waiting
        if decision.pairing_comparison:
            why = pairing_chosen(decision.pairing_comparison).why
            assert why.startswith("From here on, builds are compared by time instead of CPU time: bad has 0.9")
            assert why.endswith(" of good, but their CPU times are equal, so one of them waits longer.")
            assert not pairing_chosen(decision.pairing_comparison).by_cpu
    assert switched
    same = simulate_hunt(World(LINE, {}, replace(waiting, stalls=0.0), seed=1), AUTO)
    assert isinstance(same.verdict, NotReproduced)


def test_paired_runs_name_no_culprit_if_nothing_changed() -> None:
    verdicts = [simulate_hunt(World(LINE, {}, SHARED, seed=seed), AUTO).verdict for seed in range(3)]
    assert all(isinstance(verdict, NotReproduced) and verdict.detectable < 0.05 for verdict in verdicts)


def test_hunt_with_paired_runs_ignores_interleaved_runs() -> None:
    seen = simulate_hunt(World(LINE, {26: -0.05}, SHARED, seed=3), AUTO).observations
    in_turns = [each for each in seen if isinstance(each, Reading) and each.partner is None]
    other = [replace(each, value=each.value + 1) if each in in_turns else each for each in seen]
    one, two = (decide(LINE, each, PAIRED).order for each in (seen, other))
    assert one == two and isinstance(one, Found)


def test_noise_of_interleaved_runs_is_not_taken_for_disturbance() -> None:
    """Interleaved runs vary by 25 %, paired runs show a drop of 7 %. A real disturbance leads to interleaved runs."""
    logs = ((1, -0.30), (0, 0.25), (0, -0.15), (1, -0.45), (1, 0.05), (0, 0.20))
    alone = [Reading(build, value, 1.0 * at, at) for at, (build, value) in enumerate(logs)]
    beside = [
        Reading(1, value, 10.0 + at, 10 + at, partner=0) for at, value in enumerate((-0.06, -0.08, -0.07, -0.075))
    ]
    ways = compare_pairings([*alone, *beside])
    assert ways and ways.chooses_paired
    steady = [replace(each, value=-0.30 * each.candidate + each.value / 20) for each in alone]
    assert not (compare_pairings([*steady, *beside]) or ways).chooses_paired


def test_interleaved_runs_are_no_evidence_until_the_pairing_is_chosen() -> None:
    """They lead neither to another metric nor to a warning, because paired runs may show the change at once."""
    seen = simulate_hunt(World(LINE, {26: -0.05}, SHARED, seed=1), AUTO).observations
    of_ends = [decide(LINE, seen[:number], AUTO) for number in range(2, len(seen))]
    undecided = [each for each in of_ends if each.pairing_comparison is None and isinstance(each.order, Measure)]
    assert undecided and not any(each.evidence for each in undecided)


def test_budget_counts_both_runs_of_a_pair() -> None:
    outcome = simulate_hunt(World(LINE, {26: -0.05}, SHARED, seed=2), replace(PAIRED, max_runs=21))
    assert (len(rounds(outcome.observations)), outcome.runs) == (10, 20)


def test_chosen_pairing_is_explained_with_figures() -> None:
    _, _, ways = until_chosen(World(LINE, {26: -0.05}, SHARED, seed=1))
    alone, beside, chosen = ways.interleaved_ratio, ways.paired_ratio, pairing_chosen(ways)
    assert ways.chooses_paired and (chosen.together, chosen.alone, chosen.beside) == (True, alone, beside)
    assert beside.low < 0.95 < beside.high < alone.high, "the ratio of paired runs is more precise"
    both = f"bad has {ratio(beside)} of good if paired and {ratio(alone)} if interleaved; the standard deviations are"
    assert chosen.why.startswith(f"Builds run in pairs: {both}")
    assert ways.paired_noise < ways.interleaved_noise / 5
    lost = PairingComparison(False, 0.1, 0.01, alone, beside, hides_difference=True)
    assert "paired runs disturb each other" in pairing_chosen(lost).why
    named = pairing_chosen(replace(lost, hides_difference=False, uses_cpu_time=True), "v1", "v2\x1b").why
    assert named.startswith("Builds run interleaved: v2\\x1b has ")
    assert " of v1 by CPU time if paired and " in named
    clear = pairing_chosen(replace(lost, is_clear=True))
    assert (clear.alone, clear.beside) == (None, None), "only one way was measured"


def run(commit: str, seconds: float, cpu: float, key: str) -> tuple[float, RunFinished]:
    latency, counters = {"avg": 1000 * seconds}, {"task-clock": cpu}
    facts = RunFacts(commit, commit, "v", "h", 10.0, seconds, 1, latency, (), counters, {}, round=key)
    return 20.0, RunFinished(0, facts)


def readings(noise: float, of_rounds: Sequence[float]) -> list[Reading]:
    """Twelve interleaved runs of the ends, with a drop of 20 % and this noise, and pairs of runs of the ends."""
    shape = (0.6, -1.4, -0.3, 1.2, 0.1, 0.9, -1.1, 0.4, -0.5, 1.3, -1.2, 0.2)
    alone = [Reading(20 * (at % 2), noise * shape[at] - 0.2 * (at % 2), 1.0 * at, at) for at in range(12)]
    return [*alone, *(Reading(20, -0.2 + each, 20.0 + at, 20 + at, partner=0) for at, each in enumerate(of_rounds))]


WILD = (0.3, -0.35, 0.25, -0.3, 0.4, -0.3, 0.3, -0.4)


@pytest.mark.parametrize(
    ("noise", "later", "before", "after"),
    [
        (0.1, WILD, Pairing.PAIRED, False),
        (0.1, [each / 20 for each in WILD], Pairing.PAIRED, None),
        (0.1, WILD, Pairing.INTERLEAVED, None),
        (0.1, (), Pairing.INTERLEAVED, True),
        (0.02, (), Pairing.INTERLEAVED, None),
    ],
)
@pytest.mark.parametrize("by_cpu", [False, True])
def test_pairing_is_chosen_again_after_more_readings(
    noise: float, later: Sequence[float], before: Pairing, after: bool | None, by_cpu: bool
) -> None:
    """A pairing that the user chose stays."""
    seen = readings(noise, (0.01, -0.01, 0.008, -0.012, *later))
    if by_cpu:
        seen = [each if each.partner is None else replace(each, cpu_value=each.value).with_cpu_time for each in seen]
    chosen, asked = (
        decide(Graph.straight_history(20), seen, Policy(pairing=before, chosen=each)) for each in (True, False)
    )
    assert (chosen.pairing_comparison.chooses_paired if chosen.pairing_comparison else None) is after
    assert isinstance(chosen.order, Measure) and isinstance(asked.order, Measure)
    assert asked.order.together is (before is Pairing.PAIRED)
    assert chosen.order.together is (asked.order.together if after is None else after)


@pytest.mark.parametrize(("extra", "contradict"), [(0.0, False), (-0.25, True)])
def test_contradictory_ratios_are_measured_longer_and_reported(extra: float, contradict: bool) -> None:
    """The ratios of pairs vary as much as those of interleaved runs, and show a much larger drop."""
    seen = readings(0.1, [extra + each for each in (0.16, -0.14, 0.1, -0.06)])
    first = decide(Graph.straight_history(20), seen, AUTO)
    assert (first.pairing_comparison is None) is contradict
    if contradict:
        assert isinstance(first.order, Measure) and first.order.purpose is Purpose.ENDS and not first.order.together
        shape = (0.3, -0.4, 0.5, -0.3)
        seen += [Reading(20 * (at % 2), 0.1 * shape[at] - 0.2 * (at % 2), 40.0 + at, 40 + at) for at in range(4)]
        ways = decide(Graph.straight_history(20), seen, AUTO).pairing_comparison
        assert ways and ways.is_contradictory and "The two ratios contradict each other" in pairing_chosen(ways).why


@pytest.mark.parametrize(
    ("good", "bad", "by_cpu"),
    [
        ((0.01, 0.02, 0.01), (0.02, 0.01, 0.03), True),
        ((0.01, 0.02, 0.01), (0.16, 0.15, 0.17), False),  # bad waits more
        ((0.35, 0.8, 1.1), (0.7, 0.9, 1.2), True),  # other processes hide how long the ends wait
        ((0.35, 0.8, 1.1), (2.0, 2.3, 2.6), False),
    ],
)
def test_cpu_time_is_compared_unless_the_ends_wait_differently(
    good: Sequence[float], bad: Sequence[float], by_cpu: bool
) -> None:
    seen = []
    for at, each in enumerate(readings(0.1, (0.01, -0.01, 0.008, -0.012))):
        waits = (bad if each.candidate else good)[at % 3] if each.partner is None else 0.0
        seen.append(replace(each, cpu_value=each.value + waits, log_wait=waits))
    ways = decide(Graph.straight_history(20), seen, AUTO).pairing_comparison
    assert (ways is not None and ways.uses_cpu_time) is by_cpu


def test_both_runs_of_a_pair_are_one_reading() -> None:
    log = [run("bad", 4.0, 2000.0, "a"), run("good", 2.0, 1900.0, "a"), run("bad", 3.0, 2000.0, "b")]
    for metric, by_cpu, value, cpu in (
        ("qps", False, -0.6931, -0.0513), ("latency", True, 0.0513, 0.0513), ("cpu/o", False, 0.0513, None)
    ):  # fmt: skip
        (reading,) = read_observations(log, {"good": 0, "bad": 1}, metric, 0.0, by_cpu=by_cpu)
        assert isinstance(reading, Reading) and (reading.candidate, reading.partner) == (1, 0)
        assert (reading.value, reading.cpu_value) == pytest.approx((value, cpu), abs=1e-4)


def test_ratio_does_not_mix_paired_and_interleaved_readings() -> None:
    world = World(LINE, {26: -0.05}, replace(SHARED, own_noise=0.001), seed=1)
    seen = [*simulate_hunt(world, AUTO).observations]
    assert [model.paired for model, _ in split_by_measurement_kind(seen)] == [False, True]
    shown, alone = (ratios_of_candidates_to_good(each, LINE.size - 1)[LINE.size - 1] for each in (seen, rounds(seen)))
    assert shown == alone and shown.high - shown.low < 0.02
