"""Locks a machine, so that only one session at a time measures on the machine, also if the sessions have different
users and root folders.

A process that has the lock, or waits for the lock, keeps a ticket: a file in a folder such as /var/tmp, in which all
users of the machine can write, but no user can remove files of another user. The process with a read-only ticket has
the lock. A process that finds no read-only ticket, and no ticket with an earlier place in the queue, makes its own
ticket read-only and then looks at all tickets again. If two processes make their tickets read-only at the same time, at
least one of them sees the other's read-only ticket, and makes its own ticket writable again. So the lock needs neither
equal clocks nor file locks of the kernel.

The owner of a ticket is a bisect process, which may run on another machine. The owner touches the ticket once a minute
(the heartbeat). Other processes ignore a ticket that had no heartbeat for ten minutes. A heartbeat sets the
modification time of the ticket to the uptime of the machine, so that the time without a heartbeat is right even if the
clock is set. A user may forge the modification time of a ticket, but not the time at which the kernel changed the
file's metadata (ctime); if the two times disagree, a process that reads the ticket waits for the next heartbeat. A
process also ignores a ticket if it can see that the owner has ended, because both processes run in the same container
since the same boot. A session that was disconnected for more than ten minutes stops if another session has taken the
lock.
"""

import atexit
import os
import platform
import secrets
import threading
import time
from base64 import b64decode
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import PurePosixPath

import msgspec

from perfbisect.errors import EnvironmentFailure, PerfBisectError, UsageError
from perfbisect.host.protocol import Host
from perfbisect.process import (
    is_local_process,
    is_running,
    seconds_since_boot,
    start_ticks,
    this_process_identity,
    user_name,
)

BEAT = 60.0  # seconds between two heartbeats
ABANDONED = 10 * BEAT  # seconds without a heartbeat after which the owner has ended, or cannot reach the host
POLL = 5.0  # seconds between two checks of a lock for which a session waits
FOLDERS = ("/var/tmp", "/dev/shm")  # /dev/shm is used if /var/tmp is full or read-only, so that `bisect gc` can start
OTHER_FOLDER = "PERFBISECT_LOCKS"  # environment variable with another folder, for all hosts
SESSION = secrets.token_hex(8)  # session of this process, which may lock several hosts of one machine

_WAITS, _HOLDS = "644", "444"
# $1 is the name of a ticket, or "". If $4 is not "", the script writes the ticket with the content $4, the mode $2 and
# the place $3 in the queue ("": the last place); otherwise the script updates the ticket's time. The folders of tickets
# follow. Prints the boot and the time of the machine, then for each ticket with a heartbeat: name, mode, time of the
# last change, content in base64, and owner of the file, whose name may contain blanks. The uptime is the start time of
# the shell since the boot, because a container may have a different /proc/uptime. A ticket is written under a temporary
# name and then renamed, because other users could put a link at a name that they know in advance.
_TICKETS = f"""\
ticket=$1 mode=$2 place=$3 content=$4; shift 4
read -r boot </proc/sys/kernel/random/boot_id
uptime() {{ read -r stat </proc/self/stat; set -- ${{stat##*) }}; now=${{20%??}}.${{20#"${{20%??}}"}}; }}
uptime
write() {{
    [ -d "$1" ] || mkdir -p -m 1777 -- "$1" || return
    new=$(mktemp "$1/$ticket.XXXXXX") || return
    printf '%s %s %s' "$boot" "${{place:-$now}}" "$content" | cat >"$new" && chmod "$mode" "$new" &&
        touch -m -d "@$now" "$new" && mv -fT "$new" "$1/$ticket" || {{ rm -f "$new"; return 1; }}
}}
if [ -n "$content" ]; then
    for folder do write "$folder" && break; done || exit 1
    for other do [ "$other" = "$folder" ] || rm -f "$other/$ticket"; done
elif [ -n "$ticket" ]; then
    for folder do touch -c -m -d "@$now" "$folder/$ticket"; done
fi
echo "$boot $(date +%s)"
now=${{now%.*}}
lives="-newermt @$((now - {ABANDONED:.0f})) ! -newermt @$((now + {BEAT:.0f}))"
find -H "$@" -maxdepth 1 -type f -size -9 -name 'perfbisect-lock.????????????????' ! -name '*[!a-z0-9.-]*' $lives \\
    -printf '%f %m %C@ ' '(' -exec base64 -w 0 {{}} ';' -o -true ')' -printf ' %u\\n' 2>/dev/null || :
find -H "$@" -maxdepth 1 -name 'perfbisect-lock.*' -user "$(id -u)" -cmin +1440 ! '(' $lives ')' -delete 2>/dev/null || :
"""
# $1 is a root folder, $2 a text about the session that uses the folder now. Prints the text about the session that used
# the folder last, unless that session has released the folder.
_NOTE = """{ read -r last <"$1/lock"; } 2>/dev/null; echo "$last"; echo "$2" >"$1/lock" || :"""
_APART = (
    """[ "$(readlink /proc/self/ns/pid)" != 'pid:[4026531836]' ] && [ "$(stat -Lc %d "$1")" = "$(stat -c %d /)" ]"""
)
_MACHINE = """cat /proc/sys/kernel/random/boot_id; stat -Lc %d:%i "$1" """

