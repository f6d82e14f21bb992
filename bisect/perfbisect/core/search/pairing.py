"""The choice between interleaved and paired runs for a comparison of two builds.

Builds that run at the same time on the same cores meet the same disturbances, so the disturbances cancel in their
difference. Paired runs bring most on machines that others use, too, and nothing on a quiet machine. Paired runs are not
always valid, because two builds disturb each other if they wait for the same disk, or together need more memory than
the host has. So the ends are first measured by interleaved runs. If the noise of a run is small compared with the
difference of the ends, or if a run waits for nearly all of its time, only interleaved runs are made. Otherwise paired
runs (rounds) of the ends are also made, and the pairing that shows the difference more clearly is chosen. Paired runs
are chosen only if they show at least half of the difference that interleaved runs show with certainty. The choice of
the pairing is checked again with every new reading. Paired runs end if they vary more than interleaved runs, and begin
if interleaved runs vary much more than the first runs did.

How long two builds wait for a core varies more than the CPU time that they need. So rounds compare CPU time, not
wall-clock time, if CPU time is known and the ends wait equally long.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from statistics import mean, median, stdev, variance

from perfbisect.core.domain.graph import Graph
from perfbisect.core.domain.orders import (
    UNKNOWN,
    Decision,
    Interval,
    Measure,
    NotReproduced,
    PairingComparison,
    PlannedRuns,
    Purpose,
)
from perfbisect.core.domain.settings import GAIN, PAIRS_FIRST, Direction, Pairing, Policy
from perfbisect.core.inference.analysis import NOISY, Contrast, contrast_of_builds, min_log_change
from perfbisect.core.inference.noise_model import USUAL, NoiseModel, weigh_readings
from perfbisect.core.inference.observations import Observation, Reading
from perfbisect.core.inference.record import Record, arrange_observations
from perfbisect.core.inference.state_space import fit_levels, levels_for_search
from perfbisect.core.search.randomized_layouts import decide_with_layouts, is_independent_of_layout
from perfbisect.core.search.situation import Situation, within_budget
from perfbisect.core.stats.distributions import Student

# Interleaved runs are enough for a difference of this many s.d. of a run; the second limit is the normal score of that
# difference.
CLEAR, SURE = 6.0, 4.0
UNSTEADY = 2.0  # factor for CLEAR on a noisy host, where disturbances come in phases and the noise may double soon
AFFORDED = 40  # runs of the smallest budget with which rounds of the ends are made
MORE = 2  # further interleaved runs of each end while it is uncertain whether rounds show the same difference
# A small prior noise with a small weight for the comparison of both pairings, because a larger prior noise would decide
# if there are few readings.
PRIOR_NOISE, PRIOR_WEIGHT = 0.005, 1.0
# If the noise of rounds relative to interleaved runs is between these limits, FEW interleaved runs are made first.
# Fewer runs may look noisy because of one outlier, or quiet by chance.
FAR, NEAR, FEW = 0.2, 1.5, 12
AGAIN = 8  # rounds of any builds from which on the choice of rounds is checked again
SHOWN_SHARE = 0.5  # share of the difference of interleaved runs that rounds have to show
# Normal scores of the difference that rounds do not show. From DOUBTFUL on, the ends get more interleaved runs, until
# each has MOST runs, because fewer runs do not show the noise. With MOST runs, rounds are not valid from LOST on.
DOUBTFUL, LOST = 1.3, 3.5
# The limit in place of DOUBTFUL if the ends do not get more runs: chance must not look like builds that disturb each
# other. This is also the normal score from which on the differences by both pairings contradict each other.
SEEN_ONCE = 2.5
MOST = 8
# If an end waits for a larger share of the time, paired runs would wait for each other, for example for a disk that
# serves one request at a time. Such paired runs last equally long, whatever the difference. A server of short queries
# waits for 80 % of the time on a busy machine.
WAITING = 0.93
WAIT_ROUNDS = 8  # rounds of the ends that show whether the ends wait alike
LEAST_ERROR = 1e-9
WAITED = 2.2  # normal score from which on ends with the same CPU time wait differently
# The ends wait alike if their waiting differs by at most ALIKE times the smallest effect of interest, because waiting
# varies, and a larger difference shows later.
ALIKE = 2.0


def decide_with_pairing(now: Situation) -> Decision:
    """The search's decision by interleaved or by paired runs; ``policy.pairing`` or the runs of the ends say which."""
    if now.model.exact:
        return _interleaved_decision(now)
    if now.policy.pairing is not Pairing.AUTO:
        return _as_chosen(now, now.policy.pairing is Pairing.PAIRED, again=now.policy.chosen)
    interleaved, paired = _runs_of_ends(now)
    ways = _compare_ways(interleaved, paired, now)
    if ways is None or 0 < now.policy.max_runs < AFFORDED:
        return _interleaved_decision(now)
    if ways.is_clear or ways.waiting_share:
        decision = _interleaved_decision(now)
        is_chosen = not isinstance(decision.order, Measure) or decision.order.purpose is not Purpose.ENDS
        return replace(decision, pairing_comparison=ways if is_chosen else None)
    if len(paired) < PAIRS_FIRST or ways.is_doubtful:
        decision = _interleaved_decision(now)
        if not isinstance(decision.order, Measure) and is_independent_of_layout(decision.order):
            return decision
        together = len(paired) < PAIRS_FIRST and not ways.is_doubtful
        decision = replace(decision, evidence=())  # the search may use paired runs
        return _with_runs_of_ends(decision, now, PAIRS_FIRST if together else MORE, together=together)
    decision = _as_chosen(now, ways.chooses_paired, by_cpu=ways.uses_cpu_time, again=True)
    return replace(decision, pairing_comparison=decision.pairing_comparison or ways)


