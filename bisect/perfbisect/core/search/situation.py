"""All that a decision depends on, in one value: the argument of every rule of the search; and the budgets in it.

What the user allows the hunt to spend, and what is left of it: the present orders of other hosts are charged in
advance: their runs, and the builds that they will need. Of such an order the runs that have ended count twice until all
of it has ended, so a budget is sometimes held back, but never exceeded.
"""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from perfbisect.core.domain.fleet import ALL_FREE, Fleet
from perfbisect.core.domain.graph import Graph
from perfbisect.core.domain.observations import Observation
from perfbisect.core.domain.orders import Decision, Inconclusive, Interval, Measure, Order, Reason, Share
from perfbisect.core.domain.policy import NOTHING_KNOWN, Policy, PriorKnowledge
from perfbisect.core.inference.noise_model import USUAL, NoiseModel
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
        return not self.policy.max_builds or len(self._attempted) < self.policy.max_builds

    def builds_left(self, besides: Collection[int] = ()) -> float:
        """How many more builds may be attempted, once those of ``besides`` have been."""
        if not self.policy.max_builds:
            return math.inf
        return max(self.policy.max_builds - len(self._attempted.union(besides)), 0)

    def ended(self, order: Order) -> bool:
        """Whether ``order`` is the end of a hunt that would go on if it were allowed to spend more."""
        return isinstance(order, Inconclusive) and order.reason in (Reason.BUILDS_SPENT, self.spent)

    def allows(self, order: Measure) -> bool:
        """Whether ``order`` may be given, if need be with fewer runs (see ``within``)."""
        return not self.spent and self.builds_allowed(order)

    def builds_allowed(self, order: Measure) -> bool:
        """Whether the builds that ``order`` needs are allowed."""
        attempted = self._attempted
        new = self._unbuilt(order) - attempted
        return not new or not self.policy.max_builds or len(attempted) + len(new) <= self.policy.max_builds

    def within(self, order: Measure) -> Measure:
        """``order`` with no more runs than are left, divided as evenly as they were."""
        left = self.policy.max_runs - self._runs
        total = sum(share.runs for share in order.plan)
        if not self.policy.max_runs or total <= left:
            return order
        plan = []
        for i, share in enumerate(order.plan):
            runs = min(share.runs, -(-left // (len(order.plan) - i)))
            if runs > 0:
                plan.append(Share(share.candidate, runs))
                left -= runs
        return replace(order, plan=tuple(plan))

    @property
    def _runs(self) -> int:
        return len(self.record.value) + self.fleet.runs + self.elsewhere.runs

    @property
    def _attempted(self) -> frozenset[int]:
        """Candidates that were built, or will have been; one that several hosts build counts once."""
        return self.record.attempted.union(self.fleet.in_flight, *(self._unbuilt(order) for order in self.fleet.busy))

    def _unbuilt(self, order: Measure) -> frozenset[int]:
        """The candidates of ``order`` that no host has built yet."""
        record = self.record
        return frozenset(share.candidate for share in order.plan) - record.built - record.skipped - set(record.builds)


@dataclass(frozen=True, slots=True)
class Proposal(Decision):
    """A decision with what the rules of the search tell each other and the loop; none of that is shown or stored."""

    # The ratio on each host class, on which further decisions are based: of the named step in the runs of its proof alone,
    # or of the ends with the share of layout. Empty before both ends were measured.
    evidence: tuple[Interval, ...] = ()
    waits: bool = False  # the order cannot be carried out yet: builds that it needs are not there
    wanted: tuple[int, ...] = ()  # candidates whose builds are needed next, most urgent first


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

    @property
    def bad(self) -> int:
        """The node of the bad end."""
        return self.graph.size - 1

    @cached_property
    def record(self) -> Record:
        """The observations, arranged for the model."""
        return arrange(self.observations, self.policy, self.bad)

    @cached_property
    def budget(self) -> Budget:
        """What may still be spent."""
        return Budget(self.record, self.policy, self.fleet, self.elsewhere)

    def missing(self, order: Measure) -> tuple[int, ...]:
        """The candidates of ``order`` whose builds are not there, where build hosts make them; empty where hosts build."""
        if not self.fleet.builds_ahead:
            return ()
        return tuple(share.candidate for share in order.plan if share.runs and share.candidate not in self.record.there)

    @cached_property
    def build_runs(self) -> float:
        """The usual cost of one more build, in runs."""
        return self.record.build_runs(self.prior.build_cost)
