"""Leases machines from a scheduler such as Slurm, by the commands in hosts.toml. Only this module waits in the
scheduler's queue.

A lease is a job of the scheduler. perfbisect writes a record of the job, acquires the machines, renews the lease every
minute, releases the job, and removes the record. If a session is interrupted or killed between two of these steps, this
session or the next session finds the record, and releases the job by its name.

So no machine stays leased for a killed session. The record is a file in the state folder, and contains the name of the
job, which is chosen at random before the job is given to the scheduler. perfbisect knows whether a session has ended
only for sessions on this machine. A job whose record another machine has written (into the same home folder) is
released only after seven days. A process that releases the job of an ended session locks the record, so that no other
process releases the job.
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
from perfbisect.host.local import terminate_process_group
from perfbisect.host.protocol import Command, DelegatingHost, Host, Result, last_line
from perfbisect.process import user_name
from perfbisect.recipes.inventory import LeaseEntry
from perfbisect.recipes.placeholders import fill_command

FOLDER = "leases"  # of records, in the state folder
LIMIT = 60.0  # time limit in seconds of commands that do not wait for a machine
LOOK = 10.0  # seconds between two looks at the scheduler's queue
STOP = 15.0  # seconds that an interrupted acquire gets to end
ENDED = 1  # exit status with which renew reports that the lease has ended
MARGIN = 60  # minutes for which a machine is requested in addition to the time in which a hunt may measure
_KEPT = 64 << 10  # bytes of the output of acquire that are read
OLD = timedelta(days=7)  # a session on another machine counts as ended after this time

ShowQueue = Callable[[str, str], None]
"""Called every second of waiting in a queue, with the machines and the scheduler's answer; with "" after they are leased."""

PrintMessage = Callable[[str], None]


class LeaseEnded(EnvironmentFailure):
    """The lease of a machine has ended: no command may run on the machine any more."""


@dataclass(frozen=True, slots=True)
class LeaseRequest:
    """A request for machines that are leased by a single job."""

    lease: LeaseEntry
    features: str
    names: tuple[str, ...]  # names of the hosts
    # host → its address in an earlier session, which is requested again
    earlier_addresses: Mapping[str, str] = field(default_factory=dict)
    purpose: str = ""
    minutes: float = 0  # minutes in which the hunt may measure; 0: unlimited

    @property
    def label(self) -> str:
        """The lease and the features, such as slurm:quiet, in messages about leased machines."""
        return f"{self.lease.name}:{self.features}"


@dataclass
class LeasedMachine:
    """A leased machine, which is used as the host ``name``."""

    name: str
    address: str
    lease: str  # the scheduler's name of the lease
    job: "Acquisition"
    ended: bool = False  # whether its lease has ended; other machines of the job may continue

    @property
    def connection_placeholders(self) -> dict[str, str]:
        """The values of the placeholders in the address, the root and ``through`` of the machine."""
        return {**self.job.values, "address": self.address, "lease": self.lease}

    def raise_if_ended(self) -> None:
        """Raise LeaseEnded if the last renewal reported that the lease has ended."""
        if self.ended:
            text = f"the lease of host {self.name} ({self.address}) has ended"
            raise LeaseEnded(text, "`bisect resume` leases another machine.")

    def renew_now(self) -> None:
        """Renew the lease immediately, for example if the machine does not answer. May raise LeaseEnded."""
        self.job.renew(self)
        self.raise_if_ended()


@dataclass
class Acquisition:
    """The machines that one run of the command ``acquire`` leases."""

    request: LeaseRequest
    values: dict[str, str]
    refused: bool = False  # whether acquire failed by itself, so that nothing was leased
    machines: list[LeasedMachine] = field(default_factory=list)
    stopped: threading.Event = field(default_factory=threading.Event)  # when set, no lease is renewed any more

    def renew(self, machine: LeasedMachine) -> None:
        """Renew the lease of a machine, and store in ``machine`` whether the lease has ended."""
        command = self.request.lease.renew
        if command and not machine.ended and not self.stopped.is_set():
            status, _ = run_briefly(fill_command(command, machine.connection_placeholders))
            if status == ENDED and not self.stopped.is_set():
                machine.ended = True  # never reset, because two threads renew leases

    def renew_until_stopped(self) -> None:
        """Renew all leases until ``stopped`` is set."""
        while not self.stopped.wait(self.request.lease.every):
            for machine in self.machines:
                self.renew(machine)


_held: dict[str, LeasedMachine] = {}  # machines of this process, by the name of the host


def leased_machine(name: str) -> LeasedMachine:
    """The machine that this process has leased for the host ``name``. Raises EnvironmentFailure if the process has
    leased no such machine.
    """
    if name not in _held:
        raise EnvironmentFailure(f"host {name} is not leased now")
    return _held[name]


def is_leased_by_this_process(name: str) -> bool:
    """Whether this process has leased a machine for the host ``name``."""
    return name in _held


class LeaseJobRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=False):
    """The record of a job that was given, or will be given, to a scheduler."""

    job: str
    kind: str  # name of the leased hosts, such as "slurm:quiet"
    count: int  # number of machines
    since: str  # ISO 8601, UTC
    process: str  # the session's process: see ``perfbisect.process.this_process_identity``
    machine: str  # name of the session's machine, for messages
    release: list[str]  # the command that releases the job
    purpose: str = ""

    def __str__(self) -> str:
        kind = self.kind if self.count == 1 else f"{self.kind}*{self.count}"
        return f"host {kind} (job {self.job}, leased since {self.since} by process {self.process.split()[-2]} on {self.machine})"


def store_record(record: LeaseJobRecord) -> Path:
    """Store the record of a job, before or after the job is given to the scheduler; return the file of the record."""
    path = state_folder() / FOLDER / f"{record.job}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_suffix(".new")
    new.touch(mode=0o600)
    with new.open("wb") as file:
        file.write(msgspec.json.encode(record))
        file.flush()
        os.fsync(file)
    new.rename(path)
    folder_handle = os.open(path.parent, os.O_RDONLY)
    os.fsync(folder_handle)
    os.close(folder_handle)
    return path


def records_with_running() -> list[tuple[LeaseJobRecord, bool]]:
    """All records of jobs, each with whether the job's session still runs."""
    return [(record, not _has_session_ended(record)) for record, _ in _records_with_files()]


def release_jobs_of_killed_sessions(say: PrintMessage) -> None:
    """Release the jobs of sessions that were killed; ``say`` is called with a message about each such job."""
    for record, path in _records_with_files():
        if _has_session_ended(record):
            with suppress(FileNotFoundError), path.open("rb+") as file:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    continue  # another session releases this job
                except OSError:
                    pass  # a file system without locks
                if not path.exists():
                    continue
                if why := _release_job_or_reason(record.release):
                    say(f"{record} could not be released: {why}.")
                else:
                    path.unlink()
                    say(f"{record} is released now, because the session that leased it has ended.")


def _records_with_files() -> Iterator[tuple[LeaseJobRecord, Path]]:
    for path in sorted((state_folder() / FOLDER).glob("*.json")):
        with suppress(FileNotFoundError, msgspec.DecodeError):
            yield msgspec.json.decode(path.read_bytes(), type=LeaseJobRecord), path


def _has_session_ended(record: LeaseJobRecord) -> bool:
    """Whether the session that stored ``record`` has ended."""
    if process.is_local_process(record.process):
        return not process.is_running(record.process)
    try:
        return datetime.now(UTC) - datetime.fromisoformat(record.since) > OLD
    except (ValueError, TypeError):  # ``since`` is not a time, or has no time zone
        return False


@contextmanager
def lease_machines(request: LeaseRequest, show: ShowQueue, say: PrintMessage) -> Iterator[Acquisition]:
    """Lease machines for the ``with`` block, and release them at its end, also after an error. ``say`` is called with a
    message for each job that could not be released.

    Raises EnvironmentFailure if the scheduler grants no machine.
    """
    lease = request.lease
    values = {"job": f"perfbisect-{secrets.token_hex(6)}", "user": user_name()}
    release = fill_command(lease.release, values)
    since = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    session = (since, process.this_process_identity(), platform.node())
    record = LeaseJobRecord(values["job"], request.label, len(request.names), *session, release, request.purpose)
    job = Acquisition(request, values)
    path = store_record(record)
    try:
        for name, (address, number) in _assigned_machines(request, _wait_for_leases(job, show)):
            job.machines.append(LeasedMachine(name, address, number, job))
        _held.update({leased_machine.name: leased_machine for leased_machine in job.machines})
        if lease.renew:
            threading.Thread(target=job.renew_until_stopped, name=f"leases of {request.label}", daemon=True).start()
        yield job
    finally:
        job.stopped.set()
        for leased_machine in job.machines:
            if _held.get(leased_machine.name) is leased_machine:  # another machine may have been leased under this name
                del _held[leased_machine.name]
        if why := "" if job.refused else _release_job_or_reason(release):
            store_record(
                msgspec.structs.replace(record, process=f"{process.machine_identity()} 0 0")
            )  # the record then names no process
            say(f"{record} could not be released: {why}. The next session will try again; or run `bisect gc`.")
        else:
            path.unlink(missing_ok=True)


