"""The repository that `bisect demo` writes, and the plan of its commits."""

import random
from functools import cache
from pathlib import Path

import msgspec
import numpy as np
import pytest

from perfbisect.demo.history import (
    BAD,
    CLEAR_GENERATIONS,
    COST_BY_CHECK_SIZE,
    GOOD,
    LARGEST,
    LARGEST_DROP,
    RARE,
    SMALLEST,
    Change,
    DemoAnswer,
    Edit,
    HistoryPlan,
    cost_for_drop,
    draw_plan,
    first_release_tree,
    read_changes,
    tree_after,
    write_history,
)
from perfbisect.errors import UsageError
from repos import git


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, DemoAnswer]:
    folder = tmp_path_factory.mktemp("demo") / "repository"
    return folder, write_history(folder, 1)


def test_answer_is_a_commit_of_the_range(written: tuple[Path, DemoAnswer]) -> None:
    """Also, each commit except merges changes a file."""
    folder, answer = written
    commits = git(folder, "rev-list", f"{GOOD}..{BAD}").split()
    assert len(commits) == answer.commits == 60
    assert {answer.commit, *answer.broken} < set(commits)
    assert git(folder, "rev-parse", f"{answer.commit}^") == answer.parent
    assert git(folder, "log", "-1", "--format=%s", answer.commit) == answer.subject
    changed = git(folder, "diff", "--name-only", answer.parent, answer.commit).split()
    assert changed == ["src/api.c", "src/demo.h", "src/index.c", "src/index.h"]
    diff = git(folder, "show", answer.commit, "--", "src/index.c", "src/index.h")
    assert "_EVERY 1\n" in diff and "_EVERY 512" not in diff
    dates = git(folder, "log", "--format=%ct %H", f"{GOOD}..{BAD}").splitlines()
    assert sorted(dates)[answer.position - 1].split()[1] == answer.commit
    changed = git(folder, "log", "--no-merges", "--shortstat", "--format=", f"{GOOD}..{BAD}").splitlines()
    assert len([line for line in changed if line]) == 58
    touched = git(folder, "log", "--format=%H", f"{GOOD}..{BAD}", "--", "src/api.c").split()
    assert len(touched) > 10, "the changed files do not reveal the culprit"


def test_repository_is_valid_and_clean(written: tuple[Path, DemoAnswer]) -> None:
    folder, answer = written
    git(folder, "fsck", "--strict")
    assert git(folder, "status", "--porcelain") == ""
    references = git(folder, "for-each-ref", "--format=%(refname)").split()
    assert references == ["refs/heads/main", "refs/tags/v1.0", "refs/tags/v1.1"]
    assert git(folder, "show", f"{BAD}:VERSION") == "1.1"
    telling = [path for path in (folder / ".git").rglob("*") if path.is_file() and path.suffix not in {".pack", ".idx"}]
    assert not [path for path in telling if answer.commit.encode() in path.read_bytes()], "no file reveals the answer"


