"""`bisect resume`: continue an interrupted hunt."""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path

import click

from perfbisect.cli.options.common import history_option
from perfbisect.cli.options.completion import hunt_number
from perfbisect.cli.options.leases import leasing
from perfbisect.cli.options.notify import notify_option
from perfbisect.cli.options.param_types import HUNT
from perfbisect.cli.options.places import announce_recipes, continued
from perfbisect.cli.options.views import open_view, view_options
from perfbisect.cli.options.wait import wait_callback, wait_option
from perfbisect.ui.stream import note

EPILOG = """\b
Examples:
  bisect resume        the latest hunt
  bisect resume 12
  bisect resume --all  all interrupted hunts and batches, as many at once as their hosts allow
"""


@click.command(epilog=EPILOG)
@click.argument("hunt", type=HUNT, required=False, shell_complete=hunt_number)
@click.option(
    "--all", "everything", is_flag=True, help="Continue all interrupted hunts, and begin what is left of batches."
)
@wait_option
@notify_option
@view_options
@history_option
def resume(
    hunt: int | None,
    everything: bool,
    history: Path | None,
    view: str | None,
    wait: bool,
    notify: tuple[str, ...],
) -> int:
    """Continue HUNT (default: the latest) after an interruption or a failure, without repeating finished work."""
    if everything:
        if hunt is not None or view == "json" or notify:
            raise click.UsageError("--all continues all hunts: leave out HUNT, --json and --notify.")
        return resume_all(history, plain=view == "plain")
    from perfbisect.core.domain.settings import Settings
    from perfbisect.hunt import session
    from perfbisect.hunt.leased_hosts import purpose_of
    from perfbisect.hunt.notification import notifying
    from perfbisect.wording.verdicts import exit_status

    def announced(stored: Settings) -> Settings:
        settings = continued(stored)
        announce_recipes(settings)
        return settings

    def leased(settings: Settings, nodes: Mapping[str, str]) -> AbstractContextManager[None]:
        return leasing(settings.hosts, settings.hosts_path, nodes, purpose=purpose_of(settings))

    with notifying(notify, history, note) as begun:
        shown = open_view(history, view)
        verdict = session.resume(hunt, history, shown, wait_callback(wait), announced, begun, leased)
    return exit_status(verdict)


def resume_all(given: Path | None, *, plain: bool) -> int:
    """Continue all interrupted hunts of our own and all unfinished batches; returns the highest exit status."""
    import shlex
    from contextlib import closing

    from perfbisect.cli.batches import VERDICTS, follow, open_batch_view, tasks_of
    from perfbisect.hunt.batches.carry_out import Task, range_of
    from perfbisect.store.batches import continue_batch, unfinished_batches
    from perfbisect.store.history import History

    with closing(History.open(given)) as opened:
        tasks = []
        for batch in unfinished_batches(opened):
            continue_batch(opened, batch.id)
            tasks += [task for task in tasks_of(batch, opened) if task.status not in VERDICTS]
        known = {task.hunt for task in tasks}
        for one in opened.hunts():
            if one.state == "interrupted" and not one.origin and one.id not in known:
                hosts = opened.settings(one.id).hosts
                title = f"{one.builder} {one.workload} {one.good}..{one.bad}"
                tasks.append(Task(0, title, (), str(Path.cwd()), (hosts,), range_of("", [one.id]), hunt=one.id))
        for number, task in enumerate(tasks):
            task.number = number
        if not tasks:
            note("No hunt is interrupted.")
            return 0
        again = "bisect resume --all" + (f" --history {shlex.quote(str(given))}" if given else "")
        return follow(tasks, opened, given, open_batch_view(opened, given, plain), again)
