"""How two builds are compared: in turns, or in rounds of two that run at the same time.

Builds that run at the same time on the same cores meet the same disturbances: their difference does not show them. That
gains most on shared machines, and nothing on a silent one. It is not valid everywhere: two that wait for one disk, or
need more memory than there is for both, disturb each other. So the ends are measured in turns first. Where a run varies
little compared with their difference, it stays at that. Otherwise they are measured in rounds as well, and the way is
chosen that shows the difference more clearly; in rounds only if they show at least half of what turns are sure of.
"""

import math
from dataclasses import replace

from perfbisect.core.domain.orders import Interval, Measure, Purpose, Share, Ways
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
# Standard errors by which the difference in turns may be smaller than it seems: they are guesses after two runs each.
SURE = 4.0


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
    alone, beside = compared(now)
    if alone is None or abs(alone.drop) >= CLEAR * alone.noise:  # turns show it fast enough
        return hunt(turns)
    if beside is None:
        decision = hunt(turns)
        if not isinstance(decision.order, Measure):
            return decision
        plan = (Share(now.bad, ROUNDS), Share(0, ROUNDS))
        return replace(decision, order=Measure(plan, Purpose.ENDS, decision.order.host, together=True))
    ways = chosen(alone, beside, now.record.sign)
    return replace(hunt(rounds if ways.together else turns), ways=ways)


def chosen(alone: Contrast, beside: Contrast, sign: float) -> Ways:
    """The better way: rounds, where they are less noisy and show at least half of the difference that turns are sure of."""
    known = abs(alone.drop) - SURE * alone.error
    kept = math.copysign(beside.drop, alone.drop * beside.drop)
    valid = known <= 0 or kept >= LEFT * known
    quieter = beside.noise < GAIN * math.sqrt(2) * alone.noise
    turns, rounds = (Interval.around(-sign * each.drop, 2 * each.error) for each in (alone, beside))
    noise = math.sqrt(2) * alone.noise
    return Ways(valid and quieter, noise, beside.noise, turns, rounds, lost=quieter and not valid)


def compared(now: Situation) -> tuple[Contrast | None, Contrast | None]:
    """The first readings of the ends in turns, None while one of them has none; and in rounds, None before there are enough.

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
        return None, None
    rounds = _ends(arrange(both, now.policy, now.bad), now, together=True) if len(both) >= ROUNDS else None
    return _ends(turns, now, together=False), rounds


def _ends(record: Record, now: Situation, *, together: bool) -> Contrast:
    model = USUAL.of_rounds if together else USUAL
    levels = levels_of(fit(record, behaviour(record, 0, now.bad, model).weight, model))
    return contrast(levels, record.builds.index(0), record.builds.index(now.bad))
