"""A sitting: one process works on a session, shows every event, and says how to go on when it is cut short."""

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, nullcontext, suppress
from dataclasses import dataclass, replace

from perfbisect.clock import CLOCK
from perfbisect.core.domain.events import HuntEnded, HuntStarted, LabEvent
from perfbisect.core.domain.orders import Verdict
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
from perfbisect.hunt.driver import Driver, Member
from perfbisect.hunt.labs import connection_events, hosts_of
from perfbisect.hunt.loop import Planner, Workers
from perfbisect.hunt.pushing import pushing
from perfbisect.hunt.search_problem import TimedEvent
from perfbisect.hunt.setup import HuntSetup
from perfbisect.hunt.watching import View
from perfbisect.lab.building.known_errors import KnownFailure
from perfbisect.lab.building.remedies import Mended
from perfbisect.report.command_line import command_on, command_to_run
from perfbisect.report.hunt_report import read_hunt
from perfbisect.store.history import History
from perfbisect.ui.stream import note
from perfbisect.wording.text import printable, shell_words
from perfbisect.wording.verdicts import exit_status

OpenView = Callable[[Mapping[int, str]], View]  # the title of each member, by its number → what shows them


@dataclass(frozen=True, slots=True)
class Sitting:
    """What a process needs to work on a session with these members."""

    history: History
    name: str  # by which commands are given the session: 12, b3, c4
    titles: Sequence[str]  # of each member
    members: Sequence[Member]
    setup: HuntSetup  # of any of them: all have the same hosts
    plan: Planner
    workers: Callable[[], Workers[LabEvent]]
    resumed: bool
    enter: Callable[[int, int | None, str], None] = lambda *_: None  # the exit status of a member, and its failure
    notify: Callable[[str], None] = lambda _: None  # once the verdict of the hunt of that name was shown

    def fail(self, place: int, trouble: PerfBisectError) -> None:
        """Enter that a member cannot go on."""
        with suppress(PerfBisectError):  # of the history itself
            self.history.fail(self.members[place].log.hunt, str(trouble), CLOCK.now())
            self.enter(place, ENVIRONMENT, str(trouble))

    def carry_out(self, open_view: OpenView) -> Interrupted | None:
        """Work until each member has ended. Raises Interrupted or the failure, with the command that goes on.

        Once all verdicts stand, returns the interruption of what is left of their reasons.
        """
        with pushing(self.history.path, [member.log.hunt for member in self.members], note):
            return self._work(open_view)

    def _work(self, open_view: OpenView) -> Interrupted | None:
        driver = Driver(self.members, self.plan, self.workers, self.fail)
        numbers = [member.log.hunt for member in self.members]
        view = open_view(dict(zip(numbers, self.titles, strict=True)))

        def show(place: int, happened: TimedEvent) -> None:
            if isinstance(happened[1], HuntEnded):  # entered first: showing it may end this process
                self.members[place].verdict = happened[1].verdict
                self.enter(place, exit_status(happened[1].verdict), "")
            view.show(numbers[place], [happened])
            if isinstance(happened[1], HuntEnded):
                self.notify(str(numbers[place]))

        def save_and_show(event: LabEvent) -> None:
            if threading.current_thread() is threading.main_thread():  # the history belongs to it
                for place, happened in driver.append(event):
                    show(place, happened)

        # Threads forward the events of their hosts themselves.
        searched = any(member.problem for member in self.members)
        heard = (
            ()
            if searched and self.setup.in_threads
            else tuple(host for site in self.setup.hosts for host in hosts_of(site))
        )
        with connection_events(heard, save_and_show) if heard else nullcontext(), closing(view):
            try:
                for number in numbers if self.resumed else ():
                    view.recall(number, ((entry.at, entry.event) for entry in self.history.events(number)))
                with closing(driver.session()) as events:
                    for place, happened in events:
                        show(place, happened)
            except (KeyboardInterrupt, ReaderGone):  # Ctrl-C, or the reader of our output has ended
                view.close()
                verdicts = [verdict for number in numbers if (verdict := verdict_of(self.history, number))]
                if len(verdicts) == len(numbers):
                    return self._stands(numbers, verdicts)
                raise self._interrupted(numbers) from None
            except Mended as mended:
                for place, member in enumerate(self.members):
                    if member.is_open:
                        settings = replace(self.history.settings(numbers[place]), flags=mended.event.flags)
                        with self.history.transaction():
                            self.history.update_settings(numbers[place], settings)
                            happened = member.log.append(mended.event)
                        show(place, happened)
                raise
            except (PerfBisectError, OSError) as trouble:
                failure = in_words(trouble)
                for place, member in enumerate(self.members):
                    if member.failure is None and verdict_of(self.history, numbers[place]) is None:
                        self.fail(place, failure)
                failure.advice = f"{failure.advice}\n{self.what_next(failure)}".strip()
                raise failure from failure.__cause__
        return None

    def what_next(self, failure: PerfBisectError) -> str:
        """How to go on where that can help after a failure; what to change where it cannot; "" if the failure says that."""
        settings, cause = self.setup.settings, failure.__cause__
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

    def _interrupted(self, numbers: Sequence[int]) -> Interrupted:
        found = [number for number, member in zip(numbers, self.members, strict=True) if member.found]
        known = [f"\n{line}" for number in found for line in read_hunt(self.history, number).found]
        return Interrupted(f"Interrupted. What was measured is kept; go on with: {self._again}{''.join(known)}")

    @property
    def _again(self) -> str:
        return command_on("resume", self.name, self.history.path)


def verdict_of(history: History, number: int) -> Verdict | None:
    """The verdict with which a hunt has ended in its latest sitting; None where it goes on."""
    last: Verdict | None = None
    for entry in history.events(number):
        if isinstance(entry.event, HuntEnded | HuntStarted):
            last = entry.event.verdict if isinstance(entry.event, HuntEnded) else None
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
