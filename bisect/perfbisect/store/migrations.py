"""The tables and views of the history, as numbered migrations. A released one is never edited: add another.

Commits are full hashes. ``node`` is the index of a commit in its hunt's range, oldest first, 0 being the good end;
null for a commit outside of it. ``at`` and ``started`` are seconds since the epoch. A value that a host cannot count
is null. ``event_id`` is the log entry of a fact.
"""

from collections.abc import Callable

import sqlite_utils

from perfbisect.store.connection import APPLICATION, VERSION
from perfbisect.store.shared_tables import CLAIMS, SHARED
from perfbisect.store.trial_tables import DROPS, FAILURES, PROOFS, RELEASES, SUBJECTS, TRIALS, VARIANTS

migrations = sqlite_utils.Migrations("perfbisect")

TABLES = """
CREATE TABLE hosts (
  id INTEGER PRIMARY KEY,
  name TEXT NOT NULL,
  first_seen REAL NOT NULL,
  last_seen REAL NOT NULL,
  cpu TEXT NOT NULL,
  cores INTEGER NOT NULL,
  memory_mib INTEGER NOT NULL,
  kernel TEXT NOT NULL,
  compiler TEXT NOT NULL,
  tools TEXT NOT NULL, -- JSON: tool to version
  settings TEXT NOT NULL, -- JSON: governor, turbo, …
  fingerprint TEXT NOT NULL UNIQUE -- all of the above but the times; runs are comparable only under the same one
);

CREATE TABLE commits (
  commit_hash TEXT PRIMARY KEY,
  date TEXT, -- committer's day; null until the commit was about to be built
  author TEXT,
  subject TEXT
);

CREATE TABLE hunts (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  started REAL NOT NULL,
  ended REAL, -- null: running or interrupted
  good TEXT NOT NULL, -- as written
  bad TEXT NOT NULL,
  good_commit TEXT NOT NULL,
  bad_commit TEXT NOT NULL,
  base_commit TEXT NOT NULL, -- the good end of the range; the merge base where good is not an ancestor of bad
  repository TEXT NOT NULL,
  builder TEXT NOT NULL,
  variant TEXT NOT NULL,
  workload TEXT NOT NULL,
  host TEXT NOT NULL,
  host_id INTEGER NOT NULL REFERENCES hosts(id),
  metric TEXT NOT NULL,
  settings TEXT NOT NULL, -- JSON: everything that was asked for
  commits INTEGER NOT NULL, -- in the range
  candidates INTEGER NOT NULL,
  merges INTEGER NOT NULL
);

CREATE TABLE ranges (
  hunt_id INTEGER PRIMARY KEY REFERENCES hunts(id),
  candidates TEXT NOT NULL -- JSON: commit of each node, oldest first
);

CREATE TABLE sessions ( -- a process that worked on a hunt
  id INTEGER PRIMARY KEY,
  hunt_id INTEGER NOT NULL REFERENCES hunts(id),
  started REAL NOT NULL,
  process TEXT NOT NULL
);
CREATE INDEX sessions_of_hunt ON sessions(hunt_id);

CREATE TABLE events ( -- the log: everything else can be derived from it
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  hunt_id INTEGER NOT NULL REFERENCES hunts(id),
  at REAL NOT NULL,
  kind TEXT NOT NULL,
  commit_hash TEXT, -- of the candidate that the event is about
  body TEXT NOT NULL -- JSON
);
CREATE INDEX events_of_hunt ON events(hunt_id, id);

CREATE TABLE builds (
  event_id INTEGER PRIMARY KEY REFERENCES events(id),
  hunt_id INTEGER NOT NULL REFERENCES hunts(id),
  commit_hash TEXT NOT NULL REFERENCES commits(commit_hash),
  node INTEGER,
  at REAL NOT NULL,
  build_key TEXT NOT NULL,
  binary_hash TEXT NOT NULL,
  same_as TEXT REFERENCES commits(commit_hash), -- the first build of this hunt with the same binary
  seconds REAL NOT NULL,
  cache_hits INTEGER NOT NULL,
  cache_misses INTEGER NOT NULL,
  reused INTEGER NOT NULL, -- 1: an earlier build was still there
  log TEXT NOT NULL
);
CREATE INDEX builds_of_hunt ON builds(hunt_id, commit_hash);

CREATE TABLE skips ( -- candidates that could not be measured
  event_id INTEGER PRIMARY KEY REFERENCES events(id),
  hunt_id INTEGER NOT NULL REFERENCES hunts(id),
  commit_hash TEXT NOT NULL REFERENCES commits(commit_hash),
  node INTEGER,
  at REAL NOT NULL,
  stage TEXT NOT NULL,
  reason TEXT NOT NULL,
  seconds REAL NOT NULL,
  log TEXT NOT NULL
);
CREATE INDEX skips_of_hunt ON skips(hunt_id, commit_hash);

CREATE TABLE datasets (
  dataset_key TEXT PRIMARY KEY,
  first_used REAL NOT NULL,
  last_used REAL NOT NULL
);

CREATE TABLE visits ( -- one start of a server on a fresh copy of its dataset
  id INTEGER PRIMARY KEY,
  hunt_id INTEGER NOT NULL REFERENCES hunts(id),
  name TEXT NOT NULL,
  commit_hash TEXT NOT NULL REFERENCES commits(commit_hash),
  build_key TEXT NOT NULL,
  dataset_key TEXT REFERENCES datasets(dataset_key),
  started REAL NOT NULL,
  UNIQUE (hunt_id, name)
);

CREATE TABLE runs (
  event_id INTEGER PRIMARY KEY REFERENCES events(id),
  hunt_id INTEGER NOT NULL REFERENCES hunts(id),
  visit_id INTEGER NOT NULL REFERENCES visits(id),
  commit_hash TEXT NOT NULL REFERENCES commits(commit_hash),
  node INTEGER,
  build_key TEXT NOT NULL,
  started REAL NOT NULL, -- when the measured window opened
  seconds REAL NOT NULL, -- length of the window
  cost REAL NOT NULL, -- seconds from the entry of the log before this one
  operations INTEGER NOT NULL,
  qps REAL NOT NULL,
  latency_avg REAL, -- milliseconds
  latency_p95 REAL,
  latency_p99 REAL,
  latency_max REAL,
  log TEXT NOT NULL
);
CREATE INDEX runs_of_commit ON runs(hunt_id, commit_hash, started);

CREATE TABLE counters (
  run_id INTEGER NOT NULL REFERENCES runs(event_id),
  source TEXT NOT NULL, -- perf: total of the window; system: mean over it (vmstat, iostat)
  name TEXT NOT NULL,
  value REAL,
  PRIMARY KEY (run_id, source, name)
) WITHOUT ROWID;

CREATE TABLE samples ( -- operations per second in each report interval
  run_id INTEGER NOT NULL REFERENCES runs(event_id),
  number INTEGER NOT NULL,
  qps REAL NOT NULL,
  PRIMARY KEY (run_id, number)
) WITHOUT ROWID;

CREATE TABLE verdicts (
  hunt_id INTEGER PRIMARY KEY REFERENCES hunts(id),
  event_id INTEGER NOT NULL REFERENCES events(id),
  at REAL NOT NULL,
  kind TEXT NOT NULL, -- Found, Several, NotReproduced, Inconclusive
  ratio REAL, -- bad against good; null where the verdict has a ratio for each step instead
  low REAL, -- 95 % interval
  high REAL,
  detectable REAL, -- NotReproduced: the smallest change that would have been seen
  reason TEXT -- Inconclusive: why
);

CREATE TABLE suspects ( -- the commits that a verdict names
  hunt_id INTEGER NOT NULL REFERENCES verdicts(hunt_id),
  rank INTEGER NOT NULL,
  commit_hash TEXT NOT NULL REFERENCES commits(commit_hash),
  node INTEGER,
  probability REAL NOT NULL,
  ratio REAL, -- after the commit against before it; null for the set of an inconclusive hunt
  low REAL,
  high REAL,
  PRIMARY KEY (hunt_id, rank)
)
"""

