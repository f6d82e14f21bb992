"""The metrics that a hunt can compare, and the functions that read metrics from a run.

The threads of a workload may have several tasks, called roles. One role is measured; the other roles run in the
background at fixed rates. For each role, the counters of a run include response times, the number of rows or queries
that were finished, and the number of rows or queries that the rate of the role required.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, median

from perfbisect.core.domain.facts import RunFacts
from perfbisect.errors import UsageError

# A mixed workload has clients in several roles. The name of a counter of a role is the role's name with a suffix: rows
# or queries done; rows or queries planned for the time of the run; the planned rate; rows or queries in one transaction
# of each client; the 99th percentile and the maximum of response times (ms).
DONE, DUE, RATE, BATCH, P99, LONGEST = "-done", "-due", "-rate", "-batch", "-p99", "-max"
CLIENT_CPU = "client-cpu"  # CPU milliseconds of the client in the window
CLIENT_BUSY = "client-busy"  # share of time in which the client's measured threads use a processor

BIN = 0.018  # width of a bin of sysbench's latency histogram, in log units
SUSTAINED = 0.99  # a background load is sustained if at least this share of the planned amount is done
LATE = 2  # transactions of each client that the end of a run may interrupt, so that they may be missing
BUSY = 0.5  # value of CLIENT_BUSY above which the client limits a run more than the server


@dataclass(frozen=True, slots=True)
class Background:
    """The planned rate and the measured rate of a background role, summed over all clients."""

    role: str
    wanted: float  # per second
    held: float
    sustained: bool  # whether the service level was reached


def role_counters(
    role: str, done: float, due: float, rate: float, batch: float, p99: float, longest: float
) -> Mapping[str, float]:
    """The counters of a role (a kind of connection that works beside the measured queries). If the role has no
    fixed rate (``rate`` is 0), the result lacks the counters of ``due``, ``rate`` and ``batch``.
    """
    paced = {role + DUE: due, role + RATE: rate, role + BATCH: batch} if rate else {}
    return {role + DONE: done, **paced, role + P99: p99, role + LONGEST: longest}


def most_delayed_background(runs: Iterable[RunFacts]) -> Background | None:
    """The background role that is furthest behind its rate, over all ``runs`` of a build; None if no role has a fixed
    rate.
    """
    all_runs = list(runs)
    roles = {name.removesuffix(DUE) for run in all_runs for name in run.counters if name.endswith(DUE)}
    backgrounds = [of_role for role in sorted(roles) if (of_role := _background_of_role(role, all_runs))]
    return min(backgrounds, key=lambda of_role: (of_role.sustained, of_role.held / of_role.wanted), default=None)


def _background_of_role(role: str, runs: Iterable[RunFacts]) -> Background | None:
    counted = [
        (done, due, rate, run.counters.get(role + BATCH) or 0.0)
        for run in runs
        if (done := run.counters.get(role + DONE)) is not None
        and (due := run.counters.get(role + DUE))
        and (rate := run.counters.get(role + RATE))
    ]
    if not counted:
        return None
    mean_rate = mean(rate for _, _, rate, _ in counted)
    done, due = (sum(column) for column in list(zip(*counted, strict=True))[:2])
    enough = min(SUSTAINED * due, due - LATE * sum(batch for *_, batch in counted))
    return Background(role, mean_rate, mean_rate * done / due, done >= enough)


def share_of_required_rate(run: RunFacts) -> float | None:
    """The work that was done, divided by the work that the rate required, in the role that was furthest behind its
    rate; None if no role has a fixed rate.
    """
    worst = most_delayed_background([run])
    return worst.held / worst.wanted if worst else None


def largest_client_load(runs: Iterable[RunFacts]) -> float | None:
    """The share of a run's time in which the client threads used a processor; the largest share of all ``runs``, or
    None if the share was not measured.
    """
    return max((share for run in runs if (share := run.counters.get(CLIENT_BUSY)) is not None), default=None)


Reader = Callable[[RunFacts], float | None]

INSTRUCTIONS = "instructions/o"  # the metric that can be counted exactly


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric. A reader returns None if the host could not measure the metric."""

    name: str
    read: Reader
    unit: str = ""  # unit; if empty, the name of the metric is printed
    higher_is_better: bool = False
    events: tuple[str, ...] = ()  # perf events that the metric needs
    from_device: bool = False  # counted by iostat
    from_output: bool = False  # parsed from the output of the workload's command
    is_shown: bool = False  # whether its value is shown for a run; for other metrics, operations per second are shown
    is_compared: bool = False  # whether the metric is listed for a culprit and its parent
    is_optional: bool = False  # whether only some programs report the metric, so that an absent metric is no fault
    log_step: float = 0.0  # step of the metric's logarithm, if the metric is read from a histogram

    def unit_of(self, run: RunFacts | None) -> str:
        """The unit that is printed after a value of a run."""
        return (run.unit if run and self.from_output else "") or self.unit or self.name

    def is_bounded_by_stopped_run(self, *, command: bool) -> bool:
        """Whether the time of a stopped run gives a limit for the metric; ``command`` is true if the workload is a
        command.

        A run of sysbench lasts until its slowest thread ends, so the time of a stopped run says nothing about the
        latencies of sysbench.
        """
        return self.name == "qps" or (self.name == "latency" and command)


