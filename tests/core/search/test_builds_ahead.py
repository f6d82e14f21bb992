"""Which builds start before their runs are ordered, on which build host, and which runs are made meanwhile."""

from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfbisect.core.domain.graph import Graph
from perfbisect.core.domain.orders import BuildInProgress, Decision, Fleet, Measure, PlannedRuns, Purpose
from perfbisect.core.domain.settings import NOTHING_KNOWN, Policy
from perfbisect.core.inference.ancestry import ancestry_of
from perfbisect.core.inference.observations import Built, Observation, Reading, Skipped
from perfbisect.core.search.build_orders import PartsBetweenBuilds
from perfbisect.core.search.situation import Situation
from perfbisect.hunt import loop
from perfbisect.simulate.host_model import HostModel
from perfbisect.simulate.hunt import MemoryLog, SimulatedWorkers, simulate_hunt
from perfbisect.simulate.scenario import Scenario, random_merging_graph
from perfbisect.simulate.world import World, world_host_number
from simulated_worlds import decide, found, moments

LINE = Graph.straight_history(100)
RUN = 60.0


def measured(candidate: int, value: float, at: float, runs: int = 4) -> list[Observation]:
    """Readings of a build that hardly differ."""
    return [Reading(candidate, value + 0.001 * (i % 3), at + i, int(at) + i, 0, RUN) for i in range(runs)]


def made(candidate: int, build_host: int = 0, seconds: float = 600.0) -> Built:
    return Built(candidate, seconds, build_host=build_host)


ENDS: list[Observation] = [made(0), made(100, 1), *measured(0, 0.0, 20), *measured(100, -0.1, 30)]


def ahead(build_hosts: int, *building: BuildInProgress, busy: tuple[Measure, ...] = (), between: bool = False) -> Fleet:
    return Fleet(busy, (), 1, build_hosts, building, (), between)


def ordered(decision: Decision) -> list[int]:
    return sorted(build.candidate for build in decision.builds)


@st.composite
def flying(draw: st.DrawFn) -> tuple[Graph, list[Observation], Policy, Fleet]:
    """A moment of a search at which build hosts may be busy or lost."""
    hosts = draw(st.integers(1, 6))
    graph, seen = draw(moments(hosts))
    size, run = graph.size, any(isinstance(each, Reading) for each in seen)
    built = {each.candidate for each in seen if isinstance(each, Built)}
    failed = {each.candidate for each in seen if isinstance(each, Skipped)}
    free = [v for v in range(size) if v not in built | failed]
    coming = draw(st.lists(st.sampled_from(free), unique=True, max_size=hosts - 1)) if free else []
    gone = draw(st.sets(st.integers(0, hosts - 1), max_size=hosts - 1))
    left = [host for host in range(hosts) if host not in gone]
    since = st.sampled_from([0.0, 300.0, 5000.0])
    building = tuple(
        BuildInProgress(*each, draw(since), draw(st.booleans())) for each in zip(coming, left, strict=False)
    )
    spent = len(built) + len(coming) + sum(v % 2 and v % 3 > 0 for v in failed)
    policy = Policy(max_builds=draw(st.sampled_from([0, spent + 1, spent + 3])))
    busy = draw(st.booleans()) and run
    order = (Measure((PlannedRuns(0, 1),), Purpose.SEARCH),) if busy else ()
    return graph, seen, policy, Fleet(order, (), 1, hosts, building, tuple(gone), draw(st.booleans()))


@given(flying())
@settings(max_examples=60, deadline=None)
def test_orders_of_builds_are_consistent_at_any_moment(moment: tuple[Graph, list[Observation], Policy, Fleet]) -> None:
    graph, seen, policy, fleet = moment
    decision = decide(graph, seen, policy, fleet=fleet)
    again = decide(graph, list(seen), policy, fleet=fleet)
    assert (again.order, again.builds, again.cancelled) == (decision.order, decision.builds, decision.cancelled)
    candidates = [build.candidate for build in decision.builds]
    there = {one.candidate for one in seen}  # built, failed or left out
    assert len(set(candidates)) == len(candidates)
    assert there.isdisjoint(candidates) and fleet.candidates_in_build.isdisjoint(candidates)
    hosts = [build.build_host for build in decision.builds]
    assert len(set(hosts)) == len(hosts) and set(hosts) <= set(fleet.free_build_hosts)
    assert set(decision.cancelled) <= {one.build_host for one in fleet.building if not one.cancelled}
    if policy.max_builds and any(isinstance(one, Reading) for one in seen):  # the ends are built in any case
        begun = fleet.candidates_in_build | {
            one.candidate for one in seen if not isinstance(one, Skipped) or one.seconds
        }
        assert len(begun | set(candidates)) <= max(policy.max_builds, len(begun))
    if not isinstance(decision.order, Measure):
        assert not decision.builds and not decision.waits_for_builds
        return
    built = {one.candidate for one in seen if isinstance(one, Built)}
    missing = {share.candidate for share in decision.order.plan if share.runs} - built
    assert decision.waits_for_builds is bool(missing)
    if decision.waits_for_builds:
        assert decision.builds or fleet.building, "nothing would ever end"


