"""What views know of a hunt: its state, its phase, what each host is busy with, the clock. Pure; time is a parameter."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from perfbisect.core.domain.events import (
    BuildCancelled,
    BuildFinished,
    BuildProgress,
    BuildStarted,
    CandidateSkipped,
    Commit,
    Decided,
    Event,
    ExecutionStarted,
    HuntEnded,
    HuntStarted,
    LabEvent,
    MetricChosen,
    PairingChosen,
    RunFinished,
    RunProgress,
    RunStarted,
    Warned,
)
from perfbisect.core.domain.facts import RunFacts
from perfbisect.core.domain.metrics import operations_per_second, shown_metric
from perfbisect.core.domain.orders import (
    Belief,
    CodePlacement,
    Found,
    Inconclusive,
    Interval,
    Measure,
    NotReproduced,
    Purpose,
    Several,
    Verdict,
    first_step,
)
from perfbisect.core.explain.explanation import explanation
from perfbisect.core.inference.hunt_state import Classification, HuntState, Tested, classify, fold, ratios
from perfbisect.core.inference.observations import counted_exactly, observations, without_refused
from perfbisect.core.inference.relative_speed import step_ratio
from perfbisect.wording import reasons
from perfbisect.wording.comparisons import ratio_title
from perfbisect.wording.quantities import chance, count, ratio
from perfbisect.wording.text import printable, printable_commit

TimedEvent = tuple[float, Event]  # seconds since the epoch, what happened
Report = Callable[[int], str]  # the command that shows the report of a hunt
REPORT = "bisect show {}".format  # for a hunt in the default history


@dataclass(frozen=True, slots=True)
class Row:
    """The line of a session in the list of several."""

    title: str
    hunt: int | None  # its number, once it has begun
    state: str = ""  # in words; "" for what its own view knows
    running: bool = True  # and drawn


@dataclass(frozen=True, slots=True)
class Building:
    """A build in progress, or just finished."""

    candidate: int
    since: float
    done: int = 0
    total: int = 0  # 0: unknown
    stage: str = ""
    finished: bool = False


@dataclass(frozen=True, slots=True)
class Running:
    """A run in progress, or just finished."""

    candidate: int
    since: float
    number: int
    of: int
    purpose: Purpose
    seconds: float  # planned, warm-up included
    samples: tuple[float, ...] = ()
    execution: ExecutionStarted | None = None  # the present one of a counted run
    finished: bool = False


@dataclass(frozen=True, slots=True)
class Phase:
    """Orders of one purpose after each other; runs are counted from the begin of the hunt."""

    order: Measure  # the latest
    began: int  # runs before it
    until: int  # runs after its orders so far

    @classmethod
    def of(cls, before: "Phase | None", order: Measure, runs: int) -> "Phase":
        """The phase that an order goes on with or begins, after so many ``runs``."""
        new = before is None or (before.order.purpose, before.order.fresh) != (order.purpose, order.fresh)
        began, until = (runs, runs) if before is None or new else (before.began, max(runs, before.until))
        return cls(order, began, until + sum(share.runs for share in order.plan))


@dataclass(frozen=True, slots=True, eq=False)
class ViewModel:
    """Everything that is drawn. Times are seconds since the epoch."""

    state: HuntState = field(default_factory=HuntState)
    rows: Mapping[int, Tested] = field(default_factory=dict)  # of the candidates that were tested
    ratios: Mapping[str, Interval] = field(default_factory=dict)  # to the good end, by commit
    began: float | None = None  # of this session
    ended: float | None = None
    decided: Verdict | None = None  # of the search; the reason may be measured still
    stands: bool = False  # the verdict was said, and its reason is measured
    why: str = ""  # the reason of the change that the verdict names, once it is there; "" where nothing is known of it
    now: Building | Running | None = None  # at the host of the latest event, those that build ahead left out
    busy: Mapping[str, Building | Running | None] = field(default_factory=dict)  # at each host, with those
    searching: tuple[float, float] | None = None  # when the search began, and the bits missing then
    phase: Phase | None = None  # of the orders of this session
    layouts: str = ""  # what fresh layouts show so far, while a commit is compared with another build in them
    report: Report = REPORT  # the command that shows the report of a hunt

    @property
    def hunt(self) -> HuntStarted | None:
        """What is hunted; None until it is known."""
        return self.state.started

    @property
    def hosts(self) -> list[str]:
        """The names of the hosts that measure, where there are several hosts of any sort."""
        alone = [self.hunt.host.name] if self.hunt and self.hunt.build_hosts else []
        return self.state.hosts or alone

    @property
    def builds_ahead(self) -> int:
        """How many builds are made ahead now."""
        return sum(
            isinstance(one := self.busy.get(name), Building) and not one.finished for name in self.state.build_hosts
        )

    @property
    def report_hint(self) -> str:
        """Where the full report is; "" before the hunt is known."""
        return f"Full report: {self.report(self.hunt.hunt)}" if self.hunt else ""

    def sha(self, candidate: int) -> str:
        """The full hash of a candidate."""
        return self.state.commits[candidate] if candidate < len(self.state.commits) else f"candidate {candidate}"

    def commit(self, candidate: int) -> Commit:
        """What is known of a candidate's commit, at least its hash; texts are safe to print."""
        return printable_commit(self.state.row(self.sha(candidate)).commit)

    def activity(self, candidate: int) -> Building | Running | None:
        """What is done with a candidate now, at the first host that is busy with it."""
        in_progress = (one for one in self.busy.values() if one is not None and not one.finished)
        return next((one for one in in_progress if one.candidate == candidate), None)

    def classification(self, candidate: int) -> Classification | None:
        """What is known of a candidate; None if it was not tested."""
        if self.activity(candidate) is not None:
            return Classification.NOW
        return classify(self.state, self.sha(candidate), self.ratios) if candidate in self.rows else None

    def is_baseline(self, candidate: int) -> bool:
        """Whether a candidate has the binary of the good end."""
        return self.state.binary_of(self.sha(candidate)) == self.state.binary_of(self.sha(0))

    def ratio(self, candidate: int) -> Interval | None:
        """The metric of a candidate's binary relative to the good end; None where unknown, and for the good end."""
        sha = self.sha(candidate)
        return None if self.is_baseline(candidate) else self.ratios.get(sha, self.ratios.get(self.state.binary_of(sha)))

    @property
    def ratio_title(self) -> str:
        """The name of that ratio: rQPS, rcpu/o, …"""
        return ratio_title(self.metric, self.state.pairing)

    @property
    def beside(self) -> tuple[int, ...]:
        """The commit that is measured in fresh layouts to prove it, and the first build beside it; empty unless that is done."""
        order = self.phase.order if self.phase else None
        proves = order is not None and order.fresh and order.purpose is Purpose.CONFIRM
        return tuple(share.candidate for share in order.plan[:2]) if order and proves else ()

    @property
    def metric(self) -> str:
        """The metric that is compared."""
        return self.hunt.metric if self.hunt else "qps"

    def metric_of(self, run: RunFacts) -> str:
        """The metric whose value is shown for a run."""
        return shown_metric(run, self.metric, self.state.chosen.usual)

    @property
    def ends_differ(self) -> bool:
        """Whether the ends are taken to differ; until then the probability of a culprit means nothing."""
        return self.state.purpose is not Purpose.ENDS and not isinstance(
            self.state.verdict, NotReproduced | CodePlacement
        )

    @property
    def leader(self) -> tuple[int, float] | None:
        """The most probable culprit and its probability; None while none stands out, or the ends may be alike."""
        belief = self.state.belief
        if belief is None or len(belief.culprit) < 2 or not self.ends_differ:
            return None
        candidate = int(np.argmax(belief.culprit))
        second, share = np.sort(belief.culprit)[-2:].tolist()
        return (candidate, share) if share >= 0.5 or share >= max(1.1 * second, 2 / (len(belief.culprit) - 1)) else None

    @property
    def no_leader(self) -> str:
        """The text in place of a leader."""
        likely = f", of {within(self.state.belief, 0.95)} that are likely" if self.state.belief else ""
        ends = "good is as fast as the merge base" if self.hunt and self.hunt.of_merge_base else "the ends differ"
        return f"no commit stands out yet{likely}" if self.ends_differ else f"not yet known whether {ends}"

    @property
    def runs(self) -> int:
        """Runs of the candidates."""
        return sum(len(row.runs) for row in self.rows.values())

    @property
    def brief(self) -> str:
        """The verdict in a few words; before there is one, who leads."""
        match self.decided:
            case None if self.leader:
                candidate, share = self.leader
                return f"{self.commit(candidate).short} leads with {chance(share)}"
            case None:
                return self.no_leader if self.hunt else "starting"
            case Found(step):
                return f"culprit {self.commit(step.candidate).short}, {chance(step.probability)}"
            case Several(steps):
                where = ", ".join(self.commit(step.candidate).short for step in steps)
                return f"changes at {where}" if where else "no change for the worse named"
            case NotReproduced():
                return "not reproduced"
            case CodePlacement(step):
                return f"code placement, at {self.commit(step.candidate).short}"
            case Inconclusive():
                return "inconclusive"

    def stopped(self, at: float) -> "ViewModel":
        """The same, where the hunt goes on no more; its latest event was then."""
        return replace(self, ended=self.ended or at, now=None, busy={})

    @property
    def top(self) -> float:
        """The highest rate so far, in operations per second."""
        ended = [operations_per_second(run) or 0.0 for row in self.rows.values() for run in row.runs]
        current = [qps for one in self.busy.values() if isinstance(one, Running) for qps in one.samples]
        return max((*ended, *current), default=0.0)


