"""`bisect run`: find the commit that changed the speed between two revisions."""

from dataclasses import replace
from pathlib import Path

import click

from perfbisect.cli.options.common import (
    Given,
    LongCommand,
    clone_progress,
    explain_option,
    say,
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
    help="Change of the metric from good to bad. Default: the one that makes it worse.",
)  # fmt: skip
@click.option("--name", type=NAME, default="", help="Name of the hunt, for other commands in place of its number.")
@click.option("--suspect", type=SUSPECT, multiple=True, help="Prior weight of commits that touch PATH. Repeatable.")
@policy_options
@click.option(
    "--slow-after", type=FACTOR,
    help="Stop runs that take FACTOR times as long as those of GOOD, and count them as slower than that.",
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
    help="Count instructions beside timed runs, where that costs less than a build: a hint where time changes.",
)  # fmt: skip
@pairing_option
@explain_option
@click.option("--dry-run", is_flag=True, help="Print what it takes and the commands for both ends, and run none.")
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
    help="Try a header or -Wno-error where it mends builds that a younger compiler refuses.",
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
    into JSON ($.result.ops); without them a result of a known benchmark, or else the duration.
    Several workloads, or a group of them, share all builds: each has a verdict and a number in the
    history of its own. Exit status then: the highest of theirs.
    `bisect resume` continues an interrupted hunt.
    """
    from perfbisect.cli.sessions import leasing_for, open_view, say_failures, session
    from perfbisect.hunt.attempt import Caller
    from perfbisect.hunt.forecast import forecast
    from perfbisect.hunt.session import begin
    from perfbisect.hunt.setup import SessionSetup

    history, waiting = given.history, given.waiting
    number = claim_in(given.in_batch, history) if given.in_batch else None
    if number:  # its job was submitted or started again
        from perfbisect.cli.commands.resume import resume_session

        return resume_session(given, number)
    place = given.in_batch[:2] if number is not None else None
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
        return say_failures(begin(setups, caller, place), history)


def ends_of(good: str, bad: str | None) -> tuple[str, str]:
    """Both ends, also from git's A..B or A...B in place of the first. Raises UsageError where one is missing."""
    if bad is not None:
        return good, bad
    good, _, bad = good.partition("...") if "..." in good else good.partition("..")
    if not (good and bad):
        raise click.UsageError("A range has two ends: bisect run GOOD BAD, or GOOD..BAD.")
    return good, bad


def resolved(requested: Settings, direction: Direction | None) -> tuple[Settings, ...]:
    """The settings of each workload, with the same commits, after saying where the recipes are from."""
    from perfbisect.hunt.resolve import resolve_settings

    _, found = announced_recipes(requested)
    first, *others = [requested] if requested.quick else [replace(requested, workload=name) for name in found]
    first = resolve_settings(first, direction, clone_progress=clone_progress)
    return first, *(resolve_settings(replace(each, repository=first.repository), direction) for each in others)


def claim_in(batch: tuple[int, int, str], history: Path | None) -> int | None:
    """Enter that this process begins a hunt of a batch, long before it has a number; see ``store.batches.claim``."""
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
