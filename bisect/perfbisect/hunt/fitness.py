"""Finds the hosts that are unfit to measure, from their fitness checks (``hunt/trials/checks.py``).

A fitness check measures once a day whether a host is as fast and as quiet as before. A check is stored as an A/A test
whose settings have the name FITNESS_CHECK. The fitness of a host is computed from its checks when it is needed, and is
not stored. If the user accepts the present speed of a host as normal, the settings of the host's latest check are
renamed to ACCEPTED_CHECK; the acceptance is therefore exported and removed together with this check.
"""

from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from perfbisect.core.stats.fitness import Fitness, fitness_after_checks
from perfbisect.errors import UsageError
from perfbisect.store.connection import default_history_path, with_history
from perfbisect.store.history import History
from perfbisect.store.listing import ACCEPTED_CHECK
from perfbisect.store.prior_data import read_fitness_checks
from perfbisect.wording.trials import unfit_host

ALL_MACHINES = ("",)
FitnessByMachine = dict[str, list[Fitness]]  # machine → its fitness after each of its checks, oldest first


def fitness_by_machine(history_path: Path | None, machines: Iterable[str] = ALL_MACHINES) -> FitnessByMachine:
    """For each machine of ``machines`` (by default, each machine that was checked): the fitness after each of its
    checks, oldest check first.

    The checks are read from the history at ``history_path``. If there is no history, the result is empty.
    """
    if not (history_path or default_history_path()).exists():
        return {}
    with closing(History.open(history_path, read_only=True)) as history:
        checks_by_machine = [item for machine in machines for item in read_fitness_checks(history, machine).items()]
    return {machine: [*fitness_after_checks(checks)] for machine, checks in checks_by_machine}


def unfit_hosts(history_path: Path | None, machines: Iterable[str] = ALL_MACHINES) -> dict[str, str]:
    """For each unfit machine of ``machines`` (by default, of all machines): a sentence that states why the machine is
    unfit, and the command by which the user accepts the machine's present speed.
    """
    latest = {name: fitness[-1] for name, fitness in fitness_by_machine(history_path, machines).items()}
    option = with_history("", history_path)
    return {name: unfit_host(name, fitness.unfit, option) for name, fitness in latest.items() if fitness.unfit}


def accept_speeds_as_normal(history_path: Path | None, machines: Sequence[str]) -> None:
    """Accept the speed of machines in their latest fitness checks as their normal speed.

    Raises UsageError, and changes nothing, if one of the machines is fit.
    """
    latest = {machine: fitness[-1] for machine, fitness in fitness_by_machine(history_path, machines).items()}
    unfit = {machine: fitness.check.number for machine, fitness in latest.items() if fitness.unfit}
    if fit := [machine for machine in machines if machine not in unfit]:
        raise UsageError(
            f"{fit[0]} is not unfit, so --accept has no effect.",
            f"To see the unfit hosts: {with_history('bisect hosts', history_path)}",
        )
    with closing(History.open(history_path)) as history:
        for number in unfit.values():
            history.update_settings(number, replace(history.settings(number), name=ACCEPTED_CHECK))