def _as_chosen(now: Situation, together: bool, *, by_cpu: bool = False, again: bool) -> Decision:
    """The decision by paired (``together``) or interleaved runs; with ``again``, by the other runs if better."""
    interleaved, paired = _runs_of_ends(now, all_runs=True) if again else ([], [])
    ways = _compare_ways(interleaved, paired, now) if interleaved and len(paired) >= PAIRS_FIRST else None
    if together:
        if ways is None or len(paired) < AGAIN or not ways.interleaved_noise < ways.paired_noise < math.inf:
            return _paired_decision(_paired_situation(now, by_cpu=by_cpu))
        if len(interleaved) >= FEW:
            return replace(_interleaved_decision(now), pairing_comparison=replace(ways, chooses_paired=False))
        return _with_runs_of_ends(replace(_interleaved_decision(now), evidence=()), now, MORE)
    if ways and ways.chooses_paired and not ways.is_doubtful:
        return replace(_paired_decision(_paired_situation(now, by_cpu=ways.uses_cpu_time)), pairing_comparison=ways)
    return _interleaved_decision(now)


def _with_runs_of_ends(decision: Decision, now: Situation, runs: int, *, together: bool = False) -> Decision:
    """The decision with an order for ``runs`` runs of each end; with ``together`` the runs are paired."""
    plan = tuple(PlannedRuns(end, runs) for end in (now.bad, 0))
    order = Measure(plan, Purpose.ENDS, now.fleet.free_host, together=together)
    return within_budget(replace(decision, order=order), now)


def _interleaved_decision(now: Situation) -> Decision:
    """The decision of the search by interleaved runs; its budget is also charged with the paired runs."""
    return decide_with_layouts(now.with_readings(lambda reading: reading.partner is None).charged_for(now))


def _paired_situation(now: Situation, *, by_cpu: bool) -> Situation:
    """The situation with only the paired runs, in CPU time with ``by_cpu``; all runs are charged to the budget."""
    rounds = now.with_readings(
        lambda reading: reading.partner is not None and not (by_cpu and reading.cpu_value is None),
        prior=replace(now.prior, noise=None), model=USUAL.for_paired_runs,
    ).charged_for(now)  # fmt: skip
    return replace(rounds, observations=cpu_time_as_time(rounds.observations)) if by_cpu else rounds


