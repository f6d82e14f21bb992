"""The measurement with the most expected information for its cost.

The options are every measured build, the ends included, and the unbuilt candidates that best split the most probable
hypotheses; each with a number of runs, and of reference runs beside them that estimate the drift. The score is bits /
(build cost^0.7 + runs): with the full cost of a build, a rule that looks one step ahead repeats builds too often.

Where build hosts build ahead, a build in flight costs the time until it is there. Until then a host measures what is
built already, if that tells anything.

The candidates worth building next are those that split the posterior most evenly. A candidate splits the range into its
ancestors and the rest. The best split of the whole posterior is its median; besides, each of the most probable
hypotheses is split at the point nearest that median and at its own middle. Candidates that may not build count less.
The range is cut beforehand at the candidates that other hosts are measuring, so that no two hosts work on the same
question.
"""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from perfbisect.core.domain.orders import Measure, Purpose, Share
from perfbisect.core.domain.settings import Pairing
from perfbisect.core.inference.analysis import Analysis
from perfbisect.core.inference.ancestry import Hypotheses
from perfbisect.core.inference.observations import Built
from perfbisect.core.inference.posterior import Posterior, Prediction, predict
from perfbisect.core.inference.record import Record
from perfbisect.core.search.build_forecast import BUILD_EXPONENT, chance_to_build, price, remaining, waiting
from perfbisect.core.search.situation import Situation
from perfbisect.core.stats.distributions import label_information

Array = NDArray[np.float64]

EXPLORED = 4  # hypotheses that are split


def splits(known: Analysis, chance: Array, busy: Collection[int], among: Collection[int] | None = None) -> list[int]:
    """Candidates without readings that split the most probable hypotheses best; only those of ``among`` if it is given.

    ``busy`` are the candidates that other hosts are measuring.
    """
    record, classes, posterior = known.record, known.groups, known.posterior
    open_ = chance > 0
    open_[list(record.builds)] = False
    open_[[*record.same, *busy]] = False
    cells = _cut(classes, busy)
    if among is not None:
        open_ &= np.isin(np.arange(len(open_)), list(among))
    if not open_.any():
        return []
    found: list[int] = []

    def take(weight: Array, among: NDArray[np.bool_] | None = None) -> None:
        split = np.zeros(len(weight))
        for cell in cells:  # what remains after each outcome of the present orders
            mass = float(weight[cell].sum())
            if mass > 0:
                below = classes.reach.sums(np.where(cell, weight, 0.0))
                split += below * (mass - below) / mass
        promise = np.where(open_ if among is None else open_ & among, split * chance, -1.0)
        promise[np.isnan(promise)] = -1.0
        best = int(promise.argmax())
        if promise[best] > 1e-9 and best not in found:
            found.append(best)

    overall = classes.spread(posterior.culprit)
    take(overall)
    likely = np.argsort(-np.where(classes.members > 1, posterior.culprit, -1.0), kind="stable")[:EXPLORED]
    for index in likely:
        if classes.members[index] < 2 or posterior.culprit[index] < 1e-4:
            continue
        members = classes.of == index
        take(overall, members)
        take(np.where(members, classes.weight / classes.prior[index], 0.0))
    return found


def _cut(classes: Hypotheses, busy: Collection[int]) -> list[NDArray[np.bool_]]:
    """The range, cut at the candidates that other hosts are measuring; masks (size,)."""
    cells = [np.ones(len(classes.of), bool)]
    for candidate in sorted(busy):
        below = classes.reach.ancestors(candidate)
        cells = [cut for cell in cells for cut in (cell & below, cell & ~below) if cut.any()]
    return cells


