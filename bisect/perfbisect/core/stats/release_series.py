"""The speed line of a series of releases: the level of each release in a workload, and the steps between levels.

**Levels.** A visit of release i in round r is modelled as x[i][r] = level[i] + round[r] + error, fitted by least
squares. round[r] is the effect of the machine's state during round r on all visits of the round. Levels are more exact
than ratios to one release, because all such ratios would contain the error of that release. The standard error of a
level is computed from the residuals of the fit:

    s² = Σ residual² / (visits - releases - rounds + 1),     error = s / √(rounds of the release with the fewest rounds)

Each round measures the releases in random order (core/domain/trials.py), so that a machine that is slow for some
minutes slows down random releases, not neighbouring releases.

**Steps.** The level of a release differs from its neighbours for three reasons: the measurement error; the placement of
its code, which changes at random with every release and is not averaged out by repetition; and changes of speed, which
persist. The measurement error and the code placement together make the scatter s of the line. The scatter is estimated
from the smaller differences between neighbouring levels, because the larger differences may be steps (after Rice,
Bandwidth choice for nonparametric regression, Annals of Statistics 12, 1984; trimmed).

An arc is a sequence of successive releases. The rest consists of all releases outside of the arc (circular binary
segmentation: Olshen, Venkatraman, Lucito and Wigler, Biostatistics 5, 2004). With n releases in all, m of them in the
arc (m ≤ n - m), and the scatter s of the line, the statistic is

    z = |mean of the arc - mean of the rest| / (s √(1/m + 1/(n - m)))

The most extreme release of an arc is left out of m and of the mean, so that a single unusual build makes no step.
Student's t-distribution gives the p-value of z. For an arc of a single release, the distribution has only ODD degrees
of freedom, so that its long tails include builds that are unusual by chance. Each p-value is multiplied by the number
of tested arcs. If the smallest p-value is at most ``false_rate``, the arc with this p-value is cut out of the line.
Then each piece of the line is searched separately; its share of ``false_rate`` is proportional to its number of
releases. At the end, each cut is tested again between its neighbouring cuts, and moved to the position with the
smallest residual sum of squares.

Several workloads get equal parts of ``false_rate`` (Bonferroni), so that ``false_rate`` holds for the whole table.
benchmarks/series/run.py checks the rate: it simulates tables without a change, and counts the tables with a step.

**Readings measured elsewhere.** A series that another system measured has one reading for each commit, and successive
readings are often days apart. If a machine is slow for a week, neighbouring readings are correlated. Single readings
may be outliers. Readings further than FAR standard deviations from the running median are excluded. The scatter of
means of w successive readings is larger than 1/√w times the scatter of single readings if neighbouring readings are
correlated. Therefore the scatter of a line is the largest value, over all w in WIDTHS, of √w times the scatter of means
of w readings (block means, as in simulations: Law and Kelton, 1984).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import NormalDist, fmean, mean

import numpy as np
from numpy.typing import NDArray

from perfbisect.core.domain.metrics import find_metric
from perfbisect.core.domain.orders import Interval, ratio_of_log
from perfbisect.core.domain.session_state import SessionState
from perfbisect.core.stats.distributions import Student
from perfbisect.core.stats.paired_comparison import mean_logs_by_round

RATE = 0.05  # highest share of tables without a change that report a step by chance
MASS = 0.95  # probability that a step is at one of the positions that are stated
FEWEST = 8  # the fewest levels in which steps are searched: the scatter of fewer is hardly known
SMALLEST = 5e-4  # the least scatter of a line: exact counts differ by less between any two releases
SMALL_GAPS = 0.6  # share of the differences between neighbours, the smallest first, from which the scatter is estimated
BESIDE = 3  # readings on either side in the running median of a series that was measured elsewhere
FAR = 3.5  # standard deviations from the running median
WIDTHS = (2, 3, 4, 6, 8, 12, 16)  # numbers of readings in the means from which a scatter is estimated
MEANS = 8  # the fewest means from which a scatter is estimated
READINGS = 20  # the fewest readings of a series in which steps are searched: fewer do not show how alike neighbours are
ODD = 4  # most degrees of freedom of the p-value of a single release that differs from both neighbours

NORMAL = NormalDist()

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class LevelStep:
    """A change of the level that persists, at least until the next step.

    A release has the same number as its level. The change happened between the releases ``before`` and ``after``, which
    are neighbours.
    """

    before: int
    after: int
    first: int  # with probability 0.95 the change came after ``first``, and not later than ``last``
    last: int
    size: Interval  # ratio of the levels after and before the step, each from one step to the next
    alone: bool  # whether only one release is between this step and the next step, the last step, or an end
    chance: float = 0.0  # upper limit of the probability that a line without a step shows one as clear; 0 if unknown


def find_steps(levels: Sequence[float], error: float = 0.0, max_false_rate: float = RATE) -> tuple[LevelStep, ...]:
    """The steps between ``levels``, which are logarithms, oldest first; ``error`` is the standard error of a level."""
    if len(levels) < FEWEST:
        return ()
    line = np.asarray(levels, dtype=float)
    search = StepSearch(line, scatter_of_levels(levels, error), max_false_rate)
    cuts = search.significant_cuts(search.find_cuts(0, len(line)))
    ends = [0, *cuts, len(line)]
    return tuple(search.step_at_cut(*ends[index : index + 3]) for index in range(len(cuts)))


def scatter_of_levels(levels: Sequence[float], min_scatter: float = 0.0) -> float:
    """The standard deviation of levels around their neighbours, except at steps, in log units; at least
    ``min_scatter``."""
    gaps = np.sort(np.diff(np.asarray(levels, dtype=float)) ** 2)
    count = math.ceil(SMALL_GAPS * len(gaps))
    # The expected mean of the ``count`` smallest of squared normal variables; within 2 % from 6 levels on (simulated).
    usual = mean(NORMAL.inv_cdf((1 + (rank + 1.5) / (len(gaps) + 1)) / 2) ** 2 for rank in range(count))
    return max(math.sqrt(float(gaps[:count].mean()) / (2 * usual)), min_scatter, SMALLEST)


def freedom_of_scatter(levels: int) -> int:
    """The degrees of freedom of a scatter that is estimated from this number of ``levels``, as simulations with normal
    levels have shown.
    """
    return max(3, round(0.7 * levels))


class StepSearch:
    """The search for steps in the line of one workload."""

    def __init__(self, levels: Array, sd: float, false_rate: float) -> None:
        self.levels, self.sd, self.false_rate = levels, sd, false_rate
        self.freedom = freedom_of_scatter(len(levels))

    def find_cuts(self, start: int, end: int) -> list[int]:
        """The positions from ``start`` to ``end`` at which the level changes: the first release after each change."""
        arc_ends = self.most_significant_arc(start, end)
        if not arc_ends:
            return []
        return sorted({*arc_ends, *(cut for a, b in pairwise([start, *arc_ends, end]) for cut in self.find_cuts(a, b))})

    def most_significant_arc(self, start: int, end: int) -> list[int]:
        """The ends of the most significant arc (sequence of releases) from ``start`` to ``end``, except an end that
        equals ``start`` or ``end``; empty if no arc is significant.
        """
        count = end - start
        if count < 2:
            return []
        ring = np.concatenate((self.levels[start:end], self.levels[start:end]))
        total = float(self.levels[start:end].sum())
        best, at = math.inf, (0, 0)
        for wide in range(1, count // 2 + 1):
            windows = np.lib.stride_tricks.sliding_window_view(ring, wide)[:count]
            z = self.z_of_arcs(windows, total - windows.sum(axis=1), count - wide)
            index = int(z.argmax())
            # Half of the rate of false steps is for arcs of single releases, and the other half for longer arcs.
            tests = 2.0 * count * (1 if wide == 1 else max(1, count // 2 - 1))
            if (p := self.p_value_of_arc(float(z[index]), wide) * tests) < best:
                best, at = p, (index, wide)
        if best > self.false_rate_of_piece(count):
            return []
        index, wide = at
        edges = {start + index % count, start + (index + wide) % count}
        return sorted(edges - {start})

    def z_of_arcs(self, arcs: Array, other_sums: Array, other_count: int) -> Array:
        """The statistic z of each arc, whose levels are a row of ``arcs``; ``other_sums`` are the sums of the levels of
        the ``other_count`` releases outside of each arc.
        """
        wide = arcs.shape[1]
        middle = arcs.mean(axis=1)
        gap = middle - other_sums / other_count
        if wide > 1:
            up = np.where(gap > 0, arcs.max(axis=1), arcs.min(axis=1))
            wide -= 1
            trimmed = (middle * (wide + 1) - up) / wide - other_sums / other_count
            gap = np.where(trimmed * gap > 0, trimmed, 0.0)
        z: Array = np.abs(gap) / (self.sd * math.sqrt(1 / wide + 1 / other_count))
        return z

    def p_value_of_arc(self, z: float, width: int) -> float:
        """The p-value of the statistic ``z`` of an arc of ``width`` releases."""
        return Student(min(self.freedom, ODD) if width == 1 else self.freedom).two_sided_p_value(z)

    def false_rate_of_piece(self, releases: int) -> float:
        """The accepted rate of false steps in a piece of the line that has ``releases`` releases: ``false_rate``, times
        ``releases``, divided by the number of all releases."""
        return self.false_rate * releases / len(self.levels)

    def significant_cuts(self, cuts: list[int]) -> list[int]:
        """The cuts that are significant between their neighbouring cuts, each moved to the position that fits best."""
        for _ in range(len(self.levels)):
            bounds = [0, *cuts, len(self.levels)]
            chances = [self.p_value_over_limit(*bounds[index : index + 3]) for index in range(len(cuts))]
            if chances and max(chances) > 1:
                cuts = [cut for cut, p in zip(cuts, chances, strict=True) if p < max(chances)]
                continue
            moved = list(cuts)
            for index in range(len(moved)):
                ends = [0, *moved, len(self.levels)]
                start, end = ends[index], ends[index + 2]
                # The position with the least sum of squares.
                moved[index] = start + 1 + int(self.squares_by_cut(start, end).argmin())
            if moved == cuts:
                return cuts
            cuts = moved
        return cuts

    def p_value_over_limit(self, start: int, cut: int, end: int) -> float:
        """The p-value of a cut, times the number of possible positions of the cut, divided by the accepted rate of
        false steps. The cut is significant if the result is at most 1.
        """
        return self.p_value_of_cut(start, cut, end) * (end - start - 1) / self.false_rate_of_piece(end - start)

    def p_value_of_cut(self, start: int, cut: int, end: int) -> float:
        """The p-value of a cut between the neighbouring cuts ``start`` and ``end``."""
        short, long = sorted((self.levels[start:cut], self.levels[cut:end]), key=len)
        [z] = self.z_of_arcs(short[None, :], np.array([long.sum()]), len(long))
        return self.p_value_of_arc(float(z), len(short))

    def squares_by_cut(self, start: int, end: int) -> Array:
        """The residual sum of squares for a cut after each release from ``start`` to ``end``, except the last."""
        part = self.levels[start:end]
        sums, sizes = np.cumsum(part)[:-1], np.arange(1, len(part))
        total = part.sum()
        explained = sums**2 / sizes + (total - sums) ** 2 / (len(part) - sizes)
        squares: Array = np.maximum(0.0, float((part**2).sum()) - explained)
        return squares

    def step_at_cut(self, start: int, cut: int, end: int) -> LevelStep:
        """The step at a cut, which is between the neighbouring cuts ``start`` and ``end``.

        Each possible position of the step has a weight by Bayes' rule, computed with equal priors of the positions,
        unknown levels, and an estimated scatter.
        """
        earlier, later = self.levels[start:cut], self.levels[cut:end]
        squares = self.squares_by_cut(start, end)
        sizes = np.arange(1, end - start)
        weight = -0.5 * np.log(sizes * (end - start - sizes))
        scatter_squares = self.freedom * self.sd**2
        growth = np.log((scatter_squares + squares) / (scatter_squares + squares.min()))
        weight -= (self.freedom + end - start - 2) / 2 * growth
        mass = np.exp(weight - weight.max())
        order = np.argsort(-mass, kind="stable")
        inside = order[: int(np.searchsorted(np.cumsum(mass[order]), MASS * mass.sum())) + 1]
        gap = float(later.mean() - earlier.mean())
        half = Student(self.freedom).quantile() * self.sd * math.sqrt(1 / len(earlier) + 1 / len(later))
        first, last = start + int(inside.min()), start + int(inside.max()) + 1
        alone, arcs = min(len(earlier), len(later)) == 1, len(self.levels) * max(1, len(self.levels) - 2)
        false = min(self.false_rate, self.p_value_of_cut(start, cut, end) * arcs)
        return LevelStep(cut - 1, cut, first, last, Interval.from_log_ratio(gap, half), alone, false)


MeansByRound = Mapping[int, Mapping[int, float]]  # release → round → mean logarithm


@dataclass(frozen=True, slots=True)
class SpeedLine:
    """The speed of one workload over the releases, which are numbered by their positions among the trial's builds."""

    work: str
    ratios: tuple[float | None, ...]  # relative to the first release that was measured; None for a gap
    # standard error of one level, as a fraction, without the effect of layouts; None after a single round
    error: float | None
    scatter: float | None  # s.d. of a level around its neighbours, without steps; None for too few levels
    steps: tuple[LevelStep, ...]

    @property
    def plateaus(self) -> list[float | None]:
        """For each release, the mean level between the step before the release and the step after the release; None
        before the first measured release.
        """
        means: list[float | None] = []
        for start, end in pairwise([0, *(step.after for step in self.steps), len(self.ratios)]):
            logs = [math.log(ratio) for ratio in self.ratios[start:end] if ratio]
            means += [math.exp(sum(logs) / len(logs)) if logs else None] * (end - start)
        return means


