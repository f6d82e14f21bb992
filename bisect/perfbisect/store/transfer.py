"""Copies sessions from one history into another, for `bisect history export` and `import`.

Only the log is copied: each event is decoded, checked and written as by its session, so that all tables agree with it and
nothing else of a foreign file gets into a history. Copies are made in many short transactions, so that running sessions
need not wait for long. An interrupted copy is the beginning of the log; the next copy continues it.

Sessions in several histories are the same if they have the same uid. If their logs differ, one must be the beginning of
the other. Otherwise both were continued, and the target's log stays.
"""

import json
import re
import sqlite3
import time
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
from perfbisect.core.domain.events import BuildFinished, CandidateSkipped, Event, RunFinished, SessionStarted
from perfbisect.core.domain.facts import HostFacts
from perfbisect.core.domain.session_state import fold
from perfbisect.core.domain.settings import Settings, TrialRequest
from perfbisect.errors import EnvironmentFailure, UsageError
from perfbisect.masking import masked, masked_fields
from perfbisect.process import copied
from perfbisect.store.batches import copy_batches, read_batch
from perfbisect.store.connection import damage_explained, sqlite_errors_explained
from perfbisect.store.history import History
from perfbisect.store.listing import checked_value, session_name
from perfbisect.store.log import check_field_values, compact_json, encode, read_host

if TYPE_CHECKING:
    import sqlite_utils

HASH = re.compile(r"[0-9a-f]{40}([0-9a-f]{24})?")
UID = re.compile(r"[\w.-]{1,100}")
LONGEST_NAME = 255  # characters
LONGEST = 256 << 20  # bytes of a value
TURN = 1.0  # seconds of a transaction: a small part of the time that other writers wait for a lock
PAUSE = 0.2  # seconds: twice the longest time between two attempts of SQLite to get a lock

Timed = tuple[float, Event]


@dataclass(frozen=True, slots=True)
class Copied:
    """The result for one session."""

    name: str  # name in the source: hunt 12, c3
    here: str  # name in the target
    how: str  # new, grown, known, or conflict


@dataclass(frozen=True, slots=True)
class Head:
    """The data of a session beside its log."""

    kind: str
    uid: str
    origin: str  # "" for an own session
    started: float
    settings: Settings
    attempts: tuple[tuple[float, str], ...]  # start of each attempt, and why it failed
    plan: SessionStarted  # with the range of a hunt, or the request of a trial
    about: int | None = None  # number in the source of the session that it is about
    drop: tuple[int, int, int] | None = None  # the drop of that session that it hunts


class Turns:
    """The transactions on a history, with a pause after each TURN seconds; without pauses within an outer transaction."""

    def __init__(self, history: History, process: str) -> None:
        self.history, self.process = history, process
        self.whole = history.connection.in_transaction
        self.began = time.monotonic()

    @contextmanager
    def turn(self) -> "Iterator[sqlite_utils.Database]":
        """A transaction, after a pause if it is time for one."""
        if self.over():
            time.sleep(PAUSE)
            self.began = time.monotonic()
        with self.history.transaction() as db:
            yield db

    def over(self) -> bool:
        """Whether the transaction should end."""
        return not self.whole and time.monotonic() - self.began >= TURN


def all_sessions(source: History) -> list[int]:
    """The numbers of all sessions of a history."""
    return [session for (session,) in source.select("SELECT id FROM sessions ORDER BY id")]


def with_related(source: History, names: Sequence[int | str]) -> list[int]:
    """The numbers of sessions, with proofs of hunts, hunts of proofs, and hunts for drops of comparisons.

    The name of a batch (b2) stands for its hunts. Raises UsageError if none of these has begun.
    """
    numbers = set[int]()
    for name in names:
        if isinstance(name, int):
            numbers.update(source.columns(name, "id", hunts_only=True))
        elif name.startswith("b"):
            begun = {
                batch_hunt.hunt for batch_hunt in read_batch(source, int(name[1:])).hunts if batch_hunt.hunt is not None
            }
            if not begun:
                raise UsageError(f"No hunt of batch {name} has begun.")
            numbers |= begun
        else:
            trial = source.trial(name)
            reverted = [trial.request.reverts.hunt] if trial.request.reverts else []
            numbers.update([trial.id, *(drop_hunt.hunt for drop_hunt in trial.hunts), *reverted])
    return sorted(numbers.union(*({proof.id for proof in source.proofs(session)} for session in numbers)))


def check(source: History, numbers: Sequence[int]) -> None:
    """Raise EnvironmentFailure if a session cannot be read or copied; all are copied into a temporary history."""
    with (
        TemporaryDirectory() as folder,
        closing(History.open(Path(folder) / "h.db")) as trial_history,
        trial_history.transaction(),
    ):
        copy(source, trial_history, numbers, "")


