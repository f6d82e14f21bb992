"""`bisect compare` measures builds relative to the first build; with `--hunt`, it also finds the commits that caused
drops. `bisect noise` measures the noise of a host. `bisect prove` compares good, bad, and bad without the culprit.
`bisect narrow` finds the part of the culprit's diff that changed the speed.
"""

import re
import sys
from contextlib import closing

import click
from click.core import ParameterSource

from perfbisect.cli.options.common import (
    CommandOptions,
    LongCommand,
    explain_option,
    host_argument,
    id_argument,
    options_command,
    say,
    session_options,
    show_clone_progress,
)
from perfbisect.cli.options.completion import (
    complete_revision,
    host_names,
    revision,
    several_workloads_option,
    workload_option,
)
from perfbisect.cli.options.measurement import (
    TIME_LIMIT,
    announce_and_read_recipes,
    command_options,
    effect_option,
    how_options,
    json_form_option,
    pairing_option,
    requested_settings_of,
    round_options,
    trial_recipes,
    what_options,
)
from perfbisect.cli.options.param_types import MINUTES
from perfbisect.cli.options.stored import form_option_group, print_trial
from perfbisect.errors import ENVIRONMENT, INCONCLUSIVE
from perfbisect.ui.stream import note

OF_HUNTS = {  # options that may be given together with a stored comparison
    "builds", "hunt", "min_effect", "explain", "dry_run", "waiting", "notify", "history", "as_json", "as_csv", "as_tsv", "as_markdown",
}  # fmt: skip

# The options in the short `--help` of `compare`, and of `noise`.
COMPARING = "--build --run --rate --cost --builder --workload --repo --metric --host --each-release --hunt --visits --dry-run --json"
OF_NOISE = "--rev --build --run --rate --cost --builder --workload --repo --metric --visits --runs --json"


