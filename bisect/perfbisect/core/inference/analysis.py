"""The analysis of all readings at one moment of a hunt, and the probabilities that views show.

**Ends.** Before a commit between the ends is built, runs of both ends are interleaved until their difference is clearly
larger than noise and layout, or until the runs would have shown any difference of interest.

**The proof of a culprit.** The search prefers builds whose first readings deviated by chance, and a host may have been
slow while a build was measured. Therefore a culprit is named only after new runs of the culprit and its parent. New
runs are made after both builds have readings, and each next in time to a run of the other build. The posterior uses new
runs, too. If they contradict the culprit, the search continues. The posterior also allows two builds to differ by code
placement alone."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from perfbisect.core.domain.graph import Graph
from perfbisect.core.domain.orders import Belief, Interval, Measure, NotReproduced, PlannedRuns, Purpose
from perfbisect.core.domain.settings import MAX_PROBABILITY, ChangeDirection, Policy
from perfbisect.core.inference.ancestry import Hypotheses, ancestry_of
from perfbisect.core.inference.host_jumps import split_hosts_at_jumps
from perfbisect.core.inference.noise_model import USUAL, NoiseModel, ReadingWeights, remove_modes_and_weigh
from perfbisect.core.inference.posterior import BASE, CHANGE, Posterior, posterior_of
from perfbisect.core.inference.record import BEYOND, Record, move_stopped_runs
from perfbisect.core.inference.relative_speed import BuildSpeeds, fit_speeds, speeds_of_fit
from perfbisect.core.inference.state_space import LevelFit, Levels, fit_levels, levels_for_search
from perfbisect.core.stats.distributions import Student

CLEAR = ((4, 20, 40), (2.1, 1.9, 1.7))  # numbers of runs → standard errors at which the ends count as different
CLEAR_OF_LAYOUT = ((0.4, 0.8), (2.7, 1.9))  # shares of layout in the variance → standard errors, as in CLEAR
STILL = 1.0  # standard errors; after the search has begun, the ends are measured again if the drop is smaller
SHOWN = 2.7  # standard errors at which a difference between the ends counts as shown
POWER = 1.28  # further standard errors: a change that is larger by POWER would have been shown in nine of ten hunts
UNLIKELY = 0.04  # probability of a change below which the hunt gives up
SETTLED = 0.8  # share of layout in the variance, above which more runs of the same builds add nothing
CHEAP = 4.0  # a build is cheap if it costs fewer runs than this
PLAIN = 16.0  # in s.d. of a run; a larger drop is certain even if few runs show the s.d.


@dataclass(frozen=True, slots=True)
class Contrast:
    """The difference between two builds. ``drop`` is in log units, and positive if the second build is slower."""

    drop: float
    error: float  # standard error
    freedom: float
    runs: float  # weighted runs of the build with fewer runs
    noise: float  # s.d. of a run, without drift
    layout_variance: float = 0.0  # variance in ``error`` that does not average out over repetitions

    @property
    def normal_score(self) -> float:
        """The normal quantile whose p-value equals the p-value of ``drop`` / ``error`` by Student's t-distribution."""
        return Student(self.freedom).normal_score(self.drop / self.error)

    @property
    def required_normal_score(self) -> float:
        """The least ``normal_score`` of a clear difference: lower after many runs, or if layouts cause most error."""
        layout_share = self.layout_variance / self.error**2
        return float(min(np.interp(self.runs, *CLEAR), np.interp(layout_share, *CLEAR_OF_LAYOUT)))

    @property
    def detectable_drop(self) -> float:
        """The smallest drop (a fraction) that the present measurements would show."""
        return float(-np.expm1(-(SHOWN + POWER) * self.error))

    def probability_above(self, drop: float) -> float:
        """The probability that the true drop is larger than ``drop``."""
        return Student(self.freedom).cdf((self.drop - drop) / self.error)

    def ratio(self, sign: float) -> Interval:
        """The metric of the second build relative to the first build, for decisions; the ratios shown to the user are
        from relative_speed.py."""
        return Interval.from_log_ratio(-sign * self.drop, Student(self.freedom).quantile() * self.error)


