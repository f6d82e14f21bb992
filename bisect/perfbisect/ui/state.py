"""What a view knows of a hunt: events in, state out. Pure; the clock is a parameter."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from statistics import median

import numpy as np

from perfbisect.core.domain.events import (
    BuildFinished,
    BuildProgress,
    BuildStarted,
    CandidateSkipped,
    Commit,
    Decided,
    Event,
    HuntEnded,
    HuntStarted,
    LabEvent,
    RunFinished,
    RunProgress,
    RunStarted,
    Warned,
)
from perfbisect.core.domain.metrics import shown
from perfbisect.core.domain.observations import Reading
from perfbisect.core.domain.orders import Belief, Interval, Measure, NotReproduced, Purpose, Verdict
from perfbisect.core.inference.from_log import Logged, observations
from perfbisect.core.stats.relative_speed import relative
from perfbisect.ui.estimate import Pace, bits, remaining
from perfbisect.wording.text import metric_title, printable, printable_commit

TOLD_BY = "bisect show {}".format  # in the history that is usual


@dataclass(frozen=True, slots=True)
class Row:
    """One candidate that something was spent on."""

    commit: Commit
    builds: int = 0
    build_seconds: float = 0.0
    hit_rate: float | None = None  # of the latest build
    reused: bool = False
    qps: tuple[float, ...] = ()  # of each run
    shown: tuple[float, ...] = ()  # what is shown of each: the same, unless the metric is of another kind
    run_seconds: float = 0.0
    same_as: int | None = None
    skipped: str = ""  # stage and reason


@dataclass(frozen=True, slots=True)
class Building:
    """A build under way, or just finished."""

    candidate: int
    since: float
    done: int = 0
    total: int = 0  # 0: unknown
    stage: str = ""
    finished: bool = False


@dataclass(frozen=True, slots=True)
class Running:
    """A run under way, or just finished."""

    candidate: int
    since: float
    number: int
    of: int
    purpose: Purpose
    seconds: float  # planned, warm-up included
    samples: tuple[float, ...] = ()
    finished: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class View:
    """Everything that is drawn. Times are seconds since the epoch."""

    began: float | None = None  # of this session
    ended: float | None = None
    hunt: HuntStarted | None = None
    node: Mapping[str, int] = field(default_factory=dict)  # full hash → candidate
    rows: Mapping[int, Row] = field(default_factory=dict)
    log: tuple[tuple[float, Logged], ...] = ()
    ratios: Mapping[int, Interval] = field(default_factory=dict)  # of measured candidates to the base, itself left out
    now: Building | Running | None = None  # at the host that was heard of last
    doing: Mapping[str, Building | Running | None] = field(default_factory=dict)  # at each host
    belief: Belief | None = None
    purpose: Purpose | None = None
    searching: tuple[float, float] | None = None  # when the search began, and the bits missing then
    warnings: tuple[Warned, ...] = ()
    verdict: Verdict | None = None
    told_by: Callable[[int], str] = TOLD_BY  # the command that tells of that hunt

    @property
    def whole(self) -> str:
        """Where more is told than there is room for; "" before the hunt is known."""
        return f"The whole story: {self.told_by(self.hunt.hunt)}" if self.hunt else ""

    def commit(self, candidate: int) -> Commit:
        """What is known of a candidate's commit: at least its hash."""
        if candidate in self.rows:
            return self.rows[candidate].commit
        sha = self.hunt.candidates[candidate] if self.hunt and candidate < len(self.hunt.candidates) else ""
        return Commit(sha or f"candidate {candidate}", "", "", "")

    def at(self, candidate: int) -> Building | Running | None:
        """What is being done with a candidate, at the first host that does something with it."""
        under_way = (one for one in self.doing.values() if one is not None and not one.finished)
        return next((one for one in under_way if one.candidate == candidate), None)

    def build(self, candidate: int) -> int:
        """The first candidate with the same binary."""
        row = self.rows.get(candidate)
        return candidate if row is None or row.same_as is None else row.same_as

    def ratio(self, candidate: int) -> Interval | None:
        """The metric of a candidate's binary relative to the base; None while it cannot be said, and for the base itself."""
        return self.ratios.get(self.build(candidate))

    @property
    def relative(self) -> str:
        """The name of the ratio to the base: rQPS, rcpu/o, …"""
        return f"r{metric_title(self.metric)}"

    @property
    def metric(self) -> str:
        """What is hunted."""
        return self.hunt.metric if self.hunt else "qps"

    @property
    def told_apart(self) -> bool:
        """Whether the ends are taken to differ: before that, who would be the culprit says nothing."""
        return self.purpose is not Purpose.ENDS and not isinstance(self.verdict, NotReproduced)

    @property
    def leader(self) -> tuple[int, float] | None:
        """The most probable culprit and its probability; None while it does not stand out, or the ends may be alike."""
        if self.belief is None or len(self.belief.culprit) < 2 or not self.told_apart:
            return None
        candidate = int(np.argmax(self.belief.culprit))
        share = float(self.belief.culprit[candidate])
        return (candidate, share) if share >= 0.5 or share * (len(self.belief.culprit) - 1) >= 2 else None

    @property
    def nobody_leads(self) -> str:
        """What there is to say while there is no leader."""
        return "no commit stands out yet" if self.told_apart else "whether the ends differ is open"

    @property
    def runs(self) -> int:
        """Runs of this session."""
        return sum(len(row.qps) for row in self.rows.values())

    @property
    def top(self) -> float:
        """The highest rate seen."""
        seen = [qps for row in self.rows.values() for qps in row.qps]
        current = [qps for one in self.doing.values() if isinstance(one, Running) for qps in one.samples]
        return max((*seen, *current), default=0.0)


