"""`bisect resume` and `bisect why`: continue an interrupted session, or measure the reason for a verdict."""

from collections.abc import Mapping
from contextlib import AbstractContextManager, closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from perfbisect.cli.options.common import (
    CommandOptions,
    history_option,
    id_argument,
    options_command,
    session_options,
    view_options,
    waiting_option,
)
from perfbisect.cli.options.measurement import announce_and_read_recipes
from perfbisect.cli.options.param_types import ANY, COUNT, MINUTES
from perfbisect.cli.sessions import (
    carry_out_trial,
    hold_session_leases,
    hunt_differing_results,
    print_failures,
    print_trial_end,
    run_and_print_hunts,
    view_opener,
)
from perfbisect.core.domain.settings import Settings
from perfbisect.errors import UsageError
from perfbisect.report.command_line import bisect_command, command_to_compare
from perfbisect.store.batches import batch_of_one_process, is_in_batch, read_batch
from perfbisect.store.history import History
from perfbisect.ui.stream import note

if TYPE_CHECKING:
    from perfbisect.store.batches import Batch

UNFINISHED = ("interrupted", "failed")


@options_command()
@id_argument(ANY)
@click.option("--all", "everything", is_flag=True, help="Continue all interrupted hunts and all unfinished batches.")
@click.option("--max-time", type=MINUTES, help="Continue for this time at most, counted from now: 90s, 45m, 2h.")
@click.option("--max-builds", type=COUNT, help="Allow this number of additional builds.")
@click.option("--max-runs", type=COUNT, help="Allow this number of additional timed runs.")
@session_options
def resume(given: CommandOptions) -> int:
    """Continue a hunt or another session after an interruption or a failure. Finished work is not repeated.

    HUNT is the id of a hunt, a comparison, a proof, an A/A test or a batch. Default: the latest unfinished session.
    Hunts that share builds are continued together. If a hunt has reached its --max-time, --max-builds or --max-runs,
    `bisect resume 12 --max-time 1h` continues hunt 12 for one more hour.

    \b
    Examples:
      bisect resume        the latest session that was interrupted or failed
      bisect resume 12     hunt 12
      bisect resume c3     a comparison; p5 is a proof, n4 an A/A test
      bisect resume b3     hunts of several workloads that share their builds
      bisect resume --all  all interrupted hunts and batches, in parallel on several hosts
      bisect resume 12 --max-time 30m  a hunt that has reached its limit, for 30 more minutes
    """
    if given.everything:
        if given.hunt is not None or given.view == "json" or given.notify or added_limits(given):
            raise click.UsageError(
                "--all continues all hunts. Omit HUNT, --json, --notify, --max-time, --max-builds and --max-runs."
            )
        return resume_all(given.history, given.view)
    hunt = session_to_resume(given.history) if given.hunt is None else given.hunt
    return resume_session(given, hunt, added_limits(given))


def added_limits(given: CommandOptions) -> dict[str, float]:
    """How much more the hunt may spend: a map from the name of each limit in the hunt's policy to the additional
    amount.
    """
    asked = {"max_minutes": given.max_time, "max_builds": given.max_builds, "max_runs": given.max_runs}
    return {name: amount for name, amount in asked.items() if amount is not None}


def resume_session(given: CommandOptions, name: int | str, increases: Mapping[str, float] | None = None) -> int:
    """Continue the hunt, batch or trial with an id, and announce its recipes; returns the exit status."""
    from perfbisect.hunt import session
    from perfbisect.hunt.attempt import CommandCallbacks
    from perfbisect.hunt.notification import notifying
    from perfbisect.recipes.outputs import SeveralResults

    history, is_trial = given.history, isinstance(name, str) and not name.startswith("b")
    batch = None if is_trial else unfinished_shared_batch(name, history)

    def leased(settings: Settings, nodes: Mapping[str, str]) -> AbstractContextManager[None]:
        minutes = (increases or {}).get("max_minutes", settings.policy.max_minutes)
        return hold_session_leases(settings, history, nodes, 0 if batch else minutes)

    how = session.Resumption(announce_stored_recipes, leased, added_limits=increases or {})
    with notifying(given.notify, history, note) as notifier:
        if not is_trial:
            caller = CommandCallbacks(history, view_opener(history, given.view), given.waiting, notifier)
            try:
                return print_failures(session.resume(name, batch, caller, how), history)
            except SeveralResults as several:
                with closing(History.open(history)) as opened:
                    settings = opened.settings(int(name))
                    if is_in_batch(opened, int(name)):
                        raise
                with hold_session_leases(settings, history):
                    return hunt_differing_results(given, settings, several, caller)
        given.form, view = ("json", None) if given.view == "json" else ("", given.view)
        ended = carry_out_trial(lambda caller: session.resume(name, None, caller, how), given, notifier, view)
    return print_trial_end(ended, given)


def announce_stored_recipes(stored: Settings, **changed: Any) -> Settings:
    """Announce the recipes of a session that is continued; returns the settings of the session."""
    settings = replace(stored, **changed)
    announce_and_read_recipes(settings)
    return settings


