"""The range as a graph of candidates, oldest first.

Node 0 is the good end and represents all commits that can be reached from good; node ``size - 1`` is the bad end.
Parents precede their children. A root commit of the range, which cannot be reached from good, has no parents.
"Candidate v is slow" means that the culprit is v or an ancestor of v.

A branch that began before good lacks changes that good has. The *branch point*, the commit at which such a branch
began, is one of the first nodes after node 0. A branch point has no parents and the weight 0, because it can be
measured, but cannot be the culprit.

For a search in a diff, the parts of the diff are sorted so that a part comes after the parts that it needs.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, eq=False)
class Graph:
    """Candidates and their parents: the parents of node v are ``parents[parent_offsets[v]:parent_offsets[v + 1]]``.

    ``weight`` is the prior weight of each candidate: 1 for an ordinary candidate, 0 for node 0 and branch points. The
    weights need not sum to one.
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
        """The graph in which node v has the parents ``parents[v]``; older nodes come first.

        Raises ValueError if a parent does not precede its child.
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
        """A straight history of ``commits`` commits after the good end."""
        return cls.from_parents([(), *((v,) for v in range(commits))])


def sort_by_needs(parts: Sequence[frozenset[int]], needs: Mapping[int, Collection[int]]) -> list[frozenset[int]]:
    """The sets of parts in the order of ``parts``, except that each set comes after the sets it needs, unless sets
    need each other in a cycle.
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
    """The sets of ``parts``, in which sets that need each other, directly or through other sets, are merged into one
    set."""
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
