"""`bisect prove`: measure good, bad, and bad without the culprit."""

from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import click

from perfbisect.cli.options.common import id_argument, leasing_for, notify_option
from perfbisect.cli.options.measurement import announce_recipes, continued, json_form_option, round_options
from perfbisect.ui.stream import note

if TYPE_CHECKING:
    from perfbisect.host.lock import WaitCallback

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
@id_argument()
@round_options(6, 2, "Rounds: visits of each build.", least=2)
@json_form_option
@notify_option
def prove(
    hunt: int | None, visits: int, runs: int, form: str, waiting: "WaitCallback | None", notify: tuple[str, ...],
    history: Path | None,
) -> int:  # fmt: skip
    """Revert the culprit of HUNT (default: the latest that named one) on top of bad, and measure what that regains.

    Good, bad, and bad without the culprit take turns, with the settings of the hunt, on its first host. The share that
    the revert regains of what was lost has a 95 % interval. Your clone is only read.
    """
    from dataclasses import replace

    from perfbisect.cli.trials import conclude, measured
    from perfbisect.hunt.notification import notifying
    from perfbisect.hunt.trials.proof import claim_of, proof_setup
    from perfbisect.store.history import History

    with closing(History.open(history)) as opened:
        claim = claim_of(opened, hunt)
    claim = replace(claim, settings=continued(claim.settings), together=tuple(map(continued, claim.together)))
    announce_recipes(claim.settings)
    with (
        notifying(notify, history, note) as begun,
        leasing_for(replace(claim.settings, further_hosts=()), history),
        proof_setup(claim, visits, runs, waiting, note) as setup,
    ):
        ended = measured(setup, history, form, begun, waiting)
    return conclude(ended, history, form)
