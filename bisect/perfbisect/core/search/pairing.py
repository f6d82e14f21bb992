"""The choice between interleaved and paired runs for a comparison of two builds.

Two builds that run at the same time on the same cores meet the same disturbances, so the disturbances cancel in the
difference of the two builds. Paired runs reduce the noise most on machines on which other programs run, and not at all
on a quiet machine. Paired runs are not always valid, because two builds disturb each other if they wait for the same
disk, or together need more memory than the host has. So a hunt first measures the ends by interleaved runs, which are
always valid. If the noise of a run is small compared with the difference of the ends, or if a run waits for nearly all
of its time, only interleaved runs are made. In all other hunts, paired runs of the ends are also made, and the hunt
chooses the kind of runs that shows the difference more clearly. Paired runs are not chosen if they show a significantly
smaller difference, less than half of the difference that interleaved runs show. The choice is repeated with every new
reading: the hunt changes to interleaved runs if paired runs vary more than interleaved runs, and to paired runs if
interleaved runs vary much more than the first interleaved runs.

If two builds share cores, the time for which each build waits for a core varies more than the CPU time that the build
needs. So paired runs are compared by CPU time, not by wall-clock time, if CPU time is known and good and bad wait
equally long.
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
from perfbisect.core.domain.settings import GAIN, PAIRS_FIRST, ChangeDirection, Pairing, Policy
from perfbisect.core.inference.analysis import NOISY, Contrast, contrast_of_builds, min_log_change
from perfbisect.core.inference.noise_model import USUAL, NoiseModel, weigh_readings
from perfbisect.core.inference.observations import Observation, Reading
from perfbisect.core.inference.record import Record, arrange_observations
from perfbisect.core.inference.state_space import fit_levels, levels_for_search
from perfbisect.core.search.randomized_layouts import decide_with_randomized_layouts, is_independent_of_layout
from perfbisect.core.search.situation import Situation, within_budget
from perfbisect.core.stats.distributions import Student

# Paired runs are not needed if the difference of the ends by interleaved runs is at least CLEAR s.d. of a run, and has
# at least the normal score SURE.
CLEAR, SURE = 6.0, 4.0
UNSTEADY = 2.0  # CLEAR is multiplied by this on a noisy host, because the noise of such a host may double soon
AFFORDED = 40  # if the user allows fewer runs, no rounds of the ends are made
MORE = 2  # further interleaved runs of each end while it is unknown whether rounds and interleaved runs agree
# The prior s.d. of the noise, and its weight in runs, in the comparison of paired and interleaved runs. Both are small,
# because otherwise the prior would decide the comparison if there are few readings.
PRIOR_NOISE, PRIOR_WEIGHT = 0.005, 1.0
# If the noise of rounds is between FAR and NEAR times the noise of interleaved runs, the ends get interleaved runs
# until there are FEW. With fewer runs, the noise may look large because of one outlier, or small by chance.
FAR, NEAR, FEW = 0.2, 1.5, 12
AGAIN = 8  # after this number of rounds of any builds, the choice of paired runs is checked again
SHOWN_SHARE = 0.5  # rounds must show at least this share of the difference by interleaved runs
# Rounds may show a smaller difference of the ends than interleaved runs. The missing difference is a normal score. From
# DOUBTFUL on, the ends get more interleaved runs, until each end has MOST runs, because fewer runs do not show the
# noise. If each end has MOST runs, and the score is LOST or more, rounds are not used.
DOUBTFUL, LOST = 1.3, 3.5
# If the ends get no more runs, this limit replaces DOUBTFUL, because otherwise a difference by chance would look like
# paired builds that disturb each other. If the differences by paired and by interleaved runs differ by at least this
# normal score, they contradict each other.
SEEN_ONCE = 2.5
MOST = 8
# If an end waits for a larger share of the time than WAITING, runs are not paired. The two runs would wait for each
# other, for example if a disk serves one request at a time, and would take equally long although the builds differ. (A
# server of short queries waits for 80 % of the time on a busy machine.)
WAITING = 0.93
WAIT_ROUNDS = 8  # number of rounds of the ends that show whether both ends wait equally long
LEAST_ERROR = 1e-9
WAITED = 2.2  # ends with equal CPU time wait differently if the difference has at least this normal score
# The ends wait equally long if the smallest log(time / CPU time) of good and of bad differ by at most ALIKE times the
# smallest effect of interest. Waiting varies, and later rounds show a larger difference.
ALIKE = 2.0


def decide_with_pairing(now: Situation) -> Decision:
    """The decision of the search, from interleaved or from paired runs. ``policy.pairing`` determines the kind of runs;
    if it is ``AUTO``, the runs of the ends determine the kind."""
    if now.model.exact:
        return _interleaved_decision(now)
    if now.policy.pairing is not Pairing.AUTO:
        return _decide_by_kind(now, now.policy.pairing is Pairing.PAIRED, may_switch=now.policy.chosen)
    interleaved, paired = _interleaved_and_paired_runs(now)
    ways = _compare_pairings(interleaved, paired, now)
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
        is_paired = len(paired) < PAIRS_FIRST and not ways.is_doubtful
        decision = replace(decision, evidence=())  # the search may use paired runs
        return _with_runs_of_ends(decision, now, PAIRS_FIRST if is_paired else MORE, is_paired=is_paired)
    decision = _decide_by_kind(now, ways.chooses_paired, by_cpu=ways.uses_cpu_time, may_switch=True)
    return replace(decision, pairing_comparison=decision.pairing_comparison or ways)


def _decide_by_kind(now: Situation, is_paired: bool, *, by_cpu: bool = False, may_switch: bool) -> Decision:
    """The decision from paired runs if ``is_paired`` is true, otherwise from interleaved runs. If ``may_switch`` is
    true, the kind of runs is first chosen again from all runs."""
    interleaved, paired = _interleaved_and_paired_runs(now, all_runs=True) if may_switch else ([], [])
    ways = _compare_pairings(interleaved, paired, now) if interleaved and len(paired) >= PAIRS_FIRST else None
    if is_paired:
        if ways is None or len(paired) < AGAIN or not ways.interleaved_noise < ways.paired_noise < math.inf:
            return _paired_decision(_paired_situation(now, by_cpu=by_cpu))
        if len(interleaved) >= FEW:
            return replace(_interleaved_decision(now), pairing_comparison=replace(ways, chooses_paired=False))
        return _with_runs_of_ends(replace(_interleaved_decision(now), evidence=()), now, MORE)
    if ways and ways.chooses_paired and not ways.is_doubtful:
        return replace(_paired_decision(_paired_situation(now, by_cpu=ways.uses_cpu_time)), pairing_comparison=ways)
    return _interleaved_decision(now)


def _with_runs_of_ends(decision: Decision, now: Situation, runs: int, *, is_paired: bool = False) -> Decision:
    """The decision with another work order: ``runs`` runs of each end, which are paired if ``is_paired`` is true."""
    plan = tuple(PlannedRuns(end, runs) for end in (now.bad, 0))
    order = Measure(plan, Purpose.ENDS, now.fleet.next_host, together=is_paired)
    return within_budget(replace(decision, order=order), now)


def _interleaved_decision(now: Situation) -> Decision:
    """The decision of the search from only the interleaved runs; the paired runs are still charged to the budget."""
    return decide_with_randomized_layouts(now.with_readings(lambda reading: reading.partner is None).charged_with(now))


def _paired_situation(now: Situation, *, by_cpu: bool) -> Situation:
    """The situation with only the readings of paired runs, by CPU time if ``by_cpu`` is true; all runs are charged to
    the budget."""
    rounds = now.with_readings(
        lambda reading: reading.partner is not None and not (by_cpu and reading.cpu_value is None),
        prior=replace(now.prior, noise=None), model=USUAL.for_paired_runs,
    ).charged_with(now)  # fmt: skip
    return replace(rounds, observations=cpu_time_as_time(rounds.observations)) if by_cpu else rounds


def _paired_decision(rounds: Situation) -> Decision:
    """The decision of the search from only the paired runs.

    If the ends do not differ in CPU time, but one end waits longer, the search compares the runs by wall-clock time.
    """
    decision, observations = decide_with_randomized_layouts(rounds), rounds.observations
    by_cpu = any(isinstance(item, Reading) and item.time_value is not None for item in observations)
    if not isinstance(decision.order, NotReproduced) or not by_cpu:
        return decision
    waits = _wait_differences(rounds)
    if len(waits) < WAIT_ROUNDS:
        return _with_runs_of_ends(decision, rounds, WAIT_ROUNDS - len(waits), is_paired=True)
    error = stdev(waits) / math.sqrt(len(waits)) or math.inf
    if abs(Student(len(waits) - 1).normal_score(mean(waits) / error)) < WAITED:
        return decision
    timed = [item.with_wall_clock_time if isinstance(item, Reading) else item for item in observations]
    by_time = replace(rounds, observations=timed)
    ends = _contrast_of_ends(by_time.record, by_time, by_time.model)
    shown = ends.ratio(by_time.record.sign)
    return replace(
        decide_with_randomized_layouts(by_time),
        pairing_comparison=PairingComparison(True, math.inf, ends.noise, UNKNOWN, shown, differ_by_waiting=True),
    )


def _wait_differences(rounds: Situation) -> list[float]:
    """For each pair of runs of good and bad: the logarithm of bad ÷ good in wall-clock time, minus the logarithm of bad
    ÷ good in CPU time. The value is 0 if bad and good wait equally long. Noise and code placement change wall-clock
    time and CPU time by the same factor, so they do not affect the value.
    """
    good, bad = rounds.record.build_id(0), rounds.record.build_id(rounds.bad)
    waits = []
    for item in rounds.observations:
        if isinstance(item, Reading) and item.time_value is not None and item.partner is not None:
            sides = rounds.record.build_id(item.candidate), rounds.record.build_id(item.partner)
            if sides in {(good, bad), (bad, good)}:
                waits.append((item.time_value - item.value) * (1 if sides[0] == bad else -1))
    return waits


def cpu_time_as_time(observations: Sequence[Observation]) -> list[Observation]:
    """The observations, with CPU time in place of wall-clock time."""
    return [item.with_cpu_time if isinstance(item, Reading) else item for item in observations]


def _interleaved_and_paired_runs(now: Situation, *, all_runs: bool = False) -> tuple[list[Reading], list[Reading]]:
    """Two lists of runs without randomized layouts: the first interleaved runs of the ends, and the first paired runs
    of the ends. If ``all_runs`` is true, the first list has all interleaved runs of the ends, and the second list all
    paired runs of all builds.
    """
    ends = {now.record.build_id(0), now.record.build_id(now.bad)}
    interleaved, paired = list[Reading](), list[Reading]()
    for item in now.observations:
        if isinstance(item, Reading):
            sides = {now.record.build_id(side) for side in (item.candidate, item.partner) if side is not None}
            if not item.layout and (sides <= ends or (all_runs and item.partner is not None)):
                (interleaved if item.partner is None else paired).append(item)
    if all_runs:
        return interleaved, paired
    return interleaved[: 2 * MOST], paired[:PAIRS_FIRST]


def compare_pairings(observations: Sequence[Observation]) -> PairingComparison | None:
    """The comparison of paired with interleaved runs of two builds, which have the numbers 0 and 1; None if there are
    too few runs."""
    now = Situation(Graph.straight_history(1), observations, Policy(direction=ChangeDirection.ANY))
    interleaved, paired = _interleaved_and_paired_runs(now)
    ways = _compare_pairings(interleaved, paired, now, doubtful_score=SEEN_ONCE)
    return ways if ways and (ways.is_clear or ways.waiting_share or len(paired) >= PAIRS_FIRST) else None


def _compare_pairings(
    interleaved: Sequence[Reading], paired: Sequence[Reading], now: Situation, *, doubtful_score: float = DOUBTFUL
) -> PairingComparison | None:
    """The comparison of paired runs of the ends with interleaved runs; None if an end has no interleaved run. Paired
    runs are chosen if they are less noisy, except if they show a significantly smaller difference, less than half of
    the difference that interleaved runs show.
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
    waits = 1 - math.exp(-max(map(median, _log_waits_of_ends(interleaved, record, now))))
    waiting = waits if waits > WAITING else 0.0
    if clear or waiting or len(paired) < PAIRS_FIRST:
        # If the difference is large, a few more interleaved runs may make it clear, and cost less than rounds.
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

    Other programs on the host can only lengthen the waiting of a run. So, of all runs of a build, the run with the
    least waiting shows how long the build itself waits. If the least waiting of good and the least waiting of bad
    differ, the mean waiting over all runs is compared: good and bad wait equally long if their means do not differ
    significantly.
    """
    if any(reading.cpu_value is None for reading in (*interleaved, *paired)):
        return None
    good, bad = _log_waits_of_ends(interleaved, record, now)
    if abs(min(good) - min(bad)) <= ALIKE * min_log_change(now.policy):
        return True
    if min(len(good), len(bad)) < 2:
        return False
    error = math.sqrt(variance(good) / len(good) + variance(bad) / len(bad)) or LEAST_ERROR
    return abs(Student(len(good) + len(bad) - 2).normal_score((mean(good) - mean(bad)) / error)) < WAITED


def _log_waits_of_ends(runs: Sequence[Reading], record: Record, now: Situation) -> Sequence[list[float]]:
    """A list for good and a list for bad: for each run, the logarithm of wall-clock time ÷ CPU time."""
    ends = (record.build_id(0), record.build_id(now.bad))
    return [[run.log_wait for run in runs if record.build_id(run.candidate) == end] for end in ends]


def _contrast_of_ends(record: Record, now: Situation, model: NoiseModel) -> Contrast:
    """The difference between the good end and the bad end, by the readings of ``record``."""
    levels = levels_for_search(fit_levels(record, weigh_readings(record, 0, now.bad, model).weight, model))
    return contrast_of_builds(levels, record.builds.index(0), record.builds.index(now.bad))
