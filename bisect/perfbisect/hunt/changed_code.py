"""After the profiles: which functions of the source code the culprit changes, read from the user's clone.

It is stored as an event, so that an explanation is made from the history alone: a report needs no repository.
"""

from collections.abc import Callable, Generator, Sequence
from pathlib import Path

from perfbisect.core.domain.events import ChangedFunctions, Event, Profiled, Unexplained
from perfbisect.core.domain.facts import ChangeFacts
from perfbisect.core.domain.orders import Verdict, first_step
from perfbisect.core.explain.explanation import FUNCTIONS
from perfbisect.core.explain.functions import functions_in
from perfbisect.errors import PerfBisectError, in_words
from perfbisect.hunt.search_problem import SavedLog, TimedEvent
from perfbisect.repository.changed_functions import changed_functions
from perfbisect.repository.discovery import open_repository

Reader = Callable[[str, str, frozenset[str]], ChangeFacts]
"""Reads what the second commit changes of the first; gets the names of the functions that profiles contain."""


def reader(folder: str) -> Reader:
    """Reads the repository in a folder of this machine."""

    def read(parent: str, culprit: str, seen: frozenset[str]) -> ChangeFacts:
        return changed_functions(open_repository(Path(folder)), parent, culprit, seen)

    return read


def read_change(verdict: Verdict, commits: Sequence[str], log: SavedLog, reader: Reader) -> Generator[TimedEvent]:
    """Read what the verdict's first step changes, unless that was done after its latest profile."""
    step = first_step(verdict)
    if step is None or not step.parents:
        return
    parent, culprit = commits[step.parents[0]], commits[step.candidate]
    events: list[Event] = [entry.event for entry in log.history.events(log.hunt)]
    profiled = [number for number, event in enumerate(events) if isinstance(event, Profiled)]
    for event in events[max(profiled, default=-1) + 1 :]:
        if isinstance(event, ChangedFunctions) and (event.facts.parent, event.facts.commit) == (parent, culprit):
            return
    try:
        facts = reader(parent, culprit, functions_in(event.facts for event in events if isinstance(event, Profiled)))
        yield log.append(ChangedFunctions(step.candidate, facts))
    except (PerfBisectError, OSError) as trouble:
        yield log.append(Unexplained(FUNCTIONS, str(in_words(trouble))))
