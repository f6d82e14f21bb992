"""The one loop: a planner orders, workers carry out, a log keeps what happens.

Hunts, trials and simulated hunts differ only in these three. A single host is a crew of one. Every event is in the log
before the loop yields it, and the planner is asked again only after that; so work that was killed goes on exactly where
its log ends.

Build hosts make builds while hosts measure. Both are workers, numbered in one row: the hosts first, then the build hosts.
"""

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

from perfbisect.core.domain.events import Decided, PairingChosen, Warned
from perfbisect.core.domain.orders import Building, BuildOrder, Decision, Fleet, Found, Measure
from perfbisect.core.search.decide import decide
from perfbisect.core.search.situation import Situation
from perfbisect.errors import EnvironmentFailure, HostAway

E = TypeVar("E")  # what happens at a host: an event, or an observation of a simulation
E_co = TypeVar("E_co", covariant=True)
T = TypeVar("T")  # what the log returns for it

UNLIMITED = 0.0, 0.0
BEGUN_AGAIN = Warned(
    "the search may have been misled by stale parts of builds, and begins again without incremental builds",
    "If the build system does not know all that its objects depend on, begin with --clean-builds.",
)


@dataclass(frozen=True, slots=True)
class NextAction:
    """What a planner wants next."""

    order: Measure | None  # None: no further order
    decided: Decided | PairingChosen | None = None  # logged when the order is given, or at the end
    at_once: bool = False  # the end does not wait for orders that are still carried out
    builds: tuple[BuildOrder, ...] = ()  # to be begun now, on build hosts that are free
    cancelled: tuple[int, ...] = ()  # build hosts whose present build is to be ended
    waits: bool = False  # the order needs builds that are not there; the planner is asked again when one has ended
    workload: int | None = None  # the one that ``decided`` is about, in a session of several
    goes_on: bool = False  # ``decided`` ends one of several hunts, or is a choice: the planner is asked again at once

    @classmethod
    def of(
        cls, decision: Decision, decided: Decided, workload: int | None = None, *, several: bool = False
    ) -> "NextAction":
        """What the search wants next; with ``several`` hunts the others go on after a verdict."""
        order = decision.order
        if not isinstance(order, Measure):
            return cls(None, decided, at_once=isinstance(order, Found), workload=workload, goes_on=several)
        order = replace(order, workload=workload or 0)
        return cls(order, decided, False, decision.builds, decision.cancelled, decision.waits, workload)


@dataclass(frozen=True, slots=True)
class OrderEnded:
    """The end of an order, or of a build that was made ahead."""

    failure: EnvironmentFailure | None = None  # its host, or build host, cannot go on


class Planner(Protocol):
    """Says what is measured next."""

    def next(self, fleet: Fleet) -> NextAction:
        """The next step. An order for a host that is busy is dropped: the planner is asked again when an order, or a build,
        has ended.
        """


class Workers(Protocol[E_co]):
    """Hosts that carry out orders, at most one each, and build hosts that make builds for them, at most one each."""

    limit: tuple[float, float]  # when the hunt began, and the minutes after which all orders and builds end; 0: never
    minutes: float  # of the limit, once it has passed; 0 before

    @property
    def hosts(self) -> Sequence[str]:
        """The names of the hosts; an order's ``host`` is an index into it."""

    def submit(self, order: Measure) -> None:
        """Begin an order on its host, which has none."""

    @property
    def build_hosts(self) -> Sequence[str]:
        """The names of the build hosts; empty: each host builds what it measures."""

    @property
    def builds_between(self) -> bool:
        """Whether hosts may build, too, while they have nothing to measure; and all builds if no build host is left."""

    def begin(self, build: BuildOrder) -> None:
        """Begin a build on its build host, which has none. Its build is there for all hosts before BuildFinished arrives."""

    def seconds(self, build_host: int) -> float:
        """How long the present build of a build host has taken so far."""

    def cancel(self, build_host: int) -> None:
        """End the present build of a build host; returns at once. What arrives last of it is an ``OrderEnded``, as always."""

    def next(self) -> tuple[int, E_co | OrderEnded]:
        """Wait for the next event, or the end of an order or a build; with the number of the worker.

        A host does not go on before the caller asks again. Raises what is raised there, EnvironmentFailure excepted,
        which is the ``failure`` of ``OrderEnded``.
        """

    def stop(self) -> None:
        """End all orders and builds, with everything that runs for them. Nothing is begun afterwards."""


Append = Callable[[E | Decided | PairingChosen | Warned, int | None], T]
"""Makes an event durable. The number is that of the workload in whose order it happened; None: it concerns all."""


def run(planner: Planner, append: Append[E, T], workers: Workers[E]) -> Generator[T]:
    """Give orders until the planner has no more; yields what ``append`` returns for each event.

    A host that fails takes no further order as long as another is left. Raises the failure of the last host, or of one
    without which the planner cannot go on. The same holds for build hosts; without any, hosts build if they may, while the
    only one is out of reach until that is back.
    """
    present = _Crew(workers)
    asked = False  # since something has ended; what is left of build hosts then is not wanted
    try:
        while True:
            for back in present.returned():
                yield append(back, None)
                asked = False
            if present.hosts_are_free or (present.build_hosts_are_free and not asked):
                fleet = present.fleet
                step, asked = planner.next(fleet), True
                order = step.order
                given = order is not None and not step.waits and fleet.is_free(order.host)
                ends = order is None and not step.goes_on and (step.at_once or not present.busy)
                if (given or ends or step.goes_on) and step.decided:
                    if order and isinstance(step.decided, Decided) and step.decided.decision.clean:
                        yield append(BEGUN_AGAIN, step.workload)
                    yield append(step.decided, step.workload)
                if step.goes_on:
                    continue
                if ends:
                    return
                present.build(step)
                if order and given:
                    present.busy[order.host] = order
                    workers.submit(order)
                    continue
                if order and not present.busy and not present.building:
                    raise present.gone.get(order.host) or present.cannot_build
            worker, event = workers.next()
            while not isinstance(event, OrderEnded):
                yield append(event, present.workload(worker))
                worker, event = workers.next()
            asked = False
            if lost := present.ended(worker, event):
                yield append(lost, None)
    finally:
        workers.stop()


