"""Data of earlier sessions that the next session uses: failed builds, costs, contents of hosts, noise, nights of a
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
from perfbisect.core.domain.metrics import is_exact_count, metric_value
from perfbisect.core.domain.settings import QuickCommand, Settings
from perfbisect.core.domain.trials import paired_or_interleaved_runs
from perfbisect.core.stats.fitness import Check
from perfbisect.core.stats.noise import ENOUGH, Noise, initial_noise, noise_of_metric
from perfbisect.errors import EnvironmentFailure
from perfbisect.store.connection import OWN, damage_explained
from perfbisect.store.listing import ACCEPTED_CHECK, FITNESS_CHECK
from perfbisect.store.log import compact_json, decode

if TYPE_CHECKING:
    from perfbisect.store.history import History

RECENT = 400  # number of latest runs that are used
RECENT_BUILDS = 10  # latest builds whose keys are read
MANY = 8  # largest number of hosts among which the runs of a hunt may be divided
ENOUGH_PAIRS = 8  # pairs of runs that an estimate of noise needs


@dataclass(frozen=True, slots=True)
class TypicalCosts:
    """The typical seconds of a build and of a run on a host; a value is None if the history has no build or no run of
    the host.
    """

    build_seconds: float | None
    run_seconds: float | None  # seconds of a run, with the run's share of the visit


def built_for_host_sql(table: str) -> str:
    """The SQL condition that a row of ``table`` was built on the host ``:host``, or on a build host for ``:host``."""
    measuring = "json_each(iif(json_valid(hunts.settings), hunts.settings, '{}'), '$.further_hosts')"
    return (
        f"({table}.host = :host OR {table}.host != hunts.host AND hunts.host = :host"
        f" AND NOT EXISTS (SELECT 1 FROM {measuring} WHERE value = {table}.host))"
    )


FAILURES = f"""
SELECT skips.commit_hash, stage, reason, skips.log, seconds FROM skips JOIN hunts ON hunts.id = skips.session_id
WHERE builder = :builder AND variant = :variant AND {OWN.format("hunts")} AND {built_for_host_sql("skips")} AND at >= :since
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
# SQL condition for comparable sessions. Sessions of other persons are left out, because their machines differ.
ALIKE = f"builder = :builder AND variant = :variant AND {OWN}"
SAME_WORK = (
    f"{ALIKE.format('hunts')} AND runs.host = :host AND hunts.workload = :workload"
    " AND iif(json_valid(hunts.settings), json_extract(hunts.settings, '$.overrides'), NULL) = :overrides"
)
# SQL condition: the hunt is one of the hunts with the latest RECENT runs. It reads few rows of hunts, and no runs, of
# which there may be a million.
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

# SQL condition: the session is a run of `nightly` for the branch ?, and was not imported.
NIGHTS = "kind = 'compare' AND origin IS NULL AND iif(json_valid(request), json_extract(request, '$.branch'), NULL) = ?"


def comparable_hunt_sql_parameters(settings: Settings) -> dict[str, str]:
    """The SQL parameters that select the hunts that are comparable with a hunt that has ``settings``."""
    named = {name: getattr(settings, name) for name in ("builder", "variant", "host", "build_hash", "workload")}
    return {**named, "overrides": compact_json(settings.overrides)}


def unused_command_name(history: "History", quick: QuickCommand, name: str) -> str:
    """The ``name`` of a command, with a number added if the history has another command with this name."""
    columns = ", ".join(f"coalesce(json_extract(settings, '$.quick.{key}'), '')" for key in IDENTITY)
    select = f"SELECT DISTINCT workload, {columns} FROM sessions WHERE origin IS NULL AND json_valid(settings)"
    own_key = [getattr(quick, key) for key in IDENTITY]
    taken_names = {called for called, *key in history.select(select) if key != own_key}
    numbered = (f"{name} {number}" for number in count(2))
    return next(candidate for candidate in chain([name], numbered) if candidate not in taken_names)


def read_failed_builds(history: "History", settings: Settings, since: float) -> tuple[SkipFacts, ...]:
    """The commits whose builds failed after ``since`` for the builder, variant and host, and have not succeeded since
    then.

    Failures under another version of the recipe are ignored.
    """
    rows = history.select(FAILURES, comparable_hunt_sql_parameters(settings) | {"since": since})
    return tuple(SkipFacts(*row) for row in rows)


def read_typical_costs(history: "History", settings: Settings) -> TypicalCosts:
    """The median seconds of a build, and the median seconds of a run, in comparable hunts."""
    builds = latest_build_values(history, settings, "seconds", "NOT reused", RECENT)
    # If the metric is not an exact count, only timed runs are used: exact counts, which have no QPS, take longer.
    timed = "true" if settings.prior.exact else "qps IS NOT NULL"
    return TypicalCosts(median_of_column(builds), median_of_column(latest_run_values(history, settings, "cost", timed)))


def latest_build_values(
    history: "History", settings: Settings, column: str, sql_condition: str, limit: int
) -> list[tuple[Any, ...]]:
    """The values of ``column`` for the latest ``limit`` builds that comparable hunts made for the host, newest
    first."""
    of_builds = f"SELECT {column} FROM builds JOIN hunts ON hunts.id = session_id"
    like = f"{sql_condition} AND {ALIKE.format('hunts')} AND {built_for_host_sql('builds')}"
    values = comparable_hunt_sql_parameters(settings)
    return history.select(f"{of_builds} WHERE {like} ORDER BY at DESC LIMIT {limit}", values)


