"""Carries out a session: the preparations, then the work orders (descriptions of measurements) that the plan returns,
then the work after a verdict.

The *members* of a session are a single hunt, a single trial, or several hunts of different workloads over the same
range. Each member has a log. Each work order names the workload that it measures.

In a session of several hunts, the event of a build or a failed build is stored in the logs of all hunts without a
verdict. The event of a run or a failed run is stored in the log of the hunt whose work order led to the run. Hunts for
several results of one command share runs: the log of each hunt has its own result of the run. Therefore the log of each
hunt is complete, and can be read without the logs of other hunts.
"""

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

from perfbisect.core.domain.events import (
    BuildFinished,
    BuildStarted,
    CandidateSkipped,
    Decided,
    Event,
    LabEvent,
    RunFinished,
    SessionEnded,
)
from perfbisect.core.domain.facts import BUILDING, SkipFacts
from perfbisect.core.domain.measured_log import is_of_build
from perfbisect.core.domain.orders import (
    CodePlacement,
    Fleet,
    Interval,
    Measure,
    Purpose,
    Reason,
    Verdict,
    explained_step,
    worsening_steps,
)
from perfbisect.core.domain.orders import Step as Change
from perfbisect.core.domain.settings import MAX_PROBABILITY, PrintedResult
from perfbisect.core.inference.instruction_counts import ratio_of_indistinct_ends
from perfbisect.core.search.decide import decide_together, fleet_for_member, orders_layouts
from perfbisect.core.search.situation import with_suspects
from perfbisect.errors import NoMetricValues, PerfBisectError, RangeEndFailed, RunFailed, UsageError
from perfbisect.hunt.loop import NextAction, Planner, Workers, run
from perfbisect.hunt.search_problem import (
    SavedLog,
    SearchProblem,
    TimedEvent,
    constant_metric_warning,
    forecast_builds_and_runs,
    many_runs_warning,
    run_length_warning,
)
from perfbisect.lab import Lab
from perfbisect.wording.trials import pairing_chosen

if TYPE_CHECKING:
    from perfbisect.hunt.lifecycle import SessionLifecycle

T = TypeVar("T")
Numbered = tuple[int, TimedEvent]  # (number of a member, event of this member)


@dataclass(frozen=True, slots=True)
class WorkloadFailed:
    """Tells the driver that one workload cannot be measured, while other workloads of the session can be measured."""

    trouble: PerfBisectError
    host: str = ""


@dataclass
class SessionMember:
    """A member of a session: a hunt or a trial, and its log.

    A hunt is measured until its log contains a verdict, or until the hunt fails. A trial is measured until its plan has
    no further work order.
    """

    problem: SearchProblem | None  # None: a trial
    log: SavedLog
    lifecycle: "SessionLifecycle | None"  # None: the member has ended
    verdict: Verdict | None = None
    failure: PerfBisectError | None = None
    # Looks for another metric if the metric of the hunt does not tell the ends apart. The arguments are the ratio of
    # the ends, and whether the search has ended. Returns the problem with which the search goes on, or None.
    change_metric: Callable[[Interval, bool], Generator[TimedEvent, None, SearchProblem | None]] | None = None
    diff_lifecycle: "SessionLifecycle | None" = None  # the lifecycle of a search in a diff, which has several rounds
    has_tried_metric: bool = False  # whether another metric was looked for because the search would take very many runs
    unclear_ratio: Interval | None = None  # the ratio of the ends, while another metric must be looked for
    named: tuple[Change, ...] = ()  # the changes that the latest decision names
    has_forecast: bool = False  # whether the log has an event with the probable length of the hunt
    has_warned: bool = False  # whether the log has a warning about the runs of the hunt
    output: PrintedResult | None = None  # the result that is hunted, if several hunts share the runs of one command
    uses_layouts: bool = False  # whether runs in randomized layouts are readings of the hunt, too

    @property
    def is_open(self) -> bool:
        """Whether the member is still measured: true while the member has no verdict, has not failed and has not
        ended."""
        return self.lifecycle is not None and self.verdict is None and self.failure is None

    def log_decision(self, event: Decided) -> Iterator[TimedEvent]:
        """Store a decision, and the events that follow from it: the choice between paired and interleaved runs, a
        forecast of the cost of the hunt, and a warning about the runs.

        A hunt stores at most one forecast and one warning.
        """
        earlier_purpose = self.log.state.purpose
        yield self.log.append(event)
        pairing, stored = event.decision.pairing_comparison, self.log.state.pairing
        if pairing and (not stored or stored.by_cpu or stored.together is not pairing.chooses_paired):
            yield self.log.append(pairing_chosen(pairing))
        is_due = earlier_purpose is Purpose.ENDS and not self.has_forecast
        if self.problem and is_due and (cost := forecast_builds_and_runs(self.problem, event.decision, self.log.state)):
            self.has_forecast = True
            yield self.log.append(cost)
        if not self.problem or self.has_warned:
            return
        belief, runs = event.decision.belief, [run.facts for _, run in self.log.entries if isinstance(run, RunFinished)]
        run_seconds = [run.seconds for run in runs if not run.counted]
        length_warning = run_length_warning(belief.effect, belief.noise, run_seconds)
        many_runs = many_runs_warning(self.problem, event.decision, self.log)
        if warning := many_runs or constant_metric_warning(self.log) or length_warning:
            self.has_warned = True
            yield self.log.append(warning)


