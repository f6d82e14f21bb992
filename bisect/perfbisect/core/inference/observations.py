"""Reads the observations of a hunt from its log: readings, builds, failures and exact counts, in the order of the log.

A decision of the search depends only on the observations and the settings. Running, resumed and replayed hunts all use
``read_observations``, so that equal logs give equal observations. Events in the log have hashes of commits, not numbers
of nodes in the graph, so that a log can also be read with the graph of another range.
"""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from perfbisect.core.domain.events import BuildFinished, CandidateSkipped, RunFinished, Uncounted
from perfbisect.core.domain.facts import LEFT_OUT
from perfbisect.core.domain.measured_log import FirstCommitsByBinary, MeasuredEvent, host_or_shared_number
from perfbisect.core.domain.metrics import (
    INSTRUCTIONS,
    find_metric,
    is_exact_count,
    log_metric,
    log_metric_from_cpu_time,
)


@dataclass(frozen=True, slots=True)
class Reading:
    """A timed run of a build; or a pair of paired runs (two builds at the same time), which is called a round.

    A disturbance affects both runs of a pair, so only the difference of the two runs is used.
    """

    candidate: int
    value: float  # natural logarithm of the metric; of paired runs, of the ratio to the run of ``partner``
    at: float  # minutes since the hunt began, at the middle of the run
    visit: int  # runs with the same number share one start of the server
    host: int = 0
    seconds: float = 1.0  # cost of the run, with its share of the visit
    # If the run was stopped because it was too slow: -1 if the metric is at most ``value``, +1 if the metric is at
    # least ``value``. 0: the metric is ``value``.
    bound: int = 0
    layout: int = 0  # 0: the usual layout; n: a randomized layout, linked by seed n
    partner: int | None = None  # the candidate of the other of two paired runs
    cpu_value: float | None = None  # ``value`` by CPU time instead of time; only for metrics that are times or rates
    log_wait: float = 0.0  # natural logarithm of the run's time divided by its CPU time; 0 without ``cpu_value``
    time_value: float | None = None  # ``value`` by time, if ``value`` is by CPU time
    of_another_hunt: bool = False  # whether the hunt of another metric ordered the run, and counts its cost
    count: float | None = None  # like ``Count.value``, if perf counted instructions during the run

    @property
    def layout_and_pairing(self) -> tuple[bool, bool]:
        """Whether the layout is randomized, and whether the run is paired; as in ``RunFacts.layout_and_pairing``."""
        return bool(self.layout), self.partner is not None

    @property
    def with_cpu_time(self) -> "Reading":
        """The reading, computed from CPU time instead of wall-clock time; if the CPU time is unknown, the unchanged
        reading."""
        return (
            self
            if self.cpu_value is None or self.time_value is not None
            else replace(self, value=self.cpu_value, time_value=self.value)
        )

    @property
    def with_wall_clock_time(self) -> "Reading":
        """The reading, computed from wall-clock time instead of CPU time; unchanged if it is already from wall-clock
        time."""
        return self if self.time_value is None else replace(self, value=self.time_value, time_value=None)


@dataclass(frozen=True, slots=True)
class Built:
    """The observation that a candidate was built. ``same_as`` is an earlier candidate with the same binary, or None."""

    candidate: int
    seconds: float
    same_as: int | None = None
    host: int | None = None  # the host that has the build; None: every host
    fixed: bool = False  # whether randomized layouts were requested, but the build cannot be linked again
    # the build host that made the build, with a separate compiler cache; None: the host that measures the build
    build_host: int | None = None
    incremental: bool = False  # built in the tree of another build, so that a part of it may be stale


@dataclass(frozen=True, slots=True)
class Skipped:
    """The observation that a candidate cannot be built, started or measured. The candidate never counts as slow."""

    candidate: int
    reason: str
    seconds: float = 0.0
    left_out: bool = False  # by --skip: no build was tried, so the skip is no evidence that other candidates fail


@dataclass(frozen=True, slots=True)
class Count:
    """The observation of an exact count of the instructions of a build, which is made in addition to timed runs."""

    candidate: int
    value: float  # log of instructions/o, negated if a higher metric is better; NaN: instructions cannot be counted
    at: float  # minutes since the hunt began, at the end of the count
    seconds: float  # cost of the count
    host: int = 0


Observation = Reading | Built | Skipped | Count


def _paired_reading(first: Reading, second: Reading) -> Reading:
    """The reading of a pair of paired runs, computed from the readings of the two runs."""
    cpu = None if first.cpu_value is None or second.cpu_value is None else first.cpu_value - second.cpu_value
    return replace(first, value=first.value - second.value, partner=second.candidate, cpu_value=cpu)


