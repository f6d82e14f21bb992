"""How two builds are compared: in turns, or in rounds of two that run at the same time.

Builds that run at the same time on the same cores meet the same disturbances: their difference does not show them. That
gains most on shared machines, and nothing on a silent one. It is not valid everywhere: two that wait for one disk, or
need more memory than there is for both, disturb each other. So the ends are measured in turns first. Where a run varies
little compared with their difference, it stays at that. Otherwise they are measured in rounds as well, and the way is
chosen that shows the difference more clearly; in rounds only if they show at least half of what turns are sure of.
"""

import math
from dataclasses import dataclass, replace

from perfbisect.core.domain.orders import Measure, Purpose, Share
from perfbisect.core.domain.settings import Pairing
from perfbisect.core.inference.analysis import Contrast, contrast
from perfbisect.core.inference.noise_model import USUAL
from perfbisect.core.inference.observations import Reading
from perfbisect.core.inference.record import Record, arrange, behaviour
from perfbisect.core.inference.state_space import fit, levels_of
from perfbisect.core.search.older_branches import Hunt
from perfbisect.core.search.situation import Proposal, Situation

CLEAR = 6.0  # a difference of so many s.d. of a run: turns show it fast enough
ROUNDS = 4  # of the ends, before the way is chosen
GAIN = 0.6  # s.d. of the difference of a round, as a share of that of two runs in turns, below which rounds are better
LEFT = 0.5  # share of the difference in turns that rounds have to show
SURE = (
    4.0  # standard errors at which the difference in turns is taken to be known: they are guesses after two runs each
)


@dataclass(frozen=True, slots=True)
class Ways:
    """The ends, good against bad, measured both ways."""

    turns: Contrast
    rounds: Contrast | None = None

    @property
    def large(self) -> bool:
        """Whether turns show the difference fast enough."""
        return abs(self.turns.drop) >= CLEAR * self.turns.noise

    @property
    def together(self) -> bool:
        """Whether rounds are the better way, and valid."""
        if self.rounds is None:
            return False
        known = abs(self.turns.drop) - SURE * self.turns.error
        kept = math.copysign(self.rounds.drop, self.turns.drop * self.rounds.drop)
        valid = known <= 0 or kept >= LEFT * known
        return valid and self.rounds.noise < GAIN * math.sqrt(2) * self.turns.noise


def with_pairing(hunt: Hunt, now: Situation) -> Proposal:
    """The decision of ``hunt``, whose readings are made in turns or in rounds, as ``policy.pairing`` or the ends say."""
    turns = now.with_readings(lambda seen: seen.partner is None)
    if now.model.exact or now.policy.pairing is Pairing.TURNS:
        return hunt(turns)
    spent = replace(now.elsewhere, runs=now.elsewhere.runs + turns.record.spent)
    rounds = now.with_readings(
        lambda seen: seen.partner is not None,
        prior=replace(now.prior, noise=None), model=USUAL.of_rounds, elsewhere=spent,
    )  # fmt: skip
    if now.policy.pairing is Pairing.TOGETHER:
        return hunt(rounds)
    ways = compared(now)
    if ways is None or ways.large:
        return hunt(turns)
    if ways.rounds is None:
        decision = hunt(turns)
        if not isinstance(decision.order, Measure):
            return decision
        plan = (Share(now.bad, ROUNDS), Share(0, ROUNDS))
        return replace(decision, order=Measure(plan, Purpose.ENDS, decision.order.host, together=True))
    return hunt(rounds if ways.together else turns)


def compared(now: Situation) -> Ways | None:
    """The first readings of the ends both ways; None while one of them has no run in turns.

    Only what was read until the way was chosen: later readings do not change it.
    """
    first: list[Reading] = []
    for seen in now.observations:
        if isinstance(seen, Reading):
            if seen.partner is None and any(one.partner is not None for one in first):
                break
            first.append(seen)
    alone = [seen for seen in first if seen.partner is None]
    both = [seen for seen in first if seen.partner is not None][:ROUNDS]
    turns = arrange(alone, now.policy, now.bad)
    if not (turns.runs(0) and turns.runs(now.bad)):
        return None
    if len(both) < ROUNDS:
        return Ways(_ends(turns, now, together=False))
    return Ways(_ends(turns, now, together=False), _ends(arrange(both, now.policy, now.bad), now, together=True))


def _ends(record: Record, now: Situation, *, together: bool) -> Contrast:
    model = USUAL.of_rounds if together else USUAL
    levels = levels_of(fit(record, behaviour(record, 0, now.bad, model).weight, model))
    return contrast(levels, record.builds.index(0), record.builds.index(now.bad))
