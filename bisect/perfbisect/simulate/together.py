"""Hunts of several workloads in one: a world for each, with the same commits and builds."""

from collections.abc import Sequence
from dataclasses import dataclass

from perfbisect.core.domain.observations import Built, Observation, Skipped
from perfbisect.core.domain.orders import Measure, Verdict
from perfbisect.core.domain.policy import Policy
from perfbisect.core.domain.prior_knowledge import NOTHING_KNOWN, PriorKnowledge
from perfbisect.core.search.situation import Situation
from perfbisect.core.search.together import decide_together
from perfbisect.simulate.world import NO_BUILD, World


@dataclass(frozen=True, slots=True, eq=False)
class GroupOutcome:
    """How the hunts of a group ended, in the order of their workloads, and what they spent."""

    verdicts: tuple[Verdict, ...]
    observations: tuple[tuple[Observation, ...], ...]
    builds: int  # attempts, each counted once
    runs: tuple[int, ...]
    minutes: float


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
        members = [
            Situation(world.graph, observations, policy, prior)
            for world, observations in zip(worlds, seen, strict=True)
        ]
        member, decision = decide_together(members, verdicts)
        if not isinstance(decision.order, Measure):
            verdicts[member] = decision.order
            continue
        if not left:
            raise RuntimeError(f"no verdicts after {most_orders * len(worlds)} orders")
        left -= 1
        worlds[member].wait(0, max(world.clock() for world in worlds))
        for event in worlds[member].measure(decision.order):
            of_all = isinstance(event, Built) or (isinstance(event, Skipped) and event.reason == NO_BUILD)
            for other, (world, observations) in enumerate(zip(worlds, seen, strict=True)):
                if other == member or of_all:
                    observations.append(event)
                if other != member and isinstance(event, Built):
                    world.has(event.candidate)
    return GroupOutcome(
        tuple(verdicts[member] for member in range(len(worlds))),
        tuple(map(tuple, seen)),
        sum(world.builds for world in worlds),
        tuple(world.runs for world in worlds),
        max(world.now for world in worlds) / 60,
    )
