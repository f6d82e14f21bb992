"""The options that several subcommands of `bisect` share: the measured system, the measurement, the rules of the
search, and the recipes. The module also converts these options to settings.
"""

from collections.abc import Iterable
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from perfbisect.cli.options.common import (
    PATH,
    CommandOptions,
    Decorator,
    adding_options,
    history_option,
    notify_option,
    waiting_option,
)
from perfbisect.cli.options.completion import builder_option, host_names, metric_names
from perfbisect.cli.options.param_types import (
    ARG,
    BELOW,
    COUNT,
    FLAGS,
    MINUTES,
    SECONDS,
    UNSPLIT,
    ShareParam,
    WholeNumber,
)
from perfbisect.core.domain.settings import (
    COUNTED,
    MAX_PROBABILITY,
    TIMING,
    Flags,
    Pairing,
    Patch,
    Policy,
    QuickCommand,
    Settings,
)
from perfbisect.errors import PerfBisectError
from perfbisect.recipes.configuration import BUILDERS, HOSTS, WORKLOADS, recipe_folders, recipes_in_working_directory
from perfbisect.recipes.inventory import expanded_names
from perfbisect.ui.stream import note
from perfbisect.wording.text import recognised_system_text

if TYPE_CHECKING:
    from perfbisect.recipes.builder import Builder
    from perfbisect.recipes.inventory import HostEntry
    from perfbisect.recipes.workload import Workload


def recipes_option(name: str, summary: str) -> Decorator:
    """An option with the path of a folder or file with recipes. Its default is the folder or file ``name`` in the
    working directory, or None if the working directory is not trusted.
    """

    def chosen(ctx: click.Context, param: click.Parameter, value: Path | None) -> Path | None:
        if value is not None:
            return value.absolute()
        path, reason = recipes_in_working_directory(name)
        if reason and not ctx.resilient_parsing:  # a shell requests completions: nothing is printed
            note(f"{path} is ignored: {reason}. If you trust its author, add: {param.opts[0]} {name}")
        return None if reason else path

    text = f"{summary}. Default: ./{name}, except in a git repository or a folder of another user."
    return click.option(f"--{name.partition('.')[0]}", type=PATH, callback=chosen, help=text)


builders_option = recipes_option(BUILDERS, "Folder of your own builders")
workloads_option = recipes_option(WORKLOADS, "Folder of your own workloads")
inventory_option = recipes_option(HOSTS, "File that describes the hosts")


hosts_option = click.option(
    "--host", multiple=True, default=("local",), metavar="NAME", show_default=True, shell_complete=host_names,
    callback=lambda _ctx, _param, value: expanded_names(value), help="Host to measure on. Repeatable; several hosts divide the work between them.",
)  # fmt: skip
variant_option = click.option(
    "--variant",
    metavar="NAME",
    default="",
    help="Variant of the builder: compiler settings that `bisect builders --show` lists.",
)
command_options = adding_options(
    builder_option("Recipe of the system, in place of --build.", default=""),
    click.option("--build", type=UNSPLIT, multiple=True, help="Build command, run in the checkout. Repeatable."),
    click.option("--then", type=UNSPLIT, multiple=True, help="Command to run after the build by the tree's own build system. Repeatable."),
    click.option("--run", "command", type=UNSPLIT, help="Command to measure, run in the checkout."),
    click.option("--rate", default="", metavar="PATTERN", help="Pattern that finds the result; higher is better."),
    click.option("--cost", default="", metavar="PATTERN", help="Pattern that finds the result; lower is better."),
    click.option(
        "--only", default="", metavar="NAME", help="Result to measure, if the benchmark prints several results; or a pattern of their names: '*/64'."
    ),
    click.option("--unit", default="", metavar="UNIT", help="Unit of the number that --rate or --cost finds. Default: the unit in its pattern."),
    click.option(
        "--operations", default="", metavar="PATTERN", help="Pattern that finds the number of operations in the output. Default: a run is one operation."
    ),
    click.option(
        "--program", "programs", type=BELOW, multiple=True,
        help="File of the build to run, if several files have the name that --run uses. Repeatable.",
    ),
)  # fmt: skip
what_options = adding_options(
    click.option(
        "--repo", type=PATH,
        help="Local clone. Default: with a recipe, a clone of its URL; otherwise the current folder.",
    ),
    variant_option,
    click.option(
        "--configure", metavar="OPTION", multiple=True,
        help="Option for the configure step of the build system: -DWITH_X=OFF, --without-y. Repeatable.",
    ),
    click.option("--cflags", type=FLAGS, default="", help="Compiler options for C, added after the options of the tree."),
    click.option("--cxxflags", type=FLAGS, default="", help="Compiler options for C++, added after the options of the tree."),
    click.option("--ldflags", type=FLAGS, default="", help="Linker options, added after the options of the tree."),
    click.option(
        "--patch", type=PATH, multiple=True,
        help="Patch file. Each commit to which it applies is patched before its build. Repeatable.",
    ),
    click.option(
        "--metric", default="", metavar="NAME", shell_complete=metric_names,
        help="qps, p95, cpu/o, instructions/o, … (/o: per operation). Default: the metric of the workload. `bisect run`"
        " hunts instructions/o if good and bad differ only in that.",
    ),
)  # fmt: skip
how_options = adding_options(
    click.option("--time", type=COUNT, help="Duration of each timed run in seconds."),
    click.option("--warmup", type=SECONDS, help="Duration of the warm-up before each run, in seconds."),
    click.option("--threads", type=WholeNumber(1, 1_000_000), help="Number of client threads."),
    click.option(
        "--set",
        "changes",
        type=ARG,
        multiple=True,
        help="Set an argument of the workload, such as table-size=1000000. Repeatable.",
    ),
    builders_option,
    workloads_option,
    inventory_option,
)
TIME_LIMIT = "Stop after this time (90s, 45m, 2h), and print the best answer so far."
limit_options = adding_options(
    click.option("--max-time", type=MINUTES, help=TIME_LIMIT),
    click.option(
        "--max-builds", type=COUNT, help="Stop after this number of builds, and print the best answer so far."
    ),
    click.option(
        "--max-runs", type=COUNT, help="Stop after this number of timed runs, and print the best answer so far."
    ),
)


