"""Is the process that worked on a hunt, or on a host, still there?

Asked of /proc, so a killed one is never taken for running.
"""

import os
from pathlib import Path

PROC = Path("/proc")
UNKNOWN = "unknown"


def here() -> str:
    """This process, told apart from every other on this machine since it was started, and on other machines."""
    return f"{machine()} {os.getpid()} {birth(os.getpid())}"


def alive(process: str) -> bool:
    """Whether the process that ``here`` described is running; False for one of another machine or container."""
    _, pid, born = process.rsplit(" ", 2)
    return visible(process) and born == birth(int(pid)) != ""


def visible(process: str) -> bool:
    """Whether the process that ``here`` described would be seen from here if it were running."""
    return process.rsplit(" ", 2)[0] == machine() != UNKNOWN


def machine() -> str:
    """This boot of this machine, as seen from this container."""
    try:
        return f"{(PROC / 'sys/kernel/random/boot_id').read_text().strip()} {(PROC / 'self/ns/pid').readlink()}"
    except OSError:
        return UNKNOWN


def birth(pid: int) -> str:
    """When a process was started, in clock ticks since boot; empty when there is none."""
    try:
        # The name of the program, in parentheses, may itself hold spaces and parentheses.
        fields = (PROC / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in "ZX" else fields[19]
