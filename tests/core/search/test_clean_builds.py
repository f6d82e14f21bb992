"""Clean builds before a verdict, the exclusion of incremental builds, and simulated hunts with stale builds."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from perfbisect.core.domain.graph import Graph
from perfbisect.core.domain.orders import Found, Measure, NotReproduced, PlannedRuns, Purpose
from perfbisect.core.domain.settings import Policy
from perfbisect.core.inference.observations import Built, Observation, Reading, Skipped
from perfbisect.core.search.clean_builds import is_misled_by_incremental, with_clean_builds, without_incremental
from perfbisect.core.search.decide import decide
from perfbisect.core.search.situation import Situation
from perfbisect.simulate.hunt import simulate_hunt
from perfbisect.simulate.world import HostModel, World

LINE = Graph.straight_history(8)
POLICY = Policy(incremental=True)
FAST, SLOW = 0.0, -0.1


def seen(levels: dict[int, float], incremental: Sequence[int] = (), runs: int = 6) -> list[Observation]:
    """Builds, and interleaved runs of each build with little noise."""
    built = [Built(each, 60.0, incremental=each in incremental) for each in levels]
    timed = [
        Reading(each, level + 0.002 * ((turn * 7 + each) % 3 - 1), float(turn * len(levels) + place), place)
        for turn in range(runs)
        for place, (each, level) in enumerate(levels.items())
    ]
    return [*built, *timed]


def at(levels: dict[int, float], incremental: Sequence[int] = (), **more: object) -> Situation:
    return replace(Situation(LINE, seen(levels, incremental), POLICY), **more)


HALF = {0: FAST, 8: SLOW, 3: FAST, 4: SLOW}


def test_culprit_and_parent_get_clean_builds_before_the_verdict() -> None:
    now = at(HALF)
    found = decide(now)
    assert isinstance(found.order, Found) and found.order.step.parents == (3,)
    assert with_clean_builds(found, now) == found
    waiting = with_clean_builds(found, at(HALF, [3, 4])).order
    assert isinstance(waiting, Measure)
    assert (waiting.plan, waiting.purpose, waiting.incremental) == (
        (PlannedRuns(4, 0), PlannedRuns(3, 0)),
        Purpose.CONFIRM,
        False,
    )


def test_verdict_without_a_culprit_needs_clean_builds_only() -> None:
    """The verdict is that nothing changed. A build with the binary of another build counts like runs."""
    now = at({0: FAST, 8: FAST})
    ended = decide(now)
    assert isinstance(ended.order, NotReproduced)
    assert not is_misled_by_incremental(ended, now), "only clean builds have been seen"
    stale = [*now.observations, Built(4, 60.0, same_as=0, incremental=True)]
    assert is_misled_by_incremental(ended, replace(now, observations=stale))
    assert not is_misled_by_incremental(ended, replace(now, observations=stale, clean=True))
    unlike = [*stale[:-1], Built(4, 60.0, incremental=True)]
    assert not is_misled_by_incremental(ended, replace(now, observations=unlike))


def test_culprit_that_clean_builds_contradict_restarts_the_search() -> None:
    """A stale incremental build before the culprit's parent is fast, but the parent is as slow as bad."""
    now = at({0: FAST, 8: SLOW, 5: FAST, 6: SLOW - 0.001, 7: SLOW - 0.06}, [5])
    again = decide(now)
    assert not isinstance(again.order, Found) or again.order.step.candidate == 7
    now = at({**HALF, 2: FAST, 6: SLOW}, [2, 6])
    assert isinstance(decide(now).order, Found)


def test_restarted_search_excludes_incremental_builds() -> None:
    """Also a build that was being made on another host at the restart. Its runs are part of the costs."""
    now = at({**HALF, 6: FAST}, [6], clean=True)
    clean = without_incremental(now)
    assert not [each for each in clean.observations if each.candidate == 6]
    assert clean.extra_cost.runs == 6
    assert isinstance(decide(now).order, Found) and decide(now).order == decide(clean).order


class Deceiving(World):
    """A world in which some commits have only incremental builds."""

    def build(self, candidate: int, host: int = 0, *, incremental: bool = False) -> Built | Skipped | None:
        if candidate % 3 == 2 and not incremental:
            return Skipped(candidate, "does not build", 1.0)
        return super().build(candidate, host, incremental=incremental)


@pytest.mark.calibration
@pytest.mark.parametrize(
    ("kind", "effect", "stale", "least"),
    [
        (World, 0.08, 0.2, 20),
        (Deceiving, 0.08, 0.2, 6),
        pytest.param(World, 0.03, 0.5, 15, marks=pytest.mark.slow),
    ],
)
def test_stale_builds_lead_to_no_wrong_culprit(kind: type[World], effect: float, stale: float, least: int) -> None:
    named = 0
    for seed in range(20):
        culprit = 1 + seed * 37 % 100
        verdict = simulate_hunt(
            kind(Graph.straight_history(100), {culprit: -effect}, HostModel(stale=stale), seed=seed), POLICY
        ).verdict
        assert not isinstance(verdict, Found) or verdict.step.candidate == culprit
        named += isinstance(verdict, Found)
    assert named >= least
