"""What the search wants next, a measurement or the end of the hunt; and the fleet: hosts, and build hosts that make builds meanwhile."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import count

import numpy as np
from numpy.typing import NDArray

from perfbisect.core.domain.settings import Direction

LARGEST_LOG = 700.0  # of a ratio


class Purpose(StrEnum):
    """Why a measurement is ordered; shown to the user, never used by the lab."""

    ENDS = "ends"
    SEARCH = "search"
    CONFIRM = "confirm"
    EXPLAIN = "explain"  # after the verdict; never ordered by the search


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate of a ratio (1 = unchanged) with the ends of its 95 % credible interval."""

    low: float
    middle: float
    high: float

    @property
    def known(self) -> bool:
        """Whether anything is known of the ratio."""
        return self.low > 0 or self.high < math.inf

    @property
    def bound(self) -> int:
        """-1 where all that is known is that the ratio is at most ``high``, +1 where it is at least ``low``; else 0."""
        return int(self.high == math.inf) - int(self.low == 0) if self.known else 0

    @property
    def excludes_one(self) -> bool:
        """Whether it leaves out that nothing differs."""
        return not self.low <= 1 <= self.high

    @classmethod
    def around(cls, middle: float, half: float | None) -> "Interval":
        """From the logarithm of a ratio, and half of the length of its interval; None where that is not known."""
        low, high = (0.0, math.inf) if half is None else (ratio_of(middle - half), ratio_of(middle + half))
        return cls(low, ratio_of(middle), high)


def ratio_of(log: float) -> float:
    """The ratio with that logarithm. Those beyond exp(±700) have no floating-point number and are stated as that."""
    return math.exp(min(LARGEST_LOG, max(-LARGEST_LOG, log)))


@dataclass(frozen=True, slots=True)
class Layouts:
    """A commit and a parent that were linked again several times, each with its functions in another order."""

    ratio: Interval  # of the commit against the parent, over all layouts
    compared: int  # layouts of each
    changed: int  # those in which the commit differed in the direction that was seen with the usual layout
    measured: int = 0  # of each, those included that do not count: in which of two modes they ran is uncertain


@dataclass(frozen=True, slots=True)
class Ways:
    """The ends compared both ways: in turns, and in rounds, in which both ran at the same time."""

    together: bool  # the way that was chosen
    in_turns: float  # s.d. of the ratio of two runs, as a fraction
    in_rounds: float  # the same of a round
    alone: Interval  # bad against good, in turns
    beside: Interval  # the same in rounds
    lost: bool = False  # rounds would be less noisy, but do not show what turns do
    contradict: bool = False  # both show what cannot be the same difference
    by_cpu: bool = False  # rounds are compared by CPU time in place of time
    clear: bool = False  # turns show the difference fast enough
    waiting: float = 0.0  # share of their time in which the ends wait, where that is nearly all of it
    waits: bool = False  # the ends differ by time, though not by CPU time, and are compared by time from here on
    doubtful: bool = False  # rounds may show less than turns do: it takes more turns to know


@dataclass(frozen=True, slots=True)
class Share:
    """The runs of one candidate within a measurement."""

    candidate: int
    runs: int


OF_OTHERS = -1  # in place of the number of a workload: an order of another hunt, whose runs say nothing of this one


@dataclass(frozen=True, slots=True)
class Measure:
    """Measure the builds of ``plan``, interleaved in time; missing builds are made first.

    The candidate of interest is first, the references beside it follow. A candidate of no runs is only built.
    """

    plan: tuple[Share, ...]
    purpose: Purpose
    host: int = 0
    fresh: bool = False  # each run is one of a build that is linked again, with a layout of its own
    layouts: Layouts | None = field(default=None, compare=False)  # what they have shown so far, for other programs
    workload: int = 0  # its number in the session
    round: int = 0  # the number of the round in a session that measures in rounds
    together: bool = False  # two builds with as many runs each, which run at the same time
    incremental: bool = False  # missing builds may be made in the tree of the last build; else in an empty folder
    counted: bool = False  # instructions are counted exactly, and nothing is timed

    def renumbered(self, place: Mapping[int, int]) -> "Measure":
        """The order under other numbers of the candidates, without those that are not in ``place``."""
        left = (share for share in self.plan if share.candidate in place)
        return replace(self, plan=tuple(replace(share, candidate=place[share.candidate]) for share in left))


