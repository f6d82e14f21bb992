"""Runs in which events are counted: instructions exactly, or counters of the processor in groups.

An exactly counted run has two executions, of lengths that are found with the first build. For the reason of a change this is
done where perf counts no instructions: valgrind tells more code from everything else. See ``counting`` and ``Study``.

Groups are what a processor can count all at once, so that no counter is extrapolated. Processors have four to eight
counters, of which a watchdog may take one and a hypervisor some; if more events are asked for, perf counts each for a part
of the time. So a group has four events, and each run counts one group.
"""

import math
from collections.abc import Callable, Generator
from dataclasses import dataclass, field, replace
from functools import partial

import msgspec

from perfbisect.core.domain.events import Counted, ExecutionStarted, LabEvent, RunFinished, RunProgress, RunStarted
from perfbisect.core.domain.facts import RunFacts
from perfbisect.core.explain.counters import AMD, ARM, EXACT_GROUP, INTEL
from perfbisect.errors import RunFailed, UsageError
from perfbisect.host.protocol import Host
from perfbisect.lab.measure import counting, perf, visit
from perfbisect.lab.measure.visit import RunContext, SlowRuns, Turn
from perfbisect.lab.server.service import System

Execution = Generator[ExecutionStarted | RunProgress, None, RunFacts]


@dataclass(slots=True)
class CountedRunner:
    """Counts runs in one context, which has a counter; calls ``succeeded`` after each run that ends well."""

    context: visit.RunContext
    succeeded: Callable[[], None]
    events: int = 0  # the length of runs; 0 until it is known

    def visit(self, system: System, dataset: str, turn: Turn) -> Generator[LabEvent]:
        """One run on the data of that key. Raises as ``Runner.visit``, and UsageError if the first has no length."""
        number = turn.first + turn.runs - turn.left
        yield RunStarted(turn.candidate, number, turn.total, turn.purpose, self.context.planned)
        facts = yield from self._run(system, dataset, turn.candidate)
        turn.left -= 1
        self.succeeded()
        yield RunFinished(turn.candidate, facts)

    def _run(self, system: System, dataset: str, candidate: int) -> Execution:
        if not counting.has_length(self.context.workload):
            facts = yield from self._execute(system, dataset, candidate, 0, 1, 1)
            return replace(facts, counters={"instructions": counting.instructions(facts)})
        known = self.events > 0
        if not known:
            lengths: dict[int, float] = {}
            while events := counting.next_length(lengths):
                facts = yield from self._execute(system, dataset, candidate, events, len(lengths) + 1, 0)
                lengths[events] = counting.instructions(facts)
            self.events = counting.chosen_length(lengths)
        short = yield from self._execute(system, dataset, candidate, self.events, 1, 2)
        long = yield from self._execute(system, dataset, candidate, 2 * self.events, 2, 2)
        try:
            return counting.difference(short, long)
        except UsageError as trouble:
            if not known:
                raise
            # The length was of use to an earlier build: it is this commit that ignores it.
            raise RunFailed(str(trouble), stage="run", log=str(self.context.host.root / "jobs")) from trouble

    def _execute(self, system: System, dataset: str, candidate: int, events: int, number: int, of: int) -> Execution:
        """One execution of that length, on a fresh copy of the data; of length 0: as long as the command is."""
        yield ExecutionStarted(candidate, number, of, events)
        workload = self.context.workload
        context = replace(self.context, workload=counting.of_length(workload, events) if events else workload)
        with visit.begin(context, system, candidate, dataset, SlowRuns()) as opened:
            facts = yield from visit.run(opened)
        operations = events if events and workload.command and not workload.operations else facts.operations
        return replace(facts, events=events, operations=operations, latency={}, samples=(), reported=None)


@dataclass(slots=True)
class ExactCounts:
    """Counts one run in a turn; none where perf can count, or where the workload cannot be counted exactly."""

    context: RunContext
    succeeded: Callable[[], None]
    events: int = 0  # the length of runs, from an earlier session; 0 until it is known
    runner: CountedRunner | None = None  # which keeps the length of runs: both builds have the same one

    def visit(self, system: System, dataset: str, turn: Turn) -> Generator[LabEvent]:
        """One counted run as an event of its own. Raises as ``CountedRunner.visit``."""
        if self.runner is None and (by := self._method(system)):
            counter = counting.counter(self.context.host, by)
            context = replace(self.context, perf=False, vmstat=False, iostat=False, counter=counter)
            self.runner = CountedRunner(context, self.succeeded, self.events)
        if self.runner is None:
            turn.left -= 1
            return
        for event in self.runner.visit(system, dataset, turn):
            yield Counted(event.candidate, event.facts, EXACT_GROUP) if isinstance(event, RunFinished) else event

    def _method(self, system: System) -> str:
        if counting.obstacle(system.builder, self.context.workload):
            return ""
        by = counting.method(self.context.host)
        return "" if by == counting.PERF else by