WaitCallback = Callable[["LockOwner | None"], None]
"""Called every few seconds with the owner that the lock waits for; at the end with None."""


class LockOwner(msgspec.Struct, frozen=True):
    """The process that owns a ticket. ``process`` also identifies the boot and the start time, because a later process
    may have the same pid."""

    process: str  # see perfbisect.process.here
    pid: int  # only for messages, like ``machine``: neither is unique
    machine: str
    purpose: str  # "hunt 12"
    since: str  # ISO 8601, UTC: when the process took the lock, or began to wait
    user: str  # name of the user on the controller
    session: str
    account: str = ""  # name of the user on the machine: the owner of the ticket file, which no other user can forge

    def __str__(self) -> str:
        account = "" if self.account == self.user else f", as {self.account}"
        return f"{self.purpose} of {self.user} (process {self.pid} on {self.machine}{account}, since {self.since})"


@dataclass(frozen=True, slots=True)
class LiveTicket:
    """A ticket whose last heartbeat is less than ten minutes old."""

    name: str
    has_lock: bool
    queue_place: tuple[float, str]  # place in the queue: the uptime of the machine at its arrival, then its name
    changed: float  # time of the ticket's last change, by the clock of the machine
    silent_seconds: float  # seconds since ``changed``; wrong if the clock was set in the meantime
    owner: LockOwner


