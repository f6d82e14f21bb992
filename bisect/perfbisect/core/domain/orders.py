"""The work orders and verdicts of a search, and the fleet: the hosts and build hosts that carry out work orders."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import count

import numpy as np
from numpy.typing import NDArray

from perfbisect.core.domain.settings import ChangeDirection

LARGEST_LOG = 700.0  # largest logarithm of a ratio


class Purpose(StrEnum):
    """The purpose of a measurement, which is shown to the user and does not affect the measurement."""

    ENDS = "ends"
    SEARCH = "search"
    CONFIRM = "confirm"
    EXPLAIN = "explain"  # after the verdict; never ordered by the search


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate of a ratio (1 = unchanged) with the bounds of its 95 % credible interval."""

    low: float
    middle: float
    high: float

    @property
    def has_known_bound(self) -> bool:
        """Whether the interval has a lower bound above 0 or a finite upper bound."""
        return self.low > 0 or self.high < math.inf

    @property
    def only_known_bound(self) -> int:
        """-1 if the interval has only an upper bound (``high``), +1 if only a lower bound (``low``), otherwise 0."""
        return int(self.high == math.inf) - int(self.low == 0) if self.has_known_bound else 0

    @property
    def excludes_one(self) -> bool:
        """Whether the interval excludes 1."""
        return not self.low <= 1 <= self.high

    @classmethod
    def from_log_ratio(cls, log: float, margin: float | None) -> "Interval":
        """The interval from exp(``log`` - ``margin``) to exp(``log`` + ``margin``); unbounded if ``margin`` is None."""
        low, high = (0.0, math.inf) if margin is None else (ratio_of_log(log - margin), ratio_of_log(log + margin))
        return cls(low, ratio_of_log(log), high)


def ratio_of_log(log: float) -> float:
    """The ratio whose logarithm is ``log``; the logarithm is limited to ±700, so that the ratio is a finite float."""
    return math.exp(min(LARGEST_LOG, max(-LARGEST_LOG, log)))


@dataclass(frozen=True, slots=True)
class LayoutRatios:
    """The comparison of a commit with a parent over several randomized layouts."""

    ratio: Interval  # ratio of the commit to the parent, over all layouts
    compared: int  # number of compared layouts of each build
    changed: int  # number of layouts in which the difference had the direction of the usual layout
    measured: int = 0  # number of layouts of each build, with layouts that do not count because their mode is uncertain


@dataclass(frozen=True, slots=True)
class PairingComparison:
    """The comparison of the ends by interleaved runs and by paired runs, and the chosen kind of runs."""

    chooses_paired: bool  # whether paired runs are chosen, not interleaved runs
    interleaved_noise: float  # s.d. of the ratio of two interleaved runs, as a fraction
    paired_noise: float  # s.d. of the ratio of paired runs
    interleaved_ratio: Interval  # bad against good, by interleaved runs
    paired_ratio: Interval  # bad against good, by paired runs
    hides_difference: bool = False  # paired runs are less noisy, but do not show the difference of interleaved runs
    is_contradictory: bool = False  # interleaved and paired runs show differences that contradict each other
    uses_cpu_time: bool = False  # paired runs are compared by CPU time instead of time
    is_clear: bool = False  # interleaved runs show the difference fast enough
    waiting_share: float = 0.0  # share of time in which the ends wait, if they wait nearly all the time
    differ_by_waiting: bool = False  # the ends differ by time, not by CPU time; from here on they are compared by time
    is_doubtful: bool = False  # paired runs may show a smaller difference: more interleaved runs are needed


@dataclass(frozen=True, slots=True)
class PlannedRuns:
    """The runs of one candidate within a measurement."""

    candidate: int
    runs: int


OTHER_HUNT = -1  # instead of a workload's number: an order of another hunt, whose runs are no runs of this hunt


