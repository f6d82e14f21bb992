"""Events as plain lines with the time of day: for logs, pipes and screen readers."""

from collections.abc import Iterable, Iterator, Mapping
from typing import TextIO

from rich.cells import cell_len

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
    Planned,
    Profiled,
    RunFinished,
    Unexplained,
    Warned,
)
from perfbisect.core.domain.metrics import comparable, shown, shown_metric, unit
from perfbisect.core.domain.orders import Decision, Measure
from perfbisect.core.inference.hunt_state import is_of_build
from perfbisect.ui.stream import put
from perfbisect.ui.view_model import REPORT, Report, Running, TimedEvent, ViewModel, brief, recalled, update, verdict_in
from perfbisect.wording.quantities import (
    chance,
    count,
    duration,
    figure,
    in_layouts,
    made,
    ratio,
    slower_than,
    time_of_day,
)
from perfbisect.wording.text import advised, execution, listed, patched, printable
from perfbisect.wording.verdicts import PURPOSES, sentences


def lines(view: ViewModel, event: Event, at: float) -> Iterator[str]:
    """The lines of ``event``; ``view`` includes it."""
    for place, text in enumerate(texts(view, event)):
        yield f"{time_of_day(at)}  {text}" if place == 0 else f"{'':8}  {text}"


def texts(view: ViewModel, event: Event) -> Iterator[str]:
    """The text of an event: a word, the commit, the facts. Progress has none."""
    match event:
        case HuntStarted():
            yield f"{'resumed' if event.resumed else 'hunt':9} {hunt(event)}"
        case MetricChosen(why=why):
            yield f"{'metric':9} {why}"
        case Warned(text, advice):
            yield f"{'warning':9} {advised(text, advice)}"
        case Decided(Decision(order=Measure() as order)):
            yield f"{'decided':9} {named(view, view.hosts[order.host]) if view.hosts else ''}{decided(view, order)}"
        case BuildStarted(commit=commit):
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
        case ExecutionStarted(candidate, number=1):  # no line for a run that is timed: it has a known end
            yield f"{'running':9} {named(view, event.host)}{view.commit(candidate).short}  {execution(event)}"
        case RunFinished(candidate):
            yield f"{'ran':9} {named(view, event.host)}{view.commit(candidate).short}  {ran(view, event)}"
        case Counted(candidate, group=group):
            yield f"{'reason':9} {named(view, event.host)}{view.commit(candidate).short}  counters: {group}"
        case Profiled(candidate):
            yield f"{'reason':9} {named(view, event.host)}{view.commit(candidate).short}  profile"
        case Planned(candidate):
            yield f"{'reason':9} {named(view, event.host)}{view.commit(candidate).short}  plan of a statement"
        case ChangedFunctions(candidate, facts):
            yield f"{'reason':9} {view.commit(candidate).short}  {count(len(facts.functions), 'changed function')}"
        case Unexplained(part, reason):
            yield f"{'warning':9} {named(view, event.host)}no {part} for the reason: {printable(reason)}"
        case HuntEnded(verdict):
            for place, sentence in enumerate(
                sentences(verdict, view.commit, view.metric, view.state.system, view.qps_of)
            ):
                yield f"{'' if place else 'verdict':9} {sentence}"
            if view.why:
                yield f"{'':9} {view.why}"
            if view.report_hint:
                yield f"{'':9} {view.report_hint}"
        case _:
            return


def hunt(event: HuntStarted) -> str:
    """What is hunted."""
    merges = f", {count(event.merges, 'merge')}" if event.merges else ""
    hosts = listed([facts.name for facts in event.hosts])
    builds = f", built on {listed(event.build_hosts)}" if event.build_hosts else ""
    return (
        f"{event.hunt}: {event.builder} {event.workload} on {hosts}{builds},"
        f" {printable(event.good)}..{printable(event.bad)}: {count(event.commits, 'commit')},"
        f" {count(event.choices, 'candidate')}{merges}"
    )


def named(view: ViewModel, host: str) -> str:
    """The name of a host, where there are several."""
    return f"{host}  " if view.hosts else ""


def about(commit: Commit) -> str:
    """Day and subject."""
    return printable(f"{commit.date} {commit.title}")


