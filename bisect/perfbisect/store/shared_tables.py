"""The migrations of the tables for histories of many hunts, and of several people; never edited once released.

``uid`` names a hunt or a trial in all histories that have a copy of it. Those of older releases get one that is the same
in all copies of their history. ``origin`` says whose it is: null for those of this history's owner.
"""

SHARED = """
ALTER TABLE hunts ADD COLUMN uid TEXT;
ALTER TABLE hunts ADD COLUMN origin TEXT;
ALTER TABLE hunts ADD COLUMN run_count INTEGER NOT NULL DEFAULT 0;
ALTER TABLE hunts ADD COLUMN build_count INTEGER NOT NULL DEFAULT 0;
ALTER TABLE trials ADD COLUMN uid TEXT;
ALTER TABLE trials ADD COLUMN origin TEXT;
ALTER TABLE trials ADD COLUMN run_count INTEGER NOT NULL DEFAULT 0;
UPDATE hunts SET
  uid = printf('%d-%.6f-%.12s-%.12s', id, started, good_commit, bad_commit),
  run_count = (SELECT count(*) FROM runs WHERE hunt_id = hunts.id),
  build_count = (SELECT count(*) FROM builds WHERE hunt_id = hunts.id AND NOT reused);
UPDATE trials SET
  uid = printf('%s%d-%.6f', substr(kind, 1, 1), id, started),
  run_count = (SELECT count(*) FROM trial_runs WHERE trial_id = trials.id);
CREATE UNIQUE INDEX hunts_by_uid ON hunts(uid);
CREATE UNIQUE INDEX trials_by_uid ON trials(uid);
CREATE INDEX proofs_of_hunt ON trials(hunt_id);
CREATE INDEX builds_of_commit ON builds(commit_hash);

CREATE TABLE batches ( -- one `bisect batch`
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  started REAL NOT NULL,
  ended REAL, -- null: running or interrupted
  process TEXT NOT NULL, -- the last one that worked on it
  file TEXT NOT NULL -- its path
);

CREATE TABLE batch_hunts (
  batch_id INTEGER NOT NULL REFERENCES batches(id),
  number INTEGER NOT NULL,
  arguments TEXT NOT NULL, -- JSON: of `bisect run`
  folder TEXT NOT NULL, -- where it is started
  hosts TEXT NOT NULL, -- JSON: those that it can be measured on, a list of lists: all of one of them
  hunt_id INTEGER REFERENCES hunts(id), -- null until it has begun
  status INTEGER, -- its exit status; null until it has ended
  failure TEXT, -- of one that did not begin
  PRIMARY KEY (batch_id, number)
) WITHOUT ROWID;

DROP VIEW candidates;
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
ORDER BY hunts.id, json_extract(touched.value, '$[0]'), json_extract(touched.value, '$[2]')
"""

CLAIMS = """
ALTER TABLE batch_hunts ADD COLUMN process TEXT; -- the last one that began this hunt
"""
