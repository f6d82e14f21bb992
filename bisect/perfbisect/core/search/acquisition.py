"""Chooses the next measurement: the measurement with the most expected bits of information about the culprit for its
cost.

An option is a possible measurement: a number of runs of a candidate, and a number of reference runs, which show the
drift of the host. The candidates that are considered are all measured builds, including the ends, and the unmeasured
candidates that split the most probable hypotheses best. The score of an option is B / (C^0.7 + R): B is the expected
bits of information, R the number of all its runs, and C the cost of its build as a number of runs. The exponent 0.7
lowers the cost of a build. Without the exponent, the search would measure existing builds too often, because the score
looks only one measurement ahead.

If build hosts make builds in advance, the cost of a build in progress is the time until the build is finished. While a
host waits for a build, the host measures existing builds if these measurements promise enough bits of information.

A candidate splits the range into two sets: the candidate with its ancestors, and all other candidates. The best
candidate to build is the candidate whose first set most nearly has the culprit with probability 1/2. A hypothesis says
that the culprit is in a certain group of candidates, which no measured build separates. Each of the most probable
hypotheses adds two candidates of its group: the candidate that splits the probabilities of the whole range most evenly,
and the candidate that splits the probability of the group most evenly. Candidates whose builds will probably fail have
a lower score. If other hosts are measuring candidates, these candidates first cut the range into pieces, and the
evenness of a split is summed over the pieces, so that a host does not repeat the split of another host."""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from perfbisect.core.domain.orders import Measure, PlannedRuns, Purpose
from perfbisect.core.domain.settings import Pairing
from perfbisect.core.inference.analysis import Analysis
from perfbisect.core.inference.ancestry import Hypotheses
from perfbisect.core.inference.observations import Built
from perfbisect.core.inference.posterior import Posterior, PredictedLevels, predict_levels
from perfbisect.core.inference.record import Record
from perfbisect.core.search.build_forecast import BUILD_EXPONENT, build_cost, build_waits, chance_to_build, wait_in_runs
from perfbisect.core.search.situation import Situation
from perfbisect.core.stats.distributions import label_information

Array = NDArray[np.float64]

SPLIT_HYPOTHESES = 4  # number of the most probable classes of candidates, each of which is also split by itself


def best_splits(
    analysis: Analysis, build_success_chance: Array, busy: Collection[int], among: Collection[int] | None = None
) -> list[int]:
    """The unmeasured candidates that best split the groups of candidates that most probably contain the culprit.

    ``build_success_chance`` is, for each candidate, the probability that the candidate can be built. ``busy`` are the
    candidates that other hosts are measuring now. If ``among`` is given, only candidates in ``among`` are returned."""
    record, groups, posterior = analysis.record, analysis.hypotheses, analysis.posterior
    is_open = build_success_chance > 0
    is_open[list(record.builds)] = False
    is_open[[*record.build_name, *busy]] = False
    cells = _range_pieces(groups, busy)
    if among is not None:
        is_open &= np.isin(np.arange(len(is_open)), list(among))
    if not is_open.any():
        return []
    chosen: list[int] = []

    def choose_split(weight: Array, allowed: NDArray[np.bool_] | None = None) -> None:
        evenness = np.zeros(len(weight))
        for cell in cells:  # the outcomes of the present orders divide the candidates into cells
            total = float(weight[cell].sum())
            if total > 0:
                mass_below = groups.ancestry.ancestor_sums(np.where(cell, weight, 0.0))
                evenness += mass_below * (total - mass_below) / total
        promise = np.where(is_open if allowed is None else is_open & allowed, evenness * build_success_chance, -1.0)
        promise[np.isnan(promise)] = -1.0
        best = int(promise.argmax())
        if promise[best] > 1e-9 and best not in chosen:
            chosen.append(best)

    overall = groups.candidate_probabilities(posterior.culprit)
    choose_split(overall)
    likely = np.argsort(-np.where(groups.class_sizes > 1, posterior.culprit, -1.0), kind="stable")[:SPLIT_HYPOTHESES]
    for index in likely:
        if groups.class_sizes[index] < 2 or posterior.culprit[index] < 1e-4:
            continue
        in_group = groups.class_of == index
        choose_split(overall, in_group)
        choose_split(np.where(in_group, groups.weight / groups.prior[index], 0.0))
    return chosen


