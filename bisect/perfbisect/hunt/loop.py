"""The loop of all sessions: a planner gives work orders (descriptions of the next measurements), workers carry out the
work orders, and a log stores the events.

Hunts, trials and simulated hunts differ only in their planner, workers and log. Every event is stored in the log before
the loop yields the event, and before the planner gives the next work order. A killed session therefore continues
exactly after the last event of its log.

Hosts and build hosts are workers, which are numbered consecutively: first the hosts, then the build hosts. Build hosts
make builds while the hosts make runs.
"""

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, Self, TypeVar

from perfbisect.core.domain.events import Decided, PairingChosen, Warned
from perfbisect.core.domain.orders import BuildInProgress, BuildOrder, Decision, Fleet, Found, Measure
from perfbisect.core.search.decide import decide
from perfbisect.core.search.situation import Situation
from perfbisect.errors import EnvironmentFailure, HostUnreachable

E = TypeVar("E")  # an event of a host, or an observation of a simulation
E_co = TypeVar("E_co", covariant=True)
T = TypeVar("T")  # what the log returns for an event

UNLIMITED = 0.0, 0.0
BEGUN_AGAIN = Warned(
    "incremental builds may have had stale parts and misled the search, so it begins again without incremental builds",
    "If the build system does not know all dependencies of its objects, begin the next hunt with --clean-builds.",
)


@dataclass(frozen=True, slots=True)
class NextAction:
    """The next action of a session, chosen by its planner."""

    order: Measure | None  # the next order; None if there is none
    decided: Decided | PairingChosen | None = None  # logged when the order is given, or at the end
    ends_at_once: bool = False  # whether the session ends without waiting for orders that are still carried out
    builds: tuple[BuildOrder, ...] = ()  # builds to begin now, on free build hosts
    cancelled: tuple[int, ...] = ()  # build hosts whose present build is cancelled
    # whether the order needs builds that do not exist yet; the planner is asked again after a build
    waits: bool = False
    workload: int | None = None  # the workload of ``decided``, in a session of several workloads
    # whether the planner is asked again at once: ``decided`` ends one of several hunts, or chooses a pairing
    asks_again: bool = False

    @classmethod
    def of(cls, decision: Decision, decided: Decided, workload: int | None = None, *, several: bool = False) -> Self:
        """The action for a decision of a hunt. If ``several`` is true, the session has several hunts, and the other
        hunts continue after the verdict of this hunt."""
        order = decision.order
        if not isinstance(order, Measure):
            return cls(None, decided, ends_at_once=isinstance(order, Found), workload=workload, asks_again=several)
        order = replace(order, workload=workload or 0)
        return cls(order, decided, False, decision.builds, decision.cancelled, decision.waits_for_builds, workload)


@dataclass(frozen=True, slots=True)
class OrderEnded:
    """The end of a work order, or of a build on a build host."""

    failure: EnvironmentFailure | None = None  # why the worker cannot continue; None if it can


class Planner(Protocol):
    """Chooses the next action of a session."""

    def next(self, fleet: Fleet) -> NextAction:
        """The next action; ``fleet`` is the present state of all workers.

        If the action's work order is for a busy host, the work order is ignored, and the planner is asked again when a
        work order or a build has ended.
        """


class Workers(Protocol[E_co]):
    """Hosts that each carry out one work order at a time, and build hosts that each make one build at a time."""

    limit: tuple[float, float]  # start time of the hunt, minutes after which all orders and builds end (0: no limit)
    minutes: float  # the minutes of ``limit`` if they have passed, otherwise 0

    @property
    def hosts(self) -> Sequence[str]:
        """The names of the hosts. The field ``host`` of a work order is an index into these names."""

    def submit(self, order: Measure) -> None:
        """Begin a work order on its host, which must be free."""

    @property
    def build_hosts(self) -> Sequence[str]:
        """The names of the build hosts. If there are no build hosts, each host makes the builds that it measures."""

    @property
    def builds_between(self) -> bool:
        """Whether a host that makes runs may make builds while it has no work order. If the result is true, and all
        build hosts fail, the hosts that make runs make all builds.
        """

    def begin(self, build: BuildOrder) -> None:
        """Begin a build on its build host, which must be free. When the event BuildFinished arrives, all hosts can
        measure the build."""

    def elapsed_seconds(self, build_host: int) -> float:
        """The seconds since a build host began its present build."""

    def cancel(self, build_host: int) -> None:
        """Cancel a build host's build, without waiting for the end of the build. The build's last event is
        ``OrderEnded``."""

    def next(self) -> tuple[int, E_co | OrderEnded]:
        """Wait for the next event, or for the end of a work order or a build; returns the worker's number and the
        event.

        A worker that has reported an event waits until this method is called again. If a worker has raised an
        exception, this method raises the exception; an EnvironmentFailure is not raised, but returned in
        ``OrderEnded``.
        """

    def stop(self) -> None:
        """End all work orders and builds, and all processes that run for the work orders and builds. After this call no
        work order or build can begin."""