@dataclass(frozen=True, slots=True)
class Measure:
    """A work order: measure the candidates of ``plan`` by interleaved runs or, if ``together``, by paired runs. The
    first candidate is compared with the others, its references. A candidate with 0 runs is only built.
    """

    plan: tuple[PlannedRuns, ...]
    purpose: Purpose
    host: int = 0
    fresh: bool = False  # each run is in a randomized layout
    layouts: LayoutRatios | None = field(default=None, compare=False)  # layout results so far, for other programs
    workload: int = 0  # number of the workload in the session
    round: int = 0  # number of the round, in a session with rounds
    together: bool = False  # paired runs of two builds with equal numbers of runs
    incremental: bool = False  # whether missing builds may be incremental builds
    counted: bool = False  # instructions are counted exactly, and nothing is timed

    def renumbered(self, numbers: Mapping[int, int]) -> "Measure":
        """The work order with the candidate numbers of another range. ``numbers`` maps old to new numbers; candidates
        without a new number are left out."""
        shares = (share for share in self.plan if share.candidate in numbers)
        return replace(self, plan=tuple(replace(share, candidate=numbers[share.candidate]) for share in shares))


@dataclass(frozen=True, slots=True)
class BuildOrder:
    """A work order for a build host: make the build of a candidate, while other hosts measure."""

    candidate: int
    build_host: int  # number of the build host in the hunt
    workload: int = 0  # number of the workload that is the first to need the build
    incremental: bool = False  # like ``Measure.incremental``


UNKNOWN = Interval(0.0, 1.0, math.inf)  # a ratio that was not measured
SAME = Interval(1.0, 1.0, 1.0)  # ratio of a binary to itself


@dataclass(frozen=True, slots=True)
class ClassEffect:
    """The size of the change on the hosts of one host class, if a hunt uses several host classes."""

    host_class: str
    ratio: Interval
    ends: bool  # True: ``ratio`` is bad against good, because this class did not compare the commit with its parents


@dataclass(frozen=True, slots=True)
class Step:
    """A change of speed: the metric of ``candidate`` relative to the metric of its parents."""

    candidate: int
    probability: float
    ratio: Interval
    parents: tuple[int, ...]  # the tested builds with which it was compared: its parents, or replacements
    # elements of ``parents`` that are no parents in git: the nearest tested ancestor of an unmeasurable parent, or good
    stand_ins: tuple[int, ...] = ()
    prior: float = 1.0  # prior weight of the candidate; 1 is usual
    effects: tuple[ClassEffect, ...] = ()  # the effect on each host class, if there are several classes
    layouts: LayoutRatios | None = None  # None: compared in the usual layout only
    together: bool = False  # whether paired runs compared the candidate with its parents


@dataclass(frozen=True, slots=True)
class Found:
    """The verdict that a culprit was found."""

    step: Step


@dataclass(frozen=True, slots=True)
class NotReproduced:
    """The verdict that the two ends do not differ."""

    ratio: Interval
    detectable: float  # the smallest drop that would have been shown, as a fraction: 0.02 is a drop of 2 %
    effects: tuple[ClassEffect, ...] = ()
    least: float = 0.0  # the smallest change of interest; 0 if unknown
    direction: ChangeDirection = ChangeDirection.ANY  # the direction that was hunted


@dataclass(frozen=True, slots=True)
class CodePlacement:
    """The verdict that a commit is slower only in the usual layout, and that no other change was found."""

    step: Step  # the step, with the ratio in the usual layout
    ratio: Interval  # of bad against good, over randomized layouts
    detectable: float  # the smallest drop that would have been shown, as a fraction
    same_counts: bool | None = None  # whether it executes as many instructions as its parents; None: not counted


class Reason(StrEnum):
    """The reason why a hunt names no culprit."""

    UNBUILDABLE = "unbuildable"  # the commits between the candidates do not build or run
    LEFT_OUT = "left out"  # some of the commits between the candidates were left out by --skip
    NOT_CONFIRMED = "not confirmed"  # interleaved runs of the culprit and its parents did not confirm the change
    TOO_NOISY = "too noisy"
    BY_CHANCE = "by chance"  # the ends may differ by chance
    LAYOUT_TIE = "layout tie"  # neighbours differ by no more than code layout
    MANY_STEPS = "many steps"  # no change of at least the smallest size of interest stands out
    BRANCH_POINT_UNKNOWN = "branch point not measured"  # it is unknown whether an older branch started as fast as good
    NOT_IN_BAD = "not in bad"  # bad does not contain the change by which it differs from good
    GOOD_UNMEASURABLE = "good not measurable"
    BAD_UNMEASURABLE = "bad not measurable"
    NO_HOST = "no host"
    STOPPED_RUNS = "stopped runs"  # which change is the largest depends on how slow the builds with stopped runs are
    RUNS_SPENT = "budget of runs"  # detail: the budget
    BUILDS_SPENT = "budget of builds"
    MINUTES_SPENT = "budget of minutes"  # detail: the budget
    MERGE_BASE = "merge base"  # the merge base is not shown to be as fast as good; detail: the comparison


