"""A/As in the history: every run with all its facts, so that the noise of any metric can be read from them."""

import json
import sqlite3

import msgspec
import sqlite_utils

from perfbisect.core.codec import builtins, dumps
from perfbisect.core.event import Commit
from perfbisect.core.measurement import HostFacts, RunFacts
from perfbisect.core.noise import Noise, noise_in
from perfbisect.core.settings import Settings
from perfbisect.store.facts import clean, host_row, insert

ENOUGH = 6  # runs of an A/A without which older hunts know better


def enter_trial(db: sqlite_utils.Database, settings: Settings, host: HostFacts, commit: Commit, at: float) -> int:
    """A new A/A."""
    known = {"commit_hash": commit.sha, "date": commit.date, "author": commit.author, "subject": commit.subject}
    db.table("commits").upsert(clean(known), pk="commit_hash")
    row = {
        "started": at,
        "revision": settings.good,
        "commit_hash": commit.sha,
        "builder": settings.builder,
        "variant": settings.variant,
        "workload": settings.workload,
        "overrides": json.dumps(settings.overrides, separators=(",", ":")),
        "host": settings.host,
        "host_id": host_row(db, host, at),
        "metric": settings.metric,
    }
    return insert(db, "trials", row)


def enter_run(db: sqlite_utils.Database, trial: int, visit: int, run: RunFacts, at: float, cost: float) -> None:
    """One more run."""
    [number] = db.execute("SELECT count(*) FROM trial_runs WHERE trial_id = ?", [trial]).fetchone()
    row = {"trial_id": trial, "number": number, "visit": visit, "at": at, "cost": cost, "body": dumps(builtins(run))}
    db.table("trial_runs").insert(row)


def enter_noise(db: sqlite_utils.Database, trial: int, noise: Noise) -> None:
    """What the runs come to."""
    db.execute(
        "UPDATE trials SET between_visits = ?, within_visits = ?, noise = ? WHERE id = ?",
        [noise.between, noise.within, noise.run, trial],
    )


def trial_noise(connection: sqlite3.Connection, settings: Settings) -> Noise | None:
    """What the newest A/A with enough runs says of the metric, for the work that ``settings`` ask for."""
    rows = connection.execute(
        "SELECT id FROM trials WHERE builder = ? AND variant = ? AND host = ? AND workload = ? AND overrides = ?"
        " AND (SELECT count(*) FROM trial_runs WHERE trial_id = trials.id) >= ? ORDER BY id DESC",
        [
            settings.builder,
            settings.variant,
            settings.host,
            settings.workload,
            json.dumps(settings.overrides, separators=(",", ":")),
            ENOUGH,
        ],
    ).fetchall()
    for (trial,) in rows:
        runs = connection.execute(
            "SELECT visit, body FROM trial_runs WHERE trial_id = ? ORDER BY number", [trial]
        ).fetchall()
        facts = [(visit, msgspec.convert(json.loads(body), RunFacts)) for visit, body in runs]
        if noise := noise_in(facts, settings.metric):
            return noise
    return None
