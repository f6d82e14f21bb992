"""Branches that began before good, and may have been slower or faster than good from the start."""

import math
from dataclasses import replace
from typing import Any

import pytest
from shapes import older_branches

from perfbisect.core.domain.graph import Graph
from perfbisect.core.domain.orders import (
    UNKNOWN,
    Decision,
    Found,
    Inconclusive,
    Interval,
    NotReproduced,
    Reason,
    Several,
    Step,
    UnsettledRange,
)
from perfbisect.core.domain.settings import ChangeDirection, Policy, PriorKnowledge
from perfbisect.core.inference.analysis import prior_belief
from perfbisect.core.inference.observations import Built, Observation, Reading, Skipped
from perfbisect.core.search.older_branches import branch_point_of, decide_with_older_branches
from perfbisect.core.search.situation import Situation, subrange
from perfbisect.simulate.host_model import HostModel
from perfbisect.simulate.hunt import HuntResult, simulate_hunt
from perfbisect.simulate.tally import judge_verdict
from perfbisect.simulate.world import World
from simulated_worlds import found, several

QUIET = HostModel(noise=0.01, layout=0.002)
TWO = older_branches(100, 2)
"""Branches of 25 commits from the branch points 1 and 2, which 44 and 86 merge into a trunk."""

FORKED, BRANCH, MERGED, TRUNK, SECOND, AFTER = 3, 20, 44, 35, 60, 90


def step(candidate: int) -> Step:
    return Step(candidate, 0.99, Interval(0.9, 0.95, 0.99), TWO.parents_of(candidate))


OLDER = {1: -0.05, 2: 0.04}


def hunted(step: int, policy: Policy = Policy(), **world: Any) -> HuntResult:  # noqa: B008
    """A hunt for a drop of 6 %; one branch started 5 % slower than good, the other 4 % faster."""
    return simulate_hunt(World(TWO, {step: -0.06} if step else {}, QUIET, older_branch_changes=OLDER, **world), policy)


def test_branch_point_of_each_commit() -> None:
    # 0: good; 1, 2: branch points; 3, 4: on 1; 5: on good; 6: merges 4 and 2; 7: a root; 8: merges 5, 6; 9: merges 7, 4
    graph = Graph.from_parents([(), (), (), (1,), (3,), (0,), (4, 2), (), (5, 6), (7, 4)], branch_points=2)
    assert branch_point_of(graph).tolist() == [0, 1, 2, 1, 1, 0, 2, 0, 0, 1]
    assert graph.weight.tolist() == [0, 0, 0, 1, 1, 1, 1, 1, 1, 1]
    assert subrange(graph, 5, 8).graph.branch_points == 2


@pytest.mark.calibration
@pytest.mark.parametrize("step", [FORKED, BRANCH, MERGED, TRUNK, SECOND, AFTER])
def test_culprit_is_found_if_branches_began_slower_or_faster_than_good(step: int) -> None:
    rise = World(TWO, {step: 0.06}, QUIET, older_branch_changes={1: 0.05, 2: -0.04}, seed=1)
    for outcome in (hunted(step), simulate_hunt(rise, Policy(direction=ChangeDirection.RISE))):
        named = found(outcome.verdict)
        assert (named.candidate, named.parents) == (step, TWO.parents_of(step))


@pytest.mark.calibration
def test_difference_of_a_branch_point_is_a_warning_not_a_culprit() -> None:
    """Bad contains the commits of good that the branch lacks, so good and bad are equally fast."""
    assert isinstance(hunted(0).verdict, NotReproduced)
    (warning,) = {text for text in hunted(BRANCH).belief.warnings if "began at" in text}
    assert float(warning.split(" of good")[0].split()[-1]) == pytest.approx(math.exp(-0.05), abs=0.02)


@pytest.mark.calibration
@pytest.mark.parametrize("classes", [("one", "one"), ("new", "old")])
def test_culprit_on_an_older_branch_is_found_on_several_hosts(classes: tuple[str, str]) -> None:
    world = World(TWO, {BRANCH: -0.06}, QUIET, older_branch_changes=OLDER)
    outcome = simulate_hunt(world, Policy(), PriorKnowledge(host_classes=classes), hosts=2)
    assert found(outcome.verdict).candidate == BRANCH


@pytest.mark.calibration
@pytest.mark.slow
def test_changes_on_and_after_an_older_branch_are_all_found() -> None:
    world = World(
        TWO, {BRANCH: -0.1, AFTER: -0.06}, HostModel(noise=0.005, layout=0.002), older_branch_changes={1: -0.05}, seed=2
    )
    verdict = simulate_hunt(world, Policy(all_steps=True)).verdict
    assert several(verdict)[:2] == ([BRANCH, AFTER], [])