def _range_pieces(groups: Hypotheses, busy: Collection[int]) -> list[NDArray[np.bool_]]:
    """The pieces into which the ``busy`` candidates cut the range; each piece is a boolean array with an entry for each
    candidate."""
    cells = [np.ones(len(groups.class_of), bool)]
    for candidate in sorted(busy):
        below = groups.ancestry.with_ancestors(candidate)
        cells = [part for cell in cells for part in (cell & below, cell & ~below) if part.any()]
    return cells


RUNS = np.array([1, 2, 3, 4, 6, 8, 12, 16])
REFERENCES = np.array([0.0, 0.5, 1.0])  # reference runs for each run
BATCH_RUNS = np.repeat(RUNS, len(REFERENCES))  # all pairs (runs, reference runs), flattened: (B,)
BATCH_REFERENCES = np.ceil(np.outer(RUNS, REFERENCES)).astype(np.int64).ravel()
NO_REFERENCES = np.zeros(len(RUNS), np.int64)
GOOD_ENOUGH = 0.93  # a build with runs gets the largest batch whose score is at least this share of the best score
# A batch is small if it is at most the share ``SMALL`` of the runs so far; for small batches ``FAIR`` replaces
# ``GOOD_ENOUGH``.
FAIR, SMALL = 0.85, 0.04
CERTAIN = 0.05  # the probability that a reference build is slow is at most CERTAIN away from 0 or 1
ENOUGH_BITS = 0.3  # remaining entropy if the culprit has a probability of 95 %
POINTLESS_SHARE = 0.01  # share of the first step's score; a hunt ends if the best score is lower
LEAST_PATIENCE = 0.2  # share of the patience that remains, however improbable a change is
SMALLEST_SHIFT = 1.0  # in s.d. of a run; a smaller change gets the patience of a change of size SMALLEST_SHIFT
FIXED_RUNS = 25.0  # runs of any hunt for the ends and the proof
WORTH_A_RUN = 0.2  # lowest score of runs that are made while a build is awaited, as a share of the first step's score


@dataclass(frozen=True, slots=True)
class Choice:
    """A measurement, and the bits of information that it promises for each run of its cost."""

    order: Measure
    bits_per_run: float