def update(view: ViewModel, event: Event, at: float) -> ViewModel:
    """The view after ``event``, which happened ``at`` seconds since the epoch."""
    view = _with(view, event, at)
    return with_ratios(view) if isinstance(event, RunFinished) else view


def caught_up(view: ViewModel, events: Iterable[tuple[float, Event]]) -> ViewModel:
    """The view after several events, as ``update`` makes it of each; the ratios are computed once."""
    for at, event in events:
        view = _with(view, event, at)
    return with_ratios(view)


def _with(view: ViewModel, event: Event, at: float) -> ViewModel:
    """The view after ``event``, with the ratios as they were before it."""
    began = at if view.began is None else view.began
    state = view.state.after(at, event)
    if state.commits is not view.state.commits:  # what was done before compared good with the merge base
        view = ViewModel(report=view.report)
    if state is not view.state:
        view = replace(view, state=state, rows=rows(state))
    view = replace(view, began=began)
    if isinstance(event, HuntEnded) and event.reason_follows:
        return replace(view, decided=event.verdict, stands=True)
    if isinstance(event, HuntEnded):
        why = why_of(state, view.metric, view.report(state.started.hunt if state.started else 0))
        return replace(view, ended=at, now=None, busy={}, decided=event.verdict, why=why)
    if isinstance(event, Decided):
        order = event.decision.order
        begins = view.searching is None and state.purpose in (Purpose.SEARCH, Purpose.CONFIRM)
        searching = (at, bits(event.decision.belief)) if begins else view.searching
        view = replace(view, searching=searching, layouts="")
        if not isinstance(order, Measure):
            return replace(view, decided=order)
        view = replace(view, decided=None, phase=Phase.of(view.phase, order, view.runs))
        return replace(view, layouts=layouts_so_far(view))
    if isinstance(event, MetricChosen):
        return with_ratios(view)
    if isinstance(event, HuntStarted):
        begins = view.ended is not None or view.stands
        return replace(view, began=at, ended=None, decided=None, stands=False) if begins else view
    if isinstance(event, Warned | PairingChosen) or not isinstance(event, LabEvent):
        return view
    now = activity_after(view.busy.get(event.host), event, at)
    ahead = event.host in state.build_hosts
    return replace(view, now=view.now if ahead else now, busy={**view.busy, event.host: now})


