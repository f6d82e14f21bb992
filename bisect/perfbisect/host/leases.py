"""Machines that are leased from a scheduler, by the commands of hosts.toml. Waiting in its queue is all that is done here.

The life of a job: a record, acquire, renew every minute, release, and the record is removed. Whatever happens in between,
the job is released by its name, by this session or by the next.

So nothing is kept for a session that was killed: the state folder has a file for each job, whose name is the job's. It is
chosen at random before a scheduler hears of it. Whoever leases locks the file as long as it lives, also when it is killed: a
file that can be locked is one that nobody uses. Where the file system has no such locks, the process is looked for.
Neither tells of a session on another machine with the same home: its job is left alone until it is old.
"""

import fcntl
import math
import os
import platform
import secrets
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import IO

import msgspec

from perfbisect.errors import ConnectionLost, EnvironmentFailure
from perfbisect.folders import state_folder
from perfbisect.host.local import end
from perfbisect.host.protocol import Command, ConnectionEvent, ConnectionState, DelegatingHost, Host, Result
from perfbisect.process import start_time
from perfbisect.recipes.inventory import LeaseEntry, user
from perfbisect.recipes.placeholders import fill

LIMIT = 60.0  # seconds for a command that does not wait
LOOK = 10.0  # seconds between two questions about the queue
STOP = 15.0  # seconds in which acquire ends when it is interrupted
ENDED = 1  # the status of renew that says that a lease has ended
MARGIN = 60  # minutes for which a machine is wanted beyond the time in which a hunt may measure
_KEPT = 64 << 10  # bytes of what acquire has printed
OLD = timedelta(days=7)  # after which a session on another machine may be taken for ended

Show = Callable[[str, str], None]
"""Called every second of waiting in a queue, with what is waited for and what the scheduler says; with "" once it is leased."""

Say = Callable[[str], None]


