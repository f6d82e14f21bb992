"""`bisect run` and `bisect steps`: find the commit that changed the speed between two revisions; `steps` takes them from steps in a
series that was measured elsewhere.
"""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from perfbisect.cli.options.common import (
    EXISTING,
    Given,
    LongCommand,
    clone_progress,
    explain_option,
    json_option,
    say,
    say_object,
    session_options,
    verb_command,
)
from perfbisect.cli.options.completion import revision, several_workloads_option
from perfbisect.cli.options.measurement import (
    announce_system,
    announced_recipes,
    command_options,
    hosts_option,
    how_options,
    pairing_option,
    policy_of,
    policy_options,
    settings_of,
    what_options,
)
from perfbisect.cli.options.param_types import FACTOR, MEMBER, NAME, SUSPECT
from perfbisect.core.domain.settings import AUTO, Direction, Settings
from perfbisect.ui.stream import note

if TYPE_CHECKING:
    from perfbisect.report.series import ElsewhereLine

COMMON = (
    "--build --run --rate --cost --builder --workload --repo --metric --host --direction --min-effect --all --max-time --skip"
    " --explain --dry-run --plain --json"
)


@verb_command(LongCommand, common=COMMON)
@click.argument("good", shell_complete=revision)
@click.argument("bad", required=False, shell_complete=revision)
@command_options
@several_workloads_option("… and what it runs: workloads or groups, which share all builds.")
@what_options
@hosts_option
@click.option(
    "--direction", type=click.Choice([d.value for d in Direction]),
    callback=lambda _ctx, _param, value: value and Direction(value),
    help="Change of the metric from good to bad. Default: the worse direction.",
)  # fmt: skip
@click.option("--name", type=NAME, default="", help="Name of the hunt, for other commands in place of its number.")
@click.option("--suspect", type=SUSPECT, multiple=True, help="Prior weight of commits that touch PATH. Repeatable.")
@policy_options
@click.option(
    "--slow-after", type=FACTOR,
    help="Stop runs that take FACTOR times as long as runs of GOOD, and count them as slower than that.",
)  # fmt: skip
@click.option(
    "--layouts/--no-layouts", default=True, show_default=True,
    help="Compare a culprit and its parents in other orders of their functions, too.",
)  # fmt: skip
@click.option(
    "--incremental/--clean-builds", default=True, show_default=True,
    help="Build commits of the search in the tree of the last build. The ends, a culprit and its parents never are.",
)  # fmt: skip
@click.option(
    "--counts/--no-counts", default=True, show_default=True,
    help="Count instructions beside timed runs, if that costs less than a build: a hint where time changes.",
)  # fmt: skip
@pairing_option
@explain_option
@click.option(
    "--dry-run", is_flag=True, help="Print the cost of the hunt and the commands for both ends, and run none."
)
@click.option("--first-parent", is_flag=True, help="Follow only the first parent of merges.")
@click.option(
    "--skip",
    metavar="REV|A..B",
    multiple=True,
    shell_complete=revision,
    help="Leave out commits known to be broken. Repeatable.",
)
@click.option(
    "--remedies/--no-remedies", default=True, show_default=True,
    help="Try a header or -Wno-error to mend builds that a younger compiler refuses.",
)  # fmt: skip
@click.option("--retry-failed", is_flag=True, help="Build commits again that failed in earlier hunts.")
@how_options
@session_options
@click.option("--in-batch", type=MEMBER, hidden=True)
def run(given: Given) -> int:
    """Find the commit that changed the speed between GOOD and BAD.

    \b
    Examples:
      bisect run v1.0 HEAD --build 'make -j{jobs}' --run ./bench --rate 'ops/s: ([0-9.]+)'
      bisect run v1.0 HEAD --build 'make -j{jobs}' --run './bench --benchmark_format=json' --only 'BM_Insert*'
      bisect run 8.0.28 8.0.29 --builder mysql --workload update-index
      bisect run 8.0.28 8.0.29 --builder mysql --workload scan,update-index,read-only
      bisect run REL_16_0 REL_17_0 --builder postgres --workload scan --repo ~/src/postgres
      bisect run v1.0 HEAD --builder my-kv --workload range --metric p95 --direction rise
      bisect run 3.41.0 3.42.0 --builder sqlite --workload scan --max-time 2h --json
      bisect run 3.44.0 3.45.0 --builder sqlite --workload scan --metric instructions/o --min-effect 0.1%
      bisect run 8.0.28 8.0.29 --builder mysql --workload scan --host c8-1 --host c8-2
      bisect run 8.0.11 8.0.18 --builder mysql --workload scan --patch gcc-12.patch
      bisect run 8.0.28 8.0.29 --builder mysql --workload scan --skip 3f2a1b9..77c0d4e --skip v1-broken
      bisect run v1.0 HEAD --build 'make -j{jobs}' --run './engine query.sql' --slow-after 5
      bisect run 8.0.28 8.0.29 --builder mysql --workload scan --notify ~/bin/mail-verdict

    \b
    GOOD and BAD are releases as the builder's tags spell them (8.0.28) or any git revision; or GOOD..BAD.
    --build and --run replace --builder and --workload: any repository, any command. The metric is
    the number that --rate or --cost finds in its output, by a pattern with one group or a path
    into JSON ($.result.ops); without them a result of a known benchmark, or else the duration. Of a
    benchmark with several results both ends are compared in all of them, or in those of --only, and
    each result that differs is hunted, with common builds and common runs.
    Several workloads, or a group of them, share all builds: each has its own verdict and number
    in the history. Exit status then: the highest of the hunts.
    `bisect resume` continues an interrupted hunt.
    """
    from perfbisect.cli.sessions import hunt_results, leasing_for, open_view, say_failures, session
    from perfbisect.hunt.attempt import Caller
    from perfbisect.hunt.forecast import forecast
    from perfbisect.hunt.session import begin
    from perfbisect.hunt.setup import SessionSetup
    from perfbisect.recipes.outputs import SeveralResults

    history, waiting = given.history, given.waiting
    number = claim_in(given.in_batch, history) if given.in_batch else None
    if number:  # the job in Slurm was submitted or started again
        from perfbisect.cli.commands.resume import resume_session

        return resume_session(given, number)
    place_in_batch = given.in_batch[:2] if number is not None else None
    given.good, given.bad = ends_of(given.good, given.bad)
    every = resolved(requested_settings(given), given.direction)
    minutes = every[0].policy.max_minutes if len(every) == 1 else 0
    if given.dry_run:
        from perfbisect.hunt.forecast import lines

        with leasing_for(every[0], history, minutes=minutes):
            say("\n".join(lines(history, every)))
        return 0
    with session(given, every[0], minutes) as notifier:
        setups = SessionSetup.set_up(every, waiting)
        note(forecast(history, [setup.settings for setup in setups], setups[0].span, setups[0].host))
        announce_system(every[0])
        caller = Caller(history, open_view(history, given.view), waiting, notifier)
        try:
            return say_failures(begin(setups, caller, place_in_batch), history)
        except SeveralResults as several:
            if place_in_batch or len(every) > 1:
                raise
            return hunt_results(given, every[0], several, caller)


