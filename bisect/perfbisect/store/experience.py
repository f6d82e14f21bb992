"""What earlier hunts teach the next one: what did not build, what things cost, what they keep on a host, its noise."""

import json
import math
import sqlite3
from collections import defaultdict
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from perfbisect.core.domain.events import RunFinished
from perfbisect.core.domain.facts import SkipFacts
from perfbisect.core.domain.metrics import value
from perfbisect.core.domain.settings import Settings
from perfbisect.core.stats.variance_components import at_least
from perfbisect.store.codec import decode
from perfbisect.store.trials import trial_noise

RECENT = 400  # runs that are looked at
ENOUGH = 8  # pairs of runs without which noise is not known


@dataclass(frozen=True, slots=True)
class Costs:
    """Typical seconds on a host; None where it has no history."""

    build: float | None
    run: float | None  # its share of the visit included


FAILURES = """
SELECT skips.commit_hash, stage, reason, skips.log, seconds FROM skips JOIN hunts ON hunts.id = skips.hunt_id
WHERE builder = :builder AND variant = :variant AND skips.host = :host AND at >= :since
  AND stage IN ('configure', 'compile', 'install')
  AND seconds > 0 -- what a hunt only remembers took none
  AND coalesce(json_extract(hunts.settings, '$.made'), '') = :made
  AND NOT EXISTS (
    SELECT 1 FROM builds JOIN hunts others ON others.id = builds.hunt_id
    WHERE builds.commit_hash = skips.commit_hash AND builds.at > skips.at
      AND others.builder = :builder AND others.variant = :variant AND builds.host = :host)
GROUP BY skips.commit_hash HAVING at = max(at) ORDER BY at
"""

ALIKE = "builder = :builder AND variant = :variant"
SAME_WORK = f"{ALIKE} AND runs.host = :host AND workload = :workload AND json_extract(hunts.settings, '$.overrides') = :overrides"


def parameters(settings: Settings) -> dict[str, str]:
    """What makes past work comparable with a hunt that is asked for."""
    return {
        "builder": settings.builder,
        "variant": settings.variant,
        "host": settings.host,
        "made": settings.build_hash,
        "workload": settings.workload,
        "overrides": json.dumps(settings.overrides, separators=(",", ":")),
    }


def read_failures(connection: sqlite3.Connection, settings: Settings, since: float) -> tuple[SkipFacts, ...]:
    """Commits that did not build for this builder, variant and host after ``since``, and did not build later.

    What another recipe could not build says nothing of this one.
    """
    rows = connection.execute(FAILURES, parameters(settings) | {"since": since})
    return tuple(SkipFacts(*row) for row in rows)


def read_costs(connection: sqlite3.Connection, settings: Settings) -> Costs:
    """What a build and a run of this hunt may be expected to cost."""
    named = parameters(settings)
    builds = connection.execute(
        f"SELECT seconds FROM builds JOIN hunts ON hunts.id = hunt_id WHERE NOT reused AND {ALIKE} AND builds.host = :host"
        f" ORDER BY at DESC LIMIT {RECENT}",
        named,
    ).fetchall()
    runs = connection.execute(
        f"SELECT cost FROM runs JOIN hunts ON hunts.id = hunt_id WHERE {SAME_WORK}"
        f" ORDER BY runs.started DESC LIMIT {RECENT}",
        named,
    ).fetchall()
    return Costs(middle(builds), middle(runs))


def middle(rows: list[tuple[float]]) -> float | None:
    """The median of a column; None without rows."""
    return median(number for (number,) in rows) if rows else None


def read_kept(connection: sqlite3.Connection, settings: Settings) -> tuple[frozenset[str], frozenset[str]]:
    """Keys of a few builds and of the datasets that hunts like this one have left on its host."""
    named = parameters(settings)
    builds = connection.execute(
        f"SELECT build_key FROM builds JOIN hunts ON hunts.id = hunt_id WHERE {ALIKE} AND builds.host = :host"
        " ORDER BY at DESC LIMIT 10",
        named,
    )
    datasets = connection.execute(
        "SELECT dataset_key FROM runs JOIN hunts ON hunts.id = runs.hunt_id JOIN visits ON visits.id = visit_id"
        f" WHERE dataset_key IS NOT NULL AND {SAME_WORK} ORDER BY runs.started DESC LIMIT 1",
        named,
    )
    return frozenset(key for (key,) in builds), frozenset(key for (key,) in datasets)


def read_pinned(connection: sqlite3.Connection, host: str, since: float) -> frozenset[str]:
    """Keys of builds and datasets on a host of hunts without a verdict of which something was heard after ``since``, and
    of comparisons begun since then that have not ended.
    """
    unfinished = """
SELECT id FROM hunts WHERE ended IS NULL
  AND (started >= :since OR EXISTS (SELECT 1 FROM events WHERE hunt_id = hunts.id AND at >= :since))
"""
    rows = connection.execute(
        f"SELECT build_key FROM builds WHERE host = :host AND hunt_id IN ({unfinished})"
        " UNION SELECT dataset_key FROM runs JOIN visits ON visits.id = visit_id"
        f" WHERE host = :host AND dataset_key IS NOT NULL AND runs.hunt_id IN ({unfinished})"
        " UNION SELECT coalesce(json_extract(body, '$.build_key'), '') FROM trial_runs JOIN trials ON id = trial_id"
        " WHERE host = :host AND ended IS NULL AND kind = 'compare' AND started >= :since"
        " UNION SELECT coalesce(json_extract(body, '$.dataset'), '') FROM trial_runs JOIN trials ON id = trial_id"
        " WHERE host = :host AND ended IS NULL AND kind = 'compare' AND started >= :since",
        {"host": host, "since": since},
    )
    return frozenset(key for (key,) in rows if key)


def read_noise(connection: sqlite3.Connection, settings: Settings) -> float | None:
    """The s.d. of one run as a fraction: from an A/A if there is one, or else from past hunts like this one.

    There, successive runs of one build are compared. Their differences leave out what drifts slowly; the median of
    their sizes leaves out accidents. Runs of one visit share what its start drew, and hunts compare builds of different
    visits: so only runs of different visits are compared. None when there are too few.
    """
    known = trial_noise(connection, settings)
    if known is not None:
        return at_least(known.run, settings.metric)
    rows = connection.execute(
        f"SELECT runs.hunt_id, runs.build_key, events.body FROM runs JOIN hunts ON hunts.id = runs.hunt_id"
        f" JOIN events ON events.id = event_id WHERE {SAME_WORK} ORDER BY runs.started DESC LIMIT {RECENT}",
        parameters(settings),
    )
    builds: dict[tuple[int, str], list[tuple[str, float]]] = defaultdict(list)
    for hunt, build_key, body in rows:
        event = decode("RunFinished", body)
        assert isinstance(event, RunFinished)
        measured = value(event.facts, settings.metric)
        if measured is not None and measured > 0:
            builds[hunt, build_key].append((event.facts.visit, math.log(measured)))
    steps = [
        abs(after - before)
        for runs in builds.values()
        for (visit, before), (other, after) in pairwise(runs)
        if visit != other
    ]
    # 0.6745 is the median size of a standard normal number; a difference of two runs has twice their variance.
    return at_least(median(steps) / 0.6745 / math.sqrt(2), settings.metric) if len(steps) >= ENOUGH else None
