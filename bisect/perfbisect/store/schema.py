"""The tables, indexes and views of the history.

The table ``events`` is the log of all sessions. All other tables can be computed from this table, except the tables of
sessions, attempts and batches.

Commits are stored as full hashes. The column ``node`` is the index of a commit in its hunt's range, where 0 is good;
``node`` is null for a commit outside of the range. In a trial, ``node`` is the index of a build. The columns ``at`` and
``started`` are seconds since the epoch. A value that the host cannot measure is null. The column ``event_id`` is the id
of the event that contains the fact.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import sqlite3

APPLICATION = 0x50424953  # the number ("PBIS") that marks a history of perfbisect
LAST_MOMENT = 2.0**37  # seconds since the epoch; in the year 6325, before the end of every calendar
VERSION = 17  # PRAGMA user_version: the version of the tables
# A column has one type and one meaning in all tables; columns in neither list are texts.
INTEGERS = (
    "about", "batch_id", "build_count", "cache_hits", "cache_misses", "candidates", "commits", "cores",
    "event_id", "hunt_id", "memory_mib", "merges", "node", "number", "operations", "rank", "reused", "round",
    "run_count", "session_id", "status",
)  # fmt: skip
REALS = (
    "at", "between_visits", "cost", "detectable", "ended", "first_seen", "high", "latency_avg", "latency_max",
    "latency_p95", "latency_p99", "low", "metric_value", "noise", "probability", "qps", "ratio", "seconds", "started",
    "within_visits",
)  # fmt: skip
OPTIONAL = (  # columns that may be null
    "about", "base_commit", "bad", "bad_commit", "between_visits", "candidates", "commit_hash", "commits",
    "dataset_key", "detectable", "drop_between", "ended", "failure", "good", "good_commit", "high", "host",
    "hunt_id", "job", "latency_avg", "latency_max", "latency_p95", "latency_p99", "low", "merges", "metric_value", "node", "noise",
    "origin", "process", "qps", "ratio", "reason", "repository", "request", "same_as", "status", "within_visits",
)  # fmt: skip
TYPES = {int: "INTEGER", float: "REAL", str: "TEXT"}
REFERENCES = dict.fromkeys(("session_id", "about", "hunt_id"), "sessions") | {"host_id": "hosts", "batch_id": "batches"}
FACT = "event_id session_id commit_hash node host"

TABLES = {  # name → columns, the primary key first
    # Runs are comparable only if their hosts have the same row. id: a hash of all other columns except first_seen.
    # tools, settings: JSON.
    "hosts": "id name cpu cores memory_mib kernel compiler tools settings first_seen",
    # Commits that were about to be built. date: the committer's day.
    "commits": "commit_hash date author subject",
    # uid: name of the session in all histories that have a copy. origin: the owner of the session; null for the owner
    # of this history. kind: hunt, compare, noise, prove. ended: null while the session is running or interrupted.
    # workload: for a trial, all workloads, separated by commas. host: the first host. build_count: without reused
    # builds. about: for a proof, and for a search in the diff of a culprit, the hunt; for a hunt for a drop, the
    # comparison. drop_between: for a hunt for a drop, the numbers of the workload and of the builds before and after
    # the drop, as JSON; null if these builds are tips of several nights of a branch. Of hunts: good and bad as written;
    # base_commit is the good end of the range, or the merge base if good is not an ancestor of bad; commits is the
    # number of commits in the range. Of an A/A test that has ended, as fractions: between_visits and within_visits are s.d.,
    # and noise is the s.d. of one run for hunts. settings: JSON, all settings of the session. request: JSON, the builds
    # and workloads of a trial.
    "sessions": "id uid origin kind started ended builder variant workload host host_id metric run_count build_count about drop_between"
    " good bad good_commit bad_commit base_commit repository commits candidates merges between_visits within_visits noise settings request",
    # The range of a hunt. candidates: JSON, the commit of each node, oldest first.
    "ranges": "session_id candidates",
    # An attempt: a process that worked on a session, and why the process could not continue.
    "attempts": "id session_id started process failure",
    # commit_hash: of the candidate that the event is about. host: null if the session has only one host. body: JSON.
    "events": "id session_id at kind commit_hash host body",
    # same_as: the first commit of this session with the same binary. reused: 1 for an earlier build, 2 for a shared
    # build.
    "builds": f"{FACT} at build_key binary_hash same_as seconds cache_hits cache_misses reused log",
    # Candidates that could not be measured. seconds: 0 if another hunt counts these seconds.
    "skips": f"{FACT} workload round at stage reason seconds log",
    # workload, round: of a trial. started, seconds: of the measured window. cost: seconds since the previous entry of
    # the log. metric_value: of the session's metric, in its unit; null if the host cannot count the metric. qps: null
    # for an exact count of instructions. latency: milliseconds.
    "runs": f"{FACT} workload round visit build_key dataset_key started seconds cost operations metric_value qps latency_avg latency_p95"
    " latency_p99 latency_max log",
    # kind: Found, Several, NotReproduced, CodePlacement, Inconclusive. ratio: bad against good, with its 95 % interval;
    # null if each step has a ratio. detectable: the smallest change that would have been shown. reason: why the verdict
    # is inconclusive.
    "verdicts": "session_id event_id at kind ratio low high detectable reason",
    # The commits that a verdict names. ratio: metric after the commit relative to before it; null for the set of an
    # inconclusive hunt.
    "suspects": "session_id rank commit_hash node probability ratio low high",
    # One `bisect batch`, or, without a file, one `bisect run` of several workloads. process: the last process that
    # worked on the batch.
    "batches": "id started ended process file",
    # arguments: JSON, of `bisect run`. folder: the folder in which the hunt is started. hosts: JSON, a list of
    # alternative lists of hosts. hunt_id: null before the hunt begins. status: the exit status of the hunt. failure:
    # why the hunt did not begin. job: the number of the hunt's Slurm job.
    "batch_hunts": "batch_id number arguments folder hosts hunt_id status failure process job",
}
# Tables whose key is not the first column → the key.
KEYS = {"suspects": ("session_id", "rank"), "batch_hunts": ("batch_id", "number")}
INDEXES = (
    ("sessions", "about"), ("attempts", "session_id"), ("events", "session_id"), ("builds", "commit_hash"),
    ("builds", "session_id", "commit_hash"), ("skips", "session_id", "commit_hash"), ("runs", "session_id", "commit_hash", "started"),
)  # fmt: skip


def candidates_view_query(fact_sql: str) -> str:
    """The final SELECT statement of the view ``candidates``. ``fact_sql`` is a template for an SQL expression that
    reads a fact of a run from the JSON of its event; {} is replaced by the name of the fact.

    The view has a row for each pair of a host and a commit that a hunt built, skipped or measured on this host (the
    rows of ``touched``). The column ``metric_value`` is the mean of the hunt's metric, in its unit. The column ``rqps``
    is the mean ratio of the commit's QPS to the QPS of the base, which is good or the merge base. A paired run is
    compared with the base's run of the same pair; an interleaved run is compared with the base's runs immediately
    before and after. ``rqps`` is null if the base has no run of the same kind (paired or not, same layout, counted or
    timed). `bisect show` also computes confidence intervals, and ratios of commits that were never measured next to the
    base.
    """
    names = ("counted", "slower_than", "layout", "round")
    # The way in which a run was made. For paired runs, the text after the last / identifies the pair.
    way = " || '/' || ".join(f"coalesce(CAST({fact_sql.format(name)} AS text), '')" for name in names)
    of_row = "session_id = hunt_id AND commit_hash = t.commit_hash AND host = t.host"
    return f"""
