"""Everything that follows from the readings at one moment of a hunt."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from perfbisect.core.domain.graph import Graph
from perfbisect.core.domain.orders import Belief, Interval
from perfbisect.core.domain.policy import Policy
from perfbisect.core.inference import endpoints
from perfbisect.core.inference.belief import believed
from perfbisect.core.inference.endpoints import Contrast
from perfbisect.core.inference.hypotheses import Hypotheses
from perfbisect.core.inference.layout_modes import without_modes
from perfbisect.core.inference.noise_model import USUAL, NoiseModel
from perfbisect.core.inference.outliers import Behaviour, behaviour
from perfbisect.core.inference.posterior import CHANGE, Posterior, infer
from perfbisect.core.inference.record import Record
from perfbisect.core.inference.relative_speed import Speeds, speeds
from perfbisect.core.inference.state_space import Fit, Levels, fit, levels_of
from perfbisect.core.inference.stopped_runs import BEYOND, beyond

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
    by_distance: tuple[Posterior, ...]  # for distances of stopped runs beyond their bounds; empty if none was stopped
    subrange: bool  # part of a range that was searched for its largest change

    @property
    def model(self) -> NoiseModel:
        """What the readings can be disturbed by."""
        return self.levels.model

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
        hopeless_ends = endpoints.nothing(self.ends, self.policy, self.searching, self.model)
        return hopeless_ends or (self.ends.runs >= self.model.fewest and self.posterior.change < UNCHANGED)

    @property
    def differ(self) -> bool:
        """Whether the ends differ clearly enough to search."""
        return endpoints.differ(self.ends, self.searching)

    @property
    def shows(self) -> bool:
        """Whether the readings show a change, and so can show where it is."""
        return self.differ and not self.nothing


def analyse(
    graph: Graph,
    policy: Policy,
    record: Record,
    groups: Hypotheses,
    noise: float | None = None,
    *,
    model: NoiseModel = USUAL,
    subrange: bool = False,
) -> Analysis:
    """What follows from the readings of ``record``, in which both ends have some; ``noise`` is that of a run, if known."""
    bad = record.name(graph.size - 1)
    trust: NDArray[np.float64] | float = 1.0
    if model.modes:
        record, trust = without_modes(record, 0, bad)
    seen = behaviour(record, 0, bad, model)
    seen = replace(seen, weight=seen.weight * trust)

    def inferred(fitted: Fit) -> tuple[Levels, Contrast, Posterior]:
        levels = levels_of(fitted, noise)
        ends = endpoints.contrast(levels, record.builds.index(0), record.builds.index(bad))
        drop = max(ends.drop, endpoints.least(policy))
        return levels, ends, infer(levels, groups, drop, ends.error, change=ANOTHER if subrange else CHANGE)

    fitted = fit(record, seen.weight, model)
    levels, ends, posterior = inferred(fitted)
    by_distance: tuple[Posterior, ...] = ()
    if record.bound.any():
        further = (inferred(fit(beyond(record, distance), seen.weight, model))[2] for distance in BEYOND)
        by_distance = (posterior, *further)
        posterior = _mean(by_distance)
    compared = speeds(record, fitted)
    belief = believed(groups, posterior, record, compared.ratio(bad, 0), levels, seen)
    return Analysis(
        graph, policy, record, levels, compared, groups, posterior, ends, seen, belief, by_distance, subrange
    )


def _mean(each: Sequence[Posterior]) -> Posterior:
    """The mean of the probabilities; readings are predicted from the first."""
    culprit = np.mean([one.culprit for one in each], axis=0)
    change, several = (float(np.mean([getattr(one, name) for one in each])) for name in ("change", "several"))
    return replace(each[0], culprit=culprit, change=change, several=several)
