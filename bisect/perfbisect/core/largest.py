"""The hunt for the largest change of a range: what to do next, given everything seen so far."""

from collections.abc import Collection, Sequence
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
    Verdict,
)
from perfbisect.core.policy import Policy
from perfbisect.core.record import Record, arrange
from perfbisect.core.robust import Behaviour, behaviour

UNBUILDABLE = "unbuildable"
BY_CHANCE = "by chance"
UNCHANGED = 0.08  # probability of any change below which there is nothing to find
DOUBTFUL = 0.5  # the same where the search is stuck as well
SPLIT = 0.05  # builds whose side is less certain than this are what the search is stuck at


@dataclass(frozen=True, slots=True, eq=False)
class Knowledge:
    """Everything that follows from the readings, at one moment of the hunt over ``graph`` under ``policy``."""

    graph: Graph
    policy: Policy
    record: Record
    levels: Levels
    groups: Classes
    posterior: Posterior
    ends: Contrast
    seen: Behaviour
    belief: Belief

    @property
    def searching(self) -> bool:
        """Whether anything between the ends was measured."""
        ends = (0, self.record.name(self.graph.size - 1))
        return any(b not in ends for b in self.record.builds)

    @property
    def nothing(self) -> bool:
        """Whether there is nothing to find, as far as these readings tell."""
        hopeless_ends = both_ends.nothing(self.ends, self.policy, self.searching)
        return hopeless_ends or (self.ends.runs >= 3 and self.posterior.change < UNCHANGED)

    @property
    def differ(self) -> bool:
        """Whether the ends differ clearly enough to search."""
        return both_ends.differ(self.ends, self.searching)


def largest(
    graph: Graph, observations: Sequence[Observation], policy: Policy, in_flight: Sequence[Measure] = ()
) -> Decision:
    """The next order of the hunt over ``graph``; ``in_flight`` are measurements that other hosts are at."""
    bad = graph.size - 1
    record = arrange(observations, policy, bad)
    if early := _before_readings(graph, record, policy, bad):
        return Decision(_placed(early, in_flight), prior_belief(graph))
    known = know(graph, policy, record, classes(graph, record))
    ends, belief = known.ends, known.belief
    if known.nothing:
        return Decision(nothing_found(record, ends), belief)
    if spent := budget.spent(record, policy):
        return Decision(undecided(belief, policy, spent), belief)
    if not known.differ:
        order: Order = both(0, bad, both_ends.more_runs(ends), Purpose.ENDS)
    else:
        order = search(known, _free_host(in_flight), busy_candidates(in_flight))
    if isinstance(order, Measure):
        order = budget.within(order, record, policy)
    return Decision(_placed(order, in_flight), belief)


def know(graph: Graph, policy: Policy, record: Record, groups: Classes) -> Knowledge:
    """What follows from the readings of ``record``, in which both ends have some."""
    bad = record.name(graph.size - 1)
    seen = behaviour(record, 0, bad)
    levels = estimate(record, seen.weight, policy.noise)
    ends = both_ends.contrast(levels, record.builds.index(0), record.builds.index(bad))
    posterior = infer(levels, groups, max(ends.drop, both_ends.least(policy)), ends.error)
    belief = believed(groups, posterior, record, ends, levels, seen)
    return Knowledge(graph, policy, record, levels, groups, posterior, ends, seen, belief)


def _before_readings(graph: Graph, record: Record, policy: Policy, bad: int) -> Order | None:
    """The order while there is nothing to infer from."""
    if (verdict := pointless(graph, record, bad)) or min(record.runs(0), record.runs(bad)) > 0:
        return verdict
    if spent := budget.spent(record, policy):
        return nothing_known(graph, spent)
    return budget.within(first_look(record, policy, bad), record, policy)


def pointless(graph: Graph, record: Record, bad: int) -> Verdict | None:
    """The verdict where nothing can be measured: an end is impossible to measure, or both are equal."""
    if bad in record.skipped or 0 in record.skipped:
        return nothing_known(graph, f"the {'good' if 0 in record.skipped else 'bad'} end cannot be measured")
    if record.name(bad) == 0 or not (graph.weight[1:] > 0).any():
        return NotReproduced(Interval(1.0, 1.0, 1.0), 0.0)
    return None


def first_look(record: Record, policy: Policy, bad: int) -> Measure:
    """The first runs of the ends."""
    return both(0, bad, both_ends.first_runs(record.build_runs(policy)), Purpose.ENDS)


