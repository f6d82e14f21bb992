"""Numbers and times as reports write them. Light to import: the list of hunts must come at once."""

from datetime import datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from perfbisect.core.domain.orders import Interval

MISSING = "–"


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


def ends(interval: "Interval | None") -> str:
    """The ends of a 95 % interval: 0.698 to 0.726."""
    return MISSING if interval is None else f"{interval.low:.3f} to {interval.high:.3f}"
