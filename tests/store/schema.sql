CREATE TABLE batch_hunts (
  batch_id INTEGER NOT NULL REFERENCES batches(id),
  number INTEGER NOT NULL,
  arguments TEXT NOT NULL, -- JSON: of `bisect run`
  folder TEXT NOT NULL, -- where it is started
  hosts TEXT NOT NULL, -- JSON: those that it can be measured on, a list of lists: all of one of them
  hunt_id INTEGER REFERENCES hunts(id), -- null until it has begun
  status INTEGER, -- its exit status; null until it has ended
  failure TEXT, process TEXT, -- of one that did not begin
  PRIMARY KEY (batch_id, number)
) WITHOUT ROWID;

CREATE TABLE batches ( -- one `bisect batch`
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  started REAL NOT NULL,
  ended REAL, -- null: running or interrupted
  process TEXT NOT NULL, -- the last one that worked on it
  file TEXT NOT NULL -- its path
);

CREATE VIEW build_costs AS -- builds that were really made
SELECT builds.host, builder, variant, count(*) AS builds, avg(seconds) AS seconds, min(seconds) AS fastest,
  max(seconds) AS slowest, sum(cache_hits) * 1.0 / nullif(sum(cache_hits + cache_misses), 0) AS hit_rate
FROM builds JOIN hunts ON hunts.id = builds.hunt_id
WHERE NOT reused
GROUP BY builds.host, builder, variant;

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
, host TEXT NOT NULL DEFAULT '');

CREATE INDEX builds_of_commit ON builds(commit_hash);

CREATE INDEX builds_of_hunt ON builds(hunt_id, commit_hash);

CREATE VIEW candidates AS -- every commit that a hunt built, skipped or measured, on each host
SELECT hunts.id AS hunt_id, json_extract(touched.value, '$[0]') AS node, json_extract(touched.value, '$[1]') AS commit_hash, commits.date, commits.subject,
  json_extract(touched.value, '$[2]') AS host,
  (SELECT count(*) FROM builds b WHERE b.hunt_id = hunts.id AND b.commit_hash = json_extract(touched.value, '$[1]')
    AND b.host = json_extract(touched.value, '$[2]')) AS builds,
  (SELECT sum(b.seconds) FROM builds b WHERE b.hunt_id = hunts.id AND b.commit_hash = json_extract(touched.value, '$[1]')
    AND b.host = json_extract(touched.value, '$[2]')) AS build_seconds,
  (SELECT count(*) FROM runs r WHERE r.hunt_id = hunts.id AND r.commit_hash = json_extract(touched.value, '$[1]')
    AND r.host = json_extract(touched.value, '$[2]')) AS runs,
  (SELECT avg(r.qps) FROM runs r WHERE r.hunt_id = hunts.id AND r.commit_hash = json_extract(touched.value, '$[1]')
    AND r.host = json_extract(touched.value, '$[2]')) AS qps,
  (SELECT avg(qps / ((coalesce(before, after) + coalesce(after, before)) / 2)) FROM (
    SELECT r.qps,
      (SELECT base.qps FROM runs base WHERE base.hunt_id = hunts.id AND base.commit_hash = hunts.base_commit
        AND base.host = r.host AND base.started <= r.started ORDER BY base.started DESC LIMIT 1) AS before,
      (SELECT base.qps FROM runs base WHERE base.hunt_id = hunts.id AND base.commit_hash = hunts.base_commit
        AND base.host = r.host AND base.started >= r.started ORDER BY base.started LIMIT 1) AS after
    FROM runs r
    WHERE r.hunt_id = hunts.id AND r.commit_hash = json_extract(touched.value, '$[1]') AND r.host = json_extract(touched.value, '$[2]')
  )) AS rqps, -- as in the view of that name
  (SELECT b.same_as FROM builds b WHERE b.hunt_id = hunts.id AND b.commit_hash = json_extract(touched.value, '$[1]')
    AND b.host = json_extract(touched.value, '$[2]') AND b.same_as IS NOT NULL LIMIT 1) AS same_as,
  (SELECT s.stage || ': ' || s.reason FROM skips s WHERE s.hunt_id = hunts.id
    AND s.commit_hash = json_extract(touched.value, '$[1]') AND s.host = json_extract(touched.value, '$[2]') ORDER BY s.event_id DESC LIMIT 1) AS skipped
