"""Hunts of several workloads in one process: they begin or go on together, and each ends with a verdict of its own.

    setups = HuntSetup.set_up_together([settings of each workload], waiting)
    outcomes = follow_together(setups, path of the history, open_view, waiting, begun)

All have the same range, builder and host. They are a batch without a file in the history: `bisect show b3`. ``open_view``
is given the title of each hunt by its number, and returns what shows them (`perfbisect.cli.options.views.open_view_together`).
An outcome has the number of its hunt, and the verdict or the failure: of a workload that fails at an end of the range. What
ends all of them (the host, Ctrl-C) is raised, with the command that goes on.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, closing, nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from perfbisect.clock import CLOCK
from perfbisect.core.domain.events import HuntEnded, HuntStarted, LabEvent
from perfbisect.core.domain.orders import Verdict
from perfbisect.core.domain.settings import Settings
from perfbisect.errors import ENVIRONMENT, Interrupted, PerfBisectError, ReaderGone, UsageError, in_words
from perfbisect.host.lock import HostLock, WaitCallback
from perfbisect.hunt.course import Course
from perfbisect.hunt.group import Group, GroupMember
from perfbisect.hunt.host_locks import lock_hosts, tell_number
from perfbisect.hunt.labs import connection_events, hosts_of
from perfbisect.hunt.leased_hosts import known_nodes
from perfbisect.hunt.notification import Begun
from perfbisect.hunt.search_problem import SavedLog, TimedEvent
from perfbisect.hunt.session import Leased, anew, check_unchanged, little_space
from perfbisect.hunt.setup import HuntSetup
from perfbisect.hunt.watching import Watcher
from perfbisect.recipes.requested import load_requested
from perfbisect.report.command_line import command_on
from perfbisect.store.batches import (
    Batch,
    Planned,
    begin_batch,
    continue_batch,
    end_batch,
    enter_hunt,
    enter_status,
    read_batch,
)
from perfbisect.store.history import History
from perfbisect.wording.verdicts import exit_status

OpenView = Callable[[Mapping[int, str]], Watcher]  # the title of each hunt, by its number → what shows them


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a hunt has ended: with a verdict, or with a failure of its own."""

    hunt: int
    verdict: Verdict | None
    failure: PerfBisectError | None = None

    @property
    def status(self) -> int:
        """The exit status of `bisect run` for it alone."""
        return ENVIRONMENT if self.verdict is None else exit_status(self.verdict)


def follow_together(
    setups: Sequence[HuntSetup],
    path: Path | None,
    open_view: OpenView,
    waiting: WaitCallback | None = None,
    begun: Begun | None = None,
) -> tuple[Outcome, ...]:
    """Begin hunts in the history at ``path`` and follow them to their ends. ``begun`` gets the number of each."""
    with lock_hosts(setups[0], waiting) as held, closing(History.open(path)) as history:
        warnings = little_space(history, setups[0])
        setups = [replace(anew(history, each), warnings=(*each.warnings, *warnings)) for each in setups]
        number = enter_all(history, setups)
        return follow(history, read_batch(history, number), dict(enumerate(setups)), open_view, held, begun)


def enter_all(history: History, setups: Sequence[HuntSetup]) -> int:
    """Enter the hunts and their batch, all or nothing; returns its number."""
    at, folder = CLOCK.now(), str(Path.cwd())
    planned = []
    for setup in setups:
        settings = setup.settings
        words = (f"--builder={settings.builder}", f"--workload={settings.workload}", settings.good, settings.bad)
        planned.append(Planned(words, folder, (settings.hosts,)))
    with history.together():
        number = begin_batch(history, None, planned, at)
        for place, setup in enumerate(setups):
            enter_hunt(history, number, place, history.begin(setup.settings, setup.facts, setup.started(0, False), at))
    return number


def resume_together(
    batch: Batch,
    path: Path | None,
    open_view: OpenView,
    waiting: WaitCallback | None,
    continued: Callable[[Settings], Settings],
    begun: Begun | None,
    leased: Leased | None = None,
) -> tuple[Outcome, ...]:
    """Continue the hunts of a batch that have no verdict yet where their logs end; see ``session.resume``.

    One that cannot go on has failed, and the others go on. Where none can, the reason of the first is raised.
    """
    with closing(History.open(path)) as history:
        numbers = [one.hunt for one in batch.hunts if one.hunt is not None]
        verdicts = enter_verdicts(history, batch, numbers)
        if all(verdicts):
            return tuple(map(Outcome, numbers, verdicts))
        requested = [continued(history.settings(number)) for number in numbers]
        started = [entry.event for entry in history.events(numbers[0]) if isinstance(entry.event, HuntStarted)]
        lease: AbstractContextManager[None] = leased(requested[0], known_nodes(started)) if leased else nullcontext()
        with lease:
            setups, unable = set_up_again(history, numbers, verdicts, requested, waiting)
            with lock_hosts(next(iter(setups.values())), waiting) as held:
                continue_batch(history, batch.id)
                return follow(history, batch, setups, open_view, held, begun, unable)


def enter_verdicts(history: History, batch: Batch, numbers: Sequence[int]) -> list[Verdict | None]:
    """The verdict of each hunt, entered in the batch: a session may have been killed before it had done so."""
    verdicts = [verdict_of(history, number) for number in numbers]
    for place, verdict in enumerate(verdicts):
        if verdict:
            enter_status(history, batch.id, place, exit_status(verdict))
    if all(verdicts):
        end_batch(history, batch.id, CLOCK.now())
    return verdicts


