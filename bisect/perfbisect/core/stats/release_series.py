"""The line of a series of releases: the level of each in each workload, and the steps of the line.

A visit of a release i in a round r is modelled as x[i][r] = level[i] + round[r] + error, fitted by least squares: what one
round has in common is the machine at that time. Levels are so better known than by ratios to one release, whose error all of
them would share. From the residuals comes the standard error of a level,

    s² = Σ residual² / (visits - releases - rounds + 1),     error = s / √(rounds of a release, where these differ the fewest)

Rounds are in orders drawn at random (core/domain/trials.py), so that a machine that is slow for some minutes slows down
releases at random and not neighbours.

Where in a row of releases the speed changes: the steps of a line of levels, each with its size and its place.

The level of a release differs from that of its neighbours for three reasons: the error of measuring it, the placement of its
code, which no repetition takes away and which is drawn anew with every release, and changes of speed, which stay. The first
two are the scatter s of the line. It is estimated from the line itself, by the smaller part of the differences between
neighbours (Rice, Bandwidth choice for nonparametric regression, Annals of Statistics 12, 1984; trimmed, since the larger
ones may be steps), so that neither its size nor that of the layouts has to be known.

An arc is a run of releases; the rest are the others, those before and after it taken together (circular binary segmentation:
Olshen, Venkatraman, Lucito and Wigler, Biostatistics 5, 2004). With m releases in the arc and n - m in the rest, of the two
the arc being the shorter one,

    z = |mean of the arc - mean of the rest| / (s √(1/m + 1/(n - m)))

The release of an arc that speaks most for it is left out, so that one odd build makes no step: both m and the mean are those
of the others. An arc of one release is judged by a law with long tails instead (ODD degrees of freedom), which an odd build
rarely passes. The p-value of Student's z is multiplied by the number of arcs. The arc with the smallest is cut out where that
is at most ``rate``; then each part is searched by itself, with a share of ``rate`` as large as its share of the releases. At
last each cut is tested again between its neighbours, and moved to where the squares of what remains are least.

Several workloads share ``rate`` equally (Bonferroni), so that it holds for all of a table: benchmarks/series/run.py counts
how often a table without a change announces a step.

A series that was measured elsewhere has one reading of a commit, of days apart: a machine that is slow for a week makes
neighbours alike, and single readings are far off. Readings further than FAR s.d. from the running median are left out. Where
neighbours are alike, the means of w readings in a row scatter by more than 1/√w of one: the scatter of a line is the largest
√w × scatter of such means (block means, as of batches in simulations: Law and Kelton, 1984), WIDTHS being those tried.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import NormalDist, fmean, mean

import numpy as np
from numpy.typing import NDArray

from perfbisect.core.domain.metrics import find_metric
from perfbisect.core.domain.orders import Interval, ratio_of
from perfbisect.core.domain.session_state import SessionState
from perfbisect.core.stats.distributions import Student
from perfbisect.core.stats.paired_comparison import levels

RATE = 0.05  # of tables without a change that announce any step
MASS = 0.95  # of the set of places
FEWEST = 8  # levels from which on steps are looked for: of fewer the scatter is hardly known
SMALLEST = 5e-4  # scatter of a line, at least: exact counts differ by less between any two releases
KEPT = 0.6  # of the differences between neighbours, the smaller ones, for the scatter
BESIDE = 3  # readings on either side, of the running median of a series that was measured elsewhere
FAR = 3.5
WIDTHS = (2, 3, 4, 6, 8, 12, 16)
MEANS = 8  # at least, of which a scatter is estimated
READINGS = 20  # at least, of a series in which steps are looked for: of fewer it is not seen how alike neighbours are
ODD = 4  # degrees of freedom by which a single release is judged

NORMAL = NormalDist()

Levels = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class LevelStep:
    """A change of the level that stays, or that lasts for the run of releases up to the next step.

    Releases are numbered as the levels are. The change came after ``before``, and ``after`` is the first with it.
    """

    before: int
    after: int
    first: int  # the change came after this one, and not later than ``last``, with probability 0.95
    last: int
    size: Interval  # ratio of the level after to that before, up to the next steps
    alone: bool  # one release only lies between this step and a neighbour, or the end of the line
    chance: float = 0.0  # of a line without a step to show one as clear, at most; 0 where it is not known


def find_steps(levels: Sequence[float], error: float = 0.0, rate: float = RATE) -> tuple[LevelStep, ...]:
    """The steps of a line, oldest first. ``levels`` are logarithms and ``error`` is the standard error of one."""
    if len(levels) < FEWEST:
        return ()
    line = np.asarray(levels, dtype=float)
    search = StepSearch(line, scatter(levels, error), rate)
    cuts = search.settled(search.cuts(0, len(line)))
    ends = [0, *cuts, len(line)]
    return tuple(search.step(*ends[place : place + 3]) for place in range(len(cuts)))


def scatter(levels: Sequence[float], error: float = 0.0) -> float:
    """The s.d. of a level around its neighbours for all reasons but steps; not below ``error``."""
    gaps = np.sort(np.diff(np.asarray(levels, dtype=float)) ** 2)
    kept = math.ceil(KEPT * len(gaps))
    # What the smaller ones of as many squares of normal variables are on average, within 2 % from 6 levels on (simulated).
    usual = mean(NORMAL.inv_cdf((1 + (place + 1.5) / (len(gaps) + 1)) / 2) ** 2 for place in range(kept))
    return max(math.sqrt(float(gaps[:kept].mean()) / (2 * usual)), error, SMALLEST)


def freedom_of(count: int) -> int:
    """The degrees of freedom that the scatter of so many levels is worth (simulated for normal ones)."""
    return max(3, round(0.7 * count))


class StepSearch:
    """The search in one line."""

    def __init__(self, line: Levels, sd: float, rate: float) -> None:
        self.line, self.sd, self.rate = line, sd, rate
        self.freedom = freedom_of(len(line))

    def cuts(self, start: int, end: int) -> list[int]:
        """The places between ``start`` and ``end`` at which the level changes, each the number of the first release with it."""
        found = self.arc(start, end)
        if not found:
            return []
        return sorted({*found, *(cut for a, b in pairwise([start, *found, end]) for cut in self.cuts(a, b))})

    def arc(self, start: int, end: int) -> list[int]:
        """The ends of the arc that stands out most, without those that are ends of the part; none where none does."""
        count = end - start
        if count < 2:
            return []
        ring = np.concatenate((self.line[start:end], self.line[start:end]))
        total = float(self.line[start:end].sum())
        best, at = math.inf, (0, 0)
        for wide in range(1, count // 2 + 1):
            windows = np.lib.stride_tricks.sliding_window_view(ring, wide)[:count]
            z = self.contrast(windows, total - windows.sum(axis=1), count - wide)
            place = int(z.argmax())
            # An arc counts among the tests of its half of the rate: one half is for single releases.
            tests = 2.0 * count * (1 if wide == 1 else max(1, count // 2 - 1))
            if (p := self.chance(float(z[place]), wide) * tests) < best:
                best, at = p, (place, wide)
        if best > self.share(count):
            return []
        place, wide = at
        edges = {start + place % count, start + (place + wide) % count}
        return sorted(edges - {start})

    def contrast(self, arcs: Levels, rest: Levels, others: int) -> Levels:
        """z of each arc (a row); ``rest`` are the sums of the others."""
        wide = arcs.shape[1]
        middle = arcs.mean(axis=1)
        gap = middle - rest / others
        if wide > 1:
            up = np.where(gap > 0, arcs.max(axis=1), arcs.min(axis=1))
            wide -= 1
            trimmed = (middle * (wide + 1) - up) / wide - rest / others
            gap = np.where(trimmed * gap > 0, trimmed, 0.0)
        found: Levels = np.abs(gap) / (self.sd * math.sqrt(1 / wide + 1 / others))
        return found

    def chance(self, z: float, wide: int) -> float:
        """The p-value of z for an arc of so many releases."""
        return Student(min(self.freedom, ODD) if wide == 1 else self.freedom).two_sided(z)

    def share(self, count: int) -> float:
        """The part of the rate that belongs to so many releases."""
        return self.rate * count / len(self.line)

    def settled(self, cuts: list[int]) -> list[int]:
        """The cuts that remain when each is tested between its neighbours, at the places that fit best."""
        for _ in range(len(self.line)):
            bounds = [0, *cuts, len(self.line)]
            chances = [self.between(*bounds[place : place + 3]) for place in range(len(cuts))]
            if chances and max(chances) > 1:
                cuts = [cut for cut, p in zip(cuts, chances, strict=True) if p < max(chances)]
                continue
            moved = list(cuts)
            for place in range(len(moved)):
                ends = [0, *moved, len(self.line)]
                start, end = ends[place], ends[place + 2]
                moved[place] = start + 1 + int(self.squares(start, end).argmin())  # which leaves least
            if moved == cuts:
                return cuts
            cuts = moved
        return cuts

    def between(self, start: int, cut: int, end: int) -> float:
        """How the p-value of a cut, times the number of places it could have, compares to its share; above 1 it fails."""
        return self.p_value(start, cut, end) * (end - start - 1) / self.share(end - start)

    def p_value(self, start: int, cut: int, end: int) -> float:
        """The p-value of a cut between its neighbours."""
        short, long = sorted((self.line[start:cut], self.line[cut:end]), key=len)
        [z] = self.contrast(short[None, :], np.array([long.sum()]), len(long))
        return self.chance(float(z), len(short))

    def squares(self, start: int, end: int) -> Levels:
        """The squares that remain for a cut after each release but the last."""
        part = self.line[start:end]
        left, sizes = np.cumsum(part)[:-1], np.arange(1, len(part))
        total = part.sum()
        explained = left**2 / sizes + (total - left) ** 2 / (len(part) - sizes)
        found: Levels = np.maximum(0.0, float((part**2).sum()) - explained)
        return found

    def step(self, start: int, cut: int, end: int) -> LevelStep:
        """The step at a cut between its neighbours.

        The places are weighed by Bayes' rule with equal priors and unknown levels; the scatter is known as well as its
        degrees of freedom say.
        """
        left, right = self.line[start:cut], self.line[cut:end]
        rest = self.squares(start, end)
        sizes = np.arange(1, end - start)
        weight = -0.5 * np.log(sizes * (end - start - sizes))
        known = self.freedom * self.sd**2
        weight -= (self.freedom + end - start - 2) / 2 * np.log((known + rest) / (known + rest.min()))
        mass = np.exp(weight - weight.max())
        order = np.argsort(-mass, kind="stable")
        inside = order[: int(np.searchsorted(np.cumsum(mass[order]), MASS * mass.sum())) + 1]
        gap = float(right.mean() - left.mean())
        half = Student(self.freedom).quantile() * self.sd * math.sqrt(1 / len(left) + 1 / len(right))
        first, last = start + int(inside.min()), start + int(inside.max()) + 1
        alone, arcs = min(len(left), len(right)) == 1, len(self.line) * max(1, len(self.line) - 2)
        false = min(self.rate, self.p_value(start, cut, end) * arcs)
        return LevelStep(cut - 1, cut, first, last, Interval.around(gap, half), alone, false)


Visits = Mapping[int, Mapping[int, float]]  # release → round → mean logarithm


@dataclass(frozen=True, slots=True)
class SpeedLine:
    """One workload over the releases; numbers of releases are those of the subjects of the trial."""

    work: str
    ratios: tuple[float | None, ...]  # to the first release that was measured; None for a gap
    error: float | None  # of one level, as a fraction: by measuring alone; None after a single round
    scatter: float | None  # s.d. of a level around its neighbours for all reasons but steps; None for too few levels
    steps: tuple[LevelStep, ...]

    @property
    def plateaus(self) -> list[float | None]:
        """The mean level of the releases between two steps, for each release; None before the first that was measured."""
        found: list[float | None] = []
        for start, end in pairwise([0, *(step.after for step in self.steps), len(self.ratios)]):
            logs = [math.log(ratio) for ratio in self.ratios[start:end] if ratio]
            found += [math.exp(sum(logs) / len(logs)) if logs else None] * (end - start)
        return found


@dataclass(frozen=True, slots=True)
class Hunt:
    """Two releases between which something changed, in one or several workloads."""

    good: int
    bad: int
    worse: bool  # or better
    works: tuple[str, ...]
    least: float  # the smallest of the changes, as a fraction


def lines_of(trial: SessionState) -> list[SpeedLine]:
    """The line of every workload, in the order in which they were requested."""
    request = trial.request
    names, releases = [work.name for work in request.works], len(request.subjects)
    visits = [levels(trial, number, request.metric) for number in range(len(names))]
    return [line_of(*line, releases, RATE / len(names)) for line in zip(names, visits, strict=True)]


def line_of(work: str, visits: Visits, releases: int, rate: float) -> SpeedLine:
    """The line of one workload."""
    level, error = fitted(visits)
    return line_through(work, level, releases, rate, error)


def line_through(
    work: str, level: Mapping[int, float], releases: int, rate: float, error: float | None, least: float = 0.0
) -> SpeedLine:
    """The line of these levels; its scatter is at least their ``error``, and ``least``."""
    measured = sorted(level)
    values, known = [level[release] for release in measured], max(error or 0.0, least)
    steps = (
        replace(step, **{name: measured[getattr(step, name)] for name in ("before", "after", "first", "last")})
        for step in find_steps(values, known, rate)
    )
    base = values[0] if values else 0.0
    ratios = (ratio_of(level[release] - base) if release in level else None for release in range(releases))
    own = scatter(values, known) if len(values) >= FEWEST else None
    return SpeedLine(work, tuple(ratios), error, own, tuple(steps))


def line_of_readings(work: str, levels: Sequence[float], rate: float) -> SpeedLine:
    """The line of a series that was measured elsewhere; ``levels`` are logarithms. A ratio of None is a reading that is left out."""
    every = np.asarray(levels, dtype=float)
    beside = [float(np.median(every[max(0, place - BESIDE) : place + BESIDE + 1])) for place in range(len(every))]
    off = np.abs(every - beside)
    kept = np.flatnonzero(off <= FAR * max(float(np.median(off)) / NORMAL.inv_cdf(0.75), SMALLEST))
    line = every[kept]
    of_means = (math.sqrt(wide) * scatter(means(line, wide)) for wide in WIDTHS if len(line) >= MEANS * wide)
    level = {int(place): float(x) for place, x in zip(kept, line, strict=True)}
    return line_through(work, level, len(every), rate, None, max(of_means, default=0.0))


def means(line: Levels, wide: int) -> list[float]:
    """The means of so many levels in a row each; the first ones may be left over."""
    return [float(each) for each in line[len(line) % wide :].reshape(-1, wide).mean(axis=1)]


def fitted(visits: Visits) -> tuple[dict[int, float], float | None]:
    """The level of each release, and the standard error of that with the fewest rounds; None where every one has a single round.

    What rounds have in common is eliminated from the normal equations. Releases that no chain of common rounds connects are as
    far apart as their means are.
    """
    level = {release: fmean(values.values()) for release, values in visits.items() if values}
    place = {release: number for number, release in enumerate(level)}
    rounds: dict[int, dict[int, float]] = {}
    for release, middle in level.items():
        for number, x in visits[release].items():
            rounds.setdefault(number, {})[place[release]] = x - middle
    alike: dict[tuple[int, ...], list[list[float]]] = {}  # rounds with the same releases
    for each in rounds.values():
        alike.setdefault(tuple(each), []).append([*each.values()])
    visited = [(np.array(which), np.array(rows)) for which, rows in alike.items()]
    centred = [(which, rows - rows.mean(axis=1)[:, None]) for which, rows in visited]
    normal, right = np.zeros((len(level), len(level))), np.zeros(len(level))
    for which, these in centred:
        normal[np.ix_(which, which)] += len(these) * (np.eye(len(which)) - 1 / len(which))
        right[which] += these.sum(axis=0)
    moved: Levels = np.linalg.pinv(normal, hermitian=True) @ right
    level = {release: level[release] + float(moved[number]) for release, number in place.items()}
    count = sum(map(len, rounds.values()))
    freedom = count - len(rounds) - int(np.linalg.matrix_rank(normal, hermitian=True)) if rounds else 0
    if freedom < 1:
        return level, None
    squares = sum(float(((these - moved[which] + moved[which].mean()) ** 2).sum()) for which, these in centred)
    return level, math.sqrt(squares / freedom / min(len(visits[release]) for release in level))


def is_worse(step: LevelStep, metric: str) -> bool:
    """Whether a step is for the worse."""
    return (step.size.middle < 1) == find_metric(metric).higher_is_better


def hunts_of(lines: Sequence[SpeedLine], metric: str) -> list[Hunt]:
    """What to hunt, changes for the worse first, then large ones: steps at one place are one hunt of several workloads."""
    places: dict[tuple[bool, int, int], list[tuple[str, float]]] = {}
    for line in lines:
        for step in line.steps:
            place = not is_worse(step, metric), step.first, step.last
            places.setdefault(place, []).append((line.work, step.size.middle))
    by_rank = sorted(places.items(), key=lambda item: (item[0][0], -max(abs(math.log(size)) for _, size in item[1])))
    return [
        Hunt(good, bad, not better, tuple(work for work, _ in sizes), min(abs(size - 1) for _, size in sizes))
        for (better, good, bad), sizes in by_rank
    ]
