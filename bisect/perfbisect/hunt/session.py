"""Begin and resume a session: one or several hunts over the same range, or what is measured in rounds.

    outcomes = begin(setups, Caller(path of the history, open_view, waiting, begun))

Each hunt ends with a verdict of its own, and has a log of its own. Several are a batch without a file in the history
(`bisect show b3`), and have the same range, builder and host. ``open_view`` is given the title of each by its number, and
returns what shows them. An outcome has the number of its hunt, and the verdict or the failure: of a workload that fails at
an end of the range while others go on. What ends all of them (the host, Ctrl-C) is raised, with the command that goes on.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from perfbisect.core.domain.events import SessionStarted, Warned
from perfbisect.core.domain.orders import Verdict
from perfbisect.core.domain.session_state import SessionState
from perfbisect.core.domain.settings import Settings, TrialBuild
from perfbisect.errors import CannotGoOn, PerfBisectError, UsageError
from perfbisect.host.lock import WaitCallback
from perfbisect.hunt.attempt import Caller, HuntOutcome, SessionAttempt, refuse_imported, verdict_of
from perfbisect.hunt.fitness import unfit_hosts
from perfbisect.hunt.lifecycle import settings_by_host
from perfbisect.hunt.session_hosts import lock_hosts
from perfbisect.hunt.setup import Recipes, SessionSetup
from perfbisect.hunt.trials.builds import configured
from perfbisect.hunt.trials.proof import claim_of, narrowing, proof_setup
from perfbisect.hunt.trials.rounds import TrialDesign, with_prebuilt
from perfbisect.lab import upkeep
from perfbisect.process import CLOCK
from perfbisect.recipes.requested import load_requested, requested_builder, requested_workloads
from perfbisect.report.command_line import command_on
from perfbisect.store.batches import (
    Batch,
    PlannedHunt,
    begin_batch,
    continue_batch,
    end_batch,
    enter_status,
    read_batch,
    update_hunt,
)
from perfbisect.store.history import History
from perfbisect.store.log import remove
from perfbisect.store.prior_data import read_costs, read_kept, read_noise
from perfbisect.wording.verdicts import exit_status

Leased = Callable[[Settings, Mapping[str, str]], AbstractContextManager[None]]
"""Leases the hosts of a session for a block: where there is one, each at the address at which it has measured before."""


@dataclass(frozen=True, slots=True)
class Resumption:
    """How a session goes on."""

    continued: Callable[[Settings], Settings]  # stored settings → those to go on with
    leased: Leased | None = None
    # A hunt goes on for the reason of its verdict alone, for so many seconds; 0: as many as usual
    why: float | None = None
    # How much more hunts may spend, by the limits of their policy (``max_runs``); others stay as they are
    further: Mapping[str, float] = field(default_factory=dict)


def begin(
    setups: Sequence[SessionSetup], caller: Caller, in_batch: tuple[int, int] | None = None, instead: int = 0
) -> tuple[HuntOutcome, ...]:
    """Begin hunts, or one trial, and follow them to their ends.

    ``in_batch`` is the batch of a file that a single hunt belongs to, and its number there. ``instead``: the number of a hunt
    of which nothing is left once they have begun.
    """
    first = setups[0]
    with lock_hosts(first.hosts, first.purpose, caller.waiting) as held, closing(History.open(caller.path)) as history:
        trial = bool(first.request.works)
        machines = (site.facts.settings.get("node", site.facts.name) for site in first.hosts)
        unfit = (Warned(f"Host {why}") for why in unfit_hosts(history.path, machines).values())
        warnings = (*(() if trial else little_space(history, first)), *unfit)
        setups = [replace(each, warnings=(*each.warnings, *warnings)) for each in setups]
        ready = [with_prebuilt(each, caller.say) if trial else anew(history, each) for each in setups]
        with history.transaction() as db:
            numbers, batch = enter_all(history, ready, in_batch)
            if instead:  # last, so that none of them gets its number
                remove(db, instead)
        return SessionAttempt(history, caller, numbers, batch, held).carry_out(dict(enumerate(ready)))


def anew(history: History, setup: SessionSetup) -> SessionSetup:
    """The setup of a hunt that begins: what earlier hunts know of it, and the hashes of its recipes, are in its settings."""
    known = with_prior_knowledge(history, setup.settings)
    run_hash, build_hash = setup.run_hash(setup.workload), setup.build_hash()
    return replace(setup, settings=replace(known, run_hash=run_hash, build_hash=build_hash))


def with_prior_knowledge(history: History, settings: Settings) -> Settings:
    """The settings with the noise of a run and the cost of a build, from earlier hunts on hosts of the first one's class."""
    prior, each = settings.prior, settings_by_host(settings)
    costs = next((known for one in each if (known := read_costs(history, one)).build and known.run), None)
    if costs and costs.build and costs.run:
        prior = replace(prior, build_cost=costs.build / costs.run)
    noise = next((noise for one in each if (noise := read_noise(history, one)) is not None), None)
    return replace(settings, prior=replace(prior, noise=noise))