def set_up_again(
    history: History,
    numbers: Sequence[int],
    verdicts: Sequence[Verdict | None],
    requested: Sequence[Settings],
    waiting: WaitCallback | None,
) -> tuple[dict[int, HuntSetup], dict[int, PerfBisectError]]:
    """The setups of the hunts that go on, and why others cannot, by their places; those with a verdict need neither."""
    unable: dict[int, PerfBisectError] = {}
    for place, settings in enumerate(requested):
        try:
            load_requested(settings)
        except UsageError as trouble:
            unable[place] = trouble
    known = [settings for place, settings in enumerate(requested) if place not in unable]
    unable = {place: trouble for place, trouble in unable.items() if verdicts[place] is None}
    going_on = [place for place, verdict in enumerate(verdicts) if verdict is None and place not in unable]
    setups: dict[int, HuntSetup] = {}
    if going_on:
        found = HuntSetup.set_up_together([requested[place] for place in going_on], waiting, known)
        for place, setup in zip(going_on, found, strict=True):
            try:
                check_unchanged(history, numbers[place], setup)
            except UsageError as trouble:
                unable[place] = trouble
            else:
                setups[place] = setup
    if not setups:
        raise unable[min(unable)]
    return setups, unable


def follow(
    history: History,
    batch: Batch,
    setups: Mapping[int, HuntSetup],
    open_view: OpenView,
    held: Mapping[str, HostLock],
    begun: Begun | None,
    unable: Mapping[int, PerfBisectError] | None = None,
) -> tuple[Outcome, ...]:
    """Hunt, showing every event, until each hunt has ended. ``setups`` are those of the hunts that go on, by their places.

    ``unable``, with which the hunts are resumed, is why others cannot go on. Raises Interrupted or the failure, with the
    command that continues them.
    """
    resumed = unable is not None
    numbers = [one.hunt for one in batch.hunts if one.hunt is not None]
    logs = [SavedLog(history, number) for number in numbers]
    some = next(iter(setups.values()))
    again = command_on("resume", batch.name, history.path)
    stored = [history.settings(number) for number in numbers]
    names = [setups[place].workload.name if place in setups else each.workload for place, each in enumerate(stored)]
    tell_number(held, batch.name)
    view = open_view(dict(zip(numbers, names, strict=True)))

    def fail(place: int, trouble: PerfBisectError) -> None:
        with suppress(PerfBisectError):  # of the history itself
            history.fail(numbers[place], str(trouble), CLOCK.now())
            enter_status(history, batch.id, place, ENVIRONMENT, str(trouble))

    courses = {place: Course(logs[place], setup, held, resumed, together=len(logs)) for place, setup in setups.items()}
    common = next(iter(courses.values())).problem
    members = []
    for place, log in enumerate(logs):
        course = courses.get(place)
        problem = course.problem if course else replace(common, metric=stored[place].metric)
        trouble = (unable or {}).get(place)
        verdict = None if course or trouble else verdict_of(history, log.hunt)
        members.append(GroupMember(problem, log, course, verdict=verdict, failure=trouble))
        if trouble:
            fail(place, trouble)
        elif course:
            enter_status(history, batch.id, place, None)
            if begun:
                begun(str(log.hunt))
    group = Group(members, fail)

    def show(place: int, happened: TimedEvent) -> None:
        if isinstance(happened[1], HuntEnded):  # entered first: showing it may end this session
            members[place].verdict = happened[1].verdict
            enter_status(history, batch.id, place, exit_status(happened[1].verdict))
        view.show(numbers[place], [happened])

    def save_and_show(event: LabEvent) -> None:
        for place, happened in group.append(event):
            show(place, happened)

    with connection_events(hosts_of(some.hosts[0]), save_and_show), closing(view):
        try:
            for number in numbers if resumed else ():
                view.recall(number, ((entry.at, entry.event) for entry in history.events(number)))
            with closing(group.session(some.host.name)) as events:
                for place, happened in events:
                    show(place, happened)
        except (KeyboardInterrupt, ReaderGone):  # Ctrl-C, or the reader of our output has ended
            view.close()
            raise Interrupted(f"Interrupted. What was measured is kept; go on with: {again}") from None
        except (PerfBisectError, OSError) as trouble:
            failure = in_words(trouble)
            for place, member in enumerate(members):
                if member.failure is None and verdict_of(history, numbers[place]) is None:
                    fail(place, failure)
            failure.advice = f"{failure.advice}\nWhat was measured is kept; go on with: {again}".strip()
            raise failure from failure.__cause__
    outcomes = tuple(
        Outcome(number, None if member.failure else member.verdict, member.failure)
        for number, member in zip(numbers, members, strict=True)
    )
    if all(each.verdict for each in outcomes):
        end_batch(history, batch.id, CLOCK.now())
    return outcomes


def verdict_of(history: History, number: int) -> Verdict | None:
    """The verdict with which a hunt has ended in its latest session; None where it goes on."""
    last: Verdict | None = None
    for entry in history.events(number):
        if isinstance(entry.event, HuntEnded | HuntStarted):
            last = entry.event.verdict if isinstance(entry.event, HuntEnded) else None
    return last
