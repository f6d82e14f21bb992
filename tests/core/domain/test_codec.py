"""Events in the stored form of earlier versions."""

import json
from typing import Any

from perfbisect.core.domain.codec import decode, dumps, encode
from perfbisect.core.domain.events import Decided
from perfbisect.core.domain.fleet import Fleet
from perfbisect.core.domain.orders import Measure, Purpose, Share

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


def test_a_single_host_stores_no_fleet() -> None:
    stored = {"order": {"kind": "Measure", **order(0, 2)}, "belief": BELIEF}
    event = decode("Decided", stored)
    assert isinstance(event, Decided)
    assert event.fleet == Fleet()
    assert json.loads(dumps(encode(event))) == stored
