"""Events as lines, as they happen: with the time of day for people, logs and screen readers; in JSON for programs, and back.

In JSON each event is one object. It has ``event`` (the name of a class of ``perfbisect.core.domain.events``) and ``at``
(seconds since the epoch); the other keys are the fields of that class. Where a field can have several types, its object
names its type in ``kind``: ``order`` and ``verdict`` are Measure, Found, Several, NotReproduced, CodePlacement or Inconclusive.

    {"event": "RunFinished", "at": 1.6e9, "candidate": 7, "facts": {"operations": 123, "seconds": 10.0, …}}
    {"event": "Decided", "at": 1.6e9, "order": {"kind": "Measure", …}, "belief": {"culprit": …, "noise": 0.01, …}}

Where one process carries out hunts of several workloads, each object has ``hunt``, the number of its hunt.

Candidates are positions in ``candidates`` of HuntStarted. The belief gives for every candidate the probability that
it is the culprit (``culprit``) and that it is slow (``slow``), each as runs [[how many, probability], …] along
``candidates``, in four digits. What has no bound is written as the largest number. The text is ASCII: other signs are
escaped.
"""

import json
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Self, TextIO

from rich.cells import cell_len

from perfbisect.clock import CLOCK
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
    HuntEnded,
    HuntStarted,
    MetricChosen,
    PairingChosen,
    Planned,
    Profiled,
    Remedied,
    RunFinished,
    Unexplained,
    Warned,
)
from perfbisect.core.domain.metrics import comparable, shown, unit
from perfbisect.core.domain.orders import Decision, Measure
from perfbisect.core.explain.profiles import COUNTED
from perfbisect.core.inference.observations import is_of_build
from perfbisect.errors import PerfBisectError
from perfbisect.ui.screen import verdict_sentences
from perfbisect.ui.stream import put
from perfbisect.ui.trial import TrialView, activity, recalled_session
from perfbisect.ui.view_model import REPORT, Building, Report, Row, Running, TimedEvent, ViewModel, update
from perfbisect.wording.quantities import (
    count,
    duration,
    extent,
    figure,
    made,
    ratio,
    slower_than,
    time_of_day,
)
from perfbisect.wording.text import advised, execution, listed, patched, printable, safe_json
from perfbisect.wording.verdicts import PURPOSES

SILENCE = 60.0  # seconds without a line, after which there is one about what is still done


def lines(view: ViewModel, event: Event, at: float) -> Iterator[str]:
    """The lines of ``event``; ``view`` includes it."""
    for place, text in enumerate(texts(view, event)):
        yield f"{time_of_day(at)}  {text}" if place == 0 else f"{'':8}  {text}"


def texts(view: ViewModel, event: Event) -> Iterator[str]:
    """The text of an event: a word, the commit, the facts. Progress has none."""
    match event:
        case HuntStarted():
            yield f"{'resumed' if event.resumed else 'hunt':9} {hunt(event)}"
            yield f"{'':9} Ratios are of all runs of a build so far, relative to the baseline, {view.commit(0).short}."
        case MetricChosen(why=why):
            yield f"{'metric':9} {why}"
        case Remedied():
            yield f"{'remedied':9} {event.why}: all builds are made with that, and readings stay where the binary does"
        case PairingChosen(why=why):
            yield f"{'pairing':9} {why}"
        case Warned(text, advice):
            yield f"{'warning':9} {advised(text, advice)}"
        case Decided(Decision(order=Measure() as order)):
            yield f"{'decided':9} {named(view, view.hosts[order.host]) if view.hosts else ''}{decided(view, order)}"
        case BuildStarted(commit=commit, reused=False):  # what is used again has the line below alone
            yield f"{'building':9} {named(view, event.host)}{commit.short}  {about(commit)}"
        case BuildFinished(candidate):
            yield f"{'built':9} {named(view, event.host)}{view.commit(candidate).short}  {built(view, event)}"
        case BuildCancelled(candidate, _, seconds):
            took = f"its build is of no use any more, after {duration(seconds)}"
            yield f"{'ended':9} {named(view, event.host)}{view.commit(candidate).short}  {took}"
        case CandidateSkipped(candidate, facts):
            yield f"{'skipped':9} {named(view, event.host)}{view.commit(candidate).short}  {facts.stage}: {printable(facts.reason)}"
            if facts.log:
                yield f"{'':9} log: {printable(facts.log)}"
            if facts.known:
                yield f"{'':9} for {facts.known.name}: {facts.known.option}"
        case ExecutionStarted(candidate, number=1):  # no line for a run that is timed: it has a known end
            yield f"{'running':9} {named(view, event.host)}{view.commit(candidate).short}  {execution(event)}"
        case RunFinished(candidate):
            yield f"{'ran':9} {named(view, event.host)}{view.commit(candidate).short}  {ran(view, event)}"
        case Counted(candidate, group=group):
            yield f"{'reason':9} {named(view, event.host)}{view.commit(candidate).short}  counters: {group}"
        case Profiled(candidate, facts):
            what = "instructions by function" if facts.unit == COUNTED else "profile"
            yield f"{'reason':9} {named(view, event.host)}{view.commit(candidate).short}  {what}"
        case Planned(candidate):
            yield f"{'reason':9} {named(view, event.host)}{view.commit(candidate).short}  plan of a statement"
        case ChangedFunctions(candidate, facts):
            yield f"{'reason':9} {view.commit(candidate).short}  {count(len(facts.functions), 'changed function')}"
        case Unexplained(part, reason):
            yield f"{'warning':9} {named(view, event.host)}no {part} for the reason: {printable(reason)}"
        case HuntEnded() if view.stands and not event.reason_follows:
            yield f"{'reason':9} {view.why or 'Nothing of the workload can be measured for it.'}"
            yield f"{'':9} {view.report_hint}"
        case HuntEnded(verdict):
            for place, sentence in enumerate(verdict_sentences(view, verdict)):
                yield f"{'' if place else 'verdict':9} {sentence}"
            if event.reason_follows:
                yield f"{'':9} Its reason follows. Ctrl-C ends that, and the verdict stands."
                return
            if view.why:
                yield f"{'':9} {view.why}"
            if view.report_hint:
                yield f"{'':9} {view.report_hint}"
        case _:
            return


