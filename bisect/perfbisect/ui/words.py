"""Numbers, times and commits as they appear on a screen."""

from datetime import datetime

from perfbisect.core.domain.events import Commit
from perfbisect.core.domain.orders import Interval, Purpose
from perfbisect.wording.text import printable

PURPOSES = {Purpose.ENDS: "the ends", Purpose.SEARCH: "search", Purpose.CONFIRM: "confirmation"}


def about(commit: Commit) -> Commit:
    """The commit with texts that are safe to print."""
    return Commit(commit.sha, printable(commit.date), printable(commit.author), printable(commit.subject))


def rate(value: float) -> str:
    """Operations per second in three or more digits: 12,345, 87.1, 0.442."""
    return f"{value:,.0f}" if value >= 100 else f"{value:#.3g}".rstrip(".")


def clock(seconds: float) -> str:
    """A duration as a clock shows it: 0:07, 12:30, 1:02:03."""
    whole = max(0, int(seconds))
    hours, minutes = divmod(whole // 60, 60)
    return f"{hours}:{minutes:02}:{whole % 60:02}" if hours else f"{minutes}:{whole % 60:02}"


def spent(seconds: float) -> str:
    """What something took: 0.4 s, 12 s, 3:25."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    return f"{seconds:.0f} s" if seconds < 100 else clock(seconds)


def rough(minutes: float) -> str:
    """A guess, rounded so that it does not pretend: under a minute, about 4 min, about 1 h 20 min."""
    if minutes < 0.75:
        return "under a minute"
    if minutes < 59.5:
        step = 1 if minutes < 10 else 5
        return f"about {round(minutes / step) * step} min"
    hours, rest = divmod(round(minutes / 10) * 10, 60)
    return f"about {hours} h {rest} min" if rest and hours < 10 else f"about {round(minutes / 60)} h"


def of_day(at: float) -> str:
    """Local time of day of seconds since the epoch."""
    return datetime.fromtimestamp(at).strftime("%H:%M:%S")


def ends(interval: Interval) -> str:
    """The ends of an interval: 0.698–0.726."""
    return f"{interval.low:.3f}–{interval.high:.3f}"