def little_space(history: History, setup: SessionSetup) -> tuple[Warned, ...]:
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
    history: History, setups: Sequence[SessionSetup], in_batch: tuple[int, int] | None
) -> tuple[list[int], Batch | None]:
    """Enter the hunts, and their batch if there are several, all or nothing; returns their numbers and that batch."""
    at, folder = CLOCK.now(), str(Path.cwd())
    places = [in_batch] if in_batch else []
    with history.transaction():  # so that no hunt has begun whose batch does not know it
        if len(setups) > 1:
            batch = begin_batch(history, "", [PlannedHunt.of(setup.settings, folder) for setup in setups], at)
            places = [(batch, place) for place in range(len(setups))]
        numbers = [history.begin(each.settings, each.started(0, False), at) for each in setups]
        for place, number in zip(places, numbers, strict=False):
            update_hunt(history, *place, hunt_id=number)
    return numbers, read_batch(history, batch) if len(setups) > 1 else None


def resume(session: int | str, batch: Batch | None, caller: Caller, how: Resumption) -> tuple[HuntOutcome, ...]:
    """Continue a hunt, a trial of that name, or the hunts of a ``batch`` without a verdict, where their logs end.

    A hunt that cannot go on has failed, and the others go on. Where none can, the reason of the first is raised: CannotGoOn
    when new runs could not be compared with the earlier ones. Raises UsageError for a trial that is complete.
    """
    with ExitStack() as stack:
        history = stack.enter_context(closing(History.open(caller.path)))
        trial = history.trial(session) if isinstance(session, str) and not batch else None
        verdicts: list[Verdict | None] = [None]
        if batch:
            numbers = [one.hunt for one in batch.hunts if one.hunt is not None]
            verdicts = enter_verdicts(history, batch, numbers)
            if all(verdicts):
                return tuple(map(HuntOutcome, numbers, verdicts))
        else:
            numbers = [trial.id if trial else int(session)]
        for each in numbers:
            refuse_imported(history, each, "it is not gone on with here", trial.name if trial else "")
        if trial and how.further:
            raise UsageError(f"{trial.name} has no limits: its rounds say how long it takes.", "Leave out --max-….")
        if trial and trial.state == "done":
            raise UsageError(f"{trial.name} is complete.", f"See it: {command_on('show', trial.name, history.path)}")
        requested = [how.continued(history.settings(each)) for each in numbers]
        if how.leased:
            events = (entry.event for entry in history.events(numbers[0]))
            started = (event for event in events if isinstance(event, SessionStarted))
            nodes = {facts.name: facts.settings.get("node", "") for event in started for facts in event.hosts}
            stack.enter_context(how.leased(requested[0], {name: node for name, node in nodes.items() if node}))
        unable: dict[int, PerfBisectError] = {}
        if trial:
            setups = {0: stack.enter_context(trial_again(history, trial, requested[0], how, caller))}
        elif requested[0].narrows:
            log = [entry.event for entry in history.events(numbers[0])]
            setups = {0: stack.enter_context(narrowing(requested[0], caller.waiting, log))}
            with history.transaction():
                history.change_range(numbers[0], setups[0].started(numbers[0], True))
            check_unchanged(history, numbers[0], setups[0])
        else:
            setups, unable = set_up_again(history, numbers, verdicts, requested, caller.waiting)
        some = next(iter(setups.values()))
        held = stack.enter_context(lock_hosts(some.hosts, some.purpose, caller.waiting))
        if trial:
            setups = {0: with_prebuilt(some, caller.say)}
            check_trial_unchanged(trial, setups[0])
        if batch:
            continue_batch(history, batch.id)
        return SessionAttempt(history, caller, numbers, batch, held, unable, how.why, how.further).carry_out(setups)


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
) -> tuple[dict[int, SessionSetup], dict[int, PerfBisectError]]:
    """The setups of the hunts that go on, and why others cannot, by their places; those with a verdict need neither."""
    unable: dict[int, PerfBisectError] = {}
    setups: dict[int, SessionSetup] = {}
    known: dict[int, Recipes] = {}  # of those whose recipes are there
    for place in sorted(range(len(requested)), key=lambda place: verdicts[place] is not None):  # first those that go on
        try:
            known[place] = load_requested(requested[place])
        except UsageError as trouble:
            if verdicts[place] is None:
                unable[place] = trouble
    going_on = [place for place in known if verdicts[place] is None]
    begun = [*known.values()]
    found = SessionSetup.set_up([requested[place] for place in going_on], waiting, begun) if going_on else ()
    for place, setup in zip(going_on, found, strict=True):
        try:
            check_unchanged(history, numbers[place], setup)
            setups[place] = setup
        except UsageError as trouble:
            unable[place] = trouble
    if not setups:
        raise unable[min(unable)]
    return setups, unable


