"""How two builds are compared: in turns, or in rounds of two that run at the same time.

Builds that run at the same time on the same cores meet the same disturbances: their difference does not show them. That
gains most on shared machines, and nothing on a silent one. It is not valid everywhere: two that wait for one disk, or
need more memory than there is for both, disturb each other. So the ends are measured in turns first. Where a run varies
little compared with their difference, or waits nearly all of its time, it stays at that. Otherwise they are measured in
rounds as well, and the way is chosen that shows the difference more clearly; in rounds only if they show at least half of
what turns are sure of. This is looked at again as readings come in: rounds are left once all of them vary more than turns, and
begun once turns vary so much more than was seen first.

Which of two gets a core for how long varies more than what each needs of it. So CPU time is compared in rounds, in place of
time, where that is known, and the ends do not differ in how long they wait.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from statistics import mean, median, stdev, variance

from perfbisect.core.domain.graph import Graph
from perfbisect.core.domain.orders import UNKNOWN, Decision, Interval, Measure, NotReproduced, Purpose, Share, Ways
from perfbisect.core.domain.settings import GAIN, PAIRS_FIRST, Direction, Pairing, Policy
from perfbisect.core.inference.analysis import NOISY, Contrast, contrast, least
from perfbisect.core.inference.noise_model import USUAL, NoiseModel, behaviour
from perfbisect.core.inference.observations import Observation, Reading
from perfbisect.core.inference.record import Record, arrange
from perfbisect.core.inference.state_space import fit, levels_of
from perfbisect.core.search.fresh_layouts import settled, with_layouts
from perfbisect.core.search.situation import Situation, afforded
from perfbisect.core.stats.distributions import Student

# A difference of so many s.d. of a run, the second as if these were known: turns show it fast enough.
CLEAR, SURE = 6.0, 4.0
UNSTEADY = 2.0  # times as many on a noisy host: what makes runs vary comes in phases, and it may be twice as noisy soon
AFFORDED = 40  # runs of a budget below which they would take too much of it
MORE = 2  # further runs of each end in turns, while it is doubtful whether rounds show what these do
# Little is assumed of the noise when both ways are compared: what is would be taken for the noise of few readings.
LITTLE, WORTH = 0.005, 1.0
# Between these shares so many runs in turns are made first: an outlier makes fewer look noisy, chance makes them look steady.
FAR, NEAR, FEW = 0.2, 1.5, 12
# Rounds of any builds from which on it is seen whether they are still better; turns are only if they vary less.
AGAIN = 8
LEFT = 0.5  # share of the difference in turns that rounds have to show
# Normal standard errors of turns by which rounds show too little: from the first on the ends are measured again in turns, until there
# are so many runs of each, since fewer do not tell the noise; from the second on rounds are not valid then.
DOUBTFUL, LOST = 1.3, 3.5
# The same where the ends are not measured again: chance must not look like builds that disturb each other. And of what both ways
# differ by, from which on they contradict each other.
SEEN_ONCE = 2.5
MOST = 8
# Share of the time in which one of the ends waits, from which on two would wait for each other, as for a disk that serves one
# request at a time: both last as long then, whatever they differ by. A server of short queries waits for 80 % on a busy machine.
WAITING = 0.93
WAITS_SEEN = 8  # rounds of the ends that tell whether they wait alike
LEAST_ERROR = 1e-9
WAITED = 2.2  # normal standard errors by which ends of the same CPU time are seen to wait differently
ALIKE = 2.0  # times the smallest effect of interest by which ends may differ in what they wait: it varies, and what is missed is seen later


def with_pairing(now: Situation) -> Decision:
    """The decision of the search, whose readings are made in turns or in rounds, as ``policy.pairing`` or the ends say."""
    if now.model.exact:
        return _by_turns(now)
    if now.policy.pairing is not Pairing.AUTO:
        return _as_chosen(now, now.policy.pairing is Pairing.PAIRED, again=now.policy.chosen)
    alone, beside = _ends_seen(now)
    ways = _ways(alone, beside, now)
    if ways is None or 0 < now.policy.max_runs < AFFORDED:
        return _by_turns(now)
    if ways.clear or ways.waiting:
        decision = _by_turns(now)
        goes_on = not isinstance(decision.order, Measure) or decision.order.purpose is not Purpose.ENDS
        return replace(decision, ways=ways if goes_on else None)
    if len(beside) < PAIRS_FIRST or ways.doubtful:
        decision = _by_turns(now)
        if not isinstance(decision.order, Measure) and settled(decision.order):
            return decision
        together = len(beside) < PAIRS_FIRST and not ways.doubtful
        decision = replace(decision, evidence=())  # turns may not be what is searched by
        return _with_ends(decision, now, PAIRS_FIRST if together else MORE, together=together)
    decision = _as_chosen(now, ways.together, by_cpu=ways.by_cpu, again=True)
    return replace(decision, ways=decision.ways or ways)


def _as_chosen(now: Situation, together: bool, *, by_cpu: bool = False, again: bool) -> Decision:
    """The decision in the way that was chosen; with ``again`` in the other one, where all readings show that it is better."""
    alone, beside = _ends_seen(now, every=True) if again else ([], [])
    ways = _ways(alone, beside, now) if alone and len(beside) >= PAIRS_FIRST else None
    if together:
        if ways is None or len(beside) < AGAIN or not ways.in_turns < ways.in_rounds < math.inf:
            return _by_rounds(_in_rounds(now, by_cpu=by_cpu))
        if len(alone) >= FEW:
            return replace(_by_turns(now), ways=replace(ways, together=False))
        return _with_ends(replace(_by_turns(now), evidence=()), now, MORE)
    if ways and ways.together and not ways.doubtful:
        return replace(_by_rounds(_in_rounds(now, by_cpu=ways.by_cpu)), ways=ways)
    return _by_turns(now)


def _with_ends(decision: Decision, now: Situation, runs: int, *, together: bool = False) -> Decision:
    """The decision with so many runs of each end as its order, or rounds of both."""
    plan = tuple(Share(end, runs) for end in (now.bad, 0))
    return afforded(replace(decision, order=Measure(plan, Purpose.ENDS, now.fleet.free_host, together=together)), now)


def _by_turns(now: Situation) -> Decision:
    """The decision of the search by what was measured in turns; rounds have been spent elsewhere."""
    return with_layouts(now.with_readings(lambda seen: seen.partner is None).charged(now))


def _in_rounds(now: Situation, *, by_cpu: bool) -> Situation:
    """The situation by its rounds alone; what was measured in turns has been spent elsewhere."""
    rounds = now.with_readings(
        lambda seen: seen.partner is not None and not (by_cpu and seen.cpu is None),
        prior=replace(now.prior, noise=None), model=USUAL.of_rounds,
    ).charged(now)  # fmt: skip
    return replace(rounds, observations=timed_by_cpu(rounds.observations)) if by_cpu else rounds


def _by_rounds(rounds: Situation) -> Decision:
    """The decision of the search; by time, where nothing has changed by CPU time, and the ends wait differently in their rounds."""
    decision, seen = with_layouts(rounds), rounds.observations
    by_cpu = any(isinstance(each, Reading) and each.time is not None for each in seen)
    if not isinstance(decision.order, NotReproduced) or not by_cpu:
        return decision
    more = _waits_more(rounds)
    if len(more) < WAITS_SEEN:
        return _with_ends(decision, rounds, WAITS_SEEN - len(more), together=True)
    error = stdev(more) / math.sqrt(len(more)) or math.inf
    if abs(Student(len(more) - 1).score(mean(more) / error)) < WAITED:
        return decision
    timed = [each.by_time if isinstance(each, Reading) else each for each in seen]
    by_time = replace(rounds, observations=timed)
    ends = _ends(by_time.record, by_time, by_time.model)
    shown = ends.ratio(by_time.record.sign)
    return replace(with_layouts(by_time), ways=Ways(True, math.inf, ends.noise, UNKNOWN, shown, waits=True))


def _waits_more(rounds: Situation) -> list[float]:
    """What bad waits longer than good in each of their rounds, in log units: what time shows beyond CPU time.

    It has neither the noise of these in it, nor code placement.
    """
    good, bad = rounds.record.name(0), rounds.record.name(rounds.bad)
    more = []
    for each in rounds.observations:
        if isinstance(each, Reading) and each.time is not None and each.partner is not None:
            sides = rounds.record.name(each.candidate), rounds.record.name(each.partner)
            if sides in {(good, bad), (bad, good)}:
                more.append((each.time - each.value) * (1 if sides[0] == bad else -1))
    return more


def timed_by_cpu(seen: Sequence[Observation]) -> list[Observation]:
    """The same with CPU time in place of time."""
    return [each.by_cpu if isinstance(each, Reading) else each for each in seen]


def _ends_seen(now: Situation, *, every: bool = False) -> tuple[list[Reading], list[Reading]]:
    """The first readings of the ends in turns, and in rounds, as they are linked usually; or all, with rounds of any builds."""
    ends, alone, beside = {now.record.name(0), now.record.name(now.bad)}, list[Reading](), list[Reading]()
    for seen in now.observations:
        if isinstance(seen, Reading):
            sides = {now.record.name(side) for side in (seen.candidate, seen.partner) if side is not None}
            if not seen.layout and (sides <= ends or (every and seen.partner is not None)):
                (alone if seen.partner is None else beside).append(seen)
    if every:
        return alone, beside
    return alone[: 2 * MOST], beside[:PAIRS_FIRST]


def ways_of(seen: Sequence[Observation]) -> Ways | None:
    """The better way to compare two builds, 0 and 1, by readings of both; None where that is not known."""
    now = Situation(Graph.line(1), seen, Policy(direction=Direction.ANY))
    alone, beside = _ends_seen(now)
    ways = _ways(alone, beside, now, chance=SEEN_ONCE)
    return ways if ways and (ways.clear or ways.waiting or len(beside) >= PAIRS_FIRST) else None


def _ways(
    alone: Sequence[Reading], beside: Sequence[Reading], now: Situation, *, chance: float = DOUBTFUL
) -> Ways | None:
    """The better way: rounds, where they are less noisy and show at least half of the difference that turns are sure of.

    None while one of the ends has no reading in turns.
    """
    record = arrange(alone, now.policy, now.bad)
    if not (record.runs(0) and record.runs(now.bad)):
        return None
    turns = _ends(record, now, USUAL)
    noise = math.sqrt(2) * _ends(record, now, replace(USUAL, noise=LITTLE, worth=WORTH)).noise
    seen = Interval.around(-record.sign * turns.drop, 2 * turns.error)
    size = abs(turns.drop) / turns.noise
    needed = CLEAR * (UNSTEADY if turns.noise > NOISY else 1.0)
    clear = size >= needed and Student(turns.freedom).score(size) >= SURE
    waits = 1 - math.exp(-max(map(median, _waits(alone, record, now))))
    waiting = waits if waits > WAITING else 0.0
    if clear or waiting or len(beside) < PAIRS_FIRST:
        # A few more runs in turns may make it clear, for less than rounds cost.
        nearly = size >= needed and not beside and len(alone) < FEW
        return Ways(False, noise, math.inf, seen, UNKNOWN, clear=clear, waiting=waiting, doubtful=nearly)
    by_cpu, enough = _waits_alike(alone, beside, record, now), len(alone) >= 2 * MOST
    both = arrange(timed_by_cpu(beside) if by_cpu else beside, now.policy, now.bad)
    rounds = _ends(both, now, USUAL.of_rounds)
    kept = math.copysign(1.0, record.sign * turns.drop * both.sign * rounds.drop) * abs(rounds.drop)
    less = kept < LEFT * abs(turns.drop)
    apart = Student(turns.freedom).score((abs(turns.drop) - kept) / turns.error) if less else 0.0
    valid = apart < (LOST if enough else chance)
    of_round = _ends(both, now, replace(USUAL.of_rounds, noise=math.sqrt(2) * LITTLE, worth=WORTH)).noise
    quieter = of_round < GAIN * noise
    shown = Interval.around(-both.sign * rounds.drop, 2 * rounds.error)
    doubtful = not enough and (by_cpu is False or (quieter and not valid))
    doubtful |= FAR * noise < of_round < NEAR * noise and len(alone) < FEW
    lost, differ = quieter and not valid, abs(turns.drop - record.sign * both.sign * rounds.drop)
    contradict = Student(turns.freedom).score(differ / math.hypot(turns.error, rounds.error)) > SEEN_ONCE
    doubtful |= contradict and not enough
    return Ways(valid and quieter, noise, of_round, seen, shown, lost, contradict, bool(by_cpu), doubtful=doubtful)


def _waits_alike(alone: Sequence[Reading], beside: Sequence[Reading], record: Record, now: Situation) -> bool | None:
    """Whether the ends differ by CPU time if they do, not by waiting; None where CPU time is unknown.

    Others on the machine only add to the waiting of a run, so that the run of each end which waits least shows its own. Where
    others are so busy that the runs of one end vary in this, a difference between the ends has to be beyond that.
    """
    if any(each.cpu is None for each in (*alone, *beside)):
        return None
    good, bad = _waits(alone, record, now)
    if abs(min(good) - min(bad)) <= ALIKE * least(now.policy):
        return True
    if min(len(good), len(bad)) < 2:
        return False
    error = math.sqrt(variance(good) / len(good) + variance(bad) / len(bad)) or LEAST_ERROR
    return abs(Student(len(good) + len(bad) - 2).score((mean(good) - mean(bad)) / error)) < WAITED


def _waits(alone: Sequence[Reading], record: Record, now: Situation) -> Sequence[list[float]]:
    """How long the runs of good wait, and those of bad: logarithms of their time over their CPU time."""
    ends = (record.name(0), record.name(now.bad))
    return [[seen.waits for seen in alone if record.name(seen.candidate) == end] for end in ends]


def _ends(record: Record, now: Situation, model: NoiseModel) -> Contrast:
    levels = levels_of(fit(record, behaviour(record, 0, now.bad, model).weight, model))
    return contrast(levels, record.builds.index(0), record.builds.index(now.bad))
