"""The lock of a host: one hunt at a time measures there. A lock file below the root folder names its owner.

The file is read, compared and replaced under ``flock``, so that of two hunts that find a stale lock at the same moment
one gets it and the other sees the new owner. The owner is a process on the controller, which need not be the host. Only
there can be checked whether it is alive (in the same boot and container: names of machines are not unique). All others
see its heartbeat, once a minute: a lock without a heartbeat for ten minutes is abandoned. An owner that was merely
disconnected for so long notices that it has lost the lock, and stops.
"""

import os
import platform
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import msgspec

from perfbisect.clock import elapsed
from perfbisect.errors import EnvironmentFailure, UsageError
from perfbisect.host.protocol import Host
from perfbisect.process import is_local, is_running, this_process

BEAT = 60.0  # seconds between two heartbeats
ABANDONED = 10 * BEAT  # seconds without a heartbeat: the owner has ended, or cannot reach the host
POLL = 5.0  # seconds between two reads of a lock that is waited for

# A heartbeat touches the lock, and notes the boot and the uptime of the host beside it, with the content of the lock that
# it is of. Ages are differences of uptimes, so that no jump of the clock makes a lock look abandoned. The times of the
# file decide only where there is no such note: an earlier version beats, or the host was restarted.
_BEATS = """\
read -r boot </proc/sys/kernel/random/boot_id
read -r now rest </proc/uptime
beat() { touch -c "$1"; { echo "$boot $now"; cat "$1"; } 2>/dev/null >"$1.beat" || :; }
age() {
    age=-1
    { read -r then at rest && noted=$(cat); } 2>/dev/null <"$1.beat" || then=
    case $then:${at%.*} in
        "$boot":*[!0-9]* | *:) ;;
        "$boot":*) [ "$noted" != "$(cat "$1")" ] || age=$((${now%.*} - ${at%.*}));;
    esac
    [ "$age" -ge 0 ] || age=$(($(date +%s) - $(stat -c %Y "$1")))
    echo "$age"
}
"""
# $1 the lock, $2 the content that may be replaced, $3 the new content (empty: none). Prints the seconds since the last
# heartbeat, and the content of the lock. A lock that is released stays as a note that counts for no other: on a full
# disk its space is that of the next lock, so that `bisect gc` can free some.
_SWAP = (
    _BEATS
    + """\
if [ -e "$1" ] && [ "$(cat "$1")" != "$2" ]; then age "$1"; cat "$1"; exit; fi
echo 0
[ -n "$3" ] || { [ ! -e "$1" ] || mv -f "$1" "$1.beat"; exit; }
write() { printf '%s' "$2" | cat >"$1.new"; }
write "$1" "$3" 2>/dev/null || { rm -f "$1.beat"; write "$1" "$3"; } || exit
mv -f "$1.new" "$1" && beat "$1" && cat "$1"
"""
)
_READ = _BEATS + '[ ! -e "$1" ] || { age "$1"; cat "$1"; }'
_BEAT = _BEATS + '[ "$(cat "$1" 2>/dev/null)" != "$2" ] || { beat "$1"; echo kept; }'

WaitCallback = Callable[["Owner | None"], None]
"""Called every few seconds with the owner that is waited for; at the end with None."""


class Owner(msgspec.Struct, frozen=True, forbid_unknown_fields=False):
    """The process that holds a lock, distinguishable from a later one with the same pid."""

    process: str  # see perfbisect.process.here
    pid: int  # for messages, as is the name of the machine, which is not unique
    machine: str
    purpose: str  # "hunt 12"
    since: str  # ISO 8601, UTC
    host: str = ""  # the name under which it knows the host; earlier versions wrote neither this nor the next
    session: str = ""  # random, the same in all locks of a session and in no other

    def __str__(self) -> str:
        return f"{self.purpose} (process {self.pid} on {self.machine}, since {self.since})"


class HostLock:
    """A lock that is held, as of its last heartbeat."""

    def __init__(self, host: Host, content: str) -> None:
        self.host = host
        self.content = content
        self.lost = False
        self.seen = elapsed()  # when the last heartbeat arrived
        self._ended = threading.Event()

    def confirm(self) -> None:
        """Raise EnvironmentFailure when the lock was abandoned for too long and another process has taken it."""
        if elapsed() - self.seen > 2 * BEAT:  # the host was unreachable, or this process was suspended
            self._sign()
        if self.lost:
            raise EnvironmentFailure(
                f"host {self.host.name} could not be reached for so long that another process measures there now",
                "Resume when it is free.",
            )

    def beat(self) -> None:
        """Send a heartbeat every minute, until ``end``."""
        while not self._ended.wait(BEAT):
            with suppress(Exception):  # an unreachable host may be reachable later
                self._sign()

    def _sign(self) -> None:
        printed = self.host.run(["sh", "-c", _BEAT, "beat", _path(self.host), self.content]).stdout
        self.lost = self.lost or printed.strip() != "kept"
        self.seen = elapsed()

    def end(self) -> None:
        """Send no more heartbeats."""
        self._ended.set()


