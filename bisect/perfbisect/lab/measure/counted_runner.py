"""Runs in which instructions are counted exactly: two executions each, of lengths that are found with the first build."""

from collections.abc import Callable, Generator
from dataclasses import dataclass, replace

from perfbisect.core.domain.events import ExecutionStarted, LabEvent, RunFinished, RunProgress, RunStarted
from perfbisect.core.domain.facts import RunFacts
from perfbisect.errors import RunFailed, UsageError
from perfbisect.lab.measure import counting, visit
from perfbisect.lab.measure.runner import Turn
from perfbisect.lab.measure.slow_runs import SlowRuns
from perfbisect.lab.server.installation import System

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