def recalled(view: ViewModel, events: Iterable[TimedEvent]) -> ViewModel:
    """The view after the events of earlier sittings; its clock starts with the next event, unless the hunt has ended."""
    known = [*events]
    if known and isinstance(known[-1][1], HuntEnded):
        return caught_up(view, known)
    state = fold(known)
    state.verdict = None
    return with_ratios(ViewModel(state, rows(state), report=view.report))


def rows(state: HuntState) -> dict[int, Tested]:
    """What was tested of the present range, by candidate."""
    return {state.node[sha]: row for sha, row in state.tested.items() if sha in state.node}


def with_ratios(view: ViewModel) -> ViewModel:
    """The view with the ratios from all runs so far: the one step here that takes time."""
    if view.hunt is None:
        return view
    found = ratios(view.state, view.metric, view.state.hosts, view.hunt.host_classes)
    return replace(view, ratios=found, layouts=layouts_so_far(view))


def layouts_so_far(view: ViewModel) -> str:
    """What fresh layouts show so far of a commit: 0.981 (0.965–0.997) of 5e6e15a942 in 12 layouts; "" before there are two of each."""
    state, log = view.state, view.state.log
    runs = [view.rows[each].runs if each in view.rows else () for each in view.beside]
    if (compared := min((sum(run.layout > 0 for run in some) for some in runs), default=0)) < 2:
        return ""
    culprit, other = view.beside
    by_cpu = state.pairing is not None and state.pairing.by_cpu
    seen = observations(log, state.node, view.metric, log[0][0], state.hosts, state.build_hosts, by_cpu=by_cpu)
    found = step_ratio(without_refused(seen, state.pairing), len(state.commits) - 1, culprit, other)
    return f"{ratio(found)} of {view.commit(other).short} in {count(compared, 'layout')}" if found else ""