def latest_run_values(
    history: "History", settings: Settings, columns: str, sql_condition: str = "true", limit: int = RECENT
) -> list[tuple[Any, ...]]:
    """The values of ``columns`` in the latest ``limit`` runs of comparable hunts on the host, newest first."""
    of_runs = f"SELECT {columns} FROM runs JOIN hunts ON hunts.id = session_id"
    like = f"{sql_condition} AND {SAME_WORK} AND {LATEST}"
    values = comparable_hunt_sql_parameters(settings)
    return history.select(f"{of_runs} WHERE {like} ORDER BY runs.started DESC LIMIT {limit}", values)


def median_of_column(rows: list[tuple[Any, ...]]) -> float | None:
    """The median of the values in rows with a single column; None if there are no rows."""
    return median(number for (number,) in rows) if rows else None


def latest_build_and_dataset_keys(history: "History", settings: Settings) -> tuple[frozenset[str], frozenset[str]]:
    """The keys of the latest builds and of the latest datasets of comparable hunts on the host."""
    builds = latest_build_values(history, settings, "build_key", "true", RECENT_BUILDS)
    datasets = latest_run_values(history, settings, "dataset_key", "dataset_key IS NOT NULL", 1)
    return frozenset(key for (key,) in builds), frozenset(key for (key,) in datasets)


def read_needed_keys(history: "History", since: float) -> frozenset[str]:
    """The keys of builds and datasets, of all hosts, that unfinished sessions need.

    An unfinished session is a session without an end that began, or has an event, after ``since``. Keys of all hosts
    are included, because one machine can have several host names, which share a root folder.
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


def read_run_noise(history: "History", settings: Settings) -> float | None:
    """The standard deviation of one run, as a fraction, from the newest A/A test or, without an A/A test, from
    comparable hunts; None if there are too few runs.

    In hunts, the standard deviation is estimated from differences between successive runs of one build, because the
    differences cancel slow drift. The median of the differences is robust against outliers. Only runs in different
    visits (starts of the server) are compared, because the builds that a hunt compares also run in different visits.
    """
    if trial := newest_aa_noise(history, settings):
        return initial_noise(trial.run, settings.metric)
    body = "(SELECT CAST(body AS BLOB) FROM events WHERE id = event_id)"
    rows = latest_run_values(history, settings, f"session_id, build_key, event_id, {body}")
    builds: dict[tuple[int, str], list[tuple[str, float]]] = defaultdict(list)
    for hunt, build_key, row, body in rows:
        try:
            with damage_explained(history.label, f"hunt {hunt}, table events, row {row},"):
                event = decode("RunFinished", body)
        except EnvironmentFailure:  # a damaged earlier hunt: `bisect show` reports the damage
            continue
        assert isinstance(event, RunFinished)
        facts = event.facts
        measured = metric_value(facts, settings.metric)
        alike = is_exact_count(facts, settings.metric) == settings.prior.exact
        if measured is not None and measured > 0 and alike and not (facts.slower_than or facts.layout or facts.round):
            builds[hunt, build_key].append((facts.visit, math.log(measured)))
    steps = [
        abs(later - earlier)
        for runs in builds.values()
        for (visit, earlier), (later_visit, later) in pairwise(runs)
        if visit != later_visit
    ]
    # The s.d. is computed from the median difference of two runs: the median of |x| is 0.6745 for a standard normal x,
    # and the difference of two runs has twice the variance of a run.
    return initial_noise(median(steps) / 0.6745 / math.sqrt(2), settings.metric) if len(steps) >= ENOUGH_PAIRS else None


def newest_aa_noise(history: "History", settings: Settings) -> Noise | None:
    """The noise of the metric in the newest A/A test of the workload that did not fail and has enough runs; None
    without such a test.
    """
    overrides = "iif(json_valid(request), json_extract(request, '$.overrides'), NULL) = :overrides"
    where = f"kind = 'noise' AND {ALIKE.format('sessions')} AND host = :host AND workload = :workload AND {overrides}"
    metric, exact = settings.metric, settings.prior.exact
    for trial in history.intact_trials(f"{where} AND run_count >= {ENOUGH}", comparable_hunt_sql_parameters(settings)):
        alike = [run for run in paired_or_interleaved_runs(trial) if is_exact_count(run.facts, metric) == exact]
        if not trial.failure and (noise := noise_of_metric([(run.round, run.facts) for run in alike], metric)):
            return noise
    return None


def read_fitness_checks(history: "History", machine: str = "") -> dict[str, list[Check]]:
    """The fitness checks of each machine, or of ``machine`` only, oldest first, without damaged and empty checks.

    The result maps each machine to its checks; the key of a machine is the name of its host or, for a leased machine,
    the address.
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


def hunts_after_nights(history: "History", nights: Collection[int]) -> list[int]:
    """The hunts that were begun because of these nights (a night is a trial of a watched branch), oldest first."""
    about = "SELECT id FROM sessions WHERE kind = 'hunt' AND about IN (SELECT value FROM json_each(?)) ORDER BY id"
    return [hunt for (hunt,) in history.select(about, [json.dumps([*nights])])]
