"""`bisect compare`: measure several builds relative to the first."""

from pathlib import Path
from typing import Any

import click

from perfbisect.cli.options.common import clone_progress, explain_option, say
from perfbisect.cli.options.completion import builder_name, host_name, variant_of_build, workload_names
from perfbisect.cli.options.forms import form_of, form_options, print_comparison
from perfbisect.cli.options.leases import leasing
from perfbisect.cli.options.measurement import round_options, settings_of, what_options
from perfbisect.cli.options.notify import notify_option
from perfbisect.cli.options.param_types import Percent
from perfbisect.cli.options.places import announce
from perfbisect.cli.options.wait import wait_callback
from perfbisect.ui.stream import note

EPILOG = """\b
Examples:
  bisect compare 3.41.0 3.42.0 HEAD --builder sqlite --workload update-index
  bisect compare 8.0.28 8.0.29 --builder mysql --workload point,write --host spare
  bisect compare 8.0.37 8.0.37@lto 8.0.37+my.cnf --builder mysql --workload point
  bisect compare 15=/usr/lib/postgresql/15 17=/usr/lib/postgresql/17 -b postgres -w scan
  bisect compare --builder host --workload cpu,memory --host old --host new
  bisect compare old=kv-1.2.tar.xz v1.3 --builder kv --workload get --visits 8
  bisect compare 8.0.28 8.0.29 -b mysql -w point,write --tsv > qps.rel.tsv
  bisect compare 8.0.28 8.0.29 8.0.30 -b mysql -w point,write --hunt
  bisect compare c3 --hunt --dry-run     what hunting the drops of a stored one will cost
  bisect compare c3 --hunt
  bisect compare --each-release 8.0.20..8.0.40 -b mysql -w point,write --visits 6 --runs 1

\b
A BUILD is a release as the builder's tags spell it, any git revision, or NAME=PATH for
prebuilt binaries: a folder on the host, or a tarball on this machine. REV@VARIANT is built
with other compiler settings; +CONFIG behind a build configures its server otherwise: a
name in the recipe's configs, or a file. `bisect builders --show NAME` lists both.
Ctrl-C keeps what was measured, and the same command continues it. `bisect history` lists
comparisons, `bisect show c3` prints one again in any form (--csv, --tsv, --markdown, --json),
with what each operation costs; `bisect report c3` writes a page. `bisect history add` takes
results made by hand.

\b
--hunt looks for the commits of drops. A drop is a build that is slower than the one before it
by --min-effect or more; or, where no drop up to it is seen, than the first one. It is announced
where it is real: false discoveries are kept at 5 % over all these differences of all workloads.
It is hunted between its two builds, together with all other drops between them, which share
their builds. Exit status then: 2 where a hunt names no commit.

\b
Exit status: 0 complete, 2 some builds could not be measured, 3 usage or configuration error,
4 environment failure, 130 interrupted.
"""

INCOMPLETE = 2