def best_measurement(analysis: Analysis, now: Situation, host: int, max_runs: float = math.inf) -> Choice | None:
    """The measurement on ``host`` with the most expected bits for its cost; None if nothing can be measured.

    Candidates that another host measures now are left out, except candidates that the other host measures only as a
    reference. If ``max_runs`` is finite, the returned measurement needs no build and has at most ``max_runs`` runs."""
    build_runs, busy = now.build_cost_in_runs, now.fleet.non_reference_candidates
    record, levels, groups, posterior = analysis.record, analysis.levels, analysis.hypotheses, analysis.posterior
    chance = chance_to_build(groups.ancestry, record.skipped, record.built_on_any_host, record.left_out)
    measured = [build for build in record.builds if build not in record.skipped]
    unmeasured = _unmeasured_options(analysis, now, chance, only_built=max_runs < math.inf)
    candidates = [candidate for candidate in (*measured, *unmeasured) if candidate not in busy]
    if not candidates:
        return None
    rows = [record.builds.index(candidate) if candidate in record.builds else -1 for candidate in candidates]
    prediction = predict_levels(levels, groups, posterior, candidates, rows)
    on_host = record.builds_on(host)
    new_build = np.array([candidate not in on_host for candidate in candidates])
    references = _fast_and_slow_references(record, groups, posterior, rows, on_host)
    rounds = levels.model.paired
    batch_runs, batch_references = (RUNS, NO_REFERENCES) if rounds else (BATCH_RUNS, BATCH_REFERENCES)
    likely = np.array([1.0 if row >= 0 else chance[candidate] for candidate, row in zip(candidates, rows, strict=True)])
    new_references = np.array([sum(record.builds[row] not in on_host for row in pair) for pair in references])
    if now.fleet.has_build_host:
        candidate_cost = np.where(new_build, build_waits(now, candidates, likely), 0.0)
    else:
        candidate_cost = np.where(new_build, build_cost(now, candidates, likely, host), 0.0)
    gaps = candidate_cost * record.median_run_seconds / 60
    cost = np.column_stack((candidate_cost**BUILD_EXPONENT, new_references * build_runs**BUILD_EXPONENT))
    weights = np.zeros((len(references), len(record.builds)))  # build weights in the mean of an option's references
    for weight, pair in zip(weights, references, strict=True):
        weight[pair] = 1 / max(len(pair), 1)
    if rounds:
        references = [pair or [record.builds.index(0)] for pair in references]
        partners, score = _scores_of_paired_runs(prediction, cost, likely, references, len(record.builds))
    else:
        drifts = {gap: _expected_drift(analysis, host, gap) for gap in np.unique(gaps).tolist()}
        drift, variance = (np.array(part) for part in zip(*(drifts[gap] for gap in gaps.tolist()), strict=True))
        score = _scores_of_interleaved_runs(prediction, cost, likely, drift, variance, weights)
    score = np.where(max(max_runs, 1) >= batch_runs + batch_references, score, 0.0)
    option, batch = divmod(int(score.argmax()), score.shape[1])
    best = float(score[option, batch])
    if rows[option] >= 0:
        small = SMALL * len(record.value) >= batch_runs + batch_references
        near = score[option] >= np.where(small, FAIR, GOOD_ENOUGH) * best
        batch = int(np.where(near, 100 * batch_runs - batch_references, -1).argmax())
    elif now.fleet.has_build_host and max_runs == math.inf:  # choose the same number of runs as without a build host
        usual = batch_runs + batch_references
        batch = int((score[option] * (cost[option, 0] + usual) / (build_runs**BUILD_EXPONENT + usual)).argmax())
    runs, reference_runs = int(batch_runs[batch]), int(batch_references[batch])
    if rows[option] < 0 and runs > 2:  # order half of the runs of a new build, then decide again
        runs, reference_runs = (runs + 1) // 2, (reference_runs + 1) // 2
    pair = references[option]
    shares = (
        [PlannedRuns(record.builds[partners[option]], runs)] if rounds else _divided_runs(record, pair, reference_runs)
    )
    return Choice(levels.model.measurement((PlannedRuns(candidates[option], runs), *shares), Purpose.SEARCH), best)


def measurement_while_waiting(analysis: Analysis, now: Situation, host: int) -> Measure | None:
    """The work order (the next measurement) for ``host`` while build hosts make builds.

    The result is None if no existing build promises enough bits of information, or if a build will be finished before
    the end of one run."""
    wait = min(wait_in_runs(now).values(), default=0.0)
    choice = best_measurement(analysis, now, host, wait) if wait >= 1 else None
    first_sampling_rate = _first_step_rate(analysis.ends.drop, analysis.posterior, now.build_cost_in_runs)
    if choice is None or choice.bits_per_run < WORTH_A_RUN * first_sampling_rate:
        return None
    return choice.order


def _unmeasured_options(analysis: Analysis, now: Situation, success_chance: Array, *, only_built: bool) -> list[int]:
    """The unmeasured candidates to consider: builds that build hosts made in advance, the candidates from
    ``best_splits`` among the builds of other workloads, and the candidates from ``best_splits`` among all candidates.

    If the budget allows no new build, only existing builds and builds in progress are returned."""
    record, in_flight, subjects = analysis.record, now.fleet.candidates_in_build, now.fleet.non_reference_candidates
    ready: list[int] = []
    if now.fleet.has_build_host:
        ready = sorted(record.built.difference(record.builds, record.build_name, record.skipped, subjects))
    if only_built:
        return ready
    if now.shares_builds:
        ready += best_splits(analysis, success_chance, subjects, record.built)
    among = None if now.budget.may_build else record.built | in_flight
    best = best_splits(analysis, success_chance, subjects, among)
    return list(dict.fromkeys([*ready, *best]))


