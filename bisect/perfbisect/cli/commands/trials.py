"""`bisect noise` and `bisect prove`: the noise of a host; and good, bad, and bad without the culprit."""

from contextlib import closing

import click

from perfbisect.cli.options.common import Given, LongCommand, clone_progress, host_argument, id_argument, verb_command
from perfbisect.cli.options.completion import revision, workload_option
from perfbisect.cli.options.measurement import (
    announced_recipes,
    command_options,
    how_options,
    json_form_option,
    pairing_option,
    recipes_of,
    round_options,
    settings_of,
    what_options,
)
from perfbisect.ui.stream import note

COMMON = "--rev --build --run --rate --cost --builder --workload --repo --metric --visits --runs --json"


@verb_command(LongCommand, common=COMMON)
@host_argument
@workload_option("… and what it runs.", default="")
@click.option(
    "--rev", metavar="REV", shell_complete=revision, help="Release or git revision to build; none with --builder host."
)
@command_options
@what_options
@how_options
@json_form_option
@pairing_option
@round_options(8, 4, "Starts of the server.")
def noise(given: Given) -> int:
    """Build one revision on HOST (default: local) and measure it against itself (an A/A).

    Reports how much it varies between visits and within them, the smallest drop that a hunt can detect by the number
    of runs, and how long runs should be.

    \b
    Examples:
      bisect noise local --rev HEAD --run ./bench
      bisect noise local --builder sqlite-amalgamation --workload update-index --rev 3.42.0 --repo ~/src/amalgamations
      bisect noise spare -b postgres -w scan --rev REL_17_0 --visits 12 --runs 4
      bisect noise spare -b postgres -w scan --rev REL_17_0 --time 60 --metric p95
      bisect noise spare -b host -w cpu

    \b
    Later hunts with the same host, builder, variant, workload and options use the result.
    Ctrl-C keeps what was measured, and `bisect resume n4` continues it. `bisect history` lists it, `bisect show` reports it.
    """
    from perfbisect.cli.sessions import conclude, measured, session
    from perfbisect.core.domain.settings import TrialBuild, TrialType
    from perfbisect.hunt.resolve import builder_of, resolve_settings
    from perfbisect.hunt.trials.builds import hosts_as_builds
    from perfbisect.hunt.trials.rounds import TrialDesign

    rev = given.rev or ""
    requested = settings_of(given, good=rev, bad=rev)
    builder = builder_of(requested)
    if bool(builder.installed) == bool(rev):
        missing = "--rev is missing: what to build, such as --rev HEAD. The argument is a host."
        raise click.UsageError(f"Nothing of {builder.name} is built: no --rev." if rev else missing)
    settings, _, chosen = recipes_of(requested)
    if len(chosen) > 1:
        raise click.UsageError(f"{given.workload} are several workloads, and noise is measured of one.")
    if builder.installed:
        settings, subjects = hosts_as_builds(settings, builder, least=1)
    else:
        settings = resolve_settings(settings, clone_progress=clone_progress)
        subjects = [TrialBuild(rev, settings.good_commit)]
    with session(given, settings) as notifier:
        rounds = TrialDesign(TrialType.NOISE, subjects, chosen, given.visits, given.runs)
        ended = measured(rounds.set_up(settings, given.waiting), given, notifier)
    return conclude(ended, given)


@verb_command()
@id_argument()
@round_options(6, 2, "Rounds: visits of each build.", least=2)
@json_form_option
def prove(given: Given) -> int:
    """Revert the culprit of HUNT (default: the latest that named one) on top of bad, and measure what that regains.

    Good, bad, and bad without the culprit take turns, with the settings of the hunt, on its first host. The share that
    the revert regains of what was lost has a 95 % interval. Your clone is only read.

    \b
    Examples:
      bisect prove                 the latest hunt that named a culprit
      bisect prove 12
      bisect prove 12 --visits 12  a narrower interval
      bisect prove 12 --json | jq .proof

    \b
    Ctrl-C keeps what was measured, and `bisect resume p5` continues it. `bisect history` lists
    proofs, `bisect show p5` reports one, and `bisect show 12` has those of hunt 12.

    \b
    Exit status: 0 the revert regains something, 1 it is not shown to regain anything or nothing was
    lost, 2 undecided: the interval is too wide, the culprit does not revert cleanly, or the result
    does not build; 3 usage or configuration error, 4 environment failure, 130 interrupted.
    """
    from dataclasses import replace

    from perfbisect.cli.sessions import conclude, measured, session
    from perfbisect.hunt.trials.proof import claim_of, proof_setup
    from perfbisect.store.history import History

    with closing(History.open(given.history)) as opened:
        claim = claim_of(opened, given.hunt)
    announced_recipes(claim.settings)
    with (
        session(given, replace(claim.settings, further_hosts=())) as notifier,
        proof_setup(claim, given.visits, given.runs, given.waiting, note) as setup,
    ):
        ended = measured(setup, given, notifier)
    return conclude(ended, given)
