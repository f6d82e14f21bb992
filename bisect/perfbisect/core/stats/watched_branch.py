"""The tips of a branch that is measured each night, the levels of the tips, and the steps between levels.

A night is a comparison of the newest tip with a few earlier tips (``tips_to_measure_again``). The levels of the tips,
computed from all nights together, are called the line of the branch. The machine may have another speed in each night;
the nights are comparable because some tips are measured in several nights. Levels and steps are computed as for a
series of releases (core/stats/release_series.py). The tips are divided into blocks of BLOCK tips. Each tip of a block
is measured together with the first tip of the block, because otherwise the errors of differences between successive
tips would add up from night to night and look like a slow change of speed.

``find_steps`` (core/stats/release_series.py) finds a drop at the end of a line only after several nights: the method
needs eight tips, and more than one tip after the drop, so that one unusual build makes no step. Therefore a difference
between neighbouring tips is also a step, called a jump, if the p-value of the difference is at most JUMP. The p-value
is computed by Student's t-distribution from z, the difference divided by its standard error. s is the scatter of the
line, and e and e' are the standard errors of the two tips:

    z = |difference| / √(2 s² + e² + e'²)

If the effects of layouts have a normal distribution, perfbisect reports a false drop at about one of a thousand tips,
and at more tips if the distribution has long tails. Each false drop costs a hunt, which ends with the verdict code
placement or not reproduced. After one of these two verdicts, the hunt sends no notification, and its range is not
hunted again. If a drop is too small to be a jump, ``find_steps`` finds the drop after a few nights. All neighbouring
tips are tested, not only the newest pair, so that the hunt for a jump may also begin in a later night. In a line of
fewer than SURE tips, most differences between neighbours may be steps, which would make the scatter too large. In such
a short line, s is the measured scatter, but at least ASSUMED (the usual effect of layouts) and at most 2 · ASSUMED.
"""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, takewhile
from typing import TypeVar

from perfbisect.core.domain.orders import Interval
from perfbisect.core.domain.session_state import SessionState
from perfbisect.core.domain.settings import TrialBuild
from perfbisect.core.stats.distributions import Student
from perfbisect.core.stats.drops import Drop, DropRange, loss_fraction, ranges_of_drops
from perfbisect.core.stats.paired_comparison import Ratio, mean_logs_by_round
from perfbisect.core.stats.release_series import (
    RATE,
    LevelStep,
    MeansByRound,
    SpeedLine,
    freedom_of_scatter,
    speed_line,
)

T = TypeVar("T")
Range = tuple[int, int, int]  # numbers of (workload, tip before, tip after)

JUMP = 0.002  # largest p-value of a jump; the workloads of a branch share it
ASSUMED = 0.01  # s.d. of layouts, assumed of fewer tips than SURE
SURE = 20
NORMAL = 1000  # degrees of freedom of the assumed s.d., with which Student's distribution is almost normal
BESIDE = 2  # tips before the newest tip that are measured together with the newest tip
BLOCK = 16  # tips of a block, which are measured together with the first tip of the block
LONGEST = 100  # tips of a line; older tips are left out
ROUNDS = 1_000_000  # larger than the number of rounds of any night