@dataclass(frozen=True, slots=True)
class BuildOrder:
    """Make the build of a candidate on a build host, while measurements go on."""

    candidate: int
    build_host: int  # its number among the build hosts of the hunt
    workload: int = 0  # the number of the one for which it is wanted first
    incremental: bool = False  # as in Measure


UNKNOWN = Interval(0.0, 1.0, math.inf)  # where nothing was measured
SAME = Interval(1.0, 1.0, 1.0)  # of one binary with itself


@dataclass(frozen=True, slots=True)
class Effect:
    """How large the change is on the hosts of one class, if those of a hunt are of several."""

    host_class: str
    ratio: Interval
    ends: bool  # of bad against good, as the commit was not compared with its parents on this class


@dataclass(frozen=True, slots=True)
class Step:
    """One change of speed: the metric after ``candidate`` relative to before it."""

    candidate: int
    probability: float
    ratio: Interval
    parents: tuple[int, ...]  # the tested builds it was proven against: its parents, or replacements
    # those of ``parents`` that are none in git: the nearest tested ancestor of a parent that cannot be measured, or good
    stand_ins: tuple[int, ...] = ()
    prior: float = 1.0  # prior weight of the candidate; 1 is ordinary
    effects: tuple[Effect, ...] = ()  # on each host class, if there are several
    layouts: Layouts | None = None  # None: it was compared as it is linked usually, and in no other layout
    together: bool = False  # whether it and its parents were compared at the same time


@dataclass(frozen=True, slots=True)
class Found:
    """The culprit."""

    step: Step


@dataclass(frozen=True, slots=True)
class NotReproduced:
    """The two ends do not differ on this host."""

    ratio: Interval
    detectable: float  # the smallest drop that would have been seen, as a fraction: 0.02 is a drop of 2 %
    effects: tuple[Effect, ...] = ()
    least: float = 0.0  # the smallest change of interest; 0 where it was not noted
    direction: Direction = Direction.ANY  # that was hunted


@dataclass(frozen=True, slots=True)
class CodePlacement:
    """A commit makes the difference as it is linked usually, and none in other layouts; besides it nothing was found."""

    step: Step  # its ratio is that with the usual layout
    ratio: Interval  # of bad against good, over layouts
    detectable: float  # the smallest drop that would have been seen, as a fraction
    same_counts: bool | None = None  # whether it executes as many instructions as its parents; None: not counted


class Reason(StrEnum):
    """Why a hunt names no culprit."""

    UNBUILDABLE = "unbuildable"  # the commits between the candidates do not build or run
    LEFT_OUT = "left out"  # some of the commits between the candidates were left out by --skip
    NOT_CONFIRMED = "not confirmed"  # by runs of the culprit and its parents in turns
    TOO_NOISY = "too noisy"
    BY_CHANCE = "by chance"  # the ends may differ by chance
    LAYOUT_TIE = "layout tie"  # neighbours differ no more than by code layout
    MANY_STEPS = "many steps"  # no change of the smallest effect of interest stands out
    BRANCH_POINT_UNKNOWN = "branch point not measured"  # whether an older branch started as fast as good is unknown
    NOT_IN_BAD = "not in bad"  # bad does not contain the change that separates it from good
    GOOD_UNMEASURABLE = "good not measurable"
    BAD_UNMEASURABLE = "bad not measurable"
    NO_HOST = "no host"
    STOPPED_RUNS = "stopped runs"  # how slow builds are whose runs were stopped decides which change is the largest
    RUNS_SPENT = "budget of runs"  # detail: the budget
    BUILDS_SPENT = "budget of builds"
    MINUTES_SPENT = "budget of minutes"  # detail: the budget
    MERGE_BASE = "merge base"  # it is not shown to be as fast as good; detail: the comparison