@pytest.mark.calibration
@pytest.mark.parametrize("step", [FORKED, SECOND, 86])
def test_unbuildable_branch_point_makes_verdict_on_its_branch_inconclusive(step: int) -> None:
    verdict = hunted(step, unbuildable=frozenset({1, 2})).verdict
    assert isinstance(verdict, Inconclusive) and step in verdict.candidates
    assert found(hunted(AFTER, unbuildable=frozenset({1, 2})).verdict).candidate == AFTER, "the culprit is on the trunk"


@pytest.mark.calibration
@pytest.mark.slow
@pytest.mark.parametrize("unbuildable", [(), (1, 2)], ids=["all build", "no branch point builds"])
@pytest.mark.parametrize("policy", [Policy(max_runs=20), Policy(max_runs=37), Policy(max_builds=8)])
def test_hunt_with_older_branches_keeps_its_budgets(policy: Policy, unbuildable: tuple[int, ...]) -> None:
    for seed in range(3):
        outcome = hunted(BRANCH, policy, seed=seed, unbuildable=frozenset(unbuildable))
        assert outcome.runs <= (policy.max_runs or math.inf)
        assert outcome.builds <= (policy.max_builds or math.inf)
        assert isinstance(outcome.verdict, Inconclusive | Found)


@pytest.mark.calibration
def test_suspects_at_the_end_of_the_budget_allow_for_slow_branches() -> None:
    for seed in range(3):
        for step in (TRUNK, AFTER):
            world = World(TWO, {step: -0.05}, QUIET, older_branch_changes={1: -0.06, 2: -0.06}, seed=seed)
            assert judge_verdict(simulate_hunt(world, Policy(max_builds=9)).verdict, world) != "wrong"


def test_changes_that_need_no_branch_point_are_kept_at_end_of_budget() -> None:
    every = Several((step(MERGED), step(AFTER)), (), (), 0.01)

    def stub(now: Situation) -> Decision:
        lost = {seen.candidate for seen in now.observations if isinstance(seen, Skipped)}
        left = (UnsettledRange(0, MERGED, Inconclusive((), (), UNKNOWN, Reason.UNBUILDABLE)),) if FORKED in lost else ()
        return Decision(replace(every, steps=every.steps[len(left) :], unsettled=left), prior_belief(TWO))

    ends: list[Observation] = [Built(0, 9.0), Built(102, 9.0), Reading(0, 0.0, 1.0, 0), Reading(102, -0.1, 2.0, 1)]
    verdict = decide_with_older_branches(stub, Situation(TWO, ends, Policy(all_steps=True, max_builds=2))).order
    drops, _, left = several(verdict)
    assert drops == [AFTER] and left


@pytest.mark.calibration
def test_equal_binaries_on_two_branches_exclude_no_candidate() -> None:
    """The first commit of the trunk reverts commits of good that the branch lacks, so it equals the branch point."""
    rows = [(), (), (0,), *((v,) for v in range(2, 9)), (1,), (10,), (11,), (9, 12), (13,), (14,)]
    graph = Graph.from_parents(rows, branch_points=1)
    for seed in range(2):
        world = World(graph, {2: -0.05}, QUIET, older_branch_changes={1: -0.05}, binaries={2: 1}, seed=seed)
        assert found(simulate_hunt(world, Policy()).verdict).candidate == 2


@pytest.mark.calibration
def test_verdicts_if_bad_does_not_contain_good() -> None:
    """For example, a release branch was merged back without its changes."""
    chain = Graph.from_parents([(), (), (1,), *((v,) for v in range(2, 20))], branch_points=1)
    nothing, faster, change = (
        simulate_hunt(World(chain, steps, QUIET, older_branch_changes={1: older}), Policy()).verdict
        for steps, older in (({}, -0.05), ({}, 0.05), ({9: -0.06}, -0.05))
    )
    assert isinstance(nothing, Inconclusive) and (nothing.reason, nothing.candidates) == (Reason.NOT_IN_BAD, ())
    assert isinstance(faster, NotReproduced) and found(change).candidate == 9


@pytest.mark.calibration
def test_branch_point_is_measured_only_if_the_verdict_depends_on_it() -> None:
    """The verdict does not depend on branch points if the culprit is on the trunk and was compared with its parent."""
    outcome = simulate_hunt(World(TWO, {TRUNK: -0.3}, HostModel(noise=0.005, layout=0.002)), Policy())
    assert found(outcome.verdict).candidate == TRUNK
    assert not {1, 2} & {seen.candidate for seen in outcome.observations if isinstance(seen, Built)}
    equal = simulate_hunt(World(TWO, {FORKED: -0.06}, QUIET, binaries={1: 0}), Policy())
    assert found(equal.verdict).candidate == FORKED, "a branch point with the binary of good needs no run"
