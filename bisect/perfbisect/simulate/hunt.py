"""Carries out a hunt in a simulated world: with the loop of a real hunt, simulated measurements, and a log in
memory."""

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from functools import partial

from perfbisect.core.domain.events import Decided, PairingChosen, Warned
from perfbisect.core.domain.graph import Graph
from perfbisect.core.domain.orders import (
    Belief,
    BuildOrder,
    Decision,
    Fleet,
    Measure,
    PairingComparison,
    Purpose,
    Verdict,
)
from perfbisect.core.domain.settings import NOTHING_KNOWN, Pairing, Policy, PriorKnowledge
from perfbisect.core.inference.observations import Built, Observation, Reading, count_own_runs, without_candidates
from perfbisect.core.search.clean_builds import incremental_builds
from perfbisect.core.search.pairing import cpu_time_as_time
from perfbisect.core.search.situation import ExtraCost, Situation
from perfbisect.hunt.loop import UNLIMITED, NextAction, OrderEnded, SearchPlanner, Workers, run
from perfbisect.simulate.world import World, world_host_number


@dataclass(frozen=True, slots=True, eq=False)
class HuntResult:
    """The verdict and the costs of a simulated hunt."""

    verdict: Verdict
    belief: Belief
    observations: tuple[Observation, ...]
    builds: int
    runs: int
    minutes: float


@dataclass(slots=True)
class MemoryLog:
    """Keeps in memory the observations, the last decision, and the choice between paired and interleaved runs.

    If a commit with an incremental build gets a clean build, the readings of the incremental build are removed, because
    a reading names only the commit, not the build.
    """

    observations: list[Observation] = field(default_factory=list)
    decision: Decision | None = None
    pairing: PairingComparison | None = None
    clean: bool = False  # whether runs of incremental builds no longer count
    proofs: set[int] = field(default_factory=set)  # candidates that were built again after an incremental build
    dropped_runs: int = 0  # number of runs that no longer count

    def append(self, event: Observation | Decided | PairingChosen | Warned, workload: int | None = None) -> None:
        """Keep an observation or a decision; other events have no effect."""
        if isinstance(event, Decided):
            self.decision = event.decision
            if event.decision.clean:
                self.clean = True
                self._remove_observations(incremental_builds(self.observations))
            if not self.pairing or self.pairing.uses_cpu_time:
                self.pairing = event.decision.pairing_comparison or self.pairing
        elif not isinstance(event, Warned | PairingChosen):
            if not isinstance(event, Reading) and event.candidate in incremental_builds(self.observations):
                self._remove_observations({event.candidate})
                order = self.decision.order if self.decision else None
                if isinstance(event, Built) and isinstance(order, Measure) and order.purpose is Purpose.CONFIRM:
                    self.proofs.add(event.candidate)
            self.observations.append(event)

    def _remove_observations(self, candidates: Collection[int]) -> None:
        """Remove the observations of candidates whose builds are no longer valid."""
        observations = without_candidates(self.observations, candidates)
        self.dropped_runs += count_own_runs(self.observations) - count_own_runs(observations)
        self.observations = observations


@dataclass(frozen=True, slots=True)
class SimulatedSearch:
    """Chooses the measurements of a simulated hunt; once it has chosen paired or interleaved runs, it keeps this
    choice."""

    graph: Graph
    policy: Policy
    prior: PriorKnowledge
    log: MemoryLog

    def next(self, fleet: Fleet) -> NextAction:
        """The next action of the search; see ``SearchPlanner.next``."""
        policy, observations, chosen = self.policy, self.log.observations, self.log.pairing
        if chosen:
            policy = replace(policy, pairing=Pairing.PAIRED if chosen.chooses_paired else Pairing.INTERLEAVED)
            observations = cpu_time_as_time(observations) if chosen.uses_cpu_time else observations
        situation = partial(
            Situation, self.graph, observations, policy, self.prior,
            extra_cost=ExtraCost(self.log.dropped_runs), clean=self.log.clean,
            proofs=frozenset(self.log.proofs),
        )  # fmt: skip
        return SearchPlanner(situation).next(fleet)


@dataclass(slots=True)
class SimulatedOrder:
    """A work order (measurement) or a build in progress, with the observations that are already computed but not yet
    reported."""

    unreported: list[Observation]  # in reverse order: the last element is reported next
    end: float  # seconds since the hunt began
    began: float