def test_without_build_hosts_nothing_is_built_ahead() -> None:
    decision = decide(LINE, ENDS, Policy())
    assert not decision.builds and not decision.waits_for_builds
    unchanged = World(Graph.straight_history(50), {}, HostModel(noise=0.005, layout=0.002, outliers=0.0), seed=3)
    assert simulate_hunt(unchanged, Policy()).builds == 2, "the ends"


def test_build_hosts_cut_the_range_into_equal_parts() -> None:
    for hosts in (1, 2, 3, 5):
        candidates = [0, *ordered(decide(LINE, ENDS, Policy(), fleet=ahead(hosts))), 100]
        assert len(candidates) == hosts + 2
        assert np.diff(candidates).max() <= 100 / (hosts + 1) * 1.35


def test_ends_are_built_first_while_other_hosts_cut_the_range() -> None:
    assert ordered(decide(LINE, [], Policy(), fleet=ahead(1))) == [100]
    assert ordered(decide(LINE, [], Policy(), fleet=ahead(2))) == [0, 100]
    decision = decide(LINE, [], Policy(), fleet=ahead(4))
    good, low, high, bad = ordered(decision)
    assert (good, bad, decision.waits_for_builds) == (0, 100, True)
    assert 25 <= low <= 40 and 60 <= high <= 75


def test_running_builds_and_unmeasured_builds_count_as_cuts() -> None:
    busy = ahead(2, busy=(Measure((PlannedRuns(50, 2),), Purpose.SEARCH),))
    for seen, fleet in ((ENDS, ahead(3, BuildInProgress(50, 0))), ([*ENDS, made(50)], busy)):
        first, second = ordered(decide(LINE, seen, Policy(), fleet=fleet))
        assert 15 <= first <= 35 and 65 <= second <= 85


def test_builds_ahead_avoid_commits_near_failed_builds() -> None:
    failed: list[Observation] = [Skipped(v, "does not build", 60.0) for v in (50, 48)]
    low, high = ordered(decide(LINE, [*ENDS, *failed], Policy(), fleet=ahead(2)))
    assert low < 45 and high > 53


def test_build_host_with_the_nearest_builds_gets_the_build() -> None:
    """A build is quick if the host has built a near commit. Each of the two hosts has built one half of the range."""
    seen = [*ENDS]
    for i, (v, host) in enumerate([(10, 0), (12, 0), (90, 1), (88, 1), (30, 0), (70, 1)]):
        distance = min(abs(v - one.candidate) for one in seen if isinstance(one, Built) and one.build_host == host)
        seen += [made(v, host, 60.0 + 6 * distance), *measured(v, -0.1 * (v >= 50), 40 + 10 * i)]
    builds = decide(LINE, seen, Policy(), fleet=ahead(2)).builds
    assert {build.build_host: build.candidate > 50 for build in builds} == {0: False, 1: True}


def test_parents_of_a_likely_culprit_are_built_ahead() -> None:
    rows = [(), (0,), (0,), (1,), (2,), (3, 4), (5,)]  # 5 merges 3 and 4
    graph = Graph.from_parents(rows, [0.0, 1.0, 1.0, 1.0, 1.0, 10.0, 1.0])
    seen: list[Observation] = [made(v) for v in (0, 6, 5, 3)]
    seen += [*measured(0, 0.0, 10), *measured(6, -0.1, 20), *measured(5, -0.1, 30), *measured(3, 0.0, 40)]
    assert 4 in ordered(decide(graph, seen, Policy(), fleet=ahead(1)))


def test_host_measures_old_builds_during_a_build_if_informative() -> None:
    doubtful: list[Observation] = [made(50), Reading(50, -0.05, 41.0, 41, 0, RUN)]
    flying = BuildInProgress(25, 0), BuildInProgress(75, 1)
    unsure = decide(LINE, [*ENDS, *doubtful], Policy(), fleet=ahead(2, *flying))
    assert not unsure.waits_for_builds and isinstance(unsure.order, Measure)
    assert sum(share.runs for share in unsure.order.plan) <= 10
    clear = [*ENDS, made(50), *measured(50, -0.1, 41)]
    assert decide(
        LINE, clear, Policy(), fleet=ahead(2, BuildInProgress(25, 0), BuildInProgress(12, 1))
    ).waits_for_builds


