"""`bisect resume`: continue an interrupted session."""

from collections.abc import Mapping
from contextlib import AbstractContextManager, closing
from pathlib import Path
from typing import TYPE_CHECKING

import click

from perfbisect.cli.options.common import (
    history_option,
    id_argument,
    leasing_for,
    notify_option,
    open_view,
    say_failures,
    view_options,
    waiting_option,
)
from perfbisect.cli.options.measurement import announce_recipes, continued
from perfbisect.cli.options.param_types import ANY
from perfbisect.report.command_line import command_on
from perfbisect.ui.stream import note

if TYPE_CHECKING:
    from perfbisect.host.lock import WaitCallback
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
@id_argument(ANY)
@click.option(
    "--all", "everything", is_flag=True, help="Continue all interrupted hunts, and begin what is left of batches."
)
@waiting_option
@notify_option
@view_options
@history_option
def resume(
    hunt: int | str | None,
    everything: bool,
    history: Path | None,
    view: str | None,
    waiting: "WaitCallback | None",
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
    from perfbisect.hunt.attempt import Caller
    from perfbisect.hunt.notification import notifying

    def announced(stored: Settings) -> Settings:
        settings = continued(stored)
        announce_recipes(settings)
        return settings

    def leased(settings: Settings, nodes: Mapping[str, str]) -> AbstractContextManager[None]:
        return leasing_for(settings, history, nodes, 0 if batch else settings.policy.max_minutes)

    hunt, how = latest_unfinished(history) if hunt is None else hunt, session.Resumption(announced, leased)
    if isinstance(hunt, str) and not hunt.startswith("b"):
        from perfbisect.cli.trials import carried_out, conclude

        batch, name = None, hunt
        form, view = ("json", None) if view == "json" else ("", view)
        with notifying(notify, history, note) as begun:
            ended = carried_out(
                lambda opened, noted: session.resume(name, None, Caller(history, opened, waiting, noted, note), how),
                history, form, begun, view,
            )  # fmt: skip
        return conclude(ended, history, form)
    batch = unfinished_together(hunt, history)
    with notifying(notify, history, note) as begun:
        caller = Caller(history, open_view(history, view), waiting, begun)
        return say_failures(session.resume(hunt, batch, caller, how), history)


def latest_unfinished(given: Path | None) -> int | str:
    """The latest session of our own, hunt or trial, that was interrupted or has failed; without one the latest hunt."""
    from perfbisect.store.history import History

    with closing(History.open(given)) as opened:
        sessions = (*opened.hunts(), *opened.trials())
        if left := [one for one in sessions if one.state in UNFINISHED and not one.origin]:
            return max(left, key=lambda one: one.number).id
        latest = opened.latest()
        note("No session is unfinished: the latest hunt goes on with its reason, if anything of it is missing.")
        return latest


def unfinished_together(hunt: int | str, given: Path | None) -> "Batch | None":
    """The batch that is carried out together, of that name or with that hunt, unless all have verdicts.

    None for a hunt that goes on by itself. Raises UsageError for what is not gone on with here.
    """
    from perfbisect.errors import UsageError
    from perfbisect.hunt.submission import refuse_job
    from perfbisect.store.batches import batch_together, read_batch
    from perfbisect.store.history import History

    with closing(History.open(given)) as opened:
        if isinstance(hunt, int):
            refuse_job(opened, hunt)
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
    from perfbisect.cli.commands.batch import follow
    from perfbisect.errors import USAGE
    from perfbisect.hunt.batch import VERDICTS, Task, range_of, tasks_of
    from perfbisect.store.batches import all_batches, continue_batch
    from perfbisect.store.history import History

    with closing(History.open(given)) as opened:
        tasks: list[Task] = []
        known: set[int | None] = set()
        for batch in (each for each in all_batches(opened) if not (each.ended or each.running)):
            known |= {one.hunt for one in batch.hunts}
            if batch.submitted:
                note(f"{batch.name} is with Slurm: {command_on('batch', batch.name, given)}")
                continue
            places = [one.number for one in batch.hunts if one.hunt or one.status != USAGE]  # a mistake stays one
            left = [task for task in tasks_of(batch, opened) if task.status not in VERDICTS and task.place in places]
            if batch.together:  # its first hunt goes on with all
                left = left[:1]
                for task in left:
                    task.batch = None
            elif left:
                continue_batch(opened, batch.id)
            tasks += left
        for one in opened.hunts():
            if one.state == "interrupted" and not one.origin and one.id not in known:
                hosts = opened.settings(one.number).hosts
                tasks.append(
                    Task(one.title, (), str(Path.cwd()), (hosts,), range_of("", [one.number]), hunt=one.number)
                )
        if not tasks:
            note("No hunt is interrupted.")
            return 0
        return follow(tasks, opened, given, command_on("resume", "--all", given), plain=plain)
