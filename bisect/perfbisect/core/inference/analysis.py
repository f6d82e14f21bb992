"""Everything that follows from the readings at one moment of a hunt, and the belief that views and the record show.

Host classes have the culprit in common, each with an effect of its own. The readings of each host class are a record of
their own, with its own noise, drift, layout and size of the change. So the log likelihoods of a culprit are summed:

    log P(K | all)  =  log P(K)  +  Σ over the classes  log P(readings of the class | K)  +  a constant

A class on which the ends do not differ does not show where the change is, and is left out. Where there are several
changes, the largest need not be the same on all classes: then each class keeps its own probabilities. How likely that
is follows from how well the classes agree about the place.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from perfbisect.core.domain.graph import Graph
from perfbisect.core.domain.orders import Belief, Interval
from perfbisect.core.domain.policy import CAP, Policy
from perfbisect.core.inference import endpoints
from perfbisect.core.inference.ancestry import ancestry_of
from perfbisect.core.inference.code_placement import without_modes
from perfbisect.core.inference.endpoints import Contrast
from perfbisect.core.inference.hypotheses import Hypotheses
from perfbisect.core.inference.noise_model import USUAL, NoiseModel
from perfbisect.core.inference.posterior import BASE, CHANGE, NEVER, Posterior, infer
from perfbisect.core.inference.record import Record
from perfbisect.core.inference.relative_speed import Speeds, speeds
from perfbisect.core.inference.state_space import Fit, Levels, fit, levels_of
from perfbisect.core.inference.unusual_readings import BEYOND, Behaviour, behaviour, beyond

NOISY = 0.05  # s.d. of one run from which a host is called noisy
DRIFTING = 0.9


def prior_belief(graph: Graph, model: NoiseModel = USUAL) -> Belief:
    """Before both ends were measured."""
    weight = graph.weight.copy()
    weight[0] = 0.0
    culprit = weight / max(weight.sum(), 1e-300)
    effect = Interval(float(np.exp(-2 * BASE)), 1.0, float(np.exp(2 * BASE)))
    return Belief(culprit, 0.5, model.noise, effect, slow=_known(ancestry_of(graph).sums(culprit)))


def believed(
    groups: Hypotheses, posterior: Posterior, record: Record, effect: Interval, levels: Levels, behaviour: Behaviour
) -> Belief:
    """The belief that ``levels`` support; ``effect`` is bad relative to good."""
    culprit = groups.spread(posterior.culprit)
    slow = groups.reach.sums(culprit)
    slow[list(record.builds)] = groups.slow @ posterior.culprit
    change = float(np.clip(posterior.change, 1 - CAP, CAP))
    noticed = warnings(levels, behaviour, posterior.several)
    return Belief(culprit, change, levels.noise, effect, noticed, _known(slow), posterior.several)


def _known(slow: NDArray[np.float64]) -> NDArray[np.float64]:
    """Probabilities without what rounding adds, and 0.5 where nothing is known."""
    result: NDArray[np.float64] = np.clip(np.where(np.isnan(slow), 0.5, slow), 0.0, 1.0)
    return result


def warnings(levels: Levels, behaviour: Behaviour, several: float) -> tuple[str, ...]:
    """What the user should know of the host and the range, a short sentence each."""
    found = []
    if behaviour.two_speeds:
        found.append("the host runs at two speeds: readings fall into two groups")
    if float(levels.probability @ (levels.drift > 0)) > DRIFTING:
        found.append("the host drifts; builds are compared only with neighbours in time")
    if levels.noise > NOISY:
        found.append(f"runs of one build vary by {100 * levels.noise:.0f} %")
    if behaviour.outliers > max(1, 0.03 * len(behaviour.weight)):
        found.append(f"{behaviour.outliers} readings are far from the others of their build and hardly count")
    if several > 0.9:
        found.append("there is more than one change in the range; the largest is hunted first")
    return tuple(found)


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


APART = 0.01  # prior that the largest change is not the same on all classes


def with_common_culprit(each: Sequence[Analysis | None]) -> list[Analysis | None]:
    """The analyses of the host classes, with common probabilities where a class shows a change.

    None stands for a class on which one of the ends has no reading.
    """
    parts = [known for known in each if known and known.shows]
    if len(parts) < 2:
        return list(each)
    prior = parts[0].groups.prior
    total = np.log(prior) + sum(np.log(np.maximum(known.posterior.culprit / prior, NEVER)) for known in parts)
    top = float(total.max())
    share = np.exp(total - top)
    agreement = top + float(np.log(share.sum()))  # log likelihood of a common culprit, relative to one for each class
    shared = float(np.exp(-np.logaddexp(0.0, np.log(APART / (1 - APART)) - agreement)))
    # The odds of a change are multiplied too, corrected for how well the classes agree about its place.
    alone = np.clip([known.posterior.change for known in parts], 1e-12, 1 - 1e-12)
    change = float(np.exp(-np.logaddexp(0.0, (np.log1p(-alone) - np.log(alone)).sum() - agreement)))
    several = max(known.posterior.several for known in parts)

    def common(known: Analysis) -> Analysis:
        own = known.posterior
        posterior = replace(
            own,
            culprit=shared * share / share.sum() + (1 - shared) * own.culprit,
            change=shared * change + (1 - shared) * own.change,
            several=several,
        )
        belief = believed(known.groups, posterior, known.record, known.effect, known.levels, known.seen)
        return replace(known, posterior=posterior, belief=belief)

    return [common(known) if known and known.shows else known for known in each]