def _paired_decision(rounds: Situation) -> Decision:
    """The decision of the search if it uses only paired runs.

    If the ends do not differ in CPU time, but wait differently in rounds, the search compares time.
    """
    decision, observations = decide_with_layouts(rounds), rounds.observations
    by_cpu = any(isinstance(item, Reading) and item.time_value is not None for item in observations)
    if not isinstance(decision.order, NotReproduced) or not by_cpu:
        return decision
    waits = _extra_waits(rounds)
    if len(waits) < WAIT_ROUNDS:
        return _with_runs_of_ends(decision, rounds, WAIT_ROUNDS - len(waits), together=True)
    error = stdev(waits) / math.sqrt(len(waits)) or math.inf
    if abs(Student(len(waits) - 1).normal_score(mean(waits) / error)) < WAITED:
        return decision
    timed = [item.with_time if isinstance(item, Reading) else item for item in observations]
    by_time = replace(rounds, observations=timed)
    ends = _contrast_of_ends(by_time.record, by_time, by_time.model)
    shown = ends.ratio(by_time.record.sign)
    return replace(
        decide_with_layouts(by_time),
        pairing_comparison=PairingComparison(True, math.inf, ends.noise, UNKNOWN, shown, differ_by_waiting=True),
    )


def _extra_waits(rounds: Situation) -> list[float]:
    """For each round of the ends, the difference in time minus the difference in CPU time, in log units.

    The value is how much longer bad waits than good; it contains neither the common noise of time and CPU time nor code
    placement.
    """
    good, bad = rounds.record.name_of_build(0), rounds.record.name_of_build(rounds.bad)
    waits = []
    for item in rounds.observations:
        if isinstance(item, Reading) and item.time_value is not None and item.partner is not None:
            sides = rounds.record.name_of_build(item.candidate), rounds.record.name_of_build(item.partner)
            if sides in {(good, bad), (bad, good)}:
                waits.append((item.time_value - item.value) * (1 if sides[0] == bad else -1))
    return waits


def cpu_time_as_time(observations: Sequence[Observation]) -> list[Observation]:
    """The observations, with CPU time as the time."""
    return [item.with_cpu_time if isinstance(item, Reading) else item for item in observations]


def _runs_of_ends(now: Situation, *, all_runs: bool = False) -> tuple[list[Reading], list[Reading]]:
    """The first interleaved runs and the first paired runs of the ends, in the usual layout.

    With ``all_runs``, all interleaved runs of the ends, and all paired runs, also of other builds.
    """
    ends, interleaved, paired = (
        {now.record.name_of_build(0), now.record.name_of_build(now.bad)},
        list[Reading](),
        list[Reading](),
    )
    for item in now.observations:
        if isinstance(item, Reading):
            sides = {now.record.name_of_build(side) for side in (item.candidate, item.partner) if side is not None}
            if not item.layout and (sides <= ends or (all_runs and item.partner is not None)):
                (interleaved if item.partner is None else paired).append(item)
    if all_runs:
        return interleaved, paired
    return interleaved[: 2 * MOST], paired[:PAIRS_FIRST]


def better_way(observations: Sequence[Observation]) -> PairingComparison | None:
    """The comparison of paired and interleaved runs, by readings of the builds 0 and 1; None if there are too few."""
    now = Situation(Graph.straight_history(1), observations, Policy(direction=Direction.ANY))
    interleaved, paired = _runs_of_ends(now)
    ways = _compare_ways(interleaved, paired, now, doubtful_score=SEEN_ONCE)
    return ways if ways and (ways.is_clear or ways.waiting_share or len(paired) >= PAIRS_FIRST) else None