class HuntsPlanner:
    """Chooses the next measurement in a session of one or several hunts."""

    def __init__(self, members: Sequence[SessionMember]) -> None:
        self._members = members

    def next(self, fleet: Fleet) -> NextAction:
        """The next work order (the next measurement) of one of the hunts, or the verdict of one hunt; the other hunts
        then continue."""
        members = self._members
        ended = [number for number, member in enumerate(members) if not member.is_open]
        if len(ended) == len(members):
            return NextAction(None, ends_at_once=True)
        if any(member.unclear_ratio and member.is_open for member in members):  # another metric is looked for first
            return NextAction(None)
        situations = [member.problem.situation(member.log.state) for member in members if member.problem]
        several = len(members) > 1
        common = several and all(member.output for member in members)
        number, decision = decide_together(situations, ended, fleet, has_common_runs=common)
        member, numbers = members[number], range(len(members))
        for candidate in numbers if common and orders_layouts(decision) else ():
            if members[candidate].is_open and not members[candidate].uses_layouts:
                excluded = [number for number in numbers if number != candidate]
                _, decision_alone = decide_together(situations, excluded, fleet)
                members[candidate].uses_layouts = orders_layouts(decision_alone)
        may_change = member.change_metric and not member.has_tried_metric
        if may_change and member.problem and many_runs_warning(member.problem, decision, member.log):
            member.has_tried_metric, member.unclear_ratio = True, decision.belief.effect
            return NextAction(None)
        in_search = isinstance(decision.order, Measure) and decision.order.purpose is Purpose.SEARCH
        if member.diff_lifecycle and in_search and member.diff_lifecycle.has_new_needs:
            policy = replace(member.diff_lifecycle.setup.settings.policy, confidence=MAX_PROBABILITY)
            decision = replace(decision, order=with_suspects(decision.belief, policy, Reason.UNBUILDABLE), builds=())
        own_builds = tuple(build for build in decision.builds if build.workload == number)
        decided = Decided(replace(decision, builds=own_builds), fleet_for_member(number, fleet) if several else fleet)
        return NextAction.of(decision, decided, number, several=several)


