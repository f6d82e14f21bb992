"""`bisect run` finds the commit that changed the speed between two revisions. `bisect steps` finds such revisions in a
time series that another tool measured.
"""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from perfbisect.cli.options.common import (
    EXISTING,
    CommandOptions,
    LongCommand,
    explain_option,
    json_option,
    options_command,
    say,
    say_object,
    session_options,
    show_clone_progress,
)
from perfbisect.cli.options.completion import revision, several_workloads_option
from perfbisect.cli.options.measurement import (
    announce_and_read_recipes,
    announce_build_system,
    command_options,
    hosts_option,
    how_options,
    pairing_option,
    policy_options,
    requested_policy,
    requested_settings_of,
    what_options,
)
from perfbisect.cli.options.param_types import FACTOR, MEMBER, NAME, SUSPECT
from perfbisect.core.domain.settings import AUTO, ChangeDirection, Settings
from perfbisect.ui.stream import note

if TYPE_CHECKING:
    from perfbisect.report.series import ImportedLine

COMMON = (
    "--build --run --rate --cost --builder --workload --repo --metric --host --direction --min-effect --all --max-time --skip"
    " --explain --dry-run --plain --json"
)


@options_command(LongCommand, common=COMMON)
@click.argument("good", shell_complete=revision)
@click.argument("bad", required=False, shell_complete=revision)
@command_options
@several_workloads_option("Workloads or groups of workloads (`bisect workloads`). All workloads use the same builds.")
@what_options
@hosts_option
@click.option(
    "--direction", type=click.Choice([d.value for d in ChangeDirection]),
    callback=lambda _ctx, _param, value: value and ChangeDirection(value),
    help="Direction of the change to find, from good to bad. Default: the direction that is worse.",
)  # fmt: skip
@click.option(
    "--name", type=NAME, default="", help="Name of the hunt, which other commands accept in place of its number."
)
@click.option(
    "--suspect",
    type=SUSPECT,
    multiple=True,
    help="Commits that change PATH are WEIGHT times as likely to be the culprit. Repeatable.",
)
@policy_options
@click.option(
    "--slow-after", type=FACTOR,
    help="Stop a run that takes longer than FACTOR times a run of GOOD, and count the run as slower.",
)  # fmt: skip
@click.option(
    "--layouts/--no-layouts", default=True, show_default=True,
    help="Also compare the culprit and its parents in randomized layouts, in which their functions are linked in other orders.",
)  # fmt: skip
@click.option(
    "--incremental/--clean-builds", default=True, show_default=True,
    help="--incremental: build each commit in the tree of the previous build (faster); good, bad, the culprit and its parents are still built in empty folders. --clean-builds: build every commit in an empty folder.",
)  # fmt: skip
@click.option(
    "--counts/--no-counts", default=True, show_default=True,
    help="Also count instructions, if counting costs less than a build. The counts show which commits to measure first.",
)  # fmt: skip
@pairing_option
@explain_option
@click.option(
    "--dry-run", is_flag=True, help="Print the expected cost, and the commands for good and bad. Run no command."
)
@click.option(
    "--first-parent",
    is_flag=True,
    help="Search only the first parents of merges: the merges of the main branch, not the commits of merged branches.",
)
@click.option(
    "--skip", metavar="REV|A..B", multiple=True, shell_complete=revision, help="Never build these commits. Repeatable."
)
@click.option(
    "--remedies/--no-remedies", default=True, show_default=True,
    help="If a new compiler refuses an old commit, build the commit again with -Wno-error, or with the #include that the commit lacks.",
)  # fmt: skip
@click.option("--retry-failed", is_flag=True, help="Try to build commits whose build failed in earlier hunts.")
@how_options
@session_options
@click.option("--in-batch", type=MEMBER, hidden=True)
def run(given: CommandOptions) -> int:
    """Find the commit that changed the speed between GOOD and BAD.

    \b
    Examples:
      bisect run v1.0 HEAD --build 'make -j{jobs}' --run ./bench --rate 'ops/s: ([0-9.]+)'   any program
      bisect run v1.0 HEAD --build 'make -j{jobs}' --run './bench --benchmark_format=json' --only 'BM_Insert*'
      bisect run 8.0.28 8.0.29 --builder mysql --workload update-index   a recipe
      bisect run 8.0.28 8.0.29 --builder mysql --workload scan,update-index,read-only   three workloads
      bisect run REL_16_0 REL_17_0 --builder postgres --workload scan --repo ~/src/postgres   your own clone
      bisect run v1.0 HEAD --builder my-kv --workload range --metric p95 --direction rise   a rise of the latency
      bisect run 3.41.0 3.42.0 --builder sqlite --workload scan --max-time 2h --json   at most two hours
      bisect run 3.44.0 3.45.0 --builder sqlite --workload scan --metric instructions/o --min-effect 0.1%   small drops
      bisect run 8.0.28 8.0.29 --builder mysql --workload scan --host c8-1 --host c8-2   two hosts
      bisect run 8.0.11 8.0.18 --builder mysql --workload scan --patch gcc-12.patch   patch old commits
      bisect run 8.0.28 8.0.29 --builder mysql --workload scan --skip 3f2a1b9..77c0d4e --skip v1-broken   omit commits
      bisect run v1.0 HEAD --build 'make -j{jobs}' --run './engine query.sql' --slow-after 5   stop slow runs
      bisect run 8.0.28 8.0.29 --builder mysql --workload scan --notify ~/bin/mail-verdict   send the verdict

    \b
    GOOD and BAD are release numbers (8.0.28) or git revisions. GOOD..BAD means the same as GOOD BAD.
    --build and --run work without recipes, in any repository. The metric is the number that --rate
    or --cost finds in the output: with a regular expression that has one group, or with a path into
    JSON ($.result.ops). Without --rate and --cost, results of known benchmarks are recognised;
    otherwise the metric is the duration. If a benchmark prints several results, good and bad are
    compared in each result (or in the results of --only). Each result that differs gets a hunt of its
    own; these hunts share builds and runs.
    A hunt searches for one change, in one workload and one result. If you give several workloads, each
    workload gets a hunt with its own verdict and its own id in `bisect history`; the exit status is the
    highest of all hunts.
    `bisect resume` continues an interrupted hunt.
    """
    from perfbisect.cli.sessions import (
        hold_session_leases,
        hunt_differing_results,
        leases_and_notifier,
        print_failures,
        view_opener,
    )
    from perfbisect.hunt.attempt import CommandCallbacks
    from perfbisect.hunt.forecast import forecast_line
    from perfbisect.hunt.session import begin
    from perfbisect.hunt.setup import SessionSetup
    from perfbisect.recipes.outputs import SeveralResults

    history, waiting = given.history, given.waiting
    number = claim_given_batch_hunt(given.in_batch, history) if given.in_batch else None
    if number:  # the hunt exists, because its Slurm job was submitted or started again
        from perfbisect.cli.commands.resume import resume_session

        return resume_session(given, number)
    place_in_batch = given.in_batch[:2] if number is not None else None
    given.good, given.bad = good_and_bad(given.good, given.bad)
    every = settings_by_workload(requested_settings(given), given.direction)
    minutes = every[0].policy.max_minutes if len(every) == 1 else 0
    if given.dry_run:
        from perfbisect.hunt.forecast import dry_run_lines

        with hold_session_leases(every[0], history, minutes=minutes):
            say("\n".join(dry_run_lines(history, every)))
        return 0
    with leases_and_notifier(given, every[0], minutes) as notifier:
        setups = SessionSetup.set_up(every, waiting)
        note(forecast_line(history, [setup.settings for setup in setups], setups[0].span, setups[0].first_host))
        announce_build_system(every[0])
        caller = CommandCallbacks(history, view_opener(history, given.view), waiting, notifier)
        try:
            return print_failures(begin(setups, caller, place_in_batch), history)
        except SeveralResults as several:
            if place_in_batch or len(every) > 1:
                raise
            return hunt_differing_results(given, every[0], several, caller)