def _compare_ways(
    interleaved: Sequence[Reading], paired: Sequence[Reading], now: Situation, *, doubtful_score: float = DOUBTFUL
) -> PairingComparison | None:
    """The comparison of paired runs with interleaved runs; None while an end has no interleaved run.

    Paired runs are better if they are less noisy and show half of the difference that interleaved runs are sure of.
    """
    record = arrange_observations(interleaved, now.policy, now.bad)
    if not (record.run_count(0) and record.run_count(now.bad)):
        return None
    turns = _contrast_of_ends(record, now, USUAL)
    noise = (
        math.sqrt(2)
        * _contrast_of_ends(record, now, replace(USUAL, guessed_noise=PRIOR_NOISE, guess_weight=PRIOR_WEIGHT)).noise
    )
    turn_ratio = Interval.from_log_ratio(-record.sign * turns.drop, 2 * turns.error)
    size = abs(turns.drop) / turns.noise
    clear_size = CLEAR * (UNSTEADY if turns.noise > NOISY else 1.0)
    clear = size >= clear_size and Student(turns.freedom).normal_score(size) >= SURE
    waits = 1 - math.exp(-max(map(median, _log_waits(interleaved, record, now))))
    waiting = waits if waits > WAITING else 0.0
    if clear or waiting or len(paired) < PAIRS_FIRST:
        # A few more interleaved runs may make the difference clear, and cost less than rounds.
        nearly = size >= clear_size and not paired and len(interleaved) < FEW
        return PairingComparison(
            False, noise, math.inf, turn_ratio, UNKNOWN, is_clear=clear, waiting_share=waiting, is_doubtful=nearly
        )
    by_cpu, enough = _ends_wait_alike(interleaved, paired, record, now), len(interleaved) >= 2 * MOST
    of_rounds = arrange_observations(cpu_time_as_time(paired) if by_cpu else paired, now.policy, now.bad)
    rounds = _contrast_of_ends(of_rounds, now, USUAL.for_paired_runs)
    drop = math.copysign(1.0, record.sign * turns.drop * of_rounds.sign * rounds.drop) * abs(rounds.drop)
    is_smaller = drop < SHOWN_SHARE * abs(turns.drop)
    lost_score = Student(turns.freedom).normal_score((abs(turns.drop) - drop) / turns.error) if is_smaller else 0.0
    valid = lost_score < (LOST if enough else doubtful_score)
    little_noise = replace(USUAL.for_paired_runs, guessed_noise=math.sqrt(2) * PRIOR_NOISE, guess_weight=PRIOR_WEIGHT)
    round_noise = _contrast_of_ends(of_rounds, now, little_noise).noise
    quieter = round_noise < GAIN * noise
    round_ratio = Interval.from_log_ratio(-of_rounds.sign * rounds.drop, 2 * rounds.error)
    doubtful = not enough and (by_cpu is False or (quieter and not valid))
    doubtful |= FAR * noise < round_noise < NEAR * noise and len(interleaved) < FEW
    is_lost, differ = quieter and not valid, abs(turns.drop - record.sign * of_rounds.sign * rounds.drop)
    contradict = Student(turns.freedom).normal_score(differ / math.hypot(turns.error, rounds.error)) > SEEN_ONCE
    doubtful |= contradict and not enough
    together = valid and quieter
    return PairingComparison(
        together,
        noise,
        round_noise,
        turn_ratio,
        round_ratio,
        is_lost,
        contradict,
        bool(by_cpu),
        is_doubtful=doubtful,
    )


def _ends_wait_alike(
    interleaved: Sequence[Reading], paired: Sequence[Reading], record: Record, now: Situation
) -> bool | None:
    """Whether both ends wait equally long, so that they can differ only in CPU time; None if CPU time is unknown.

    Other programs on the host can only lengthen the waiting of a run. So the run of a build with the least waiting
    shows how long the build itself waits. The difference of the ends must exceed the variation of the waiting.
    """
    if any(reading.cpu_value is None for reading in (*interleaved, *paired)):
        return None
    good, bad = _log_waits(interleaved, record, now)
    if abs(min(good) - min(bad)) <= ALIKE * min_log_change(now.policy):
        return True
    if min(len(good), len(bad)) < 2:
        return False
    error = math.sqrt(variance(good) / len(good) + variance(bad) / len(bad)) or LEAST_ERROR
    return abs(Student(len(good) + len(bad) - 2).normal_score((mean(good) - mean(bad)) / error)) < WAITED


def _log_waits(runs: Sequence[Reading], record: Record, now: Situation) -> Sequence[list[float]]:
    """For each run of good, and each run of bad, the logarithm of wall-clock time divided by CPU time."""
    ends = (record.name_of_build(0), record.name_of_build(now.bad))
    return [[run.log_wait for run in runs if record.name_of_build(run.candidate) == end] for end in ends]


def _contrast_of_ends(record: Record, now: Situation, model: NoiseModel) -> Contrast:
    """The difference between the good end and the bad end, by the readings of ``record``."""
    levels = levels_for_search(fit_levels(record, weigh_readings(record, 0, now.bad, model).weight, model))
    return contrast_of_builds(levels, record.builds.index(0), record.builds.index(now.bad))
