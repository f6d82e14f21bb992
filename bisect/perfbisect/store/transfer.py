"""Copies sessions from one history into another, for `bisect history export` and `import`.

Only the log is copied: each event is decoded, checked and written as a session writes it, so that all tables agree with it
and nothing else of a foreign file gets into a history. That takes many short transactions, so that sessions which run need not
wait for long. A copy that was interrupted is the beginning of the log; the next one goes on from there.

A session is the same in all histories that have its uid. Where its logs differ, one must be the beginning of the other:
otherwise both were continued, and the one that is here stays.
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
from perfbisect.store.connection import explained, intact
from perfbisect.store.history import History
from perfbisect.store.listing import called, check_value
from perfbisect.store.log import check_values, compact, encode, read_host

if TYPE_CHECKING:
    import sqlite_utils

HASH = re.compile(r"[0-9a-f]{40}([0-9a-f]{24})?")
UID = re.compile(r"[\w.-]{1,100}")
LONGEST_NAME = 255  # characters
LONGEST = 256 << 20  # bytes of a value
TURN = 1.0  # seconds of a transaction: a small part of what others wait for a lock
PAUSE = 0.2  # seconds: twice as long as the longest time between two attempts of SQLite to get a lock

Timed = tuple[float, Event]


@dataclass(frozen=True, slots=True)
class Copied:
    """What has become of one session."""

    name: str  # in the history that it is from: hunt 12, c3
    here: str  # in the other
    how: str  # new, grown, known, or conflict


@dataclass(frozen=True, slots=True)
class Head:
    """What a history keeps of a session beside its log."""

    kind: str
    uid: str
    origin: str  # "" for an own one
    started: float
    settings: Settings
    sittings: tuple[tuple[float, str], ...]  # start, and why it failed
    plan: SessionStarted  # with the range of a hunt, or what a trial measures
    about: int | None = None  # the session that it is about, by its number there
    drop: tuple[int, int, int] | None = None  # of that, which it hunts


class Turns:
    """The transactions on a history, with a pause whenever they have taken a turn's time; all are one within a transaction."""

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


def everything(source: History) -> list[int]:
    """The numbers of all sessions of a history."""
    return [session for (session,) in source.select("SELECT id FROM sessions ORDER BY id")]


def completed(source: History, names: Sequence[int | str]) -> list[int]:
    """The numbers of sessions, with the proofs of hunts, the hunts of proofs, and those for the drops of comparisons.

    That of a batch (b2) stands for its hunts. Raises UsageError where none has begun.
    """
    wanted = set[int]()
    for name in names:
        if isinstance(name, int):
            wanted.update(source.columns(name, "id", hunts=True))
        elif name.startswith("b"):
            begun = {one.hunt for one in read_batch(source, int(name[1:])).hunts if one.hunt is not None}
            if not begun:
                raise UsageError(f"No hunt of {name} has begun.")
            wanted |= begun
        else:
            trial = source.trial(name)
            reverted = [trial.request.reverts.hunt] if trial.request.reverts else []
            wanted.update([trial.id, *(each.hunt for each in trial.hunts), *reverted])
    return sorted(wanted.union(*({proof.id for proof in source.proofs(session)} for session in wanted)))


def check(source: History, wanted: Sequence[int]) -> None:
    """Raise EnvironmentFailure for what cannot be read, or not be written into a history: all is written into another one."""
    with TemporaryDirectory() as folder, closing(History.open(Path(folder) / "h.db")) as other, other.transaction():
        copy(source, other, wanted, "")


def copy(source: History, target: History, wanted: Sequence[int], origin: str, verb: str = "imported") -> list[Copied]:
    """Copy sessions, in turns with others that write; ``origin`` is whose those are that have none yet ("": the owner's).

    ``wanted`` are their numbers in order: a session is about an earlier one. ``verb`` is what is done: "imported" or "exported".
    """
    process = copied(verb)
    done, here, requests, turns = [], dict[int, int](), dict[int, TrialRequest](), Turns(target, process)
    for session in wanted:
        [kind] = source.columns(session, "kind")
        log = [*log_of(source, session)]
        with intact(source.shown, called(kind, session)):
            head = checked(head_of(source, session), log, requests)
            if kind != "hunt":
                requests[session] = head.plan.request
            else:
                fold(log, source.sittings(session))
            here[session], how = copy_session(numbered(head, here), log, turns, origin)
        done.append(Copied(called(kind, session), called(kind, here[session]), how))
    copy_batches(source, target, here, origin, process)
    return done


