"""The parts of an explanation: what is measured after the verdict, when each suits, and how long it takes."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeGuard

from perfbisect.core.domain.events import Counted, Event, Planned, Profiled, RunFinished
from perfbisect.core.domain.facts import RunFacts
from perfbisect.core.explain.evidence import Explanation, Sureness
from perfbisect.core.explain.explanation import part_of
from perfbisect.core.explain.functions import part_error, whole
from perfbisect.lab.measure.counting import ENOUGH_BY_FUNCTION, has_length, obstacle
from perfbisect.lab.measure.profiles import SAMPLED_INSTRUCTIONS, Profiles
from perfbisect.lab.measure.studies import CounterGroups, ExactCounts, PlanStudy, has_statements
from perfbisect.lab.measure.visit import StudyMaker
from perfbisect.recipes.builder import Builder
from perfbisect.recipes.workload import Workload
from perfbisect.wording.functions import SURE, beyond

WAITING = 0.3  # share of the time of the workload's threads that is spent off CPU, from which on waits are sampled
SLOWER = 40.0  # times that a program takes more CPU time while its instructions are counted by valgrind
PLACED = 0.02  # standard error of the share that the first function has, from which on no further profile is taken
COUNTED_OPERATIONS = 4.0  # at the least; and of those that make a usual count, so many times as many
TOUCHED = 12.0
SPEED = 2e9  # instructions a second, about


@dataclass(frozen=True, slots=True)
class Part:
    """One part of an explanation."""

    name: str
    # For turns of so many seconds of measuring, after these events.
    study: Callable[[float, Sequence[Event]], StudyMaker]
    rounds: int  # in each, both builds have one turn
    share: float  # of the time for the whole explanation; what one part leaves, the next may use
    # whether it can show what is not known yet, of a workload of a system, after these events
    suits: Callable[[Builder, Workload, Sequence[Event]], bool] = lambda *_: True
    always: Callable[[Workload], bool] = lambda _: False  # whether the first round is taken however long it takes
    # seconds of a turn at least, of a workload after these runs of a build
    least: Callable[[Workload, Sequence[Event]], float] = lambda *_: 0.0
    enough: Callable[[Explanation], bool] = lambda _: False  # whether half of the rounds have shown what it can show
    # of two parts of one name: whether its events are of samples, or of exact counts by function
    sampled: bool | None = None
    of_all: bool = False  # after culprit and parent, one turn of each other build that the hunt has measured there

    def has(self, event: Event) -> TypeGuard[Counted | Profiled | Planned]:
        """Whether an event is one of this part."""
        if self.sampled is not None and not (isinstance(event, Profiled) and bool(event.facts.samples) is self.sampled):
            return False
        return part_of(event) == self.name


def counts_instructions(events: Sequence[Event]) -> bool:
    """Whether the processor has counted instructions in a timed run."""
    runs = (event.facts for event in events if isinstance(event, RunFinished) and not event.facts.counted)
    return any(run.counters.get("instructions") for run in runs)


def by_function(event: Event) -> bool:
    """Whether it is an exact count by function."""
    return isinstance(event, Profiled) and part_of(event) == "instructions" and not event.facts.samples


def counting_time(workload: Workload, runs: Sequence[Event]) -> float:
    """Seconds that an exact count takes about, after these timed runs of a build; 0 where there is none.

    What an operation computes becomes slower, up to the few operations that are counted in any case. What it waits takes
    as long as ever, in as many operations as it takes to execute enough instructions. A command without a length is
    counted once, as it is.
    """
    found = [run.facts for run in runs if isinstance(run, RunFinished) and run.facts.operations]
    if not found:
        return 0.0
    if not has_length(workload):
        clocks = [(facts.counters.get("task-clock") or 1000 * facts.seconds) / 1000 for facts in found]
        return max(facts.seconds for facts in found) + SLOWER * min(clocks)
    slowest = max(found, key=lambda facts: facts.seconds / facts.operations)
    each = slowest.seconds / slowest.operations
    computing = min(each, (slowest.counters.get("task-clock") or math.inf) / 1000 / slowest.operations)
    operations = max(1.0, TOUCHED * ENOUGH_BY_FUNCTION / (SPEED * computing))
    return COUNTED_OPERATIONS * SLOWER * computing + operations * (each - computing)


def waiting(workload: Workload, events: Sequence[Event]) -> bool:
    """Whether the threads of a workload are off CPU for a good part of the time, in any of the builds."""
    clocks = [
        (event.facts.counters.get("task-clock"), event.facts.seconds)
        for event in events
        if isinstance(event, RunFinished) and not event.facts.counted and not workload.command
    ]
    return any(clock and clock / 1000 < (1 - WAITING) * workload.threads * seconds for clock, seconds in clocks)


def placed(found: Explanation) -> bool:
    """Whether the profiles show in which function the difference is, far beyond noise."""
    total, spread = whole(found.functions)
    telling = [row for row in found.functions if row.difference * total > 0 and beyond(row)]
    return bool(telling) and abs(total) >= SURE * spread and part_error(telling[:1], found.functions) <= PLACED


def switches(events: Sequence[Event]) -> float:
    """The most switches of threads a second in the runs of a hunt; 0 where they are not known."""
    return max((event.facts.system.get("cs") or 0.0 for event in events if isinstance(event, RunFinished)), default=0.0)


def counted_length(events: Sequence[Event]) -> int:
    """The length of exactly counted runs that the hunt has found; both builds have the same. 0: there is none."""
    found = (event.facts for event in events if isinstance(event, (Counted, Profiled, RunFinished)))
    return next((facts.events for facts in found if isinstance(facts, RunFacts) and facts.counted), 0)


PARTS: tuple[Part, ...] = (
    # First: it is short, and said first.
    Part(
        "plans",
        lambda *_: PlanStudy,
        rounds=1,
        share=0.1,
        suits=lambda _, workload, __: has_statements(workload),
        always=has_statements,
        of_all=True,
    ),
    Part(
        "profiles",
        lambda seconds, _: partial(Profiles, seconds=seconds),
        rounds=3,
        share=0.4,
        always=lambda workload: bool(workload.command),  # which has no server to start
        enough=placed,
    ),
    # Where threads wait for a good part of the time. A single round would not say how much waits vary by themselves.
    Part(
        "waits",
        lambda seconds, events: partial(Profiles, seconds=seconds, switches=switches(events)),
        rounds=2,
        share=0.4,
        suits=lambda _, workload, seen: waiting(workload, seen),
    ),
    # Where it can be counted exactly: this tells more code from everything else, and in which functions it is.
    Part(
        "instructions",
        lambda seconds, events: partial(ExactCounts, events=counted_length(events), seconds=seconds),
        rounds=1,
        sampled=False,
        share=0.9,
        suits=lambda builder, workload, _: not obstacle(builder, workload),
        always=lambda workload: not workload.command,  # whose counted runs are as short as they can be
        least=counting_time,
    ),
    # Where they were not, they are sampled, if the processor counts them.
    Part(
        "instructions",
        lambda seconds, _: partial(Profiles, seconds=seconds, events=SAMPLED_INSTRUCTIONS),
        rounds=3,
        sampled=True,
        share=0.4,
        suits=lambda _, __, seen: counts_instructions(seen) and not any(map(by_function, seen)),
    ),
    Part(
        "counters",
        lambda seconds, _: partial(CounterGroups, seconds=seconds),
        rounds=6,
        share=0.3,
        enough=lambda found: found.classes[0].sure is Sureness.SURE,
    ),
)