def activity_after(before: Building | Running | None, event: LabEvent, at: float) -> Building | Running | None:
    """What a host is busy with after one of its events."""
    match event:
        case BuildStarted(candidate):
            return Building(candidate, at)
        case BuildProgress(candidate, done, total, stage):
            since = before.since if isinstance(before, Building) else at
            return Building(candidate, since, done, total, printable(stage))
        case BuildFinished() if isinstance(before, Building):
            return replace(before, finished=True, done=before.total)
        case RunStarted(candidate, number, of, purpose, seconds):
            return Running(candidate, at, number, of, purpose, seconds)
        case RunProgress(_, _, qps) if isinstance(before, Running):
            return replace(before, samples=(*before.samples, qps))
        case ExecutionStarted() if isinstance(before, Running):
            return replace(before, execution=event)
        case RunFinished(facts=facts) if isinstance(before, Running):
            return replace(before, finished=True, samples=before.samples or facts.samples)
        case CandidateSkipped() | BuildCancelled():
            return None
        case _:
            return before


def bits(belief: Belief) -> float:
    """Entropy of the culprit: yes/no questions still open. 0 when one candidate has all of the probability."""
    share = belief.culprit[belief.culprit > 0]
    share = share / share.sum() if len(share) else share
    return float(-(share * np.log2(share)).sum())


def within(belief: Belief, mass: float) -> int:
    """The smallest number of candidates whose probabilities sum up to ``mass``."""
    together = np.cumsum(np.sort(belief.culprit)[::-1])
    return min(len(together), int(np.searchsorted(together, mass * together[-1])) + 1)


def why_of(state: HuntState, metric: str, report: str) -> str:
    """The reason of the first change of ``metric`` that the verdict names; "" where it was not studied.

    ``report`` is the command that shows the hunt.
    """
    step = first_step(state.verdict)
    if step is None or not state.studied:
        return ""
    parent, culprit = state.commits[step.parents[0]], state.commits[step.candidate]
    runs = state.runs_of(step, exact=counted_exactly(state.log, metric))
    found = explanation(state.studied, parent, culprit, runs, step, metric)
    helps = reasons.what_helps(found, report.replace(" show ", " why ", 1), studied=True)
    return f"Why {culprit[:10]}: {' '.join((*reasons.sentences(found), helps))}".rstrip()
