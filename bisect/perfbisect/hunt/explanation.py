"""Measures why the culprit is slower, by further runs of the culprit and its parent after the verdict. See
``core/explain``.

Each kind of measurement (counters, profiles, query plans …) is a study. ``PARTS`` lists the studies in their sequence.
The events of a study are stored in the log of the hunt, and change no verdict, because the search does not read these
events. Measurements of an earlier attempt are not repeated. If a study fails, an event states the reason, and the next
study begins; a later attempt repeats the failed study.

At the end, the functions that the culprit's diff changes are read from the user's clone and stored as an event, so that
a report needs no repository.
"""

from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TypeGuard

from perfbisect.core.domain.events import (
    BuildFinished,
    BuildStarted,
    CandidateSkipped,
    ChangedFunctions,
    Counted,
    Event,
    LabEvent,
    Planned,
    Profiled,
    RunFinished,
    Unexplained,
    Warned,
)
from perfbisect.core.domain.facts import PlanFacts, ProfileFacts, RunFacts
from perfbisect.core.domain.orders import Measure, PlannedRuns, Purpose, Step, Verdict, explained_step
from perfbisect.core.domain.session_state import SessionState
from perfbisect.core.explain.evidence import Explanation, Sureness, difference_and_error, share_error
from perfbisect.core.explain.explanation import FUNCTIONS, explained_part, step_explanation
from perfbisect.core.explain.functions import SURE_ERRORS
from perfbisect.core.explain.profiles import non_system_functions
from perfbisect.errors import PerfBisectError, as_perfbisect_error
from perfbisect.hunt.loop import FixedPlan, Workers, run
from perfbisect.hunt.search_problem import SavedLog, TimedEvent
from perfbisect.lab.measure.counting import can_set_length, counting_obstacle, estimated_counting_seconds
from perfbisect.lab.measure.profiles import SAMPLED_INSTRUCTIONS, ProfileStudy
from perfbisect.lab.measure.studies import CounterGroups, FunctionCountStudy, PlanStudy, has_query_plans
from perfbisect.lab.measure.visit import StudyMaker
from perfbisect.process import CLOCK
from perfbisect.recipes.builder import Builder
from perfbisect.recipes.workload import EVENTS, Workload
from perfbisect.repository.changed_functions import changed_functions
from perfbisect.repository.discovery import open_repository
from perfbisect.wording.quantities import duration
from perfbisect.wording.text import advised

# share of a hunt's time for all studies except exact counts; a round that has begun may exceed this share
STUDY_SHARE = 0.1
COUNT_SHARE = 0.2  # share of a hunt's time for exact counts by function
LEAST_SECONDS = 90.0  # in a short hunt, the least time of all studies, and the least time of exact counts
LENGTH_ADVICE = f"; with {{{EVENTS}}} in place of a number in the command, a short run would be enough"
SHORTEST_RUN = 1.0  # seconds; shorter runs show nothing
OFF_CPU_SHARE = 0.3  # waits are sampled if the workload's threads are off CPU for a larger share of their time
LOCATED_ERROR = 0.02  # profiles are repeated until the standard error of the slower function's share is this

WorkersOf = Callable[[StudyMaker], Workers[LabEvent]]


@dataclass(frozen=True, slots=True)
class StudyPart:
    """A study: a kind of measurement of the culprit and its parent that can show why the culprit is slower."""

    name: str
    # Returns the study for turns of this number of seconds, in a hunt of this state.
    make_study: Callable[[float, SessionState], StudyMaker]
    rounds: int  # in each round, each build is measured once
    share: float  # share of the time for all studies; a study may also use the time that earlier studies have left
    # Whether the study can show something new for the builder, the workload and the state of the hunt.
    is_useful: Callable[[Builder, Workload, SessionState], bool] = lambda *_: True
    has_certain_round: Callable[[Workload], bool] = lambda _: False  # whether the first round needs no time left
    # Returns the smallest number of seconds of a turn, from the workload and the timed runs of a build.
    least_seconds: Callable[[Workload, Sequence[RunFacts]], float] = lambda *_: 0.0
    is_complete: Callable[[Explanation], bool] = lambda _: False  # whether the study may end after half of its rounds
    # If two studies have one name: whether the events of this study are samples, or exact counts by function.
    is_sampled: bool | None = None
    hunt_share: float = 0.0  # share of the hunt's time, which the study may take in place of ``share``
    of_all_builds: bool = False  # other builds that the hunt has measured on the host get one turn each, at the end

    def is_result(self, event: Event) -> TypeGuard[Counted | Profiled | Planned]:
        """Whether an event is a result of this study."""
        has_samples = bool(event.facts.samples) if isinstance(event, Profiled) else None
        return explained_part(event) == self.name and self.is_sampled in (None, has_samples)


