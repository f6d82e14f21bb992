"""The tables, indexes and views of the history. ``events`` is the log; all else can be derived from it, but for the sessions
themselves, the processes that worked on them, and batches.

Commits are full hashes. ``node`` is the index of a commit in its hunt's range, oldest first, 0 being the good end, and null
for a commit outside of it; in a trial, the number of a build. ``at`` and ``started`` are seconds since the epoch. A value that
a host cannot count is null. ``event_id`` is the log entry of a fact.
"""

from typing import TYPE_CHECKING, Any, NamedTuple

from perfbisect.store.connection import APPLICATION, VERSION

if TYPE_CHECKING:
    import sqlite_utils


class Table(NamedTuple):
    """A table: its columns with their types, and those that may be null; the first column, or ``key``, is the primary key."""

    columns: dict[str, Any]
    nullable: tuple[str, ...] = ()
    key: tuple[str, ...] = ()
    references: tuple[tuple[str, str, str], ...] = ()
    indexes: tuple[tuple[str, ...], ...] = ()


OF_SESSION = (("session_id", "sessions", "id"),)
FACT = {"event_id": int, "session_id": int, "commit_hash": str, "node": int, "host": str}

TABLES = {
    "hosts": Table(  # runs are comparable only under the same row
        {
            "id": str,  # a hash of all that follows but ``first_seen``
            "name": str,
            "cpu": str,
            "cores": int,
            "memory_mib": int,
            "kernel": str,
            "compiler": str,
            "tools": str,  # JSON: tool to version
            "settings": str,  # JSON: governor, turbo, …
            "first_seen": float,
        },
    ),
    "commits": Table(  # those that were about to be built
        {"commit_hash": str, "date": str, "author": str, "subject": str},  # date: committer's day
    ),
    "sessions": Table(
        {
            "id": int,
            "uid": str,  # its name in all histories that have a copy of it
            "origin": str,  # whose it is; null for those of this history's owner
            "kind": str,  # hunt, compare, noise, prove
            "started": float,
            "ended": float,  # null: running or interrupted
            "builder": str,
            "variant": str,
            "workload": str,  # of a trial: all, with commas between
            "host": str,  # the first
            "host_id": str,
            "metric": str,
            "run_count": int,
            "build_count": int,  # without those that were there
            "about": int,  # of a proof: the hunt; of a hunt for a drop: the comparison
            "drop_between": str,  # JSON, of such a hunt: numbers of the workload, and of the builds before and after the drop
            "good": str,  # of a hunt, as written
            "bad": str,
            "good_commit": str,
            "bad_commit": str,
            "base_commit": str,  # the good end of the range; the merge base where good is not an ancestor of bad
            "repository": str,
            "commits": int,  # in the range
            "candidates": int,
            "merges": int,
            "between_visits": float,  # of an A/A, once it has ended: s.d. as a fraction, of the metric
            "within_visits": float,
            "noise": float,  # s.d. of one run, as hunts take it
            "settings": str,  # JSON: everything that was asked for
            "request": str,  # JSON, of a trial: what it measures
        },
        (
            "origin",
            "ended",
            "about",
            "drop_between",
            "good",
            "bad",
            "good_commit",
            "bad_commit",
            "base_commit",
            "repository",
            "commits",
            "candidates",
            "merges",
            "between_visits",
            "within_visits",
            "noise",
            "request",
        ),
        references=(("host_id", "hosts", "id"), ("about", "sessions", "id")),
        indexes=(("uid",), ("about",)),
    ),
    "ranges": Table(  # of hunts
        {"session_id": int, "candidates": str},  # JSON: commit of each node, oldest first
        references=OF_SESSION,
    ),
    "sittings": Table(  # a process that worked on a session
        {"id": int, "session_id": int, "started": float, "process": str, "failure": str},
        ("failure",),
        references=OF_SESSION,
        indexes=(("session_id",),),
    ),
    "events": Table(
        {
            "id": int,
            "session_id": int,
            "at": float,
            "kind": str,
            "commit_hash": str,  # of the candidate that the event is about
            "host": str,  # null where there is only one
            "body": str,  # JSON
        },
        ("commit_hash", "host"),
        references=OF_SESSION,
        indexes=(("session_id",),),
    ),
    "builds": Table(
        FACT
        | {
            "at": float,
            "build_key": str,
            "binary_hash": str,
            "same_as": str,  # the first build of this session with the same binary
            "seconds": float,
            "cache_hits": int,
            "cache_misses": int,
            "reused": int,  # 1: an earlier build was still there; 2: from the shared builds
            "log": str,
        },
        ("node", "same_as"),
        indexes=(("session_id", "commit_hash"), ("commit_hash",)),
    ),
    "skips": Table(  # candidates that could not be measured
        FACT
        | {
            "workload": int,
            "round": int,
            "at": float,
            "stage": str,
            "reason": str,
            "seconds": float,  # 0 where another hunt has spent them
            "log": str,
        },
        ("node",),
        indexes=(("session_id", "commit_hash"),),
    ),
    "runs": Table(
        FACT
        | {
            "workload": int,  # its number in a trial; 0 in a hunt
            "round": int,  # of a trial
            "visit": str,
            "build_key": str,
            "dataset_key": str,
            "started": float,  # when the measured window opened
            "seconds": float,  # length of the window
            "cost": float,  # seconds from the entry of the log before this one
            "operations": int,
            "qps": float,  # null where instructions were counted exactly
            "latency_avg": float,  # milliseconds
            "latency_p95": float,
            "latency_p99": float,
            "latency_max": float,
            "log": str,
        },
        ("node", "dataset_key", "qps", "latency_avg", "latency_p95", "latency_p99", "latency_max"),
        indexes=(("session_id", "commit_hash", "started"),),
    ),
    "verdicts": Table(
        {
            "session_id": int,
            "event_id": int,
            "at": float,
            "kind": str,  # Found, Several, NotReproduced, CodePlacement, Inconclusive
            "ratio": float,  # bad against good; null where the verdict has a ratio for each step instead
            "low": float,  # 95 % interval
            "high": float,
            "detectable": float,  # NotReproduced: the smallest change that would have been seen
            "reason": str,  # Inconclusive: why
        },
        ("ratio", "low", "high", "detectable", "reason"),
        references=OF_SESSION,
    ),
    "suspects": Table(  # the commits that a verdict names
        {
            "session_id": int,
            "rank": int,
            "commit_hash": str,
            "node": int,
            "probability": float,
            "ratio": float,  # after the commit against before it; null for the set of an inconclusive hunt
            "low": float,
            "high": float,
        },
        ("ratio", "low", "high"),
        key=("session_id", "rank"),
        references=OF_SESSION,
    ),
    "batches": Table(  # one `bisect batch`, or one `bisect run` of several workloads
        {
            "id": int,
            "started": float,
            "ended": float,  # null: running or interrupted
            "process": str,  # the last one that worked on it
            "file": str,  # its path; empty where one process carries out all hunts
        },
        ("ended",),
    ),
    "batch_hunts": Table(
        {
            "batch_id": int,
            "number": int,
            "arguments": str,  # JSON: of `bisect run`
            "folder": str,  # where it is started
            "hosts": str,  # JSON: those that it can be measured on, a list of lists: all of one of them
            "hunt_id": int,  # null until it has begun
            "status": int,  # its exit status; null until it has ended
            "failure": str,  # of one that did not begin
            "process": str,  # the last one that began this hunt
        },
        ("hunt_id", "status", "failure", "process"),
        key=("batch_id", "number"),
        references=(("batch_id", "batches", "id"), ("hunt_id", "sessions", "id")),
    ),
}