def has_exact_counts(log: Sequence[tuple[float, MeasuredEvent]], metric: str) -> bool:
    """Whether some runs counted the metric exactly. If so, only these runs become readings, and no timed runs."""
    return any(isinstance(event, RunFinished) and is_exact_count(event.facts, metric) for _, event in log)


def read_observations(
    log: Sequence[tuple[float, MeasuredEvent]],
    candidate_by_commit: Mapping[str, int],
    metric: str,
    began: float,
    hosts: Sequence[str] = (),
    build_hosts: Sequence[str] = (),
    *,
    by_cpu: bool = False,
) -> list[Observation]:
    """The observations in ``log`` about the commits in ``candidate_by_commit``, which maps full hashes to candidates.

    ``log`` has pairs (seconds since 1970, event) in the order of time. ``began`` is the time at which the hunt began.
    Runs without a value of the metric are left out. If the log has exact counts of the metric, timed runs are also left
    out. If ``hosts`` has several names, a build exists only on the host that made the build, and only binaries of the
    same host are compared; except a build that one of ``build_hosts`` made, which exists on all hosts. Two paired runs
    become one reading, which is computed from CPU time if ``by_cpu`` is true.
    """
    history: list[Observation] = []
    host_number = {name: number for number, name in enumerate(hosts)}
    maker = {name: number for number, name in enumerate(build_hosts)}
    binaries = FirstCommitsByBinary()
    visits: dict[tuple[int, str], int] = {}
    counted = has_exact_counts(log, metric)
    begun: dict[str, Reading] = {}  # round → its first run, until its second run is read
    for at, event in log:
        candidate = candidate_by_commit.get(event.facts.commit)
        if candidate is None:
            continue
        host = host_number.get(event.host, 0)
        match event:
            case BuildFinished(facts=build):
                made_by = maker.get(event.host)
                alone = len(host_number) > 1 and made_by is None  # whether no other host has the build
                first = binaries.add_build(host_or_shared_number(event.host, host_number, maker), build)
                same_as = None if first is None else candidate_by_commit[first]
                on = host if alone else None
                # A build from the shared store was only copied, so its time does not show the cost of a build.
                took = 0.0 if build.shared else build.seconds
                history.append(Built(candidate, took, same_as, on, bool(build.fixed), made_by, build.incremental))
            case CandidateSkipped(facts=skip):
                history.append(Skipped(candidate, skip.reason, skip.seconds, skip.stage == LEFT_OUT))
            case Uncounted(facts=skip):
                history.append(Count(candidate, math.nan, (at - began) / 60, skip.seconds, host))
            case RunFinished(facts=run):
                amount = log_metric(run, INSTRUCTIONS)
                count = None if amount is None else -amount if find_metric(metric).higher_is_better else amount
                if run.counted and not counted:
                    value = math.nan if count is None else count
                    history.append(Count(candidate, value, (at - began) / 60, at - run.started, host))
                elif (reading := log_metric(run, metric)) is not None and is_exact_count(run, metric) is counted:
                    minutes = (run.started + run.seconds / 2 - began) / 60
                    visit = visits.setdefault((host, run.visit), len(visits))
                    bound = (-1 if find_metric(metric).higher_is_better else 1) if run.slower_than else 0
                    cpu = log_metric_from_cpu_time(run, metric)
                    cost = at - run.started if run.started >= began else run.seconds  # a run before the hunt
                    single = Reading(
                        candidate, reading, minutes, visit, host, cost, bound, run.layout, cpu_value=cpu,
                        count=count, of_another_hunt=run.for_another,
                    )  # fmt: skip
                    if cpu is not None:
                        clock = run.counters["task-clock"] or 1.0
                        single = replace(single, log_wait=math.log(1000 * run.seconds / clock))
                    if not run.round:
                        history.append(single)
                    elif half := begun.pop(run.round, None):
                        both = _paired_reading(half, single)
                        if not by_cpu or both.cpu_value is not None:
                            history.append(both.with_cpu_time if by_cpu else both)
                    else:
                        begun[run.round] = single
    return history


def count_own_runs(history: Sequence[Observation]) -> int:
    """The number of timed runs (two for each pair) and of exact counts. Runs that another hunt asked for are not
    counted."""
    counts = sum(isinstance(item, Count) for item in history)
    runs = (item for item in history if isinstance(item, Reading) and not item.of_another_hunt)
    return counts + sum(1 if item.partner is None else 2 for item in runs)


def without_candidates(history: Iterable[Observation], candidates: Collection[int]) -> list[Observation]:
    """The observations without the observations of ``candidates``, whose builds are wrong. If ``same_as`` of another
    build is one of ``candidates``, it is set to None."""
    others = (item for item in history if item.candidate not in candidates)
    valid = (item for item in others if getattr(item, "partner", None) not in candidates)
    return [
        replace(item, same_as=None) if isinstance(item, Built) and item.same_as in candidates else item
        for item in valid
    ]
