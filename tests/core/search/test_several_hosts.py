"""Several hosts in one hunt: what it may spend, what a build costs where, and what two hosts at once prove."""

import math
from dataclasses import replace

import numpy as np
import pytest

from perfbisect.core.domain.graph import Graph
from perfbisect.core.domain.orders import Fleet, Found, Inconclusive, Measure, Purpose, Share
from perfbisect.core.domain.settings import Policy, PriorKnowledge
from perfbisect.core.inference.observations import Built, Observation, Reading
from perfbisect.core.inference.record import arrange
from perfbisect.core.inference.state_space import fit, levels_of
from perfbisect.core.search.decide import decide
from perfbisect.core.search.situation import Budget
from perfbisect.core.search.verdicts import pairwise_proofs
from perfbisect.simulate.host_model import Habits
from perfbisect.simulate.hunt import Outcome, hunt
from perfbisect.simulate.world import World

LINE = Graph.line(100)


def candidates(outcome: Outcome) -> set[int]:
    return {seen.candidate for seen in outcome.observations if isinstance(seen, Built)}


@pytest.mark.calibration
@pytest.mark.parametrize("classes", [("one",) * 4, ("new", "old") * 2])
@pytest.mark.parametrize(("rules", "most"), [(Policy(max_runs=20), 20), (Policy(max_builds=5), 5)])
def test_hosts_at_once_do_not_overspend(rules: Policy, most: int, classes: tuple[str, ...]) -> None:
    for policy in (rules, *([replace(rules, all_steps=True)] if classes[0] == classes[1] else [])):
        world, prior = World(LINE, {30: -0.1, 70: -0.05}, seed=1), PriorKnowledge(host_classes=classes)
        outcome = hunt(world, policy, prior, hosts=len(classes))
        assert (outcome.runs if policy.max_runs else len(candidates(outcome))) <= most


def test_orders_of_other_hosts_are_charged_in_advance() -> None:
    ends: list[Observation] = [Built(0, 9.0, host=0), Built(100, 9.0, host=0)]
    record = arrange([*ends, Reading(0, 0.0, 1.0, 0), Reading(100, -0.1, 2.0, 1)], Policy(), 100)
    other = Measure((Share(50, 3), Share(0, 2)), Purpose.SEARCH, 1)
    fleet, lost = Fleet((other,), (2,)), Fleet(gone=(2,))
    order = Measure((Share(25, 4),), Purpose.SEARCH)
    assert Budget(record, Policy(max_runs=9), fleet).within(order).plan == (Share(25, 2),)
    assert not Budget(record, Policy(max_runs=8), fleet).spent
    assert Budget(record, Policy(max_runs=7), fleet).spent
    assert not Budget(record, Policy(max_runs=7), lost).spent
    assert Budget(record, Policy(max_builds=4), fleet).builds_allowed(order)
    three = Budget(record, Policy(max_builds=3), fleet)
    assert not three.builds_allowed(order)
    assert three.builds_allowed(Measure((Share(50, 1),), Purpose.SEARCH))
    assert not three.may_build


@pytest.mark.calibration
def test_a_culprit_that_stands_is_named_whatever_is_spent() -> None:
    outcome = hunt(World(LINE, {30: -0.1}, seed=1), Policy())
    assert isinstance(outcome.verdict, Found)
    exactly = decide(LINE, outcome.observations, Policy(max_runs=outcome.runs))
    assert isinstance(exactly.order, Found)
    assert isinstance(decide(LINE, outcome.observations[:-1], Policy(max_runs=outcome.runs - 1)).order, Inconclusive)


def test_builds_of_every_host_tell_what_a_build_costs() -> None:
    """The first two of each host are made with an empty compiler cache."""
    cold = [Built(v, 1000.0, host=host) for host in range(3) for v in (0, 100)]
    seen = [
        *cold,
        Built(50, 60.0, host=1),
        Built(50, 80.0, host=2),
        Built(50, 99.0, host=2),
        Reading(0, 0.0, 1.0, 0, 0, 10.0),
    ]
    assert arrange(seen, Policy(), 100).build_runs(10.0) == 7


def test_references_are_builds_that_the_host_has() -> None:
    """Host 1 has the ends alone; the tighter pair around the culprit is on host 0."""
    world = World(LINE, {30: -0.1}, Habits(noise=0.02, drift=0.05, drift_memory=600, build_seconds=6000.0), seed=3)
    seen: list[Observation] = []
    for plan, host in (((0, 4), (100, 4)), 1), (((0, 4), (100, 4), (20, 8), (40, 8)), 0):
        seen += world.measure(Measure(tuple(Share(*share) for share in plan), Purpose.SEARCH, host))
    busy = Measure((Share(30, 1),), Purpose.SEARCH, 0)
    elsewhere = decide(LINE, seen, Policy(), fleet=Fleet((busy,))).order
    assert isinstance(elsewhere, Measure) and elsewhere.host == 1
    assert {share.candidate for share in elsewhere.plan[1:]} in ({0, 100}, {0}, {100})
    here = decide(LINE, seen, Policy(), fleet=Fleet((replace(busy, host=1),))).order
    assert isinstance(here, Measure) and here.host == 0
    assert {share.candidate for share in here.plan[1:]} & {20, 40}


def at_once(values: dict[tuple[int, int], float], turns: list[list[int]]) -> list[Observation]:
    """The readings of ``turns`` of each host, in time order; a value depends on host and build."""
    seen: list[Observation] = []
    for number in range(max(map(len, turns))):
        for host, mine in enumerate(turns):
            if number < len(mine):
                at = number + 0.1 * host
                seen.append(Reading(mine[number], values[host, mine[number]], at, len(seen), host))
    return seen


def test_the_runs_of_other_hosts_do_not_stand_between_those_of_a_proof() -> None:
    values = {(host, build): 0.01 * host - 0.1 * (build == 5) for host in range(4) for build in (0, 4, 5)}
    record = arrange(at_once(values, [[5, 4] * 4, [0] * 8, [0] * 8, [0] * 8]), Policy(), 5)
    (proof,) = pairwise_proofs(record, levels_of(fit(record, np.ones(len(record.value)))), 5, [4])
    assert (proof.runs, proof.proven) == (3, True)


def test_a_faster_host_proves_nothing() -> None:
    """The one has run more of the culprit, the other more of its parent."""
    values = {(host, build): math.log(1 + 0.3 * host) for host in range(2) for build in (4, 5)}
    record = arrange(at_once(values, [[5, 4, 5, 5, 4, 5, 5, 4, 5], [4, 5, 4, 4, 5, 4, 4, 5, 4]]), Policy(), 5)
    (proof,) = pairwise_proofs(record, levels_of(fit(record, np.ones(len(record.value)))), 5, [4])
    assert proof.runs > 4
    assert proof.contrast is not None
    assert proof.contrast.drop == pytest.approx(0)
