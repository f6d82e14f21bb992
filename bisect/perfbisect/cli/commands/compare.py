"""`bisect compare`: measure several builds relative to the first."""

from pathlib import Path
from typing import Any

import click

from perfbisect.cli.options.common import clone_progress, say_json, say_styled
from perfbisect.cli.options.completion import host_name, workload_names
from perfbisect.cli.options.measurement import BUILDER, round_options, settings_of, what_options
from perfbisect.cli.options.notify import notify_option
from perfbisect.cli.options.places import announce
from perfbisect.cli.options.wait import wait_callback
from perfbisect.ui.stream import note

EPILOG = """\b
Examples:
  bisect compare 3.41.0 3.42.0 HEAD --builder sqlite --workload update-index
  bisect compare 8.0.28 8.0.29 --builder mysql --workload point,write --host spare
  bisect compare 15=/usr/lib/postgresql/15 17=/usr/lib/postgresql/17 -b postgres -w scan
  bisect compare old=kv-1.2.tar.xz v1.3 --builder kv --workload get --visits 8

\b
A BUILD is a release as the builder's tags spell it, any git revision, or NAME=PATH for
prebuilt binaries: a folder on the host, or a tarball on this machine.
Ctrl-C keeps what was measured, and the same command continues it. `bisect history` lists
comparisons, `bisect show` reports one with its counters.

\b
Exit status: 0 complete, 2 some builds could not be measured, 3 usage or configuration error,
4 environment failure, 130 interrupted.
"""

INCOMPLETE = 2


@click.command(epilog=EPILOG)
@click.argument("builds", nargs=-1, required=True, metavar="BUILD...")
@click.option(
    "--workload",
    "-w",
    required=True,
    metavar="NAME,…",
    shell_complete=workload_names,
    help="Workloads, groups or suites.",
)
@BUILDER
@what_options
@click.option(
    "--host", default="local", show_default=True, metavar="NAME", shell_complete=host_name, help="Host to measure on."
)
@round_options(5, 2, "Rounds: visits of each build.")
@notify_option
def compare(
    builds: tuple[str, ...],
    workload: str,
    host: str,
    visits: int,
    runs: int,
    as_json: bool,
    wait: bool,
    notify: tuple[str, ...],
    history: Path | None,
    **options: Any,
) -> int:
    """Measure each BUILD relative to the first.

    All builds take turns, so that drift of the machine cancels. Ratios and their 95 % intervals are computed from the
    rounds in which both builds were measured.
    """
    from dataclasses import replace

    from perfbisect.cli.trial_progress import open_progress, say_where_kept
    from perfbisect.core.domain.trials import TrialType
    from perfbisect.core.stats.paired_comparison import whole
    from perfbisect.errors import INTERRUPTED
    from perfbisect.hunt.notification import notifying
    from perfbisect.hunt.resolve import builder_of, choose_metric
    from perfbisect.hunt.trials.builds import read_builds
    from perfbisect.hunt.trials.runner import run_trial
    from perfbisect.hunt.trials.setup import TrialPlan
    from perfbisect.recipes.find import choose_workloads, load_host
    from perfbisect.report.comparison import as_object, lines

    settings = settings_of(options, good=builds[0], bad=builds[-1], workload="", host=host)
    builder = builder_of(settings)
    chosen = choose_workloads(workload, builder.driver, settings.workloads_path)
    if not chosen:
        raise click.UsageError("--workload is empty.")
    announce(builder, chosen.values(), [load_host(host, settings.hosts_path)])
    settings, subjects = read_builds(builds, settings, builder, clone_progress)
    settings = replace(settings, workload=next(iter(chosen)), metric=choose_metric(settings.metric, [*chosen.values()]))
    plan = TrialPlan.make(TrialType.COMPARE, settings, subjects, chosen, visits, runs, wait_callback(wait))
    with notifying(notify, history, note) as begun:
        trial, complete = run_trial(plan, history, open_progress(settings.metric, quiet=as_json), begun)
    if as_json:
        say_json(as_object(trial))
    else:
        say_styled(lines(trial))
    say_where_kept(trial, history, complete=complete, quiet=as_json)
    if not complete:
        return INTERRUPTED
    return 0 if whole(trial) else INCOMPLETE