def _expected_drift(analysis: Analysis, host: int, gap: float) -> tuple[Array, Array]:
    """The expected drift of a host in a visit (one start of the server) ``gap`` minutes after the last reading, and the
    variance of this drift, divided by the variance of the noise of one run.

    The expected drift is a linear function of the levels of the measured builds; the first array has a coefficient for
    each build (see ``HostSpeeds.host_speed``). The second array has, for each combination of a number of runs and a
    number of reference runs, the variance of the mean drift during these runs."""
    levels, law, pace = analysis.levels, analysis.posterior.fit.law, analysis.record.median_run_seconds / 60
    memory = levels.memory[law] if levels.drift[law] > 0 else levels.memory[int(levels.drift.argmax())]  # minutes
    size = max(float(levels.drift[law] ** 2), float(levels.probability @ levels.drift**2))
    correlation = float(np.exp(-(gap + pace) / memory))
    of_levels, variance = levels.present.host_speed(host, law, correlation)
    span = (BATCH_RUNS + BATCH_REFERENCES) * pace / memory
    averaged = np.where(span > 1e-3, 2 * (span - 1 + np.exp(-span)) / np.maximum(span, 1e-3) ** 2, 1.0)
    return of_levels, np.maximum(variance + size * (1 - correlation**2) * averaged, 1e-9)


def _scores_of_interleaved_runs(
    prediction: PredictedLevels, cost: Array, likely: Array, drift: Array, variance: Array, references: Array
) -> Array:
    """The score (expected bits for each run) of each option (row) with each number of interleaved runs (column).

    Each argument has a row for each option. ``cost`` is the cost, in runs, of missing builds: column 0 for the
    candidate, column 1 for its reference builds. ``likely`` is the probability that the candidate can be built.
    ``references`` has the weight of each measured build (column) in the mean of the reference runs. The host's speed is
    estimated from earlier readings and reference runs, both weighted by their precision. ``drift`` and ``variance`` are
    results of ``_expected_drift``.
    """
    count = BATCH_REFERENCES
    # Share of the variance of the drift that the reference runs remove.
    trust = np.where(references.sum(axis=1, keepdims=True) > 0, count / (count + 1 / variance), 0.0)
    sides = prediction.separation(references, drift, trust)
    noise = 1 / BATCH_RUNS + variance * (1 - trust)
    square = sides.between / (sides.above * (1 - sides.above)) / (sides.within + noise)
    gain = label_information(sides.above, square) * likely[:, None]
    result: Array = gain / (cost[:, :1] + cost[:, 1:] * (count > 0) + BATCH_RUNS + count)
    return result


def _scores_of_paired_runs(
    prediction: PredictedLevels, cost: Array, likely: Array, references: Sequence[Sequence[int]], builds: int
) -> tuple[NDArray[np.int64], Array]:
    """Two arrays: for each option, the row of the better reference build; and the score (expected bits divided by the
    cost in runs) of each option (row) with each number of paired runs (column).

    A pair consists of a run of the candidate and a run of one of its reference builds. ``references`` has, for each
    option, the row numbers of one or two reference builds; ``builds`` is the number of builds with readings."""
    scores = []
    for side in (0, -1):
        partner = np.array([pair[side] for pair in references])
        weights = np.eye(builds)[partner]
        sides = prediction.separation(weights, weights, np.ones((len(partner), len(RUNS))))
        square = sides.between / (sides.above * (1 - sides.above)) / (sides.within + 1 / RUNS)
        gain = label_information(sides.above, square) * likely[:, None]
        scores.append((partner, gain / (cost.sum(axis=1)[:, None] + RUNS)))
    (first_partner, first), (last_partner, last) = scores
    better = last.max(axis=1) > first.max(axis=1)
    return np.where(better, last_partner, first_partner), np.where(better[:, None], last, first)


LAYOUT_SD = 0.005  # s.d. of the levels of builds that is caused by their layouts
# The ends and the proof take ENDS_AND_PROOF runs if the drop is at least CLEAR times the noise. Smaller drops take more
# runs, at most MOST_FIXED_RUNS. The numbers are from simulated hunts through 20 to 1,000 commits, with drops of 2, 3, 5
# and 10 times a noise of 1 %.
ENDS_AND_PROOF, CLEAR, MOST_FIXED_RUNS = 12.0, 6.0, 80.0


