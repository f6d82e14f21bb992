"""Converts events to plain values for JSON, and back, for the history and for other programs.

An event is encoded as a mapping from the names of its fields to their values. An encoded work order (the description of
the next measurement) or verdict has the name of its type in the key ``kind``. A Decided event contains two
probabilities for every candidate of the hunt. The probabilities of a Decided event are rounded to four digits and
run-length encoded, ``[[how many, probability], …]``, which takes a few kilobytes for 100,000 commits. JSON has no
infinity, so infinity is written as the largest floating-point number. If the largest floating-point number occurs in a
Decided event, it is read as infinity.
"""

import json
import math
import sys
from collections.abc import Callable, Iterable, Mapping
from itertools import groupby
from typing import Any, get_args, get_type_hints

import msgspec
import numpy as np
from numpy.typing import NDArray

from perfbisect.core.domain.events import (
    CandidateSkipped,
    Commit,
    Decided,
    Event,
    RunFinished,
    SessionEnded,
    SessionStarted,
)
from perfbisect.core.domain.facts import FitnessFacts
from perfbisect.core.domain.orders import Belief, BuildOrder, Decision, Fleet, Interval, Measure, Order, Step

# stored under different names for a hunt (HuntStarted …) and a trial (TrialStarted …)
ENDS = SessionStarted | SessionEnded
EVENTS: Mapping[str, type[Event]] = {kind.__name__: kind for kind in get_args(Event) if not issubclass(kind, ENDS)}
ORDERS: Mapping[str, type[Order]] = {kind.__name__: kind for kind in get_args(Order)}
BELIEF: Mapping[str, Any] = {**get_type_hints(Belief), "effect": Interval}  # type of each part of a belief
DECISION_FIELDS: Mapping[str, Any] = {  # fields of a decision except its order and its belief, in order
    "builds": tuple[BuildOrder, ...], "cancelled": tuple[int, ...], "found": tuple[Step, ...],
    "clean": bool,
}  # fmt: skip
TAGGED = ("Decided",)  # events with values of several types, which are named by `kind`
LARGEST = sys.float_info.max  # written in place of infinity
# Fields that are omitted if they are 0 or empty.
OMITTED_IF_EMPTY = ("workload", "round", "further", "build_hosts", "fitness")
STARTED = ("request", "host", "resumed", "further", "build_hosts")  # fields of the start of a trial


def event_kind(event: Event) -> str:
    """The name of an event in the history and in JSON."""
    name = type(event).__name__
    if not isinstance(event, ENDS):
        return name
    of_trial = bool(event.request.works) if isinstance(event, SessionStarted) else event.verdict is None
    return name.replace("Session", "Trial" if of_trial else "Hunt")


def encode(event: Event) -> dict[str, Any]:
    """The fields of an event as plain values for JSON."""
    match event:
        case Decided(decision, fleet):
            decided = {"order": encode_order(decision.order), "belief": encode_belief(decision.belief)}
            fleet_fields = nonempty_fields(fleet, Fleet.__match_args__)
            return {**decided, **nonempty_fields(decision, DECISION_FIELDS), "fleet": fleet_fields}
        case SessionStarted(session, request=request):
            fields = to_plain(event)
            if request.works:
                names = [name for name in STARTED if name not in OMITTED_IF_EMPTY or fields[name]]
                return {"trial": session} | {name: fields[name] for name in names}
            return {"hunt": session} | {
                name: field for name, field in fields.items() if name not in ("session", "request")
            }
        case SessionEnded(verdict) if verdict:
            return {"verdict": encode_order(verdict), **nonempty_fields(event, ("reason_follows", "suspects"))}
        case SessionEnded():
            return nonempty_fields(event, ("fitness",))
        case _:
            omitted = OMITTED_IF_EMPTY if isinstance(event, RunFinished | CandidateSkipped) else ()
            return {key: value for key, value in to_plain(event).items() if value or key not in omitted}