def confidence_option(**how: Any) -> Decorator:
    """The option ``--confidence``; ``how`` are further arguments for click."""
    text = "Probability that a commit needs to be named as the culprit."
    return click.option("--confidence", type=ShareParam(MAX_PROBABILITY), help=text, **how)


def effect_option(text: str, *, auto: bool = False) -> Decorator:
    """``--min-effect``; ``text`` is its help."""
    return click.option("--min-effect", type=ShareParam(auto=auto), help=text)


policy_options = adding_options(
    confidence_option(default="95%", show_default=True),
    effect_option(
        "Smallest change to search for. Example: 25% means from 400 to 300, or from 400 to 500."
        "  [default: auto, the smallest change that can be detected in one hour of runs (or within --max-time or"
        " --max-runs), but never more than 2%; for counts of instructions, 0.2%]",
        auto=True,
    ),
    click.option("--all", "all_steps", is_flag=True, help="Find every change of at least --min-effect."),
    limit_options,
)
# --json of trials that print text or JSON only; the value is the parameter ``form`` of the command.
json_form_option = click.option(
    "--json", "form", flag_value="json", default="", help="Print one JSON object at the end."
)


pairing_option = click.option(
    "--pairing", type=click.Choice([p.value for p in Pairing]), default=Pairing.AUTO.value, show_default=True,
    callback=lambda _ctx, _param, value: Pairing(value),
    help="paired: run two builds at the same time. interleaved: run the builds alternately. auto: try both ways, and use the way with less noise.",
)  # fmt: skip


def round_options(visits: int, runs: int, help_text: str, min_rounds: int = 1) -> Decorator:
    """The options of all trials: the number of rounds (``help_text`` is the help of this option), the runs in each
    visit, waiting for a busy host, notification, and the history.
    """
    rounds_type = WholeNumber(min_rounds, COUNT.max)
    return adding_options(
        click.option("--visits", type=rounds_type, default=visits, show_default=True, help=help_text),
        click.option("--runs", type=COUNT, default=runs, show_default=True, help="Number of timed runs in each visit."),
        waiting_option,
        notify_option,
        history_option,
    )


def quick_command(given: CommandOptions) -> QuickCommand | None:
    """The build and run commands of a benchmark, as the options --run, --build, --rate, … describe; None if the options
    name a workload in place of commands. Raises UsageError for options that exclude each other.
    """
    from perfbisect.recipes.requested import RECIPE

    build, then, workload = given.build, given.then, given.workload
    builder = "" if given.builder == RECIPE and given.command else given.builder  # else one name for all repositories
    patterns = {name: getattr(given, name) for name in ("rate", "cost", "operations", "unit", "only")}
    if given.command is None:
        if beside := [name for name, value in {"build": build, "then": then, **patterns}.items() if value]:
            instead = " in place of --workload" if workload else ""
            raise click.UsageError(f"--{beside[0]} needs a command to measure. Give the command with --run{instead}.")
        if not (builder and workload):
            missing = "--workload" if builder else "--builder"
            raise click.UsageError(
                f"{missing} is missing. Add {missing} NAME; or measure any command with --build and --run."
            )
        return None
    for both, names, advice in (
        (workload, "--workload and --run", "Give one of the two options"),
        (builder and build, "--builder and --build", "Give one of the two options"),
        (build and then, "--build and --then", "Give a second --build, which is run after the first"),
    ):
        if both:
            raise click.UsageError(f"{names} exclude each other. {advice}.")
    return with_unique_name(QuickCommand(given.command, None if builder else build, **patterns, then=then))


