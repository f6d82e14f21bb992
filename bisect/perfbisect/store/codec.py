"""Events in their stored form. A decoded event equals the one that was appended, but for the digits of a belief.

A stored belief is never an input of a decision: resume calls the search again.
"""

import json
from dataclasses import replace

from perfbisect.core.domain import codec
from perfbisect.core.domain.events import BuildProgress, Event, ExecutionStarted, HuntStarted, RunProgress, RunStarted

PASSING = (BuildProgress, RunStarted, RunProgress, ExecutionStarted)
"""Events for live views only; they are not stored."""
LARGEST = repr(codec.LARGEST).encode()  # as it stands in JSON in place of infinity


def encode(event: Event, candidates: tuple[str, ...]) -> str:
    """The JSON of an event of a hunt with this range. Raises ValueError for NaN, which no fact may contain.

    A HuntStarted is stored without the range, which can be long, is stored once for the hunt, and is in every session's
    HuntStarted.
    """
    if isinstance(event, HuntStarted) and event.candidates == candidates:
        event = replace(event, candidates=())
    return codec.dumps(codec.encode(event))


def decode(kind: str, text: str | bytes, candidates: tuple[str, ...] = ()) -> Event:
    """The event of type ``kind`` from its JSON, in a hunt with this range."""
    text = text.encode() if isinstance(text, str) else text
    event = codec.decode(kind, json.loads(text), infinite=LARGEST in text)
    if isinstance(event, HuntStarted) and not event.candidates:
        return replace(event, candidates=candidates)
    return event
