"""Hunts on several hosts and host classes: effects per class, budgets, costs of builds, and proofs across hosts."""

import math
from dataclasses import replace

import numpy as np
import pytest

from perfbisect.core.domain.graph import Graph
from perfbisect.core.domain.orders import (
    Fleet,
    Inconclusive,
    Measure,
    NotReproduced,
    PlannedRuns,
    Purpose,
    Reason,
    Several,
    Verdict,
)
from perfbisect.core.domain.settings import Policy, PriorKnowledge
from perfbisect.core.inference.analysis import (
    PROVEN,
    PairwiseProof,
    _robust_mean,
    _robust_mean_variance,
    pairwise_proofs,
)
from perfbisect.core.inference.observations import Built, Observation, Reading
from perfbisect.core.inference.record import arrange_observations
from perfbisect.core.inference.state_space import fit_levels, levels_for_search
from perfbisect.core.search.single_change import decide_single_change
from perfbisect.core.search.situation import Budget, Situation
from perfbisect.simulate.hunt import HuntResult, simulate_hunt
from perfbisect.simulate.world import HostModel, World
from simulated_worlds import decide, found, several

GRAPH = Graph.straight_history(40)
TWO = PriorKnowledge(host_classes=("x86", "arm"))
GONE = Fleet(gone=(1,))


def readings(
    drops: dict[int, float], builds: tuple[int, ...], runs: int = 4, seed: int = 1, since: int = 25
) -> list[Observation]:
    """Interleaved runs of each build on each host, where ``drops`` (by host) slow down the builds from ``since`` on."""
    rng, seen = np.random.default_rng(seed), list[Observation]()
    for _ in range(runs):
        for build in builds:
            for host, drop in drops.items():
                value = 5.0 * host - drop * (build >= since) + rng.normal() * 0.005
                seen.append(Reading(build, float(value), float(len(seen)), len(seen), host))
    return seen


@pytest.mark.parametrize("classes", [(), ("c8",), ("c8", "c8")])
@pytest.mark.parametrize("builds", [(0,), (0, 40), (0, 20, 40), (0, 24, 25, 40)])
def test_single_host_class_does_not_change_the_search(classes: tuple[str, ...], builds: tuple[int, ...]) -> None:
    seen = readings({0: 0.1, 1: 0.1}, builds)
    plain = decide_single_change(Situation(GRAPH, seen, Policy()))
    named = decide(GRAPH, seen, Policy(), PriorKnowledge(host_classes=classes))
    assert (repr(plain.order), plain.belief.change) == (repr(named.order), named.belief.change)
    assert (plain.belief.culprit == named.belief.culprit).all()


def test_readings_of_two_host_classes_enclose_the_culprit() -> None:
    """One class excludes the candidates up to 20, the other class excludes the candidates after 30."""
    one = readings({0: 0.1}, (0, 20, 40))
    other = readings({1: 0.3}, (0, 30, 40))
    between = decide(GRAPH, [*one, *other], Policy(), TWO).belief.culprit[21:31]
    assert between.sum() > 0.98 and between.std() < 0.01 * between[4]


STEADY = readings({1: 0.0}, (0, 40), runs=20)


def test_host_class_without_information_does_not_change_the_culprit() -> None:
    one = readings({0: 0.1}, (0, 20, 30, 40))
    alone = decide_single_change(Situation(GRAPH, one, Policy())).belief
    another_change = readings({1: 0.1}, (0, 10, 20, 40), since=15)
    for other, fleet in (([], GONE), (STEADY, GONE), (another_change, Fleet())):
        together = decide_single_change(Situation(GRAPH, [*one, *other], Policy(), TWO, fleet)).belief
        assert np.allclose(together.culprit, alone.culprit, atol=1e-3) and together.change > 0.9


def test_host_class_without_the_change_gets_no_order() -> None:
    """Also if the only other host is busy."""
    busy: tuple[Measure, ...] = ()
    for _ in range(2):
        order = decide(GRAPH, [*readings({0: 0.1}, (0, 40)), *STEADY], Policy(), TWO, Fleet(busy)).order
        assert isinstance(order, Measure) and order.host == 0
        busy = (order,)


def test_hunt_is_not_reproduced_if_no_host_class_shows_a_change() -> None:
    order = decide(GRAPH, readings({0: 0.0, 1: 0.0}, (0, 40), runs=20), Policy(), TWO).order
    assert isinstance(order, NotReproduced) and [effect.host_class for effect in order.effects] == ["x86", "arm"]


