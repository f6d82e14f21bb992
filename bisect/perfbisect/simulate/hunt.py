"""A hunt in a simulated world."""

from dataclasses import dataclass

from perfbisect.core.domain.fleet import Fleet
from perfbisect.core.domain.observations import Observation
from perfbisect.core.domain.orders import Belief, Found, Measure, Verdict
from perfbisect.core.domain.policy import Policy
from perfbisect.core.domain.prior_knowledge import NOTHING_KNOWN, PriorKnowledge
from perfbisect.core.search.decide import decide
from perfbisect.simulate.world import World


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """The end and the costs of a simulated hunt."""

    verdict: Verdict
    belief: Belief
    observations: tuple[Observation, ...]
    builds: int
    runs: int
    minutes: float


@dataclass(frozen=True, slots=True, eq=False)
class _Work:
    """An order in progress, and what it will yield."""

    order: Measure
    seen: list[Observation]
    done: float  # seconds since the hunt began


def hunt(
    world: World, policy: Policy, prior: PriorKnowledge = NOTHING_KNOWN, *, hosts: int = 1, most_orders: int = 1000
) -> Outcome:
    """Hunt in ``world`` until the verdict. Raises RuntimeError if there is none after ``most_orders`` orders.

    A free host gets the next order at once. A verdict that names no culprit waits for all orders in progress.
    """
    seen: list[Observation] = []
    working: list[_Work] = []
    time, orders = 0.0, 0
    while orders < most_orders:
        decision = decide(world.graph, seen, policy, prior, Fleet(tuple(work.order for work in working)))
        if isinstance(decision.order, Measure):
            order = decision.order
            world.wait(order.host, time)
            working.append(_Work(order, world.measure(order), world.clock(order.host)))
            orders += 1
        elif not working or isinstance(decision.order, Found):
            outcome = decision.order, decision.belief, tuple(seen)
            return Outcome(*outcome, world.builds, world.runs, world.now / 60)
        if len(working) == hosts or not isinstance(decision.order, Measure):
            first = min(working, key=lambda work: work.done)
            working.remove(first)
            seen += first.seen
            time = first.done
    raise RuntimeError(f"no verdict after {most_orders} orders")
