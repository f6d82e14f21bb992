-- What is done to a history before it is imported; each line is one case of test_transfer.py.
-- It has two hunts, and a comparison, which is session 3.
UPDATE events SET at = 'soon' WHERE id = 12
UPDATE events SET at = 9e999 WHERE id = 12
UPDATE events SET body = '{' WHERE id = 12
UPDATE events SET kind = 'Nothing' WHERE id = 12
UPDATE events SET body = json_set(body, '$.verdict.step.candidate', 99) WHERE kind = 'HuntEnded'
UPDATE events SET body = json_set(body, '$.facts.operations', 9223372036854775807 * 2) WHERE kind = 'RunFinished'
UPDATE sessions SET settings = '[]'
UPDATE sessions SET started = 'then'
UPDATE sessions SET started = 1e18
UPDATE attempts SET started = 1e18
UPDATE attempts SET failure = hex(zeroblob(1048576))
UPDATE sessions SET origin = hex(zeroblob(200))
UPDATE events SET at = 1e18 WHERE id = 12
UPDATE events SET body = json_set(body, '$.facts.started', 1e18) WHERE kind = 'RunFinished'
UPDATE events SET body = json_set(body, '$.facts.seconds', 1e300) WHERE kind = 'RunFinished'
UPDATE sessions SET settings = json_set(settings, '$.name', hex(zeroblob(1048576)))
UPDATE sessions SET uid = x'00ff' WHERE id = 2
UPDATE sessions SET uid = '' WHERE id = 2
UPDATE sessions SET host_id = 99
UPDATE sessions SET kind = 'noise' WHERE kind = 'compare'
UPDATE sessions SET kind = 'hunt' WHERE kind = 'compare'
UPDATE sessions SET about = 1 WHERE kind = 'compare'
UPDATE sessions SET about = 1, drop_between = '[0, 1]' WHERE id = 2
UPDATE ranges SET candidates = '["../../x"]'
DELETE FROM ranges
UPDATE hosts SET cores = 'many'
UPDATE attempts SET started = 'x'
UPDATE events SET body = json_set(body, '$.candidate', 7) WHERE session_id = 3
UPDATE events SET body = json_set(body, '$.workload', 7) WHERE session_id = 3
UPDATE events SET body = json_set(body, '$.workload', -5) WHERE session_id = 3 AND kind = 'RunFinished'
UPDATE events SET body = json_set(body, '$.round', -5) WHERE session_id = 3 AND kind = 'RunFinished'
UPDATE events SET body = json_set(body, '$.request.kind', 'noise') WHERE kind = 'TrialStarted'
UPDATE events SET body = json_remove(body, '$.request.subjects[1]') WHERE kind = 'TrialStarted'
UPDATE events SET body = json_set(body, '$.request.reverts', json('{"hunt": 1, "commits": []}')) WHERE kind = 'TrialStarted'
UPDATE sessions SET request = json_set(request, '$.rounds', -5) WHERE kind = 'compare'
UPDATE sessions SET request = 'x' WHERE kind = 'compare'
UPDATE events SET body = json_set(body, '$.facts.operations', -5) WHERE kind = 'RunFinished'
UPDATE events SET body = json_set(body, '$.facts.cache_hits', -5) WHERE kind = 'BuildFinished'
UPDATE events SET body = json_set(body, '$.facts.phases.compile', -5) WHERE kind = 'BuildFinished'
UPDATE events SET body = json_set(body, '$.commits', -5) WHERE kind = 'HuntStarted'
UPDATE events SET body = json_set(body, '$.verdict.step.candidate', -5) WHERE kind = 'HuntEnded'
UPDATE sessions SET commits = -5
UPDATE sessions SET candidates = -5
UPDATE hosts SET cores = -5
CREATE TRIGGER t AFTER INSERT ON events BEGIN DELETE FROM sessions; END
DROP TABLE attempts
DROP TABLE commits; CREATE VIEW commits AS SELECT 1 AS commit_hash
ALTER TABLE sessions ADD COLUMN odd AS (abs(id))
PRAGMA user_version = 99
PRAGMA application_id = 7