def expected_runs(candidates: int, drop: float, noise: float, build_runs: float) -> float:
    """The expected number of runs of a hunt: the sum over the runs of the ends, of the search and of the proof.

    ``drop`` is the size of the drop as a fraction (0.05 is 5 %). ``noise`` is the standard deviation of a run as a
    fraction. ``drop`` and ``noise`` are above 0. A build takes as long as ``build_runs`` runs."""
    size = -math.log1p(-drop) / noise
    gain = label_information(np.full(len(RUNS), 0.5), size**2 / (2 * (LAYOUT_SD / noise) ** 2 + 1 / RUNS))
    best = int((gain / (build_runs**BUILD_EXPONENT + RUNS)).argmax())
    fixed = min(ENDS_AND_PROOF * max(1.0, (CLEAR / size) ** 2), MOST_FIXED_RUNS)
    return fixed + float(RUNS[best] / gain[best]) * math.log2(candidates)


# For --min-effect auto, which chooses one of SIZES. Only the FIRST readings of each end give the noise, so that the
# size does not change later. The size is at least PLACEMENT_EFFECT if builds cannot be linked again, because code
# placement causes changes of PLACEMENT_EFFECT.
SIZES, FIRST, PLACEMENT_EFFECT, HOUR = (0.003, 0.004, 0.005, 0.006, 0.008, 0.01, 0.012, 0.015), 4, 0.01, 60.0


def detectable_effect(now: Situation) -> float:
    """The smallest change, as a fraction, that a hunt can probably find within its time budget, or within an hour if
    there is no time budget.

    The noise of a run is estimated from the first runs of good and bad. The result is at most the policy's
    ``min_effect``. Until good and bad have enough runs, the result is ``min_effect``."""
    policy, name, ends = now.policy, now.record.build_id, (0, now.record.build_id(now.bad))
    of_ends = [run for run in now.readings if not (run.layout or run.host) and name(run.candidate) in ends]
    turns = [[run for run in of_ends if run.partner is None and name(run.candidate) == end][:FIRST] for end in ends]
    rounds = [run for run in of_ends if run.partner is not None and name(run.partner) in ends][:FIRST]
    variances = []
    if min(map(len, turns)) == FIRST:
        variances.append(float(np.mean([np.var([run.value for run in runs], ddof=1) for runs in turns])))
    if len(rounds) == FIRST and (variances or policy.pairing is Pairing.PAIRED):
        variances.append(float(np.var([run.value for run in rounds], ddof=1)) / 2)
    if not variances:
        return policy.min_effect
    noise = math.sqrt(min(variances))
    run_seconds = float(np.mean([run.seconds for run in (*rounds, *turns[0], *turns[1])]))
    built = [item for item in now.observations if isinstance(item, Built) and item.candidate in (0, now.bad)]
    build_seconds = max([*(build.seconds for build in built[:2]), 0.0]) or now.prior.build_cost * run_seconds
    candidates = max(len(now.graph.candidates), 2)
    budget = 60 * (policy.max_minutes or HOUR) - build_seconds * (math.log2(candidates) + 2)
    for size in SIZES:
        runs = expected_runs(candidates, size, max(noise, 1e-4), build_seconds / run_seconds)
        allowed = runs * run_seconds <= budget and runs <= (policy.max_runs or math.inf)
        if allowed and size < policy.min_effect and (policy.layouts or size >= PLACEMENT_EFFECT):
            return size
    return policy.min_effect


