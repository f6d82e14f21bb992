"""Fitness checks that make a host unfit: examples, properties, and the frequency of false alarms."""

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import sample_hunt as sample
from perfbisect.core.domain.facts import FitnessFacts, TrialRun
from perfbisect.core.domain.session_state import SessionState
from perfbisect.core.domain.settings import TrialBuild, TrialRequest, TrialType, TrialWorkload
from perfbisect.core.stats.fitness import EARLIER, LEAST, Check, Fault, Fitness, fitness_after_checks, fitness_facts
from perfbisect.wording.trials import why_unfit

LEVEL, NOISE = (Fault.LEVEL,), (Fault.NOISE,)
DAY = 86400.0


def days(levels: Sequence[float], noises: Sequence[float | None] | float = 0.01, build: str = "a") -> list[Check]:
    """One check per day. Levels are relative to the usual level."""
    each = [noises] * len(levels) if isinstance(noises, float) else noises
    return [
        Check(day, "a", DAY * day, FitnessFacts(math.log(1000 * level), noise, True, (build,)))
        for day, (level, noise) in enumerate(zip(levels, each, strict=True))
    ]


def shown(check: Check, **changes: Any) -> Check:
    """The check with other facts."""
    return replace(check, facts=replace(check.facts, **changes))


def after(checks: Sequence[Check]) -> list[tuple[Fault, ...]]:
    """The faults of the host after each check."""
    return [each.unfit.faults if each.unfit else () for each in fitness_after_checks(checks)]


def last(checks: Sequence[Check]) -> Fitness:
    return [*fitness_after_checks(checks)][-1]


def test_two_successive_lower_levels_make_a_host_unfit() -> None:
    checks = days([1, 1, 1, 0.94, 0.94, 0.94])
    assert after(checks) == [(), (), (), (), LEVEL, LEVEL]
    unfit = last(checks).unfit
    assert unfit and why_unfit(unfit) == "since 1970-01-04 it is 6.0 % slower in fitness checks"
    assert (unfit.since, unfit.level) == (3 * DAY, pytest.approx(0.94))
    assert last(checks).level == pytest.approx(0.94), "the level is relative to the fit host"


def test_host_is_unfit_after_two_successive_losses_of_5_percent() -> None:
    """A single bad day does not make a host unfit, nor do two bad days with different faults."""
    assert [bool(last(days([1, 1, 1, level, level])).unfit) for level in (0.951, 0.95)] == [False, True]
    assert after(days([1, 1, 1, 0.8, 1, 0.8, 1, 0.8, 1])) == [()] * 9
    assert after(days([1, 1, 1, 0.8, 1, 1], [0.01, 0.01, 0.01, 0.01, 0.05, 0.01])) == [()] * 6


def test_too_few_earlier_checks_are_no_baseline() -> None:
    checks = days([1, 1, 0.8, 0.8])
    assert after(checks) == [()] * 4
    assert [each.level is None for each in fitness_after_checks(checks)] == [True] * EARLIER + [False]


def test_two_checks_with_doubled_noise_make_a_host_unfit() -> None:
    noisy = days([1] * 6, [0.01, 0.012, 0.01, 0.02, 0.021, 0.01])
    both = days([1, 1, 1, 0.9, 0.9], [0.01, 0.01, 0.01, 0.04, 0.05])
    assert (after(noisy), after(both)[-1]) == ([(), (), (), (), NOISE, NOISE], LEVEL + NOISE)
    said = [why_unfit(unfit) for unfit in (last(noisy).unfit, last(both).unfit) if unfit]
    assert said == [
        "since 1970-01-04 its noise is 2.1 % in fitness checks",
        "since 1970-01-04 it is 10 % slower and its noise is 5.0 % in fitness checks",
    ]


def test_small_unknown_or_incomparable_noise_is_no_fault() -> None:
    assert after(days([1] * 6, [1e-4, 1e-4, 1e-4, 2 * LEAST - 1e-6, 2 * LEAST - 1e-6, 0.0])) == [()] * 6
    assert after(days([1] * 6, [0.01, 0.01, 0.01, None, None, None])) == [()] * 6
    checks = days([1] * 6, [0.01, 0.01, 0.01, 0.05, 0.05, 0.05])
    assert after([*checks[:3], *(shown(each, in_pairs=False) for each in checks[3:])]) == [()] * 6
    assert after(days([1] * 6, [0.0, 0.0, 0.0, 0.02, 0.02, 0.02]))[-1] == NOISE


def test_host_with_varying_levels_must_lose_more_to_be_unfit() -> None:
    usual = [1.0, 1.06, 0.94, 1.05, 0.95, 1.0]
    assert not last(days([*usual, 0.93, 0.93])).unfit
    assert last(days([*usual, 0.8, 0.8])).unfit


def test_two_good_checks_make_a_host_fit_and_bad_levels_are_never_usual() -> None:
    bad = [1, 1, 1, *[0.9] * 50]
    assert after(days([*bad, 1]))[4:] == [LEVEL] * 50
    assert after(days([*bad, 1, 0.9, 1]))[-1] == LEVEL
    assert after(days([*bad, 1, 1, 0.9]))[-2:] == [(), ()]


def test_accepted_level_is_the_new_baseline() -> None:
    checks = days([1, 1, 1, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9])
    checks[4] = replace(checks[4], accepted=True)
    assert after(checks) == [()] * 9 and last(checks).level == pytest.approx(1.0)
    fallen = days([1, 1, 1, 0.9, 0.9, 0.9, 0.9, 0.8, 0.8])
    fallen[4] = checks[4]
    assert after(fallen)[-1] == LEVEL, "the host can be unfit again"