def new_session() -> str:
    """A name for the locks of one session."""
    return secrets.token_hex(8)


@contextmanager
def hold(host: Host, purpose: str, waiting: WaitCallback | None = None, session: str = "") -> Iterator[HostLock]:
    """Acquire the host, and hold its lock. Jobs that still run there are an earlier owner's.

    While another process holds the lock: with ``waiting``, wait for its release; otherwise raise EnvironmentFailure that
    names the owner. Raises UsageError when ``session`` itself holds it, under another name of the host.
    """
    with host, _locked(host, purpose, waiting, session or new_session()) as held:
        yield held


@contextmanager
def _locked(host: Host, purpose: str, waiting: WaitCallback | None, session: str) -> Iterator[HostLock]:
    mine = _me(host, purpose, session)
    age, found = _swap(host, "", mine)
    waited = False
    while found != mine:
        owner = _owner(found)
        if owner is not None and owner.session == session:
            raise _twice(owner, host)
        if owner is None or _gone(owner, age):
            age, found = _swap(host, found, mine)
        elif waiting is None:
            raise busy(host, owner)
        else:
            waited = True
            waiting(owner)
            time.sleep(POLL)
            age, found = _swap(host, "", mine)
    if waiting and waited:
        waiting(None)
    held = HostLock(host, mine)
    life = threading.Thread(target=held.beat, name=f"lock of {host.name}", daemon=True)
    life.start()
    try:
        yield held
    finally:
        held.end()
        with suppress(EnvironmentFailure):  # unreachable: the earlier error is reported, and the lock expires
            _swap(host, mine, "")


def busy(host: Host, owner: Owner) -> EnvironmentFailure:
    """The error for a host whose lock another process holds."""
    return EnvironmentFailure(
        f"host {host.name} is busy: {owner} is measuring there",
        "Wait for it with --wait, or stop it."
        + ("" if is_local(owner.process) else f" If it no longer exists, {_left(host)}"),
    )


def wait(host: Host, waiting: WaitCallback) -> None:
    """Wait until the host's lock is free."""
    waited = False
    while owner := holder(host):
        waited = True
        waiting(owner)
        time.sleep(POLL)
    if waited:
        waiting(None)


def holder(host: Host) -> Owner | None:
    """The present owner of the host's lock; None when it is free or its owner has ended."""
    age, content = _read(host.run(["sh", "-c", _READ, "read", _path(host)], check=False).stdout)
    owner = _owner(content)
    return None if owner is None or _gone(owner, age) else owner


def _left(host: Host) -> str:
    return f"the host is free {ABANDONED / 60:.0f} minutes after its last heartbeat, or when you remove {_path(host)} there."


def _path(host: Host) -> str:
    return str(host.root / "lock")


def _swap(host: Host, old: str, new: str) -> tuple[float, str]:
    path = _path(host)
    return _read(host.run(["flock", "-w", "30", f"{path}.guard", "sh", "-c", _SWAP, "swap", path, old, new]).stdout)


def _read(printed: str) -> tuple[float, str]:
    """Seconds since the last heartbeat, and the content of the lock: "" for no lock."""
    age, _, content = printed.partition("\n")
    return float(age or 0), content


def _owner(content: str) -> Owner | None:
    """The owner that a lock names; None for a truncated lock, which is not held."""
    try:
        return msgspec.json.decode(content, type=Owner)
    except msgspec.DecodeError:
        return None


def _me(host: Host, purpose: str, session: str) -> str:
    since = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    owner = Owner(this_process(), os.getpid(), platform.node(), purpose, since, host.name, session)
    return msgspec.json.encode(owner).decode()


def _twice(owner: Owner, host: Host) -> UsageError:
    return UsageError(
        f"Hosts {owner.host} and {host.name} are one: both lead to the root folder {host.root} of the same machine.",
        f"Leave one of them out, or correct `address` and `root` of {host.name} in hosts.toml; a host that builds for"
        " itself needs no build_hosts.",
    )


def _gone(owner: Owner, age: float) -> bool:
    """Whether the owner has ended; for one that cannot be seen from here the ``age`` of its last heartbeat decides."""
    return not is_running(owner.process) if is_local(owner.process) else age > ABANDONED
