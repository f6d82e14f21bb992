"""Views that write lines of text when events happen: sentences for people, logs and screen readers; JSON for programs.

In JSON, each event is an object on one line. The key ``event`` has the name of the event's class in
``perfbisect.core.domain.events``. But SessionStarted and SessionEnded are called HuntStarted and HuntEnded for a hunt,
and TrialStarted and TrialEnded for a trial. ``at`` is the time in seconds since the epoch. All other keys are the
fields of the event's class. If a field can have several types, its value has the key ``kind`` with the name of the
type. In ``order`` and ``verdict``, the kinds are Measure, Found, Several, NotReproduced, CodePlacement and
Inconclusive.

    {"event": "RunFinished", "at": 1.6e9, "candidate": 7, "facts": {"operations": 123, "seconds": 10.0, …}}
    {"event": "Decided", "at": 1.6e9, "order": {"kind": "Measure", …}, "belief": {"culprit": …, "noise": 0.01, …}}

If one process carries out several hunts, each object has ``hunt``, the number of its hunt.

A candidate is given by its index in the field ``candidates`` of HuntStarted. ``belief`` has, for each candidate, two
probabilities: that it is the culprit (``culprit``), and that its build is slow (``slow``). Each list of probabilities
is run-length encoded in the sequence of ``candidates``: [[length, probability], …], with four digits. Infinity is
written as the largest float. Characters outside of ASCII are escaped.
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain, repeat
from typing import Self, TextIO

from rich.cells import cell_len

from perfbisect.core.domain import codec
from perfbisect.core.domain.events import (
    BuildCancelled,
    BuildFinished,
    BuildStarted,
    CandidateSkipped,
    ChangedFunctions,
    Commit,
    Counted,
    Decided,
    Event,
    ExecutionStarted,
    Foreseen,
    MetricChosen,
    PairingChosen,
    Planned,
    Profiled,
    Remedied,
    RunFinished,
    SessionEnded,
    SessionStarted,
    Unexplained,
    Warned,
)
from perfbisect.core.domain.measured_log import is_of_build
from perfbisect.core.domain.metrics import find_metric, has_metric_unit, shown_unit, shown_value
from perfbisect.core.domain.orders import Decision, Measure, Purpose
from perfbisect.core.domain.session_state import SessionState
from perfbisect.core.explain.profiles import COUNTED
from perfbisect.errors import PerfBisectError
from perfbisect.process import CLOCK
from perfbisect.ui.screen import verdict_sentences
from perfbisect.ui.session_update import view_after, view_after_earlier_attempts
from perfbisect.ui.session_view import REPORT, Activity, LatestRun, Report, SessionRow, SessionView, TimedEvent
from perfbisect.ui.stream import write_line
from perfbisect.wording.quantities import build_origin, count, duration, extent, figure, ratio, stopped_run, time_of_day
from perfbisect.wording.text import advised, counted_execution_text, listed, patch_summary, printable, safe_json
from perfbisect.wording.verdicts import PURPOSES

OfCommit = (
    BuildStarted | BuildFinished | BuildCancelled | CandidateSkipped | ExecutionStarted | RunFinished | Counted | Profiled
    | Planned | ChangedFunctions
)  # fmt: skip
SILENCE = 60.0  # seconds without a line, after which a line says what the hosts are busy with


def event_lines(view: SessionView, event: Event, at: float) -> Iterator[str]:
    """The lines of text for ``event``; ``view`` is the state of the view after the event."""
    if view.trial_state:
        yield from trial_lines(view, view.trial_state, event)
        return
    for position, (word, text) in enumerate(labelled_texts(view, event)):
        yield f"{'' if position else time_of_day(at):8}  {word:9} {text}"


def labelled_texts(view: SessionView, event: Event) -> Iterator[tuple[str, str]]:
    """The lines of text for an event of a hunt; each line is a pair of a word and a text. Events about progress have no
    lines."""
    match event:
        case SessionStarted():
            yield "resumed" if event.resumed else "hunt", hunt_start_text(event)
            yield "", f"Ratios are to the runs of good ({view.commit(0).short_sha}) so far, with their 95 % intervals."
        case MetricChosen(why=why):
            yield "metric", why
        case Remedied():
            yield "remedied", f"{event.why}; all builds use this option now, and runs of unchanged binaries stay valid"
        case PairingChosen(why=why):
            yield "pairing", why
        case Foreseen(text):
            yield "forecast", text
        case Warned(text, advice):
            yield "warning", advised(text, advice)
        case Decided(Decision(order=Measure() as order)):
            host = view.measuring_hosts[order.host] if view.measuring_hosts else ""
            yield "next", f"{host_prefix(view, host)}{decision_text(view, order)}"
        case Unexplained(part, reason):
            yield "warning", f"{host_prefix(view, event.host)}the reason has no {part}: {printable(reason)}"
        case SessionEnded() if view.is_verdict_final and not event.reason_follows:
            yield "reason", view.reason or "The reason cannot be measured for this workload."
            yield "", view.report_hint
        case SessionEnded(verdict=verdict) if verdict:
            yield from zip(chain(["verdict"], repeat("")), verdict_sentences(view, verdict), strict=False)
            if event.reason_follows:
                yield "", "The verdict is final. Now its reason is measured; Ctrl-C stops this measurement."
            else:
                yield from (("", text) for text in (view.reason, view.report_hint) if text)
        case _ if isinstance(event, OfCommit) and (entry := labelled_commit_text(view, event)):
            host = "" if isinstance(event, ChangedFunctions) else event.host
            yield entry[0], f"{host_prefix(view, host)}{view.commit(event.candidate).short_sha}  {entry[1]}"
            if isinstance(event, CandidateSkipped):
                remedy, log = event.facts.known, event.facts.log
                yield from [("", f"log: {printable(log)}")] if log else []
                yield from [("", f"for {remedy.name}: {remedy.remedy}")] if remedy else []
        case _:
            pass


def labelled_commit_text(view: SessionView, event: OfCommit) -> tuple[str, str] | None:
    """The word and the text of the line for an event about a commit; None if the event has no line."""
    match event:
        case BuildStarted(commit=commit, reused=False):  # a reused build has only the line of the event BuildFinished
            return "building", printable(f"{commit.date} {commit.short_subject}")
        case BuildFinished():
            return "built", build_text(view, event)
        case BuildCancelled(_, _, seconds):
            return "ended", f"the build is no longer needed; stopped after {duration(seconds)}"
        case CandidateSkipped(_, facts):
            return "skipped", f"{facts.stage}: {printable(facts.reason)}"
        case ExecutionStarted(number=1):  # of a counted run; a timed run has no line: its end is known
            return "running", counted_execution_text(event)
        # A run that another hunt has ordered is shown by the other hunt.
        case RunFinished(facts=run) if not (run.for_another and run.started < (view.began or 0.0)):
            return "ran", run_text(view, event)
        case Counted(group=group):
            return "reason", f"counters: {group}"
        case Profiled(_, facts):
            return "reason", "instructions by function" if facts.unit == COUNTED else "profile"
        case Planned():
            return "reason", "plan of a statement"
        case ChangedFunctions(_, facts):
            return "reason", count(len(facts.functions), "changed function")
        case _:
            return None


def trial_lines(view: SessionView, trial: SessionState, event: Event) -> Iterator[str]:
    """The lines of text for an event of a trial."""
    request, runs = trial.request, trial.run_count
    if view.has_moved:  # can be true at RunFinished, because a history keeps no RunStarted
        yield view.place
    match event:
        case SessionStarted(resumed=True):
            yield f"continuing {trial.name}, which has {count(runs, 'run')} so far"
        case MetricChosen(why=why):
            yield why
        case PairingChosen(why=why):
            yield f"{why} Runs still to be made: {left}." if (left := view.expected_runs.runs - runs) > 0 else why
        case Warned(text, advice):
            yield f"warning: {advised(text, advice)}"
        case BuildStarted(number, commit) if not request.subjects[number].key:
            variant, does = request.subjects[number].variant, "already built:" if event.reused else "building"
            yield printable(f"{does} {commit.short_sha}{variant and '@'}{variant}  {commit.short_subject}")
        case CandidateSkipped():
            text, advice = [*view.state.warnings.items()][-1]
            yield f"warning: {advised(text, advice)}"
        case RunFinished(facts=facts):
            expected = view.expected_runs
            of = f" of {expected.runs}" if runs <= expected.runs and not expected.may_change else ""
            metric = find_metric(request.metric)
            value = metric.read(facts)
            rate = f"no {metric.name}" if value is None else f"{figure(value)} {printable(metric.unit_of(facts))}"
            yield f"  run {runs}{of}  {rate}{', paired' * bool(facts.round)}"
        case _:
            pass


def hunt_start_text(event: SessionStarted) -> str:
    """The text that announces a hunt: its number, builder, workload, hosts, ends, and the size of its range."""
    hosts = listed([facts.name for facts in event.hosts])
    builds = f", built on {listed(event.build_hosts)}" if event.build_hosts else ""
    good, bad = printable(event.good), printable(event.bad)
    size = extent(event.commits, event.possible_culprits, event.merges)
    if event.of_merge_base:
        base = Commit(event.candidates[0]).short_sha
        size = f"good {good} is not an ancestor of bad {bad}. First, good is compared with the merge base {base}, which replaces good if both are equally fast"
    if event.parts:
        size = f"{count(len(event.parts), 'part')} of the diff, added one after the other"
    return f"{event.session}: {event.builder} {event.workload} on {hosts}{builds}, {good}..{bad}: {size}"


def host_prefix(view: SessionView, host: str) -> str:
    """The name of a host and spaces, as the beginning of a line; "" if there is only one host."""
    return f"{host}  " if view.measuring_hosts and host else ""


def build_text(view: SessionView, event: BuildFinished) -> str:
    """A text about a finished build: its duration, its patches, and an earlier commit with the same binary."""
    facts, commit = event.facts, view.commit(event.candidate)
    parts = build_origin(facts)
    if facts.reused and not facts.shared:
        parts = [f"{commit.date} {commit.short_subject}: {parts[0]}"]
    twin = view.state.facts_of(facts.commit).same_as
    parts += [patch_summary(facts.patches), f"same binary as {Commit(twin).short_sha}" if twin else ""]
    return ", ".join(filter(None, parts))


def run_text(view: SessionView, event: RunFinished) -> str:
    """A text about a finished run: its metric, the present ratio of its build to the baseline, its number and its
    purpose."""
    interval = view.ratio(event.candidate)
    facts = event.facts
    metric = view.shown_metric_of(facts)
    measured = f"{figure(shown_value(facts, metric)):>10} {printable(shown_unit(metric, facts))}"
    if facts.slower_than:
        measured = stopped_run(facts.slower_than, facts.seconds)
    compared = f"{view.ratio_title} {ratio(interval)}" if interval and has_metric_unit(facts, view.metric) else ""
    if facts.layout and view.pair_in_randomized_layouts:
        comparisons = dict(zip(view.pair_in_randomized_layouts, (view.layout_ratio, "baseline"), strict=True))
        compared = comparisons.get(event.candidate, "")
    elif view.is_baseline(event.candidate):
        compared = "baseline"
    now, number = view.latest_activity, ""
    if isinstance(now, LatestRun):
        number = f"{'round' if facts.round else 'run'} {now.number} of {now.runs_of_order} for {PURPOSES[now.purpose]}"
    layout = f"{', ' * bool(number)}layout {facts.layout}" if facts.layout else ""
    return f"{measured}  {compared:24}  {number}{layout}".rstrip()


def decision_text(view: SessionView, order: Measure) -> str:
    """A text about the next measurement, and the most probable culprit."""
    ends = {} if (hunt := view.hunt_start) and hunt.of_merge_base else {0: "good ", len(view.state.commits) - 1: "bad "}
    plan = ", ".join(
        f"{count(share.runs, 'run') if share.runs else 'the build'} of {ends.get(share.candidate, '')}{view.commit(share.candidate).short_sha}"
        for share in order.plan
    )
    together = ", paired" * order.together
    layouts = ", each run in a randomized layout" * order.fresh
    counted = ", with counts of instructions" * order.counted
    purpose = f", for {PURPOSES[order.purpose]}" * (order.purpose is not Purpose.ENDS)
    link = "; " if view.ends_differ else ", because "
    return f"{plan}{together}{layouts}{counted}{purpose}{link}{view.verdict_or_progress}"


def activity_line(view: SessionView, host: str, activity: Activity, now: float) -> str:
    """A line about the build or run in progress on a host: its progress, and its duration until ``now``."""
    if isinstance(activity, LatestRun):
        word, steps = "running", f"run {activity.number} of {activity.runs_of_order}, "
    else:
        word = "building"
        steps = f"{activity.done_steps:,} of {activity.total_steps:,}, " if activity.total_steps else ""
    title, _ = view.activity_title(activity)
    name, since = host_prefix(view, host), duration(now - activity.since)
    return f"{time_of_day(now)}  {word:9} {name}{title}  {steps}{since} so far"


def event_json(event: Event, at: float, hunt: int | None = None) -> str:
    """The JSON object of an event, without a newline. If there are several hunts, ``hunt`` is the number of the event's
    hunt."""
    named = {} if hunt is None else {"hunt": hunt}
    return codec.dumps({"event": codec.event_kind(event), "at": at, **named, **codec.encode(event)})


class JsonLines:
    """A view that writes each event immediately, as a line of JSON. If ``titles`` has several hunts, each line has the
    number of its hunt."""

    def __init__(self, stream: TextIO, titles: Mapping[int, str]) -> None:
        self.stream, self.several = stream, len(titles) > 1

    def add_events(self, hunt: int, events: Iterable[TimedEvent]) -> None:
        """Write the lines of events immediately."""
        for at, event in events:
            write_line(safe_json(event_json(event, at, hunt if self.several else None)), self.stream)

    def add_earlier_events(self, hunt: int, events: Iterable[TimedEvent]) -> None:
        """Do nothing, because earlier attempts have already written the lines of these events."""

    def set_rows(self, rows: Sequence[SessionRow]) -> None:
        """Do nothing, because this view writes only events, and the state of another process is not an event."""

    def show_hunt_end(self, hunt: int, at: float) -> None:
        """Do nothing, because no line follows the verdict."""

    def close(self) -> None:
        """Do nothing, because no line is buffered."""


class PlainLines:
    """A view that writes lines of text for people. If there are several hunts, each line begins with the title of its
    hunt.

    ``together`` is true if one process carries out all hunts; in this case, a line about a build that several hunts
    share is written once, and a verdict is written twice: briefly when it is reached, and in full sentences at the end
    of its hunt. ``report`` returns the command that shows the report of a hunt. If ``quiet`` is true, only warnings and
    skipped candidates are written.
    """

    def __init__(
        self,
        stream: TextIO,
        titles: Mapping[int, str],
        report: Report = REPORT,
        *,
        together: bool = False,
        quiet: bool = False,
        now: Callable[[], float] = CLOCK.now,
    ) -> None:
        self.stream = stream
        self.now, self.latest = now, now()  # latest: when the last line was written
        self._writing, self._closed = threading.Lock(), threading.Event()
        self.report, self.together, self.quiet = report, together, quiet
        wide = max(map(cell_len, titles.values()), default=0)
        several = len(titles) > 1
        self.prefixes = {hunt: f"{printable(title).ljust(wide)}  " * several for hunt, title in titles.items()}
        self.views: dict[int, SessionView] = {hunt: SessionView(report_command=report) for hunt in titles}
        # (hunt, event) of the latest event about a build that was printed.
        self.build: tuple[int, BuildStarted | BuildFinished | CandidateSkipped] | None = None
        self.warnings: set[str] = set()
        self.rows: Sequence[SessionRow] = ()

    def start_reminders(self) -> Self:
        """Start a thread that calls ``write_activity_if_silent`` each minute until the view is closed."""

        def remind() -> None:
            with suppress(PerfBisectError, ValueError):  # if the output is closed, the next event reports the error
                while not self._closed.wait(max(SILENCE / 60, self.latest + SILENCE - self.now())):
                    self.write_activity_if_silent()

        threading.Thread(target=remind, name="reminders", daemon=True).start()
        return self

    def write_activity_if_silent(self) -> None:
        """If no line was written for a minute, write for each host which build or run is in progress."""
        with self._writing:
            now, written = self.now(), set[str]()  # the line of a run that is for several hunts is written once
            for hunt, view in self.views.items() if now - self.latest >= SILENCE and not self.quiet else ():
                for host, doing in view.activity_by_host.items():
                    line = activity_line(view, host, doing, now) if doing and not doing.is_finished else ""
                    if line and line not in written:
                        written.add(line)
                        self._write(hunt, line)

    def _write(self, hunt: int, line: str) -> None:
        # The lines of hunts that began after this view have the hunt's number as a prefix.
        write_line(f"{self.prefixes.get(hunt, f'{hunt:3}  ')}{line}", self.stream)
        self.latest = self.now()

    def show_hunt_end(self, hunt: int, at: float) -> None:
        """Note that a hunt ended at ``at`` (epoch seconds), so that no host works for this hunt any more."""
        with self._writing:
            self.views[hunt] = self.views[hunt].stopped_at(at)

    def close(self) -> None:
        """End the reminders."""
        self._closed.set()

    def add_earlier_events(self, hunt: int, events: Iterable[TimedEvent]) -> None:
        """Update the view of a hunt by the events of earlier attempts, which have written their lines."""
        self.views[hunt] = view_after_earlier_attempts(SessionView(report_command=self.report), events)

    def add_events(self, hunt: int, events: Iterable[TimedEvent]) -> None:
        """Write the lines of events immediately."""
        with self._writing:
            for at, event in events:
                view = self.views[hunt] = view_after(self.views[hunt], event, at)
                repeated = self.together and self._is_written(hunt, event)
                texts_of_event = [] if repeated else [*event_lines(view, event, at)]
                if self.together and isinstance(event, Decided) and view.search_verdict:
                    texts_of_event.append(f"{time_of_day(at)}  {'decided':9} {view.verdict_or_progress}")
                for line in texts_of_event if not self.quiet or isinstance(event, Warned | CandidateSkipped) else ():
                    self._write(hunt, line)

    def set_rows(self, rows: Sequence[SessionRow]) -> None:
        """Write a line for each hunt of another process whose state has changed."""
        former = [row.state for row in self.rows] or [""] * len(rows)
        for row, state in zip(rows, former, strict=True):
            if row.state != state:
                write_line(f"batch    {printable(row.title)}: {printable(row.state)}", self.stream)
        self.rows = rows

    def _is_written(self, hunt: int, event: Event) -> bool:
        """Whether the line of an event was already written for another hunt, which has logged the same event."""
        if isinstance(event, Warned):
            warned = event.text in self.warnings
            self.warnings.add(event.text)
            return warned
        if not (isinstance(event, BuildStarted | BuildFinished | CandidateSkipped) and is_of_build(event)):
            return False
        writer, written = self.build or (hunt, event)
        repeated = writer != hunt and type(written) is type(event) and written.candidate == event.candidate
        self.build = (writer, written) if repeated else (hunt, event)
        return repeated
