"""`bisect init`: write a builder and a suite for a repository that no recipe describes."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from perfbisect.cli.options.common import PATH, Given, say, verb_command
from perfbisect.ui.stream import ask
from perfbisect.wording.text import printable, shell_words

if TYPE_CHECKING:
    from collections.abc import Sequence

    from perfbisect.hunt.proposal import Described, Look
    from perfbisect.recipes.proposal import Benchmark


MOST = 12  # further benchmarks that are named


@verb_command()
@click.option("--repo", type=PATH, help="The clone to look at. Default: the current folder.")
@click.option(
    "--benchmark", default="", metavar="NAME", help="Which, or any program. Default: asks on a terminal, or the first."
)
@click.option("--name", default="", metavar="NAME", help="Name of builder and suite. Default: that of the repository.")
@click.option("--into", type=PATH, metavar="DIR", help="Write below DIR. Default: ~/.config/perfbisect.")
@click.option("--print", "only_print", is_flag=True, help="Print the two files, and write none.")
def init(given: Given) -> int:
    """Find the benchmark of a clone, write a builder and a workload for it, and say what to run.

    It looks at the tags, the build system, the benchmarks and what cannot change the speed.

    \b
    Examples:
      cd ~/src/kv && bisect init
      bisect init --benchmark kv-get
      bisect init --repo ~/src/kv --print
      bisect init --repo ~/src/kv.git --name kv --into ~/recipes

    \b
    What it finds are guesses: read the two files. Nothing of the repository is executed, and no file
    is ever overwritten. A system with a shipped recipe needs none: its `bisect run` is printed.
    """
    from dataclasses import replace

    from perfbisect.folders import config_folder
    from perfbisect.hunt.proposal import Look, look

    found = look(given.repo or Path.cwd(), given.name, given.benchmark, named=given.repo is not None)
    if not isinstance(found, Look):
        say("\n".join(_described(found)))
        return 0
    say("\n".join(_found(found)))
    proposal = replace(found.proposal, benchmark=_chosen(found.benchmarks, given.benchmark))
    folder = given.into.expanduser().absolute() if given.into else config_folder()
    files = {
        folder / "builders" / proposal.name / "builder.toml": proposal.builder(),
        folder / "workloads" / proposal.name / "suite.toml": proposal.suite(),
    }
    if given.only_print:
        say("\n".join(f"\n# {file}\n{text}" for file, text in files.items()).rstrip())
        return 0
    _write(files)
    say("\n".join(f"  wrote       {file}" for file in files))
    of = ["--builder", proposal.name, "--workload", proposal.benchmark.workload.name]
    of += ["--repo", str(found.repository.folder)]
    if given.into:
        of += ["--builders", str(folder / "builders"), "--workloads", str(folder / "workloads")]
    ends = [found.range.good, found.range.bad]
    say("\nTry (with --dry-run the first two only print what they would do):")
    for verb in (["run", *ends], ["compare", *ends], ["noise", "--rev", ends[1]]):
        say(f"  {shell_words(['bisect', *verb, *of])}")
    return 0


def _chosen(benchmarks: "Sequence[Benchmark]", name: str) -> "Benchmark":
    """The benchmark of that name; without a name, the one that the user is asked for on a terminal, or the first."""
    from perfbisect.errors import UsageError

    names = [each.workload.name for each in benchmarks]
    if name not in ("", *names):
        raise UsageError(f"There is no benchmark {name!r} that both ends have.", f"There are: {', '.join(names)}.")
    if not name and len(names) > 1 and sys.stdin and sys.stdin.isatty() and sys.stdout.isatty():
        say("\n".join(f"  {number:10}  {printable(each.what)}" for number, each in enumerate(benchmarks, 1)))
        name = names[ask("Which benchmark", len(names)) - 1]
    chosen = benchmarks[names.index(name) if name else 0]
    say(f"  benchmark   {printable(chosen.what)}")
    if others := [each for each in names if each != chosen.workload.name]:
        more = f" and {len(others) - MOST} more" if len(others) > MOST else ""
        say(f"  others      {', '.join(others[:MOST])}{more}: --benchmark NAME takes one of them")
    return chosen


def _described(found: "Described") -> list[str]:
    builder = found.builder
    words = ["bisect", "run", found.good, found.bad, "--builder", builder.name, "--workload", found.workload]
    return [
        f"{found.repository.folder} has a recipe already: builder {builder.name}, {builder.summary}.",
        "Nothing was written. Try:",
        f"  {shell_words([*words, '--repo', str(found.repository.folder)])}",
        f"Its other workloads: bisect workloads. A recipe of your own all the same: --name my-{builder.name}",
    ]


def _found(found: "Look") -> list[str]:
    proposal, range_ = found.proposal, found.range
    tagged = f", tagged {proposal.patterns[0]}" if proposal.patterns else ": there are no tags of releases"
    rows = {
        "tree": f"{found.files:,} files" + (f", most in {found.language}" if found.language else ""),
        "ends": f"{range_.good} and {range_.bad}{tagged}",
        "built by": proposal.system or "nothing: it is used as it is checked out",
        "ignored": ", ".join(proposal.ignore) or "nothing",
        "submodules": ", ".join(found.submodules) or "none",
    }
    return [
        f"{proposal.name}, from {found.repository.folder}:",
        *(f"  {key:10}  {printable(text)}" for key, text in rows.items()),
    ]


def _write(files: dict[Path, str]) -> None:
    """Write new files. Raises UsageError, and writes none, where one exists."""
    from perfbisect.errors import UsageError

    for file in files:
        if file.exists() or file.is_symlink():
            raise UsageError(f"{file} exists already. Nothing was written.", "Remove it, or choose another --name.")
    for file, text in files.items():
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("x", encoding="utf-8") as stream:
            stream.write(text)
