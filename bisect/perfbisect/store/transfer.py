"""Copies hunts and trials from one history into another, for `bisect history export` and `import`.

Only the log is copied: each event is decoded, checked and written as a hunt writes it, so that all tables agree with it
and nothing else of a foreign file gets into a history. That takes many short transactions, so that hunts which run need not
wait for long. A copy that was interrupted is the beginning of the log; the next one goes on from there.

A hunt is the same in all histories that have its uid. Where its logs differ, one must be the beginning of the other:
otherwise both were continued, and the one that is here stays.
"""

import json
import re
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import msgspec

from perfbisect.core.domain import codec
from perfbisect.core.domain.codec import builtins
from perfbisect.core.domain.events import Event, HuntStarted
from perfbisect.core.domain.facts import HostFacts
from perfbisect.core.domain.settings import Settings
from perfbisect.core.inference.hunt_state import fold
from perfbisect.errors import EnvironmentFailure
from perfbisect.masking import masked, masked_fields
from perfbisect.store.codec import encode
from perfbisect.store.connection import DROPS, explained, intact, version
from perfbisect.store.fact_tables import enter_event, host_row
from perfbisect.store.history import OF_SETTINGS, History
from perfbisect.store.rows import check_counts, insert, number
from perfbisect.store.transfer_trials import ELSEWHERE, checked_host, copy_trial
from perfbisect.store.trials import read_host
from perfbisect.store.turns import Turns

if TYPE_CHECKING:
    import sqlite_utils

HASH = re.compile(r"[0-9a-f]{40}([0-9a-f]{24})?")
UID = re.compile(r"[\w.-]{1,100}")

Timed = tuple[float, Event]


@dataclass(frozen=True, slots=True)
class Copied:
    """What has become of one hunt or trial."""

    name: str  # in the history that it is from: 12, c3
    here: str  # in the other
    how: str  # new, grown, known, or conflict


@dataclass(frozen=True, slots=True)
class Selection:
    """Hunts and trials by their numbers."""

    hunts: tuple[int, ...]
    trials: tuple[str, ...]  # c3, p5, n4


@dataclass(frozen=True, slots=True)
class Head:
    """What a history keeps of a hunt beside its log."""

    uid: str
    origin: str  # "" for an own one
    started: float
    commits: int
    choices: int
    merges: int
    settings: Settings
    candidates: tuple[str, ...]
    host: HostFacts
    sessions: tuple[tuple[float, str], ...]  # start, and why it failed


def everything(source: History) -> Selection:
    """All that a history has."""
    with explained(source.path):
        hunts = source.connection.execute("SELECT id FROM hunts ORDER BY id").fetchall()
        trials = source.connection.execute("SELECT substr(kind, 1, 1) || id FROM trials ORDER BY id").fetchall()
    return Selection(tuple(hunt for (hunt,) in hunts), tuple(trial for (trial,) in trials))


def completed(source: History, wanted: Selection) -> Selection:
    """A selection with the proofs of its hunts, the hunts of its proofs, and those for the drops of its comparisons."""
    hunts, trials = dict.fromkeys(wanted.hunts), dict.fromkeys(wanted.trials)
    for name in wanted.trials:
        trial = source.trial(name)
        if trial.request.reverts:
            hunts[trial.request.reverts.hunt] = None
        hunts |= dict.fromkeys(each.hunt for each in trial.hunts)
    for hunt in hunts:
        source.column(hunt, "id")
        trials |= dict.fromkeys(proof.name for proof in source.proofs(hunt))
    return Selection(tuple(sorted(hunts)), tuple(trials))


def check(source: History, wanted: Selection) -> None:
    """Raise EnvironmentFailure for what cannot be read, or not be written into a history: all is written into another one."""
    with TemporaryDirectory() as folder, closing(History.open(Path(folder) / "h.db")) as other, other.together():
        copy(source, other, wanted, "")


