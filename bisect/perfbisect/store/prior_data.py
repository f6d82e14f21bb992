"""Data of earlier sessions for the next session: failed builds, costs, contents of a host, noise, nights of a watched
branch.
"""

import json
import math
from collections import defaultdict
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain, count, pairwise
from statistics import median
from typing import TYPE_CHECKING, Any

from perfbisect.core.domain.events import RunFinished, SessionEnded
from perfbisect.core.domain.facts import SkipFacts
from perfbisect.core.domain.metrics import exact, value
from perfbisect.core.domain.settings import Quick, Settings
from perfbisect.core.domain.trials import counting
from perfbisect.core.stats.fitness import Check
from perfbisect.core.stats.noise import ENOUGH, Noise, believed_noise, noise_of_metric
from perfbisect.errors import EnvironmentFailure
from perfbisect.store.connection import OWN, damage_explained
from perfbisect.store.listing import ACCEPTED_CHECK, FITNESS_CHECK
from perfbisect.store.log import compact_json, decode

if TYPE_CHECKING:
    from perfbisect.store.history import History

RECENT = 400  # latest runs that are used
RECENT_BUILDS = 10  # latest builds that stay on a host
MANY = 8  # largest number of hosts among which the runs of a hunt may be divided
ENOUGH_PAIRS = 8  # pairs of runs that an estimate of noise needs


@dataclass(frozen=True, slots=True)
class TypicalCosts:
    """Typical seconds on a host; None if the host has no history."""

    build: float | None
    run: float | None  # with its share of the visit


def built_for(table: str) -> str:
    """The condition that a row of builds or failures is of the host ``:host``, or of a host that built ahead for it."""
    measuring = "json_each(iif(json_valid(hunts.settings), hunts.settings, '{}'), '$.further_hosts')"
    return (
        f"({table}.host = :host OR {table}.host != hunts.host AND hunts.host = :host"
        f" AND NOT EXISTS (SELECT 1 FROM {measuring} WHERE value = {table}.host))"
    )


FAILURES = f"""
SELECT skips.commit_hash, stage, reason, skips.log, seconds FROM skips JOIN hunts ON hunts.id = skips.session_id
WHERE builder = :builder AND variant = :variant AND {OWN.format("hunts")} AND {built_for("skips")} AND at >= :since
  AND stage IN ('configure', 'compile', 'install')
  AND seconds > 0 -- 0 for failures that a hunt took over from earlier ones
  AND coalesce(iif(json_valid(hunts.settings), json_extract(hunts.settings, '$.build_hash'), NULL), '') = :build_hash
  AND NOT EXISTS (SELECT 1 FROM events WHERE events.session_id = skips.session_id AND events.kind = 'Remedied') -- options have changed
  AND NOT EXISTS (
    SELECT 1 FROM builds JOIN hunts others ON others.id = builds.session_id
    WHERE builds.commit_hash = skips.commit_hash AND builds.at > skips.at
      AND others.builder = :builder AND others.variant = :variant AND {OWN.format("others")} AND builds.host IN (:host, skips.host))
GROUP BY skips.commit_hash HAVING at = max(at) ORDER BY at
"""

IDENTITY = ("run", "rate", "cost", "operations", "only")  # fields that identify a command
# measurements of other persons were made on other machines
ALIKE = f"builder = :builder AND variant = :variant AND {OWN}"
SAME_WORK = (
    f"{ALIKE.format('hunts')} AND runs.host = :host AND hunts.workload = :workload"
    " AND iif(json_valid(hunts.settings), json_extract(hunts.settings, '$.overrides'), NULL) = :overrides"
)
# The hunts with the latest RECENT runs: a few rows, while a system can have a million runs.
LATEST = f"""
hunts.id IN (
  SELECT id FROM (
    SELECT id, run_count, sum(run_count) OVER (ORDER BY started DESC, id) AS so_far FROM hunts
    WHERE {ALIKE.format("hunts")} AND workload = :workload AND iif(json_valid(settings), json_extract(settings, '$.overrides'), NULL) = :overrides
      AND EXISTS (SELECT 1 FROM runs WHERE session_id = hunts.id AND runs.host = :host)
  ) WHERE so_far - run_count < {MANY * RECENT}
)"""

