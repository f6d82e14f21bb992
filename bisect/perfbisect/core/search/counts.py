"""Exact counts of instructions beside timed runs: which build is counted next, and how far counts tell where time changed.

A count costs less than a build, repeats, and shows every change of the instructions. It says nothing of memory and of waiting. So
counts are evidence, and no metric: where the ends differ in instructions about as much as in time, the commit that changes
the instructions probably changes the time. Its place, found by counts alone, is the prior of the search by time, with
``SHARE``; the rest of the prior knows nothing of counts. So no commit is excluded by counts, and none is named by them:
the time of the culprit and of its parents is measured, as always.
"""

import math
from dataclasses import replace

import numpy as np

from perfbisect.core.domain.orders import Decision, Measure, Purpose, Share
from perfbisect.core.domain.settings import Direction
from perfbisect.core.inference.analysis import PLAIN, Analysis, Contrast
from perfbisect.core.inference.instruction_counts import RESOLVED
from perfbisect.core.inference.noise_model import EXACT
from perfbisect.core.inference.observations import Built, Count, Observation, Reading, Skipped
from perfbisect.core.search.situation import Situation

SHARE = 0.9  # probability that time changes where the instructions do, where the ends differ alike in both
LEAST, MOST = 0.25, 4.0  # log differences of the instructions that explain one of time, as multiples of it
DOUBTFUL = 0.5  # that prior, after what time has shown since, below which builds are counted no more
CHECKED = 2  # runs of each build that is counted, before the next one is
DOUBT = 2.0  # standard errors by which the difference of time may be larger or smaller
LARGE = 0.1  # log difference of the ends from which few runs of a build tell as much as its count


def by_counts(now: Situation) -> Situation | None:
    """The search of the same range by counts alone; None where nothing is counted, or an end cannot be."""
    if now.prior.count_cost is None or now.model.exact:
        return None
    seen: list[Observation] = []
    for each in now.observations:
        if isinstance(each, Count) and math.isnan(each.value):
            if each.candidate in (0, now.bad):
                return None
            seen.append(Skipped(each.candidate, "not counted"))
        elif isinstance(each, Count):
            seen.append(Reading(each.candidate, each.value, each.at, len(seen), each.host, each.seconds))
        elif isinstance(each, Built | Skipped):
            seen.append(each)
    prior = replace(now.prior, exact=True, noise=None, count_cost=None, host_classes=())
    direction = Direction.DROP if now.record.sign > 0 else Direction.RISE  # as in ``Count.value``
    policy = replace(now.policy.of_counts(), layouts=False, all_steps=False, direction=direction)
    return replace(now, observations=seen, prior=prior, policy=policy, model=EXACT).charged(now)


def counts_of_ends(counts: Situation, timed: Situation, known: Analysis) -> Measure | None:
    """The order that counts the ends, where counting pays; None where they are counted."""
    record, ends = counts.record, (timed.bad, 0)
    if any(end in record.skipped for end in ends) or timed.fleet.free_host != 0:
        return None
    lacking = tuple(Share(end, 1) for end in ends if not record.runs(end))
    if not lacking or not _pays(timed, known):
        return None
    return Measure(lacking, Purpose.ENDS, counted=True)


def _pays(timed: Situation, known: Analysis) -> bool:
    """Whether a count costs less than a build, and tells more than a run."""
    fixed, times = timed.prior.count_cost or (math.inf, 0.0)
    run = timed.record.run_seconds
    plain = known.ends.drop > max(PLAIN * known.ends.noise, LARGE)
    return fixed + times * run < timed.build_runs * run and not plain


def difference(counts: Situation) -> float:
    """What bad executes more than good, in log units in the direction that is hunted; 0 while it is not resolved."""
    record = counts.record
    rows = [record.readings(end) for end in (0, counts.bad)]
    if not all(map(len, rows)):
        return 0.0
    good, bad = (float(np.mean(record.value[row])) for row in rows)
    return good - bad if good - bad > RESOLVED else 0.0


def share(counted: float, timed: Contrast, smallest: float) -> float:
    """The prior that time changes where the counts do, whose ends differ by ``counted``; 0 where that does not explain it."""
    low, high = max(timed.drop - DOUBT * timed.error, smallest), timed.drop + DOUBT * timed.error
    return SHARE if counted > 0 and LEAST * low <= counted <= MOST * high else 0.0


def count_next(found: Decision, timed: Situation, known: Analysis | None) -> Measure | None:
    """The next order of the search by counts, of which ``found`` is the decision: a count, or the first runs of what was counted.

    None where that search has ended, as its proof is left to the time; and where time contradicts it, by what is ``known``.
    """
    order = found.order
    if not isinstance(order, Measure) or order.purpose is Purpose.CONFIRM or timed.fleet.free_host != 0 or not known:
        return None
    if agreement(found, known) < DOUBTFUL:
        return None
    counted = {seen.candidate for seen in timed.observations if isinstance(seen, Count)}
    for each in sorted(counted - timed.record.skipped):
        if not timed.record.runs(each):
            plan = Share(each, CHECKED), Share(0, CHECKED // 2)
            return known.model.order(plan, Purpose.SEARCH)
    return replace(order, host=0, counted=True)


def agreement(found: Decision, known: Analysis) -> float:
    """The probability that time changes where counts do, by what counts have ``found`` and time has."""
    by_counts = np.where(known.groups.weight > 0, found.belief.culprit, 0.0)
    part = SHARE * found.belief.change * by_counts / max(by_counts.sum(), 1e-300)
    return float(known.belief.culprit @ (part / np.maximum(known.groups.weight, 1e-300)))