@dataclass(frozen=True, slots=True)
class Inconclusive:
    """No culprit, but the smallest set of candidates that probably contains it, most probable first."""

    candidates: tuple[int, ...]
    probabilities: tuple[float, ...]
    ratio: Interval  # of bad against good
    reason: Reason
    effects: tuple[Effect, ...] = ()
    several: float = 0.0  # probability that there is more than one change; ``probabilities`` assume one
    detail: "float | MergeBase | None" = None  # see Reason


@dataclass(frozen=True, slots=True)
class MergeBase:
    """The comparison of a merge base with good, which is no ancestor of bad; commits as they are shown."""

    commit: str
    good: str
    known: Inconclusive  # of the range from the merge base to good


@dataclass(frozen=True, slots=True)
class Unsettled:
    """A subrange, reachable from ``bad`` and not from ``good``, that may contain changes which could not be named."""

    good: int
    bad: int
    known: Inconclusive  # of the subrange; without candidates if not even a change of it is known


@dataclass(frozen=True, slots=True)
class Several:
    """Every change of at least the policy's smallest effect, oldest first."""

    steps: tuple[Step, ...]
    improvements: tuple[Step, ...] = ()  # changes in the other direction
    unsettled: tuple[Unsettled, ...] = ()  # oldest first
    detectable: float = 0.0  # the smallest change that would have been seen in all the rest, as a fraction
    # What is left in subranges of which only the ends were counted adds up to less, in each; 0: there are none.
    left: float = 0.0


Verdict = Found | Several | NotReproduced | Inconclusive | CodePlacement
Order = Measure | Verdict


@dataclass(frozen=True, slots=True, eq=False)
class Belief:
    """The posterior of the search at one moment; for views and for the record."""

    culprit: NDArray[np.float64]  # shape (size,): probability that the candidate is the culprit
    change: float  # probability of any change in the direction hunted; the other probabilities assume one
    noise: float  # s.d. of one run, as a fraction
    ends: Interval | Callable[[], Interval]  # bad against good, made when it is asked for: no decision depends on it
    warnings: tuple[str, ...] = ()  # about the host: "two speeds", "drift", …
    slow: NDArray[np.float64] = field(default_factory=lambda: np.empty(0))  # (size,): that it is slow; 0.5: unknown
    several: float = 0.0  # probability that there is more than one change, if there is any

    @property
    def effect(self) -> Interval:
        """The metric of the bad end relative to the good end."""
        return self.ends() if callable(self.ends) else self.ends


@dataclass(frozen=True, slots=True)
class Decision:
    """An order and the belief on which it is based."""

    order: Order
    belief: Belief
    builds: tuple[BuildOrder, ...] = ()  # to be begun now, on free build hosts
    cancelled: tuple[int, ...] = ()  # the build hosts whose present build is ended, as it is of no use any more
    found: tuple[Step, ...] = ()  # the changes that are proven already while others are hunted, oldest first
    clean: bool = False  # a proof contradicts the search, which begins again without incremental builds
    # Where both are known, and none has been entered in the log as chosen; from here on not stored.
    ways: Ways | None = None
    # The ratio on each host class, once both ends were measured: of the named step by its proof, or of the ends with layout.
    evidence: tuple[Interval, ...] = ()
    waits: bool = False  # the order cannot be carried out yet: builds that it needs are not there
    wanted: tuple[int, ...] = ()  # candidates whose builds are needed next, most urgent first


def named_steps(verdict: Order | None) -> tuple[Step, ...]:
    """The changes that a verdict names, those for the better left out; none for an order."""
    single = (verdict.step,) if isinstance(verdict, Found) else ()
    return verdict.steps if isinstance(verdict, Several) else single