def update(view: View, event: Event, at: float) -> View:
    """The view after ``event``, which happened ``at`` seconds since the epoch."""
    view = noted(view, event, at)
    return compared(view) if isinstance(event, RunFinished) else view


def recalled(view: View, told: Iterable[tuple[float, Event]]) -> View:
    """The view after what earlier sessions of the hunt saw; its clock starts anew with the next event."""
    for at, event in told:
        view = noted(view, event, at)
    return replace(compared(view), began=None, ended=None, now=None, doing={}, searching=None, verdict=None)


def noted(view: View, event: Event, at: float) -> View:
    """The view after ``event``, ratios left as they were: comparing everything is the one thing here that takes time."""
    if not isinstance(event, LabEvent) or isinstance(event, Warned):
        return heard(view, event, at)
    view = heard(replace(view, now=view.doing.get(event.host)), event, at)
    return replace(view, doing={**view.doing, event.host: view.now})


def heard(view: View, event: Event, at: float) -> View:
    """The same, ``now`` being what the event's host was at."""
    if view.began is None:
        view = replace(view, began=at)
    match event:
        case HuntStarted():
            return started(view, event)
        case Warned(text, advice):
            warning = Warned(printable(text), printable(advice))
            return view if warning in view.warnings else replace(view, warnings=(*view.warnings, warning))
        case Decided(decision):
            return decided(view, decision.belief, decision.order, at)
        case BuildStarted(candidate, commit):
            row = replace(view.rows.get(candidate) or Row(commit), commit=printable_commit(commit))
            return with_row(replace(view, now=Building(candidate, at)), candidate, row)
        case BuildProgress(candidate, done, total, stage):
            since = view.now.since if isinstance(view.now, Building) else at
            return replace(view, now=Building(candidate, since, done, total, printable(stage)))
        case BuildFinished():
            return built(view, event, at)
        case CandidateSkipped(candidate, facts):
            row = row_of(view, candidate)
            reason = f"{facts.stage}: {printable(facts.reason)}"
            row = replace(row, builds=row.builds, build_seconds=row.build_seconds + facts.seconds, skipped=reason)
            return with_row(replace(view, now=None, log=(*view.log, (at, event))), candidate, row)
        case RunStarted(candidate, number, of, purpose, seconds):
            return replace(view, now=Running(candidate, at, number, of, purpose, seconds))
        case RunProgress(_, _, qps):
            if not isinstance(view.now, Running):
                return view
            return replace(view, now=replace(view.now, samples=(*view.now.samples, qps)))
        case RunFinished():
            return ran(view, event, at)
        case HuntEnded(verdict):
            return replace(view, verdict=verdict, ended=at, now=None, doing={})


