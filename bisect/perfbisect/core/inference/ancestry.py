"""For each commit of a range of any size: the set of its ancestors, and sums of weights over this set. The module also
divides the possible culprits into classes, whose members the readings cannot distinguish yet.

**Segments.** A *segment* is a maximal chain of commits in which each commit is the only child of its only parent. A
commit outside of a segment descends from all commits of the segment, or from no commit of the segment. So perfbisect
stores the ancestors of segments, not of commits, in a matrix of bits that has a row and a column for each segment. A
history without branches is a single segment, in which sums over ancestors are prefix sums.

If there are too many segments for a square matrix, the matrix has columns only for segments with considerable prior
weight. If even this smaller matrix would be too large, sums are computed only for segments of the trunk (the
first-parent line of bad), and the sums of all other segments are NaN. The search tests no commit with a NaN sum. So the
search tests commits of the trunk first, and commits of side branches only after its readings have reduced the number of
segments with considerable weight.

**Classes.** A build is slow if the culprit is the build's commit or an ancestor of this commit. The readings of a hunt
therefore show only the culprit's *pattern*: the set of measured builds that are slow. Possible culprits that make the
same measured builds slow have the same likelihood, and form a class. The number of classes is about the number of
measured builds, whatever the size of the range.

**Suspicions.** The user can give weights to paths; a commit that changes such a path gets the weight of the path as its
prior weight. If the user is right, the hunt needs fewer measurements; if the user is wrong, the weights must not
determine the verdict. Therefore the weights of the user can change the prior odds of two candidates to at most BOUND to
1.
"""

from collections import OrderedDict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from perfbisect.core.domain.graph import Graph
from perfbisect.core.inference.record import Record

DENSE = 4096  # most segments for which the bits of all pairs of segments are kept
REMEMBERED = 64  # most ancestor sets that are kept
NEGLIGIBLE = 1e-6  # weight of a segment on which no decision depends


