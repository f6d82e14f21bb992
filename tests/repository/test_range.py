"""The graph of a range, compared with its definition, which is evaluated commit by commit."""

import random
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from histories import Edges, Made, ancestors, code, counts, expected
from perfbisect.errors import UsageError
from perfbisect.repository.discovery import open_repository
from perfbisect.repository.range import CommitRange, read_range
from repos import Repo

pytestmark = pytest.mark.tools

IGNORE = ["doc/**", "*.md"]


History = Callable[[Mapping[str, Any]], tuple[Any, dict[str, str]]]


def found(span: CommitRange, hashes: Mapping[str, str]) -> Edges:
    """The edges of the graph, by the names of commits in the test."""
    names = {commit: name for name, commit in hashes.items()}
    node = ["", *(names[commit] for commit in span.candidates[1:])]
    first = span.graph.branch_points + 1
    assert not any(span.graph.parents_of(v) for v in range(first))
    return {node[v]: tuple(node[p] for p in span.graph.parents_of(v)) for v in range(first, span.graph.size)}


def is_closed(span: CommitRange) -> bool:
    """Whether every node but 0 leads to the last one."""
    needed = {span.graph.size - 1}
    for child in range(span.graph.size - 1, 0, -1):
        if child in needed:
            needed.update(span.graph.parents_of(child))
    return needed | {0} == set(range(span.graph.size))


def commits_of(text: str) -> dict[str, Made]:
    """Commits from words such as ``m:a,b=source/documentation+path@content``; without a colon: on the last commit."""
    made: dict[str, Made] = {}
    for word in text.split():
        head, _, tree = word.partition("=")
        name, colon, parents = head.partition(":")
        content, *files = tree.split("+")
        before = parents.split(",") if parents else [] if colon else [*made][-1:]
        source, _, documentation = content.partition("/")
        own = code(source, documentation) if source else {}
        made[name] = Made(before, own | dict(file.split("@") for file in files))
    return made


def edges_of(text: str) -> Edges:
    """Edges from words such as ``m:a,.``; ``.`` is node 0."""
    pairs = (word.split(":") for word in text.split())
    return {name: tuple(p.replace(".", "") for p in parents.split(",")) if parents else () for name, parents in pairs}


# For each name: commits, the range, and its edges.
CASES = [block.splitlines() for block in Path(__file__).with_name("ranges.txt").read_text().split("\n\n")]


def case(text: str, found: str) -> tuple[dict[str, Made], str, str, Edges]:
    ends, _, edges = found.partition(": ")
    good, _, bad = ends.partition("..")
    return commits_of(text), good, bad, edges_of(edges)


def test_graphs_of_small_histories(history: History) -> None:
    """All histories are in one repository, because making repositories would take most of the time."""
    cases = {name: case(*parts) for name, *parts in CASES}
    repo, every = history({
        f"{of}-{name}": Made([f"{of}-{parent}" for parent in made.parents], made.tree)
        for of, (commits, *_) in cases.items()
        for name, made in commits.items()
    })  # fmt: skip
    for of, (commits, good, bad, edges) in cases.items():
        base = good if good in ancestors(commits, bad) else "c0"
        assert expected(commits, good, bad, base=base) == edges, f"the definition itself: {of}"
        hashes = {name: every[f"{of}-{name}"] for name in commits}
        span = read_range(repo, hashes[good], hashes[bad], IGNORE)
        assert (found(span, hashes), is_closed(span)) == (edges, True), of
        inside = ancestors(commits, bad) - ancestors(commits, good)
        merges = sum(len(commits[name].parents) > 1 for name in inside)
        assert (span.commits, span.merges) == (len(inside), merges), of
        assert (span.good, span.bad) == (hashes[good], hashes[bad]), of
        assert (span.base == span.good) is (good in ancestors(commits, bad)), of
        assert span.candidates[0] == span.base == hashes[good if span.base == span.good else "c0"], of
        older = {parent for parents in edges.values() for parent in parents if parent and parent not in edges}
        assert {hashes[name] for name in older} == set(span.candidates[1 : span.graph.branch_points + 1]), of
        assert span.graph.weight.tolist() == [0.0] * (1 + len(older)) + [1.0] * len(edges), of


PATHS = ("a.c", "src/b.c", "doc/a", "doc/b/c", "R.md", "src/doc/d", "src/R.md")


def random_history(seed: int) -> dict[str, Made]:
    """Thirty commits with unordered dates, and with few different trees, so that many trees are equal."""
    chance = random.Random(seed)
    commits: dict[str, Made] = {}
    for number in range(30):
        latest = list(commits)[-8:]
        wanted = 0 if number and chance.random() < 0.04 else chance.choice([1, 1, 1, 1, 2, 2, 3])
        parents = chance.sample(latest, min(wanted, len(latest)))
        tree = dict(commits[chance.choice(parents)].tree) if parents else {}
        if chance.random() < 0.7 or not tree:
            tree[chance.choice(PATHS)] = str(chance.randrange(3))
        commits[f"n{number}"] = Made(parents, tree, chance.randrange(40))
    return commits