class LeaseEnded(EnvironmentFailure):
    """The lease of a machine has ended: nothing may be done there any more."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """Machines that are leased together."""

    lease: LeaseEntry
    features: str
    names: tuple[str, ...]  # of the hosts
    nodes: Mapping[str, str] = field(default_factory=dict)  # host → its address in an earlier session, wanted again
    purpose: str = ""
    minutes: float = 0  # in which the hunt may measure; 0: that is not limited

    @property
    def kind(self) -> str:
        """The beginning of their names."""
        return f"{self.lease.name}:{self.features}"


@dataclass
class Machine:
    """A machine that is leased, under the name of a host."""

    name: str
    address: str
    lease: str  # what the scheduler calls it
    job: "Job"
    ended: bool = False  # other machines of the job may go on

    @property
    def values(self) -> dict[str, str]:
        """What the placeholders of the way to it stand for."""
        return {**self.job.values, "address": self.address, "lease": self.lease}

    def check(self) -> None:
        """Raise LeaseEnded if the last renewal has said so."""
        if self.ended:
            raise LeaseEnded(f"the lease of host {self.name} ({self.address}) has ended", "Resume to lease another.")

    def look(self) -> None:
        """Renew the lease now, as when the machine does not answer. Raises LeaseEnded."""
        self.job.renew(self)
        self.check()


@dataclass
class Job:
    """What one acquisition has leased."""

    wanted: Wanted
    values: dict[str, str]
    refused: bool = False  # nothing was leased: acquire has failed by itself
    machines: list[Machine] = field(default_factory=list)
    stopped: threading.Event = field(default_factory=threading.Event)  # renews no more

    def renew(self, machine: Machine) -> None:
        """Renew the lease of a machine; notes when it has ended."""
        command = self.wanted.lease.renew
        if command and not machine.ended and not self.stopped.is_set():
            status, _ = _short(fill(command, machine.values))
            if status == ENDED and not self.stopped.is_set():
                machine.ended = True  # for good: two threads renew

    def keep(self) -> None:
        """Renew until it is stopped."""
        while not self.stopped.wait(self.wanted.lease.every):
            for machine in self.machines:
                self.renew(machine)


_held: dict[str, Machine] = {}  # of this process, by the name of the host


def machine(name: str) -> Machine:
    """The machine that this process has leased under that name. Raises EnvironmentFailure for none."""
    if name not in _held:
        raise EnvironmentFailure(f"host {name} is not leased now")
    return _held[name]


def is_held(name: str) -> bool:
    """Whether this process has leased a machine under that name."""
    return name in _held


class Record(msgspec.Struct, frozen=True, forbid_unknown_fields=False):
    """A job that was given to a scheduler, or is about to be."""

    job: str
    kind: str  # "slurm:quiet"
    count: int  # machines
    since: str  # ISO 8601, UTC
    pid: int  # of the session, for messages
    machine: str  # the session's
    release: list[str]  # the command that gives it back
    purpose: str = ""

    def __str__(self) -> str:
        what = self.kind if self.count == 1 else f"{self.kind}*{self.count}"
        return f"{what} (job {self.job}, since {self.since}, of process {self.pid} on {self.machine})"


def folder() -> Path:
    """Where the files are."""
    return state_folder() / "leases"


@contextmanager
def noted(record: Record) -> Iterator[Callable[[], None]]:
    """Keep a record while a job may exist; what is yielded removes it, once the job is given back."""
    folder().mkdir(parents=True, exist_ok=True)
    path = folder() / f"{record.job}.json"
    new = path.with_suffix(".new")
    new.touch(mode=0o600)
    with new.open("wb") as file:
        with suppress(OSError):  # a file system without locks
            fcntl.flock(file, fcntl.LOCK_EX)
        file.write(msgspec.json.encode(record))
        file.flush()
        os.fsync(file)
        new.rename(path)  # locked before anyone looks for it
        place = os.open(path.parent, os.O_RDONLY)
        os.fsync(place)
        os.close(place)
        yield lambda: path.unlink(missing_ok=True)


def all_records() -> list[tuple[Record, bool]]:
    """All that is noted, and whether the session that noted it still runs."""
    return [(record, not free) for record, free, _ in _each_record()]


def free_abandoned(say: Say) -> None:
    """Release what sessions that were killed have left."""
    for record, free, path in _each_record():
        if free:
            why = _released(record.release)
            if not why:
                path.unlink(missing_ok=True)
            said = f"could not be released: {why}" if why else "was left by a session that has ended, and is released"
            say(f"{record} {said}.")


def _each_record() -> Iterator[tuple[Record, bool, Path]]:
    """Each record with its file, and whether its session has ended: until the next one no other process is told so."""
    for path in sorted(folder().glob("*.json")):
        with suppress(FileNotFoundError, msgspec.DecodeError), path.open("rb+") as file:
            locked: bool | None = False  # None: nothing is known
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                locked = True
            except OSError:
                locked = None
            record = msgspec.json.decode(file.read(), type=Record)
            # Another process may have released it just now
            yield record, not locked and path.exists() and _ended(record, locked is None), path


def _ended(record: Record, without_locks: bool) -> bool:
    """Whether the session of a record that is not locked has ended."""
    if record.machine == platform.node():
        return not (without_locks and start_time(record.pid))
    try:
        since = datetime.fromisoformat(record.since)
    except ValueError:
        return False
    return datetime.now(UTC) - (since if since.tzinfo else since.replace(tzinfo=UTC)) > OLD


@contextmanager
def leased(wanted: Wanted, show: Show, say: Say) -> Iterator[Job]:
    """Lease machines for the block, however it ends. ``say`` is told what could not be given back.

    Raises EnvironmentFailure when the scheduler lends none.
    """
    lease = wanted.lease
    values = {"job": f"perfbisect-{secrets.token_hex(6)}", "user": user()}
    release = fill(lease.release, values)
    since = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    record = Record(
        values["job"], wanted.kind, len(wanted.names), since, os.getpid(), platform.node(), release, wanted.purpose
    )
    job = Job(wanted, values)
    with noted(record) as forget:
        try:
            for name, (address, number) in _named(wanted, _acquire(job, show)):
                job.machines.append(Machine(name, address, number, job))
            _held.update({each.name: each for each in job.machines})
            if lease.renew:
                threading.Thread(target=job.keep, name=f"leases of {wanted.kind}", daemon=True).start()
            yield job
        finally:
            job.stopped.set()
            for each in job.machines:
                _held.pop(each.name, None)
            why = "" if job.refused else _released(release)
            if not why:
                forget()
            else:
                say(f"{record} could not be released: {why}. The next session tries again, and so does `bisect gc`.")


def _acquire(job: Job, show: Show) -> list[tuple[str, str]]:
    """Wait in the queue; the address of each machine, and what the scheduler calls its lease.

    Interrupted, the command is ended, and with it the place in the queue.
    """
    wanted, lease = job.wanted, job.wanted.lease
    count = len(wanted.names)
    minutes = str(math.ceil(wanted.minutes) + MARGIN) if wanted.minutes else ""
    asked = {**job.values, "features": wanted.features, "count": str(count), "node": ",".join(wanted.nodes.values())}
    asked |= {"minutes": minutes, "every": str(lease.every)}
    what = wanted.kind if count == 1 else f"{wanted.kind}*{count}"
    command = fill(lease.acquire, asked)

    def failure(why: str) -> EnvironmentFailure:
        return EnvironmentFailure(
            f"{what} cannot be leased: {why}", f"See `acquire` of lease {lease.name} in {lease.file}."
        )

    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        job.refused = True
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,  # Ctrl-C in the terminal reaches it through ``end`` alone
            )
        except OSError as error:
            raise EnvironmentFailure(
                f"{command[0]} does not start on this machine: {error.strerror}",
                "It is a command of a lease in hosts.toml.",
            ) from error
        job.refused = False  # it may be interrupted, with a place in the queue or more
        waited, looked, state = False, 0.0, ""
        try:
            while process.poll() is None:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(1)
                if process.returncode is None:
                    waited = True
                    if lease.status and (not state or time.monotonic() - looked > LOOK):
                        looked, state = time.monotonic(), _short(fill(lease.status, job.values))[1]
                    show(what, state or _last_line(_text(err)) or "in the queue")
        finally:
            end(process, STOP)
        if process.returncode:
            job.refused = process.returncode > 0  # killed by a signal, it may have leased something
            said = _last_line(_text(err)) or _last_line(_text(out))
            raise failure(said or f"{command[0]} ended with status {process.returncode}")
        found = [line.split() for line in _text(out).splitlines() if line.strip()]
    if len(found) != count or any(len(words) > 2 for words in found):
        lines = f"{len(found)} line{'' if len(found) == 1 else 's'}"
        each = "the machine" if count == 1 else f"each of {count} machines"
        raise failure(f"its acquire printed {lines}, but must print the address of {each} on a line of its own")
    if waited:
        show(what, "")
    return [(words[0], words[-1]) for words in found]


def _named(wanted: Wanted, found: Sequence[tuple[str, str]]) -> list[tuple[str, tuple[str, str]]]:
    """The host of each machine: the one that it was before, the others in the order in which acquire printed them."""
    left = list(found)
    own: dict[str, tuple[str, str]] = {}
    for name, node in wanted.nodes.items():
        if again := next((each for each in left if each[0] == node), None):
            own[name] = again
            left.remove(again)
    return [(name, own[name] if name in own else left.pop(0)) for name in wanted.names]


def _text(stream: IO[bytes]) -> str:
    """The end of what has come, also while a process writes: its place in the file is its own."""
    size = os.fstat(stream.fileno()).st_size
    return os.pread(stream.fileno(), _KEPT, max(0, size - _KEPT)).decode(errors="replace")


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1].strip() if lines else ""


def _short(command: Sequence[str]) -> tuple[int, str]:
    """The status of a command that does not wait, and the last line that it printed; -1 for one that does not end."""
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=LIMIT, check=False, start_new_session=True
        )
    except subprocess.TimeoutExpired:
        return -1, f"{command[0]} took more than {LIMIT:.0f} s"
    except OSError as error:
        return -1, f"{command[0]} does not start: {error.strerror}"
    printed = done.stdout if done.returncode == 0 else done.stderr or done.stdout
    return done.returncode, _last_line(printed.decode(errors="replace"))


def _released(command: Sequence[str]) -> str:
    """Release a job; why it failed, or ""."""
    status, said = _short(command)
    return "" if status == 0 else said or f"{command[0]} ended with status {status}"


class LeasedHost(DelegatingHost):
    """``host``, as long as ``machine`` is leased. A lease that has ended is a lost host: LeaseEnded.

    It is given up as soon as that is seen, however long the connection could be retried.
    """

    def __init__(self, host: Host, machine: Machine) -> None:
        super().__init__(host)
        self.machine, self.node = machine, machine.address

        def look(event: ConnectionEvent) -> None:
            if event.state is ConnectionState.RETRYING:
                machine.look()

        host.subscribe(look)

    def acquire(self) -> None:
        """Acquire the host itself. Its lease is released at the end of the session."""
        with self.around():
            super().acquire()

    def execute(self, command: Command) -> Result:
        """Run a command. One that fails after the end of the lease tells nothing."""
        result = super().execute(command)
        if not result.ok:
            self.machine.check()
        return result

    @contextmanager
    def around(self) -> Iterator[None]:
        """Refuse the command if the lease has ended, and ask whether it has where the host fails."""
        self.machine.check()
        try:
            yield
        except ConnectionLost:
            self.machine.look()
            raise
        except EnvironmentFailure:
            self.machine.check()
            raise
