"""The hunts of a session through the loop: one search, and a log for each hunt. Several have one host.

What is built for one of them is an event in the logs of all that have no verdict yet, and so is a build that fails; a run,
and its failure, belongs to the hunt whose order it was. So each log stays that of a whole hunt, which can be read alone.
"""

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import TypeVar

from perfbisect.core.domain.events import BuildFinished, BuildStarted, CandidateSkipped, Decided, Event, LabEvent
from perfbisect.core.domain.facts import BUILDING
from perfbisect.core.domain.fleet import Fleet
from perfbisect.core.domain.orders import CodePlacement, Found, Measure, Verdict, first_step, named_steps
from perfbisect.core.domain.orders import Step as Change
from perfbisect.core.inference.hunt_state import is_of_build
from perfbisect.core.search.situation import Situation
from perfbisect.core.search.together import decide_together
from perfbisect.errors import EndFailed, NothingToCompare, PerfBisectError, RunFailed, UsageError
from perfbisect.hunt.course import Course
from perfbisect.hunt.loop import Step, Workers, run
from perfbisect.hunt.search_problem import SavedLog, SearchProblem, TimedEvent, outlook
from perfbisect.hunt.workers import InlineWorkers
from perfbisect.lab.guarded_lab import Lab

T = TypeVar("T")
Numbered = tuple[int, TimedEvent]  # the number of a hunt in its group, and what happened


@dataclass
class GroupMember:
    """One hunt of a group. It is searched until it has a verdict, or a failure of its own."""

    problem: SearchProblem
    log: SavedLog
    course: Course | None  # None: the hunt has ended
    lab: Lab | None = None
    verdict: Verdict | None = None
    failure: PerfBisectError | None = None
    found: tuple[Change, ...] = ()  # what its latest decision names
    warned: bool = False  # whether it has said that it will take very many runs

    @property
    def searched(self) -> bool:
        """Whether its verdict is still looked for."""
        return self.course is not None and self.verdict is None and self.failure is None

    @property
    def situation(self) -> Situation:
        """What its next decision depends on."""
        problem = self.problem
        seen = problem.observations(self.log.entries, self.log.began)
        return Situation(problem.graph, seen, problem.policy, problem.prior)


