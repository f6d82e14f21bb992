"""Functions without side effects that compute the new state of a session's view from its former state and an event."""

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
from perfbisect.core.domain.orders import Measure, Purpose, explained_step
from perfbisect.core.domain.session_state import SessionState, fold
from perfbisect.core.domain.settings import TrialType
from perfbisect.core.domain.trials import pairs_to_try, remaining_rounds, visits_of_each_round
from perfbisect.core.explain.explanation import step_explanation
from perfbisect.core.inference.classification import hunt_observations, ratios_to_good
from perfbisect.core.inference.relative_speed import step_ratio
from perfbisect.ui.session_view import (
    Activity,
    ExpectedRuns,
    LatestBuild,
    LatestRun,
    OrderGroup,
    SessionView,
    TimedEvent,
    entropy_in_bits,
)
from perfbisect.wording import reasons
from perfbisect.wording.quantities import count, ratio
from perfbisect.wording.text import printable

OF_RATIOS = MetricChosen, Remedied, RunFinished, SessionStarted  # events that change ratios


def view_after(view: SessionView, event: Event, at: float) -> SessionView:
    """The new state of the view after ``event``, which happened ``at`` seconds since the epoch."""
    return view_after_events(view, [(at, event)])


def view_after_events(view: SessionView, events: Iterable[TimedEvent]) -> SessionView:
    """The new state of the view after several events. The ratios are computed only once, after the last event, because
    the computation of ratios is slow."""
    stale = False
    for at, event in events:
        view, stale = _updated_except_ratios(view, event, at), stale or isinstance(event, OF_RATIOS)
    return with_computed_ratios(view) if stale else view


def _updated_except_ratios(view: SessionView, event: Event, at: float) -> SessionView:
    """The new state of the view after ``event``, in which the ratios are not yet updated."""
    began = at if view.began is None else view.began
    state = view.state.after(at, event)
    if state.commits is not view.state.commits:  # the previous range was from the merge base to good
        view = SessionView(report_command=view.report_command)
    if state is not view.state:
        view = with_state(view, state)
    view = replace(view, began=began, has_moved=False)
    match event:
        case SessionEnded(reason_follows=True):
            return replace(view, search_verdict=event.verdict, is_verdict_final=True)
        case SessionEnded(verdict):
            view = replace(view, ended=at, latest_activity=None, activity_by_host={}, search_verdict=verdict)
            return replace(view, reason=reason_text(state, view.report_command(state.id)))
        case Decided(decision):
            begins = view.search_start is None and state.purpose in (Purpose.SEARCH, Purpose.CONFIRM)
            searching = (at, entropy_in_bits(decision.belief)) if begins else view.search_start
            view = replace(view, search_start=searching, layout_ratio="")
            if not isinstance(decision.order, Measure):
                return replace(view, search_verdict=decision.order)
            phase, order, runs = view.order_group, decision.order, state.run_count
            if phase is None or (phase.latest_order.purpose, phase.latest_order.fresh) != (order.purpose, order.fresh):
                phase = OrderGroup(order, runs, runs)
            until = max(runs, phase.runs_after) + sum(share.runs for share in order.plan)
            view = replace(view, search_verdict=None, order_group=OrderGroup(order, phase.runs_before, until))
            return replace(view, layout_ratio=layout_ratio_text(view))
        case SessionStarted(request=request) if request.works:
            view = replace(view, began=at, ended=None, activity_by_host={}, place="")
            return replace(view, expected_runs=expected_runs(state))
        case SessionStarted():
            begins = view.ended is not None or view.is_verdict_final
            return replace(view, began=at, ended=None, search_verdict=None, is_verdict_final=False) if begins else view
        case Foreseen(text):
            return replace(view, forecast=text)
        case PairingChosen():
            return replace(view, place="", expected_runs=expected_runs(state)) if view.trial_state else view
        case CandidateSkipped(number, skip, workload=work) if view.trial_state:
            what = "is omitted" if skip.is_build_failure else f"fails in workload {state.request.works[work].name}"
            warned = Warned(f"{state.request.subjects[number].name} {what}: {skip.reason}", f"See {skip.log}.")
            view = replace(view, state=state.after(at, warned))
        case RunStarted(number, workload=work, round=index) | RunFinished(number, workload=work, round=index) if (
            view.trial_state
        ):
            rounds, request = view.expected_runs.rounds, state.request
            of = f" of {rounds}" if index < rounds and not view.expected_runs.may_change else ""
            where = f"{index + 1}{of}"
            what = count(len(request.works), "result") if request.shared else f"workload {request.works[work].name}"
            named = f"round {where}: {what}, {request.subjects[number].name}"
            present = printable(named) if len(request.subjects) > 1 else f"visit {where}"
            view = replace(view, place=present, has_moved=present != view.place)
        case _:
            pass
    if isinstance(event, Warned) or not isinstance(event, LabEvent):
        return view
    doing = activity_after(view.activity_by_host.get(event.host), event, at)
    view = replace(view, activity_by_host={**view.activity_by_host, event.host: doing})
    return view if event.host in state.build_hosts else replace(view, latest_activity=doing)