def test_the_same_seed_and_drop_give_the_same_commits(
    written: tuple[Path, DemoAnswer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "config"
    config.write_text("[user]\nname = Someone\n[core]\nautocrlf = true\n[init]\ndefaultBranch = other\n")
    for name, value in (("GIT_CONFIG_GLOBAL", str(config)), ("GIT_AUTHOR_NAME", "Someone"), ("TZ", "Asia/Tokyo")):
        monkeypatch.setenv(name, value)
    folder, answer = written
    assert write_history(tmp_path / "again", 1) == answer
    assert git(tmp_path / "again", "rev-parse", BAD) == git(folder, "rev-parse", BAD)
    smaller = write_history(tmp_path / "drop", 1, drop=0.08)
    assert (smaller.drop, smaller.position) == (0.08, answer.position) and smaller.commit != answer.commit
    assert msgspec.json.decode(msgspec.json.encode(smaller), type=DemoAnswer) == smaller


def test_impossible_history_is_a_usage_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="is not empty"):
        write_history(tmp_path, 1)
    assert list(tmp_path.iterdir()) == [tmp_path / "file"]
    for commits, drop in ((5, None), (60, 0.9)):
        with pytest.raises(UsageError, match="No demo history can be written"):
            write_history(tmp_path / "new", 1, commit_count=commits, drop=drop)
        assert not (tmp_path / "new").exists()


KINDS = ("documentation", "comments", "refactorings", "tests", "features", "broken", "index", "further", "release")
ALL = {change.name: change for kind in KINDS for change in read_changes(kind)}


def with_needs(*names: str) -> list[Change]:
    """The named changes, each after the changes that it needs."""
    order: list[Change] = []
    for name in names:
        order += [change for change in (*with_needs(*ALL[name].needs), ALL[name]) if change not in order]
    return order


def test_each_change_applies_on_the_changes_that_it_needs() -> None:
    assert len(ALL) == sum(len(read_changes(kind)) for kind in KINDS), "names are unique"
    for name, change in ALL.items():
        before = tree_after(with_needs(name)[:-1], first_release_tree())
        after = tree_after([change], before)
        assert {path for path in after if before.get(path) != after[path]} == {edit.file for edit in change.edits}, name


def test_changes_apply_in_any_order() -> None:
    for seed in range(20):
        order = with_needs(*random.Random(seed).sample([*ALL], len(ALL)))
        assert len(order) == len(ALL)
        assert set(first_release_tree()) < set(tree_after(order, first_release_tree()))


def test_changes_touch_the_expected_files() -> None:
    """Documentation changes only ignored files. Changes of the index contain the numbers of the effort."""
    edits = [edit for change in read_changes("documentation") for edit in change.edits]
    assert all(edit.file.endswith(".md") or edit.file.startswith((".", "doc/")) for edit in edits)
    for change in read_changes("index"):
        texts = "".join(edit.text for edit in RARE.fill_placeholders(change).edits)
        assert "EFFORT" not in texts and "_EVERY 512" in texts


def test_a_passage_that_is_missing_or_ambiguous_is_an_error() -> None:
    for passage, times in (("no such passage", 0), ("return DEMO_OK;", "several")):
        change = Change("wrong", "Wrong", (Edit("src/table.c", "", replace=passage),))
        with pytest.raises(ValueError, match=r"change wrong: src/table.c has .* times, not once") as caught:
            tree_after([change], first_release_tree())
        assert (" 0 times" in str(caught.value)) == (times == 0)


def test_cost_of_the_planted_work_matches_the_drop() -> None:
    for feature, numbers in COST_BY_CHECK_SIZE.items():
        sizes, costs = zip(*numbers, strict=True)
        for percent in range(2, 55):
            effort = cost_for_drop(feature, percent / 100)
            assert effort.check_size % 8 == 0 or effort.check_size == sizes[0]
            cost = np.interp(effort.check_size, sizes, costs) / effort.check_interval
            assert cost / (1 + cost) == pytest.approx(percent / 100, abs=0.02)
            assert effort.check_interval < RARE.check_interval
    for drop in (0.0, -0.1, LARGEST_DROP + 0.01):
        with pytest.raises(ValueError, match="is not possible"):
            cost_for_drop("order", drop)


SEEDS = range(1, 16)


@cache
def plan_of(seed: int) -> HistoryPlan:
    return draw_plan(seed, 60, None)


def first_parents(plan: HistoryPlan) -> set[int]:
    here, line = len(plan.commits), set()
    while here:
        line.add(here)
        here = plan.commits[here - 1].parents[0]
    return line


def test_plan_has_the_documented_properties() -> None:
    for plan in map(plan_of, SEEDS):
        names = [step.change.name for step in plan.commits]
        assert len(plan.commits) == len(set(names)) == len(plan.changes_up_to(60)) == 60
        assert sum(len(step.parents) == 2 for step in plan.commits) == len(plan.broken_positions) == 2
        assert {"children-without-division", *COST_BY_CHECK_SIZE} < set(names) and names[-1] == "release"
        assert names[plan.planted_position - 1] in COST_BY_CHECK_SIZE and SMALLEST <= plan.drop <= LARGEST
        for position, step in enumerate(plan.commits, 1):
            there = {change.name for change in plan.changes_up_to(position)}
            assert there.issuperset(step.change.needs), "needs come first on every branch"
        near = {plan.planted_position}
        edges = [(position, parent) for position, step in enumerate(plan.commits, 1) for parent in step.parents]
        for _ in range(CLEAR_GENERATIONS):
            near |= {there for edge in edges for here, there in (edge, edge[::-1]) if here in near}
        assert not near & set(plan.broken_positions), "no broken commit is near the planted commit"


def test_seeds_move_the_planted_commit() -> None:
    """It is on or beside the line of first parents. The broken commits are adjacent or apart."""
    plans = [plan_of(seed) for seed in SEEDS]
    assert len({plan.planted_position for plan in plans}) > 10
    assert {plan.commits[plan.planted_position - 1].change.name for plan in plans} == set(COST_BY_CHECK_SIZE)
    assert {plan.planted_position in first_parents(plan) for plan in plans} == {True, False}
    assert {abs(plan.broken_positions[0] - plan.broken_positions[1]) == 1 for plan in plans} == {True, False}


def test_given_drop_changes_only_the_planted_commit() -> None:
    plan, other = draw_plan(3, 60, None), draw_plan(3, 60, 0.08)
    assert (other.drop, other.planted_position) == (0.08, plan.planted_position)
    pairs = [(one.change, two.change) for one, two in zip(plan.commits, other.commits, strict=True)]
    assert all(one.name == two.name for one, two in pairs)
    assert [place for place, (one, two) in enumerate(pairs, 1) if one != two] == [plan.planted_position]


def test_plans_of_other_lengths_and_with_further_changes() -> None:
    assert [len(draw_plan(1, commits, None).commits) for commits in (30, 71)] == [30, 71]
    for commits in (0, 12, 200):
        with pytest.raises(ValueError, match="not possible"):
            draw_plan(1, commits, None)
    for plan in (draw_plan(seed, 60, None, 3) for seed in range(1, 6)):
        names = [plan.commits[at - 1].change.name for at in (*plan.further_positions, plan.planted_position)]
        assert names[:-1] == ["update-nonindex", "scan"] and names[-1] in COST_BY_CHECK_SIZE
        assert len(plan.commits) == 60 and not {plan.planted_position, *plan.further_positions} & set(
            plan.broken_positions
        ), "the changes are not in broken commits"