class _Crew:
    """What each worker does at this moment."""

    def __init__(self, workers: Workers[object]) -> None:
        self._workers = workers
        self.busy: dict[int, Measure] = {}
        self.gone: dict[int, EnvironmentFailure] = {}
        self.building: dict[int, BuildOrder] = {}  # by build host
        self._cancelled: set[int] = set()  # those of them that are being ended
        self._gone_build_hosts: dict[int, EnvironmentFailure] = {}

    @property
    def hosts_are_free(self) -> bool:
        """Whether a host can take an order."""
        return len(self.busy) + len(self.gone) < len(self._workers.hosts)

    @property
    def build_hosts_are_free(self) -> bool:
        """Whether a build host can begin a build."""
        return len(self.building) + len(self._gone_build_hosts) < len(self._workers.build_hosts)

    @property
    def cannot_build(self) -> EnvironmentFailure:
        """Why no host makes the build for which an order waits."""
        nothing = EnvironmentFailure("no host that is left can make the build that is to be measured next")
        return next(iter(self._gone_build_hosts.values()), nothing)

    @property
    def fleet(self) -> Fleet:
        """The same, as planners see it."""
        workers = self._workers
        return Fleet(
            tuple(self.busy.values()),
            tuple(self.gone),
            len(workers.hosts) if workers.build_hosts else 0,
            len(workers.build_hosts),
            tuple(
                Building(order.candidate, host, round(workers.seconds(host), 1), host in self._cancelled)
                for host, order in self.building.items()
            ),
            tuple(self._gone_build_hosts),
            bool(workers.build_hosts) and workers.builds_between,
            workers.minutes,
        )

    def workload(self, worker: int) -> int:
        """The workload of the present order of a host, or of the present build of a build host."""
        hosts = len(self._workers.hosts)
        return self.busy[worker].workload if worker < hosts else self.building[worker - hosts].workload

    def build(self, step: NextAction) -> None:
        """End and begin the builds of a step."""
        for host in step.cancelled:
            if host in self.building and host not in self._cancelled:
                self._cancelled.add(host)
                self._workers.cancel(host)
        for order in step.builds:
            self.building[order.build_host] = order
            self._workers.begin(order)

    def returned(self) -> Iterator[Warned]:
        """Go back to build hosts that were out of reach and are not any more."""
        gone = self._gone_build_hosts
        for host in [host for host, why in gone.items() if isinstance(why, HostAway) and why.is_back()]:
            del gone[host]
            yield Warned(f"build host {self._workers.build_hosts[host]} is back", "It builds again.")

    def ended(self, worker: int, end: OrderEnded) -> Warned | None:
        """Note the end of an order or a build. Returns a warning if the worker cannot go on; raises if nothing can."""
        hosts, build_hosts = self._workers.hosts, self._workers.build_hosts
        if worker < len(hosts):
            del self.busy[worker]
        else:
            self._cancelled.discard(worker - len(hosts))
            del self.building[worker - len(hosts)]
        if not (failure := end.failure):
            return None
        away = isinstance(failure, HostAway)
        if worker < len(hosts):
            self.gone[worker] = failure
            name, others, can_go_on = f"host {hosts[worker]}", True, len(self.gone) < len(hosts)
        else:
            self._gone_build_hosts[worker - len(hosts)] = failure
            name = f"build host {build_hosts[worker - len(hosts)]}"
            others = len(self._gone_build_hosts) < len(build_hosts)
            can_go_on = others or away or self._workers.builds_between
        if not can_go_on:
            raise failure
        if away:
            return Warned(f"{name} is out of reach: {failure}", "Until it is back each host builds what it measures.")
        advice = "The others go on without it." if others else "From here on each host builds what it measures."
        return Warned(f"{name} takes no further part: {failure}", advice)


@dataclass(frozen=True, slots=True)
class Search:
    """The planner of a hunt: the search, which derives the next order from everything seen so far."""

    situation: Callable[[Fleet], Situation]

    def next(self, fleet: Fleet) -> NextAction:
        """Decide. A culprit ends the hunt at once; every other verdict waits for orders that are being carried out."""
        decision = decide(self.situation(fleet))
        return NextAction.of(decision, Decided(decision, fleet))


@dataclass(slots=True)
class Listed:
    """A planner for orders that are given one after another. One for a host that is busy is kept until it is free.

    What is chosen between them is logged.
    """

    orders: Iterator[Measure | PairingChosen]
    kept: Measure | None = None

    def next(self, fleet: Fleet) -> NextAction:
        """The next order."""
        order = self.kept or next(self.orders, None)
        if isinstance(order, PairingChosen):  # what follows depends on it: it is in the log before that is asked for
            return NextAction(None, order, goes_on=True)
        self.kept = order if order and not fleet.is_free(order.host) else None
        return NextAction(order)
