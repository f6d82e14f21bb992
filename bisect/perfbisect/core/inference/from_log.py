"""From the log of a hunt to what the search is told.

Live, resumed and replayed hunts all go through ``observations``: same log in, same observations out.
Commits, not node numbers, tie an event to the graph, so that a log can be read against another range.
"""

import math
from collections.abc import Mapping, Sequence

from perfbisect.core.domain.events import BuildFinished, CandidateSkipped, RunFinished
from perfbisect.core.domain.facts import RunFacts
from perfbisect.core.domain.metrics import value
from perfbisect.core.domain.observations import Built, Observation, Reading, Skipped

Logged = BuildFinished | CandidateSkipped | RunFinished


def readable(run: RunFacts, metric: str) -> float | None:
    """The logarithm of a run's metric; None where it is missing or none can be taken: not positive, or not finite."""
    measured = value(run, metric)
    return math.log(measured) if measured is not None and 0 < measured < math.inf else None


def observations(
    log: Sequence[tuple[float, Logged]],
    node: Mapping[str, int],
    metric: str,
    began: float,
    hosts: Sequence[str] = (),
) -> list[Observation]:
    """The observations in ``log`` about the commits in ``node`` (full hash → node of the graph).

    ``log`` holds (seconds since the epoch, event) in order, ``began`` is when the hunt did. A run that is not
    ``readable`` says nothing and is left out. ``hosts`` are the names of the hosts where there are several:
    builds are there, and binaries are compared, only on the host that made them.
    """
    told: list[Observation] = []
    place = {name: number for number, name in enumerate(hosts)}
    binaries: dict[tuple[int, str], int] = {}
    visits: dict[tuple[int, str], int] = {}
    for at, event in log:
        candidate = node.get(event.facts.commit)
        if candidate is None:
            continue
        host = place.get(event.host, 0)
        match event:
            case BuildFinished(facts=build):
                first = binaries.setdefault((host, build.binary), candidate)
                same = None if first == candidate else first
                told.append(Built(candidate, build.seconds, same, host if len(place) > 1 else None))
            case CandidateSkipped(facts=skip):
                told.append(Skipped(candidate, skip.reason, skip.seconds))
            case RunFinished(facts=run):
                if (reading := readable(run, metric)) is not None:
                    minutes = (run.started + run.seconds / 2 - began) / 60
                    visit = visits.setdefault((host, run.visit), len(visits))
                    told.append(Reading(candidate, reading, minutes, visit, host, at - run.started))
    return told
