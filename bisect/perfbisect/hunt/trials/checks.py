"""Fitness checks: once a day, an A/A test with the same build and workload shows whether a host is as fast and as quiet
as before."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import replace
from pathlib import Path

from perfbisect.core.domain.metrics import is_noticed_by_users
from perfbisect.core.domain.settings import NOTHING_KNOWN, Pairing, Policy, Settings, TrialBuild, TrialType
from perfbisect.errors import Interrupted, PerfBisectError, UsageError, as_perfbisect_error
from perfbisect.host import leases
from perfbisect.host.lock import WaitCallback
from perfbisect.hunt.attempt import CommandCallbacks
from perfbisect.hunt.session import begin
from perfbisect.hunt.setup import SessionSetup
from perfbisect.hunt.trials.builds import hosts_as_builds
from perfbisect.hunt.trials.rounds import TrialDesign
from perfbisect.process import CLOCK
from perfbisect.recipes.requested import requested_builder, requested_workloads, with_overrides
from perfbisect.store.history import History
from perfbisect.store.listing import FITNESS_CHECK
from perfbisect.store.prior_data import read_fitness_checks

DUE = 20 * 3600.0  # seconds between two checks; less than a day, because a daily job is not on time to the minute
ROUNDS = 6  # rounds with one run each; then eight paired runs follow
LONGEST = {"time": 5.0, "warmup": 2.0}  # largest number of seconds of each setting


def check_due_hosts(
    names: Sequence[str],
    hosts_path: str | Path,
    caller: CommandCallbacks,
    lease: Callable[[str], AbstractContextManager[None]],
    like: Settings | None = None,
) -> bool:
    """Check the hosts whose fitness check is due, one after the other. Returns whether no check failed.

    If ``like`` is given, each host is checked with the settings ``like``, even if its check is not due. By default, a
    host is checked with the settings of its latest check, if the latest check was at least 20 hours ago. A host that
    was never checked is checked with the settings of the latest check of any host. ``lease`` returns a context manager
    that holds the lease of a host during the check. For each host, ``caller.say`` prints that the check begins, or the
    reason why the host is not checked, such as a lost connection. Raises Interrupted.
    """
    all_checked = True
    for name in names:
        try:
            with lease(name):
                if settings := check_settings_if_due(name, caller.history_path, like):
                    title = f"{settings.workload} of {settings.good}"
                    caller.say(f"Fitness check of host {name}, once a day: an A/A test of workload {title}.")
                    begin([fitness_check_setup(settings, name, hosts_path, caller.waiting)], caller)
                else:
                    caller.say(f"Host {name} was checked in the last {DUE / 3600:.0f} hours, so it is not checked now.")
        except Interrupted:
            raise
        except (PerfBisectError, OSError) as trouble:
            failure = as_perfbisect_error(trouble)
            caller.say(f"Host {name} is not checked: {failure} {failure.advice}".rstrip())
            all_checked = False
    return all_checked


def check_settings_if_due(name: str, path: Path | None, like: Settings | None) -> Settings | None:
    """The settings for the fitness check of a host; None if the check is not due. Raises UsageError if ``like`` is None
    and no host was checked before."""
    machine = leases.leased_machine(name).address if leases.is_leased_by_this_process(name) else name
    with closing(History.open(path)) as history:
        by_host = read_fitness_checks(history)
        if machine in by_host and not like and CLOCK.now() - by_host[machine][-1].at < DUE:
            return None
        earlier = by_host.get(machine) or [check for checks in by_host.values() for check in checks]
        if not (like or earlier):
            raise UsageError(
                "No host was checked before, so the workload of the check is not known.",
                "Give the id of an A/A test whose settings the check uses. Example: --like n4",
            )
        return like or history.settings(max(check.number for check in earlier))


def fitness_check_setup(
    like: Settings, host: str, hosts_path: str | Path, waiting: WaitCallback | None
) -> SessionSetup:
    """The setup of a host's fitness check: an A/A test of the commit that is good in the settings ``like``. Raises
    UsageError if the metric of ``like`` is not a speed."""
    if not is_noticed_by_users(like.metric):
        raise UsageError(
            f"{like.metric} does not show how fast a host is.",
            "Check the host with the settings of an A/A test in another metric.",
        )
    settings = replace(
        like, bad=like.good, bad_commit=like.good_commit, host=host, further_hosts=(), name=FITNESS_CHECK,
        hosts_path=str(hosts_path) or like.hosts_path, policy=Policy(pairing=Pairing.AUTO), prior=NOTHING_KNOWN,
        choose_metric=False, output=like.output or next(iter(like.outputs), None), outputs=(),
    )  # fmt: skip
    builder = requested_builder(settings)
    workloads = requested_workloads(settings, builder, settings.workload)
    [workload] = [with_overrides(entry, settings.overrides) for entry in workloads.values()]
    placeholders = [key for key in LONGEST if not workload.command or f"{{{key}}}" in str(workload.command)]
    shorter = {key: min(LONGEST[key], getattr(workload, key)) for key in placeholders}
    settings = replace(settings, overrides={**settings.overrides, **shorter})
    subjects = [TrialBuild(settings.good, settings.good_commit)]
    if builder.installed:
        settings, subjects = hosts_as_builds(settings, builder, min_hosts=1)
    return TrialDesign(TrialType.NOISE, subjects, workloads, ROUNDS, 1).set_up(settings, waiting)