def tips_to_measure_again(tips: Sequence[T]) -> list[T]:
    """The earlier tips that are measured again together with the next tip: first the latest earlier tip, then the other
    tips, oldest first.
    """
    if not tips:
        return []
    count = len(tips)
    chosen = sorted({(count - 1) // BLOCK * BLOCK, *range(max(0, count - BESIDE), count)})
    return [tips[index] for index in (*chosen[-1:], *chosen[:-1])]


@dataclass(frozen=True, slots=True)
class BranchLevels:
    """The levels and steps of a branch, computed from all nights that can be compared. Tips are numbered by their
    positions in ``tips``.
    """

    tips: tuple[TrialBuild, ...]  # tips that were measured, oldest first
    lines: tuple[SpeedLine, ...]  # one line for each workload
    broken: tuple[TrialBuild, ...] = ()  # later tips that could not be built, oldest first

    @classmethod
    def from_nights(cls, nights: Sequence[SessionState]) -> "BranchLevels":
        """The levels and steps from ``nights``: comparisons of the same workloads, oldest first. The last build of each
        comparison is the newest tip in that night.
        """
        newest = [night.request.subjects[-1] for night in nights]
        measured = {run.facts.commit for night in nights for run in night.runs}
        tips = tuple({tip.commit: tip for tip in newest if tip.commit in measured}.values())[-LONGEST:]
        later = [*takewhile(lambda tip: tip.commit not in measured, reversed(newest))][::-1]
        number = {tip.commit: index for index, tip in enumerate(tips)}
        works = nights[-1].request.works if nights else ()
        lines = []
        for work, workload in enumerate(works):
            visits: dict[int, dict[int, float]] = {index: {} for index in range(len(tips))}
            for night, trial in enumerate(nights):
                for subject, rounds in mean_logs_by_round(trial, work, trial.request.metric).items():
                    if (index := number.get(trial.request.subjects[subject].commit)) is not None:
                        visits[index] |= {night * ROUNDS + round_number: x for round_number, x in rounds.items()}
            lines.append(line_with_jumps(workload.name, visits, len(tips), RATE / len(works)))
        return cls(tips, tuple(lines), tuple(tip for tip in later if tip.trouble))

    def drop_ranges(self, metric: str, min_drop: float, searched: Collection[Range] = ()) -> list[DropRange]:
        """The ranges of the steps that make the metric worse by ``min_drop`` (a fraction) or more, narrow ranges first.

        A step is left out if a hunt has ``searched`` a range that contains the step and named no commit. No second hunt
        is necessary, because the first hunt made new measurements of both ends of its range, and later nights only make
        the range of a step smaller.
        """
        drops = [
            Drop(work, step.first, step.last, ratio)
            for work, line in enumerate(self.lines)
            for step in line.steps
            if loss_fraction(ratio := Ratio(step.size.middle, step.size, 0), metric) >= min_drop
            and not any(of == work and first <= step.before < step.after <= last for of, first, last in searched)
        ]
        return sorted(ranges_of_drops(drops), key=lambda drop: drop.last - drop.first)


def line_with_jumps(work: str, means: MeansByRound, tips: int, rate: float) -> SpeedLine:
    """The levels of the tips of a branch in one workload, and the steps between levels, including jumps."""
    line = speed_line(work, means, tips, rate)
    steps = {step.after: step for step in line.steps}
    for jump in find_jumps(line, means, JUMP * rate / RATE):
        steps[jump.after] = replace(steps.get(jump.after, jump), first=jump.first, last=jump.last)
    return replace(line, steps=tuple(replace(steps[tip], alone=False) for tip in sorted(steps)))


def find_jumps(line: SpeedLine, means: MeansByRound, max_p_value: float) -> list[LevelStep]:
    """The jumps: steps between neighbouring tips of ``line`` whose p-value is at most ``max_p_value``."""
    if line.error is None:
        return []
    level = {tip: math.log(ratio) for tip, ratio in enumerate(line.ratios) if ratio is not None}
    law, layout_sd = Student(NORMAL), min(max(line.scatter or 0.0, ASSUMED), 2 * ASSUMED)
    if line.scatter is not None and len(level) >= SURE:
        law, layout_sd = Student(freedom_of_scatter(len(level))), line.scatter
    rounds = {tip: len(means[tip]) for tip in level}
    visit_variance = line.error**2 * min(rounds.values())  # variance of a single visit
    steps = []
    for earlier, later in pairwise(level):
        gap = level[later] - level[earlier]
        sd = math.sqrt(2 * layout_sd**2 + visit_variance / rounds[earlier] + visit_variance / rounds[later])
        if law.two_sided_p_value(gap / sd) <= max_p_value:
            size = Interval.from_log_ratio(gap, law.quantile() * sd)
            steps.append(LevelStep(earlier, later, earlier, later, size, alone=False))
    return steps