def decode(kind: str, body: dict[str, Any], *, has_infinity: bool = True) -> Event:
    """The event of type ``kind`` with these fields. Raises ValueError for an unknown type.

    If ``has_infinity`` is true, the largest floating-point number is read as infinity. For an event without infinity,
    ``has_infinity`` may be false; decoding then takes less than half of the time.
    """
    match kind:
        case "Decided":
            body = max_float_to_infinity(body) if has_infinity else body
            begun = [msgspec.convert(body[name], of) if name in body else of() for name, of in DECISION_FIELDS.items()]
            parts = {
                name: msgspec.convert(part, BELIEF[name], dec_hook=decode_run_lengths)
                for name, part in body["belief"].items()
            }
            decision = Decision(decode_order(body["order"]), Belief(ends=parts.pop("effect"), **parts), *begun)
            return Decided(decision, msgspec.convert(body["fleet"], Fleet))
        case "HuntStarted" | "TrialStarted":
            number = body["hunt" if kind == "HuntStarted" else "trial"]
            return msgspec.convert({"session": number, **body}, SessionStarted)
        case "TrialEnded":
            return SessionEnded(fitness=msgspec.convert(body.get("fitness"), FitnessFacts | None))
        case "HuntEnded":
            match decode_order(max_float_to_infinity(body["verdict"])):
                case Measure():
                    raise ValueError("a measurement is not a verdict")
                case verdict:
                    suspects = msgspec.convert(body.get("suspects", ()), tuple[Commit, ...])
                    return SessionEnded(verdict, bool(body.get("reason_follows")), suspects=suspects)
        case _ if kind in EVENTS:
            return msgspec.convert(body, EVENTS[kind])
        case _:
            raise ValueError(f"{kind!r} is not a kind of event")


def dumps(value: object) -> str:
    """JSON in ASCII, on one line. Raises ValueError for NaN."""
    return json.dumps(clamp_infinity(value), allow_nan=False, separators=(",", ":"))


def to_plain(value: object) -> Any:
    """The value as dictionaries, lists and plain numbers; numpy's numbers become plain numbers."""
    return msgspec.to_builtins(value, enc_hook=lambda number: number.item())


def nonempty_fields(value: object, names: Iterable[str]) -> dict[str, Any]:
    """The fields that are not empty, by name."""
    return {name: to_plain(field) for name in names if (field := getattr(value, name))}


def encode_order(order: Order) -> dict[str, Any]:
    """A work order or a verdict as plain values, with the name of its type."""
    return {"kind": type(order).__name__, **to_plain(order)}


def decode_order(body: dict[str, Any]) -> Order:
    """The work order or the verdict that ``body`` encodes; ``body`` contains the name of the type."""
    return msgspec.convert(body, ORDERS[body["kind"]])


def encode_belief(belief: Belief) -> dict[str, Any]:
    """A belief (the probabilities of all candidates after a decision) as plain values."""
    return {
        "culprit": encode_run_lengths(float(f"{probability:.4g}") for probability in belief.culprit.tolist()),
        "change": float(belief.change),
        "noise": float(belief.noise),
        "effect": to_plain(belief.effect),
        "warnings": list(belief.warnings),
        "slow": encode_run_lengths(np.round(belief.slow, 4).tolist()),
        "several": round(float(belief.several), 4),
    }


def map_floats(value: Any, change: Callable[[float], float]) -> Any:
    """The JSON ``value`` in which every float is replaced by the result of ``change``."""
    match value:
        case float():
            return change(value)
        case dict():
            return {key: map_floats(part, change) for key, part in value.items()}
        case list() | tuple():
            return [map_floats(part, change) for part in value]
        case _:
            return value


def clamp_infinity(value: Any) -> Any:
    """``value`` in which infinity is replaced by the largest floating-point number."""
    return map_floats(value, lambda number: math.copysign(LARGEST, number) if math.isinf(number) else number)


def max_float_to_infinity(value: Any) -> Any:
    """``value`` in which the largest float, which ``clamp_infinity`` stores for infinity, is replaced by infinity."""
    return map_floats(value, lambda number: math.copysign(math.inf, number) if abs(number) == LARGEST else number)


def encode_run_lengths(values: Iterable[float]) -> list[list[float]]:
    """The run-length encoding ``[[how many, value], …]`` of the values. The caller rounds the values first, so that
    nearly equal values share a run.

    >>> encode_run_lengths([0.0, 0.0, 0.2])
    [[2, 0.0], [1, 0.2]]
    """
    return [[len(list(run)), value] for value, run in groupby(values)]


def decode_run_lengths(_: type, runs: list[list[float]]) -> NDArray[np.float64]:
    """The values of a run-length encoding, as an array whose length is the sum of the counts."""
    return np.repeat([float(value) for _, value in runs], [int(count) for count, _ in runs])