def test_each_build_has_its_own_baseline() -> None:
    one, other = days([1, 1, 1, 1, 1, 1, 0.9, 0.9]), days([2, 2, 2, 2, 2, 2, 2, 2], build="b")
    assert [each.level for each in fitness_after_checks([*one[:3], *other[:3]])][-1] is None
    assert after([*one[:3], *other[:3], *one[6:]])[-1] == LEVEL
    assert after([*one[:4], one[6], other[0], one[7]])[-1] == LEVEL, "a check of another build does not count"


def test_another_build_does_not_make_an_unfit_host_fit() -> None:
    one, other = days([1, 1, 1, 0.9, 0.9]), days([1] * 6, build="b")
    assert set(after([*one, *other])[4:]) == {LEVEL}
    fallen = days([1, 1, 1, 0.9, 0.9, 1, 1], build="b")
    assert set(after([*one, *fallen])[4:]) == {LEVEL}, "nor if the level of the other build falls and rises again"
    assert after([*one, *other[:5], replace(other[5], accepted=True)])[-1] == ()


LEVELS = st.lists(st.floats(0.5, 2.0), min_size=1, max_size=30)


@given(LEVELS, st.floats(0.01, 1e6))
def test_the_unit_of_the_metric_does_not_matter(levels: list[float], unit: float) -> None:
    usual = days([round(level, 2) for level in levels])  # none is near a limit
    scaled = [shown(each, level=each.facts.level + math.log(unit)) for each in usual]
    assert after(scaled) == after(usual)
    for one, other in zip(fitness_after_checks(scaled), fitness_after_checks(usual), strict=True):
        assert one.level is other.level or one.level == pytest.approx(other.level)


@given(LEVELS)
def test_host_becomes_unfit_only_after_two_faults(levels: list[float]) -> None:
    """Also, a host whose level never falls stays fit."""
    found = [*fitness_after_checks(days(levels))]
    for before, now in pairwise(found):
        if now.unfit and not before.unfit:
            assert before.level is not None and now.level is not None
            assert max(before.level, now.level) <= 0.95 + 1e-6
            assert now.unfit.since == before.check.at
    assert not any(each.unfit for each in fitness_after_checks(days(sorted(levels))))


@given(LEVELS)
def test_later_checks_do_not_change_earlier_results(levels: list[float]) -> None:
    assert after(days(levels))[: len(levels) // 2] == after(days(levels[: len(levels) // 2]))


@given(st.lists(st.floats(0.99, 1.01), min_size=3, max_size=20), st.floats(0.5, 0.93))
def test_a_quiet_host_that_falls_is_found_at_once(levels: list[float], fall: float) -> None:
    assert after(days([*levels, fall, fall])) == [()] * (len(levels) + 1) + [LEVEL]


def alarms(spread: float, alike: float, years: int, seed: int) -> float:
    """False alarms per year for a host. ``spread``: the s.d. of its level; ``alike``: the autocorrelation.

    The noise has an s.d. of 20 % between days, and is estimated from eight pairs.
    """
    chance, found = np.random.default_rng(seed), 0
    for _ in range(years):
        drawn, levels = chance.normal(0, spread, 365), [0.0]
        for each in drawn[1:]:
            levels.append(alike * levels[-1] + math.sqrt(1 - alike**2) * float(each))
        noises = 0.01 * np.exp(chance.normal(0, 0.2, 365)) * np.sqrt(chance.chisquare(7, 365) / 7)
        checks = days([math.exp(level) for level in levels], noises.tolist())
        found += sum(bool(now.unfit) and not before.unfit for before, now in pairwise(fitness_after_checks(checks)))
    return found / years


LARGE = [pytest.param(*each, marks=pytest.mark.calibrate) for each in ((0.02, 0.3), (0.03, 0.6))]


@pytest.mark.parametrize(("spread", "most"), [(0.01, 0.3), *LARGE])
def test_chance_alone_makes_few_hosts_unfit(spread: float, most: float) -> None:
    """benchmarks/README.md has the figures of 200 years each."""
    assert alarms(spread, 0.0, 10, 1) <= most


def trial(metric: str, values: Sequence[float]) -> SessionState:
    builds, works = (TrialBuild("1.0", key="key"),), (TrialWorkload("scan", "all", 1, 1, "hash"),)
    request = TrialRequest(TrialType.NOISE, "engine", "", "local", metric, {}, builds, works, len(values), 1)
    runs = [TrialRun(place, 0, 0, 0.0, 1.0, sample.run(0, 0.0, qps=each)) for place, each in enumerate(values)]
    return SessionState.of_trial(1, request, sample.HOST, 7.0, "done", runs=runs)


def test_fitness_facts_are_level_and_noise_of_an_aa_test() -> None:
    found = fitness_facts(trial("qps", [90, 100, 110]))
    assert found and (found.level, found.noise) == (pytest.approx(math.log(100)), pytest.approx(0.1, abs=0.01))
    assert (found.in_pairs, found.identity) == (False, ("key", "hash", "qps"))
    cost = fitness_facts(trial("latency", [90, 100, 110]))
    assert cost and cost.level == pytest.approx(-math.log(1000 / 100)), "higher is better"
    pairs = trial("qps", [100] * 3)
    beside = [replace(run.facts, round=f"r{place // 2}") for place, run in enumerate(trial("qps", [50, 60] * 4).runs)]
    pairs.runs += [TrialRun(9, 0, 0, 0.0, 1.0, each) for each in beside]
    both = fitness_facts(pairs)
    assert both and (both.in_pairs, both.noise, both.level) == (True, 0.0, pytest.approx(math.log(100)))
    assert fitness_facts(trial("cost", [100] * 3)) is fitness_facts(sample.comparison(2, ["scan"])) is None
