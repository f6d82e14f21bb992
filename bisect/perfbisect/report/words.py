"""Numbers, times and foreign text as reports write them. Light to import: the list of hunts must come at once."""

import math
import re
from datetime import datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from perfbisect.core.order import Interval

MISSING = "–"
UNSAFE = re.compile(r"[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]+")


def printable(text: str) -> str:
    """Text from a repository or a tool on one line, without anything that could steer a terminal."""
    return " ".join(UNSAFE.sub(" ", text).split())


def moment(at: float) -> str:
    """Local day and time of seconds since the epoch."""
    return datetime.fromtimestamp(at).strftime("%Y-%m-%d %H:%M")


def lasted(seconds: float) -> str:
    """A length of time: 0.4 s, 31 s, 12 min 5 s, 3 h 20 min."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes} min {rest} s" if rest else f"{minutes} min"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes} min" if minutes else f"{hours} h"


def figure(value: float | None) -> str:
    """A measured value in three digits or more: 280,000, 48.0, 0.605; a dash when the host cannot count it."""
    if value is None:
        return MISSING
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:#.3g}".rstrip(".")


def share(fraction: float | None) -> str:
    """A share of something: 82 %."""
    return MISSING if fraction is None else f"{100 * fraction:.0f} %"


def sure(probability: float) -> str:
    """A probability that is never said to be 100 %: 97 %, 99.6 %."""
    return share(probability) if probability < 0.99 else f"{min(math.floor(1000 * probability), 999) / 10:.1f} %"


def ends(interval: "Interval | None") -> str:
    """The ends of a 95 % interval: 0.698 to 0.726."""
    return MISSING if interval is None else f"{interval.low:.3f} to {interval.high:.3f}"


def count(number: int, one: str, many: str = "") -> str:
    """A number with its noun: 1 run, 23 runs."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"