@contextmanager
def snapshot(history: History) -> Iterator[None]:
    """Within, the history is read as it is now, whatever other processes write."""
    history.connection.execute("BEGIN")
    try:
        yield
    finally:
        history.connection.rollback()


def copy_session(head: Head, log: list[Timed], turns: Turns, origin: str) -> tuple[int, str]:
    """Copy one session, or what it has grown by. Returns its number here, and how.

    After a turn the log here is the beginning of its own.
    """
    present = (
        "SELECT id, origin IS NULL, (SELECT count(*) FROM events WHERE session_id = s.id) FROM sessions s WHERE uid = ?"
    )
    target, how = turns.history, ""
    while True:
        known = target.connection.execute(present, [head.uid]).fetchone()
        here, own, _ = known or (0, False, 0)
        tail = grown_by(log_of(target, here), iter(log)) if known else log
        # a file of others that adds to an own session could change the commands that `bisect resume` executes
        foreign = bool(own and origin)
        if tail is None or (known and tail and (foreign or target.listed(here).state == "running")):
            return here, "conflict"
        if known and not tail and (foreign or head.about is None or target.columns(here, "about") != (None,)):
            return here, how or "known"
        with turns.turn() as db:
            if db.execute(present, [head.uid]).fetchone() != known:
                continue  # another import has written it meanwhile
            if tail:
                how = how or ("grown" if known else "new")
            whose = {"uid": head.uid, "origin": head.origin or origin or None}
            here = here or target.enter(head.settings, head.plan, head.started, **whose)
            row: dict[str, Any] = {"settings": compact(head.settings)}
            if head.about:
                row |= {"about": head.about, "drop_between": json.dumps(head.drop) if head.drop else None}
            db.table("sessions").update(here, row)
            whole = write(db, here, head, tail, turns)
        if whole:
            return here, how or "known"


def grown_by(here: Iterator[Timed], there: Iterator[Timed]) -> list[Timed] | None:
    """The events that a log has beyond another; none if it is that or its beginning, None if they contradict."""
    tail: list[Timed] = []
    for mine, theirs in zip_longest(here, there):
        if mine is None and theirs is not None:
            tail.append(theirs)
        elif mine and theirs and comparable(mine) != comparable(theirs):
            return None
    return tail


def comparable(entry: Timed) -> tuple[float, str, str]:
    """An entry of a log without numbers of sessions."""
    at, event = entry
    return at, codec.kind_of(event), encode(renumbered(event, 0, 0), ())


def renumbered(event: Event, session: int, about: int | None) -> Event:
    """An event of the session of that number, which is about that other one."""
    match event:
        case SessionStarted():
            return replace(event, session=session, request=about_hunt(event.request, about))
        case _:
            return event


def about_hunt(request: TrialRequest, hunt: int | None) -> TrialRequest:
    """The request of a proof with the number that its hunt has here."""
    return replace(request, reverts=replace(request.reverts, hunt=hunt)) if request.reverts and hunt else request


def log_of(history: History, session: int) -> Iterator[Timed]:
    """The log of a session as it is written: without passwords. Raises EnvironmentFailure for what cannot be read."""
    name = called(history.columns(session, "kind")[0], session)
    for entry in history.events(session):
        with intact(history.shown, f"{name}, table events, row {entry.id},"):
            event = masked_fields(entry.event)
            check_values(fields := codec.encode(event))
            codec.dumps(fields)
        yield entry.at, event


def head_of(history: History, session: int) -> Head:
    """What a history keeps of a session beside its log."""
    kind, uid, origin, started, host_id, request, about, drop = history.columns(
        session, "kind", "uid", "coalesce(origin, '')", "started", "host_id", "CAST(request AS BLOB)", "about", "drop_between"
    )  # fmt: skip
    check_values(host := builtins(read_host(history.connection, host_id)))
    facts, settings = msgspec.convert(host, HostFacts), masked_fields(history.settings(session))
    if kind == "hunt":
        plan = range_of(history, session, settings, facts)
    else:
        asked = masked_fields(msgspec.convert(json.loads(request), TrialRequest))
        plan, drop = SessionStarted(session, facts, False, request=asked), None
    select = "SELECT started, coalesce(failure, '') FROM sittings WHERE session_id = ? ORDER BY id"
    return Head(
        *msgspec.convert((kind, uid, origin), tuple[str, str, str]),
        check_value("started", started, float),
        settings,
        tuple(
            (check_value("started", began, float), msgspec.convert(failure, str))
            for began, failure in history.select(select, [session])
        ),
        plan,
        msgspec.convert(about, int | None),
        msgspec.convert(json.loads(drop), tuple[int, int, int]) if drop else None,
    )


