"""The hunt for one change on hosts of several classes: the same commit everywhere, with an effect of its own on each.

The readings of each host class are a record of their own, with its own noise, drift, layout and size of the change; only
the culprit is common. So the likelihoods of a culprit in the classes are multiplied, with one prior:

    P(K | all)  ∝  P(K) · Π over the classes  P(readings of the class | K)

A class on which the ends do not differ does not show where the change is, and is left out. The next order for a host
depends on the levels and the drift of its own class, and on the common probabilities of a culprit; a proof on one class
is enough.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from perfbisect.core.domain.graph import Graph
from perfbisect.core.domain.observations import Reading
from perfbisect.core.domain.orders import (
    UNKNOWN,
    Belief,
    CodePlacement,
    Decision,
    Effect,
    Found,
    Inconclusive,
    Interval,
    Measure,
    NotReproduced,
    Reason,
    Several,
    Step,
    Verdict,
)
from perfbisect.core.inference import endpoints
from perfbisect.core.inference.analysis import Analysis, analyse
from perfbisect.core.inference.belief import believed, prior_belief
from perfbisect.core.inference.hypotheses import Hypotheses, hypotheses
from perfbisect.core.inference.relative_speed import leading
from perfbisect.core.search.confirm_or_explore import next_action
from perfbisect.core.search.confirmation import pairwise_proofs, weakest
from perfbisect.core.search.no_culprit import no_suspect, nothing_found, pointless, undecided
from perfbisect.core.search.situation import Situation

NEVER = 1e-300  # probability of a culprit that a host class rules out


@dataclass(frozen=True, slots=True, eq=False)
class _HostClass:
    """The hosts of one class, and what follows from their readings."""

    name: str
    hosts: tuple[int, ...]  # those that are not lost
    free: tuple[int, ...]  # those of ``hosts`` that are not busy
    now: Situation  # the readings are those of the class alone
    known: Analysis | None  # None until both ends were measured

    @property
    def takes_part(self) -> bool:
        """Whether its readings show a change, and so can show where it is."""
        return self.known is not None and not self.known.nothing and self.known.differ


def across_host_classes(now: Situation) -> Decision:
    """The next order, or the verdict. An order for a busy host means that there is nothing to do for the free ones."""
    graph, policy, budget = now.graph, now.policy, now.budget
    if verdict := pointless(graph, now.record, policy):
        return Decision(verdict, prior_belief(graph))
    groups = hypotheses(graph, now.record)
    each = _together([_host_class(name, now, groups) for name in dict.fromkeys(now.prior.host_classes)])
    belief = _belief(graph, each)
    lost = [one.name for one in each if one.takes_part and not one.hosts]
    if not lost and not any(one.hosts and not (one.known and one.known.nothing) for one in each):
        return Decision(_nothing_found(each), belief)
    orders = [(one, next_action(one.known, one.now, (one.free or one.hosts)[0])) for one in each if one.hosts]
    for _, order in orders:
        if isinstance(order, Found):
            return Decision(_with_effects(order, each), belief)
    if spent := budget.spent:
        stopped = undecided(belief, policy, spent) if _main(each) else no_suspect(spent, policy)
        return Decision(_with_effects(stopped, each), belief)
    measures = [(one, order) for one, order in orders if isinstance(order, Measure)]
    if measures:
        one, order = min(measures, key=lambda pair: (not pair[0].free, pair[0].free or pair[0].hosts))
        return Decision(budget.within(replace(order, host=(one.free or one.hosts)[0])), belief)
    ended = [order for _, order in orders if isinstance(order, Inconclusive)]
    if lost and not ended:  # the change shows on no other class: an order for a lost host, so that the loop fails
        look = endpoints.first_look(now.bad, now.build_runs, now.model)
        return Decision(replace(look, host=now.prior.host_classes.index(lost[0])), belief)
    return Decision(_with_effects(ended[0], each) if ended else _nothing_found(each), belief)


def _host_class(name: str, now: Situation, groups: Hypotheses) -> _HostClass:
    """The host class ``name``; ``groups`` are the classes of candidates by the builds of all hosts."""
    members = [host for host, its in enumerate(now.prior.host_classes) if its == name]
    hosts = tuple(host for host in members if host not in now.fleet.gone)
    free = tuple(host for host in hosts if now.fleet.is_free(host))
    readings = [seen for seen in now.observations if not isinstance(seen, Reading) or seen.host in members]
    own = replace(now, observations=readings, prior=now.prior if 0 in members else replace(now.prior, noise=None))
    record, known = own.record, None
    if min(record.runs(0), record.runs(now.bad)) > 0:
        rows = [now.record.builds.index(build) for build in record.builds]
        known = analyse(
            now.graph, now.policy, record, replace(groups, slow=groups.slow[rows]), own.prior.noise, model=now.model
        )
    return _HostClass(name, hosts, free, own, known)


def _together(each: list[_HostClass]) -> list[_HostClass]:
    """The host classes, where those that take part have the common probabilities of a culprit."""
    parts = [one.known for one in each if one.known and one.takes_part]
    if not parts:
        return each
    prior = parts[0].groups.prior
    likelihood = [np.log(np.maximum(known.posterior.culprit / prior, NEVER)) for known in parts]
    total = np.log(prior) + np.sum(likelihood, axis=0)
    top = float(total.max())
    share = np.exp(total - top)
    # The odds of a change are multiplied too, corrected for how well the classes agree about its place.
    alone = np.clip([known.posterior.change for known in parts], 1e-12, 1 - 1e-12)
    odds = float((np.log(alone) - np.log1p(-alone)).sum())
    odds += top + float(np.log(share.sum()))
    change = float(1 / (1 + np.exp(-np.clip(odds, -700, 700))))
    joint = share / share.sum()
    several = max(known.posterior.several for known in parts)

    def shared(one: _HostClass) -> _HostClass:
        if not (one.known and one.takes_part):
            return one
        known = one.known
        posterior = replace(known.posterior, culprit=joint, change=change, several=several)
        belief = believed(known.groups, posterior, known.record, known.effect, known.levels, known.seen)
        return replace(one, known=replace(known, posterior=posterior, belief=belief))

    return [shared(one) for one in each]


def _main(each: Sequence[_HostClass]) -> Analysis | None:
    """The first host class that takes part, or else the first of which both ends were measured."""
    return next((one.known for one in sorted(each, key=lambda one: not one.takes_part) if one.known), None)


def _belief(graph: Graph, each: Sequence[_HostClass]) -> Belief:
    main = _main(each)
    if main is None:
        return prior_belief(graph)
    noticed = [f"{one.name}: {text}" for one in each if one.known for text in one.known.belief.warnings]
    return replace(main.belief, effect=_leading_effect(each), warnings=tuple(noticed))


def _nothing_found(each: Sequence[_HostClass]) -> Verdict:
    main = _main(each)
    if main is None:
        return no_suspect(Reason.NO_HOST, each[0].now.policy)
    return _with_effects(nothing_found(main.effect, main.ends), each)


def _with_effects(verdict: Verdict, each: Sequence[_HostClass]) -> Verdict:
    """The verdict with the effect of the change on each host class."""
    match verdict:
        case Found(step):
            return Found(replace(step, effects=_effects(each, step)))
        case NotReproduced() | Inconclusive():
            return replace(verdict, ratio=_leading_effect(each), effects=_effects(each))
        case Several() | CodePlacement():
            return verdict


def _leading_effect(each: Sequence[_HostClass]) -> Interval:
    """Bad relative to good on the host class that is shown for all."""
    ratios = [one.known.effect if one.known else None for one in each]
    return ratios[leading(ratios)] or UNKNOWN


def _effects(each: Sequence[_HostClass], step: Step | None = None) -> tuple[Effect, ...]:
    """The effect of ``step`` where it was compared with its parents, that of the whole range elsewhere."""
    found = []
    for one in each:
        if (known := one.known) is None:
            continue
        proofs = pairwise_proofs(known.record, known.levels, step.candidate, step.parents) if step else ()
        own = bool(proofs) and all(proof.contrast for proof in proofs)
        ratio = known.speeds.ratio(step.candidate, weakest(proofs).parent) if step and own else known.effect
        found.append(Effect(one.name, ratio, not own))
    return tuple(found)
