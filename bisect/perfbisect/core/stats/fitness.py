"""Whether a host is as fit as it was: its level and its noise from day to day, against what they were.

A check of a host measures one build and one workload that stay the same. Its baseline is what earlier checks of the same
build and workload have shown, by medians, which a single bad day does not move. A fault is

    of the level   it is lower by FALL
    of the noise   it is DOUBLED, and not too small to matter (LEAST)

and in either case by SPREAD s.d. between earlier checks, which is more where days differ much. Two successive checks with
the same fault, both against the baseline before them, make a host unfit. From then on its baseline stays: what is bad for
weeks must not become usual. Two successive checks without a fault end it, and so does an acceptance. Another build, such as
by another compiler, begins a baseline of its own, and does not make an unfit host fit.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import median

from perfbisect.core.domain.facts import FitnessFacts
from perfbisect.core.domain.metrics import find_metric, readable
from perfbisect.core.domain.session_state import SessionState
from perfbisect.core.domain.settings import TrialType
from perfbisect.core.domain.trials import counting
from perfbisect.core.stats.noise import noise_of_trial, of_pairs

FALL = 0.05  # of the level
SPREAD = 2.5  # s.d. between earlier checks that a fall has to exceed
DOUBLED = 2.0
LEAST = 0.0025  # s.d.: noise is compared with this at least
EARLIER = 3  # checks without which there is no baseline
ROUNDED = 1e-9  # a fall of exactly FALL is one


class Fault(StrEnum):
    """What is worse than it was."""

    LEVEL = "level"
    NOISE = "noise"


@dataclass(frozen=True, slots=True)
class Check:
    """One check of a host."""

    number: int  # of its trial
    host: str  # the name by which it was measured
    at: float  # when it began, in seconds since the epoch
    shown: FitnessFacts
    accepted: bool = False  # the user takes what it shows for what is usual from then on


@dataclass(frozen=True, slots=True)
class Unfit:
    """Why a host is unfit, by the second of the two checks that have shown it."""

    faults: tuple[Fault, ...]
    since: float  # when the first of them began
    level: float  # relative to the baseline
    shown: FitnessFacts


@dataclass(frozen=True, slots=True)
class Fitness:
    """How fit a host is after a check."""

    check: Check
    level: float | None  # of the check, relative to the baseline: 0.95 is 5 % slower; None without a baseline
    unfit: Unfit | None = None


def fitness_facts(trial: SessionState) -> FitnessFacts | None:
    """What an A/A shows of its host; None for another trial, and where its runs have no value of the metric."""
    request, metric = trial.request, find_metric(trial.request.metric)
    levels = [level for run in counting(trial, 0) if (level := readable(run.facts, metric.name)) is not None]
    if request.kind is not TrialType.NOISE or not levels:
        return None
    pairs, runs = of_pairs(trial), noise_of_trial(trial)
    noise = pairs[0] if pairs else runs.run if runs else None
    identity = (request.subjects[0].key, request.works[0].run_hash, metric.name)
    return FitnessFacts(median(levels) * (1 if metric.higher_is_better else -1), noise, pairs is not None, identity)


def faults_of(now: FitnessFacts, usual: Sequence[FitnessFacts]) -> tuple[Fault, ...]:
    """What is worse in a check than in the earlier ones of the same build; nothing where these are too few."""
    alike = [each.noise for each in usual if each.in_pairs is now.in_pairs]
    noises = [math.log(max(noise, LEAST)) for noise in alike if noise is not None]
    found = {
        Fault.LEVEL: rises(-now.level, [-each.level for each in usual], -math.log1p(-FALL)),
        Fault.NOISE: bool(now.noise) and rises(math.log(now.noise or 1.0), noises, math.log(DOUBLED)),
    }
    return tuple(fault for fault, is_there in found.items() if is_there)


def rises(value: float, usual: Sequence[float], least: float) -> bool:
    """Whether a value is above the usual ones by at least so much, and by more than these differ from each other."""
    if len(usual) < EARLIER:
        return False
    centre = median(usual)
    spread = 1.4826 * median(abs(each - centre) for each in usual)
    return value - centre >= max(least, SPREAD * spread) - ROUNDED


def course(checks: Iterable[Check]) -> Iterator[Fitness]:
    """How fit a host is after each of its checks, oldest first."""
    baselines: dict[tuple[str, ...], list[FitnessFacts]] = {}
    doubted: dict[tuple[str, ...], Check] = {}  # the check before, where it has a fault: it is not yet usual
    unfit: dict[tuple[str, ...], Unfit] = {}  # by the build that has shown it
    sound: dict[tuple[str, ...], bool] = {}  # whether the latest check of that has no fault any more
    for check in checks:
        if check.accepted:
            baselines, doubted, unfit = {}, {}, {}
        now = check.shown
        usual, before = baselines.setdefault(now.identity, []), doubted.pop(now.identity, None)
        level = math.exp(now.level - median(each.level for each in usual)) if len(usual) >= EARLIER else None
        faults = faults_of(now, usual)
        both = tuple(fault for fault in faults if before and fault in faults_of(before.shown, usual))
        if now.identity in unfit:
            if sound[now.identity] and not faults:
                del unfit[now.identity]
            sound[now.identity] = not faults
        elif before and both:
            unfit[now.identity], sound[now.identity] = Unfit(both, before.at, level or 1.0, now), False
        else:
            usual += [before.shown] if before else []
            if faults:
                doubted[now.identity] = check
            else:
                usual.append(now)
        yield Fitness(check, level, next(reversed(unfit.values()), None))
