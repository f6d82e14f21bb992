"""Batches: hunts that `bisect batch` plans, and which of them have begun and ended; and hunts of several workloads that one
`bisect run` carries out together. The latter are a batch without a file, whose hunts all begin at once."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from perfbisect.errors import EnvironmentFailure, UsageError
from perfbisect.masking import masked
from perfbisect.process import is_running, worker
from perfbisect.store.connection import LARGEST_ID, intact
from perfbisect.store.listing import check_value

if TYPE_CHECKING:
    from perfbisect.core.domain.settings import Settings
    from perfbisect.store.history import History


@dataclass(frozen=True, slots=True)
class PlannedHunt:
    """One hunt of a batch, as `bisect run` is given it."""

    arguments: tuple[str, ...]  # without its hosts
    folder: str  # in which it is started: what its relative paths mean
    hosts: tuple[tuple[str, ...], ...]  # it measures on all hosts of one of these

    @classmethod
    def of(cls, settings: "Settings", folder: str) -> "PlannedHunt":
        """A hunt that has begun, with the arguments that name it."""
        words = (f"--builder={settings.builder}", f"--workload={settings.workload}", settings.good, settings.bad)
        return cls(words, folder, (settings.hosts,))


@dataclass(frozen=True, slots=True)
class BatchHunt:
    """What has become of one."""

    number: int  # within the batch, from 0
    planned: PlannedHunt
    hunt: int | None  # its number in the history; None until it has begun
    status: int | None  # its exit status; None until it has ended
    failure: str  # of one that ended before it began
    running: bool = False  # a process of this machine has claimed it; it may not have a number yet
    job: str = ""  # its number in Slurm, if it was submitted


@dataclass(frozen=True, slots=True)
class Batch:
    """One `bisect batch`, or one `bisect run` of several workloads."""

    id: int
    started: float  # seconds since the epoch
    file: str  # "" where one process carries out all hunts, which share their builds
    hunts: tuple[BatchHunt, ...]
    ended: bool
    running: bool  # a process of this machine works on it

    @property
    def name(self) -> str:
        """As it is written in commands."""
        return f"b{self.id}"

    @property
    def together(self) -> bool:
        """Whether one process carries out all hunts, which share their builds."""
        return not self.file

    @property
    def submitted(self) -> bool:
        """Whether its hunts are jobs of Slurm."""
        return any(one.job for one in self.hunts)


def columns_of(planned: PlannedHunt) -> dict[str, str]:
    """What a row of ``batch_hunts`` has of a hunt as it was planned."""
    folder, hosts = planned.folder, json.dumps(planned.hosts)
    return {"arguments": json.dumps(planned.arguments), "folder": folder, "hosts": hosts}


def begin_batch(history: "History", file: Path | str, planned: Sequence[PlannedHunt], at: float) -> int:
    """Enter a new batch; returns its number. With "" for its ``file`` its hunts are carried out together."""
    with history.transaction() as db:
        table = db.table("batches")
        batch = int(table.insert({"started": at, "process": worker(), "file": str(file)}).last_pk or 0)
        for number, one in enumerate(planned):
            db.table("batch_hunts").insert({"batch_id": batch, "number": number, **columns_of(one)})
    return batch


def continue_batch(history: "History", batch: int) -> None:
    """Enter that this process works on a batch. Hunts that had failed to begin will be tried again.

    Raises UsageError for a batch of someone else.
    """
    [(process,)] = history.select("SELECT process FROM batches WHERE id = ?", [batch])
    if whose := history.whose("", process):
        raise UsageError(
            f"b{batch} was made by {whose}: its commands and its hosts are not yours.",
            f"See its hunts: bisect history --history {history.path}",
        )
    with history.transaction() as db:
        db.table("batches").update(batch, {"process": worker(), "ended": None})


def remove_batch(history: "History", batch: int) -> None:
    """Remove a batch of which no hunt has begun."""
    with history.transaction() as db:
        db.table("batch_hunts").delete_where("batch_id = ?", [batch])
        db.table("batches").delete(batch)


def update_hunt(history: "History", batch: int, number: int, **columns: object) -> None:
    """Change columns of a hunt of a batch: its number once it has begun, its job, how it has ended."""
    with history.transaction() as db:
        db.table("batch_hunts").update((batch, number), columns)


def claim(history: "History", batch: int, number: int, job: str = "") -> int | None:
    """Enter that this process, which may be that ``job``, begins a hunt of a batch. Raises UsageError where another one does.

    Returns the number of a hunt that has begun, or 0; None where this history has no such hunt, as on a node that does not
    share the history.
    """
    with history.transaction() as db:
        select = "SELECT process, coalesce(hunt_id, 0) FROM batch_hunts WHERE batch_id = ? AND number = ? AND coalesce(job, '') = ?"
        row = db.execute(select, [batch, number, job]).fetchone()
        if row and row[0] and row[0] != worker() and is_running(row[0]):
            raise UsageError(f"Another process works on hunt {number + 1} of batch b{batch}.", "See it: bisect watch")
        if row:
            db.table("batch_hunts").update((batch, number), {"process": worker()})
        return int(row[1]) if row else None


def enter_status(history: "History", batch: int, number: int, status: int | None, failure: str = "") -> None:
    """Enter how a hunt has ended (None: it will be gone on with), and why it did not begin."""
    update_hunt(history, batch, number, status=status, failure=failure or None)


def jobs_of(history: "History", hunt: int) -> list[tuple[int, int, str]]:
    """The batch, the place there and the job of a hunt that was submitted; none for others."""
    return history.select("SELECT batch_id, number, job FROM batch_hunts WHERE hunt_id = ? AND job != ''", [hunt])


def is_of_batch(history: "History", hunt: int) -> bool:
    """Whether a hunt was begun with others."""
    return bool(history.select("SELECT 1 FROM batch_hunts WHERE hunt_id = ?", [hunt]))


def end_batch(history: "History", batch: int, at: float) -> None:
    """Enter that all hunts of a batch have ended."""
    with history.transaction() as db:
        db.table("batches").update(batch, {"ended": at})


def read_batch(history: "History", batch: int) -> Batch:
    """The batch of that number. Raises UsageError when there is none."""
    rows = history.select("SELECT started, ended, process, file FROM batches WHERE id = ?", [min(batch, LARGEST_ID)])
    if not rows:
        raise UsageError(f"There is no batch b{batch} in the history {history.shown}.", "Begin one: bisect batch FILE")
    became = "hunt_id, status, coalesce(failure, ''), coalesce(process, ''), coalesce(job, '')"
    select = f"SELECT number, arguments, folder, hosts, {became} FROM batch_hunts WHERE batch_id = ? ORDER BY number"
    members = history.select(select, [batch])
    with intact(history.shown, f"batch {batch}, table batches or batch_hunts,"):
        [(started, ended, process, file)] = rows
        check_value("started", started, float)
        check_value("file", file, str)
        hunts = []
        for number, arguments, folder, hosts, hunt, status, failure, claimed, job in members:
            planned = PlannedHunt(tuple(json.loads(arguments)), folder, tuple(map(tuple, json.loads(hosts))))
            running = bool(claimed) and is_running(claimed)
            hunts.append(BatchHunt(number, planned, hunt, status, failure, running, job))
        return Batch(batch, started, file, tuple(hunts), ended is not None, ended is None and is_running(process))


def batch_together(history: "History", hunt: int) -> Batch | None:
    """The batch in which a hunt is carried out together with others; None for a hunt of its own."""
    together = "SELECT batch_id FROM batch_hunts JOIN batches ON batches.id = batch_id WHERE hunt_id = ? AND file = ''"
    return next((read_batch(history, batch) for (batch,) in history.select(together, [hunt])), None)


def all_batches(history: "History") -> list[Batch]:
    """All batches of a history, oldest first; one that cannot be read says so in place of its file."""
    found = []
    for (number,) in history.select("SELECT id FROM batches ORDER BY id"):
        try:
            found.append(read_batch(history, number))
        except EnvironmentFailure as damage:
            found.append(Batch(number, 0.0, str(damage), (), True, False))
    return found


def copy_batches(source: "History", target: "History", here: Mapping[int, int], origin: str, process: str) -> None:
    """Enter which of the copied hunts (number there → here) were in one batch.

    It has ended here: its hunts do not begin from a copy, whose commands are anyone's. A file of others adds nothing to
    a batch with own hunts.
    """
    import msgspec  # not needed for a list of batches

    from perfbisect.store.log import check_values

    select = (
        "SELECT batch_id, started, file, number, hunt_id, status FROM batches b JOIN batch_hunts ON batch_id = b.id"
    )
    with intact(source.shown, "table batch_hunts"):
        rows = [row for row in source.select(select) if row[4] in here]
        members = sorted(msgspec.convert(rows, list[tuple[int, float, str, int, int, int | None]]))
        for _, started, file, place, _, status in members:
            check_values({"started": started, "file": file, "workload": place, "status": status})
    for (_, started, file), its in groupby(members, key=lambda member: member[:3]):
        hunts = [(place, here[hunt], status) for *_, place, hunt, status in its]
        known = f"SELECT batch_id FROM batch_hunts WHERE hunt_id IN ({', '.join('?' * len(hunts))})"
        with target.transaction() as db:
            same = db.execute(known, [hunt for _, hunt, _ in hunts]).fetchone()
            if same and origin and not all(target.origin(hunt) for _, hunt, _ in hunts):
                continue
            batch = same[0] if same else begin_batch(target, masked(file), [], started)
            if not same:
                db.table("batches").update(batch, {"process": process, "ended": started})
            for place, hunt, status in hunts:
                row = {"batch_id": batch, "number": place, "hunt_id": hunt, "status": status}
                planned = PlannedHunt.of(target.settings(hunt), "")
                db.table("batch_hunts").insert(row | columns_of(planned), ignore=True)
