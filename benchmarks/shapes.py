"""Histories of the odd shapes that git allows."""

from perfbisect.core.domain.graph import Graph
from perfbisect.simulate.scenario import Rows


def long_branch(commits: int, share: float = 0.6) -> Graph:
    """One branch that left at the good end and has most of the commits."""
    rows: Rows = [()]
    side = _line(rows, 0, max(1, int(share * (commits - 1))))
    trunk = _line(rows, 0, commits - len(rows))
    return Graph.from_parents([*rows, (trunk, side)])


def _line(rows: Rows, start: int, length: int) -> int:
    """Add a straight line of commits after ``start``; returns its last one."""
    for _ in range(length):
        rows.append((start,))
        start = len(rows) - 1
    return start


def older_branches(commits: int, branches: int = 4, share: float = 0.5) -> Graph:
    """A trunk with branches that began before good, each at a branch point of its own; ``share`` is that of all commits."""
    length = max(1, int(share * commits / branches))
    between = (commits - branches * (length + 1)) // (branches + 1)
    rows: Rows = [() for _ in range(branches + 1)]
    trunk = 0
    for point in range(1, branches + 1):
        top = _line(rows, point, length)
        trunk = _line(rows, trunk, between)
        rows.append((trunk, top))
        trunk = len(rows) - 1
    _line(rows, trunk, commits + branches + 1 - len(rows))
    return Graph.from_parents(rows, branch_points=branches)


def criss_cross(commits: int) -> Graph:
    """Two lines that merge each other again and again."""
    rows: Rows = [(), (0,), (0,)]
    while len(rows) < commits:
        left, right = len(rows) - 2, len(rows) - 1
        cross = len(rows) % 7 == 0
        rows += [(left, right) if cross else (left,), (right, left) if cross else (right,)]
    return Graph.from_parents([*rows[:commits], (commits - 2, commits - 1)])


def octopus(commits: int, arms: int = 6) -> Graph:
    """Short branches, merged several at once."""
    rows: Rows = [()]
    while len(rows) + 2 * arms < commits:
        start, tops = len(rows) - 1, []
        for _ in range(arms):
            tops.append(_line(rows, start, 2))
        rows.append((start, *tops))
    _line(rows, len(rows) - 1, commits + 1 - len(rows))
    return Graph.from_parents(rows)


def two_roots(commits: int) -> Graph:
    """A history into which another project was merged, whose commits do not descend from good."""
    half = commits // 2
    other: Rows = [(), *((v,) for v in range(half, commits - 2))]
    return Graph.from_parents([(), *((v,) for v in range(half - 1)), *other, (half - 1, commits - 2), (commits - 1,)])
