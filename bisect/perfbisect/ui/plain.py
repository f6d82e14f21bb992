"""One line for each event that matters, with the time of day: for logs, pipes and screen readers."""

from collections.abc import Callable, Iterable, Iterator
from typing import TextIO

from perfbisect.core.domain.events import (
    BuildFinished,
    BuildStarted,
    CandidateSkipped,
    Commit,
    Decided,
    Event,
    HuntEnded,
    HuntStarted,
    RunFinished,
    Warned,
)
from perfbisect.core.domain.metrics import shown, unit
from perfbisect.core.domain.orders import Decision, Measure
from perfbisect.ui.state import TOLD_BY, Running, View, recalled, update
from perfbisect.ui.stream import put
from perfbisect.wording.glyphs import writable
from perfbisect.wording.quantities import chance, count, duration, figure, ratio, share, time_of_day
from perfbisect.wording.text import advised, listed, printable
from perfbisect.wording.verdicts import PURPOSES, sentences


def lines(view: View, event: Event, at: float) -> Iterator[str]:
    """The lines that tell ``event``; ``view`` already knows of it."""
    told = list(texts(view, event))
    for place, text in enumerate(told):
        yield f"{time_of_day(at)}  {text}" if place == 0 else f"{'':8}  {text}"


def texts(view: View, event: Event) -> Iterator[str]:
    """What is said of an event: a word, the commit, the facts. Progress is not told."""
    match event:
        case HuntStarted():
            yield f"{'resumed' if event.resumed else 'hunt':9} {hunt(event)}"
        case Warned(text, advice):
            yield f"{'warning':9} {advised(text, advice)}"
        case Decided(Decision(order=Measure() as order)):
            yield f"{'decided':9} {numbered(view, order.host)}{decided(view, order)}"
        case BuildStarted(commit=commit):
            yield f"{'building':9} {where(view, event)}{commit.short}  {about(commit)}"
        case BuildFinished(candidate):
            yield f"{'built':9} {where(view, event)}{view.commit(candidate).short}  {built(view, event)}"
        case CandidateSkipped(candidate, facts):
            yield f"{'skipped':9} {where(view, event)}{view.commit(candidate).short}  {facts.stage}: {printable(facts.reason)}"
            if facts.log:
                yield f"{'':9} log: {printable(facts.log)}"
        case RunFinished(candidate):
            yield f"{'ran':9} {where(view, event)}{view.commit(candidate).short}  {ran(view, event)}"
        case HuntEnded(verdict):
            for place, sentence in enumerate(sentences(verdict, view.commit, view.metric)):
                yield f"{'' if place else 'verdict':9} {sentence}"
            if view.whole:
                yield f"{'':9} {view.whole}"
        case _:
            return


def hunt(event: HuntStarted) -> str:
    """What is hunted."""
    merges = f", {count(event.merges, 'merge')}" if event.merges else ""
    hosts = listed([facts.name for facts in event.hosts])
    return (
        f"{event.hunt}: {event.builder} {event.workload} on {hosts},"
        f" {printable(event.good)}..{printable(event.bad)}: {count(event.commits, 'commit')},"
        f" {count(event.choices, 'candidate')}{merges}"
    )


def where(view: View, event: BuildStarted | BuildFinished | CandidateSkipped | RunFinished) -> str:
    """The host, where there are several."""
    return f"{event.host}  " if view.hunt is not None and view.hunt.further else ""


def numbered(view: View, host: int) -> str:
    """The same, for an order."""
    return f"{view.hunt.hosts[host].name}  " if view.hunt is not None and view.hunt.further else ""


def about(commit: Commit) -> str:
    """Day and subject."""
    return printable(f"{commit.date} {commit.title}")


def built(view: View, event: BuildFinished) -> str:
    """What a build took, and what came of it."""
    facts = event.facts
    said = ["an earlier build is used again" if facts.reused else duration(facts.seconds)]
    if facts.hit_rate is not None and not facts.reused:
        said.append(f"ccache {share(facts.hit_rate)}")
    if event.same_as is not None:
        said.append(f"same binary as {view.commit(event.same_as).short}")
    return ", ".join(said)


def ran(view: View, event: RunFinished) -> str:
    """The rate of a run, how its build now compares with the base, and which run it was."""
    found = view.ratio(event.candidate)
    seen = f"{figure(shown(event.facts, view.metric)):>10} {unit(view.metric)}"
    said = [seen, f"{view.relative} {ratio(found)}" if found else ""]
    if view.build(event.candidate) == 0:
        said[1] = "baseline"
    if isinstance(view.now, Running):
        said.append(f"run {view.now.number} of {view.now.of}, {PURPOSES[view.now.purpose]}")
    return "  ".join((said[0], f"{said[1]:24}", *said[2:])).rstrip()


def decided(view: View, order: Measure) -> str:
    """Who leads, and what is measured next."""
    plan = ", ".join(f"{view.commit(share.candidate).short} x{share.runs}" for share in order.plan)
    leads = view.nobody_leads
    if view.leader is not None:
        candidate, share = view.leader
        leads = f"{view.commit(candidate).short} leads with {chance(share)}"
    return f"{leads}; next, for {PURPOSES[order.purpose]}: {plan}"


class PlainLines:
    """Writes the lines of each event to a stream as it happens; ``told_by`` as in the view."""

    def __init__(self, stream: TextIO, told_by: Callable[[int], str] = TOLD_BY) -> None:
        self.stream = stream
        self.view = View(told_by=told_by)

    def recall(self, told: Iterable[tuple[float, Event]]) -> None:
        """Take note of what earlier sessions of a resumed hunt saw; it was written then."""
        self.view = recalled(self.view, told)

    def show(self, event: Event, at: float) -> None:
        """Write what there is to say of ``event``, at once."""
        self.view = update(self.view, event, at)
        for line in lines(self.view, event, at):
            put(writable(line, self.stream.encoding or "utf-8"), self.stream)

    def close(self) -> None:
        """Nothing is held back, so nothing is left to do."""