def built(view: ViewModel, event: BuildFinished) -> str:
    """How long a build took, and with what result."""
    facts = event.facts
    parts = made(facts)
    if words := patched(facts.patches):
        parts.append(words)
    if same := view.state.row(facts.commit).same_as:
        parts.append(f"same binary as {Commit(same).short}")
    return ", ".join(parts)


def ran(view: ViewModel, event: RunFinished) -> str:
    """The rate of a run, how its build now compares with the baseline, and which run it was."""
    found = view.ratio(event.candidate)
    facts = event.facts
    measured = f"{figure(shown(facts, view.metric)):>10} {unit(shown_metric(facts, view.metric))}"
    if facts.slower_than:
        measured = slower_than(facts.slower_than, facts.seconds)
    compared = f"{view.ratio_title} {ratio(found)}" if found and comparable(facts, view.metric) else ""
    if facts.layout and view.state.layouts:
        compared = in_layouts(view.state.layouts)
    elif view.is_baseline(event.candidate):
        compared = "baseline"
    now = view.now
    which = f"run {now.number} of {now.of}, {PURPOSES[now.purpose]}" if isinstance(now, Running) else ""
    layout = f"{', ' * bool(which)}layout {facts.layout}" if facts.layout else ""
    return f"{measured}  {compared:24}  {which}{layout}".rstrip()


def decided(view: ViewModel, order: Measure) -> str:
    """Who leads, and what is measured next."""
    plan = ", ".join(
        f"{'' if share.runs else 'the build of '}{view.commit(share.candidate).short}{f' x{share.runs}' * (share.runs > 0)}"
        for share in order.plan
    )
    leads = view.no_leader
    if view.leader is not None:
        candidate, share = view.leader
        leads = f"{view.commit(candidate).short} leads with {chance(share)}"
    return f"{leads}; next, for {PURPOSES[order.purpose]}: {plan}{', each run in another layout' * order.fresh}"


class PlainLines:
    """Writes the lines of each event to a stream as it happens; of several hunts after the title of theirs.

    ``together`` is for hunts that one process carries out: what they have in common is written once, and a verdict both when
    it is reached and at the end of its hunt, with its sentences. ``report`` as in the view.
    """

    def __init__(
        self, stream: TextIO, titles: Mapping[int, str], report: Report = REPORT, *, together: bool = True
    ) -> None:
        self.stream, self.report = stream, report
        self.together = together and len(titles) > 1
        self.prefixes = titled(titles) if len(titles) > 1 else dict.fromkeys(titles, "")
        self.views = {hunt: ViewModel(report=report) for hunt in titles}
        self.build: tuple[int, Event] | None = None  # the latest event about a build that was written, and its hunt
        self.warnings: set[str] = set()

    def recall(self, hunt: int, events: Iterable[TimedEvent]) -> None:
        """Take the events of earlier sessions of a hunt; their lines were written then."""
        self.views[hunt] = recalled(ViewModel(report=self.report), events)

    def show(self, hunt: int, events: Iterable[TimedEvent]) -> None:
        """Write the lines of events, at once."""
        for at, event in events:
            view = self.views[hunt] = update(self.views[hunt], event, at)
            written = self.together and self._is_written(hunt, event)
            said = [] if written else [*lines(view, event, at)]
            if self.together and isinstance(event, Decided) and (verdict := verdict_in(event)):
                said.append(f"{time_of_day(at)}  {'decided':9} {brief(view, verdict)}")
            for line in said:
                put(f"{self.prefixes[hunt]}{line}", self.stream)

    def end(self, hunt: int, at: float) -> None:
        """The lines of a verdict have been written."""

    def close(self) -> None:
        """Nothing is buffered, so nothing is left to do."""

    def _is_written(self, hunt: int, event: Event) -> bool:
        """Whether the same was written for another hunt; it is what happens next in the log of each."""
        if isinstance(event, Warned):
            known = event.text in self.warnings
            self.warnings.add(event.text)
            return known
        if not (isinstance(event, BuildStarted | BuildFinished | CandidateSkipped) and is_of_build(event)):
            return False
        if self.build:
            other, written = self.build
            same = type(written) is type(event) and written.candidate == event.candidate
            if same and other != hunt:
                return True
        self.build = hunt, event
        return False


def titled(titles: Mapping[int, str]) -> dict[int, str]:
    """Titles as prefixes, all of the width of the longest."""
    wide = max(map(cell_len, titles.values()))
    return {hunt: f"{printable(title).ljust(wide)}  " for hunt, title in titles.items()}
