"""Trials in the history: A/As, comparisons and proofs. Every run has all its facts, so that any metric can be computed later."""

import json
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import astuple, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from perfbisect.core.domain.codec import builtins, dumps
from perfbisect.core.domain.events import Commit
from perfbisect.core.domain.facts import HostFacts, RunFacts, SkipFacts
from perfbisect.core.domain.settings import Reverts, Series, TrialBuild, TrialRequest, TrialType, TrialWorkload
from perfbisect.core.domain.trials import Trial, TrialRun, TrialSkip
from perfbisect.errors import EnvironmentFailure
from perfbisect.process import this_process
from perfbisect.store.connection import DROPS, PROOFS, RELEASES, SHARED, VARIANTS, intact, version
from perfbisect.store.drop_hunts import read_drop_hunts
from perfbisect.store.fact_tables import commit_row, host_row, skip_row
from perfbisect.store.listing import trial_state
from perfbisect.store.rows import insert, new_uid

if TYPE_CHECKING:
    import sqlite_utils

# in the order of the fields of TrialBuild and of TrialWorkload
BUILD_COLUMNS = (
    "name", "commit_hash", "path", "build_key", "binary_hash", "version", "trouble", "variant", "config", "config_hash", "seconds",
)  # fmt: skip
OF_VARIANTS, OF_DROPS = 4, 1  # the last of them, which histories before VARIANTS and DROPS lack
WORK_COLUMNS = ("name", "work_group", "warmup", "seconds", "told")


def enter_trial(
    db: "sqlite_utils.Database", request: TrialRequest, host: HostFacts, commits: Sequence[Commit], at: float
) -> int:
    """A new trial; ``commits`` has date, author and subject of those among its builds."""
    for commit in commits:
        commit_row(db, commit)
    row = {
        "uid": new_uid(),
        "kind": request.kind,
        "started": at,
        "process": this_process(),
        "builder": request.builder,
        "variant": request.variant,
        "overrides": compact(request.overrides),
        "host": request.host,
        "host_id": host_row(db, host, at),
        "metric": request.metric,
        "visits": request.rounds,
        "runs": request.runs,
        "hunt_id": request.reverts.hunt if request.reverts else None,
        "reverted": compact(request.reverts.commits) if request.reverts else None,
        "series": stored_series(request),
    }
    trial = insert(db, "trials", row)
    for number, build in enumerate(request.subjects):
        known = {column: value or None for column, value in zip(BUILD_COLUMNS, astuple(build), strict=True)}
        insert(db, "trial_builds", {"trial_id": trial, "number": number, **known})
    for number, work in enumerate(request.works):
        known = dict(zip(WORK_COLUMNS, astuple(work), strict=True))
        insert(db, "trial_workloads", {"trial_id": trial, "number": number, **known})
    return trial


def enter_run(db: "sqlite_utils.Database", trial: int, run: TrialRun) -> None:
    """One more run."""
    [number] = db.execute("SELECT run_count FROM trials WHERE id = ?", [trial]).fetchone()
    db.execute("UPDATE trials SET run_count = run_count + 1 WHERE id = ?", [trial])
    row = {
        "trial_id": trial,
        "number": number,
        "visit": run.round,
        "build": run.subject,
        "workload": run.work,
        "at": run.at,
        "cost": run.cost,
        "body": dumps(builtins(run.facts)),
    }
    insert(db, "trial_runs", row)


def enter_skip(db: "sqlite_utils.Database", trial: int, skip: TrialSkip) -> None:
    """A build fails in a workload."""
    row = {"trial_id": trial, "workload": skip.work, "build": skip.subject, "at": skip.at}
    insert(db, "trial_skips", row | skip_row(skip.facts))


def read_trial(connection: sqlite3.Connection, number: int, path: Path) -> Trial | None:
    """A trial with all its runs; None for an unknown id. ``path`` of the history is for errors."""
    row = connection.execute(
        "SELECT kind, started, ended, process, builder, variant, CAST(overrides AS BLOB), host, host_id, metric,"
        " visits, runs, failure FROM trials WHERE id = ?",
        [number],
    ).fetchone()
    if row is None:
        return None
    kind, started, ended, process, builder, variant, overrides, host, host_id, metric, *rest = row
    visits, runs, failure = rest
    lacked = 0 if version(connection) >= DROPS else OF_DROPS if version(connection) >= VARIANTS else OF_VARIANTS
    columns = BUILD_COLUMNS[: len(BUILD_COLUMNS) - lacked]
    builds = connection.execute(
        f"SELECT {', '.join(columns)} FROM trial_builds WHERE trial_id = ? ORDER BY number",
        [number],
    )
    subjects = tuple(read_build(row) for row in builds)
    works = connection.execute(
        f"SELECT {', '.join(WORK_COLUMNS)} FROM trial_workloads WHERE trial_id = ? ORDER BY number",
        [number],
    )
    where = f"trial {number}, table"
    with intact(path, f"{where} trials, row {number},"):
        request = TrialRequest(
            TrialType(kind), builder, variant, host, metric, read_object(overrides), subjects,
            tuple(TrialWorkload(*work) for work in works), visits, runs,
            read_reverts(connection, number), read_series(connection, number),
        )  # fmt: skip
    rows = connection.execute(
        "SELECT number, visit, workload, build, at, cost, CAST(body AS BLOB) FROM trial_runs"
        " WHERE trial_id = ? ORDER BY number",
        [number],
    )
    read = []
    for place, visit, work, subject, at, cost, body in rows:
        with intact(path, f"{where} trial_runs, row {place},"):
            read.append(TrialRun(visit, work, subject, at, cost, msgspec.convert(json.loads(body), RunFacts)))
    with intact(path, f"{where} hosts, row {host_id},"):
        facts = read_host(connection, host_id)
    skips = connection.execute(
        "SELECT workload, build, at, stage, reason, log, seconds FROM trial_skips WHERE trial_id = ? ORDER BY at",
        [number],
    )
    return Trial(
        number,
        request,
        facts,
        started,
        trial_state(ended, process, failure),
        read,
        [
            TrialSkip(work, subject, at, SkipFacts(subjects[subject].commit or subjects[subject].name, *skipped))
            for work, subject, at, *skipped in skips
        ],
        failure or "",
        read_origin(connection, number),
        read_drop_hunts(connection, number),
    )


