"""Queries of the history for `bisect serve`, and how Datasette is configured to offer them.

Datasette 0.65 reads queries from its metadata; 1.0 reads them from its configuration. Values of parameters arrive as text.
A query and a table of one name would have one address, where 0.65 shows the query and 1.0 the table: no name is that of a
table or view.
"""

from typing import Any

OF_HUNT = "(:hunt = '' OR hunts.id = CAST(:hunt AS INTEGER))"

QUERIES = {  # name → title and SQL
    "latest_hunts": (
        "Hunts, the latest first",
        """
SELECT hunts.id, datetime(hunts.started, 'unixepoch') AS started, builder, workload, hunts.host, good, bad, metric,
  coalesce(verdicts.kind, 'none yet') AS verdict, substr(suspects.commit_hash, 1, 10) AS culprit,
  round(100 * suspects.probability, 1) AS sure_percent, round(coalesce(suspects.ratio, verdicts.ratio), 4) AS ratio,
  build_count AS builds, run_count AS runs, coalesce(origin, '') AS imported_from,
  round((coalesce(hunts.ended, (SELECT at FROM events WHERE events.session_id = hunts.id ORDER BY id DESC LIMIT 1)) - hunts.started) / 60, 1)
    AS minutes
FROM hunts
LEFT JOIN verdicts ON verdicts.session_id = hunts.id
LEFT JOIN suspects ON suspects.session_id = hunts.id AND suspects.rank = 0
ORDER BY hunts.id DESC
""",
    ),
    "named_culprits": (
        "Commits that verdicts name",
        """
SELECT hunt_id, builder, workload, host, substr(culprit, 1, 10) AS culprit, date, author, subject,
  round(100 * probability, 1) AS sure_percent, round(ratio, 4) AS ratio, round(low, 4) AS low, round(high, 4) AS high
FROM culprits ORDER BY hunt_id DESC
""",
    ),
    "builds_of_hunt": (
        "Builds of a hunt, or of all",
        f"""
SELECT hunts.id AS hunt, builder, builds.host, substr(builds.commit_hash, 1, 10) AS built, date, subject,
  round(seconds, 1) AS seconds, round(100.0 * cache_hits / nullif(cache_hits + cache_misses, 0), 1) AS ccache_percent,
  reused, substr(same_as, 1, 10) AS same_binary_as
FROM builds JOIN hunts ON hunts.id = builds.session_id LEFT JOIN commits USING (commit_hash)
WHERE {OF_HUNT} ORDER BY builds.event_id DESC
""",
    ),
    "candidates_of_hunt": (
        "Commits that a hunt built, skipped or measured",
        f"""
SELECT hunts.id AS hunt, node, substr(commit_hash, 1, 10) AS candidate, date, subject, candidates.host, builds, runs,
  round(qps, 1) AS qps, round(rqps, 4) AS rqps, skipped
FROM candidates JOIN hunts ON hunts.id = candidates.hunt_id
WHERE {OF_HUNT} ORDER BY hunts.id DESC, node
""",
    ),
    "noise_by_host": (
        "Noise of hosts: A/As, standard deviations in percent",
        """
SELECT host, builder, workload, metric, datetime(started, 'unixepoch') AS started, round(100 * between_visits, 2) AS between_visits,
  round(100 * within_visits, 2) AS within_visits, round(100 * noise, 2) AS one_run
FROM trials WHERE kind = 'noise' AND origin IS NULL ORDER BY host, id DESC
""",
    ),
    "spread_by_host": (
        "Noise of hosts in the latest 100 hunts: how far runs are from the mean of their build, in percent",
        """
SELECT host, builder, workload, count(DISTINCT session_id) AS hunts, count(*) AS runs,
  round(100 * avg(abs(qps / mean - 1)), 2) AS mean_deviation, round(100 * max(abs(qps / mean - 1)), 2) AS largest
FROM (
  SELECT runs.host, builder, hunts.workload, session_id, qps, avg(qps) OVER same AS mean, count(*) OVER same AS repeated
  FROM runs JOIN hunts ON hunts.id = session_id
  WHERE qps > 0 AND hunts.id IN (SELECT id FROM hunts WHERE origin IS NULL ORDER BY id DESC LIMIT 100) WINDOW same AS (PARTITION BY session_id, runs.host, build_key)
)
WHERE repeated > 1 GROUP BY host, builder, workload ORDER BY host, builder, workload
""",
    ),
}


def configuration(database: str, version: int) -> dict[str, Any]:
    """The arguments of Datasette for a history that it calls ``database``.

    ``version`` is the first number of Datasette's own.
    """
    about = {"description": "All hunts and trials. The log is in events; the other tables repeat it in columns."}
    queries = {"queries": {name: {"title": title, "sql": sql.strip()} for name, (title, sql) in QUERIES.items()}}
    title = {"title": "perfbisect"}
    if version:
        return {
            "config": {"databases": {database: queries}},
            "metadata": {**title, "databases": {database: about}},
        }
    return {"metadata": {**title, "databases": {database: {**about, **queries}}}}
