"""What each build spends per operation in a workload, and relative to the first build: a table for each workload.

The columns are those that the field reads beside QPS: CPU, context switches, reads, and KB read and written. A value is
the median over the runs of a build.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from perfbisect.core.domain.facts import RunFacts
from perfbisect.core.domain.metrics import quotient, value
from perfbisect.core.domain.trials import Trial

COLUMNS = ("cpu/o", "cs/o", "r/o", "rKB/o", "wKB/o", "o/s")
Values = tuple[float | None, ...]  # one for each column


@dataclass(frozen=True, slots=True)
class Spent:
    """One workload: a row for each build; all builds but the first have a relative one, too."""

    work: str
    absolute: tuple[Values, ...]
    relative: tuple[Values, ...]


def spent(trial: Trial) -> list[Spent]:
    """The table of each workload, in their order in the request."""
    whole = by_machine(trial)
    found = []
    for number, work in enumerate(trial.request.works):
        rows = tuple(
            values([run.facts for run in trial.runs if (run.work, run.subject) == (number, subject)], whole=whole)
            for subject in range(len(trial.request.subjects))
        )
        relative = tuple(tuple(map(quotient, row, rows[0])) for row in rows[1:])
        found.append(Spent(work.name, rows, relative))
    return found


def by_machine(trial: Trial) -> bool:
    """Whether CPU is that of the whole machine (of vmstat), because perf has counted it in no run.

    Its unit is then percent of the machine per operation per second; else it is microseconds of the measured processes.
    """
    return all(value(run.facts, "cpu/o") is None for run in trial.runs)


def values(runs: Sequence[RunFacts], *, whole: bool) -> Values:
    """The medians of the runs of one build in one workload."""
    readers: list[Callable[[RunFacts], float | None]] = [machine_cpu] if whole else [reader("cpu/o")]
    readers += [reader({"o/s": "qps"}.get(name, name)) for name in COLUMNS[1:]]
    found = ([one for run in runs if (one := read(run)) is not None] for read in readers)
    return tuple(median(known) if known else None for known in found)


def reader(metric: str) -> Callable[[RunFacts], float | None]:
    """Reads a metric of a run."""
    return lambda run: value(run, metric)


def machine_cpu(run: RunFacts) -> float | None:
    """User and system time of the whole machine in percent, divided by operations per second."""
    user, system = run.system.get("us"), run.system.get("sy")
    return None if user is None or system is None else quotient(user + system, run.qps)
