"""One hunt at a time measures on a host: a lock below its root folder, which names its owner.

The lock is a file that is read, compared and replaced under ``flock``, so that of two hunts that find a stale lock at
the same moment one gets it and the other sees the new owner. The owner is a process on the machine of the controller,
which need not be the host; only there can it be seen whether it still lives (in the same boot and container: names of
machines are not unique). For all others it shows its life: while it
holds the lock it touches the file every minute, and a lock that nobody has touched for ten is taken for abandoned. An
owner that was only cut off for so long finds out that it is the owner no more, and stops.
"""

import os
import platform
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import msgspec

from perfbisect.errors import EnvironmentFailure
from perfbisect.host.protocol import Host
from perfbisect.process import is_local, is_running, this_process

BEAT = 60.0  # seconds between two signs of life
ABANDONED = 10 * BEAT  # without one for so long the owner has ended, or cannot reach the host
LOOK = 5.0  # seconds between two looks of one who waits

# $1 the lock, $2 the content that may be replaced, $3 the new content (empty: none). Prints the seconds since the last
# sign of life, and what the lock holds.
_SWAP = """\
if [ -e "$1" ] && [ "$(cat "$1")" != "$2" ]; then
    echo "$(($(date +%s) - $(stat -c %Y "$1")))"; cat "$1"; exit
fi
echo 0
if [ -n "$3" ]; then printf '%s' "$3" | cat >"$1.new" && mv -f "$1.new" "$1" && cat "$1"; else rm -f "$1"; fi
"""
_READ = '[ ! -e "$1" ] || { echo "$(($(date +%s) - $(stat -c %Y "$1")))"; cat "$1"; }'
_BEAT = '[ "$(cat "$1" 2>/dev/null)" != "$2" ] || { touch "$1"; echo ours; }'

WaitCallback = Callable[["Owner | None"], None]
"""Told, every few seconds, for whom one waits; None when there is nobody to wait for any more."""


class Owner(msgspec.Struct, frozen=True, forbid_unknown_fields=False):
    """Who holds a lock, and enough of the process to tell it from a later one with the same pid."""

    process: str  # see perfbisect.process.here
    pid: int  # the same for people, and the name of the machine, which others may share
    machine: str
    purpose: str  # "hunt 12"
    since: str  # ISO 8601, UTC

    def __str__(self) -> str:
        return f"{self.purpose} (process {self.pid} on {self.machine}, since {self.since})"


class Lease:
    """A lock that is held, as far as its last sign of life could tell."""

    def __init__(self, host: Host, content: str) -> None:
        self.host = host
        self.content = content
        self.lost = False
        self.seen = time.time()  # when the last sign of life arrived
        self._ended = threading.Event()

    def confirm(self) -> None:
        """Raise EnvironmentFailure when somebody else has taken the lock for abandoned, and taken it."""
        if time.time() - self.seen > 2 * BEAT:  # the host was out of reach, or we were asleep
            self._sign()
        if self.lost:
            raise EnvironmentFailure(
                f"host {self.host.name} could not be reached for so long that somebody else measures there now",
                "Go on when it is free.",
            )

    def beat(self) -> None:
        """Show a sign of life every minute, until ``end``."""
        while not self._ended.wait(BEAT):
            with suppress(Exception):  # a host that cannot be reached now may be later; nothing else ends the signs
                self._sign()

    def _sign(self) -> None:
        said = self.host.run(["sh", "-c", _BEAT, "beat", _path(self.host), self.content]).stdout
        self.lost = self.lost or said.strip() != "ours"
        self.seen = time.time()

    def end(self) -> None:
        """Show no more signs of life."""
        self._ended.set()


@contextmanager
def hold(host: Host, purpose: str, waiting: WaitCallback | None = None) -> Iterator[Lease]:
    """Acquire the host, and hold its lock. Jobs that still run there are an earlier owner's.

    While somebody else has the lock: with ``waiting``, wait for its release, otherwise raise EnvironmentFailure, naming
    the owner.
    """
    with host, _locked(host, purpose, waiting) as held:
        yield held


@contextmanager
def _locked(host: Host, purpose: str, waiting: WaitCallback | None) -> Iterator[Lease]:
    mine = _me(purpose)
    age, found = _swap(host, "", mine)
    waited = False
    while found != mine:
        owner = _owner(found)
        if owner is None or _gone(owner, age):
            age, found = _swap(host, found, mine)
        elif waiting is None:
            raise busy(host, owner)
        else:
            waited = True
            waiting(owner)
            time.sleep(LOOK)
            age, found = _swap(host, "", mine)
    if waiting and waited:
        waiting(None)
    held = Lease(host, mine)
    life = threading.Thread(target=held.beat, name=f"lock of {host.name}", daemon=True)
    life.start()
    try:
        yield held
    finally:
        held.end()
        with suppress(EnvironmentFailure):  # out of reach: what happened before is told, and the lock lapses by itself
            _swap(host, mine, "")


def busy(host: Host, owner: Owner) -> EnvironmentFailure:
    """The error for a host that somebody else has."""
    return EnvironmentFailure(
        f"host {host.name} is busy: {owner} is measuring there",
        "Wait for it with --wait, or stop it."
        + ("" if is_local(owner.process) else f" If it ended without a word, {_left(host)}"),
    )


def wait(host: Host, waiting: WaitCallback) -> None:
    """Wait until nobody holds the host's lock."""
    waited = False
    while owner := holder(host):
        waited = True
        waiting(owner)
        time.sleep(LOOK)
    if waited:
        waiting(None)


def holder(host: Host) -> Owner | None:
    """Who holds the host's lock now; None when nobody does or its owner is gone."""
    age, content = _read(host.run(["sh", "-c", _READ, "read", _path(host)], check=False).stdout)
    owner = _owner(content)
    return None if owner is None or _gone(owner, age) else owner


def _left(host: Host) -> str:
    return f"the host is free {ABANDONED / 60:.0f} minutes after its last sign of life, or when you remove {_path(host)} there."


def _path(host: Host) -> str:
    return str(host.root / "lock")


def _swap(host: Host, old: str, new: str) -> tuple[float, str]:
    path = _path(host)
    return _read(host.run(["flock", "-w", "30", f"{path}.guard", "sh", "-c", _SWAP, "swap", path, old, new]).stdout)


def _read(said: str) -> tuple[float, str]:
    """Seconds since the last sign of life, and the content of the lock: "" when there is none."""
    age, _, content = said.partition("\n")
    return float(age or 0), content


def _owner(content: str) -> Owner | None:
    """The owner that a lock names, None for one that cannot be read: it was cut short, so nobody holds it."""
    try:
        return msgspec.json.decode(content, type=Owner)
    except msgspec.DecodeError:
        return None


def _me(purpose: str) -> str:
    since = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    return msgspec.json.encode(Owner(this_process(), os.getpid(), platform.node(), purpose, since)).decode()


def _gone(owner: Owner, age: float) -> bool:
    """Whether the owner has ended; of one that cannot be seen from here only the ``age`` of its last sign of life tells."""
    return not is_running(owner.process) if is_local(owner.process) else age > ABANDONED