def good_and_bad(good: str, bad: str | None) -> tuple[str, str]:
    """The revisions good and bad. The first argument may contain both, in git's notation A..B or A...B. Raises
    UsageError if good or bad is missing.
    """
    if bad is not None:
        return good, bad
    good, _, bad = good.partition("...") if "..." in good else good.partition("..")
    if not (good and bad):
        raise click.UsageError("BAD is missing. Give both revisions: bisect run GOOD BAD, or bisect run GOOD..BAD.")
    return good, bad


def settings_by_workload(requested: Settings, direction: ChangeDirection | None) -> tuple[Settings, ...]:
    """For each workload, the settings of its hunt; all hunts have the same ends. Prints which recipes are used."""
    from perfbisect.hunt.resolve import resolve_settings

    _, works = announce_and_read_recipes(requested)
    first, *further = [requested] if requested.quick else [replace(requested, workload=name) for name in works]
    first = resolve_settings(first, direction, clone_progress=show_clone_progress)
    return first, *(resolve_settings(replace(later, repository=first.repository), direction) for later in further)


def claim_given_batch_hunt(batch: tuple[int, int, str], history: Path | None) -> int | None:
    """Claim a hunt of a batch for this process, so that no other process begins the hunt before it has a number; see
    ``store.batches.claim_batch_hunt``.
    """
    from contextlib import closing

    from perfbisect.store.batches import claim_batch_hunt
    from perfbisect.store.history import History

    with closing(History.open(history)) as opened:
        number = claim_batch_hunt(opened, *batch)
        if number is None:
            note(
                f"The history {opened.path} does not contain the batch of this job, so this history gets a new hunt without a batch."
            )
        return number


