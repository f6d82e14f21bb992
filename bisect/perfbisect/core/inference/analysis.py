"""Everything that follows from the readings at one moment of a hunt."""

from dataclasses import dataclass

from perfbisect.core.domain.graph import Graph
from perfbisect.core.domain.orders import Belief, Interval
from perfbisect.core.domain.policy import Policy
from perfbisect.core.inference import endpoints
from perfbisect.core.inference.belief import believed
from perfbisect.core.inference.endpoints import Contrast
from perfbisect.core.inference.hypotheses import Hypotheses
from perfbisect.core.inference.outliers import Behaviour, behaviour
from perfbisect.core.inference.posterior import CHANGE, Posterior, infer
from perfbisect.core.inference.record import Record
from perfbisect.core.inference.relative_speed import Speeds, speeds
from perfbisect.core.inference.state_space import Levels, fit, levels_of

ANOTHER = 0.2  # prior of a change in a subrange of a range that was searched for its largest
UNCHANGED = 0.08  # probability of any change below which there is nothing to find


@dataclass(frozen=True, slots=True, eq=False)
class Analysis:
    """Everything that follows from the readings, at one moment of the hunt over ``graph`` under ``policy``."""

    graph: Graph
    policy: Policy
    record: Record
    levels: Levels
    speeds: Speeds
    groups: Hypotheses
    posterior: Posterior
    ends: Contrast
    seen: Behaviour
    belief: Belief
    subrange: bool  # part of a range that was searched for its largest change

    @property
    def effect(self) -> Interval:
        """The metric of the bad end relative to the good end."""
        return self.belief.effect

    @property
    def searching(self) -> bool:
        """Whether anything between the ends was measured; in a subrange that may have been for the sake of another one."""
        ends = (0, self.record.name(self.graph.size - 1))
        return not self.subrange and any(b not in ends for b in self.record.builds)

    @property
    def nothing(self) -> bool:
        """Whether there is nothing to find, as far as these readings show."""
        hopeless_ends = endpoints.nothing(self.ends, self.policy, self.searching)
        return hopeless_ends or (self.ends.runs >= 3 and self.posterior.change < UNCHANGED)

    @property
    def differ(self) -> bool:
        """Whether the ends differ clearly enough to search."""
        return endpoints.differ(self.ends, self.searching)


def analyse(
    graph: Graph,
    policy: Policy,
    record: Record,
    groups: Hypotheses,
    noise: float | None = None,
    *,
    subrange: bool = False,
) -> Analysis:
    """What follows from the readings of ``record``, in which both ends have some; ``noise`` is that of a run, if known."""
    bad = record.name(graph.size - 1)
    seen = behaviour(record, 0, bad)
    fitted = fit(record, seen.weight)
    levels, compared = levels_of(fitted, noise), speeds(record, fitted)
    ends = endpoints.contrast(levels, record.builds.index(0), record.builds.index(bad))
    drop = max(ends.drop, endpoints.least(policy))
    posterior = infer(levels, groups, drop, ends.error, change=ANOTHER if subrange else CHANGE)
    belief = believed(groups, posterior, record, compared.ratio(bad, 0), levels, seen)
    return Analysis(graph, policy, record, levels, compared, groups, posterior, ends, seen, belief, subrange)
