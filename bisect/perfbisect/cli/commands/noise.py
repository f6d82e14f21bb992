"""`bisect noise`: how much does a host vary, and what does that allow to see?"""

from pathlib import Path
from typing import Any

import click

from perfbisect.cli.options.common import clone_progress, say
from perfbisect.cli.options.completion import host_name, workload_name
from perfbisect.cli.options.measurement import BUILDER, asked_rounds, asked_what, settings_of
from perfbisect.cli.options.wait import patience

EPILOG = """\b
Examples:
  bisect noise local --builder sqlite-amalgamation --workload update-index --rev 3.42.0 --repo ~/src/amalgamations
  bisect noise spare -b my-postgres -w scan --rev REL_17_0 --visits 12 --runs 4
  bisect noise spare -b my-postgres -w scan --rev REL_17_0 --time 60 --metric p95

\b
Later hunts with the same host, builder, variant, workload and options begin with what is learnt.
Ctrl-C keeps what was measured. `bisect history` lists it, `bisect show` tells it again.
"""


@click.command(epilog=EPILOG)
@click.argument("host", default="local", shell_complete=host_name)
@click.option("--workload", "-w", required=True, metavar="NAME", shell_complete=workload_name, help="What to run.")
@click.option("--rev", required=True, metavar="REV", help="Release or git revision to build.")
@BUILDER
@asked_what
@asked_rounds(8, 4, "Starts of the server.")
def noise(
    host: str,
    workload: str,
    rev: str,
    visits: int,
    runs: int,
    as_json: bool,
    wait: bool,
    history: Path | None,
    **options: Any,
) -> int:
    """Build one revision on HOST (default: local) and measure it against itself (an A/A).

    Says how much it varies between visits and within them, the smallest drop that a hunt could see for how many runs,
    and how long runs should be.
    """
    from perfbisect.cli.trial_progress import open_progress
    from perfbisect.core.domain.trials import TrialBuild, TrialType
    from perfbisect.core.stats.sampling_plan import noise_of_trial
    from perfbisect.errors import INTERRUPTED, EnvironmentFailure
    from perfbisect.hunt.resolve import builder_of, resolve_settings
    from perfbisect.hunt.trials.runner import perform
    from perfbisect.hunt.trials.setup import TrialPlan
    from perfbisect.recipes.find import load_workload
    from perfbisect.report.noise import as_object, lines

    settings = resolve_settings(
        settings_of(options, good=rev, bad=rev, workload=workload, host=host), clone_progress=clone_progress
    )
    subject = TrialBuild(rev, settings.good_commit)
    chosen = {workload: load_workload(workload, builder_of(settings).driver, settings.workloads_path)}
    plan = TrialPlan.make(TrialType.NOISE, settings, [subject], chosen, visits, runs, patience(wait))
    trial, complete = perform(plan, history, open_progress(settings.metric, quiet=as_json))
    found = noise_of_trial(trial)
    if found is None:
        if not complete:
            click.echo("Interrupted before two runs were done: nothing is known yet.", err=True)
            return INTERRUPTED
        raise EnvironmentFailure(
            f"The runs of {rev} have too few values for {settings.metric} to tell how they vary.",
            "Make more runs with --visits and --runs, or choose another metric.",
        )
    say(as_object(trial, found) if as_json else "\n".join(lines(trial, found)))
    if not complete:
        click.echo("Interrupted. What was measured is kept.", err=True)
    return 0 if complete else INTERRUPTED
