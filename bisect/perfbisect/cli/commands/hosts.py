"""`bisect hosts` lists the hosts and their fitness, checks hosts, and declares an unfit host fit."""

import math
import sys
from collections.abc import Collection, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import click

from perfbisect.cli.options.common import CommandOptions, history_option, options_command, output_width, say
from perfbisect.cli.options.completion import host_names
from perfbisect.cli.options.measurement import inventory_option
from perfbisect.cli.options.param_types import SessionIdParam
from perfbisect.cli.sessions import is_no_screen, leases_with_messages, view_opener
from perfbisect.ui.stream import note
from perfbisect.wording.text import printable

if TYPE_CHECKING:
    from perfbisect.core.domain.settings import Settings
    from perfbisect.core.stats.fitness import Fitness
    from perfbisect.hunt.fitness import FitnessByMachine


HEAD = ("host", "address", "summary", "checked", "level", "noise", "history", "")
ZEROS = (  # a comment above the settings of a host
    "# port 0: as in ~/.ssh/config, or 22. jobs 0: one compile job per core. memory 0 (MiB): all of the host's memory.\n"
)
SHOWN = 20  # most checks that the small line of a host shows
LOW, HIGH = 0.9, 1.1  # levels at the bottom and the top of the small line, relative to the usual level
LEASED = ":"  # in the name of a leased host


@options_command()
@click.argument("names", metavar="[NAME]...", nargs=-1, shell_complete=host_names)
@click.option(
    "--show", metavar="NAME", shell_complete=host_names, help="Print all settings of a host or a lease as TOML."
)
@click.option(
    "--check", is_flag=True, help="Check the speed and the noise of the hosts, with one build in one workload."
)
@click.option(
    "--like", metavar="ID", type=SessionIdParam("n"),
    help="With --check: session whose build and workload this check and later checks measure: an A/A test, such as n4, or a hunt, such as 12 (its good end). Default: as in the last check.",
)  # fmt: skip
@click.option(
    "--accept",
    is_flag=True,
    help="Declare unfit hosts fit: their present speed becomes the speed that later checks expect.",
)
@inventory_option
@history_option
def hosts(given: CommandOptions) -> int:
    """List the hosts, their fitness to measure, and the machines that are leased now.

    \b
    Examples:
      bisect hosts                               list the hosts
      bisect hosts --show local                  print the settings of host local
      bisect hosts --check c8-1 c8-2 --like n4   check two hosts with the build and workload of A/A test n4
      bisect hosts --check                       each day: check all hosts that were checked before
      bisect hosts --accept c8-1                 declare an unfit host fit

    \b
    A host becomes unfit if two successive checks find it 5 % slower than in its earlier checks (their
    median), or twice as noisy. A batch with `any-host` does not choose an unfit host, and no unfit machine is
    leased.
    Exit status of --check: 4 if a host is unfit, or if a named host could not be checked.
    """
    from perfbisect.errors import ENVIRONMENT
    from perfbisect.host.leases import records_with_running
    from perfbisect.hunt.fitness import accept_speeds_as_normal
    from perfbisect.recipes.inventory import Inventory, LeaseEntry, load_host, load_hosts, load_leases
    from perfbisect.recipes.toml import to_toml
    from perfbisect.store.connection import with_history
    from perfbisect.wording.table import columns, table
    from perfbisect.wording.trials import unfit_host

    show, check, names, history, hosts = given.show, given.check, given.names, given.history, given.hosts or ""
    actions = bool(show) + check + given.accept
    if given.like and not check:
        raise click.UsageError(f"--like works only with --check: bisect hosts --check [NAME] --like {given.like}")
    if actions > 1 or bool(names) > check + given.accept or given.accept > bool(names):
        only_one = "Give only one of --show NAME, --check [NAME…] and --accept NAME…."
        without = "Host names need --check or --accept." if names else "--accept needs the name of a host."
        raise click.UsageError(only_one if actions > 1 or show else without)
    leases = {lease.name: lease for lease in load_leases(hosts)}
    if show:
        entry = leases.get(show) or load_host(show, hosts)
        shown = Inventory(leases={show: entry}) if isinstance(entry, LeaseEntry) else Inventory(hosts={show: entry})
        zeros = "" if isinstance(entry, LeaseEntry) else ZEROS
        say(f"# {entry.file}\n{zeros}{to_toml(shown)}")
        return 0
    if given.accept:
        accept_speeds_as_normal(history, names)
    entries = load_hosts(hosts)
    rows = {entry.name: (entry.through[0] if entry.through else entry.address, entry.summary) for entry in entries}
    every = make_due_checks(rows, given) if check else True
    checks_of = checks_by_machine(history, rows)
    rows |= {name: ("leased", course[-1].check.host) for name, course in checks_of.items() if name not in rows}
    rows |= {f"{lease_entry.name}:FEATURE": ("leased", lease_entry.summary) for lease_entry in leases.values()}
    cells = [[*map(printable, (name, *row, *fitness_cells(checks_of.get(name, []))))] for name, row in rows.items()]
    if checks_of:
        lines = table(HEAD, cells, right=("level", "noise"), width=output_width(), drop=("summary", "address"))
    else:
        lines = columns([HEAD[:3], *(row[:3] for row in cells)])
    say("\n".join(lines))
    for record, runs in records_with_running():
        say(
            f"Leased: {printable(str(record))}{'' if runs else '. Its session has ended. To release the machine: bisect gc'}"
        )
    option = with_history("", history)
    unfit = [unfit_host(name, course[-1].unfit, option) for name, course in checks_of.items() if course[-1].unfit]
    if unfit:
        note("\n".join(map(printable, unfit)))
    return ENVIRONMENT if check and (unfit or (names and not every)) else 0


