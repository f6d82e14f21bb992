"""The migrations of the tables of trials; like all migrations, they are never edited once released."""

TRIALS = """
CREATE TABLE trials ( -- one `bisect noise`: a build measured against itself
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  started REAL NOT NULL,
  revision TEXT NOT NULL, -- as written
  commit_hash TEXT NOT NULL REFERENCES commits(commit_hash),
  builder TEXT NOT NULL,
  variant TEXT NOT NULL,
  workload TEXT NOT NULL,
  overrides TEXT NOT NULL, -- JSON: what was changed of the workload
  host TEXT NOT NULL,
  host_id INTEGER NOT NULL REFERENCES hosts(id),
  metric TEXT NOT NULL,
  between_visits REAL, -- s.d. as a fraction, of the metric; null until it is known
  within_visits REAL,
  noise REAL -- s.d. of one run, as hunts take it
);

CREATE TABLE trial_runs (
  trial_id INTEGER NOT NULL REFERENCES trials(id),
  number INTEGER NOT NULL,
  visit INTEGER NOT NULL,
  at REAL NOT NULL, -- when it ended
  cost REAL NOT NULL, -- seconds since the run before, or since its visit was ordered
  body TEXT NOT NULL, -- JSON: all facts of the run
  PRIMARY KEY (trial_id, number)
) WITHOUT ROWID
"""

SUBJECTS = """
CREATE TABLE trials_anew ( -- one `bisect noise`: a build measured against itself; or one `bisect compare`
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
);
INSERT INTO trials_anew
  SELECT id, 'noise', started, started, NULL, builder, variant, overrides, host, host_id, metric,
    (SELECT count(DISTINCT visit) FROM trial_runs WHERE trial_id = trials.id),
    coalesce((SELECT count(*) FROM trial_runs WHERE trial_id = trials.id GROUP BY visit ORDER BY 1 DESC LIMIT 1), 0),
    between_visits, within_visits, noise
  FROM trials;

CREATE TABLE trial_builds ( -- what a trial measures
  trial_id INTEGER NOT NULL REFERENCES trials_anew(id),
  number INTEGER NOT NULL, -- 0 is the base
  name TEXT NOT NULL, -- a revision as written, or the name of prebuilt binaries
  commit_hash TEXT REFERENCES commits(commit_hash), -- null for prebuilt binaries
  path TEXT, -- of those
  version TEXT, -- that they tell
  build_key TEXT, -- null when there is no build
  binary_hash TEXT,
  trouble TEXT, -- why
  PRIMARY KEY (trial_id, number)
) WITHOUT ROWID;
INSERT INTO trial_builds (trial_id, number, name, commit_hash, build_key)
  SELECT id, 0, revision, commit_hash,
    (SELECT json_extract(body, '$.build_key') FROM trial_runs WHERE trial_id = trials.id ORDER BY number LIMIT 1)
  FROM trials;

CREATE TABLE trial_workloads (
  trial_id INTEGER NOT NULL REFERENCES trials_anew(id),
  number INTEGER NOT NULL,
  name TEXT NOT NULL,
  work_group TEXT NOT NULL, -- point, range, write, …
  warmup REAL NOT NULL,
  seconds REAL NOT NULL, -- of the measured window
  told TEXT NOT NULL, -- a hash of all that it is
  PRIMARY KEY (trial_id, number)
) WITHOUT ROWID;
INSERT INTO trial_workloads
  SELECT id, 0, workload, '', 0,
    coalesce((SELECT round(json_extract(body, '$.seconds')) FROM trial_runs WHERE trial_id = trials.id LIMIT 1), 0), ''
  FROM trials;

CREATE TABLE trial_runs_anew (
  trial_id INTEGER NOT NULL REFERENCES trials_anew(id),
  number INTEGER NOT NULL,
  visit INTEGER NOT NULL, -- the round that it belongs to
  workload INTEGER NOT NULL, -- its number
  build INTEGER NOT NULL, -- its number
  at REAL NOT NULL, -- when it ended
  cost REAL NOT NULL, -- seconds since the run before, or since its visit was ordered
  body TEXT NOT NULL, -- JSON: all facts of the run
  PRIMARY KEY (trial_id, number)
) WITHOUT ROWID;
INSERT INTO trial_runs_anew SELECT trial_id, number, visit, 0, 0, at, cost, body FROM trial_runs;

DROP TABLE trial_runs;
DROP TABLE trials;
ALTER TABLE trials_anew RENAME TO trials;
ALTER TABLE trial_runs_anew RENAME TO trial_runs;

CREATE VIEW trial_readings AS -- every run of `bisect compare` and `bisect noise`
SELECT trial_runs.trial_id, trial_runs.number, visit, trial_workloads.name AS workload, trial_builds.name AS build, at,
  json_extract(body, '$.operations') / json_extract(body, '$.seconds') AS qps
FROM trial_runs
JOIN trial_builds ON trial_builds.trial_id = trial_runs.trial_id AND trial_builds.number = trial_runs.build
JOIN trial_workloads ON trial_workloads.trial_id = trial_runs.trial_id
  AND trial_workloads.number = trial_runs.workload
"""

FAILURES = """
ALTER TABLE sessions ADD COLUMN failure TEXT;
ALTER TABLE trials ADD COLUMN failure TEXT;

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

-- What a workload is was told in other words before: trials that can be gone on with are not held to them.
UPDATE trial_workloads SET told = '' WHERE trial_id IN (SELECT id FROM trials WHERE ended IS NULL)"""

PROOFS = """
ALTER TABLE trials ADD COLUMN hunt_id INTEGER REFERENCES hunts(id);
ALTER TABLE trials ADD COLUMN reverted TEXT"""

VARIANTS = """
ALTER TABLE trial_builds ADD COLUMN variant TEXT;
ALTER TABLE trial_builds ADD COLUMN config TEXT;
ALTER TABLE trial_builds ADD COLUMN config_hash TEXT"""

RELEASES = """
ALTER TABLE trials ADD COLUMN series TEXT"""

DROPS = """
ALTER TABLE trial_builds ADD COLUMN seconds REAL;

CREATE TABLE trial_settings ( -- of a comparison: those that its drops are hunted with
  trial_id INTEGER PRIMARY KEY REFERENCES trials(id),
  settings TEXT NOT NULL -- JSON, as that of hunts
);

CREATE TABLE trial_hunts ( -- the hunt for a drop of a comparison
  trial_id INTEGER NOT NULL REFERENCES trials(id),
  workload INTEGER NOT NULL, -- its number
  first_build INTEGER NOT NULL, -- the number of the build before the drop
  last_build INTEGER NOT NULL,
  hunt_id INTEGER NOT NULL REFERENCES hunts(id),
  PRIMARY KEY (trial_id, workload, first_build, last_build)
) WITHOUT ROWID"""
