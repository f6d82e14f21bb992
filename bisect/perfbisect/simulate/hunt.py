"""A hunt in a simulated world: the loop of a real hunt, with workers that compute and a log in memory."""

from dataclasses import dataclass, field

from perfbisect.core.domain.events import Decided, Warned
from perfbisect.core.domain.observations import Observation
from perfbisect.core.domain.orders import Belief, Decision, Measure, Verdict
from perfbisect.core.domain.policy import Policy
from perfbisect.core.domain.prior_knowledge import NOTHING_KNOWN, PriorKnowledge
from perfbisect.hunt.loop import Ended, Search, Workers, run
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


@dataclass(slots=True)
class MemoryLog:
    """Keeps the observations and the last decision."""

    observations: list[Observation] = field(default_factory=list)
    decision: Decision | None = None

    def append(self, event: Observation | Decided | Warned) -> None:
        """Keep an observation or a decision."""
        if isinstance(event, Decided):
            self.decision = event.decision
        elif not isinstance(event, Warned):
            self.observations.append(event)


@dataclass(slots=True)
class SimulatedOrder:
    """What has been computed of an order and is not yet reported."""

    left: list[Observation]  # the next one last
    end: float  # seconds since the hunt began


class SimulatedWorkers:
    """Hosts of a world. An order is computed when it is submitted, and reported when its time has come."""

    def __init__(self, world: World, hosts: int, most_orders: int) -> None:
        self.hosts = tuple(f"host {number}" for number in range(hosts))
        self._world = world
        self._orders: dict[int, SimulatedOrder] = {}
        self._time = 0.0
        self._left = self._most = most_orders

    def submit(self, order: Measure) -> None:
        """Compute an order; see ``Workers.submit``. Raises RuntimeError for one too many."""
        if not self._left:
            raise RuntimeError(f"no verdict after {self._most} orders")
        self._left -= 1
        self._world.wait(order.host, self._time)
        seen = self._world.measure(order)
        self._orders[order.host] = SimulatedOrder(seen[::-1], self._world.clock(order.host))

    def next(self) -> tuple[int, Observation | Ended]:
        """The next observation of the order that ends first; see ``Workers.next``."""
        host, first = min(self._orders.items(), key=lambda each: each[1].end)
        if first.left:
            return host, first.left.pop()
        self._time = first.end
        del self._orders[host]
        return host, Ended()

    def stop(self) -> None:
        """Nothing runs."""


def hunt(
    world: World, policy: Policy, prior: PriorKnowledge = NOTHING_KNOWN, *, hosts: int = 1, most_orders: int = 1000
) -> Outcome:
    """Hunt in ``world`` until the verdict. Raises RuntimeError if there is none after ``most_orders`` orders."""
    log = MemoryLog()
    planner = Search(world.graph, policy, prior, lambda: log.observations)
    workers: Workers[Observation] = SimulatedWorkers(world, hosts, most_orders)
    for _ in run(planner, log, workers):
        pass
    assert log.decision
    assert not isinstance(log.decision.order, Measure), "the search ends only with a verdict"
    return Outcome(
        log.decision.order, log.decision.belief, tuple(log.observations), world.builds, world.runs, world.now / 60
    )