class HostLock:
    """The lock of a host's machine, or a place in the queue for the lock."""

    def __init__(self, host: Host, purpose: str, session: str = "") -> None:
        self.host, self.purpose = host, purpose
        self.session = session or secrets.token_hex(8)
        self.ticket = f"perfbisect-lock.{secrets.token_hex(8)}"
        self.place = ""
        self.lost = False
        self.seen = seconds_since_boot()  # when the last heartbeat arrived
        self._mode, self._since = _WAITS, ""
        self._shared = False  # whether the session has the machine as another host, for which the queue waits
        self._ended = threading.Event()
        self._writing = threading.RLock()

    def wait_for_turn(self, on_wait: WaitCallback | None, *, take_lock: bool) -> None:
        """Wait until this session is the first in the queue for the lock; then take the lock, if ``take_lock`` is true.
        If ``on_wait`` is None and this session is not the first, raise EnvironmentFailure instead of waiting.
        """
        self._ended.set()
        self._ended = threading.Event()
        tickets = self._write_ticket(_WAITS)
        name = f"lock of {self.host.name}"
        threading.Thread(target=self.send_heartbeats, args=(self._ended,), name=name, daemon=True).start()
        waited = False
        while True:
            mine = (float(self.place), self.ticket)
            ahead = [
                ticket for ticket in tickets if ticket.has_lock or (ticket.queue_place < mine and not self._shared)
            ]
            if ahead:
                first = min(ahead, key=lambda ticket: (not ticket.has_lock, ticket.queue_place))
                if on_wait is None:
                    raise busy_error(self.host, first)
                # While this lock waits, other waiting locks leave their queues: no two sessions wait for each other.
                for lock in _waited.values():
                    if lock is not self:
                        lock.release()
                waited = True
                on_wait(first.owner)
                time.sleep(POLL)
            elif not take_lock or not any(ticket.has_lock for ticket in self._write_ticket(_HOLDS)):
                break
            tickets = self._write_ticket(_WAITS)  # two sessions that took the lock at the same moment wait again
        self.lost = False
        if on_wait and waited:
            on_wait(None)

    def set_session_name(self, name: str) -> None:
        """Write the name of the session into the ticket, where other users see it: "a hunt for …" becomes "hunt 12 for
        …".
        """
        _, kind, about = self.purpose.split(" ", 2)
        self.purpose = f"{kind} {name} {about}"
        self._write_ticket(_HOLDS)

    def _write_ticket(self, mode: str) -> list[LiveTicket]:
        """Write the ticket with the file mode ``mode``, and return the tickets of other sessions."""
        with self._writing:
            if mode != self._mode or not self._since:
                self._since = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
            self._mode = mode
            about = (self.purpose[:500], self._since, user_name(), self.session)  # shortened: long tickets are ignored
            owner = LockOwner(this_process_identity(), os.getpid(), platform.node(), *about)
            tickets = _valid_tickets(self.host, self.ticket, mode, self.place, msgspec.json.encode(owner).decode())
            self.place = next((str(ticket.queue_place[0]) for ticket in tickets if ticket.name == self.ticket), "")
            if not self.place:
                raise _no_ticket_error(self.host, "files that are written there disappear at once")
            self.seen = seconds_since_boot()
            foreign = [ticket for ticket in tickets if ticket.owner.session != self.session]
            self._shared = any(
                ticket.has_lock and ticket.name != self.ticket and ticket not in foreign for ticket in tickets
            )
            return foreign

    def check_held(self) -> None:
        """Raise EnvironmentFailure if another session has taken the lock, because this lock had no heartbeat for too
        long."""
        if seconds_since_boot() - self.seen > 2 * BEAT:  # the host was unreachable, or this process was suspended
            self._sign()
        if self.lost:
            text = f"host {self.host.name} could not be reached for so long that another session has taken the host"
            raise EnvironmentFailure(text, "Run `bisect resume` when the host is free.")

    def check_root(self) -> None:
        """Raise EnvironmentFailure if the root folder was removed while this session held the lock."""
        noted = str(self.host.root / "lock")
        if not self.lost and self.host.run(["test", "-e", noted], check=False).status == 1:
            raise EnvironmentFailure(
                f"the root folder {self.host.root} of host {self.host.name} was removed during the session",
                "Do not remove the folder during a session. `bisect resume` makes its contents again.",
            )

    def send_heartbeats(self, stop: threading.Event) -> None:
        """Send a heartbeat every minute, until the event ``stop`` is set."""
        while not stop.wait(BEAT):
            with suppress(Exception):  # a failed heartbeat is ignored: the host may be reachable later
                self._sign()

    def _sign(self) -> None:
        with self._writing:
            silent = seconds_since_boot() - self.seen > ABANDONED - BEAT
            tickets = _tickets(self.host, self.ticket)
            if all(ticket.name != self.ticket for ticket in tickets) and not self._ended.is_set():
                silent, tickets = True, self._write_ticket(self._mode)  # the ticket file was removed
            self.lost = self.lost or (
                silent and any(ticket.has_lock and ticket.owner.session != self.session for ticket in tickets)
            )
            self.seen = seconds_since_boot()

    def release(self) -> None:
        """Release the lock, or leave the queue; a later ``wait_for_turn`` enters the queue at the same place."""
        with self._writing:
            self._ended.set()
            with suppress(PerfBisectError):  # unreachable: the earlier error is reported, and the ticket expires
                self.host.run(["rm", "-f", *(f"{folder}/{self.ticket}" for folder in _folders())])


# (name of a host, root) → a lock that had its turn in the queue, but that this process has not yet taken.
_waited: dict[tuple[str, PurePosixPath], HostLock] = {}


@contextmanager
def hold_lock(host: Host, purpose: str, on_wait: WaitCallback | None = None, session: str = "") -> Iterator[HostLock]:
    """Hold the lock of the host's machine in the ``with`` block. Jobs that still run on the machine at the begin of the
    block were started by earlier owners of the lock.

    If another session holds the lock, or is earlier in the queue: wait for the end of that session if ``on_wait`` is
    given, otherwise raise EnvironmentFailure with the name of that session. Raises UsageError if this session already
    uses the root folder as the root folder of another host.
    """
    with host:
        held = _waited.pop((host.name, host.root), None) or HostLock(host, purpose)
        held.purpose, held.session = purpose, session or held.session
        try:
            held.wait_for_turn(on_wait, take_lock=True)
            note = f"{held.session} {host.name}"
            last = host.script(_NOTE, host.root, note).stdout.strip()
            if last != note and last.startswith(f"{held.session} "):
                raise UsageError(
                    f"Hosts {last.split(' ', 1)[1]} and {host.name} are the same machine: both use the root folder {host.root}.",
                    f"Omit one of the two hosts, or correct `address` and `root` of {host.name} in hosts.toml. A host needs no"
                    " `build_hosts` to build for itself.",
                )
            yield held
        finally:
            held.release()