@click.command(epilog=EPILOG)
@click.argument("builds", nargs=-1, metavar="BUILD...", shell_complete=variant_of_build)
@click.option(
    "--workload",
    "-w",
    default="",
    metavar="NAME,…",
    shell_complete=workload_names,
    help="Workloads, groups or suites.",
)
@click.option("--builder", "-b", default="", metavar="NAME", shell_complete=builder_name, help="System to build.")
@what_options
@click.option(
    "--host",
    multiple=True,
    default=("local",),
    show_default=True,
    metavar="NAME",
    shell_complete=host_name,
    help="Host to measure on. With --builder host, repeat it for each host that is compared.",
)
@click.option(
    "--each-release",
    default="",
    metavar="A..B",
    help="Instead of BUILDs: every release from A to B, as a line with its steps, and what to hunt.",
)
@click.option("--hunt", is_flag=True, help="After the table, hunt every drop in it that is real, and name its commit.")
@click.option(
    "--min-effect", type=Percent(), help="With --hunt, the smallest drop of interest. Default: 2%.", metavar="SHARE"
)
@explain_option
@click.option("--dry-run", is_flag=True, help="Print what would be measured and what it costs, without doing it.")
@round_options(5, 2, "Rounds: visits of each build.")
@form_options
@notify_option
def compare(
    builds: tuple[str, ...],
    workload: str,
    host: tuple[str, ...],
    each_release: str,
    hunt: bool,
    min_effect: float | None,
    explain: bool,
    dry_run: bool,
    visits: int,
    runs: int,
    as_json: bool,
    as_csv: bool,
    as_tsv: bool,
    markdown: bool,
    wait: bool,
    notify: tuple[str, ...],
    history: Path | None,
    **options: Any,
) -> int:
    """Measure each BUILD relative to the first.

    All builds take turns, so that drift of the machine cancels. Ratios and their 95 % intervals are computed from the
    rounds in which both builds were measured. Red and green are differences of 5 % or more that are real: at most 5 % of
    those called real in a table are expected to be none. With --builder host nothing is built, and each --host is
    measured relative to the first. --each-release draws the line of all releases of a range instead, says where it has
    steps, and prints the commands that hunt them.
    """
    from dataclasses import replace

    from perfbisect.cli.drop_hunts import about_stored, hunt_and_print, hunt_stored, refuse_further, stored_name
    from perfbisect.cli.trial_progress import open_progress, say_where_kept
    from perfbisect.core.domain.settings import TrialType
    from perfbisect.core.stats.paired_comparison import whole
    from perfbisect.errors import INTERRUPTED
    from perfbisect.hunt.leased_hosts import purpose_of
    from perfbisect.hunt.notification import notifying
    from perfbisect.hunt.resolve import builder_of, choose_metric
    from perfbisect.hunt.trials.builds import check_words, hosts_as_builds, read_builds
    from perfbisect.hunt.trials.drop_costs import check_ranges, cost_before
    from perfbisect.hunt.trials.drop_hunts import DropOptions
    from perfbisect.hunt.trials.releases import cost, read_releases
    from perfbisect.hunt.trials.runner import run_trial
    from perfbisect.hunt.trials.setup import TrialPlan
    from perfbisect.recipes.inventory import load_host
    from perfbisect.recipes.workload import choose_workloads

    form = form_of(json=as_json, csv=as_csv, tsv=as_tsv, markdown=markdown)
    if min_effect and not hunt:
        raise click.UsageError("--min-effect is for --hunt.")
    how = DropOptions(min_effect, explain)
    if hunt and (stored := stored_name(builds, workload)):
        refuse_further(stored, click.get_current_context())
        return hunt_stored(stored, history, form, how, wait=wait, dry_run=dry_run, notify=notify)
    if missing := [
        option for option, value in (("--builder", options["builder"]), ("--workload", workload)) if not value
    ]:
        raise click.UsageError(f"{missing[0]} is missing.{about_stored(builds)}")
    settings = settings_of(options, good="", bad="", workload="", host=host[0], further_hosts=host[1:])
    builder = builder_of(settings)
    chosen = choose_workloads(workload, builder.driver, settings.workloads_path)
    if not chosen:
        raise click.UsageError("--workload is empty.")
    if builds and each_release:
        raise click.UsageError("--each-release measures all releases of its range: leave out the BUILDs.")
    if hunt and each_release:
        raise click.UsageError("--each-release prints the command that hunts each step; --hunt is for BUILDs.")
    check_words(builds or (each_release,) * bool(each_release), settings, builder)
    announce(builder, chosen.values(), [load_host(name, settings.hosts_path) for name in host])
    settings = replace(settings, workload=next(iter(chosen)), metric=choose_metric(settings.metric, [*chosen.values()]))
    series = None
    if each_release:
        settings, subjects, series = read_releases(each_release, settings, builder, history, clone_progress)
    elif builder.installed:
        settings, subjects = hosts_as_builds(settings, builder, least=2)
    else:
        settings = replace(settings, good=builds[0], bad=builds[-1])
        settings, subjects = read_builds(builds, settings, builder, clone_progress)
    spans = []
    if hunt:
        policy = replace(settings.policy, min_effect=min_effect or settings.policy.min_effect, layouts=True)
        settings = replace(settings, policy=policy)
        spans = check_ranges(settings, subjects)
        for each in spans:
            if each.reason:
                note(f"warning: nothing can be hunted between {each.title}: {each.reason}")
    waiting = wait_callback(wait)
    lease = leasing(settings.hosts, settings.hosts_path, purpose=purpose_of(settings))
    with notifying(notify, history, note) as begun, lease:
        plan = TrialPlan.make(TrialType.COMPARE, settings, subjects, chosen, visits, runs, waiting, series=series)
        if dry_run:
            say("\n".join([*cost(plan, settings, history), *cost_before(spans, len(chosen))]))
            return 0
        if series and not form:
            note("\n".join(cost(plan, settings, history)))
        trial, complete = run_trial(plan, history, open_progress(settings.metric, quiet=bool(form)), begun)
        if hunt and complete:
            if not form:
                print_comparison(trial, form, detailed=False)
            status = hunt_and_print(trial.name, history, form, waiting, how)
            return status or (0 if whole(trial) else INCOMPLETE)
    print_comparison(trial, form, detailed=False)
    say_where_kept(trial, history, complete=complete, quiet=bool(form))
    if not complete:
        return INTERRUPTED
    return 0 if whole(trial) else INCOMPLETE