CHECKS = f"""
SELECT number, machine, host, started, called, CAST(body AS BLOB) FROM (
  SELECT trials.id AS number, trials.host AS host, trials.started AS started, events.body AS body,
    iif(json_valid(hosts.settings), coalesce(json_extract(hosts.settings, '$.node'), trials.host), trials.host) AS machine,
    iif(json_valid(trials.settings), json_extract(trials.settings, '$.name'), '') AS called
  FROM trials JOIN hosts ON hosts.id = host_id JOIN events ON session_id = trials.id AND events.kind = 'TrialEnded'
  WHERE trials.kind = 'noise' AND {OWN.format("trials")}
) WHERE called IN (:check, :accepted) AND :machine IN ('', machine) ORDER BY number
"""

# The condition that a session is a night of an own branch.
NIGHTS = "kind = 'compare' AND origin IS NULL AND iif(json_valid(request), json_extract(request, '$.branch'), NULL) = ?"


def parameters(settings: Settings) -> dict[str, str]:
    """SQL parameters that select earlier work that is comparable with a hunt of these settings."""
    named = {name: getattr(settings, name) for name in ("builder", "variant", "host", "build_hash", "workload")}
    return {**named, "overrides": compact_json(settings.overrides)}


def free_name(history: "History", quick: Quick, name: str) -> str:
    """The ``name`` of a command, with a number added if the history has another command of that name."""
    columns = ", ".join(f"coalesce(json_extract(settings, '$.quick.{key}'), '')" for key in IDENTITY)
    select = f"SELECT DISTINCT workload, {columns} FROM sessions WHERE origin IS NULL AND json_valid(settings)"
    taken_names = {
        called
        for called, *key in history.select(select)
        if key != [getattr(quick, candidate) for candidate in IDENTITY]
    }
    numbered = (f"{name} {number}" for number in count(2))
    return next(candidate for candidate in chain([name], numbered) if candidate not in taken_names)


def read_failures(history: "History", settings: Settings, since: float) -> tuple[SkipFacts, ...]:
    """The commits that did not build for this builder, variant and host after ``since``, and did not build later.

    Failures with another version of the recipe do not count.
    """
    rows = history.select(FAILURES, parameters(settings) | {"since": since})
    return tuple(SkipFacts(*row) for row in rows)


def read_costs(history: "History", settings: Settings) -> TypicalCosts:
    """The expected seconds of a build and of a run of a hunt of these settings."""
    builds = latest_builds(history, settings, "seconds", "NOT reused", RECENT)
    # without exact counts beside timed runs, which take longer
    timed = "true" if settings.prior.exact else "qps IS NOT NULL"
    return TypicalCosts(middle(builds), middle(latest_runs(history, settings, "cost", timed)))


def latest_builds(history: "History", settings: Settings, column: str, where: str, most: int) -> list[tuple[Any, ...]]:
    """A column of the latest builds of comparable hunts for the host, newest first."""
    of_builds = f"SELECT {column} FROM builds JOIN hunts ON hunts.id = session_id"
    like = f"{where} AND {ALIKE.format('hunts')} AND {built_for('builds')}"
    return history.select(f"{of_builds} WHERE {like} ORDER BY at DESC LIMIT {most}", parameters(settings))


def latest_runs(
    history: "History", settings: Settings, columns: str, where: str = "true", most: int = RECENT
) -> list[tuple[Any, ...]]:
    """Columns of the latest runs of comparable hunts on the host, newest first."""
    of_runs = f"SELECT {columns} FROM runs JOIN hunts ON hunts.id = session_id"
    like = f"{where} AND {SAME_WORK} AND {LATEST}"
    return history.select(f"{of_runs} WHERE {like} ORDER BY runs.started DESC LIMIT {most}", parameters(settings))


def middle(rows: list[tuple[Any, ...]]) -> float | None:
    """The median of a column; None without rows."""
    return median(number for (number,) in rows) if rows else None


def read_kept(history: "History", settings: Settings) -> tuple[frozenset[str], frozenset[str]]:
    """Keys of the latest builds and datasets of comparable hunts on the host."""
    builds = latest_builds(history, settings, "build_key", "true", RECENT_BUILDS)
    datasets = latest_runs(history, settings, "dataset_key", "dataset_key IS NOT NULL", 1)
    return frozenset(key for (key,) in builds), frozenset(key for (key,) in datasets)


