"""One row for each hunt and trial, read without slow imports, so that `bisect history` starts fast."""

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from perfbisect.process import is_running
from perfbisect.store.connection import RELEASES, SHARED, version

STATES = {
    "Found": "found",
    "Several": "several",
    "Unsettled": "unsettled",
    "NotReproduced": "not reproduced",
    "CodePlacement": "code placement",
    "Inconclusive": "inconclusive",
}


@dataclass(frozen=True, slots=True)
class Listed:
    """One hunt of the history."""

    id: int
    started: float  # seconds since the epoch
    builder: str
    variant: str
    workload: str
    host: str
    metric: str
    good: str
    bad: str
    commits: int  # in the range
    candidates: int  # without the good end
    merges: int
    state: str  # running, interrupted, failed, found, several, unsettled (several, and subranges left open), not reproduced, …
    culprit: str | None  # full hash of the first commit that the verdict names
    probability: float | None
    ratio: float | None  # of the metric, after the culprit to before it; without a culprit, of bad to good
    builds: int
    runs: int
    failure: str = ""  # why it has failed
    origin: str = ""  # whose it is, if it was imported


@dataclass(frozen=True, slots=True)
class ListedTrial:
    """One A/A, comparison or proof of the history."""

    id: str  # n4, c3, p5
    kind: str  # noise, compare, prove
    started: float
    builder: str
    variant: str
    workloads: tuple[str, ...]
    host: str
    metric: str
    builds: tuple[str, ...]  # names, the baseline first
    state: str  # running, interrupted, failed, done
    runs: int
    failure: str = ""  # why it has failed
    origin: str = ""  # whose it is, if it was imported
    series: str = ""  # the range of releases as written, where it is a comparison of all of them

    @property
    def title(self) -> str:
        """What is measured: the names of the builds, or their range."""
        return self.series or " ".join(self.builds)


TRIALS = """
SELECT trials.id, kind, started, ended, process, failure, builder, variant, host, metric, run_count, origin
FROM trials ORDER BY trials.id
"""

HUNTS = """
SELECT hunts.id, hunts.started, builder, variant, workload, host, metric, good, bad, commits, candidates - 1,
  merges, hunts.ended, iif(verdicts.kind = 'Several' AND verdicts.reason IS NOT NULL, 'Unsettled', verdicts.kind),
  sessions.process, sessions.failure,
  suspects.commit_hash, suspects.probability, coalesce(suspects.ratio, verdicts.ratio),
  build_count, run_count, origin
FROM hunts
LEFT JOIN verdicts ON verdicts.hunt_id = hunts.id AND hunts.ended IS NOT NULL
LEFT JOIN sessions ON sessions.id = (SELECT max(id) FROM sessions WHERE hunt_id = hunts.id)
LEFT JOIN suspects ON suspects.hunt_id = verdicts.hunt_id AND suspects.rank = 0
"""

SO_FAR = """
WITH latest AS (
  SELECT candidates, coalesce(
    json_extract(body, '$.found[0]'), json_extract(body, '$.order.step'), json_extract(body, '$.order.steps[0]')
  ) AS step
  FROM events, ranges
  WHERE events.id = (SELECT max(id) FROM events WHERE hunt_id = ? AND kind = 'Decided') AND ranges.hunt_id = ?
    AND json_valid(body) AND json_valid(candidates)
)
SELECT json_extract(candidates, '$[' || json_extract(step, '$.candidate') || ']'),
  json_extract(step, '$.probability'), json_extract(step, '$.ratio.middle')
FROM latest WHERE step IS NOT NULL
"""

COUNTED = {  # in a history of an earlier version, which does not keep the numbers
    "build_count": "(SELECT count(*) FROM builds WHERE hunt_id = hunts.id AND NOT reused)",
    "run_count, origin\nFROM hunts": "(SELECT count(*) FROM runs WHERE hunt_id = hunts.id), NULL\nFROM hunts",
    "run_count, origin\nFROM trials": "(SELECT count(*) FROM trial_runs WHERE trial_id = trials.id), NULL\nFROM trials",
}


def suited(sql: str, connection: sqlite3.Connection) -> str:
    """A query of this module for the version of the history."""
    if version(connection) < SHARED:
        for column, counted in COUNTED.items():
            sql = sql.replace(column, counted)
    return sql


def read_hunts(connection: sqlite3.Connection, hunt: int | None = None) -> tuple[Listed, ...]:
    """All hunts, or one, oldest first."""
    where, values = ("", []) if hunt is None else (" WHERE hunts.id = ?", [hunt])
    rows = connection.execute(f"{suited(HUNTS, connection)}{where} ORDER BY hunts.id", values).fetchall()
    return tuple(listed_hunt(connection, row) for row in rows)


def listed_hunt(connection: sqlite3.Connection, row: Sequence[Any]) -> Listed:
    """A hunt from a row of ``HUNTS``; one without an end with what it has found so far."""
    named = row[16:19]
    if row[12] is None and version(connection) >= SHARED:
        named = so_far(connection, row[0]) or named
    return Listed(*(*row[:12], state(*row[12:16]), *named, *row[19:-1], row[15] or "", row[-1] or ""))


def so_far(connection: sqlite3.Connection, hunt: int) -> tuple[str, float, float] | None:
    """The first change that is proven in a hunt without an end: commit, probability and ratio; None before there is one."""
    found: tuple[str, float, float] | None = connection.execute(SO_FAR, [hunt, hunt]).fetchone()
    return found


def read_trials(connection: sqlite3.Connection) -> tuple[ListedTrial, ...]:
    """All trials, oldest first."""
    names: dict[str, dict[int, list[str]]] = {}
    for table in ("trial_builds", "trial_workloads"):
        for trial, name in connection.execute(f"SELECT trial_id, name FROM {table} ORDER BY trial_id, number"):
            names.setdefault(table, {}).setdefault(trial, []).append(name)
    builds, workloads = (names.get(table, {}) for table in ("trial_builds", "trial_workloads"))
    ranges: dict[int, str] = {}
    if version(connection) >= RELEASES:
        select = "SELECT id, iif(json_valid(series), json_extract(series, '$.text'), '') FROM trials WHERE series IS NOT NULL"
        ranges = {trial: str(text) for trial, text in connection.execute(select)}
    return tuple(
        ListedTrial(
            f"{kind[0]}{trial}", kind, started, builder, variant, tuple(workloads.get(trial, ())), host, metric,
            tuple(builds.get(trial, ())), trial_state(ended, process, failure), runs, failure or "",
            origin or "", ranges.get(trial, ""),
        )
        for trial, kind, started, ended, process, failure, builder, variant, host, metric, runs, origin
        in connection.execute(suited(TRIALS, connection))
    )  # fmt: skip


def trial_state(ended: float | None, process: str | None, failure: str | None) -> str:
    """The state of a trial."""
    return "done" if ended is not None and failure is None else unfinished(process, failure)


def state(ended: float | None, kind: str | None, process: str | None, failure: str | None) -> str:
    """The state of a hunt."""
    if ended is not None and kind is not None:
        return STATES[kind]
    return unfinished(process, failure)


def unfinished(process: str | None, failure: str | None) -> str:
    """The state of a hunt or trial without an end: running, interrupted or failed."""
    if failure is not None:
        return "failed"
    return "running" if process is not None and is_running(process) else "interrupted"
