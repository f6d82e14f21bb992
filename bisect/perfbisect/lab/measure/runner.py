"""Successive runs of one candidate, in as few visits as its system allows."""

from collections.abc import Callable, Generator
from contextlib import suppress
from dataclasses import dataclass

from perfbisect.core.domain.events import LabEvent, RunFinished, RunStarted
from perfbisect.core.domain.orders import Purpose
from perfbisect.lab.measure import visit
from perfbisect.lab.measure.slow_runs import SlowRuns
from perfbisect.lab.server.installation import System


@dataclass(slots=True)
class Turn:
    """Successive runs of one candidate; ``left`` counts down as they end well."""

    candidate: int
    first: int  # number of its first run in the order, from 1
    runs: int
    total: int  # runs of the order
    purpose: Purpose
    left: int
    layout: int = 0  # of all of them: see System
    stopped: bool = False  # whether one of them was stopped as too slow


class _Stopped(Exception):
    """Ends a visit as a failure does."""


@dataclass(frozen=True, slots=True)
class Runner:
    """Times runs in one context; calls ``succeeded`` after each run that ends well."""

    context: visit.RunContext
    slow: SlowRuns
    succeeded: Callable[[], None]

    def visit(self, system: System, dataset: str, turn: Turn) -> Generator[LabEvent]:
        """One visit on the data of that key: all runs that are left for a server, one for an embedded library.

        A run that is stopped as too slow ends the visit.

        Raises RunFailed, DataDamaged, and JobLost when the host has lost the work.
        """
        with suppress(_Stopped), visit.begin(self.context, system, turn.candidate, dataset, self.slow) as opened:
            for _ in range(turn.left if system.builder.server else 1):
                number = turn.first + turn.runs - turn.left
                yield RunStarted(turn.candidate, number, turn.total, turn.purpose, self.context.planned)
                facts = yield from visit.run(opened)
                turn.left -= 1
                self.succeeded()
                self.slow.take([facts])
                yield RunFinished(turn.candidate, facts)
                if facts.slower_than:
                    turn.stopped = True
                    raise _Stopped  # a server may go on with what the run has begun: it is killed