def wait_for_turn(host: Host, on_wait: WaitCallback) -> None:
    """Wait until this process is the first in the queue for the host's lock, which ``hold_lock`` takes later. The
    process keeps this place in the queue until it has to wait for another host.
    """
    key = host.name, host.root
    if key not in _waited:
        _waited[key] = HostLock(host, "a session", SESSION)
        atexit.register(_waited[key].release)
    _waited[key].wait_for_turn(on_wait, take_lock=False)


def lock_owner(host: Host) -> LockOwner | None:
    """The present owner of the lock; None if the lock is free, or if its owner has ended."""
    return next((ticket.owner for ticket in _valid_tickets(host) if ticket.has_lock), None)


def lock_identity(host: Host) -> str:
    """A text that is equal for two hosts if they have the same lock. The text identifies the machine's boot and lock
    folder. Several hosts are locked in the order of these texts, so that sessions do not wait for each other."""
    return host.script(_MACHINE, _folders()[0], check=False).stdout


def has_private_lock_folder(host: Host) -> bool:
    """Whether the host is a container whose lock folder is visible neither to its machine nor to other containers."""
    return host.script(_APART, _folders()[0], check=False).ok


def busy_error(host: Host, first_ticket: LiveTicket) -> EnvironmentFailure:
    """The error for a host whose lock another session holds, or will have next."""
    owner, state = first_ticket.owner, "measures there" if first_ticket.has_lock else "is next in the queue"
    later = f" If the process of the other session has ended, the host becomes free {ABANDONED / 60:.0f} minutes later."
    advice = f"Add --wait to wait for the end of the other session, or stop the other session.{'' if is_local_process(owner.process) else later}"
    return EnvironmentFailure(f"host {host.name} is busy: {owner} {state}", advice)


def _valid_tickets(host: Host, *ticket_to_write: str) -> list[LiveTicket]:
    """The valid tickets. If the clock was set or a heartbeat is forged, the two times of a ticket disagree; the ticket
    is then valid only if a further heartbeat arrives."""
    tickets = _tickets(host, *ticket_to_write)
    doubted = {ticket.name: ticket.changed for ticket in tickets if ticket.silent_seconds > ABANDONED}
    began = seconds_since_boot()
    while doubted and seconds_since_boot() - began < 1.5 * BEAT:
        time.sleep(POLL)
        tickets = _tickets(host, *ticket_to_write[:1])
        doubted = {ticket.name: ticket.changed for ticket in tickets if doubted.get(ticket.name) == ticket.changed}
    return [ticket for ticket in tickets if ticket.name not in doubted]


def _tickets(
    host: Host, ticket: str = "", mode: str = "", queue_place: str = "", content: str = ""
) -> list[LiveTicket]:
    """The tickets that are not abandoned and whose owners may still run; see ``_TICKETS``."""
    done = host.script(_TICKETS, ticket, mode, queue_place, content, *_folders(), check=False)
    if not done.ok:
        raise _no_ticket_error(host, (done.stderr.strip().splitlines() or ["no file can be written there"])[-1])
    first, *lines = done.stdout.splitlines()
    boot, now = first.split(" ")
    tickets = []
    for line in lines:
        with suppress(ValueError):  # a damaged ticket is ignored; msgspec's errors are ValueErrors, too
            name, mode, changed, encoded, account = line.split(" ", 4)
            boot_of, queue_place, text = b64decode(encoded).decode().split(" ", 2)
            owner = msgspec.structs.replace(msgspec.json.decode(text, type=LockOwner), account=account)
            # If process 1 is hidden, processes of other users may be hidden, too: then a missing process may still run.
            ended = is_local_process(owner.process) and start_ticks(1) != "" and not is_running(owner.process)
            if boot_of == boot and not ended:
                at, silent = float(changed), float(now) - float(changed)
                tickets.append(LiveTicket(name, mode == _HOLDS, (float(queue_place), name), at, silent, owner))
    return tickets


def _folders() -> tuple[str, ...]:
    folder = os.environ.get(OTHER_FOLDER)
    if folder and not folder.startswith("/"):
        text = f"The variable {OTHER_FOLDER} is not an absolute path: {folder}"
        raise UsageError(text, "Give the path of a folder that exists on all hosts.")
    return (folder,) if folder else FOLDERS


def _no_ticket_error(host: Host, why: str) -> EnvironmentFailure:
    return EnvironmentFailure(
        f"host {host.name} cannot be locked: no file can be written in {' or '.join(_folders())} on the host: {why}",
        f"Allow all users to write to the folder: sudo chmod 1777 {_folders()[0]}",
    )
