"""What the search knows, readings, failures and equal binaries, in the order in which they happened; read from the log of a hunt.

Live, resumed and replayed hunts all go through ``observations``: same log in, same observations out.
Commits, not node numbers, tie an event to the graph, so that a log can be read against another range.

The list of observations is the whole state of a hunt between two decisions.
"""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from perfbisect.core.domain.events import BuildFinished, CandidateSkipped, RunFinished, Uncounted
from perfbisect.core.domain.facts import LEFT_OUT
from perfbisect.core.domain.measured_log import Binaries, Logged, host_of
from perfbisect.core.domain.metrics import INSTRUCTIONS, by_cpu_time, exact, find_metric, readable


@dataclass(frozen=True, slots=True)
class Reading:
    """One timed run of a build, or a round: two builds that ran at the same time on the same cores.

    What disturbs a round disturbs both of its builds, so that only their difference counts.
    """

    candidate: int
    value: float  # natural logarithm of the metric; of a round, less that of the partner
    at: float  # minutes since the hunt began, at the middle of the run
    visit: int  # runs with the same number share one start of the server
    host: int = 0
    seconds: float = 1.0  # cost of the run, with its share of the visit
    # Of a run that was stopped as too slow: -1 if the value was at most that, +1 if at least; 0: it is exact.
    bound: int = 0
    layout: int = 0  # 0: the build as it is linked; n: linked again, its functions in another order by seed n
    partner: int | None = None  # the other build of a round
    cpu: float | None = None  # as ``value``, by CPU time in place of time; of metrics that are times or rates alone
    waits: float = 0.0  # natural logarithm of time over CPU time, where ``cpu`` is known
    time: float | None = None  # as ``value``, by time, where that is by CPU time
    for_another: bool = False  # the run was ordered by the hunt of another result, which has spent it
    count: float | None = None  # as ``Count.value``, if perf counted instructions during the run

    @property
    def way(self) -> tuple[bool, bool]:
        """As ``RunFacts.way``."""
        return bool(self.layout), self.partner is not None

    @property
    def by_cpu(self) -> "Reading":
        """The same with CPU time in place of time, where it is known."""
        return self if self.cpu is None or self.time is not None else replace(self, value=self.cpu, time=self.value)

    @property
    def by_time(self) -> "Reading":
        """The same with time in place of CPU time, where that is by CPU time."""
        return self if self.time is None else replace(self, value=self.time, time=None)


@dataclass(frozen=True, slots=True)
class Built:
    """A candidate was built; ``same_as`` is an earlier candidate with the same binary, if there is one."""

    candidate: int
    seconds: float
    same_as: int | None = None
    host: int | None = None  # which has it; None: every host
    fixed: bool = False  # it cannot be linked again in other layouts, though that was wanted
    build_host: int | None = None  # which made it, with a compiler cache of its own; None: the host that measures it
    incremental: bool = False  # made in the tree of another build, so that a part of it may be stale


@dataclass(frozen=True, slots=True)
class Skipped:
    """A candidate cannot be measured: it does not build or start, or it crashes. It never counts as slow."""

    candidate: int
    reason: str
    seconds: float = 0.0
    left_out: bool = False  # by --skip: nothing was tried, so it is no evidence that others fail


@dataclass(frozen=True, slots=True)
class Count:
    """An exact count of the instructions of a build, beside runs that are timed."""

    candidate: int
    value: float  # natural logarithm of the metric as far as the instructions decide it; NaN: they cannot be counted
    at: float  # minutes since the hunt began, at the end of the count
    seconds: float  # cost of the count
    host: int = 0


Observation = Reading | Built | Skipped | Count


def _difference(one: Reading, other: Reading) -> Reading:
    """The reading of a round."""
    cpu = None if one.cpu is None or other.cpu is None else one.cpu - other.cpu
    return replace(one, value=one.value - other.value, partner=other.candidate, cpu=cpu)


def counted_exactly(log: Sequence[tuple[float, Logged]], metric: str) -> bool:
    """Whether some runs show the metric as a count that repeats; the others are no readings of it then."""
    return any(isinstance(event, RunFinished) and exact(event.facts, metric) for _, event in log)


