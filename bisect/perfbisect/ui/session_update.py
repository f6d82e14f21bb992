"""How events change what views know of a session."""

from collections.abc import Iterable
from dataclasses import replace

from perfbisect.core.domain.events import (
    BuildCancelled,
    BuildFinished,
    BuildProgress,
    BuildStarted,
    CandidateSkipped,
    Decided,
    Event,
    ExecutionStarted,
    Foreseen,
    LabEvent,
    MetricChosen,
    PairingChosen,
    Remedied,
    RunFinished,
    RunProgress,
    RunStarted,
    SessionEnded,
    SessionStarted,
    Warned,
)
from perfbisect.core.domain.orders import Measure, Purpose, first_step
from perfbisect.core.domain.session_state import SessionState, fold
from perfbisect.core.domain.settings import TrialType
from perfbisect.core.domain.trials import pairs_to_try, rounds_to_do, visits
from perfbisect.core.explain.explanation import reason
from perfbisect.core.inference.classification import hunt_observations, ratios
from perfbisect.core.inference.relative_speed import step_ratio
from perfbisect.ui.session_view import ActiveBuild, ActiveRun, ExpectedRuns, OrderPhase, SessionView, TimedEvent, bits
from perfbisect.wording import reasons
from perfbisect.wording.quantities import count, ratio
from perfbisect.wording.text import printable

OF_RATIOS = MetricChosen, Remedied, RunFinished, SessionStarted  # after which ratios are others


def update(view: SessionView, event: Event, at: float) -> SessionView:
    """The view after ``event``, which happened ``at`` seconds since the epoch."""
    return caught_up(view, [(at, event)])


def caught_up(view: SessionView, events: Iterable[TimedEvent]) -> SessionView:
    """The view after several events; the ratios, which take time, are computed once."""
    stale = False
    for at, event in events:
        view, stale = _with(view, event, at), stale or isinstance(event, OF_RATIOS)
    return with_ratios(view) if stale else view


def _with(view: SessionView, event: Event, at: float) -> SessionView:
    """The view after ``event``, with the ratios as they were before it."""
    began = at if view.began is None else view.began
    state = view.state.after(at, event)
    if state.commits is not view.state.commits:  # what was done before compared good with the merge base
        view = SessionView(report=view.report)
    if state is not view.state:
        view = with_state(view, state)
    view = replace(view, began=began, moved=False)
    match event:
        case SessionEnded(reason_follows=True):
            return replace(view, decided=event.verdict, stands=True)
        case SessionEnded(verdict):
            why = why_of(state, view.report(state.id))
            return replace(view, ended=at, now=None, busy={}, decided=verdict, why=why)
        case Decided(decision):
            begins = view.searching is None and state.purpose in (Purpose.SEARCH, Purpose.CONFIRM)
            searching = (at, bits(decision.belief)) if begins else view.searching
            view = replace(view, searching=searching, layouts="")
            if not isinstance(decision.order, Measure):
                return replace(view, decided=decision.order)
            phase, order, runs = view.phase, decision.order, state.run_count
            if phase is None or (phase.order.purpose, phase.order.fresh) != (order.purpose, order.fresh):
                phase = OrderPhase(order, runs, runs)
            until = max(runs, phase.until) + sum(share.runs for share in order.plan)
            view = replace(view, decided=None, phase=OrderPhase(order, phase.began, until))
            return replace(view, layouts=layouts_so_far(view))
        case SessionStarted(request=request) if request.works:
            return replace(view, began=at, ended=None, busy={}, place="", expected=expected_runs(state))
        case SessionStarted():
            begins = view.ended is not None or view.stands
            return replace(view, began=at, ended=None, decided=None, stands=False) if begins else view
        case Foreseen(text):
            return replace(view, foreseen=text)
        case PairingChosen():
            return replace(view, place="", expected=expected_runs(state)) if view.trial else view
        case CandidateSkipped(number, skip, workload=work) if view.trial:
            what = "is left out" if skip.of_build else f"fails in {state.request.works[work].name}"
            warned = Warned(f"{state.request.subjects[number].name} {what}: {skip.reason}", f"See {skip.log}.")
            view = replace(view, state=state.after(at, warned))
        case RunStarted(number, workload=work, round=made) | RunFinished(number, workload=work, round=made) if (
            view.trial
        ):
            rounds, request = view.expected.rounds, state.request
            where = f"{made + 1} of {rounds}" if made < rounds and not view.expected.open else f"{made + 1}"
            what = count(len(request.works), "result") if request.shared else request.works[work].name
            named = f"round {where}: {what}, {request.subjects[number].name}"
            place = printable(named) if len(request.subjects) > 1 else f"visit {where}"
            view = replace(view, place=place, moved=place != view.place)
        case _:
            pass
    if isinstance(event, Warned) or not isinstance(event, LabEvent):
        return view
    doing = activity_after(view.busy.get(event.host), event, at)
    view = replace(view, busy={**view.busy, event.host: doing})
    return view if event.host in state.build_hosts else replace(view, now=doing)