@options_command(LongCommand, common=COMPARING)
@click.argument("builds", nargs=-1, metavar="BUILD...", shell_complete=complete_revision)
@several_workloads_option("Workloads, groups of workloads, or suites of the recipe.")
@command_options
@what_options
@click.option(
    "--host", multiple=True, default=("local",), show_default=True, metavar="NAME", shell_complete=host_names,
    help="Host to measure on. With --builder host, repeat the option for each host to compare.",
)  # fmt: skip
@click.option(
    "--each-release", default="", metavar="A..B", shell_complete=revision,
    help="Instead of BUILDs, measure every release from A to B. For each step of the speed, print the command that finds the commit.",
)  # fmt: skip
@click.option("--hunt", is_flag=True, help="After the table, find the commit that caused each real drop.")
@effect_option("With --hunt, the smallest drop to search for. Default: 2%.")
@explain_option
@click.option("--dry-run", is_flag=True, help="Print the measurements and their expected cost.")
@how_options
@form_option_group
@pairing_option
@round_options(5, 2, "Number of rounds. In each round, each build is started once (a visit).")
def compare(given: CommandOptions) -> int:
    """Measure each BUILD relative to the first BUILD.

    The runs of all builds are interleaved, so that the drift of the machine affects all builds equally. The table calls
    significant differences real; at most 5 % of the differences that the table calls real are expected to be false. Red
    and green mark real differences of 5 % or more. To compare machines instead of builds, use the builder named `host`:
    nothing is built, and each --host is measured relative to the first --host. --each-release measures all releases of
    a range, finds the releases at which the speed changed, and prints, for each such step, the command that finds the
    commit.

    \b
    Examples:
      bisect compare v1.0 HEAD --build 'make -j{jobs}' --run ./bench --rate 'ops/s: ([0-9.]+)'   two commits
      bisect compare 8.0.28 8.0.29 --builder mysql --workload point,write --host spare   two releases
      bisect compare 8.0.28 8.0.29 8.0.30 -b mysql -w point,write --hunt   find culprits
      bisect compare 3.41.0 3.42.0 HEAD --builder sqlite --workload update-index   3 builds
      bisect compare 8.0.37 8.0.37@lto 8.0.37+my.cnf --builder mysql --workload point   a variant, a configuration
      bisect compare 15=/usr/lib/postgresql/15 17=/usr/lib/postgresql/17 -b postgres -w scan   installed builds
      bisect compare --builder host --workload cpu,memory --host old --host new   two machines
      bisect compare old=kv-1.2.tar.xz v1.3 --builder kv --workload get --visits 8   a tarball and a commit
      bisect compare 8.0.28 8.0.29 -b mysql -w point,write --tsv > qps.rel.tsv   a file of ratios
      bisect compare c3 --hunt --dry-run   list the drops of a stored comparison, and the numbers of candidates
      bisect compare c3 --hunt             find the culprits of these drops
      bisect compare --each-release 8.0.20..8.0.40 -b mysql -w point,write --visits 6 --runs 1   many releases

    \b
    A BUILD is a release number (8.0.28), a git revision, or NAME=PATH for a prebuilt system: a folder
    on the host, or a tarball on this machine. REV@VARIANT is built with the compiler settings of a
    variant. BUILD+CONFIG changes settings of the server: CONFIG is a name in the builder's configs, or
    a file. `bisect builders --show NAME` lists the variants and configs of a builder.
    Ctrl-C keeps all finished runs; `bisect resume c3` continues comparison c3. `bisect show c3` prints
    the comparison again, also as --csv, --tsv, --markdown or --json, with counters per operation.
    `bisect report c3` writes the comparison as an HTML page.

    \b
    --hunt finds the commits that caused drops. Each build is compared with the previous BUILD. A build
    that is slower by --min-effect or more has a drop. Until the first drop, each build is also compared
    with the first BUILD, because several small losses can add up to a drop. Only significant drops are
    hunted: the false discovery rate over all workloads is 5 %. A hunt searches the commits between the
    slower build and the build with which the slower build was compared. Hunts between the same two
    BUILDs use the same builds of commits. With --hunt, the exit status is 2 if a hunt finds no culprit.

    \b
    Exit status: 0 complete, 2 some builds could not be measured, 3 usage or configuration error,
    4 failure of the environment, 130 interrupted.
    """
    from dataclasses import replace

    from perfbisect.cli.sessions import leases_and_notifier, measured_trial, print_trial_end
    from perfbisect.core.domain.settings import TrialType
    from perfbisect.core.stats.paired_comparison import has_every_build_a_ratio
    from perfbisect.hunt.drop_hunts import DropOptions, candidate_counts_between, hunt_lines, read_comparison
    from perfbisect.hunt.trials.builds import (
        check_typed_builds,
        cost_lines,
        hosts_as_builds,
        read_builds,
        read_releases,
    )
    from perfbisect.hunt.trials.rounds import TrialDesign
    from perfbisect.store.history import History
    from perfbisect.wording.quantities import count

    builds, each_release, hunt, history = given.builds, given.each_release, given.hunt, given.history
    if given.min_effect and not hunt:
        raise click.UsageError("--min-effect needs --hunt: it is the smallest drop that is hunted.")
    if len(builds) == 1 and (ends := re.fullmatch(r"([^=]+?)\.{2,3}([^=.][^=]*)", builds[0])):  # A..B, as in git
        builds = ends.groups()
    stored = builds[0] if builds and re.fullmatch(r"c\d{1,15}", builds[0]) else ""
    if hunt and stored and len(builds) == 1 and not given.workload:
        ctx = click.get_current_context()
        for parameter in ctx.command.params:
            is_typed = ctx.get_parameter_source(parameter.name or "") is ParameterSource.COMMANDLINE
            if is_typed and parameter.name not in OF_HUNTS:
                raise click.UsageError(
                    f"{parameter.opts[0]} cannot be changed: the hunts use the settings of the stored comparison {stored}. Omit the option."
                )
        with closing(History.open(history, read_only=True)) as opened:
            drops = read_comparison(opened, stored, DropOptions(given.min_effect, given.explain))
        if given.dry_run:
            say("\n".join(hunt_lines(drops)))
            return 0
        with leases_and_notifier(given, drops.settings) as notifier:
            notifier(stored)
            return hunt_drops_and_print(stored, given)
    if stored and not (given.command or (given.workload and given.builder)):
        missing = "--builder" if given.workload else "--workload"
        raise click.UsageError(
            f"{stored} is the id of a comparison. To print the stored comparison {stored}: bisect show {stored}. To hunt its"
            f" drops: bisect compare {stored} --hunt (without --workload). To measure a revision {stored}: add {missing}."
        )
    settings, builder, chosen = trial_recipes(requested_settings_of(given, good="", bad="", explain=False))
    if each_release and builds:
        raise click.UsageError(f"--each-release already measures all releases of its range. Omit {' '.join(builds)}.")
    if each_release and hunt:
        raise click.UsageError(
            "--each-release and --hunt exclude each other. Omit --hunt: --each-release prints a command to hunt each step in speed."
        )
    check_typed_builds(builds or (each_release,) * bool(each_release), settings, builder)
    series = None
    if each_release:
        settings, subjects, series = read_releases(each_release, settings, builder, history, show_clone_progress)
    elif builder.installed:
        settings, subjects = hosts_as_builds(settings, builder, min_hosts=2)
    else:
        settings = replace(settings, good=builds[0], bad=builds[-1])
        settings, subjects = read_builds(builds, settings, builder, show_clone_progress)
    spans: dict[str, int | str] = {}
    if hunt:
        smallest = given.min_effect or settings.policy.min_effect
        policy = replace(settings.policy, min_effect=smallest, layouts=True, incremental=True)
        settings = replace(settings, policy=policy)
        spans = candidate_counts_between(settings, subjects)
        for title, reason in spans.items():
            if isinstance(reason, str):
                note(f"warning: drops between {title} cannot be hunted: {reason}")
    with leases_and_notifier(given, settings) as notifier:
        rounds = TrialDesign(TrialType.COMPARE, subjects, chosen, given.visits, given.runs, series=series)
        setup = rounds.set_up(settings, given.waiting)
        if given.dry_run:
            sizes = (
                count(span, "candidate commit") if isinstance(span, int) else f"none: {span}" for span in spans.values()
            )
            hunts = (f"hunts for drops, {title}: {size}" for title, size in zip(spans, sizes, strict=True))
            say("\n".join([*cost_lines(setup, settings, history), *hunts]))
            return 0
        if series and not given.form:
            note("\n".join(cost_lines(setup, settings, history)))
        trial, cut = measured_trial(setup, given, notifier)
        if hunt and not cut:
            if not given.form:
                print_trial(trial, "", detailed=False)
            return hunt_drops_and_print(trial.name, given) or (0 if has_every_build_a_ratio(trial) else INCONCLUSIVE)
    return print_trial_end((trial, cut), given)


