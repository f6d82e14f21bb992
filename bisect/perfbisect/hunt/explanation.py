"""After the verdict: culprit and parent are measured again in turns, for the reason. See ``core/explain``.

One part after another: see ``PARTS``. Their events are stored in the log of the hunt, whose verdict stands,
and no decision reads them. What an earlier session has measured is not measured again. A part that fails is left out with
a sentence, until the reason is measured again.

At last, which functions of the source code the culprit changes is read from the user's clone, and stored as an event, too:
so a report needs no repository.
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
from perfbisect.core.domain.orders import Measure, Purpose, Share, Step, Verdict, first_step
from perfbisect.core.domain.session_state import SessionState
from perfbisect.core.explain.evidence import Explanation, Sureness
from perfbisect.core.explain.explanation import FUNCTIONS, part_of, reason
from perfbisect.core.explain.functions import SURE, part_error, whole
from perfbisect.core.explain.profiles import functions_in
from perfbisect.errors import PerfBisectError, in_words
from perfbisect.hunt.loop import Listed, Workers, run
from perfbisect.hunt.search_problem import SavedLog, TimedEvent
from perfbisect.lab.measure.counting import counting_time, has_length, obstacle
from perfbisect.lab.measure.profiles import SAMPLED_INSTRUCTIONS, ProfileStudy
from perfbisect.lab.measure.studies import CounterGroups, ExactCounts, PlanStudy, has_statements
from perfbisect.lab.measure.visit import StudyMaker
from perfbisect.process import CLOCK
from perfbisect.recipes.builder import Builder
from perfbisect.recipes.workload import EVENTS, Workload
from perfbisect.repository.changed_functions import changed_functions
from perfbisect.repository.discovery import open_repository
from perfbisect.wording.quantities import duration
from perfbisect.wording.text import advised

SHARE = 0.1  # of the time of a hunt for all parts except exact counts, and rounds that are always taken or have begun
COUNTED = 0.2  # the same for exact counts by function
LEAST = 90.0  # seconds for either in a short hunt
NO_LENGTH = f"; with {{{EVENTS}}} in place of a number in the command, a short run would be enough"
SHORTEST = 1.0  # seconds of a run that says anything
WAITING = 0.3  # share of the time of the workload's threads that is spent off CPU, from which on waits are sampled
PLACED = 0.02  # standard error of the share that the first function has, from which on no further profile is taken

WorkersOf = Callable[[StudyMaker], Workers[LabEvent]]


@dataclass(frozen=True, slots=True)
class StudyPart:
    """One part of an explanation."""

    name: str
    # For turns of so many seconds of measuring, in a hunt of this state.
    study: Callable[[float, SessionState], StudyMaker]
    rounds: int  # in each, both builds have one turn
    share: float  # of the time for the whole explanation; what one part leaves, the next may use
    # whether it can show what is not known yet, of a workload of a system, in a hunt of this state
    suits: Callable[[Builder, Workload, SessionState], bool] = lambda *_: True
    always: Callable[[Workload], bool] = lambda _: False  # whether the first round is taken however long it takes
    # seconds of a turn at least, of a workload after these timed runs of a build
    least: Callable[[Workload, Sequence[RunFacts]], float] = lambda *_: 0.0
    enough: Callable[[Explanation], bool] = lambda _: False  # whether half of the rounds have shown what it can show
    # of two parts of one name: whether its events are of samples, or of exact counts by function
    sampled: bool | None = None
    own: float = 0.0  # share of the time of the hunt that it may take, in place of a share of the explanation's
    of_all: bool = False  # after culprit and parent, one turn of each other build that the hunt has measured there

    def has(self, event: Event) -> TypeGuard[Counted | Profiled | Planned]:
        """Whether an event is one of this part."""
        if self.sampled is not None and not (isinstance(event, Profiled) and bool(event.facts.samples) is self.sampled):
            return False
        return part_of(event) == self.name


def timed(runs: Iterable[RunFacts]) -> list[RunFacts]:
    """Those of the runs that were timed, and not counted exactly."""
    return [run for run in runs if not run.counted]


def runs_in(state: SessionState) -> list[RunFacts]:
    """All runs of the hunt."""
    return [run for row in state.tested.values() for run in row.runs]


def by_function(event: Event) -> bool:
    """Whether it is an exact count by function."""
    return isinstance(event, Profiled) and part_of(event) == "instructions" and not event.facts.samples


def waiting(workload: Workload, runs: Iterable[RunFacts]) -> bool:
    """Whether the threads of a workload are off CPU for a good part of the time, in any of the runs of a server."""
    clocks = [(run.counters.get("task-clock"), run.seconds) for run in timed(runs) if not workload.command]
    return any(clock and clock / 1000 < (1 - WAITING) * workload.threads * seconds for clock, seconds in clocks)


def placed(found: Explanation) -> bool:
    """Whether the profiles show in which function the difference is, far beyond noise."""
    total, spread = whole(found.functions)
    telling = [row for row in found.functions if row.difference * total > 0 and row.beyond_noise]
    if found.place:
        telling = [found.place.top or found.place.inner]
    return bool(telling) and abs(total) >= SURE * spread and part_error(telling[:1], found.functions) <= PLACED


def counted_length(state: SessionState) -> int:
    """The length of exactly counted runs that the hunt has found; both builds have the same. 0: there is none."""
    studied = [event.facts for event in state.studied if isinstance(event, Counted)]
    return next((run.events for run in (*studied, *runs_in(state)) if run.counted), 0)


PARTS: tuple[StudyPart, ...] = (
    # First: it is short, and said first.
    StudyPart(
        "plans",
        lambda *_: PlanStudy,
        rounds=1,
        share=0.1,
        suits=lambda _, workload, __: has_statements(workload),
        always=has_statements,
        of_all=True,
    ),
    StudyPart(
        "profiles",
        lambda seconds, _: partial(ProfileStudy, seconds=seconds),
        rounds=3,
        share=0.4,
        always=lambda workload: bool(workload.command),  # which has no server to start
        enough=placed,
    ),
    # Where threads wait for a good part of the time. A single round would not say how much waits vary by themselves.
    StudyPart(
        "waits",
        # With the most switches of threads a second in the runs of the hunt; 0 where they are not known.
        lambda seconds, state: partial(
            ProfileStudy,
            seconds=seconds,
            switches=max((run.system.get("cs") or 0.0 for run in runs_in(state)), default=0.0),
        ),
        rounds=2,
        share=0.4,
        suits=lambda _, workload, state: waiting(workload, runs_in(state)),
    ),
    # Where it can be counted exactly: this tells more code from everything else, and in which functions it is.
    StudyPart(
        "instructions",
        lambda seconds, state: partial(ExactCounts, events=counted_length(state), seconds=seconds),
        rounds=1,
        sampled=False,
        share=0.0,
        own=COUNTED,
        suits=lambda builder, workload, _: not obstacle(builder, workload),
        always=lambda workload: not workload.command,  # whose counted runs are as short as they can be
        least=counting_time,
    ),
    # Where they were not, they are sampled, if the processor counts them.
    StudyPart(
        "instructions",
        lambda seconds, _: partial(ProfileStudy, seconds=seconds, events=SAMPLED_INSTRUCTIONS),
        rounds=3,
        sampled=True,
        share=0.4,
        suits=lambda _, __, state: (
            any(run.counters.get("instructions") for run in timed(runs_in(state)))
            and not any(map(by_function, state.studied))
        ),
    ),
    StudyPart(
        "counters",
        lambda seconds, _: partial(CounterGroups, seconds=seconds),
        rounds=6,
        share=0.3,
        enough=lambda found: found.classes[0].sure is Sureness.SURE,
    ),
)


@dataclass(frozen=True, slots=True)
class ReasonStudy:
    """The change whose reason is measured, and by what."""

    step: Step
    log: SavedLog
    workers_of: WorkersOf
    workload: Workload
    host: str  # that with most runs of the culprit: its parent was measured there, too. "" if there is only one
    visit: float  # seconds that most visits took beside what was timed
    measured: Sequence[int]  # the candidates that have runs on the host, oldest first

    @property
    def builds(self) -> tuple[int, int]:
        """The culprit and its parent."""
        return self.step.candidate, self.step.parents[0]


def explain(
    verdict: Verdict,
    log: SavedLog,
    workers_of: WorkersOf,
    builder: Builder,
    workload: Workload,
    together: int = 1,
    seconds: float = 0.0,
) -> Generator[TimedEvent]:
    """Measure for the reason of the verdict's first step what the log does not contain yet.

    ``together`` is the number of hunts that have shared the time of this one. ``seconds`` it may take; 0: as usual.
    """
    if (step := first_step(verdict)) is None:
        return
    state, visit = log.state, start_up([(entry.at, entry.event) for entry in log.history.events(log.hunt)])
    culprit = state.commits[step.candidate]
    runs = [(event.host, event.facts.commit) for _, event in log.entries if isinstance(event, RunFinished)]
    [(host, _)] = Counter(name for name, commit in runs if commit == culprit).most_common(1) or [("", 0)]
    # By commit: good and its merge base, measured before the search, have the candidates of another range.
    commits = {commit for name, commit in runs if name == host}
    measured = [node for node, commit in enumerate(state.commits) if commit in commits]
    study = ReasonStudy(step, log, workers_of, workload, host, visit, measured)
    hunted = state.elapsed / together
    left = seconds or max(LEAST, SHARE * hunted)
    for number, part in enumerate(PARTS):
        suit = [candidate for candidate in PARTS[number:] if candidate.suits(builder, workload, state)]
        if part not in suit:
            continue
        began, share = CLOCK.now(), part.share / (sum(candidate.share for candidate in suit) or 1.0)
        allowed = left * share if not part.own else seconds or max(LEAST, part.own * hunted)
        try:
            yield from take(part, study, allowed)
        except (PerfBisectError, OSError) as trouble:
            failure = in_words(trouble)
            yield log.append(Unexplained(part.name, advised(str(failure), failure.advice)))
        left -= 0.0 if part.own and not seconds else CLOCK.now() - began


def take(part: StudyPart, study: ReasonStudy, allowed: float) -> Generator[TimedEvent]:
    """The rounds of one part that are missing, as far as the time allows; ``allowed`` is in seconds.

    Another round is begun only if it ends in time as far as can be known: from the longest turn so far or, before the
    first, from what a visit took in the search. A round that has begun is finished.
    """
    state, workload, builds = study.log.state, study.workload, study.builds
    done = turns_done([event for event in state.studied if part.has(event)])
    least = sum(part.least(workload, timed(state.row(state.commits[build]).runs)) for build in builds)
    if least > max(0.0, allowed) and not done.total():
        needed = (
            f"it would take {duration(least)} or more, and {duration(max(0.0, allowed))} are left of the time for the reason"
            f" (`bisect why --max-time`){NO_LENGTH * (not has_length(workload))}"
        )
        yield study.log.append(Unexplained(part.name, needed))
        return
    workers = study.workers_of(part.study(max(SHORTEST, allowed / (len(builds) * part.rounds) - study.visit), state))
    host_number = workers.hosts.index(study.host) if study.host in workers.hosts else 0
    others = [build for build in study.measured if part.of_all and build not in builds]
    failed = False

    def orders() -> Iterator[Measure]:
        began, turns = CLOCK.now(), [0.0]
        for number in range(part.rounds):
            if 2 * number > part.rounds and part.enough(reason(state, study.step)):
                break
            missing = [build for build in (builds if number % 2 == 0 else builds[::-1]) if done[build] <= number]
            for turn, build in enumerate(missing):
                start = CLOCK.now()
                longest = max(turns) or study.visit + SHORTEST
                late = turn == 0 and start - began + longest * len(missing) > allowed  # one side alone says nothing
                if failed or (late and not (part.always(workload) and number == 0)):
                    return
                yield Measure((Share(build, 1),), Purpose.EXPLAIN, host_number)
                turns.append(CLOCK.now() - start)
        for build in others:
            if failed or CLOCK.now() - began + max(turns) > allowed:
                return
            if not done[build]:
                yield Measure((Share(build, 1),), Purpose.EXPLAIN, host_number)

    def append(event: Event, _: int | None) -> TimedEvent:
        """Make an event of the part durable; others, which the search would read, are only shown. A build that fails ends it."""
        match event:
            case CandidateSkipped(candidate, skip, host=host) if candidate in builds:
                return study.log.append(Unexplained(part.name, f"{skip.stage}: {skip.reason}", host))
            case Counted() | Profiled() | Planned() | Unexplained() | Warned():
                return study.log.append(event)
            case _:
                return CLOCK.now(), event

    for at, event in without_stored_builds(run(Listed(orders()), append, workers)):
        failed = failed or isinstance(event, Unexplained)
        yield at, event


def without_stored_builds(events: Iterable[TimedEvent]) -> Iterator[TimedEvent]:
    """The events without builds that were there already: each part has these again for each of its turns."""
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


def turns_done(events: Iterable[Counted | Profiled | Planned]) -> Counter[int]:
    """The turns of each candidate: in each, one event of every sort happens. One that was interrupted counts."""
    sorts: Counter[tuple[int, str]] = Counter()
    for event in events:
        match event:
            case Counted(candidate, group=sort) | Profiled(candidate, ProfileFacts(event=sort)):
                sorts[candidate, sort] += 1
            case Planned(candidate, PlanFacts(statement=sort)):
                sorts[candidate, sort] += 1
    turns: Counter[int] = Counter()
    for (candidate, _), number in sorts.items():
        turns[candidate] = max(turns[candidate], number)
    return turns


def start_up(events: Sequence[tuple[float, Event]]) -> float:
    """Seconds that most visits of a hunt took beside what was timed: the upper quartile, as not each run begins a visit."""
    beside = sorted(
        later - earlier - event.facts.seconds
        for (earlier, _), (later, event) in pairwise(events)
        if isinstance(event, RunFinished)
    )
    return max(0.0, beside[3 * len(beside) // 4]) if beside else 0.0


def read_change(verdict: Verdict, log: SavedLog, repository: Path) -> Generator[TimedEvent]:
    """Read from the user's clone what the verdict's first step changes, and store it if it is not what was stored last."""
    step = first_step(verdict)
    if step is None or not step.parents:
        return
    parent, culprit = (log.state.commits[node] for node in (step.parents[0], step.candidate))
    studied = log.state.studied
    stored = [event for event in studied if isinstance(event, ChangedFunctions)]
    seen = functions_in(event.facts for event in studied if isinstance(event, Profiled))
    try:
        # Also after a session that has read it: an older version of perfbisect may have read less.
        change = ChangedFunctions(step.candidate, changed_functions(open_repository(repository), parent, culprit, seen))
    except (PerfBisectError, OSError) as trouble:
        if not any((event.facts.parent, event.facts.commit) == (parent, culprit) for event in stored):
            yield log.append(Unexplained(FUNCTIONS, str(in_words(trouble))))
        return
    if change not in stored[-1:]:
        yield log.append(change)
