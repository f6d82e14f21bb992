"""One hunt at a time measures on a host: a lock below its root folder, which names its owner.

The lock is a file that is read, compared and replaced under ``flock``, so that of two hunts that find a stale lock at
the same moment one gets it and the other sees the new owner. The owner is a process on the machine of the controller,
which need not be the host; only there can it be seen whether it still lives.
"""

import os
import platform
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from perfbisect.errors import EnvironmentFailure
from perfbisect.host.protocol import Host

# $1 the lock, $2 the content that may be replaced, $3 the new content (empty: none). Prints what the lock holds.
_SWAP = """\
if [ -e "$1" ] && [ "$(cat "$1")" != "$2" ]; then cat "$1"; exit; fi
if [ -n "$3" ]; then printf '%s' "$3" | cat >"$1.new" && mv -f "$1.new" "$1" && cat "$1"; else rm -f "$1"; fi
"""


class Owner(msgspec.Struct, frozen=True, forbid_unknown_fields=False):
    """Who holds a lock, and enough of the process to tell it from a later one with the same pid."""

    pid: int
    born: int  # clock ticks from the boot to the start of that process
    boot: str  # id of that boot
    machine: str
    purpose: str  # "hunt 12"
    since: str  # ISO 8601, UTC

    def __str__(self) -> str:
        return f"{self.purpose} (process {self.pid} on {self.machine}, since {self.since})"


@contextmanager
def hold(host: Host, purpose: str) -> Iterator[None]:
    """Hold the host's lock. Jobs that still run there are an earlier owner's.

    Raises EnvironmentFailure, naming the owner, while somebody else has the lock.
    """
    mine = _me(purpose)
    found = _swap(host, "", mine)
    while found != mine:
        owner = _owner(found)
        if owner is not None and not _gone(owner):
            raise EnvironmentFailure(
                f"host {host.name} is busy: {owner} is measuring there",
                f"Wait for it or stop it. If it is not running any more, remove {_path(host)} on that host.",
            )
        found = _swap(host, found, mine)
    try:
        yield
    finally:
        _swap(host, mine, "")


def holder(host: Host) -> Owner | None:
    """Who holds the host's lock now; None when nobody does or its owner is gone."""
    owner = _owner(host.run(["cat", _path(host)], check=False).stdout)
    return None if owner is None or _gone(owner) else owner


def _path(host: Host) -> str:
    return str(host.root / "lock")


def _swap(host: Host, old: str, new: str) -> str:
    path = _path(host)
    return host.run(["flock", "-w", "30", f"{path}.guard", "sh", "-c", _SWAP, "swap", path, old, new]).stdout


def _owner(content: str) -> Owner | None:
    """The owner that a lock names, None for one that cannot be read: it was cut short, so nobody holds it."""
    try:
        return msgspec.json.decode(content, type=Owner)
    except msgspec.DecodeError:
        return None


def _me(purpose: str) -> str:
    since = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    me = Owner(os.getpid(), _born(os.getpid()) or 0, _boot(), platform.node(), purpose, since)
    return msgspec.json.encode(me).decode()


def _gone(owner: Owner) -> bool:
    """Whether the owner has certainly ended; of a process on another machine nothing is certain."""
    if owner.machine != platform.node():
        return False
    return owner.boot != _boot() or _born(owner.pid) != owner.born


def _born(pid: int) -> int | None:
    """When a live process of this machine started; None when there is none. A zombie has ended."""
    with suppress(OSError):
        state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
        return None if state in "ZX" else int(fields[18])
    return None


def _boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
