"""`bisect compare --hunt`: the hunts for the drops of a comparison, what they are shown by, and the table at the end."""

import re
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from perfbisect.cli.options.common import say
from perfbisect.cli.options.forms import print_comparison
from perfbisect.cli.options.leases import leasing
from perfbisect.cli.options.views import open_view
from perfbisect.cli.options.wait import wait_callback
from perfbisect.errors import ENVIRONMENT
from perfbisect.ui.stream import note
from perfbisect.wording.text import printable

if TYPE_CHECKING:
    from perfbisect.host.lock import WaitCallback
    from perfbisect.hunt.trials.drop_hunts import DropOptions, Views
    from perfbisect.hunt.watching import View

OF_HUNTS = {
    "builds", "hunt", "min_effect", "explain", "dry_run", "wait", "notify", "history", "as_json", "as_csv", "as_tsv", "markdown",
}  # fmt: skip
UNNAMED = 2  # exit status where the hunt for a drop names no commit


def stored_name(builds: Sequence[str], workload: str) -> str:
    """The comparison that `bisect compare c3 --hunt` is about; "" for builds that are to be compared."""
    return builds[0] if len(builds) == 1 and not workload and re.fullmatch(r"c\d{1,15}", builds[0]) else ""


def about_stored(builds: Sequence[str]) -> str:
    """What is said where a comparison that is stored was probably meant, as builds lack what is needed to measure them."""
    if name := stored_name(builds[:1], ""):
        return f" {name} in the history is printed by `bisect show {name}`; `bisect compare {name} --hunt` alone hunts its drops."
    return ""


def refuse_further(name: str, ctx: click.Context) -> None:
    """Raise UsageError for options that a stored comparison has decided."""
    for parameter in ctx.command.params:
        given = ctx.get_parameter_source(parameter.name or "") is ParameterSource.COMMANDLINE
        if given and parameter.name not in OF_HUNTS:
            raise click.UsageError(f"{parameter.opts[0]} has no effect: {name} keeps how it was measured.")


def hunt_stored(
    name: str, history: Path | None, form: str, how: "DropOptions", *, wait: bool, dry_run: bool, notify: Sequence[str]
) -> int:
    """Hunt the drops of a stored comparison, or say what that will cost; returns the exit status."""
    from perfbisect.hunt.leased_hosts import purpose_of
    from perfbisect.hunt.notification import notifying
    from perfbisect.hunt.trials.drop_costs import cost_of_hunts
    from perfbisect.hunt.trials.drop_hunts import read_comparison
    from perfbisect.store.history import History

    with closing(History.open(history, read_only=True)) as opened:
        if dry_run:
            say("\n".join(cost_of_hunts(opened, name, how)))
            return 0
        settings = read_comparison(opened, name, how).settings
    lease = leasing(settings.hosts, settings.hosts_path, purpose=purpose_of(settings))
    with notifying(notify, history, note) as begun, lease:
        begun(name)
        return hunt_and_print(name, history, form, wait_callback(wait), how)


def hunt_and_print(
    name: str, history: Path | None, form: str, waiting: "WaitCallback | None", how: "DropOptions"
) -> int:
    """Hunt the drops of a comparison, and print it with the culprits; returns the exit status."""
    from perfbisect.hunt.trials.drop_hunts import OPEN, hunt_drops
    from perfbisect.store.history import History

    hunts = hunt_drops(name, history, views(history, form), waiting, how)
    if not hunts:
        note(f"No drop of {name} is real and large enough to be hunted.")
    with closing(History.open(history, read_only=True)) as opened:
        print_comparison(opened.trial(name), form, detailed=False)
    if any(hunt is None or hunt.state in OPEN for hunt in hunts):
        return ENVIRONMENT
    return 0 if all(hunt and hunt.culprit for hunt in hunts) else UNNAMED


def views(history: Path | None, form: str) -> "Views":
    """What shows the hunts: as those of `bisect run`; where standard output is for the table alone, lines on standard error."""
    from perfbisect.hunt.trials.drop_hunts import Views
    from perfbisect.report.command_line import command_to_show
    from perfbisect.ui.plain import PlainLines

    def report(hunt: int) -> str:
        return command_to_show(str(hunt), history)

    def opened(titles: Mapping[int, str]) -> "View":
        return PlainLines(sys.stderr, titles, report) if form else open_view(history, None)(titles)

    return Views(opened, lambda text: note(printable(text)))
