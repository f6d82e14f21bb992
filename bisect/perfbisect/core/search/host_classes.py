"""The hunt for one change on hosts of several classes: it is the same commit everywhere, and as large as it likes.

The readings of each class of hosts are a record of their own, with its own noise, drift, layout and size of the change:
only the culprit is common. So each class is asked how likely its readings are for every culprit, and the answers are
multiplied, with one prior:

    P(K | all)  ∝  P(K) · Π over the classes  P(readings of the class | K)

A class on which the ends do not differ says nothing of where the change is, and is left out. What to do next on a host
is decided from what its own class shows of levels and drift, and from what all together know of the culprit; a proof on
one class is enough.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from perfbisect.core.domain.graph import Graph
from perfbisect.core.domain.observations import Observation, Reading
from perfbisect.core.domain.orders import (
    Belief,
    Decision,
    Effect,
    Found,
    Inconclusive,
    Measure,
    NotReproduced,
    Order,
    Several,
    Step,
    Verdict,
)
from perfbisect.core.domain.policy import Policy
from perfbisect.core.inference import endpoints
from perfbisect.core.inference.analysis import Knowledge, know
from perfbisect.core.inference.belief import believed, prior_belief
from perfbisect.core.inference.dataset import Record, arrange
from perfbisect.core.inference.hypotheses import Classes, classes
from perfbisect.core.inference.posterior import Posterior
from perfbisect.core.search import budget
from perfbisect.core.search.confirmation import duels
from perfbisect.core.search.next_action import pursue
from perfbisect.core.search.stopping import nothing_found, nothing_known, pointless, undecided

NEVER = 1e-300  # probability of a culprit that a class rules out


@dataclass(frozen=True, slots=True, eq=False)
class _Class:
    """The hosts of one class and what their readings tell."""

    kind: str
    hosts: tuple[int, ...]  # those that are still there
    free: tuple[int, ...]  # of them
    record: Record
    known: Knowledge | None  # None until both ends were measured

    @property
    def takes_part(self) -> bool:
        """Whether its readings speak of the culprit."""
        return self.known is not None and not self.known.nothing and self.known.differ


def across(
    graph: Graph, observations: Sequence[Observation], policy: Policy, in_flight: Sequence[Measure] = ()
) -> Decision:
    """The next order; one for a host that is busy means that there is nothing to do for those that are free.

    An order in flight with an empty plan stands for a host that is gone.
    """
    bad = graph.size - 1
    whole = arrange(observations, policy, bad)
    if verdict := pointless(graph, whole, bad):
        return Decision(verdict, prior_belief(graph))
    groups = classes(graph, whole)
    each = _together([_class(kind, graph, observations, policy, whole, groups, in_flight) for kind in kinds(policy)])
    belief = _belief(graph, each)
    lost = [one.kind for one in each if one.takes_part and not one.hosts]
    if not lost and not any(one.hosts and not (one.known and one.known.nothing) for one in each):
        return Decision(_nothing_found(graph, each), belief)
    asked = [(one, _order(one, graph, policy, in_flight)) for one in each if one.hosts]
    for _, order in asked:
        if isinstance(order, Found):
            return Decision(_with_effects(order, each), belief)
    if spent := budget.spent(whole, policy, in_flight):
        stopped = undecided(belief, policy, spent) if _main(each) else nothing_known(spent)
        return Decision(_with_effects(stopped, each), belief)
    measures = [(one, order) for one, order in asked if isinstance(order, Measure)]
    if measures:
        one, order = min(measures, key=lambda pair: (not pair[0].free, pair[0].free or pair[0].hosts))
        placed = replace(order, host=(one.free or one.hosts)[0])
        return Decision(budget.within(placed, whole, policy, in_flight), belief)
    ended = [order for _, order in asked if isinstance(order, Inconclusive)]
    if lost and not ended:  # for them nothing can be done, and without them nothing can be found
        placed = replace(endpoints.first_look(bad, whole.build_runs(policy)), host=policy.kinds.index(lost[0]))
        return Decision(placed, belief)
    return Decision(_with_effects(ended[0], each) if ended else _nothing_found(graph, each), belief)


def kinds(policy: Policy) -> tuple[str, ...]:
    """The classes of hosts, in the order of their first hosts."""
    return tuple(dict.fromkeys(policy.kinds))


def _class(
    kind: str, graph: Graph, observations: Sequence[Observation], policy: Policy, whole: Record, groups: Classes,
    in_flight: Sequence[Measure],
) -> _Class:  # fmt: skip
    busy = {order.host for order in in_flight}
    gone = {order.host for order in in_flight if not order.plan}
    members = [host for host, its in enumerate(policy.kinds) if its == kind]
    hosts = tuple(host for host in members if host not in gone)
    own = [seen for seen in observations if not isinstance(seen, Reading) or seen.host in members]
    record = arrange(own, policy, graph.size - 1)
    known = None
    if min(record.runs(0), record.runs(graph.size - 1)) > 0:
        rows = [whole.builds.index(build) for build in record.builds]
        rules = policy if 0 in members else replace(policy, noise=None)
        known = know(graph, rules, record, replace(groups, slow=groups.slow[rows]))
    return _Class(kind, hosts, tuple(host for host in hosts if host not in busy), record, known)


def _together(each: list[_Class]) -> list[_Class]:
    """The classes, those that take part with what all of them know of the culprit."""
    parts = [one.known for one in each if one.known and one.takes_part]
    if not parts:
        return each
    prior = parts[0].groups.prior
    likelihood = [np.log(np.maximum(known.posterior.culprit / prior, NEVER)) for known in parts]
    total = np.log(prior) + np.sum(likelihood, axis=0)
    top = float(total.max())
    share = np.exp(total - top)
    # The odds of a change multiply as well, but for what the classes agree or disagree about its place.
    alone = np.clip([known.posterior.change for known in parts], 1e-12, 1 - 1e-12)
    odds = float((np.log(alone) - np.log1p(-alone)).sum())
    odds += top + float(np.log(share.sum()))
    change = float(1 / (1 + np.exp(-np.clip(odds, -700, 700))))
    joint = share / share.sum()
    several = max(known.posterior.several for known in parts)

    def shared(one: _Class) -> _Class:
        if not (one.known and one.takes_part):
            return one
        known = one.known
        posterior = replace(known.posterior, culprit=joint, change=change, several=several)
        return replace(one, known=replace(known, posterior=posterior, belief=_believed(known, posterior)))

    return [shared(one) for one in each]


def _believed(known: Knowledge, posterior: Posterior) -> Belief:
    return believed(known.groups, posterior, known.record, known.ends, known.levels, known.seen)


def _order(one: _Class, graph: Graph, policy: Policy, in_flight: Sequence[Measure]) -> Order:
    """What is best done on the hosts of one class."""
    known, bad = one.known, graph.size - 1
    if known is None:
        return endpoints.first_look(bad, one.record.build_runs(policy))
    if known.nothing:
        return nothing_found(known.record, known.ends)
    if not known.differ:
        return endpoints.further_look(known.ends, bad)
    return pursue(known, (one.free or one.hosts)[0], in_flight)


def _main(each: Sequence[_Class]) -> Knowledge | None:
    """The class that speaks for all: the first that takes part, or else the first of which anything is known."""
    return next((one.known for one in sorted(each, key=lambda one: not one.takes_part) if one.known), None)


def _belief(graph: Graph, each: Sequence[_Class]) -> Belief:
    main = _main(each)
    if main is None:
        return prior_belief(graph)
    noticed = [f"{one.kind}: {text}" for one in each if one.known for text in one.known.belief.warnings]
    return replace(main.belief, warnings=tuple(noticed))


def _nothing_found(graph: Graph, each: Sequence[_Class]) -> Verdict:
    main = _main(each)
    if main is None:
        return nothing_known("no host is left")
    return _with_effects(nothing_found(main.record, main.ends), each)


def _with_effects(verdict: Verdict, each: Sequence[_Class]) -> Verdict:
    """The verdict with what the change comes to on each class of hosts."""
    match verdict:
        case Found(step):
            return Found(replace(step, effects=_effects(each, step)))
        case NotReproduced() | Inconclusive():
            return replace(verdict, effects=_effects(each))
        case Several():
            return verdict


def _effects(each: Sequence[_Class], step: Step | None = None) -> tuple[Effect, ...]:
    """Of ``step`` where it was compared with its parents, of the whole range elsewhere."""
    found = []
    for one in each:
        if (known := one.known) is None:
            continue
        proof = duels(known.record, known.levels, step.candidate, step.parents) if step else ()
        compared = [duel.contrast for duel in proof if duel.contrast]
        own = bool(compared) and len(compared) == len(proof)
        contrast = min(compared, key=lambda contrast: contrast.drop) if own else known.ends
        found.append(Effect(one.kind, contrast.ratio(known.record.sign), not own))
    return tuple(found)
