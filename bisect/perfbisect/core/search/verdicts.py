"""The verdicts: no culprit, or one that is proven by fresh runs of it and of every parent, in turns.

The search prefers builds whose first readings deviated by chance, and a host may have been slow for a while when a
build was measured. So a culprit is named only after fresh runs: made when both it and the parent had readings already,
with a run of the other side next to them in time. They enter the posterior like all others; if they contradict the
culprit, the search continues.

The proof compares two builds. That they may differ by code placement alone is part of the posterior.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from perfbisect.core.domain.graph import Graph
from perfbisect.core.domain.orders import (
    SAME,
    UNKNOWN,
    Belief,
    Inconclusive,
    Interval,
    Measure,
    NotReproduced,
    Purpose,
    Reason,
    Share,
    Verdict,
)
from perfbisect.core.domain.settings import CAP, Policy
from perfbisect.core.inference.analysis import PLAIN, Analysis, Contrast
from perfbisect.core.inference.ancestry import ancestry_of
from perfbisect.core.inference.posterior import credible_set
from perfbisect.core.inference.record import Record
from perfbisect.core.inference.state_space import Levels
from perfbisect.core.search.situation import Proposal, Situation


def pointless(graph: Graph, record: Record, policy: Policy) -> Verdict | None:
    """The verdict where no search is possible: an end cannot be measured, or both have the same binary."""
    bad = graph.size - 1
    if bad in record.skipped or 0 in record.skipped:
        return no_suspect(Reason.GOOD_UNMEASURABLE if 0 in record.skipped else Reason.BAD_UNMEASURABLE, policy)
    if record.name(bad) == 0 or not (graph.weight[1:] > 0).any():
        return NotReproduced(SAME, 0.0)
    return None


def undecided(belief: Belief, policy: Policy, reason: Reason) -> Inconclusive:
    """The smallest set of candidates that contains the culprit with the requested confidence."""
    candidates = credible_set(belief.culprit, min(policy.confidence, CAP))
    probabilities = tuple(min(float(belief.culprit[c]) * belief.change, CAP) for c in candidates)
    return Inconclusive(
        candidates, probabilities, belief.effect, reason, (), float(belief.several), limit(reason, policy)
    )


def nothing_found(effect: Interval, ends: Contrast, policy: Policy) -> NotReproduced:
    """That the ends do not differ as ``policy`` asks, with the smallest change that would have been seen."""
    return NotReproduced(effect, ends.detectable, (), policy.min_effect, policy.direction)


def no_suspect(reason: Reason, policy: Policy, ratio: Interval = UNKNOWN) -> Inconclusive:
    """The verdict where no candidate can be suspected, as before both ends were measured."""
    return Inconclusive((), (), ratio, reason, detail=limit(reason, policy))


def limit(reason: Reason, policy: Policy) -> float | None:
    """The budget that is used up, if that is the reason."""
    match reason:
        case Reason.RUNS_SPENT:
            return float(policy.max_runs)
        case Reason.MINUTES_SPENT:
            return policy.max_minutes
        case _:
            return None


def afforded(decision: Proposal, now: Situation) -> Proposal:
    """The decision within the whole budget, of which the search that made it may not have seen all that was spent."""
    order, budget = decision.order, now.budget
    if not isinstance(order, Measure):
        return decision
    if budget.allows(order):
        return replace(decision, order=budget.within(order))
    reason = budget.spent or (Reason.RUNS_SPENT if budget.builds_allowed(order) else Reason.BUILDS_SPENT)
    return replace(decision, order=undecided(decision.belief, now.policy, reason))


CLEAR = 3.5  # standard errors of a clear difference, for which one fresh run less is enough
DRIFT_LIKELY = 0.75  # probability from which a host is treated as drifting
PROVEN = 2.2  # standard errors between culprit and parent: by chance in 1.4 % of the proofs, and CLEAR in 0.023 %
# S.d. of the centre of so many values in those of their mean, where noise is normal; and of more of them.
SPREAD, TRIMMED = {1: 1.0, 2: 1.0, 3: 1.160, 4: 1.092, 5: 1.066, 6: 1.049}, 1.035

Readings = NDArray[np.int64]  # positions in the record


@dataclass(frozen=True, slots=True, eq=False)
class PairwiseProof:
    """The fresh runs of the culprit and of one parent."""

    parent: int
    runs: int  # fresh runs of the side that has fewer
    contrast: Contrast | None  # None while one side has no fresh run

    def clear(self, least: int) -> bool:
        """Whether the difference is clear after ``least`` fresh runs of each side."""
        return self.runs >= least and self.contrast is not None and self.contrast.clear >= CLEAR

    @property
    def proven(self) -> bool:
        """Whether the fresh runs alone show the difference."""
        return self.contrast is not None and self.contrast.clear >= PROVEN


def compared_with(graph: Graph, record: Record, culprit: int) -> tuple[int, ...]:
    """The builds that the culprit is compared with: its parents, or the good end if it has none.

    A parent that cannot be measured is replaced by its nearest tested ancestor.
    """
    parents = graph.parents_of(culprit) or (0,)
    return tuple(dict.fromkeys(tested(graph, record, parent) for parent in parents))


def tested(graph: Graph, record: Record, candidate: int) -> int:
    """The candidate itself, or the nearest tested one among its ancestors if it cannot be measured."""
    if candidate not in record.skipped:
        return candidate
    below = ancestry_of(graph).ancestors(candidate)
    return max((b for b in record.builds if b not in record.skipped and below[b]), default=0)


def pairwise_proofs(record: Record, levels: Levels, culprit: int, parents: Sequence[int]) -> tuple[PairwiseProof, ...]:
    """The proof so far against each of ``parents``."""
    return tuple(_pairwise_proof(record, levels, culprit, parent, len(parents) + 1) for parent in parents)


def weakest(proofs: Sequence[PairwiseProof]) -> PairwiseProof:
    """The proof with the smallest drop; each has fresh runs of both sides."""
    return min(proofs, key=lambda proof: proof.contrast.drop if proof.contrast else np.inf)


def confirmation(known: Analysis, culprit: int, proofs: Sequence[PairwiseProof]) -> Measure | None:
    """The runs that the proof still lacks; None if it is complete or impossible."""
    levels, posterior = known.levels, known.posterior
    enough = levels.model.proof + (posterior.drifting > DRIFT_LIKELY)
    drop = -float(posterior.culprit @ posterior.fit.drop)
    # The error of two runs against two is the noise of one; to show a plain drop that is not there takes two accidents.
    fewer = (drop > CLEAR * levels.noise) + (drop > PLAIN * levels.noise)
    at_first = enough - fewer
    wanted = {}
    for proof in proofs:
        if proof.runs >= levels.model.proof_most:
            return None
        if proof.runs < enough and not proof.clear(enough - max(fewer, 1)):
            wanted[proof.parent] = max(at_first - proof.runs, 1)
        elif not proof.proven:
            wanted[proof.parent] = min(proof.runs, 8)
    if not wanted:
        return None
    if levels.model.rounds:  # one parent after the other
        parent, runs = next(iter(wanted.items()))
        return Measure((Share(culprit, runs), Share(parent, runs)), Purpose.CONFIRM, together=True)
    shares = [(culprit, max(wanted.values())), *wanted.items()]
    # the first run of a build is not fresh
    return Measure(tuple(Share(v, runs + (known.record.runs(v) == 0)) for v, runs in shares), Purpose.CONFIRM)


def _pairwise_proof(record: Record, levels: Levels, culprit: int, parent: int, reach: int) -> PairwiseProof:
    """Fresh runs of both sides; the pair counts if its runs are within ``reach`` readings of each other on one host.

    Of rounds those of both, made when both had readings already.
    """
    slow, fast = record.readings(culprit), record.readings(parent)
    if levels.model.rounds:
        rows, above = record.rounds(parent, culprit)
        above = above[rows > max(slow[:1].sum(), fast[:1].sum())]
        return _of_rounds(parent, above, levels)
    if len(slow) and len(fast):
        start = max(slow[0], fast[0])
        slow, fast = slow[slow > start], fast[fast > start]
        slow, fast = slow[record.near(slow, fast, reach)], fast[record.near(fast, slow, reach)]
    if not len(slow) or not len(fast):
        return PairwiseProof(parent, 0, None)
    low, high = _on_one_host(record, slow, fast)
    variance = levels.noise**2 * (_variance(len(low)) + _variance(len(high)))
    freedom = max(levels.freedom - levels.mean.shape[1], 2.0)
    runs = min(len(low), len(high))
    contrast = Contrast(_centre(high) - _centre(low), float(np.sqrt(variance)), freedom, runs, levels.noise)
    return PairwiseProof(parent, runs, contrast)


def _of_rounds(parent: int, above: NDArray[np.float64], levels: Levels) -> PairwiseProof:
    """The proof by fresh rounds, in which the parent is so much above the culprit."""
    if not len(above):
        return PairwiseProof(parent, 0, None)
    freedom = max(levels.freedom - levels.mean.shape[1], 2.0)
    error = levels.noise * float(np.sqrt(_variance(len(above))))
    return PairwiseProof(parent, len(above), Contrast(_centre(above), error, freedom, len(above), levels.noise))


def _on_one_host(record: Record, slow: Readings, fast: Readings) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The values of both sides, corrected for the speeds of the hosts, as if the first one had measured all."""
    low, high = record.value[slow], record.value[fast]
    hosts = np.unique(record.host[slow])
    middle = {h: (low[record.host[slow] == h].mean() + high[record.host[fast] == h].mean()) / 2 for h in hosts}
    for host in hosts[1:]:
        low[record.host[slow] == host] -= middle[host] - middle[hosts[0]]
        high[record.host[fast] == host] -= middle[host] - middle[hosts[0]]
    return low, high


def _variance(count: int) -> float:
    """That of the centre of so many values with a variance of 1."""
    return SPREAD.get(count, TRIMMED) ** 2 / count


def _centre(values: NDArray[np.float64]) -> float:
    """The mean, trimmed from five values on; the median of fewer."""
    if len(values) < 5:
        return float(np.median(values))
    cut = max(1, len(values) // 8)
    return float(np.sort(values)[cut:-cut].mean())