def with_state(view: SessionView, state: SessionState) -> SessionView:
    """The view with another state, and what was tested of its present range, by candidate."""
    return replace(
        view, state=state, rows={state.node[sha]: row for sha, row in state.tested.items() if sha in state.node}
    )


def expected_runs(trial: SessionState) -> ExpectedRuns:
    """What is made, and what is to come."""
    rounds, tried, due = rounds_to_do(trial), pairs_to_try(trial), visits(trial)
    open_ = tried > 0 and trial.request.kind is not TrialType.NOISE
    made = 2 * sum(build > 0 for _, build in due) if trial.together else len(due)
    runs = len(trial.runs) + len(rounds) * made * trial.request.runs + 2 * tried
    return ExpectedRuns(rounds.stop + (tried if open_ else min(1, tried)), runs, open_)


def recalled(view: SessionView, events: Iterable[TimedEvent]) -> SessionView:
    """The view after the events of earlier sittings; its clock starts with the next event, unless the session has ended."""
    known = [*events]
    if known and isinstance(known[-1][1], SessionEnded):
        return caught_up(view, known)
    if known and isinstance(first := known[0][1], SessionStarted) and first.request.works:
        return replace(caught_up(view, known), began=None)
    state = fold(known)
    state.verdict = None
    return with_ratios(with_state(SessionView(report=view.report), state))


def with_ratios(view: SessionView) -> SessionView:
    """The view with the ratios from all runs so far: the one step here that takes time."""
    if view.hunt is None:
        return view
    found = ratios(view.state, view.metric, view.state.hosts, view.hunt.host_classes)
    return replace(view, ratios=found, layouts=layouts_so_far(view))


def layouts_so_far(view: SessionView) -> str:
    """What randomized layouts show so far of a commit: 0.981 (0.965–0.997) of 5e6e15a942 in 12 layouts; "" before there are two of each."""
    state = view.state
    runs = [view.rows[each].runs if each in view.rows else () for each in view.beside]
    if (compared := min((sum(run.layout > 0 for run in some) for some in runs), default=0)) < 2:
        return ""
    culprit, other = view.beside
    seen = hunt_observations(state, state.node, view.metric, state.hosts)
    found = step_ratio(seen, len(state.commits) - 1, culprit, other)
    return f"{ratio(found)} of {view.commit(other).short} in {count(compared, 'layout')}" if found else ""


def activity_after(
    before: ActiveBuild | ActiveRun | None, event: LabEvent, at: float
) -> ActiveBuild | ActiveRun | None:
    """What a host is busy with after one of its events."""
    match event:
        case BuildStarted(candidate):
            return ActiveBuild(candidate, at)
        case BuildProgress(candidate, done, total, stage):
            since = before.since if isinstance(before, ActiveBuild) else at
            return ActiveBuild(candidate, since, done, total, printable(stage))
        case BuildFinished() if isinstance(before, ActiveBuild):
            return replace(before, finished=True, done=before.total)
        case RunStarted(candidate, number, of, purpose, seconds):
            return ActiveRun(candidate, at, number, of, purpose, seconds)
        case RunProgress(_, _, qps) if isinstance(before, ActiveRun):
            return replace(before, samples=(*before.samples, qps))
        case ExecutionStarted() if isinstance(before, ActiveRun):
            return replace(before, execution=event)
        case RunFinished(facts=facts) if isinstance(before, ActiveRun):
            return replace(before, finished=True, samples=before.samples or facts.samples)
        case CandidateSkipped() | BuildCancelled():
            return None
        case _:
            return before


def why_of(state: SessionState, report: str) -> str:
    """The reason of the first change that the verdict names; "" where it was not studied.

    ``report`` is the command that shows the hunt.
    """
    step = first_step(state.verdict)
    if step is None or not state.studied:
        return ""
    found = reason(state, step)
    helps = reasons.what_helps(found, report.replace(" show ", " why ", 1), studied=True)
    return f"Why {found.culprit[:10]}: {' '.join((*reasons.sentences(found), helps))}".rstrip()
