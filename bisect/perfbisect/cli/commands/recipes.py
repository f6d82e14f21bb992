"""`bisect builders` and `bisect workloads`: list recipes, or print a recipe with its inherited settings as TOML;
`bisect init`: write recipes."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from perfbisect.cli.options.common import PATH, CommandOptions, options_command, say
from perfbisect.cli.options.completion import builder_names, builder_option, workload_names_of_builder
from perfbisect.cli.options.measurement import builders_option, workloads_option
from perfbisect.ui.stream import ask, note
from perfbisect.wording.text import printable, shell_words

if TYPE_CHECKING:
    from perfbisect.hunt.proposal import KnownRepository, RepositoryProposal
    from perfbisect.recipes.proposal import Benchmark
    from perfbisect.recipes.workload import Workload


MAX_NAMED = 12  # further benchmarks that `init` names


def print_table(head: "Sequence[str]", rows: "Sequence[Sequence[str]]") -> None:
    """Print rows in aligned columns below their headings."""
    from perfbisect.wording.table import columns

    if rows:
        say("\n".join(columns([head, *([*map(printable, row)] for row in rows)])))
    else:
        note("none")


@options_command()
@click.option(
    "--show",
    metavar="NAME",
    shell_complete=builder_names,
    help="Print all settings of a builder as TOML, with inherited settings.",
)
@builders_option
def builders(given: CommandOptions) -> None:
    """List the builders: recipes that configure, compile, install and start systems.

    \b
    Examples:
      bisect builders                           all builders
      bisect builders --show demo               one builder, with all settings
      bisect builders --builders ~/my-builders  also your own builders in this folder
    """
    from perfbisect.recipes.build_systems import commented_commands
    from perfbisect.recipes.builder_reader import load_builder, load_builders
    from perfbisect.recipes.toml import to_toml

    if not given.show:
        rows = [(recipe.name, recipe.driver, recipe.summary) for recipe in load_builders(given.builders or "")]
        print_table(("builder", "driver", "description"), rows)
        return
    builder = load_builder(given.show, given.builders or "")
    say("".join(f"# {folder}\n" for folder in (builder.folder, *builder.inherited)))
    say("\n".join([to_toml(builder), *commented_commands(builder)]))


@options_command()
@click.option(
    "--show", metavar="NAME", shell_complete=workload_names_of_builder, help="Print all settings of a workload as TOML."
)
@builder_option("List only workloads that this builder can run.")
@builders_option
@workloads_option
def workloads(given: CommandOptions) -> None:
    """List the workloads: recipes of microbenchmarks.

    \b
    Examples:
      bisect workloads                           all workloads
      bisect workloads --builder demo            the workloads that builder demo can run
      bisect workloads --show demo/update-index  one workload, with all settings
    """
    from perfbisect.recipes.builder_reader import load_builder
    from perfbisect.recipes.toml import to_toml
    from perfbisect.recipes.workload import Suite, load_workloads, qualified_name, workloads_by_name

    recipes = load_workloads(given.workloads or "")
    if given.builder:
        driver = load_builder(given.builder, given.builders or "").driver
        recipes = [workload for workload in recipes if workload.driver == driver]
    alike: dict[str, list[Workload]] = {}  # full name → workloads, which differ only in their drivers
    for workload in workloads_by_name(given.show, recipes) if given.show else recipes:
        alike.setdefault(qualified_name(workload), []).append(workload)
    if not given.show:
        drivers = {name: ", ".join(workload.driver for workload in same_name) for name, same_name in alike.items()}
        rows = [(name, drivers[name], same_name[0].group, same_name[0].summary) for name, same_name in alike.items()]
        print_table(("workload", "driver", "group", "an operation is"), rows)
        return
    for first, *further in alike.values():
        systems = [first.driver, *(workload.driver for workload in further)]
        suite = Suite(summary=first.summary, driver=systems if further else first.driver, workloads={first.name: first})
        say(f"# {first.folder}\n{to_toml(suite)}")


@options_command()
@click.option("--repo", type=PATH, help="Clone to examine. Default: the current folder.")
@click.option(
    "--benchmark",
    default="",
    metavar="NAME",
    help="Benchmark to use, or any program. Default: your choice on a terminal, otherwise the first benchmark.",
)
@click.option(
    "--name", default="", metavar="NAME", help="Name of the builder and the suite. Default: the name of the repository."
)
@click.option("--into", type=PATH, metavar="DIR", help="Folder for the recipes. Default: ~/.config/perfbisect.")
@click.option("--print", "only_print", is_flag=True, help="Print the two recipes. Write no file.")
def init(given: CommandOptions) -> int:
    """Find a benchmark in a clone, write a builder and a workload for it, and print the command to run.

    `bisect init` examines the tags, the build system, the benchmarks, and paths that cannot change the speed.

    \b
    Examples:
      cd ~/src/kv && bisect init           recipes for the clone ~/src/kv
      bisect init --benchmark kv-get       measure the program kv-get of the build
      bisect init --repo ~/src/kv --print  only show the recipes
      bisect init --repo ~/src/kv.git --name kv --into ~/recipes    write the recipes to ~/recipes

    \b
    The recipes are guesses: check the two files. No program of the repository is executed, and no file is
    overwritten. For a system with a shipped recipe, only the command to run is printed.
    """
    from dataclasses import replace

    from perfbisect.folders import config_folder
    from perfbisect.hunt.proposal import RepositoryProposal, propose

    proposed = propose(given.repo or Path.cwd(), given.name, given.benchmark, is_named=given.repo is not None)
    if not isinstance(proposed, RepositoryProposal):
        say("\n".join(_known_lines(proposed)))
        return 0
    say("\n".join(_proposal_lines(proposed)))
    proposal = replace(proposed.proposal, benchmark=_choose_benchmark(proposed.benchmarks, given.benchmark))
    folder = given.into.expanduser().absolute() if given.into else config_folder()
    files = {
        folder / "builders" / proposal.name / "builder.toml": proposal.builder_toml(),
        folder / "workloads" / proposal.name / "suite.toml": proposal.suite_toml(),
    }
    if given.only_print:
        say("\n".join(f"\n# {file}\n{text}" for file, text in files.items()).rstrip())
        return 0
    _write_new(files)
    say("\n".join(f"  wrote       {file}" for file in files))
    of = ["--builder", proposal.name, "--workload", proposal.benchmark.workload.name]
    of += ["--repo", str(proposed.repository.folder)]
    if given.into:
        of += ["--builders", str(folder / "builders"), "--workloads", str(folder / "workloads")]
    ends = [proposed.range.good, proposed.range.bad]
    say("\nCommands to try (add --dry-run to `run` and `compare` to see their cost first):")
    for verb in (["run", *ends], ["compare", *ends], ["noise", "--rev", ends[1]]):
        say(f"  {shell_words(['bisect', *verb, *of])}")
    return 0


def _choose_benchmark(benchmarks: "Sequence[Benchmark]", name: str) -> "Benchmark":
    """The benchmark with that name; without a name, the benchmark that the user chooses on a terminal, or the first
    benchmark.
    """
    from perfbisect.errors import UsageError

    names = [benchmark.workload.name for benchmark in benchmarks]
    if name not in ("", *names):
        raise UsageError(
            f"Benchmark {name!r} is missing in good, in bad, or in both.",
            f"Benchmarks that good and bad have: {', '.join(names)}.",
        )
    if not name and len(names) > 1 and sys.stdin and sys.stdin.isatty() and sys.stdout.isatty():
        say("\n".join(f"  {number:10}  {printable(benchmark.what)}" for number, benchmark in enumerate(benchmarks, 1)))
        name = names[ask("Which benchmark", len(names)) - 1]
    chosen = benchmarks[names.index(name) if name else 0]
    say(f"  benchmark   {printable(chosen.what)}")
    if other_names := [other_name for other_name in names if other_name != chosen.workload.name]:
        and_more = f" and {len(other_names) - MAX_NAMED} more" if len(other_names) > MAX_NAMED else ""
        say(f"  others      {', '.join(other_names[:MAX_NAMED])}{and_more}: choose one with --benchmark NAME")
    return chosen


def _known_lines(known: "KnownRepository") -> list[str]:
    builder = known.builder
    words = ["bisect", "run", known.good, known.bad, "--builder", builder.name, "--workload", known.workload]
    return [
        f"perfbisect already has a recipe for {known.repository.folder}: builder {builder.name} ({builder.summary}).",
        "No file was written. To search with this recipe:",
        f"  {shell_words([*words, '--repo', str(known.repository.folder)])}",
        f"To list other workloads: bisect workloads. To write your own recipe nevertheless: bisect init --name my-{builder.name}",
    ]


def _proposal_lines(proposed: "RepositoryProposal") -> list[str]:
    proposal, range_ = proposed.proposal, proposed.range
    tagged = (
        f"; the tags of releases have the form {proposal.patterns[0]}"
        if proposal.patterns
        else ": the clone has no tags of releases"
    )
    rows = {
        "tree": f"{proposed.file_count:,} files" + (f", most in {proposed.language}" if proposed.language else ""),
        "range": f"{range_.good} (good) to {range_.bad} (bad){tagged}",
        "built by": proposal.system or "no build: the checkout is used unchanged",
        "ignored": f"changes of {', '.join(proposal.ignore)}" if proposal.ignore else "no changes",
        "submodules": ", ".join(proposed.submodules) or "none",
    }
    lines = (f"  {key:10}  {printable(text)}" for key, text in rows.items())
    return [f"{proposal.name}, from {proposed.repository.folder}:", *lines]


def _write_new(files: dict[Path, str]) -> None:
    """Write new files. If one of the files exists, raises UsageError and writes no file."""
    from perfbisect.errors import UsageError

    for file in files:
        if file.exists() or file.is_symlink():
            raise UsageError(
                f"{file} exists already. No file was written.",
                "Remove the file, or choose another name with --name NAME.",
            )
    for file, text in files.items():
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("x", encoding="utf-8") as stream:
            stream.write(text)