def hunt(event: HuntStarted) -> str:
    """What is hunted."""
    hosts = listed([facts.name for facts in event.hosts])
    builds = f", built on {listed(event.build_hosts)}" if event.build_hosts else ""
    good, bad = printable(event.good), printable(event.bad)
    size = extent(event.commits, event.choices, event.merges)
    if event.of_merge_base:
        base = Commit(event.candidates[0]).short
        size = f"{good} is no ancestor of {bad}, so it is compared with their merge base, {base}, first: if both are as fast, that stands in for it"
    return f"{event.hunt}: {event.builder} {event.workload} on {hosts}{builds}, {good}..{bad}: {size}"


def named(view: ViewModel, host: str) -> str:
    """The name of a host, where there are several."""
    return f"{host}  " if view.hosts else ""


def about(commit: Commit) -> str:
    """Day and subject."""
    return printable(f"{commit.date} {commit.title}")


def built(view: ViewModel, event: BuildFinished) -> str:
    """How long a build took, and with what result."""
    facts, commit = event.facts, view.commit(event.candidate)
    parts = made(facts)
    if facts.reused and not facts.shared:
        parts = [f"{about(commit)}: {parts[0]}"]
    if words := patched(facts.patches):
        parts.append(words)
    if same := view.state.row(facts.commit).same_as:
        parts.append(f"same binary as {Commit(same).short}")
    return ", ".join(parts)


def ran(view: ViewModel, event: RunFinished) -> str:
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
    if isinstance(now, Running):
        which = f"{'round' if facts.round else 'run'} {now.number} of {now.of}, {PURPOSES[now.purpose]}"
    layout = f"{', ' * bool(which)}layout {facts.layout}" if facts.layout else ""
    return f"{measured}  {compared:24}  {which}{layout}".rstrip()


def decided(view: ViewModel, order: Measure) -> str:
    """Who leads, and what is measured next."""
    plan = ", ".join(
        f"{'' if share.runs else 'the build of '}{view.commit(share.candidate).short}{f' x{share.runs}' * (share.runs > 0)}"
        for share in order.plan
    )
    together = ", both at the same time" * order.together
    layouts = ", each run in another layout" * order.fresh
    return f"{view.brief}; next, for {PURPOSES[order.purpose]}: {plan}{together}{layouts}"


def still(view: ViewModel | TrialView, host: str, doing: Building | Running, now: float) -> str:
    """What a host is busy with, and for how long so far."""
    if isinstance(view, TrialView):
        return f"  {activity(view, host, doing, now)}"
    if isinstance(doing, Running):
        word, steps = "running", f"run {doing.number} of {doing.of}, "
    else:
        word, steps = "building", f"{doing.done:,} of {doing.total:,}, " if doing.total else ""
    commit = view.commit(doing.candidate).short
    return f"{time_of_day(now)}  {word:9} {named(view, host)}{commit}  {steps}{duration(now - doing.since)} so far"