@dataclass(frozen=True, slots=True)
class SuggestedHunt:
    """Two releases between which the speed of one or several workloads changed."""

    good: int
    bad: int
    worse: bool  # False: better
    works: tuple[str, ...]
    smallest_change: float  # among the changes of the workloads, as a fraction


def speed_lines(trial: SessionState) -> list[SpeedLine]:
    """For each workload of a series, in the order of the trial's request: the speeds of the releases, and the steps of
    these speeds."""
    request = trial.request
    names, releases = [work.name for work in request.works], len(request.subjects)
    visits = [mean_logs_by_round(trial, number, request.metric) for number in range(len(names))]
    return [speed_line(*line, releases, RATE / len(names)) for line in zip(names, visits, strict=True)]


def speed_line(workload: str, means: MeansByRound, releases: int, false_rate: float) -> SpeedLine:
    """The speed line of one workload over ``releases``, computed from the mean logarithm of each release in each
    round.
    """
    level, error = release_levels_and_error(means)
    return line_of_levels(workload, level, releases, false_rate, error)


def line_of_levels(
    workload: str,
    levels: Mapping[int, float],
    releases: int,
    false_rate: float,
    error: float | None,
    min_scatter: float = 0.0,
) -> SpeedLine:
    """The speed line of one workload through ``levels`` (release → logarithm); the scatter of the line is at least
    ``min_scatter``.
    """
    measured = sorted(levels)
    values, error_floor = [levels[release] for release in measured], max(error or 0.0, min_scatter)
    steps = (
        replace(step, **{name: measured[getattr(step, name)] for name in ("before", "after", "first", "last")})
        for step in find_steps(values, error_floor, false_rate)
    )
    base = values[0] if values else 0.0
    ratios = (ratio_of_log(levels[release] - base) if release in levels else None for release in range(releases))
    line_scatter = scatter_of_levels(values, error_floor) if len(values) >= FEWEST else None
    return SpeedLine(workload, tuple(ratios), error, line_scatter, tuple(steps))