def copy(source: History, target: History, numbers: Sequence[int], origin: str, verb: str = "imported") -> list[Copied]:
    """Copy sessions in turns with other writers; ``origin`` is the owner of sessions that have none yet ("": this
    history's owner).

    ``numbers`` are in order, so that a session is about an earlier one. ``verb`` is "imported" or "exported".
    """
    process = copied(verb)
    done, copied_numbers, requests, turns = [], dict[int, int](), dict[int, TrialRequest](), Turns(target, process)
    for session in numbers:
        [kind] = source.columns(session, "kind")
        log = [*log_of(source, session)]
        with damage_explained(source.label, session_name(kind, session)):
            head = check_head(head_of(source, session), log, requests)
            if kind != "hunt":
                requests[session] = head.plan.request
            else:
                fold(log, source.attempts(session))
            copied_numbers[session], how = copy_session(with_target_numbers(head, copied_numbers), log, turns, origin)
        done.append(Copied(session_name(kind, session), session_name(kind, copied_numbers[session]), how))
    copy_batches(source, target, copied_numbers, origin, process)
    return done


@contextmanager
def snapshot(history: History) -> Iterator[None]:
    """Within it, reads of the history see its present state, whatever other processes write."""
    history.connection.execute("BEGIN")
    try:
        yield
    finally:
        history.connection.rollback()


def copy_session(head: Head, log: list[Timed], turns: Turns, origin: str) -> tuple[int, str]:
    """Copy one session, or the new entries of its log. Returns its number in the target, and the result.

    If a turn ends early, the log in the target is the beginning of the source's.
    """
    present = (
        "SELECT id, origin IS NULL, (SELECT count(*) FROM events WHERE session_id = s.id) FROM sessions s WHERE uid = ?"
    )
    target, how = turns.history, ""
    while True:
        existing = target.connection.execute(present, [head.uid]).fetchone()
        number, is_own, _ = existing or (0, False, 0)
        tail = new_events(log_of(target, number), iter(log)) if existing else log
        # a file of other persons that adds to an own session could change the commands that `bisect resume` executes
        foreign = bool(is_own and origin)
        if tail is None or (existing and tail and (foreign or target.session_summary(number).state == "running")):
            return number, "conflict"
        if existing and not tail and (foreign or head.about is None or target.columns(number, "about") != (None,)):
            return number, how or "known"
        with turns.turn() as db:
            if db.execute(present, [head.uid]).fetchone() != existing:
                continue  # another import has written it meanwhile
            if tail:
                how = how or ("grown" if existing else "new")
            whose = {"uid": head.uid, "origin": head.origin or origin or None}
            number = number or target.insert_session(head.settings, head.plan, head.started, **whose)
            row: dict[str, Any] = {"settings": compact_json(head.settings)}
            if head.about:
                row |= {"about": head.about, "drop_between": json.dumps(head.drop) if head.drop else None}
            db.table("sessions").update(number, row)
            complete = write(db, number, head, tail, turns)
        if complete:
            return number, how or "known"


def new_events(here: Iterator[Timed], there: Iterator[Timed]) -> list[Timed] | None:
    """The events of ``there`` after the end of ``here``; empty if ``here`` has them all, None if the logs contradict each
    other.
    """
    tail: list[Timed] = []
    for mine, theirs in zip_longest(here, there):
        if mine is None and theirs is not None:
            tail.append(theirs)
        elif mine and theirs and without_numbers(mine) != without_numbers(theirs):
            return None
    return tail


def without_numbers(entry: Timed) -> tuple[float, str, str]:
    """An entry of a log without numbers of sessions."""
    at, event = entry
    return at, codec.kind_of(event), encode(renumbered(event, 0, 0), ())


def renumbered(event: Event, session: int, about: int | None) -> Event:
    """The event as an event of ``session``, which is about the session ``about``."""
    match event:
        case SessionStarted():
            return replace(event, session=session, request=about_hunt(event.request, about))
        case _:
            return event


def about_hunt(request: TrialRequest, hunt: int | None) -> TrialRequest:
    """The request of a proof with the number of its hunt in the target."""
    return replace(request, reverts=replace(request.reverts, hunt=hunt)) if request.reverts and hunt else request


def log_of(history: History, session: int) -> Iterator[Timed]:
    """The log of a session without passwords, as it is copied. Raises EnvironmentFailure if it cannot be read."""
    name = session_name(history.columns(session, "kind")[0], session)
    for entry in history.events(session):
        with damage_explained(history.label, f"{name}, table events, row {entry.id},"):
            event = masked_fields(entry.event)
            check_field_values(fields := codec.encode(event))
            codec.dumps(fields)
        yield entry.at, event


