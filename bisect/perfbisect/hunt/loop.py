"""The one loop: a planner orders, workers carry out, a log keeps what happens.

Hunts, trials and simulated hunts differ only in these three. A single host is a crew of one. Every event is in the log
before the loop yields it, and the planner is asked again only after that; so work that was killed goes on exactly where
its log ends.
"""

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from perfbisect.core.domain.events import Decided, Warned
from perfbisect.core.domain.fleet import Fleet
from perfbisect.core.domain.graph import Graph
from perfbisect.core.domain.observations import Observation
from perfbisect.core.domain.orders import Found, Measure
from perfbisect.core.domain.policy import Policy
from perfbisect.core.domain.prior_knowledge import PriorKnowledge
from perfbisect.core.search.decide import decide
from perfbisect.errors import EnvironmentFailure

E = TypeVar("E")  # what happens at a host: an event, or an observation of a simulation
E_co = TypeVar("E_co", covariant=True)
E_contra = TypeVar("E_contra", contravariant=True)
T = TypeVar("T")  # what the log returns for it
T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True, slots=True)
class Step:
    """What a planner wants next."""

    order: Measure | None  # None: no further order
    decided: Decided | None = None  # logged when the order is given, or at the end
    at_once: bool = False  # the end does not wait for orders that are still carried out


@dataclass(frozen=True, slots=True)
class Ended:
    """The end of an order."""

    failure: EnvironmentFailure | None = None  # its host cannot go on


class Planner(Protocol):
    """Says what is measured next."""

    def next(self, fleet: Fleet) -> Step:
        """The next step. An order for a host that is busy is dropped: the planner is asked again when an order has
        ended.
        """


class Workers(Protocol[E_co]):
    """Hosts that carry out orders, at most one each."""

    @property
    def hosts(self) -> Sequence[str]:
        """The names of the hosts; an order's ``host`` is an index into it."""

    def submit(self, order: Measure) -> None:
        """Begin an order on its host, which has none."""

    def next(self) -> tuple[int, E_co | Ended]:
        """Wait for the next event, or the end of an order; with the host.

        A host does not go on before the caller asks again. Raises what is raised there, EnvironmentFailure excepted,
        which is the ``failure`` of ``Ended``.
        """

    def stop(self) -> None:
        """End all orders, with everything that runs for them. Nothing is submitted afterwards."""


class Log(Protocol[E_contra, T_co]):
    """Keeps what happens."""

    def append(self, event: E_contra) -> T_co:
        """Make ``event`` durable."""


def run(planner: Planner, log: Log[E | Decided | Warned, T], workers: Workers[E]) -> Generator[T]:
    """Give orders until the planner has no more; yields what the log returns for each event.

    A host that fails takes no further order as long as another is left. Raises the failure of the last host, or of one
    without which the planner cannot go on.
    """
    busy: dict[int, Measure] = {}
    gone: dict[int, EnvironmentFailure] = {}
    try:
        while True:
            if len(busy) + len(gone) < len(workers.hosts):
                fleet = Fleet(tuple(busy.values()), tuple(gone))
                step = planner.next(fleet)
                order = step.order
                given = order is not None and fleet.is_free(order.host)
                ends = order is None and (step.at_once or not busy)
                if (given or ends) and step.decided:
                    yield log.append(step.decided)
                if ends:
                    return
                if order and given:
                    busy[order.host] = order
                    workers.submit(order)
                    continue
                if order and not busy:
                    raise gone[order.host]
            host, event = workers.next()
            while not isinstance(event, Ended):
                yield log.append(event)
                host, event = workers.next()
            del busy[host]
            if event.failure:
                gone[host] = event.failure
                if len(gone) == len(workers.hosts):
                    raise event.failure
                yield log.append(
                    Warned(
                        f"host {workers.hosts[host]} takes no further part: {event.failure}",
                        "The others go on without it.",
                    )
                )
    finally:
        workers.stop()


@dataclass(frozen=True, slots=True)
class Search:
    """The planner of a hunt: the search, which derives the next order from everything seen so far."""

    graph: Graph
    policy: Policy
    prior: PriorKnowledge
    observations: Callable[[], Sequence[Observation]]

    def next(self, fleet: Fleet) -> Step:
        """Decide. A culprit ends the hunt at once; every other verdict waits for orders that are being carried out."""
        decision = decide(self.graph, self.observations(), self.policy, self.prior, fleet)
        decided = Decided(decision, fleet)
        if isinstance(decision.order, Measure):
            return Step(decision.order, decided)
        return Step(None, decided, at_once=isinstance(decision.order, Found))


@dataclass(frozen=True, slots=True)
class Listed:
    """A planner for orders that are given one after another."""

    orders: Iterator[Measure]

    def next(self, _fleet: Fleet) -> Step:
        """The next order."""
        return Step(next(self.orders, None))
