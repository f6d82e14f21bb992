"""Follow a hunt, new or resumed: save and show its events until there is a verdict."""

import math
import threading
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, nullcontext, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

from perfbisect.clock import CLOCK
from perfbisect.core.domain.events import HuntEnded, HuntStarted, LabEvent, RunFinished, Warned
from perfbisect.core.domain.metrics import INSTRUCTIONS
from perfbisect.core.domain.orders import CodePlacement, Found, Verdict
from perfbisect.core.domain.settings import Settings
from perfbisect.errors import Interrupted, PerfBisectError, ReaderGone, UsageError, in_words
from perfbisect.host.lock import HostLock, WaitCallback
from perfbisect.hunt.after_verdict import culprit_timed, placement_counted
from perfbisect.hunt.auto_metric import with_metric_chosen
from perfbisect.hunt.changed_code import read_change, reader
from perfbisect.hunt.explanation import explain
from perfbisect.hunt.host_locks import lock_hosts
from perfbisect.hunt.imported import refuse_imported
from perfbisect.hunt.labs import HuntLabs, connection_events, hosts_of
from perfbisect.hunt.leased_hosts import known_nodes
from perfbisect.hunt.merge_base import merge_base_equals_good
from perfbisect.hunt.notification import Begun
from perfbisect.hunt.prior_hunts import known_failures, with_prior_knowledge
from perfbisect.hunt.search_problem import SavedLog, SearchProblem, TimedEvent, WorkersFor, hunt
from perfbisect.hunt.setup import HuntSetup
from perfbisect.hunt.view import View
from perfbisect.lab.guarded_lab import changed
from perfbisect.lab.upkeep import storage
from perfbisect.report.command_line import command_to_resume
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
        warnings = (*setup.warnings, *little_space(history, setup))
        settings = replace(
            with_prior_knowledge(history, setup.settings),
            run_hash=setup.run_hash(setup.workload),
            build_hash=setup.build_hash(),
        )
        setup = replace(setup, settings=settings, warnings=warnings)
        with history.together():  # so that no hunt has begun whose batch does not know it
            hunt_id = history.begin(setup.settings, setup.facts, setup.started(0, False), CLOCK.now())
            if in_batch:
                enter_hunt(history, *in_batch, hunt_id)
        if begun:
            begun(str(hunt_id))
        return follow(history, hunt_id, setup, view, held, resumed=False)


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
    Raises UsageError when new runs could not be compared with its earlier ones.
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
            build_hash = setup.build_hash()
            if setup.settings.build_hash != build_hash:  # the lab refuses to continue if builds exist already
                history.update_recipe_hash(hunt_id, build_hash)
            with lock_hosts(setup, waiting) as held:
                begun(str(hunt_id))
                return follow(history, hunt_id, setup, view, held, resumed=True)


def check_unchanged(history: History, hunt_id: int, setup: HuntSetup) -> None:
    """Raise UsageError when the range or the workload of a hunt has changed."""
    if setup.span.candidates != history.candidates(hunt_id):
        raise UsageError(
            f"Hunt {hunt_id} cannot go on: its range in {setup.settings.repository} has changed.",
            "Its recipe's ignore list or the repository has changed; begin a new hunt with: bisect run",
        )
    if setup.settings.run_hash not in ("", setup.run_hash(setup.workload)):
        raise UsageError(
            f"Hunt {hunt_id} cannot go on: its runs would be made in another way than before, so they could not be"
            " compared with the earlier ones.",
            f"Workload {setup.workload.suite}/{setup.workload.name} or its files, the settings of sysbench and"
            f" perf in the recipe of {setup.builder.name}, or the processors and the memory in hosts.toml have changed:"
            " undo that, or begin a new hunt with: bisect run",
        )


def follow(
    history: History, hunt_id: int, setup: HuntSetup, view: View, held: Mapping[str, HostLock], *, resumed: bool
) -> Verdict:
    """Hunt, showing every event, until there is a verdict.

    Raises Interrupted or the failure, with the command that continues the hunt.
    """
    verdict: Verdict | None = None
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
                    verdict = event.verdict if isinstance(event, HuntEnded) else verdict
        except (KeyboardInterrupt, ReaderGone):  # Ctrl-C, or the reader of our output has ended
            view.close()
            raise Interrupted(f"Interrupted. What was measured is kept; go on with: {again}") from None
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
    settings = setup.settings
    hosts = settings.hosts if len(setup.hosts) > 1 else ()
    problem = SearchProblem(
        setup.span.graph, setup.span.candidates, settings.policy, settings.metric, hosts, settings.prior,
        tuple(each.host.name for each in setup.ahead),
    )  # fmt: skip
    started = setup.started(log.hunt, resumed)
    before = [entry.event for entry in log.history.events(log.hunt) if isinstance(entry.event, HuntStarted)]

    def workers_of(chosen: HuntSetup) -> WorkersFor:
        return HuntLabs(chosen, log, before, held).workers

    labs = HuntLabs(setup, log, before, held)
    for warning in (*setup.warnings, *changes_since(before, setup)):
        yield log.append(warning)
    # Bad is built only after the merge base was found to equal good; later runs of it do not reopen that.
    bad_is_known = any(event.facts.commit == problem.commits[-1] for _, event in log.entries)
    if not (
        setup.span.good_is_ancestor
        or bad_is_known
        or (yield from merge_base_equals_good(problem, started, settings, log, labs.workers))
    ):
        return
    chosen = settings.choose_metric
    if chosen:
        setup = yield from with_metric_chosen(setup, problem, started, log, workers_of)
        settings, labs = setup.settings, HuntLabs(setup, log, before, held)
        problem = replace(problem, policy=settings.policy, metric=settings.metric, prior=settings.prior)
    failed = () if resumed or settings.retry_failed else known_failures(log.history, settings, log.began)

    def afterwards(verdict: Verdict) -> Iterator[TimedEvent]:
        match verdict:
            case Found(step) if settings.prior.exact and any(
                isinstance(event, RunFinished) and not event.facts.counted for _, event in log.entries
            ):
                usual = setup.by_metric(replace(settings, metric=setup.workload.metric))
                yield from culprit_timed(step, problem, log, workers_of(usual))
            case CodePlacement(step):
                counting = setup.by_metric(replace(settings, metric=INSTRUCTIONS))
                if counting.settings.prior.exact:
                    yield from placement_counted(step, problem, log, workers_of(counting))
            case _:
                pass
        if settings.explain:
            usual = setup.by_metric(replace(settings, metric=setup.workload.metric)) if settings.prior.exact else setup
            studies = HuntLabs(usual, log, before, held)
            workers = partial(studies.workers, problem.commits)
            yield from explain(verdict, problem.commits, log, workers, usual.builder, usual.workload)
            yield from read_change(verdict, problem.commits, log, reader(settings.repository))

    yield from hunt(problem, None if chosen else started, log, labs.workers, failed, setup.left_out, afterwards)


def changes_since(before: Sequence[HuntStarted], setup: HuntSetup) -> tuple[Warned, ...]:
    """Warnings about hosts that are not as they were when they last took part."""
    last = {facts.name: facts for event in before for facts in event.hosts}
    return tuple(
        warning
        for site in setup.hosts
        if site.facts.name in last
        for warning in changed(site.host.name, last[site.facts.name], site.facts)
    )
