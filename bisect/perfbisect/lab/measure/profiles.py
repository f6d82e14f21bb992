"""Profiles: where a build spends the CPU time of an operation, and where it waits, sampled by ``perf record``. See ``Study``.

The measured window is that of a timed run: the workload's first operation after its warm-up lets perf sample, and its
last one ends it. What is sampled are the processes that a timed run counts.

Waits are sampled in a run of their own, as every switch of threads costs more then: where threads wait for a good part of
the time, there is time for it, and perf may see the kernel.
"""

import math
from collections.abc import Callable, Generator
from dataclasses import dataclass, replace
from functools import partial

from perfbisect.core.domain.events import LabEvent, Profiled, RunStarted, Unexplained
from perfbisect.core.domain.facts import ProfileFacts, RunFacts
from perfbisect.core.explain.profiles import FEW, Folded
from perfbisect.errors import EnvironmentFailure, NoSamples
from perfbisect.host.facts import CORES, ask
from perfbisect.lab.measure import perf, visit
from perfbisect.lab.measure.counted_runs import LONGEST, shortened
from perfbisect.lab.measure.sampling import WAITS, Sampling, available, folded_on, record
from perfbisect.lab.measure.visit import RunContext, SlowRuns, Turn
from perfbisect.lab.server.service import System

PART = "profiles"
SAMPLES = 10_000  # of a run, about: 160 MB with their stacks
OFTENEST, RAREST = 499, 1  # samples of a second of CPU time
WAITS_SAMPLED = 5_000  # of a run, about
USUAL_SWITCHES = 5_000  # of threads a second, where earlier runs do not tell
LONG = 60.0  # seconds that a command may take whose length is unknown

WAITS_FOR_ALL = "Threads wait for their clients and for work, too."


@dataclass(slots=True)
class Profiles:
    """Samples one run in each turn."""

    context: RunContext
    succeeded: Callable[[], None]
    seconds: float = LONGEST  # of measuring in a turn
    sampled: Sampling | None = None  # None until it is known
    rate: float = 0.0  # samples of a second of CPU time

    def visit(self, system: System, dataset: str, turn: Turn) -> Generator[LabEvent]:
        """One run, with the folding of its samples."""
        turn.left -= 1
        try:
            self.sampled = self.sampled or sampling(self.context)
        except EnvironmentFailure as failure:
            yield Unexplained(PART, str(failure), self.context.host.name)
            return
        context = shortened(self.context, self.seconds)
        self.rate = self.rate or first_rate(context, ask(context.host, CORES) or 1)
        rate = max(RAREST, round(self.rate))
        facts, folded = yield from sampled_run(context, system, dataset, turn, self.sampled, rate)
        self.succeeded()
        yield Profiled(turn.candidate, profile(facts, folded, self.sampled))
        self.rate = next_rate(rate, folded.samples)


@dataclass(slots=True)
class Waits:
    """Samples the waits of one run in each turn; nothing where perf may not see the kernel, which schedules threads."""

    context: RunContext
    succeeded: Callable[[], None]
    seconds: float = LONGEST  # of measuring in a turn
    switches: float = 0.0  # of threads a second in earlier runs; 0: unknown
    sampled: Sampling | None = None  # None until it is known

    def visit(self, system: System, dataset: str, turn: Turn) -> Generator[LabEvent]:
        """One run, with the folding of its waits."""
        turn.left -= 1
        try:
            self.sampled = self.sampled or sampling(self.context)
        except EnvironmentFailure:
            return  # the profiles have said so
        if not self.sampled.in_kernel:
            return
        waiting = Sampling(WAITS, self.sampled.chains)
        context = shortened(self.context, self.seconds)
        rate = one_of((self.switches or USUAL_SWITCHES) * context.workload.time)
        try:
            facts, folded = yield from sampled_run(context, system, dataset, turn, waiting, rate)
        except NoSamples:
            return  # no thread has waited
        self.succeeded()
        yield Profiled(turn.candidate, profile(facts, folded, waiting))


def sampling(context: RunContext) -> Sampling:
    """What perf can sample on the host. Raises EnvironmentFailure if it is nothing."""
    if not context.perf:
        perf.probe(context.host)
    return available(context.host)


def sampled_run(
    context: RunContext, system: System, dataset: str, turn: Turn, sampled: Sampling, rate: int
) -> Generator[LabEvent, None, tuple[RunFacts, Folded]]:
    """A run in a visit of its own, and its stacks."""
    bench = replace(context, perf=True, wrap=partial(record, sampled=sampled, rate=rate))
    with visit.begin(context, system, turn.candidate, dataset, SlowRuns()) as opened:
        yield RunStarted(turn.candidate, turn.first, turn.total, turn.purpose, context.planned)
        facts = yield from visit.run(replace(opened, bench=bench))
        return facts, folded_on(context.host, opened.folder, sampled, rate)


def one_of(switches: float) -> int:
    """One of how many waits is sampled in a run with so many. An operation may wait at several places in turns."""
    number = max(1, round(switches / WAITS_SAMPLED))
    while number > 1 and math.gcd(number, 2 * 3 * 5 * 7) > 1:  # else it might always be the same of them
        number += 1
    return number


def first_rate(context: RunContext, cores: int) -> float:
    """How often a run is sampled of which nothing is known but its length, and how many threads may work."""
    seconds = context.workload.time
    if context.workload.command:
        seconds, busy = context.longest or LONG, cores
    else:
        busy = min(cores, 2 * context.workload.threads)  # of the server or the library, and what works for them
    return min(OFTENEST, max(RAREST, SAMPLES / (seconds * busy)))


def next_rate(rate: float, samples: int) -> float:
    """How often the next run is sampled, after one that was sampled that often."""
    return min(OFTENEST, max(RAREST, rate * SAMPLES / max(1, samples)))


def profile(facts: RunFacts, folded: Folded, sampled: Sampling) -> ProfileFacts:
    """The profile of a run. The samples that were lost are taken to be like the others."""
    whole = folded.samples + folded.lost
    notes = [
        *sampled.notes,
        WAITS_FOR_ALL if sampled.waits else "",
        f"The callers of {100 * folded.alone:.0f} % of the cost are unknown." if folded.alone > FEW else "",
        f"{100 * folded.lost / whole:.0f} % of the samples were lost." if folded.lost > FEW * whole else "",
    ]
    return ProfileFacts(
        commit=facts.commit,
        build_key=facts.build_key,
        host=facts.host,
        operations=facts.operations,
        seconds=facts.seconds,
        unit=sampled.unit,
        stacks={stack: cost * whole / folded.samples for stack, cost in folded.stacks.items()},
        samples=folded.samples,
        lost=folded.lost,
        event=sampled.event,
        chains=sampled.chains,
        off_cpu=sampled.waits,
        note=" ".join(filter(None, notes)),
    )
