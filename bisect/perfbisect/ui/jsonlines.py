"""Each event as one JSON object on a line of its own, for programs; and back.

Every object has ``event`` (the name of a class of ``perfbisect.core.event``) and ``at`` (seconds since the epoch);
beside them stand the fields of that class under their own names. Where a field can be of several kinds, its object
says which in ``kind``: ``order`` and ``verdict`` are Measure, Found, Several, NotReproduced or Inconclusive.

    {"event": "RunFinished", "at": 1.6e9, "candidate": 7, "facts": {"operations": 123, "seconds": 10.0, …}}
    {"event": "Decided", "at": 1.6e9, "order": {"kind": "Measure", …}, "belief": {"culprit": …, "noise": 0.01, …}}

Candidates are positions in ``candidates`` of HuntStarted. The belief holds ``culprit.size`` candidates, of which
``culprit.top`` lists the most probable as [candidate, probability], at most LISTED of them; the rest of the
probability belongs to candidates that are not listed. ``slow`` gives for every candidate the probability that it is
slow, as runs [[how many, probability], …] along ``candidates``. What has no bound is written as the largest number.
"""

import math
import sys
from collections.abc import Iterable
from types import TracebackType
from typing import Any, Self, TextIO

import msgspec
import numpy as np

from perfbisect.core import event as events
from perfbisect.core import order as orders
from perfbisect.core.event import Decided, Event, HuntEnded
from perfbisect.core.order import Belief, Decision, Interval, Measure, Order
from perfbisect.core.runlength import packed, unpacked

LISTED = 100
LEAST = 1e-6  # probabilities below this are not listed

EVENTS: dict[str, type[Event]] = {
    kind.__name__: kind
    for kind in (
        events.HuntStarted, events.Warned, events.BuildStarted, events.BuildProgress, events.BuildFinished,
        events.CandidateSkipped, events.RunStarted, events.RunProgress, events.RunFinished,
    )
}  # fmt: skip
ORDERS: dict[str, type[Order]] = {
    kind.__name__: kind
    for kind in (orders.Measure, orders.Found, orders.Several, orders.NotReproduced, orders.Inconclusive)
}


def encode(event: Event, at: float) -> str:
    """The line of an event, without its end."""
    match event:
        case Decided(Decision(order, belief)):
            body = {"order": tagged(order), "belief": compact(belief)}
        case HuntEnded(verdict):
            body = {"verdict": tagged(verdict)}
        case _:
            body = msgspec.to_builtins(event)
    return msgspec.json.encode(bounded({"event": type(event).__name__, "at": at, **body})).decode()


def decode(line: str | bytes) -> tuple[Event, float]:
    """The event of a line and when it happened. Raises ValueError where ``line`` is not such a line."""
    body = unbounded(msgspec.json.decode(line))
    if not isinstance(body, dict) or "at" not in body:
        raise ValueError("not an event: no object with 'event' and 'at'")
    name, at = body.pop("event", None), float(body.pop("at"))
    if name == "Decided":
        return Decided(Decision(untagged(body["order"]), full(body["belief"]))), at
    if name == "HuntEnded":
        verdict = untagged(body["verdict"])
        if isinstance(verdict, Measure):
            raise ValueError("a measurement is not a verdict")
        return HuntEnded(verdict), at
    if name not in EVENTS:
        raise ValueError(f"there is no event {name!r}")
    event: Event = msgspec.convert(body, EVENTS[name])
    return event, at


def tagged(order: Order) -> dict[str, Any]:
    """An order or a verdict with the name of its kind."""
    return {"kind": type(order).__name__, **msgspec.to_builtins(order)}


def untagged(body: dict[str, Any]) -> Order:
    """The order or verdict of the kind that ``body`` names."""
    order: Order = msgspec.convert({key: value for key, value in body.items() if key != "kind"}, ORDERS[body["kind"]])
    return order


def compact(belief: Belief) -> dict[str, Any]:
    """A belief with only its most probable candidates."""
    size = len(belief.culprit)
    order = np.argsort(-belief.culprit, kind="stable")[:LISTED]
    return {
        "culprit": {
            "size": size,
            "top": [[int(c), float(belief.culprit[c])] for c in order if belief.culprit[c] >= LEAST],
        },
        "change": float(belief.change),
        "noise": float(belief.noise),
        "effect": msgspec.to_builtins(belief.effect),
        "warnings": list(belief.warnings),
        "slow": packed(belief.slow, 3),
    }


def full(body: dict[str, Any]) -> Belief:
    """The belief again; candidates that were not listed have probability 0."""
    culprit = np.zeros(body["culprit"]["size"])
    for candidate, probability in body["culprit"]["top"]:
        culprit[candidate] = probability
    effect = msgspec.convert(body["effect"], Interval)
    slow = unpacked(body.get("slow", ()))
    return Belief(culprit, body["change"], body["noise"], effect, tuple(body["warnings"]), slow)


def bounded(value: Any) -> Any:
    """``value`` with the largest number in place of infinity, for which JSON has no word."""
    match value:
        case float() if math.isinf(value):
            return math.copysign(sys.float_info.max, value)
        case dict():
            return {key: bounded(part) for key, part in value.items()}
        case list() | tuple():
            return [bounded(part) for part in value]
        case _:
            return value


def unbounded(value: Any) -> Any:
    """``value`` with infinity in place of the largest number."""
    match value:
        case float() if abs(value) == sys.float_info.max:
            return math.copysign(math.inf, value)
        case dict():
            return {key: unbounded(part) for key, part in value.items()}
        case list():
            return [unbounded(part) for part in value]
        case _:
            return value


class JsonLines:
    """Writes each event to a stream as it happens."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def recall(self, told: Iterable[tuple[float, Event]]) -> None:
        """What earlier sessions of a resumed hunt saw was written then."""

    def show(self, event: Event, at: float) -> None:
        """Write the line of ``event``, at once."""
        print(writable_json(encode(event, at), self.stream), file=self.stream, flush=True)

    def close(self) -> None:
        """Nothing is held back, so nothing is left to do."""


def writable_json(line: str, stream: TextIO) -> str:
    """``line`` for this stream: JSON is UTF-8, and escapes what another encoding cannot write."""
    try:
        line.encode(stream.encoding or "utf-8")
    except UnicodeEncodeError:
        import json

        return json.dumps(json.loads(line), separators=(",", ":"))
    return line