def test_useless_build_is_cancelled_unless_nearly_done() -> None:
    seen: list[Observation] = [*ENDS, made(50), *measured(50, -0.1, 41)]  # 50 is slow: no culprit is above 50
    for building, cancelled in (
        ((BuildInProgress(75, 0, RUN), BuildInProgress(25, 1)), (0,)),
        ((BuildInProgress(75, 0), BuildInProgress(25, 1)), ()),  # nothing new is known yet
        ((BuildInProgress(25, 0, RUN), BuildInProgress(12, 1, 595.0)), ()),  # nearly done
        ((BuildInProgress(75, 0, cancelled=True), BuildInProgress(25, 1)), ()),
    ):
        decision = decide(LINE, seen, Policy(), fleet=ahead(2, *building))
        assert decision.cancelled == cancelled
    assert not decision.builds


def test_host_that_may_build_between_runs_does_not_wait() -> None:
    waiting = decide(LINE, [], Policy(), fleet=ahead(1, between=True))
    assert [*ordered(waiting), waiting.order] == [100, Measure((PlannedRuns(0, 0),), Purpose.ENDS)]
    assert not waiting.waits_for_builds
    nearly = Fleet((), (), 1, 1, (BuildInProgress(50, 0, 590.0),), (), True)
    assert decide(LINE, ENDS, Policy(), fleet=nearly).waits_for_builds, "its own build would take longer"


def test_hosts_build_themselves_after_the_last_build_host_is_lost() -> None:
    lost = Fleet((), (), 1, 1, (), (0,), True)
    decision, alone = decide(LINE, ENDS, Policy(), fleet=lost), decide(LINE, ENDS, Policy())
    assert decision.order == alone.order and not decision.waits_for_builds and not decision.builds


@given(st.integers(1, 12), st.integers(0, 2**32))
@settings(max_examples=30, deadline=None)
def test_cuts_of_any_history_are_about_even(count: int, seed: int) -> None:
    graph = random_merging_graph(200, seed=seed % 50)
    reach = ancestry_of(graph)
    probability = graph.weight / graph.weight.sum()
    cuts = list(
        PartsBetweenBuilds(reach, probability, ()).cut(count, np.ones(graph.size), lambda some: np.ones(len(some)), 0.0)
    )
    assert len({cut.candidate for cut in cuts}) == count
    pattern = np.zeros(graph.size, np.int64)
    for i, cut in enumerate(cuts):
        pattern |= reach.with_ancestors(cut.candidate).astype(np.int64) << i
    pieces = np.bincount(np.unique(pattern, return_inverse=True)[1], probability)
    assert pieces.max() <= 3 / (count + 1)


@pytest.mark.calibration
def test_builds_do_not_cancel_each_other_in_turns() -> None:
    """If the costs of two builds differ, each of the two may seem better than the other, which is running."""
    habits = HostModel(build_seconds=6000.0, cached_share=0.1)
    simulate_hunt(
        Scenario(Graph.straight_history(1000), habits=habits).world(7), Policy(), build_hosts=4, most_orders=250
    )


@pytest.mark.calibration
@pytest.mark.parametrize("share", [0.1, 0.6])
def test_hunt_continues_from_its_log_after_running_builds_are_lost(share: float) -> None:
    def world() -> World:
        return Scenario(random_merging_graph(80), 0.08, habits=HostModel(build_seconds=1200.0), failing=0.1).world(3)

    whole, left = simulate_hunt(world(), Policy(), build_hosts=3).observations, world()
    known = [*whole[: int(share * len(whole))]]
    for seen in known:
        if isinstance(seen, Built) and seen.build_host is not None:
            left.build(seen.candidate, world_host_number(seen.build_host))
            left.add_build_for_all_hosts(seen.candidate)
        elif isinstance(seen, Reading):
            left.run(seen.candidate)
    log = MemoryLog(known)
    search = loop.SearchPlanner(partial(Situation, left.graph, log.observations, Policy(), NOTHING_KNOWN))
    workers: loop.Workers[Observation] = SimulatedWorkers(left, 1, 300, 3)
    assert [*loop.run(search, log.append, workers)]
    assert log.decision and found(log.decision.order).candidate in left.right_culprits


@pytest.mark.calibrate
@pytest.mark.calibration
def test_build_hosts_save_time() -> None:
    def hours(build_hosts: int, *, between: bool = False) -> float:
        total = 0.0
        for seed in range(4):
            world = Scenario(Graph.straight_history(300), 0.08, habits=HostModel(build_seconds=6000.0)).world(seed)
            outcome = simulate_hunt(world, Policy(), build_hosts=build_hosts, builds_between=between)
            assert found(outcome.verdict).candidate in world.right_culprits
            total += outcome.minutes / 60
        return total

    assert hours(4) < 0.6 * hours(0)
    assert hours(1, between=True) < 0.85 * hours(1)


@pytest.mark.calibration
def test_budget_of_builds_holds_with_builds_ahead() -> None:
    for seed in range(2):
        world = Scenario(Graph.straight_history(200), 0.1, habits=HostModel(build_seconds=1200.0)).world(seed)
        outcome = simulate_hunt(world, Policy(max_builds=6), build_hosts=4)
        assert len({seen.candidate for seen in outcome.observations if isinstance(seen, Built)}) <= 6