SHORTEST, LONGEST = 1.0, 10.0  # seconds of a run
CORE = ("cycles", "instructions")  # in each group: the ratios that matter most are measured in every run


@dataclass(frozen=True, slots=True)
class Group:
    """Events that are counted together. Those of the kernel take no counter and are counted in every run."""

    name: str
    events: tuple[str, ...]
    processor: str = ""  # kind of cores, where there are two: "cpu_core"
    bound: bool = False  # the kernel counts all or none of them, the first leading

    @property
    def argument(self) -> str:
        """The events as perf reads them."""
        named = [f"{self.processor}/{event}/" if self.processor else event for event in self.events]
        return f"{{{','.join(named)}}}" if self.bound else ",".join(named)


SOFTWARE = Group("software", ())
PLAIN = (
    Group("core", (*CORE, "branches", "branch-misses")),
    Group("caches", (*CORE, "L1-dcache-load-misses", "cache-misses")),
    Group("memory", (*CORE, "dTLB-load-misses", "LLC-load-misses")),
    Group("code", (*CORE, "L1-icache-load-misses", "iTLB-load-misses")),
)
SLOTS = (
    Group("top-down", INTEL.events, bound=True),
    Group("top-down", INTEL.events, "cpu_core", bound=True),  # what runs on the other cores is left out
    Group("top-down", AMD.events),
    Group("top-down", ARM.events),
)
STALLS = Group("stalls", (*CORE, "stalled-cycles-frontend", "stalled-cycles-backend"))

_TRIALS = """for events do perf stat -x , -e "$events" -- true 2>&1; printf '\\f'; done"""


def available(host: Host) -> tuple[Group, ...]:
    """The groups that perf can count on the host; software events alone where it has no counters."""
    candidates = (*PLAIN, *SLOTS, STALLS)
    tried = host.run(["sh", "-c", _TRIALS, "trials", *(group.argument for group in candidates)], check=False)
    outputs = tried.stdout.removesuffix("\f").split("\f")
    return chosen({group: perf.parse(output) for group, output in zip(candidates, outputs, strict=False)})


def chosen(trials: dict[Group, dict[str, float | None]]) -> tuple[Group, ...]:
    """The groups of which a trial counted something of their own; only the best one about stalls."""
    plain = [group for group in PLAIN if counts(trials.get(group, {})) - {*CORE}]
    slots = [group for group in SLOTS if len(counts(trials.get(group, {}))) == len(group.events)]
    stalls = [STALLS] if counts(trials.get(STALLS, {})) - {*CORE} else []
    return (*plain, *(slots or stalls)[:1]) or (SOFTWARE,)


def counts(trial: perf.Counters) -> set[str]:
    """The events that were counted."""
    return {event for event, value in trial.items() if value is not None}


@dataclass(slots=True)
class CounterGroups:
    """Counts one group in each run; a turn has a run of each group."""

    context: visit.RunContext
    succeeded: Callable[[], None]
    groups: tuple[Group, ...] = ()
    seconds: float = LONGEST  # of measuring in a turn, where that is enough for all groups
    left: list[Group] = field(
        default_factory=list
    )  # of the present turn: one that is repeated goes on where it was lost

    def visit(self, system: System, dataset: str, turn: Turn) -> Generator[LabEvent]:
        """One turn: a visit for all groups, or one for each where the workload runs in the measured process itself."""
        if not self.groups:
            self.groups = available(self.context.host) if self.context.perf else (SOFTWARE,)
        self.left = self.left or [*self.groups]
        context = shortened(self.context, self.seconds / len(self.groups))
        while self.left:
            with visit.begin(context, system, turn.candidate, dataset, SlowRuns()) as opened:
                for group in [*self.left] if system.builder.server else self.left[:1]:
                    number = len(self.groups) - len(self.left) + 1
                    yield RunStarted(turn.candidate, number, len(self.groups), turn.purpose, context.planned)
                    bench = replace(
                        context, wrap=partial(perf.wrap, events=(*filter(None, [group.argument]), *perf.SOFTWARE))
                    )
                    facts = yield from visit.run(replace(opened, bench=bench))
                    self.left.remove(group)
                    self.succeeded()
                    yield Counted(turn.candidate, facts, group.name)
        turn.left -= 1


def shortened(context: visit.RunContext, seconds: float) -> visit.RunContext:
    """The context with runs of ``seconds``, from one to ``LONGEST``, and no longer than usual; a command takes what it takes.

    sysbench counts whole seconds.
    """
    workload = context.workload
    if workload.command:
        return context
    time = float(math.floor(min(workload.time, LONGEST, max(SHORTEST, seconds))))
    return replace(context, workload=msgspec.structs.replace(workload, time=time, warmup=min(workload.warmup, time)))
