"""The rows that an event adds to the tables of facts, in the transaction that appends the event."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from perfbisect.core.domain.codec import dumps
from perfbisect.core.domain.events import (
    BuildFinished,
    BuildStarted,
    CandidateSkipped,
    ChangedFunctions,
    Commit,
    Counted,
    Event,
    HuntEnded,
    HuntStarted,
    Planned,
    Profiled,
    RunFinished,
    Unexplained,
)
from perfbisect.core.domain.facts import BuildFacts, HostFacts, RunFacts, SkipFacts
from perfbisect.core.domain.metrics import operations_per_second
from perfbisect.core.domain.orders import (
    CodePlacement,
    Found,
    Inconclusive,
    Interval,
    NotReproduced,
    Several,
    Step,
    Verdict,
)
from perfbisect.core.inference.from_log import Logged
from perfbisect.store.codec import encode
from perfbisect.store.rows import Row, clean, insert, insert_all, insert_new

if TYPE_CHECKING:
    import sqlite_utils

AT_A_HOST = (
    BuildStarted, BuildFinished, CandidateSkipped, RunFinished, Counted, Profiled, Planned, Unexplained,
)  # fmt: skip


def host_row(db: "sqlite_utils.Database", host: HostFacts, at: float) -> int:
    """The id of the host; a host whose fingerprint has changed gets a new row."""
    texts = {name: dumps(dict(sorted(getattr(host, name).items()))) for name in ("tools", "settings")}
    row: Row = asdict(host) | texts
    fingerprint = hashlib.sha256(dumps(row).encode()).hexdigest()
    db.execute(
        "UPDATE hosts SET first_seen = min(first_seen, ?), last_seen = max(last_seen, ?) WHERE fingerprint = ?",
        [at, at, fingerprint],
    )
    insert_new(db, "hosts", row | {"first_seen": at, "last_seen": at, "fingerprint": fingerprint})
    return int(db.execute("SELECT id FROM hosts WHERE fingerprint = ?", [fingerprint]).fetchone()[0])


def commit_row(db: "sqlite_utils.Database", commit: Commit, *, foreign: bool = False) -> None:
    """Write a commit's date, author and subject; of a ``foreign`` one, where they are not known."""
    row = clean(asdict(commit))
    insert_new(db, "commits", {"commit_hash": commit.sha})
    sql = "UPDATE commits SET date = :date, author = :author, subject = :subject WHERE commit_hash = :sha"
    db.execute(f"{sql} AND date IS NULL" if foreign else sql, row)


def skip_row(skip: SkipFacts) -> Row:
    """The columns of a failure, without its commit. It has no seconds where another hunt has spent them."""
    row = asdict(skip)
    del row["commit"]
    return row | {"seconds": 0.0} if row.pop("for_another") else row


def commit_of(event: Event) -> str | None:
    """The commit that an event is about."""
    if isinstance(event, BuildStarted):
        return event.commit.sha
    return event.facts.commit if isinstance(event, Logged | Counted | Profiled | Planned | ChangedFunctions) else None


def host_of(event: Event) -> str | None:
    """The host on which an event happened."""
    return getattr(event, "host", None) if isinstance(event, AT_A_HOST) else None


def enter_event(
    db: "sqlite_utils.Database",
    hunt: int,
    event: Event,
    at: float,
    host: str,
    candidates: tuple[str, ...],
    nodes: Mapping[str, int],
    *,
    foreign: bool = False,
) -> None:
    """Append ``event`` to the log of a hunt, and its rows to the other tables.

    ``host`` is the first of the hunt, ``candidates`` and ``nodes`` are its range. What a ``foreign`` event says of a commit
    counts only where nothing is known of it yet.
    """
    row = {
        "hunt_id": hunt,
        "at": at,
        "kind": type(event).__name__,
        "commit_hash": commit_of(event),
        "body": encode(event, candidates),
        "host": host_of(event) or None,
    }
    event_id = insert(db, "events", row)
    FactWriter(db, hunt, event_id, at, host_of(event) or host, candidates, nodes, foreign).write(event)