def hunted(policy: Policy, *steps: dict[int, float], graph: Graph = GRAPH, seed: int = 1) -> Verdict:
    """The verdict of a simulated hunt with one host per class. ``steps``: the changes by candidate, for each class."""
    quiet = HostModel(noise=0.005, layout=0.001, outliers=0.0)
    worlds = [World(graph, its, quiet, seed=seed + 100 * host) for host, its in enumerate(steps)]
    seen: list[Observation] = []
    for _ in range(100):
        order = decide(graph, seen, policy, TWO).order
        if not isinstance(order, Measure):
            return order
        other = decide(graph, seen, policy, TWO, Fleet((order,))).order
        waits = not isinstance(other, Measure) or other.host == order.host
        for one in [order] if waits else [order, other]:
            assert isinstance(one, Measure)
            made = worlds[one.host].measure(replace(one, host=0))
            seen += [replace(each, host=one.host) for each in made if isinstance(each, Reading | Built)]
    raise AssertionError("no verdict")


@pytest.mark.calibration
def test_verdict_has_the_effect_on_each_host_class() -> None:
    """The culprit makes one class 45 % slower, and the other class 22 %."""
    step = found(hunted(Policy(), {25: -0.6}, {25: -0.25}, seed=0))
    assert (step.candidate, [effect.host_class for effect in step.effects]) == (25, ["x86", "arm"])
    for effect, drop in zip(step.effects, (-0.6, -0.25), strict=True):
        assert effect.ratio.low * 0.97 < np.exp(drop) < effect.ratio.high * 1.03


@pytest.mark.slow
@pytest.mark.calibration
def test_search_for_all_changes_finds_changes_of_single_host_classes() -> None:
    """One change affects both classes, and two changes affect one class each."""
    x86, arm = {4: -0.2, 11: -0.1}, {4: -0.1, 15: -0.15}
    verdict = hunted(Policy(all_steps=True), x86, arm, graph=Graph.straight_history(16))
    assert several(verdict) == ([4, 11, 15], [], [])
    assert isinstance(verdict, Several)
    for step in verdict.steps:
        for effect in step.effects:
            drop = (x86, arm)[TWO.host_class_names.index(effect.host_class)].get(step.candidate, 0.0)
            assert effect.ends or np.log(effect.ratio.middle) == pytest.approx(drop, abs=0.02)


@pytest.mark.calibration
@pytest.mark.slow
def test_changes_of_two_branches_are_found_on_two_host_classes() -> None:
    """Each branch lacks the change of the other branch. The sizes of the changes differ between the classes."""
    #  0 - 1 … 6 - 13 - 14 - 15
    #   \ 7 … 12 /
    graph = Graph.from_parents(
        [(), *((v,) for v in range(6)), (0,), *((v,) for v in range(7, 12)), (6, 12), (13,), (14,)]
    )
    verdict = hunted(Policy(all_steps=True), {3: -0.1, 9: -0.06}, {3: -0.3, 9: -0.2}, graph=graph)
    assert several(verdict) == ([3, 9], [], [])


LINE = Graph.straight_history(100)


def candidates(outcome: HuntResult) -> set[int]:
    return {seen.candidate for seen in outcome.observations if isinstance(seen, Built)}


@pytest.mark.calibration
@pytest.mark.parametrize("classes", [("one",) * 4, ("new", "old") * 2])
@pytest.mark.parametrize(("rules", "most"), [(Policy(max_runs=20), 20), (Policy(max_builds=5), 5)])
def test_parallel_hosts_stay_within_the_budget(rules: Policy, most: int, classes: tuple[str, ...]) -> None:
    for policy in (rules, *([replace(rules, all_steps=True)] if classes[0] == classes[1] else [])):
        world, prior = World(LINE, {30: -0.1, 70: -0.05}, seed=1), PriorKnowledge(host_classes=classes)
        outcome = simulate_hunt(world, policy, prior, hosts=len(classes))
        assert (outcome.runs if policy.max_runs else len(candidates(outcome))) <= most


def test_budget_includes_the_current_orders_of_other_hosts() -> None:
    ends = [Built(0, 9.0), Built(100, 9.0), Reading(0, 0.0, 1.0, 0), Reading(100, -0.1, 2.0, 1)]
    record = arrange_observations(ends, Policy(), 100)
    other = Measure((PlannedRuns(50, 3), PlannedRuns(0, 2)), Purpose.SEARCH, 1)
    fleet, lost = Fleet((other,), (2,)), Fleet(gone=(2,))
    order = Measure((PlannedRuns(25, 4),), Purpose.SEARCH)
    assert Budget(record, Policy(max_runs=9), fleet).limit_runs(order).plan == (PlannedRuns(25, 2),)
    cases = (8, fleet), (7, fleet), (7, lost)
    spent = [Budget(record, Policy(max_runs=most), hosts).reached_limit for most, hosts in cases]
    assert spent == [None, Reason.RUNS_SPENT, None]
    assert Budget(record, Policy(max_builds=4), fleet).allows_builds_of(order)
    three = Budget(record, Policy(max_builds=3), fleet)
    assert not three.allows_builds_of(order) and not three.may_build
    assert three.allows_builds_of(Measure((PlannedRuns(50, 1),), Purpose.SEARCH))


