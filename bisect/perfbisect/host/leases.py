"""Machines that are leased from a scheduler, by the commands of hosts.toml. Waiting in its queue is all that is done here.

The life of a job: a record (``host.lease_records``), acquire, renew every minute, release, and the record is removed.
Whatever happens in between, the job is released by its name, by this session or by the next.
"""

import math
import os
import platform
import secrets
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from perfbisect.errors import ConnectionLost, EnvironmentFailure
from perfbisect.host import lease_records
from perfbisect.host.commands import last_of
from perfbisect.host.lease_records import Record
from perfbisect.host.protocol import ConnectionEvent, ConnectionState, DelegatingHost, Host
from perfbisect.recipes.inventory import LeaseEntry, user
from perfbisect.recipes.placeholders import fill

LIMIT = 60.0  # seconds for a command that does not wait
LOOK = 10.0  # seconds between two questions about the queue
STOP = 15.0  # seconds in which acquire ends when it is interrupted
ENDED = 1  # the status of renew that says that a lease has ended
MARGIN = 60  # minutes for which a machine is wanted beyond the time in which a hunt may measure

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
    _stop: threading.Event = field(default_factory=threading.Event)

    def renew(self, machine: Machine) -> None:
        """Renew the lease of a machine; notes when it has ended."""
        command = self.wanted.lease.renew
        if command and not machine.ended and not self._stop.is_set():
            status, _ = _short(fill(command, machine.values))
            if status == ENDED and not self._stop.is_set():
                machine.ended = True  # for good: two threads renew

    def keep(self) -> None:
        """Renew until ``stop``."""
        while not self._stop.wait(self.wanted.lease.every):
            for machine in self.machines:
                self.renew(machine)

    def stop(self) -> None:
        """Renew no more."""
        self._stop.set()


_held: dict[str, Machine] = {}  # of this process, by the name of the host


def machine(name: str) -> Machine:
    """The machine that this process has leased under that name. Raises EnvironmentFailure for none."""
    if name not in _held:
        raise EnvironmentFailure(f"host {name} is not leased now")
    return _held[name]


def is_held(name: str) -> bool:
    """Whether this process has leased a machine under that name."""
    return name in _held


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
    with lease_records.noted(record) as note:
        try:
            for name, (address, number) in _named(wanted, _acquire(job, show)):
                job.machines.append(Machine(name, address, number, job))
            _held.update({each.name: each for each in job.machines})
            if lease.renew:
                threading.Thread(target=job.keep, name=f"leases of {wanted.kind}", daemon=True).start()
            yield job
        finally:
            job.stop()
            for each in job.machines:
                _held.pop(each.name, None)
            why = "" if job.refused else _released(release)
            note.released = not why
            if why:
                say(f"{record} could not be released: {why}. The next session tries again, and so does `bisect gc`.")


def free_abandoned(say: Say) -> None:
    """Release what sessions that were killed have left."""
    for record, runs in lease_records.all_records():
        if runs:
            continue
        with lease_records.abandoned(record) as note:
            if note:
                why = _released(record.release)
                note.released = not why
                said = (
                    f"could not be released: {why}" if why else "was left by a session that has ended, and is released"
                )
                say(f"{record} {said}.")


def _acquire(job: Job, show: Show) -> list[tuple[str, str]]:
    """Wait in the queue; the address of each machine, and what the scheduler calls its lease.

    Interrupted, the command is ended, and with it the place in the queue.
    """
    wanted = job.wanted
    count = len(wanted.names)
    minutes = str(math.ceil(wanted.minutes) + MARGIN) if wanted.minutes else ""
    asked = {**job.values, "features": wanted.features, "count": str(count), "node": ",".join(wanted.nodes.values())}
    asked |= {"minutes": minutes, "every": str(wanted.lease.every)}
    what = wanted.kind if count == 1 else f"{wanted.kind}*{count}"
    command = fill(wanted.lease.acquire, asked)
    job.refused = True
    process = _started(command)
    job.refused = False  # it may be interrupted, with a place in the queue or more
    out, err = _Stream(process.stdout), _Stream(process.stderr)
    try:
        waited, looked = False, time.monotonic()
        state = ""
        while process.poll() is None:
            with suppress(subprocess.TimeoutExpired):
                process.wait(1)
            if process.returncode is None:
                waited = True
                if wanted.lease.status and (not state or time.monotonic() - looked > LOOK):
                    looked = time.monotonic()
                    state = _short(fill(wanted.lease.status, job.values))[1]
                show(what, state or err.line or "in the queue")
    finally:
        _end(process)
        out.close()
        err.close()
    if process.returncode:
        job.refused = process.returncode > 0  # killed by a signal, it may have leased something
        raise EnvironmentFailure(
            f"{what} cannot be leased: {err.line or out.line or f'{command[0]} ended with status {process.returncode}'}",
            f"See `acquire` of lease {wanted.lease.name} in {wanted.lease.file}.",
        )
    found = [line.split() for line in out.text.splitlines() if line.strip()]
    if len(found) != count or any(len(words) > 2 for words in found):
        raise EnvironmentFailure(
            f"{what} cannot be leased: its acquire printed {len(found)} line{'' if len(found) == 1 else 's'}, but must print the address of"
            f" {'the machine' if count == 1 else f'each of {count} machines'} on a line of its own",
            f"See `acquire` of lease {wanted.lease.name} in {wanted.lease.file}.",
        )
    if waited:
        show(what, "")
    return [(words[0], words[-1]) for words in found]


def _named(wanted: Wanted, found: Sequence[tuple[str, str]]) -> list[tuple[str, tuple[str, str]]]:
    """The host of each machine: the one that it was before, the others in the order in which acquire printed them."""
    left = list(found)
    own: dict[str, tuple[str, str]] = {}
    for name, node in wanted.nodes.items():
        for each in left:
            if each[0] == node:
                own[name] = each
                left.remove(each)
                break
    return [(name, own[name] if name in own else left.pop(0)) for name in wanted.names]


def _started(command: Sequence[str]) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C in the terminal reaches it through ``_end`` alone
        )
    except OSError as error:
        raise EnvironmentFailure(
            f"{command[0]} does not start on this machine: {error.strerror}",
            "It is a command of a lease in hosts.toml.",
        ) from error


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a command with its children: TERM first, so that it can leave the queue."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        if process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, number)
            with suppress(subprocess.TimeoutExpired):
                process.wait(STOP)


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
    lines = printed.decode(errors="replace").strip().splitlines()
    return done.returncode, lines[-1].strip() if lines else ""


def _released(command: Sequence[str]) -> str:
    """Release a job; why it failed, or ""."""
    status, said = _short(command)
    return "" if status == 0 else said or f"{command[0]} ended with status {status}"


class _Stream:
    """An output of acquire, read as it comes."""

    def __init__(self, stream: "object") -> None:
        self._came = b""
        self._stream = stream
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        def read(size: int) -> bytes:
            data: bytes = self._stream.read1(size)  # type: ignore[attr-defined]
            self._came = (self._came + data)[-(64 << 10) :]
            return data

        with suppress(OSError, ValueError):
            last_of(read)

    @property
    def text(self) -> str:
        """What has come."""
        return self._came.decode(errors="replace")

    @property
    def line(self) -> str:
        """The last line of it."""
        lines = self.text.strip().splitlines()
        return lines[-1].strip() if lines else ""

    def close(self) -> None:
        """Read no more."""
        self._thread.join(5)
        if not self._thread.is_alive():
            self._stream.close()  # type: ignore[attr-defined]


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
