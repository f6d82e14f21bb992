"""What views show of a trial: what is known of it, its lines, and its picture with the ratios so far."""

from collections.abc import Iterable, Iterator, Sequence
from statistics import median

from rich.cells import cell_len
from rich.text import Text

from perfbisect.core.domain.events import (
    BuildStarted,
    CandidateSkipped,
    Event,
    LabEvent,
    PairingChosen,
    RunFinished,
    RunStarted,
    TrialEnded,
    TrialStarted,
    Warned,
)
from perfbisect.core.domain.facts import RunFacts
from perfbisect.core.domain.metrics import find_metric
from perfbisect.core.domain.settings import TrialRequest, TrialType
from perfbisect.core.domain.trials import Trial
from perfbisect.core.stats.paired_comparison import levels, paired
from perfbisect.ui.candidates import RECENT, pairs
from perfbisect.ui.screen import Section, beside, both_ends, drawn, folded, share_out
from perfbisect.ui.view_model import Building, Report, Running, TimedEvent, ViewModel, activity_after, recalled
from perfbisect.wording.comparisons import relative_metric
from perfbisect.wording.glyphs import Glyphs, bar
from perfbisect.wording.quantities import MISSING, clock, count, decimals, estimate, figure
from perfbisect.wording.table import table
from perfbisect.wording.text import advised, printable

FEW = 5  # warnings that are drawn


