"""`--all`: the search finds every change of a range, not only the largest change."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from shapes import two_roots

from perfbisect.core.domain.graph import Graph
from perfbisect.core.domain.orders import Found, Inconclusive, Interval, Reason, Several
from perfbisect.core.domain.settings import NOTHING_KNOWN, Policy, PriorKnowledge
from perfbisect.core.inference.observations import Built, Observation, Reading, Skipped
from perfbisect.core.search.all_changes import _half_spans, _Results, _Span, _unsettled_subranges
from perfbisect.core.search.situation import Situation, subrange
from perfbisect.simulate.hunt import simulate_hunt
from perfbisect.simulate.scenario import random_merging_graph
from perfbisect.simulate.tally import StepCounts, count_steps, judge_verdict
from perfbisect.simulate.world import HostModel, World
from perfbisect.wording.verdicts import exit_status
from simulated_worlds import decide, several

pytestmark = pytest.mark.calibration  # simulates whole hunts

QUIET = HostModel(noise=0.003, layout=0.001, outliers=0.0)
ALL = Policy(all_steps=True)
SPENT = (Reason.RUNS_SPENT, Reason.BUILDS_SPENT, Reason.MINUTES_SPENT)


@pytest.mark.parametrize("steps", [{5: -0.2, 11: -0.1}, {3: -0.15, 13: 0.15}], ids=["two drops", "they cancel out"])
def test_every_change_is_found(steps: dict[int, float]) -> None:
    outcome = simulate_hunt(World(Graph.straight_history(16), steps, QUIET, seed=1), ALL)
    assert several(outcome.verdict)[0] == [v for v, size in steps.items() if size < 0]
    assert isinstance(outcome.verdict, Several) and outcome.belief.culprit.shape == (17,)
    shown = {step.candidate: np.log(step.ratio.middle) for step in outcome.verdict.steps + outcome.verdict.improvements}
    assert shown == pytest.approx(steps, abs=0.02)


def line(first: int, last: int) -> list[tuple[int, ...]]:
    """The parents of the commits ``first`` + 1 to ``last``, which are in a straight line."""
    return [(v,) for v in range(first, last)]


#  0 - 1 - 2 - 3 - 8 - 9
#   \ 4 - 5 - 6 - 7 /
MERGE = Graph.from_parents([(), (0,), (1,), (2,), (0,), (4,), (5,), (6,), (3, 7), (8,)])
#  0 - 1 - 2 - 3 - 10 - 11
#   \ 4 - 5 - 6 - 7 - 8 - 9 /
LONGER = Graph.from_parents([(), (0,), (1,), (2,), (0,), (4,), (5,), (6,), (7,), (8,), (3, 9), (10,)])
#  0 - … - 5 - … - 20 - 31 - … - 40
#           \ 21 - … - 30 /
FORK = Graph.from_parents([(), *line(0, 20), (5,), *line(21, 30), (20, 30), *line(31, 40)])
#  0 - … - 5 - … - 30 - 61 - … - 111    7 reverts 4, and the branch lacks both
#           \ 31 - … - 60 /
REVERT = Graph.from_parents([(), *line(0, 30), (5,), *line(31, 60), (30, 60), *line(61, 111)])
BACK = {6: -0.0408, 13: 0.0408, 19: -0.0408}  # in a history where 24 to 26 are a branch from 5, merged by 27


@pytest.mark.parametrize(
    ("world", "drops", "improvements", "left"),
    [
        pytest.param(World(MERGE, {2: -0.2, 6: -0.1}, QUIET, seed=2), [2, 6], [], [], id="both sides of a merge"),
        pytest.param(
            World(random_merging_graph(40, seed=2137), BACK, HostModel(noise=0.01), seed=2137), [6, 19], [13], [],
            id="a branch that lacks a change not found yet is not blamed", marks=pytest.mark.slow,
        ),
        pytest.param(
            World(LONGER, {2: -0.1, 6: -0.2, 9: -0.07}, QUIET, unbuildable=frozenset({5, 6, 7}), seed=2), [2, 9], [],
            [(4, 8)], id="both sides of a stretch that does not build on a side branch",
        ),
        pytest.param(
            World(FORK, {10: -0.2, 25: -0.1}, QUIET, unbuildable=frozenset({5}), seed=1), [10, 25], [], [],
            id="a fork that does not build is no good end",
        ),
        pytest.param(
            World(REVERT, {4: -0.06, 7: 0.06, 11: -0.2, 45: -0.05}, HostModel(noise=0.005, layout=0.002, outliers=0.0), seed=1),
            [4, 11, 45], [7], [], id="a change that is reverted is found once the revert is", marks=pytest.mark.slow,
        ),
    ],
)  # fmt: skip
def test_changes_are_found_in_histories_with_branches(
    world: World, drops: list[int], improvements: list[int], left: list[tuple[int, int]]
) -> None:
    assert several(simulate_hunt(world, ALL).verdict) == (drops, improvements, left)


def test_subrange_corrects_readings_for_changes_that_a_branch_lacks() -> None:
    #  0 - 1 - 2 - 5    good is 2; commits 3 and 4 do not contain commits 1 and 2
    #   \ 3 - 4 /
    part = subrange(Graph.from_parents([(), (0,), (1,), (0,), (3,), (2, 4)]), 2, 5)
    assert part.nodes.tolist() == [2, 0, 3, 4, 5]
    assert part.graph.branch_points == 1  # where the branch began
    assert [part.graph.parents_of(v) for v in range(5)] == [(), (), (1,), (2,), (0, 3)]
    seen = [Built(1, 9.0), Built(4, 9.0, same_as=1), Skipped(3, ""), Reading(1, 0.5, 1.0, 1), Reading(2, 0.2, 2.0, 2)]
    arm = PriorKnowledge(host_classes=("x86", "arm"))
    one, three = ((Interval(0, a, 9), Interval(0, b, 9)) for a, b in ((0.75, 0.5), (0.4, 1.0)))

    def there(prior: PriorKnowledge, seen: Sequence[Observation], **changes: Sequence[Interval]) -> list[Observation]:
        known = {int(candidate[1:]): each for candidate, each in changes.items()}
        return [*part.situation(Situation(part.whole, seen, Policy(), prior), known).observations]

    assert there(NOTHING_KNOWN, seen, v1=one) == [
        Built(3, 9.0), Skipped(2, ""), Reading(3, 0.5, 1.0, 1), Reading(0, 0.2, 2.0, 2),
    ]  # fmt: skip
    for prior, host, lacking in ((NOTHING_KNOWN, 1, 0.75 / 0.4), (arm, 0, 0.75 / 0.4), (arm, 1, 0.5)):
        [one_there] = there(prior, [Reading(4, 0.5, 1.0, 1, host)], v1=one, v3=three)
        assert isinstance(one_there, Reading) and np.isclose(one_there.value, 0.5 + np.log(lacking))


def test_runs_of_builds_that_differ_only_in_layout_are_limited() -> None:
    outcome = simulate_hunt(World(Graph.straight_history(8), {4: -0.05}, HostModel(noise=0.005), seed=1), ALL)
    assert several(outcome.verdict)[0] == [4] and outcome.runs <= 90  # ten for each build


LINE, ROOTS = Graph.straight_history(24), two_roots(16)  # 8 to 14 do not descend from good; 15 merges them


@pytest.mark.parametrize(("graph", "steps", "stretch", "left"), [
    (LINE, {5: -0.1, 15: -0.2}, range(13, 18), (12, 18)),  # the larger step
    (LINE, {5: -0.2, 15: -0.1}, range(13, 18), (12, 18)),
    (ROOTS, {2: -0.1, 9: -0.2}, range(8, 11), (0, 11)),  # near the root of the merged project
])  # fmt: skip
def test_step_among_unbuildable_commits_is_unsettled(
    graph: Graph, steps: dict[int, float], stretch: range, left: tuple[int, int]
) -> None:
    verdict = simulate_hunt(World(graph, steps, QUIET, unbuildable=frozenset(stretch), seed=1), ALL).verdict
    named, hidden = steps
    assert several(verdict) == ([named], [], [left])
    [one] = verdict.unsettled
    assert (one.known.reason, {*one.known.candidates}) == (Reason.UNBUILDABLE, {*stretch, left[1]})
    assert np.log(one.known.ratio.middle) == pytest.approx(steps[hidden], abs=0.02)


@pytest.mark.parametrize("budget", [{"max_builds": 9}, {"max_runs": 34}], ids=str)
def test_subrange_that_the_budget_leaves_unsearched_is_unsettled(budget: dict[str, float]) -> None:
    world = World(Graph.straight_history(32), {10: -0.2, 25: -0.1}, QUIET, seed=1)
    verdict = simulate_hunt(world, replace(ALL, **budget)).verdict  # type: ignore[arg-type]
    drops, _, left = several(verdict)
    assert drops == [10] and any(good < 25 <= bad for good, bad in left)
    assert all(one.known.reason in SPENT for one in verdict.unsettled)
    assert exit_status(verdict) == 2


def test_range_with_equal_ends_is_unsettled_if_budget_prevents_halving() -> None:
    verdict = simulate_hunt(
        World(Graph.straight_history(32), {10: -0.2, 25: 0.2}, QUIET, seed=1), replace(ALL, max_builds=2)
    ).verdict
    assert several(verdict)[2] == [(0, 32)]
    [one] = verdict.unsettled
    assert one.known.candidates == () and one.known.ratio.low < 1 < one.known.ratio.high


@pytest.mark.calibrate
def test_random_steps_are_named_or_lie_in_unsettled_subranges() -> None:
    total, wrong = StepCounts(), 0
    for seed in range(24):
        rng = np.random.default_rng(seed)
        count = int(rng.integers(2, 4))
        places = rng.choice(np.arange(1, 25), count, replace=False).tolist()
        sizes = (rng.permutation([0.2, 0.1, 0.06])[:count] * np.where(rng.random(count) < 0.2, 1, -1)).tolist()
        stretch = frozenset(range(8, 12)) if seed % 3 == 0 else frozenset()
        steps, quiet = dict(zip(places, sizes, strict=True)), HostModel(noise=0.005, layout=0.002)
        world = World(LINE, steps, quiet, unbuildable=stretch, seed=seed)
        verdict = simulate_hunt(world, replace(ALL, max_builds=9 if seed % 3 == 1 else 0)).verdict
        assert not isinstance(verdict, Inconclusive) or verdict.reason in SPENT or stretch
        total += count_steps(verdict, world, ALL.min_effect)
        wrong += judge_verdict(verdict, world) == "wrong"
    assert total.wrong <= 0.05 * (total.right + total.wrong)
    assert total.missed <= 0.02 * (total.right + total.unsettled)
    assert total.right >= 30 and wrong <= 2


def test_step_below_min_effect_is_named_with_and_without_all_steps() -> None:
    runs = [Reading(k % 2, 5 - 0.049 * (k % 2) + 0.004 * (-1) ** (k // 2), 3.0 + k, k, 0, 60.0) for k in range(24)]
    seen = [Built(0, 9.0), Built(1, 9.0), *runs]
    rules = Policy(min_effect=0.05)
    alone = decide(Graph.straight_history(1), seen, rules).order
    assert isinstance(alone, Found) and alone.step.ratio.middle > 0.95
    assert decide(Graph.straight_history(1), seen, replace(rules, all_steps=True)).order == Several((alone.step,))


@pytest.mark.parametrize(("middle", "left"), [(7, [(4, 10)]), (8, [(4, 10), (8, 10)])], ids=["smaller", "equal"])
def test_nested_unsettled_subranges_do_not_explain_each_other(middle: int, left: list[tuple[int, int]]) -> None:
    #  0 - 1 - 2 - 3 - 4 - 9 - 10    7 and 8, near the middle of the range after 4, do not contain 1 to 4
    #   \ 5 - 6 - 7 - 8 /
    graph = Graph.from_parents([(), (0,), (1,), (2,), (3,), (0,), (5,), (6,), (7,), (4, 8), (9,)])
    doubt = Inconclusive((), (), Interval(0.9, 0.95, 0.99), Reason.TOO_NOISY)
    doubts = {_Span(4, 10): doubt, _Span(middle, 10): doubt}
    progress = _Results(Situation(graph, [], ALL), doubts=doubts, divided=set(doubts))
    assert [(one.good, one.bad) for one in _unsettled_subranges(progress)] == left


def test_subrange_is_halved_at_a_measured_candidate_if_central() -> None:
    for measured, middle in (((), 8), ((7,), 7), ((7, 8), 7), ((9, 7), 9), ((3,), 8)):
        seen = [Reading(v, 5.0, 3.0 + i, i) for i, v in enumerate((0, 16, *measured))]
        now = Situation(Graph.straight_history(16), seen, ALL)
        assert _half_spans(_Results(now), subrange(now.graph, 0, 16)) == [_Span(middle, 16), _Span(0, middle)]
