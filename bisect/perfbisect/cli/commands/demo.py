"""`bisect demo`: find a planted slowdown in a small storage engine."""

import shutil
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import click

from perfbisect.cli.options.common import (
    PATH,
    Given,
    explain_option,
    history_option,
    hosts_option,
    verb_command,
    view_options,
)
from perfbisect.cli.options.measurement import announced_recipes, inventory_option, pairing_option
from perfbisect.cli.options.param_types import SEED, Percent
from perfbisect.core.domain.settings import AUTO, COUNTED, Pairing, Policy, PriorKnowledge, Settings
from perfbisect.errors import INTERRUPTED
from perfbisect.ui.stream import note

WRONG = 1


@verb_command()
@click.option("--seed", type=SEED, default=1, show_default=True, help="Seed of the history.")
@click.option("--drop", type=Percent(), help="Size of the planted drop. Default: 25% to 60%, from the seed.")
@click.option(
    "--changes", type=click.IntRange(1, 3), default=1,
    help="Plant so many commits, each of which slows another workload, and find all of them by `compare --hunt`.",
)  # fmt: skip
@hosts_option
@inventory_option
@click.option("--folder", type=PATH, help="Where the history is written.")
@pairing_option
@explain_option
@view_options
@history_option
@click.pass_context
def demo(ctx: click.Context, /, **options: Any) -> int:
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
    Exit status: 0 only if each commit named is the one that was planted.
    """
    given = Given(**options)
    if given.changes > 1 and given.view:
        raise click.UsageError(f"--{given.view} is for a single hunt: leave out --{given.view} or --changes.")
    import msgspec

    from perfbisect.cli.commands.compare import compare
    from perfbisect.cli.sessions import leasing, open_view
    from perfbisect.core.domain.orders import Found
    from perfbisect.demo.history import write_history
    from perfbisect.folders import cache_folder
    from perfbisect.hunt.attempt import Caller
    from perfbisect.hunt.forecast import forecast
    from perfbisect.hunt.resolve import resolve_settings
    from perfbisect.hunt.session import begin
    from perfbisect.hunt.setup import SessionSetup

    history, host, folder = given.history, given.host, given.folder
    place = folder or cache_folder() / "demo" / f"seed-{given.seed}"
    repository, answer_file = place / "repository", place / "answer.json"
    if folder is None or ours(answer_file):
        shutil.rmtree(repository, ignore_errors=True)
    place.mkdir(parents=True, exist_ok=True)
    answer = write_history(repository, given.seed, drop=given.drop, changes=given.changes)
    answer_file.write_bytes(msgspec.json.encode(answer))
    if given.changes > 1:
        planted_in = {"update-index": answer.commit, **answer.further}
        status = ctx.invoke(
            compare, builds=("v1.0", "v1.1"), workload=",".join(planted_in), builder="demo", repo=repository.absolute(),
            host=host, hosts=given.hosts, hunt=True, pairing=given.pairing, explain=given.explain, history=history, waiting=None,
        )  # fmt: skip
        if status == INTERRUPTED:  # the answer is for those who have searched to the end
            return INTERRUPTED
        return say_whether_right(planted_in, answer_file, history)

    settings = Settings(
        "v1.0", "v1.1", str(repository.absolute()), "demo", "update-index", host[0], further_hosts=host[1:], metric=AUTO,
        policy=Policy(pairing=Pairing(given.pairing), min_counted=COUNTED), explain=given.explain,
        prior=PriorKnowledge(build_cost=1.0), hosts_path=str(given.hosts or ""),
    )  # fmt: skip
    announced_recipes(settings)
    with leasing(settings.hosts, settings.hosts_path, purpose=f"bisect demo --seed {given.seed}"):
        [setup] = SessionSetup.set_up([resolve_settings(settings)])
        note(forecast(history, [setup.settings], setup.span, setup.host))
        [outcome] = begin([setup], Caller(history, open_view(history, given.view)))
    planted = answer.commit[:10]
    if not isinstance(outcome.verdict, Found):
        note(f"The hunt named no commit; planted was {planted} ({answer_file}).")
        return outcome.status
    named = setup.span.candidates[outcome.verdict.step.candidate]
    if named != answer.commit:
        note(f"Wrong: named {named[:10]}, planted was {planted} ({answer_file}).")
        return WRONG
    note(f"Right: {planted} is the commit that was planted ({answer_file}).")
    return 0


def say_whether_right(planted: Mapping[str, str], answer_file: Path, history: Path | None) -> int:
    """Say for each workload whether the hunt of the latest comparison named the planted commit; returns the exit status."""
    from perfbisect.store.history import History

    with closing(History.open(history, read_only=True)) as opened:
        latest = [str(each.id) for each in opened.trials() if each.kind == "compare"][-1]
        trial = opened.trial(latest)
    named = {trial.request.works[each.work].name: each.culprit for each in trial.hunts}
    for workload, commit in planted.items():
        found = named.get(workload, "")
        if found == commit:
            note(f"Right: {commit[:10]}, planted in {workload}, was named.")
        else:
            said = f"Wrong: {found[:10]} was named" if found else "No commit was named"
            note(f"{said} in {workload}, planted was {commit[:10]} ({answer_file}).")
    return 0 if all(named.get(workload) == commit for workload, commit in planted.items()) else WRONG


def ours(answer_file: Path) -> bool:
    """Whether an earlier demo wrote the repository beside it. Raises UsageError for a file that is not an answer."""
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
