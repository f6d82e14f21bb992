"""What counts against the budget of builds, and what a build is taken to cost."""

import pytest

from perfbisect.core.domain.orders import ALL_FREE, Measure, Purpose, Share
from perfbisect.core.domain.settings import Policy
from perfbisect.core.inference.observations import Built, Observation, Reading, Skipped
from perfbisect.core.inference.record import arrange
from perfbisect.core.search.situation import Budget

BAD = 50
REMEMBERED: list[Observation] = [Skipped(candidate, "did not build") for candidate in range(10, 22)]
ENDS: list[Observation] = [
    Built(0, 600.0),
    Built(BAD, 600.0),
    Reading(0, 0.0, 1.0, 0, 0, 60.0),
    Reading(BAD, -0.1, 2.0, 1, 0, 60.0),
]


def order(*candidates: int) -> Measure:
    return Measure(tuple(Share(candidate, 1) for candidate in candidates), Purpose.SEARCH)


@pytest.mark.parametrize(
    ("more", "left"),
    [([], 2), ([Built(30, 9.0)], 1), ([Skipped(30, "fails", 9.0)], 1), ([Built(30, 9.0), Skipped(30, "crashes", 9.0)], 1)],
)  # fmt: skip
def test_what_failed_in_an_earlier_hunt_costs_none_of_the_builds(more: list[Observation], left: int) -> None:
    policy = Policy(max_builds=4)
    budget = Budget(arrange([*REMEMBERED, *ENDS, *more], policy, BAD), policy, ALL_FREE)
    assert budget.may_build
    assert budget.builds_allowed(order(0, *range(40, 40 + left)))
    assert not budget.builds_allowed(order(0, *range(40, 41 + left)))


def test_what_took_no_time_says_nothing_of_what_a_build_costs() -> None:
    reused = [Built(candidate, 0.0) for candidate in range(1, 9)]
    record = arrange([*REMEMBERED, *ENDS, *reused, Built(30, 300.0)], Policy(), BAD)
    assert record.build_runs(10.0) == 5