SELECT hunt_id, node, t.commit_hash, date, subject, t.host,
  (SELECT count(*) FROM builds WHERE {of_row}) AS builds,
  (SELECT sum(seconds) FROM builds WHERE {of_row}) AS build_seconds,
  (SELECT count(*) FROM runs WHERE {of_row}) AS runs,
  (SELECT avg(metric_value) FROM runs WHERE {of_row}) AS metric_value,
  (SELECT avg(qps) FROM runs WHERE {of_row}) AS qps,
  (SELECT coalesce(avg(qps / base_qps) FILTER (WHERE way NOT LIKE '%/'), avg(qps / base_qps)) FROM (
    SELECT commit_hash, qps, way, (coalesce(before, after) + coalesce(after, before)) / 2 AS base_qps FROM (
      SELECT *, max(of_base) OVER (PARTITION BY way, earlier) AS before, max(of_base) OVER (PARTITION BY way, later) AS after FROM (
        SELECT *, count(of_base) OVER (PARTITION BY way ORDER BY started) AS earlier,
          count(of_base) OVER (PARTITION BY way ORDER BY started DESC) AS later FROM (
          SELECT r.commit_hash, r.started, r.qps, CASE WHEN r.commit_hash = base_commit THEN nullif(r.qps, 0) END AS of_base, {way} AS way
          FROM runs r JOIN events ON events.id = r.event_id AND events.session_id = r.session_id
          WHERE r.session_id = hunt_id AND r.commit_hash IN (t.commit_hash, base_commit) AND r.host = t.host
        ) AS made) AS numbered) AS placed
    ) AS compared WHERE compared.commit_hash = t.commit_hash) AS rqps,
  (SELECT same_as FROM builds WHERE {of_row} AND same_as IS NOT NULL LIMIT 1) AS same_as,
  (SELECT stage || ': ' || reason FROM skips WHERE {of_row} ORDER BY event_id DESC LIMIT 1) AS skipped