def encode(event: Event, at: float, hunt: int | None = None) -> str:
    """The line of an event, without its end; with the number of its ``hunt`` where there are several."""
    named = {} if hunt is None else {"hunt": hunt}
    return codec.dumps({"event": type(event).__name__, "at": at, **named, **codec.encode(event)})


def decode(line: str | bytes) -> tuple[Event, float]:
    """The event of a line and when it happened. Raises ValueError where ``line`` is not such a line."""
    body = json.loads(line)
    if not isinstance(body, dict) or not {"event", "at"} <= body.keys():
        raise ValueError("not an event: no object with 'event' and 'at'")
    name, at = body.pop("event"), float(body.pop("at"))
    if name != "HuntStarted":  # which has it itself
        body.pop("hunt", None)
    try:
        return codec.decode(name, body), at
    except (KeyError, TypeError, AttributeError) as missing:
        raise ValueError(f"not a whole event {name!r}: {missing}") from None


class Lines:
    """A view that writes each event to a stream at once, and keeps nothing to draw. ``titles`` are those of its hunts."""

    def __init__(self, stream: TextIO, titles: Mapping[int, str]) -> None:
        self.stream, self.titles = stream, titles

    def recall(self, hunt: int, events: Iterable[TimedEvent]) -> None:
        """The lines of earlier sittings of a resumed hunt were written then."""

    def states(self, rows: Sequence[Row]) -> None:
        """The states of hunts that others carry out."""

    def end(self, hunt: int, at: float) -> None:
        """Nothing follows the verdict."""

    def close(self) -> None:
        """Nothing is buffered, so nothing is left to do."""


class JsonLines(Lines):
    """Each event as JSON; of several hunts with the number of its own."""

    def show(self, hunt: int, events: Iterable[TimedEvent]) -> None:
        """Write the lines of events, at once."""
        for at, event in events:
            put(safe_json(encode(event, at, hunt if len(self.titles) > 1 else None)), self.stream)


class PlainLines(Lines):
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
        super().__init__(stream, titles)
        self.now, self.latest = now, now()  # the latter when a line was written last
        self._writing, self._closed = threading.Lock(), threading.Event()
        self.report, self.together, self.quiet = report, together, quiet
        wide = max(map(cell_len, titles.values()), default=0)
        several = len(titles) > 1
        # Of hunts that begin later, their numbers.
        self.prefixes = {hunt: f"{printable(title).ljust(wide)}  " * several for hunt, title in titles.items()}
        self.views: dict[int, ViewModel | TrialView] = {hunt: ViewModel(report=report) for hunt in titles}
        self.build: tuple[int, Event] | None = None  # the latest event about a build that was written, and its hunt
        self.warnings: set[str] = set()
        self.rows: Sequence[Row] = ()

    def reminding(self) -> Self:
        """This view, which from here on says each minute what is done, until it is closed."""
        threading.Thread(target=self._remind, name="reminders", daemon=True).start()
        return self

    def _remind(self) -> None:
        with suppress(PerfBisectError, ValueError):  # nobody reads any more: the next event reports that
            while not self._closed.wait(max(SILENCE / 60, self.latest + SILENCE - self.now())):
                self.remind()

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
        self.views[hunt] = recalled_session(self.report, events)

    def show(self, hunt: int, events: Iterable[TimedEvent]) -> None:
        """Write the lines of events, at once."""
        with self._writing:
            self._show(hunt, events)

    def _show(self, hunt: int, events: Iterable[TimedEvent]) -> None:
        for at, event in events:
            view = self.views[hunt]
            if trial := TrialView.of(view, event):
                self.views[hunt], said = trial, trial.add(at, event)
            elif isinstance(view, ViewModel):
                view = self.views[hunt] = update(view, event, at)
                written = self.together and self._is_written(hunt, event)
                said = [] if written else [*lines(view, event, at)]
                if self.together and isinstance(event, Decided) and view.decided:
                    said.append(f"{time_of_day(at)}  {'decided':9} {view.brief}")
            for line in said if not self.quiet or isinstance(event, Warned | CandidateSkipped) else ():
                self._write(hunt, line)

    def states(self, rows: Sequence[Row]) -> None:
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
        self.build = self.build or (hunt, event)
        if other != hunt and type(written) is type(event) and written.candidate == event.candidate:
            return True
        self.build = hunt, event
        return False
