"""The hunt for the largest change of a range: what to do next, given everything seen so far."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from perfbisect.core import budget
from perfbisect.core import ends as both_ends
from perfbisect.core.answer import Answer, best_answer, credible_set
from perfbisect.core.belief import CAP, believed, prior_belief
from perfbisect.core.choice import choose, hopeless
from perfbisect.core.classes import Classes, classes
from perfbisect.core.confirm import confirmation, duels, opponents
from perfbisect.core.ends import Contrast
from perfbisect.core.graph import Graph
from perfbisect.core.levels import Levels, estimate
from perfbisect.core.model import Posterior, infer
from perfbisect.core.observation import Observation
from perfbisect.core.order import (
    Belief,
    Decision,
    Found,
    Inconclusive,
    Interval,
    Measure,
    NotReproduced,
    Order,
    Purpose,
    Share,
    Step,
)
from perfbisect.core.policy import Policy
from perfbisect.core.record import Record, arrange
from perfbisect.core.robust import behaviour

UNBUILDABLE = "unbuildable"
BY_CHANCE = "by chance"
UNCHANGED = 0.08  # probability of any change below which there is nothing to find
DOUBTFUL = 0.5  # the same where the search is stuck as well
SPLIT = 0.05  # builds whose side is less certain than this are what the search is stuck at


@dataclass(frozen=True, slots=True, eq=False)
class _Knowledge:
    """Everything that follows from the readings, at one moment of the hunt over ``graph`` under ``policy``."""

    graph: Graph
    policy: Policy
    record: Record
    levels: Levels
    groups: Classes
    posterior: Posterior
    ends: Contrast
    belief: Belief


def largest(
    graph: Graph, observations: Sequence[Observation], policy: Policy, in_flight: Sequence[Measure] = ()
) -> Decision:
    """The next order of the hunt over ``graph``; ``in_flight`` are measurements that other hosts are at."""
    good, bad = 0, graph.size - 1
    record = arrange(observations, policy, bad)
    if early := _before_readings(graph, record, policy, bad):
        return Decision(_placed(early, in_flight), prior_belief(graph))
    bad_build = record.name(bad)
    seen = behaviour(record, good, bad_build)
    levels = estimate(record, seen.weight, policy.noise)
    ends = both_ends.contrast(levels, record.builds.index(good), record.builds.index(bad_build))
    groups = classes(graph, record)
    posterior = infer(levels, groups, max(ends.drop, both_ends.least(policy)), ends.error)
    belief = believed(groups, posterior, record, ends, levels, seen)

    searching = any(b not in (good, bad_build) for b in record.builds)
    if both_ends.nothing(ends, policy, searching) or (ends.runs >= 3 and posterior.change < UNCHANGED):
        return Decision(_nothing_found(record, ends), belief)
    if spent := budget.spent(record, policy):
        return Decision(_undecided(belief, policy, spent), belief)
    if not both_ends.differ(ends, searching):
        more = both_ends.more_runs(ends)
        order: Order = _both(good, bad, more, Purpose.ENDS)
    else:
        order = _search(_Knowledge(graph, policy, record, levels, groups, posterior, ends, belief), in_flight)
    if isinstance(order, Measure):
        order = budget.within(order, record, policy)
    return Decision(_placed(order, in_flight), belief)


def _before_readings(graph: Graph, record: Record, policy: Policy, bad: int) -> Order | None:
    """The order while there is nothing to infer from: an end unmeasured, impossible to measure, or both equal."""
    if bad in record.skipped or 0 in record.skipped:
        return _nothing_known(graph, f"the {'good' if 0 in record.skipped else 'bad'} end cannot be measured")
    if record.name(bad) == 0 or not (graph.weight[1:] > 0).any():
        return NotReproduced(Interval(1.0, 1.0, 1.0), 0.0)
    runs = record.runs(0), record.runs(bad)
    if min(runs) == 0:
        if spent := budget.spent(record, policy):
            return _nothing_known(graph, spent)
        wanted = both_ends.first_runs(record.build_runs(policy))
        return budget.within(_both(0, bad, wanted, Purpose.ENDS), record, policy)
    return None


def _search(known: _Knowledge, in_flight: Sequence[Measure]) -> Order:
    """Confirm what is nearly certain, otherwise learn more, otherwise say what is known."""
    policy, record, groups, posterior = known.policy, known.record, known.groups, known.posterior
    answer = best_answer(groups, posterior, record)
    asked = min(policy.confidence, CAP)
    if posterior.change > asked:  # otherwise it is not the place that is in doubt
        asked = min(asked / posterior.change, CAP)
    if answer.probability >= asked and (order := _conclude(known, answer)) is not None:
        return order
    busy = {share.candidate for order in in_flight for share in order.plan[:1]}
    cost = record.build_runs(policy)
    choice = choose(
        record, known.levels, groups, posterior, cost, may_build=budget.may_build(record, policy),
        host=_free_host(in_flight), busy=busy,
    )  # fmt: skip
    if choice is None or hopeless(choice, groups, posterior, record, cost, known.ends.drop):
        return _give_up(known, BY_CHANCE if answer.probability >= asked else _why_stuck(known))
    return choice.order


def _give_up(known: _Knowledge, reason: str) -> Order:
    """What can be said although nothing promises more."""
    answer = best_answer(known.groups, known.posterior, known.record, stuck=True)
    if reason == UNBUILDABLE and answer.probability >= min(known.policy.confidence, CAP):
        return _conclude(known, answer) or _undecided(known.belief, known.policy, BY_CHANCE)
    if known.posterior.change < DOUBTFUL and known.ends.runs >= 3:
        return _nothing_found(known.record, known.ends)
    return _undecided(known.belief, known.policy, reason)


def _conclude(known: _Knowledge, answer: Answer) -> Order | None:
    """The proof of a culprit, or the verdict once it stands.

    None if it stands, but whether anything changed at all is still open, and the ends can tell no more of it.
    """
    graph, policy, record, posterior, belief = known.graph, known.policy, known.record, known.posterior, known.belief
    if answer.slow in record.skipped:
        return _undecided(belief, policy, UNBUILDABLE)
    parents = opponents(graph, record, answer.slow) if answer.certain else (answer.fast,)
    proof = duels(record, known.levels, answer.slow, parents)
    if (more := confirmation(record, posterior, known.levels.noise, answer.slow, proof)) is not None:
        if not budget.builds_allowed(more, record, policy):
            return _undecided(belief, policy, "the budget of builds is used up")
        return more
    if not answer.certain:
        return _undecided(belief, policy, UNBUILDABLE)
    if not all(duel.proven for duel in proof):
        return _undecided(belief, policy, "not confirmed")
    stated = min(answer.probability * posterior.change, CAP)
    if stated < min(policy.confidence, CAP):
        if both_ends.settled(known.ends):
            return None
        return _both(0, graph.size - 1, both_ends.more_runs(known.ends), Purpose.ENDS)
    weakest = min((duel.contrast for duel in proof if duel.contrast), key=lambda contrast: contrast.drop)
    prior = float(graph.weight[answer.slow])
    stand_ins = tuple(p for p in parents if p not in graph.parents_of(answer.slow))
    return Found(Step(answer.slow, stated, weakest.ratio(record.sign), parents, stand_ins, prior))


def _placed(order: Order, in_flight: Sequence[Measure]) -> Order:
    """``order`` on the first host that is not busy."""
    if not in_flight or not isinstance(order, Measure):
        return order
    return Measure(order.plan, order.purpose, _free_host(in_flight))


def _free_host(in_flight: Sequence[Measure]) -> int:
    """The first host that is not busy."""
    busy = {other.host for other in in_flight}
    return next(h for h in range(len(busy) + 1) if h not in busy)


def _undecided(belief: Belief, policy: Policy, reason: str) -> Inconclusive:
    candidates = credible_set(belief.culprit, min(policy.confidence, CAP))
    probabilities = tuple(min(float(belief.culprit[c]) * belief.change, CAP) for c in candidates)
    return Inconclusive(candidates, probabilities, belief.effect, reason)


def _nothing_found(record: Record, ends: Contrast) -> NotReproduced:
    return NotReproduced(ends.ratio(record.sign), both_ends.detectable(ends))


def _nothing_known(graph: Graph, reason: str) -> Inconclusive:
    belief = prior_belief(graph)
    candidates = tuple(int(c) for c in np.flatnonzero(belief.culprit))
    return Inconclusive(candidates, tuple(float(belief.culprit[c]) for c in candidates), belief.effect, reason)


def _both(good: int, bad: int, runs: int, purpose: Purpose) -> Measure:
    return Measure((Share(bad, runs), Share(good, runs)), purpose)


def _why_stuck(known: _Knowledge) -> str:
    """Why no measurement promises anything."""
    record, groups, posterior = known.record, known.groups, known.posterior
    if not budget.may_build(record, known.policy):
        return "the budget of builds is used up"
    top = groups.of_class(int(posterior.culprit.argmax()))
    if len(top) > 1 and record.skipped.intersection(top.tolist()):
        return UNBUILDABLE
    likely = [i for i, b in enumerate(record.builds) if SPLIT < float(groups.slow[i] @ posterior.culprit) < 1 - SPLIT]
    fit = posterior.fit
    noisy = any(known.levels.covariance[fit.law, i, i] > fit.layout for i in likely)
    return "layout tie" if likely and not noisy else "too noisy"
