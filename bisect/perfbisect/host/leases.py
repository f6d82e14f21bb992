"""Machines that are leased from a scheduler, by the commands of hosts.toml. Waiting in its queue is all that is done here.

The life of a job: a record, acquire, renew every minute, release, and the record is removed. Whatever happens in between,
the job is released by its name, by this session or by the next.

So nothing is kept for a session that was killed: the state folder has a file for each job, whose name is the job's. It is
chosen at random before a scheduler hears of it. Whether its session has ended is known of those of this machine; the job of
another one with the same home is left alone until it is old. Who releases an abandoned job locks its file meanwhile.
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

from perfbisect import process
from perfbisect.errors import ConnectionLost, EnvironmentFailure
from perfbisect.folders import state_folder
from perfbisect.host.local import end
from perfbisect.host.protocol import Command, DelegatingHost, Host, Result, last_line
from perfbisect.process import user
from perfbisect.recipes.inventory import LeaseEntry
from perfbisect.recipes.placeholders import fill

FOLDER = "leases"  # of records, in the state folder
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
class LeaseRequest:
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
    job: "Acquisition"
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
class Acquisition:
    """What one acquisition has leased."""

    wanted: LeaseRequest
    values: dict[str, str]
    refused: bool = False  # nothing was leased: acquire has failed by itself
    machines: list[Machine] = field(default_factory=list)
    stopped: threading.Event = field(default_factory=threading.Event)  # renews no more

    def renew(self, machine: Machine) -> None:
        """Renew the lease of a machine; notes when it has ended."""
        command = self.wanted.lease.renew
        if command and not machine.ended and not self.stopped.is_set():
            status, _ = short(fill(command, machine.values))
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


class LeaseRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=False):
    """A job that was given to a scheduler, or is about to be."""

    job: str
    kind: str  # "slurm:quiet"
    count: int  # machines
    since: str  # ISO 8601, UTC
    process: str  # the session's: see ``perfbisect.process.this_process``
    machine: str  # its name, for messages
    release: list[str]  # the command that gives it back
    purpose: str = ""

    def __str__(self) -> str:
        kind = self.kind if self.count == 1 else f"{self.kind}*{self.count}"
        return f"{kind} (job {self.job}, since {self.since}, of process {self.process.split()[-2]} on {self.machine})"


def note(record: LeaseRecord) -> Path:
    """Keep a record while a job may exist; returns its file."""
    path = state_folder() / FOLDER / f"{record.job}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_suffix(".new")
    new.touch(mode=0o600)
    with new.open("wb") as file:
        file.write(msgspec.json.encode(record))
        file.flush()
        os.fsync(file)
    new.rename(path)
    place = os.open(path.parent, os.O_RDONLY)
    os.fsync(place)
    os.close(place)
    return path


def all_records() -> list[tuple[LeaseRecord, bool]]:
    """All that is noted, and whether the session that noted it still runs."""
    return [(record, not _ended(record)) for record, _ in _each_record()]


def free_abandoned(say: Say) -> None:
    """Release what sessions that were killed have left."""
    for record, path in _each_record():
        if _ended(record):
            with suppress(FileNotFoundError), path.open("rb+") as file:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    continue  # another session is at it
                except OSError:
                    pass  # a file system without locks
                if not path.exists():
                    continue
                if why := _released(record.release):
                    say(f"{record} could not be released: {why}.")
                else:
                    path.unlink()
                    say(f"{record} was left by a session that has ended, and is released.")


def _each_record() -> Iterator[tuple[LeaseRecord, Path]]:
    for path in sorted((state_folder() / FOLDER).glob("*.json")):
        with suppress(FileNotFoundError, msgspec.DecodeError):
            yield msgspec.json.decode(path.read_bytes(), type=LeaseRecord), path


def _ended(record: LeaseRecord) -> bool:
    """Whether the session of a record has ended."""
    if process.is_local(record.process):
        return not process.is_running(record.process)
    try:
        return datetime.now(UTC) - datetime.fromisoformat(record.since) > OLD
    except (ValueError, TypeError):  # no time, or one without a zone
        return False


@contextmanager
def leased(wanted: LeaseRequest, show: Show, say: Say) -> Iterator[Acquisition]:
    """Lease machines for the block, however it ends. ``say`` is told what could not be given back.

    Raises EnvironmentFailure when the scheduler lends none.
    """
    lease = wanted.lease
    values = {"job": f"perfbisect-{secrets.token_hex(6)}", "user": user()}
    release = fill(lease.release, values)
    since = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    session = (since, process.this_process(), platform.node())
    record = LeaseRecord(values["job"], wanted.kind, len(wanted.names), *session, release, wanted.purpose)
    job = Acquisition(wanted, values)
    path = note(record)
    try:
        for name, (address, number) in _named(wanted, _acquire(job, show)):
            job.machines.append(Machine(name, address, number, job))
        _held.update({leased_machine.name: leased_machine for leased_machine in job.machines})
        if lease.renew:
            threading.Thread(target=job.keep, name=f"leases of {wanted.kind}", daemon=True).start()
        yield job
    finally:
        job.stopped.set()
        for leased_machine in job.machines:
            if _held.get(leased_machine.name) is leased_machine:  # another may have been leased in its place
                del _held[leased_machine.name]
        if why := "" if job.refused else _released(release):
            note(msgspec.structs.replace(record, process=f"{process.machine()} 0 0"))  # no process has it any more
            say(f"{record} could not be released: {why}. The next session tries again, and so does `bisect gc`.")
        else:
            path.unlink(missing_ok=True)


def _acquire(job: Acquisition, show: Show) -> list[tuple[str, str]]:
    """Wait in the queue; the address of each machine, and what the scheduler calls its lease.

    Interrupted, the command is ended, and with it the place in the queue.
    """
    wanted, lease = job.wanted, job.wanted.lease
    count = len(wanted.names)
    minutes = str(math.ceil(wanted.minutes) + MARGIN) if wanted.minutes else ""
    asked = {**job.values, "features": wanted.features, "count": str(count), "node": ",".join(wanted.nodes.values())}
    asked |= {"minutes": minutes, "every": str(lease.every)}
    machines = wanted.kind if count == 1 else f"{wanted.kind}*{count}"
    command = fill(lease.acquire, asked)

    def failure(why: str) -> EnvironmentFailure:
        return EnvironmentFailure(
            f"{machines} cannot be leased: {why}", f"See `acquire` of lease {lease.name} in {lease.file}."
        )

    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        job.refused = True
        try:
            running = subprocess.Popen(
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
            while True:
                with suppress(subprocess.TimeoutExpired):
                    running.wait(1)
                    break
                waited = True
                if lease.status and (not state or time.monotonic() - looked > LOOK):
                    looked, state = time.monotonic(), last_line(short(fill(lease.status, job.values))[1])
                show(machines, state or last_line(_text(err)) or "in the queue")
        finally:
            end(running, STOP)
        if running.returncode:
            job.refused = running.returncode > 0  # killed by a signal, it may have leased something
            reason = last_line(_text(err)) or last_line(_text(out))
            raise failure(reason or f"{command[0]} ended with status {running.returncode}")
        rows = [line.split() for line in _text(out).splitlines() if line.strip()]
    if len(rows) != count or any(len(words) > 2 for words in rows):
        lines = f"{len(rows)} line{'' if len(rows) == 1 else 's'}"
        expected = "the machine" if count == 1 else f"each of {count} machines"
        raise failure(f"its acquire printed {lines}, but must print the address of {expected} on a line of its own")
    if waited:
        show(machines, "")
    return [(words[0], words[-1]) for words in rows]


def _named(wanted: LeaseRequest, found: Sequence[tuple[str, str]]) -> list[tuple[str, tuple[str, str]]]:
    """The host of each machine: the one that it was before, the others in the order in which acquire printed them."""
    unassigned = list(found)
    by_name: dict[str, tuple[str, str]] = {}
    for name, node in wanted.nodes.items():
        if earlier := next((entry for entry in unassigned if entry[0] == node), None):
            by_name[name] = earlier
            unassigned.remove(earlier)
    return [(name, by_name[name] if name in by_name else unassigned.pop(0)) for name in wanted.names]


def _text(stream: IO[bytes]) -> str:
    """The end of what has come, also while a process writes: its place in the file is its own."""
    size = os.fstat(stream.fileno()).st_size
    return os.pread(stream.fileno(), _KEPT, max(0, size - _KEPT)).decode(errors="replace")


def short(command: Sequence[str], text: str = "", limit: float = LIMIT) -> tuple[int, str]:
    """The status of a command that does not wait, and what it printed; -1 for one that does not end within so many seconds.

    Of one that has failed, the last line. ``text`` is its input.
    """
    try:
        done = subprocess.run(
            command, input=text, capture_output=True, text=True, errors="replace", timeout=limit, check=False,
            start_new_session=True,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return -1, f"{command[0]} took more than {limit:.0f} s"
    except OSError as error:
        return -1, f"{command[0]} does not start: {error.strerror}"
    return done.returncode, last_line(done.stderr or done.stdout) if done.returncode else done.stdout


def _released(command: Sequence[str]) -> str:
    """Release a job; why it failed, or ""."""
    status, reason = short(command)
    return "" if status == 0 else reason or f"{command[0]} ended with status {status}"


class LeasedHost(DelegatingHost):
    """``host``, as long as ``machine`` is leased. A lease that has ended is a lost host: LeaseEnded.

    It is given up as soon as that is seen, however long the connection could be retried.
    """

    def __init__(self, host: Host, machine: Machine) -> None:
        super().__init__(host)
        self.machine, self.node = machine, machine.address
        host.subscribe(lambda _: machine.look())

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