def quotient(numerator: float | None, denominator: float | None) -> float | None:
    """The quotient of two numbers; None if a number is missing, ``denominator`` is zero, or the quotient is not
    finite.
    """
    ratio = numerator / denominator if numerator is not None and denominator else None
    return ratio if ratio is not None and math.isfinite(ratio) else None


def counter_per_operation(event: str, factor: float = 1.0) -> Reader:
    """A function that reads a counter of a run, times ``factor``, divided by the run's operations."""
    return lambda run: quotient(None if (n := run.counters.get(event)) is None else factor * n, run.operations)


def rate_per_operation(column: str) -> Reader:
    """A function that reads a mean rate of vmstat or iostat (per second), divided by operations per second."""
    return lambda run: quotient(run.system.get(column), run.qps)


def switches_per_operation(run: RunFacts) -> float | None:
    """Context switches of the measured processes per operation, or of the whole machine if perf did not count context
    switches.
    """
    by_process = counter_per_operation("context-switches")(run)
    return rate_per_operation("cs")(run) if by_process is None else by_process


def latency_metric(name: str, column: str, *, is_shown: bool = False, log_step: float = 0.0) -> Metric:
    """The metric for a latency in milliseconds: the mean or a percentile."""
    return Metric(name, lambda run: run.latency.get(column), unit="ms", is_shown=is_shown, log_step=log_step)


def event_metric(event: str, *, is_compared: bool = False, is_shown: bool = False) -> Metric:
    """The metric that counts a perf event per operation."""
    read = counter_per_operation(event)
    return Metric(f"{event}/o", read, events=(event,), is_compared=is_compared, is_shown=is_shown)


def operations_per_second(run: RunFacts) -> float | None:
    """QPS; None for an exact count of instructions, whose duration does not show the speed."""
    return None if run.counted else run.qps


_METRICS = (
    Metric("qps", operations_per_second, unit="QPS", higher_is_better=True),
    latency_metric("latency", "avg", is_shown=True),
    latency_metric("p95", "p95", log_step=BIN),
    latency_metric("p99", "p99", log_step=BIN),
    Metric("rate", lambda run: run.reported, higher_is_better=True, from_output=True, is_shown=True),
    Metric("cost", lambda run: run.reported, from_output=True, is_shown=True),
    # CPU microseconds of the measured processes; perf's task-clock counts milliseconds.
    Metric("cpu/o", counter_per_operation("task-clock", 1000), events=("task-clock",), is_compared=True),
    # The CPU time that fio reports (usr and sys), which excludes fio's start; perf's task-clock includes the start.
    Metric("cpu/io", counter_per_operation("fio-cpu", 1000), is_compared=True, is_optional=True),
    # CPU time of the client, which the counters of a server's processes do not include.
    Metric(f"{CLIENT_CPU}/o", counter_per_operation(CLIENT_CPU, 1000)),
    Metric("background", share_of_required_rate, higher_is_better=True),
    Metric("cs/o", switches_per_operation, is_compared=True),
    event_metric("instructions", is_compared=True, is_shown=True),
    event_metric("cycles", is_compared=True),
    Metric(
        "ipc",
        lambda run: quotient(run.counters.get("instructions"), run.counters.get("cycles")),
        higher_is_better=True,
        events=("instructions", "cycles"),
        is_compared=True,
    ),
    event_metric("branches", is_compared=True),
    event_metric("branch-misses", is_compared=True),
    event_metric("cache-references"),
    event_metric("cache-misses", is_compared=True),
    event_metric("L1-dcache-loads"),
    event_metric("L1-dcache-load-misses", is_compared=True),
    event_metric("L1-icache-load-misses"),
    event_metric("LLC-load-misses"),
    event_metric("dTLB-load-misses", is_compared=True),
    event_metric("iTLB-load-misses", is_compared=True),
    event_metric("page-faults", is_compared=True),
    event_metric("cpu-migrations"),
    *(
        Metric(name, rate_per_operation(column), from_device=True, is_compared=True)
        for name, column in (("r/o", "r/s"), ("rKB/o", "rkB/s"), ("wKB/o", "wkB/s"))
    ),
)
METRICS: Mapping[str, Metric] = {metric.name: metric for metric in _METRICS}
COMPARED = tuple(metric.name for metric in _METRICS if metric.is_compared)


