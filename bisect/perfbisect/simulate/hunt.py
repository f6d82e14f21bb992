"""A hunt in a simulated world: ask, obey, remember, until there is a verdict."""

from dataclasses import dataclass

from perfbisect.core.observation import Observation
from perfbisect.core.order import Belief, Measure, Verdict
from perfbisect.core.policy import Policy
from perfbisect.core.search import decide
from perfbisect.simulate.world import World


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """How a simulated hunt ended and what it spent."""

    verdict: Verdict
    belief: Belief
    observations: tuple[Observation, ...]
    builds: int
    runs: int
    minutes: float


def hunt(world: World, policy: Policy, most_orders: int = 1000) -> Outcome:
    """Hunt in ``world`` until the verdict. Raises RuntimeError if there is none after ``most_orders`` orders."""
    seen: list[Observation] = []
    for _ in range(most_orders):
        decision = decide(world.graph, seen, policy)
        match decision.order:
            case Measure() as order:
                seen += world.measure(order)
            case verdict:
                return Outcome(verdict, decision.belief, tuple(seen), world.builds, world.runs, world.now / 60)
    raise RuntimeError(f"no verdict after {most_orders} orders")