def timed_runs(runs: Iterable[RunFacts]) -> list[RunFacts]:
    """The entries of ``runs`` without exact counts of instructions, which are not timed."""
    return [run for run in runs if not run.counted]


def runs_of_hunt(state: SessionState) -> list[RunFacts]:
    """The runs of all builds of a hunt."""
    return [run for row in state.tested.values() for run in row.runs]


def is_count_by_function(event: Event) -> bool:
    """Whether an event contains the exact number of instructions of each function."""
    return isinstance(event, Profiled) and explained_part(event) == "instructions" and not event.facts.samples


def is_often_off_cpu(workload: Workload, runs: Iterable[RunFacts]) -> bool:
    """Whether the threads of a server's workload are off CPU for 30 % of the time or more, in any timed run.

    The result is false for a workload that is a command.
    """
    clocks = [(run.counters.get("task-clock"), run.seconds) for run in timed_runs(runs) if not workload.command]
    return any(clock and clock / 1000 < (1 - OFF_CPU_SHARE) * workload.threads * seconds for clock, seconds in clocks)


def is_function_clear(explanation: Explanation) -> bool:
    """Whether the profiles clearly show which function causes the difference of the culprit and its parent."""
    total, spread = difference_and_error(explanation.functions)
    guilty = [row for row in explanation.functions if row.difference * total > 0 and row.beyond_noise]
    if explanation.location:
        guilty = [explanation.location.top or explanation.location.innermost]
    has_difference = bool(guilty) and abs(total) >= SURE_ERRORS * spread
    return has_difference and share_error(guilty[:1], explanation.functions) <= LOCATED_ERROR


def counted_operations(state: SessionState) -> int:
    """The number of operations in each run whose instructions were counted exactly, which is the same for all builds of
    a hunt; 0 if there are no such runs."""
    studied = [event.facts for event in state.explanation_events if isinstance(event, Counted)]
    return next((run.events for run in (*studied, *runs_of_hunt(state)) if run.counted), 0)


PARTS: tuple[StudyPart, ...] = (
    # Query plans are studied first, because the study is short, and the explanation begins with plans.
    StudyPart(
        "plans",
        lambda *_: PlanStudy,
        rounds=1,
        share=0.1,
        is_useful=lambda _, workload, __: has_query_plans(workload),
        has_certain_round=has_query_plans,
        of_all_builds=True,
    ),
    StudyPart(
        "profiles",
        lambda seconds, _: partial(ProfileStudy, seconds=seconds),
        rounds=3,
        share=0.4,
        has_certain_round=lambda workload: bool(workload.command),  # a command has no server to start
        is_complete=is_function_clear,
    ),
    # Waits are sampled only if threads are often off CPU. There are two rounds, because a single round does not show
    # how much waits vary without a change.
    StudyPart(
        "waits",
        # ``switches``: the most context switches a second in the runs of the hunt; 0 if switches were not counted.
        lambda seconds, state: partial(
            ProfileStudy,
            seconds=seconds,
            switches=max((run.system.get("cs") or 0.0 for run in runs_of_hunt(state)), default=0.0),
        ),
        rounds=2,
        share=0.4,
        is_useful=lambda _, workload, state: is_often_off_cpu(workload, runs_of_hunt(state)),
    ),
    # Exact counts show whether a build executes more code, and in which functions. Only some hosts can count.
    StudyPart(
        "instructions",
        lambda seconds, state: partial(FunctionCountStudy, events=counted_operations(state), seconds=seconds),
        rounds=1,
        is_sampled=False,
        share=0.0,
        hunt_share=COUNT_SHARE,
        is_useful=lambda builder, workload, _: not counting_obstacle(builder, workload),
        has_certain_round=lambda workload: not workload.command,  # a server's counted runs are short
        least_seconds=estimated_counting_seconds,
    ),
    # Instructions are sampled if they were not counted exactly, and if the processor counts instructions.
    StudyPart(
        "instructions",
        lambda seconds, _: partial(ProfileStudy, seconds=seconds, events=SAMPLED_INSTRUCTIONS),
        rounds=3,
        is_sampled=True,
        share=0.4,
        is_useful=lambda _, __, state: (
            any(run.counters.get("instructions") for run in timed_runs(runs_of_hunt(state)))
            and not any(map(is_count_by_function, state.explanation_events))
        ),
    ),
    StudyPart(
        "counters",
        lambda seconds, _: partial(CounterGroups, seconds=seconds),
        rounds=6,
        share=0.3,
        is_complete=lambda explanation: explanation.classes[0].sure is Sureness.SURE,
    ),
)


