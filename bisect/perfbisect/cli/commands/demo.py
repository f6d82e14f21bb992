"""`bisect demo`: find a planted slowdown in a small storage engine."""

import shutil
import time
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

import click

from perfbisect.cli.options.common import PATH, Given, explain_option, history_option, verb_command, view_options
from perfbisect.cli.options.measurement import hosts_option, inventory_option, pairing_option
from perfbisect.cli.options.param_types import SEED, Percent
from perfbisect.errors import INTERRUPTED
from perfbisect.ui.stream import note

WRONG = 1


@verb_command()
@click.option("--seed", type=SEED, default=1, show_default=True, help="Seed of the history.")
@click.option("--drop", type=Percent(), help="Size of the planted drop. Default: 25% to 60%, from the seed.")
@click.option(
    "--changes", type=click.IntRange(1, 3), default=1,
    help="Plant this number of commits, each of which slows another workload, and find all of them by `compare --hunt`.",
)  # fmt: skip
@hosts_option
@inventory_option
@click.option("--folder", type=PATH, help="The folder of the history.")
@pairing_option
@explain_option
@view_options
@history_option
def demo(given: Given) -> int:
    """Write a small storage engine with 60 commits of history, and find the commit that slowed update-index.

    The answer is written to a file that the hunt does not read, and compared at the end.

    \b
    Examples:
      bisect demo
      bisect demo --seed 7
      bisect demo --seed 7 --drop 8%   a drop of your choice
      bisect demo --host dell32        on a host of hosts.toml
      bisect demo --changes 3          three commits in three workloads, found by `compare --hunt`

    \b
    Exit status: 0 only if each named commit was planted.
    """
    if given.changes > 1 and given.view:
        raise click.UsageError(f"--{given.view} is for a single hunt: leave out --{given.view} or --changes.")
    import msgspec

    from perfbisect.cli.commands.run import run
    from perfbisect.cli.commands.trials import compare
    from perfbisect.demo.history import write_history
    from perfbisect.folders import cache_folder

    folder = given.folder or cache_folder() / "demo" / f"seed-{given.seed}"
    repository, answer_file = folder / "repository", folder / "answer.json"
    if given.folder is None or ours(answer_file):
        shutil.rmtree(repository, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    answer = write_history(repository, given.seed, drop=given.drop, changes=given.changes)
    answer_file.write_bytes(msgspec.json.encode(answer))
    planted, begun = {"update-index": answer.commit, **answer.further}, time.time()
    how = {name: getattr(given, name) for name in ("host", "hosts", "pairing", "explain", "history")}
    how |= {"workload": ",".join(planted), "builder": "demo", "repo": repository.absolute(), "waiting": None}
    ends, ctx = ("v1.0", "v1.1"), click.get_current_context()
    if given.changes > 1:
        status = ctx.invoke(compare, builds=ends, hunt=True, form="", **how)
    else:
        status = ctx.invoke(run, good=ends[0], bad=ends[1], layouts=False, view=given.view, **how)
    if status == INTERRUPTED:  # an interrupted search does not show the answer
        return INTERRUPTED
    return 0 if are_right(planted, answer_file, given.history, begun) else status or WRONG


def are_right(planted: Mapping[str, str], answer_file: Path, history: Path | None, begun: float) -> bool:
    """Whether the hunts since ``begun`` (seconds since 1970) named the ``planted`` commits (workload → commit). Says each result."""
    from perfbisect.store.history import History

    with closing(History.open(history, read_only=True)) as opened:
        named = {hunt.workloads[0]: hunt.culprit for hunt in opened.hunts() if hunt.started >= begun}
    for workload, commit in planted.items():
        if (culprit := named.get(workload)) == commit:
            note(f"Right: {commit[:10]}, planted in {workload}, was named ({answer_file}).")
        else:
            result = f"Wrong: {culprit[:10]} was named" if culprit else "No commit was named"
            note(f"{result} in {workload}, planted was {commit[:10]} ({answer_file}).")
    return all(named.get(workload) == commit for workload, commit in planted.items())


def ours(answer_file: Path) -> bool:
    """Whether an earlier demo wrote the repository beside ``answer_file``. Raises UsageError for a file that is no answer."""
    import msgspec

    from perfbisect.demo.history import DemoAnswer
    from perfbisect.errors import UsageError

    if not answer_file.exists():
        return False
    try:
        msgspec.json.decode(answer_file.read_bytes(), type=DemoAnswer)
    except msgspec.DecodeError:
        raise UsageError(
            f"{answer_file} was not written by `bisect demo`.", "Choose a folder that does not exist yet."
        ) from None
    return True