@dataclass(frozen=True, slots=True)
class FactWriter:
    """Writes the rows of one event."""

    db: "sqlite_utils.Database"
    hunt: int
    event_id: int
    at: float
    host: str  # the name of the one on which it happened
    candidates: Sequence[str]  # commit of each node
    node: Mapping[str, int]  # node of each commit
    foreign: bool = False  # the event is another person's

    def write(self, event: Event) -> None:
        """Write the rows of ``event``."""
        match event:
            case HuntStarted():
                for host in event.hosts:
                    host_row(self.db, host, self.at)
                self.db.execute("UPDATE hunts SET ended = NULL WHERE id = ?", [self.hunt])
            case BuildStarted(commit=commit):
                commit_row(self.db, commit, foreign=self.foreign)
            case BuildFinished(facts=build, same_as=twin):
                self.build(build, twin is not None)
            case CandidateSkipped(facts=skip):
                self.skip(skip)
            case RunFinished(facts=run):
                self.run(run)
            case HuntEnded(verdict):
                self.verdict(verdict)
            case _:
                pass

    def about(self, commit_hash: str) -> Row:
        """The columns that say which commit of which hunt a fact is about."""
        insert_new(self.db, "commits", {"commit_hash": commit_hash})
        return {"hunt_id": self.hunt, "commit_hash": commit_hash, "node": self.node.get(commit_hash)}

    def fact(self, commit_hash: str) -> Row:
        """The same columns, with the log entry and the host of a fact."""
        return self.about(commit_hash) | {"event_id": self.event_id, "host": self.host}

    def build(self, build: BuildFacts, has_twin: bool) -> None:
        """A build, with the first build of this hunt that has the same binary."""
        same = "SELECT commit_hash FROM builds WHERE hunt_id = ? AND host = ? AND binary_hash = ? AND commit_hash != ?"
        wanted = clean({"hunt": self.hunt, "host": self.host, "binary": build.binary, "commit": build.commit})
        twin = self.db.execute(f"{same} ORDER BY event_id LIMIT 1", [*wanted.values()]).fetchone()
        if not build.reused:
            self.db.execute("UPDATE hunts SET build_count = build_count + 1 WHERE id = ?", [self.hunt])
        insert(
            self.db,
            "builds",
            self.fact(build.commit)
            | {
                "at": self.at,
                "build_key": build.key,
                "binary_hash": build.binary,
                "same_as": twin[0] if twin and has_twin else None,
                "seconds": build.seconds,
                "cache_hits": build.cache_hits,
                "cache_misses": build.cache_misses,
                "reused": 2 if build.shared else int(build.reused),  # 2: from the shared builds
                "log": build.log,
            },
        )

    def skip(self, skip: SkipFacts) -> None:
        """A candidate that cannot be measured."""
        insert(
            self.db,
            "skips",
            self.fact(skip.commit) | {"at": self.at} | skip_row(skip),
        )

    def run(self, run: RunFacts) -> None:
        """A run with its visit, counters and samples."""
        about = self.fact(run.commit)
        # events of other hosts, and decisions taken while other hosts are busy, do not bound this run
        before = self.db.execute(
            "SELECT at FROM events WHERE hunt_id = ? AND id < ?"
            " AND (host = ? OR host IS NULL AND (kind != 'Decided' OR json_extract(body, '$.fleet.busy') IS NULL))"
            " ORDER BY id DESC LIMIT 1",
            [self.hunt, self.event_id, self.host],
        ).fetchone()
        self.db.execute("UPDATE hunts SET run_count = run_count + 1 WHERE id = ?", [self.hunt])
        insert(
            self.db,
            "runs",
            about
            | {
                "visit_id": self.visit(run),
                "build_key": run.build_key,
                "started": run.started,
                "seconds": run.seconds,
                "cost": max(self.at - before[0], run.seconds) if before else run.seconds,
                "operations": run.operations,
                "qps": operations_per_second(run),
                "log": run.log,
            }
            | {f"latency_{name}": run.latency.get(name) for name in ("avg", "p95", "p99", "max")},
        )
        counted: list[tuple[str, Mapping[str, float | None]]] = [("perf", run.counters), ("system", run.system)]
        counted += [("command", {"reported": run.reported})] if run.reported is not None else []
        counted += [("counted", {run.counted: run.events})] if run.counted else []
        counted += [("limit", {"slower_than": run.slower_than})] if run.slower_than else []
        insert_all(
            self.db,
            "counters",
            (
                {"run_id": self.event_id, "source": source, "name": name, "value": value}
                for source, values in counted
                for name, value in values.items()
            ),
        )
        insert_all(
            self.db,
            "samples",
            ({"run_id": self.event_id, "number": number, "qps": qps} for number, qps in enumerate(run.samples)),
        )

    def visit(self, run: RunFacts) -> int:
        """The id of the visit that a run belongs to."""
        if run.dataset:
            dataset = clean({"dataset_key": run.dataset, "first_used": run.started, "last_used": run.started})
            insert_new(self.db, "datasets", dataset)
            self.db.execute(
                "UPDATE datasets SET last_used = max(last_used, :last_used) WHERE dataset_key = :dataset_key", dataset
            )
        row = clean(
            {
                "hunt_id": self.hunt,
                "name": run.visit,
                "commit_hash": run.commit,
                "build_key": run.build_key,
                "dataset_key": run.dataset or None,
                "started": run.started,
            }
        )
        insert_new(self.db, "visits", row)
        found = self.db.execute("SELECT id FROM visits WHERE hunt_id = ? AND name = ?", [self.hunt, row["name"]])
        return int(found.fetchone()[0])

    def verdict(self, verdict: Verdict) -> None:
        """The verdict and the commits that it names; they replace an earlier verdict."""
        self.db.execute("UPDATE hunts SET ended = ? WHERE id = ?", [self.at, self.hunt])
        self.db.execute("DELETE FROM suspects WHERE hunt_id = ?", [self.hunt])
        self.db.execute("DELETE FROM verdicts WHERE hunt_id = ?", [self.hunt])
        row: Row = {"hunt_id": self.hunt, "event_id": self.event_id, "at": self.at, "kind": type(verdict).__name__}
        match verdict:
            case Found(step):
                named = [step_row(step)]
            case Several(steps, _, unsettled):
                row |= {"reason": "; ".join(dict.fromkeys(one.known.reason for one in unsettled)) or None}
                named = [step_row(step) for step in steps]
            case NotReproduced(ratio, detectable):
                row |= {**interval_row(ratio), "detectable": detectable}
                named = []
            case CodePlacement(step, ratio, detectable):
                row |= {**interval_row(ratio), "detectable": detectable}
                named = [step_row(step)]
            case Inconclusive(candidates, probabilities, ratio, reason):
                row |= {**interval_row(ratio), "reason": reason}
                named = [
                    {"node": node, "probability": probability}
                    for node, probability in zip(candidates, probabilities, strict=True)
                ]
        insert(self.db, "verdicts", row)
        for rank, suspect in enumerate(named):
            commit_hash = self.candidates[suspect["node"]]
            insert(self.db, "suspects", suspect | self.about(commit_hash) | {"rank": rank})


def interval_row(interval: Interval) -> Row:
    """An interval's columns."""
    return {"ratio": interval.middle, "low": interval.low, "high": interval.high}


def step_row(step: Step) -> Row:
    """A step's columns."""
    return {"node": step.candidate, "probability": step.probability, **interval_row(step.ratio)}