FROM hunts -- for each of them on its own: SQLite would compute a join of views for all
JOIN json_each((SELECT json_group_array(json_array(node, commit_hash, host)) FROM (
  SELECT node, commit_hash, host FROM builds WHERE hunt_id = hunts.id
  UNION SELECT node, commit_hash, host FROM skips WHERE hunt_id = hunts.id
  UNION SELECT node, commit_hash, host FROM runs WHERE hunt_id = hunts.id
))) AS touched
LEFT JOIN commits ON commits.commit_hash = json_extract(touched.value, '$[1]')
ORDER BY hunts.id, json_extract(touched.value, '$[0]'), json_extract(touched.value, '$[2]');

CREATE TABLE commits (
  commit_hash TEXT PRIMARY KEY,
  date TEXT, -- committer's day; null until the commit was about to be built
  author TEXT,
  subject TEXT
);

CREATE TABLE counters (
  run_id INTEGER NOT NULL REFERENCES runs(event_id),
  source TEXT NOT NULL, -- perf: total of the window; system: mean over it (vmstat, iostat)
  name TEXT NOT NULL,
  value REAL,
  PRIMARY KEY (run_id, source, name)
) WITHOUT ROWID;

CREATE VIEW culprits AS
SELECT hunts.id AS hunt_id, builder, workload, host, good, bad, metric, suspects.commit_hash AS culprit,
  date, author, subject, probability, suspects.ratio, suspects.low, suspects.high
FROM hunts
JOIN verdicts ON verdicts.hunt_id = hunts.id AND verdicts.kind IN ('Found', 'Several')
JOIN suspects ON suspects.hunt_id = hunts.id
LEFT JOIN commits ON commits.commit_hash = suspects.commit_hash
ORDER BY hunts.id, suspects.rank;

CREATE TABLE datasets (
  dataset_key TEXT PRIMARY KEY,
  first_used REAL NOT NULL,
  last_used REAL NOT NULL
);

CREATE TABLE events ( -- the log: everything else can be derived from it
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  hunt_id INTEGER NOT NULL REFERENCES hunts(id),
  at REAL NOT NULL,
  kind TEXT NOT NULL,
  commit_hash TEXT, -- of the candidate that the event is about
  body TEXT NOT NULL -- JSON
, host TEXT);

CREATE INDEX events_of_hunt ON events(hunt_id, id);

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
, uid TEXT, origin TEXT, run_count INTEGER NOT NULL DEFAULT 0, build_count INTEGER NOT NULL DEFAULT 0);

CREATE UNIQUE INDEX hunts_by_uid ON hunts(uid);

CREATE UNIQUE INDEX "idx__sqlite_migrations_migration_set_name"
    ON "_sqlite_migrations" ("migration_set", "name");

CREATE INDEX proofs_of_hunt ON trials(hunt_id);

CREATE TABLE ranges (
  hunt_id INTEGER PRIMARY KEY REFERENCES hunts(id),
  candidates TEXT NOT NULL -- JSON: commit of each node, oldest first
);

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
  qps REAL, -- null where instructions were counted exactly
  latency_avg REAL, -- milliseconds
  latency_p95 REAL,
  latency_p99 REAL,
  latency_max REAL,
  log TEXT NOT NULL
, host TEXT NOT NULL DEFAULT '');

CREATE INDEX runs_of_commit ON runs(hunt_id, commit_hash, started);

CREATE TABLE samples ( -- operations per second in each report interval
  run_id INTEGER NOT NULL REFERENCES runs(event_id),
  number INTEGER NOT NULL,
  qps REAL NOT NULL,
  PRIMARY KEY (run_id, number)
) WITHOUT ROWID;

CREATE TABLE sessions ( -- a process that worked on a hunt
  id INTEGER PRIMARY KEY,
  hunt_id INTEGER NOT NULL REFERENCES hunts(id),
  started REAL NOT NULL,
  process TEXT NOT NULL
, failure TEXT);

CREATE INDEX sessions_of_hunt ON sessions(hunt_id);

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
, host TEXT NOT NULL DEFAULT '');

CREATE INDEX skips_of_hunt ON skips(hunt_id, commit_hash);

CREATE TABLE sqlite_sequence(name,seq);

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
);

CREATE TABLE trial_builds ( -- what a trial measures
  trial_id INTEGER NOT NULL REFERENCES "trials"(id),
  number INTEGER NOT NULL, -- 0 is the base
  name TEXT NOT NULL, -- a revision as written, or the name of prebuilt binaries
  commit_hash TEXT REFERENCES commits(commit_hash), -- null for prebuilt binaries
  path TEXT, -- of those
  version TEXT, -- that they tell
  build_key TEXT, -- null when there is no build
  binary_hash TEXT,
  trouble TEXT, variant TEXT, config TEXT, config_hash TEXT, seconds REAL, -- why
  PRIMARY KEY (trial_id, number)
) WITHOUT ROWID;