def is_hopeless(choice: Choice, analysis: Analysis, now: Situation, required: float) -> bool:
    """Whether the hunt should end, because ``choice``, the best next measurement, promises too few bits for its cost. A
    hunt ends if ``choice`` promises almost no information. A hunt also ends if its expected cost exceeds a limit:
    several times the usual cost of a search for a change of this size. In such a hunt, no single culprit explains the
    levels, or the change is smaller than it seemed. The expected cost is computed from the bits that a verdict still
    needs. The limit is lower if ``choice`` measures a build again, or if it is less probable that anything changed. If
    no new build is allowed, a hunt also ends once several candidates that no build separates have the ``required``
    probability, because more runs cannot separate these candidates."""
    record, groups, posterior = analysis.record, analysis.hypotheses, analysis.posterior
    build_runs = now.build_cost_in_runs
    repeats = choice.order.plan[0].candidate in record.builds
    only_repeats = repeats and not now.budget.may_build
    probability = posterior.culprit if only_repeats else groups.candidate_probabilities(posterior.culprit)
    top = int(posterior.culprit.argmax())
    if only_repeats and groups.class_sizes[top] > 1 and posterior.culprit[top] >= required:
        return True
    favoured = _first_step_rate(-float(posterior.culprit @ posterior.fit.drop), posterior, build_runs)
    if choice.bits_per_run < POINTLESS_SHARE * favoured:
        return True
    missing = max(_entropy_bits(probability) - ENOUGH_BITS, ENOUGH_BITS)
    total = _entropy_bits(groups.plain_weight) * (1 + posterior.drifting / 2)  # drift requires reference runs
    usual, foreseen = total / favoured, total / _first_step_rate(analysis.ends.drop, posterior, build_runs)
    free_builds = record.built if now.shares_builds else record.built_on_build_hosts  # builds that take no search time
    unmeasured = len(free_builds.difference(record.builds, record.build_name))
    spent = len(record.value) + (len(record.built) - unmeasured) * build_runs**BUILD_EXPONENT
    through_failures = record.skipped and not repeats  # a low score may be due to failed builds
    patience = analysis.model.patience * float(np.clip(posterior.change, LEAST_PATIENCE, 1.0))
    if not through_failures and (
        spent + missing / choice.bits_per_run > patience * (usual + FIXED_RUNS)
        or spent > analysis.model.end_patience * (foreseen + FIXED_RUNS)
    ):
        return True
    return bool(repeats and choice.bits_per_run * 2 * (usual + spent) < min(missing, 1.0))


def _entropy_bits(probabilities: Array) -> float:
    """The entropy of probabilities, in bits."""
    positive = probabilities[probabilities > 0]
    return float(-(positive * np.log2(positive)).sum())


def _first_step_rate(drop: float, posterior: Posterior, build_runs: float) -> float:
    """The bits of information for each run that the first measurement of a search promises, if the search is for a drop
    of ``drop`` log units on a host without drift."""
    square = max(drop / posterior.fit.s, SMALLEST_SHIFT) ** 2 / (2 * posterior.fit.layout + 1 / RUNS)
    gain = label_information(np.full(len(RUNS), 0.5), square)
    return max(float((gain / (build_runs**BUILD_EXPONENT + RUNS)).max()), 1e-9)


def _fast_and_slow_references(
    record: Record, groups: Hypotheses, posterior: Posterior, rows: Sequence[int], built_on_host: Collection[int]
) -> list[list[int]]:
    """The row numbers of the reference builds of each candidate. ``rows`` has the row number of each candidate, or -1
    if the candidate has no readings. One reference build is almost certainly fast, another is almost certainly slow.
    Each is the nearest such build to the uncertain part of the range, because a later proof needs these builds, too.
    Builds that already exist on the host (``built_on_host``) are preferred."""
    belief = groups.slow @ posterior.culprit
    runs = np.array([record.run_count(build) for build in record.builds])
    usable = [row for row, build in enumerate(record.builds) if build not in record.skipped]
    present = {row for row in usable if record.builds[row] in built_on_host}
    fast = sorted((row for row in usable if belief[row] < CERTAIN), key=lambda row: (row not in present, -belief[row]))
    slow = sorted(
        (row for row in usable if belief[row] > 1 - CERTAIN), key=lambda row: (row not in present, belief[row])
    )
    pairs = ([row for side in (fast, slow) for row in [near for near in side[:2] if near != i][:1]] for i in rows)
    return [sorted(pair, key=lambda row: runs[row]) for pair in pairs]  # the first build gets the odd run


def _divided_runs(record: Record, references: list[int], runs: int) -> list[PlannedRuns]:
    """A plan of ``runs`` reference runs in total, divided between the reference builds."""
    counts = [(runs + 1) // 2, runs // 2] if len(references) == 2 else [runs]
    return [PlannedRuns(record.builds[row], count) for row, count in zip(references, counts, strict=False) if count]