@dataclass(frozen=True, slots=True)
class Inconclusive:
    """The verdict with the smallest set of candidates that probably contains the culprit, most probable first."""

    candidates: tuple[int, ...]
    probabilities: tuple[float, ...]
    ratio: Interval  # of bad against good
    reason: Reason
    effects: tuple[ClassEffect, ...] = ()
    several: float = 0.0  # probability of more than one change; ``probabilities`` assume exactly one change
    detail: "float | MergeBaseComparison | None" = None  # depends on the reason


@dataclass(frozen=True, slots=True)
class MergeBaseComparison:
    """The comparison of a merge base with good, made if good is not an ancestor of bad. The hashes are abbreviated."""

    commit: str
    good: str
    known: Inconclusive  # the verdict of the range from the merge base to good


@dataclass(frozen=True, slots=True)
class UnsettledRange:
    """A subrange (reachable from ``bad``, not from ``good``) that may contain changes whose commits are not named."""

    good: int
    bad: int
    known: Inconclusive  # the verdict of the subrange; without candidates if no change in it is known


@dataclass(frozen=True, slots=True)
class Several:
    """The verdict that names all changes of at least the smallest size of interest, oldest first."""

    steps: tuple[Step, ...]
    improvements: tuple[Step, ...] = ()  # changes in the direction that was not hunted
    unsettled: tuple[UnsettledRange, ...] = ()  # oldest first
    detectable: float = 0.0  # the smallest change outside of these that would have been shown, as a fraction
    # If only the ends of a subrange were counted: upper limit of the sum of further changes in this subrange; else 0.
    left: float = 0.0


Verdict = Found | Several | NotReproduced | Inconclusive | CodePlacement
Order = Measure | Verdict


@dataclass(frozen=True, slots=True, eq=False)
class Belief:
    """The posterior probabilities of a search at one time, which views show and the log stores."""

    culprit: NDArray[np.float64]  # shape (size,): probability that the candidate is the culprit
    change: float  # probability of any change in the direction hunted; the other probabilities assume a change
    noise: float  # s.d. of one run, as a fraction
    ends: Interval | Callable[[], Interval]  # bad against good; computed on demand, as no decision depends on it
    warnings: tuple[str, ...] = ()  # about the host: "two speeds", "drift", …
    slow: NDArray[np.float64] = field(default_factory=lambda: np.empty(0))  # (size,): P(it is slow); 0.5: unknown
    several: float = 0.0  # probability of more than one change, if there is a change

    @property
    def effect(self) -> Interval:
        """The metric of the bad end relative to the good end."""
        return self.ends() if callable(self.ends) else self.ends


@dataclass(frozen=True, slots=True)
class Decision:
    """A work order or verdict, and the belief on which it is based."""

    order: Order
    belief: Belief
    builds: tuple[BuildOrder, ...] = ()  # builds that free build hosts shall start now
    cancelled: tuple[int, ...] = ()  # build hosts whose present build is ended, because it is no longer needed
    found: tuple[Step, ...] = ()  # changes that are proven while others are hunted, oldest first
    clean: bool = False  # a proof contradicts the search, which begins again without incremental builds
    # Set if paired and interleaved runs were made, and the log has no choice yet. Later fields are not stored, either.
    pairing_comparison: PairingComparison | None = None
    # On each host class, if both ends were measured: the ratio of the proven step, or of the ends with layout error.
    evidence: tuple[Interval, ...] = ()
    waits_for_builds: bool = False  # whether the order has to wait for builds that the order needs
    needed_builds: tuple[int, ...] = ()  # candidates whose builds are needed next, most urgent first


def worsening_steps(verdict: Order | None) -> tuple[Step, ...]:
    """The changes for the worse that a verdict names; empty if ``verdict`` is a work order or None."""
    single = (verdict.step,) if isinstance(verdict, Found) else ()
    return verdict.steps if isinstance(verdict, Several) else single


