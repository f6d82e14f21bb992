"""Hunts of several workloads that share their builds."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from groups import GroupOutcome, Workload, hunt_together, worlds
from hypothesis import given, settings
from hypothesis import strategies as st
from planted import Planted

from perfbisect.core.domain.graph import Graph
from perfbisect.core.domain.orders import (
    Fleet,
    Found,
    Inconclusive,
    Measure,
    NotReproduced,
    PlannedRuns,
    Purpose,
    Reason,
)
from perfbisect.core.domain.settings import Policy, PriorKnowledge
from perfbisect.core.inference.observations import Built, Observation, Reading, Skipped
from perfbisect.core.search.acquisition import expected_runs
from perfbisect.core.search.decide import decide_together
from perfbisect.core.search.situation import Situation
from perfbisect.simulate.host_model import HostModel
from perfbisect.simulate.hunt import simulate_hunt
from perfbisect.simulate.scenario import Scenario, random_merging_graph
from perfbisect.simulate.tally import Judgement, judge_verdict, names_a_culprit
from perfbisect.simulate.world import World
from simulated_worlds import decide, moments

LINE = Graph.straight_history(64)
BAD = LINE.size - 1
SPENT = (Reason.BUILDS_SPENT, Reason.RUNS_SPENT, Reason.MINUTES_SPENT)
STILL = HostModel(noise=0.002, layout=0.0, outliers=0.0)


def read(candidate: int, slow: bool, at: float, runs: int = 4) -> list[Observation]:
    return [Reading(candidate, 0.001 * (i % 3) - 0.1 * slow, at + i, int(at) + i, 0, 60.0) for i in range(runs)]


BUILDS: list[Observation] = [Built(0, 600.0), Built(BAD, 600.0)]
ENDS: list[Observation] = [*BUILDS, *read(0, False, 20), *read(BAD, True, 30)]


def member(seen: Sequence[Observation]) -> Situation:
    return Situation(LINE, seen, Policy())


POLICIES = st.builds(Policy, max_builds=st.sampled_from([0, 6]), max_runs=st.sampled_from([0, 12]))


@given(moments(), POLICIES)
@settings(max_examples=60, deadline=None)
def test_single_workload_is_decided_like_a_hunt_alone(moment: tuple[Graph, list[Observation]], policy: Policy) -> None:
    graph, seen = moment
    alone = decide(graph, seen, policy)
    number, decision = decide_together([Situation(graph, seen, policy)])
    assert number == 0 and replace(decision, belief=alone.belief) == alone
    assert np.array_equal(decision.belief.culprit, alone.belief.culprit)


@st.composite
def groups(draw: st.DrawFn) -> list[Situation]:
    """Hunts in one history, of which each has measured some of the common builds."""
    (graph, seen), policy = draw(moments()), draw(POLICIES)
    builds = [each for each in seen if not isinstance(each, Reading)]
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    members = [Situation(graph, seen, policy)]
    for _ in range(draw(st.integers(1, 3))):
        culprit, share = draw(st.integers(1, graph.size)), draw(st.sampled_from([0.0, 0.5, 1.0]))
        run = [each.candidate for each in seen if isinstance(each, Reading) and (share == 1 or rng.random() < share)]
        noise = (rng.normal(size=len(run)) * 0.01).tolist()
        own = [Reading(v, noise[i] - 0.1 * (v >= culprit), i + 0.5, i, 0, 60.0) for i, v in enumerate(run)]
        members.append(Situation(graph, [*builds, *own], policy))
    return members


@given(groups(), st.integers(0, 3))
@settings(max_examples=60, deadline=None)
def test_every_decision_of_a_group_is_valid_and_reproducible(members: list[Situation], ended: int) -> None:
    out = [ended] if ended < len(members) else []
    number, decision = decide_together(members, out)
    again = decide_together(members, out)
    assert (number, decision.order) == (again[0], again[1].order)
    assert number in range(len(members)) and number not in out
    if not isinstance(decision.order, Measure):
        return
    record, policy = members[number].record, members[number].policy
    candidates = {share.candidate for share in decision.order.plan}
    assert candidates.isdisjoint(record.skipped) and len(candidates) == len(decision.order.plan)
    new = candidates - record.built_on_any_host
    runs = sum(len(each.record.value) for each in members)
    if policy.max_runs:
        assert runs + sum(share.runs for share in decision.order.plan) <= policy.max_runs
    if policy.max_builds and len(record.value):  # the ends are built in any case
        assert not new or len(record.attempted | new) <= policy.max_builds
    left = [each.record for i, each in enumerate(members) if i not in out]
    bad = members[0].bad
    assert not new or new & {0, bad} or all(min(each.run_count(0), each.run_count(bad)) for each in left)


def chosen(members: Sequence[Situation], *ended: int, fleet: Fleet = Fleet()) -> tuple[int, Measure]:  # noqa: B008
    """The number of the hunt that gets an order, and the order."""
    number, decision = decide_together(members, ended, fleet)
    assert isinstance(decision.order, Measure)
    return number, decision.order


def test_ends_are_built_once_and_measured_for_all_hunts() -> None:
    for members, expected in (([member([])] * 2, 0), ([member(ENDS), member(BUILDS)], 1)):
        number, order = chosen(members)
        assert (number, order.purpose) == (expected, Purpose.ENDS), "a build waits until all ends are measured"


def test_build_for_one_hunt_is_measured_for_others_if_informative() -> None:
    aside = [*ENDS, Built(24, 600.0)]  # a single hunt would build the middle
    number, order = chosen([member([*aside, *read(24, True, 50)]), member(aside)])
    assert (number, order.plan[0].candidate) == (1, 24)
    slow = member([*aside, *read(24, True, 50), Built(60, 600.0)])
    assert chosen([slow, slow])[1].plan[0].candidate < 24, "60 tells nothing: it is after both culprits"


def test_build_that_is_most_informative_for_all_hunts_is_made() -> None:
    """A single early hunt would build the middle of the first half, and a late hunt the middle of the last quarter."""
    early = member([*ENDS, Built(32, 600.0), Built(48, 600.0), *read(32, True, 50)])
    late = member([*ENDS, Built(32, 600.0), Built(48, 600.0), *read(32, False, 60), *read(48, False, 70)])
    for members, numbers, places in (([early, late, late], (1, 2), (53, 59)), ([early, early, late], (0, 1), (13, 19))):
        number, order = chosen(members)
        assert number in numbers and places[0] <= order.plan[0].candidate <= places[1]


def test_hunt_with_a_verdict_gets_no_more_orders() -> None:
    found = [*ENDS, *(each for v in (22, 23) for each in (Built(v, 600.0), *read(v, v == 23, 40 + v, 8)))]
    found += [seen for i in range(8) for v in (22, 23) for seen in read(v, v == 23, 178 + 2 * i + v, 1)]
    both = [member(found), member([*ENDS, Built(22, 600.0), Built(23, 600.0)])]
    number, decision = decide_together(both)
    assert number == 0 and isinstance(decision.order, Found)
    assert decide_together(both, ended=[0])[0] == 1
    with pytest.raises(ValueError, match="ended"):
        decide_together(both, ended=[0, 1])


def test_failed_build_counts_for_all_hunts_and_failed_run_for_one() -> None:
    worlds = [World(LINE, {v: -0.1}, STILL, unbuildable=frozenset([32, 16]), seed=v) for v in (20, 44)]
    group = hunt_together(worlds, Policy())
    crashing = World(LINE, {20: -0.1}, STILL, crashing=frozenset([32]), seed=1)
    crashed = hunt_together([crashing, World(LINE, {44: -0.1}, STILL, seed=2)], Policy())
    for_all, for_one = (
        [sum(isinstance(each, Skipped) for each in seen) for seen in one.observations] for one in (group, crashed)
    )
    assert named(group) == named(crashed) == (20, 44)
    assert for_all == [sum(world.builds for world in worlds) - len(built(group))] * 2
    assert for_one[0] and not for_one[1]


def test_budgets_are_shared_by_all_hunts() -> None:
    def worlds() -> list[World]:
        return [World(LINE, {v: -0.05}, HostModel(noise=0.01), seed=v) for v in (9, 30, 55)]

    free = hunt_together(worlds(), Policy())
    assert named(free) == (9, 30, 55)
    few_builds, few_runs, short = (
        hunt_together(worlds(), rules) for rules in (Policy(max_builds=8), Policy(max_runs=30), Policy(max_minutes=60))
    )
    assert (few_builds.builds, sum(few_runs.runs)) == (8, 30)
    assert short.minutes < 60 + 25, "the current order is not cancelled"
    for group, reason in zip((few_builds, few_runs, short), SPENT, strict=True):
        assert reason in [each.reason for each in group.verdicts if isinstance(each, Inconclusive)]


@pytest.mark.parametrize(("graph", "policy"), [
    pytest.param(Graph.straight_history(16), Policy(all_steps=True), marks=pytest.mark.slow),
    pytest.param(Graph.straight_history(40), Policy(layouts=True), marks=pytest.mark.slow),
    pytest.param(Graph.straight_history(40), Policy(slow_after=3), marks=pytest.mark.slow),
    (random_merging_graph(60), Policy()),
])  # fmt: skip
def test_hunts_with_other_policies_share_builds(graph: Graph, policy: Policy) -> None:
    bad = graph.size - 1

    def worlds() -> list[World]:
        steps: list[dict[int, float]] = [{bad // 3: -0.1, bad // 2: -0.05}, {bad // 3: -0.06}, {}]
        return [World(graph, each, HostModel(noise=0.005), seed=seed) for seed, each in enumerate(steps)]

    group, alone = hunt_together(worlds(), policy), [simulate_hunt(world, policy) for world in worlds()]
    assert [judge_verdict(verdict, world) for verdict, world in zip(group.verdicts, worlds(), strict=True)] == [
        judge_verdict(each.verdict, world) for each, world in zip(alone, worlds(), strict=True)
    ]
    assert len(built(group)) == group.builds < sum(each.builds for each in alone) - 2
    assert isinstance(group.verdicts[2], NotReproduced)


def test_common_runs_prove_a_common_culprit_once() -> None:
    """Three hunts for results of one command, with two culprits. Runs in randomized layouts come last for all hunts."""

    def worlds() -> list[World]:
        return [World(LINE, {v: -0.1}, HostModel(noise=0.01), seed=seed) for seed, v in enumerate((20, 20, 44), 10)]

    group, policy = worlds(), Policy(layouts=True)
    alone = [simulate_hunt(world, policy) for world in worlds()]
    outcome = hunt_together(group, policy, common=True, known=8)
    assert named(outcome) == (20, 20, 44)
    fresh = [[each for each in seen if isinstance(each, Reading) and each.layout] for seen in outcome.observations]
    pairs = [{each.candidate for each in readings} for readings in fresh]
    assert {19, 20} <= pairs[0] == pairs[1] and {43, 44} <= pairs[2], "of all hunts that need layouts"
    assert 0 in [sum(not each.of_another_hunt for each in readings) for readings in fresh[:2]]
    assert sum(outcome.runs) < 1.6 * max(each.runs for each in alone), "one proof more"


def named(group: GroupOutcome) -> tuple[int | None, ...]:
    return tuple(each.step.candidate if isinstance(each, Found) else None for each in group.verdicts)


def built(group: GroupOutcome) -> set[int]:
    return {each.candidate for seen in group.observations for each in seen if isinstance(each, Built)}


SCENARIO = Scenario(Graph.straight_history(100), failing=0.1, habits=HostModel(noise=0.01))
KNOWN = PriorKnowledge(10.0)


def test_worlds_of_a_group_differ_only_in_measurements() -> None:
    each = worlds(SCENARIO, [Workload(0.05, 0), Workload(0.1, 0), Workload(0.05, 1), Workload(0.05, None)], seed=3)
    assert len({world.unbuildable for world in each}) == 1 and each[0].unbuildable
    assert each[0].right_culprits == each[1].right_culprits != each[2].right_culprits and not each[3].right_culprits
    assert len({world.run(0) for world in each}) == 4
    again = worlds(SCENARIO, [Workload(0.05, 0)], seed=3)[0]
    assert again.run(0) == worlds(SCENARIO, [Workload(0.05, 0), Workload()], seed=3)[0].run(0)
    with pytest.raises(ValueError, match="equal binaries"):
        worlds(Planted(Graph.straight_history(9), identical=0.5), [Workload()], seed=1)


@pytest.mark.calibrate
def test_groups_need_few_builds_and_name_the_right_culprits() -> None:
    """The small version of benchmarks/together."""
    scenario = Scenario(Graph.straight_history(60), habits=HostModel(noise=0.01))
    one, two = [Workload(0.08), Workload(0.05), Workload(0.06, None)], [Workload(0.08, 0), Workload(0.05, 1)]
    spent = {}
    for name, members in (("one culprit", one), ("two", two)):
        dearest = together = 0
        for seed in range(1, 6):
            alone, group = worlds(scenario, members, seed), worlds(scenario, members, seed)
            verdicts = [simulate_hunt(world, Policy(), KNOWN).verdict for world in alone]
            outcome = hunt_together(group, Policy(), KNOWN)
            dearest += max(world.builds for world in alone)
            together += outcome.builds
            for verdict, world in zip(outcome.verdicts, group, strict=True):
                assert judge_verdict(verdict, world) is Judgement.RIGHT
                assert names_a_culprit(verdict) is bool(world.right_culprits)
            assert all(
                judge_verdict(each, world) is Judgement.RIGHT for each, world in zip(verdicts, alone, strict=True)
            )
        spent[name] = together / dearest
    # The bounds are the cost of halving the parts that have a culprit, with the two ends.
    assert spent["one culprit"] <= 1.1 and spent["two"] <= 1.1 * 1.50


@pytest.mark.calibrate
def test_predicted_runs_are_close_to_the_runs_of_hunts() -> None:
    members = [Workload(0.05, 0), Workload(0.1, 1)]
    scenario = Scenario(Graph.straight_history(60), habits=HostModel(noise=0.01))
    outcomes = [hunt_together(worlds(scenario, members, seed), Policy(), KNOWN) for seed in range(1, 6)]
    known = sum(expected_runs(60, drop, 0.01, 10.0) for drop in (0.05, 0.1))
    assert sum(sum(each.runs) for each in outcomes) / 5 == pytest.approx(known, rel=0.3)


def on(host: int, *seen: Observation) -> list[Observation]:
    """The observations, made on this host."""
    return [each if isinstance(each, Skipped) else replace(each, host=host) for each in seen]


def on_two_hosts(bad: int) -> list[Observation]:
    """Both ends of a line, built, and measured on each of two hosts."""
    ends = [on(host, *read(0, False, 20 + 20 * host), *read(bad, True, 30 + 20 * host)) for host in (0, 1)]
    return [Built(0, 600.0), Built(bad, 600.0), *ends[0], *ends[1]]


@pytest.mark.parametrize(("bad", "under_way"), [(2, 1), (64, 32)])
def test_candidate_in_progress_for_another_workload_is_measured_too(bad: int, under_way: int) -> None:
    """Runs of one workload give no information about another workload, which may need the same candidate."""
    now = Situation(Graph.straight_history(bad), on_two_hosts(bad), Policy())
    number, order = chosen([now, now], fleet=Fleet((Measure((PlannedRuns(under_way, 4),), Purpose.SEARCH, 0),)))
    assert (number, order.host, order.plan[0].candidate) == (1, 1, under_way)


def test_budget_ends_no_hunt_during_an_order_of_another_hunt() -> None:
    """Until the order ends, the finished runs of the order count twice."""
    seen = on_two_hosts(64)
    runs = sum(isinstance(each, Reading) for each in seen)
    now = Situation(Graph.straight_history(64), seen, Policy(max_runs=2 * runs + 4))
    chosen([now, now], fleet=Fleet((Measure((PlannedRuns(32, 8),), Purpose.SEARCH, 0),)))
    number, decision = decide_together([now, replace(now, policy=Policy(max_runs=2 * runs))], [0])
    assert number == 1 and isinstance(decision.order, Inconclusive)


PROVING: list[Observation] = [
    *ENDS,
    *(each for v in (22, 23) for each in (Built(v, 600.0), *read(v, v == 23, 40 + v, 8))),
    Built(21, 600.0),
    Built(24, 600.0),
]


def test_build_hosts_build_for_one_workload_while_another_is_measured() -> None:
    proof, search = member(PROVING), member([seen for seen in PROVING if not isinstance(seen, Reading)])
    search = replace(search, observations=[*search.observations, *read(0, False, 20), *read(BAD, True, 30)])
    fleet = Fleet(hosts=1, build_hosts=1)
    alone = decide(LINE, PROVING, Policy(), fleet=fleet)
    number, decision = decide_together([proof, search], (), fleet)
    assert isinstance(decision.order, Measure) and number == 0 and not alone.builds
    [build] = decision.builds
    assert build.workload == 1
    assert decide_together([proof, search], [1], fleet)[1].builds == ()


def test_builds_and_latest_runs_are_known_for_each_host() -> None:
    """The first hunt needs 16, which only host 0 has built, and the second hunt needs 48, which host 1 has built."""
    both = [*BUILDS, Built(32, 600.0)]
    ends = [*read(0, False, 20), *read(BAD, True, 30)]
    there = [*on(0, *both, *ends, Built(16, 600.0)), *on(1, *both, *ends, Built(48, 600.0))]
    busy = Fleet((Measure((PlannedRuns(0, 4),), Purpose.SEARCH, 0),))
    first = member([*there, *on(1, *read(32, True, 90))])
    second = member([*there, *on(1, *read(32, False, 80))])
    number, order = chosen([first, second], fleet=busy)
    assert (number, order.host, order.plan[0].candidate) == (1, 1, 48)
    late = member([*there, *on(0, *read(32, False, 99))])
    early = member([*there, *on(1, *read(32, False, 80))])
    assert decide_together([late, early], (), busy)[0] == 1
