"""The pieces of the demo's history fit the engine, alone and in any order."""

import random

import numpy as np
import pytest

from perfbisect.demo.change import Change, Edit, applied, first_tree, read_changes
from perfbisect.demo.effort import COST, LARGEST, RARE, effort_for

KINDS = ("documentation", "comments", "refactorings", "tests", "features", "broken", "index", "further", "release")
ALL = {change.name: change for kind in KINDS for change in read_changes(kind)}


def with_needs(name: str) -> list[Change]:
    """A change after all that it needs."""
    before: list[Change] = []
    for need in ALL[name].needs:
        before += [change for change in with_needs(need) if change not in before]
    return [*before, ALL[name]]


def test_names_are_unique() -> None:
    assert len(ALL) == sum(len(read_changes(kind)) for kind in KINDS)


def test_a_change_fits_with_no_more_than_it_needs() -> None:
    for name, change in ALL.items():
        before = applied(with_needs(name)[:-1], first_tree())
        after = applied([change], before)
        assert {path for path in after if before.get(path) != after[path]} == {edit.file for edit in change.edits}, name


def test_changes_fit_in_any_order() -> None:
    names = list(ALL)
    for seed in range(20):
        random.Random(seed).shuffle(names)
        order: list[Change] = []
        for name in names:
            order += [change for change in with_needs(name) if change not in order]
        assert len(order) == len(ALL)
        assert set(first_tree()) < set(applied(order, first_tree()))


def test_documentation_touches_only_what_the_recipe_ignores() -> None:
    for change in read_changes("documentation"):
        for edit in change.edits:
            assert edit.file.endswith(".md") or edit.file.startswith((".", "doc/"))


def test_a_passage_that_is_missing_or_ambiguous_is_an_error() -> None:
    for passage, times in (("no such passage", 0), ("return DEMO_OK;", "several")):
        change = Change("wrong", "Wrong", (Edit("src/table.c", "", replace=passage),))
        with pytest.raises(ValueError, match=r"change wrong: src/table.c has .* times, not once") as caught:
            applied([change], first_tree())
        assert (" 0 times" in str(caught.value)) == (times == 0)


@pytest.mark.parametrize("feature", COST)
def test_the_work_costs_what_the_drop_asks_for(feature: str) -> None:
    sizes, costs = zip(*COST[feature], strict=True)
    for percent in range(2, 55):
        effort = effort_for(feature, percent / 100)
        assert effort.size % 8 == 0 or effort.size == sizes[0]
        cost = np.interp(effort.size, sizes, costs) / effort.every
        assert cost / (1 + cost) == pytest.approx(percent / 100, abs=0.02)
        assert effort.every < RARE.every


@pytest.mark.parametrize("drop", [0.0, -0.1, LARGEST + 0.01])
def test_a_drop_that_cannot_be_made_is_an_error(drop: float) -> None:
    with pytest.raises(ValueError, match="is not possible"):
        effort_for("order", drop)


def test_the_index_features_take_their_numbers() -> None:
    for change in read_changes("index"):
        texts = "".join(edit.text for edit in change.filled(RARE.words).edits)
        assert "EFFORT" not in texts
        assert "_EVERY 512" in texts