RUNS = np.array([1, 2, 3, 4, 6, 8, 12, 16])
REFERENCES = np.array([0.0, 0.5, 1.0])  # reference runs for each run
BATCH_RUNS = np.repeat(RUNS, len(REFERENCES))  # all pairs (runs, reference runs), flattened: (B,)
BATCH_REFERENCES = np.ceil(np.outer(RUNS, REFERENCES)).astype(np.int64).ravel()
NONE = np.zeros(len(RUNS), np.int64)
GOOD_ENOUGH = 0.93  # repeats: the largest batch whose score is at least this share of the best is taken
FAIR, SMALL = 0.85, 0.04  # the same share for batches that are a small share of the runs so far
SURE = 0.05  # a reference is a build whose probability of being slow is this close to 0 or 1
ENOUGH_BITS = 0.3  # entropy that is left at a probability of 95 %
POINTLESS = 0.01  # of the score of the first step: below it nothing is left to learn
LEAST = 0.2  # of that patience, however improbable a change is
SEEN = 1.0  # s.d. of a run: smaller changes get the patience of one of this size
FIXED = 25.0  # runs that any hunt costs: the ends and the proof
MEANWHILE = 0.2  # of the score of the first step: what tells less is not worth a run while a build is awaited


@dataclass(frozen=True, slots=True)
class Choice:
    """A measurement, and the bits of information that are expected for each run that it costs."""

    order: Measure
    rate: float


def choose(known: Analysis, now: Situation, host: int, most: float = math.inf) -> Choice | None:
    """The best measurement on ``host``, or None if there is none. The subjects of other hosts' orders are left to them.

    Where ``most`` is given, only what needs no build and no more runs than that.
    """
    build_runs, busy = now.build_runs, now.fleet.subjects
    record, levels, classes, posterior = known.record, known.levels, known.groups, known.posterior
    chance = chance_to_build(classes.reach, record.skipped, record.there, record.left_out)
    measured = [b for b in record.builds if b not in record.skipped]
    new = _unmeasured(known, now, chance, only_built=most < math.inf)
    candidates = [v for v in (*measured, *new) if v not in busy]
    if not candidates:
        return None
    rows = [record.builds.index(v) if v in record.builds else -1 for v in candidates]
    seen = predict(levels, classes, posterior, candidates, rows)
    made = record.made(host)
    new_build = np.array([v not in made for v in candidates])
    references = _references(record, classes, posterior, rows, made)
    rounds = levels.model.rounds
    batch_runs, batch_references = (RUNS, NONE) if rounds else (BATCH_RUNS, BATCH_REFERENCES)
    likely = np.array([1.0 if row >= 0 else chance[v] for v, row in zip(candidates, rows, strict=True)])
    besides_new = np.array([sum(record.builds[row] not in made for row in pair) for pair in references])
    if now.fleet.builds_ahead:
        first = np.where(new_build, waiting(now, candidates, likely), 0.0)
    else:
        first = np.where(new_build, price(now, candidates, likely, host), 0.0)
    gaps = first * record.run_seconds / 60
    cost = np.column_stack((first**BUILD_EXPONENT, besides_new * build_runs**BUILD_EXPONENT))
    weights = np.zeros((len(references), len(record.builds)))  # of the builds in the mean of each option's references
    for weight, pair in zip(weights, references, strict=True):
        weight[pair] = 1 / max(len(pair), 1)
    if rounds:
        references = [pair or [record.builds.index(0)] for pair in references]
        partners, score = _rounds(seen, cost, likely, references, len(record.builds))
    else:
        known_drift = {gap: _drift(known, host, gap) for gap in np.unique(gaps).tolist()}
        before, error = (np.array(each) for each in zip(*(known_drift[gap] for gap in gaps.tolist()), strict=True))
        score = _scores(seen, cost, likely, before, error, weights)
    score = np.where(max(most, 1) >= batch_runs + batch_references, score, 0.0)
    option, k = divmod(int(score.argmax()), score.shape[1])
    best = float(score[option, k])
    if rows[option] >= 0:
        small = SMALL * len(record.value) >= batch_runs + batch_references
        near = score[option] >= np.where(small, FAIR, GOOD_ENOUGH) * best
        k = int(np.where(near, 100 * batch_runs - batch_references, -1).argmax())
    elif now.fleet.builds_ahead and most == math.inf:  # as many runs as if its build had been waited for
        usual = batch_runs + batch_references
        k = int((score[option] * (cost[option, 0] + usual) / (build_runs**BUILD_EXPONENT + usual)).argmax())
    n, beside = int(batch_runs[k]), int(batch_references[k])
    if rows[option] < 0 and n > 2:  # half of the runs of a new build, then decide again
        n, beside = (n + 1) // 2, (beside + 1) // 2
    partner = [Share(record.builds[partners[option]], n)] if rounds else _shared(record, references[option], beside)
    return Choice(levels.model.order((Share(candidates[option], n), *partner), Purpose.SEARCH), best)


