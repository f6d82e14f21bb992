"""`bisect noise`: measure the noise of a host, and the smallest change that it can show."""

from pathlib import Path
from typing import Any

import click

from perfbisect.cli.options.common import clone_progress, leasing, wait_callback
from perfbisect.cli.options.completion import host_name
from perfbisect.cli.options.forms import print_trial
from perfbisect.cli.options.measurement import (
    announce_recipes,
    builder_option,
    round_options,
    settings_of,
    what_options,
    workload_option,
)
from perfbisect.cli.options.param_types import COUNT
from perfbisect.ui.stream import note

EPILOG = """\b
Examples:
  bisect noise local --builder sqlite-amalgamation --workload update-index --rev 3.42.0 --repo ~/src/amalgamations
  bisect noise spare -b postgres -w scan --rev REL_17_0 --visits 12 --runs 4
  bisect noise spare -b postgres -w scan --rev REL_17_0 --time 60 --metric p95
  bisect noise spare -b host -w cpu
  bisect noise spare -b sqlite -w scan --rev 3.45.0 --layouts 10 --visits 3 --runs 2

\b
Later hunts with the same host, builder, variant, workload and options use the result.
Ctrl-C keeps what was measured. `bisect history` lists it, `bisect show` reports it.
"""


@click.command(epilog=EPILOG)
@click.argument("host", default="local", shell_complete=host_name)
@workload_option("Workload to run.", required=True)
@click.option("--rev", metavar="REV", help="Release or git revision to build; none with --builder host.")
@builder_option("System to build.", required=True)
@what_options
@round_options(8, 4, "Starts of the server.")
@click.option(
    "--layouts", type=COUNT, help="Measure the build in this many layouts, too: linked again in other orders."
)
def noise(
    host: str,
    workload: str,
    rev: str | None,
    visits: int,
    runs: int,
    layouts: int | None,
    as_json: bool,
    wait: bool,
    history: Path | None,
    **options: Any,
) -> int:
    """Build one revision on HOST (default: local) and measure it against itself (an A/A).

    Reports how much it varies between visits and within them, the smallest drop that a hunt can detect by the number
    of runs, and how long runs should be. With --layouts also by how much placement of the code changes its speed.
    """
    from dataclasses import replace

    from perfbisect.cli.trial_progress import open_progress
    from perfbisect.core.domain.settings import TrialBuild, TrialType
    from perfbisect.core.stats.noise import noise_of_trial
    from perfbisect.errors import INTERRUPTED, EnvironmentFailure
    from perfbisect.hunt.leased_hosts import purpose_of
    from perfbisect.hunt.resolve import builder_of, choose_metric, resolve_settings
    from perfbisect.hunt.trials.builds import hosts_as_builds
    from perfbisect.hunt.trials.runner import run_trial
    from perfbisect.hunt.trials.setup import TrialSetup
    from perfbisect.recipes.workload import load_workload

    if layouts and (layouts < 2 or visits < 2):
        raise click.UsageError("--layouts takes at least 2 layouts, and 2 visits of each: give more with --visits.")
    requested = settings_of(options, good=rev or "", bad=rev or "", workload=workload, host=host)
    announce_recipes(requested)
    builder = builder_of(requested)
    chosen = {workload: load_workload(workload, builder.driver, requested.workloads_path)}
    if bool(builder.installed) == bool(rev):
        raise click.UsageError(
            "--rev names the build." if not rev else f"Nothing of {builder.name} is built: no --rev."
        )
    if builder.installed:
        if layouts:
            raise click.UsageError(f"Nothing of {builder.name} is built: no --layouts.")
        settings, subjects = hosts_as_builds(requested, builder, least=1)
        settings = replace(settings, metric=choose_metric(settings.metric, [*chosen.values()]))
    else:
        settings = resolve_settings(requested, clone_progress=clone_progress)
        names = (str(rev), *(f"layout {number + 1}" for number in range(layouts or 0)))
        subjects = [TrialBuild(name, settings.good_commit) for name in names]
    with leasing(settings.hosts, settings.hosts_path, purpose=purpose_of(settings)):
        plan = TrialSetup.make(TrialType.NOISE, settings, subjects, chosen, visits, runs, wait_callback(wait))
        trial, complete = run_trial(plan, history, open_progress(settings.metric, quiet=as_json))
    if noise_of_trial(trial) is None:
        if not complete:
            note("Interrupted before two runs had ended: there is no result.")
            return INTERRUPTED
        raise EnvironmentFailure(
            f"The runs of {subjects[0].name} have too few values of {settings.metric} to estimate their noise.",
            "Make more runs with --visits and --runs, or choose another metric.",
        )
    print_trial(trial, "json" if as_json else "", detailed=False)
    if not complete:
        note("Interrupted. What was measured is kept.")
    return 0 if complete else INTERRUPTED
