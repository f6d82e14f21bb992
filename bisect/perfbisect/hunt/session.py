"""Follow a hunt, new or resumed: save and show its events until there is a verdict."""

import math
import threading
from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractContextManager, closing, nullcontext, suppress
from dataclasses import replace
from pathlib import Path

from perfbisect.clock import CLOCK
from perfbisect.core.domain.events import Decided, HuntEnded, HuntStarted, LabEvent, Warned
from perfbisect.core.domain.orders import Step, Verdict, named_steps
from perfbisect.core.domain.settings import Settings
from perfbisect.errors import CannotGoOn, Interrupted, PerfBisectError, ReaderGone, in_words
from perfbisect.host.lock import HostLock, WaitCallback
from perfbisect.hunt.course import Course
from perfbisect.hunt.host_locks import lock_hosts, tell_number
from perfbisect.hunt.imported import refuse_imported
from perfbisect.hunt.labs import connection_events, hosts_of
from perfbisect.hunt.leased_hosts import known_nodes
from perfbisect.hunt.notification import Begun
from perfbisect.hunt.prior_hunts import with_prior_knowledge
from perfbisect.hunt.search_problem import SavedLog, TimedEvent, pursue
from perfbisect.hunt.setup import HuntSetup
from perfbisect.hunt.view import View
from perfbisect.lab.upkeep import storage
from perfbisect.report.command_line import command_to_resume
from perfbisect.report.reader import read_story
from perfbisect.store.batches import enter_hunt
from perfbisect.store.history import History
from perfbisect.store.prior_data import read_kept

Leased = Callable[[Settings, Mapping[str, str]], AbstractContextManager[None]]
"""Leases the hosts of a hunt for a block: where there is one, each at the address at which it has measured before."""


def follow_anew(
    setup: HuntSetup,
    path: Path | None,
    view: View,
    waiting: WaitCallback | None = None,
    begun: Begun | None = None,
    in_batch: tuple[int, int] | None = None,
) -> Verdict:
    """Begin a hunt in the history at ``path`` and follow it to its verdict; see ``follow``. ``begun`` gets its number.

    ``in_batch`` is the batch that it belongs to, and its number there.
    """
    with lock_hosts(setup, waiting) as held, closing(History.open(path)) as history:
        setup = replace(anew(history, setup), warnings=(*setup.warnings, *little_space(history, setup)))
        with history.together():  # so that no hunt has begun whose batch does not know it
            hunt_id = history.begin(setup.settings, setup.facts, setup.started(0, False), CLOCK.now())
            if in_batch:
                enter_hunt(history, *in_batch, hunt_id)
        tell_number(held, str(hunt_id))
        if begun:
            begun(str(hunt_id))
        return follow(history, hunt_id, setup, view, held, resumed=False)


def anew(history: History, setup: HuntSetup) -> HuntSetup:
    """The setup of a hunt that begins: what earlier hunts know of it, and the hashes of its recipes, are in its settings."""
    known = with_prior_knowledge(history, setup.settings)
    run_hash, build_hash = setup.run_hash(setup.workload), setup.build_hash()
    return replace(setup, settings=replace(known, run_hash=run_hash, build_hash=build_hash))


def little_space(history: History, setup: HuntSetup) -> tuple[Warned, ...]:
    """Warnings about disks that are too small for the builds and the data of the hunt, judged by earlier hunts."""
    expected = storage.expected_builds(len(setup.span.candidates), setup.settings.policy.max_builds)
    found = [
        warning
        for site in setup.hosts
        for warning in storage.too_little(
            site.host, *read_kept(history, replace(setup.settings, host=site.host.name)), expected
        )
    ]
    builds, _ = read_kept(history, setup.settings)
    for each in setup.ahead:
        found += storage.too_little(each.host, builds, (), math.ceil(expected / len(setup.ahead)))
    return tuple(found)


def resume(
    hunt_id: int | None,
    path: Path | None,
    view: View,
    waiting: WaitCallback | None,
    continued: Callable[[Settings], Settings],
    begun: Begun,
    leased: Leased | None = None,
) -> Verdict:
    """Continue a hunt (None: the latest) of the history at ``path`` where its log ends; see ``follow``.

    ``continued`` is given the stored settings, and returns those to go on with. ``begun`` gets its number.
    ``leased`` leases its hosts.
    Raises CannotGoOn when new runs could not be compared with its earlier ones.
    """
    with closing(History.open(path)) as history:
        hunt_id = history.latest() if hunt_id is None else hunt_id
        refuse_imported(history, hunt_id, "it is not gone on with here")
        settings = continued(history.settings(hunt_id))
        started = (entry.event for entry in history.events(hunt_id))
        nodes = known_nodes(event for event in started if isinstance(event, HuntStarted))
        with leased(settings, nodes) if leased else nullcontext():
            setup = HuntSetup.set_up(settings, waiting)
            check_unchanged(history, hunt_id, setup)
            with lock_hosts(setup, waiting) as held:
                tell_number(held, str(hunt_id))
                begun(str(hunt_id))
                return follow(history, hunt_id, setup, view, held, resumed=True)


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
        history.update_recipe_hash(hunt_id, build_hash)


def follow(
    history: History, hunt_id: int, setup: HuntSetup, view: View, held: Mapping[str, HostLock], *, resumed: bool
) -> Verdict:
    """Hunt, showing every event, until there is a verdict.

    Raises Interrupted or the failure, with the command that continues the hunt.
    """
    verdict: Verdict | None = None
    found: tuple[Step, ...] = ()
    log = SavedLog(history, hunt_id)
    again = command_to_resume(hunt_id, history.path)

    def save_and_show(event: LabEvent) -> None:
        if threading.current_thread() is threading.main_thread():  # the history belongs to it
            view.show(event, log.append(event)[0])

    # Threads forward the events of their hosts themselves.
    alone = len(setup.hosts) == 1 and not setup.ahead
    with connection_events(hosts_of(setup.hosts[0]), save_and_show) if alone else nullcontext(), closing(view):
        try:
            if resumed:
                view.recall((entry.at, entry.event) for entry in history.events(hunt_id))
            with closing(session(log, setup, held, resumed)) as events:
                for at, event in events:
                    view.show(event, at)
                    if isinstance(event, Decided):
                        found = event.decision.found or named_steps(event.decision.order)
                    verdict = event.verdict if isinstance(event, HuntEnded) else verdict
        except (KeyboardInterrupt, ReaderGone):  # Ctrl-C, or the reader of our output has ended
            view.close()
            known = "".join(f"\n{line}" for line in read_story(history, hunt_id).found) if found else ""
            raise Interrupted(f"Interrupted. What was measured is kept; go on with: {again}{known}") from None
        except (PerfBisectError, OSError) as trouble:
            failure = in_words(trouble)
            with suppress(PerfBisectError):  # of the history itself
                history.fail(hunt_id, str(failure), CLOCK.now())
            own = "\nThe hunt keeps its commands: to change them, begin a new hunt." if setup.settings.quick else ""
            failure.advice = f"{failure.advice}\nWhat was measured is kept; go on with: {again}{own}".strip()
            raise failure from failure.__cause__
    assert verdict is not None, "a hunt ends with a verdict"
    return verdict


def session(log: SavedLog, setup: HuntSetup, held: Mapping[str, HostLock], resumed: bool) -> Generator[TimedEvent]:
    """The events of one session of a hunt, beginning with its warnings."""
    course = Course(log, setup, held, resumed)
    if (yield from course.opening()):
        verdict = yield from pursue(course.problem, log, course.labs.workers(course.problem.commits))
        yield from course.closing(verdict)
