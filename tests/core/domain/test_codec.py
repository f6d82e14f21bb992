"""Events are encoded as plain values, and decoded."""

import json
from dataclasses import replace

import numpy as np

from perfbisect.core.domain.codec import decode, dumps, encode, event_kind
from perfbisect.core.domain.events import Decided, Event, SessionEnded
from perfbisect.core.domain.orders import (
    UNKNOWN,
    Belief,
    BuildInProgress,
    BuildOrder,
    ClassEffect,
    Decision,
    Fleet,
    Found,
    Inconclusive,
    Interval,
    LayoutRatios,
    Measure,
    MergeBaseComparison,
    PlannedRuns,
    Purpose,
    Reason,
    Several,
    Step,
    UnsettledRange,
)

SAME = Interval(0.99, 1.0, 1.01)
STEP = Step(3, 0.99, SAME, (1, 2), (1,), 2.0, (ClassEffect("large", UNKNOWN, True),), LayoutRatios(SAME, 5, 4))
SPENT = Inconclusive((1,), (0.5,), SAME, Reason.RUNS_SPENT, detail=9.0)


def recoded(event: Event) -> Event:
    return decode(event_kind(event), json.loads(dumps(encode(event))))


def test_decoded_decision_has_its_order_belief_and_fleet() -> None:
    order = Measure((PlannedRuns(2, 3), PlannedRuns(0, 1)), Purpose.SEARCH, 1, True)
    chances = np.array([0, 1 / 3, 1])
    belief = Belief(chances / chances.sum(), 0.9, 0.01, UNKNOWN, ("drift",), chances, 0.2)
    busy = Measure((PlannedRuns(1, 1), PlannedRuns(0, 1)), Purpose.SEARCH, 2)
    fleet = Fleet((busy,), (1, 3), 4, 3, (BuildInProgress(4, 1, 12.5, True),), (2,), True, 7.5)
    decision = Decision(order, belief, (BuildOrder(3, 0),), (1,), (STEP,))
    found = recoded(Decided(decision, fleet))
    assert isinstance(found, Decided) and found.fleet == fleet
    back = found.decision.belief
    assert replace(found.decision, belief=belief) == decision
    assert (back.culprit.tolist(), back.slow.tolist()) == ([0.0, 0.25, 0.75], [0.0, 0.3333, 1.0])
    assert (back.effect, back.warnings, back.several) == (UNKNOWN, ("drift",), 0.2)


def test_decoded_verdict_equals_the_encoded_verdict() -> None:
    of_merge_base = Inconclusive((), (), UNKNOWN, Reason.MERGE_BASE, detail=MergeBaseComparison("ab", "v1", SPENT))
    every = Several((STEP,), (STEP,), (UnsettledRange(0, 2, SPENT),), 0.01, 0.02)
    for verdict in (Found(STEP), SPENT, of_merge_base, every):
        for reason_follows in (False, True):
            assert recoded(SessionEnded(verdict, reason_follows)) == SessionEnded(verdict, reason_follows)


def test_encoded_belief_about_many_candidates_is_small() -> None:
    """Equal probabilities of neighbours are one number. Numbers of numpy are encoded as plain numbers."""
    culprit = np.full(100_000, 0.1 / 99_999)
    culprit[70_000] = 0.9
    slow = np.repeat([0.0, 0.123456, 1.0], [2, 69_998, 30_000])
    belief = Belief(culprit, 0.5, np.float64(0.02), Interval(0.0, 1.0, np.inf), ("drift",), slow)
    order = Measure((PlannedRuns(np.int64(1), 2), PlannedRuns(0, 2)), Purpose.ENDS)  # type: ignore[arg-type]
    event = Decided(Decision(order, belief))
    assert encode(event)["belief"]["culprit"] == [[70_000, 1e-6], [1, 0.9], [29_999, 1e-6]]
    assert len(dumps(encode(event))) < 600
    found = recoded(event)
    assert isinstance(found, Decided) and found.decision.order == order
    back = found.decision.belief
    assert (back.change, back.noise, back.effect, back.warnings) == (0.5, 0.02, belief.effect, ("drift",))
    assert np.allclose(back.culprit, culprit, rtol=1e-4, atol=0)
    assert np.allclose(back.slow, slow, atol=1e-4)
