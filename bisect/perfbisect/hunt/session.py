"""Begins and resumes a session: one or several hunts over the same range, or a trial.

outcomes = begin(setups, CommandCallbacks(path of the history, open_view, waiting, on_begin))

Each hunt has its own log and verdict. The hunts that are started together have the same range, builder and host, and
different workloads. Several such hunts are stored in the history as a batch without a batch file (`bisect show b3`). If
the workload of a hunt fails at an end of the range, the other hunts continue. If all hunts have to stop (because of a
fault of the host, or Ctrl-C), an error is raised, with the command that resumes the hunts.
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
from perfbisect.errors import PerfBisectError, RunsNotComparable, UsageError
from perfbisect.host.lock import WaitCallback
from perfbisect.hunt.attempt import CommandCallbacks, HuntOutcome, SessionAttempt, refuse_imported, verdict_of
from perfbisect.hunt.fitness import unfit_hosts
from perfbisect.hunt.lifecycle import settings_by_host_of_class
from perfbisect.hunt.session_hosts import lock_hosts
from perfbisect.hunt.setup import Recipes, SessionSetup
from perfbisect.hunt.trials.builds import with_config
from perfbisect.hunt.trials.proof import claim_of, diff_search_setup, proof_setup
from perfbisect.hunt.trials.rounds import TrialDesign, with_prebuilt_facts
from perfbisect.lab import upkeep
from perfbisect.process import CLOCK
from perfbisect.recipes.requested import load_requested, requested_builder, requested_workloads
from perfbisect.report.command_line import bisect_command
from perfbisect.store.batches import (
    Batch,
    PlannedHunt,
    begin_batch,
    continue_batch,
    end_batch,
    enter_batch_hunt_status,
    read_batch,
    update_batch_hunt,
)
from perfbisect.store.history import History
from perfbisect.store.log import remove_session
from perfbisect.store.prior_data import latest_build_and_dataset_keys, read_run_noise, read_typical_costs
from perfbisect.wording.verdicts import exit_status

Leased = Callable[[Settings, Mapping[str, str]], AbstractContextManager[None]]
"""Leases the hosts of a session for a block. The mapping has the addresses of hosts that have measured before."""


@dataclass(frozen=True, slots=True)
class Resumption:
    """The options with which a user changes a session when the user resumes it."""

    change_settings: Callable[[Settings], Settings]  # stored settings → the settings with which the session continues
    lease: Leased | None = None
    # Seconds to measure the reason of a stored verdict; 0: the usual time. None: the session itself continues.
    reason_seconds: float | None = None
    # Limit of the policy, such as ``max_runs`` → the number by which the limit is raised. Other limits do not change.
    added_limits: Mapping[str, float] = field(default_factory=dict)


def begin(
    setups: Sequence[SessionSetup], caller: CommandCallbacks, in_batch: tuple[int, int] | None = None, replaced: int = 0
) -> tuple[HuntOutcome, ...]:
    """Begin hunts or a trial, and carry them out to their end. Returns the result of each hunt.

    If a batch file starts the hunt, ``in_batch`` is the number of the batch and the index of the hunt in the batch.
    ``replaced`` is the number of an old hunt that is removed from the history after the new hunts are stored; 0: none.
    """
    first = setups[0]
    locks = lock_hosts(first.hosts, first.purpose, caller.waiting)
    with locks as held, closing(History.open(caller.history_path)) as history:
        trial = bool(first.request.works)
        machines = (site.facts.settings.get("node", site.facts.name) for site in first.hosts)
        unfit = (Warned(f"Host {why}") for why in unfit_hosts(history.path, machines).values())
        warnings = (*(() if trial else disk_warnings(history, first)), *unfit)
        setups = [replace(setup, warnings=(*setup.warnings, *warnings)) for setup in setups]
        setups = [
            with_prebuilt_facts(setup, caller.say) if trial else with_priors_and_hashes(history, setup)
            for setup in setups
        ]
        with history.transaction() as db:
            numbers, batch = store_sessions(history, setups, in_batch)
            if replaced:  # removed after the new hunts are stored, so that these get other numbers
                remove_session(db, replaced)
        return SessionAttempt(history, caller, numbers, batch, held).carry_out(dict(enumerate(setups)))


def with_priors_and_hashes(history: History, setup: SessionSetup) -> SessionSetup:
    """The setup of a new hunt, to whose settings prior knowledge from earlier hunts and the hashes of the recipes are
    added.
    """
    settings = with_prior_knowledge(history, setup.settings)
    run_hash, build_hash = setup.run_hash(setup.workload), setup.build_hash()
    return replace(setup, settings=replace(settings, run_hash=run_hash, build_hash=build_hash))


def with_prior_knowledge(history: History, settings: Settings) -> Settings:
    """The settings, to which two values from earlier hunts are added: the noise of a run, and the duration of a build
    relative to a run.

    The values are from hunts on the session's first host; if there are none, from hunts on other hosts of the same host
    class.
    """
    prior, by_host = settings.prior, settings_by_host_of_class(settings)
    all_costs = (read_typical_costs(history, on_one_host) for on_one_host in by_host)
    costs = next((costs for costs in all_costs if costs.build_seconds and costs.run_seconds), None)
    if costs and costs.build_seconds and costs.run_seconds:
        prior = replace(prior, build_cost=costs.build_seconds / costs.run_seconds)
    noises = (read_run_noise(history, on_one_host) for on_one_host in by_host)
    noise = next((noise for noise in noises if noise is not None), None)
    return replace(settings, prior=replace(prior, noise=noise))


def disk_warnings(history: History, setup: SessionSetup) -> tuple[Warned, ...]:
    """Warnings about disks that are too small for a hunt. The space that the hunt needs is estimated from the sizes of
    builds and data in earlier hunts.
    """
    expected = upkeep.expected_builds(len(setup.span.candidates), setup.settings.policy.max_builds)
    warnings = [
        warning
        for site in setup.hosts
        for warning in upkeep.disk_space_warnings(
            site.host, *latest_build_and_dataset_keys(history, replace(setup.settings, host=site.host.name)), expected
        )
    ]
    builds, _ = latest_build_and_dataset_keys(history, setup.settings)
    build_hosts = setup.common_build_hosts
    for build_host in build_hosts:
        warnings += upkeep.disk_space_warnings(build_host.host, builds, (), math.ceil(expected / len(build_hosts)))
    return tuple(warnings)


def store_sessions(
    history: History, setups: Sequence[SessionSetup], in_batch: tuple[int, int] | None
) -> tuple[list[int], Batch | None]:
    """Store new sessions in one transaction; several sessions are stored as a batch. Returns the numbers of the
    stored sessions, and the number of their batch.
    """
    at, folder = CLOCK.now(), str(Path.cwd())
    batch_entries = [in_batch] if in_batch else []
    with history.transaction():  # one transaction stores a hunt and its place in the batch
        if len(setups) > 1:
            planned = [PlannedHunt.of_begun_hunt(setup.settings, folder) for setup in setups]
            batch = begin_batch(history, "", planned, at)
            batch_entries = [(batch, index) for index in range(len(setups))]
        numbers = [history.begin_session(setup.settings, setup.start_event(0, False), at) for setup in setups]
        for batch_entry, number in zip(batch_entries, numbers, strict=False):
            update_batch_hunt(history, *batch_entry, hunt_id=number)
    return numbers, read_batch(history, batch) if len(setups) > 1 else None


def resume(
    session: int | str, batch: Batch | None, caller: CommandCallbacks, changes: Resumption
) -> tuple[HuntOutcome, ...]:
    """Continue a hunt (``session`` is its number), a trial (``session`` is its name), or the unfinished hunts of
    ``batch``, each from the last event of its log.

    If a hunt of a batch cannot be continued, the other hunts continue. If no hunt can be continued, raises the error of
    the first hunt: RunsNotComparable if new runs could not be compared with the earlier runs. Raises UsageError for a
    trial that is complete.
    """
    with ExitStack() as stack:
        history = stack.enter_context(closing(History.open(caller.history_path)))
        trial = history.trial(session) if isinstance(session, str) and not batch else None
        verdicts: list[Verdict | None] = [None]
        if batch:
            numbers = [hunt.hunt for hunt in batch.hunts if hunt.hunt is not None]
            verdicts = store_missing_verdicts(history, batch, numbers)
            if all(verdicts):
                return tuple(map(HuntOutcome, numbers, verdicts))
        else:
            numbers = [trial.id if trial else int(session)]
        for number in numbers:
            refuse_imported(history, number, "it cannot be resumed here", trial.name if trial else "")
        if trial and changes.added_limits:
            raise UsageError(
                f"{trial.name} has no limits, because it ends after a number of rounds.",
                "Omit --max-time, --max-builds and --max-runs.",
            )
        if trial and trial.state == "done":
            command = bisect_command("show", trial.name, history.path)
            raise UsageError(f"{trial.name} is complete, so nothing remains to be done.", f"See its result: {command}")
        requested = [changes.change_settings(history.settings(number)) for number in numbers]
        if changes.lease:
            events = (entry.event for entry in history.events(numbers[0]))
            started = (event for event in events if isinstance(event, SessionStarted))
            nodes = {facts.name: facts.settings.get("node", "") for event in started for facts in event.hosts}
            stack.enter_context(changes.lease(requested[0], {name: node for name, node in nodes.items() if node}))
        failures: dict[int, PerfBisectError] = {}
        if trial:
            setups = {0: stack.enter_context(resumed_trial(history, trial, requested[0], changes, caller))}
        elif requested[0].narrows:
            log = [entry.event for entry in history.events(numbers[0])]
            setups = {0: stack.enter_context(diff_search_setup(requested[0], caller.waiting, log))}
            with history.transaction():
                history.store_range_of_round(numbers[0], setups[0].start_event(numbers[0], True))
            check_unchanged(history, numbers[0], setups[0])
        else:
            setups, failures = resumed_hunts(history, numbers, verdicts, requested, caller.waiting)
        first = next(iter(setups.values()))
        held = stack.enter_context(lock_hosts(first.hosts, first.purpose, caller.waiting))
        if trial:
            setups = {0: with_prebuilt_facts(first, caller.say)}
            check_trial_unchanged(trial, setups[0])
        if batch:
            continue_batch(history, batch.id)
        limits = changes.reason_seconds, changes.added_limits
        return SessionAttempt(history, caller, numbers, batch, held, failures, *limits).carry_out(setups)


def store_missing_verdicts(history: History, batch: Batch, numbers: Sequence[int]) -> list[Verdict | None]:
    """Store the verdicts of the hunts' logs in the batch, because a session that was killed may not have stored them.

    Returns the verdict of each hunt; None for each hunt without a verdict.
    """
    verdicts = [verdict_of(history, number) for number in numbers]
    for index, verdict in enumerate(verdicts):
        if verdict:
            enter_batch_hunt_status(history, batch.id, index, exit_status(verdict))
    if all(verdicts):
        end_batch(history, batch.id, CLOCK.now())
    return verdicts


def resumed_hunts(
    history: History,
    numbers: Sequence[int],
    verdicts: Sequence[Verdict | None],
    requested: Sequence[Settings],
    waiting: WaitCallback | None,
) -> tuple[dict[int, SessionSetup], dict[int, PerfBisectError]]:
    """The setups of the hunts that can be continued, and the errors of the hunts that cannot. Both mappings have the
    indexes of the hunts in ``numbers`` as keys.

    A hunt with a verdict is in neither mapping. Raises the first error if no hunt can be continued.
    """
    failures: dict[int, PerfBisectError] = {}
    setups: dict[int, SessionSetup] = {}
    recipes: dict[int, Recipes] = {}  # index of a hunt → its recipes, if they can be loaded
    for index in sorted(range(len(requested)), key=lambda index: verdicts[index] is not None):  # first without verdict
        try:
            recipes[index] = load_requested(requested[index])
        except UsageError as error:
            if verdicts[index] is None:
                failures[index] = error
    open_hunts = [index for index in recipes if verdicts[index] is None]
    settings = [requested[index] for index in open_hunts]
    new_setups = SessionSetup.set_up(settings, waiting, [*recipes.values()]) if open_hunts else ()
    for index, setup in zip(open_hunts, new_setups, strict=True):
        try:
            check_unchanged(history, numbers[index], setup)
            setups[index] = setup
        except UsageError as error:
            failures[index] = error
    if not setups:
        raise failures[min(failures)]
    return setups, failures


def check_unchanged(history: History, hunt_id: int, setup: SessionSetup) -> None:
    """Raise RunsNotComparable if the range or the workload of a hunt has changed. A changed recipe of the builder
    raises no error, and its new hash is stored in the settings of the hunt.
    """
    if setup.span.candidates != history.candidates(hunt_id):
        raise RunsNotComparable(
            f"Hunt {hunt_id} cannot continue, because its range in {setup.settings.repository} has changed.",
            "The recipe's ignore list or the repository has changed. Begin a new hunt with: bisect run",
        )
    if setup.settings.run_hash not in ("", setup.run_hash(setup.workload)):
        raise RunsNotComparable(
            f"Hunt {hunt_id} cannot continue, because new runs would be made in another way, and could not be compared"
            " with the earlier runs.",
            f"Workload {setup.workload.suite}/{setup.workload.name} or its files, the settings of sysbench and"
            f" perf in the recipe of {setup.builder.name}, or the processors and the memory in hosts.toml have changed."
            " Undo the change, or begin a new hunt with: bisect run",
        )
    build_hash = setup.build_hash()
    if setup.settings.build_hash != build_hash:  # if builds exist already, the lab refuses to continue
        # The new hash is stored, so that later build failures are stored as failures of the changed recipe.
        history.update_settings(hunt_id, replace(history.settings(hunt_id), build_hash=build_hash))


@contextmanager
def resumed_trial(
    history: History, trial: SessionState, settings: Settings, changes: Resumption, caller: CommandCallbacks
) -> Iterator[SessionSetup]:
    """A context with the setup of a trial that is resumed. For a proof, the temporary commit without the culprit exists
    until the end of the ``with`` block.
    """
    request = trial.request
    if request.reverts:
        claim = claim_of(history, request.reverts.hunt)
        claim = replace(claim, settings=settings, together=tuple(map(changes.change_settings, claim.together)))
        with proof_setup(claim, request.rounds, request.runs, caller.waiting, caller.say) as setup:
            yield setup
        return
    builder = requested_builder(settings)
    names = settings.workload if request.shared else ",".join(work.name for work in request.works)
    workloads = requested_workloads(settings, builder, names)
    builds = (
        TrialBuild(build.name, build.commit, build.path, variant=build.variant, config=build.config)
        for build in request.subjects
    )
    subjects = [with_config(build, builder) for build in builds]
    design = TrialDesign(
        request.kind, subjects, workloads, request.rounds, request.runs, series=request.series, branch=request.branch
    )
    yield design.set_up(settings, caller.waiting)


def check_trial_unchanged(trial: SessionState, setup: SessionSetup) -> None:
    """Raise RunsNotComparable if the workloads, binaries or configurations of a trial have changed."""
    stored, present = trial.request, setup.request
    unchanged = [
        (old.commit, old.config_hash) == (new.commit, new.config_hash) and new.key in ("", old.key)
        for old, new in zip(stored.subjects, present.subjects, strict=True)
    ]
    if stored.works != present.works or not all(unchanged):
        raise RunsNotComparable(
            f"{trial.name} cannot continue, because new runs would be made in another way, and could not be compared with"
            " the earlier runs.",
            "Its workloads, their files, the binaries or a configuration have changed. Undo the change, or begin a new"
            " trial.",
        )
