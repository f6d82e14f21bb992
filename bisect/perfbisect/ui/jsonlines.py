"""Each event as one JSON object on a line of its own, for programs; and back.

Every object has ``event`` (the name of a class of ``perfbisect.core.domain.events``) and ``at`` (seconds since the epoch);
the other keys are the fields of that class. Where a field can have several types, its object
names its type in ``kind``: ``order`` and ``verdict`` are Measure, Found, Several, NotReproduced, CodePlacement or Inconclusive.

    {"event": "RunFinished", "at": 1.6e9, "candidate": 7, "facts": {"operations": 123, "seconds": 10.0, …}}
    {"event": "Decided", "at": 1.6e9, "order": {"kind": "Measure", …}, "belief": {"culprit": …, "noise": 0.01, …}}

Where one process carries out hunts of several workloads, each object has ``hunt``, the number of its hunt.

Candidates are positions in ``candidates`` of HuntStarted. The belief gives for every candidate the probability that
it is the culprit (``culprit``) and that it is slow (``slow``), each as runs [[how many, probability], …] along
``candidates``, in four digits. What has no bound is written as the largest number. The text is ASCII: other signs are
escaped.
"""

import json
from collections.abc import Iterable
from typing import TextIO

from perfbisect.core.domain import codec
from perfbisect.core.domain.events import Event
from perfbisect.ui.stream import put
from perfbisect.wording.text import safe_json


def encode(event: Event, at: float, hunt: int | None = None) -> str:
    """The line of an event, without its end; with the number of its ``hunt`` where there are several."""
    named = {} if hunt is None else {"hunt": hunt}
    return codec.dumps({"event": type(event).__name__, "at": at, **named, **codec.encode(event)})


def decode(line: str | bytes) -> tuple[Event, float]:
    """The event of a line and when it happened. Raises ValueError where ``line`` is not such a line."""
    body = json.loads(line)
    if not isinstance(body, dict) or not {"event", "at"} <= body.keys():
        raise ValueError("not an event: no object with 'event' and 'at'")
    name, at = body.pop("event"), float(body.pop("at"))
    if name != "HuntStarted":  # which has it itself
        body.pop("hunt", None)
    try:
        return codec.decode(name, body), at
    except (KeyError, TypeError, AttributeError) as missing:
        raise ValueError(f"not a whole event {name!r}: {missing}") from None


class JsonLines:
    """Writes each event to a stream as it happens; ``together``, with the number of its hunt."""

    def __init__(self, stream: TextIO, *, together: bool = False) -> None:
        self.stream = stream
        self.together = together

    def recall(self, hunt: int, events: Iterable[tuple[float, Event]]) -> None:
        """The lines of earlier sessions of a resumed hunt were written then."""

    def show(self, hunt: int, events: Iterable[tuple[float, Event]]) -> None:
        """Write the lines of events, at once."""
        for at, event in events:
            put(safe_json(encode(event, at, hunt if self.together else None)), self.stream)

    def end(self, hunt: int, at: float) -> None:
        """Nothing follows the verdict."""

    def close(self) -> None:
        """Nothing is buffered, so nothing is left to do."""
