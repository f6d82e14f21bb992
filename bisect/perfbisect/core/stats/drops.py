"""Which drops of a comparison are hunted, and between which two builds.

Each build is compared with the build to its left in the table of the comparison (its left neighbour). If a build is
slower than its left neighbour, the hunt searches the range between these two builds. Each build is also compared with
the first build, because each of several small losses in successive builds may be too small to be shown between
neighbours. If a build is slower than the first build, and neither this build nor an earlier build is slower than its
left neighbour, the hunt searches the range from the first build to this build. If several builds are slower than the
first build, only the range from the first build to the earliest of these builds is hunted, because the later builds
still have the loss of the earliest build.

A drop is announced if the metric is worse by at least ``min_loss`` and the difference is real (not by chance). The rate
of false discoveries (``largest_real_p_value``) is controlled over all differences between neighbours and all
differences from the first build, of all workloads together. The difference between the first and the second build is
counted only once, although it is a difference between neighbours and a difference from the first build. In simulations,
at most 5 of 100 comparisons of equal builds announce a drop.

A hunt of commits needs two revisions that are built and configured alike. So the module ignores prebuilt binaries, and
builds with an additional server configuration. A build's neighbours and the first build are determined separately for
each variant. A build that failed in a workload is left out of that workload's comparisons; the builds before and after
the failed build are then neighbours.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from perfbisect.core.domain.metrics import find_metric
from perfbisect.core.domain.session_state import SessionState
from perfbisect.core.domain.settings import TrialBuild
from perfbisect.core.stats.paired_comparison import (
    Ratio,
    largest_real_p_value,
    log_resolution,
    mean_logs_by_round,
    paired_ratio,
)

Ends = tuple[int, int]  # numbers of two builds


@dataclass(frozen=True, slots=True)
class Drop:
    """A change of the metric in one workload, from the build ``first`` to the build ``last``, by their positions in the
    request of the trial."""

    work: int
    first: int
    last: int
    ratio: Ratio  # ratio of the build ``last`` to the build ``first``


@dataclass(frozen=True, slots=True)
class DropRange:
    """The drops between two builds in all workloads; one hunt searches the range between the two builds."""

    first: int
    last: int
    drops: tuple[Drop, ...]  # in the order of the workloads


def find_drops_to_hunt(trial: SessionState, min_loss: float) -> list[Drop]:
    """The drops of a comparison that are to be hunted, ordered by workload and then by build. Each drop is at least
    ``min_loss`` (a fraction of the metric).
    """
    works = range(len(trial.request.works))
    family = [drop for work in works for drop in comparable_differences(trial, work)]
    limit, metric = largest_real_p_value(drop.ratio.p for drop in family), trial.request.metric
    real = [drop for drop in family if drop.ratio.has_p_value_up_to(limit)]
    worse = [drop for drop in real if loss_fraction(drop.ratio, metric) >= min_loss]
    by_work = ([drop for drop in worse if drop.work == work] for work in works)
    return [drop for drops in by_work for drop in select_drops_to_hunt(trial, drops)]


def comparable_differences(trial: SessionState, work: int) -> list[Drop]:
    """The differences between the tested pairs of builds in a workload. A pair is omitted if too few rounds measured
    both builds for a p-value.
    """
    metric = trial.request.metric
    rounds, step = mean_logs_by_round(trial, work, metric), log_resolution(trial, work, metric)
    ratios = [(*ends, paired_ratio(rounds[ends[0]], rounds[ends[1]], step)) for ends in tested_pairs(trial, rounds)]
    return [Drop(work, first, last, ratio) for first, last, ratio in ratios if ratio and ratio.p is not None]


def tested_pairs(trial: SessionState, measured_builds: Collection[int]) -> list[Ends]:
    """The pairs of builds that are tested in a workload: all pairs of neighbours, then each later build with the first
    build.

    ``measured_builds`` are the numbers of the builds that were measured in the workload.
    """
    beside, since_first = list[Ends](), list[Ends]()
    for line in huntable_builds_by_variant(trial.request.subjects):
        builds = [build for build in line if build in measured_builds]
        beside += pairwise(builds)
        since_first += [(line[0], build) for build in builds[2:] if line[0] in measured_builds]
    return [*beside, *since_first]


def huntable_builds_by_variant(builds: Sequence[TrialBuild]) -> list[list[int]]:
    """For each variant, the numbers of the builds between which a hunt can search: builds of revisions without an
    additional server configuration.
    """
    by_variant: dict[str, list[int]] = {}
    for number, build in enumerate(builds):
        if build.commit and not build.config:
            by_variant.setdefault(build.variant, []).append(number)
    return list(by_variant.values())


def select_drops_to_hunt(trial: SessionState, real_drops: Sequence[Drop]) -> list[Drop]:
    """The drops to hunt among the ``real_drops`` of one workload, ordered by build."""
    if not real_drops:
        return []
    measured, chosen = mean_logs_by_round(trial, real_drops[0].work, trial.request.metric), list[Drop]()
    for line in huntable_builds_by_variant(trial.request.subjects):
        mine = [drop for drop in real_drops if drop.last in line]
        neighbours = [*pairwise(filter(measured.__contains__, line))]
        beside = [drop for drop in mine if (drop.first, drop.last) in neighbours]
        unseen = [drop for drop in mine if not any(nearby.last <= drop.last for nearby in beside)]
        chosen += [*beside, *unseen[:1]]
    return sorted(chosen, key=lambda drop: drop.last)


def loss_fraction(ratio: Ratio, metric: str) -> float:
    """The fraction by which a metric is worse: 0.25 if QPS falls from 4 to 3, or a latency rises from 4 to 5."""
    return 1 - ratio.ratio if find_metric(metric).higher_is_better else ratio.ratio - 1


def ranges_of_drops(drops: Iterable[Drop]) -> list[DropRange]:
    """The drops, grouped by the two builds between which they are, in the order of the builds; one hunt searches for
    all drops of a group.
    """
    together: dict[Ends, list[Drop]] = {}
    for drop in drops:
        together.setdefault((drop.last, drop.first), []).append(drop)
    return [DropRange(first, last, tuple(together[last, first])) for last, first in sorted(together)]
