"""Copies a trial from one history into another: see `transfer.py`."""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec

from perfbisect.core.domain.codec import builtins
from perfbisect.core.domain.events import Commit
from perfbisect.core.domain.facts import HostFacts
from perfbisect.core.domain.settings import TrialRequest
from perfbisect.core.domain.trials import Trial, TrialRun, TrialSkip
from perfbisect.masking import masked_fields
from perfbisect.store.rows import check_counts, number
from perfbisect.store.trials import enter_run, enter_skip, enter_trial, read_trial
from perfbisect.store.turns import Turns

if TYPE_CHECKING:
    import sqlite_utils

    from perfbisect.store.history import History

UID = re.compile(r"[\w.-]{1,100}")
ELSEWHERE = "imported 0 0"  # in place of the process that worked on a hunt or trial: none of this machine
KNOWN = ("ended", "between_visits", "within_visits", "noise")  # columns that are computed from the runs, or null


def copy_trial(source: "History", turns: Turns, name: str, origin: str, hunts: Mapping[int, int]) -> tuple[str, str]:
    """Copy one trial, or what it has grown by; ``hunts`` are the numbers here of those that proofs are about, and of those for drops.

    Returns its name here, and how: new, grown, known or conflict.
    """
    trial = masked_fields(checked(source.trial(name)))
    columns = f"uid, coalesce(origin, ''), {', '.join(KNOWN)}"
    [row] = source.connection.execute(f"SELECT {columns} FROM trials WHERE id = ?", [trial.id])
    uid, whose, *known = row
    if not UID.fullmatch(uid):
        raise ValueError("it has no name")
    values = [None if value is None else number(value) for value in known]
    target, how = turns.history, ""
    while True:
        with turns.turn() as db:
            mine = db.execute("SELECT id, origin IS NULL FROM trials WHERE uid = ?", [uid]).fetchone()
            here: Trial | None = None
            if mine is None:
                commits = commits_of(source, target, trial)
                here_id = enter_trial(db, renumbered(trial.request, hunts), trial.host, commits, trial.started)
                changes = "uid = ?, origin = ?, process = ?"
                db.execute(
                    f"UPDATE trials SET {changes} WHERE id = ?",
                    [uid, msgspec.convert(whose, str) or origin or None, ELSEWHERE, here_id],
                )
            else:
                here_id, own = mine
                here = masked_fields(read_trial(target.connection, here_id, target.path))
                assert here is not None
                if same(trial, here) or begins(here, trial):
                    enter_hunts(db, here_id, trial, hunts)
                    return here.name, how or "known"
                if not begins(trial, here) or here.state == "running" or (own and origin):
                    return here.name, "conflict"
            how = how or ("grown" if here else "new")
            for place, run in enumerate(trial.runs[len(here.runs) if here else 0 :]):
                if place and turns.over():
                    break
                enter_run(db, here_id, run)
            else:
                for skip in trial.skips[len(here.skips) if here else 0 :]:
                    enter_skip(db, here_id, skip)
                enter_hunts(db, here_id, trial, hunts)
                changes = ", ".join(f"{column} = ?" for column in KNOWN)
                values += [trial.failure or None, trial.request.rounds, here_id]
                db.execute(f"UPDATE trials SET {changes}, failure = ?, visits = ? WHERE id = ?", values)
                return f"{trial.name[0]}{here_id}", how


def enter_hunts(db: "sqlite_utils.Database", here_id: int, trial: Trial, hunts: Mapping[int, int]) -> None:
    """Enter the hunts for its drops, which may have begun after its runs were copied; those that it has here stay."""
    for each in trial.hunts:
        if each.hunt in hunts:
            values = [here_id, each.work, each.first, each.last, hunts[each.hunt]]
            db.execute("INSERT OR IGNORE INTO trial_hunts VALUES (?, ?, ?, ?, ?)", values)


def same(one: Trial, other: Trial) -> bool:
    """Whether two copies of a trial are at the same point."""
    return one.runs == other.runs and len(one.skips) == len(other.skips) and one.state == other.state


def begins(whole: Trial, part: Trial) -> bool:
    """Whether a copy of a trial is the beginning of another."""
    return whole.runs[: len(part.runs)] == part.runs and whole.skips[: len(part.skips)] == part.skips


def checked(trial: Trial) -> Trial:
    """A trial. Raises ValueError or msgspec's error for one that reports could not read."""
    msgspec.convert(request := builtins(trial.request), TrialRequest)
    check_counts([request["subjects"], request["works"]])
    checked_host(trial.host)
    number(trial.started)
    parts: list[TrialRun | TrialSkip] = [*trial.runs, *trial.skips]
    for part in parts:
        check_counts(fields := builtins(part))
        if not (0 <= part.subject < len(trial.request.subjects) and 0 <= part.work < len(trial.request.works)):
            raise ValueError("a run or a failure is of no build or workload")
        msgspec.convert(fields, type(part)), number(part.at)
    for each in trial.hunts:
        ends = msgspec.convert((each.first, each.last, each.work), tuple[int, int, int])
        if not (0 <= ends[0] < ends[1] < len(trial.request.subjects) and 0 <= ends[2] < len(trial.request.works)):
            raise ValueError("a hunt is of no build or workload")
    return trial


def checked_host(host: HostFacts) -> HostFacts:
    """The facts of a host. Raises ValueError or msgspec's error for those that are none."""
    check_counts(facts := builtins(host))
    return msgspec.convert(facts, HostFacts)


def renumbered(request: TrialRequest, hunts: Mapping[int, int]) -> TrialRequest:
    """The request of a proof with the number that its hunt has here."""
    reverts = request.reverts
    return request if reverts is None else replace(request, reverts=replace(reverts, hunt=hunts[reverts.hunt]))


def commits_of(source: "History", target: "History", trial: Trial) -> list[Commit]:
    """Date, author and subject of the commits among the builds of a trial that ``target`` does not know."""
    found = []
    select = "SELECT commit_hash, date, author, subject FROM commits WHERE commit_hash = ? AND date IS NOT NULL"
    for build in trial.request.subjects:
        row: tuple[Any, ...] | None = source.connection.execute(select, [build.commit or None]).fetchone()
        if row and not target.connection.execute(select, [row[0]]).fetchone():
            found.append(msgspec.convert(dict(zip(("sha", "date", "author", "subject"), (each or "" for each in row), strict=True)), Commit))  # fmt: skip
    return found
