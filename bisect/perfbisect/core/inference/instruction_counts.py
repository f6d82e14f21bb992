"""What instruction counts show if the builds do not differ in time.

**--metric auto.** Counts may show a change that cannot be seen in the time of the ends. Time is measured first. If the
builds do not differ in time, and a clear rise of instructions may explain the whole change in time, the rise of
instructions is hunted. Without this condition the hunt could name another change, because a drop that is caused only by
memory accesses does not change the counts.

**Code placement.** Repeatable counts show whether a commit that moves code executes as many instructions as its parent.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median

import numpy as np

from perfbisect.core.domain.events import BuildFinished, RunFinished
from perfbisect.core.domain.facts import RunFacts
from perfbisect.core.domain.measured_log import CommitsByBinary, MeasuredEvent
from perfbisect.core.domain.metrics import INSTRUCTIONS, find_metric, is_exact_count, log_metric
from perfbisect.core.domain.orders import CodePlacement, Inconclusive, Interval, NotReproduced, Reason, Step, Verdict
from perfbisect.core.domain.settings import Policy
from perfbisect.core.inference.noise_model import EXACT, USUAL

COUNTS = 2  # exact counts of each end; the second count is made only if the first counts differ
RUNS = 3  # timed runs of each end during which perf counts
# s.d. of a timed run's count: a guess with the weight of one run, lest few runs seem free of noise
GUESS = 0.002
CLEAR = 5.0  # standard errors at which counts show a change; large, because few runs do not show the noise well
REPEATS = 0.001  # s.d. of a run above which a count is not exact, because the program's work varies
SMALL = 0.25  # share of the smallest change of interest: a smaller rise does not explain a change that time allows
# s.d. of the ratio of two builds by layout
LAYOUT = math.sqrt(2 * sum(share * size**2 for size, share in USUAL.layouts))
# Reasons of verdicts without a culprit that mean that time does not tell builds apart.
INDISTINCT = (Reason.TOO_NOISY, Reason.BY_CHANCE, Reason.NOT_CONFIRMED, Reason.LAYOUT_TIE)


def ratio_of_indistinct_ends(verdict: Verdict | None) -> Interval | None:
    """The ratio of the ends, if the verdict names no culprit because builds do not differ in the metric; otherwise
    None.
    """
    match verdict:
        case NotReproduced(ratio) if ratio.low < ratio.high:  # equal bounds mean that both ends have one binary
            return ratio
        case Inconclusive(ratio=ratio, reason=reason) if reason in INDISTINCT:
            return ratio
        case _:
            return None


@dataclass(frozen=True, slots=True)
class InstructionChange:
    """The change of instructions between both ends."""

    ratio: float  # bad relative to good
    noise: float  # s.d. of a run, as a fraction
    error: float  # standard error of the logarithm of the ratio
    are_counts_exact: bool  # whether the counts repeat

    @property
    def log_rise(self) -> float:
        """The logarithm of the change of instructions; positive for a rise."""
        return math.log(self.ratio)

    @property
    def is_clear(self) -> bool:
        """Whether instructions rise beyond noise."""
        return self.log_rise >= CLEAR * self.error and (self.noise <= REPEATS or not self.are_counts_exact)

    def is_large(self, policy: Policy) -> bool:
        """Whether the rise of instructions is at least the smallest change of interest."""
        return self.log_rise >= -math.log1p(-(policy.for_counts() if self.are_counts_exact else policy).min_effect)

    def may_explain(self, time_ratio: Interval, metric: str, policy: Policy) -> bool:
        """Whether the rise of instructions may explain the whole change in time, measured by the workload's ``metric``.

        The change in time that is possible, with a margin for the effect of layouts, has to include the rise. If the
        ends may be equal in time, a rise far below the smallest change of interest explains nothing.
        """
        low, high = math.log(time_ratio.low) if time_ratio.low else -math.inf, math.log(time_ratio.high)
        if find_metric(metric).higher_is_better:
            low, high = -high, -low
        least, spare = -math.log1p(-policy.min_effect), 1.96 * LAYOUT
        return low - spare <= self.log_rise <= high + spare and (self.log_rise >= SMALL * least or high <= least)


def instruction_change(good: Sequence[RunFacts], bad: Sequence[RunFacts]) -> InstructionChange | None:
    """The change of instructions from good to bad, by exact counts or timed runs; None if too few runs have counts."""
    values = [np.array([v for run in runs if (v := log_metric(run, INSTRUCTIONS)) is not None]) for runs in (good, bad)]
    exact = all(run.counted for run in (*good, *bad))
    if min(map(len, values)) < (1 if exact else RUNS):
        return None
    squares = sum(float(((side - side.mean()) ** 2).sum()) for side in values)
    runs = sum(map(len, values))
    noise = math.sqrt(((EXACT.guessed_noise if exact else GUESS) ** 2 + squares) / (1 + runs - 2))
    error = noise * math.sqrt(sum(1 / len(side) for side in values))
    return InstructionChange(float(np.exp(values[1].mean() - values[0].mean())), noise, error, exact)


RESOLVED = CLEAR * math.sqrt(2) * EXACT.guessed_noise  # in log units: two counts that differ by less are equal

Log = Sequence[tuple[float, MeasuredEvent]]


def commits_of_step(step: Step, commits: Sequence[str], log: Log) -> tuple[str, ...]:
    """The commits of a step and its parents; of commits with equal binaries, the commit that was built first."""
    binaries = CommitsByBinary()
    builds = [event.facts for _, event in log if isinstance(event, BuildFinished)]
    first = {build.commit: binaries.add_build(0, build) or build.commit for build in builds}
    named = (commits[node] for node in (step.candidate, *step.parents))
    return tuple(dict.fromkeys(first.get(sha, sha) for sha in named))


def with_count_result(verdict: Verdict, commits: Sequence[str], log: Log) -> Verdict:
    """A verdict of code placement, with the result of the exact counts in ``log``; any other verdict is unchanged.

    The verdict is unchanged if the count of a commit is missing. ``commits`` are the commits of the nodes.
    """
    if not isinstance(verdict, CodePlacement):
        return verdict
    own_count, *other_counts = (_log_count(sha, log) for sha in commits_of_step(verdict.step, commits, log))
    counts = [count for count in other_counts if count is not None]
    if own_count is None or not counts or len(counts) < len(other_counts):
        return verdict
    return replace(verdict, same_counts=all(abs(own_count - count) <= RESOLVED for count in counts))


def _log_count(sha: str, log: Log) -> float | None:
    """The logarithm of the instructions per operation of a commit; None if the instructions were not counted."""
    runs = [event.facts for _, event in log if isinstance(event, RunFinished) and event.facts.commit == sha]
    counts = [
        count
        for run in runs
        if is_exact_count(run, INSTRUCTIONS) and (count := log_metric(run, INSTRUCTIONS)) is not None
    ]
    return median(counts) if counts else None
