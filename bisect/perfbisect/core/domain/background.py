"""What the other threads of a workload do while it is measured, and what its client costs itself.

A workload may have threads of several roles: one that is measured, and others that work beside it at a rate. How many rows or
queries each has done, how many were due by the clock, and its response times are counters of a run.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import mean

from perfbisect.core.domain.facts import RunFacts

# Of a role, behind its name. Rows or queries done, those that were due in the time of the run, the rate that makes them due,
# those of one transaction of each client, and response times in milliseconds.
DONE, DUE, RATE, BATCH, P99, LONGEST = "-done", "-due", "-rate", "-batch", "-p99", "-max"
CLIENT_CPU = "client-cpu"  # milliseconds of the client in the window
CLIENT_BUSY = "client-busy"  # share of their time in which its measured threads use a processor themselves

SUSTAINED = 0.99  # share of what is due that is enough
LATE = 2  # transactions of each client and run that may be missing: those which the end of the window has cut off
BUSY = 0.5  # of CLIENT_BUSY: from here on the client decides more than the server


@dataclass(frozen=True, slots=True)
class Background:
    """The rate of the role that was furthest behind, of those that have one; of all its clients together."""

    role: str
    wanted: float  # per second
    held: float
    sustained: bool  # the service level is reached


def counters(
    role: str, done: float, due: float, rate: float, batch: float, p99: float, longest: float
) -> Mapping[str, float]:
    """The counters of a role. One that no clock paces has none of what was due."""
    paced = {role + DUE: due, role + RATE: rate, role + BATCH: batch} if rate else {}
    return {role + DONE: done, **paced, role + P99: p99, role + LONGEST: longest}


def background(runs: Iterable[RunFacts]) -> Background | None:
    """The background of several runs of one build, taken together; None where no role is paced."""
    known = list(runs)
    roles = {name.removesuffix(DUE) for run in known for name in run.counters if name.endswith(DUE)}
    found = [one for role in sorted(roles) if (one := _of(role, known))]
    return min(found, key=lambda each: (each.sustained, each.held / each.wanted), default=None)


def _of(role: str, runs: Iterable[RunFacts]) -> Background | None:
    counted = [
        (done, due, rate, run.counters.get(role + BATCH) or 0.0)
        for run in runs
        if (done := run.counters.get(role + DONE)) is not None
        and (due := run.counters.get(role + DUE))
        and (rate := run.counters.get(role + RATE))
    ]
    if not counted:
        return None
    wanted = mean(rate for _, _, rate, _ in counted)
    done, due = (sum(column) for column in list(zip(*counted, strict=True))[:2])
    enough = min(SUSTAINED * due, due - LATE * sum(batch for *_, batch in counted))
    return Background(role, wanted, wanted * done / due, done >= enough)


def share_held(run: RunFacts) -> float | None:
    """What was done of what was due, in the role that was furthest behind; None where no role is paced."""
    found = background([run])
    return found.held / found.wanted if found else None


def busiest(runs: Iterable[RunFacts]) -> float | None:
    """The largest share of their time that measured threads used a processor themselves; None if unknown."""
    return max((share for run in runs if (share := run.counters.get(CLIENT_BUSY)) is not None), default=None)
