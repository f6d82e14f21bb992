"""The range cut into parts by builds that are there, or will be, and new cuts of the parts.

A part holds the candidates that lie below the same ones of these builds. With n new builds a part is cut so that each of
the n + 1 pieces is about equally probable; more probable parts get more of them.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from perfbisect.core.inference.ancestry import Ancestry

Array = NDArray[np.float64]
Nodes = NDArray[np.int64]

POSSIBLE = 1e-9  # probability of a candidate below which it is left out of the parts
EDGE = 1e-6  # share of a part's probability that a cut leaves on either side, at least
TRIED = 3  # candidates for a cut, in a history where the share of the first ones is not what it seemed
AMISS = 0.7  # of the score that a candidate seemed to have
NEAR = 0.9  # of the best score: the cheapest of about equally good candidates is chosen
COMPARED = 24  # of them whose cost is compared, at most

Cost = Callable[[list[int]], Array]  # of candidates


@dataclass(frozen=True, slots=True)
class Cut:
    """A candidate whose build cuts a part, and the bits that are expected of that."""

    candidate: int
    bits: float


@dataclass(frozen=True, slots=True, eq=False)
class _Part:
    nodes: Nodes
    mass: float  # probability that the culprit is in it
    below: float  # the same of what lies below all of it
    pattern: int  # bits: which builds it lies below


class Parts:
    """The parts of a range; cutting it changes them."""

    def __init__(self, reach: Ancestry, probability: Array, cuts: Sequence[int]) -> None:
        """``probability`` (size,) of each candidate to be the culprit; ``cuts`` are builds without readings."""
        self._reach, self._probability = reach, probability
        self._below = reach.sums(probability)
        self._place = {cut: place for place, cut in enumerate(cuts)}
        pieces = [(np.flatnonzero(probability > POSSIBLE), 0)]
        for cut, place in self._place.items():
            inside = reach.ancestors(cut)
            halves = ((_divided(nodes, inside), bits) for nodes, bits in pieces)
            pieces = [
                piece
                for (low, high), bits in halves
                for piece in ((low, bits | 1 << place), (high, bits))
                if len(piece[0])
            ]
        masses = {bits: float(probability[nodes].sum()) for nodes, bits in pieces}
        self._masses = masses
        self._parts = [
            _Part(nodes, masses[bits], sum(m for b, m in masses.items() if b != bits and b & bits == bits), bits)
            for nodes, bits in pieces
        ]

    def bits_of(self, cut: int) -> float:
        """What the build of a present cut tells, beside all the others."""
        bit = 1 << self._place[cut]
        low: dict[int, float] = {}
        high: dict[int, float] = {}
        for pattern, mass in self._masses.items():
            side = low if pattern & bit else high
            side[pattern & ~bit] = side.get(pattern & ~bit, 0.0) + mass
        return sum(_entropy(low[pattern], high.get(pattern, 0.0)) for pattern in low)

    def cut(self, count: int, chance: Array, cost: Cost, least: float) -> Iterator[Cut]:
        """At most ``count`` new cuts that are worth ``least`` bits each.

        ``chance`` (size,) is the probability that each candidate builds, 0 for those that must not be chosen; ``cost``
        weighs candidates that cut a part about equally well: a smaller one is better.
        """
        dead: list[_Part] = []  # parts that cannot be cut any more
        while count > 0:
            shares = self._allotted(count, dead)
            for part, cuts in shares:
                found = self._best(part, cuts, chance, cost)
                if found is None or found.bits < least:
                    dead.append(part)
                    continue
                self._divide(part, found.candidate)
                count -= 1
                yield found
            if not shares:
                return

    def _allotted(self, count: int, dead: list[_Part]) -> list[tuple[_Part, int]]:
        """The parts that are to be cut, each with a number of cuts: together ``count``."""
        live = [part for part in self._parts if part not in dead and part.mass > EDGE and len(part.nodes) > 1]
        given = [0] * len(live)
        for _ in range(count if live else 0):
            gains = [part.mass * np.log((n + 2) / (n + 1)) for part, n in zip(live, given, strict=True)]
            given[int(np.argmax(gains))] += 1
        return [(part, n) for part, n in zip(live, given, strict=True) if n]

    def _best(self, part: _Part, cuts: int, chance: Array, cost: Cost) -> Cut | None:
        """The best first one of so many cuts of a part."""
        wanted = ((cuts + 1) // 2) / (cuts + 1)  # share of the part below it
        share = (self._below[part.nodes] - part.below) / part.mass
        share = np.where((share > EDGE) & (share < 1 - EDGE), share, np.nan)
        score = np.nan_to_num(_evenness(share, wanted) * chance[part.nodes])
        for _ in range(TRIED):
            best = float(score.max())
            if best <= 0:
                return None
            close = np.flatnonzero(score >= NEAR * best)
            some = close[np.unique(np.linspace(0, len(close) - 1, COMPARED).astype(int))]
            some = np.union1d(some, [int(score.argmax())])
            dear = cost(part.nodes[some].tolist())
            row = int(some[int((score[some] / dear).argmax())])
            candidate = int(part.nodes[row])
            inside = self._reach.ancestors(candidate)[part.nodes]
            true = float(self._probability[part.nodes[inside]].sum()) / part.mass
            likely = float(chance[candidate])
            if EDGE < true < 1 - EDGE and _evenness(np.array([true]), wanted)[0] * likely >= AMISS * score[row]:
                return Cut(candidate, likely * part.mass * _entropy(true, 1 - true))
            score[row] = 0.0
        return None

    def _divide(self, part: _Part, candidate: int) -> None:
        """Replace a part by what is below a candidate and the rest."""
        low, high = _divided(part.nodes, self._reach.ancestors(candidate))
        mass = float(self._probability[low].sum())
        self._parts.remove(part)
        self._parts.append(replace(part, nodes=low, mass=mass))
        self._parts.append(replace(part, nodes=high, mass=part.mass - mass, below=part.below + mass))


def _divided(nodes: Nodes, inside: NDArray[np.bool_]) -> tuple[Nodes, Nodes]:
    """Those that are inside, and the others."""
    here = inside[nodes]
    return nodes[here], nodes[~here]


def _evenness(share: Array, wanted: float) -> Array:
    """1 where the share is as wanted, less elsewhere: the pieces on either side are cut again in this proportion."""
    best = wanted * np.log(wanted) + (1 - wanted) * np.log(1 - wanted)
    result: Array = np.exp(wanted * np.log(share) + (1 - wanted) * np.log(1 - share) - best)
    return result


def _entropy(one: float, other: float) -> float:
    """The bits of telling two events apart, times the probability of either; 0 if one is impossible."""
    if one <= 0 or other <= 0:
        return 0.0
    both = one + other
    return float(-one * np.log2(one / both) - other * np.log2(other / both))
