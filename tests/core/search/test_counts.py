"""Instruction counts in addition to timed runs: when a hunt counts, what counts show, and what they cost and save."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from perfbisect.core.domain.graph import Graph
from perfbisect.core.domain.orders import ALL_FREE, Fleet, Found, Measure, Purpose
from perfbisect.core.domain.settings import WITH_RUNS, Policy, PriorKnowledge
from perfbisect.core.inference.analysis import Contrast
from perfbisect.core.inference.observations import Built, Count, Observation, Reading
from perfbisect.core.search.acquisition import detectable_effect
from perfbisect.core.search.counts import CountRises, count_rise, count_situation, explains_time
from perfbisect.core.search.situation import Situation
from perfbisect.simulate.host_model import HostModel
from perfbisect.simulate.hunt import HuntResult, simulate_hunt
from perfbisect.simulate.scenario import Scenario
from perfbisect.simulate.tally import Judgement, judge_verdict
from simulated_worlds import decide

COUNTING = PriorKnowledge(count_cost=(1.0, 3.0))
POLICY = Policy(min_effect=0.01)
LINE, BAD = Graph.straight_history(40), 40
HABITS = HostModel(noise=0.02, drift=0.01, run_seconds=3.0, build_seconds=60.0, count_seconds=8.0)
SERVER = replace(HABITS, run_seconds=30.0, build_seconds=300.0, visits=0.004, counts=0.003)  # perf counts during runs
MANY = 60
EVERY = 0.3, 1e-4  # share of the commits that change the count a little, and how much (s.d.)


def ends(drop: float = 0.03, more: float | None = None) -> list[Observation]:
    """Four timed runs of each end. If ``more`` is given, also counts: bad executes more, by ``more`` in log units."""
    seen: list[Observation] = [Built(end, 60.0) for end in (BAD, 0)]
    seen += [
        Reading(end, (0.002 if n % 2 else -0.002) - drop * (end > 0), n + end / 100, 2 * n + (end > 0), 0, 3.0)
        for n in range(4)
        for end in (BAD, 0)
    ]
    return seen + ([] if more is None else [Count(BAD, -more, 5.0, 8.0), Count(0, 0.0, 5.2, 8.0)])


@pytest.mark.parametrize(
    ("seen", "prior", "counted"),
    [
        (ends(), COUNTING, {BAD, 0}),
        (ends(), PriorKnowledge(), None),  # nothing can be counted
        (ends(drop=0.5), COUNTING, None),  # one run shows the drop
        (ends(), replace(COUNTING, count_cost=(500.0, 0.0)), None),  # a count costs more than a build
        (ends(more=0.03), COUNTING, {BAD}),  # counts differ: a second count shows whether counts repeat
        (ends(more=0.0), COUNTING, None),
        (ends(more=0.001), COUNTING, {BAD}),
        (ends(more=-0.03), COUNTING, None),  # bad executes fewer instructions
        ([*ends(), Count(BAD, math.nan, 5.0, 8.0)], COUNTING, None),
    ],
)
def test_ends_are_counted_if_counts_can_save_runs(
    seen: list[Observation], prior: PriorKnowledge, counted: set[int] | None
) -> None:
    order = decide(LINE, seen, POLICY, prior).order
    assert isinstance(order, Measure)
    assert order.counted is (counted is not None)
    assert not order.counted or {part.candidate for part in order.plan} == counted


def test_counted_build_is_timed_before_the_next_build() -> None:
    seen = [*ends(more=0.03), Count(BAD, -0.03, 6.0, 8.0), Count(0, 0.0, 6.2, 8.0)]
    order = decide(LINE, seen, POLICY, COUNTING).order
    assert isinstance(order, Measure) and order.counted and order.purpose is Purpose.SEARCH
    [middle] = {part.candidate for part in order.plan}
    assert 10 < middle < 30
    seen += [Built(middle, 60.0), Count(middle, -0.03, 8.0, 8.0)]
    order = decide(LINE, seen, POLICY, COUNTING).order
    assert isinstance(order, Measure) and not order.counted and order.plan[0].candidate == middle


@pytest.mark.parametrize(
    ("counted", "drop", "expected"),
    [(0.03, 0.03, True), (0.003, 0.03, False), (0.3, 0.03, False), (0.0, 0.03, False), (0.01, 0.0, False)],
)
def test_counts_are_evidence_only_if_they_explain_the_time(counted: float, drop: float, expected: bool) -> None:
    assert explains_time(counted, Contrast(drop, 0.001, 10.0, 5.0, 0.01), 0.005) is expected


def test_prior_of_a_culprit_is_proportional_to_the_rise_of_counts() -> None:
    """Counts rise by 1 % up to candidate 10, fall up to 20, and rise by 2 % up to 30."""
    values = {0: 0.0, 10: -0.01, 20: 0.02, 30: 0.0, BAD: 0.0}
    seen = [*ends(), *(Count(v, value, 5.0, 8.0) for v, value in values.items())]
    counts = count_situation(Situation(LINE, seen, POLICY, COUNTING))
    assert counts
    prior = CountRises.of(counts).prior
    assert (
        prior is not None and prior[1:11].sum() == pytest.approx(1 / 3) and prior[21:31].sum() == pytest.approx(2 / 3)
    )


def test_rise_at_a_merge_is_relative_to_the_parent_with_the_nearer_count() -> None:
    """The count rises in 1 to 5. The branch of 6 lacks the rise, and the merge 7 adds nothing."""
    graph = Graph.from_parents([(), (0,), (1,), (2,), (3,), (4,), (0,), (5, 6), (7,), (8,)])
    seen = ends(more=None)[:0]
    seen += [Reading(end, -0.03 * (end > 0) + 0.001 * (n % 2), n, 2 * n, 0, 3.0) for n in range(4) for end in (0, 9)]
    seen += [Count(v, value, 5.0, 8.0) for v, value in {0: 0.0, 5: -0.03, 6: 0.0, 9: -0.03}.items()]
    counts = count_situation(Situation(graph, seen, POLICY, COUNTING))
    assert counts and (prior := CountRises.of(counts).prior) is not None
    assert prior[1:6].sum() == pytest.approx(1.0)


def test_reverted_and_reapplied_commit_is_no_error() -> None:
    seen: list[Observation] = [Built(30, 60.0), Built(10, 60.0, same_as=0), *ends(more=0.03)]
    seen += [Built(BAD, 60.0, same_as=30), Count(BAD, -0.03, 6.0, 8.0), Count(0, 0.0, 6.2, 8.0)]
    seen += [Reading(30, -0.03, 9.0, 40, 0, 3.0), Count(30, -0.03, 9.0, 8.0), Count(10, 0.0, 9.0, 8.0)]
    assert decide(LINE, seen, POLICY, COUNTING).order


@pytest.mark.parametrize("more", [{"policy": replace(POLICY, max_builds=2)}, {"fleet": Fleet(hosts=1, build_hosts=1)}])
def test_no_build_is_made_for_counts_at_the_limit_or_with_build_hosts(more: dict[str, Any]) -> None:
    seen = [*ends(more=0.03), Count(BAD, -0.03, 6.0, 8.0), Count(0, 0.0, 6.2, 8.0)]
    order = decide(LINE, seen, more.get("policy", POLICY), COUNTING, more.get("fleet", ALL_FREE)).order
    assert not isinstance(order, Measure) or not order.counted


def test_counts_are_readings_of_a_separate_situation() -> None:
    counts = count_situation(Situation(LINE, [*ends(more=0.03), Count(7, math.nan, 9.0, 8.0)], POLICY, COUNTING))
    assert counts and [(seen.candidate, seen.value) for seen in counts.readings] == [(BAD, -0.03), (0, 0.0)]
    assert counts.record.skipped == {7} and counts.model.exact
    assert count_situation(counts) is None


@pytest.mark.parametrize(("noise", "shown"), [(0.001, True), (0.02, False)])
def test_counts_by_perf_are_evidence_unless_they_are_noisy(noise: float, shown: bool) -> None:
    seen: list[Observation] = [Built(node, 60.0) for node in (BAD, 0, 10, 30)]
    for n in range(4):
        off = noise * (1 if n % 2 else -1)
        for node, more in ((BAD, 0.03), (0, 0.0), (30, 0.03), (10, 0.0)):
            visit = 4 * n + node // 10
            seen += [Reading(node, off - more, visit + each / 10, visit, 0, 3.0, count=off - more) for each in (0, 1)]
    now = Situation(LINE, seen, POLICY, PriorKnowledge(count_cost=WITH_RUNS))
    counts = count_situation(now)
    assert counts and (count_rise(counts) > 0) is shown
    prior = CountRises.of(counts).prior
    assert (prior is not None) is shown
    if prior is not None:
        assert prior[11:31].sum() == pytest.approx(1.0)
    order = decide(LINE, seen, POLICY, PriorKnowledge(count_cost=WITH_RUNS)).order
    assert not isinstance(order, Measure) or not order.counted  # perf counts each timed run anyway


def played(
    kind: str, seed: int, effect: float, *, counted: bool, changes: str = "one", habits: HostModel = HABITS
) -> tuple[HuntResult, Judgement]:
    """A simulated hunt of 300 commits, and the judgement of its verdict. ``kind``: the commits that change counts."""
    world = Scenario(Graph.straight_history(300), effect, changes, habits).world(seed)
    chance = np.random.default_rng([seed, 7])
    [culprit] = world.right_culprits or {150}
    drop, places = -math.log1p(-effect), chance.integers(1, 301, 3).tolist()
    changed = {"same": [culprit], "three": [culprit, *places[:2]], "elsewhere": places[:1]}.get(kind, [])
    steps = {place: drop * float(chance.uniform(0.6, 1.3)) for place in changed}
    small = np.where(chance.random(301) < EVERY[0], EVERY[1] * chance.normal(size=301), 0.0)
    world.counts = {place: float(small[place]) + steps.get(place, 0.0) for place in range(1, 301)}
    cost = WITH_RUNS if habits.counts else COUNTING.count_cost
    prior = PriorKnowledge(count_cost=cost if counted else None)
    ended = simulate_hunt(world, POLICY, prior, most_orders=3000)
    return ended, judge_verdict(ended.verdict, world, POLICY.min_effect)


@pytest.mark.calibration
def test_counts_save_runs_and_time() -> None:
    without, counted = ([played("same", seed, 0.03, counted=each) for seed in (2, 3)] for each in (False, True))
    assert all(judged is Judgement.RIGHT for _, judged in counted)
    assert sum(ended.runs for ended, _ in counted) < 0.6 * sum(ended.runs for ended, _ in without)
    assert sum(ended.minutes for ended, _ in counted) < sum(ended.minutes for ended, _ in without)


@pytest.mark.calibrate
@pytest.mark.parametrize(("effect", "habits"), [(0.015, HABITS), (0.03, HABITS), (0.03, SERVER)])
@pytest.mark.parametrize("kind", ["same", "three", "elsewhere", "absent", "empty"])
def test_counts_lead_to_almost_no_wrong_culprit(kind: str, effect: float, habits: HostModel) -> None:
    """At most one culprit is wrong, about as many are named as without counts, and none in a range without a change."""
    changes = "nothing" if kind == "empty" else "one"
    each = [
        [played(kind, seed, effect, counted=counted, changes=changes, habits=habits) for seed in range(MANY)]
        for counted in (False, True)
    ]
    without, counts = ([judged for ended, judged in of if isinstance(ended.verdict, Found)] for of in each)
    minutes = [np.median([ended.minutes for ended, _ in of]) for of in each]
    print(kind, effect, "named", len(without), len(counts), "right", counts.count(Judgement.RIGHT), "minutes", *minutes)
    if kind == "empty":
        assert not counts
    else:
        assert len(counts) - counts.count(Judgement.RIGHT) <= 1
        assert len(counts) >= len(without) - 2


@pytest.mark.parametrize(
    ("noise", "policy", "expected"),
    [
        (0.002, Policy(auto_effect=True, layouts=True), (0.003, 0.006)),
        (0.002, Policy(auto_effect=True), (0.01, 0.01)),  # without layouts, code placement shifts builds by 1 %
        (0.02, Policy(auto_effect=True, layouts=True), (0.004, 0.008)),
        (0.2, Policy(auto_effect=True, layouts=True), (0.02, 0.02)),  # never larger than the default
        (0.002, Policy(auto_effect=True, layouts=True, max_runs=12), (0.02, 0.02)),
    ],
)
def test_automatic_min_effect_is_detectable_in_an_hour_or_the_limits(
    noise: float, policy: Policy, expected: tuple[float, float]
) -> None:
    """It depends only on the first runs of the ends, so that it does not change later."""
    values = [noise * each for each in (1.0, -1.0, 0.6, -0.6)]
    seen: list[Observation] = [Built(end, 60.0) for end in (BAD, 0)]
    seen += [Reading(end, value, n, 2 * n + (end > 0), 0, 3.0) for n, value in enumerate(values) for end in (BAD, 0)]
    chosen = detectable_effect(Situation(LINE, seen, policy))
    assert expected[0] <= chosen <= expected[1]
    later = [Reading(20, 5.0 * n, 9.0 + n, 20 + n, 0, 3.0) for n in range(3)]
    later += [Reading(end, 5.0 * n, 19.0 + n, 30 + n, 0, 3.0) for n in range(3) for end in (BAD, 0)]
    assert detectable_effect(Situation(LINE, seen + later, policy)) == chosen
    assert detectable_effect(Situation(LINE, seen[:7], policy)) == 0.02


@pytest.mark.calibrate
@pytest.mark.parametrize("noise", [0.003, 0.01])
@pytest.mark.parametrize(("changes", "drop"), [("nothing", 0.0), ("one", 0.012), ("one", 0.03)])
def test_automatic_min_effect_finds_more_culprits_and_no_wrong_culprit(changes: str, drop: float, noise: float) -> None:
    habits = replace(HABITS, noise=noise, layout=0.004, drift=noise / 2, build_seconds=40.0, link_seconds=3.0)
    scenario = Scenario(Graph.straight_history(100), drop or 0.02, changes, habits)
    names: list[int] = []
    for auto in (False, True):
        policy = Policy(auto_effect=auto, layouts=True)
        ended = [(simulate_hunt(world, policy, most_orders=5000), world) for world in map(scenario.world, range(MANY))]
        found = [judge_verdict(hunt.verdict, world) for hunt, world in ended if isinstance(hunt.verdict, Found)]
        assert all(judged is Judgement.RIGHT for judged in found)
        names.append(len(found))
        print(changes, drop, noise, "auto" if auto else "2 %", len(found), np.mean([hunt.minutes for hunt, _ in ended]))
    assert names == [0, 0] if changes == "nothing" else names[0] - 2 <= names[1]