def read_build(row: Sequence[Any]) -> TrialBuild:
    """A build from the columns that the history has of it."""
    known = dict(zip((each.name for each in fields(TrialBuild)), row, strict=False))
    return TrialBuild(**{name: value for name, value in known.items() if value is not None})


def read_origin(connection: sqlite3.Connection, number: int) -> str:
    """From whom a trial was imported; empty for one of this history's owner."""
    if version(connection) < SHARED:
        return ""
    row = connection.execute("SELECT coalesce(origin, '') FROM trials WHERE id = ?", [number]).fetchone()
    return str(row[0])


def read_reverts(connection: sqlite3.Connection, number: int) -> Reverts | None:
    """What the proof of that number reverts; None for another trial."""
    if version(connection) < PROOFS:
        return None
    sql = "SELECT hunt_id, CAST(reverted AS BLOB) FROM trials WHERE id = ? AND hunt_id IS NOT NULL"
    row = connection.execute(sql, [number]).fetchone()
    return None if row is None else Reverts(row[0], msgspec.json.decode(row[1], type=tuple[str, ...]))


def stored_series(request: TrialRequest) -> str | None:
    """What makes a trial a series of releases, as its row has it."""
    return dumps(builtins(request.series)) if request.series else None


def read_series(connection: sqlite3.Connection, number: int) -> Series | None:
    """The range of releases that the comparison of that number measures; None for another trial."""
    if version(connection) < RELEASES:
        return None
    sql = "SELECT CAST(series AS BLOB) FROM trials WHERE id = ? AND series IS NOT NULL"
    row = connection.execute(sql, [number]).fetchone()
    return None if row is None else msgspec.convert(json.loads(row[0]), Series)


def read_proofs(connection: sqlite3.Connection, hunt: int, path: Path) -> list[Trial]:
    """The proofs of a hunt's verdict, oldest first; damaged ones are left out."""
    if version(connection) < PROOFS:
        return []
    rows = connection.execute("SELECT id FROM trials WHERE hunt_id = ? ORDER BY id", [hunt]).fetchall()
    return list(intact_trials(connection, rows, path))


def read_host(connection: sqlite3.Connection, number: int) -> HostFacts:
    """The facts of a host."""
    row = connection.execute(
        "SELECT name, cpu, cores, memory_mib, kernel, compiler, CAST(tools AS BLOB), CAST(settings AS BLOB)"
        " FROM hosts WHERE id = ?",
        [number],
    ).fetchone()
    return HostFacts(*row[:6], *map(read_object, row[6:]))


def read_object(stored: bytes) -> dict[str, Any]:
    """An object of JSON from its stored form."""
    return msgspec.convert(json.loads(stored), dict[str, Any])


def intact_trials(connection: sqlite3.Connection, ids: Iterable[tuple[Any, ...]], path: Path) -> Iterator[Trial]:
    """The trials with these ids, as they are wanted; damaged ones, which `bisect show` reports, are left out."""
    for (number,) in ids:
        trial = None
        with suppress(EnvironmentFailure):
            trial = read_trial(connection, number, path)
        if trial:
            yield trial


def unfinished(connection: sqlite3.Connection, request: TrialRequest, host: HostFacts, path: Path) -> Trial | None:
    """The newest interrupted or failed comparison or proof of the same builds and settings on the same machine.

    Damaged ones are left out.
    """
    rows = connection.execute(
        "SELECT id FROM trials WHERE kind = ? AND ended IS NULL AND builder = ? AND host = ? AND origin IS NULL ORDER BY id DESC",
        [request.kind, request.builder, request.host],
    ).fetchall()
    for trial in intact_trials(connection, rows, path):
        if trial.state != "running" and same(trial.request, request) and trial.host == host:
            return trial
    return None


def same(one: TrialRequest, other: TrialRequest) -> bool:
    """True where runs of two trials can be combined: only the number of rounds and the metric may differ."""

    def less(request: TrialRequest) -> TrialRequest:
        series = request.series and replace(request.series, options=())  # they contain the metric
        return replace(
            request,
            metric="",
            series=series,
            rounds=0,
            works=tuple(replace(work, run_hash="") for work in request.works),
        )

    # Trials of older releases have no hash of their workloads.
    agree = (
        not (was.run_hash and now.run_hash) or was.run_hash == now.run_hash
        for was, now in zip(one.works, other.works, strict=False)
    )
    return less(one) == less(other) and all(agree)


def compact(value: object) -> str:
    """JSON without blanks, as in the columns that are compared."""
    return json.dumps(value, separators=(",", ":"))
