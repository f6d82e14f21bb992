"""Stores the events of a session in its log and, in the same transaction, the rows that each event adds to other
tables.

An event that is read from the log equals the event that was appended, except that the search's estimates in a decision
(the belief) are rounded. The rounding has no effect on a resumed hunt, because `bisect resume` computes the estimates
again.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import msgspec

from perfbisect.core.domain import codec
from perfbisect.core.domain.codec import dumps, to_plain
from perfbisect.core.domain.events import (
    BuildFinished,
    BuildStarted,
    CandidateSkipped,
    ChangedFunctions,
    Commit,
    Counted,
    Event,
    LabEvent,
    Planned,
    Profiled,
    RunFinished,
    SessionEnded,
    SessionStarted,
)
from perfbisect.core.domain.facts import PHASES, HostFacts, RunFacts
from perfbisect.core.domain.measured_log import MeasuredEvent
from perfbisect.core.domain.metrics import METRICS, metric_value, operations_per_second
from perfbisect.core.domain.orders import (
    CodePlacement,
    Found,
    Inconclusive,
    Interval,
    NotReproduced,
    Several,
    Verdict,
    worsening_steps,
)
from perfbisect.core.domain.session_state import SessionState
from perfbisect.core.domain.settings import Settings, TrialType
from perfbisect.masking import mask_credentials_in_fields
from perfbisect.store.schema import LAST_MOMENT, TABLES

if TYPE_CHECKING:
    import sqlite3

    import sqlite_utils

Row = dict[str, Any]

LARGEST = repr(codec.LARGEST).encode()  # the number that JSON has in place of infinity
LONGEST_TEXT = 1 << 20  # most characters of a text
# Columns of a hunt that are settings.
OF_HUNT = ("good", "bad", "good_commit", "bad_commit", "repository", "builder", "variant", "workload", "host", "metric")
# The fields that are counts, durations or positions, with the largest value of each: a whole number that a float holds.
COUNTS = dict.fromkeys((
    "branch_points", "cache_hits", "cache_misses", "candidate", "candidates", "choices", "commits", "cores", "cost", "events",
    "memory_mib", "merges", "operations", "parents", "remote_hits", "round", "rounds", "runs", "same_as", "samples", "seconds",
    "workload",
), 2.0**53) | dict.fromkeys(PHASES, LAST_MOMENT) | {"seconds": LAST_MOMENT, "cost": LAST_MOMENT, "started": LAST_MOMENT, "probability": 1.0, "probabilities": 1.0}  # fmt: skip


def encode(event: Event, candidates: tuple[str, ...]) -> str:
    """The JSON of an event; ``candidates`` is the range of the hunt. Raises ValueError for NaN.

    The JSON of a SessionStarted event omits the commits of the range, because a range can be long, and the history
    stores the range of a hunt separately. If the hunt searches the parts of a diff, the JSON contains the range,
    because each round of such a hunt has another range.
    """
    if isinstance(event, SessionStarted) and event.candidates == candidates and not event.parts:
        event = replace(event, candidates=())
    return dumps(codec.encode(event))


def decode(kind: str, text: str | bytes, candidates: tuple[str, ...] = ()) -> Event:
    """The event of the type ``kind`` that the JSON ``text`` describes; ``candidates`` is the range of the hunt, which
    the JSON may omit."""
    text = text.encode() if isinstance(text, str) else text
    of = codec.EVENTS.get(kind)
    half_a_pair = b"\\ud" in text  # a surrogate of UTF-16, as in names of files, which msgspec refuses
    if of is None or kind in codec.TAGGED or half_a_pair:
        event = codec.decode(kind, json.loads(text), has_infinity=LARGEST in text)
    else:  # most entries of a log; decoding takes a third of the time
        event = msgspec.json.decode(text, type=of)
    if isinstance(event, SessionStarted) and not event.candidates:
        return replace(event, candidates=candidates)
    return event


def compact_json(value: object) -> str:
    """The JSON of a value, a dataclass or a Struct, without blanks, so that equal values give equal texts, which SQL
    can compare. Raises ValueError for NaN."""
    return json.dumps(to_plain(value), allow_nan=False, separators=(",", ":"))


def check_field_values(value: object, field_name: str = "") -> None:
    """Raise ValueError if ``value``, or a value that it contains, is invalid in an event: a text that is too long, a
    number that is not finite, or a count, duration, position or probability outside its range.
    """
    match value:
        case dict():
            for key, part in value.items():
                check_field_values(part, key)
        case list() | tuple():
            for part in value:
                check_field_values(part, field_name)
        case str() if len(value) > LONGEST_TEXT:
            raise ValueError(f"{field_name} has {len(value):,} characters, more than {LONGEST_TEXT:,}")
        case int() | float() if field_name in COUNTS and not 0 <= value <= COUNTS[field_name]:
            raise ValueError(f"{field_name} is {value:g}, which is not between 0 and {COUNTS[field_name]:g}")
        case int() | float() if not abs(value) <= codec.LARGEST:
            raise ValueError(f"{field_name} is not a finite number")


def valid_utf8(row: Row) -> Row:
    """A copy of the row in which all texts are valid UTF-8, because names in old commits and in file systems may be
    invalid."""
    return {
        column: value.encode("utf-8", "backslashreplace").decode() if isinstance(value, str) else value
        for column, value in row.items()
    }


def insert_row(db: "sqlite_utils.Database", table: str, row: Row) -> int:
    """Insert a row into a table. Returns the number of the inserted row."""
    return int(db.table(table).insert(valid_utf8(row)).last_rowid or 0)


def remove_session(db: "sqlite_utils.Database", session: int) -> None:
    """Remove a session and its log. The session must not belong to a batch."""
    for table, columns in TABLES.items():
        if "session_id" in columns.split():
            db.table(table).delete_where("session_id = ?", [session])
    db.table("sessions").delete(session)


def insert_host(db: "sqlite_utils.Database", host: HostFacts, at: float) -> str:
    """Insert a row with the facts about a host into the table ``hosts``, unless a row with equal facts exists. Returns
    the id of the row."""
    texts = {name: dumps(dict(sorted(getattr(host, name).items()))) for name in ("tools", "settings")}
    row = valid_utf8(asdict(host) | texts)
    table = db.table("hosts")
    host_id = str(table.insert(row | {"first_seen": at}, hash_id="id", hash_id_columns=[*row], ignore=True).last_pk)
    db.execute("UPDATE hosts SET first_seen = min(first_seen, ?) WHERE id = ?", [at, host_id])
    return host_id


def session_row(settings: Settings, start_event: SessionStarted) -> Row:
    """The values of a new row of the table ``sessions``, by column. For a hunt, the key ``range`` has the commits of
    the range as JSON."""
    request = start_event.request
    if not request.works:
        columns = {column: getattr(settings, column) for column in OF_HUNT} | range_columns(start_event)
        columns |= {"kind": "hunt", "about": settings.narrows or None, "merges": start_event.merges}
        return columns | {"range": json.dumps(start_event.candidates)}
    columns = {column: getattr(request, column) for column in ("kind", "builder", "variant", "host", "metric")}
    about = request.reverts.hunt if request.reverts else None
    named = {"workload": ", ".join(work.name for work in request.works), "about": about}
    return columns | named | {"request": compact_json(mask_credentials_in_fields(request))}


def range_columns(start_event: SessionStarted) -> Row:
    """The columns of table sessions that describe the range of a hunt, without the merges."""
    commits, candidates = start_event.commits, start_event.possible_culprits + 1
    return {"commits": commits, "candidates": candidates, "base_commit": start_event.candidates[0]}


def read_host(connection: "sqlite3.Connection", host_id: str) -> HostFacts:
    """The facts of the host with an id, from the table ``hosts``."""
    select = (
        "SELECT name, cpu, cores, memory_mib, kernel, compiler, CAST(tools AS BLOB), CAST(settings AS BLOB) FROM hosts"
    )
    row = connection.execute(f"{select} WHERE id = ?", [host_id]).fetchone()
    return HostFacts(*row[:6], *(msgspec.convert(json.loads(text), dict[str, str]) for text in row[6:]))


@dataclass(frozen=True, slots=True)
class SessionLog:
    """Appends events to the log of one session. Only this class writes the rows that an event adds to other tables."""

    db: "sqlite_utils.Database"
    session: int
    host: str  # name of the session's first host, which is also the host of events that name no host
    state: SessionState  # the log so far, folded
    candidates: tuple[str, ...] = ()  # the range of a hunt: commit of each node
    node_by_commit: Mapping[str, int] | None = None  # node of each commit; None for a trial
    is_foreign: bool = False  # whether the session is another person's; its facts are stored only for unknown commits

    def append(self, event: Event, at: float) -> None:
        """Append ``event`` to the log, and the event's rows to the other tables."""
        host = getattr(event, "host", "") if isinstance(event, LabEvent) else ""
        about = MeasuredEvent | Counted | Profiled | Planned | ChangedFunctions
        commit = event.facts.commit if isinstance(event, about) else None
        commit = event.commit.sha if isinstance(event, BuildStarted) else commit
        row: Row = {"session_id": self.session, "at": at, "kind": codec.event_kind(event), "host": host or None}
        row |= {"commit_hash": commit, "body": encode(event, self.candidates)}
        event_id = insert_row(self.db, "events", row)
        self.state.add(at, event)
        columns: Row = {"event_id": event_id, "at": at, "host": host or self.host}
        match event:
            case SessionStarted():
                for site in event.hosts:
                    insert_host(self.db, site, at)
                request = event.request
                of_trial = {"request": compact_json(request), "metric": request.metric} if request.works else {}
                self._update_session(ended=None, **of_trial)
            case BuildStarted(commit=built):
                self._enter_commit(built)
            case BuildFinished(facts=build):
                same_as = self.state.facts_of(build.commit).same_as if event.same_as is not None else None
                reused = 2 if build.shared else int(build.reused)
                columns |= {"build_key": build.key, "binary_hash": build.binary, "same_as": same_as, "reused": reused}
                self._insert_fact_row("builds", event, columns)
                self._update_session(build_count=self.state.build_count)
            case CandidateSkipped(facts=skip):
                self._insert_fact_row("skips", event, columns | {"seconds": 0.0 if skip.for_another else skip.seconds})
            case RunFinished(facts=run):
                columns |= {f"latency_{name}": run.latency.get(name) for name in ("avg", "p95", "p99", "max")}
                columns |= {"dataset_key": run.dataset or None, "cost": self.state.cost}
                columns |= {"qps": operations_per_second(run), "metric_value": self._metric_value(run)}
                self._insert_fact_row("runs", event, columns)
                self._update_session(run_count=self.state.run_count)
            case SessionEnded(verdict):
                from perfbisect.core.stats.noise import noise_of_trial

                alone = not verdict and self.state.request.kind is TrialType.NOISE
                if noise := noise_of_trial(self.state) if alone else None:
                    self._update_session(between_visits=noise.between, within_visits=noise.within, noise=noise.run)
                self._update_session(ended=at)
                for suspect in event.suspects:
                    self._enter_commit(suspect)
                if verdict:
                    self._enter_verdict(verdict, event_id, at)
            case _:
                pass

    def _enter_commit(self, commit: Commit) -> None:
        """Store a commit's date, author and subject in the table ``commits``."""
        row = {"commit_hash": commit.sha, "date": commit.date, "author": commit.author, "subject": commit.subject}
        self.db.table("commits").insert(valid_utf8(row), ignore=self.is_foreign, replace=not self.is_foreign)

    def _update_session(self, **columns: object) -> None:
        """Change columns of the session."""
        changes = ", ".join(f"{name} = ?" for name in columns)
        self.db.execute(f"UPDATE sessions SET {changes} WHERE id = ?", [*columns.values(), self.session])

    def _insert_fact_row(self, table: str, event: MeasuredEvent, columns: Row) -> None:
        """Insert a row for a build, a failure or a run into ``table``. The value of each column is taken from
        ``columns`` or, if ``columns`` lacks the column, from the event or from the event's facts."""
        facts = event.facts
        columns |= self._commit_columns(facts.commit, None if self.node_by_commit is not None else event.candidate)
        fields = {name: event if hasattr(event, name) else facts for name in TABLES[table].split()}
        row = {name: columns[name] if name in columns else getattr(of, name) for name, of in fields.items()}
        insert_row(self.db, table, row)

    def _commit_columns(self, commit: str, node: int | None = None) -> Row:
        """The values of the columns that identify a commit of a hunt, or a build of a trial."""
        node = (self.node_by_commit or {}).get(commit, node)
        return {"session_id": self.session, "commit_hash": commit, "node": node}

    def _metric_value(self, run: RunFacts) -> float | None:
        [metric] = self.db.execute("SELECT metric FROM sessions WHERE id = ?", [self.session]).fetchone()
        # A session of another person may have a metric that this version does not know.
        return metric_value(run, metric) if metric in METRICS else None

    def replace_stored_range(self, start_event: SessionStarted) -> "SessionLog":
        """Replace the stored range of the hunt by the range in ``start_event``. Returns a SessionLog for the new range."""
        self._update_session(**range_columns(start_event))
        new_range = json.dumps(start_event.candidates), self.session
        self.db.execute("UPDATE ranges SET candidates = ? WHERE session_id = ?", new_range)
        nodes = {commit: node for node, commit in enumerate(start_event.candidates)}
        return replace(self, candidates=start_event.candidates, node_by_commit=nodes)

    def recompute_metric_values(self) -> None:
        """Compute the column ``metric_value`` of all runs again, after the session has changed its metric."""
        select = "SELECT id, body FROM events WHERE session_id = ? AND kind = 'RunFinished'"
        for event_id, body in self.db.execute(select, [self.session]).fetchall():
            if isinstance(event := decode("RunFinished", body), RunFinished):
                new = [self._metric_value(event.facts), event_id]
                self.db.execute("UPDATE runs SET metric_value = ? WHERE event_id = ?", new)

    def _enter_verdict(self, verdict: Verdict, event_id: int, at: float) -> None:
        """Store a verdict and the suspects of the verdict in their tables. An earlier verdict is replaced."""
        for table in ("suspects", "verdicts"):
            self.db.table(table).delete_where("session_id = ?", [self.session])
        row: Row = {"session_id": self.session, "event_id": event_id, "at": at, "kind": type(verdict).__name__}
        named = [
            {"node": step.candidate, "probability": step.probability, **interval_columns(step.ratio)}
            for step in (worsening_steps(verdict) or ([verdict.step] if isinstance(verdict, CodePlacement) else ()))
        ]
        match verdict:
            case Several(unsettled=unsettled):
                row["reason"] = "; ".join(dict.fromkeys(subrange.known.reason for subrange in unsettled)) or None
            case NotReproduced(ratio, detectable) | CodePlacement(_, ratio, detectable):
                row |= {**interval_columns(ratio), "detectable": detectable}
            case Found():
                pass
            case Inconclusive(candidates, probabilities, ratio, reason):
                row |= {**interval_columns(ratio), "reason": reason}
                pairs = zip(candidates, probabilities, strict=True)
                named = [{"node": node, "probability": probability} for node, probability in pairs]
        insert_row(self.db, "verdicts", row)
        for rank, suspect in enumerate(named):
            commit = self.candidates[suspect["node"]]
            insert_row(self.db, "suspects", self._commit_columns(commit) | suspect | {"rank": rank})


def interval_columns(interval: Interval) -> Row:
    """The values of the columns ``ratio``, ``low`` and ``high`` for an interval."""
    return {"ratio": interval.middle, "low": interval.low, "high": interval.high}
