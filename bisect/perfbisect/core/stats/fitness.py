"""Whether a host is as fast as before, and its noise as low as before, from repeated checks of the level and the noise.

All checks of a host measure the same build and the same workload. The baseline of a check is the median of the earlier
checks of the same build and workload, because a single bad day does not change a median. A check has a fault

    of the level   if the level is lower than the baseline by at least FALL
    of the noise   if the noise is at least DOUBLED times the baseline; a noise below LEAST counts as LEAST

and if the difference is also at least SPREAD times the standard deviation of the earlier checks. A host becomes unfit
if two successive checks have the same fault, relative to the baseline before these two checks. The baseline of an unfit
host does not change, because a speed that stays bad for weeks must not become usual. The host is fit again after two
successive checks without a fault, or if the user accepts a check. If another build is checked, for instance a build by
another compiler, a separate baseline begins; a host that was unfit remains unfit.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import median

from perfbisect.core.domain.facts import FitnessFacts
from perfbisect.core.domain.metrics import find_metric, log_metric
from perfbisect.core.domain.session_state import SessionState
from perfbisect.core.domain.settings import TrialType
from perfbisect.core.domain.trials import paired_or_interleaved_runs
from perfbisect.core.stats.noise import noise_of_trial, sd_of_paired_ratios

FALL = 0.05  # smallest fall of the level that is a fault, as a fraction
SPREAD = 2.5  # a fault differs from earlier checks by at least this number of their standard deviations
DOUBLED = 2.0  # smallest ratio of the noise to the usual noise that is a fault
LEAST = 0.0025  # s.d. of a run; smaller noise counts as LEAST
EARLIER = 3  # the fewest checks that make a baseline
ROUNDED = 1e-9  # tolerance of rounding: a fall of exactly FALL counts


class Fault(StrEnum):
    """The quantity (level or noise) that is worse in a check than in the baseline (the median of earlier checks)."""

    LEVEL = "level"
    NOISE = "noise"


@dataclass(frozen=True, slots=True)
class Check:
    """One check of a host."""

    number: int  # the number of the check's trial
    host: str  # the name of the host in the trial
    at: float  # when the check began, in seconds since the epoch
    facts: FitnessFacts
    accepted: bool = False  # whether the user accepts the check, so that a new baseline begins with this check


@dataclass(frozen=True, slots=True)
class Unfit:
    """The fault that made a host unfit, and the measured facts of the second check with this fault."""

    faults: tuple[Fault, ...]
    since: float  # when the first of the two checks began
    level: float  # level relative to the baseline
    facts: FitnessFacts


@dataclass(frozen=True, slots=True)
class Fitness:
    """The result of a check of a host; ``unfit`` is None if the host is fit after the check."""

    check: Check
    level: float | None  # level of the check relative to the baseline: 0.95 is 5 % slower; None without a baseline
    unfit: Unfit | None = None


def fitness_facts(trial: SessionState) -> FitnessFacts | None:
    """The level and noise of a host from an A/A test; None for other trials, or if no run has a value of the metric."""
    request, metric = trial.request, find_metric(trial.request.metric)
    of_kind = paired_or_interleaved_runs(trial, 0)
    levels = [level for run in of_kind if (level := log_metric(run.facts, metric.name)) is not None]
    if request.kind is not TrialType.NOISE or not levels:
        return None
    pairs, runs = sd_of_paired_ratios(trial), noise_of_trial(trial)
    noise = pairs[0] if pairs else runs.run if runs else None
    identity = (request.subjects[0].key, request.works[0].run_hash, metric.name)
    return FitnessFacts(median(levels) * (1 if metric.higher_is_better else -1), noise, pairs is not None, identity)


def find_faults(check: FitnessFacts, earlier_checks: Sequence[FitnessFacts]) -> tuple[Fault, ...]:
    """The faults of a check, compared with earlier checks of the same build; empty for too few earlier checks."""
    alike = [earlier.noise for earlier in earlier_checks if earlier.in_pairs is check.in_pairs]
    noises = [math.log(max(noise, LEAST)) for noise in alike if noise is not None]
    is_faulty = {
        Fault.LEVEL: is_above_usual(-check.level, [-earlier.level for earlier in earlier_checks], -math.log1p(-FALL)),
        Fault.NOISE: bool(check.noise) and is_above_usual(math.log(check.noise or 1.0), noises, math.log(DOUBLED)),
    }
    return tuple(fault for fault, faulty in is_faulty.items() if faulty)


def is_above_usual(value: float, usual: Sequence[float], min_excess: float) -> bool:
    """Whether a value exceeds the median of ``usual`` by at least ``min_excess`` and SPREAD standard deviations of
    ``usual``.
    """
    if len(usual) < EARLIER:
        return False
    centre = median(usual)
    spread = 1.4826 * median(abs(earlier - centre) for earlier in usual)
    return value - centre >= max(min_excess, SPREAD * spread) - ROUNDED


def fitness_after_checks(checks: Iterable[Check]) -> Iterator[Fitness]:
    """The fitness of a host after each of its checks, oldest first."""
    baselines: dict[tuple[str, ...], list[FitnessFacts]] = {}
    doubted: dict[tuple[str, ...], Check] = {}  # the previous check, if it has a fault and is not in the baseline yet
    unfit: dict[tuple[str, ...], Unfit] = {}  # identity of the build that has shown the fault → the fault
    sound: dict[tuple[str, ...], bool] = {}  # identity → whether the latest check of this identity has no fault
    for check in checks:
        if check.accepted:
            baselines, doubted, unfit = {}, {}, {}
        now = check.facts
        usual, previous = baselines.setdefault(now.identity, []), doubted.pop(now.identity, None)
        levels = [check_facts.level for check_facts in usual]
        level = math.exp(now.level - median(levels)) if len(usual) >= EARLIER else None
        faults = find_faults(now, usual)
        both = tuple(fault for fault in faults if previous and fault in find_faults(previous.facts, usual))
        if now.identity in unfit:
            if sound[now.identity] and not faults:
                del unfit[now.identity]
            sound[now.identity] = not faults
        elif previous and both:
            unfit[now.identity], sound[now.identity] = Unfit(both, previous.at, level or 1.0, now), False
        else:
            usual += [previous.facts] if previous else []
            if faults:
                doubted[now.identity] = check
            else:
                usual.append(now)
        yield Fitness(check, level, next(reversed(unfit.values()), None))