def checks_by_machine(history: Path | None, hosts: Collection[str]) -> "FitnessByMachine":
    """For each host among ``hosts``, and for each machine that was leased, the list of its fitness checks."""
    from perfbisect.hunt.fitness import fitness_by_machine

    courses = fitness_by_machine(history)
    return {name: course for name, course in courses.items() if name in hosts or LEASED in course[-1].check.host}


def fitness_cells(checks: "Sequence[Fitness]") -> tuple[str, ...]:
    """The cells that follow the summary of a host in a table, with the results of the host's fitness checks."""
    from perfbisect.wording.glyphs import glyphs_for, sparkline
    from perfbisect.wording.quantities import MISSING, moment
    from perfbisect.wording.trials import why_unfit

    if not checks:
        return ("",) * (len(HEAD) - 3)
    now, shown = checks[-1], checks[-1].check.facts
    alike = [fitness.check.facts.level for fitness in checks if fitness.check.facts.identity == shown.identity]
    usual = shown.level - math.log(now.level) if now.level else median(alike)
    new = "new baseline" + " for another build" * (len(alike) < len(checks))
    heights = [math.exp(level - usual) - LOW for level in alike]
    return (
        moment(now.check.at)[:10],
        f"{100 * now.level:.1f} %" if now.level else MISSING,
        MISSING if shown.noise is None else f"{100 * shown.noise:.2f} %",
        sparkline(heights, HIGH - LOW, SHOWN, glyphs_for(sys.stdout.encoding)),
        f"unfit: {why_unfit(now.unfit)}" if now.unfit else "" if now.level else new,
    )


def make_due_checks(listed: Collection[str], given: CommandOptions) -> bool:
    """Check the named hosts or, if no host is named, those ``listed`` hosts that were checked before, if their next
    check is due (see ``check_due_hosts``).
    """
    from perfbisect.hunt.attempt import CommandCallbacks, refuse_imported
    from perfbisect.hunt.trials.checks import check_due_hosts
    from perfbisect.recipes.inventory import expanded_names
    from perfbisect.store.history import History

    names, like, history, hosts = given.names, given.like, given.history, given.hosts or ""
    checked_before = dict.fromkeys(course[-1].check.host for course in checks_by_machine(history, listed).values())
    if not (names or checked_before):
        raise click.UsageError(
            "No host was checked before. Give the names of the hosts, and the A/A test or hunt that has the build to measure:"
            " bisect hosts --check NAME --like ID"
        )
    settings: Settings | None = None
    if like:
        with closing(History.open(history, read_only=True)) as opened:
            number = opened.trial(like).id if isinstance(like, str) else like
            refuse_imported(opened, number, "no host is checked with its build", str(like))
            settings = opened.settings(number)
    caller = CommandCallbacks(history, view_opener(history, None, sys.stderr, quiet=is_no_screen(sys.stderr)), say=note)
    lease = partial(leases_with_messages, hosts_path=hosts, purpose="bisect hosts --check")
    return check_due_hosts(expanded_names(names or checked_before), hosts, caller, lambda name: lease([name]), settings)