def read_pinned(history: "History", since: float) -> frozenset[str]:
    """Keys of builds and datasets that are still needed on any host.

    They are of sessions without an end that began after ``since``, or have an event after it. Hosts with several names
    may share a folder.
    """
    unfinished = """
SELECT id FROM sessions WHERE ended IS NULL AND origin IS NULL
  AND (started >= :since OR EXISTS (SELECT 1 FROM events WHERE session_id = sessions.id AND at >= :since))
"""
    rows = history.select(
        f"SELECT build_key FROM builds WHERE session_id IN ({unfinished})"
        f" UNION SELECT build_key FROM runs WHERE session_id IN ({unfinished})"
        f" UNION SELECT dataset_key FROM runs WHERE session_id IN ({unfinished})",
        {"since": since},
    )
    return frozenset(key for (key,) in rows if key)


def read_noise(history: "History", settings: Settings) -> float | None:
    """The s.d. of one run, as a fraction, from the newest A/A; if there is none, from comparable hunts; None if there are
    too few runs.

    In hunts it is estimated from differences between successive runs of one build, which cancel slow drift. Their median
    is robust against outliers. Only runs of different visits are compared, because hunts compare builds of different
    visits, too.
    """
    if trial := trial_noise(history, settings):
        return believed_noise(trial.run, settings.metric)
    body = "(SELECT CAST(body AS BLOB) FROM events WHERE id = event_id)"
    rows = latest_runs(history, settings, f"session_id, build_key, event_id, {body}")
    builds: dict[tuple[int, str], list[tuple[str, float]]] = defaultdict(list)
    for hunt, build_key, row, body in rows:
        try:
            with damage_explained(history.label, f"hunt {hunt}, table events, row {row},"):
                event = decode("RunFinished", body)
        except EnvironmentFailure:  # of an earlier hunt: `bisect show` reports it
            continue
        assert isinstance(event, RunFinished)
        facts = event.facts
        measured = value(facts, settings.metric)
        alike = exact(facts, settings.metric) == settings.prior.exact
        if measured is not None and measured > 0 and alike and not (facts.slower_than or facts.layout or facts.round):
            builds[hunt, build_key].append((facts.visit, math.log(measured)))
    steps = [
        abs(later - earlier)
        for runs in builds.values()
        for (visit, earlier), (later_visit, later) in pairwise(runs)
        if visit != later_visit
    ]
    # The median of |x| is 0.6745 for a standard normal x; a difference of two runs has twice the variance of a run.
    return (
        believed_noise(median(steps) / 0.6745 / math.sqrt(2), settings.metric) if len(steps) >= ENOUGH_PAIRS else None
    )


def trial_noise(history: "History", settings: Settings) -> Noise | None:
    """The noise of the metric in the newest A/A that did not fail and has enough runs of the workload of ``settings``."""
    overrides = "iif(json_valid(request), json_extract(request, '$.overrides'), NULL) = :overrides"
    where = f"kind = 'noise' AND {ALIKE.format('sessions')} AND host = :host AND workload = :workload AND {overrides}"
    for trial in history.intact_trials(f"{where} AND run_count >= {ENOUGH}", parameters(settings)):
        alike = [run for run in counting(trial) if exact(run.facts, settings.metric) == settings.prior.exact]
        if not trial.failure and (noise := noise_of_metric([(run.round, run.facts) for run in alike], settings.metric)):
            return noise
    return None


def read_checks(history: "History", machine: str = "") -> dict[str, list[Check]]:
    """The fitness checks of each machine, or of one, oldest first; damaged and empty checks are left out.

    The key of a machine is its host's name or, if it was leased, its address.
    """
    names = {"check": FITNESS_CHECK, "accepted": ACCEPTED_CHECK, "machine": machine}
    checks: dict[str, list[Check]] = {}
    for number, of, host, started, called, body in history.select(CHECKS, names):
        with suppress(EnvironmentFailure), damage_explained(history.label, f"n{number}, table events,"):
            event = decode("TrialEnded", body)
            if isinstance(event, SessionEnded) and event.fitness:
                check = Check(number, host, started, event.fitness, called == ACCEPTED_CHECK)
                checks.setdefault(of, []).append(check)
    return checks


def hunts_about(history: "History", nights: Collection[int]) -> list[int]:
    """The hunts that began after these nights, oldest first."""
    about = "SELECT id FROM sessions WHERE kind = 'hunt' AND about IN (SELECT value FROM json_each(?)) ORDER BY id"
    return [hunt for (hunt,) in history.select(about, [json.dumps([*nights])])]
