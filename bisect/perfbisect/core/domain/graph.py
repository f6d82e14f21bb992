"""The range as a graph of candidates, oldest first.

Node 0 is the good end; it represents good and all its ancestors. Node ``size - 1`` is the bad end. Parents have lower
numbers than their children. A root commit (a commit without parents in git) that is not an ancestor of good has no
parents in the graph. "Candidate v is slow" means that the culprit is v or an ancestor of v.

A branch of the range that began before good lacks some changes of good. The commit at which such a branch began, the
*branch point*, gets its own node; branch points are the first nodes after node 0. A branch point has no parents and the
weight 0, because it can be measured, but cannot be the culprit.

For a search in the parts of a diff (`bisect narrow`), this module also sorts the parts so that a part comes after the
parts that it needs.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, eq=False)
class Graph:
    """Nodes and their parents. The parents of node v are ``parents[parent_offsets[v]:parent_offsets[v + 1]]``.

    ``weight`` is the prior weight of each node: 1 for an ordinary candidate, 0 for node 0 and branch points. The sum of
    the weights need not be 1.
    """

    parent_offsets: NDArray[np.int64]  # shape (size + 1,)
    parents: NDArray[np.int32]  # shape (edges,); a parent has a smaller number than its child
    weight: NDArray[np.float64]  # shape (size,)
    branch_points: int = 0  # nodes 1 to this number are branch points, oldest first

    @property
    def size(self) -> int:
        """The number of nodes, including the good end."""
        return len(self.weight)

    @property
    def candidates(self) -> range:
        """The nodes that may be the culprit: all nodes except the good end and branch points."""
        return range(self.branch_points + 1, self.size)

    def parents_of(self, node: int) -> tuple[int, ...]:
        """The parents of ``node``, first parent first."""
        return tuple(int(p) for p in self.parents[self.parent_offsets[node] : self.parent_offsets[node + 1]])

    @classmethod
    def from_parents(
        cls, parents: Sequence[Sequence[int]], weight: Sequence[float] | None = None, branch_points: int = 0
    ) -> "Graph":
        """The graph in which node v has the parents ``parents[v]``. Each parent must have a lower number than its
        child.

        Raises ValueError if a parent does not have a lower number.
        """
        first = np.zeros(len(parents) + 1, np.int64)
        np.cumsum([len(row) for row in parents], out=first[1:])
        flat = np.fromiter((p for row in parents for p in row), np.int32, int(first[-1]))
        children = np.repeat(np.arange(len(parents)), np.diff(first))
        if (flat >= children).any() or (flat < 0).any():
            raise ValueError("parents must come before their children")
        weights = np.ones(len(parents)) if weight is None else np.asarray(weight, np.float64)
        weights[: branch_points + 1] = 0.0
        return cls(first, flat, weights, branch_points)

    @classmethod
    def straight_history(cls, commits: int) -> "Graph":
        """The graph of ``commits`` commits after the good end, without branches."""
        return cls.from_parents([(), *((v,) for v in range(commits))])


def sort_by_needs(parts: Sequence[frozenset[int]], needs: Mapping[int, Collection[int]]) -> list[frozenset[int]]:
    """The sets of parts in the given order, except that each set comes after the sets that it needs; this is not
    possible for sets that need each other in a cycle.
    """
    index_of = {number: index for index, part in enumerate(parts) for number in part}
    needed = [
        sorted({index_of[n] for number in part for n in needs.get(number, ()) if n in index_of and n not in part})
        for part in parts
    ]
    done: dict[int, None] = {}
    for top in range(len(parts)):
        stack, begun = [top], set[int]()
        while stack:  # depth first: the sets that a set needs come right before the set
            index = stack[-1]
            open_needs = [] if index in begun else [n for n in needed[index] if n not in done and n not in begun]
            begun.add(index)
            if not open_needs:
                done.setdefault(stack.pop())
            stack += reversed(open_needs)
    return [parts[index] for index in done]


def merge_mutual_needs(parts: Sequence[frozenset[int]], needs: Mapping[int, Collection[int]]) -> list[frozenset[int]]:
    """The sets of ``parts``, after sets that need each other (also through other sets) are merged into one set."""
    index_of = {number: index for index, part in enumerate(parts) for number in part}
    reach = np.eye(len(parts), dtype=np.float32)
    for number, index in index_of.items():
        reach[index, [index_of[need] for need in needs.get(number, ()) if need in index_of]] = 1
    for _ in range(len(parts).bit_length()):
        reach = np.minimum(reach @ reach, 1)
    sets = defaultdict[int, frozenset[int]](frozenset)
    for index, first in enumerate((reach * reach.T).argmax(axis=1)):
        sets[int(first)] |= parts[index]
    return [*sets.values()]