def search(known: Knowledge, host: int, busy: Collection[int]) -> Order:
    """Confirm what is nearly certain, otherwise learn more on ``host``, otherwise say what is known.

    ``busy`` candidates are left to other hosts.
    """
    policy, record, groups, posterior = known.policy, known.record, known.groups, known.posterior
    answer = best_answer(groups, posterior, record)
    asked = min(policy.confidence, CAP)
    if posterior.change > asked:  # otherwise it is not the place that is in doubt
        asked = min(asked / posterior.change, CAP)
    if answer.probability >= asked and (order := _conclude(known, answer)) is not None:
        return order
    cost = record.build_runs(policy)
    choice = choose(
        record, known.levels, groups, posterior, cost, may_build=budget.may_build(record, policy),
        host=host, busy=busy,
    )  # fmt: skip
    if choice is None or hopeless(choice, groups, posterior, record, cost, known.ends.drop):
        return _give_up(known, BY_CHANCE if answer.probability >= asked else _why_stuck(known))
    return choice.order


def _give_up(known: Knowledge, reason: str) -> Order:
    """What can be said although nothing promises more."""
    answer = best_answer(known.groups, known.posterior, known.record, stuck=True)
    if reason == UNBUILDABLE and answer.probability >= min(known.policy.confidence, CAP):
        return _conclude(known, answer) or undecided(known.belief, known.policy, BY_CHANCE)
    if known.posterior.change < DOUBTFUL and known.ends.runs >= 3:
        return nothing_found(known.record, known.ends)
    return undecided(known.belief, known.policy, reason)


def _conclude(known: Knowledge, answer: Answer) -> Order | None:
    """The proof of a culprit, or the verdict once it stands.

    None if it stands, but whether anything changed at all is still open, and the ends can tell no more of it.
    """
    graph, policy, record, posterior, belief = known.graph, known.policy, known.record, known.posterior, known.belief
    if answer.slow in record.skipped:
        return undecided(belief, policy, UNBUILDABLE)
    parents = opponents(graph, record, answer.slow) if answer.certain else (answer.fast,)
    proof = duels(record, known.levels, answer.slow, parents)
    if (more := confirmation(record, posterior, known.levels.noise, answer.slow, proof)) is not None:
        if not budget.builds_allowed(more, record, policy):
            return undecided(belief, policy, "the budget of builds is used up")
        return more
    if not answer.certain:
        return undecided(belief, policy, UNBUILDABLE)
    if not all(duel.proven for duel in proof):
        return undecided(belief, policy, "not confirmed")
    stated = min(answer.probability * posterior.change, CAP)
    if stated < min(policy.confidence, CAP):
        if both_ends.settled(known.ends):
            return None
        return both(0, graph.size - 1, both_ends.more_runs(known.ends), Purpose.ENDS)
    weakest = min((duel.contrast for duel in proof if duel.contrast), key=lambda contrast: contrast.drop)
    prior = float(graph.weight[answer.slow])
    stand_ins = tuple(p for p in parents if p not in graph.parents_of(answer.slow))
    return Found(Step(answer.slow, stated, weakest.ratio(record.sign), parents, stand_ins, prior))


def _placed(order: Order, in_flight: Sequence[Measure]) -> Order:
    """``order`` on the first host that is not busy."""
    if not in_flight or not isinstance(order, Measure):
        return order
    return Measure(order.plan, order.purpose, _free_host(in_flight))


def busy_candidates(in_flight: Sequence[Measure]) -> set[int]:
    """The candidates that other hosts are asked about."""
    return {share.candidate for order in in_flight for share in order.plan[:1]}


def _free_host(in_flight: Sequence[Measure]) -> int:
    """The first host that is not busy."""
    busy = {other.host for other in in_flight}
    return next(h for h in range(len(busy) + 1) if h not in busy)


def undecided(belief: Belief, policy: Policy, reason: str) -> Inconclusive:
    candidates = credible_set(belief.culprit, min(policy.confidence, CAP))
    probabilities = tuple(min(float(belief.culprit[c]) * belief.change, CAP) for c in candidates)
    return Inconclusive(candidates, probabilities, belief.effect, reason)


def nothing_found(record: Record, ends: Contrast) -> NotReproduced:
    return NotReproduced(ends.ratio(record.sign), both_ends.detectable(ends))


def nothing_known(graph: Graph, reason: str) -> Inconclusive:
    belief = prior_belief(graph)
    candidates = tuple(int(c) for c in np.flatnonzero(belief.culprit))
    return Inconclusive(candidates, tuple(float(belief.culprit[c]) for c in candidates), belief.effect, reason)


def both(good: int, bad: int, runs: int, purpose: Purpose) -> Measure:
    return Measure((Share(bad, runs), Share(good, runs)), purpose)


def _why_stuck(known: Knowledge) -> str:
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