class SimulatedWorkers:
    """The hosts of a simulated world. A host computes all observations of a work order (measurement) as soon as the
    host gets the work order. ``next`` returns the observations of the work order that ends first, then the observations
    of the work order that ends second, and so on."""

    limit, minutes = UNLIMITED, 0.0

    def __init__(
        self, world: World, hosts: int, most_orders: int, build_hosts: int = 0, builds_between: bool = False
    ) -> None:
        self.hosts = tuple(f"host {number}" for number in range(hosts))
        self.build_hosts = tuple(f"build host {number}" for number in range(build_hosts))
        self.builds_between = builds_between
        self._world = world
        self._orders: dict[int, SimulatedOrder] = {}  # worker → its present order
        self._builds: dict[int, BuildOrder] = {}
        self._time = 0.0
        self._left = self._most = most_orders

    def submit(self, order: Measure) -> None:
        """Compute all observations of a work order; see ``Workers.submit``. Raises RuntimeError after ``most_orders``
        work orders."""
        self._count_order()
        self._world.wait(order.host, self._time)
        observations = self._world.measure(order)
        self._orders[order.host] = SimulatedOrder(observations[::-1], self._world.clock(order.host), self._time)

    def begin(self, build: BuildOrder) -> None:
        """Compute the result of a build; see ``Workers.begin``. Raises RuntimeError after ``most_orders`` work
        orders."""
        self._count_order()
        host = world_host_number(build.build_host)
        self._world.wait(host, self._time)
        outcome = self._world.build(build.candidate, host, incremental=build.incremental)
        assert outcome, "the build host has this build"
        self._builds[build.build_host] = build
        order = SimulatedOrder([outcome], self._world.clock(host), self._time)
        self._orders[len(self.hosts) + build.build_host] = order

    def elapsed_seconds(self, build_host: int) -> float:
        """The seconds since the present build of a build host began; see ``Workers.elapsed_seconds``."""
        return self._time - self._orders[len(self.hosts) + build_host].began

    def cancel(self, build_host: int) -> None:
        """Cancel the present build of a build host; see ``Workers.cancel``."""
        order = self._orders[len(self.hosts) + build_host]
        self._world.cancel(self._builds[build_host].candidate, build_host, order.end - self._time)
        order.unreported, order.end = [], self._time

    def next(self) -> tuple[int, Observation | OrderEnded]:
        """The next observation of the work order that ends first; see ``Workers.next``. If this work order has no
        further observation, the result is OrderEnded."""
        worker, first = min(self._orders.items(), key=lambda item: item[1].end)
        if worker >= len(self.hosts):
            self._time = max(self._time, first.end)
        if first.unreported:
            event = first.unreported.pop()
            if worker >= len(self.hosts) and isinstance(event, Built):
                self._world.add_build_for_all_hosts(event.candidate)
            return worker, event
        self._time = max(self._time, first.end)
        del self._orders[worker]
        return worker, OrderEnded()

    def stop(self) -> None:
        """Cancel the builds in progress, and set the clock of the simulated host 0 to the present simulated time."""
        for worker in [number for number in self._orders if number >= len(self.hosts)]:
            self.cancel(worker - len(self.hosts))
        self._world.wait(0, self._time)

    def _count_order(self) -> None:
        if not self._left:
            raise RuntimeError(f"no verdict after {self._most} orders")
        self._left -= 1


def simulate_hunt(
    world: World,
    policy: Policy,
    prior: PriorKnowledge = NOTHING_KNOWN,
    *,
    hosts: int = 1,
    build_hosts: int = 0,
    builds_between: bool = False,
    most_orders: int = 1000,
) -> HuntResult:
    """Hunt in ``world`` until the verdict. Raises RuntimeError if ``most_orders`` work orders (measurements) lead to no
    verdict.

    If ``builds_between`` is true, measuring hosts make builds themselves while they wait for build hosts.
    """
    log, policy = MemoryLog(), replace(policy, incremental=policy.incremental and hosts == 1)
    workers: Workers[Observation] = SimulatedWorkers(world, hosts, most_orders, build_hosts, builds_between)
    for _ in run(SimulatedSearch(world.graph, policy, prior, log), log.append, workers):
        pass
    assert log.decision and not isinstance(log.decision.order, Measure), "the search ends only with a verdict"
    verdict, belief, observations = log.decision.order, log.decision.belief, tuple(log.observations)
    return HuntResult(verdict, belief, observations, world.builds, world.runs, world.now / 60)