VIEWS = """
CREATE VIEW rqps AS -- QPS over that of the base runs just before and after; `bisect show` has the intervals
SELECT hunt_id, commit_hash, node, count(*) AS runs, avg(qps) AS qps, avg(qps / base_qps) AS rqps
FROM (
  SELECT paired.*, (coalesce(before, after) + coalesce(after, before)) / 2 AS base_qps
  FROM (
    SELECT runs.*,
      (SELECT base.qps FROM runs base WHERE base.hunt_id = runs.hunt_id AND base.commit_hash = hunts.base_commit
        AND base.started <= runs.started ORDER BY base.started DESC LIMIT 1) AS before,
      (SELECT base.qps FROM runs base WHERE base.hunt_id = runs.hunt_id AND base.commit_hash = hunts.base_commit
        AND base.started >= runs.started ORDER BY base.started LIMIT 1) AS after
    FROM runs JOIN hunts ON hunts.id = runs.hunt_id
  ) AS paired
)
GROUP BY hunt_id, commit_hash;

CREATE VIEW culprits AS
SELECT hunts.id AS hunt_id, builder, workload, host, good, bad, metric, suspects.commit_hash AS culprit,
  date, author, subject, probability, suspects.ratio, suspects.low, suspects.high
FROM hunts
JOIN verdicts ON verdicts.hunt_id = hunts.id AND verdicts.kind IN ('Found', 'Several')
JOIN suspects ON suspects.hunt_id = hunts.id
LEFT JOIN commits ON commits.commit_hash = suspects.commit_hash
ORDER BY hunts.id, suspects.rank;

CREATE VIEW candidates AS -- every commit that a hunt built, skipped or measured
WITH touched AS (
  SELECT hunt_id, commit_hash, node FROM builds
  UNION SELECT hunt_id, commit_hash, node FROM skips
  UNION SELECT hunt_id, commit_hash, node FROM runs
)
SELECT touched.hunt_id, touched.node, touched.commit_hash, date, subject,
  (SELECT count(*) FROM builds b WHERE b.hunt_id = touched.hunt_id AND b.commit_hash = touched.commit_hash) AS builds,
  (SELECT sum(b.seconds) FROM builds b WHERE b.hunt_id = touched.hunt_id AND b.commit_hash = touched.commit_hash)
    AS build_seconds,
  coalesce(rqps.runs, 0) AS runs, rqps.qps, rqps.rqps,
  (SELECT b.same_as FROM builds b WHERE b.hunt_id = touched.hunt_id AND b.commit_hash = touched.commit_hash
    AND b.same_as IS NOT NULL LIMIT 1) AS same_as,
  (SELECT s.stage || ': ' || s.reason FROM skips s WHERE s.hunt_id = touched.hunt_id
    AND s.commit_hash = touched.commit_hash ORDER BY s.event_id DESC LIMIT 1) AS skipped
FROM touched
LEFT JOIN commits ON commits.commit_hash = touched.commit_hash
LEFT JOIN rqps ON rqps.hunt_id = touched.hunt_id AND rqps.commit_hash = touched.commit_hash
ORDER BY touched.hunt_id, touched.node;

CREATE VIEW build_costs AS -- builds that were really made
SELECT host, builder, variant, count(*) AS builds, avg(seconds) AS seconds, min(seconds) AS fastest,
  max(seconds) AS slowest, sum(cache_hits) * 1.0 / nullif(sum(cache_hits + cache_misses), 0) AS hit_rate
FROM builds JOIN hunts ON hunts.id = builds.hunt_id
WHERE NOT reused
GROUP BY host, builder, variant
"""