def copy(source: History, target: History, wanted: Selection, origin: str) -> list[Copied]:
    """Copy a selection, in turns with others that write; ``origin`` is whose the hunts are that have none yet ("": the owner's)."""
    done, numbers, turns = [], dict[int, int](), Turns(target)
    for hunt in wanted.hunts:
        log = [*log_of(source, hunt)]
        with intact(source.path, f"hunt {hunt}"):
            fold(log, source.sessions(hunt))
            copied = copy_hunt(head_of(source, hunt), log, str(hunt), turns, origin)
        numbers[hunt] = int(copied.here)
        done.append(copied)
    for name in wanted.trials:
        with intact(source.path, f"trial {name}"):
            here, how = copy_trial(source, turns, name, origin, numbers)
        done.append(Copied(name, here, how))
    return done


@contextmanager
def snapshot(history: History) -> Iterator[None]:
    """Within, the history is read as it is now, whatever other processes write."""
    history.connection.execute("BEGIN")
    try:
        yield
    finally:
        history.connection.rollback()


def copy_hunt(head: Head, log: list[Timed], name: str, turns: Turns, origin: str) -> Copied:
    """Copy one hunt, or what it has grown by. After a turn the log here is the beginning of its own."""
    present = "SELECT id, origin IS NULL, (SELECT count(*) FROM events WHERE hunt_id = h.id) FROM hunts h WHERE uid = ?"
    target, how = turns.history, ""
    while True:
        known = target.connection.execute(present, [head.uid]).fetchone()
        here, own, _ = known or (0, False, 0)
        tail = grown_by(log_of(target, here), iter(log)) if known else log
        # a file of others that adds to an own hunt could change the commands that `bisect resume` executes
        if tail is None or (known and tail and ((own and origin) or target.listed(here).state == "running")):
            return Copied(name, str(here), "conflict")
        if known and not tail:
            return Copied(name, str(here), how or "known")
        with turns.turn() as db:
            if db.execute(present, [head.uid]).fetchone() != known:
                continue  # another import has written it meanwhile
            how = how or ("grown" if known else "new")
            if known:
                values = [text_of(head.settings), head.settings.metric, here]
                db.execute("UPDATE hunts SET settings = ?, metric = ? WHERE id = ?", values)
            else:
                here = enter_head(db, head, head.origin or origin)
            whole = write(db, here, head, tail, turns)
        if whole:
            return Copied(name, str(here), how)


def grown_by(here: Iterator[Timed], there: Iterator[Timed]) -> list[Timed] | None:
    """The events that a log has beyond another; none if it is that or its beginning, None if they contradict."""
    tail: list[Timed] = []
    ended = False  # the log that comes
    for mine, theirs in zip_longest(here, there):
        if theirs is None:
            ended = True
        elif mine is None:
            tail.append(theirs)
        elif ended or comparable(mine) != comparable(theirs):
            return None
    return tail


def comparable(entry: Timed) -> tuple[float, str, str]:
    """An entry of a log without the number of its hunt."""
    at, event = entry
    event = replace(event, hunt=0) if isinstance(event, HuntStarted) else event
    return at, type(event).__name__, encode(event, ())


def log_of(history: History, hunt: int) -> Iterator[Timed]:
    """The log of a hunt as it is written: without passwords. Raises EnvironmentFailure for what cannot be read."""
    for entry in history.events(hunt):
        with intact(history.path, f"hunt {hunt}, table events, row {entry.id},"):
            at, event = number(entry.at), masked_fields(entry.event)
            check_counts(fields := codec.encode(event))
            codec.dumps(fields)
        yield at, event


def head_of(history: History, hunt: int) -> Head:
    """What a history keeps of a hunt beside its log."""
    columns = "uid, coalesce(origin, ''), started, commits, candidates, merges, host_id, base_commit"
    with explained(history.path):
        [row] = history.connection.execute(f"SELECT {columns} FROM hunts WHERE id = ?", [hunt])
        sessions = history.connection.execute(
            "SELECT started, coalesce(failure, '') FROM sessions WHERE hunt_id = ? ORDER BY id", [hunt]
        ).fetchall()
    uid, origin, started, commits, candidates, merges, host_id, base = row
    span = history.candidates(hunt)
    if not (UID.fullmatch(uid) and all(map(HASH.fullmatch, span)) and base == span[0]):
        raise ValueError("its range is none")
    check_counts({"commits": commits, "choices": candidates - 1, "merges": merges})
    return Head(
        uid,
        msgspec.convert(origin, str),
        number(started),
        *msgspec.convert((commits, candidates - 1, merges), tuple[int, int, int]),
        masked_fields(history.settings(hunt)),
        span,
        checked_host(read_host(history.connection, host_id)),
        tuple((number(began), msgspec.convert(failure, str)) for began, failure in sessions),
    )