def ends_of(good: str, bad: str | None) -> tuple[str, str]:
    """Both ends, also from git's A..B or A...B in place of the first. Raises UsageError if an end is missing."""
    if bad is not None:
        return good, bad
    good, _, bad = good.partition("...") if "..." in good else good.partition("..")
    if not (good and bad):
        raise click.UsageError("A range has two ends: bisect run GOOD BAD, or GOOD..BAD.")
    return good, bad


def resolved(requested: Settings, direction: Direction | None) -> tuple[Settings, ...]:
    """The settings of each workload, all with the same commits; announces the recipes."""
    from perfbisect.hunt.resolve import resolve_settings

    _, works = announced_recipes(requested)
    first, *further = [requested] if requested.quick else [replace(requested, workload=name) for name in works]
    first = resolve_settings(first, direction, clone_progress=clone_progress)
    return first, *(
        resolve_settings(replace(settings_of_one, repository=first.repository), direction)
        for settings_of_one in further
    )


def claim_in(batch: tuple[int, int, str], history: Path | None) -> int | None:
    """Claim a hunt of a batch for this process, long before the hunt has a number; see ``store.batches.claim``."""
    from contextlib import closing

    from perfbisect.store.batches import claim
    from perfbisect.store.history import History

    with closing(History.open(history)) as opened:
        number = claim(opened, *batch)
        if number is None:
            note(f"{opened.path} does not have the batch of this job: the hunt begins there.")
        return number


def requested_settings(given: Given) -> Settings:
    """The settings that the options ask for. Raises UsageError for options that exclude each other."""
    if given.slow_after and given.all_steps:
        raise click.UsageError(
            "--slow-after and --all exclude each other: of a build whose runs are stopped it is not known how slow it is,"
            " so changes after it would be missed."
        )
    return settings_of(
        given, metric=given.metric or AUTO, policy=policy_of(given), skips=dict.fromkeys(given.skip, ""),
        suspects=dict(given.suspect),
    )  # fmt: skip


