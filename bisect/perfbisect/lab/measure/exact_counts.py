"""Exact counts of instructions for the reason, on a host whose processor counts none. See ``counting`` and ``Study``.

Where perf counts, the groups of counters have instructions already. Elsewhere valgrind tells more code from everything else.
"""

from collections.abc import Callable, Generator
from dataclasses import dataclass, replace

from perfbisect.core.domain.events import Counted, LabEvent, RunFinished
from perfbisect.core.explain.counters import EXACT_GROUP
from perfbisect.lab.measure import counting
from perfbisect.lab.measure.counted_runner import CountedRunner
from perfbisect.lab.measure.runner import Turn
from perfbisect.lab.measure.visit import RunContext
from perfbisect.lab.server.installation import System


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
