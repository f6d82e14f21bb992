"""What counts of instructions say where time does not.

`--metric auto`: they may show a change that the time of both ends hides. Time comes first. Where it does not tell the builds apart, a clear rise of the instructions is hunted in its place, if it may
be all that time shows: a drop of time by memory alone is not found by the count of another change.

Code placement: whether a commit that moves code executes what the code before it executed is known by counts that repeat.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median

import numpy as np

from perfbisect.core.domain.events import BuildFinished, RunFinished
from perfbisect.core.domain.facts import RunFacts
from perfbisect.core.domain.measured_log import Binaries, Logged
from perfbisect.core.domain.metrics import INSTRUCTIONS, exact, find_metric, readable
from perfbisect.core.domain.orders import CodePlacement, Inconclusive, Interval, NotReproduced, Reason, Step, Verdict
from perfbisect.core.domain.settings import Policy
from perfbisect.core.inference.noise_model import EXACT, USUAL

COUNTS = 2  # exact counts of each end; the second where the first ones differ
RUNS = 3  # of each end, where perf counts during timed runs
GUESS = 0.002  # s.d. of such a run: a first guess, worth one run, so that few runs do not seem free of noise
CLEAR = 5.0  # standard errors at which the count shows a change: few runs tell little of the noise
REPEATS = 0.001  # s.d. of a run above which a count is not exact: the program does not repeat what it does
SMALL = 0.25  # of the smallest change of interest in time, which time has to exclude where the count rises by less than this
LAYOUT = math.sqrt(2 * sum(share * size**2 for size, share in USUAL.layouts))  # s.d. of the ratio of two builds
# Of verdicts without a name: because time does not tell builds apart.
INDISTINCT = (Reason.TOO_NOISY, Reason.BY_CHANCE, Reason.NOT_CONFIRMED, Reason.LAYOUT_TIE)


def indistinct(verdict: Verdict | None) -> Interval | None:
    """The ratio of the ends, where a hunt has ended without a name because its metric does not tell builds apart."""
    match verdict:
        case NotReproduced(ratio) if ratio.low < ratio.high:  # else they are the same binary
            return ratio
        case Inconclusive(ratio=ratio, reason=reason) if reason in INDISTINCT:
            return ratio
        case _:
            return None


@dataclass(frozen=True, slots=True)
class Shown:
    """What the instructions of both ends show of the change."""

    ratio: float  # bad relative to good
    noise: float  # s.d. of a run, as a fraction
    error: float  # of the logarithm of the ratio
    exact: bool  # whether it is a count that repeats

    @property
    def loss(self) -> float:
        """The change for the worse, in log units."""
        return math.log(self.ratio)

    @property
    def clear(self) -> bool:
        """Whether there is a rise that is not noise."""
        return self.loss >= CLEAR * self.error and (self.noise <= REPEATS or not self.exact)

    def large(self, policy: Policy) -> bool:
        """Whether it is of interest."""
        return self.loss >= -math.log1p(-(policy.of_counts() if self.exact else policy).min_effect)

    def explains(self, time: Interval, metric: str, policy: Policy) -> bool:
        """Whether it may be all that the ends differ by in time, the ``metric`` of the workload: that allows so small a
        change, layouts included; and a count that hardly changes is not taken for a drop that time may hide.
        """
        low, high = math.log(time.low) if time.low else -math.inf, math.log(time.high)
        if find_metric(metric).higher_is_better:
            low, high = -high, -low
        least, spare = -math.log1p(-policy.min_effect), 1.96 * LAYOUT
        return low - spare <= self.loss <= high + spare and (self.loss >= SMALL * least or high <= least)


def shown_by(good: Sequence[RunFacts], bad: Sequence[RunFacts]) -> Shown | None:
    """What the instructions show, of runs that are all counted exactly or all timed; None where too few have a value."""
    values = [np.array([v for run in runs if (v := readable(run, INSTRUCTIONS)) is not None]) for runs in (good, bad)]
    exact = all(run.counted for run in (*good, *bad))
    if min(map(len, values)) < (1 if exact else RUNS):
        return None
    squares = sum(float(((each - each.mean()) ** 2).sum()) for each in values)
    runs = sum(map(len, values))
    noise = math.sqrt(((EXACT.noise if exact else GUESS) ** 2 + squares) / (1 + runs - 2))
    error = noise * math.sqrt(sum(1 / len(each) for each in values))
    return Shown(float(np.exp(values[1].mean() - values[0].mean())), noise, error, exact)


RESOLVED = CLEAR * math.sqrt(2) * EXACT.noise  # in log units: two counts that differ by less are taken for equal

Log = Sequence[tuple[float, Logged]]


def sides(step: Step, commits: Sequence[str], log: Log) -> tuple[str, ...]:
    """The commit of a step, and those it was compared with; of equal binaries the one built first, which has their runs."""
    binaries = Binaries()
    builds = [event.facts for _, event in log if isinstance(event, BuildFinished)]
    first = {build.commit: binaries.same_as(0, build) or build.commit for build in builds}
    named = (commits[node] for node in (step.candidate, *step.parents))
    return tuple(dict.fromkeys(first.get(sha, sha) for sha in named))


def with_counts(verdict: Verdict, commits: Sequence[str], log: Log) -> Verdict:
    """A verdict of code placement with what the counts in ``log`` say of it; any other as it is.

    ``commits`` are those of the nodes. Without a count of each side nothing is said.
    """
    if not isinstance(verdict, CodePlacement):
        return verdict
    after, *before = (_count(sha, log) for sha in sides(verdict.step, commits, log))
    known = [count for count in before if count is not None]
    if after is None or not known or len(known) < len(before):
        return verdict
    return replace(verdict, same_counts=all(abs(after - count) <= RESOLVED for count in known))


def _count(sha: str, log: Log) -> float | None:
    """The logarithm of the instructions that an operation of a commit executes; None where they were not counted."""
    runs = [event.facts for _, event in log if isinstance(event, RunFinished) and event.facts.commit == sha]
    counts = [count for run in runs if exact(run, INSTRUCTIONS) and (count := readable(run, INSTRUCTIONS)) is not None]
    return median(counts) if counts else None
