"""Events in the stored form of earlier versions."""

import json
from typing import Any

import pytest

from perfbisect.core.domain.codec import decode, dumps, encode
from perfbisect.core.domain.events import Decided, HuntEnded
from perfbisect.core.domain.fleet import Building, Fleet
from perfbisect.core.domain.orders import (
    UNKNOWN,
    BuildOrder,
    Inconclusive,
    Interval,
    Measure,
    MergeBase,
    Purpose,
    Reason,
    Several,
    Share,
)

BELIEF = {
    "culprit": [[1, 0.0], [2, 0.5]],
    "change": 0.9,
    "noise": 0.01,
    "effect": {"low": 0.8, "middle": 0.9, "high": 1.0},
    "warnings": [],
    "slow": [[3, 0.5]],
    "several": 0.0,
}


def order(host: int, *plan: int) -> dict[str, Any]:
    """An order of one run of each candidate; without any, as it stands for a lost host."""
    return {"plan": [{"candidate": candidate, "runs": 1} for candidate in plan], "purpose": "search", "host": host}


def test_lost_hosts_are_stored_as_orders_without_runs() -> None:
    stored = {
        "order": {"kind": "Measure", **order(0, 2)},
        "belief": BELIEF,
        "in_flight": [order(2, 1, 0), order(1), order(3)],
    }
    event = decode("Decided", stored)
    assert isinstance(event, Decided)
    busy = Measure((Share(1, 1), Share(0, 1)), Purpose.SEARCH, 2)
    assert event.fleet == Fleet((busy,), (1, 3))
    assert json.loads(dumps(encode(event))) == stored


def test_builds_in_flight_are_stored_with_the_decision() -> None:
    building = [{"candidate": 4, "build_host": 1, "seconds": 12.5, "cancelled": True}]
    stored = {
        "order": {"kind": "Measure", **order(0, 2)},
        "belief": BELIEF,
        "builds": [{"candidate": 3, "build_host": 0}],
        "cancelled": [1],
        "ahead": {
            "hosts": 1,
            "build_hosts": 3,
            "building": building,
            "gone_build_hosts": [2],
            "builds_between": True,
        },
    }
    event = decode("Decided", stored)
    assert isinstance(event, Decided)
    assert event.fleet == Fleet((), (), 1, 3, (Building(4, 1, 12.5, True),), (2,), True)
    assert (event.decision.builds, event.decision.cancelled) == ((BuildOrder(3, 0),), (1,))
    assert json.loads(dumps(encode(event))) == stored


@pytest.mark.parametrize(
    ("stored", "reason", "detail"),
    [
        ({"reason": "too noisy"}, Reason.TOO_NOISY, None),
        ({"reason": "base not measured"}, Reason.BRANCH_POINT_UNKNOWN, None),
        ({"reason": "the bad end cannot be measured"}, Reason.BAD_UNMEASURABLE, None),
        ({"reason": "the budget of builds is used up"}, Reason.BUILDS_SPENT, None),
        ({"reason": "the budget of 40 runs is used up"}, Reason.RUNS_SPENT, 40.0),
        ({"reason": "the budget of 1.5 minutes is used up"}, Reason.MINUTES_SPENT, 1.5),
        ({"reason": "the merge base ab is not shown …"}, Reason.RECORDED, "the merge base ab is not shown …"),
    ],
)
def test_reasons_of_earlier_versions_are_read(stored: dict[str, str], reason: Reason, detail: object) -> None:
    known = {"candidates": [], "probabilities": [], "ratio": BELIEF["effect"], "effects": [], "several": 0.0, **stored}
    event = decode("HuntEnded", {"verdict": {"kind": "Inconclusive", **known}})
    several = {"kind": "Several", "steps": [], "unsettled": [{"good": 0, "bad": 2, "known": known}]}
    unsettled = decode("HuntEnded", {"verdict": several})
    assert isinstance(event, HuntEnded) and isinstance(unsettled, HuntEnded)
    assert isinstance(event.verdict, Inconclusive) and isinstance(unsettled.verdict, Several)
    assert (event.verdict.reason, event.verdict.detail) == (reason, detail)
    assert unsettled.verdict.unsettled[0].known == event.verdict
    for again in (event, unsettled):
        assert decode("HuntEnded", json.loads(dumps(encode(again)))) == again


def test_the_comparison_with_a_merge_base_is_stored() -> None:
    known = Inconclusive((1,), (0.5,), Interval(0.9, 1.0, 1.1), Reason.RUNS_SPENT, detail=9.0)
    event = HuntEnded(Inconclusive((), (), UNKNOWN, Reason.MERGE_BASE, detail=MergeBase("ab", "v1", known)))
    assert decode("HuntEnded", json.loads(dumps(encode(event)))) == event