def with_state(view: SessionView, state: SessionState) -> SessionView:
    """The view with the session state ``state``, and with the results of the tested commits of the range that the hunt
    searches now."""
    tested = {state.node[sha]: row for sha, row in state.tested.items() if sha in state.node}
    return replace(view, state=state, tested=tested)


def expected_runs(trial: SessionState) -> ExpectedRuns:
    """The numbers of rounds and runs that the trial will have at its end."""
    rounds, tried, due = remaining_rounds(trial), pairs_to_try(trial), visits_of_each_round(trial)
    open_ = tried > 0 and trial.request.kind is not TrialType.NOISE
    per_round = 2 * sum(build > 0 for _, build in due) if trial.is_paired else len(due)
    runs = len(trial.runs) + len(rounds) * per_round * trial.request.runs + 2 * tried
    return ExpectedRuns(rounds.stop + (tried if open_ else min(1, tried)), runs, open_)


def view_after_earlier_attempts(view: SessionView, events: Iterable[TimedEvent]) -> SessionView:
    """The view after all events of earlier attempts. If the session has not ended, the view shows only the duration of
    the present attempt, counted from the next event."""
    log = [*events]
    if log and isinstance(log[-1][1], SessionEnded):
        return view_after_events(view, log)
    if log and isinstance(first := log[0][1], SessionStarted) and first.request.works:
        return replace(view_after_events(view, log), began=None)
    state = fold(log)
    state.verdict = None
    return with_computed_ratios(with_state(SessionView(report_command=view.report_command), state))


def with_computed_ratios(view: SessionView) -> SessionView:
    """The view, with the ratios computed from all runs so far. This computation is slow; all other functions of this
    module are fast."""
    if view.hunt_start is None:
        return view
    by_commit = ratios_to_good(view.state, view.metric, view.state.hosts_if_several, view.hunt_start.host_classes)
    return replace(view, ratios_to_good=by_commit, layout_ratio=layout_ratio_text(view))


def layout_ratio_text(view: SessionView) -> str:
    """The present ratio of two builds in randomized layouts, as text, such as "0.981 (0.965–0.997) of 5e6e15a942 in 12
    layouts".

    The text is "" until both builds have runs in at least two layouts.
    """
    state = view.state
    runs = [
        view.tested[candidate].runs if candidate in view.tested else () for candidate in view.pair_in_randomized_layouts
    ]
    if (compared := min((sum(run.layout > 0 for run in runs_of_build) for runs_of_build in runs), default=0)) < 2:
        return ""
    culprit, reference = view.pair_in_randomized_layouts
    observations = hunt_observations(state, state.node, view.metric, state.hosts_if_several)
    interval = step_ratio(observations, len(state.commits) - 1, culprit, reference)
    return f"{ratio(interval)} of {view.commit(reference).short_sha} in {count(compared, 'layout')}" if interval else ""


def activity_after(former: Activity | None, event: LabEvent, at: float) -> Activity | None:
    """The build or run on which a host works after ``event``; None if the host is idle. ``former`` is the build or run
    on which the host worked before the event."""
    match event:
        case BuildStarted(candidate):
            return LatestBuild(candidate, at)
        case BuildProgress(candidate, done, total, stage):
            since = former.since if isinstance(former, LatestBuild) else at
            return LatestBuild(candidate, since, done, total, printable(stage))
        case BuildFinished() if isinstance(former, LatestBuild):
            return replace(former, is_finished=True, done_steps=former.total_steps)
        case RunStarted(candidate, number, of, purpose, seconds):
            return LatestRun(candidate, at, number, of, purpose, seconds)
        case RunProgress(_, _, qps) if isinstance(former, LatestRun):
            return replace(former, samples=(*former.samples, qps))
        case ExecutionStarted() if isinstance(former, LatestRun):
            return replace(former, execution=event)
        case RunFinished(facts=facts) if isinstance(former, LatestRun):
            return replace(former, is_finished=True, samples=former.samples or facts.samples)
        case CandidateSkipped() | BuildCancelled():
            return None
        case _:
            return former


def reason_text(state: SessionState, report_command: str) -> str:
    """Sentences about the reason of the first change that the verdict names; "" if the reason was not measured.

    ``report_command`` is the command that shows the report of the hunt.
    """
    step = explained_step(state.verdict)
    if step is None or not state.explanation_events:
        return ""
    explanation = step_explanation(state, step)
    helps = reasons.missing_reason_advice(explanation, report_command.replace(" show ", " why ", 1), was_measured=True)
    return f"Why {explanation.culprit[:10]}: {' '.join((*reasons.reason_sentences(explanation), helps))}".rstrip()
