"""The hunts for the drops of a comparison: which hunt is for which, and the settings that they begin with."""

import json
import sqlite3
from typing import TYPE_CHECKING

from perfbisect.core.domain.settings import Settings
from perfbisect.core.domain.trials import DropHunt
from perfbisect.masking import masked_fields
from perfbisect.store.connection import DROPS, explained, intact, version
from perfbisect.store.listing import read_hunts

if TYPE_CHECKING:
    from perfbisect.store.history import History

NAMED = ("found", "several", "unsettled")  # states of hunts whose verdict names a commit


def enter_settings(history: "History", trial: int, settings: Settings) -> None:
    """Keep the settings with which the drops of a comparison are hunted; passwords as in those of hunts."""
    from perfbisect.core.domain.codec import builtins
    from perfbisect.store.history import make_private

    if masked_fields(settings) is not settings:
        make_private(history.path)
    stored = json.dumps(builtins(settings), allow_nan=False, separators=(",", ":"))
    with history.transaction() as db:
        db.execute("INSERT OR REPLACE INTO trial_settings VALUES (?, ?)", [trial, stored])


def read_settings_of(history: "History", trial: int) -> Settings | None:
    """The settings with which the drops of a comparison are hunted; None where they are not known."""
    import msgspec

    if version(history.connection) < DROPS:
        return None
    with explained(history.path):
        row = history.connection.execute(
            "SELECT CAST(settings AS BLOB) FROM trial_settings WHERE trial_id = ?", [trial]
        ).fetchone()
    if row is None:
        return None
    with intact(history.path, f"trial {trial}, table trial_settings,"):
        return msgspec.convert(json.loads(row[0]), Settings)


def enter_drop_hunt(history: "History", trial: int, drop: tuple[int, int, int], hunt: int) -> None:
    """Enter the hunt for a drop: workload, the build before it, the build after it. It takes the place of an earlier one."""
    with history.transaction() as db:
        db.execute("INSERT OR REPLACE INTO trial_hunts VALUES (?, ?, ?, ?, ?)", [trial, *drop, hunt])


def read_drop_hunts(connection: sqlite3.Connection, trial: int) -> tuple[DropHunt, ...]:
    """The hunts for the drops of a comparison in their present states, by workloads, then builds."""
    if version(connection) < DROPS:
        return ()
    rows = connection.execute(
        "SELECT workload, first_build, last_build, hunt_id FROM trial_hunts WHERE trial_id = ? ORDER BY 1, 3, 2",
        [trial],
    ).fetchall()
    return tuple(DropHunt(work, first, last, hunt, *result(connection, hunt)) for work, first, last, hunt in rows)


def result(connection: sqlite3.Connection, hunt: int) -> tuple[str, str, str]:
    """The state of a hunt, and the commit that it names with its subject."""
    [listed] = read_hunts(connection, hunt)
    if listed.state not in NAMED or not listed.culprit:
        return listed.state, "", ""
    row = connection.execute("SELECT subject FROM commits WHERE commit_hash = ?", [listed.culprit]).fetchone()
    return listed.state, listed.culprit, (row and row[0]) or ""