@pytest.mark.parametrize("seed", range(8))
def test_graphs_of_random_histories_match_the_definition(history: History, seed: int) -> None:
    """Compare ranges of a random history with the definition, along all parents and along first parents."""
    commits = random_history(seed)
    repo, hashes = history(commits)
    chance = random.Random(seed)
    names = {commit: name for name, commit in hashes.items()}
    for number in range(12):
        good, bad = chance.sample(list(commits), 2)
        along = number % 2 == 1
        before, after = ancestors(commits, good), ancestors(commits, bad)
        if bad in before or not before & after or not expected(commits, good, bad, first_parent=along):
            with pytest.raises(UsageError):
                read_range(repo, hashes[good], hashes[bad], IGNORE, first_parent=along)
            continue
        span = read_range(repo, hashes[good], hashes[bad], IGNORE, first_parent=along)
        assert found(span, hashes) == expected(commits, good, bad, along, names[span.base]), f"{good}..{bad}"
        assert is_closed(span)
        assert counts(commits[names[span.candidates[-1]]].tree) == counts(commits[bad].tree)


def test_branch_points_follow_their_ancestors_despite_their_dates(history: History) -> None:
    commits = {f"c{n}": Made([f"c{n - 1}"] if n else [], code(str(n)), seconds=9 - n) for n in range(6)}
    commits |= {f"s{n}": Made([f"c{n}"], code(f"s{n}")) for n in range(4)}
    commits["m"] = Made(["c5", "s3", "s1", "s2", "s0"], code("m"))
    repo, hashes = history(commits)
    span = read_range(repo, hashes["c4"], hashes["m"], IGNORE)
    assert span.candidates[:5] == tuple(hashes[name] for name in ("c4", "c0", "c1", "c2", "c3"))


def test_graph_does_not_depend_on_a_commit_graph_file(history: History) -> None:
    commits = random_history(3)
    repo, hashes = history(commits)
    goods = [good for good in sorted(ancestors(commits, "n29") - {"n29"}) if expected(commits, good, "n29")][:3]

    def read() -> list[tuple[str, ...]]:
        return [read_range(repo, hashes[good], hashes["n29"], IGNORE).candidates for good in goods]

    before = read()
    assert len(before) == 3
    subprocess.run(["git", "commit-graph", "write", "--reachable"], cwd=repo.git_dir, check=True, capture_output=True)
    assert read() == before


def test_git_replace_has_no_effect_on_the_range(history: History) -> None:
    repo, hashes = history(commits_of("c0=0 c1=1 c2=2"))
    subprocess.run(["git", "replace", "--graft", hashes["c2"], hashes["c0"]], cwd=repo.git_dir, check=True)
    span = read_range(repo, hashes["c0"], hashes["c2"], IGNORE)
    assert found(span, hashes) == edges_of("c1:. c2:c1")


def test_working_tree_has_no_effect_on_the_range(git: Repo) -> None:
    good, _, bad = git.history([{"a.c": str(number)} for number in range(3)])
    git.write({"a.c": "changed", "sub/new": ""})
    assert read_range(open_repository(git.path / "sub"), good, bad, []).graph.size == 3
    assert git("status", "--porcelain", "-uno") == "M a.c"


def test_range_without_candidates_or_common_history_is_refused(history: History) -> None:
    repo, hashes = history(commits_of("c0=0 c1=1 c2=1/d other:=o"))
    for ends, sentence in {
        "c0 c0": "are the same commit",
        "c2 c0": "the two revisions seem to be swapped",
        "c0 other": "have no common history",
        "c1 c2": r"No commit of the range can change the speed: its commits \(1\)",
    }.items():
        with pytest.raises(UsageError, match=sentence):
            read_range(repo, *(hashes[name] for name in ends.split()), IGNORE)


def test_range_of_a_long_history_with_many_merges(history: History) -> None:
    """Every fifth commit is documentation, every tenth joins a side branch."""
    commits = {"c0": Made([], code("0"))}
    for number in range(1, 4_000):
        parents = [f"c{number - 1}"]
        if number % 10 == 1:
            commits[f"s{number}"] = Made(parents, code(f"s{number}"))
            parents = [*parents, f"s{number}"]
        commits[f"c{number}"] = Made(parents, code(str(number - (number % 5 == 0)), str(number // 5 + 1)))
    repo, hashes = history(commits)
    span = read_range(repo, hashes["c0"], hashes["c3999"], IGNORE)
    assert (span.commits, span.merges) == (len(commits) - 1, 400)
    assert span.graph.size == len(commits) - 3_999 // 5
    assert is_closed(span)
