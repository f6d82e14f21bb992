"""The line of a branch that is watched night by night: its tips, the level of each, and where the speed changed.

A night is a comparison of the newest tip with a few earlier ones (``companions``). The nights together are one line: rounds of
different nights are different rounds, tips that were measured in several nights join them, and levels and steps are those of a
series of releases (core/stats/release_series.py). The first of every BLOCK tips is measured again with all others of its block:
errors of a chain of neighbours would add up from night to night, which looks like a slow change.

At the end of the line that law is blind: it leaves out the build that speaks most for a step, so that one odd build makes
none, and it knows nothing of fewer than eight tips. A drop would be missed for nights. So a difference between a tip and the
one before it is a step, too, a jump, where Student's z passes JUMP, with s the scatter of the line and e the error of measuring
a tip:

    z = |difference| / √(2 s² + e² + e'²)

Of tips whose layouts are normal about one of a thousand is taken for a drop. Of layouts with long tails there are more; each
costs a hunt that ends as code placement or not reproduced, of which nobody is notified, and its range is not hunted again. A
smaller drop is seen by the law after a few nights. All neighbours are tested, not the newest pair alone, so that the hunt of a
jump may begin in a later night. Of fewer than SURE tips most neighbours may be steps, which would then be taken for scatter:
until then s is ASSUMED, what layouts usually do, or at most twice that where the line scatters more.
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
from perfbisect.core.stats.drops import Drop, DropRange, loss, ranges
from perfbisect.core.stats.paired_comparison import Ratio, levels
from perfbisect.core.stats.release_series import RATE, LevelStep, SpeedLine, Visits, freedom_of, line_of

T = TypeVar("T")
Range = tuple[int, int, int]  # the number of a workload, and of the tips before and after

JUMP = 0.002  # the p-value of a difference between neighbours that is a step, for all workloads together
ASSUMED = 0.01  # s.d. of layouts, as long as there are fewer tips than
SURE = 20
NORMAL = 1000  # degrees of freedom of what is known
BESIDE = 2  # tips before the newest one that are measured with it
BLOCK = 16  # tips
LONGEST = 100  # tips of a line; older ones are no longer looked at
ROUNDS = 1_000_000  # more than a night has


def companions(tips: Sequence[T]) -> list[T]:
    """Of earlier tips, oldest first, those that the next one is measured with: the latest, then the others, oldest first."""
    if not tips:
        return []
    count = len(tips)
    chosen = sorted({(count - 1) // BLOCK * BLOCK, *range(max(0, count - BESIDE), count)})
    return [tips[place] for place in (*chosen[-1:], *chosen[:-1])]


@dataclass(frozen=True, slots=True)
class Branch:
    """The nights of a branch that can be compared, merged. Numbers of tips are positions in ``tips``."""

    tips: tuple[TrialBuild, ...]  # that were measured, oldest first
    lines: tuple[SpeedLine, ...]  # of each workload
    broken: tuple[TrialBuild, ...] = ()  # later tips that could not be built, oldest first

    @classmethod
    def of(cls, nights: Sequence[SessionState]) -> "Branch":
        """The line of these nights, oldest first, which have the same workloads; the last build of a night is its tip."""
        newest = [night.request.subjects[-1] for night in nights]
        measured = {run.facts.commit for night in nights for run in night.runs}
        tips = tuple({tip.commit: tip for tip in newest if tip.commit in measured}.values())[-LONGEST:]
        later = [*takewhile(lambda tip: tip.commit not in measured, reversed(newest))][::-1]
        number = {tip.commit: place for place, tip in enumerate(tips)}
        works = nights[-1].request.works if nights else ()
        lines = []
        for work, workload in enumerate(works):
            visits: dict[int, dict[int, float]] = {place: {} for place in range(len(tips))}
            for night, trial in enumerate(nights):
                for subject, rounds in levels(trial, work, trial.request.metric).items():
                    if (place := number.get(trial.request.subjects[subject].commit)) is not None:
                        visits[place] |= {night * ROUNDS + each: x for each, x in rounds.items()}
            lines.append(branch_line(workload.name, visits, len(tips), RATE / len(works)))
        return cls(tips, tuple(lines), tuple(tip for tip in later if tip.trouble))

    def drops(self, metric: str, least: float, searched: Collection[Range] = ()) -> list[DropRange]:
        """The steps for the worse by ``least`` (a fraction) or more, narrow ranges first.

        Left out are those in ranges that were ``searched`` without naming a commit: the range of a step changes from night to
        night, since more is known of its place, and its hunt has measured both ends again.
        """
        found = [
            Drop(work, step.first, step.last, ratio)
            for work, line in enumerate(self.lines)
            for step in line.steps
            if loss(ratio := Ratio(step.size.middle, step.size, 0), metric) >= least
            and not any(of == work and first <= step.before < step.after <= last for of, first, last in searched)
        ]
        return sorted(ranges(found), key=lambda each: each.last - each.first)


def branch_line(work: str, visits: Visits, tips: int, rate: float) -> SpeedLine:
    """The line of one workload, with jumps among its steps."""
    line = line_of(work, visits, tips, rate)
    steps = {step.after: step for step in line.steps}
    for jump in jumps(line, visits, JUMP * rate / RATE):
        steps[jump.after] = replace(steps.get(jump.after, jump), first=jump.first, last=jump.last)
    return replace(line, steps=tuple(replace(steps[place], alone=False) for place in sorted(steps)))


def jumps(line: SpeedLine, visits: Visits, chance: float) -> list[LevelStep]:
    """The differences between neighbours whose p-value is at most ``chance``. ``visits`` are those of the line."""
    if line.error is None:
        return []
    level = {tip: math.log(ratio) for tip, ratio in enumerate(line.ratios) if ratio is not None}
    law, own = Student(NORMAL), min(max(line.scatter or 0.0, ASSUMED), 2 * ASSUMED)
    if line.scatter is not None and len(level) >= SURE:
        law, own = Student(freedom_of(len(level))), line.scatter
    rounds = {tip: len(visits[tip]) for tip in level}
    one = line.error**2 * min(rounds.values())  # variance of a single visit
    found = []
    for before, after in pairwise(level):
        gap = level[after] - level[before]
        sd = math.sqrt(2 * own**2 + one / rounds[before] + one / rounds[after])
        if law.two_sided(gap / sd) <= chance:
            size = Interval.around(gap, law.quantile() * sd)
            found.append(LevelStep(before, after, before, after, size, alone=False))
    return found
