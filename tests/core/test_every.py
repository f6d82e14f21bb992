"""Every change of a range, not only the largest."""

import numpy as np
import pytest

from perfbisect.core.graph import Graph
from perfbisect.core.observation import Built, Reading, Skipped
from perfbisect.core.order import NotReproduced, Several
from perfbisect.core.part import part_of
from perfbisect.core.policy import Policy
from perfbisect.simulate.hunt import hunt
from perfbisect.simulate.world import Habits, World

pytestmark = pytest.mark.calibration  # simulates whole hunts

QUIET = Habits(noise=0.003, layout=0.001, outliers=0.0)
ALL = Policy(all_steps=True)


@pytest.mark.parametrize(
    ("steps", "improvements"),
    [({5: -0.2, 11: -0.1}, {}), ({3: -0.15}, {13: 0.15}), ({}, {9: 0.1})],
    ids=["two drops", "they cancel out", "only an improvement"],
)
def test_every_change_is_found(steps: dict[int, float], improvements: dict[int, float]) -> None:
    outcome = hunt(World(Graph.line(16), steps | improvements, QUIET, seed=1), ALL)
    assert isinstance(outcome.verdict, Several)
    for found, true in ((outcome.verdict.steps, steps), (outcome.verdict.improvements, improvements)):
        assert [step.candidate for step in found] == sorted(true)
        assert np.allclose([np.log(step.ratio.middle) for step in found], [true[v] for v in sorted(true)], atol=0.02)
    assert outcome.belief.culprit.shape == (17,)


def test_nothing_is_found_where_there_is_nothing() -> None:
    outcome = hunt(World(Graph.line(16), {}, QUIET, seed=1), ALL)
    assert isinstance(outcome.verdict, NotReproduced)
    assert outcome.builds <= 9  # the ends and the borders of eighths


def test_changes_on_both_sides_of_a_merge() -> None:
    #  0 - 1 - 2 - 3 - 8 - 9
    #   \ 4 - 5 - 6 - 7 /
    graph = Graph.of([(), (0,), (1,), (2,), (0,), (4,), (5,), (6,), (3, 7), (8,)])
    outcome = hunt(World(graph, {2: -0.2, 6: -0.1}, QUIET, seed=2), ALL)
    assert isinstance(outcome.verdict, Several)
    assert [step.candidate for step in outcome.verdict.steps] == [2, 6]


def test_a_part_sees_its_own_and_corrects_for_what_a_branch_lacks() -> None:
    #  0 - 1 - 2 - 5    with 2 as the good end, 3 and 4 lack what 1 and 2 changed
    #   \ 3 - 4 /
    part = part_of(Graph.of([(), (0,), (1,), (0,), (3,), (2, 4)]), 2, 5)
    assert part.nodes.tolist() == [2, 3, 4, 5]
    assert [part.graph.parents_of(v) for v in range(4)] == [(), (0,), (1,), (0, 2)]
    seen = [
        Built(1, 9.0),
        Built(4, 9.0, same_as=1),
        Skipped(3, "why"),
        Reading(1, 0.5, 1.0, 1),
        Reading(2, 0.2, 2.0, 2),
    ]
    assert list(part.told(seen, {1: -0.3})) == [
        Built(2, 9.0), Skipped(1, "why"), Reading(2, 0.5, 1.0, 1), Reading(0, 0.2, 2.0, 2),
    ]  # fmt: skip
    assert list(part.told([Reading(4, 0.5, 1.0, 1)], {1: -0.3, 3: -1.0})) == [Reading(2, 1.2, 1.0, 1)]
