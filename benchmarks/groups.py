"""Simulated hunts of several workloads in one: a world for each, over the same commits, with common builds."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from planted import Planted

from perfbisect.core.domain.events import Decided, Warned
from perfbisect.core.domain.orders import BuildOrder, Fleet, Measure, PlannedRuns, Purpose, Verdict
from perfbisect.core.domain.settings import NOTHING_KNOWN, Policy, PriorKnowledge
from perfbisect.core.inference.observations import Built, Observation, Reading, Skipped
from perfbisect.core.search.decide import decide_together, orders_layouts
from perfbisect.core.search.situation import Situation
from perfbisect.hunt.loop import UNLIMITED, NextAction, OrderEnded, Workers, run
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
    if (isinstance(scenario, Planted) and scenario.identical) or len(workloads) > MOST:
        raise ValueError(f"a group has at most {MOST} workloads, and no equal binaries")
    first = MOST * seed
    broken = scenario.world(first).unbuildable
    each = []
    for number, workload in enumerate(workloads):
        changes = "nothing" if workload.culprit is None else scenario.changes
        world = replace(scenario, effect=workload.effect, changes=changes).world(first + (workload.culprit or 0))
        each.append(replace(world, unbuildable=broken, seed=first + number))
    return each


class _Group:
    """The planner and the log of the loop: all that happens until the next order is of the hunt whose turn it is."""

    def __init__(self, worlds: Sequence[World], policy: Policy, prior: PriorKnowledge, *, common: bool) -> None:
        """``common``: a run gives a reading for each workload, as those of results of one command do."""
        self.worlds, self._common = worlds, common
        self._in_layouts: set[int] = (
            set()
        )  # the hunts of which runs in randomized layouts are readings, whoever orders them
        self.seen: list[list[Observation]] = [[] for _ in worlds]
        self.verdicts: dict[int, Verdict] = {}
        self.turn = 0
        self._known = policy, prior

    def next(self, fleet: Fleet) -> NextAction:
        """The next order, of any hunt; or the verdict of one, after which the loop is entered again for the others."""
        each = zip(self.worlds, self.seen, strict=True)
        members = [Situation(world.graph, observations, *self._known) for world, observations in each]
        self.turn, decision = decide_together(members, self.verdicts, fleet, has_common_runs=self._common)
        if self._common and orders_layouts(decision):  # as hunt.driver.HuntsPlanner does
            left = {number for number in range(len(members)) if number not in self.verdicts} - self._in_layouts
            alone = {number: {*range(len(members))} - {number} for number in left}
            self._in_layouts |= {
                number for number in left if orders_layouts(decide_together(members, alone[number], fleet)[1])
            }
        if isinstance(decision.order, Measure):
            return NextAction(decision.order)
        self.verdicts[self.turn] = decision.order
        return NextAction(None, ends_at_once=True)

    def append(self, event: Observation | Decided | Warned, workload: int | None = None) -> None:
        """Keep an observation; builds are there for all, and a commit that does not build does so for none."""
        if isinstance(event, Decided | Warned):
            return
        of_all = isinstance(event, Built) or (isinstance(event, Skipped) and event.reason == NO_BUILD)
        for number, (world, observations) in enumerate(zip(self.worlds, self.seen, strict=True)):
            if number == self.turn or of_all:
                observations.append(event)
            if number != self.turn and isinstance(event, Built):
                world.add_existing_build(event.candidate)
            takes = number in self._in_layouts or not getattr(event, "layout", 0)
            if number != self.turn and number not in self.verdicts and self._common and takes:
                observations += beside(world, event)

    def know(self, runs: int) -> None:
        """Enter so many runs of both ends that were made before, for each workload."""
        for world, observations in zip(self.worlds, self.seen, strict=True):
            ends = Measure((PlannedRuns(world.graph.size - 1, runs), PlannedRuns(0, runs)), Purpose.ENDS)
            for event in world.measure(ends):
                observations.append(replace(event, of_another_hunt=True) if isinstance(event, Reading) else event)
            world.runs = 0


def beside(world: World, run: Observation) -> Iterator[Reading]:
    """The reading of another result of a run; none of a round."""
    if isinstance(run, Reading) and run.partner is None:
        made, layout = world.runs, world.relink(run.candidate, run.host) if run.layout else 0
        if (value := world.run(run.candidate, run.host, layout=layout)) is not None:
            yield replace(run, value=value, layout=layout, of_another_hunt=True)
        world.runs = made


class _Host:
    """The workers of the loop: a host that measures in the world of the hunt whose turn it is."""

    hosts: Sequence[str] = ("host 0",)
    build_hosts: Sequence[str] = ()
    builds_between = False
    limit, minutes = UNLIMITED, 0.0

    def __init__(self, group: _Group, most_orders: int) -> None:
        self._group = group
        self._events: Iterator[Observation] = iter(())
        self._left = self._most = most_orders

    def submit(self, order: Measure) -> None:
        """Compute an order; see ``Workers.submit``. Raises RuntimeError for one too many."""
        if not self._left:
            raise RuntimeError(f"no verdicts after {self._most} orders")
        self._left -= 1
        world = self._group.worlds[self._group.turn]
        world.wait(0, max(each.clock() for each in self._group.worlds))
        self._events = iter(world.measure(order))

    def next(self) -> tuple[int, Observation | OrderEnded]:
        """The next observation; see ``Workers.next``."""
        return 0, next(self._events, OrderEnded())

    def stop(self) -> None:
        """Nothing is under way; see ``Workers.stop``."""

    def begin(self, build: BuildOrder) -> None:
        """Never called: there is no build host."""

    def elapsed_seconds(self, build_host: int) -> float:
        """Never called."""
        raise AssertionError(build_host)

    def cancel(self, build_host: int) -> None:
        """Never called."""


def hunt_together(
    worlds: Sequence[World],
    policy: Policy,
    prior: PriorKnowledge = NOTHING_KNOWN,
    most_orders: int = 1000,
    *,
    common: bool = False,
    known: int = 0,
) -> GroupOutcome:
    """Hunt in all ``worlds`` until each has its verdict; with ``common`` runs, and so many of both ends ``known`` before.

    Raises RuntimeError if one has none after so many orders for each workload.
    """
    group = _Group(worlds, policy, prior, common=common)
    if known:
        group.know(known)
    host: Workers[Observation] = _Host(group, most_orders * len(worlds))
    while len(group.verdicts) < len(worlds):
        for _ in run(group, group.append, host):
            pass
    return GroupOutcome(
        tuple(group.verdicts[number] for number in range(len(worlds))),
        tuple(map(tuple, group.seen)),
        sum(world.builds for world in worlds),
        tuple(world.runs for world in worlds),
        max(world.now for world in worlds) / 60,
    )
