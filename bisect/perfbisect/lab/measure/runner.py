"""Successive runs of one candidate, in as few visits as its system allows."""

from collections.abc import Callable, Generator
from dataclasses import dataclass

from perfbisect.core.domain.events import LabEvent, RunFinished, RunStarted
from perfbisect.core.domain.orders import Purpose
from perfbisect.lab.measure import visit
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


@dataclass(frozen=True, slots=True)
class Runner:
    """Times runs in one context; calls ``succeeded`` after each run that ends well."""

    context: visit.RunContext
    succeeded: Callable[[], None]

    def visit(self, system: System, dataset: str, turn: Turn) -> Generator[LabEvent]:
        """One visit on the data of that key: all runs that are left for a server, one for an embedded library.

        Raises RunFailed, DataDamaged, and JobLost when the host has lost the work.
        """
        with visit.begin(self.context, system, turn.candidate, dataset) as opened:
            for _ in range(turn.left if system.builder.server else 1):
                number = turn.first + turn.runs - turn.left
                yield RunStarted(turn.candidate, number, turn.total, turn.purpose, self.context.planned)
                facts = yield from visit.run(opened)
                turn.left -= 1
                self.succeeded()
                yield RunFinished(turn.candidate, facts)