def hunt_drops_and_print(comparison: str, given: CommandOptions) -> int:
    """Hunt for the commits that caused the drops of a comparison, and print the comparison with these commits. Returns
    the exit status.

    The progress of the hunts is shown in the same way as in `bisect run`. If an option such as --json selects the
    format of the comparison, the progress of the hunts is written to standard error, so that standard output contains
    only the comparison.
    """
    from perfbisect.cli.sessions import view_opener
    from perfbisect.hunt.attempt import CommandCallbacks
    from perfbisect.hunt.drop_hunts import OPEN, DropOptions, hunt_drops
    from perfbisect.store.history import History

    history, form = given.history, given.form
    shown = view_opener(history, "plain" if form else None, sys.stderr if form else None)
    options = DropOptions(given.min_effect, given.explain)
    hunts = hunt_drops(comparison, CommandCallbacks(history, shown, given.waiting, say=note), options)
    if not hunts:
        note(f"Comparison {comparison} has no drop that is significant and at least --min-effect, so no hunt begins.")
    with closing(History.open(history, read_only=True)) as opened:
        print_trial(opened.trial(comparison), form, detailed=False)
    if any(hunt is None or hunt.state in OPEN for hunt in hunts):
        return ENVIRONMENT
    return 0 if all(hunt and hunt.culprit for hunt in hunts) else INCONCLUSIVE


@options_command(LongCommand, common=OF_NOISE)
@host_argument
@workload_option("Workload of the recipe.", default="")
@click.option(
    "--rev",
    metavar="REV",
    shell_complete=revision,
    help="Release or git revision to build. Omit --rev with --builder host.",
)
@command_options
@what_options
@how_options
@json_form_option
@pairing_option
@round_options(8, 4, "Number of visits: starts of the server.")
def noise(given: CommandOptions) -> int:
    """Build one revision on HOST (default: local), and compare the build with itself (an A/A test).

    A visit is one start of the server, followed by several runs. The report shows the noise between visits and within
    visits, the smallest drop that a hunt can detect with a given number of runs, and the best duration of a run.

    \b
    Examples:
      bisect noise local --rev HEAD --run ./bench   a command
      bisect noise local --builder sqlite-amalgamation --workload update-index --rev 3.42.0 --repo ~/src/amalgamations
      bisect noise spare -b postgres -w scan --rev REL_17_0 --visits 12 --runs 4   12 visits
      bisect noise spare -b postgres -w scan --rev REL_17_0 --time 60 --metric p95   another metric
      bisect noise spare -b host -w cpu   the noise of the machine, without a database

    \b
    Later hunts with the same host, builder, variant, workload and options use the measured noise. Ctrl-C keeps all
    finished runs; `bisect resume n4` continues A/A test n4. `bisect show n4` prints the report of n4 again.
    """
    from perfbisect.cli.sessions import leases_and_notifier, measured_trial, print_trial_end
    from perfbisect.core.domain.settings import TrialBuild, TrialType
    from perfbisect.hunt.resolve import builder_of, resolve_settings
    from perfbisect.hunt.trials.builds import hosts_as_builds
    from perfbisect.hunt.trials.rounds import TrialDesign

    rev = given.rev or ""
    requested = requested_settings_of(given, good=rev, bad=rev)
    builder = builder_of(requested)
    if bool(builder.installed) == bool(rev):
        missing = "--rev is missing. Give the revision to build, such as --rev HEAD. (The argument of `bisect noise` is a host, not a revision.)"
        raise click.UsageError(f"The builder {builder.name} builds nothing. Omit --rev." if rev else missing)
    settings, _, chosen = trial_recipes(requested)
    if len(chosen) > 1:
        raise click.UsageError(f"--workload {given.workload} selects several workloads. Give a single workload.")
    if builder.installed:
        settings, subjects = hosts_as_builds(settings, builder, min_hosts=1)
    else:
        settings = resolve_settings(settings, clone_progress=show_clone_progress)
        subjects = [TrialBuild(rev, settings.good_commit)]
    with leases_and_notifier(given, settings) as notifier:
        rounds = TrialDesign(TrialType.NOISE, subjects, chosen, given.visits, given.runs)
        ended = measured_trial(rounds.set_up(settings, given.waiting), given, notifier)
    return print_trial_end(ended, given)


