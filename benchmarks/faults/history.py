"""What a history holds, read behind the program's back."""

import sqlite3
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Run:
    """A run as the history has it."""

    commit: str
    rate: float


@dataclass(frozen=True, slots=True)
class Kept:
    """The content of a history with one hunt."""

    damage: tuple[str, ...]  # what SQLite itself reports
    hunts: int
    events: Mapping[int, tuple[str, str]]  # id → kind, body
    runs: tuple[Run, ...]
    skipped: tuple[str, ...]  # commits
    verdict: str  # "" as long as there is none
    culprit: str

    def count(self, kind: str) -> int:
        """The number of events of that kind."""
        return sum(each == kind for each, _ in self.events.values())


_RUNS = """\
SELECT commit_hash, value FROM runs JOIN counters ON run_id = event_id WHERE source = 'command' AND name = 'reported'
ORDER BY event_id"""


def read_history(path: Path) -> Kept | None:
    """The content of the history at ``path``; None while it does not exist."""
    if not path.exists() or not path.stat().st_size:
        return None
    with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True, timeout=10)) as db:
        if not db.execute("PRAGMA user_version").fetchone()[0]:
            return None
        damage = [row[0] for row in db.execute("PRAGMA integrity_check") if row[0] != "ok"]
        damage += [f"foreign key of {row[0]}" for row in db.execute("PRAGMA foreign_key_check")]
        verdict = db.execute("SELECT kind FROM verdicts").fetchone()
        culprit = db.execute("SELECT culprit FROM culprits").fetchone()
        return Kept(
            tuple(damage),
            db.execute("SELECT count(*) FROM hunts").fetchone()[0],
            {row[0]: (row[1], row[2]) for row in db.execute("SELECT id, kind, body FROM events")},
            tuple(Run(*row) for row in db.execute(_RUNS)),
            tuple(row[0] for row in db.execute("SELECT commit_hash FROM skips")),
            verdict[0] if verdict else "",
            culprit[0] if culprit else "",
        )