HOSTS = """
ALTER TABLE events ADD COLUMN host TEXT;
ALTER TABLE builds ADD COLUMN host TEXT NOT NULL DEFAULT '';
ALTER TABLE skips ADD COLUMN host TEXT NOT NULL DEFAULT '';
ALTER TABLE runs ADD COLUMN host TEXT NOT NULL DEFAULT '';
UPDATE builds SET host = (SELECT host FROM hunts WHERE hunts.id = hunt_id);
UPDATE skips SET host = (SELECT host FROM hunts WHERE hunts.id = hunt_id);
UPDATE runs SET host = (SELECT host FROM hunts WHERE hunts.id = hunt_id);
DROP VIEW build_costs;
DROP VIEW candidates;
DROP VIEW rqps;

CREATE VIEW rqps AS -- QPS over that of the base runs just before and after on its host; `bisect show` has the intervals
SELECT hunt_id, commit_hash, node, host, count(*) AS runs, avg(qps) AS qps, avg(qps / base_qps) AS rqps
FROM (
  SELECT paired.*, (coalesce(before, after) + coalesce(after, before)) / 2 AS base_qps
  FROM (
    SELECT runs.*,
      (SELECT base.qps FROM runs base WHERE base.hunt_id = runs.hunt_id AND base.commit_hash = hunts.base_commit
        AND base.host = runs.host AND base.started <= runs.started ORDER BY base.started DESC LIMIT 1) AS before,
      (SELECT base.qps FROM runs base WHERE base.hunt_id = runs.hunt_id AND base.commit_hash = hunts.base_commit
        AND base.host = runs.host AND base.started >= runs.started ORDER BY base.started LIMIT 1) AS after
    FROM runs JOIN hunts ON hunts.id = runs.hunt_id
  ) AS paired
)
GROUP BY hunt_id, commit_hash, host;

CREATE VIEW candidates AS -- every commit that a hunt built, skipped or measured, on each host
WITH touched AS (
  SELECT hunt_id, commit_hash, node, host FROM builds
  UNION SELECT hunt_id, commit_hash, node, host FROM skips
  UNION SELECT hunt_id, commit_hash, node, host FROM runs
)
SELECT touched.hunt_id, touched.node, touched.commit_hash, date, subject, touched.host,
  (SELECT count(*) FROM builds b WHERE b.hunt_id = touched.hunt_id AND b.commit_hash = touched.commit_hash
    AND b.host = touched.host) AS builds,
  (SELECT sum(b.seconds) FROM builds b WHERE b.hunt_id = touched.hunt_id AND b.commit_hash = touched.commit_hash
    AND b.host = touched.host) AS build_seconds,
  coalesce(rqps.runs, 0) AS runs, rqps.qps, rqps.rqps,
  (SELECT b.same_as FROM builds b WHERE b.hunt_id = touched.hunt_id AND b.commit_hash = touched.commit_hash
    AND b.host = touched.host AND b.same_as IS NOT NULL LIMIT 1) AS same_as,
  (SELECT s.stage || ': ' || s.reason FROM skips s WHERE s.hunt_id = touched.hunt_id
    AND s.commit_hash = touched.commit_hash AND s.host = touched.host ORDER BY s.event_id DESC LIMIT 1) AS skipped
FROM touched
LEFT JOIN commits ON commits.commit_hash = touched.commit_hash
LEFT JOIN rqps ON rqps.hunt_id = touched.hunt_id AND rqps.commit_hash = touched.commit_hash AND rqps.host = touched.host
ORDER BY touched.hunt_id, touched.node, touched.host;

CREATE VIEW build_costs AS -- builds that were really made
SELECT builds.host, builder, variant, count(*) AS builds, avg(seconds) AS seconds, min(seconds) AS fastest,
  max(seconds) AS slowest, sum(cache_hits) * 1.0 / nullif(sum(cache_hits + cache_misses), 0) AS hit_rate
FROM builds JOIN hunts ON hunts.id = builds.hunt_id
WHERE NOT reused
GROUP BY builds.host, builder, variant
"""