def contrast_of_builds(levels: Levels, first: int, second: int) -> Contrast:
    """The difference between the builds in rows ``first`` and ``second`` of ``levels``, averaged over the possible
    sizes of noise and layout effects."""
    direction = np.zeros(levels.mean.shape[1])
    direction[first], direction[second] = 1.0, -1.0
    drops = levels.mean @ direction
    spread = levels.noise_variance * (levels.covariance @ direction @ direction)
    mean = float(levels.probability @ drops)
    layout = 2 * sum(p * size**2 for size, p in levels.model.layouts)
    variance = float(levels.probability @ (spread + (drops - mean) ** 2)) + layout
    freedom = max(levels.freedom - levels.mean.shape[1], 2.0)
    runs = float(min(levels.runs[first], levels.runs[second]))
    noise = float(np.sqrt(levels.probability @ levels.noise_variance))
    return Contrast(mean, float(np.sqrt(variance)), freedom, runs, noise, layout)


def min_log_change(policy: Policy) -> float:
    """The smallest change of interest under ``policy``, in log units."""
    of_rise = policy.typed and policy.direction is not ChangeDirection.DROP
    return max(float(np.log1p(policy.min_effect) if of_rise else -np.log1p(-policy.min_effect)), 1e-4)


def first_end_runs(bad: int, model: NoiseModel) -> Measure:
    """The work order for the first runs of both ends."""
    return _end_runs(bad, model.first_runs[0], model)


def _end_runs(bad: int, runs: int, model: NoiseModel) -> Measure:
    return model.measurement((PlannedRuns(bad, runs), PlannedRuns(0, runs)), Purpose.ENDS)


NOISY = 0.05  # s.d. of one run above which a host is called noisy
DRIFTING = 0.9  # probability of drift above which a host is said to drift


def prior_belief(graph: Graph, model: NoiseModel = USUAL) -> Belief:
    """The probabilities of the possible culprits before both ends were measured."""
    culprit = graph.weight / max(graph.weight.sum(), 1e-300)
    slow = _clipped_probabilities(ancestry_of(graph).ancestor_sums(culprit))
    return Belief(culprit, 0.5, model.guessed_noise, Interval.from_log_ratio(0.0, 2 * BASE), slow=slow)


def _clipped_probabilities(probabilities: NDArray[np.float64]) -> NDArray[np.float64]:
    """``probabilities``, clipped to 0–1 against rounding errors, and with 0.5 for NaN."""
    result: NDArray[np.float64] = np.clip(np.where(np.isnan(probabilities), 0.5, probabilities), 0.0, 1.0)
    return result


def host_and_change_warnings(levels: Levels, weights: ReadingWeights, p_several: float) -> tuple[str, ...]:
    """Sentences for the user about a host that is noisy, drifts or has two speeds, and about several changes."""
    sentences = []
    if weights.has_two_speeds:
        sentences.append("the host runs at two speeds: readings fall into two groups")
    if float(levels.probability @ (levels.drift > 0)) > DRIFTING:
        sentences.append("the speed of the host drifts; only runs close in time are compared")
    if levels.noise > NOISY:
        sentences.append(f"runs of one build vary by {100 * levels.noise:.0f} %")
    if weights.outliers > max(1, 0.03 * len(weights.weight)):
        sentences.append(f"{weights.outliers} readings are far from the others of their build and hardly count")
    if p_several > 0.9:
        sentences.append("there is more than one change in the range; the largest is hunted first (--all: every one)")
    return tuple(sentences)


ANOTHER = 0.2  # prior of a change in a subrange; the range was searched for its largest change already
UNCHANGED = 0.08  # probability of any change below which a subrange counts as unchanged
POSSIBLE = 0.1  # if a change of interest is more probable, few rounds do not show that the ends are equal