Append = Callable[[E | Decided | PairingChosen | Warned, int | None], T]
"""Stores an event. The number is the workload whose work order caused the event, or None if the event concerns all
workloads."""


def run(planner: Planner, append: Append[E, T], workers: Workers[E]) -> Generator[T]:
    """Carry out the work orders of a planner until the planner gives no further work order. Yields the result of
    ``append`` for each event.

    A host that has failed gets no further work order. If all hosts have failed, or if a host that the planner needs has
    failed, raises the failure. If all build hosts have failed, the hosts that make runs also make the builds; raises
    the failure if these hosts may not build. If the only build host cannot be reached, the hosts that make runs make
    the builds until the build host can be reached again.
    """
    states = _WorkerStates(workers)
    is_asked = False  # whether the planner was asked after the last end of an order or a build
    try:
        while True:
            for warning in states.restore_build_hosts():
                yield append(warning, None)
                is_asked = False
            if states.has_free_host or (states.has_free_build_host and not is_asked):
                fleet = states.fleet
                action, is_asked = planner.next(fleet), True
                order = action.order
                begins = order is not None and not action.waits and fleet.is_free(order.host)
                ends = order is None and not action.asks_again and (action.ends_at_once or not states.orders)
                if (begins or ends or action.asks_again) and action.decided:
                    if order and isinstance(action.decided, Decided) and action.decided.decision.clean:
                        yield append(BEGUN_AGAIN, action.workload)
                    yield append(action.decided, action.workload)
                if action.asks_again:
                    continue
                if ends:
                    return
                states.change_builds(action)
                if order and begins:
                    states.orders[order.host] = order
                    workers.submit(order)
                    continue
                if order and not states.orders and not states.builds:
                    raise states.failures.get(order.host) or states.no_build_host_failure
            worker, event = workers.next()
            while not isinstance(event, OrderEnded):
                yield append(event, states.workload(worker))
                worker, event = workers.next()
            is_asked = False
            if failure_warning := states.note_end(worker, event):
                yield append(failure_warning, None)
    finally:
        workers.stop()