def with_unique_name(quick: QuickCommand) -> QuickCommand:
    """A copy of ``quick`` (a benchmark that --run describes) with a name that no other such benchmark has in the
    history."""
    from perfbisect.recipes.requested import command_name
    from perfbisect.store.history import History
    from perfbisect.store.prior_data import unused_command_name

    name, context = command_name(quick.run), click.get_current_context(silent=True)
    path = context.params.get("history") if context else None
    with suppress(PerfBisectError), closing(History.open(path, read_only=True)) as opened:
        name = unused_command_name(opened, quick, name)
    return replace(quick, name=name)  # the proposed name if there is no history yet


def requested_settings_of(given: CommandOptions, **decided: Any) -> Settings:
    """The settings that the options of a subcommand request; ``decided`` are settings that the subcommand itself
    determines. Raises UsageError for options that exclude each other.
    """
    from perfbisect.recipes.builder_reader import check_distinct_patch_names, read_patch

    for recipes in (BUILDERS, WORKLOADS):  # checks the paths, also for commands that read no recipe later
        recipe_folders(recipes, getattr(given, recipes) or "")
    quick = quick_command(given)
    host, *further = (given.host,) if isinstance(given.host, str) else given.host
    timing = {name: value for name in TIMING if (value := getattr(given, name)) is not None}
    patches = tuple(Patch(path.name, read_patch(path), file=str(path.absolute())) for path in given.patch)
    check_distinct_patch_names(patches)
    converted = {
        "repository": str(given.repo.absolute()) if given.repo else "",
        "host": host,
        "further_hosts": tuple(further),
        "flags": Flags(given.cflags, given.cxxflags, given.ldflags),
        "patches": patches,
        "overrides": timing | dict(sorted(dict(given.changes).items())),  # the order on the command line has no effect
        "builder": "" if quick and quick.build is not None else given.builder,
        "quick": quick,
        "policy": Policy(pairing=given.pairing),
        **{f"{name}_path": str(getattr(given, name) or "") for name in ("builders", "workloads", "hosts")},
    }
    direct = {name: value for name, value in vars(given).items() if name in Settings.__dataclass_fields__}
    return Settings(**direct | converted | decided)


def requested_policy(given: CommandOptions, stored: Policy | None = None) -> Policy:
    """The rules of the search that the options request. Rules without an option on the command line are taken from
    ``stored``, the rules of a hunt in the history, if ``stored`` is given.
    """
    options = vars(given) | {"max_minutes": given.max_time}
    rules = {name: options[name] for name in Policy.__dataclass_fields__ if options.get(name) is not None}
    if effect := rules.pop("min_effect", None):  # also the smallest change of a count
        rules |= {"min_effect": effect, "min_counted": effect, "auto_effect": False, "typed": True}
    elif effect is not None:
        rules |= {"min_effect": Policy().min_effect, "min_counted": COUNTED, "auto_effect": True, "typed": False}
    return replace(stored or Policy(min_counted=COUNTED, auto_effect=True), **rules)


def announce_and_read_recipes(settings: Settings) -> "tuple[Builder, dict[str, Workload]]":
    """The requested builder, and the requested workloads by name. Prints on standard error from which files the recipes
    and hosts are read.

    Raises UsageError for mistakes in the recipes.
    """
    from perfbisect.hunt.resolve import builder_of
    from perfbisect.recipes.inventory import load_host
    from perfbisect.recipes.requested import requested_workloads

    builder = builder_of(settings)
    workloads = requested_workloads(settings, builder, settings.workload)
    if not workloads:
        raise click.UsageError("--workload is empty. Give the name of a workload.")
    entries = [load_host(name, settings.hosts_path) for name in settings.hosts]
    announce_recipe_files(builder, workloads.values(), entries)
    return builder, workloads


def trial_recipes(settings: Settings) -> "tuple[Settings, Builder, dict[str, Workload]]":
    """Returns three values: the settings of a trial, completed by the names of the builder and the workload and by the
    metric; the builder; and the workloads by name. See ``announce_and_read_recipes``.
    """
    from perfbisect.hunt.resolve import choose_metric, recognises_output, with_default_repository

    settings = with_default_repository(settings)
    builder, workloads = announce_and_read_recipes(settings)
    defined = [*workloads.values()]
    metric, recognise = choose_metric(settings.metric, defined), recognises_output(settings, defined)
    name = settings.builder or builder.name
    named = replace(settings, builder=name, workload=next(iter(workloads)), metric=metric, recognise=recognise)
    return named, builder, workloads


def announce_build_system(settings: Settings) -> None:
    """Print on standard error which build system of the source tree perfbisect has recognised, and the commands of this
    build system. Nothing is printed if the user or a recipe gives the commands.
    """
    if built := recognised_system_text(settings.system):
        note(f"Built with {built}")


def announce_recipe_files(
    builder: "Builder | None" = None, workloads: "Iterable[Workload]" = (), hosts: "Iterable[HostEntry]" = ()
) -> None:
    """Print on standard error from which files the given recipes and hosts were read, except files that are shipped
    with perfbisect and files in the user's configuration folder.
    """
    from perfbisect.recipes.requested import untrusted_recipe_files

    for title, file in untrusted_recipe_files(builder, workloads, hosts).items():
        kind, _, name = title.partition(" ")
        note(f"{kind} {name!r} is read from {file}")