class TrialView:
    """A trial and what is done for it now. ``add`` changes it; times are seconds since the epoch."""

    def __init__(self) -> None:
        self.warnings: dict[str, str] = {}  # text → advice
        self.trial: Trial | None = None
        self.began: float | None = None  # of this sitting
        self.ended: float | None = None
        self.rounds = self.expected = 0  # in all, and their runs
        self.open = False  # whether both may become others: a way to compare builds is yet to be chosen
        self.place = ""  # the round, workload and build that are measured
        self.busy: dict[str, Building | Running | None] = {}  # at each host

    @classmethod
    def of(cls, view: "ViewModel | TrialView", event: Event) -> "TrialView | None":
        """The view of a session as that of a trial, once its first event says that it is one."""
        if isinstance(view, TrialView):
            return view
        return cls() if isinstance(event, TrialStarted) else None

    def recall(self, events: Sequence[TimedEvent]) -> "TrialView":
        """Take the events of earlier sittings; the clock starts with the next one, unless the trial has ended."""
        for at, event in events:
            self.add(at, event)
        self.began = self.began if self.decided else None
        return self

    @property
    def name(self) -> str:
        """As in commands: c3."""
        return self.trial.name if self.trial else ""

    @property
    def runs(self) -> int:
        """All runs so far."""
        return len(self.trial.runs) if self.trial else 0

    @property
    def decided(self) -> bool:
        """Whether all rounds were made."""
        return self.trial is not None and self.trial.state == "done"

    @property
    def brief(self) -> str:
        """How far it is, in a few words."""
        return "done" if self.decided else self.place or "starting"

    def add(self, at: float, event: Event) -> list[str]:
        """Take the next event; returns its lines."""
        if isinstance(event, TrialStarted):
            self.began, self.ended, self.busy = at, None, {}
        known = self.trial.request.subjects if self.trial else ()
        if self.trial is None and isinstance(event, TrialStarted):
            self.trial = Trial.begun(at, event)
        elif self.trial:
            self.trial.add(at, event)
        if isinstance(event, Warned):
            self.warnings[event.text] = event.advice
        elif isinstance(event, LabEvent):
            self.busy[event.host] = activity_after(self.busy.get(event.host), event, at)
        is_new = not (isinstance(event, BuildStarted) and known and known[event.candidate].key)
        return [*self._lines(self.trial, event)] if self.trial and is_new else []

    def _lines(self, trial: Trial, event: Event) -> Iterator[str]:
        """The lines of an event, which is counted."""
        request = trial.request
        match event:
            case TrialStarted(resumed=resumed):
                self._count(trial)
                if resumed:
                    yield f"continuing {trial.name}, which has {count(len(trial.runs), 'run')}"
            case PairingChosen(why=why):
                self._count(trial)
                yield f"{why} {count(self.expected - self.runs, 'run')} to go."
            case Warned(text, advice):
                yield f"warning: {advised(text, advice)}"
            case BuildStarted(number, commit):
                variant, does = request.subjects[number].variant, "built already:" if event.reused else "building"
                yield printable(f"{does} {commit.short}{variant and '@'}{variant}  {commit.title}")
            case CandidateSkipped(number, skip, workload=work):
                what = "is left out" if skip.of_build else f"fails in {request.works[work].name}"
                said = f"{request.subjects[number].name} {what}: {skip.reason}"
                self.warnings[said] = f"See {skip.log}."
                yield f"warning: {advised(said, self.warnings[said])}"
            case RunStarted(number, workload=work, round=made):
                yield from self._begins(request, number, work, made)
            case RunFinished(number, facts, workload=work, round=made):
                yield from self._begins(request, number, work, made)  # a history does not keep that a run begins
                of = f" of {self.expected}" if self.runs <= self.expected and not self.open else ""
                yield f"  run {self.runs}{of}  {measured(trial, facts)}{', in a pair' * bool(facts.round)}"
            case TrialEnded():
                self.ended, self.busy = trial.since.get("", self.began), {}
            case _:
                pass

    def _count(self, trial: Trial) -> None:
        """Expect what is made, and what is to come."""
        rounds, tried, self.place = trial.rounds_to_do(), trial.pairs_to_try, ""
        self.open = tried > 0 and trial.request.kind is not TrialType.NOISE
        self.rounds = rounds.stop + (tried if self.open else min(1, tried))
        visits = len(trial.pairs()) if not trial.together else 2 * sum(build > 0 for _, build in trial.pairs())
        self.expected = self.runs + len(rounds) * visits * trial.request.runs + 2 * tried

    def _begins(self, request: TrialRequest, build: int, work: int, made: int) -> Iterator[str]:
        """The round, workload and build that are measured, where they are others than before."""
        place = f"{made + 1} of {self.rounds}" if made < self.rounds and not self.open else f"{made + 1}"
        name = printable(f"round {place}: {request.works[work].name}, {request.subjects[build].name}")
        before, self.place = self.place, name if len(request.subjects) > 1 else f"visit {place}"
        if self.place != before:
            yield self.place

    def stopped(self, at: float) -> "TrialView":
        """The same, where it goes on no more; its latest event was then."""
        self.ended, self.busy = self.ended or at, {}
        return self

    def minutes_left(self) -> float | None:
        """Estimated minutes that the remaining runs take; None while none was made."""
        costs = [run.cost for run in self.trial.runs] if self.trial else []
        return (self.expected - self.runs) * median(costs) / 60 if costs else None


def recalled_session(report: Report, events: Iterable[TimedEvent]) -> ViewModel | TrialView:
    """The view of a session after the events of its earlier sittings."""
    known, view = [*events], ViewModel(report=report)
    trial = TrialView.of(view, known[0][1]) if known else None
    return trial.recall(known) if trial else recalled(view, known)


def measured(trial: Trial, facts: RunFacts) -> str:
    """What a run has measured, in the metric of its trial."""
    metric = find_metric(trial.request.metric)
    value = metric.read(facts)
    return f"no {metric.name}" if value is None else f"{figure(value)} {printable(metric.unit_of(facts))}"