CREATE TABLE trial_hunts ( -- the hunt for a drop of a comparison
  trial_id INTEGER NOT NULL REFERENCES trials(id),
  workload INTEGER NOT NULL, -- its number
  first_build INTEGER NOT NULL, -- the number of the build before the drop
  last_build INTEGER NOT NULL,
  hunt_id INTEGER NOT NULL REFERENCES hunts(id),
  PRIMARY KEY (trial_id, workload, first_build, last_build)
) WITHOUT ROWID;

CREATE VIEW trial_readings AS -- every run of `bisect compare` and `bisect noise`
SELECT trial_runs.trial_id, trial_runs.number, visit, trial_workloads.name AS workload, trial_builds.name AS build, at,
  iif(coalesce(json_extract(body, '$.counted'), '') = '', json_extract(body, '$.operations') / json_extract(body, '$.seconds'), NULL)
    AS qps -- null where instructions were counted exactly
FROM trial_runs
JOIN trial_builds ON trial_builds.trial_id = trial_runs.trial_id AND trial_builds.number = trial_runs.build
JOIN trial_workloads ON trial_workloads.trial_id = trial_runs.trial_id
  AND trial_workloads.number = trial_runs.workload;

CREATE TABLE "trial_runs" (
  trial_id INTEGER NOT NULL REFERENCES "trials"(id),
  number INTEGER NOT NULL,
  visit INTEGER NOT NULL, -- the round that it belongs to
  workload INTEGER NOT NULL, -- its number
  build INTEGER NOT NULL, -- its number
  at REAL NOT NULL, -- when it ended
  cost REAL NOT NULL, -- seconds since the run before, or since its visit was ordered
  body TEXT NOT NULL, -- JSON: all facts of the run
  PRIMARY KEY (trial_id, number)
) WITHOUT ROWID;

CREATE TABLE trial_settings ( -- of a comparison: those that its drops are hunted with
  trial_id INTEGER PRIMARY KEY REFERENCES trials(id),
  settings TEXT NOT NULL -- JSON, as that of hunts
);

CREATE TABLE trial_skips ( -- builds that fail in a workload
  trial_id INTEGER NOT NULL REFERENCES trials(id),
  workload INTEGER NOT NULL, -- its number
  build INTEGER NOT NULL, -- its number
  at REAL NOT NULL,
  stage TEXT NOT NULL,
  reason TEXT NOT NULL,
  seconds REAL NOT NULL,
  log TEXT NOT NULL,
  PRIMARY KEY (trial_id, workload, build)
) WITHOUT ROWID;

CREATE TABLE trial_workloads (
  trial_id INTEGER NOT NULL REFERENCES "trials"(id),
  number INTEGER NOT NULL,
  name TEXT NOT NULL,
  work_group TEXT NOT NULL, -- point, range, write, …
  warmup REAL NOT NULL,
  seconds REAL NOT NULL, -- of the measured window
  told TEXT NOT NULL, -- a hash of all that it is
  PRIMARY KEY (trial_id, number)
) WITHOUT ROWID;

CREATE TABLE "trials" ( -- one `bisect noise`: a build measured against itself; or one `bisect compare`
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  kind TEXT NOT NULL, -- noise, compare
  started REAL NOT NULL,
  ended REAL, -- null: running or interrupted
  process TEXT, -- the last one that worked on it
  builder TEXT NOT NULL,
  variant TEXT NOT NULL,
  overrides TEXT NOT NULL, -- JSON: what was changed of the workloads
  host TEXT NOT NULL,
  host_id INTEGER NOT NULL REFERENCES hosts(id),
  metric TEXT NOT NULL,
  visits INTEGER NOT NULL, -- asked for, of each build and workload
  runs INTEGER NOT NULL, -- asked for, in each visit
  between_visits REAL, -- of an A/A: s.d. as a fraction, of the metric; null until it is known
  within_visits REAL,
  noise REAL -- s.d. of one run, as hunts take it
, failure TEXT, hunt_id INTEGER REFERENCES hunts(id), reverted TEXT, uid TEXT, origin TEXT, run_count INTEGER NOT NULL DEFAULT 0, series TEXT);

CREATE UNIQUE INDEX trials_by_uid ON trials(uid);

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