class Group:
    """The hunts of a session. It is the planner and the log of the loop.

    Of several it is the lab, too: their only host carries out one order at a time, so all that happens until the next is of
    the hunt whose turn it is.
    """

    def __init__(self, members: Sequence[GroupMember], failed: Callable[[int, PerfBisectError], None]) -> None:
        """``failed`` is called with the number of a hunt that cannot go on, while others do."""
        self.members = members
        self.turn = 0
        self._failed = failed

    def session(self) -> Generator[Numbered]:
        """The events of a session: search all, then what follows each verdict."""
        for number, member in enumerate(self.members):
            if member.course:
                yield from self._opening(number, member, member.course)
        for number, member in enumerate(self.members):
            if member.searched:
                yield from self._catch_up(number, member)
        workers = self._workers()
        while any(member.searched for member in self.members):
            try:
                with closing(run(self, self, workers())) as events:
                    for happened in events:
                        yield from happened
                        yield from self._outlook(happened[0])
            except PerfBisectError as trouble:
                self._fail(self.turn, trouble)
            else:
                found = self.members[self.turn].verdict
                if first_step(found) is None and not isinstance(found, CodePlacement):  # nothing follows it
                    yield from self._closing(self.turn)
        for number in range(len(self.members)):
            yield from self._closing(number)

    def next(self, fleet: Fleet) -> Step:
        """The next order, of any hunt; or the verdict of one, after which the loop is entered again for the others."""
        ended = [number for number, member in enumerate(self.members) if not member.searched]
        self.turn, decision = decide_together([member.situation for member in self.members], ended, fleet)
        decided, order = Decided(decision, fleet), decision.order
        if isinstance(order, Measure):
            return Step(order, decided, False, decision.builds, decision.cancelled, decision.waits)
        return Step(None, decided, at_once=isinstance(order, Found) or len(self.members) > 1)

    def measure(self, order: Measure) -> Generator[LabEvent]:
        """Carry out an order in the lab of the hunt whose turn it is."""
        lab = self.members[self.turn].lab
        assert lab, "a hunt that is searched has a lab"
        return lab.measure(order)

    def append(self, event: Event) -> tuple[Numbered, ...]:
        """Make an event durable: in one log, or in those of all hunts that are searched."""
        own = self.members[self.turn]
        if isinstance(event, Decided):
            order = event.decision.order
            own.found = event.decision.found or named_steps(order)
            own.verdict = None if isinstance(order, Measure) else order
        if not is_of_build(event) or len(self.members) == 1:
            return ((self.turn, own.log.append(event)),)
        with own.log.history.together():
            return (
                (self.turn, own.log.append(event)),
                *(
                    (number, member.log.append(elsewhere(event)))
                    for number, member in enumerate(self.members)
                    if member.searched and member is not own
                ),
            )

    def _opening(self, number: int, member: GroupMember, course: Course) -> Generator[Numbered]:
        """What comes before the search of a hunt. One that ends there has its verdict, and needs no more."""
        if (yield from self._alone(number, course.opening())) is False:
            member.course = None
        member.problem = course.problem

    def _closing(self, number: int) -> Generator[Numbered]:
        """What follows the verdict of a hunt, and its end; nothing for one that has ended."""
        member = self.members[number]
        if member.course and member.verdict and not member.failure:
            yield from self._alone(number, member.course.closing(member.verdict))
            member.course = None

    def _catch_up(self, number: int, member: GroupMember) -> Generator[Numbered]:
        """Enter what was built for others and is not in the log of a hunt: it had failed then, or had not begun."""
        self.turn = number
        known = {event.facts.commit for _, event in member.log.entries if is_of_build(event)}
        for other in self.members:
            missing = [
                event
                for _, event in other.log.entries
                if is_of_build(event) and event.facts.commit in {*member.problem.commits} - known
            ]
            if not missing:
                continue
            log = [entry.event for entry in other.log.history.events(other.log.hunt)]
            started = {event.commit.sha: event for event in log if isinstance(event, BuildStarted)}
            for event in missing:
                commit = event.facts.commit
                if commit in started and commit not in known:
                    yield number, member.log.append(started[commit])
                yield number, member.log.append(elsewhere(event))
                known.add(commit)

    def _workers(self) -> Callable[[], Workers[LabEvent]]:
        """What makes the workers of the search: of a single hunt its own; of several their host, with a lab for each."""
        courses = [(member, member.course) for member in self.members if member.course and member.searched]
        if len(self.members) == 1 or not courses:
            return lambda: courses[0][1].labs.workers(self.members[0].problem.commits)
        made = courses[0][1].labs.builds_made(courses[0][1].problem.commits)
        for member, course in courses:
            member.lab = course.labs.lab(course.problem.commits, made)
        first = self.members[0]
        workers = InlineWorkers(courses[0][1].setup.host.name, self)
        workers.limit = first.log.began, first.problem.policy.max_minutes
        return lambda: workers

    def _outlook(self, happened: Numbered) -> Iterator[Numbered]:
        """What a decision shows of the length of its hunt, once."""
        number, (_, event) = happened
        member = self.members[number]
        if member.warned or not isinstance(event, Decided):
            return
        if warning := outlook(member.problem, event.decision, member.log):
            member.warned = True
            yield number, member.log.append(warning)

    def _alone(self, number: int, events: Generator[TimedEvent, None, T]) -> Generator[Numbered, None, T | None]:
        """Events of one hunt; None where it fails, and the others go on."""
        self.turn = number
        try:
            return (yield from numbered(number, events))
        except PerfBisectError as trouble:
            self._fail(number, trouble)
        return None

    def _fail(self, number: int, trouble: PerfBisectError) -> None:
        """A hunt cannot go on. Raises what concerns the others, too."""
        if len(self.members) == 1 or not is_of_one(trouble):
            raise trouble
        self.members[number].failure = trouble
        self._failed(number, trouble)


def numbered(number: int, events: Generator[TimedEvent, None, T]) -> Generator[Numbered, None, T]:
    """The events with the number of their hunt; returns what they return."""
    with closing(events):
        while True:
            try:
                event = next(events)
            except StopIteration as end:
                result: T = end.value
                return result
            yield number, event


def elsewhere(event: Event) -> Event:
    """The event of a build in the log of another hunt than that for which it was made.

    It keeps the seconds, from which the search knows what builds cost; but the hunt has not spent them.
    """
    if isinstance(event, BuildFinished):
        return replace(event, facts=replace(event.facts, reused=True))
    if isinstance(event, CandidateSkipped):
        return replace(event, facts=replace(event.facts, for_another=True))
    return event


def is_of_one(trouble: PerfBisectError) -> bool:
    """Whether a failure concerns one workload alone: its runs fail at an end of the range, or have no value."""
    if isinstance(trouble, EndFailed):
        return isinstance(trouble.__cause__, RunFailed) and trouble.__cause__.stage not in BUILDING
    return isinstance(trouble, UsageError | NothingToCompare)