def line_of_readings(workload: str, readings: Sequence[float], false_rate: float) -> SpeedLine:
    """The speed line of a series that another system measured; ``readings`` are logarithms of the metric. Outliers
    have the ratio None.
    """
    every = np.asarray(readings, dtype=float)
    beside = [float(np.median(every[max(0, index - BESIDE) : index + BESIDE + 1])) for index in range(len(every))]
    off = np.abs(every - beside)
    near = np.flatnonzero(off <= FAR * max(float(np.median(off)) / NORMAL.inv_cdf(0.75), SMALLEST))
    line = every[near]
    widths = (wide for wide in WIDTHS if len(line) >= MEANS * wide)
    of_means = (math.sqrt(wide) * scatter_of_levels(block_means(line, wide)) for wide in widths)
    level = {int(index): float(x) for index, x in zip(near, line, strict=True)}
    return line_of_levels(workload, level, len(every), false_rate, None, max(of_means, default=0.0))


def block_means(line: Array, width: int) -> list[float]:
    """The means of blocks of ``width`` successive levels; the first levels are left out if they do not fill a block."""
    return [float(x) for x in line[len(line) % width :].reshape(-1, width).mean(axis=1)]


def release_levels_and_error(means: MeansByRound) -> tuple[dict[int, float], float | None]:
    """The level of each release, and the largest standard error of a level; None if every release was measured in
    only one round.

    The effects of rounds are eliminated from the normal equations, so that only levels are unknown. If no chain of
    common rounds connects two releases, the difference of their levels is computed as the difference of their means.
    """
    level = {release: fmean(values.values()) for release, values in means.items() if values}
    position = {release: number for number, release in enumerate(level)}
    rounds: dict[int, dict[int, float]] = {}
    for release, middle in level.items():
        for number, x in means[release].items():
            rounds.setdefault(number, {})[position[release]] = x - middle
    alike: dict[tuple[int, ...], list[list[float]]] = {}  # positions of releases → rounds with these releases
    for visited_round in rounds.values():
        alike.setdefault(tuple(visited_round), []).append([*visited_round.values()])
    visited = [(np.array(members), np.array(rows)) for members, rows in alike.items()]
    centred = [(members, rows - rows.mean(axis=1)[:, None]) for members, rows in visited]
    normal, right = np.zeros((len(level), len(level))), np.zeros(len(level))
    for members, these in centred:
        normal[np.ix_(members, members)] += len(these) * (np.eye(len(members)) - 1 / len(members))
        right[members] += these.sum(axis=0)
    moved: Array = np.linalg.pinv(normal, hermitian=True) @ right
    level = {release: level[release] + float(moved[number]) for release, number in position.items()}
    count = sum(map(len, rounds.values()))
    freedom = count - len(rounds) - int(np.linalg.matrix_rank(normal, hermitian=True)) if rounds else 0
    if freedom < 1:
        return level, None
    squares = sum(float(((these - moved[members] + moved[members].mean()) ** 2).sum()) for members, these in centred)
    return level, math.sqrt(squares / freedom / min(len(means[release]) for release in level))


def makes_worse(step: LevelStep, metric: str) -> bool:
    """Whether this step makes the metric worse."""
    return (step.size.middle < 1) == find_metric(metric).higher_is_better


def suggested_hunts(lines: Sequence[SpeedLine], metric: str) -> list[SuggestedHunt]:
    """The hunts for the steps of all workloads. A hunt is for all steps for the worse (or all steps for the better)
    between the same two releases. Hunts for steps for the worse come first. Among hunts of the same direction, the hunt
    with the larger step comes first.
    """
    steps_of: dict[tuple[bool, int, int], list[tuple[str, float]]] = {}
    for line in lines:
        for step in line.steps:
            sharing_key = not makes_worse(step, metric), step.first, step.last
            steps_of.setdefault(sharing_key, []).append((line.work, step.size.middle))
    by_rank = sorted(steps_of.items(), key=lambda item: (item[0][0], -max(abs(math.log(size)) for _, size in item[1])))
    return [
        SuggestedHunt(good, bad, not better, tuple(work for work, _ in sizes), min(abs(size - 1) for _, size in sizes))
        for (better, good, bad), sizes in by_rank
    ]
