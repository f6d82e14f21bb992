"""Runs that are stopped because they take several times as long as those of the good end.

A stopped run is a reading: the build is slower than that. What it had counted until then is left out.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from statistics import median

from perfbisect.core.domain.facts import RunFacts

SLACK = 1.0  # seconds from the start of a job to that of the command or statement which it times, at most


@dataclass(slots=True)
class SlowRuns:
    """Stops runs after ``times`` the time of a run of the commit ``good``; 0 stops none."""

    times: float = 0.0
    good: str = ""
    finished: list[RunFacts] = field(default_factory=list)  # runs of that commit on this host

    def take(self, runs: Iterable[RunFacts]) -> None:
        """Learn from runs that have ended well."""
        self.finished += (run for run in runs if run.commit == self.good and not run.slower_than)

    def limit(self, commit: str, warmup: float) -> float | None:
        """Whole seconds after which a run of ``commit`` is stopped, with its ``warmup``; None where it is not.

        Rounded up: a run that was stopped has taken at least ``times`` the time of a run of the good end.
        """
        if not self.times or commit == self.good or not self.finished:
            return None
        return float(math.ceil(self.times * (warmup + median(run.seconds for run in self.finished)) + SLACK))

    def stopped(self, run: RunFacts) -> RunFacts:
        """The facts of a run that was stopped, from those that say which run it is."""
        operations = round(median(good.operations for good in self.finished))
        seconds = self.times * median(good.seconds for good in self.finished)
        latency = {"avg": 1000 * seconds / operations}
        return replace(run, seconds=seconds, operations=operations, latency=latency, slower_than=self.times)