def range_of(history: History, hunt: int, settings: Settings, host: HostFacts) -> SessionStarted:
    """The range of a hunt, as an event that begins it."""
    commits, choices, merges, base = history.columns(hunt, "commits", "candidates - 1", "merges", "base_commit")
    span = history.candidates(hunt)
    check_values({"commits": commits, "choices": choices, "merges": merges})
    if not all(map(HASH.fullmatch, span)) or base != span[0]:
        raise ValueError("its range is none")
    commits, choices, merges = msgspec.convert((commits, choices, merges), tuple[int, int, int])
    asked = settings.builder, settings.workload, settings.good, settings.bad
    return SessionStarted(hunt, host, False, *asked, commits, span, merges, branch_points=len(span) - 1 - choices)


def checked(head: Head, log: Sequence[Timed], requests: Mapping[int, TrialRequest]) -> Head:
    """The same. Raises ValueError for what reports could not read; ``requests`` are those of the trials before it."""
    if not UID.fullmatch(head.uid):
        raise ValueError("it has no name")
    if len(head.origin) > LONGEST_NAME:
        raise ValueError("its origin is too long")
    check_values(builtins(head.settings))
    check_values(head.sittings, "sittings")
    plan = head.plan.request
    if head.kind != "hunt":
        check_values(builtins(plan))
        if head.kind != plan.kind or not plan.works:
            raise ValueError("it is of another kind")
        started = (event.request for _, event in log if isinstance(event, SessionStarted))
        for request in (plan, *started):
            if (request.reverts.hunt if request.reverts else None) != head.about:
                raise ValueError("it is about another hunt")
            if sizes(request) != sizes(plan) or request.kind != head.kind:
                raise ValueError("its sittings measure other builds or workloads")
        builds, works = sizes(plan)
        for _, event in log:
            if isinstance(event, BuildFinished | RunFinished | CandidateSkipped) and event.candidate >= builds:
                raise ValueError("a run or a failure is of no build")
            if isinstance(event, RunFinished | CandidateSkipped) and event.workload >= works:
                raise ValueError("a run or a failure is of no workload")
    if head.drop and head.about is not None and head.about in requests:
        (work, first, last), (builds, works) = head.drop, sizes(requests[head.about])
        if not (0 <= first < last < builds and 0 <= work < works):
            raise ValueError("it is for no build or workload")
    return head


def sizes(request: TrialRequest) -> tuple[int, int]:
    """The numbers of builds and workloads."""
    return len(request.subjects), len(request.works)


def numbered(head: Head, here: Mapping[int, int]) -> Head:
    """The same with the numbers of this history; a hunt for the drop of a comparison that is not copied is a hunt."""
    about = here.get(head.about or 0)
    if head.plan.request.reverts and about is None:
        raise ValueError("its hunt is missing")
    plan = replace(head.plan, request=about_hunt(head.plan.request, about))
    return replace(head, about=about, drop=head.drop if about else None, plan=plan)


def write(db: "sqlite_utils.Database", session: int, head: Head, log: Sequence[Timed], turns: Turns) -> bool:
    """Write the sittings that a session lacks, and events until the turn is over; returns whether it has written all of them."""
    [have] = db.execute("SELECT count(*) FROM sittings WHERE session_id = ?", [session]).fetchone()
    for began, failure in head.sittings[have:]:
        row = {"session_id": session, "started": began, "process": turns.process, "failure": masked(failure) or None}
        db.table("sittings").insert(row)
    into = replace(turns.history.session_log(session), foreign=True)
    for place, (at, event) in enumerate(log):
        if place and turns.over():
            return False
        into.append(renumbered(event, session, head.about), at)
    return True


def check_pages(connection: sqlite3.Connection, path: Path) -> None:
    """Raise EnvironmentFailure for a file that is damaged."""
    with explained(path):
        connection.execute("PRAGMA trusted_schema = OFF")
        connection.execute("PRAGMA cell_size_check = ON")
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, LONGEST)
        [found] = connection.execute("PRAGMA quick_check(1)").fetchone()
    if found != "ok":
        raise EnvironmentFailure(
            f"The history {path} is damaged: {found}.", f"Save what can be read: sqlite3 {path} .recover"
        )
