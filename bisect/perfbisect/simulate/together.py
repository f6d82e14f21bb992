"""Hunts of several workloads in one: a world for each, over the same commits, with common builds."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from perfbisect.core.domain.observations import Built, Observation, Skipped
from perfbisect.core.domain.orders import Measure, Verdict
from perfbisect.core.domain.policy import Policy
from perfbisect.core.domain.prior_knowledge import NOTHING_KNOWN, PriorKnowledge
from perfbisect.core.search.situation import Situation
from perfbisect.core.search.together import decide_together
from perfbisect.simulate.scenario import Scenario
from perfbisect.simulate.world import NO_BUILD, World

MOST = 100  # workloads of a group; their worlds have seeds of their own


@dataclass(frozen=True, slots=True)
class Workload:
    """What slows one workload down."""

    effect: float = 0.05  # the drop, as a fraction
    culprit: int | None = 0  # the number of its culprit: workloads with the same number share it; None: nothing changed


@dataclass(frozen=True, slots=True, eq=False)
class GroupOutcome:
    """How the hunts of a group ended, in the order of their workloads, and what they spent."""

    verdicts: tuple[Verdict, ...]
    observations: tuple[tuple[Observation, ...], ...]
    builds: int  # attempts, each counted once
    runs: tuple[int, ...]
    minutes: float


def worlds(scenario: Scenario, workloads: Sequence[Workload], seed: int) -> list[World]:
    """A world for each workload: the same commits build, and each has its own noise.

    The culprits are drawn independently of each other. Raises ValueError for a scenario with equal binaries, as these
    would depend on the culprit, and for too many workloads.
    """
    if scenario.identical or len(workloads) > MOST:
        raise ValueError(f"a group has at most {MOST} workloads, and no equal binaries")
    first = MOST * seed
    broken = scenario.world(first).unbuildable
    each = []
    for number, workload in enumerate(workloads):
        changes = "nothing" if workload.culprit is None else scenario.changes
        world = replace(scenario, effect=workload.effect, changes=changes).world(first + (workload.culprit or 0))
        each.append(replace(world, unbuildable=broken, seed=first + number))
    return each


def hunt_together(
    worlds: Sequence[World], policy: Policy, prior: PriorKnowledge = NOTHING_KNOWN, most_orders: int = 1000
) -> GroupOutcome:
    """Hunt in all ``worlds`` until each has its verdict.

    Raises RuntimeError if one has none after so many orders for each workload.
    """
    seen: list[list[Observation]] = [[] for _ in worlds]
    verdicts: dict[int, Verdict] = {}
    left = most_orders * len(worlds)
    while len(verdicts) < len(worlds):
        each = zip(worlds, seen, strict=True)
        members = [Situation(world.graph, observations, policy, prior) for world, observations in each]
        member, decision = decide_together(members, verdicts)
        if not isinstance(decision.order, Measure):
            verdicts[member] = decision.order
            continue
        if not left:
            raise RuntimeError(f"no verdicts after {most_orders * len(worlds)} orders")
        left -= 1
        worlds[member].wait(0, max(world.clock() for world in worlds))
        for event in worlds[member].measure(decision.order):
            _note(event, member, worlds, seen)
    return GroupOutcome(
        tuple(verdicts[member] for member in range(len(worlds))),
        tuple(map(tuple, seen)),
        sum(world.builds for world in worlds),
        tuple(world.runs for world in worlds),
        max(world.now for world in worlds) / 60,
    )


def _note(event: Observation, member: int, worlds: Sequence[World], seen: Sequence[list[Observation]]) -> None:
    """What happened for one member; builds are there for all, and a commit that does not build does so for none."""
    of_all = isinstance(event, Built) or (isinstance(event, Skipped) and event.reason == NO_BUILD)
    for other, (world, observations) in enumerate(zip(worlds, seen, strict=True)):
        if other == member or of_all:
            observations.append(event)
        if other != member and isinstance(event, Built):
            world.has(event.candidate)