def requested_settings(given: CommandOptions) -> Settings:
    """The settings according to the options of the command. Raises UsageError for options that exclude each other."""
    if given.slow_after and given.all_steps:
        raise click.UsageError(
            "--slow-after and --all exclude each other. If the runs of a build are stopped, its speed is unknown,"
            " so --all would miss other changes after that build. Omit --slow-after or --all."
        )
    return requested_settings_of(
        given, metric=given.metric or AUTO, policy=requested_policy(given), skips=dict.fromkeys(given.skip, ""),
        suspects=dict(given.suspect),
    )  # fmt: skip


@options_command()
@click.argument("file", type=EXISTING)
@click.argument("how", nargs=-1, type=click.UNPROCESSED, metavar="[-- OPTIONS OF bisect run]")
@click.option(
    "--only",
    metavar="NAME",
    default="",
    help="Use only the series with this name, or the series whose names match this pattern.",
)
@click.option(
    "--higher-is-better/--lower-is-better", "higher", default=None,
    help="Which values are better. Default: a guess from the unit or the name.",
)  # fmt: skip
@click.option("--hunt", is_flag=True, help="After the table, hunt each step at which the metric got worse.")
@json_option()
def steps(given: CommandOptions) -> int:
    """Find the steps (changes of the level) in time series that other tools measured, and print for each step the
    command that searches for its commit.

    FILE is a CSV or TSV file as Apache Otava reads it, with the columns time, commit and value (or a column for each
    metric); the data.js of github-action-benchmark; or the JSON of `bencher perf` or `bencher report list`.

    \b
    Examples:
      bisect steps results.csv   print all steps
      bisect steps data.js --only '*/1024' -- --build 'make -j{jobs}' --run ./bench --only '{series}'   some series
      bisect steps perf.json --hunt -- --repo ~/src/kv --builder kv --workload get   hunt each step
      bisect steps results.csv --json | jq '.series[].steps[]'   as JSON

    \b
    Commits are sorted by time. If a commit has several values, their median is used. A series needs 20 commits. The
    options after -- are added to each command; {series} in these options is replaced by the name of the series.
    Exit status: 0; with --hunt, the highest exit status of the hunts.
    """
    from perfbisect.core.stats.release_series import RATE, makes_worse
    from perfbisect.errors import Interrupted, PerfBisectError
    from perfbisect.report.series import imported_line_texts
    from perfbisect.wording.text import printable, shell_words

    series_lines = levels_of_chosen_series(given)
    if given.as_json:
        say_object({"rate": RATE, "series": [series_line.json_object() for series_line in series_lines]})
    else:
        say("\n".join(imported_line_texts(series_lines)))
    hunts = [
        series_line.hunt_argv(step)
        for series_line in series_lines
        for step in series_line.line.steps
        if makes_worse(step, series_line.metric)
    ]
    status = 0
    for words in {tuple(arguments): arguments for arguments in hunts}.values() if given.hunt else ():
        note(printable(shell_words(words)))
        try:
            status = max(status, run.main(args=words[2:], standalone_mode=False) or 0)
        except Interrupted:
            raise
        except PerfBisectError as trouble:  # the other steps are hunted nevertheless
            note(printable(f"Error: {trouble} {trouble.advice}".rstrip()))
            status = max(status, trouble.exit_status)
    return status


