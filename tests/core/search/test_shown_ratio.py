"""Every ratio that a decision shows is that of the table of builds: one fit, one interval."""

import math
from collections.abc import Sequence

import numpy as np
import pytest

from perfbisect.core.domain.graph import Graph
from perfbisect.core.domain.orders import Found, Inconclusive, Interval, Measure, NotReproduced
from perfbisect.core.domain.settings import Direction, Policy, PriorKnowledge
from perfbisect.core.inference.observations import Built, Observation, Reading
from perfbisect.core.inference.relative_speed import relative_speeds
from perfbisect.core.search.decide import decide

LINE = Graph.line(10)
OLDER = Graph.of(
    [(), (), (0,), (2,), (1,), (4,), (3, 5)], branch_points=1
)  # 1 is older than good, 4 and 5 descend from it


def readings(
    plan: Sequence[int],
    level: dict[int, float],
    *,
    hosts: int = 1,
    noise: float = 0.01,
    scale: Sequence[float] = (1.0, 1.0),
) -> list[Observation]:
    """Runs of ``plan`` in that order, neighbours of one build in one visit; ``scale`` is the size of changes by host."""
    random = np.random.default_rng(5)
    seen: list[Observation] = [Built(build, 60.0, None, host) for build in sorted({*plan}) for host in range(hosts)]
    visit = 0
    for turn, build in enumerate(plan):
        visit += turn > 0 and build != plan[turn - 1]
        for host in range(hosts):
            value = scale[host] * level[build] + 0.7 * host + float(random.normal(0, noise))
            seen.append(Reading(build, 9.0 + value, 2.0 * turn + host / 3, 100 * host + visit, host, 60.0))
    return seen


def agree(shown: Interval, table: Interval) -> bool:
    return (shown.low, shown.middle, shown.high) == pytest.approx((table.low, table.middle, table.high), rel=1e-7)


TURNS = [10, 0, 0, 10, 10, 0, 0, 10, 5, 0, 10, 5, 5, 10, 0, 5, 4, 5, 5, 4, 4, 5, 5, 4]
STEP = {0: 0.0, 4: 0.0, 5: -0.2, 10: -0.2}
NOTHING = dict.fromkeys(STEP, 0.0)


@pytest.mark.parametrize("direction", [Direction.DROP, Direction.ANY])
@pytest.mark.parametrize("known", [None, 0.05])
@pytest.mark.parametrize(
    ("level", "hosts", "classes", "scale"),
    [
        (STEP, 1, (), (1.0,)),
        (NOTHING, 1, (), (1.0,)),
        (STEP, 2, (), (1.0, 1.0)),
        (STEP, 2, ("a", "b"), (1.0, 0.5)),
        (STEP, 2, ("a", "b"), (0.0, 1.0)),
        (NOTHING, 2, ("a", "b"), (1.0, 1.0)),
    ],
    ids=["a change", "none", "two hosts", "two classes", "a change on the second class", "none on two classes"],
)
def test_bad_against_good_is_that_of_the_table(
    level: dict[int, float],
    hosts: int,
    classes: tuple[str, ...],
    scale: tuple[float, ...],
    known: float | None,
    direction: Direction,
) -> None:
    observations = readings(TURNS, level, hosts=hosts, scale=scale)
    prior = PriorKnowledge(noise=known, host_classes=classes)
    for end in range(len(observations), len(observations) - 8, -3):
        decision = decide(LINE, observations[:end], Policy(direction=direction), prior)
        table = relative_speeds(observations[:end], 10, classes)
        assert agree(decision.belief.effect, table[10])
        if isinstance(decision.order, NotReproduced | Inconclusive):
            assert agree(decision.order.ratio, table[10])


def test_a_change_right_after_good_has_the_ratio_of_the_table() -> None:
    observations = readings([1, 0, 0, 1] * 8, {0: 0.0, 1: -0.2})
    order = decide(Graph.line(1), observations, Policy()).order
    assert isinstance(order, Found)
    assert agree(order.step.ratio, relative_speeds(observations, 1)[1])


def test_readings_corrected_for_an_older_branch_leave_bad_against_good_as_it_was_measured() -> None:
    """The branch began 30 % slower than good; its builds are corrected by that, which is not what the table shows."""
    level = {0: 0.0, 1: -0.35, 2: 0.0, 3: 0.0, 4: -0.35, 5: -0.35, 6: -0.2}
    observations = readings([6, 0, 0, 6, 1, 0, 0, 1, 1, 0, 0, 1, 5, 6, 3, 0, 5, 3, 6, 0, 4, 5, 1, 0], level)
    decision = decide(OLDER, observations, Policy())
    assert any("older than good" in text for text in decision.belief.warnings)
    assert agree(decision.belief.effect, relative_speeds(observations, 6)[6])


def test_runs_that_were_not_repeated_bound_nothing() -> None:
    observations = readings([10, 0], STEP)
    decision = decide(LINE, observations, Policy(max_runs=2))
    assert isinstance(decision.order, Inconclusive) and not isinstance(decision.order, Measure)
    assert math.isinf(decision.order.ratio.high) and relative_speeds(observations, 10) == {}
