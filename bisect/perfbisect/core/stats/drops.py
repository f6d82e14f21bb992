"""Which drops of a comparison are hunted, and between which of its builds.

A build is compared with the one before it, its left neighbour in the table: a drop that is seen there is hunted between these
two, where it happened. Several small losses in a row may be too small for that, each by itself. So where a build is slower
than the first one, as the table says, although no drop up to it was seen, the drop is hunted from the first build on; of
several such builds in a row from the first to the earliest, as the later ones still have its loss.

A drop is announced where the metric is worse by ``least`` or more and the difference is real: all differences between
neighbours and from the first build, over all workloads, are one family in which false discoveries are controlled
(``largest_real``); what the second build differs from the first is counted once. With two builds the family is the table.
Of 100 comparisons of builds that are all alike at most 5 announce any drop; tests count it.

Commits can be hunted between revisions that are built and configured alike. So binaries, and builds with a configuration of
their own, are left out, and each variant has its own neighbours and its own first build. A build that failed in a workload is
left out there, too: those on either side of it are neighbours.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from perfbisect.core.domain.metrics import find_metric
from perfbisect.core.domain.session_state import SessionState
from perfbisect.core.domain.settings import TrialBuild
from perfbisect.core.stats.paired_comparison import Ratio, largest_real, levels, paired, step_of

Ends = tuple[int, int]  # numbers of two builds


@dataclass(frozen=True, slots=True)
class Drop:
    """A change for the worse in one workload, between two builds; numbers are positions in the request of the trial."""

    work: int
    first: int
    last: int
    ratio: Ratio  # of ``last`` to ``first``


@dataclass(frozen=True, slots=True)
class DropRange:
    """The drops that are hunted together, because they are between the same two builds."""

    first: int
    last: int
    drops: tuple[Drop, ...]  # in the order of their workloads


def find_drops(trial: SessionState, least: float) -> list[Drop]:
    """The drops of a comparison by at least ``least`` (a fraction) that are hunted: by workloads, then builds."""
    works = range(len(trial.request.works))
    family = [drop for work in works for drop in differences(trial, work)]
    limit, metric = largest_real(drop.ratio.p for drop in family), trial.request.metric
    worse = [drop for drop in family if drop.ratio.is_within(limit) and loss(drop.ratio, metric) >= least]
    return [drop for work in works for drop in hunted(trial, [drop for drop in worse if drop.work == work])]


def differences(trial: SessionState, work: int) -> list[Drop]:
    """All pairs of builds that are tested in a workload, whatever their difference: those with several rounds in common."""
    rounds, step = levels(trial, work, trial.request.metric), step_of(trial, work, trial.request.metric)
    ratios = [(*ends, paired(rounds[ends[0]], rounds[ends[1]], step)) for ends in tested(trial, rounds)]
    return [Drop(work, first, last, ratio) for first, last, ratio in ratios if ratio and ratio.p is not None]


def tested(trial: SessionState, measured: Collection[int]) -> list[Ends]:
    """The pairs of those builds that were ``measured`` in a workload: neighbours, then others with their first."""
    beside, since_first = list[Ends](), list[Ends]()
    for line in lines(trial.request.subjects):
        there = [build for build in line if build in measured]
        beside += pairwise(there)
        since_first += [(line[0], build) for build in there[2:] if line[0] in measured]
    return [*beside, *since_first]


def lines(subjects: Sequence[TrialBuild]) -> list[list[int]]:
    """The builds between which commits can be hunted: revisions of one variant, without a configuration of their own."""
    found: dict[str, list[int]] = {}
    for number, build in enumerate(subjects):
        if build.commit and not build.config:
            found.setdefault(build.variant, []).append(number)
    return list(found.values())


def hunted(trial: SessionState, worse: Sequence[Drop]) -> list[Drop]:
    """Of the real drops of one workload those that are hunted, by builds."""
    if not worse:
        return []
    measured, found = levels(trial, worse[0].work, trial.request.metric), list[Drop]()
    for line in lines(trial.request.subjects):
        mine = [drop for drop in worse if drop.last in line]
        neighbours = [*pairwise(filter(measured.__contains__, line))]
        beside = [drop for drop in mine if (drop.first, drop.last) in neighbours]
        unseen = [drop for drop in mine if not any(each.last <= drop.last for each in beside)]
        found += [*beside, *unseen[:1]]
    return sorted(found, key=lambda drop: drop.last)


def loss(ratio: Ratio, metric: str) -> float:
    """The fraction by which a metric is worse; negative where it is better."""
    factor = ratio.ratio if find_metric(metric).higher_is_better else 1 / ratio.ratio
    return 1 - factor


def ranges(drops: Iterable[Drop]) -> list[DropRange]:
    """The drops by the builds that they are between: what is hunted together; by builds."""
    together: dict[Ends, list[Drop]] = {}
    for drop in drops:
        together.setdefault((drop.last, drop.first), []).append(drop)
    return [DropRange(first, last, tuple(together[last, first])) for last, first in sorted(together)]