def levels_of_chosen_series(given: CommandOptions) -> "list[ImportedLine]":
    """The levels of each chosen time series, and the steps between the levels. A series with too few readings, or with
    a value that is not a positive number, is ignored, and a note says why. Raises UsageError if no series is chosen, or
    if all chosen series are ignored.
    """
    import math
    from fnmatch import fnmatchcase

    from perfbisect.core.stats.release_series import RATE, READINGS, line_of_readings
    from perfbisect.errors import UsageError
    from perfbisect.recipes.measured_series import read_series_by_time
    from perfbisect.report.series import ImportedLine
    from perfbisect.wording.quantities import count
    from perfbisect.wording.text import printable

    every, ordered = read_series_by_time(given.file)
    names, only = [series.name for series in every], given.only
    chosen = [item for item in every if (item.name == only if only in names else fnmatchcase(item.name, only or "*"))]
    if not chosen:
        text = f"The file {given.file} has no series {only}."
        raise UsageError(text, f"The series of the file: {', '.join(names[:20])}")
    short = [candidate for candidate in chosen if len(candidate.values) < READINGS]
    reasons = [
        f"series {item.name} has {count(len(item.values), 'commit')}, but at least {READINGS} are necessary"
        for item in short
    ]
    usable = []
    for series in (candidate for candidate in chosen if candidate not in short):
        by_commit = series.values.items()
        odd = next((commit for commit, rates in by_commit if min(rates) <= 0 or not math.isfinite(max(rates))), "")
        if odd:
            reasons.append(f"series {series.name} has a value of commit {odd} that is not a positive number")
        else:
            usable.append(series)
    if not usable:
        raise UsageError(f"No series of the file {given.file} can be searched for steps: {'; '.join(reasons[:3])}.")
    for reason in reasons:
        note(printable(f"Ignored: {reason}."))
    if not ordered:
        note(printable(f"The rows of {given.file} are not sorted by time. perfbisect sorts them."))
    if pooled := sum(len(readings) - 1 for series in usable for readings in series.values.values()):
        note(
            f"{pooled:,} values are for a commit that already has a value. For such a commit, the median of its values is used."
        )
    series_lines = []
    for series in usable:
        logarithms = [math.log(value) for value in series.medians_of_commits]
        line = line_of_readings(series.name, logarithms, RATE / len(usable))
        commits = [commit[:10] if len(commit) >= 40 else commit for commit in series.values]
        rate = series.is_rate if given.higher is None else given.higher
        series_lines.append(ImportedLine(line, commits, "rate" if rate else "cost", given.how))
    return series_lines
