"""Events as the log keeps them. What it gives back equals what was appended, but for the digits of a belief.

Nothing is decided from a stored belief: resume asks the search again.
"""

import json
from dataclasses import replace

from perfbisect.core.domain import codec
from perfbisect.core.domain.events import BuildProgress, Event, HuntStarted, RunProgress, RunStarted

PASSING = (BuildProgress, RunStarted, RunProgress)
"""Events that are only for views that look on; they are not kept."""


def encode(event: Event, candidates: tuple[str, ...]) -> str:
    """The JSON of an event of a hunt with this range. Raises ValueError for NaN, which no fact may hold.

    A HuntStarted goes without the range: it can be long, is stored once, and every session tells it again.
    """
    if isinstance(event, HuntStarted) and event.candidates == candidates:
        event = replace(event, candidates=())
    return codec.dumps(codec.encode(event))


def decode(kind: str, text: str, candidates: tuple[str, ...] = ()) -> Event:
    """The event of that kind from its JSON, in a hunt with this range."""
    event = codec.decode(kind, json.loads(text))
    if isinstance(event, HuntStarted) and not event.candidates:
        return replace(event, candidates=candidates)
    return event