def meanwhile(known: Analysis, now: Situation, host: int) -> Measure | None:
    """What to measure until the next build in flight is there.

    None if nothing that is built tells enough, or if that build is there before the end of a run.
    """
    soon = min(remaining(now).values(), default=0.0)
    choice = choose(known, now, host, soon) if soon >= 1 else None
    if choice is None or choice.rate < MEANWHILE * _ideal(known.ends.drop, known.posterior, now.build_runs):
        return None
    return choice.order


def _unmeasured(known: Analysis, now: Situation, chance: Array, *, only_built: bool) -> list[int]:
    """The options without readings: all that were built ahead, of those that were built for other workloads the best
    splits, and the best to build as far as the budget allows.
    """
    record, coming, subjects = known.record, now.fleet.in_flight, now.fleet.subjects
    ready: list[int] = []
    if now.fleet.builds_ahead:
        ready = sorted(record.built.difference(record.builds, record.same, record.skipped, subjects))
    if only_built:
        return ready
    if now.shared:
        ready += splits(known, chance, subjects, record.built)
    among = None if now.budget.may_build else record.built | coming
    best = splits(known, chance, subjects, among)
    return list(dict.fromkeys([*ready, *best]))


def _drift(known: Analysis, host: int, gap: float) -> tuple[Array, Array]:
    """The drift of a host that is expected in a visit ``gap`` minutes after its last reading; variances in units of s².

    By the levels, (M,): see HostSpeeds.at. And its variance in the mean of the runs and references of each batch, (B,).
    """
    levels, law, pace = known.levels, known.posterior.fit.law, known.record.run_seconds / 60
    memory = levels.memory[law] if levels.drift[law] > 0 else levels.memory[int(levels.drift.argmax())]  # minutes
    size = max(float(levels.drift[law] ** 2), float(levels.probability @ levels.drift**2))
    kept = float(np.exp(-(gap + pace) / memory))
    of_levels, error = levels.present.at(host, law, kept)
    span = (BATCH_RUNS + BATCH_REFERENCES) * pace / memory
    averaged = np.where(span > 1e-3, 2 * (span - 1 + np.exp(-span)) / np.maximum(span, 1e-3) ** 2, 1.0)
    return of_levels, np.maximum(error + size * (1 - kept**2) * averaged, 1e-9)


def _scores(seen: Prediction, cost: Array, likely: Array, before: Array, error: Array, references: Array) -> Array:
    """Bits for each run spent, (options, batches); ``references`` (options, M) are the weights of builds in their mean.

    ``cost`` (options, 2) is that of the builds which have to be made first, in runs: the candidate, and its references.
    The speed of the host is estimated from earlier readings and from the references, weighted by their precision;
    ``before`` (options, M) and ``error`` (options, batches) are the drift and its variance, from ``_drift``.
    """
    beside = BATCH_REFERENCES
    trust = np.where(references.sum(axis=1, keepdims=True) > 0, beside / (beside + 1 / error), 0.0)  # in the references
    read = seen.against(references, before, trust)
    noise = 1 / BATCH_RUNS + error * (1 - trust)
    square = read.between / (read.above * (1 - read.above)) / (read.within + noise)
    gain = label_information(read.above, square) * likely[:, None]
    result: Array = gain / (cost[:, :1] + cost[:, 1:] * (beside > 0) + BATCH_RUNS + beside)
    return result