@options_command()
@id_argument()
@round_options(6, 2, "Number of rounds. In each round, each build is started once (a visit).", min_rounds=2)
@json_form_option
def prove(given: CommandOptions) -> int:
    """Revert the culprit of HUNT (default: the latest hunt with a culprit) on top of bad, and measure how much speed the revert regains.

    The runs of good, bad, and bad without the culprit are interleaved, on the first host of HUNT, with the settings of
    HUNT. The result is the share of the lost speed that the revert regains, with a 95 % interval. Your clone is only
    read.

    \b
    Examples:
      bisect prove                         the latest hunt with a culprit
      bisect prove 12                      hunt 12
      bisect prove 12 --visits 12          more rounds, for a narrower interval
      bisect prove 12 --json | jq .proof   the result as JSON

    \b
    Ctrl-C keeps all finished runs; `bisect resume p5` continues proof p5. `bisect show p5` prints the
    report of p5 again. The report of a hunt also contains the proofs of the hunt.

    \b
    Exit status: 0 the revert regains speed, 1 no gain is shown or no speed was lost, 2 undecided: the
    interval is too wide, the revert has conflicts, or the result does not build; 3 usage or
    configuration error, 4 failure of the environment, 130 interrupted.
    """
    from dataclasses import replace

    from perfbisect.cli.sessions import leases_and_notifier, measured_trial, print_trial_end
    from perfbisect.hunt.trials.proof import claim_of, proof_setup
    from perfbisect.store.history import History

    with closing(History.open(given.history)) as opened:
        claim = claim_of(opened, given.hunt)
    announce_and_read_recipes(claim.settings)
    with (
        leases_and_notifier(given, replace(claim.settings, further_hosts=())) as notifier,
        proof_setup(claim, given.visits, given.runs, given.waiting, note) as setup,
    ):
        ended = measured_trial(setup, given, notifier)
    return print_trial_end(ended, given)


@options_command()
@id_argument("b")
@click.option("--max-time", type=MINUTES, default=0.0, help=TIME_LIMIT)
@session_options
def narrow(given: CommandOptions) -> int:
    """Find the part of the culprit's diff that changed the speed. HUNT is by default the latest hunt that has named a
    culprit.

    `bisect narrow` adds the parts of the diff to the culprit's parent, one after the other, and searches among the
    resulting states as among commits. The first rounds of the search find the file; the last rounds find the hunk or,
    in a new file, the function. Two comparisons prove that the found part changed the speed: the parent is measured
    with only this part, and the culprit without this part.

    \b
    Examples:
      bisect narrow                     the latest hunt with a culprit
      bisect narrow 12 --max-time 20m   hunt 12, for at most 20 minutes
      bisect narrow b3                  the culprits of all hunts of a batch
      bisect narrow 12 --json           print each event as JSON
      bisect report 13                  write the page of the result, with the part marked in the diff

    \b
    If the source with some parts of the diff does not build, parts are added in another sequence: build files and headers first, then
    definitions before uses. The search has its own number in `bisect history`, which `bisect resume`,
    `show`, `watch` and `report` accept. If a hunt or a batch has several culprits, there is a search of
    up to --max-time for each culprit. Your clone is only read.

    \b
    Exit status: 0 a part is named, 1 there is nothing to find, 2 several parts remain possible; other
    values as `bisect run`.
    """
    from perfbisect.cli.sessions import leases_and_notifier, print_failures, view_opener
    from perfbisect.hunt.attempt import CommandCallbacks
    from perfbisect.hunt.session import begin
    from perfbisect.hunt.trials.proof import diff_search_setup, diff_searches_of_culprits
    from perfbisect.store.history import History

    history, status = given.history, 0
    with closing(History.open(history, read_only=True)) as opened:
        every = diff_searches_of_culprits(opened, given.hunt, given.max_time, note)
    for settings in every:
        announce_and_read_recipes(settings)
        with (
            leases_and_notifier(given, settings, given.max_time) as notifier,
            diff_search_setup(settings, given.waiting) as setup,
        ):
            caller = CommandCallbacks(history, view_opener(history, given.view), given.waiting, notifier)
            status = max(status, print_failures(begin([setup], caller), history))
    return status
