"""The one driver of a session, whatever it measures: what comes before, the orders of its plan through the loop, what follows.

A session has one or several *members*, each with a log of its own: the hunts of several workloads over one range, or a
single hunt, or builds that are measured in rounds. Its plan gives the orders; each says which workload it is of.

What is built for one of several hunts is an event in the logs of all that have no verdict yet, and so is a build that fails;
a run, and its failure, belongs to the hunt whose order it was. Hunts for several results of one command share its runs: each has
its own number of a run in its log. So each log stays that of a whole hunt, which can be read alone.
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
    Order,
    Purpose,
    Reason,
    Verdict,
    first_step,
    named_steps,
)
from perfbisect.core.domain.orders import Step as Change
from perfbisect.core.domain.settings import CAP, Output
from perfbisect.core.inference.instruction_counts import ratio_of_indistinct_ends
from perfbisect.core.search.decide import decide_together, in_layouts, seen_by
from perfbisect.core.search.situation import undecided
from perfbisect.errors import EndFailed, NothingToCompare, PerfBisectError, RunFailed, UsageError
from perfbisect.hunt.loop import NextAction, Planner, Workers, run
from perfbisect.hunt.search_problem import SavedLog, SearchProblem, TimedEvent, constant, foreseen, ill_timed, outlook
from perfbisect.lab import Lab
from perfbisect.wording.trials import pairing_chosen

if TYPE_CHECKING:
    from perfbisect.hunt.lifecycle import SessionLifecycle

T = TypeVar("T")
Numbered = tuple[int, TimedEvent]  # the number of a member, and what happened


@dataclass(frozen=True, slots=True)
class WorkloadFailed:
    """A workload cannot be measured, while the others of its session can."""

    trouble: PerfBisectError
    host: str = ""


@dataclass
class SessionMember:
    """One log of a session. A hunt is measured until it has a verdict, or a failure of its own; a trial to the end of its plan."""

    problem: SearchProblem | None
    log: SavedLog
    lifecycle: "SessionLifecycle | None"  # None: it has ended
    verdict: Verdict | None = None
    failure: PerfBisectError | None = None
    # Looks for another metric where this one does not tell the ends apart, whose ratio it is given; and whether that is all
    # there is to know of it. Returns the problem by which the search goes on, if there is one.
    change_over: Callable[[Interval, bool], Generator[TimedEvent, None, SearchProblem | None]] | None = None
    in_diff: "SessionLifecycle | None" = None  # of a search in a diff, in rounds
    asked: bool = False  # whether it has looked, as the search would take very many runs
    unpromising: Interval | None = None  # that ratio, while it is to look
    found: tuple[Change, ...] = ()  # what its latest decision names
    foreseen: bool = False  # whether it has said how long it will probably take
    warned: bool = False  # whether it has said that it will take very many runs
    output: Output | None = None  # what of a run it hunts, where it shares its runs with others
    in_layouts: bool = False  # whether those in randomized layouts are readings of it, too

    @property
    def is_open(self) -> bool:
        """Whether its verdict is still looked for."""
        return self.lifecycle is not None and self.verdict is None and self.failure is None

    def decided(self, event: Decided) -> Iterator[TimedEvent]:
        """Enter a decision, and once what it shows of the length of the hunt."""
        before = self.log.state.purpose
        yield self.log.append(event)
        ways, known = event.decision.ways, self.log.state.pairing
        if ways and (not known or known.by_cpu or known.together is not ways.together):
            yield self.log.append(pairing_chosen(ways))
        begins = before is Purpose.ENDS and not self.foreseen
        if self.problem and begins and (said := foreseen(self.problem, event.decision, self.log.state)):
            self.foreseen = True
            yield self.log.append(said)
        if not self.problem or self.warned:
            return
        belief, runs = event.decision.belief, [run.facts for _, run in self.log.entries if isinstance(run, RunFinished)]
        timed = ill_timed(belief.effect, belief.noise, [run.seconds for run in runs if not run.counted])
        if warning := outlook(self.problem, event.decision, self.log) or constant(self.log) or timed:
            self.warned = True
            yield self.log.append(warning)


class Searches:
    """Gives the orders of all hunts of a session."""

    def __init__(self, members: Sequence[SessionMember]) -> None:
        self._members = members

    def next(self, fleet: Fleet) -> NextAction:
        """The next order, of any hunt; or the verdict of one, while the others go on."""
        members = self._members
        ended = [number for number, member in enumerate(members) if not member.is_open]
        if len(ended) == len(members):
            return NextAction(None, at_once=True)
        if any(member.unpromising and member.is_open for member in members):  # another metric is looked for first
            return NextAction(None)
        now = [member.problem.situation(member.log.state) for member in members if member.problem]
        several = len(members) > 1
        common = several and all(member.output for member in members)
        number, decision = decide_together(now, ended, fleet, common=common)
        member, numbers = members[number], range(len(members))
        for other in numbers if common and in_layouts(decision) else ():
            if members[other].is_open and not members[other].in_layouts:
                alone = decide_together(now, [number for number in numbers if number != other], fleet)
                members[other].in_layouts = in_layouts(alone[1])
        if member.change_over and not member.asked and member.problem and outlook(member.problem, decision, member.log):
            member.asked, member.unpromising = True, decision.belief.effect
            return NextAction(None)
        if member.in_diff and is_search(decision.order) and member.in_diff.needs_other_order:
            policy = replace(member.in_diff.setup.settings.policy, confidence=CAP)
            decision = replace(decision, order=undecided(decision.belief, policy, Reason.UNBUILDABLE), builds=())
        own = replace(decision, builds=tuple(build for build in decision.builds if build.workload == number))
        decided = Decided(own, seen_by(number, fleet) if several else fleet)
        return NextAction.of(decision, decided, number, several=several)


class Driver:
    """Carries out a session."""

    def __init__(
        self,
        members: Sequence[SessionMember],
        plan: Planner,
        workers: Callable[[], Workers[LabEvent]],
        failed: Callable[[int, PerfBisectError], None],
    ) -> None:
        """``workers`` carry out the orders of ``plan``. ``failed`` is called with the number of a member that cannot go on,
        while others do.
        """
        self.members = members
        self._plan, self._workers, self._failed = plan, workers, failed
        self._turn = 0  # the member to which belongs what does not say to which

    def session(self) -> Generator[Numbered]:
        """The events of a session: what comes first of each member, the plan, then what follows each verdict."""
        for number, member in enumerate(self.members):
            if lifecycle := member.lifecycle:
                if (yield from self._alone(number, lifecycle.opening())) is False:
                    member.lifecycle = None  # it has its verdict, and needs no more
                member.problem = lifecycle.problem
        for number, member in enumerate(self.members):
            if member.is_open:
                yield from self._catch_up(number, member)
        goes_on = True
        while goes_on and self._open:
            with closing(run(self._plan, self.append, self._workers())) as events:
                for entered in events:
                    yield from entered
                    member = self.members[self._turn]
                    if len(self.members) > 1 and member.verdict and not followed(member):
                        yield from self._closing(self._turn)
            for number, member in enumerate(self.members):
                yield from self._change_over(number, member)
            goes_on = any(member.problem for member in self.members)  # a trial stays open
        closings = [self._closing(number) for number in range(len(self.members))]
        for each in closings:  # up to each verdict
            while happened := next(each, None):
                yield happened
                if isinstance(happened[1][1], SessionEnded):
                    break
        for each in closings:  # the reasons
            yield from each

    def append(self, event: Event | WorkloadFailed, workload: int | None = None) -> tuple[Numbered, ...]:
        """Make an event durable: in one log, or in those of all hunts that have no verdict."""
        number = self._turn = self._number(workload)
        own = self.members[number]
        if isinstance(event, WorkloadFailed):
            if own.failure is None:  # else it has failed on another host
                self._fail(number, event.trouble)
            return ()
        if isinstance(event, Decided):
            order = event.decision.order
            own.found = event.decision.found or named_steps(order)
            own.verdict = None if isinstance(order, Measure) else order
            return tuple((number, happened) for happened in own.decided(event))
        if isinstance(event, RunFinished) and own.output:
            with own.log.history.transaction():
                return tuple(
                    (place, member.log.append(shared(event, member.output, ordered=member is own)))
                    for place, member in enumerate(self.members)
                    if member is own or (member.is_open and (member.in_layouts or not event.facts.layout))
                    if member.output
                )
        if not is_of_build(event) or len(self.members) == 1:
            return ((number, own.log.append(event)),)
        with own.log.history.transaction():
            return (
                (number, own.log.append(event)),
                *(
                    (place, member.log.append(elsewhere(event)))
                    for place, member in enumerate(self.members)
                    if member.is_open and member is not own
                ),
            )

    @property
    def _open(self) -> list[int]:
        return [number for number, member in enumerate(self.members) if member.is_open]

    def _number(self, workload: int | None) -> int:
        """The member that something belongs to: all workloads of a single one are its own."""
        if len(self.members) == 1:
            return 0
        if workload is not None:
            return workload
        return self._turn if self.members[self._turn].is_open else next(iter(self._open), self._turn)

    def _closing(self, number: int) -> Generator[Numbered]:
        """What follows the verdict of a hunt, and its end, or that of a trial; nothing for one that has ended."""
        member = self.members[number]
        if member.lifecycle and not member.failure and (member.verdict or not member.problem):
            yield from self._alone(number, member.lifecycle.closing(member.verdict))
            member.lifecycle = None

    def _change_over(self, number: int, member: SessionMember) -> Generator[Numbered]:
        """Look for another metric of a hunt, where its own does not tell the ends apart; with one it goes on. So it does in a next round."""
        if member.in_diff and member.verdict and not member.failure:
            if problem := (yield from self._alone(number, member.in_diff.next_round(member.verdict))):
                member.problem, member.verdict = problem, None
            return
        change_over, asked, ended = member.change_over, member.unpromising, ratio_of_indistinct_ends(member.verdict)
        member.unpromising = None
        if not change_over or member.failure or not (ratio := ended or asked):
            return
        if ended:
            member.change_over = None
        if problem := (yield from self._alone(number, change_over(ratio, ended is not None))):
            member.problem, member.verdict, member.change_over = problem, None, None

    def _catch_up(self, number: int, member: SessionMember) -> Generator[Numbered]:
        """Enter what was built for others and is not in the log of a hunt: it had failed then, or had not begun."""
        known = {event.facts.commit for _, event in member.log.entries if is_of_build(event)}
        commits = {*member.problem.commits} if member.problem else set()
        for other in self.members:
            missing = [
                event for _, event in other.log.entries if is_of_build(event) and event.facts.commit in commits - known
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

    def _alone(self, number: int, events: Generator[TimedEvent, None, T]) -> Generator[Numbered, None, T | None]:
        """Events of one member, with its number; returns what they return, None where it fails and the others go on."""
        self._turn = number
        try:
            with closing(events):
                while True:
                    yield number, next(events)
        except StopIteration as end:
            result: T = end.value
            return result
        except PerfBisectError as trouble:
            self._fail(number, trouble)
        return None

    def _fail(self, number: int, trouble: PerfBisectError) -> None:
        """A hunt cannot go on. Raises what concerns the others, too."""
        if len(self.members) == 1 or not is_of_one(trouble):
            raise trouble
        self.members[number].failure = trouble
        self._failed(number, trouble)


def is_search(order: Order) -> bool:
    """Whether it measures in a search whose ends differ."""
    return isinstance(order, Measure) and order.purpose is Purpose.SEARCH


def lab_of_several(labs: Mapping[int, Lab]) -> Lab:
    """What measures several workloads on one host for a ``Driver``; ``labs`` has the lab of each, by its number."""

    def measure(order: Measure) -> Generator[LabEvent]:
        """Measure in the lab of the workload; what concerns it alone is an event, as the others go on."""
        try:
            yield from labs[order.workload](order)
        except PerfBisectError as trouble:
            if not is_of_one(trouble):
                raise
            yield WorkloadFailed(trouble)  # type: ignore[misc]  # for the driver alone

    return measure


def followed(member: SessionMember) -> bool:
    """Whether something is measured after the verdict of a hunt."""
    verdict = member.verdict
    placed = first_step(verdict) is not None or isinstance(verdict, CodePlacement)
    return placed or (member.change_over is not None and ratio_of_indistinct_ends(verdict) is not None)


def elsewhere(event: Event) -> Event:
    """The event of a build in the log of another hunt than that for which it was made.

    It keeps the seconds, from which the search knows what builds cost; but the hunt has not spent them.
    """
    if isinstance(event, BuildFinished):
        return replace(event, facts=replace(event.facts, reused=True))
    if isinstance(event, CandidateSkipped):
        return replace(event, facts=replace(event.facts, for_another=True))
    return event


def shared(event: RunFinished, output: Output, *, ordered: bool) -> RunFinished | CandidateSkipped:
    """The event of a run in the log of a hunt for that result; ``ordered``: by it."""
    run, value = event.facts, event.facts.results.get(output.result)
    if ordered:
        return replace(event, facts=replace(run, results={}))
    if value is None:
        reason = f"it printed no metric: no result {output.result} of {output.format} is in its output"
        return CandidateSkipped(
            event.candidate, SkipFacts(run.commit, "run", reason, run.log, 0.0, for_another=True), event.host
        )
    return replace(event, facts=replace(run, reported=value, unit=output.unit, results={}, for_another=True))


def is_of_one(trouble: PerfBisectError) -> bool:
    """Whether a failure concerns one workload alone: its runs fail at an end of the range, or have no value."""
    if isinstance(trouble, EndFailed):
        return isinstance(trouble.__cause__, RunFailed) and trouble.__cause__.stage not in BUILDING
    return isinstance(trouble, UsageError | NothingToCompare)