def find_metric(name: str) -> Metric:
    """The metric of that name. Raises UsageError, which lists all metrics, for an unknown name."""
    if name not in METRICS:
        raise UsageError(f"There is no metric {name!r}.", f"Metrics are: {', '.join(METRICS)}.")
    return METRICS[name]


def second_and_first_values(pairs: Iterable[tuple[RunFacts, RunFacts]], metric: str) -> list[tuple[float, float]]:
    """For each pair, the metric of the second run and of the first run; pairs without two positive values are left out."""
    values = ((metric_value(partner, metric), metric_value(candidate, metric)) for candidate, partner in pairs)
    return [(x, y) for x, y in values if x and y and 0 < x * y < math.inf]


def metric_value(run: RunFacts, metric: str) -> float | None:
    """One metric of one run, in operations per second, milliseconds, CPU microseconds, or counts per operation.

    The value is None if the host could not measure the metric. Raises UsageError for a metric that does not exist.
    """
    return find_metric(metric).read(run)


def log_metric(run: RunFacts, metric: str) -> float | None:
    """The logarithm of a run's metric; None if the metric is missing, not positive, or not finite."""
    measured = metric_value(run, metric)
    return math.log(measured) if measured is not None and 0 < measured < math.inf else None


def log_metric_from_cpu_time(run: RunFacts, metric: str) -> float | None:
    """The logarithm of QPS or mean latency, computed from CPU time instead of elapsed time; None for other metrics, or
    if the CPU time is unknown.

    For two builds that run at the same time on the same cores, the elapsed time depends on the share of the cores' time
    that each build gets, which varies. The CPU time of each build varies less.
    """
    duration = (
        metric == "latency" and run.reported is None and math.isclose(metric_value(run, metric) or 0.0, 1000 / run.qps)
    )
    clock = run.counters.get("task-clock")
    if not (metric == "qps" or duration) or not clock or clock <= 0 or run.operations <= 0:
        return None
    return math.log(run.operations / clock) * (1 if metric == "qps" else -1)


def is_exact_count(run: RunFacts, metric: str) -> bool:
    """Whether the metric of the run is an exact count, which differs between runs by parts per million only."""
    return bool(run.counted) and metric == INSTRUCTIONS


def is_noticed_by_users(metric: str) -> bool:
    """Whether users of the system notice a change of the metric directly; they do not notice a change of CPU time, for
    example.
    """
    return metric in ("qps", "latency", "p95", "p99", "rate", "cost")


def shown_metric(run: RunFacts, metric: str, usual: str = "qps") -> str:
    """The metric whose value is shown for a run: the number of instructions if the run counted instructions exactly.

    For a timed run, three metrics are tried in this order: ``metric`` (which the hunt compares), ``usual`` (which the
    hunt compared before it changed to instructions), and QPS. The result is the first metric that the run has and
    reports show.
    """
    if run.counted:
        return INSTRUCTIONS
    shown = (name for name in (metric, usual) if find_metric(name).is_shown and metric_value(run, name) is not None)
    return next(shown, "qps")


def shown_value(run: RunFacts, metric: str) -> float:
    """The value that is shown for a run while ``metric`` is hunted, in the unit of ``shown_unit``."""
    reading = metric_value(run, shown_metric(run, metric))
    return run.qps if reading is None else reading


def shown_unit(metric: str, run: RunFacts | None = None) -> str:
    """The unit of the value that is shown for a run while ``metric`` is hunted."""
    entry = find_metric(metric)
    return entry.unit_of(run) if entry.is_shown else "QPS"


def has_metric_unit(run: RunFacts, metric: str) -> bool:
    """Whether the value that is shown for ``run`` has the unit of ``metric``. The units can differ with ``--metric
    auto``: then some runs of a hunt count instructions, and other runs are timed.
    """
    return shown_unit(shown_metric(run, metric)) == shown_unit(metric)


def median_metric(runs: Sequence[RunFacts], metric: str) -> float | None:
    """The median of a metric over the runs that have the metric; None if no run has the metric."""
    values = [reading for run in runs if (reading := metric_value(run, metric)) is not None]
    return median(values) if values else None