def enter_head(db: "sqlite_utils.Database", head: Head, origin: str) -> int:
    """Enter a hunt; returns its number."""
    row: dict[str, Any] = {
        "uid": head.uid,
        "origin": origin or None,
        "started": head.started,
        **{column: getattr(head.settings, column) for column in OF_SETTINGS},
        "base_commit": head.candidates[0],
        "host_id": host_row(db, head.host, head.started),
        "settings": text_of(head.settings),
        "commits": head.commits,
        "candidates": head.choices + 1,
        "merges": head.merges,
    }
    hunt = insert(db, "hunts", row)
    insert(db, "ranges", {"hunt_id": hunt, "candidates": json.dumps(head.candidates)})
    return hunt


def write(db: "sqlite_utils.Database", hunt: int, head: Head, log: Sequence[Timed], turns: Turns) -> bool:
    """Write the sessions that a hunt lacks, and events until the turn is over; returns whether it has written all of them."""
    [have] = db.execute("SELECT count(*) FROM sessions WHERE hunt_id = ?", [hunt]).fetchone()
    for began, failure in head.sessions[have:]:
        row = {"hunt_id": hunt, "started": began, "process": ELSEWHERE, "failure": masked(failure) or None}
        insert(db, "sessions", row)
    nodes = {commit: node for node, commit in enumerate(head.candidates)}
    for place, (at, event) in enumerate(log):
        if place and turns.over():
            return False
        numbered = replace(event, hunt=hunt) if isinstance(event, HuntStarted) else event
        enter_event(db, hunt, numbered, at, head.settings.host, head.candidates, nodes, foreign=True)
    return True


def text_of(settings: Settings) -> str:
    """The stored form of settings."""
    return json.dumps(builtins(settings), allow_nan=False, separators=(",", ":"))


def check_tables(connection: sqlite3.Connection, path: Path) -> None:
    """Raise EnvironmentFailure for a file whose tables are not those of a history, or that is damaged.

    A view in place of a table, a computed column or a trigger would execute SQL of whoever made the file.
    """
    with explained(path):
        connection.execute("PRAGMA trusted_schema = OFF")
        connection.execute("PRAGMA cell_size_check = ON")
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, LONGEST)
        kinds = connection.execute("SELECT type, name, sql FROM sqlite_master").fetchall()
        tables = {name: str(sql) for kind, name, sql in kinds if kind == "table"}
        odd = [name for kind, name, _ in kinds if kind == "trigger"]
        read = (*READ, "trial_hunts") if version(connection) >= DROPS else READ
        odd += [name for name in read if not tables.get(name, "").upper().startswith("CREATE TABLE")]
        for name in read if not odd else ():
            hidden = connection.execute(f"SELECT name FROM pragma_table_xinfo('{name}') WHERE hidden != 0").fetchall()
            odd += [f"{name}.{column}" for (column,) in hidden]
        if odd:
            raise EnvironmentFailure(f"{path} is no history of perfbisect that can be imported: see {odd[0]} in it.")
        [found] = connection.execute("PRAGMA quick_check(1)").fetchone()
    if found != "ok":
        raise EnvironmentFailure(
            f"The history {path} is damaged: {found}.", f"Save what can be read: sqlite3 {path} .recover"
        )


READ = (
    "hunts", "ranges", "sessions", "events", "hosts", "commits", "trials", "trial_builds", "trial_runs", "trial_skips",
    "trial_workloads",
)  # fmt: skip
LONGEST = 256 << 20  # bytes of a value


def summary(done: Sequence[Copied]) -> Mapping[str, int]:
    """How many were new, grown, known, or in conflict."""
    return {how: sum(one.how == how for one in done) for how in ("new", "grown", "known", "conflict")}