@dataclass(frozen=True, slots=True)
class StudyContext:
    """The data that all studies of one change share: the change whose reason is measured, the host and the workload."""

    step: Step
    log: SavedLog
    workers_of: WorkersOf
    workload: Workload
    host: str  # the host with most runs of the culprit, which has measured the parent, too; "": the only host
    visit_overhead: float  # usual seconds of a visit outside of timed runs
    measured: Sequence[int]  # the candidates that have runs on the host, oldest first

    @property
    def culprit_and_parent(self) -> tuple[int, int]:
        """The candidate numbers of the culprit and of its parent."""
        return self.step.candidate, self.step.parents[0]


def measure_reason(
    verdict: Verdict,
    log: SavedLog,
    workers_of: WorkersOf,
    builder: Builder,
    workload: Workload,
    hunt_count: int = 1,
    seconds: float = 0.0,
) -> Generator[TimedEvent]:
    """Measure the reason of the first change that a verdict names; measurements that the log already has are not
    repeated.

    The studies may take ``seconds`` seconds or, if ``seconds`` is 0, fixed shares of the hunt's time. The time of a
    hunt is the time of the session divided by ``hunt_count``, the number of hunts in the session.
    """
    if (step := explained_step(verdict)) is None:
        return
    state, overhead = log.state, visit_overhead([(entry.at, entry.event) for entry in log.history.events(log.hunt)])
    culprit = state.commits[step.candidate]
    runs = [(event.host, event.facts.commit) for _, event in log.entries if isinstance(event, RunFinished)]
    [(host, _)] = Counter(name for name, commit in runs if commit == culprit).most_common(1) or [("", 0)]
    # The commits are compared, not numbers of candidates: good and the merge base may have numbers of another range.
    commits = {commit for name, commit in runs if name == host}
    measured = [node for node, commit in enumerate(state.commits) if commit in commits]
    study = StudyContext(step, log, workers_of, workload, host, overhead, measured)
    hunt_seconds = state.elapsed / hunt_count
    budget = seconds or max(LEAST_SECONDS, STUDY_SHARE * hunt_seconds)
    for number, part in enumerate(PARTS):
        useful = [candidate for candidate in PARTS[number:] if candidate.is_useful(builder, workload, state)]
        if part not in useful:
            continue
        began, share = CLOCK.now(), part.share / (sum(candidate.share for candidate in useful) or 1.0)
        by_hunt = seconds or max(LEAST_SECONDS, part.hunt_share * hunt_seconds)
        allowed = by_hunt if part.hunt_share else budget * share
        try:
            yield from measure_part(part, study, allowed)
        except (PerfBisectError, OSError) as error:
            failure = as_perfbisect_error(error)
            yield log.append(Unexplained(part.name, advised(str(failure), failure.advice)))
        budget -= 0.0 if part.hunt_share and not seconds else CLOCK.now() - began


def measure_part(part: StudyPart, study: StudyContext, max_seconds: float) -> Generator[TimedEvent]:
    """Measure the rounds of a study that are not in the log yet, for about ``max_seconds`` seconds.

    A round measures the culprit and its parent once, and is always completed. A round begins only if it will probably
    end within ``max_seconds``. The estimate is the longest measurement of one build so far; before the first
    measurement, the estimate is the usual time that a visit (one start of the server) takes in addition to its runs.
    """
    state, workload, builds = study.log.state, study.workload, study.culprit_and_parent
    turn_counts = turns_by_candidate([event for event in state.explanation_events if part.is_result(event)])
    least = sum(part.least_seconds(workload, timed_runs(state.facts_of(state.commits[build]).runs)) for build in builds)
    if least > max(0.0, max_seconds) and not turn_counts.total():
        too_long = (
            f"it would take {duration(least)} or more, and {duration(max(0.0, max_seconds))} are left of the time for the reason"
            f" (`bisect why --max-time`){LENGTH_ADVICE * (not can_set_length(workload))}"
        )
        yield study.log.append(Unexplained(part.name, too_long))
        return
    turn_seconds = max(SHORTEST_RUN, max_seconds / (len(builds) * part.rounds) - study.visit_overhead)
    workers = study.workers_of(part.make_study(turn_seconds, state))
    host_number = workers.hosts.index(study.host) if study.host in workers.hosts else 0
    further_builds = [build for build in study.measured if part.of_all_builds and build not in builds]
    has_failed = False

    def orders() -> Iterator[Measure]:
        began, turns = CLOCK.now(), [0.0]
        for number in range(part.rounds):
            if 2 * number > part.rounds and part.is_complete(step_explanation(state, study.step)):
                break
            ordered = builds if number % 2 == 0 else builds[::-1]
            missing = [build for build in ordered if turn_counts[build] <= number]
            for turn, build in enumerate(missing):
                start = CLOCK.now()
                longest = max(turns) or study.visit_overhead + SHORTEST_RUN
                # A round does not end after its first turn, because the turn of one build alone shows nothing.
                is_late = turn == 0 and start - began + longest * len(missing) > max_seconds
                if has_failed or (is_late and not (part.has_certain_round(workload) and number == 0)):
                    return
                yield Measure((PlannedRuns(build, 1),), Purpose.EXPLAIN, host_number)
                turns.append(CLOCK.now() - start)
        for build in further_builds:
            if has_failed or CLOCK.now() - began + max(turns) > max_seconds:
                return
            if not turn_counts[build]:
                yield Measure((PlannedRuns(build, 1),), Purpose.EXPLAIN, host_number)

    def store_study_event(event: Event, _: int | None) -> TimedEvent:
        """Store an event in the log if the event is a result of the study. Any other event, such as a finished build,
        is shown but not stored, because the search would use the event if the log contained the event.

        If the culprit or its parent fails, the study ends.
        """
        match event:
            case CandidateSkipped(candidate, skip, host=host) if candidate in builds:
                return study.log.append(Unexplained(part.name, f"{skip.stage}: {skip.reason}", host))
            case Counted() | Profiled() | Planned() | Unexplained() | Warned():
                return study.log.append(event)
            case _:
                return CLOCK.now(), event

    for at, event in without_reuse_events(run(FixedPlan(orders()), store_study_event, workers)):
        has_failed = has_failed or isinstance(event, Unexplained)
        yield at, event