def observations(
    log: Sequence[tuple[float, Logged]],
    node: Mapping[str, int],
    metric: str,
    began: float,
    hosts: Sequence[str] = (),
    build_hosts: Sequence[str] = (),
    *,
    by_cpu: bool = False,
) -> list[Observation]:
    """The observations in ``log`` about the commits in ``node`` (full hash → node of the graph).

    ``log`` has (seconds since the epoch, event) in order, ``began`` is when the hunt began. A run that is not
    ``readable`` is left out, and so is a timed one where others were ``counted_exactly``. ``hosts`` are the names of the
    hosts where there are several: a build exists, and binaries are compared, only on the host that made them. What one of
    the ``build_hosts`` made exists on all. Of a round only both runs together are a reading; ``by_cpu`` says by which time.
    """
    seen: list[Observation] = []
    place = {name: number for number, name in enumerate(hosts)}
    maker = {name: number for number, name in enumerate(build_hosts)}
    binaries = Binaries()
    visits: dict[tuple[int, str], int] = {}
    counted = counted_exactly(log, metric)
    begun: dict[str, Reading] = {}  # rounds of which the first run was read; one that was cut short stays
    for at, event in log:
        candidate = node.get(event.facts.commit)
        if candidate is None:
            continue
        host = place.get(event.host, 0)
        match event:
            case BuildFinished(facts=build):
                made_by = maker.get(event.host)
                alone = len(place) > 1 and made_by is None  # no other host has it
                first = binaries.same_as(host_of(event.host, place, maker), build)
                same = None if first is None else node[first]
                on = host if alone else None
                took = 0.0 if build.shared else build.seconds  # it was there, and says nothing of what others will cost
                seen.append(Built(candidate, took, same, on, bool(build.fixed), made_by, build.incremental))
            case CandidateSkipped(facts=skip):
                seen.append(Skipped(candidate, skip.reason, skip.seconds, skip.stage == LEFT_OUT))
            case Uncounted(facts=skip):
                seen.append(Count(candidate, math.nan, (at - began) / 60, skip.seconds, host))
            case RunFinished(facts=run):
                amount = readable(run, INSTRUCTIONS)
                count = None if amount is None else -amount if find_metric(metric).higher_is_better else amount
                if run.counted and not counted:
                    value = math.nan if count is None else count
                    seen.append(Count(candidate, value, (at - began) / 60, at - run.started, host))
                elif (reading := readable(run, metric)) is not None and exact(run, metric) is counted:
                    minutes = (run.started + run.seconds / 2 - began) / 60
                    visit = visits.setdefault((host, run.visit), len(visits))
                    bound = (-1 if find_metric(metric).higher_is_better else 1) if run.slower_than else 0
                    cpu = by_cpu_time(run, metric)
                    one = Reading(
                        candidate, reading, minutes, visit, host, at - run.started, bound, run.layout, cpu=cpu,
                        count=count, for_another=run.for_another,
                    )  # fmt: skip
                    if cpu is not None:
                        one = replace(one, waits=math.log(1000 * run.seconds / (run.counters["task-clock"] or 1.0)))
                    if not run.round:
                        seen.append(one)
                    elif half := begun.pop(run.round, None):
                        both = _difference(half, one)
                        if not by_cpu or both.cpu is not None:
                            seen.append(both.by_cpu if by_cpu else both)
                    else:
                        begun[run.round] = one
    return seen


def count_runs(seen: Sequence[Observation]) -> int:
    """The runs that were made, two in each round, and the counts; without those of other hunts."""
    counts = sum(isinstance(each, Count) for each in seen)
    runs = (each for each in seen if isinstance(each, Reading) and not each.for_another)
    return counts + sum(1 if each.partner is None else 2 for each in runs)


def without(seen: Iterable[Observation], gone: Collection[int]) -> list[Observation]:
    """The observations without those of candidates whose builds count no more; none has the binary of these then."""
    kept = (each for each in seen if each.candidate not in gone and getattr(each, "partner", None) not in gone)
    return [replace(each, same_as=None) if isinstance(each, Built) and each.same_as in gone else each for each in kept]