@options_command()
@id_argument()
@click.option(
    "--max-time", type=MINUTES, default=0.0, help="Time limit. Default: a tenth of the time of the hunt, at least 90 s."
)
@waiting_option
@view_options
@history_option
def why(given: CommandOptions) -> int:
    """Measure why the culprit of HUNT (default: the latest) is slower. The verdict does not change.

    \b
    Examples:
      bisect why                   the latest hunt
      bisect why 12                hunt 12
      bisect why 12 --max-time 1h  with exact counts, which take long

    \b
    Measurements that the hunt already has are not repeated. Builds that were removed are built again.
    """
    from perfbisect.core.domain.orders import Inconclusive, explained_step
    from perfbisect.hunt import session
    from perfbisect.hunt.attempt import CommandCallbacks, verdict_of

    history = given.history
    with closing(History.open(history, read_only=True)) as opened:
        number = opened.latest_hunt() if given.hunt is None else given.hunt
        verdict, advice = verdict_of(opened, number), ""
        if isinstance(verdict, Inconclusive) and len(verdict.candidates) == 1:
            leader = opened.candidates(number)[verdict.candidates[0]][:10]
            beside = command_to_compare(opened.settings(number), f"{leader}^", leader)
            advice = f"The most probable commit is {leader}, without a proof. To compare this commit with its parent: {beside}"
    if verdict is None:
        text = f"Hunt {number} has no verdict, so there is no commit to explain."
        raise UsageError(text, f"To continue the hunt: {bisect_command('resume', str(number), history)}")
    if explained_step(verdict) is None:
        raise UsageError(f"The verdict of hunt {number} names no commit, so there is no commit to explain.", advice)
    how = session.Resumption(
        lambda stored: announce_stored_recipes(stored, explain=True),
        lambda settings, nodes: hold_session_leases(settings, history, nodes), 60 * given.max_time,
    )  # fmt: skip
    caller = CommandCallbacks(history, view_opener(history, given.view), given.waiting)
    return print_failures(session.resume(number, None, caller, how), history)


def session_to_resume(path: Path | None) -> int | str:
    """The user's latest hunt or trial that was interrupted or has failed; if there is none, the latest hunt."""
    with closing(History.open(path)) as opened:
        sessions = (*opened.hunts(), *opened.trials_except_fitness_checks())
        if unfinished := [entry for entry in sessions if entry.state in UNFINISHED and not entry.origin]:
            return max(unfinished, key=lambda open_session: open_session.number).id
        latest = opened.latest_hunt()
        note(
            "All sessions are finished. If measurements that explain the change of the latest hunt are missing, they are made now."
        )
        return latest


def unfinished_shared_batch(hunt: int | str, path: Path | None) -> "Batch | None":
    """The batch with the name ``hunt``, or the batch in which the hunt ``hunt`` shares builds with other hunts. The
    result is None if the hunt shares no builds, or if all hunts of its batch have verdicts. Raises UsageError if all
    hunts of the named batch have verdicts, or if `bisect batch` continues this batch.
    """
    from perfbisect.hunt.slurm import refuse_if_job_is_open

    with closing(History.open(path)) as opened:
        if isinstance(hunt, int):
            refuse_if_job_is_open(opened, hunt)
            found = batch_of_one_process(opened, hunt)
            return found if found and not found.ended else None
        batch = read_batch(opened, int(hunt[1:]))
    if batch.ended:
        text = f"All hunts of batch {hunt} have a verdict."
        raise UsageError(text, f"To see the hunts: {bisect_command('show', hunt, path)}")
    if not batch.is_one_process:
        problem = f"Batch {hunt} was begun from a file. Only `bisect batch` can continue the batch."
        raise UsageError(problem, f"To continue: {bisect_command('batch', batch.file, path)}")
    return batch


def resume_all(path: Path | None, view: str | None) -> int:
    """Continue all interrupted hunts of the user and all unfinished batches; returns the highest exit status."""
    from perfbisect.errors import USAGE
    from perfbisect.hunt.batch import VERDICTS, Task, build_sharing_key, tasks_of
    from perfbisect.store.batches import all_batches, continue_batch

    with closing(History.open(path)) as opened:
        tasks: list[Task] = []
        hunts_of_batches: set[int | None] = set()
        for batch in (entry for entry in all_batches(opened) if not (entry.ended or entry.running)):
            hunts_of_batches |= {hunt_of_batch.hunt for hunt_of_batch in batch.hunts}
            if batch.is_submitted:
                note(
                    f"Batch {batch.name} was submitted to Slurm. To see its jobs: {bisect_command('batch', batch.name, path)}"
                )
                continue
            places = [
                hunt_of_batch.number
                for hunt_of_batch in batch.hunts
                if hunt_of_batch.hunt or hunt_of_batch.status != USAGE
            ]  # a hunt with a usage error would fail again
            open_tasks = [
                task for task in tasks_of(batch, opened) if task.status not in VERDICTS and task.number in places
            ]
            if batch.is_one_process:  # resuming the first hunt of the batch resumes all hunts
                open_tasks = open_tasks[:1]
                for task in open_tasks:
                    task.batch = None
            elif open_tasks:
                continue_batch(opened, batch.id)
            tasks += open_tasks
        for hunt in opened.hunts():
            if hunt.state == "interrupted" and not hunt.origin and hunt.id not in hunts_of_batches:
                hosts = opened.settings(hunt.number).hosts
                key = build_sharing_key("", [hunt.number])
                tasks.append(Task(hunt.title, (), str(Path.cwd()), (hosts,), key, hunt=hunt.number))
        if not tasks:
            note("No hunt is interrupted.")
            return 0
        command = bisect_command("resume", "--all", path)
        return run_and_print_hunts(tasks, opened, path, command, view_opener(path, view)({}))