def check_unchanged(history: History, hunt_id: int, setup: SessionSetup) -> None:
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


@contextmanager
def trial_again(
    history: History, trial: SessionState, settings: Settings, how: Resumption, caller: Caller
) -> Iterator[SessionSetup]:
    """The setup of a trial that goes on."""
    request = trial.request
    if request.reverts:
        claim = claim_of(history, request.reverts.hunt)
        claim = replace(claim, settings=settings, together=tuple(map(how.continued, claim.together)))
        with proof_setup(claim, request.rounds, request.runs, caller.waiting, caller.say) as setup:
            yield setup
        return
    builder = requested_builder(settings)
    names = settings.workload if request.shared else ",".join(work.name for work in request.works)
    workloads = requested_workloads(settings, builder, names)
    written = (
        TrialBuild(build.name, build.commit, build.path, variant=build.variant, config=build.config)
        for build in request.subjects
    )
    subjects = [configured(build, builder) for build in written]
    rounds = TrialDesign(
        request.kind, subjects, workloads, request.rounds, request.runs, series=request.series, branch=request.branch
    )
    yield rounds.set_up(settings, caller.waiting)


def check_trial_unchanged(trial: SessionState, setup: SessionSetup) -> None:
    """Raise CannotGoOn when the workloads, binaries or configurations of a trial have changed."""
    before, now = trial.request, setup.request
    alike = [
        (old.commit, old.config_hash) == (new.commit, new.config_hash) and new.key in ("", old.key)
        for old, new in zip(before.subjects, now.subjects, strict=True)
    ]
    if before.works != now.works or not all(alike):
        raise CannotGoOn(
            f"{trial.name} cannot go on: its runs would be made in another way than before, so they could not be"
            " compared with the earlier ones.",
            "Its workloads, their files, the binaries or a configuration have changed: undo that, or begin a new one.",
        )
