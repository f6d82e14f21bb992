"""All that a decision depends on, in one value: the argument of every rule of the search."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from perfbisect.core.domain.fleet import ALL_FREE, Fleet
from perfbisect.core.domain.graph import Graph
from perfbisect.core.domain.observations import Observation
from perfbisect.core.domain.orders import Measure
from perfbisect.core.domain.policy import Policy
from perfbisect.core.domain.prior_knowledge import NOTHING_KNOWN, PriorKnowledge
from perfbisect.core.inference.noise_model import USUAL, NoiseModel
from perfbisect.core.inference.record import Record, arrange
from perfbisect.core.search.budget import NOTHING_SPENT, Budget, Spent


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
