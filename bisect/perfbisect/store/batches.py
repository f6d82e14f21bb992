"""Batches of hunts: hunts that `bisect batch` plans, or the hunts of one `bisect run` of several workloads.

The history stores the state of each planned hunt. A `bisect run` of several workloads is a batch without a file; the
hunts of such a batch begin immediately.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from perfbisect.errors import EnvironmentFailure, UsageError
from perfbisect.masking import mask_credentials
from perfbisect.process import is_running, this_process_with_owner
from perfbisect.store.connection import LARGEST_ID, damage_explained, not_found_error, with_history
from perfbisect.store.listing import checked_value

if TYPE_CHECKING:
    from perfbisect.core.domain.settings import Settings
    from perfbisect.store.history import History


@dataclass(frozen=True, slots=True)
class PlannedHunt:
    """The plan of a hunt of a batch: the arguments for `bisect run`, the folder in which it is run, and the hosts."""

    arguments: tuple[str, ...]  # without hosts
    folder: str  # folder in which `bisect run` is started, to which paths are relative
    hosts: tuple[tuple[str, ...], ...]  # alternatives; the hunt measures on all hosts of one alternative

    @classmethod
    def of_begun_hunt(cls, settings: "Settings", folder: str) -> "PlannedHunt":
        """A ``PlannedHunt`` for a hunt that has begun; its arguments are only the builder, the workload, good and
        bad."""
        words = (f"--builder={settings.builder}", f"--workload={settings.workload}", settings.good, settings.bad)
        return cls(words, folder, (settings.hosts,))


@dataclass(frozen=True, slots=True)
class BatchHunt:
    """The state of one hunt of a batch."""

    number: int  # number of the hunt in the batch, from 0
    planned: PlannedHunt
    hunt: int | None  # number of the hunt in the history; None before the hunt begins
    status: int | None  # exit status; None before the hunt ends
    failure: str  # why the hunt could not begin
    running: bool = False  # whether a process of this machine has claimed the hunt, which may have no number yet
    job: str = ""  # number of the hunt's Slurm job, if the hunt was submitted


class BatchJob(NamedTuple):
    """The Slurm job of a hunt of a batch."""

    batch: int
    hunt_in_batch: int  # number of the hunt in the batch, from 0
    job: str


@dataclass(frozen=True, slots=True)
class Batch:
    """One `bisect batch`, or one `bisect run` of several workloads."""

    id: int
    started: float  # seconds since the epoch
    file: str  # the batch file; "" if one process carries out all hunts, which share their builds
    hunts: tuple[BatchHunt, ...]
    ended: bool
    running: bool  # whether a process of this machine works on the batch

    @property
    def name(self) -> str:
        """The name of the batch in commands, such as b3."""
        return f"b{self.id}"

    @property
    def is_one_process(self) -> bool:
        """Whether one process carries out all hunts of the batch; these hunts then share builds."""
        return not self.file

    @property
    def is_submitted(self) -> bool:
        """Whether the hunts of the batch were submitted as Slurm jobs."""
        return any(hunt.job for hunt in self.hunts)


def planned_hunt_columns(planned: PlannedHunt) -> dict[str, str]:
    """The values for the columns of ``batch_hunts`` for a planned hunt."""
    folder, hosts = planned.folder, json.dumps(planned.hosts)
    return {"arguments": json.dumps(planned.arguments), "folder": folder, "hosts": hosts}


def begin_batch(history: "History", file: Path | str, planned: Sequence[PlannedHunt], at: float) -> int:
    """Store a new batch, and return its number. If ``file`` is "", one process carries out all hunts of the batch."""
    with history.transaction() as db:
        table = db.table("batches")
        batch = int(table.insert({"started": at, "process": this_process_with_owner(), "file": str(file)}).last_pk or 0)
        for number, hunt in enumerate(planned):
            db.table("batch_hunts").insert({"batch_id": batch, "number": number, **planned_hunt_columns(hunt)})
    return batch


def continue_batch(history: "History", batch: int) -> None:
    """Store that this process continues a batch, and that the batch has not ended; hunts that failed to begin can then
    be tried again.

    Raises UsageError for a batch that another person made.
    """
    [(process,)] = history.select("SELECT process FROM batches WHERE id = ?", [batch])
    if whose := history.other_owner("", process):
        raise UsageError(
            f"Batch b{batch} was made by {whose}. For safety, perfbisect does not run commands of others.",
            f"To see the hunts: {with_history('bisect history', history.path)}",
        )
    with history.transaction() as db:
        db.table("batches").update(batch, {"process": this_process_with_owner(), "ended": None})


def remove_planned_batch(history: "History", batch: int) -> None:
    """Remove a batch, with its planned hunts. The caller must ensure that no hunt of the batch has begun."""
    with history.transaction() as db:
        db.table("batch_hunts").delete_where("batch_id = ?", [batch])
        db.table("batches").delete(batch)


def update_batch_hunt(history: "History", batch: int, number: int, **columns: object) -> None:
    """Change columns of a row of ``batch_hunts``, such as ``hunt_id``, ``job`` and ``status``."""
    with history.transaction() as db:
        db.table("batch_hunts").update((batch, number), columns)


def claim_batch_hunt(history: "History", batch: int, number: int, job: str = "") -> int | None:
    """Store that this process (in Slurm job ``job``, if given) begins a hunt of a batch.

    Returns the hunt's number in the history if an earlier attempt (process) began the hunt, otherwise 0. Returns None
    if this history does not contain the planned hunt, for example because a cluster node has a different history.
    Raises UsageError if another process works on the hunt.
    """
    with history.transaction() as db:
        select = "SELECT process, coalesce(hunt_id, 0) FROM batch_hunts WHERE batch_id = ? AND number = ? AND coalesce(job, '') = ?"
        row = db.execute(select, [batch, number, job]).fetchone()
        if row and row[0] and row[0] != this_process_with_owner() and is_running(row[0]):
            raise UsageError(
                f"Another process works on hunt {number + 1} of batch b{batch}.", "To see its progress: bisect watch"
            )
        if row:
            db.table("batch_hunts").update((batch, number), {"process": this_process_with_owner()})
        return int(row[1]) if row else None


def enter_batch_hunt_status(history: "History", batch: int, number: int, status: int | None, failure: str = "") -> None:
    """Store the exit status of a hunt, or None if a later process continues the hunt. ``failure`` says why the hunt
    could not begin.
    """
    update_batch_hunt(history, batch, number, status=status, failure=failure or None)


def batch_jobs_of_hunt(history: "History", hunt: int) -> list[BatchJob]:
    """The Slurm jobs that were submitted for a hunt; empty for a hunt that was not submitted."""
    select = "SELECT batch_id, number, job FROM batch_hunts WHERE hunt_id = ? AND job != ''"
    return [BatchJob(*row) for row in history.select(select, [hunt])]


def is_in_batch(history: "History", hunt: int) -> bool:
    """Whether a hunt belongs to a batch."""
    return bool(history.select("SELECT 1 FROM batch_hunts WHERE hunt_id = ?", [hunt]))


def end_batch(history: "History", batch: int, at: float) -> None:
    """Store that all hunts of a batch have ended."""
    with history.transaction() as db:
        db.table("batches").update(batch, {"ended": at})


def read_batch(history: "History", batch: int) -> Batch:
    """The batch with a number. Raises UsageError if the history has no batch with this number."""
    rows = history.select("SELECT started, ended, process, file FROM batches WHERE id = ?", [min(batch, LARGEST_ID)])
    if not rows:
        raise not_found_error(f"batch b{batch}", history.label, history.path)
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


def batch_of_one_process(history: "History", hunt: int) -> Batch | None:
    """The batch of a hunt, if one process carries out all hunts of the batch; otherwise None."""
    together = "SELECT batch_id FROM batch_hunts JOIN batches ON batches.id = batch_id WHERE hunt_id = ? AND file = ''"
    return next((read_batch(history, batch) for (batch,) in history.select(together, [hunt])), None)


def all_batches(history: "History") -> list[Batch]:
    """All batches of a history, oldest first. If a batch cannot be read, its field ``file`` contains the text of the
    error."""
    batches = []
    for (number,) in history.select("SELECT id FROM batches ORDER BY id"):
        try:
            batches.append(read_batch(history, number))
        except EnvironmentFailure as damage:
            batches.append(Batch(number, 0.0, str(damage), (), True, False))
    return batches


def copy_batches(
    source: "History", target: "History", target_numbers: Mapping[int, int], origin: str, process: str
) -> None:
    """Copy the batches to which hunts belong that were copied from another history.

    ``target_numbers`` maps the numbers of hunts in ``source`` to numbers in ``target``. A copied batch is stored as
    ended, so that no further hunt of the batch begins: another person may have written the commands of these hunts. If
    hunts of the user are already in the batch, hunts of another person are not added to the batch.
    """
    import msgspec  # not needed for a list of batches

    from perfbisect.store.log import check_field_values

    sql = "SELECT batch_id, started, file, number, hunt_id, status FROM batches b JOIN batch_hunts ON batch_id = b.id"
    with damage_explained(source.label, "table batch_hunts"):
        rows = [row for row in source.select(sql) if row[4] in target_numbers]
        members = sorted(msgspec.convert(rows, list[tuple[int, float, str, int, int, int | None]]))
        for _, started, file, position, _, status in members:
            check_field_values({"started": started, "file": file, "workload": position, "status": status})
    for (_, started, file), batch_members in groupby(members, key=lambda member: member[:3]):
        hunts = [(position, target_numbers[hunt], status) for *_, position, hunt, status in batch_members]
        select_batch = f"SELECT batch_id FROM batch_hunts WHERE hunt_id IN ({', '.join('?' * len(hunts))})"
        with target.transaction() as db:
            existing = db.execute(select_batch, [hunt for _, hunt, _ in hunts]).fetchone()
            if existing and origin and not all(target.origin(hunt) for _, hunt, _ in hunts):
                continue
            batch = existing[0] if existing else begin_batch(target, mask_credentials(file), [], started)
            if not existing:
                db.table("batches").update(batch, {"process": process, "ended": started})
            for position, hunt, status in hunts:
                row = {"batch_id": batch, "number": position, "hunt_id": hunt, "status": status}
                planned = PlannedHunt.of_begun_hunt(target.settings(hunt), "")
                db.table("batch_hunts").insert(row | planned_hunt_columns(planned), ignore=True)