# A constraint can be removed only in the text of the schema: https://sqlite.org/lang_altertable.html
COUNTS = """
PRAGMA writable_schema = ON;
UPDATE sqlite_schema SET sql = replace(sql, 'qps REAL NOT NULL,', 'qps REAL, -- null where instructions were counted exactly')
  WHERE name = 'runs' AND type = 'table';
PRAGMA writable_schema = RESET;
DROP VIEW trial_readings;

CREATE VIEW trial_readings AS -- every run of `bisect compare` and `bisect noise`
SELECT trial_runs.trial_id, trial_runs.number, visit, trial_workloads.name AS workload, trial_builds.name AS build, at,
  iif(coalesce(json_extract(body, '$.counted'), '') = '', json_extract(body, '$.operations') / json_extract(body, '$.seconds'), NULL)
    AS qps -- null where instructions were counted exactly
FROM trial_runs
JOIN trial_builds ON trial_builds.trial_id = trial_runs.trial_id AND trial_builds.number = trial_runs.build
JOIN trial_workloads ON trial_workloads.trial_id = trial_runs.trial_id
  AND trial_workloads.number = trial_runs.workload
"""


def migration(script: str, version: int) -> Callable[[sqlite_utils.Database], None]:
    """A migration that executes the statements of ``script``, and sets the version of the file."""

    def run(db: sqlite_utils.Database) -> None:
        for statement in (*script.split(";\n"), f"PRAGMA user_version = {version}"):
            db.execute(statement)

    return run


STEPS = (
    ("m001_tables", f"PRAGMA application_id = {APPLICATION};\n{TABLES}"),  # the log and the tables of facts
    ("m002_views", VIEWS),  # for the most frequent queries
    ("m003_trials", TRIALS),  # a build measured against itself
    ("m004_hosts", HOSTS),  # hunts on several hosts: facts have a host
    ("m005_subjects", SUBJECTS),  # trials of several builds and workloads, and of builds that are not commits
    ("m006_failures", FAILURES),  # failures of hunts and trials, and builds that fail in a trial
    ("m007_proofs", PROOFS),  # of a proof: the hunt, and the commits that it reverts as JSON
    ("m008_counts", COUNTS),  # runs without QPS: those whose instructions were counted exactly
    ("m009_shared", SHARED),  # hunts that several histories have, their numbers of runs and builds, and batches
    ("m010_claims", CLAIMS),  # of a hunt of a batch: its process, before the hunt has a number
    ("m011_variants", VARIANTS),  # builds of a trial that have a variant or a configuration of their own
    ("m012_releases", RELEASES),  # of a comparison: the range of releases that it measures
    ("m013_drops", DROPS),  # the hunts for the drops of a comparison
)
for number, (name, script) in enumerate(STEPS, 1):
    migrations(name=name)(migration(script, number))


def migrate(db: sqlite_utils.Database) -> None:
    """Apply the missing migrations. A second process that does the same waits."""
    if db.execute("PRAGMA user_version").fetchone()[0] == VERSION:
        return
    db.execute("BEGIN IMMEDIATE")
    try:
        migrations.apply(db)
    except BaseException:
        db.rollback()
        raise
    db.commit()
