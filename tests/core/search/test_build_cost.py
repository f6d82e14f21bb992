"""What a build is expected to cost."""

import numpy as np
import pytest

from perfbisect.core.domain.observations import Built, Observation, Reading, Skipped
from perfbisect.core.domain.policy import Policy
from perfbisect.core.inference.record import arrange
from perfbisect.core.search.build_cost import price

RUN = [Reading(0, 0.0, 1.0, 0, 0, 60.0)]
WORKS = np.ones(2)
USUAL = 10.0


def priced(seen: list[Observation], chance: np.ndarray[tuple[int], np.dtype[np.float64]] = WORKS) -> list[float]:
    """Of one candidate next to a build, and of one far from any."""
    record = arrange([*RUN, *seen], Policy(), 1000)
    return price(record, record.build_runs(USUAL), [501, 875], chance).tolist()


def test_builds_that_all_take_as_long_have_one_price() -> None:
    builds: list[Observation] = [Built(v, 613.7) for v in (0, 1000, 500, 750)]
    assert priced(builds) == [613.7 / 60] * 2
    assert priced([*builds, Skipped(600, "fails", 613.7)], np.array([0.3, 0.9])) == [613.7 / 60] * 2
    assert priced([]) == [USUAL] * 2


def test_near_a_build_it_is_cheaper_where_that_was_seen() -> None:
    builds: list[Observation] = [Built(v, s) for v, s in ((0, 600.0), (1000, 600.0), (500, 500.0), (750, 250.0))]
    more: list[Observation] = [Built(v, s) for v, s in ((625, 125.0), (562, 60.0), (531, 30.0))]
    little, much = priced(builds), priced([*builds, *more])
    assert little[0] < little[1]
    assert much[0] < much[1] / 4
    assert little[1] / little[0] < much[1] / much[0], "one learns it by and by"
    other_way = [Built(v, s) for v, s in ((0, 60.0), (1000, 60.0), (500, 500.0), (750, 600.0), (625, 700.0))]
    assert priced([*other_way])[0] == priced([*other_way])[1], "nearness never makes it dearer"


def test_failures_have_their_own_price() -> None:
    builds: list[Observation] = [Built(v, 600.0) for v in (0, 1000, 500)]
    seen = [*builds, Skipped(600, "fails", 120.0)]
    assert priced(seen, np.array([1.0, 0.25])) == pytest.approx([10.0, 0.25 * 10 + 0.75 * 2])
    crash = [*builds, Skipped(500, "crashes", 60.0)]
    assert priced(crash, np.array([1.0, 0.25])) == [10.0, 10.0], "that was a run"


def test_each_build_host_has_a_compiler_cache_of_its_own() -> None:
    """The first build of each, with an empty cache, says nothing about the others; distances are those of its own cache."""
    first: list[Observation] = [Built(0, 6000.0, build_host=0), Built(1000, 6000.0, build_host=1)]
    near = [(500, 500.0, 0), (510, 20.0, 0), (750, 250.0, 1), (720, 45.0, 1), (875, 125.0, 1)]
    record = arrange([*RUN, *first, *(Built(v, s, build_host=host) for v, s, host in near)], Policy(), 1000)
    assert record.caches == {0: {0, 500, 510}, 1: {1000, 750, 720, 875}}
    assert [attempt.seconds for attempt in record.builds_after(1)] == [seconds for _, seconds, _ in near]
    costs = [price(record, record.build_runs(USUAL), [505, 870], WORKS, build_host=host).tolist() for host in (0, 1)]
    assert costs[0][0] < costs[1][0] and costs[1][1] < costs[0][1]
    assert record.made(0) == {0, 1000, 500, 510, 750, 720, 875}, "every host gets them"