def all_steps(verdict: Order | None) -> tuple[Step, ...]:
    """All changes that a verdict names, in both directions."""
    return (*worsening_steps(verdict), *(verdict.improvements if isinstance(verdict, Several) else ()))


def explained_step(verdict: Order | None) -> Step | None:
    """The change whose reason is measured: the first change for the worse that the verdict names, or None."""
    return next(iter(worsening_steps(verdict)), None)


def interleave(plan: tuple[PlannedRuns, ...]) -> tuple[int, ...]:
    """A candidate for each run of ``plan``, in the order of the runs; the runs of each candidate are spread evenly.

    Therefore slow changes of the host (heat, other machines, frequency) affect all builds equally.

    >>> interleave((PlannedRuns(5, 2), PlannedRuns(0, 2)))
    (5, 0, 0, 5)"""
    turns = [
        ((turn + 0.5) / share.runs, rank if turn % 2 == 0 else -rank, share.candidate)
        for rank, share in enumerate(plan)
        for turn in range(share.runs)
    ]
    return tuple(candidate for _, _, candidate in sorted(turns))


@dataclass(frozen=True, slots=True)
class BuildInProgress:
    """A build that a build host makes at present."""

    candidate: int
    build_host: int
    seconds: float = 0.0  # seconds since the build began
    cancelled: bool = False  # whether the build is being ended


@dataclass(frozen=True, slots=True)
class Fleet:
    """The hosts and build hosts. A host that carries out a work order, or is lost, takes no new work order."""

    busy: tuple[Measure, ...] = ()  # the orders that hosts are carrying out
    gone: tuple[int, ...] = ()  # hosts that are lost
    hosts: int = 0  # number of hosts, if there are build hosts: then the search also decides while hosts are busy
    build_hosts: int = 0  # number of build hosts; 0: hosts make their builds themselves
    building: tuple[BuildInProgress, ...] = ()
    gone_build_hosts: tuple[int, ...] = ()
    builds_between: bool = False  # whether hosts may build while the hosts have nothing to measure
    minutes: float = 0.0  # the limit of minutes, if this limit has ended the work in progress; otherwise 0

    @property
    def next_host(self) -> int:
        """The first host that can take a work order now; if no host can, the first host that is not lost."""
        hosts = [host for host in range(self.hosts) if host not in self.gone]
        return next((host for host in hosts or count() if self.is_free(host)), hosts[0] if hosts else 0)

    def is_free(self, host: int) -> bool:
        """Whether the host can take a work order now."""
        return host not in self.gone and all(order.host != host for order in self.busy)

    @property
    def has_build_host(self) -> bool:
        """Whether a build host is available. If so, hosts make no builds, and measure builds of the build hosts."""
        return self.build_hosts > len(self.gone_build_hosts)

    @property
    def free_build_hosts(self) -> tuple[int, ...]:
        """The build hosts that can start a build now."""
        occupied = {*self.gone_build_hosts, *(building.build_host for building in self.building)}
        return tuple(host for host in range(self.build_hosts) if host not in occupied)

    @property
    def candidates_in_build(self) -> frozenset[int]:
        """The candidates whose builds are in progress on build hosts."""
        return frozenset(building.candidate for building in self.building if not building.cancelled)

    @property
    def runs_in_progress(self) -> int:
        """The number of runs in the work orders that hosts carry out now."""
        return sum(share.runs for order in self.busy for share in order.plan)

    @property
    def non_reference_candidates(self) -> frozenset[int]:
        """The first candidate of each present work order; the other candidates are references."""
        orders = (order for order in self.busy if order.workload != OTHER_HUNT)
        return frozenset(share.candidate for order in orders for share in order.plan[:1])

    @property
    def candidates_in_measurement(self) -> frozenset[int]:
        """All candidates of the work orders that hosts carry out now, including references."""
        return frozenset(share.candidate for order in self.busy if order.workload != OTHER_HUNT for share in order.plan)

    def renumbered(self, numbers: Mapping[int, int]) -> "Fleet":
        """The fleet with new numbers of candidates, see ``Measure.renumbered``."""
        building = (replace(b, candidate=numbers[b.candidate]) for b in self.building if b.candidate in numbers)
        return replace(self, busy=tuple(order.renumbered(numbers) for order in self.busy), building=tuple(building))


ALL_FREE = Fleet()
