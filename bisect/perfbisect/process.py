"""Processes that work on a session or a host: who they are, whose, and whether they are still running, as /proc says; and the
time of this one: seconds since the epoch that never jump.

A history says of each process whose it is, as USER@MACHINE:NUMBER. The number is a secret of the user's state folder, so that no
file of others passes for an own one, and machines that share the folder are one.

The clock of the machine is read once. From then on passes what has passed, time in suspension included, also when that
clock is set. So differences are durations.
"""

import getpass
import os
import re
import socket
import time
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

from perfbisect.errors import PerfBisectError
from perfbisect.folders import state_folder

PROC = Path("/proc")
UNKNOWN = "unknown"
SOMEONE = "someone unknown"


def this_process() -> str:
    """An identity of this process that no other process has, on this machine or another."""
    return f"{machine()} {os.getpid()} {start_time(os.getpid())}"


def worker() -> str:
    """This process, and whose it is."""
    return f"{maker()} {this_process()}"


def copied(how: str = "imported") -> str:
    """In place of the process that worked on a session elsewhere: none of this machine, of an owner who is this user.

    In a file that is ``exported`` for others it is without the secret, which makes the file another's for everyone.
    """
    return f"{own_name() if how == 'exported' else maker()} {how} 0 0 0"


def whose(process: object) -> str:
    """Whose a session is that this process worked on; "" for this user's."""
    name, *rest = str(process).split(" ")
    if name == maker() and len(rest) == 4:
        return ""
    return name.partition(":")[0][:64] if len(rest) == 4 else SOMEONE


def own_name() -> str:
    """This user and machine, as USER@MACHINE."""
    return re.sub(r"[^\w.@-]", "-", f"{user()}@{socket.gethostname()}", flags=re.ASCII)[:64]


def maker() -> str:
    """This user and machine, with the number; without it where the state folder cannot be written."""
    try:
        return _made(state_folder() / "maker")
    except (OSError, PerfBisectError):
        return own_name()


@lru_cache
def _made(path: Path) -> str:
    """The contents of the file, which is made if it is missing, whole: another process may read it at this moment."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        new = path.with_name(f"maker-{os.getpid()}")
        new.touch(0o600)
        new.write_text(f"{own_name()}:{os.urandom(8).hex()}")
        with suppress(FileExistsError):
            path.hardlink_to(new)
        new.unlink()
    return path.read_text(encoding="utf-8").strip()


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
