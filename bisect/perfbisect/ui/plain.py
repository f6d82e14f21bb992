"""Events as plain lines with the time of day: for logs, pipes and screen readers."""

from collections.abc import Callable, Iterable, Iterator
from typing import TextIO

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
from perfbisect.ui.stream import put
from perfbisect.ui.view_model import REPORT, Running, ViewModel, recalled, update
from perfbisect.wording.builds import made
from perfbisect.wording.quantities import chance, count, duration, figure, in_layouts, ratio, slower_than, time_of_day
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
    """Writes the lines of each event to a stream as it happens, after ``prefix``; ``report`` as in the view."""

    def __init__(self, stream: TextIO, report: Callable[[int], str] = REPORT, prefix: str = "") -> None:
        self.stream = stream
        self.prefix = prefix
        self.view = ViewModel(report=report)

    def recall(self, events: Iterable[tuple[float, Event]]) -> None:
        """Take the events of earlier sessions of a resumed hunt; their lines were written then."""
        self.view = recalled(self.view, events)

    def show(self, event: Event, at: float) -> None:
        """Write the lines of ``event``, at once."""
        self.view = update(self.view, event, at)
        for line in lines(self.view, event, at):
            put(f"{self.prefix}{line}", self.stream)

    def close(self) -> None:
        """Nothing is buffered, so nothing is left to do."""
