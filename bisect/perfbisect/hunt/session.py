"""A session: hunts of one workload, or of several over the same range, begin or go on in one process.

    outcomes = begin(setups, path of the history, open_view, waiting, begun)

Each hunt ends with a verdict of its own, and has a log of its own. Several are a batch without a file in the history
(`bisect show b3`), and have the same range, builder and host. ``open_view`` is given the title of each hunt by its number, and
returns what shows them. An outcome has the number of its hunt, and the verdict or the failure: of a workload that fails at
an end of the range while others go on. What ends all of them (the host, Ctrl-C) is raised, with the command that goes on.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

from perfbisect.clock import CLOCK
from perfbisect.core.domain.events import HuntStarted, LabEvent, Warned
from perfbisect.core.domain.orders import Verdict
from perfbisect.core.domain.settings import Settings
from perfbisect.errors import ENVIRONMENT, CannotGoOn, PerfBisectError, UsageError
from perfbisect.host.lock import HostLock, WaitCallback
from perfbisect.hunt.build_hosts import HostLocks
from perfbisect.hunt.course import HuntCourse
from perfbisect.hunt.driver import Member
from perfbisect.hunt.fitness import warnings_of_unfit
from perfbisect.hunt.host_locks import lock_hosts, tell_number
from perfbisect.hunt.labs import workers_of
from perfbisect.hunt.leased_hosts import known_nodes
from perfbisect.hunt.loop import Workers
from perfbisect.hunt.notification import Begun, Notifier
from perfbisect.hunt.prior_hunts import with_prior_knowledge
from perfbisect.hunt.search_problem import SavedLog
from perfbisect.hunt.searches import Searches
from perfbisect.hunt.setup import HuntSetup
from perfbisect.hunt.sitting import OpenView, Sitting, refuse_imported, verdict_of
from perfbisect.lab import upkeep
from perfbisect.lab.building.remedies import Mended
from perfbisect.recipes.requested import load_requested
from perfbisect.store.batches import (
    Batch,
    Planned,
    begin_batch,
    continue_batch,
    end_batch,
    enter_end,
    enter_hunt,
    enter_status,
    read_batch,
)
from perfbisect.store.history import History
from perfbisect.store.prior_data import read_kept
from perfbisect.wording.verdicts import exit_status

Leased = Callable[[Settings, Mapping[str, str]], AbstractContextManager[None]]
"""Leases the hosts of a session for a block: where there is one, each at the address at which it has measured before."""


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


def begin(
    setups: Sequence[HuntSetup],
    path: Path | None,
    open_view: OpenView,
    waiting: WaitCallback | None = None,
    begun: Begun | None = None,
    in_batch: tuple[int, int] | None = None,
) -> tuple[Outcome, ...]:
    """Begin hunts in the history at ``path`` and follow them to their ends. ``begun`` gets the number of each.

    ``in_batch`` is the batch of a file that a single hunt belongs to, and its number there.
    """
    with lock_hosts(setups[0], waiting) as held, closing(History.open(path)) as history:
        warnings = (*little_space(history, setups[0]), *warnings_of_unfit(history, setups[0]))
        setups = [replace(anew(history, each), warnings=(*each.warnings, *warnings)) for each in setups]
        numbers, batch = enter_all(history, setups, in_batch)
        return follow(history, numbers, batch, dict(enumerate(setups)), open_view, held, begun)


def anew(history: History, setup: HuntSetup) -> HuntSetup:
    """The setup of a hunt that begins: what earlier hunts know of it, and the hashes of its recipes, are in its settings."""
    known = with_prior_knowledge(history, setup.settings)
    run_hash, build_hash = setup.run_hash(setup.workload), setup.build_hash()
    return replace(setup, settings=replace(known, run_hash=run_hash, build_hash=build_hash))


def little_space(history: History, setup: HuntSetup) -> tuple[Warned, ...]:
    """Warnings about disks that are too small for the builds and the data of the hunt, judged by earlier hunts."""
    expected = upkeep.expected_builds(len(setup.span.candidates), setup.settings.policy.max_builds)
    found = [
        warning
        for site in setup.hosts
        for warning in upkeep.too_little(
            site.host, *read_kept(history, replace(setup.settings, host=site.host.name)), expected
        )
    ]
    builds, _ = read_kept(history, setup.settings)
    for each in setup.ahead:
        found += upkeep.too_little(each.host, builds, (), math.ceil(expected / len(setup.ahead)))
    return tuple(found)


def enter_all(
    history: History, setups: Sequence[HuntSetup], in_batch: tuple[int, int] | None
) -> tuple[list[int], Batch | None]:
    """Enter the hunts, and their batch if there are several, all or nothing; returns their numbers and that batch."""
    at, folder = CLOCK.now(), str(Path.cwd())
    places = [in_batch] if in_batch else []
    with history.transaction():  # so that no hunt has begun whose batch does not know it
        if len(setups) > 1:
            planned = []
            for setup in setups:
                its = setup.settings
                words = (f"--builder={its.builder}", f"--workload={its.workload}", its.good, its.bad)
                planned.append(Planned(words, folder, (its.hosts,)))
            batch = begin_batch(history, "", planned, at)
            places = [(batch, place) for place in range(len(setups))]
        numbers = [history.begin(each.settings, each.facts, each.started(0, False), at) for each in setups]
        for place, number in zip(places, numbers, strict=False):
            enter_hunt(history, *place, number)
    return numbers, read_batch(history, batch) if len(setups) > 1 else None


def resume(
    number: int,
    batch: Batch | None,
    path: Path | None,
    open_view: OpenView,
    waiting: WaitCallback | None,
    continued: Callable[[Settings], Settings],
    begun: Begun | None,
    leased: Leased | None = None,
    why: float | None = None,
) -> tuple[Outcome, ...]:
    """Continue a hunt of the history at ``path``, or those of its ``batch`` without a verdict, where their
    logs end.

    ``continued`` is given the stored settings, and returns those to go on with. ``begun`` gets the number of each hunt.
    ``leased`` leases the hosts. ``why``: a hunt goes on for the reason of its verdict alone, for so many seconds (0: as
    many as usual). One that cannot go on has failed, and the others go on. Where none can, the reason of the
    first is raised: CannotGoOn when new runs could not be compared with its earlier ones.
    """
    with closing(History.open(path)) as history:
        if batch:
            numbers = [one.hunt for one in batch.hunts if one.hunt is not None]
            verdicts = enter_verdicts(history, batch, numbers)
            if all(verdicts):
                return tuple(map(Outcome, numbers, verdicts))
        else:
            numbers, verdicts = [number], [None]
        for each in numbers:
            refuse_imported(history, each, "it is not gone on with here")
        requested = [continued(history.settings(each)) for each in numbers]
        started = (entry.event for entry in history.events(numbers[0]))
        nodes = known_nodes(event for event in started if isinstance(event, HuntStarted))
        with leased(requested[0], nodes) if leased else nullcontext():
            setups, unable = set_up_again(history, numbers, verdicts, requested, waiting)
            with lock_hosts(next(iter(setups.values())), waiting) as held:
                if batch:
                    continue_batch(history, batch.id)
                return follow(history, numbers, batch, setups, open_view, held, begun, unable, why)


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
    setups: dict[int, HuntSetup] = {}
    known = []  # those whose recipes are there
    for place, settings in enumerate(requested):
        try:
            load_requested(settings)
            known.append(settings)
        except UsageError as trouble:
            if verdicts[place] is None:
                unable[place] = trouble
    going_on = [place for place, verdict in enumerate(verdicts) if verdict is None and place not in unable]
    found = HuntSetup.set_up([requested[place] for place in going_on], waiting, known) if going_on else ()
    for place, setup in zip(going_on, found, strict=True):
        try:
            check_unchanged(history, numbers[place], setup)
            setups[place] = setup
        except UsageError as trouble:
            unable[place] = trouble
    if not setups:
        raise unable[min(unable)]
    return setups, unable


def check_unchanged(history: History, hunt_id: int, setup: HuntSetup) -> None:
    """Raise CannotGoOn when the range or the workload of a hunt has changed. A changed recipe is entered."""
    if setup.span.candidates != history.candidates(hunt_id):
        raise CannotGoOn(
            f"Hunt {hunt_id} cannot go on: its range in {setup.settings.repository} has changed.",
            "Its recipe's ignore list or the repository has changed; begin a new hunt with: bisect run",
        )
    if setup.settings.run_hash not in ("", setup.run_hash(setup.workload)):
        raise CannotGoOn(
            f"Hunt {hunt_id} cannot go on: its runs would be made in another way than before, so they could not be"
            " compared with the earlier ones.",
            f"Workload {setup.workload.suite}/{setup.workload.name} or its files, the settings of sysbench and"
            f" perf in the recipe of {setup.builder.name}, or the processors and the memory in hosts.toml have changed:"
            " undo that, or begin a new hunt with: bisect run",
        )
    build_hash = setup.build_hash()
    if setup.settings.build_hash != build_hash:  # the lab refuses to continue if builds exist already
        # later build failures of the hunt belong to the changed recipe
        history.update_settings(hunt_id, replace(history.settings(hunt_id), build_hash=build_hash))


def follow(
    history: History,
    numbers: Sequence[int],
    batch: Batch | None,
    setups: Mapping[int, HuntSetup],
    open_view: OpenView,
    held: Mapping[str, HostLock],
    begun: Begun | None,
    unable: Mapping[int, PerfBisectError] | None = None,
    why: float | None = None,
) -> tuple[Outcome, ...]:
    """Hunt, showing every event, until each hunt has ended. ``setups`` are those of the hunts that go on, by their places.

    ``unable``, with which the hunts are resumed, is why others cannot go on. Raises Interrupted or the failure, with the
    command that continues them. Each time that further options mend a build, it goes on with these.
    """
    resumed = unable is not None
    logs = [SavedLog(history, number) for number in numbers]
    some = next(iter(setups.values()))
    name = batch.name if batch else str(numbers[0])
    stored = [history.settings(number) for number in numbers]
    titles = [setups[place].workload.name if place in setups else each.workload for place, each in enumerate(stored)]
    tell_number(held, name)

    def enter(place: int, status: int | None, failure: str = "") -> None:
        if batch:
            enter_status(history, batch.id, place, status, failure)
        elif status is not None:
            enter_end(history, numbers[place], status, failure)

    notify = begun.ended if isinstance(begun, Notifier) else lambda _: None
    locks = HostLocks(held, [each.host.name for each in some.ahead], some.shared)
    courses = {
        place: HuntCourse(logs[place], setup, held, locks, resumed, len(logs), why) for place, setup in setups.items()
    }
    common = next(iter(courses.values())).problem
    members = []
    for place, log in enumerate(logs):
        course = courses.get(place)
        problem = course.problem if course else replace(common, metric=stored[place].metric)
        trouble = (unable or {}).get(place)
        verdict = None if (course and why is None) or trouble else verdict_of(history, log.hunt)
        auto = course.changed_over if course and stored[place].choose_metric else None
        members.append(Member(problem, log, course, verdict=verdict, failure=trouble, change_over=auto))

    def workers() -> Workers[LabEvent]:
        """The hosts of the session, for the hunts that are still open."""
        going_on = {place: course.labs for place, course in courses.items() if members[place].is_open}
        return workers_of(going_on, common.commits, together=len(members) > 1)

    sitting = Sitting(history, name, titles, members, some, Searches(members), workers, resumed, enter, notify)
    for place, member in enumerate(members):
        if member.failure:
            sitting.fail(place, member.failure)
        elif member.course:
            enter(place, None)
            if begun:
                begun(str(member.log.hunt))
    try:
        stopped = sitting.carry_out(open_view)
    except Mended:
        left = [place for place in setups if verdict_of(history, numbers[place]) is None]
        setups = {place: setups[place].restored(history.settings(numbers[place])) for place in left}
        return follow(history, numbers, batch, setups, open_view, held, begun, unable or {}, why)
    outcomes = tuple(
        Outcome(number, None if member.failure else member.verdict, member.failure)
        for number, member in zip(numbers, members, strict=True)
    )
    if batch and all(each.verdict for each in outcomes):
        end_batch(history, batch.id, CLOCK.now())
    if stopped:
        raise stopped
    return outcomes
