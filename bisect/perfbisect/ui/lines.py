"""Events as lines, as they happen: with the time of day for people, logs and screen readers; in JSON for programs.

In JSON each event is one object. It has ``event`` (the name of a class of ``perfbisect.core.domain.events``; HuntStarted and
HuntEnded for the ends of a hunt, TrialStarted and TrialEnded for those of a trial) and ``at`` (seconds since the epoch); the
other keys are the fields of that class. Where a field can have several types, its object
names its type in ``kind``: ``order`` and ``verdict`` are Measure, Found, Several, NotReproduced, CodePlacement or Inconclusive.

    {"event": "RunFinished", "at": 1.6e9, "candidate": 7, "facts": {"operations": 123, "seconds": 10.0, …}}
    {"event": "Decided", "at": 1.6e9, "order": {"kind": "Measure", …}, "belief": {"culprit": …, "noise": 0.01, …}}

Where one process carries out hunts of several workloads, each object has ``hunt``, the number of its hunt.

Candidates are positions in ``candidates`` of HuntStarted. The belief gives for every candidate the probability that
it is the culprit (``culprit``) and that it is slow (``slow``), each as runs [[how many, probability], …] along
``candidates``, in four digits. What has no bound is written as the largest number. The text is ASCII: other signs are
escaped.
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
from perfbisect.core.domain.metrics import comparable, find_metric, shown, unit
from perfbisect.core.domain.orders import Decision, Measure
from perfbisect.core.domain.session_state import SessionState
from perfbisect.core.explain.profiles import COUNTED
from perfbisect.errors import PerfBisectError
from perfbisect.process import CLOCK
from perfbisect.ui.screen import verdict_sentences
from perfbisect.ui.session_update import recalled, update
from perfbisect.ui.session_view import REPORT, ActiveBuild, ActiveRun, Report, SessionRow, SessionView, TimedEvent
from perfbisect.ui.stream import put
from perfbisect.wording.quantities import count, duration, extent, figure, made, ratio, slower_than, time_of_day
from perfbisect.wording.text import advised, execution, listed, patched, printable, safe_json
from perfbisect.wording.verdicts import PURPOSES

OfCommit = (
    BuildStarted | BuildFinished | BuildCancelled | CandidateSkipped | ExecutionStarted | RunFinished | Counted | Profiled
    | Planned | ChangedFunctions
)  # fmt: skip
SILENCE = 60.0  # seconds without a line, after which there is one about what is still done


def lines(view: SessionView, event: Event, at: float) -> Iterator[str]:
    """The lines of ``event``; ``view`` includes it."""
    if view.trial:
        yield from lines_of_trial(view, view.trial, event)
        return
    for place, (word, text) in enumerate(texts(view, event)):
        yield f"{'' if place else time_of_day(at):8}  {word:9} {text}"


def texts(view: SessionView, event: Event) -> Iterator[tuple[str, str]]:
    """The text of an event of a hunt: a word, and the facts. Progress has none."""
    match event:
        case SessionStarted():
            yield "resumed" if event.resumed else "hunt", hunt(event)
            yield "", f"Ratios are of all runs of a build so far, relative to the baseline, {view.commit(0).short}."
        case MetricChosen(why=why):
            yield "metric", why
        case Remedied():
            yield "remedied", f"{event.why}: all builds are made with that, and readings stay where the binary does"
        case PairingChosen(why=why):
            yield "pairing", why
        case Foreseen(text):
            yield "forecast", text
        case Warned(text, advice):
            yield "warning", advised(text, advice)
        case Decided(Decision(order=Measure() as order)):
            host = view.hosts[order.host] if view.hosts else ""
            yield "decided", f"{named(view, host)}{decided(view, order)}"
        case Unexplained(part, reason):
            yield "warning", f"{named(view, event.host)}no {part} for the reason: {printable(reason)}"
        case SessionEnded() if view.stands and not event.reason_follows:
            yield "reason", view.why or "Nothing of the workload can be measured for it."
            yield "", view.report_hint
        case SessionEnded(verdict=verdict) if verdict:
            yield from zip(chain(["verdict"], repeat("")), verdict_sentences(view, verdict), strict=False)
            if event.reason_follows:
                yield "", "Its reason follows. Ctrl-C ends that, and the verdict stands."
            else:
                yield from (("", text) for text in (view.why, view.report_hint) if text)
        case _ if isinstance(event, OfCommit) and (said := of_commit(view, event)):
            host = "" if isinstance(event, ChangedFunctions) else event.host
            yield said[0], f"{named(view, host)}{view.commit(event.candidate).short}  {said[1]}"
            if isinstance(event, CandidateSkipped):
                known, log = event.facts.known, event.facts.log
                yield from [("", f"log: {printable(log)}")] if log else []
                yield from [("", f"for {known.name}: {known.option}")] if known else []
        case _:
            pass


def of_commit(view: SessionView, event: OfCommit) -> tuple[str, str] | None:
    """The word and the facts of what is done with a commit."""
    match event:
        case BuildStarted(commit=commit, reused=False):  # what is used again has the line of its end alone
            return "building", printable(f"{commit.date} {commit.title}")
        case BuildFinished():
            return "built", built(view, event)
        case BuildCancelled(_, _, seconds):
            return "ended", f"its build is of no use any more, after {duration(seconds)}"
        case CandidateSkipped(_, facts):
            return "skipped", f"{facts.stage}: {printable(facts.reason)}"
        case ExecutionStarted(number=1):  # no line for a run that is timed: it has a known end
            return "running", execution(event)
        case RunFinished(facts=run) if not (run.for_another and run.started < (view.began or 0.0)):  # shown elsewhere
            return "ran", ran(view, event)
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


def lines_of_trial(view: SessionView, trial: SessionState, event: Event) -> Iterator[str]:
    """The lines of an event of a trial."""
    request, runs = trial.request, trial.run_count
    if view.moved:  # a history does not keep that a run begins
        yield view.place
    match event:
        case SessionStarted(resumed=True):
            yield f"continuing {trial.name}, which has {count(runs, 'run')}"
        case MetricChosen(why=why):
            yield why
        case PairingChosen(why=why):
            yield f"{why} {count(view.expected.runs - runs, 'run')} to go."
        case Warned(text, advice):
            yield f"warning: {advised(text, advice)}"
        case BuildStarted(number, commit) if not request.subjects[number].key:
            variant, does = request.subjects[number].variant, "built already:" if event.reused else "building"
            yield printable(f"{does} {commit.short}{variant and '@'}{variant}  {commit.title}")
        case CandidateSkipped():
            text, advice = [*view.state.warnings.items()][-1]
            yield f"warning: {advised(text, advice)}"
        case RunFinished(facts=facts):
            of = f" of {view.expected.runs}" if runs <= view.expected.runs and not view.expected.open else ""
            metric = find_metric(request.metric)
            value = metric.read(facts)
            rate = f"no {metric.name}" if value is None else f"{figure(value)} {printable(metric.unit_of(facts))}"
            yield f"  run {runs}{of}  {rate}{', in a pair' * bool(facts.round)}"
        case _:
            pass


def hunt(event: SessionStarted) -> str:
    """What is hunted."""
    hosts = listed([facts.name for facts in event.hosts])
    builds = f", built on {listed(event.build_hosts)}" if event.build_hosts else ""
    good, bad = printable(event.good), printable(event.bad)
    size = extent(event.commits, event.choices, event.merges)
    if event.of_merge_base:
        base = Commit(event.candidates[0]).short
        size = f"{good} is no ancestor of {bad}, so it is compared with their merge base, {base}, first: if both are as fast, that stands in for it"
    if event.parts:
        size = f"{count(len(event.parts), 'part')} of the diff, one after the other"
    return f"{event.session}: {event.builder} {event.workload} on {hosts}{builds}, {good}..{bad}: {size}"


def named(view: SessionView, host: str) -> str:
    """The name of a host, where there are several."""
    return f"{host}  " if view.hosts and host else ""


def built(view: SessionView, event: BuildFinished) -> str:
    """How long a build took, and with what result."""
    facts, commit = event.facts, view.commit(event.candidate)
    parts = made(facts)
    if facts.reused and not facts.shared:
        parts = [f"{commit.date} {commit.title}: {parts[0]}"]
    same = view.state.row(facts.commit).same_as
    parts += [patched(facts.patches), f"same binary as {Commit(same).short}" if same else ""]
    return ", ".join(filter(None, parts))


def ran(view: SessionView, event: RunFinished) -> str:
    """The rate of a run, how its build now compares with the baseline, and which run it was."""
    found = view.ratio(event.candidate)
    facts = event.facts
    metric = view.metric_of(facts)
    measured = f"{figure(shown(facts, metric)):>10} {printable(unit(metric, facts))}"
    if facts.slower_than:
        measured = slower_than(facts.slower_than, facts.seconds)
    compared = f"{view.ratio_title} {ratio(found)}" if found and comparable(facts, view.metric) else ""
    if facts.layout and view.beside:
        compared = dict(zip(view.beside, (view.layouts, "baseline"), strict=True)).get(event.candidate, "")
    elif view.is_baseline(event.candidate):
        compared = "baseline"
    now, which = view.now, ""
    if isinstance(now, ActiveRun):
        which = f"{'round' if facts.round else 'run'} {now.number} of {now.of}, {PURPOSES[now.purpose]}"
    layout = f"{', ' * bool(which)}layout {facts.layout}" if facts.layout else ""
    return f"{measured}  {compared:24}  {which}{layout}".rstrip()


def decided(view: SessionView, order: Measure) -> str:
    """Who leads, and what is measured next."""
    plan = ", ".join(
        f"{'' if share.runs else 'the build of '}{view.commit(share.candidate).short}{f' x{share.runs}' * (share.runs > 0)}"
        for share in order.plan
    )
    together = ", paired" * order.together
    layouts = ", each run in another layout" * order.fresh
    counted = ", their instructions counted" * order.counted
    return f"{view.brief}; next, for {PURPOSES[order.purpose]}: {plan}{together}{layouts}{counted}"


def still(view: SessionView, host: str, doing: ActiveBuild | ActiveRun, now: float) -> str:
    """What a host is busy with, and for how long so far."""
    if isinstance(doing, ActiveRun):
        word, steps = "running", f"run {doing.number} of {doing.of}, "
    else:
        word, steps = "building", f"{doing.done:,} of {doing.total:,}, " if doing.total else ""
    title, _ = view.title(doing)
    return f"{time_of_day(now)}  {word:9} {named(view, host)}{title}  {steps}{duration(now - doing.since)} so far"


def encode(event: Event, at: float, hunt: int | None = None) -> str:
    """The line of an event, without its end; with the number of its ``hunt`` where there are several."""
    named = {} if hunt is None else {"hunt": hunt}
    return codec.dumps({"event": codec.kind_of(event), "at": at, **named, **codec.encode(event)})


class JsonLines:
    """A view that writes each event as JSON at once, and keeps nothing to draw.

    ``titles`` are those of its hunts; of several hunts each line has the number of its own.
    """

    def __init__(self, stream: TextIO, titles: Mapping[int, str]) -> None:
        self.stream, self.several = stream, len(titles) > 1

    def show(self, hunt: int, events: Iterable[TimedEvent]) -> None:
        """Write the lines of events, at once."""
        for at, event in events:
            put(safe_json(encode(event, at, hunt if self.several else None)), self.stream)

    def recall(self, hunt: int, events: Iterable[TimedEvent]) -> None:
        """The lines of earlier sittings of a resumed hunt were written then."""

    def states(self, rows: Sequence[SessionRow]) -> None:
        """The states of hunts that others carry out are no events."""

    def end(self, hunt: int, at: float) -> None:
        """Nothing follows the verdict."""

    def close(self) -> None:
        """Nothing is buffered, so nothing is left to do."""


class PlainLines:
    """The lines of each event for people; of several hunts after the title of theirs.

    With ``together`` one process carries out all of them: what they have in common is written once, and a verdict both
    when it is reached and at the end of its hunt, with its sentences. ``report`` as in the view. With ``quiet`` only what goes
    wrong is written.
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
        self.now, self.latest = now, now()  # the latter when a line was written last
        self._writing, self._closed = threading.Lock(), threading.Event()
        self.report, self.together, self.quiet = report, together, quiet
        wide = max(map(cell_len, titles.values()), default=0)
        several = len(titles) > 1
        self.prefixes = {hunt: f"{printable(title).ljust(wide)}  " * several for hunt, title in titles.items()}
        self.views: dict[int, SessionView] = {hunt: SessionView(report=report) for hunt in titles}
        # The latest event about a build that was written, and its hunt.
        self.build: tuple[int, BuildStarted | BuildFinished | CandidateSkipped] | None = None
        self.warnings: set[str] = set()
        self.rows: Sequence[SessionRow] = ()

    def reminding(self) -> Self:
        """This view, which from here on says each minute what is done, until it is closed."""

        def remind() -> None:
            with suppress(PerfBisectError, ValueError):  # nobody reads any more: the next event reports that
                while not self._closed.wait(max(SILENCE / 60, self.latest + SILENCE - self.now())):
                    self.remind()

        threading.Thread(target=remind, name="reminders", daemon=True).start()
        return self

    def remind(self) -> None:
        """Write what each host is busy with, if nothing was written for a minute."""
        with self._writing:
            now, said = self.now(), set[str]()  # the same is done for several hunts together
            for hunt, view in self.views.items() if now - self.latest >= SILENCE and not self.quiet else ():
                for host, doing in view.busy.items():
                    if doing and not doing.finished and (line := still(view, host, doing, now)) not in said:
                        said.add(line)
                        self._write(hunt, line)

    def _write(self, hunt: int, line: str) -> None:
        # Of hunts that begin later, their numbers.
        put(f"{self.prefixes.get(hunt, f'{hunt:3}  ')}{line}", self.stream)
        self.latest = self.now()

    def end(self, hunt: int, at: float) -> None:
        """Nothing is done for it any more."""
        with self._writing:
            self.views[hunt] = self.views[hunt].stopped(at)

    def close(self) -> None:
        """Say no more."""
        self._closed.set()

    def recall(self, hunt: int, events: Iterable[TimedEvent]) -> None:
        """Take the events of earlier sittings of a hunt; their lines were written then."""
        self.views[hunt] = recalled(SessionView(report=self.report), events)

    def show(self, hunt: int, events: Iterable[TimedEvent]) -> None:
        """Write the lines of events, at once."""
        with self._writing:
            for at, event in events:
                view = self.views[hunt] = update(self.views[hunt], event, at)
                said = [] if self.together and self._is_written(hunt, event) else [*lines(view, event, at)]
                if self.together and isinstance(event, Decided) and view.decided:
                    said.append(f"{time_of_day(at)}  {'decided':9} {view.brief}")
                for line in said if not self.quiet or isinstance(event, Warned | CandidateSkipped) else ():
                    self._write(hunt, line)

    def states(self, rows: Sequence[SessionRow]) -> None:
        """Write which states of hunts, which others carry out, have changed."""
        before = [row.state for row in self.rows] or [""] * len(rows)
        for row, state in zip(rows, before, strict=True):
            if row.state != state:
                put(f"batch    {printable(row.title)}: {printable(row.state)}", self.stream)
        self.rows = rows

    def _is_written(self, hunt: int, event: Event) -> bool:
        """Whether the same was written for another hunt; it is what happens next in the log of each."""
        if isinstance(event, Warned):
            known = event.text in self.warnings
            self.warnings.add(event.text)
            return known
        if not (isinstance(event, BuildStarted | BuildFinished | CandidateSkipped) and is_of_build(event)):
            return False
        other, written = self.build or (hunt, event)
        same = other != hunt and type(written) is type(event) and written.candidate == event.candidate
        self.build = (other, written) if same else (hunt, event)
        return same