@dataclass(frozen=True, eq=False)
class Analysis:
    """All estimates from the readings of a hunt over the range ``graph`` under ``policy``, at one moment."""

    graph: Graph
    policy: Policy
    raw_record: Record  # the record before ``remove_modes_and_weigh``
    record: Record
    levels: Levels
    fitted: LevelFit
    hypotheses: Hypotheses
    posterior: Posterior
    ends: Contrast
    reading_weights: ReadingWeights
    by_distance: tuple[Posterior, ...]  # by distance of stopped runs beyond their bounds; empty without stopped runs
    is_subrange: bool  # whether the range is a subrange, after the largest change of the whole range was found

    @property
    def model(self) -> NoiseModel:
        """The noise model of the readings."""
        return self.levels.model

    @cached_property
    def speeds(self) -> BuildSpeeds:
        """The levels for the ratios that users see, with separate offsets before and after jumps of a host's speed."""
        parted = split_hosts_at_jumps(self.raw_record, self.model)
        if parted is self.raw_record:
            return speeds_of_fit(self.record, self.fitted)
        return fit_speeds(parted, 0, self.record.build_id(self.graph.size - 1), self.model)

    @cached_property
    def end_ratio(self) -> Interval:
        """The metric of the bad end relative to the good end."""
        return self.speeds.ratio(self.graph.size - 1, 0)

    @cached_property
    def belief(self) -> Belief:
        """The probabilities that views show, and that are stored with each decision."""
        posterior = self.posterior
        culprit = self.hypotheses.candidate_probabilities(posterior.culprit)
        slow = self.hypotheses.ancestry.ancestor_sums(culprit)
        slow[list(self.record.builds)] = self.hypotheses.slow @ posterior.culprit
        change = float(np.clip(posterior.change, 1 - MAX_PROBABILITY, MAX_PROBABILITY))
        noticed = host_and_change_warnings(self.levels, self.reading_weights, posterior.several)
        slow = _clipped_probabilities(slow)
        return Belief(culprit, change, self.levels.noise, lambda: self.end_ratio, noticed, slow, posterior.several)

    @property
    def has_measured_between_ends(self) -> bool:
        """Whether a build between the ends was measured; false in a subrange, which an earlier search measured."""
        ends = (0, self.record.build_id(self.graph.size - 1))
        return not self.is_subrange and any(b not in ends for b in self.record.builds)

    @property
    def ends_are_settled(self) -> bool:
        """Whether more runs of the ends could not make the difference of the ends more certain."""
        return self.ends.runs >= self.model.most_end_runs or self.ends.layout_variance > SETTLED * self.ends.error**2

    @property
    def ends_differ(self) -> bool:
        """Whether the ends differ clearly enough to begin the search, or to continue a search."""
        return self.ends.normal_score >= (STILL if self.has_measured_between_ends else self.ends.required_normal_score)

    @property
    def should_give_up(self) -> bool:
        """Whether a change of interest is improbable, or cannot be shown by more runs of the ends."""
        ends, smallest = self.ends, min_log_change(self.policy)
        if ends.runs < self.model.fewest_end_runs:
            return False
        promised = max(smallest, self.model.change_to_show * ends.noise)
        above = ends.probability_above(smallest)
        unlikely = ends.probability_above(promised) < UNLIKELY or above < UNLIKELY / 5
        unchanged = self.posterior.change < UNCHANGED and not (self.model.paired and above > POSSIBLE)
        return unlikely or unchanged or (self.ends_are_settled and not self.ends_differ)

    @property
    def not_reproduced(self) -> NotReproduced:
        """The verdict that the ends do not differ, with the smallest change that would have been shown."""
        policy = self.policy
        return NotReproduced(self.end_ratio, self.ends.detectable_drop, (), policy.min_effect, policy.direction)

    def missing_first_end_runs(self, build_cost: float) -> Measure | None:
        """The work order for missing first runs of the ends (more if builds cost much); None if ends differ clearly."""
        bad = self.record.build_id(self.graph.size - 1)
        lacking = self.model.first_runs[build_cost > CHEAP] - min(self.record.run_count(0), self.record.run_count(bad))
        if lacking <= 0 or self.has_measured_between_ends or self.ends.drop > PLAIN * self.ends.noise:
            return None
        return _end_runs(self.graph.size - 1, lacking, self.model)

    def further_end_runs(self) -> Measure:
        """The work order for runs that make the ends' difference clear: at most about half of the present runs."""
        ends, bad = self.ends, self.graph.size - 1
        needed = ends.runs * ((1.1 * ends.required_normal_score / max(ends.normal_score, 0.3)) ** 2 - 1)
        return _end_runs(bad, int(np.clip(np.ceil(needed), 1, max(2, min(ends.runs // 2 + 1, 8)))), self.model)

    @property
    def shows_change(self) -> bool:
        """Whether the readings show that the ends differ, and so can show where the change is."""
        return self.ends_differ and not self.should_give_up


def analyse(
    graph: Graph,
    policy: Policy,
    record: Record,
    hypotheses: Hypotheses,
    run_noise: float | None = None,
    *,
    model: NoiseModel = USUAL,
    is_subrange: bool = False,
) -> Analysis:
    """The analysis of ``record``, with readings of both ends; ``run_noise`` is the known standard deviation of runs."""
    raw, bad = record, record.build_id(graph.size - 1)
    record, weights = remove_modes_and_weigh(raw, 0, bad, model)

    def inferred(fitted: LevelFit) -> tuple[Levels, Contrast, Posterior]:
        levels = levels_for_search(fitted, run_noise)
        ends = contrast_of_builds(levels, record.builds.index(0), record.builds.index(bad))
        drop = max(ends.drop, min_log_change(policy))
        change = ANOTHER if is_subrange else CHANGE
        return levels, ends, posterior_of(levels, hypotheses, drop, ends.error, change=change)

    fitted = fit_levels(record, weights.weight, model)
    levels, ends, posterior = inferred(fitted)
    by_distance: tuple[Posterior, ...] = ()
    if record.bound.any():
        beyond = (fit_levels(move_stopped_runs(record, distance), weights.weight, model) for distance in BEYOND)
        by_distance = (posterior, *(inferred(fit_beyond)[2] for fit_beyond in beyond))
        change, several = (float(np.mean([getattr(at, name) for at in by_distance])) for name in ("change", "several"))
        culprit = np.mean([at.culprit for at in by_distance], axis=0)
        posterior = replace(posterior, culprit=culprit, change=change, several=several)
    fits = levels, fitted, hypotheses, posterior, ends
    return Analysis(graph, policy, raw, record, *fits, weights, by_distance, is_subrange)


PLAINLY = 3.5  # standard errors; the proof of a difference of at least this size needs one new run less
DRIFT_LIKELY = 0.75  # a host with a higher probability of drift is treated as drifting
PROVEN = 2.2  # standard errors that prove a difference; by chance, 1.4 % of proofs reach PROVEN, and 0.023 % PLAINLY
# S.d. of ``_robust_mean`` in units of the s.d. of the mean, by the number of normal values; TRIMMED is for more values.
SPREAD, TRIMMED = {1: 1.0, 2: 1.0, 3: 1.160, 4: 1.092, 5: 1.066, 6: 1.049}, 1.035

ReadingPositions = NDArray[np.int64]  # positions in the record


@dataclass(frozen=True, slots=True, eq=False)
class PairwiseProof:
    """The comparison of the culprit with one parent, by new runs only."""

    parent: int
    runs: int  # new runs of the build with fewer new runs
    contrast: Contrast | None  # None if one build has no new run

    def is_clear(self, least_runs: int) -> bool:
        """Whether the difference between the builds is clear and each build has at least ``least_runs`` new runs."""
        return self.runs >= least_runs and self.contrast is not None and self.contrast.normal_score >= PLAINLY

    @property
    def is_proven(self) -> bool:
        """Whether the new runs alone prove the difference."""
        return self.contrast is not None and self.contrast.normal_score >= PROVEN


def pairwise_proofs(record: Record, levels: Levels, culprit: int, parents: Sequence[int]) -> tuple[PairwiseProof, ...]:
    """For each of ``parents``, the comparison of the culprit with this parent by the new runs so far."""
    return tuple(_pairwise_proof(record, levels, culprit, parent, len(parents) + 1) for parent in parents)


def proof_of_smallest_drop(proofs: Sequence[PairwiseProof]) -> PairwiseProof:
    """The proof with the smallest drop. Proofs without new runs of both builds count as infinite drops."""
    return min(proofs, key=lambda proof: proof.contrast.drop if proof.contrast else np.inf)


def missing_proof_runs(analysis: Analysis, culprit: int, proofs: Sequence[PairwiseProof]) -> Measure | None:
    """The work order for the runs that the culprit's proof still needs; None if the proof is complete or impossible."""
    levels, posterior = analysis.levels, analysis.posterior
    enough = levels.model.proof_runs + (posterior.drifting > DRIFT_LIKELY)
    drop = -float(posterior.culprit @ posterior.fit.drop)
    # The difference between means of two runs has the s.d. of one run, and only two outliers can fake a plain drop.
    fewer = (drop > PLAINLY * levels.noise) + (drop > PLAIN * levels.noise)
    at_first = enough - fewer
    runs_against = {}
    for proof in proofs:
        if proof.runs >= levels.model.most_proof_runs:
            return None
        if proof.runs < enough and not proof.is_clear(enough - max(fewer, 1)):
            runs_against[proof.parent] = max(at_first - proof.runs, 1)
        elif not proof.is_proven:
            runs_against[proof.parent] = min(proof.runs, 8)
    if not runs_against:
        return None
    if levels.model.paired:  # paired runs compare the culprit with one parent after the other
        parent, runs = next(iter(runs_against.items()))
        return levels.model.measurement((PlannedRuns(culprit, runs), PlannedRuns(parent, runs)), Purpose.CONFIRM)
    shares = [(culprit, max(runs_against.values())), *runs_against.items()]
    # The first run of a build does not count as new.
    plan = tuple(PlannedRuns(v, runs + (analysis.record.run_count(v) == 0)) for v, runs in shares)
    return levels.model.measurement(plan, Purpose.CONFIRM)


def _pairwise_proof(record: Record, levels: Levels, culprit: int, parent: int, limit: int) -> PairwiseProof:
    """The comparison of the culprit with one parent: by new runs that are at most ``limit`` readings away from a run of
    the other build, or by all paired runs after both builds had readings."""
    slow, fast = record.reading_positions(culprit), record.reading_positions(parent)
    if levels.model.paired:
        rows, above = record.paired_differences(parent, culprit)
        above = above[rows > max(slow[:1].sum(), fast[:1].sum())]
        if not len(above):
            return PairwiseProof(parent, 0, None)
        return _proof_by_drop(parent, _robust_mean(above), _robust_mean_variance(len(above)), len(above), levels)
    if len(slow) and len(fast):
        start = max(slow[0], fast[0])
        slow, fast = slow[slow > start], fast[fast > start]
        slow, fast = slow[record.are_near(slow, fast, limit)], fast[record.are_near(fast, slow, limit)]
    if not len(slow) or not len(fast):
        return PairwiseProof(parent, 0, None)
    low, high = _values_as_on_one_host(record, slow, fast)
    variance = _robust_mean_variance(len(low)) + _robust_mean_variance(len(high))
    return _proof_by_drop(parent, _robust_mean(high) - _robust_mean(low), variance, min(len(low), len(high)), levels)


def _proof_by_drop(parent: int, drop: float, variance: float, runs: int, levels: Levels) -> PairwiseProof:
    """The proof whose ``runs`` new runs show ``drop``; ``variance`` is in units of the variance of a run."""
    freedom = max(levels.freedom - levels.mean.shape[1], 2.0)
    error = levels.noise * math.sqrt(variance)
    return PairwiseProof(parent, runs, Contrast(drop, error, freedom, runs, levels.noise))


def _values_as_on_one_host(
    record: Record, slow: ReadingPositions, fast: ReadingPositions
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The values of both builds, corrected for the speeds of hosts, as if the first host had measured all runs."""
    low, high = record.value[slow], record.value[fast]
    hosts = np.unique(record.host[slow])
    middle = {h: (low[record.host[slow] == h].mean() + high[record.host[fast] == h].mean()) / 2 for h in hosts}
    for host in hosts[1:]:
        low[record.host[slow] == host] -= middle[host] - middle[hosts[0]]
        high[record.host[fast] == host] -= middle[host] - middle[hosts[0]]
    return low, high


def _robust_mean_variance(count: int) -> float:
    """The variance of ``_robust_mean`` of ``count`` values that have a variance of 1."""
    return SPREAD.get(count, TRIMMED) ** 2 / count


def _robust_mean(values: NDArray[np.float64]) -> float:
    """The trimmed mean of at least five values; the median of fewer values."""
    if len(values) < 5:
        return float(np.median(values))
    cut = max(1, len(values) // 8)
    return float(np.sort(values)[cut:-cut].mean())