def _wait_for_leases(job: Acquisition, show: ShowQueue) -> list[tuple[str, str]]:
    """Wait in the queue; return the address of each machine, and the scheduler's name for its lease.

    If the user interrupts the wait, the scheduler's command is ended, and its place in the queue is lost.
    """
    wanted, lease = job.request, job.request.lease
    count = len(wanted.names)
    minutes = str(math.ceil(wanted.minutes) + MARGIN) if wanted.minutes else ""
    nodes = ",".join(wanted.earlier_addresses.values())
    asked = {**job.values, "features": wanted.features, "count": str(count), "node": nodes}
    asked |= {"minutes": minutes, "every": str(lease.every)}
    machines = wanted.label if count == 1 else f"{wanted.label}*{count}"
    command = fill_command(lease.acquire, asked)

    def failure(why: str) -> EnvironmentFailure:
        advice = f"Check `acquire` of lease {lease.name} in {lease.file}."
        return EnvironmentFailure(f"{machines} cannot be leased: {why}", advice)

    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        job.refused = True
        try:
            running = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,  # so that Ctrl-C in the terminal does not reach it
            )
        except OSError as error:
            text = f"{command[0]} does not start on this machine: {error.strerror}"
            raise EnvironmentFailure(text, "Correct the command of the lease in hosts.toml.") from error
        job.refused = False  # an interrupted acquire may leave a place in the queue, or a lease
        waited, looked, state = False, 0.0, ""
        try:
            while True:
                with suppress(subprocess.TimeoutExpired):
                    running.wait(1)
                    break
                waited = True
                if lease.status and (not state or time.monotonic() - looked > LOOK):
                    looked, state = time.monotonic(), last_line(run_briefly(fill_command(lease.status, job.values))[1])
                show(machines, state or last_line(_end_of_stream(err)) or "waiting in the queue")
        finally:
            terminate_process_group(running, STOP)
        if running.returncode:
            job.refused = running.returncode > 0  # a killed command may have leased a machine
            reason = last_line(_end_of_stream(err)) or last_line(_end_of_stream(out))
            raise failure(reason or f"{command[0]} ended with status {running.returncode}")
        rows = [line.split() for line in _end_of_stream(out).splitlines() if line.strip()]
    if len(rows) != count or any(len(words) > 2 for words in rows):
        lines = f"{len(rows)} line{'' if len(rows) == 1 else 's'}"
        expected = "the machine" if count == 1 else f"each of {count} machines"
        raise failure(f"`acquire` printed {lines}, but must print the address of {expected} on a separate line")
    if waited:
        show(machines, "")
    return [(words[0], words[-1]) for words in rows]


def _assigned_machines(wanted: LeaseRequest, found: Sequence[tuple[str, str]]) -> list[tuple[str, tuple[str, str]]]:
    """Pairs (host, machine). A host gets the machine that it had before, if ``found`` has this machine; otherwise the
    next machine of ``found``."""
    unassigned = list(found)
    by_name: dict[str, tuple[str, str]] = {}
    for name, node in wanted.earlier_addresses.items():
        if earlier := next((entry for entry in unassigned if entry[0] == node), None):
            by_name[name] = earlier
            unassigned.remove(earlier)
    return [(name, by_name[name] if name in by_name else unassigned.pop(0)) for name in wanted.names]


def _end_of_stream(stream: IO[bytes]) -> str:
    """The last bytes of a stream as text; the file position is not moved, because another process writes the stream."""
    size = os.fstat(stream.fileno()).st_size
    return os.pread(stream.fileno(), _KEPT, max(0, size - _KEPT)).decode(errors="replace")


def run_briefly(command: Sequence[str], stdin: str = "", timeout: float = LIMIT) -> tuple[int, str]:
    """Run a short command; return its exit status and its output. The exit status is -1 if the command does not end
    within ``timeout`` seconds.

    If the command fails, only the last line of its output is returned.
    """
    try:
        done = subprocess.run(
            command, input=stdin, capture_output=True, text=True, errors="replace", timeout=timeout, check=False,
            start_new_session=True,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return -1, f"{command[0]} did not end within {timeout:.0f} s"
    except OSError as error:
        return -1, f"{command[0]} does not start: {error.strerror}"
    return done.returncode, last_line(done.stderr or done.stdout) if done.returncode else done.stdout


def _release_job_or_reason(command: Sequence[str]) -> str:
    """Release a job; return the reason why this failed, or ""."""
    status, reason = run_briefly(command)
    return "" if status == 0 else reason or f"the command {command[0]} ended with status {status}"


class LeasedHost(DelegatingHost):
    """``host``, while ``machine`` is leased. The methods raise LeaseEnded if the lease has ended.

    After the end of the lease, a failed connection is not tried again.
    """

    def __init__(self, host: Host, machine: LeasedMachine) -> None:
        super().__init__(host)
        self.machine, self.node = machine, machine.address
        host.subscribe(lambda _: machine.renew_now())

    def acquire(self) -> None:
        """Acquire ``host``. The lease is not released here, but at the end of the session."""
        with self.command_context():
            super().acquire()

    def execute(self, command: Command) -> Result:
        """Run a command. Raises LeaseEnded if the command failed and the lease has ended."""
        result = super().execute(command)
        if not result.ok:
            self.machine.raise_if_ended()
        return result

    @contextmanager
    def command_context(self) -> Iterator[None]:
        """Raise LeaseEnded before the command if the lease has ended. If the host fails, the scheduler is asked whether
        the lease has ended.
        """
        self.machine.raise_if_ended()
        try:
            yield
        except ConnectionLost:
            self.machine.renew_now()
            raise
        except EnvironmentFailure:
            self.machine.raise_if_ended()
            raise