class _WorkerStates:
    """The present work orders and builds of all workers, and the failures of workers."""

    def __init__(self, workers: Workers[object]) -> None:
        self._workers = workers
        self.orders: dict[int, Measure] = {}  # host → the order that it carries out
        self.failures: dict[int, EnvironmentFailure] = {}  # host → the failure because of which it gets no orders
        self.builds: dict[int, BuildOrder] = {}  # build host → the build that it makes
        self._cancelled: set[int] = set()  # build hosts whose present build was cancelled
        self._build_host_failures: dict[int, EnvironmentFailure] = {}  # build host → why it gets no builds

    @property
    def has_free_host(self) -> bool:
        """Whether a host is free that can carry out a work order."""
        return len(self.orders) + len(self.failures) < len(self._workers.hosts)

    @property
    def has_free_build_host(self) -> bool:
        """Whether a build host is free to begin a build."""
        return len(self.builds) + len(self._build_host_failures) < len(self._workers.build_hosts)

    @property
    def no_build_host_failure(self) -> EnvironmentFailure:
        """The failure to raise if no host can make the next build: the failure of the first failed build host or, if no
        build host has failed, a general failure."""
        default = EnvironmentFailure("no host that is left can make the build that is to be measured next")
        return next(iter(self._build_host_failures.values()), default)

    @property
    def fleet(self) -> Fleet:
        """The present state of all workers, as input for the planner."""
        workers = self._workers
        return Fleet(
            tuple(self.orders.values()),
            tuple(self.failures),
            len(workers.hosts) if workers.build_hosts else 0,
            len(workers.build_hosts),
            tuple(
                BuildInProgress(order.candidate, host, round(workers.elapsed_seconds(host), 1), host in self._cancelled)
                for host, order in self.builds.items()
            ),
            tuple(self._build_host_failures),
            bool(workers.build_hosts) and workers.builds_between,
            workers.minutes,
        )

    def workload(self, worker: int) -> int:
        """The number of the workload that a worker works for: the workload of the host's present work order, or of the
        build host's present build."""
        hosts = len(self._workers.hosts)
        return self.orders[worker].workload if worker < hosts else self.builds[worker - hosts].workload

    def change_builds(self, action: NextAction) -> None:
        """Cancel the builds that an action cancels, and begin the action's new builds."""
        for host in action.cancelled:
            if host in self.builds and host not in self._cancelled:
                self._cancelled.add(host)
                self._workers.cancel(host)
        for order in action.builds:
            self.builds[order.build_host] = order
            self._workers.begin(order)

    def restore_build_hosts(self) -> Iterator[Warned]:
        """Use a build host again if it was unreachable and can be reached again; yields a message for each such build
        host."""
        failures = self._build_host_failures
        for host, failure in [*failures.items()]:
            if isinstance(failure, HostUnreachable) and failure.is_back():
                del failures[host]
                yield Warned(f"build host {self._workers.build_hosts[host]} is back", "It builds again.")

    def note_end(self, worker: int, end: OrderEnded) -> Warned | None:
        """Note that ``worker``, a host or a build host, has ended a work order or a build. Returns a warning if the
        worker has failed.

        Raises the failure if the session cannot continue without this worker.
        """
        hosts, build_hosts = self._workers.hosts, self._workers.build_hosts
        if worker < len(hosts):
            del self.orders[worker]
        else:
            self._cancelled.discard(worker - len(hosts))
            del self.builds[worker - len(hosts)]
        if not (failure := end.failure):
            return None
        is_away = isinstance(failure, HostUnreachable)
        if worker < len(hosts):
            self.failures[worker] = failure
            name, is_replaced, can_go_on = f"host {hosts[worker]}", True, len(self.failures) < len(hosts)
        else:
            self._build_host_failures[worker - len(hosts)] = failure
            name = f"build host {build_hosts[worker - len(hosts)]}"
            is_replaced = len(self._build_host_failures) < len(build_hosts)
            can_go_on = is_replaced or is_away or self._workers.builds_between
        if not can_go_on:
            raise failure
        if is_away:
            advice = "Until it is back, each host makes the builds that it measures."
            return Warned(f"{name} is out of reach: {failure}", advice)
        alone = "From here on, each host makes the builds that it measures."
        advice = "The other hosts go on without it." if is_replaced else alone
        return Warned(f"{name} takes no further part: {failure}", advice)


@dataclass(frozen=True, slots=True)
class SearchPlanner:
    """The planner of one hunt. The planner derives the next work order from all readings so far."""

    situation: Callable[[Fleet], Situation]

    def next(self, fleet: Fleet) -> NextAction:
        """The next action. If the verdict is a culprit, the hunt ends immediately; after any other verdict, the hunt
        ends when the work orders in progress have ended."""
        decision = decide(self.situation(fleet))
        return NextAction.of(decision, Decided(decision, fleet))


@dataclass(slots=True)
class FixedPlan:
    """A planner whose work orders are a given sequence. A work order for a busy host waits until the host is free.

    If the sequence contains a choice between interleaved and paired runs, the choice is logged.
    """

    orders: Iterator[Measure | PairingChosen]
    waiting_order: Measure | None = None

    def next(self, fleet: Fleet) -> NextAction:
        """The action that carries out the next work order."""
        order = self.waiting_order or next(self.orders, None)
        if isinstance(order, PairingChosen):  # logged first, because the next order depends on the pairing
            return NextAction(None, order, asks_again=True)
        self.waiting_order = order if order and not fleet.is_free(order.host) else None
        return NextAction(order)
