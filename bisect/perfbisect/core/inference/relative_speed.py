"""Relative speed: the ratio of the metric of one build to that of another, with a 95 % interval.

Every ratio that a view, a report or a verdict shows comes from here, and so from the fit that the search decides by. A
difference of levels has under each law of noise a Student distribution, whose degrees of freedom are those of the
readings alone; the laws are weighted by how well they explain the readings. The interval is central, the middle the median.

It leaves out what the search assumes before the first reading, so that it is as wide as the readings require: the noise of
a run and the difference between two hosts have flat priors, and drift and visit effects can be larger. It is about these two
builds: what code placement adds to a change of the source is weighed in the decisions alone (analysis.py).
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from perfbisect.core.domain.orders import Interval, ratio_of
from perfbisect.core.domain.settings import Policy
from perfbisect.core.inference.host_jumps import between_jumps
from perfbisect.core.inference.noise_model import FRESH, USUAL, NoiseModel, behaviour, judged
from perfbisect.core.inference.observations import Observation, Reading
from perfbisect.core.inference.record import Record, arrange, direction
from perfbisect.core.inference.state_space import KEPT, Array, Fit, fit
from perfbisect.core.stats.distributions import Student, log_sum

FLAT = 1e-3  # of the host offset's prior precision: so little of it is left
CONSISTENT = 1.14  # variance of a weighted mean over what weights of outliers make it seem, where noise is normal
EXACT = 1e-9  # s.d. of a run below which readings are the same number: counts can be exact
PROBABILITIES = (0.025, 0.5, 0.975)


@dataclass(frozen=True, slots=True, eq=False)
class Speeds:
    """The levels of M builds under H laws of noise, as the readings alone support them."""

    record: Record
    probability: Array  # (H,) of each law
    level: Array  # (H, M)
    covariance: Array  # (H, M, M), noise included
    freedom: float
    compared: Mapping[int, frozenset[int]]  # build → those that it can be compared with, through common hosts or rounds

    def ratios(self, builds: Sequence[int], baseline: int) -> list[Interval]:
        """The metric of each of ``builds`` relative to ``baseline``.

        From zero to infinity where no run was repeated, or the two cannot be compared. Where runs were stopped, the ratio
        has a bound on one side.
        """
        rows = [self.record.builds.index(self.record.name(build)) for build in builds]
        origin = self.record.builds.index(self.record.name(baseline))
        difference = self.record.sign * (self.level[:, rows] - self.level[:, [origin]])
        if self.freedom <= 0:
            return [Interval.around(middle, None) for middle in (self.probability @ difference).tolist()]
        own = self.covariance[:, rows, rows]
        variance = own + self.covariance[:, [origin], [origin]] - 2 * self.covariance[:, rows, [origin]]
        scale = np.sqrt(np.maximum(variance, EXACT**2))
        logs = Student(self.freedom).mixture_quantiles(self.probability, difference, scale, PROBABILITIES)
        sides, other = [direction(self.record, build) for build in builds], direction(self.record, baseline)
        linked = self.compared[self.record.name(baseline)]
        return [
            open_ended(Interval(*map(ratio_of, each)), side, other)
            if self.record.name(build) in linked
            else Interval.around(each[1], None)
            for build, each, side in zip(builds, logs.tolist(), sides, strict=True)
        ]

    def ratio(self, build: int, baseline: int) -> Interval:
        """The metric of ``build`` relative to ``baseline``."""
        return self.ratios([build], baseline)[0]


def open_ended(ratio: Interval, build: int, baseline: int) -> Interval:
    """A ratio of levels of which either may lie beyond what was read: -1 below it, +1 above, 0 neither."""
    below, above = -1 in (build, -baseline), 1 in (build, -baseline)
    return Interval(0.0 if below else ratio.low, ratio.middle, math.inf if above else ratio.high)


def speeds_of(record: Record, good: int, bad: int, model: NoiseModel) -> Speeds:
    """The levels by the readings of ``record``, which are judged first."""
    record, seen = judged(record, good, bad, model)
    return speeds(record, fit(record, seen.weight, model))


def speeds(record: Record, fitted: Fit) -> Speeds:
    """The levels of ``fitted``, which was made of ``record``, with their uncertainty."""
    builds, hosts = len(fitted.runs), len(fitted.hosts)
    both = record.partner[record.partner >= 0]
    single = np.bincount(record.build, minlength=builds) + np.bincount(both, minlength=builds) == 1
    information, covariance, level = fitted.information, fitted.covariance, fitted.coefficients
    squares = fitted.squares
    if hosts > 1:
        rows = fitted.x.shape[1] - (hosts - 1)  # the rest are the pseudo-readings of offsets
        y, x = fitted.y[:, :rows], fitted.x[:, :rows]
        offset = np.arange(builds, builds + hosts - 1)
        information = information.copy()
        information[:, offset, offset] -= (1 - FLAT) / fitted.model.host_offset**2
        covariance = np.linalg.inv(information).astype(np.float64)
        level = (covariance @ (np.swapaxes(x, 1, 2) @ y[:, :, None]))[:, :, 0]
        squares = ((y - (x @ level[:, :, None])[:, :, 0]) ** 2).sum(axis=1) + fitted.within
    spent = fitted.free
    # The weight of a build's only reading says how far it is from both ends, not how far it can be trusted.
    only = single[fitted.build]
    freedom = float(fitted.weight[~only].sum()) + int(only.sum()) - spent
    freedom = max(freedom - fitted.repeated, 1.0) if len(record.value) - fitted.repeated > spent else 0.0
    squares = squares + EXACT**2
    evidence = np.log(fitted.prior) - 0.5 * (
        fitted.log_det + np.linalg.slogdet(information)[1] + freedom * np.log(squares)
    )
    probability = np.exp(evidence - log_sum(evidence))
    kept = probability > KEPT
    covariance = covariance[kept][:, :builds, :builds].copy()
    covariance[:, single, single] += 1 - 1 / fitted.runs[single]
    covariance *= (CONSISTENT * squares[kept] / max(freedom, 1.0))[:, None, None]
    weight = probability[kept] / probability[kept].sum()
    return Speeds(record, weight, level[kept, :builds], covariance, freedom, _compared(record))


def _compared(record: Record) -> Mapping[int, frozenset[int]]:
    """For each build those that it can be compared with.

    In turns they share a host with it, or with one that does: all others may differ by their host. In rounds they were
    measured beside it, or beside one that was: all others may differ by the effect of their rounds.
    """
    alone = record.partner < 0
    groups: list[set[int]] = []
    linked = [set(record.build[alone & (record.host == host)].tolist()) for host in np.unique(record.host[alone])]
    linked += [set(pair) for pair in np.column_stack((record.build, record.partner))[~alone].tolist()]
    for group in linked:
        for other in [other for other in groups if other & group]:
            groups.remove(other)
            group |= other
        groups.append(group)
    named = [frozenset(record.builds[row] for row in group) for group in groups]
    return {build: group for group in named for build in group}


def relative_speeds(
    observations: Sequence[Observation], bad: int, host_classes: Sequence[str] = (), model: NoiseModel = USUAL
) -> Mapping[int, Interval]:
    """The metric of every measured candidate relative to the good end; ``bad`` is the candidate at the bad end.

    The good end and candidates with its binary are left out, and so is what cannot be compared with it. Hosts of one class,
    ``host_classes`` by number, show the same ratios. Of several classes the leading one is shown, and others where that
    did not measure a candidate. What was measured in rounds, or in randomized layouts, as good was, is compared with it in these.
    """
    ways = in_ways(observations) if model is USUAL else iter([(model, observations)])
    found: dict[int, Interval] = {}
    for own, alike in ways:
        found |= _in_one_way(alike, bad, host_classes, own)
    return found


def in_ways(observations: Sequence[Observation]) -> Iterator[tuple[NoiseModel, Sequence[Observation]]]:
    """The observations with the readings that were made in each way that there is: in turns, in rounds, and both in fresh
    layouts.
    """
    for fresh, model in ((False, USUAL), (True, FRESH)):
        for rounds in (False, True):
            alike = [seen for seen in observations if not isinstance(seen, Reading) or seen.way == (fresh, rounds)]
            if any(isinstance(seen, Reading) for seen in alike):
                yield model.of_rounds if rounds else model, alike


def _in_one_way(
    observations: Sequence[Observation], bad: int, host_classes: Sequence[str], model: NoiseModel
) -> Mapping[int, Interval]:
    """The same where all readings are in the usual layout, or all in fresh ones."""
    each = []
    for name in dict.fromkeys(host_classes) or ("",):
        members = {number for number, other in enumerate(host_classes) if other == name}
        own = [seen for seen in observations if not members or not isinstance(seen, Reading) or seen.host in members]
        each.append(_among_equals(own, bad, model))
    first = each[leading([ratios.get(bad) for ratios in each])]
    return {build: ratio for ratios in (*reversed(each), first) for build, ratio in ratios.items()}


def leading(ratios: Sequence[Interval | None]) -> int:
    """The host class whose ``ratios``, bad against good, is shown for all: the first with a clear difference, or else the first."""
    known = [place for place, ratio in enumerate(ratios) if ratio is not None and ratio.known]
    clear = [place for place in known if ratios[place].excludes_one]  # type: ignore[union-attr]
    return next(iter(clear or known), 0)


def strongest(ratios: Sequence[Interval]) -> Interval:
    """Of the ratios on the host classes the one farthest from 1; those that may be 1 only if all may."""
    return max(ratios, key=lambda ratio: (ratio.excludes_one, abs(math.log(ratio.middle))))


def _among_equals(observations: Sequence[Observation], bad: int, model: NoiseModel) -> Mapping[int, Interval]:
    """The same on hosts of one class, which may be of different speeds."""
    record = arrange(observations, Policy(), bad)
    if 0 not in record.builds or len(record.builds) < 2:
        return {}
    found = speeds_of(between_jumps(record, model), 0, bad, model)
    builds = [build for build in record.builds if build and build in found.compared[0]]
    if found.freedom <= 0 or not builds:
        return {}
    ratios = dict(zip(builds, found.ratios(builds, 0), strict=True))
    return ratios | {candidate: ratios[name] for candidate, name in record.same.items() if name in ratios}


def step_ratio(observations: Sequence[Observation], bad: int, candidate: int, parent: int) -> Interval | None:
    """The metric of a candidate relative to another one; None unless both have two readings, on a common host.

    By those that were made in the last way in which both have two of them.
    """
    record, model = None, USUAL
    for own, alike in in_ways(observations):
        made_so = arrange(alike, Policy(), bad)
        if min(made_so.runs(candidate), made_so.runs(parent)) >= 2:
            record, model = made_so, own if own.rounds else USUAL
    if record is None:
        return None
    record = between_jumps(record, model)
    found = speeds(record, fit(record, behaviour(record, record.name(parent), candidate, model).weight, model))
    if found.freedom <= 0 or record.name(candidate) not in found.compared[record.name(parent)]:
        return None
    return found.ratio(candidate, parent)
