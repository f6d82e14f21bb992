"""An attempt: one process works on a session, shows every event, and says how to go on when the work is cut short."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from perfbisect.core.domain.events import LabEvent, MetricChosen, SessionEnded, SessionStarted
from perfbisect.core.domain.orders import Verdict
from perfbisect.core.domain.settings import Direction, Output, Settings, TrialRequest, TrialType
from perfbisect.errors import (
    ENVIRONMENT,
    USAGE,
    EndFailed,
    Interrupted,
    NothingToCompare,
    PerfBisectError,
    ReaderGone,
    RunFailed,
    UsageError,
    in_words,
)
from perfbisect.host.lock import HostLock, WaitCallback
from perfbisect.hunt.driver import Driver, HuntsPlanner, SessionMember
from perfbisect.hunt.labs import workers_of
from perfbisect.hunt.lifecycle import SessionLifecycle
from perfbisect.hunt.loop import FixedPlan, Planner, Workers
from perfbisect.hunt.notification import Begun, Notifier, pushing
from perfbisect.hunt.resolve import worse_direction
from perfbisect.hunt.search_problem import SavedLog, TimedEvent
from perfbisect.hunt.session_hosts import HostLocks
from perfbisect.hunt.setup import SessionSetup
from perfbisect.hunt.trials.rounds import RoundsPlan
from perfbisect.hunt.watching import View
from perfbisect.lab.building.candidates import Mended
from perfbisect.lab.building.log_parser import KnownFailure
from perfbisect.lab.workload.command import OutputRecognised
from perfbisect.process import CLOCK
from perfbisect.recipes.outputs import Recognised, SeveralResults
from perfbisect.report.command_line import command_on, command_to_run
from perfbisect.report.hunt_report import read_hunt
from perfbisect.store.batches import Batch, end_batch, enter_status, jobs_of
from perfbisect.store.history import History
from perfbisect.store.prior_data import read_noise
from perfbisect.ui.stream import note
from perfbisect.wording.table import cut
from perfbisect.wording.text import printable, shell_words
from perfbisect.wording.verdicts import exit_status

WORDS = 100  # columns of a filter in a sentence
OpenView = Callable[[Mapping[int, str]], View]  # the title of each member, by its number → what shows them


@dataclass(frozen=True, slots=True)
class Caller:
    """What a session is given by those who begin or resume it."""

    path: Path | None  # of the history
    open_view: OpenView
    waiting: WaitCallback | None = None  # is told for whom the session waits; None: it does not wait
    begun: Begun | None = None  # gets the name of each hunt, or of the trial, once it is in the history
    say: Callable[[str], None] = lambda _: None  # is given remarks


@dataclass(frozen=True, slots=True)
class HuntOutcome:
    """How a hunt has ended: with a verdict, or with a failure of its own. A trial has neither."""

    hunt: int
    verdict: Verdict | None
    failure: PerfBisectError | None = None

    @property
    def status(self) -> int:
        """The exit status of `bisect run` for it alone."""
        return ENVIRONMENT if self.verdict is None else exit_status(self.verdict)


@dataclass(slots=True)
class SessionAttempt:
    """The work of this process on the session that has these numbers in the history."""

    history: History
    caller: Caller
    numbers: Sequence[int]
    batch: Batch | None  # of several hunts
    held: Mapping[str, HostLock]
    # In a resumed session: why some hunts cannot go on, by their places
    unable: Mapping[int, PerfBisectError] | None = None
    # A hunt with a verdict goes on for its reason alone, for so many seconds; 0: as many as usual
    why: float | None = None
    # Of a resumed session: how much more its hunts may spend, by the limits of their policy (``max_runs``)
    further: Mapping[str, float] = field(default_factory=dict)
    members: list[SessionMember] = field(default_factory=list)
    name: str = ""  # by which commands are given the session: 12, b3, c4

    def carry_out(self, setups: Mapping[int, SessionSetup]) -> tuple[HuntOutcome, ...]:
        """Work, showing every event, until each member has ended. ``setups`` are those of members that go on, by their places.

        Raises Interrupted or the failure, with the command that goes on. Each time that further options mend a build, it goes
        on with these.
        """
        history, numbers, unable = self.history, self.numbers, self.unable or {}
        logs = [SavedLog(history, number) for number in numbers]
        if self.further:
            setups = self._with_limits(logs, setups)
        some = next(iter(setups.values()))
        trial = bool(some.request.works)
        names = [f"{some.request.kind[0]}{number}" if trial else str(number) for number in numbers]
        self.name = self.batch.name if self.batch else names[0]
        for lock in self.held.values():  # others see it
            lock.number(self.name)
        locks = HostLocks(self.held, [build_host.host.name for build_host in some.common_build_hosts], some.shared)
        resumed = self.unable is not None
        cycles = {
            place: SessionLifecycle(logs[place], setup, self.held, locks, resumed, len(logs), self.why)
            for place, setup in setups.items()
        }
        common = next(iter(cycles.values())).problem
        told, self.members = bool(self.members), []
        for place, log in enumerate(logs):
            cycle, settings = cycles.get(place), history.settings(numbers[place])
            problem = cycle.problem if cycle else common and replace(common, metric=settings.metric)
            verdict = None if (cycle and self.why is None) or place in unable else verdict_of(history, log.hunt)
            auto = (
                cycle.change_metric
                if cycle and settings.choose_metric and not (trial or settings.narrows or settings.outputs)
                else None
            )
            output = settings.output if settings.outputs else None
            self.members.append(SessionMember(problem, log, cycle, verdict, unable.get(place), auto, output=output))
            if cycle and cycle.setup.parts:
                self.members[-1].diff_lifecycle = cycle

        def workers() -> Workers[LabEvent]:
            """The hosts of the session, for the members that are still open."""
            going_on = {place: cycle.labs for place, cycle in cycles.items() if self.members[place].is_open}
            span = next(iter(cycles.values())).setup.span  # of the present round
            return workers_of(going_on, span.candidates, together=len(logs) > 1)

        for place, member in enumerate(self.members):
            if member.failure:
                self.fail(place, member.failure)
            elif member.lifecycle:
                self._enter(place, None)
                if self.caller.begun and not told:
                    self.caller.begun(names[place])
        plan: Planner = FixedPlan(RoundsPlan(logs[0], some).orders()) if trial else HuntsPlanner(self.members)
        titles = [
            setups[place].title if place in setups else history.settings(number).workload
            for place, number in enumerate(numbers)
        ]
        try:
            with pushing(history.path, numbers, note):
                stopped = self._work(Driver(self.members, plan, workers, self.fail), titles, some)
        except (Mended, OutputRecognised):
            self.unable, again = unable, {}
            for place, setup in setups.items():
                if verdict_of(history, numbers[place]) is None:
                    settings = history.settings(numbers[place])  # of which a hunt has chosen some itself
                    again[place] = setup.for_next_attempt(settings)
                    if settings.output or settings.outputs:
                        known = replace(settings, run_hash=again[place].settings.run_hash)
                        history.update_settings(numbers[place], known)
            return self.carry_out(again)
        outcomes = tuple(
            HuntOutcome(number, None if member.failure else member.verdict, member.failure)
            for number, member in zip(numbers, self.members, strict=True)
        )
        if self.batch and all(each.verdict for each in outcomes):
            end_batch(history, self.batch.id, CLOCK.now())
        if stopped:
            raise stopped
        return outcomes

    def _with_limits(self, logs: Sequence[SavedLog], setups: Mapping[int, SessionSetup]) -> Mapping[int, SessionSetup]:
        """The setups with limits, which are stored: the hunts, which share them, can spend ``further`` beyond what they have."""
        states, further, self.further = [log.state for log in logs], self.further, {}
        attempted = {sha for state in states for sha, row in state.tested.items() if row.builds or row.failed_seconds}
        spent = {
            "max_runs": sum(state.run_count for state in states),
            "max_builds": len(attempted),
            "max_minutes": (CLOCK.now() - min(state.began for state in states)) / 60,
        }
        limits: dict[str, Any] = {name: spent[name] + more for name, more in further.items()}

        def raised(settings: Settings) -> Settings:
            return replace(settings, policy=replace(settings.policy, **limits))

        for number in self.numbers:
            self.history.update_settings(number, raised(self.history.settings(number)))
        return {place: replace(setup, settings=raised(setup.settings)) for place, setup in setups.items()}

    def fail(self, place: int, trouble: PerfBisectError) -> None:
        """Enter that a member cannot go on."""
        with suppress(PerfBisectError):  # of the history itself
            self.history.fail(self.numbers[place], str(trouble), CLOCK.now())
            self._enter(place, ENVIRONMENT, str(trouble))

    def _enter(self, place: int, status: int | None, failure: str = "") -> None:
        """Enter the exit status of a hunt in its batch, if it has one."""
        if self.batch:
            enter_status(self.history, self.batch.id, place, status, failure)
        elif status is not None:
            for batch, number, _ in jobs_of(self.history, self.numbers[place]):
                enter_status(self.history, batch, number, status, failure)

    def _work(self, driver: Driver, titles: Sequence[str], setup: SessionSetup) -> Interrupted | None:
        """Show what the driver does. Once all verdicts stand, returns the interruption of what is left of their reasons."""
        history, numbers, begun = self.history, self.numbers, self.caller.begun
        view = self.caller.open_view(dict(zip(numbers, titles, strict=True)))

        def show(place: int, happened: TimedEvent) -> None:
            verdict = happened[1].verdict if isinstance(happened[1], SessionEnded) else None
            if verdict:  # entered first: showing it may end this process
                self.members[place].verdict = verdict
                self._enter(place, exit_status(verdict))
            view.show(numbers[place], [happened])
            if verdict and isinstance(begun, Notifier):
                begun.ended(str(numbers[place]))

        with closing(view):
            try:
                for number in numbers if self.unable is not None else ():
                    view.recall(number, ((entry.at, entry.event) for entry in history.events(number)))
                with closing(driver.events()) as events:
                    for place, happened in events:
                        show(place, happened)
            except (KeyboardInterrupt, ReaderGone):  # Ctrl-C, or the reader of our output has ended
                view.close()
                verdicts = [verdict for number in numbers if (verdict := verdict_of(history, number))]
                if len(verdicts) == len(numbers):
                    return self._stands(numbers, verdicts)
                found = [number for number, member in zip(numbers, self.members, strict=True) if member.named]
                known = [f"\n{line}" for number in found for line in read_hunt(self.history, number).found]
                kept = f"Interrupted. What was measured is kept; go on with: {self._again}"
                raise Interrupted(f"{kept}{''.join(known)}") from None
            except Mended as mended:
                for place, member in enumerate(self.members):
                    if member.is_open:
                        settings = replace(history.settings(numbers[place]), flags=mended.event.flags)
                        with history.transaction():
                            history.update_settings(numbers[place], settings)
                            happened = member.log.append(mended.event)
                        show(place, happened)
                raise
            except OutputRecognised as read:
                try:
                    outputs = read.workload.known or outputs_of(read.found, setup.request)
                except SeveralResults as several:
                    raise self._failure(several, setup.settings) from None
                for place, member in enumerate(self.members):
                    own = member.lifecycle.setup if member.lifecycle and not member.verdict else None
                    if own and (read.workload in (own.workload, *own.works) or member.output):
                        before = history.settings(numbers[place])
                        if read.workload.known:  # what is new is whether it can be measured alone
                            history.update_settings(numbers[place], replace(before, filter=read.words))
                            continue
                        settings = replace(as_recognised(history, before, outputs), filter=read.words)
                        with history.transaction():
                            history.update_settings(numbers[place], settings)
                            alone = f", alone by {cut(shell_words(read.words), WORDS)}" if read.words else ""
                            chosen = MetricChosen(settings.metric, f"{read.found.why}{alone}.", before.metric)
                            happened = member.log.append(chosen)
                        show(place, happened)
                raise
            except (PerfBisectError, OSError) as trouble:
                raise self._failure(in_words(trouble), setup.settings) from trouble.__cause__
        return None

    def _failure(self, failure: PerfBisectError, settings: Settings) -> PerfBisectError:
        """Enter a failure of all members that have no verdict; what it says of going on."""
        for place, member in enumerate(self.members):
            if member.failure is None and verdict_of(self.history, self.numbers[place]) is None:
                self.fail(place, failure)
        failure.advice = f"{failure.advice}\n{self.what_next(failure, settings)}".strip()
        return failure

    def what_next(self, failure: PerfBisectError, settings: Settings) -> str:
        """How to go on where that can help after a failure; what to change where it cannot; "" if the failure says that."""
        cause = failure.__cause__
        if isinstance(failure, NothingToCompare) or failure.exit_status == USAGE:
            return ""
        if isinstance(cause, KnownFailure) and cause.known.flags.options:
            again = command_to_run(replace(settings, flags=settings.flags.plus(cause.known.flags)), self.history.path)
            return f"Begin a new hunt: {again}"
        if not isinstance(failure, EndFailed):
            return f"What was measured is kept; go on with: {self._again}"
        if settings.quick and isinstance(cause, RunFailed):
            return "Change --run, or what it needs, and begin anew: builds that were made are used again."
        own = settings.quick and settings.quick.build is not None
        change = "Change --build and begin anew; or add" if own else "Mend the recipe, or add"
        return f"{change} what the machine lacks, and go on with: {self._again}"

    def _stands(self, numbers: Sequence[int], verdicts: Sequence[Verdict]) -> Interrupted:
        """The interruption of a reason, which is no failure of the hunt."""
        again = " and ".join(command_on("why", str(number), self.history.path) for number in numbers)
        what = "The verdict stands" if len(numbers) == 1 else "The verdicts stand"
        stopped = Interrupted(f"Interrupted. {what}; what is left of the reason is measured by: {again}")
        stopped.exit_status = max(map(exit_status, verdicts))
        return stopped

    @property
    def _again(self) -> str:
        return command_on("resume", self.name, self.history.path)


def outputs_of(found: Recognised, request: TrialRequest) -> tuple[Output, ...]:
    """What is measured of an output: all of it by a comparison, else one result. Raises UsageError where that is not said."""
    several = request.kind is TrialType.COMPARE and not (request.series or request.branch)
    return found.outputs if several else (found.one,)


def as_recognised(history: History, settings: Settings, outputs: Sequence[Output]) -> Settings:
    """The settings with what of an output is measured; a change for the worse stays one, whatever the direction of the metric."""
    policy, metric = settings.policy, outputs[0].metric
    if policy.direction is not Direction.ANY and worse_direction(metric) is not worse_direction(settings.metric):
        opposite = Direction.DROP if policy.direction is Direction.RISE else Direction.RISE
        policy = replace(policy, direction=opposite)
    known = replace(settings, metric=metric, policy=policy)
    known = replace(known, outputs=tuple(outputs)) if outputs[1:] else replace(known, output=outputs[0])
    return replace(known, prior=replace(known.prior, noise=read_noise(history, known)))


def verdict_of(history: History, number: int) -> Verdict | None:
    """The verdict with which a hunt has ended in its latest attempt; None where it goes on."""
    last: Verdict | None = None
    for entry in history.events(number):
        if isinstance(entry.event, SessionEnded | SessionStarted):
            last = entry.event.verdict if isinstance(entry.event, SessionEnded) else None
    return last


def refuse_imported(history: History, session: int, what: str, name: str = "") -> None:
    """Raise UsageError for an imported hunt, or trial of that ``name``: its settings have commands and paths of someone else."""
    if whose := history.origin(session):
        became, yours = "imported from", ""
        if not history.columns(session, "origin")[0]:
            became = "made by"
            yours = f" If it is yours: {shell_words(['bisect', 'history', 'import', str(history.path), '--own'])}"
        raise UsageError(
            f"{name or f'Hunt {session}'} was {became} {printable(whose)}: {what}, since its commands, its repository and its"
            " hosts are not yours.",
            f"`{command_on('show', name or session, history.path)}` says how it was begun; check that, and begin one of your"
            f" own.{yours}",
        )