def compared(view: View) -> View:
    """The view with the ratio of every candidate to the base, from all runs so far."""
    if view.hunt is None:
        return view
    names = [facts.name for facts in view.hunt.hosts] if view.hunt.further else []
    told = observations(view.log, view.node, view.hunt.metric, view.began or 0.0, names)
    readings = [one for one in told if isinstance(one, Reading)]
    return replace(view, ratios=relative(readings, 0, view.hunt.kinds))


def started(view: View, event: HuntStarted) -> View:
    """A range is known. A hunt can begin with a range of its own, to check the merge base: it is forgotten then."""
    if view.hunt is not None and view.hunt.candidates == event.candidates:
        return replace(view, hunt=event)
    node = {commit: index for index, commit in enumerate(event.candidates)}
    return View(view.began, hunt=event, node=node, warnings=view.warnings, told_by=view.told_by)


def decided(view: View, belief: Belief, order: object, at: float) -> View:
    """The search has looked; from its first order to search on, bits have a price."""
    purpose = order.purpose if isinstance(order, Measure) else None
    searching = view.searching
    if searching is None and purpose in (Purpose.SEARCH, Purpose.CONFIRM):
        searching = (at, bits(belief))
    return replace(view, belief=belief, purpose=purpose, searching=searching)


def built(view: View, event: BuildFinished, at: float) -> View:
    """A build is there."""
    facts, row = event.facts, row_of(view, event.candidate)
    row = replace(
        row,
        builds=row.builds + (not facts.reused),
        build_seconds=row.build_seconds + (0.0 if facts.reused else facts.seconds),
        hit_rate=facts.hit_rate,
        reused=facts.reused,
        same_as=event.same_as,
    )
    now = view.now
    if isinstance(now, Building):
        now = replace(now, finished=True, done=now.total)
    return with_row(replace(view, now=now, log=(*view.log, (at, event))), event.candidate, row)


def ran(view: View, event: RunFinished, at: float) -> View:
    """A run is done."""
    facts, row = event.facts, row_of(view, event.candidate)
    now = view.now
    lasted = facts.seconds
    if isinstance(now, Running):
        lasted = max(lasted, at - now.since)
        now = replace(now, finished=True, samples=now.samples or facts.samples)
    row = replace(
        row,
        qps=(*row.qps, facts.qps),
        shown=(*row.shown, shown(facts, view.metric)),
        run_seconds=row.run_seconds + lasted,
        skipped="",
    )
    return with_row(replace(view, now=now, log=(*view.log, (at, event))), event.candidate, row)


def row_of(view: View, candidate: int) -> Row:
    """The row of a candidate, a new one if it has none."""
    return view.rows.get(candidate) or Row(view.commit(candidate))


def with_row(view: View, candidate: int, row: Row) -> View:
    """The view with one row changed."""
    return replace(view, rows={**view.rows, candidate: row})


def minutes_left(view: View, now: float) -> float | None:
    """Estimated minutes until the verdict; None while nothing tells what bits cost here."""
    if view.belief is None or view.verdict is not None:
        return None
    built_in = [row.build_seconds / 60 for row in view.rows.values() if row.builds]
    ran_in = [row.run_seconds / 60 / len(row.qps) for row in view.rows.values() if row.qps]
    if not ran_in:
        return None
    missing = bits(view.belief)
    since, at_first = view.searching or (now, missing)
    pace = Pace((now - since) / 60, at_first - missing, median(built_in) if built_in else 0.0, median(ran_in))
    return remaining(missing, pace, view.purpose is Purpose.CONFIRM)
