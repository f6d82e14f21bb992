"""`bisect prove`: measure good, bad, and bad without the culprit."""

from contextlib import closing

from perfbisect.cli.options.common import Given, id_argument, notify_option, verb_command
from perfbisect.cli.options.measurement import announced_recipes, continued, json_form_option, round_options
from perfbisect.ui.stream import note


@verb_command()
@id_argument()
@round_options(6, 2, "Rounds: visits of each build.", least=2)
@json_form_option
@notify_option
def prove(given: Given) -> int:
    """Revert the culprit of HUNT (default: the latest that named one) on top of bad, and measure what that regains.

    Good, bad, and bad without the culprit take turns, with the settings of the hunt, on its first host. The share that
    the revert regains of what was lost has a 95 % interval. Your clone is only read.

    \b
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
    from dataclasses import replace

    from perfbisect.cli.sessions import conclude, measured, session
    from perfbisect.hunt.trials.proof import claim_of, proof_setup
    from perfbisect.store.history import History

    with closing(History.open(given.history)) as opened:
        claim = claim_of(opened, given.hunt)
    claim = replace(claim, settings=continued(claim.settings), together=tuple(map(continued, claim.together)))
    announced_recipes(claim.settings)
    with (
        session(given, replace(claim.settings, further_hosts=())) as notifier,
        proof_setup(claim, given.visits, given.runs, given.waiting, note) as setup,
    ):
        ended = measured(setup, given, notifier)
    return conclude(ended, given)