class SessionDriver:
    """Carries out a session, and yields its events."""

    def __init__(
        self,
        members: Sequence[SessionMember],
        plan: Planner,
        workers: Callable[[], Workers[LabEvent]],
        failed: Callable[[int, PerfBisectError], None],
    ) -> None:
        """``workers`` returns the workers that carry out the work orders of ``plan``.

        If a member cannot continue but other members can, ``failed`` is called with the number of this member and its
        failure.
        """
        self.members = members
        self._plan, self._workers, self._failed = plan, workers, failed
        self._current = 0  # number of the hunt or trial to which the latest event belongs

    def events(self) -> Generator[Numbered]:
        """The events of a session: first of the preparations of each member, then of the measurements, then of the work
        after each verdict."""
        for number, member in enumerate(self.members):
            if lifecycle := member.lifecycle:
                if (yield from self._numbered(number, lifecycle.opening())) is False:
                    member.lifecycle = None  # the hunt already has its verdict, and adds no more events
                member.problem = lifecycle.problem
        for number, member in enumerate(self.members):
            if member.is_open:
                yield from self._store_missed_builds(number, member)
        goes_on = True
        while goes_on and self._open_numbers:
            with closing(run(self._plan, self.append, self._workers())) as logged:
                for numbered_events in logged:
                    yield from numbered_events
                    member = self.members[self._current]
                    if len(self.members) > 1 and member.verdict and not has_runs_after_verdict(member):
                        yield from self._closing_events(self._current)
            for number, member in enumerate(self.members):
                yield from self._reopen_hunt(number, member)
            # ``is_open`` does not show the end of the plan: a trial is open even after its plan.
            goes_on = any(member.problem for member in self.members)
        closings = [self._closing_events(number) for number in range(len(self.members))]
        for member_closing in closings:  # the events up to each verdict
            while numbered_event := next(member_closing, None):
                yield numbered_event
                if isinstance(numbered_event[1][1], SessionEnded):
                    break
        for member_closing in closings:  # the events about the reasons of changes
            yield from member_closing

    def append(self, event: Event | WorkloadFailed, workload: int | None = None) -> tuple[Numbered, ...]:
        """Store an event in the log of its hunt or trial; an event about a build, or about a run for several hunts,
        also in the logs of the other hunts without a verdict. Returns the stored events with their hunts' numbers."""
        number = self._current = self._member_number(workload)
        target = self.members[number]
        if isinstance(event, WorkloadFailed):
            if target.failure is None:  # otherwise the workload has failed on another host already
                self._note_failure(number, event.trouble)
            return ()
        if isinstance(event, Decided):
            order = event.decision.order
            target.named = event.decision.found or worsening_steps(order)
            target.verdict = None if isinstance(order, Measure) else order
            return tuple((number, logged) for logged in target.log_decision(event))
        if isinstance(event, RunFinished) and target.output:
            with target.log.history.transaction():
                return tuple(
                    (index, member.log.append(event_of_shared_run(event, member.output, is_ordered=member is target)))
                    for index, member in enumerate(self.members)
                    if member is target or (member.is_open and (member.uses_layouts or not event.facts.layout))
                    if member.output
                )
        if not is_of_build(event) or len(self.members) == 1:
            return ((number, target.log.append(event)),)
        with target.log.history.transaction():
            return (
                (number, target.log.append(event)),
                *(
                    (index, member.log.append(as_build_of_another_hunt(event)))
                    for index, member in enumerate(self.members)
                    if member.is_open and member is not target
                ),
            )

    @property
    def _open_numbers(self) -> list[int]:
        return [number for number, member in enumerate(self.members) if member.is_open]

    def _member_number(self, workload: int | None) -> int:
        """The number of the member (hunt or trial) to which an event belongs: the only member, or the member of
        ``workload``. If ``workload`` is None, the event belongs to the member of the latest event; if the measurement
        of this member has ended, the event belongs to the first member whose measurement has not ended."""
        if len(self.members) == 1:
            return 0
        if workload is not None:
            return workload
        return self._current if self.members[self._current].is_open else next(iter(self._open_numbers), self._current)

    def _closing_events(self, number: int) -> Generator[Numbered]:
        """The events from the verdict of a hunt, or from the last measurement of a trial, to the end of the member;
        empty for a member that has ended.
        """
        member = self.members[number]
        if member.lifecycle and not member.failure and (member.verdict or not member.problem):
            yield from self._numbered(number, member.lifecycle.finish_session(member.verdict))
            member.lifecycle = None

    def _reopen_hunt(self, number: int, member: SessionMember) -> Generator[Numbered]:
        """Reopen a hunt whose search can continue: with the next round of a search in a diff, or with another metric.

        Another metric is tried if good and bad do not differ in the metric of the hunt, or if the search needs too many
        runs.
        """
        if member.diff_lifecycle and member.verdict and not member.failure:
            if problem := (yield from self._numbered(number, member.diff_lifecycle.begin_diff_round(member.verdict))):
                member.problem, member.verdict = problem, None
            return
        change_metric, open_ratio = member.change_metric, member.unclear_ratio
        verdict_ratio = ratio_of_indistinct_ends(member.verdict)
        member.unclear_ratio = None
        if not change_metric or member.failure or not (ratio := verdict_ratio or open_ratio):
            return
        if verdict_ratio:
            member.change_metric = None
        if problem := (yield from self._numbered(number, change_metric(ratio, verdict_ratio is not None))):
            member.problem, member.verdict, member.change_metric = problem, None, None

    def _store_missed_builds(self, number: int, member: SessionMember) -> Generator[Numbered]:
        """Store in the log of a hunt the builds that other hunts made while this hunt had failed or had not begun."""
        logged_commits = {event.facts.commit for _, event in member.log.entries if is_of_build(event)}
        commits = {*member.problem.commits} if member.problem else set()
        for source in self.members:
            builds = [event for _, event in source.log.entries if is_of_build(event)]
            missing = [event for event in builds if event.facts.commit in commits - logged_commits]
            if not missing:
                continue
            log = [entry.event for entry in source.log.history.events(source.log.hunt)]
            started = {event.commit.sha: event for event in log if isinstance(event, BuildStarted)}
            for event in missing:
                commit = event.facts.commit
                if commit in started and commit not in logged_commits:
                    yield number, member.log.append(started[commit])
                yield number, member.log.append(as_build_of_another_hunt(event))
                logged_commits.add(commit)

    def _numbered(self, number: int, events: Generator[TimedEvent, None, T]) -> Generator[Numbered, None, T | None]:
        """Yields each event of the generator ``events``, with the number of its member. Returns the result of the
        generator; None if the generator raises a failure that concerns only this member.
        """
        self._current = number
        try:
            with closing(events):
                while True:
                    yield number, next(events)
        except StopIteration as end:
            result: T = end.value
            return result
        except PerfBisectError as trouble:
            self._note_failure(number, trouble)
        return None

    def _note_failure(self, number: int, trouble: PerfBisectError) -> None:
        """Store the failure of a member, or raise the failure if it concerns all members of the session."""
        if len(self.members) == 1 or not concerns_one_workload(trouble):
            raise trouble
        self.members[number].failure = trouble
        self._failed(number, trouble)


