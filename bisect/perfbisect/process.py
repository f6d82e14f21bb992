"""Determines the identity and the owner of a process that works on a session or a host, and whether this process is
still running according to /proc; and provides a clock that never jumps.

A history stores the owner of each process as USER@MACHINE:NUMBER. The number is a random secret in the user's state
folder, so that an imported file of another user with the same name is never mistaken for a file of this user. If
several machines share the state folder, their processes store the same number.

The clock of this module reads the machine's time of day only once, at the start of the process. Each later time is the
time of the start plus the time that has elapsed since the start, including time in which the machine was suspended. So
the difference between two times is the elapsed time, even if a user or a program has set the machine's clock between
the two times.
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


def this_process_identity() -> str:
    """The identity of this process. Processes on other machines, and earlier and later processes on this machine, have
    other identities."""
    return f"{machine_identity()} {os.getpid()} {start_ticks(os.getpid())}"


def this_process_with_owner() -> str:
    """The owner and the identity of this process, in the form in which the history stores them."""
    return f"{user_at_machine_and_secret()} {this_process_identity()}"


def placeholder_process(origin: str = "imported") -> str:
    """A text for the history in place of the identity of a process of another machine, for a session that was imported
    or exported. The text names this user as the owner of the session.

    If ``origin`` is "exported", the text does not contain the user's secret number, so the history of each user who
    imports the file treats the session as a session of another user.
    """
    return f"{user_at_machine() if origin == 'exported' else user_at_machine_and_secret()} {origin} 0 0 0"


def owner_if_other_user(process: object) -> str:
    """The owner of the session on which ``process`` worked; "" if the owner is this user."""
    name, *rest = str(process).split(" ")
    if name == user_at_machine_and_secret() and len(rest) == 4:
        return ""
    return name.partition(":")[0][:64] if len(rest) == 4 else SOMEONE


def user_at_machine() -> str:
    """The user and the machine, as USER@MACHINE."""
    return re.sub(r"[^\w.@-]", "-", f"{user_name()}@{socket.gethostname()}", flags=re.ASCII)[:64]


def user_at_machine_and_secret() -> str:
    """The user and the machine, as USER@MACHINE:NUMBER; or USER@MACHINE if the state folder is not writable."""
    try:
        return _read_or_create_secret(state_folder() / "maker")
    except (OSError, PerfBisectError):
        return user_at_machine()


@lru_cache
def _read_or_create_secret(path: Path) -> str:
    """The content of the file. A missing file is created with its content in one step, because another process may read
    the file at any time.
    """
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        new = path.with_name(f"maker-{os.getpid()}")
        new.touch(0o600)
        new.write_text(f"{user_at_machine()}:{os.urandom(8).hex()}")
        with suppress(FileExistsError):
            path.hardlink_to(new)
        new.unlink()
    return path.read_text(encoding="utf-8").strip()


def is_running(process: str) -> bool:
    """Whether the process with this identity is running; false for a process of another machine or container."""
    _, pid, started = process.rsplit(" ", 2)
    return is_local_process(process) and started == start_ticks(int(pid)) != ""


def is_local_process(process: str) -> bool:
    """Whether a process, which may have ended, was started on this machine since its last boot, and in this
    container."""
    return process.rsplit(" ", 2)[0].endswith(here := machine_identity()) and here != UNKNOWN


def machine_identity() -> str:
    """A text that identifies this machine since its last boot, and this container (by its process namespace)."""
    try:
        return f"{(PROC / 'sys/kernel/random/boot_id').read_text().strip()} {(PROC / 'self/ns/pid').readlink()}"
    except OSError:
        return UNKNOWN


def user_name() -> str:
    """The user's login name on this machine, which schedulers also use."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "user"


def start_ticks(pid: int) -> str:
    """The start time of a process, in clock ticks since boot; "" if the process does not exist."""
    try:
        # The name of the program, in parentheses, may contain spaces and parentheses.
        fields = (PROC / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in "ZX" else fields[19]


class MonotonicClock:
    """A clock that never jumps: it shows the machine's time at the creation of this object, plus the time that has
    elapsed since the creation.
    """

    def __init__(self) -> None:
        self._begin = time.time() - seconds_since_boot()

    def now(self) -> float:
        """Seconds since the epoch."""
        return self._begin + seconds_since_boot()

    def advance_to(self, seconds: float) -> None:
        """Advance the clock if it shows a time before ``seconds``, which an earlier process recorded before the
        machine's clock was set back.
        """
        self._begin = max(self._begin, seconds - seconds_since_boot())


def seconds_since_boot() -> float:
    """Seconds since this machine booted, with the time in which the machine was suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


CLOCK = MonotonicClock()
