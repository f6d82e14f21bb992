"""Counters in groups that a processor can count all at once, so that none of them is extrapolated. See ``Study``.

Processors have four to eight counters, of which a watchdog may take one and a hypervisor some; if more events are asked
for, perf counts each for a part of the time. So a group has four events, and each run counts one group.
"""

import math
from collections.abc import Callable, Generator
from dataclasses import dataclass, field, replace
from functools import partial

import msgspec

from perfbisect.core.domain.events import Counted, LabEvent, RunStarted
from perfbisect.core.explain.top_down import AMD, ARM, INTEL
from perfbisect.host.protocol import Host
from perfbisect.lab.measure import perf, visit
from perfbisect.lab.measure.runner import Turn
from perfbisect.lab.measure.slow_runs import SlowRuns
from perfbisect.lab.server.installation import System

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
