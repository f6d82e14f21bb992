"""The situation of a hunt (all data on which a decision of the search depends), the budget of a hunt, and subranges.

The budget consists of the limits that the user sets for the runs, builds and minutes of a hunt. The runs and builds of
a work order are charged to the budget when the work order begins; its finished runs are charged again until the work
order ends. Therefore the search may plan fewer runs than the budget allows while a work order is carried out, but never
more.

A subrange is a part of a range: the commits that are reachable from one candidate (the bad end of the subrange) and not
from another candidate (the good end).

A branch inside a subrange may have begun before the subrange's good end. The commit where such a branch began is called
a branch point of the subrange. A candidate of such a branch may lack changes that the good end has, or have changes
that the good end lacks. If the size of a change is known, the candidate's readings are corrected for the change.
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
    PlannedRuns,
    Reason,
    Verdict,
)
from perfbisect.core.domain.settings import MAX_PROBABILITY, NOTHING_KNOWN, Policy, PriorKnowledge
from perfbisect.core.inference.ancestry import ancestry_of
from perfbisect.core.inference.noise_model import USUAL, NoiseModel
from perfbisect.core.inference.observations import Built, Count, Observation, Reading, count_own_runs
from perfbisect.core.inference.record import Record, arrange_observations


@dataclass(frozen=True, slots=True)
class ExtraCost:
    """The runs and minutes that are charged to the budget of a hunt, but are no readings of this hunt, for instance the
    runs of hunts of other workloads in the same session. Builds are left out, because each hunt of the session observes
    all builds.
    """

    runs: int = 0
    minutes: float = 0.0  # from the start of the hunt to the last observation of the other hunts


NO_EXTRA_COST = ExtraCost()


@dataclass(frozen=True, slots=True, eq=False)
class Budget:
    """The limits of ``policy``, and the runs, builds and minutes that this hunt, its present work orders and other
    hunts of the session have spent."""

    record: Record
    policy: Policy
    fleet: Fleet
    extra_cost: ExtraCost = NO_EXTRA_COST

    @property
    def reached_limit(self) -> Reason | None:
        """The limit (of runs or of time) that is reached; None if no limit is reached."""
        if self.policy.max_runs and self._runs >= self.policy.max_runs:
            return Reason.RUNS_SPENT
        minutes = max(self.record.minutes, self.extra_cost.minutes, self.fleet.minutes)
        if self.policy.max_minutes and minutes >= self.policy.max_minutes:
            return Reason.MINUTES_SPENT
        return None

    @property
    def may_build(self) -> bool:
        """Whether the budget of builds allows another build; failed builds are charged, too."""
        return self.builds_left() > 0

    def builds_left(self, planned: Collection[int] = ()) -> float:
        """The number of builds that the budget still allows if the candidates ``planned`` are built; negative if
        ``planned`` exceeds the budget."""
        return (self.policy.max_builds or math.inf) - len(self._attempted.union(planned))

    def is_spent_verdict(self, order: Order) -> bool:
        """Whether ``order`` is a verdict that is inconclusive because a budget is spent."""
        return isinstance(order, Inconclusive) and order.reason in (Reason.BUILDS_SPENT, self.reached_limit)

    def allows(self, order: Measure) -> bool:
        """Whether the budget allows the work order ``order``, perhaps with fewer runs (see ``within``)."""
        if order.together and 0 < self.policy.max_runs < self._runs + 2:  # a round of paired runs has two runs
            return False
        return not self.reached_limit and self.allows_builds_of(order)

    def allows_builds_of(self, order: Measure) -> bool:
        """Whether the budget allows the new builds that the work order ``order`` needs."""
        new = self._unbuilt(order) - self._attempted
        return not new or self.builds_left(new) >= 0

    def limit_runs(self, order: Measure) -> Measure:
        """The work order ``order`` with at most as many runs as the budget allows, divided evenly among its builds."""
        runs_left = self.policy.max_runs - self._runs
        if not self.policy.max_runs or sum(share.runs for share in order.plan) <= runs_left:
            return order
        plan = []
        for i, share in enumerate(order.plan):
            runs = min(share.runs, runs_left // 2 if order.together else -(-runs_left // (len(order.plan) - i)))
            runs_left -= 0 if order.together else runs
            plan.append(PlannedRuns(share.candidate, runs))
        return replace(order, plan=tuple(share for share in plan if share.runs > 0 or order.together))

    @property
    def _runs(self) -> int:
        return self.record.spent_runs + self.fleet.runs_in_progress + self.extra_cost.runs

    @property
    def _attempted(self) -> frozenset[int]:
        """The candidates whose build was attempted or is part of a present work order. A candidate that several hosts
        build counts once."""
        unbuilt = (self._unbuilt(order) for order in self.fleet.busy)
        return self.record.attempted.union(self.fleet.candidates_in_build, *unbuilt)

    def _unbuilt(self, order: Measure) -> frozenset[int]:
        """The candidates of the work order ``order`` that no host has built."""
        record = self.record
        return frozenset(share.candidate for share in order.plan) - record.built - record.skipped - set(record.builds)


@dataclass(frozen=True, eq=False)
class Situation:
    """The state of a hunt in the range ``graph``: all data on which the next decision of the search depends."""

    graph: Graph
    observations: Sequence[Observation]
    policy: Policy
    prior: PriorKnowledge = NOTHING_KNOWN
    fleet: Fleet = ALL_FREE
    # Whether this is a subrange of a range whose largest change is known, so that a further change has a lower prior.
    subrange: bool = False
    model: NoiseModel = USUAL  # the noise that the readings may have
    shares_builds: bool = False  # whether there may be builds that were made for other workloads
    extra_cost: ExtraCost = NO_EXTRA_COST  # cost of other workloads that is charged to the same budgets
    clean: bool = False  # whether a proof has contradicted the search, so that incremental builds are not used
    proofs: frozenset[int] = frozenset()  # candidates with an incremental build that a proof has built again

    @property
    def bad(self) -> int:
        """The node of the bad end."""
        return self.graph.size - 1

    @cached_property
    def readings(self) -> list[Reading]:
        """The observations that are readings."""
        return [item for item in self.observations if isinstance(item, Reading)]

    @cached_property
    def record(self) -> Record:
        """The observations, arranged in arrays for the statistical model."""
        return arrange_observations(self.observations, self.policy, self.bad)

    @cached_property
    def budget(self) -> Budget:
        """The limits that the policy sets for runs, builds and minutes, and how much of each limit is spent."""
        return Budget(self.record, self.policy, self.fleet, self.extra_cost)

    def remapped(
        self,
        node: Callable[[Observation], int | None],
        same_as: Callable[[Built], int | None] | None = None,
        offset: Callable[[Reading], float] | None = None,
        **fields: Any,
    ) -> "Situation":
        """A copy of this situation whose observations have other node numbers, for a search in another graph.

        ``node`` returns the new node of an observation, or None if the copy has to omit the observation. ``same_as``
        returns the new node whose build has the same binary as a given build; if ``same_as`` is None, a build keeps its
        field ``same_as``. ``offset`` returns the number to add to the value of a reading. ``fields`` are further fields
        to change.
        """
        observations: list[Observation] = []
        for item in self.observations:
            if (new_node := node(item)) is None:
                continue
            if isinstance(item, Reading) and item.partner is not None:
                of_partner = replace(item, candidate=item.partner)
                if (partner := node(of_partner)) is None:
                    continue
                change = offset(item) - offset(of_partner) if offset else 0.0
                item = replace(item, value=item.value + change, partner=partner)
            elif isinstance(item, Reading) and offset:
                item = replace(item, value=item.value + offset(item))
            elif isinstance(item, Built) and same_as:
                item = replace(item, same_as=same_as(item))
            observations.append(item if new_node == item.candidate else replace(item, candidate=new_node))
        return replace(self, observations=observations, **fields)

    def with_readings(self, is_kept: Callable[[Reading], bool], **fields: Any) -> "Situation":
        """A copy of this situation without the readings for which ``is_kept`` is false; ``fields`` are further fields
        to change."""
        return self.remapped(
            lambda item: item.candidate if not isinstance(item, Reading) or is_kept(item) else None, **fields
        )

    def charged_with(self, full: "Situation") -> "Situation":
        """A copy of this situation whose budget is charged with all runs of the situation ``full``. This situation has
        only some of the readings of ``full``.
        """
        runs = full.extra_cost.runs + count_own_runs(full.observations) - count_own_runs(self.observations)
        return replace(self, extra_cost=replace(full.extra_cost, runs=runs))

    def missing_builds(self, order: Measure) -> tuple[int, ...]:
        """The candidates of the work order ``order`` that no build host has built yet; empty if there are no build
        hosts, so that each host makes the builds that it measures."""
        if not self.fleet.has_build_host:
            return ()
        built = self.record.built_on_any_host
        return tuple(share.candidate for share in order.plan if share.runs and share.candidate not in built)

    @cached_property
    def build_cost_in_runs(self) -> float:
        """The usual duration of a build, as a multiple of the duration of a run."""
        return self.record.build_cost_in_runs(self.prior.build_cost)


CENTRAL = 0.1  # the middle may halve a subrange less evenly than the best candidate, by this share of the subrange


@dataclass(frozen=True, slots=True, eq=False)
class Subrange:
    """The subrange good..bad of the graph ``whole``."""

    whole: Graph
    good: int
    bad: int
    graph: Graph
    nodes: NDArray[np.int64]  # (subrange's size,): the candidate of the whole graph at each node of the subrange
    node_of: NDArray[np.int64]  # (whole's size,): the node of each candidate of the whole graph, -1 outside

    def __contains__(self, candidate: int) -> bool:
        """Whether a candidate of the whole graph is a candidate of the subrange."""
        return int(self.node_of[candidate]) in self.graph.candidates

    def situation(self, full: Situation, changes: Mapping[int, Sequence[Interval]]) -> Situation:
        """The part of the situation ``full`` that concerns the subrange, with readings corrected for known ``changes``.

        ``changes`` maps the candidate of each known change to the ratios of this change, one for each host class.
        Readings of builds with equal binaries are assigned to the first candidate of the subrange that has this binary.
        """
        numbers = {
            v: int(self.node_of[v])
            for v in (*full.fleet.candidates_in_measurement, *full.fleet.candidates_in_build)
            if self.node_of[v] >= 0
        }
        name: dict[int, int] = {}
        for item in full.observations:
            if isinstance(item, Built) and item.same_as is not None:
                name[item.candidate] = name.get(item.same_as, item.same_as)
        inside: dict[int, int] = {}  # name of a binary → node of the subrange that represents it
        for candidate in sorted({*name, *name.values()}, key=lambda c: (self.node_of[c] < 0, c)):
            inside.setdefault(name.get(candidate, candidate), int(self.node_of[candidate]))

        def representative(item: Observation) -> int:
            return inside.get(name.get(item.candidate, item.candidate), int(self.node_of[item.candidate]))

        def node(item: Observation) -> int | None:
            number = representative(item) if isinstance(item, Reading | Count) else int(self.node_of[item.candidate])
            return number if number >= 0 else None

        def same_as(build: Built) -> int | None:
            return number if (number := representative(build)) != self.node_of[build.candidate] else None

        return full.remapped(
            node,
            same_as,
            lambda reading: self._log_correction_to_good(reading, changes, full.prior),
            graph=self.graph,
            fleet=full.fleet.renumbered(numbers),
            subrange=True,
        )

    def _log_correction_to_good(
        self, reading: Reading, changes: Mapping[int, Sequence[Interval]], prior: PriorKnowledge
    ) -> float:
        """The sum of the known changes that good contains and the reading's build lacks, minus the sum of the changes
        that only the build contains, as logarithms of ratios."""
        if not changes or reading.candidate == self.good:
            return 0.0
        reach, host_class = ancestry_of(self.whole), prior.class_of(reading.host)
        of_good, of_build = reach.with_ancestors(self.good), reach.with_ancestors(reading.candidate)
        logs = {step: math.log(ratios[host_class].middle) for step, ratios in changes.items()}
        return sum(change * (int(of_good[step]) - int(of_build[step])) for step, change in logs.items())

    def candidates_of(self, nodes: Sequence[int]) -> tuple[int, ...]:
        """The candidates of the whole graph that correspond to these nodes of the subrange."""
        return tuple(int(self.nodes[node]) for node in nodes)

    def halving_candidates(self, build_probability: NDArray[np.float64]) -> list[int]:
        """The candidates between the ends of the subrange that halve the subrange best or almost as well, best first,
        as candidates of the whole graph.

        The list is empty if no candidate between the ends of the subrange can be measured. ``build_probability`` is the
        probability that each candidate of the whole graph can be built.
        """
        below = ancestry_of(self.graph).ancestor_sums(self.graph.weight / self.graph.weight.sum())
        uneven = np.abs(np.where(np.isnan(below), 2.0, below) - 0.5)
        uneven += (1 - build_probability[self.nodes]) / 2
        uneven[[0, -1]] = np.inf
        order = np.argsort(uneven, kind="stable")
        return [int(self.nodes[v]) for v in order if uneven[v] < min(uneven[order[0]] + CENTRAL, 0.5)]


@lru_cache(maxsize=64)
def subrange(whole: Graph, good: int, bad: int) -> Subrange:
    """The subrange good..bad of the graph ``whole``."""
    reach = ancestry_of(whole)
    inside = reach.with_ancestors(bad) & ~reach.with_ancestors(good)
    inside[0] = False  # the good end is no candidate
    candidates = [v for v in np.flatnonzero(inside).tolist() if v in whole.candidates]
    points = sorted({p for v in candidates for p in whole.parents_of(v) if not (inside[p] and p in whole.candidates)})
    points = [point for point in points if point != good]
    nodes = np.array([good, *points, *candidates])
    node_of = np.full(whole.size, -1)
    node_of[nodes] = np.arange(len(nodes))
    parents = [(), *(() for _ in points), *(node_of[[*whole.parents_of(v)]].tolist() for v in candidates)]
    graph = Graph.from_parents(parents, whole.weight[nodes].tolist(), len(points))
    return Subrange(whole, good, bad, graph, nodes, node_of)


def verdict_without_search(graph: Graph, record: Record, policy: Policy) -> Verdict | None:
    """The verdict if an end cannot be measured, or if both ends have the same binary; otherwise None."""
    bad = graph.size - 1
    if bad in record.skipped or 0 in record.skipped:
        return without_suspects(Reason.GOOD_UNMEASURABLE if 0 in record.skipped else Reason.BAD_UNMEASURABLE, policy)
    if record.build_id(bad) == 0 or not (graph.weight[1:] > 0).any():
        return NotReproduced(SAME, 0.0)
    return None


def with_suspects(belief: Belief, policy: Policy, reason: Reason) -> Inconclusive:
    """An inconclusive verdict whose suspects are the smallest set of candidates that contains the culprit with the
    requested confidence."""
    candidates = credible_set(belief.culprit, min(policy.confidence, MAX_PROBABILITY))
    probabilities = tuple(min(float(belief.culprit[v]) * belief.change, MAX_PROBABILITY) for v in candidates)
    several, limit = float(belief.several), spent_limit(reason, policy)
    return Inconclusive(candidates, probabilities, belief.effect, reason, (), several, limit)


def without_suspects(reason: Reason, policy: Policy, ratio: Interval = UNKNOWN) -> Inconclusive:
    """An inconclusive verdict that names no suspects, for example because an end cannot be measured."""
    return Inconclusive((), (), ratio, reason, detail=spent_limit(reason, policy))


def spent_limit(reason: Reason, policy: Policy) -> float | None:
    """The limit of runs or of minutes, if the reason is that this limit is reached; None for any other reason."""
    return {Reason.RUNS_SPENT: float(policy.max_runs), Reason.MINUTES_SPENT: policy.max_minutes}.get(reason)


def within_budget(decision: Decision, now: Situation) -> Decision:
    """The decision, whose work order is cut to the runs that the budget of ``now`` allows; a verdict if the budget does
    not allow the work order.

    This check is necessary because the part of the search that made ``decision`` may not know all runs that are charged
    to the budget.
    """
    order, budget = decision.order, now.budget
    if not isinstance(order, Measure):
        return decision
    if budget.allows(order):
        return replace(decision, order=budget.limit_runs(order))
    reason = budget.reached_limit or (Reason.RUNS_SPENT if budget.allows_builds_of(order) else Reason.BUILDS_SPENT)
    return replace(decision, order=with_suspects(decision.belief, now.policy, reason))


def credible_set(culprit: np.ndarray, confidence: float) -> tuple[int, ...]:
    """The smallest set of candidates that contains the culprit with at least the probability ``confidence``, most
    probable candidate first.

    ``culprit`` has the probability of each candidate to be the culprit. The set also contains all candidates that are
    exactly as probable as its last candidate, because no build separates these candidates.
    """
    order = np.argsort(-culprit, kind="stable")
    total = np.cumsum(culprit[order])
    needed = int(np.searchsorted(total, min(confidence, total[-1] * (1 - 1e-9)))) + 1
    last = culprit[order[needed - 1]]
    while needed < len(order) and culprit[order[needed]] >= last * (1 - 1e-6) > 0:
        needed += 1
    return tuple(int(candidate) for candidate in order[:needed])