def all_steps(verdict: Order | None) -> tuple[Step, ...]:
    """The changes that a verdict names, those for the better included."""
    return (*named_steps(verdict), *(verdict.improvements if isinstance(verdict, Several) else ()))


def first_step(verdict: Order | None) -> Step | None:
    """The change that is explained: the culprit, or the first of several; None where the verdict names none."""
    return next(iter(named_steps(verdict)), None)


def interleave(plan: tuple[Share, ...]) -> tuple[int, ...]:
    """The candidates of ``plan``, one entry per run, each spread evenly.

    Slow changes of the host (heat, neighbours, frequency) cancel if the builds that are compared take turns.

    >>> interleave((Share(5, 2), Share(0, 2)))
    (5, 0, 0, 5)
    """
    turns = [
        ((turn + 0.5) / share.runs, rank if turn % 2 == 0 else -rank, share.candidate)
        for rank, share in enumerate(plan)
        for turn in range(share.runs)
    ]
    return tuple(candidate for _, _, candidate in sorted(turns))


@dataclass(frozen=True, slots=True)
class Building:
    """A build in flight."""

    candidate: int
    build_host: int
    seconds: float = 0.0  # that it has taken so far
    cancelled: bool = False  # it is being ended


@dataclass(frozen=True, slots=True)
class Fleet:
    """A busy host takes no order until its present one is done; a lost host takes none any more. So do build hosts."""

    busy: tuple[Measure, ...] = ()  # the orders that hosts are carrying out
    gone: tuple[int, ...] = ()  # the hosts that are lost
    hosts: int = 0  # so many, where that is needed: with build hosts, the search is also asked while all are busy
    build_hosts: int = 0  # numbered from 0; none: hosts make their builds themselves
    building: tuple[Building, ...] = ()
    gone_build_hosts: tuple[int, ...] = ()
    builds_between: bool = False  # whether hosts may build, too, while they have nothing to measure
    minutes: float = 0.0  # of the limit of time, once it has ended what was under way; 0 before

    @property
    def free_host(self) -> int:
        """The first host that can take an order; without any, the first that is busy, whose order is left to it."""
        left = [host for host in range(self.hosts) if host not in self.gone]
        return next((host for host in left or count() if self.is_free(host)), left[0] if left else 0)

    def is_free(self, host: int) -> bool:
        """Whether the host can take an order now."""
        return host not in self.gone and all(order.host != host for order in self.busy)

    @property
    def builds_ahead(self) -> bool:
        """Whether a build host is left, so that hosts measure what has been built."""
        return self.build_hosts > len(self.gone_build_hosts)

    @property
    def free_build_hosts(self) -> tuple[int, ...]:
        """Those that can begin a build now."""
        taken = {*self.gone_build_hosts, *(one.build_host for one in self.building)}
        return tuple(host for host in range(self.build_hosts) if host not in taken)

    @property
    def in_flight(self) -> frozenset[int]:
        """The candidates that are being built ahead."""
        return frozenset(one.candidate for one in self.building if not one.cancelled)

    @property
    def runs(self) -> int:
        """The runs of all present orders."""
        return sum(share.runs for order in self.busy for share in order.plan)

    @property
    def subjects(self) -> frozenset[int]:
        """The candidates of interest of all present orders, without the references beside them."""
        orders = (order for order in self.busy if order.workload != OF_OTHERS)
        return frozenset(share.candidate for order in orders for share in order.plan[:1])

    @property
    def candidates(self) -> frozenset[int]:
        """All candidates of all present orders."""
        return frozenset(share.candidate for order in self.busy if order.workload != OF_OTHERS for share in order.plan)

    def renumbered(self, place: Mapping[int, int]) -> "Fleet":
        """See ``Measure.renumbered``."""
        building = (replace(one, candidate=place[one.candidate]) for one in self.building if one.candidate in place)
        return replace(self, busy=tuple(order.renumbered(place) for order in self.busy), building=tuple(building))


ALL_FREE = Fleet()
