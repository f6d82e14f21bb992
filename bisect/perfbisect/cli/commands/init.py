"""`bisect init`: write a builder and a suite for a repository that no recipe describes."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from perfbisect.cli.options.common import PATH, say
from perfbisect.wording.text import printable, shell_words

if TYPE_CHECKING:
    from perfbisect.hunt.proposal import Described, Look

EPILOG = """\b
Examples:
  cd ~/src/kv && bisect init
  bisect init --repo ~/src/kv --print
  bisect init --repo ~/src/kv.git --name kv --into ~/recipes

\b
What it finds are guesses: read the two files. Nothing of the repository is executed, and no file
is ever overwritten. A system with a shipped recipe needs none: its `bisect run` is printed.
"""


@click.command(epilog=EPILOG)
@click.option("--repo", type=PATH, help="The clone to look at. Default: the current folder.")
@click.option("--name", default="", metavar="NAME", help="Name of builder and suite. Default: that of the repository.")
@click.option("--into", type=PATH, metavar="DIR", help="Write below DIR. Default: ~/.config/perfbisect.")
@click.option("--print", "only_print", is_flag=True, help="Print the two files, and write none.")
def init(repo: Path | None, name: str, into: Path | None, only_print: bool) -> int:
    """Write a builder and a workload for any clone, and say what to run.

    It looks at the tags, the build system, the benchmarks and what cannot change the speed.
    """
    from perfbisect.folders import config_folder
    from perfbisect.hunt.proposal import Look, look
    from perfbisect.recipes import proposal

    found = look(repo or Path.cwd(), name, named=repo is not None)
    if not isinstance(found, Look):
        say("\n".join(_described(found)))
        return 0
    folder = into.expanduser().absolute() if into else config_folder()
    files = {
        folder / "builders" / found.proposal.name / "builder.toml": proposal.builder(found.proposal),
        folder / "workloads" / found.proposal.name / "suite.toml": proposal.suite(found.proposal),
    }
    say("\n".join(_found(found)))
    if only_print:
        say("\n".join(f"\n# {file}\n{text}" for file, text in files.items()).rstrip())
        return 0
    _write(files)
    say("\n".join(f"  wrote       {file}" for file in files))
    say(f"\n{_dry_run(found, folder if into else None)}")
    say("\n".join(_to_do(found, folder if into else None, list(files)[1])))
    return 0


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
        "benchmark": proposal.benchmark.what if proposal.benchmark else "none found",
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


def _dry_run(found: "Look", into: Path | None) -> str:
    """What `bisect run --dry-run` prints for the proposed hunt."""
    from perfbisect.core.domain.settings import Settings
    from perfbisect.hunt.dry_run import lines
    from perfbisect.hunt.resolve import resolve_settings

    requested = Settings(
        good=found.range.good,
        bad=found.range.bad,
        repository=str(found.repository.folder),
        builder=found.proposal.name,
        workload=f"{found.proposal.name}/{found.proposal.workload}",
        host="local",
        metric="",
        builders_path=str(into / "builders") if into else "",
        workloads_path=str(into / "workloads") if into else "",
    )
    return "\n".join(lines((resolve_settings(requested),)))


def _to_do(found: "Look", into: Path | None, suite: Path) -> list[str]:
    proposal = found.proposal
    words = ["bisect", "run", found.range.good, found.range.bad, "--builder", proposal.name]
    words += ["--workload", proposal.workload, "--repo", str(found.repository.folder)]
    if into:
        words += ["--builders", str(into / "builders"), "--workloads", str(into / "workloads")]
    advice = []
    if not proposal.benchmark:
        advice = [f"No benchmark was found. First put the command to measure into {suite}; until then a run fails."]
    elif not proposal.benchmark.workloads[0].cost:
        what = f"The duration of {proposal.workload} is measured."
        advice = [f"{what} Give it arguments, or a pattern for its output, in {suite}"]
    return ["", *advice, "Try:", f"  {shell_words(words)}"]
