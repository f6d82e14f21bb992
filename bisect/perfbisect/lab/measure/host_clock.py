"""The clock of a host during a run. Commands are timed by it, so it must not be set meanwhile."""

import re
from dataclasses import dataclass
from itertools import islice

from perfbisect.errors import ClockSet
from perfbisect.lab.workload.result import SECONDS

TICK = 0.02  # seconds: two of the ticks in which /proc/uptime counts
SHARE = 1e-3  # of a run that a step of the clock may be: far below the noise of any host

# Prints the seconds since the epoch, and the uptime before and after they were read.
STAMP = """\
stamp() { read -r before rest </proc/uptime; now=$(date +%s.%N); read -r after rest </proc/uptime; echo "$now $before $after"; }
"""
_LINE = re.compile(rf"^{SECONDS} {SECONDS} {SECONDS}$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Stamp:
    """One reading of the clock, between two readings of the uptime."""

    at: float  # seconds since the epoch
    before: float  # seconds since the start of the host, by a clock that is never set
    after: float


def read(text: str) -> tuple[Stamp, ...]:
    """What ``stamp`` has printed at the begin and the end of a run; less when it was killed, or the disk is full.

    A program that is measured could write there, too: anything else is left out.
    """
    return tuple(Stamp(*map(float, line.groups())) for line in islice(_LINE.finditer(text), 2))


def check(stamps: tuple[Stamp, ...], host: str) -> None:
    """Raise ClockSet when the clock of that host was set between the begin and the end of a run."""
    if len(stamps) < 2:
        return
    began, ended = stamps
    least, most = ended.before - began.after, ended.after - began.before
    slack = TICK + SHARE * most
    passed = ended.at - began.at
    if not least - slack <= passed <= most + slack:
        step = passed - (least + most) / 2
        to = "forward" if step > 0 else "back"
        raise ClockSet(f"the clock of host {host} was set {to} by {abs(step):,.1f} s during a run")


def here(at: float, ended: Stamp, uptime: float, now: float) -> float:
    """The time of this process at which the clock of the host showed ``at``, during a run that ``ended`` then.

    ``uptime`` is that of the host at the time ``now`` of this process.
    """
    return now - max(0.0, uptime - ended.after) - (ended.at - at)