@pytest.mark.calibration
def test_proven_culprit_is_named_if_the_budget_is_spent() -> None:
    outcome = simulate_hunt(World(LINE, {30: -0.1}, seed=1), Policy())
    assert found(outcome.verdict) == found(decide(LINE, outcome.observations, Policy(max_runs=outcome.runs)).order)
    assert isinstance(decide(LINE, outcome.observations[:-1], Policy(max_runs=outcome.runs - 1)).order, Inconclusive)


def test_cost_of_a_build_is_estimated_from_builds_of_all_hosts() -> None:
    """The first two builds of each host do not count: their compiler cache is empty."""
    cold = [Built(v, 1000.0, host=host) for host in range(3) for v in (0, 100)]
    warm = [Built(50, seconds, host=host) for seconds, host in ((60.0, 1), (80.0, 2), (99.0, 2))]
    assert (
        arrange_observations([*cold, *warm, Reading(0, 0.0, 1.0, 0, 0, 10.0)], Policy(), 100).build_cost_in_runs(10.0)
        == 7
    )


def test_reference_builds_of_an_order_exist_on_its_host() -> None:
    """Host 1 has only the builds of the ends. Host 0 also has builds near the culprit."""
    world = World(LINE, {30: -0.1}, HostModel(noise=0.02, drift=0.05, drift_memory=600, build_seconds=6000.0), seed=3)
    seen: list[Observation] = []
    for plan, host in (((0, 4), (100, 4)), 1), (((0, 4), (100, 4), (20, 8), (40, 8)), 0):
        seen += world.measure(Measure(tuple(PlannedRuns(*share) for share in plan), Purpose.SEARCH, host))
    references = []
    for host in (0, 1):
        order = decide(
            LINE, seen, Policy(), fleet=Fleet((Measure((PlannedRuns(30, 1),), Purpose.SEARCH, 1 - host),))
        ).order
        assert isinstance(order, Measure) and order.host == host
        references.append({share.candidate for share in order.plan[1:]})
    assert references[0] & {20, 40} and set() < references[1] <= {0, 100}


def proof(offset: float, drop: float, *turns: list[int]) -> PairwiseProof:
    """The proof that candidate 5, slower by ``drop``, differs from 4. Host n runs ``turns[n]``, n ``offset`` faster."""
    seen: list[Observation] = []
    for number, builds in enumerate(zip(*turns, strict=True)):
        for host, build in enumerate(builds):
            seen.append(Reading(build, offset * host - drop * (build == 5), number + 0.1 * host, len(seen), host))
    record = arrange_observations(seen, Policy(), 5)
    [found] = pairwise_proofs(record, levels_for_search(fit_levels(record, np.ones(len(record.value)))), 5, [4])
    return found


def test_runs_of_other_hosts_do_not_interrupt_a_proof() -> None:
    shown = proof(0.01, 0.1, [5, 4] * 4, [0] * 8, [0] * 8, [0] * 8)
    assert (shown.runs, shown.is_proven) == (3, True)


def test_faster_host_does_not_prove_a_change() -> None:
    """The slower host ran the culprit more often, and the faster host ran the parent more often."""
    shown = proof(math.log(1.3), 0.0, [5, 4, 5, 5, 4, 5, 5, 4, 5], [4, 5, 4, 4, 5, 4, 4, 5, 4])
    assert shown.runs > 4 and shown.contrast and shown.contrast.drop == pytest.approx(0)


@pytest.mark.parametrize("runs", [2, 3, 4, 5, 7, 16])
def test_false_proofs_are_as_rare_as_standard_errors_predict(runs: int) -> None:
    """If builds do not differ, 1.4 % of the differences exceed 2.2 standard errors, and 0.023 % exceed 3.5."""
    values, samples = np.random.default_rng(runs).normal(size=(2, 20_000, runs)), 20_000
    far = [
        (_robust_mean(low) - _robust_mean(high)) / math.sqrt(2 * _robust_mean_variance(runs))
        for low, high in zip(*values, strict=True)
    ]
    assert np.std(far) == pytest.approx(1.0, abs=0.015)
    assert sum(each > PROVEN for each in far) / samples == pytest.approx(0.0139, abs=0.003)