def _rounds(
    seen: Prediction, cost: Array, likely: Array, references: Sequence[Sequence[int]], builds: int
) -> tuple[NDArray[np.int64], Array]:
    """The same for rounds of each candidate with one of its references: the better one's row, (options,), and the scores."""
    found = []
    for side in (0, -1):
        partner = np.array([pair[side] for pair in references])
        weights = np.eye(builds)[partner]
        read = seen.against(weights, weights, np.ones((len(partner), len(RUNS))))
        square = read.between / (read.above * (1 - read.above)) / (read.within + 1 / RUNS)
        gain = label_information(read.above, square) * likely[:, None]
        found.append((partner, gain / (cost.sum(axis=1)[:, None] + RUNS)))
    (one, first), (other, second) = found
    better = second.max(axis=1) > first.max(axis=1)
    return np.where(better, other, one), np.where(better[:, None], second, first)


LAYOUT = 0.005  # s.d. of a build
# Runs that the ends and the proof take where the drop is at least CLEAR times the noise; smaller ones take more, until they
# are given up. As simulated hunts through 20 to 1,000 commits spent for drops of 2, 3, 5 and 10 times a noise of 1 %.
ENDS_AND_PROOF, CLEAR, MOST_FIXED = 12.0, 6.0, 80.0


def runs_of_one(candidates: int, drop: float, noise: float, build_runs: float) -> float:
    """The runs of a hunt for a drop (0.05: 5 %) with this s.d. of a run, both above 0; a build costs ``build_runs`` runs.

    Those that tell most for their price, and those of the ends and the proof.
    """
    size = -math.log1p(-drop) / noise
    gain = label_information(np.full(len(RUNS), 0.5), size**2 / (2 * (LAYOUT / noise) ** 2 + 1 / RUNS))
    best = int((gain / (build_runs**BUILD_EXPONENT + RUNS)).argmax())
    fixed = min(ENDS_AND_PROOF * max(1.0, (CLEAR / size) ** 2), MOST_FIXED)
    return fixed + float(RUNS[best] / gain[best]) * math.log2(candidates)


# For --min-effect auto: the sizes to choose from, readings of each end that tell the noise, so that the choice stays, and the
# least where builds cannot be linked again: code placement makes that much.
SIZES, TELLING, BY_PLACEMENT, HOUR = (0.003, 0.004, 0.005, 0.006, 0.008, 0.01, 0.012, 0.015), 4, 0.01, 60.0


def smallest_effect(now: Situation) -> float:
    """The smallest change that the budget of a hunt, or an hour, probably shows, by the first runs of both ends; as a fraction.

    At most ``min_effect`` of the policy, which it is until there are enough of these runs.
    """
    policy, name, ends = now.policy, now.record.name, (0, now.record.name(now.bad))
    first = [seen for seen in now.readings if not (seen.layout or seen.host) and name(seen.candidate) in ends]
    turns = [[seen for seen in first if seen.partner is None and name(seen.candidate) == end][:TELLING] for end in ends]
    rounds = [seen for seen in first if seen.partner is not None and name(seen.partner) in ends][:TELLING]
    varying = []
    if min(map(len, turns)) == TELLING:
        varying.append(float(np.mean([np.var([seen.value for seen in of], ddof=1) for of in turns])))
    if len(rounds) == TELLING and (varying or policy.pairing is Pairing.PAIRED):
        varying.append(float(np.var([seen.value for seen in rounds], ddof=1)) / 2)
    if not varying:
        return policy.min_effect
    noise = math.sqrt(min(varying))
    seconds = float(np.mean([seen.seconds for seen in (*rounds, *turns[0], *turns[1])]))
    made = [seen.seconds for seen in now.observations if isinstance(seen, Built) and seen.candidate in (0, now.bad)]
    build = max([*made[:2], 0.0]) or now.prior.build_cost * seconds
    candidates = max(len(now.graph.candidates), 2)
    left = 60 * (policy.max_minutes or HOUR) - build * (math.log2(candidates) + 2)
    for size in SIZES:
        runs = runs_of_one(candidates, size, max(noise, 1e-4), build / seconds)
        allowed = runs * seconds <= left and runs <= (policy.max_runs or math.inf)
        if allowed and size < policy.min_effect and (policy.layouts or size >= BY_PLACEMENT):
            return size
    return policy.min_effect


