"""`bisect prove`: measure good, bad, and bad without the culprit."""

from contextlib import closing
from pathlib import Path

import click

from perfbisect.cli.options.common import (
    history_option,
    leasing,
    notify_option,
    wait_callback,
    wait_option,
)
from perfbisect.cli.options.completion import hunt_number
from perfbisect.cli.options.measurement import announce_recipes, continued
from perfbisect.cli.options.param_types import COUNT, HUNT
from perfbisect.ui.stream import note

EPILOG = """\b
Examples:
  bisect prove                 the latest hunt that named a culprit
  bisect prove 12
  bisect prove 12 --visits 12  a narrower interval
  bisect prove 12 --json | jq .proof

\b
Ctrl-C keeps what was measured, and `bisect resume p5` continues it. `bisect history` lists
proofs, `bisect show p5` reports one, and `bisect show 12` has those of hunt 12.

\b
Exit status: 0 the revert regains something, 1 it is not shown to regain anything or nothing was
lost, 2 undecided: the interval is too wide, the culprit does not revert cleanly, or the result
does not build; 3 usage or configuration error, 4 environment failure, 130 interrupted.
"""


@click.command(epilog=EPILOG)
@click.argument("hunt", type=HUNT, required=False, shell_complete=hunt_number)
@click.option(
    "--visits", type=click.IntRange(2, 1_000_000), default=6, show_default=True, help="Rounds: visits of each build."
)
@click.option("--runs", type=COUNT, default=2, show_default=True, help="Timed runs in each visit.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object at the end.")
@wait_option
@notify_option
@history_option
def prove(
    hunt: int | None, visits: int, runs: int, as_json: bool, wait: bool, notify: tuple[str, ...], history: Path | None
) -> int:
    """Revert the culprit of HUNT (default: the latest that named one) on top of bad, and measure what that regains.

    Good, bad, and bad without the culprit take turns, with the settings of the hunt, on its first host. The share that
    the revert regains of what was lost has a 95 % interval. Your clone is only read.
    """
    from dataclasses import replace

    from perfbisect.cli.trials import carried_out, conclude
    from perfbisect.hunt.leased_hosts import purpose_of
    from perfbisect.hunt.notification import notifying
    from perfbisect.hunt.trials.proof import claim_of, proof_setup
    from perfbisect.hunt.trials.session import begin
    from perfbisect.store.history import History

    with closing(History.open(history)) as opened:
        claim = claim_of(opened, hunt)
    claim = replace(claim, settings=continued(claim.settings), together=tuple(map(continued, claim.together)))
    announce_recipes(claim.settings)
    first = claim.settings.hosts[:1]
    with (
        notifying(notify, history, note) as begun,
        leasing(first, claim.settings.hosts_path, purpose=purpose_of(claim.settings)),
        proof_setup(claim, visits, runs, wait_callback(wait), note) as plan,
    ):
        trial, cut = carried_out(
            lambda view, noted: begin(plan, history, view, note, noted), history, begun, quiet=as_json
        )
    return conclude(trial, cut, history, "json" if as_json else "")