def without_reuse_events(events: Iterable[TimedEvent]) -> Iterator[TimedEvent]:
    """``events`` without the events that a build was reused, because every measurement of a study has these events."""
    begun: TimedEvent | None = None
    for at, event in events:
        if isinstance(event, BuildStarted):
            begun = at, event
        elif begun and isinstance(event, BuildFinished) and event.facts.reused:
            begun = None
        else:
            if begun:
                yield begun
            begun = None
            yield at, event


def turns_by_candidate(events: Iterable[Counted | Profiled | Planned]) -> Counter[int]:
    """The number of turns (measurements of one build in a study) of each candidate, including interrupted turns.

    A turn has one event for each group of counters, one for each event of perf, or one for each SQL statement.
    """
    event_counts: Counter[tuple[int, str]] = Counter()
    for event in events:
        match event:
            case Counted(candidate, group=title) | Profiled(candidate, ProfileFacts(event=title)):
                event_counts[candidate, title] += 1
            case Planned(candidate, PlanFacts(statement=title)):
                event_counts[candidate, title] += 1
    turns: Counter[int] = Counter()
    for (candidate, _), number in event_counts.items():
        turns[candidate] = max(turns[candidate], number)
    return turns


def visit_overhead(events: Sequence[tuple[float, Event]]) -> float:
    """The seconds of a visit (one start of the server) in addition to its timed runs. The result is the upper quartile
    over all runs, because a run that is not the first of its visit has almost no additional time."""
    overheads = sorted(
        later - earlier - event.facts.seconds
        for (earlier, _), (later, event) in pairwise(events)
        if isinstance(event, RunFinished)
    )
    return max(0.0, overheads[3 * len(overheads) // 4]) if overheads else 0.0


def store_changed_functions(verdict: Verdict, log: SavedLog, repository: Path) -> Generator[TimedEvent]:
    """Read from the user's clone which functions the culprit of the verdict's first step changes, and store the
    functions as a ChangedFunctions event.

    Nothing is stored if the latest ChangedFunctions event in the log is equal.
    """
    step = explained_step(verdict)
    if step is None or not step.parents:
        return
    parent, culprit = (log.state.commits[node] for node in (step.parents[0], step.candidate))
    studied = log.state.explanation_events
    stored = [event for event in studied if isinstance(event, ChangedFunctions)]
    profiled = non_system_functions(event.facts for event in studied if isinstance(event, Profiled))
    try:
        # Functions that an earlier attempt stored are read again, because its version of perfbisect may find fewer
        # functions.
        facts = changed_functions(open_repository(repository), parent, culprit, profiled)
        change = ChangedFunctions(step.candidate, facts)
    except (PerfBisectError, OSError) as error:
        if not any((event.facts.parent, event.facts.commit) == (parent, culprit) for event in stored):
            yield log.append(Unexplained(FUNCTIONS, str(as_perfbisect_error(error))))
        return
    if change not in stored[-1:]:
        yield log.append(change)