def hopeless(choice: Choice, known: Analysis, now: Situation, required: float) -> bool:
    """Whether to give up, because the expected costs are out of proportion.

    A hunt is given up when its best step promises next to nothing; and when the missing bits, at the price of the best
    step, would make it several times as expensive as a usual search for a change of this size: then no single culprit
    explains the levels, or the change is smaller than it seemed, and more runs do not help. The limit is lower if only
    repeats of builds are left, and while a change is uncertain. Where no build is allowed any more, repeats can only
    separate hypotheses: they stop once a hypothesis of several candidates has the ``required`` probability.
    """
    record, classes, posterior, build_runs = known.record, known.groups, known.posterior, now.build_runs
    repeats = choice.order.plan[0].candidate in record.builds
    only_repeats = repeats and not now.budget.may_build
    between = posterior.culprit if only_repeats else classes.spread(posterior.culprit)
    top = int(posterior.culprit.argmax())
    if only_repeats and classes.members[top] > 1 and posterior.culprit[top] >= required:
        return True
    favoured = _ideal(-float(posterior.culprit @ posterior.fit.drop), posterior, build_runs)
    if choice.rate < POINTLESS * favoured:
        return True
    missing = max(_entropy(between) - ENOUGH_BITS, ENOUGH_BITS)
    whole = _entropy(classes.plain) * (1 + posterior.drifting / 2)  # on a drifting host runs need references
    usual, foreseen = whole / favoured, whole / _ideal(known.ends.drop, posterior, build_runs)
    for_others = record.built if now.shared else record.ahead  # a build ahead costs the search no time
    in_vain = len(for_others.difference(record.builds, record.same))
    spent = len(record.value) + (len(record.built) - in_vain) * build_runs**BUILD_EXPONENT
    through_failures = record.skipped and not repeats  # then a step promises little because the build may fail
    patience = known.model.patience * float(np.clip(posterior.change, LEAST, 1.0))
    if not through_failures and (
        spent + missing / choice.rate > patience * (usual + FIXED) or spent > known.model.spent * (foreseen + FIXED)
    ):
        return True
    return bool(repeats and choice.rate * 2 * (usual + spent) < min(missing, 1.0))


def _entropy(probability: Array) -> float:
    """In bits."""
    p = probability[probability > 0]
    return float(-(p * np.log2(p)).sum())


def _ideal(drop: float, posterior: Posterior, build_runs: float) -> float:
    """The score of the first step of a search for this drop (log units) on a steady host."""
    square = max(drop / posterior.fit.s, SEEN) ** 2 / (2 * posterior.fit.layout + 1 / RUNS)
    gain = label_information(np.full(len(RUNS), 0.5), square)
    return max(float((gain / (build_runs**BUILD_EXPONENT + RUNS)).max()), 1e-9)


def _references(
    record: Record, classes: Hypotheses, posterior: Posterior, rows: Sequence[int], made: Collection[int]
) -> list[list[int]]:
    """For the candidate of each row of readings (-1: none yet) the rows of the builds to compare it with.

    These are the nearest builds on either side that are certainly fast and slow, which the proof will need too;
    preferably of those that exist on the host (``made``).
    """
    slow = classes.slow @ posterior.culprit
    runs = np.array([record.runs(build) for build in record.builds])
    usable = [i for i, b in enumerate(record.builds) if b not in record.skipped]
    here = {i for i in usable if record.builds[i] in made}
    fast_ones = sorted((i for i in usable if slow[i] < SURE), key=lambda i: (i not in here, -slow[i]))
    slow_ones = sorted((i for i in usable if slow[i] > 1 - SURE), key=lambda i: (i not in here, slow[i]))
    pairs = ([i for side in (fast_ones, slow_ones) for i in [j for j in side[:2] if j != row][:1]] for row in rows)
    return [sorted(pair, key=lambda i: runs[i]) for pair in pairs]  # the one with fewer runs gets the odd run


def _shared(record: Record, references: list[int], runs: int) -> list[Share]:
    """``runs`` divided among the references."""
    counts = [(runs + 1) // 2, runs // 2] if len(references) == 2 else [runs]
    return [Share(record.builds[row], n) for row, n in zip(references, counts, strict=False) if n]
