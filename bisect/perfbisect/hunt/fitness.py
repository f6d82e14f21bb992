"""Which hosts are unfit, by their fitness checks (``hunt/trials/checks.py``).

A check is an A/A like any other, whose settings have the name FITNESS_CHECK. What is known of a host is read from these
trials, and nothing else is stored. To accept the present level of a host is to call its latest check ACCEPTED_CHECK: so
what is accepted is said where it was measured, and is exported and removed with it.
"""

from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from perfbisect.core.stats.fitness import Fitness, fitness_after_checks
from perfbisect.errors import UsageError
from perfbisect.store.connection import default_place
from perfbisect.store.history import History
from perfbisect.store.listing import ACCEPTED_CHECK
from perfbisect.store.prior_data import read_checks
from perfbisect.wording.trials import unfit_host

Courses = dict[str, list[Fitness]]  # of each machine that was checked: after each of its checks, oldest first


def courses(path: Path | None, machines: Iterable[str] = ("",)) -> Courses:
    """What checks have shown of all machines, or of these, by the history at ``path``, which need not exist."""
    if not (path or default_place()).exists():
        return {}
    with closing(History.open(path, read_only=True)) as history:
        known = [each for machine in machines for each in read_checks(history, machine).items()]
    return {machine: [*fitness_after_checks(checks)] for machine, checks in known}


def unfit_hosts(path: Path | None, machines: Iterable[str] = ("",)) -> dict[str, str]:
    """Those of them that are unfit, each with a sentence: why, and how it is taken back."""
    return {name: unfit_host(name, each[-1].unfit) for name, each in courses(path, machines).items() if each[-1].unfit}


def accept(path: Path | None, machines: Sequence[str]) -> None:
    """Take what the latest check of machines has shown for usual from now on.

    Raises UsageError for one that is not unfit; then none is accepted.
    """
    unfit = {machine: each[-1].check.number for machine, each in courses(path, machines).items() if each[-1].unfit}
    if fit := [machine for machine in machines if machine not in unfit]:
        raise UsageError(f"{fit[0]} is not unfit: there is nothing to accept.", "See what is: bisect hosts")
    with closing(History.open(path)) as history:
        for number in unfit.values():
            history.update_settings(number, replace(history.settings(number), name=ACCEPTED_CHECK))
