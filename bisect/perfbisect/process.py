"""Processes that work on a hunt or a host: who they are, whose, and whether they are still running, as /proc says; and the time
of this one: seconds since the epoch that never jump.

The clock of the machine is read once. From then on passes what has passed, time in suspension included, also when that
clock is set. So differences are durations.
"""

import getpass
import os
import time
from pathlib import Path

PROC = Path("/proc")
UNKNOWN = "unknown"


def this_process() -> str:
    """An identity of this process that no other process has, on this machine or another."""
    return f"{machine()} {os.getpid()} {start_time(os.getpid())}"


def is_running(process: str) -> bool:
    """True where the process with this identity is running; False for one of another machine or container."""
    _, pid, started = process.rsplit(" ", 2)
    return is_local(process) and started == start_time(int(pid)) != ""


def is_local(process: str) -> bool:
    """True for a process of this boot of this machine and this container, whether it is running or not."""
    return process.rsplit(" ", 2)[0].endswith(here := machine()) and here != UNKNOWN


def machine() -> str:
    """This boot of this machine and this container (its process namespace)."""
    try:
        return f"{(PROC / 'sys/kernel/random/boot_id').read_text().strip()} {(PROC / 'self/ns/pid').readlink()}"
    except OSError:
        return UNKNOWN


def user() -> str:
    """The user's name on this machine, as schedulers know it."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "user"


def start_time(pid: int) -> str:
    """The start of a process, in clock ticks since boot; "" when it does not exist."""
    try:
        # The name of the program, in parentheses, may contain spaces and parentheses.
        fields = (PROC / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in "ZX" else fields[19]


class Clock:
    """Begins with the time of the machine."""

    def __init__(self) -> None:
        self._begin = time.time() - elapsed()

    def now(self) -> float:
        """Seconds since the epoch."""
        return self._begin + elapsed()

    def go_on_from(self, at: float) -> None:
        """Never return less than ``at``: an earlier process may have recorded it before the clock was set back."""
        self._begin = max(self._begin, at - elapsed())


def elapsed() -> float:
    """Seconds since the machine was started."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


CLOCK = Clock()
