"""Computes the ratio of the metric of one build to the metric of another build, with a 95 % interval.

This module computes every ratio that a view, a report or a verdict shows, with the same statistical model as the
search. The logarithm of a ratio is the difference of two levels; the level of a build is the true mean of the
logarithm of the metric. Several models of the noise are considered. Under each model, the difference of two levels has
Student's t distribution, whose number of degrees of freedom depends only on the readings. These distributions are
averaged, weighted by the posterior probabilities of the models. The interval of a ratio is from the 2.5 % quantile to
the 97.5 % quantile of the averaged distribution; the ratio that is shown is the median.

Unlike the search, this module makes no prior assumptions about sizes, so the interval is as wide as the readings alone
require. The prior distributions of the noise of a run and of the difference between two hosts are flat, and larger
drifts of a host and larger effects of visits are possible than in the search. The ratio includes the effect of the
different code placement of the two builds. The search separates this effect from the effect of the source code
(analysis.py).
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from perfbisect.core.domain.orders import Interval, ratio_of_log
from perfbisect.core.domain.settings import Policy
from perfbisect.core.inference.host_jumps import split_hosts_at_jumps
from perfbisect.core.inference.noise_model import (
    RANDOMIZED_LAYOUTS,
    USUAL,
    NoiseModel,
    remove_modes_and_weigh,
    weigh_readings,
)
from perfbisect.core.inference.observations import Observation, Reading
from perfbisect.core.inference.record import Record, arrange_observations, censoring_direction
from perfbisect.core.inference.state_space import NEGLIGIBLE, Array, LevelFit, fit_levels
from perfbisect.core.stats.distributions import Student, log_sum_exp

FLAT = 1e-3  # share of the host offset's prior precision that remains
# For normal noise: true variance of a mean in which outliers have lower weights, divided by the estimated variance.
CONSISTENT = 1.14
EXACT = 1e-9  # s.d. of a run below which readings count as equal numbers, because counts can be exact
PROBABILITIES = (0.025, 0.5, 0.975)


@dataclass(frozen=True, slots=True, eq=False)
class BuildSpeeds:
    """The levels of builds (the true means of their readings) under each model of the noise, computed from the readings
    without the prior assumptions of the search.
    """

    record: Record
    probability: Array  # (H,) probability of each model
    level: Array  # (H, M) level of each build
    covariance: Array  # (H, M, M) covariance of the levels, with noise
    freedom: float
    # build → builds with which the build can be compared, through common hosts or rounds
    comparable: Mapping[int, frozenset[int]]

    def ratios(self, builds: Sequence[int], baseline: int) -> list[Interval]:
        """For each of ``builds``, the ratio of its metric to the metric of ``baseline``.

        The interval is from 0 to infinity if no build has more than one run, or if the two builds cannot be compared.
        If runs of one build were stopped because they were too slow, the interval is bounded on one side only.
        """
        rows = [self.record.builds.index(self.record.build_id(build)) for build in builds]
        origin = self.record.builds.index(self.record.build_id(baseline))
        difference = self.record.sign * (self.level[:, rows] - self.level[:, [origin]])
        if self.freedom <= 0:
            return [Interval.from_log_ratio(middle, None) for middle in (self.probability @ difference).tolist()]
        diagonal = self.covariance[:, rows, rows]
        variance = diagonal + self.covariance[:, [origin], [origin]] - 2 * self.covariance[:, rows, [origin]]
        scale = np.sqrt(np.maximum(variance, EXACT**2))
        logs = Student(self.freedom).mixture_quantiles(self.probability, difference, scale, PROBABILITIES)
        sides, base_side = (
            [censoring_direction(self.record, build) for build in builds],
            censoring_direction(self.record, baseline),
        )
        linked = self.comparable[self.record.build_id(baseline)]
        return [
            with_open_bounds(Interval(*map(ratio_of_log, quantiles)), side, base_side)
            if self.record.build_id(build) in linked
            else Interval.from_log_ratio(quantiles[1], None)
            for build, quantiles, side in zip(builds, logs.tolist(), sides, strict=True)
        ]

    def ratio(self, build: int, baseline: int) -> Interval:
        """The metric of ``build`` divided by the metric of ``baseline``."""
        return self.ratios([build], baseline)[0]


def with_open_bounds(ratio: Interval, build_side: int, baseline_side: int) -> Interval:
    """The interval of the ratio, with a lower bound of 0 or an infinite upper bound if stopped runs make this bound
    unknown.

    ``build_side`` and ``baseline_side`` say where the true levels of the two builds are: -1 below the readings of the
    build, +1 above its readings, 0 if fewer than half of its runs were stopped.
    """
    below, above = -1 in (build_side, -baseline_side), 1 in (build_side, -baseline_side)
    return Interval(0.0 if below else ratio.low, ratio.middle, math.inf if above else ratio.high)


def fit_speeds(record: Record, good: int, bad: int, model: NoiseModel) -> BuildSpeeds:
    """The levels of builds, estimated from the readings of ``record``; ``good`` and ``bad`` are the ends of the
    range."""
    record, noticed = remove_modes_and_weigh(record, good, bad, model)
    return speeds_of_fit(record, fit_levels(record, noticed.weight, model))


def speeds_of_fit(record: Record, fitted: LevelFit) -> BuildSpeeds:
    """The levels of builds, with their uncertainty, from ``fitted``, the fit to ``record``."""
    builds, hosts = len(fitted.runs), len(fitted.hosts)
    both = record.partner[record.partner >= 0]
    single = np.bincount(record.build, minlength=builds) + np.bincount(both, minlength=builds) == 1
    information, covariance, level = fitted.information, fitted.covariance, fitted.coefficients
    squares = fitted.squares
    if hosts > 1:
        rows = fitted.x.shape[1] - (hosts - 1)  # the rows after these are pseudo-readings with the prior of the offsets
        y, x = fitted.y[:, :rows], fitted.x[:, :rows]
        offset = np.arange(builds, builds + hosts - 1)
        information = information.copy()
        information[:, offset, offset] -= (1 - FLAT) / fitted.model.host_offset**2
        covariance = np.linalg.inv(information).astype(np.float64)
        level = (covariance @ (np.swapaxes(x, 1, 2) @ y[:, :, None]))[:, :, 0]
        squares = ((y - (x @ level[:, :, None])[:, :, 0]) ** 2).sum(axis=1) + fitted.within
    spent = fitted.free
    # A build's only reading counts fully: its weight shows its distance from both ends, not its reliability.
    only = single[fitted.build]
    freedom = float(fitted.weight[~only].sum()) + int(only.sum()) - spent
    freedom = max(freedom - fitted.excess_weight, 1.0) if len(record.value) - fitted.excess_weight > spent else 0.0
    squares = squares + EXACT**2
    deviance = fitted.log_det + np.linalg.slogdet(information)[1] + freedom * np.log(squares)
    evidence = np.log(fitted.prior) - 0.5 * deviance
    probability = np.exp(evidence - log_sum_exp(evidence))
    probable = probability > NEGLIGIBLE
    covariance = covariance[probable][:, :builds, :builds].copy()
    covariance[:, single, single] += 1 - 1 / fitted.runs[single]
    covariance *= (CONSISTENT * squares[probable] / max(freedom, 1.0))[:, None, None]
    weight = probability[probable] / probability[probable].sum()
    return BuildSpeeds(record, weight, level[probable, :builds], covariance, freedom, _comparable_builds(record))


def _comparable_builds(record: Record) -> Mapping[int, frozenset[int]]:
    """Maps each build to the builds with which it can be compared.

    If the runs are interleaved, two builds can be compared if both were run on the same host, because hosts differ in
    speed. If the runs are paired, two builds can be compared if they were paired with each other, because the speed
    differs between rounds. Two builds that can be compared with a third build can also be compared with each other.
    """
    alone = record.partner < 0
    groups: list[set[int]] = []
    linked = [set(record.build[alone & (record.host == host)].tolist()) for host in np.unique(record.host[alone])]
    linked += [set(pair) for pair in np.column_stack((record.build, record.partner))[~alone].tolist()]
    for group in linked:
        for overlap in [overlap for overlap in groups if overlap & group]:
            groups.remove(overlap)
            group |= overlap
        groups.append(group)
    named = [frozenset(record.builds[row] for row in group) for group in groups]
    return {build: group for group in named for build in group}


def ratios_of_candidates_to_good(
    observations: Sequence[Observation], bad: int, host_classes: Sequence[str] = (), model: NoiseModel = USUAL
) -> Mapping[int, Interval]:
    """Maps each measured candidate to the ratio of its metric to the metric of the good end. ``bad`` is the number of
    the candidate at the bad end.

    The result does not include the good end, candidates with the same binary as the good end, and candidates that
    cannot be compared with the good end. ``host_classes`` has the host class (group of hosts of the same model) of each
    host, by the number of the host. If there are several host classes, a candidate's ratio is its ratio on the host
    class that ``shown_host_class`` chooses, or on another host class if the candidate has no runs on the chosen host
    class. If a candidate and the good end both have paired runs, or runs in randomized layouts, these runs determine
    the ratio.
    """
    by_way = split_by_measurement_kind(observations) if model is USUAL else iter([(model, observations)])
    ratios: dict[int, Interval] = {}
    for own_model, alike in by_way:
        ratios |= _ratios_from_all_classes(alike, bad, host_classes, own_model)
    return ratios


def split_by_measurement_kind(
    observations: Sequence[Observation],
) -> Iterator[tuple[NoiseModel, Sequence[Observation]]]:
    """For each kind of runs (interleaved or paired, in the usual layout or in randomized layouts), the noise model and
    the observations of this kind.
    """
    for fresh, model in ((False, USUAL), (True, RANDOMIZED_LAYOUTS)):
        for rounds in (False, True):
            kind = fresh, rounds
            alike = [item for item in observations if not isinstance(item, Reading) or item.layout_and_pairing == kind]
            if any(isinstance(item, Reading) for item in alike):
                yield model.for_paired_runs if rounds else model, alike


def _ratios_from_all_classes(
    observations: Sequence[Observation], bad: int, host_classes: Sequence[str], model: NoiseModel
) -> Mapping[int, Interval]:
    """For each build, the ratio of its metric to the metric of the good end, from runs of one kind on all host
    classes."""
    by_class = []
    for name in dict.fromkeys(host_classes) or ("",):
        members = {number for number, host_class in enumerate(host_classes) if host_class == name}
        of_class = [
            item for item in observations if not members or not isinstance(item, Reading) or item.host in members
        ]
        by_class.append(_ratios_to_good_in_class(of_class, bad, model))
    first = by_class[shown_host_class([ratios.get(bad) for ratios in by_class])]
    return {build: ratio for ratios in (*reversed(by_class), first) for build, ratio in ratios.items()}


def shown_host_class(ratios: Sequence[Interval | None]) -> int:
    """The index of the host class whose ratio is shown to the user: the first host class on which the ratio clearly
    differs from 1, or else the first measured host class.
    """
    measured = [index for index, ratio in enumerate(ratios) if ratio is not None and ratio.has_known_bound]
    clear = [index for index in measured if ratios[index].excludes_one]  # type: ignore[union-attr]
    return next(iter(clear or measured), 0)


def strongest_ratio(ratios: Sequence[Interval]) -> Interval:
    """The ratio that is furthest from 1 among ratios whose intervals exclude 1; if the intervals of all ratios contain
    1, the ratio furthest from 1.
    """
    return max(ratios, key=lambda ratio: (ratio.excludes_one, abs(math.log(ratio.middle))))


def _ratios_to_good_in_class(
    observations: Sequence[Observation], bad: int, model: NoiseModel
) -> Mapping[int, Interval]:
    """For each build, the ratio of its metric to the metric of the good end, on the hosts of one host class."""
    record = arrange_observations(observations, Policy(), bad)
    if 0 not in record.builds or len(record.builds) < 2:
        return {}
    levels = fit_speeds(split_hosts_at_jumps(record, model), 0, bad, model)
    builds = [build for build in record.builds if build and build in levels.comparable[0]]
    if levels.freedom <= 0 or not builds:
        return {}
    ratios = dict(zip(builds, levels.ratios(builds, 0), strict=True))
    return ratios | {candidate: ratios[name] for candidate, name in record.build_name.items() if name in ratios}


def step_ratio(observations: Sequence[Observation], bad: int, candidate: int, parent: int) -> Interval | None:
    """The ratio of the metric of a candidate to the metric of a parent; None if the builds cannot be compared.

    The ratio is computed from runs of one kind: the first of the following kinds of which both builds have at least two
    readings: paired runs in randomized layouts, interleaved runs in randomized layouts, paired runs in the usual
    layout, interleaved runs in the usual layout.
    """
    record, model = None, USUAL
    for way_model, alike in split_by_measurement_kind(observations):
        arranged = arrange_observations(alike, Policy(), bad)
        if min(arranged.run_count(candidate), arranged.run_count(parent)) >= 2:
            record, model = arranged, way_model if way_model.paired else USUAL
    if record is None:
        return None
    record = split_hosts_at_jumps(record, model)
    levels = speeds_of_fit(
        record, fit_levels(record, weigh_readings(record, record.build_id(parent), candidate, model).weight, model)
    )
    if levels.freedom <= 0 or record.build_id(candidate) not in levels.comparable[record.build_id(parent)]:
        return None
    return levels.ratio(candidate, parent)
