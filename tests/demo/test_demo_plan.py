"""What every plan of the demo's history has, whatever the seed."""

from functools import cache

import pytest

from perfbisect.demo.plan import CLEAR, COST, LARGEST, SMALLEST, Plan, draw

SEEDS = range(1, 31)


@cache
def plan_of(seed: int) -> Plan:
    return draw(seed, 60, None)


def first_parents(plan: Plan) -> set[int]:
    here, line = len(plan.steps), set()
    while here:
        line.add(here)
        here = plan.steps[here - 1].parents[0]
    return line


def test_a_plan_has_what_was_promised() -> None:
    for plan in map(plan_of, SEEDS):
        names = [step.change.name for step in plan.steps]
        assert len(plan.steps) == len(set(names)) == 60
        assert sum(len(step.parents) == 2 for step in plan.steps) == 2
        assert len(plan.broken) == 2
        assert names[-1] == "release"
        assert len(plan.history(60)) == 60
        assert "children-without-division" in names
        assert names[plan.planted - 1] in COST
        assert set(COST) < set(names)
        assert SMALLEST <= plan.drop <= LARGEST


def test_needs_come_first_on_every_branch() -> None:
    for plan in map(plan_of, SEEDS):
        for position, step in enumerate(plan.steps, 1):
            there = {change.name for change in plan.history(position)}
            assert there.issuperset(step.change.needs)


def test_the_planted_commit_can_be_named() -> None:
    for plan in map(plan_of, SEEDS):
        near = {plan.planted}
        edges = [(position, parent) for position, step in enumerate(plan.steps, 1) for parent in step.parents]
        for _ in range(CLEAR):
            near |= {there for edge in edges for here, there in (edge, edge[::-1]) if here in near}
        assert not near & set(plan.broken)


def test_seeds_move_the_planted_commit() -> None:
    plans = [plan_of(seed) for seed in SEEDS]
    assert len({plan.planted for plan in plans}) > 15
    assert {plan.steps[plan.planted - 1].change.name for plan in plans} == set(COST)
    sides = [plan.planted not in first_parents(plan) for plan in plans]
    assert any(sides)
    assert not all(sides)
    assert {abs(plan.broken[0] - plan.broken[1]) == 1 for plan in plans} == {True, False}


def test_a_given_drop_changes_only_the_work() -> None:
    plan, other = draw(3, 60, None), draw(3, 60, 0.08)
    assert other.drop == 0.08
    assert other.planted == plan.planted
    assert [step.change.name for step in other.steps] == [step.change.name for step in plan.steps]
    differing = [a.change.name for a, b in zip(plan.steps, other.steps, strict=True) if a.change != b.change]
    assert differing == [plan.steps[plan.planted - 1].change.name]


def test_further_changes_that_can_be_named() -> None:
    for seed in range(1, 6):
        plan = draw(seed, 60, None, 3)
        assert [plan.steps[at - 1].change.name for at in plan.further] == ["update-nonindex", "scan"]
        assert plan.steps[plan.planted - 1].change.name in COST
        assert len(plan.steps) == 60
        assert not {plan.planted, *plan.further} & set(plan.broken)


@pytest.mark.parametrize("commits", [30, 71])
def test_other_lengths(commits: int) -> None:
    assert len(draw(1, commits, None).steps) == commits


@pytest.mark.parametrize("commits", [0, 12, 200])
def test_lengths_that_cannot_be(commits: int) -> None:
    with pytest.raises(ValueError, match="not possible"):
        draw(1, commits, None)