VIEWS = {
    "hunts": """
SELECT id, started, ended, good, bad, good_commit, bad_commit, base_commit, repository, builder, variant, workload, host, host_id,
  metric, commits, candidates, merges, run_count, build_count, uid, origin, settings
FROM sessions WHERE kind = 'hunt'
""",
    "trials": """
SELECT id, substr(kind, 1, 1) || id AS name, kind, started, ended, builder, variant, workload, host, host_id, metric, run_count,
  between_visits, within_visits, noise, iif(kind = 'prove', about, NULL) AS hunt_id, uid, origin, settings, request
FROM sessions WHERE kind != 'hunt'
""",
    # every run of `bisect compare`, `bisect prove` and `bisect noise`; qps is null where instructions were counted exactly
    "trial_readings": """
SELECT sessions.id AS trial_id, event_id, round, json_extract(request, '$.works[' || runs.workload || '].name') AS workload,
  json_extract(request, '$.subjects[' || node || '].name') AS build, runs.started, seconds, qps
FROM runs JOIN sessions ON sessions.id = session_id AND kind != 'hunt'
""",
    # perf: total of the window; system: mean over it (vmstat, iostat); null where the host cannot count it
    "counters": """
SELECT events.id AS run_id, source.key AS source, item.key AS name, item.value
FROM events JOIN json_each(json_object(
  'perf', json_extract(body, '$.facts.counters'), 'system', json_extract(body, '$.facts.system'),
  'command', json_patch('{}', json_object('reported', json_extract(body, '$.facts.reported'))),
  'counted', iif(json_extract(body, '$.facts.counted') = '', json('{}'), json_object(json_extract(body, '$.facts.counted'), json_extract(body, '$.facts.events'))),
  'limit', iif(json_extract(body, '$.facts.slower_than') = 0, json('{}'), json_object('slower_than', json_extract(body, '$.facts.slower_than')))
)) AS source JOIN json_each(source.value) AS item
WHERE events.kind = 'RunFinished'
""",
    # operations per second in each report interval
    "samples": """
SELECT events.id AS run_id, item.key AS number, item.value AS qps
FROM events JOIN json_each(body, '$.facts.samples') AS item WHERE events.kind = 'RunFinished'
""",
    # one start of a server on a fresh copy of its dataset
    "visits": """
SELECT session_id, visit AS name, commit_hash, build_key, dataset_key, workload, round, min(started) AS started, count(*) AS runs
FROM runs GROUP BY session_id, visit
""",
    "datasets": """
SELECT dataset_key, min(started) AS first_used, max(started) AS last_used FROM runs WHERE dataset_key IS NOT NULL GROUP BY dataset_key
""",
    # QPS over that of the base runs just before and after on its host; `bisect show` has the intervals
    "rqps": """
SELECT session_id AS hunt_id, commit_hash, node, host, count(*) AS runs, avg(qps) AS qps, avg(qps / base_qps) AS rqps
FROM (
  SELECT paired.*, (coalesce(before, after) + coalesce(after, before)) / 2 AS base_qps
  FROM (
    SELECT runs.*,
      (SELECT base.qps FROM runs base WHERE base.session_id = runs.session_id AND base.commit_hash = hunts.base_commit
        AND base.host = runs.host AND base.started <= runs.started ORDER BY base.started DESC LIMIT 1) AS before,
      (SELECT base.qps FROM runs base WHERE base.session_id = runs.session_id AND base.commit_hash = hunts.base_commit
        AND base.host = runs.host AND base.started >= runs.started ORDER BY base.started LIMIT 1) AS after
    FROM runs JOIN hunts ON hunts.id = runs.session_id
  ) AS paired
)
GROUP BY session_id, commit_hash, host
""",
    "culprits": """
SELECT hunts.id AS hunt_id, builder, workload, host, good, bad, metric, suspects.commit_hash AS culprit,
  date, author, subject, probability, suspects.ratio, suspects.low, suspects.high
FROM hunts
JOIN verdicts ON verdicts.session_id = hunts.id AND verdicts.kind IN ('Found', 'Several')
JOIN suspects ON suspects.session_id = hunts.id
LEFT JOIN commits ON commits.commit_hash = suspects.commit_hash
ORDER BY hunts.id, suspects.rank
""",
    # every commit that a hunt built, skipped or measured, on each host: for each hunt on its own, since SQLite would compute
    # a join of views for all
    "candidates": """
WITH touched AS (
  SELECT hunts.id AS hunt_id, hunts.base_commit, json_extract(value, '$[0]') AS node, json_extract(value, '$[1]') AS commit_hash,
    json_extract(value, '$[2]') AS host
  FROM hunts JOIN json_each((SELECT json_group_array(json_array(node, commit_hash, host)) FROM (
    SELECT node, commit_hash, host FROM builds WHERE session_id = hunts.id
    UNION SELECT node, commit_hash, host FROM skips WHERE session_id = hunts.id
    UNION SELECT node, commit_hash, host FROM runs WHERE session_id = hunts.id
  )))
)
SELECT hunt_id, node, t.commit_hash, date, subject, t.host,
  (SELECT count(*) FROM builds b WHERE b.session_id = hunt_id AND b.commit_hash = t.commit_hash AND b.host = t.host) AS builds,
  (SELECT sum(b.seconds) FROM builds b WHERE b.session_id = hunt_id AND b.commit_hash = t.commit_hash AND b.host = t.host)
    AS build_seconds,
  (SELECT count(*) FROM runs r WHERE r.session_id = hunt_id AND r.commit_hash = t.commit_hash AND r.host = t.host) AS runs,
  (SELECT avg(r.qps) FROM runs r WHERE r.session_id = hunt_id AND r.commit_hash = t.commit_hash AND r.host = t.host) AS qps,
  (SELECT avg(qps / ((coalesce(before, after) + coalesce(after, before)) / 2)) FROM (
    SELECT r.qps,
      (SELECT base.qps FROM runs base WHERE base.session_id = hunt_id AND base.commit_hash = base_commit
        AND base.host = r.host AND base.started <= r.started ORDER BY base.started DESC LIMIT 1) AS before,
      (SELECT base.qps FROM runs base WHERE base.session_id = hunt_id AND base.commit_hash = base_commit
        AND base.host = r.host AND base.started >= r.started ORDER BY base.started LIMIT 1) AS after
    FROM runs r WHERE r.session_id = hunt_id AND r.commit_hash = t.commit_hash AND r.host = t.host
  )) AS rqps, -- as in the view of that name
  (SELECT b.same_as FROM builds b WHERE b.session_id = hunt_id AND b.commit_hash = t.commit_hash AND b.host = t.host
    AND b.same_as IS NOT NULL LIMIT 1) AS same_as,
  (SELECT s.stage || ': ' || s.reason FROM skips s WHERE s.session_id = hunt_id AND s.commit_hash = t.commit_hash
    AND s.host = t.host ORDER BY s.event_id DESC LIMIT 1) AS skipped
FROM touched t LEFT JOIN commits ON commits.commit_hash = t.commit_hash
ORDER BY hunt_id, node, t.host
""",
    # builds that were really made
    "build_costs": """
SELECT builds.host, builder, variant, count(*) AS builds, avg(seconds) AS seconds, min(seconds) AS fastest,
  max(seconds) AS slowest, sum(cache_hits) * 1.0 / nullif(sum(cache_hits + cache_misses), 0) AS hit_rate
FROM builds JOIN sessions ON sessions.id = session_id
WHERE NOT reused
GROUP BY builds.host, builder, variant
""",
}


def create(db: "sqlite_utils.Database") -> None:
    """Create what an empty file lacks. A second process that does the same waits, and finds it done."""
    db.execute("BEGIN IMMEDIATE")
    try:
        if not db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
            for name, table in TABLES.items():
                first = next(iter(table.columns))
                key = table.key or first
                known = {*table.nullable, *table.key, first}
                made = db.table(name).create(
                    table.columns,
                    pk=key,
                    not_null=[column for column in table.columns if column not in known],
                    foreign_keys=table.references or None,
                    defaults={column: 0 for column in table.columns if column.endswith("_count")},
                )
                for columns in table.indexes:
                    made.create_index(columns, unique=columns == ("uid",))
            for name, sql in VIEWS.items():
                db.create_view(name, sql)
            db.execute(f"PRAGMA application_id = {APPLICATION}")
            db.execute(f"PRAGMA user_version = {VERSION}")
    except BaseException:
        db.rollback()
        raise
    db.commit()