def picture(view: TrialView, width: int, height: int | None, now: float, glyphs: Glyphs) -> list[Text]:
    """At most ``height`` lines (None: as many as it takes) of at most ``width`` columns, at ``now``."""
    trial = view.trial
    if trial is None:
        return [Text(" preparing")]
    room, request, until = max(10, width - 2), trial.request, view.ended or now
    left = view.minutes_left()
    time = [f"{clock(until - (view.began or until))} elapsed"]
    if view.ended is None:
        time.append("estimating" if left is None else f"{estimate(left)} left")
    what = [trial.name, request.builder, *(work.name for work in request.works[:3]), trial.host.name]
    size, far = beside([f"{view.runs:,} of {'about ' * view.open}{count(view.expected, 'run')}"], room, glyphs)
    done, todo = bar(view.runs / view.expected if view.expected else 0.0, size, glyphs)
    progress = Text.assemble((done, "cyan"), (todo, "dim"), far)
    doing = [
        Text(line) for host, one in view.busy.items() for line in folded(activity(view, host, one, now), room, "  ", 2)
    ]
    warned = [f"! {advised(text, advice)}" for text, advice in view.warnings.items()]
    warnings = [Text(line, "yellow") for text in warned[-FEW:] for line in folded(text, room, "  ", 2)]
    around = [
        Section([both_ends(what, time, room, glyphs, "bold", ""), progress], 8),
        Section(doing, 9),
        Section(in_pairs(trial, room, glyphs) if view.ended is None else [], 4),
        Section(warnings, 3),
    ]
    ratios = [*ratio_lines(trial, room)]
    rows, airy = share_out(around, len(ratios), height)
    around.insert(3, Section([Text(line) for line in ratios[:rows]], 5))
    return drawn(around, width, glyphs, airy=airy)


def in_pairs(trial: Trial, room: int, glyphs: Glyphs) -> list[Text]:
    """The latest pairs."""
    metric = trial.pairing.compared(trial.request.metric) if trial.pairing else trial.request.metric
    runs = trial.runs[-RECENT:]
    names = {run.facts.commit: printable(trial.request.subjects[run.subject].name) for run in runs}
    return pairs([run.facts for run in runs], metric, names.__getitem__, room, glyphs)


def activity(view: TrialView, host: str, doing: Building | Running | None, now: float) -> str:
    """What a host is busy with."""
    assert view.trial, "it has begun"
    name = f"{host}  " if len(view.busy) > 1 else ""
    subjects = view.trial.request.subjects
    match doing:
        case Building(number, since, done, total, finished=finished):
            steps = f", {done:,} of {total:,}" if total else ""
            took = "" if finished else f"{steps}, {clock(now - since)}"
            return printable(f"{name}{'built' if finished else 'building'} {subjects[number].name}{took}")
        case Running(number, since, run, of, samples=samples, finished=finished):
            rate = f"  {figure(samples[-1])} QPS" if samples else ""
            took = "" if finished else f", {clock(now - since)}"
            return printable(f"{name}{view.place or subjects[number].name}  run {run} of {of}{took}{rate}")
        case None:
            return f"{name}preparing"


def ratio_lines(trial: Trial, room: int) -> Iterator[str]:
    """The ratios of all builds to the first in each workload, as far as rounds have both; the longer side is down."""
    request = trial.request
    if len(request.subjects) < 2 or not trial.runs:
        return
    names = [printable(build.name) for build in request.subjects[1:]]
    works = [printable(work.name) for work in request.works]
    cells = []
    for number in range(len(works)):
        rounds = levels(trial, number, request.metric)
        found = [paired(rounds.get(0, {}), rounds.get(build, {})) for build in range(1, len(names) + 1)]
        cells.append([MISSING if each is None else decimals(each.ratio, 3) for each in found])
    across, down = (names, works) if len(works) >= len(names) else (works, names)
    rows = cells if down is works else [list(row) for row in zip(*cells, strict=True)]
    lines = [[name, *row] for name, row in zip(down, rows, strict=True)]
    title = f"{relative_metric(trial)} relative to {printable(request.subjects[0].name)}"
    for shown in range(len(across), 0, -1):  # as many columns as fit
        made = table((title, *across[:shown]), [row[: shown + 1] for row in lines], right=across)
        if max(map(cell_len, made)) <= room:
            break
    yield from made
    if shown < len(across):
        yield f"and {count(len(across) - shown, 'further column')}"
