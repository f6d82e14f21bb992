"""Reads the lines of JSON that a hunt prints with `--json`."""

import json

from perfbisect.core.domain import codec
from perfbisect.core.domain.events import Event


def decode(line: str | bytes) -> tuple[Event, float]:
    """The event of a line, and its time. Raises ValueError if ``line`` has no event."""
    body = json.loads(line)
    if not isinstance(body, dict) or not {"event", "at"} <= body.keys():
        raise ValueError("not an event: no object with 'event' and 'at'")
    name, at = body.pop("event"), float(body.pop("at"))
    if name != "HuntStarted":  # a HuntStarted has a field "hunt"
        body.pop("hunt", None)
    try:
        return codec.decode(name, body), at
    except (KeyError, TypeError, AttributeError) as missing:
        raise ValueError(f"not a whole event {name!r}: {missing}") from None