def head_of(history: History, session: int) -> Head:
    """The data of a session beside its log."""
    kind, uid, origin, started, host_id, request, about, drop = history.columns(
        session, "kind", "uid", "coalesce(origin, '')", "started", "host_id", "CAST(request AS BLOB)", "about", "drop_between"
    )  # fmt: skip
    check_field_values(host := builtins(read_host(history.connection, host_id)))
    facts, settings = msgspec.convert(host, HostFacts), masked_fields(history.settings(session))
    if kind == "hunt":
        plan = range_of(history, session, settings, facts)
    else:
        trial_request = masked_fields(msgspec.convert(json.loads(request), TrialRequest))
        plan, drop = SessionStarted(session, facts, False, request=trial_request), None
    select = "SELECT started, coalesce(failure, '') FROM attempts WHERE session_id = ? ORDER BY id"
    return Head(
        *msgspec.convert((kind, uid, origin), tuple[str, str, str]),
        checked_value("started", started, float),
        settings,
        tuple(
            (checked_value("started", began, float), msgspec.convert(failure, str))
            for began, failure in history.select(select, [session])
        ),
        plan,
        msgspec.convert(about, int | None),
        msgspec.convert(json.loads(drop), tuple[int, int, int]) if drop else None,
    )


def range_of(history: History, hunt: int, settings: Settings, host: HostFacts) -> SessionStarted:
    """The range of a hunt, as the event that begins it."""
    commits, choices, merges, base = history.columns(hunt, "commits", "candidates - 1", "merges", "base_commit")
    span = history.candidates(hunt)
    check_field_values({"commits": commits, "choices": choices, "merges": merges})
    if not all(map(HASH.fullmatch, span)) or base != span[0]:
        raise ValueError("its range is not valid")
    commits, choices, merges = msgspec.convert((commits, choices, merges), tuple[int, int, int])
    names = settings.builder, settings.workload, settings.good, settings.bad
    return SessionStarted(hunt, host, False, *names, commits, span, merges, branch_points=len(span) - 1 - choices)


def check_head(head: Head, log: Sequence[Timed], requests: Mapping[int, TrialRequest]) -> Head:
    """``head`` itself. Raises ValueError if reports could not read it; ``requests`` are of earlier trials."""
    if not UID.fullmatch(head.uid):
        raise ValueError("it has no name")
    if len(head.origin) > LONGEST_NAME:
        raise ValueError("its origin is too long")
    check_field_values(builtins(head.settings))
    check_field_values(head.attempts, "attempts")
    plan = head.plan.request
    if head.kind != "hunt":
        check_field_values(builtins(plan))
        if head.kind != plan.kind or not plan.works:
            raise ValueError("its kind differs from its request")
        started = (event.request for _, event in log if isinstance(event, SessionStarted))
        for request in (plan, *started):
            if (request.reverts.hunt if request.reverts else None) != head.about:
                raise ValueError("it belongs to another hunt")
            if sizes(request) != sizes(plan) or request.kind != head.kind:
                raise ValueError("its attempts measure other builds or workloads")
        builds, works = sizes(plan)
        for _, event in log:
            if isinstance(event, BuildFinished | RunFinished | CandidateSkipped) and event.candidate >= builds:
                raise ValueError("a run or a failed build has the number of a build that does not exist")
            if isinstance(event, RunFinished | CandidateSkipped) and event.workload >= works:
                raise ValueError("a run or a failed build has the number of a workload that does not exist")
    if head.drop and head.about is not None and head.about in requests:
        (work, first, last), (builds, works) = head.drop, sizes(requests[head.about])
        if not (0 <= first < last < builds and 0 <= work < works):
            raise ValueError("its drop names a build or a workload that does not exist")
    return head


def sizes(request: TrialRequest) -> tuple[int, int]:
    """The numbers of builds and workloads."""
    return len(request.subjects), len(request.works)


def with_target_numbers(head: Head, here: Mapping[int, int]) -> Head:
    """``head`` with the numbers of the target; if the comparison is not copied, the hunt for its drop becomes a usual
    hunt.
    """
    about = here.get(head.about or 0)
    if head.plan.request.reverts and about is None:
        raise ValueError("its hunt is missing")
    plan = replace(head.plan, request=about_hunt(head.plan.request, about))
    return replace(head, about=about, drop=head.drop if about else None, plan=plan)


def write(db: "sqlite_utils.Database", session: int, head: Head, log: Sequence[Timed], turns: Turns) -> bool:
    """Write the missing attempts of a session, and events until the turn is over. Returns whether all were written."""
    [have] = db.execute("SELECT count(*) FROM attempts WHERE session_id = ?", [session]).fetchone()
    for began, failure in head.attempts[have:]:
        row = {"session_id": session, "started": began, "process": turns.process, "failure": masked(failure) or None}
        db.table("attempts").insert(row)
    into = replace(turns.history.session_log(session), is_foreign=True)
    for index, (at, event) in enumerate(log):
        if index and turns.over():
            return False
        into.append(renumbered(event, session, head.about), at)
    return True


def check_pages(connection: sqlite3.Connection, path: Path) -> None:
    """Raise EnvironmentFailure if the file is damaged."""
    with sqlite_errors_explained(path):
        connection.execute("PRAGMA trusted_schema = OFF")
        connection.execute("PRAGMA cell_size_check = ON")
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, LONGEST)
        [answer] = connection.execute("PRAGMA quick_check(1)").fetchone()
    if answer != "ok":
        raise EnvironmentFailure(
            f"The history {path} is damaged: {answer}.", f"To save the readable part: sqlite3 {path} .recover"
        )
