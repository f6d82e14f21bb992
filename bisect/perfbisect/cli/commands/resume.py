"""`bisect resume`: continue an interrupted session."""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from perfbisect.cli.options.common import (
    history_option,
    leasing,
    notify_option,
    open_view,
    say_failures,
    view_options,
    wait_callback,
    wait_option,
)
from perfbisect.cli.options.completion import hunt_number
from perfbisect.cli.options.measurement import announce_recipes, continued
from perfbisect.cli.options.param_types import Which
from perfbisect.report.command_line import command_on
from perfbisect.ui.stream import note

if TYPE_CHECKING:
    from perfbisect.store.batches import Batch

UNFINISHED = ("interrupted", "failed")

EPILOG = """\b
Examples:
  bisect resume        the latest session that was interrupted or has failed
  bisect resume 12
  bisect resume c3     a comparison; so are proofs (p5) and A/As (n4)
  bisect resume b3     hunts of several workloads, which share their builds
  bisect resume --all  all interrupted hunts and batches, as many at once as their hosts allow
"""


@click.command(epilog=EPILOG)
@click.argument("hunt", type=Which(batches=True), required=False, shell_complete=hunt_number)
@click.option(
    "--all", "everything", is_flag=True, help="Continue all interrupted hunts, and begin what is left of batches."
)
@wait_option
@notify_option
@view_options
@history_option
def resume(
    hunt: int | str | None,
    everything: bool,
    history: Path | None,
    view: str | None,
    wait: bool,
    notify: tuple[str, ...],
) -> int:
    """Continue HUNT (default: the latest unfinished session) after an interruption or a failure, without repeating finished work.

    A hunt that was begun with others, for several workloads, goes on with them.
    """
    if everything:
        if hunt is not None or view == "json" or notify:
            raise click.UsageError("--all continues all hunts: leave out HUNT, --json and --notify.")
        return resume_all(history, plain=view == "plain")
    from perfbisect.core.domain.settings import Settings
    from perfbisect.hunt import session
    from perfbisect.hunt.leased_hosts import purpose_of
    from perfbisect.hunt.notification import notifying

    def announced(stored: Settings) -> Settings:
        settings = continued(stored)
        announce_recipes(settings)
        return settings

    def leased(settings: Settings, nodes: Mapping[str, str]) -> AbstractContextManager[None]:
        minutes = 0 if batch else settings.policy.max_minutes
        return leasing(settings.hosts, settings.hosts_path, nodes, purpose=purpose_of(settings), minutes=minutes)

    hunt = latest_unfinished(history) if hunt is None else hunt
    if isinstance(hunt, str) and not hunt.startswith("b"):
        from perfbisect.cli.trials import carried_out, conclude
        from perfbisect.hunt.trials import session as trials

        batch, name, waiting = None, hunt, wait_callback(wait)
        with notifying(notify, history, note) as begun:
            trial, cut = carried_out(
                lambda opened, noted: trials.resume(name, history, opened, waiting, announced, noted, note, leased),
                history, begun, quiet=view == "json", view=None if view == "json" else view,
            )  # fmt: skip
        return conclude(trial, cut, history, "json" if view == "json" else "")
    batch = unfinished_together(hunt, history)
    with notifying(notify, history, note) as begun:
        number, shown = hunt if isinstance(hunt, int) else 0, open_view(history, view)
        outcomes = session.resume(number, batch, history, shown, wait_callback(wait), announced, begun, leased)
        return say_failures(outcomes, history)


def latest_unfinished(given: Path | None) -> int | str:
    """The latest session of our own, hunt or trial, that was interrupted or has failed; without one the latest hunt."""
    from contextlib import closing

    from perfbisect.store.history import History

    with closing(History.open(given)) as opened:
        known = [(one.id, one) for one in opened.hunts()] + [(int(one.id[1:]), one) for one in opened.trials()]
        left = [(number, one.id) for number, one in known if one.state in UNFINISHED and not one.origin]
        return max(left)[1] if left else opened.latest()


def unfinished_together(hunt: int | str, given: Path | None) -> "Batch | None":
    """The batch that is carried out together, of that name or with that hunt, unless all have verdicts.

    None for a hunt that goes on by itself. Raises UsageError for what is not gone on with here.
    """
    from contextlib import closing

    from perfbisect.errors import UsageError
    from perfbisect.store.batches import batch_together, read_batch
    from perfbisect.store.history import History

    with closing(History.open(given)) as opened:
        if isinstance(hunt, int):
            found = batch_together(opened, hunt)
            return found if found and not found.ended else None
        batch = read_batch(opened, int(hunt[1:]))
    if batch.ended:
        raise UsageError(f"All hunts of {hunt} have a verdict.", f"See them: {command_on('show', hunt, given)}")
    if not batch.together:
        raise UsageError(f"{hunt} has hunts of a file.", f"Go on with: {command_on('batch', batch.file, given)}")
    return batch


def resume_all(given: Path | None, *, plain: bool) -> int:
    """Continue all interrupted hunts of our own and all unfinished batches; returns the highest exit status."""
    from contextlib import closing

    from perfbisect.cli.commands.batch import follow
    from perfbisect.hunt.batch import VERDICTS, Task, range_of, tasks_of
    from perfbisect.store.batches import continue_batch, unfinished_batches
    from perfbisect.store.history import History

    with closing(History.open(given)) as opened:
        tasks: list[Task] = []
        known: set[int | None] = set()
        for batch in unfinished_batches(opened):
            known |= {one.hunt for one in batch.hunts}
            if batch.together:  # its first hunt goes on with all
                tasks += [task for task in tasks_of(batch, opened) if task.status not in VERDICTS][:1]
                for task in tasks[-1:]:
                    task.batch = None
                continue
            continue_batch(opened, batch.id)
            tasks += [task for task in tasks_of(batch, opened) if task.status not in VERDICTS]
        for one in opened.hunts():
            if one.state == "interrupted" and not one.origin and one.id not in known:
                hosts = opened.settings(one.id).hosts
                tasks.append(Task(0, one.title, (), str(Path.cwd()), (hosts,), range_of("", [one.id]), hunt=one.id))
        for number, task in enumerate(tasks):
            task.number = number
        if not tasks:
            note("No hunt is interrupted.")
            return 0
        again = command_on("resume", "--all", given)
        return follow(tasks, opened, given, again, plain=plain)
