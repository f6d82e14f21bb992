"""The line of a series of releases: the level of each in each workload, and the steps of the line.

A visit of a release i in a round r is modelled as x[i][r] = level[i] + round[r] + error, fitted by least squares: what one
round has in common is the machine at that time. Levels are so better known than by ratios to one release, whose error all of
them would share. From the residuals comes the standard error of a level,

    s² = Σ residual² / (visits - releases - rounds + 1),     error = s / √(rounds of a release)

Rounds are in orders drawn at random (core/domain/trials.py), so that a machine that is slow for some minutes slows down
releases at random and not neighbours.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import mean

from perfbisect.core.domain.metrics import find_metric
from perfbisect.core.domain.policy import Direction
from perfbisect.core.domain.trials import Trial
from perfbisect.core.stats.change_points import FEWEST, RATE, Step, find_steps, scatter
from perfbisect.core.stats.paired_comparison import levels, ratio_of

SWEEPS = 50  # of the fit, at most; complete rounds take two or three

Visits = Mapping[int, Mapping[int, float]]  # release → round → mean logarithm


@dataclass(frozen=True, slots=True)
class Line:
    """One workload over the releases; numbers of releases are those of the subjects of the trial."""

    work: str
    ratios: tuple[float | None, ...]  # to the first release that was measured; None for a gap
    error: float | None  # of one level, as a fraction: by measuring alone; None after a single round
    scatter: (
        float | None
    )  # s.d. of a level around its neighbours for all reasons but steps; None where too few are known
    steps: tuple[Step, ...]


@dataclass(frozen=True, slots=True)
class Hunt:
    """Two releases between which something changed, in one or several workloads."""

    good: int
    bad: int
    direction: Direction  # of the metric
    works: tuple[str, ...]
    least: float  # the smallest of the changes, as a fraction


def lines_of(trial: Trial) -> list[Line]:
    """The line of every workload, in the order in which they were requested."""
    request = trial.request
    found = []
    for number, work in enumerate(request.works):
        visits = levels((run for run in trial.runs if run.work == number), request.metric)
        found.append(line_of(work.name, visits, len(request.subjects), RATE / len(request.works)))
    return found


def line_of(work: str, visits: Visits, releases: int, rate: float) -> Line:
    """The line of one workload."""
    level, error = fitted(visits)
    measured = sorted(level)
    values = [level[release] for release in measured]
    steps = (
        replace(
            step,
            before=measured[step.before],
            after=measured[step.after],
            first=measured[step.first],
            last=measured[step.last],
        )
        for step in find_steps(values, error or 0.0, rate)
    )
    base = values[0] if values else 0.0
    ratios = (ratio_of(level[release] - base) if release in level else None for release in range(releases))
    known = scatter(values, error or 0.0) if len(values) >= FEWEST else None
    return Line(work, tuple(ratios), error, known, tuple(steps))


def fitted(visits: Visits) -> tuple[dict[int, float], float | None]:
    """The level of each release, and the standard error of one; None where every release has a single round."""
    rounds: dict[int, dict[int, float]] = {}
    for release, values in visits.items():
        for number, x in values.items():
            rounds.setdefault(number, {})[release] = x
    level = {release: mean(values.values()) for release, values in visits.items() if values}
    common, before = dict.fromkeys(rounds, 0.0), dict[int, float]()
    for _ in range(SWEEPS):
        if common == before:
            break
        before = common
        common = {number: mean(x - level[release] for release, x in each.items()) for number, each in rounds.items()}
        level = {release: mean(x - common[number] for number, x in visits[release].items()) for release in level}
    count = sum(map(len, rounds.values()))
    freedom = count - len(level) - len(rounds) + 1
    if freedom < 1 or not count:
        return level, None
    rest = sum(
        (x - level[release] - common[number]) ** 2 for number, each in rounds.items() for release, x in each.items()
    )
    return level, math.sqrt(rest / freedom * len(level) / count)


def direction_of(step: Step) -> Direction:
    """Where the metric went."""
    return Direction.DROP if step.size.middle < 1 else Direction.RISE


def is_worse(step: Step, metric: str) -> bool:
    """Whether a step is for the worse."""
    return (step.size.middle < 1) == find_metric(metric).higher_is_better


def hunts_of(lines: Sequence[Line], metric: str) -> list[Hunt]:
    """What to hunt, changes for the worse first, then large ones: steps at one place are one hunt of several workloads."""
    places: dict[tuple[int, int, Direction], list[tuple[Line, Step]]] = {}
    for line in lines:
        for step in line.steps:
            places.setdefault((step.first, step.last, direction_of(step)), []).append((line, step))

    def rank(found: Iterable[tuple[Line, Step]]) -> tuple[bool, float]:
        steps = [step for _, step in found]
        return not is_worse(steps[0], metric), -max(abs(math.log(step.size.middle)) for step in steps)

    return [
        Hunt(
            good,
            bad,
            direction,
            tuple(line.work for line, _ in found),
            min(abs(step.size.middle - 1) for _, step in found),
        )
        for (good, bad, direction), found in sorted(places.items(), key=lambda place: rank(place[1]))
    ]
