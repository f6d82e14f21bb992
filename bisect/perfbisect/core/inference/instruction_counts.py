"""Uses counts of instructions if the builds do not measurably differ in time.

**--metric auto.** Good and bad may differ in their numbers of instructions although their times do not differ
measurably. The hunt first measures time. If the times do not measurably differ, but the number of instructions clearly
rises from good to bad, the hunt searches for the commit that causes this rise. The hunt does so only if the rise may
explain the whole change in time. Otherwise the change in time may be a slowdown by memory accesses, which does not
change the number of instructions, and the hunt would name a commit with an unrelated change.

**Code placement.** If a verdict says that a commit is slower only by code placement, exact counts of instructions show
whether the commit executes as many instructions as its parents.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median

import numpy as np

from perfbisect.core.domain.events import BuildFinished, RunFinished
from perfbisect.core.domain.facts import RunFacts
from perfbisect.core.domain.measured_log import FirstCommitsByBinary, MeasuredEvent
from perfbisect.core.domain.metrics import INSTRUCTIONS, find_metric, is_exact_count, log_metric
from perfbisect.core.domain.orders import CodePlacement, Inconclusive, Interval, NotReproduced, Reason, Step, Verdict
from perfbisect.core.domain.settings import Policy
from perfbisect.core.inference.noise_model import EXACT, USUAL

COUNTS = 2  # exact counts of each end; the second count is made only if the first counts differ
RUNS = 3  # timed runs of each end during which perf counts
# Prior s.d. of the counts during timed runs, with the weight of one run, because a few runs may seem free of noise.
GUESS = 0.002
CLEAR = 5.0  # standard errors at which counts show a change; large, because few runs do not show the noise well
REPEATS = 0.001  # largest s.d. of exact counts of a build; a larger s.d. shows that the program's work varies
SMALL = 0.25  # if instructions rise by less than this share of the smallest change of interest, they explain nothing
# The s.d. of the log ratio of two builds that their layouts cause.
LAYOUT = math.sqrt(2 * sum(share * size**2 for size, share in USUAL.layouts))
# Reasons of verdicts without a culprit if the times of builds do not differ clearly.
INDISTINCT = (Reason.TOO_NOISY, Reason.BY_CHANCE, Reason.NOT_CONFIRMED, Reason.LAYOUT_TIE)


def ratio_of_indistinct_ends(verdict: Verdict | None) -> Interval | None:
    """If the verdict names no culprit because builds do not measurably differ in the metric, the ratio of bad to good;
    otherwise None.
    """
    match verdict:
        case NotReproduced(ratio) if ratio.low < ratio.high:  # equal bounds: the ends have the same binary
            return ratio
        case Inconclusive(ratio=ratio, reason=reason) if reason in INDISTINCT:
            return ratio
        case _:
            return None


@dataclass(frozen=True, slots=True)
class InstructionChange:
    """The change in the number of instructions from good to bad."""

    ratio: float  # bad relative to good
    noise: float  # s.d. of a run, as a fraction
    error: float  # standard error of the logarithm of the ratio
    are_counts_exact: bool  # whether the counts repeat

    @property
    def log_rise(self) -> float:
        """The logarithm of the instructions of bad divided by the instructions of good; positive for a rise."""
        return math.log(self.ratio)

    @property
    def is_clear(self) -> bool:
        """Whether the number of instructions rises by more than noise can explain."""
        return self.log_rise >= CLEAR * self.error and (self.noise <= REPEATS or not self.are_counts_exact)

    def is_large(self, policy: Policy) -> bool:
        """Whether the rise of instructions is at least the smallest change that the hunt searches for."""
        return self.log_rise >= -math.log1p(-(policy.for_exact_count() if self.are_counts_exact else policy).min_effect)

    def may_explain(self, time_ratio: Interval, metric: str, policy: Policy) -> bool:
        """Whether the rise of instructions may explain the whole change in the workload's ``metric``, for example in
        time.

        The rise must be in the interval of the change in time, after this interval is widened by a margin for the
        effect of layouts. If the rise is far below the smallest change that the hunt searches for, the upper end of the
        interval must be below this smallest change, too.
        """
        low, high = math.log(time_ratio.low) if time_ratio.low else -math.inf, math.log(time_ratio.high)
        if find_metric(metric).higher_is_better:
            low, high = -high, -low
        least, spare = -math.log1p(-policy.min_effect), 1.96 * LAYOUT
        return low - spare <= self.log_rise <= high + spare and (self.log_rise >= SMALL * least or high <= least)


def instruction_change(good: Sequence[RunFacts], bad: Sequence[RunFacts]) -> InstructionChange | None:
    """The change in instructions from good to bad, by exact counts or counts of timed runs; None for too few counts."""
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


def step_commit_and_parents(step: Step, commits: Sequence[str], log: Log) -> tuple[str, ...]:
    """The commit that caused ``step``, a change of speed, and the parents of this commit. A commit whose binary equals
    the binary of a commit that was built earlier is replaced by the commit that was built first.
    """
    binaries = FirstCommitsByBinary()
    builds = [event.facts for _, event in log if isinstance(event, BuildFinished)]
    first = {build.commit: binaries.add_build(0, build) or build.commit for build in builds}
    named = (commits[node] for node in (step.candidate, *step.parents))
    return tuple(dict.fromkeys(first.get(sha, sha) for sha in named))


def with_count_result(verdict: Verdict, commits: Sequence[str], log: Log) -> Verdict:
    """``verdict``; the field ``same_counts`` of a verdict "code placement" is computed from the exact counts of
    instructions in ``log``.

    ``same_counts`` says whether the named commit executes as many instructions as its parents. If a count is missing,
    or if the verdict is not "code placement", the verdict is unchanged. ``commits`` has the commit of each node.
    """
    if not isinstance(verdict, CodePlacement):
        return verdict
    shas = step_commit_and_parents(verdict.step, commits, log)
    own_count, *other_counts = (_logarithm_of_instructions(sha, log) for sha in shas)
    counts = [count for count in other_counts if count is not None]
    if own_count is None or not counts or len(counts) < len(other_counts):
        return verdict
    return replace(verdict, same_counts=all(abs(own_count - count) <= RESOLVED for count in counts))


def _logarithm_of_instructions(sha: str, log: Log) -> float | None:
    """The logarithm of a commit's instructions per operation; None if they were not counted exactly."""
    runs = [event.facts for _, event in log if isinstance(event, RunFinished) and event.facts.commit == sha]
    exact = (run for run in runs if is_exact_count(run, INSTRUCTIONS))
    counts = [count for run in exact if (count := log_metric(run, INSTRUCTIONS)) is not None]
    return median(counts) if counts else None
