"""`bisect demo` finds a planted slowdown in a small storage engine."""

import shutil
import time
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

import click

from perfbisect.cli.options.common import (
    PATH,
    CommandOptions,
    explain_option,
    history_option,
    options_command,
    view_options,
)
from perfbisect.cli.options.measurement import hosts_option, inventory_option, pairing_option
from perfbisect.cli.options.param_types import SEED, ShareParam, WholeNumber
from perfbisect.errors import INTERRUPTED
from perfbisect.ui.stream import note

WRONG = 1


@options_command()
@click.option("--seed", type=SEED, default=1, show_default=True, help="Seed from which the history is generated.")
@click.option(
    "--drop", type=ShareParam(), help="Size of the planted drop of the speed. Default: 25% to 60%, chosen by the seed."
)
@click.option(
    "--changes", type=WholeNumber(1, 3), default=1,
    help="Number of commits to plant. Each commit slows a different workload. `compare --hunt` finds all of them.",
)  # fmt: skip
@hosts_option
@inventory_option
@click.option("--folder", type=PATH, help="Folder for the repository and the solution: the planted commit.")
@pairing_option
@explain_option
@view_options
@history_option
def demo(given: CommandOptions) -> int:
    """Generate a git repository with 60 commits of a small storage engine, and find the commit that slows down the
    workload update-index.

    This planted commit is also written to a file that the hunt does not read. At the end, the command compares the
    verdict with the planted commit.

    \b
    Examples:
      bisect demo                      plant one commit, and find it
      bisect demo --seed 7             another repository and another planted commit
      bisect demo --seed 7 --drop 8%   plant a drop of 8 %
      bisect demo --host dell32        measure on a host of hosts.toml
      bisect demo --changes 3          plant three commits, each for another workload

    \b
    Exit status: 0 if the verdicts name all planted commits and no other commit.
    """
    if given.changes > 1 and given.view:
        raise click.UsageError(
            f"--{given.view} and --changes exclude each other: --{given.view} shows a single hunt. Omit one of the two options."
        )
    import msgspec

    from perfbisect.cli.commands.run import run
    from perfbisect.cli.commands.trials import compare
    from perfbisect.demo.history import write_history
    from perfbisect.folders import cache_folder

    folder = given.folder or cache_folder() / "demo" / f"seed-{given.seed}"
    repository, answer_file = folder / "repository", folder / "answer.json"
    if given.folder is None or is_repository_of_demo(answer_file):
        shutil.rmtree(repository, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    answer = write_history(repository, given.seed, drop=given.drop, planted_count=given.changes)
    answer_file.write_bytes(msgspec.json.encode(answer))
    planted, begun = {"update-index": answer.commit, **answer.further}, time.time()
    how = {name: getattr(given, name) for name in ("host", "hosts", "pairing", "explain", "history")}
    how |= {"workload": ",".join(planted), "builder": "demo", "repo": repository.absolute(), "waiting": None}
    ends, ctx = ("v1.0", "v1.1"), click.get_current_context()
    if given.changes > 1:
        status = ctx.invoke(compare, builds=ends, hunt=True, form="", **how)
    else:
        status = ctx.invoke(run, good=ends[0], bad=ends[1], layouts=False, view=given.view, **how)
    if status == INTERRUPTED:  # after an interruption the planted commits stay secret
        return INTERRUPTED
    return 0 if are_planted_commits_named(planted, answer_file, given.history, begun) else status or WRONG


def are_planted_commits_named(
    planted: Mapping[str, str], answer_file: Path, history: Path | None, begun: float
) -> bool:
    """Whether the hunts that began after ``begun`` (seconds since 1970) named the slow commits; ``planted`` maps each
    workload to its slow commit. Prints the result of each hunt."""
    from perfbisect.store.history import History

    with closing(History.open(history, read_only=True)) as opened:
        named = {hunt.workloads[0]: hunt.culprit for hunt in opened.hunts() if hunt.started >= begun}
    for workload, commit in planted.items():
        if (culprit := named.get(workload)) == commit:
            note(f"Right: the hunt of {workload} named {commit[:10]}, the planted commit ({answer_file}).")
        else:
            result = (
                f"Wrong: the hunt of {workload} named {culprit[:10]}"
                if culprit
                else f"The hunt of {workload} named no commit"
            )
            note(f"{result}; the planted commit is {commit[:10]} ({answer_file}).")
    return all(named.get(workload) == commit for workload, commit in planted.items())


def is_repository_of_demo(answer_file: Path) -> bool:
    """Whether the repository in the folder of ``answer_file`` is the repository that an earlier `bisect demo` wrote.
    Raises UsageError if the file was not written by `bisect demo`.
    """
    import msgspec

    from perfbisect.demo.history import DemoAnswer
    from perfbisect.errors import UsageError

    if not answer_file.exists():
        return False
    try:
        msgspec.json.decode(answer_file.read_bytes(), type=DemoAnswer)
    except msgspec.DecodeError:
        text = f"The folder contains {answer_file}, which `bisect demo` did not write."
        raise UsageError(text, "Give the path of a new folder with --folder.") from None
    return True
