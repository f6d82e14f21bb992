"""Which builds the build hosts begin now, and which of theirs they end.

A build takes far longer than a run, so it is begun before it is known to be wanted. Each one that is there, or in
flight, will split the range; so those and the new ones together cut it into parts of equal probability: with k of them,
whatever the runs show leaves about one part in k + 1. A candidate counts less the less probably it builds, and the
longer its build takes on the build host that has the nearest builds in its compiler cache.

What the proof needs is built before it is wanted: the most suspected candidates and their parents. What the search
waits for comes first of all. A build in flight that has become all but useless is ended if another one is worth more in
the same time.

The range cut into parts by builds that are there, or will be, and new cuts of the parts.

A part holds the candidates that lie below the same ones of these builds. With n new builds a part is cut so that each
of the n + 1 pieces is about equally probable; more probable parts get more of them.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from perfbisect.core.domain.orders import BuildOrder, Decision, Measure, Purpose, Share
from perfbisect.core.inference.ancestry import Ancestry, ancestry_of, compared_with
from perfbisect.core.search.build_forecast import BUILD_EXPONENT, chances, left, price, remaining
from perfbisect.core.search.situation import Situation
from perfbisect.core.stats.distributions import entropy

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
class _Piece:
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
            _Piece(nodes, masses[bits], sum(m for b, m in masses.items() if b != bits and b & bits == bits), bits)
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
        dead: list[_Piece] = []  # parts that cannot be cut any more
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

    def _allotted(self, count: int, dead: list[_Piece]) -> list[tuple[_Piece, int]]:
        """The parts that are to be cut, each with a number of cuts: together ``count``."""
        live = [part for part in self._parts if part not in dead and part.mass > EDGE and len(part.nodes) > 1]
        given = [0] * len(live)
        for _ in range(count if live else 0):
            gains = [part.mass * np.log((n + 2) / (n + 1)) for part, n in zip(live, given, strict=True)]
            given[int(np.argmax(gains))] += 1
        return [(part, n) for part, n in zip(live, given, strict=True) if n]

    def _best(self, part: _Piece, cuts: int, chance: Array, cost: Cost) -> Cut | None:
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

    def _divide(self, part: _Piece, candidate: int) -> None:
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
    both = one + other
    return both * float(entropy(np.array(one / both))) if min(one, other) > 0 else 0.0


SUSPECTED = 0.3  # probability of a candidate from which its proof is prepared
LEAST_BITS = 0.02  # expected of a build: what promises less is not built
WORTH = 2.0  # how many times as much, in the same time, another build must promise for one in flight to be ended
LIKE_URGENT = 1.0  # bits: what a build is worth that the search waits for
HELD_BACK = 0.5  # of the builds that a budget still allows: so many are made on suspicion at most
PATIENCE = 1.2  # a host builds itself if that takes no longer than so many times what it would wait


def with_builds(decision: Decision, now: Situation) -> Decision:
    """The decision with the builds to begin and to end; nothing changes where no build host is left."""
    order = decision.order
    if not now.fleet.builds_ahead or not isinstance(order, Measure):
        return decision
    missing = now.missing(order)
    plan = _BuildsAhead(decision, now, missing)
    builds = plan.begun()
    decision = replace(decision, builds=builds, cancelled=plan.ended(), waits=bool(missing))
    if missing and now.fleet.builds_between and now.fleet.is_free(order.host):
        own = plan.own(order, [build.candidate for build in builds])
        return replace(decision, order=own, waits=False) if own else decision
    return decision


@dataclass(eq=False)
class _BuildsAhead:
    """What is ordered at one moment; ``missing`` is what the order of the decision needs and is not there."""

    decision: Decision
    now: Situation
    missing: Sequence[int]
    free: list[int] = field(default_factory=list)  # build hosts that have no build yet
    cut_already: int = 0

    def begun(self) -> tuple[BuildOrder, ...]:
        """The builds for free build hosts."""
        fleet = self.now.fleet
        self.free = [*fleet.free_build_hosts]
        chosen = [*self.urgent, *self.prepared][: len(self.free)]
        chosen += [cut.candidate for cut in self._cuts(len(self.free) - len(chosen))]
        if not chosen and not self.coming:
            chosen = [v for v in self.missing if v not in self.now.record.skipped][: len(self.free)]
        builds = []
        for candidate in chosen:  # each on the free build host that is quickest with it
            prices = [float(price(self.now, [candidate], build_host=host)[0]) for host in self.free]
            builds.append(BuildOrder(candidate, self.free.pop(int(np.argmin(prices)))))
        return tuple(builds)

    def ended(self) -> tuple[int, ...]:
        """The build hosts whose build is ended; after ``begun``.

        A build is given the time of a run at least, so that something new is known before another one takes its place.
        """
        now, kept = self.now, {*self.decision.wanted, *self.missing, *self._suspects}
        if not len(now.record.value):  # what a run takes is not known yet
            return ()
        weak = sorted(
            (self.parts.bits_of(one.candidate) / left(now, one), one.build_host)
            for one in now.fleet.building
            if not one.cancelled and one.candidate not in kept and one.seconds >= now.record.run_seconds
        )
        better = [Cut(candidate, LIKE_URGENT) for candidate in self.urgent[len(now.fleet.free_build_hosts) :]]
        better += self._cuts(len(weak) - len(better))
        return tuple(
            host
            for (rate, host), other in zip(weak, better, strict=False)
            if other.bits / float(price(now, [other.candidate], build_host=host)[0]) > WORTH * rate
        )

    def own(self, order: Measure, begun: Collection[int]) -> Measure | None:
        """A build that the host of ``order`` makes itself while it waits; None if it would wait for less time."""
        now = self.now
        rest = [v for v in (*self.urgent, *self.prepared) if v not in begun]
        candidate = rest[0] if rest else next((cut.candidate for cut in self._cuts(1)), None)
        if candidate is None:
            return None
        cost = float(price(now, [candidate], host=order.host)[0])
        soon = min([*remaining(now).values(), *(now.build_runs for _ in begun)], default=np.inf)
        if cost > PATIENCE * soon:
            return None
        return Measure((Share(candidate, 0),), order.purpose, order.host)

    @cached_property
    def coming(self) -> frozenset[int]:
        """The candidates whose builds are being made, here or there."""
        of_hosts = {share.candidate for order in self.now.fleet.busy for share in order.plan}
        return self.now.fleet.in_flight | (of_hosts - self.now.record.there)

    @cached_property
    def urgent(self) -> list[int]:
        """What the search waits for, except where another candidate of the same part would do as well."""
        explored = isinstance(self.decision.order, Measure) and self.decision.order.purpose is Purpose.SEARCH
        return self._open([*self.decision.wanted, *(() if explored else self.missing)])

    @cached_property
    def prepared(self) -> list[int]:
        """What the proof will need, as far as the budget allows."""
        return [v for v in self._open(self._suspects) if v not in self.urgent][: self._allowed]

    @cached_property
    def parts(self) -> Parts:
        """The range, cut by what was built or will be, and was not measured."""
        record = self.now.record
        cuts = self.coming | {v for v in record.built if v not in record.same}.difference(record.builds)
        named = [*self.urgent, *self.prepared]
        reach = ancestry_of(self.now.graph)
        return Parts(reach, self.decision.belief.culprit, sorted({*cuts, *named} - record.skipped))

    @cached_property
    def chance(self) -> Array:
        """That each candidate builds, (size,); 0 for those that must not be chosen."""
        chance = chances(self.now)
        chance[[*self.now.record.there, *self.coming, *self.urgent, *self.prepared]] = 0.0
        chance[: self.now.graph.candidates.start] = 0.0
        return chance

    @cached_property
    def _suspects(self) -> list[int]:
        """The most probable candidates, and what they are compared with."""
        now, culprit = self.now, self.decision.belief.culprit
        likely = np.flatnonzero(culprit >= SUSPECTED)
        likely = likely[np.argsort(-culprit[likely], kind="stable")]
        return [v for each in likely.tolist() for v in (each, *compared_with(now.graph, now.record, each))]

    @cached_property
    def _allowed(self) -> int:
        """How many builds may be made on suspicion."""
        most = self.now.budget.builds_left(self.urgent)
        return self.now.graph.size if most == np.inf else max(int(HELD_BACK * most), 0)

    def _open(self, candidates: Sequence[int]) -> list[int]:
        """Those that are neither there nor coming nor known to fail, each once."""
        record = self.now.record
        return [v for v in dict.fromkeys(candidates) if v not in self.coming | record.there | record.skipped]

    def _cuts(self, count: int) -> Iterator[Cut]:
        """At most so many further builds that split the range best; each is chosen once."""
        order = self.decision.order
        if isinstance(order, Measure) and order.fresh:  # what is linked again was built before
            return
        allowed = self._allowed - len(self.prepared) - self.cut_already
        for cut in self.parts.cut(min(count, allowed), self.chance, self._cost, LEAST_BITS):
            self.cut_already += 1
            self.chance[cut.candidate] = 0.0
            yield cut

    def _cost(self, candidates: list[int]) -> Array:
        """Of building each of these, on the build host that is quickest with it."""
        hosts = self.free or self.now.fleet.free_build_hosts or (0,)
        costs = [price(self.now, candidates, self.chance[candidates], build_host=host) for host in hosts]
        result: Array = np.min(costs, axis=0) ** BUILD_EXPONENT
        return result