def combined_lab(labs: Mapping[int, Lab]) -> Lab:
    """A function that measures several workloads on one host. ``labs`` maps the number of each workload to the function
    that measures this workload."""

    def measure(order: Measure) -> Generator[LabEvent]:
        """Carry out a work order with the function of its workload. A failure that concerns only this workload is
        yielded as an event.
        """
        try:
            yield from labs[order.workload](order)
        except PerfBisectError as trouble:
            if not concerns_one_workload(trouble):
                raise
            yield WorkloadFailed(trouble)  # type: ignore[misc]  # for the driver alone

    return measure


def has_runs_after_verdict(member: SessionMember) -> bool:
    """Whether measurements follow the verdict of a hunt: to find the reason of the change, or to search with another
    metric."""
    verdict = member.verdict
    has_place = explained_step(verdict) is not None or isinstance(verdict, CodePlacement)
    return has_place or (member.change_metric is not None and ratio_of_indistinct_ends(verdict) is not None)


def as_build_of_another_hunt(event: Event) -> Event:
    """The event of a build that another hunt has ordered, changed for the log of this hunt.

    The event keeps the seconds of the build, from which the search estimates the cost of builds. But the event is
    marked, so that these seconds do not count as time that this hunt has spent.
    """
    if isinstance(event, BuildFinished):
        return replace(event, facts=replace(event.facts, reused=True))
    if isinstance(event, CandidateSkipped):
        return replace(event, facts=replace(event.facts, for_another=True))
    return event


def event_of_shared_run(
    event: RunFinished, output: PrintedResult, *, is_ordered: bool
) -> RunFinished | CandidateSkipped:
    """The event of a run that several hunts share, changed for the log of the hunt for the result ``output``. If the
    output of the run lacks this result, the event says that the candidate was skipped. ``is_ordered`` says that the
    work order of this hunt led to the run."""
    run, value = event.facts, event.facts.results.get(output.result)
    if is_ordered:
        return replace(event, facts=replace(run, results={}))
    if value is None:
        reason = f"the output has no metric: it lacks the result {output.result} of {output.format}"
        skip = SkipFacts(run.commit, "run", reason, run.log, 0.0, for_another=True)
        return CandidateSkipped(event.candidate, skip, event.host)
    return replace(event, facts=replace(run, reported=value, unit=output.unit, results={}, for_another=True))


def concerns_one_workload(trouble: PerfBisectError) -> bool:
    """Whether a failure concerns only one workload: the workload's runs of good or bad fail, or its output has no value
    of the metric."""
    if isinstance(trouble, RangeEndFailed):
        return isinstance(trouble.__cause__, RunFailed) and trouble.__cause__.stage not in BUILDING
    return isinstance(trouble, UsageError | NoMetricValues)
