"""Decides which builds the build hosts (hosts that make builds in advance) begin now, and which of their builds are
ended.

A build takes far longer than a run, so a build begins before the search needs the build. When a build is measured, its
runs show whether the culprit is among the ancestors of the build's candidate. Therefore k builds cut the range into k +
1 parts, and the runs of all k builds show which part contains the culprit. New builds are chosen such that the builds
without runs, finished or in progress, together cut the range into parts of about equal probability. A candidate is less
preferred if its build will probably fail, or will take longer than other builds (see ``build_forecast``).

The builds that the proof will need (the most probable candidates and their parents) are made before the proof begins. A
build for which the search waits begins before all other builds. If a build in progress has become almost useless, and
another build will give more information (bits) in the same time, the build in progress is ended.

A part of the range is a set of candidates that are ancestors of exactly the same builds without runs. With n new
builds, a part is cut into n + 1 smaller parts of about equal probability. More probable parts receive more of the new
builds.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from perfbisect.core.domain.orders import BuildOrder, Decision, Measure, PlannedRuns, Purpose
from perfbisect.core.inference.ancestry import Ancestry, ancestry_of, comparison_builds
from perfbisect.core.search.build_forecast import (
    BUILD_EXPONENT,
    build_cost,
    build_success_chances,
    time_left_in_runs,
    wait_in_runs,
)
from perfbisect.core.search.situation import Situation
from perfbisect.core.stats.distributions import binary_entropy

Array = NDArray[np.float64]
Nodes = NDArray[np.int64]

POSSIBLE = 1e-9  # less probable candidates belong to no part
EDGE = 1e-6  # lowest share of a part's probability on either side of a cut
TRIES = 3  # candidates that are tried for a cut; with branches, the estimated share of a candidate may be wrong
CONFIRMED = 0.7  # lowest true score of a candidate, relative to its estimated score
NEAR = 0.9  # share of the best score: the cheapest candidate with at least this score is chosen
COMPARED = 24  # the most candidates whose costs are compared

Cost = Callable[[list[int]], Array]  # candidates → the cost of each candidate


@dataclass(frozen=True, slots=True)
class Cut:
    """A candidate whose build divides a part of the range, and the information (bits) that the runs of this build are
    expected to give."""

    candidate: int
    bits: float


@dataclass(frozen=True, slots=True, eq=False)
class _RangePart:
    """A part of a range: the candidates that are ancestors of exactly the same builds without runs."""

    nodes: Nodes
    mass: float  # probability that the culprit is in the part
    below: float  # probability that the culprit is below the whole part
    pattern: int  # bits: the builds that the part lies below


class PartsBetweenBuilds:
    """The parts of a range. Each build without readings cuts the range into its ancestors and the other candidates. The
    method ``cut`` chooses the candidates of additional builds.
    """

    def __init__(self, reach: Ancestry, probability: Array, cuts: Sequence[int]) -> None:
        """``probability`` is each candidate's probability of being the culprit. ``cuts`` are the candidates that have a
        build, or will have a build, but no readings.
        """
        self._reach, self._probability = reach, probability
        self._below = reach.ancestor_sums(probability)
        self._position = {cut: position for position, cut in enumerate(cuts)}
        parts = [(np.flatnonzero(probability > POSSIBLE), 0)]
        for cut, position in self._position.items():
            inside = reach.with_ancestors(cut)
            halves = ((_split(nodes, inside), bits) for nodes, bits in parts)
            pairs = (((low, bits | 1 << position), (high, bits)) for (low, high), bits in halves)
            parts = [part for pair in pairs for part in pair if len(part[0])]
        masses = {bits: float(probability[nodes].sum()) for nodes, bits in parts}
        self._masses = masses
        self._parts = [
            _RangePart(nodes, masses[bits], sum(m for b, m in masses.items() if b != bits and b & bits == bits), bits)
            for nodes, bits in parts
        ]

    def expected_bits(self, cut: int) -> float:
        """The information, in bits, that runs of the candidate ``cut`` are expected to give, if the builds of all other
        cuts are measured, too."""
        bit = 1 << self._position[cut]
        low: dict[int, float] = {}
        high: dict[int, float] = {}
        for pattern, mass in self._masses.items():
            side = low if pattern & bit else high
            side[pattern & ~bit] = side.get(pattern & ~bit, 0.0) + mass
        return sum(_entropy(low[pattern], high.get(pattern, 0.0)) for pattern in low)

    def cut(self, count: int, build_success_chance: Array, cost: Cost, min_bits: float) -> Iterator[Cut]:
        """Choose at most ``count`` candidates to build; yields each candidate as a Cut with at least ``min_bits`` bits.
        Each chosen candidate divides one part of the range into two parts.

        ``build_success_chance`` is the probability that each candidate can be built, or 0 if the candidate must not be
        chosen. Among candidates that divide a part about equally well, the candidate with the lowest ``cost`` is
        chosen.
        """
        indivisible: list[_RangePart] = []  # parts that cannot be cut any more
        while count > 0:
            shares = self._cut_counts_by_part(count, indivisible)
            for part, cuts in shares:
                best = self._best_cut(part, cuts, build_success_chance, cost)
                if best is None or best.bits < min_bits:
                    indivisible.append(part)
                    continue
                self._divide(part, best.candidate)
                count -= 1
                yield best
            if not shares:
                return

    def _cut_counts_by_part(self, count: int, indivisible: list[_RangePart]) -> list[tuple[_RangePart, int]]:
        """The parts to cut, and the number of cuts of each part; the numbers sum to ``count``. Parts in
        ``indivisible`` are left out.
        """
        parts = (part for part in self._parts if part not in indivisible)
        divisible = [part for part in parts if part.mass > EDGE and len(part.nodes) > 1]
        cuts = [0] * len(divisible)
        for _ in range(count if divisible else 0):
            gains = [part.mass * np.log((n + 2) / (n + 1)) for part, n in zip(divisible, cuts, strict=True)]
            cuts[int(np.argmax(gains))] += 1
        return [(part, n) for part, n in zip(divisible, cuts, strict=True) if n]

    def _best_cut(self, part: _RangePart, planned_cuts: int, build_success_chance: Array, cost: Cost) -> Cut | None:
        """The candidate whose build best cuts a part at the middle one of ``planned_cuts`` cuts; None if no candidate
        can cut the part."""
        target = ((planned_cuts + 1) // 2) / (planned_cuts + 1)  # share of the part's probability below the wanted cut
        share = (self._below[part.nodes] - part.below) / part.mass
        share = np.where((share > EDGE) & (share < 1 - EDGE), share, np.nan)
        score = np.nan_to_num(_evenness(share, target) * build_success_chance[part.nodes])
        for _ in range(TRIES):
            best = float(score.max())
            if best <= 0:
                return None
            close = np.flatnonzero(score >= NEAR * best)
            rows = close[np.unique(np.linspace(0, len(close) - 1, COMPARED).astype(int))]
            rows = np.union1d(rows, [int(score.argmax())])
            costs = cost(part.nodes[rows].tolist())
            row = int(rows[int((score[rows] / costs).argmax())])
            candidate = int(part.nodes[row])
            inside = self._reach.with_ancestors(candidate)[part.nodes]
            true = float(self._probability[part.nodes[inside]].sum()) / part.mass
            likely = float(build_success_chance[candidate])
            if EDGE < true < 1 - EDGE and _evenness(np.array([true]), target)[0] * likely >= CONFIRMED * score[row]:
                return Cut(candidate, likely * part.mass * _entropy(true, 1 - true))
            score[row] = 0.0
        return None

    def _divide(self, part: _RangePart, candidate: int) -> None:
        """Replace a part by two parts: the ancestors of a candidate (including the candidate), and all other nodes of
        the part."""
        low, high = _split(part.nodes, self._reach.with_ancestors(candidate))
        mass = float(self._probability[low].sum())
        self._parts.remove(part)
        self._parts.append(replace(part, nodes=low, mass=mass))
        self._parts.append(replace(part, nodes=high, mass=part.mass - mass, below=part.below + mass))


def _split(nodes: Nodes, inside: NDArray[np.bool_]) -> tuple[Nodes, Nodes]:
    """The entries of ``nodes`` for which the array ``inside`` is true, and the other entries."""
    is_inside = inside[nodes]
    return nodes[is_inside], nodes[~is_inside]


def _evenness(share: Array, target: float) -> Array:
    """A score for each ``share`` of a part's probability that lies below a cut: 1 if the share equals ``target``,
    otherwise less.

    ``target`` is the intended share: if the part is to be cut into n smaller parts, of which m lie below this cut,
    ``target`` is m / n.
    """
    best = target * np.log(target) + (1 - target) * np.log(1 - target)
    result: Array = np.exp(target * np.log(share) + (1 - target) * np.log(1 - share) - best)
    return result


def _entropy(low: float, high: float) -> float:
    """The expected information, in bits, of learning which of two exclusive events happened; ``low`` and ``high`` are
    the probabilities of the events."""
    either = low + high
    return either * float(binary_entropy(np.array(low / either))) if min(low, high) > 0 else 0.0


SUSPECTED = 0.3  # lowest probability of a candidate whose proof is prepared
LEAST_BITS = 0.02  # the lowest expected bits of a build
WORTH = 2.0  # a build in flight is ended if another build promises WORTH times as many bits in the same time
URGENT_BITS = 1.0  # value of a build that the search waits for, in bits
ON_SUSPICION = 0.5  # highest share of the allowed builds that are made ahead of the needs of the search
PATIENCE = 1.2  # a host makes a build if the build takes at most PATIENCE times the waiting time


def with_build_orders(decision: Decision, now: Situation) -> Decision:
    """The decision, completed by the builds that build hosts begin now and the builds that are ended; unchanged if no
    build host is available."""
    order = decision.order
    if not now.fleet.has_build_host or not isinstance(order, Measure):
        return decision
    missing = now.missing_builds(order)
    plan = _BuildOrders(decision, now, missing)
    builds = plan.builds_to_begin()
    cancelled = plan.hosts_of_builds_to_cancel()
    decision = replace(decision, builds=builds, cancelled=cancelled, waits_for_builds=bool(missing))
    if missing and now.fleet.builds_between and now.fleet.is_free(order.host):
        build = plan.build_while_waiting(order, [build.candidate for build in builds])
        return replace(decision, order=build, waits_for_builds=False) if build else decision
    return decision


@dataclass(eq=False)
class _BuildOrders:
    """Chooses the builds that build hosts begin or end after a decision of the search. ``missing`` are the candidates
    that the decision's work order measures, but that are not built yet.
    """

    decision: Decision
    now: Situation
    missing: Sequence[int]
    free: list[int] = field(default_factory=list)  # build hosts that have no build yet
    cut_already: int = 0

    def builds_to_begin(self) -> tuple[BuildOrder, ...]:
        """The builds that free build hosts begin now."""
        fleet = self.now.fleet
        self.free = [*fleet.free_build_hosts]
        chosen = [*self.needed_next, *self.needed_by_proof][: len(self.free)]
        chosen += [cut.candidate for cut in self._cuts(len(self.free) - len(chosen))]
        if not chosen and not self.in_flight:
            chosen = [v for v in self.missing if v not in self.now.record.skipped][: len(self.free)]
        builds = []
        for candidate in chosen:  # each candidate is built on the fastest free build host
            prices = [float(build_cost(self.now, [candidate], build_host=host)[0]) for host in self.free]
            builds.append(BuildOrder(candidate, self.free.pop(int(np.argmin(prices)))))
        return tuple(builds)

    def hosts_of_builds_to_cancel(self) -> tuple[int, ...]:
        """The numbers of the build hosts whose present builds perfbisect ends now, because other builds promise more
        information in the same time; must be called after ``builds_to_begin``.

        A build that has lasted less time than a run takes is not ended, because perfbisect waits for new readings
        before another build replaces the build.
        """
        now, needed = self.now, {*self.decision.needed_builds, *self.missing, *self._suspects_and_proof_builds}
        if not len(now.record.value):  # before the first run, the time of a run is unknown
            return ()
        weak = sorted(
            (self.parts.expected_bits(building.candidate) / time_left_in_runs(now, building), building.build_host)
            for building in now.fleet.building
            if not building.cancelled
            and building.candidate not in needed
            and building.seconds >= now.record.median_run_seconds
        )
        better = [Cut(candidate, URGENT_BITS) for candidate in self.needed_next[len(now.fleet.free_build_hosts) :]]
        better += self._cuts(len(weak) - len(better))
        return tuple(
            host
            for (rate, host), cut in zip(weak, better, strict=False)
            if cut.bits / float(build_cost(now, [cut.candidate], build_host=host)[0]) > WORTH * rate
        )

    def build_while_waiting(self, order: Measure, begun: Collection[int]) -> Measure | None:
        """A work order for the build that the host of ``order`` makes while the host waits for a build host; None if
        the build takes much longer than the wait.

        ``begun`` are the candidates that build hosts begin to build after this decision.
        """
        now = self.now
        candidates = [v for v in (*self.needed_next, *self.needed_by_proof) if v not in begun]
        candidate = candidates[0] if candidates else next((cut.candidate for cut in self._cuts(1)), None)
        if candidate is None:
            return None
        cost = float(build_cost(now, [candidate], host=order.host)[0])
        wait = min([*wait_in_runs(now).values(), *(now.build_cost_in_runs for _ in begun)], default=np.inf)
        if cost > PATIENCE * wait:
            return None
        return Measure((PlannedRuns(candidate, 0),), order.purpose, order.host)

    @cached_property
    def in_flight(self) -> frozenset[int]:
        """The candidates that build hosts and other hosts are building now."""
        of_hosts = {share.candidate for order in self.now.fleet.busy for share in order.plan}
        return self.now.fleet.candidates_in_build | (of_hosts - self.now.record.built_on_any_host)

    @cached_property
    def needed_next(self) -> list[int]:
        """The candidates whose builds the search needs next: ``decision.needed_builds`` and ``missing``. If the
        decision's work order only narrows the range (``Purpose.SEARCH``), the candidates ``missing`` are not added,
        because the search can measure other builds in place of these candidates."""
        explored = isinstance(self.decision.order, Measure) and self.decision.order.purpose is Purpose.SEARCH
        return self._still_to_build([*self.decision.needed_builds, *(() if explored else self.missing)])

    @cached_property
    def needed_by_proof(self) -> list[int]:
        """The candidates whose builds the proof will need, at most as many as the budget allows."""
        unbuilt = self._still_to_build(self._suspects_and_proof_builds)
        return [v for v in unbuilt if v not in self.needed_next][: self._max_ahead]

    @cached_property
    def parts(self) -> PartsBetweenBuilds:
        """The parts into which all builds without readings cut the range: finished builds, builds in progress, and the
        builds of ``needed_next`` and ``needed_by_proof``.
        """
        record = self.now.record
        cuts = self.in_flight | {v for v in record.built if v not in record.build_name}.difference(record.builds)
        next_builds = [*self.needed_next, *self.needed_by_proof]
        reach = ancestry_of(self.now.graph)
        return PartsBetweenBuilds(reach, self.decision.belief.culprit, sorted({*cuts, *next_builds} - record.skipped))

    @cached_property
    def build_success_chance(self) -> Array:
        """The probability that each candidate can be built, or 0 if the candidate must not be chosen."""
        chance = build_success_chances(self.now)
        chance[[*self.now.record.built_on_any_host, *self.in_flight, *self.needed_next, *self.needed_by_proof]] = 0.0
        chance[: self.now.graph.candidates.start] = 0.0
        return chance

    @cached_property
    def _suspects_and_proof_builds(self) -> list[int]:
        """The most probable candidates, each followed by the builds with which a proof compares the candidate."""
        now, culprit = self.now, self.decision.belief.culprit
        likely = np.flatnonzero(culprit >= SUSPECTED)
        likely = likely[np.argsort(-culprit[likely], kind="stable")]
        return [v for node in likely.tolist() for v in (node, *comparison_builds(now.graph, now.record, node))]

    @cached_property
    def _max_ahead(self) -> int:
        """The number of builds that may be made before the search needs the builds."""
        builds_left = self.now.budget.builds_left(self.needed_next)
        return self.now.graph.size if builds_left == np.inf else max(int(ON_SUSPICION * builds_left), 0)

    def _still_to_build(self, candidates: Sequence[int]) -> list[int]:
        """The entries of ``candidates`` that are not built, not being built, and not skipped; each entry once."""
        record = self.now.record
        return [
            v for v in dict.fromkeys(candidates) if v not in self.in_flight | record.built_on_any_host | record.skipped
        ]

    def _cuts(self, count: int) -> Iterator[Cut]:
        """Yields at most ``count`` candidates whose builds cut the range best, and no candidate that an earlier call
        has yielded."""
        order = self.decision.order
        if isinstance(order, Measure) and order.fresh:  # a randomized layout needs no new build
            return
        allowed = self._max_ahead - len(self.needed_by_proof) - self.cut_already
        for cut in self.parts.cut(min(count, allowed), self.build_success_chance, self._build_cost, LEAST_BITS):
            self.cut_already += 1
            self.build_success_chance[cut.candidate] = 0.0
            yield cut

    def _build_cost(self, candidates: list[int]) -> Array:
        """The cost of building each candidate on its fastest build host, to the power of BUILD_EXPONENT."""
        hosts = self.free or self.now.fleet.free_build_hosts or (0,)
        chances = self.build_success_chance[candidates]
        costs = [build_cost(self.now, candidates, chances, build_host=host) for host in hosts]
        result: Array = np.min(costs, axis=0) ** BUILD_EXPONENT
        return result
