"""The commits between two revisions, and the graph of those that can differ in speed.

The range is read with git's own history simplification. A commit whose tree, without the ignored paths, equals that of
one of its parents cannot differ in speed from it: it is removed, and its children get that parent instead. Of a merge
that equals one of its parents only that parent is followed, since the result has nothing of the other side.

Parents outside the range become node 0, good itself; or, for a branch that began before good, a node of their own: its
branch point, unless it equals good in all paths that count.

The parents outside the range (the boundary) are passed to git one by one. Otherwise the dates of commits could decide
whether git recognises them as outside in time, and the graph must always be the same, since a hunt is resumed on it. For
the same reason git's commit graph file, which may be written at any time, is not used.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from perfbisect.core.domain.graph import Graph
from perfbisect.errors import UsageError
from perfbisect.repository.git import Repository, all_but, git


@dataclass(frozen=True, slots=True, eq=False)
class CommitRange:
    """The commits between good and bad. Hashes are full."""

    good: str
    bad: str
    base: str  # the good end of the graph: good, or the merge base where good is not an ancestor of bad
    commits: int  # reachable from bad and not from good
    merges: int  # among these
    graph: Graph
    candidates: tuple[str, ...]  # the commit of each node; the first is base, the last is as fast as bad


def read_range(
    repo: Repository, good: str, bad: str, ignore: Sequence[str], *, first_parent: bool = False
) -> CommitRange:
    """The range between two commits, given by their full hashes; ``ignore`` is a recipe's glob patterns.

    Raises UsageError when there is nothing to search: equal or swapped ends, no common history, no candidates.
    """
    base = _base(repo, good, bad)
    walk = ["rev-list", "--stdin", "--parents", *(["--first-parent"] if first_parent else [])]
    ends = [bad, f"^{good}", f"^{base}"]
    listing = git(repo, *walk, stdin="\n".join(ends))
    inside = [line.split(" ")[: 2 if first_parent else None] for line in listing.splitlines()]
    boundary = {parent for row in inside for parent in row[1:]} - {row[0] for row in inside}

    limits = [*ends, *(f"^{commit}" for commit in sorted(boundary))]
    paths = ["--", *all_but(ignore)]
    simplified = git(repo, *walk, "--topo-order", "--reverse", stdin="\n".join(limits + paths))
    rows = [line.split(" ") for line in simplified.splitlines()]
    if first_parent:
        # Git lists the other parents, too, and does not mark the missing one: the parent of the first commit, if any.
        before = [boundary, *([row[0]] for row in rows)]
        rows = [[row[0], *parent] for row, parent in zip(rows, before, strict=False)]
        if joins := _joins(repo, base, bad, inside, boundary):
            rows = [[*row, base] if row[0] == joins else row for row in rows]
    if not rows:
        raise UsageError(
            f"Nothing in the range can change the speed: of its {len(inside)} commits, none changes a path that counts.",
            f"Paths that do not count, by the builder's recipe: {', '.join(ignore) or 'none'}.",
        )
    # Whatever `submodule.NAME.ignore` is.
    compare = ["diff-tree", "-r", "--name-only", "--no-renames", "--ignore-submodules=none", base]
    outside = _outside(rows, base, lambda commit: not git(repo, *compare, commit, *paths).strip())
    points = _by_age(repo, {parent for parents in outside.values() for parent in parents})
    merges = sum(line.count(" ") > 1 for line in listing.splitlines())
    graph = Graph.of(_parents(rows, outside, points), branch_points=len(points))
    return CommitRange(good, bad, base, len(inside), merges, graph, (base, *points, *(row[0] for row in rows)))


def _base(repo: Repository, good: str, bad: str) -> str:
    """The merge base. Raises UsageError for equal or swapped ends, and for ends without common history."""
    if good == bad:
        raise UsageError(f"Good and bad are the same commit {good[:10]}.", "Give two revisions that differ.")
    base = git(repo, "merge-base", good, bad, allowed=(0, 1)).strip()
    if not base:
        raise UsageError(f"Good {good[:10]} and bad {bad[:10]} have no common history.")
    if base == bad:
        raise UsageError(
            f"Bad {bad[:10]} is an ancestor of good {good[:10]}: they seem to be swapped.",
            "The older revision comes first. To hunt an improvement, keep that order and choose another --direction.",
        )
    return base


def _joins(
    repo: Repository, base: str, bad: str, inside: Sequence[Sequence[str]], boundary: Collection[str]
) -> str | None:
    """The first commit of a walk along first parents that contains ``base``; None if all of them do."""
    if base in boundary:
        return None
    later = set(git(repo, "rev-list", "--ancestry-path", "--stdin", stdin=f"{bad}\n^{base}").split())
    return next((row[0] for row in reversed(inside) if row[0] in later), None)


def _outside(rows: Sequence[Sequence[str]], good: str, same: Callable[[str], bool]) -> dict[str, tuple[str, ...]]:
    """The parents outside the range of each row that does not contain ``good``; ``same`` is True for a commit that equals it."""
    candidates = {row[0] for row in rows}
    as_good = {good: True}
    has_good: set[str] = set()
    found: dict[str, tuple[str, ...]] = {}
    for commit, *parents in rows:
        outside = tuple(parent for parent in parents if parent not in candidates)
        if any(parent in has_good or as_good.get(parent) for parent in parents):
            has_good.add(commit)
            continue
        as_good |= {parent: same(parent) for parent in outside if parent not in as_good}
        if any(as_good[parent] for parent in outside):
            has_good.add(commit)
        elif outside:
            found[commit] = outside
    return found


def _by_age(repo: Repository, commits: Collection[str]) -> list[str]:
    """The commits, ancestors first."""
    if len(commits) < 2:
        return list(commits)
    chosen = sorted(commits)
    oldest = git(repo, "merge-base", "--octopus", *chosen, allowed=(0, 1)).strip()
    ends = [*chosen, *([f"^{oldest}"] if oldest else [])]
    later = git(repo, "rev-list", "--topo-order", "--reverse", "--stdin", stdin="\n".join(ends)).split()
    return [commit for commit in (oldest, *later) if commit in commits]


def _parents(
    rows: Sequence[Sequence[str]], outside: Mapping[str, Sequence[str]], points: Sequence[str]
) -> list[list[int]]:
    """The parents of each node: good, then ``points``, then the rows."""
    older = {commit: number for number, commit in enumerate(points, 1)}
    node = {row[0]: number for number, row in enumerate(rows, 1 + len(points))}
    parents: list[list[int]] = [[] for _ in range(1 + len(points))]
    for commit, *before in rows:
        own = older if commit in outside else {}
        parents.append(list(dict.fromkeys(node.get(parent, own.get(parent, 0)) for parent in before)))
    return parents
