"""`bisect nightly`: measures the tip of a branch once a night."""

import re
import sys
from contextlib import closing, suppress
from dataclasses import replace
from hashlib import sha256
from typing import TYPE_CHECKING

import click

from perfbisect.cli.options.common import FOLDER, CommandOptions, LongCommand, explain_option, options_command, say
from perfbisect.cli.options.completion import host_names, revision, several_workloads_option
from perfbisect.cli.options.measurement import (
    announce_build_system,
    command_options,
    effect_option,
    how_options,
    limit_options,
    pairing_option,
    requested_policy,
    requested_settings_of,
    round_options,
    trial_recipes,
    what_options,
)
from perfbisect.errors import ENVIRONMENT, INTERRUPTED, Interrupted, RunsNotComparable, UsageError
from perfbisect.ui.stream import note
from perfbisect.wording.text import printable

if TYPE_CHECKING:
    from perfbisect.core.domain.session_state import SessionState
    from perfbisect.hunt.attempt import CommandCallbacks
    from perfbisect.hunt.nightly import CombinedNightsComparison, Watch
    from perfbisect.store.history import History

COMMON = (
    "--build --run --rate --cost --builder --workload --repo --metric --host --min-effect --max-time --visits --wait"
    " --notify --page --history"
)


@options_command(LongCommand, common=COMMON)
@click.argument("branch", shell_complete=revision)
@several_workloads_option("Workloads, groups of workloads, or suites of the recipe.")
@command_options
@what_options
@click.option(
    "--host", default="local", show_default=True, metavar="NAME", shell_complete=host_names, help="Host to measure on.",
)  # fmt: skip
@effect_option("Smallest drop to search for  [default: 2%; 0.2% for counts of instructions]")
@limit_options
@explain_option
@how_options
@click.option(
    "--page",
    metavar="FOLDER",
    type=FOLDER,
    help="Write HTML pages to FOLDER: of the branch, and of each hunt that names a commit.",
)
@pairing_option
@round_options(5, 2, "Number of rounds. In each round, each build is started once (a visit).")
def nightly(given: CommandOptions) -> int:
    """Measure the tip of BRANCH together with earlier tips, and hunt each new drop.

    \b
    Examples:
      git fetch -q && bisect nightly origin/main --build 'make -j{jobs}' --run ./bench --rate 'ops/s: ([0-9.]+)'
      bisect nightly origin/main -b mysql -w point,write --repo ~/src/mysql --host spare --wait   a recipe
      bisect nightly main -b sqlite -w scan --repo ~/src/sqlite --notify ~/bin/mail --page ~/public/perf   reports
      bisect nightly main -b kv -w get --repo . --metric instructions/o --min-effect 0.5%   another metric

    \b
    For cron, a systemd timer or a CI job. Run `git fetch` before each night. To continue an interrupted night, repeat the
    command; finished work is not repeated. Nights form a series if BRANCH, repository, builder, variant,
    workloads, metric, host and history are the same.
    Exit status: 0 the night is complete, even if a tip cannot be built or a hunt names no commit; 3 usage
    or configuration error; 4 failure of the environment: repeat the command; 130 interrupted.
    """
    from perfbisect.cli.sessions import hold_session_leases, view_opener
    from perfbisect.hunt.attempt import CommandCallbacks
    from perfbisect.hunt.drop_hunts import hunt_all_drops
    from perfbisect.hunt.nightly import CombinedNightsComparison, night_lock
    from perfbisect.report.series import branch_sentences, night_sentences
    from perfbisect.store.history import History

    watch, history = watch_from_options(given), given.history
    with (
        night_lock(watch, history, wait=given.waiting is not None, say=note),
        hold_session_leases(watch.settings, history),
        closing(History.open(history)) as opened,
    ):
        nights = watch.comparable_nights(opened)
        watch = watch.with_recognised_output(opened, nights)
        check_host_daily(watch, given)
        trial, cut = measure_tonight(watch, nights, given)
        say(printable(f"The tip of {given.branch} is {watch.tip[:10]}, measured by {trial.name}:"))
        say("\n".join(night_sentences(trial)))
        if cut:
            note(f"{cut}\nOr repeat this command.")
            return INTERRUPTED

        def read() -> CombinedNightsComparison:
            watched = CombinedNightsComparison.read(opened, watch)
            publish_pages_and_culprits(opened, watched, given)
            return watched

        caller = CommandCallbacks(history, view_opener(history, None, sys.stderr), given.waiting, say=note)
        found, ended = hunt_all_drops(opened, read, caller, "To continue, repeat this command.")
    say("\n".join(branch_sentences(found.trial, found.line)))
    return 0 if ended else ENVIRONMENT