@verb_command()
@click.argument("file", type=EXISTING)
@click.argument("how", nargs=-1, type=click.UNPROCESSED, metavar="[-- OPTIONS OF bisect run]")
@click.option("--only", metavar="NAME", default="", help="The series of this name, or all that match a pattern.")
@click.option(
    "--higher-is-better/--lower-is-better", "higher", default=None,
    help="Which values are better. Default: by the unit, or the name.",
)  # fmt: skip
@click.option("--hunt", is_flag=True, help="Hunt each step for the worse, after the table.")
@json_option("A JSON object.")
def steps(given: Given) -> int:
    """Find the steps in the series of FILE, which was measured elsewhere, and print the command that hunts each.

    FILE is CSV or TSV with columns time, commit and value (or one for each metric), as Apache Otava reads it; the
    data.js of github-action-benchmark; or the JSON of `bencher perf` or `bencher report list`.

    \b
    Examples:
      bisect steps results.csv
      bisect steps data.js --only '*/1024' -- --build 'make -j{jobs}' --run ./bench --only '{series}'
      bisect steps perf.json --hunt -- --repo ~/src/kv --builder kv --workload get
      bisect steps results.csv --json | jq '.series[].steps[]'

    \b
    Commits are in the order of their times; repetitions of a commit are pooled. A series needs 20 commits. In the options
    behind --, {series} stands for the name of the series of the step.
    Exit status: 0; with --hunt the highest of the hunts.
    """
    from perfbisect.core.stats.release_series import RATE, is_worse
    from perfbisect.errors import Interrupted, PerfBisectError
    from perfbisect.report.series import elsewhere
    from perfbisect.wording.text import printable, shell_words

    series_lines = lines_of_file(given)
    if given.as_json:
        say_object({"rate": RATE, "series": [series_line.as_object() for series_line in series_lines]})
    else:
        say("\n".join(elsewhere(series_lines)))
    hunts = [
        series_line.hunt(step)
        for series_line in series_lines
        for step in series_line.line.steps
        if is_worse(step, series_line.metric)
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


def lines_of_file(given: Given) -> "list[ElsewhereLine]":
    """The lines of the chosen series with enough readings to find steps. Raises UsageError if there are none; a note names the
    other series.
    """
    import math
    from fnmatch import fnmatchcase

    from perfbisect.core.stats.release_series import RATE, READINGS, line_of_readings
    from perfbisect.errors import UsageError
    from perfbisect.recipes.measured_series import read_series
    from perfbisect.report.series import ElsewhereLine
    from perfbisect.wording.text import printable

    every, ordered = read_series(given.file)
    names, only = [series.name for series in every], given.only
    chosen = [
        candidate
        for candidate in every
        if (candidate.name == only if only in names else fnmatchcase(candidate.name, only or "*"))
    ]
    if not chosen:
        raise UsageError(f"{given.file} has no series {only}.", f"It has: {', '.join(names[:20])}")
    short = [candidate for candidate in chosen if len(candidate.values) < READINGS]
    reasons = [
        f"{candidate.name} has {len(candidate.values)} commits, and {READINGS} are needed" for candidate in short
    ]
    usable = []
    for series in (candidate for candidate in chosen if candidate not in short):
        odd = next(
            (
                commit
                for commit, readings in series.values.items()
                if min(readings) <= 0 or not math.isfinite(max(readings))
            ),
            "",
        )
        if odd:
            reasons.append(f"{series.name} has at {odd} a value that is not positive, so it has no ratios")
        else:
            usable.append(series)
    if not usable:
        raise UsageError(f"{given.file} has no series in which a step can be found: {'; '.join(reasons[:3])}.")
    for reason in reasons:
        note(printable(f"Left out: {reason}."))
    if not ordered:
        note(printable(f"The rows of {given.file} are not in the order of their times: they are sorted."))
    if pooled := sum(len(readings) - 1 for series in usable for readings in series.values.values()):
        note(f"{pooled:,} repetitions of commits are pooled: the median of each counts.")
    series_lines = []
    for series in usable:
        line = line_of_readings(series.name, [math.log(value) for value in series.pooled], RATE / len(usable))
        commits = [commit[:10] if len(commit) >= 40 else commit for commit in series.values]
        rate = series.rate if given.higher is None else given.higher
        series_lines.append(ElsewhereLine(line, commits, "rate" if rate else "cost", given.how))
    return series_lines
