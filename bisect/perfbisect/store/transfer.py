"""Copies sessions from one history into another, for `bisect history export` and `bisect history import`.

The copy reads only the log of a session. Each event is decoded, checked and written like an event of a running session.
Therefore all tables of the target agree with the log, and an imported file of another user adds no other data to the
history. Sessions are copied in many short transactions, so that running sessions do not wait for long. After an
interruption, the target has the first entries of the log; the next copy continues after these entries.

Two sessions in two histories are the same session if both have the same uid. If both histories have continued a
session, so that neither log is the beginning of the other log, the log in the target is not changed.
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
from perfbisect.core.domain.codec import to_plain
from perfbisect.core.domain.events import BuildFinished, CandidateSkipped, Event, RunFinished, SessionStarted
from perfbisect.core.domain.facts import HostFacts
from perfbisect.core.domain.session_state import fold
from perfbisect.core.domain.settings import Settings, TrialRequest
from perfbisect.errors import EnvironmentFailure, UsageError
from perfbisect.masking import mask_credentials, mask_credentials_in_fields
from perfbisect.process import placeholder_process
from perfbisect.store.batches import copy_batches, read_batch
from perfbisect.store.connection import damage_explained, sqlite_errors_explained
from perfbisect.store.history import History
from perfbisect.store.listing import checked_value, session_name
from perfbisect.store.log import check_field_values, compact_json, encode, read_host

if TYPE_CHECKING:
    import sqlite_utils

HASH = re.compile(r"[0-9a-f]{40}([0-9a-f]{24})?")
UID = re.compile(r"[\w.-]{1,100}")
LONGEST_NAME = 255  # most characters of a name
LONGEST = 256 << 20  # most bytes of a value
TURN = 1.0  # the longest transaction in seconds; other writers wait much longer for a lock
PAUSE = 0.2  # seconds; twice the longest time between two attempts of SQLite to get a lock

TimedEvent = tuple[float, Event]


@dataclass(frozen=True, slots=True)
class CopyResult:
    """The result of copying a session: the name of the session in the source and in the target, and whether events were
    added."""

    source_name: str  # name in the source: hunt 12, c3
    target_name: str  # name in the target: hunt 12, c3
    outcome: str  # new, grown, known, or conflict


@dataclass(frozen=True, slots=True)
class SessionHead:
    """The data of a session, except the log."""

    kind: str
    uid: str
    origin: str  # "" for an own session
    started: float
    settings: Settings
    attempts: tuple[tuple[float, str], ...]  # start of each attempt, and why the attempt failed
    start_event: SessionStarted  # with the range of a hunt, or the request of a trial
    about: int | None = None  # the session that this session is about: its number in the source history
    # If this is a hunt for a drop of a comparison: the numbers of the drop's workload and builds.
    drop_workload_and_builds: tuple[int, int, int] | None = None


class PausingWriter:
    """Makes transactions on a history. After TURN seconds of writing, it pauses, so that other processes can write.
    Within an outer transaction, it does not pause.
    """

    def __init__(self, history: History, process: str) -> None:
        self.history, self.process = history, process
        self.is_within_transaction = history.connection.in_transaction
        self.turn_start = time.monotonic()

    @contextmanager
    def transaction(self) -> "Iterator[sqlite_utils.Database]":
        """A transaction on the history, after a pause if TURN seconds have passed since the last pause."""
        if self.is_pause_due():
            time.sleep(PAUSE)
            self.turn_start = time.monotonic()
        with self.history.transaction() as db:
            yield db

    def is_pause_due(self) -> bool:
        """Whether the transaction should end, because TURN seconds have passed."""
        return not self.is_within_transaction and time.monotonic() - self.turn_start >= TURN


def all_session_numbers(source: History) -> list[int]:
    """The numbers of all sessions of a history."""
    return [session for (session,) in source.select("SELECT id FROM sessions ORDER BY id")]


def numbers_with_related(source: History, names: Sequence[int | str]) -> list[int]:
    """The numbers of the sessions ``names``, and of their related sessions.

    Related sessions are the proofs of a hunt, the hunt of a proof, and the hunts for drops of a comparison. The name of
    a batch (b2) means all hunts of the batch. Raises UsageError if no hunt of a named batch has begun.
    """
    numbers = set[int]()
    for name in names:
        if isinstance(name, int):
            numbers.update(source.columns(name, "id", hunts_only=True))
        elif name.startswith("b"):
            begun = {hunt.hunt for hunt in read_batch(source, int(name[1:])).hunts if hunt.hunt is not None}
            if not begun:
                raise UsageError(f"No hunt of batch {name} has begun.")
            numbers |= begun
        else:
            trial = source.trial(name)
            reverted = [trial.request.reverts.hunt] if trial.request.reverts else []
            numbers.update([trial.id, *(drop_hunt.hunt for drop_hunt in trial.hunts), *reverted])
    return sorted(numbers.union(*({proof.id for proof in source.proofs(session)} for session in numbers)))


def check_copyable(source: History, numbers: Sequence[int]) -> None:
    """Raise EnvironmentFailure if a session cannot be read or copied. To check this, the sessions are copied into a
    temporary history.
    """
    with (
        TemporaryDirectory() as folder,
        closing(History.open(Path(folder) / "h.db")) as trial_history,
        trial_history.transaction(),
    ):
        copy_sessions(source, trial_history, numbers, "")


def copy_sessions(
    source: History, target: History, numbers: Sequence[int], origin: str, verb: str = "imported"
) -> list[CopyResult]:
    """Copy sessions in many short transactions, so that other processes can write between two transactions.

    If a session has no owner, ``origin`` becomes its owner in the target, or, if ``origin`` is "", the owner of the
    target history. In ``numbers``, a session (for instance a proof) must come after the session to which it refers (its
    hunt). ``verb`` is "imported" or "exported".
    """
    process = placeholder_process(verb)
    done, copied_numbers, requests = [], dict[int, int](), dict[int, TrialRequest]()
    writer = PausingWriter(target, process)
    for session in numbers:
        [kind] = source.columns(session, "kind")
        log = [*log_without_passwords(source, session)]
        with damage_explained(source.label, session_name(kind, session)):
            head = checked_head(read_head(source, session), log, requests)
            if kind != "hunt":
                requests[session] = head.start_event.request
            else:
                fold(log, source.attempt_starts(session))
            new_head = head_with_target_numbers(head, copied_numbers)
            copied_numbers[session], how = copy_session(new_head, log, writer, origin)
        done.append(CopyResult(session_name(kind, session), session_name(kind, copied_numbers[session]), how))
    copy_batches(source, target, copied_numbers, origin, process)
    return done


@contextmanager
def reading_snapshot(history: History) -> Iterator[None]:
    """Within the ``with`` block, all reads of the history see the same state, even if other processes write to the
    history."""
    history.connection.execute("BEGIN")
    try:
        yield
    finally:
        history.connection.rollback()


def copy_session(head: SessionHead, log: list[TimedEvent], writer: PausingWriter, origin: str) -> tuple[int, str]:
    """Copy a session into the target history. If the target already has the session, only the missing entries of its
    log are copied. Returns the number of the session in the target history, and a word for what was done (see
    ``CopyResult``).

    After each transaction, the log in the target is the beginning of the log in the source.
    """
    present = (
        "SELECT id, origin IS NULL, (SELECT count(*) FROM events WHERE session_id = s.id) FROM sessions s WHERE uid = ?"
    )
    target, how = writer.history, ""
    while True:
        existing = target.connection.execute(present, [head.uid]).fetchone()
        number, is_own, _ = existing or (0, False, 0)
        tail = new_events(log_without_passwords(target, number), iter(log)) if existing else log
        # Events that another person adds to an own session could change the commands that `bisect resume` executes.
        foreign = bool(is_own and origin)
        if tail is None or (existing and tail and (foreign or target.session_summary(number).state == "running")):
            return number, "conflict"
        if existing and not tail and (foreign or head.about is None or target.columns(number, "about") != (None,)):
            return number, how or "known"
        with writer.transaction() as db:
            if db.execute(present, [head.uid]).fetchone() != existing:
                continue  # another import has written the session meanwhile
            if tail:
                how = how or ("grown" if existing else "new")
            whose = {"uid": head.uid, "origin": head.origin or origin or None}
            number = number or target.insert_session(head.settings, head.start_event, head.started, **whose)
            row: dict[str, Any] = {"settings": compact_json(head.settings)}
            if head.about:
                drop = json.dumps(head.drop_workload_and_builds) if head.drop_workload_and_builds else None
                row |= {"about": head.about, "drop_between": drop}
            db.table("sessions").update(number, row)
            complete = write_until_pause_is_due(db, number, head, tail, writer)
        if complete:
            return number, how or "known"


def new_events(target_log: Iterator[TimedEvent], source_log: Iterator[TimedEvent]) -> list[TimedEvent] | None:
    """The events of ``source_log`` that ``target_log`` lacks at its end; None if an earlier event differs between the
    two logs."""
    tail: list[TimedEvent] = []
    for mine, theirs in zip_longest(target_log, source_log):
        if mine is None and theirs is not None:
            tail.append(theirs)
        elif mine and theirs and entry_without_numbers(mine) != entry_without_numbers(theirs):
            return None
    return tail


def entry_without_numbers(entry: TimedEvent) -> tuple[float, str, str]:
    """The time, the kind and the JSON text of a log entry, in which the numbers of sessions are replaced by 0, so that
    entries of two histories can be compared.
    """
    at, event = entry
    return at, codec.event_kind(event), encode(renumbered_event(event, 0, 0), ())


def renumbered_event(event: Event, session: int, about: int | None) -> Event:
    """The event, with its session number replaced by ``session``. In the event of a proof, the number of the proven
    hunt is replaced by ``about``."""
    if isinstance(event, SessionStarted):
        return replace(event, session=session, request=request_about_hunt(event.request, about))
    return event


def request_about_hunt(request: TrialRequest, hunt: int | None) -> TrialRequest:
    """The request of a proof, with the number of its hunt replaced by ``hunt``. The request of another trial is
    returned unchanged."""
    return replace(request, reverts=replace(request.reverts, hunt=hunt)) if request.reverts and hunt else request


def log_without_passwords(history: History, session: int) -> Iterator[TimedEvent]:
    """The log of a session, in which passwords are masked. Raises EnvironmentFailure if an entry cannot be read."""
    name = session_name(history.columns(session, "kind")[0], session)
    for entry in history.events(session):
        with damage_explained(history.label, f"{name}, table events, row {entry.id},"):
            event = mask_credentials_in_fields(entry.event)
            check_field_values(fields := codec.encode(event))
            codec.dumps(fields)
        yield entry.at, event


def read_head(history: History, session: int) -> SessionHead:
    """The data of a session, except the log."""
    kind, uid, origin, started, host_id, request, about, drop = history.columns(
        session, "kind", "uid", "coalesce(origin, '')", "started", "host_id", "CAST(request AS BLOB)", "about", "drop_between"
    )  # fmt: skip
    check_field_values(host := to_plain(read_host(history.connection, host_id)))
    facts, settings = msgspec.convert(host, HostFacts), mask_credentials_in_fields(history.settings(session))
    if kind == "hunt":
        plan = start_event_from_tables(history, session, settings, facts)
    else:
        trial_request = mask_credentials_in_fields(msgspec.convert(json.loads(request), TrialRequest))
        plan, drop = SessionStarted(session, facts, False, request=trial_request), None
    select = "SELECT started, coalesce(failure, '') FROM attempts WHERE session_id = ? ORDER BY id"
    return SessionHead(
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


def start_event_from_tables(history: History, hunt: int, settings: Settings, host: HostFacts) -> SessionStarted:
    """The event that begins a hunt and contains its range. The range is read from the tables of the history. Raises
    ValueError for an invalid range.
    """
    commits, choices, merges, base = history.columns(hunt, "commits", "candidates - 1", "merges", "base_commit")
    span = history.candidates(hunt)
    check_field_values({"commits": commits, "choices": choices, "merges": merges})
    if not all(map(HASH.fullmatch, span)) or base != span[0]:
        raise ValueError("the range of the hunt is not valid")
    commits, choices, merges = msgspec.convert((commits, choices, merges), tuple[int, int, int])
    names = settings.builder, settings.workload, settings.good, settings.bad
    return SessionStarted(hunt, host, False, *names, commits, span, merges, branch_points=len(span) - 1 - choices)


def checked_head(head: SessionHead, log: Sequence[TimedEvent], requests: Mapping[int, TrialRequest]) -> SessionHead:
    """Returns ``head`` unchanged. Raises ValueError if reports could not show the session.

    ``requests`` maps the numbers of the trials that were already copied to their requests (builds and workloads).
    """
    if not UID.fullmatch(head.uid):
        raise ValueError("the session has no unique id")
    if len(head.origin) > LONGEST_NAME:
        raise ValueError(f"the origin has more than {LONGEST_NAME} characters")
    check_field_values(to_plain(head.settings))
    check_field_values(head.attempts, "attempts")
    plan = head.start_event.request
    if head.kind != "hunt":
        check_field_values(to_plain(plan))
        if head.kind != plan.kind or not plan.works:
            raise ValueError("its row and its first event name different kinds of sessions, or it has no workload")
        started = (event.request for _, event in log if isinstance(event, SessionStarted))
        for request in (plan, *started):
            if (request.reverts.hunt if request.reverts else None) != head.about:
                raise ValueError("its row and its events name different hunts")
            if build_and_workload_counts(request) != build_and_workload_counts(plan) or request.kind != head.kind:
                raise ValueError("its events list different numbers of builds or workloads")
        builds, works = build_and_workload_counts(plan)
        for _, event in log:
            if isinstance(event, BuildFinished | RunFinished | CandidateSkipped) and event.candidate >= builds:
                raise ValueError("a run or a failed build has the number of a build that does not exist")
            if isinstance(event, RunFinished | CandidateSkipped) and event.workload >= works:
                raise ValueError("a run or a failed build has the number of a workload that does not exist")
    if head.drop_workload_and_builds and head.about is not None and head.about in requests:
        work, first, last = head.drop_workload_and_builds
        builds, works = build_and_workload_counts(requests[head.about])
        if not (0 <= first < last < builds and 0 <= work < works):
            raise ValueError("its drop names a build or a workload that does not exist")
    return head


def build_and_workload_counts(request: TrialRequest) -> tuple[int, int]:
    """The number of builds and the number of workloads that a trial measures."""
    return len(request.subjects), len(request.works)


def head_with_target_numbers(head: SessionHead, target_numbers: Mapping[int, int]) -> SessionHead:
    """``head``, with the session numbers of the target history in place of the session numbers of the source.
    ``target_numbers`` maps each number in the source to the number in the target.

    If a hunt searches for a drop of a comparison, and the comparison is not copied, the link from the hunt to the
    comparison is removed.
    """
    about = target_numbers.get(head.about or 0)
    if head.start_event.request.reverts and about is None:
        raise ValueError("its hunt is missing")
    plan = replace(head.start_event, request=request_about_hunt(head.start_event.request, about))
    drop = head.drop_workload_and_builds if about else None
    return replace(head, about=about, drop_workload_and_builds=drop, start_event=plan)


def write_until_pause_is_due(
    db: "sqlite_utils.Database", session: int, head: SessionHead, log: Sequence[TimedEvent], writer: PausingWriter
) -> bool:
    """Write the attempts of a session that the target lacks, then events until TURN seconds have passed. Returns
    whether all events were written.
    """
    [have] = db.execute("SELECT count(*) FROM attempts WHERE session_id = ?", [session]).fetchone()
    for began, failure in head.attempts[have:]:
        row = {"session_id": session, "started": began, "process": writer.process}
        db.table("attempts").insert({**row, "failure": mask_credentials(failure) or None})
    into = replace(writer.history.session_log(session), is_foreign=True)
    for index, (at, event) in enumerate(log):
        if index and writer.is_pause_due():
            return False
        into.append(renumbered_event(event, session, head.about), at)
    return True


def check_file_integrity(connection: sqlite3.Connection, path: Path) -> None:
    """Raise EnvironmentFailure if SQLite's ``quick_check`` finds damage in the file."""
    with sqlite_errors_explained(path):
        connection.execute("PRAGMA trusted_schema = OFF")
        connection.execute("PRAGMA cell_size_check = ON")
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, LONGEST)
        [answer] = connection.execute("PRAGMA quick_check(1)").fetchone()
    if answer != "ok":
        advice = f"To save the readable part: sqlite3 {path} .recover"
        raise EnvironmentFailure(f"The history {path} is damaged: {answer}.", advice)