def watch_from_options(given: CommandOptions) -> "Watch":
    """The branch to watch, and how to measure it, as the options request. Raises UsageError for an unknown name, or if
    the options name no clone of the repository."""
    from perfbisect.hunt.nightly import Watch
    from perfbisect.hunt.resolve import resolve_commits

    policy = replace(requested_policy(given), layouts=True, incremental=True)
    settings, builder, works = trial_recipes(requested_settings_of(given, good="", bad="", policy=policy))
    if builder.installed or not settings.repository:
        text = "The repository is missing."
        raise UsageError(
            text, "Give your clone with --repo, and run `git fetch` in the clone before each `bisect nightly`."
        )
    settings, [tip] = resolve_commits(settings, builder, [given.branch])
    return Watch(given.branch, tip, settings, works)


def check_host_daily(watch: "Watch", given: CommandOptions) -> None:
    """Check once a day whether the host is as fast and as quiet as before. If no host was checked before, the check
    measures a build of tonight's tip."""
    from contextlib import nullcontext

    from perfbisect.cli.sessions import view_opener
    from perfbisect.core.domain.metrics import is_noticed_by_users
    from perfbisect.hunt.attempt import CommandCallbacks
    from perfbisect.hunt.fitness import fitness_by_machine
    from perfbisect.hunt.trials.checks import check_due_hosts

    history, settings = given.history, watch.settings
    checks = fitness_by_machine(history)
    if checks or is_noticed_by_users(settings.metric):
        like = None if checks else replace(settings, good=watch.tip[:10], good_commit=watch.tip)
        shown, host = view_opener(history, None, sys.stderr), settings.host
        caller = CommandCallbacks(history, shown, given.waiting, say=note)
        check_due_hosts([host], settings.hosts_path, caller, lambda _: nullcontext(), like)


def measure_tonight(
    watch: "Watch", nights: "list[SessionState]", given: CommandOptions
) -> "tuple[SessionState, Interrupted | None]":
    """Begin or continue tonight's comparison. Returns the comparison, and the exception that interrupted the
    comparison, or None."""
    from perfbisect.cli.sessions import carry_out_trial
    from perfbisect.hunt import session
    from perfbisect.hunt.notification import Notifier

    tonight = next((night for night in reversed(nights) if night.request.subjects[-1].commit == watch.tip), None)
    if tonight and tonight.state == "done":
        return tonight, None
    announce_build_system(watch.settings)
    quiet = CommandOptions(history=given.history, waiting=given.waiting, form="")

    def follow(caller: "CommandCallbacks") -> object:
        if tonight:
            with suppress(RunsNotComparable):  # raised if the workload or the builds have changed: a new night begins
                return session.resume(tonight.name, None, caller, session.Resumption(lambda stored: stored))
        return session.begin([watch.plan(nights, given.visits, given.runs, given.waiting)], caller)

    return carry_out_trial(follow, quiet, Notifier((), given.history, note))


def branch_page_name(branch: str) -> str:
    """The file name of a branch's page, unique to the branch: a/b and a-b have different pages."""
    plain = re.sub(r"[^A-Za-z0-9_-]+", "-", branch)
    is_unchanged = plain == branch and not branch.startswith("hunt-")
    return f"{plain}{'' if is_unchanged else f'-{sha256(branch.encode()).hexdigest()[:6]}'}.html"


def publish_pages_and_culprits(opened: "History", watched: "CombinedNightsComparison", given: CommandOptions) -> None:
    """Write the HTML pages, and run the command of --notify once for each culprit. If the command fails for a culprit,
    the next night runs the command for this culprit again.
    """
    from perfbisect.cli.commands.report import page_name, session_page_html, write_and_print_path
    from perfbisect.hunt.notification import command_failure
    from perfbisect.report.page.pages import session_page
    from perfbisect.report.published import session_end_json
    from perfbisect.report.series import branch_document

    index, folder = branch_page_name(watched.tonight.request.branch), given.page
    named = [hunt for hunt in watched.trial.hunts if hunt.culprit]
    if folder:
        document = branch_document(watched.trial, watched.line, page_name)
        write_and_print_path(folder / index, session_page(document), quiet=True)
    settings = {hunt.hunt: opened.settings(hunt.hunt) for hunt in named}
    announced = {hunt.culprit for hunt in named if settings[hunt.hunt].noticed}
    for hunt in named:
        page_file = (folder / page_name(hunt.hunt)).absolute() if folder else None
        if page_file and not (page_file.exists() and settings[hunt.hunt].noticed):
            write_and_print_path(page_file, session_page_html(opened, hunt.hunt, given.history, index), quiet=True)
        if settings[hunt.hunt].noticed:
            continue
        if given.notify and hunt.culprit not in announced:
            data = session_end_json(opened, str(hunt.hunt), page=str(page_file or ""))
            if data and (reason := command_failure(given.notify, data)):
                failure = f"for hunt {hunt.hunt}, the command of --notify {reason}"
                note(f"warning: {failure}; the next nightly run repeats the command")
                continue
        announced.add(hunt.culprit)
        opened.update_settings(hunt.hunt, replace(settings[hunt.hunt], noticed=True))