class Ancestry:
    """For each node of one graph: the set of its ancestors, and sums of weights over this set."""

    def __init__(self, graph: Graph) -> None:
        self.size = graph.size
        head = _segment_heads(graph)
        heads = np.flatnonzero(head == np.arange(graph.size))
        self.segment = np.searchsorted(heads, head)  # (size,) segment of each candidate
        self.segments = len(heads)
        self._order = np.argsort(self.segment, kind="stable")  # commits by segment, oldest first within a segment
        self._start = np.searchsorted(self.segment[self._order], np.arange(self.segments))
        self._below = [sorted({int(self.segment[p]) for p in graph.parents_of(h)}) for h in heads.tolist()]
        self._first = [int(self.segment[graph.parents[graph.parent_offsets[h]]]) if below else -1
                       for h, below in zip(heads.tolist(), self._below, strict=True)]  # fmt: skip
        self._ancestors: OrderedDict[int, NDArray[np.bool_]] = OrderedDict()
        self._bits = self._ancestor_bits(np.arange(self.segments)) if self.segments <= DENSE else None
        self._owner = None if self._bits is not None else self._trunk_and_oldest_descendants()
        # The latest argument and result of ``sums``, because a decision asks several times for the sums of one posterior.
        self._latest: tuple[NDArray[np.float64], NDArray[np.float64]] | None = None
        self._columns = np.empty(0, np.int64)  # the segment of each column of ``_partial``
        self._partial = np.empty((self.segments, 0), np.uint8)

    def with_ancestors(self, node: int) -> NDArray[np.bool_]:
        """A mask over the candidates, shape (size,), that is true for ``node`` and all of its ancestors."""
        mask = self._ancestors.get(node)
        if mask is None:
            mask = self._sweep(node)
            mask.setflags(write=False)
            self._ancestors[node] = mask
            if len(self._ancestors) > REMEMBERED:
                self._ancestors.popitem(last=False)
        else:
            self._ancestors.move_to_end(node)
        return mask

    def ancestor_sums(self, weight: NDArray[np.float64]) -> NDArray[np.float64]:
        """The sum of ``weight`` over each candidate and its ancestors, shape (size,); NaN where the sum is unknown."""
        if self.segments == 1:
            return np.cumsum(weight)
        if self._latest is None or not np.array_equal(self._latest[0], weight):
            self._latest = weight.copy(), self._sums(weight)
        return self._latest[1].copy()

    def _sums(self, weight: NDArray[np.float64]) -> NDArray[np.float64]:
        running = np.cumsum(weight[self._order])
        base = np.concatenate(([0.0], running))[self._start]
        total = np.diff(np.append(base, running[-1]))
        out = np.empty(self.size)
        within = self.segment[self._order]
        out[self._order] = running - base[within] + self._ancestor_sums(total)[within]
        return out

    @cached_property
    def height(self) -> NDArray[np.int64]:
        """For each candidate, shape (size,): the number of its ancestors on the longest path from a root to the
        candidate."""
        length = np.diff(np.append(self._start, self.size))
        top: list[int] = []  # height of the last commit of each segment; lower segments come first
        for commits, below in zip(length.tolist(), self._below, strict=True):
            top.append(max((top[lower] for lower in below), default=-1) + commits)
        height = np.empty(self.size, np.int64)
        height[self._order] = np.repeat(np.array(top) + 1 - self._start - length, length) + np.arange(self.size)
        return height

    def pieces_with_parents(self, marked: Iterable[int]) -> tuple[NDArray[np.int64], list[list[int]]]:
        """Divide the range into pieces. Returns the number of each candidate's piece, shape (size,), and for each piece
        the numbers of its parent pieces, which are smaller than its own number.

        Each commit in ``marked`` is a separate piece. Each other piece is a maximal chain of commits without marked
        commits, in which each commit is the only child of its only parent.
        """
        position = np.flatnonzero(np.isin(self._order, list(marked)))
        first = np.unique(np.concatenate((self._start, position, position + 1)))
        first = first[first < self.size]
        piece = np.empty(self.size, np.int64)
        piece[self._order] = np.repeat(np.arange(len(first)), np.diff(np.append(first, self.size)))
        lowest = np.searchsorted(first, self._start)
        highest = np.append(lowest[1:], len(first)) - 1
        below = [[i - 1] for i in range(len(first))]
        for first_piece, lower in zip(lowest.tolist(), self._below, strict=True):
            below[first_piece] = highest[lower].tolist()
        return piece, below

    def _ancestor_sums(self, total: NDArray[np.float64]) -> NDArray[np.float64]:
        """For each segment, the total weight of the segments that are its ancestors; NaN if the total is unknown."""
        if self._bits is not None:
            return _multiply_bits(self._bits, total)
        alive = np.flatnonzero(total > NEGLIGIBLE * total.sum())
        if len(alive) * self.segments <= DENSE**2:
            if len(self._columns) > 2 * len(alive) or not np.isin(alive, self._columns).all():
                self._columns, self._partial = alive, self._ancestor_bits(alive)
            return _multiply_bits(self._partial, total[self._columns])
        assert self._owner is not None
        trunk, owner = self._owner
        out = np.full(self.segments, np.nan)
        out[trunk] = np.cumsum(np.bincount(owner[owner >= 0], total[owner >= 0], len(trunk))) - total[trunk]
        return out

    def _sweep(self, node: int) -> NDArray[np.bool_]:
        segment_of_node = int(self.segment[node])
        below = np.zeros(self.segments, bool)
        stack = list(self._below[segment_of_node])
        while stack:
            segment = stack.pop()
            if not below[segment]:
                below[segment] = True
                stack.extend(self._below[segment])
        mask = below[self.segment]
        same_segment = self._order[self._start[segment_of_node] :]
        same_segment = same_segment[: np.searchsorted(self.segment[same_segment], segment_of_node, side="right")]
        mask[same_segment[same_segment <= node]] = True
        return mask

    def _ancestor_bits(self, columns: NDArray[np.int64]) -> NDArray[np.uint8]:
        """Packed bits, shape (segments, columns), that say for each segment which of the segments ``columns`` are its
        ancestors.
        """
        column = {int(segment): i for i, segment in enumerate(columns)}
        bits = np.zeros((self.segments, (len(columns) + 7) // 8), np.uint8)
        for segment, below in enumerate(self._below):
            row = bits[segment]
            for lower in below:
                row |= bits[lower]
                if (i := column.get(lower)) is not None:
                    row[i >> 3] |= 128 >> (i & 7)
        return bits

    def _trunk_and_oldest_descendants(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The segments of the trunk (the first-parent line of bad), oldest first; and for each segment the index of the
        oldest trunk segment that is the segment itself or descends from the segment, or -1 without such a trunk
        segment.
        """
        trunk = [int(self.segment[-1])]
        while (lower := self._first[trunk[-1]]) >= 0:
            trunk.append(lower)
        trunk.reverse()
        owner = np.full(self.segments, -1)
        for rank, top in enumerate(trunk):
            stack = [top]
            while stack:
                segment = stack.pop()
                if owner[segment] < 0:
                    owner[segment] = rank
                    stack.extend(self._below[segment])
        return np.array(trunk), owner


@lru_cache(maxsize=4)
def ancestry_of(graph: Graph) -> Ancestry:
    """The ``Ancestry`` of ``graph``. The result is cached, because all decisions of a hunt use the same graph."""
    return Ancestry(graph)


def _segment_heads(graph: Graph) -> NDArray[np.int64]:
    """For each commit, shape (size,): the first commit of its segment, found by pointer doubling."""
    count = np.diff(graph.parent_offsets)
    children = np.bincount(graph.parents, minlength=graph.size)
    head = np.arange(graph.size)
    single = np.flatnonzero(count == 1)
    parent = graph.parents[graph.parent_offsets[single]]
    linked = children[parent] == 1
    head[single[linked]] = parent[linked]
    while True:
        further = head[head]
        if np.array_equal(further, head):
            return head
        head = further


def _multiply_bits(bits: NDArray[np.uint8], weight: NDArray[np.float64]) -> NDArray[np.float64]:
    """The product of a packed 0/1 matrix and a vector, computed in blocks that fit into the processor's cache."""
    block = max(1, 2**22 // max(len(weight), 1))
    parts = [
        np.unpackbits(bits[i : i + block], axis=1, count=len(weight)).astype(np.float32) @ weight.astype(np.float32)
        for i in range(0, len(bits), block)
    ]
    return np.concatenate(parts).astype(np.float64)


BOUND = 16.0  # largest ratio of the prior probabilities of two candidates


def with_suspected_weights(
    graph: Graph, commits: Sequence[str], commits_touching: Mapping[str, Collection[str]], weights: Mapping[str, float]
) -> Graph:
    """A copy of ``graph`` in which the prior weight of a commit that changes a suspected path is multiplied by the
    weight of the path. ``weights`` maps each suspected path to its weight, and ``commits_touching`` to the commits that
    change the path.

    ``commits`` are the commits of the nodes, in the order of the nodes. For a commit that changes several suspected
    paths, the largest weight of these paths is used.
    """
    factor: dict[str, float] = {}
    for path, weight in weights.items():
        for commit in commits_touching.get(path, ()):
            factor[commit] = max(weight, factor.get(commit, 0.0))
    return replace(graph, weight=graph.weight * np.array([bound_weight(factor.get(commit, 1.0)) for commit in commits]))


def bound_weight(weight: float) -> float:
    """The weight, limited to a range in which the prior odds of two candidates are at most BOUND to 1."""
    return float(np.clip(weight, BOUND**-0.5, BOUND**0.5))


BITS = 40  # bits of a pattern that are collected before patterns are renumbered


@dataclass(frozen=True, eq=False)
class Hypotheses:
    """The possible culprits, divided into the C classes that readings of M measured builds can distinguish."""

    ancestry: Ancestry
    weight: NDArray[np.float64]  # (size,) prior of each candidate, 0 if it cannot be the culprit; sums to one
    plain_weight: NDArray[np.float64]  # (size,) the prior without the evidence of instruction counts
    class_of: NDArray[np.int64]  # (size,) class of each candidate, -1 if it cannot be the culprit
    slow: NDArray[np.bool_]  # (M, C) whether the build is slow if the culprit is in the class
    prior: NDArray[np.float64]  # (C,) prior of each class

    @cached_property
    def class_sizes(self) -> NDArray[np.int64]:
        """The number of candidates in each of the C classes, shape (C,)."""
        return np.bincount(self.class_of[self.class_of >= 0], minlength=len(self.prior))

    def class_members(self, index: int) -> NDArray[np.int64]:
        """The candidates of one class, oldest first."""
        return np.flatnonzero(self.class_of == index)

    def candidate_probabilities(self, posterior: NDArray[np.float64]) -> NDArray[np.float64]:
        """The probability of each candidate, shape (size,); ``posterior`` is the probability of each class, shape
        (C,)."""
        share = np.zeros(len(self.class_of))
        possible = self.class_of >= 0
        index = self.class_of[possible]
        share[possible] = self.weight[possible] * (posterior / self.prior)[index]
        return share

    def slow_prior_share(self, candidate: int) -> NDArray[np.float64]:
        """For each class, shape (C,): the share of the class's prior weight that belongs to possible culprits that make
        ``candidate`` slow. A measurement of ``candidate`` divides each class whose share is between 0 and 1.
        """
        inside = self.ancestry.with_ancestors(candidate) & (self.class_of >= 0)
        part = np.bincount(self.class_of[inside], self.weight[inside], len(self.prior)) / self.prior
        part[part > 1 - 1e-9] = 1.0
        return part


def distinguishable_hypotheses(
    graph: Graph, record: Record, second_prior: NDArray[np.float64] | None = None, second_prior_share: float = 0.0
) -> Hypotheses:
    """The possible culprits, divided into classes that readings of the builds of ``record`` can distinguish.

    The prior is the weighted mean of the graph's weights and of ``second_prior``, shape (size,), which has the weight
    ``second_prior_share``. Two candidates with the same binary are equally fast, so no ancestor of only one of the two
    can be the culprit. Ancestors of only one of the two are not excluded if this would exclude all candidates, because
    a change was made and reverted.
    """
    reach = ancestry_of(graph)
    weight = graph.weight.copy()
    for candidate, name in record.build_name.items():
        weight[reach.with_ancestors(candidate) != reach.with_ancestors(name)] = 0.0
    if not (weight > 0).any():
        weight = graph.weight
    possible = np.flatnonzero(weight > 0)
    weight = plain = weight / weight.sum()
    if second_prior is not None and (possibly := np.where(weight > 0, second_prior, 0.0)).sum() > 0:
        weight = (1 - second_prior_share) * plain + second_prior_share * possibly / possibly.sum()
    pattern, used = np.zeros(len(possible), np.int64), 0
    for build in record.builds:
        if used == BITS:
            pattern, used = np.unique(pattern, return_inverse=True)[1].astype(np.int64), 22
        pattern = (pattern << 1) | reach.with_ancestors(build)[possible]
        used += 1
    _, first, index = np.unique(pattern, return_index=True, return_inverse=True)
    of = np.full(graph.size, -1)
    of[possible] = index
    slow = np.array([reach.with_ancestors(build)[possible[first]] for build in record.builds])
    return Hypotheses(reach, weight, plain, of, slow, np.bincount(index, weight[possible]).astype(np.float64))


def comparison_builds(graph: Graph, record: Record, culprit: int) -> tuple[int, ...]:
    """The builds with which a culprit is compared: its parents, or the good end if the culprit has no parents in the
    range.

    The nearest tested ancestor replaces a parent that cannot be measured.
    """
    return tuple(dict.fromkeys(nearest_tested(graph, record, parent) for parent in (graph.parents_of(culprit) or (0,))))


def nearest_tested(graph: Graph, record: Record, candidate: int) -> int:
    """The candidate, unless it was skipped; otherwise its nearest ancestor with a build that was measured."""
    if candidate not in record.skipped:
        return candidate
    below = ancestry_of(graph).with_ancestors(candidate)
    return max((b for b in record.builds if b not in record.skipped and below[b]), default=0)
