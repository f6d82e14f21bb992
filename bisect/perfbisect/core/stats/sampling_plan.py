"""What an A/A teaches about measuring on its host: what can be seen at which cost, how often and how long to run."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median

from perfbisect.core.domain.trials import Trial
from perfbisect.core.stats.variance_components import ENOUGH, Noise, best_runs, best_seconds, noise_in, smallest_drop

SIDES = (2, 4, 8, 16, 32, 64)  # runs per side in the table


@dataclass(frozen=True, slots=True)
class Row:
    """What can be seen with so many runs on either side."""

    runs: int
    visits: int
    seconds: float  # for both sides
    drop: float


@dataclass(frozen=True, slots=True)
class Advice:
    """How to measure this on that host."""

    runs: int  # in each visit
    seconds: int | None  # of each run; None where unknown


def noise_of_trial(trial: Trial) -> Noise | None:
    """What the runs of an A/A come to; None when they are too few. Those in other layouts are left out."""
    return noise_in([(run.round, run.facts) for run in trial.runs if not run.facts.layout], trial.request.metric)


def costs(trial: Trial) -> tuple[float, float]:
    """Seconds of a run, and of opening a visit. Loading the data for the first visit does not count."""
    first: dict[int, float] = {}  # visit → seconds of its first run, the opening included
    later = []
    for made in (run for run in trial.runs if not run.facts.layout):
        if made.round in first:
            later.append(made.cost)
        first.setdefault(made.round, made.cost)
    opened, [work] = list(first.values()), trial.request.works
    run = median(later or opened or [work.warmup + work.time])
    return run, max(0.0, median(opened[1:] or opened or [run]) - run)


def advice(trial: Trial, found: Noise) -> Advice:
    """How often and how long to run."""
    run, visit = costs(trial)
    return Advice(best_runs(found, run, visit), best_seconds(found, trial.request.works[0].time, run))


def rows(trial: Trial, found: Noise) -> Iterator[Row]:
    """The table: for so many runs on each side, as many in a visit as is best."""
    run, opening = costs(trial)
    most = advice(trial, found).runs
    for runs in SIDES:
        visits = math.ceil(runs / min(runs, most))
        yield Row(runs, visits, 2 * (runs * run + visits * opening), smallest_drop(found, visits, runs / visits))


def sentences(trial: Trial, found: Noise) -> Iterator[str]:
    """The advice in words."""
    best, now = advice(trial, found), trial.request.works[0].time
    if found.shared and found.between is not None:
        most = "more than one run in a visit teaches nothing new" if best.runs == 1 else f"{best.runs} runs"
        yield f"Best for the time it takes: {most}{'' if best.runs == 1 else ' in each visit'}."
    if best.seconds is None:
        yield "Too few report intervals in a run to say how long runs should be."
    elif 0.6 * now <= best.seconds <= 1.6 * now:
        yield f"Runs of {now:g} s are about as long as is best."
    else:
        what = "shorter" if best.seconds < now else "longer"
        yield f"Runs could be {what}: --time {best.seconds} is best for the time it takes."
    if len(trial.runs) >= ENOUGH:
        yield "Hunts on this host with this builder and workload now begin with this noise."
    else:
        yield f"Fewer than {ENOUGH} runs: hunts do not begin with this noise."
