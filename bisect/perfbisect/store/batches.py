"""Batches: the hunts that `bisect batch` plans, with their state; and hunts of several workloads that one `bisect run`
carries out together. The latter are a batch without a file, whose hunts all begin at once.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from perfbisect.errors import EnvironmentFailure, UsageError
from perfbisect.masking import masked
from perfbisect.process import is_running, worker
from perfbisect.store.connection import LARGEST_ID, damage_explained
from perfbisect.store.listing import checked_value

if TYPE_CHECKING:
    from perfbisect.core.domain.settings import Settings
    from perfbisect.store.history import History


@dataclass(frozen=True, slots=True)
class PlannedHunt:
    """One hunt of a batch, with the arguments for `bisect run`."""

    arguments: tuple[str, ...]  # without hosts
    folder: str  # folder in which it is started, to which paths are relative
    hosts: tuple[tuple[str, ...], ...]  # alternatives; the hunt measures on all hosts of one of them

    @classmethod
    def of(cls, settings: "Settings", folder: str) -> "PlannedHunt":
        """A hunt that has begun, with the arguments that identify it."""
        words = (f"--builder={settings.builder}", f"--workload={settings.workload}", settings.good, settings.bad)
        return cls(words, folder, (settings.hosts,))


@dataclass(frozen=True, slots=True)
class BatchHunt:
    """The state of one hunt of a batch."""

    number: int  # within the batch, from 0
    planned: PlannedHunt
    hunt: int | None  # its number in the history; None before it begins
    status: int | None  # its exit status; None before it ends
    failure: str  # why it ended before it began
    running: bool = False  # whether a process of this machine has claimed it; it may have no number yet
    job: str = ""  # number of its Slurm job, if it was submitted


@dataclass(frozen=True, slots=True)
class Batch:
    """One `bisect batch`, or one `bisect run` of several workloads."""

    id: int
    started: float  # seconds since the epoch
    file: str  # "" if one process carries out all hunts, which share their builds
    hunts: tuple[BatchHunt, ...]
    ended: bool
    running: bool  # whether a process of this machine works on it

    @property
    def name(self) -> str:
        """The name in commands."""
        return f"b{self.id}"

    @property
    def together(self) -> bool:
        """Whether one process carries out all hunts, which share their builds."""
        return not self.file

    @property
    def submitted(self) -> bool:
        """Whether its hunts are Slurm jobs."""
        return any(hunt.job for hunt in self.hunts)


def columns_of(planned: PlannedHunt) -> dict[str, str]:
    """The columns of ``batch_hunts`` for a planned hunt."""
    folder, hosts = planned.folder, json.dumps(planned.hosts)
    return {"arguments": json.dumps(planned.arguments), "folder": folder, "hosts": hosts}


def begin_batch(history: "History", file: Path | str, planned: Sequence[PlannedHunt], at: float) -> int:
    """Enter a new batch and return its number. If ``file`` is "", its hunts are carried out together."""
    with history.transaction() as db:
        table = db.table("batches")
        batch = int(table.insert({"started": at, "process": worker(), "file": str(file)}).last_pk or 0)
        for number, hunt in enumerate(planned):
            db.table("batch_hunts").insert({"batch_id": batch, "number": number, **columns_of(hunt)})
    return batch


def continue_batch(history: "History", batch: int) -> None:
    """Enter that this process works on a batch. Hunts that failed to begin will be tried again.

    Raises UsageError for a batch of another person.
    """
    [(process,)] = history.select("SELECT process FROM batches WHERE id = ?", [batch])
    if whose := history.owner("", process):
        raise UsageError(
            f"Batch b{batch} was made by {whose}. For safety, perfbisect does not run commands of others.",
            f"To see its hunts: bisect history --history {history.path}",
        )
    with history.transaction() as db:
        db.table("batches").update(batch, {"process": worker(), "ended": None})


def remove_batch(history: "History", batch: int) -> None:
    """Remove a batch of which no hunt has begun."""
    with history.transaction() as db:
        db.table("batch_hunts").delete_where("batch_id = ?", [batch])
        db.table("batches").delete(batch)


def update_hunt(history: "History", batch: int, number: int, **columns: object) -> None:
    """Change columns of a hunt of a batch: its number, its job, its status."""
    with history.transaction() as db:
        db.table("batch_hunts").update((batch, number), columns)


def claim(history: "History", batch: int, number: int, job: str = "") -> int | None:
    """Enter that this process, perhaps in Slurm job ``job``, begins a hunt of a batch. Raises UsageError if another
    process has begun it.

    Returns the number of a hunt that began earlier, or 0. Returns None if this history does not have the hunt, as on a
    node that does not share the history.
    """
    with history.transaction() as db:
        select = "SELECT process, coalesce(hunt_id, 0) FROM batch_hunts WHERE batch_id = ? AND number = ? AND coalesce(job, '') = ?"
        row = db.execute(select, [batch, number, job]).fetchone()
        if row and row[0] and row[0] != worker() and is_running(row[0]):
            raise UsageError(
                f"Another process works on hunt {number + 1} of batch b{batch}.", "To see its progress: bisect watch"
            )
        if row:
            db.table("batch_hunts").update((batch, number), {"process": worker()})
        return int(row[1]) if row else None


def enter_status(history: "History", batch: int, number: int, status: int | None, failure: str = "") -> None:
    """Enter the exit status of a hunt (None: it will be continued), and why it did not begin."""
    update_hunt(history, batch, number, status=status, failure=failure or None)


def jobs_of(history: "History", hunt: int) -> list[tuple[int, int, str]]:
    """The batch, the number in it and the job of a hunt that was submitted; empty for other hunts."""
    return history.select("SELECT batch_id, number, job FROM batch_hunts WHERE hunt_id = ? AND job != ''", [hunt])


def is_of_batch(history: "History", hunt: int) -> bool:
    """Whether a hunt was begun with others."""
    return bool(history.select("SELECT 1 FROM batch_hunts WHERE hunt_id = ?", [hunt]))


def end_batch(history: "History", batch: int, at: float) -> None:
    """Enter that all hunts of a batch have ended."""
    with history.transaction() as db:
        db.table("batches").update(batch, {"ended": at})


def read_batch(history: "History", batch: int) -> Batch:
    """The batch of that number. Raises UsageError if there is none."""
    rows = history.select("SELECT started, ended, process, file FROM batches WHERE id = ?", [min(batch, LARGEST_ID)])
    if not rows:
        raise UsageError(
            f"There is no batch b{batch} in the history {history.label}.", "To begin a batch: bisect batch FILE"
        )
    became = "hunt_id, status, coalesce(failure, ''), coalesce(process, ''), coalesce(job, '')"
    select = f"SELECT number, arguments, folder, hosts, {became} FROM batch_hunts WHERE batch_id = ? ORDER BY number"
    members = history.select(select, [batch])
    with damage_explained(history.label, f"batch {batch}, table batches or batch_hunts,"):
        [(started, ended, process, file)] = rows
        checked_value("started", started, float)
        checked_value("file", file, str)
        hunts = []
        for number, arguments, folder, hosts, hunt, status, failure, claimed, job in members:
            planned = PlannedHunt(tuple(json.loads(arguments)), folder, tuple(map(tuple, json.loads(hosts))))
            running = bool(claimed) and is_running(claimed)
            hunts.append(BatchHunt(number, planned, hunt, status, failure, running, job))
        return Batch(batch, started, file, tuple(hunts), ended is not None, ended is None and is_running(process))


def batch_together(history: "History", hunt: int) -> Batch | None:
    """The batch whose hunts, this hunt among them, are carried out together; None if there is none."""
    together = "SELECT batch_id FROM batch_hunts JOIN batches ON batches.id = batch_id WHERE hunt_id = ? AND file = ''"
    return next((read_batch(history, batch) for (batch,) in history.select(together, [hunt])), None)


def all_batches(history: "History") -> list[Batch]:
    """All batches of a history, oldest first; a batch that cannot be read has the error in place of its file."""
    batches = []
    for (number,) in history.select("SELECT id FROM batches ORDER BY id"):
        try:
            batches.append(read_batch(history, number))
        except EnvironmentFailure as damage:
            batches.append(Batch(number, 0.0, str(damage), (), True, False))
    return batches


def copy_batches(source: "History", target: "History", here: Mapping[int, int], origin: str, process: str) -> None:
    """Enter which of the copied hunts (number in ``source`` → number in ``target``) were in one batch.

    The batch is entered as ended: its hunts do not begin from a copy, whose commands may be anyone's. A file of other
    persons adds nothing to a batch with own hunts.
    """
    import msgspec  # not needed for a list of batches

    from perfbisect.store.log import check_field_values

    select = (
        "SELECT batch_id, started, file, number, hunt_id, status FROM batches b JOIN batch_hunts ON batch_id = b.id"
    )
    with damage_explained(source.label, "table batch_hunts"):
        rows = [row for row in source.select(select) if row[4] in here]
        members = sorted(msgspec.convert(rows, list[tuple[int, float, str, int, int, int | None]]))
        for _, started, file, position, _, status in members:
            check_field_values({"started": started, "file": file, "workload": position, "status": status})
    for (_, started, file), batch_members in groupby(members, key=lambda member: member[:3]):
        hunts = [(position, here[hunt], status) for *_, position, hunt, status in batch_members]
        select_batch = f"SELECT batch_id FROM batch_hunts WHERE hunt_id IN ({', '.join('?' * len(hunts))})"
        with target.transaction() as db:
            existing = db.execute(select_batch, [hunt for _, hunt, _ in hunts]).fetchone()
            if existing and origin and not all(target.origin(hunt) for _, hunt, _ in hunts):
                continue
            batch = existing[0] if existing else begin_batch(target, masked(file), [], started)
            if not existing:
                db.table("batches").update(batch, {"process": process, "ended": started})
            for position, hunt, status in hunts:
                row = {"batch_id": batch, "number": position, "hunt_id": hunt, "status": status}
                planned = PlannedHunt.of(target.settings(hunt), "")
                db.table("batch_hunts").insert(row | columns_of(planned), ignore=True)