FROM touched t LEFT JOIN commits ON commits.commit_hash = t.commit_hash
ORDER BY hunt_id, node, t.host
"""


VIEWS = {
    "hunts": """
SELECT id, started, ended, good, bad, good_commit, bad_commit, base_commit, repository, builder, variant, workload, host, host_id,
  metric, commits, candidates, merges, run_count, build_count, uid, origin, settings
FROM sessions WHERE kind = 'hunt'
""",
    "trials": """
SELECT id, substr(kind, 1, 1) || id AS name, kind, started, ended, builder, variant, workload, host, host_id, metric, run_count,
  between_visits, within_visits, noise, CASE WHEN kind = 'prove' THEN about END AS hunt_id, uid, origin, settings, request
FROM sessions WHERE kind != 'hunt'
""",
    # every run of `bisect compare`, `bisect prove` and `bisect noise`; qps is null for exact counts of instructions
    "trial_readings": """
SELECT sessions.id AS trial_id, event_id, round, json_extract(request, '$.works[' || runs.workload || '].name') AS workload,
  json_extract(request, '$.subjects[' || node || '].name') AS build, runs.started, seconds, qps
FROM runs JOIN sessions ON sessions.id = session_id AND kind != 'hunt'
""",
    # perf: total of the window; system: mean over the window (vmstat, iostat); null if the host has no such counter
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
FROM runs GROUP BY session_id, visit, commit_hash, build_key, dataset_key, workload, round
""",
    "datasets": """
SELECT dataset_key, min(started) AS first_used, max(started) AS last_used FROM runs WHERE dataset_key IS NOT NULL GROUP BY dataset_key
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
    # computed for each hunt separately, because SQLite would compute a join of views for all hunts
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
"""
    + candidates_view_query("json_extract(body, '$.facts.{}')"),
    "rqps": "SELECT hunt_id, commit_hash, node, host, runs, qps, rqps FROM candidates WHERE runs > 0",
    # seconds of builds by phase; builds by earlier versions of perfbisect have no phases
    "build_phases": """
SELECT builds.event_id, builds.session_id, builds.commit_hash, builds.node, builds.host, item.key AS phase, item.value AS seconds
FROM builds JOIN events ON events.id = builds.event_id JOIN json_each(body, '$.facts.phases') AS item
""",
    # builds that were not reused
    "build_costs": """
SELECT builds.host, builder, variant, count(*) AS builds, avg(seconds) AS seconds, min(seconds) AS fastest,
  max(seconds) AS slowest, sum(cache_hits) * 1.0 / nullif(sum(cache_hits + cache_misses), 0) AS hit_rate
FROM builds JOIN sessions ON sessions.id = session_id
WHERE reused = 0
GROUP BY builds.host, builder, variant
""",
}


