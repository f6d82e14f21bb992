"""Reads the lines that views write as JSON."""

import json

from perfbisect.core.domain import codec
from perfbisect.core.domain.events import Event


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
