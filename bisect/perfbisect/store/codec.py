"""Events as JSON and back. What the log gives back equals what was appended, with one exception:

the belief in a Decided, two probabilities for every candidate, is kept in four digits and as runs of equal values,
``[[how many, probability], …]``. A belief about 100,000 commits then takes a few kilobytes, and nothing is decided
from it: resume asks the search again.
"""

import json
import math
import sys
from collections.abc import Mapping
from dataclasses import replace
from itertools import groupby
from typing import Any

import msgspec
import numpy as np

from perfbisect.core import event as events
from perfbisect.core import order as orders
from perfbisect.core.event import Decided, Event, HuntEnded, HuntStarted
from perfbisect.core.order import Belief, Decision, Order, Verdict
from perfbisect.core.runlength import packed, unpacked

PASSING = (events.BuildProgress, events.RunStarted, events.RunProgress)
"""Events that are only for views that look on; they are not kept."""

KEPT: Mapping[str, type[Event]] = {
    kind.__name__: kind
    for kind in (
        HuntStarted, events.Warned, Decided, events.BuildStarted, events.BuildFinished,
        events.CandidateSkipped, events.RunFinished, HuntEnded,
    )
}  # fmt: skip
ORDERS: Mapping[str, type[Order]] = {
    kind.__name__: kind
    for kind in (orders.Measure, orders.Found, orders.Several, orders.NotReproduced, orders.Inconclusive)
}


def encode(event: Event, candidates: tuple[str, ...]) -> str:
    """The JSON of an event of a hunt with this range. Raises ValueError for NaN, which no fact may hold.

    A HuntStarted goes without the range: it can be long, is stored once, and every session tells it again.
    """
    match event:
        case HuntStarted() if event.candidates == candidates:
            body = builtins(replace(event, candidates=()))
        case Decided(Decision(order, belief)):
            body = {"order": tagged(order), "belief": plain_belief(belief)}
        case HuntEnded(verdict):
            body = {"verdict": tagged(verdict)}
        case _:
            body = builtins(event)
    return dumps(body)


def decode(kind: str, text: str, candidates: tuple[str, ...] = ()) -> Event:
    """The event of that kind from its JSON, in a hunt with this range."""
    body = json.loads(text)
    if kind == "Decided":
        return Decided(Decision(untagged(body["order"]), full_belief(body["belief"])))
    if kind == "HuntEnded":
        verdict = untagged(body["verdict"])
        assert not isinstance(verdict, orders.Measure)
        return HuntEnded(verdict)
    if kind == "HuntStarted" and not body["candidates"]:
        body["candidates"] = candidates
    return msgspec.convert(body, KEPT[kind])


def builtins(value: object) -> Any:
    """Dictionaries, lists and plain numbers; numpy's numbers, which the search may leave in its answers, included."""
    return msgspec.to_builtins(value, enc_hook=lambda odd: odd.item())


def dumps(value: object) -> str:
    """JSON that SQLite can read too; infinity, for which JSON has no word, becomes the largest number."""
    return json.dumps(finite(value), allow_nan=False, separators=(",", ":"))


def finite(value: Any) -> Any:
    """``value`` with every infinite number replaced by the largest finite one."""
    match value:
        case float():
            return math.copysign(sys.float_info.max, value) if math.isinf(value) else value
        case dict():
            return {key: finite(part) for key, part in value.items()}
        case list() | tuple():
            return [finite(part) for part in value]
        case _:
            return value


def tagged(order: Order | Verdict) -> dict[str, Any]:
    """An order with the name of its kind."""
    return {"kind": type(order).__name__, **builtins(order)}


def untagged(body: dict[str, Any]) -> Order:
    """The order of the kind that ``body`` names."""
    kind = ORDERS[body["kind"]]
    return msgspec.convert({key: value for key, value in body.items() if key != "kind"}, kind)


def plain_belief(belief: Belief) -> dict[str, Any]:
    """A belief as builtins."""
    rounded = (float(f"{probability:.4g}") for probability in belief.culprit.tolist())
    return {
        "culprit": [[len(list(run)), probability] for probability, run in groupby(rounded)],
        "change": float(belief.change),
        "noise": float(belief.noise),
        "effect": builtins(belief.effect),
        "warnings": list(belief.warnings),
        "slow": packed(belief.slow, 4),
    }


def full_belief(body: dict[str, Any]) -> Belief:
    """The belief from its builtins."""
    runs = body.pop("culprit")
    culprit = np.repeat([float(probability) for _, probability in runs], [count for count, _ in runs])
    effect = msgspec.convert(body.pop("effect"), orders.Interval)
    slow = unpacked(body.pop("slow", ()))
    return Belief(culprit=culprit, effect=effect, slow=slow, **body | {"warnings": tuple(body["warnings"])})
