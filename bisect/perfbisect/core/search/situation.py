"""All that a decision depends on, in one value: the argument of every rule of the search; and the budgets in it.

What the user allows the hunt to spend, and what is left of it: the present orders of other hosts are charged in
advance: their runs, and the builds that they will need. Of such an order the runs that have ended count twice until all
of it has ended, so a budget is sometimes held back, but never exceeded.

A part of a range as a range of its own: what is reachable from one candidate and not from another.

A branch inside may have begun before the subrange's good end: where it began is a branch point of the subrange, as in
any range. A candidate may lack changes that the good end has, or have others; where those are known, its readings are
corrected for them.
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfbisect.core.domain.graph import Graph
from perfbisect.core.domain.orders import (
    ALL_FREE,
    SAME,
    UNKNOWN,
    Belief,
    Decision,
    Fleet,
    Inconclusive,
    Interval,
    Measure,
    NotReproduced,
    Order,
    Reason,
    Share,
    Verdict,
)
from perfbisect.core.domain.settings import CAP, NOTHING_KNOWN, Policy, PriorKnowledge
from perfbisect.core.inference.ancestry import ancestry_of
from perfbisect.core.inference.noise_model import USUAL, NoiseModel
from perfbisect.core.inference.observations import Built, Count, Observation, Reading, count_runs
from perfbisect.core.inference.record import Record, arrange


@dataclass(frozen=True, slots=True)
class Spent:
    """What hunts of other workloads have spent of common budgets; their builds are among the observations of each."""

    runs: int = 0
    minutes: float = 0.0  # since the hunt began, as far as their observations show


NOTHING_SPENT = Spent()


@dataclass(frozen=True, slots=True, eq=False)
class Budget:
    """The limits of ``policy``, of which ``record``, the orders of ``fleet`` and other hunts have spent a part."""

    record: Record
    policy: Policy
    fleet: Fleet
    elsewhere: Spent = NOTHING_SPENT

    @property
    def spent(self) -> Reason | None:
        """The limit of runs or of time that is reached."""
        if self.policy.max_runs and self._runs >= self.policy.max_runs:
            return Reason.RUNS_SPENT
        minutes = max(self.record.minutes, self.elsewhere.minutes, self.fleet.minutes)
        if self.policy.max_minutes and minutes >= self.policy.max_minutes:
            return Reason.MINUTES_SPENT
        return None

    @property
    def may_build(self) -> bool:
        """Whether another build may be attempted; failed attempts count."""
        return self.builds_left() > 0

    def builds_left(self, besides: Collection[int] = ()) -> float:
        """How many more builds may be attempted, once those of ``besides`` have been; below 0 if those are too many."""
        return (self.policy.max_builds or math.inf) - len(self._attempted.union(besides))

    def ended(self, order: Order) -> bool:
        """Whether ``order`` is the end of a hunt that would go on if it were allowed to spend more."""
        return isinstance(order, Inconclusive) and order.reason in (Reason.BUILDS_SPENT, self.spent)

    def allows(self, order: Measure) -> bool:
        """Whether ``order`` may be given, if need be with fewer runs (see ``within``)."""
        if order.together and 0 < self.policy.max_runs < self._runs + 2:  # a round has two runs
            return False
        return not self.spent and self.builds_allowed(order)

    def builds_allowed(self, order: Measure) -> bool:
        """Whether the builds that ``order`` needs are allowed."""
        new = self._unbuilt(order) - self._attempted
        return not new or self.builds_left(new) >= 0

    def within(self, order: Measure) -> Measure:
        """``order`` with no more runs than are left, divided as evenly as they were."""
        left = self.policy.max_runs - self._runs
        if not self.policy.max_runs or sum(share.runs for share in order.plan) <= left:
            return order
        plan = []
        for i, share in enumerate(order.plan):
            runs = min(share.runs, left // 2 if order.together else -(-left // (len(order.plan) - i)))
            left -= 0 if order.together else runs
            plan.append(Share(share.candidate, runs))
        return replace(order, plan=tuple(share for share in plan if share.runs > 0 or order.together))

    @property
    def _runs(self) -> int:
        return self.record.spent + self.fleet.runs + self.elsewhere.runs

    @property
    def _attempted(self) -> frozenset[int]:
        """Candidates that were built, or will have been; one that several hosts build counts once."""
        return self.record.attempted.union(self.fleet.in_flight, *(self._unbuilt(order) for order in self.fleet.busy))

    def _unbuilt(self, order: Measure) -> frozenset[int]:
        """The candidates of ``order`` that no host has built yet."""
        record = self.record
        return frozenset(share.candidate for share in order.plan) - record.built - record.skipped - set(record.builds)


@dataclass(frozen=True, eq=False)
class Situation:
    """A moment of the hunt over ``graph``."""

    graph: Graph
    observations: Sequence[Observation]
    policy: Policy
    prior: PriorKnowledge = NOTHING_KNOWN
    fleet: Fleet = ALL_FREE
    # part of a range whose largest change is searched for already: another change in it is less likely beforehand
    subrange: bool = False
    model: NoiseModel = USUAL  # what the readings can be disturbed by
    shared: bool = False  # whether builds may be there that were made for other workloads
    elsewhere: Spent = NOTHING_SPENT  # by other workloads, on the same budgets
    clean: bool = False  # a proof has contradicted the search: since then incremental builds count no more
    proofs: frozenset[int] = frozenset()  # candidates that a proof had built again, after an incremental build

    @property
    def bad(self) -> int:
        """The node of the bad end."""
        return self.graph.size - 1

    @cached_property
    def readings(self) -> list[Reading]:
        """The observations that are readings."""
        return [seen for seen in self.observations if isinstance(seen, Reading)]

    @cached_property
    def record(self) -> Record:
        """The observations, arranged for the model."""
        return arrange(self.observations, self.policy, self.bad)

    @cached_property
    def budget(self) -> Budget:
        """What may still be spent."""
        return Budget(self.record, self.policy, self.fleet, self.elsewhere)

    def seen_as(
        self,
        node: Callable[[Observation], int | None],
        same: Callable[[Built], int | None] | None = None,
        offset: Callable[[Reading], float] | None = None,
        **others: Any,
    ) -> "Situation":
        """Another situation, made of this one: all wrappers of the search ask it about one that they have made so.

        ``node`` is the node of an observation there, or None if it does not count; ``same`` is the node with the same binary
        as a build (None: the same as here), ``offset`` is added to a reading. ``others`` are further fields that differ.
        """
        observations: list[Observation] = []
        for seen in self.observations:
            if (place := node(seen)) is None:
                continue
            if isinstance(seen, Reading) and seen.partner is not None:
                beside = replace(seen, candidate=seen.partner)
                if (partner := node(beside)) is None:
                    continue
                change = offset(seen) - offset(beside) if offset else 0.0
                seen = replace(seen, value=seen.value + change, partner=partner)
            elif isinstance(seen, Reading) and offset:
                seen = replace(seen, value=seen.value + offset(seen))
            elif isinstance(seen, Built) and same:
                seen = replace(seen, same_as=same(seen))
            observations.append(seen if place == seen.candidate else replace(seen, candidate=place))
        return replace(self, observations=observations, **others)

    def with_readings(self, counts: Callable[[Reading], bool], **others: Any) -> "Situation":
        """The same with those readings alone that count."""
        return self.seen_as(
            lambda seen: seen.candidate if not isinstance(seen, Reading) or counts(seen) else None, **others
        )

    def charged(self, whole: "Situation") -> "Situation":
        """This part of ``whole``, whose other runs have been spent elsewhere."""
        runs = whole.elsewhere.runs + count_runs(whole.observations) - count_runs(self.observations)
        return replace(self, elsewhere=replace(whole.elsewhere, runs=runs))

    def missing(self, order: Measure) -> tuple[int, ...]:
        """The candidates of ``order`` whose builds are not there, where build hosts make them; empty where hosts build."""
        if not self.fleet.builds_ahead:
            return ()
        return tuple(share.candidate for share in order.plan if share.runs and share.candidate not in self.record.there)

    @cached_property
    def build_runs(self) -> float:
        """The usual cost of one more build, in runs."""
        return self.record.build_runs(self.prior.build_cost)


CENTRAL = 0.1  # of the subrange: the middle may be so much farther from where its halves are even


@dataclass(frozen=True, slots=True, eq=False)
class Subrange:
    """The range good..bad within ``whole``."""

    whole: Graph
    good: int
    bad: int
    graph: Graph
    nodes: NDArray[np.int64]  # (subrange's size,): the candidate of the whole for each node of the subrange
    place: NDArray[np.int64]  # (whole's size,): the node of each candidate, -1 outside

    def __contains__(self, candidate: int) -> bool:
        """Whether a candidate of the whole is one of the subrange."""
        return int(self.place[candidate]) in self.graph.candidates

    def situation(self, whole: Situation, changes: Mapping[int, Sequence[Interval]]) -> Situation:
        """The situation as seen in the subrange, corrected for ``changes``, which are known: by candidate, on each host class.

        Candidates with equal binaries are named by the first of them inside.
        """
        places = {
            v: int(self.place[v]) for v in (*whole.fleet.candidates, *whole.fleet.in_flight) if self.place[v] >= 0
        }
        name: dict[int, int] = {}
        for seen in whole.observations:
            if isinstance(seen, Built) and seen.same_as is not None:
                name[seen.candidate] = name.get(seen.same_as, seen.same_as)
        inside: dict[int, int] = {}  # name of a binary → node of the subrange that represents it
        for candidate in sorted({*name, *name.values()}, key=lambda c: (self.place[c] < 0, c)):
            inside.setdefault(name.get(candidate, candidate), int(self.place[candidate]))

        def represented(seen: Observation) -> int:
            return inside.get(name.get(seen.candidate, seen.candidate), int(self.place[seen.candidate]))

        def node(seen: Observation) -> int | None:
            place = represented(seen) if isinstance(seen, Reading | Count) else int(self.place[seen.candidate])
            return place if place >= 0 else None

        def same(seen: Built) -> int | None:
            return place if (place := represented(seen)) != self.place[seen.candidate] else None

        return whole.seen_as(
            node,
            same,
            lambda seen: self._lacking(seen, changes, whole.prior),
            graph=self.graph,
            fleet=whole.fleet.renumbered(places),
            subrange=True,
        )

    def _lacking(self, seen: Reading, changes: Mapping[int, Sequence[Interval]], prior: PriorKnowledge) -> float:
        """The known changes that the good end has and a build has not, less those of which the reverse is true."""
        if not changes or seen.candidate == self.good:
            return 0.0
        reach, of_host = ancestry_of(self.whole), prior.class_of(seen.host)
        has, own = reach.ancestors(self.good), reach.ancestors(seen.candidate)
        known = {step: math.log(ratios[of_host].middle) for step, ratios in changes.items()}
        return sum(change * (int(has[step]) - int(own[step])) for step, change in known.items())

    def outer(self, nodes: Sequence[int]) -> tuple[int, ...]:
        """Nodes of the subrange as candidates of the whole."""
        return tuple(int(self.nodes[node]) for node in nodes)

    def middles(self, chance: NDArray[np.float64]) -> list[int]:
        """The candidates that halve the subrange about equally well, best first, without the ends.

        Empty where nothing between them can be measured.
        ``chance`` (whole's size,) is the probability that a candidate builds.
        """
        below = ancestry_of(self.graph).sums(self.graph.weight / self.graph.weight.sum())
        uneven = np.abs(np.where(np.isnan(below), 2.0, below) - 0.5)
        uneven += (1 - chance[self.nodes]) / 2
        uneven[[0, -1]] = np.inf
        order = np.argsort(uneven, kind="stable")
        return [int(self.nodes[v]) for v in order if uneven[v] < min(uneven[order[0]] + CENTRAL, 0.5)]


@lru_cache(maxsize=64)
def subrange(whole: Graph, good: int, bad: int) -> Subrange:
    """The subrange good..bad."""
    reach = ancestry_of(whole)
    inside = reach.ancestors(bad) & ~reach.ancestors(good)
    inside[0] = False
    candidates = [v for v in np.flatnonzero(inside).tolist() if v in whole.candidates]
    points = sorted({p for v in candidates for p in whole.parents_of(v) if not (inside[p] and p in whole.candidates)})
    points = [point for point in points if point != good]
    nodes = np.array([good, *points, *candidates])
    place = np.full(whole.size, -1)
    place[nodes] = np.arange(len(nodes))
    rows = [(), *(() for _ in points), *(place[[*whole.parents_of(candidate)]].tolist() for candidate in candidates)]
    return Subrange(whole, good, bad, Graph.of(rows, whole.weight[nodes].tolist(), len(points)), nodes, place)


def pointless(graph: Graph, record: Record, policy: Policy) -> Verdict | None:
    """The verdict where no search is possible: an end cannot be measured, or both have the same binary."""
    bad = graph.size - 1
    if bad in record.skipped or 0 in record.skipped:
        return no_suspect(Reason.GOOD_UNMEASURABLE if 0 in record.skipped else Reason.BAD_UNMEASURABLE, policy)
    if record.name(bad) == 0 or not (graph.weight[1:] > 0).any():
        return NotReproduced(SAME, 0.0)
    return None


def undecided(belief: Belief, policy: Policy, reason: Reason) -> Inconclusive:
    """The smallest set of candidates that contains the culprit with the requested confidence."""
    candidates = credible_set(belief.culprit, min(policy.confidence, CAP))
    probabilities = tuple(min(float(belief.culprit[c]) * belief.change, CAP) for c in candidates)
    return Inconclusive(
        candidates, probabilities, belief.effect, reason, (), float(belief.several), limit(reason, policy)
    )


def no_suspect(reason: Reason, policy: Policy, ratio: Interval = UNKNOWN) -> Inconclusive:
    """The verdict where no candidate can be suspected, as before both ends were measured."""
    return Inconclusive((), (), ratio, reason, detail=limit(reason, policy))


def limit(reason: Reason, policy: Policy) -> float | None:
    """The budget that is used up, if that is the reason."""
    return {Reason.RUNS_SPENT: float(policy.max_runs), Reason.MINUTES_SPENT: policy.max_minutes}.get(reason)


def afforded(decision: Decision, now: Situation) -> Decision:
    """The decision within the whole budget, of which the search that made it may not have seen all that was spent."""
    order, budget = decision.order, now.budget
    if not isinstance(order, Measure):
        return decision
    if budget.allows(order):
        return replace(decision, order=budget.within(order))
    reason = budget.spent or (Reason.RUNS_SPENT if budget.builds_allowed(order) else Reason.BUILDS_SPENT)
    return replace(decision, order=undecided(decision.belief, now.policy, reason))


def credible_set(culprit: np.ndarray, confidence: float) -> tuple[int, ...]:
    """The fewest candidates that hold ``confidence`` together, most probable first.

    Candidates as probable as the last one belong to it as well: no reading separates them.
    """
    order = np.argsort(-culprit, kind="stable")
    held = np.cumsum(culprit[order])
    needed = int(np.searchsorted(held, min(confidence, held[-1] * (1 - 1e-9)))) + 1
    last = culprit[order[needed - 1]]
    while needed < len(order) and culprit[order[needed]] >= last * (1 - 1e-6) > 0:
        needed += 1
    return tuple(int(c) for c in order[:needed])