def column_type(table: str, column: str) -> type:
    """The type of a column. The column ``workload`` contains names in the table ``sessions``, and numbers in all other
    tables. The id of a host is text, because this id is a hash.
    """
    if column == "workload":
        return str if table == "sessions" else int
    if column == "id":
        return str if table == "hosts" else int
    if table == "ranges":
        return int if column == "session_id" else str
    return int if column in INTEGERS else float if column in REALS else str


def primary_key(table: str) -> tuple[str, ...]:
    """The primary key of a table."""
    return KEYS.get(table, (TABLES[table].split()[0],))


def create_table_sql(table: str, key_columns: Sequence[str], column_sql: Callable[[str, str], str]) -> str:
    """The CREATE TABLE statement of a table. The function ``column_sql`` returns the type, the default and the
    references of a column, as SQL."""
    lines = [
        f"  {column} {column_sql(table, column)}{'' if column in OPTIONAL else ' NOT NULL'}"
        for column in TABLES[table].split()
    ]
    return f"CREATE TABLE {table} (\n" + ",\n".join([*lines, f"  PRIMARY KEY ({', '.join(key_columns)})"]) + "\n)"


def sqlite_column_sql(table: str, column: str) -> str:
    """The SQL of a column: its SQLite type, its default, and the table that the column references."""
    default = " DEFAULT 0" if column.endswith("_count") else ""
    refers = f" REFERENCES {REFERENCES[column]} (id)" if column in REFERENCES else ""
    return f"{TYPES[column_type(table, column)]}{default}{refers}"


def schema_statements() -> Iterator[str]:
    """The SQL statements that create the tables, indexes and views of a history."""
    yield from (create_table_sql(table, primary_key(table), sqlite_column_sql) for table in TABLES)
    for table, *indexed in INDEXES:
        yield f"CREATE INDEX {table}_{'_'.join(indexed)} ON {table} ({', '.join(indexed)})"
    yield from (f"CREATE VIEW {name} AS {sql}" for name, sql in VIEWS.items())


def foreign_object(connection: "sqlite3.Connection") -> str:
    """The name of the first table or trigger of an SQLite file whose SQL differs from the SQL of this schema; "" if
    there is none. The check is necessary for files of other users: a view in place of a table, a computed column or a
    trigger would execute SQL that the author of the file wrote.
    """
    sql_of = dict(connection.execute("SELECT name, sql FROM sqlite_master WHERE type = 'table'"))
    odd = [name for name in TABLES if sql_of.get(name) != create_table_sql(name, primary_key(name), sqlite_column_sql)]
    triggers = connection.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'")
    return next(iter([*odd, *(name for name in VIEWS if name in sql_of), *(name for (name,) in triggers)]), "")


def replace_outdated_views(connection: "sqlite3.Connection", *, read_only: bool = False) -> None:
    """Replace the views in the database file that differ from the views of this version of perfbisect. If ``read_only``
    is true, the new views are temporary, so that only this connection sees the new views."""
    sql_of = dict(connection.execute("SELECT name, sql FROM sqlite_master WHERE type = 'view'"))
    if outdated := [name for name, sql in VIEWS.items() if sql_of.get(name) != f"CREATE VIEW {name} AS {sql}".rstrip()]:
        statement = "CREATE TEMP VIEW {0}" if read_only else "DROP VIEW IF EXISTS {0}; CREATE VIEW {0}"
        statements = "".join(f"{statement.format(name)} AS {VIEWS[name]};" for name in outdated)
        connection.executescript(statements if read_only else f"BEGIN IMMEDIATE;{statements}COMMIT")


def create_schema(connection: "sqlite3.Connection") -> None:
    """Create the tables in an empty database file. If two processes do this at the same time, the second process waits
    for the first."""
    connection.execute("BEGIN IMMEDIATE")
    with connection:
        if not connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
            for statement in schema_statements():
                connection.execute(statement)
            connection.execute("CREATE UNIQUE INDEX sessions_uid ON sessions (uid)")
            connection.execute(f"PRAGMA application_id = {APPLICATION}")
            connection.execute(f"PRAGMA user_version = {VERSION}")
