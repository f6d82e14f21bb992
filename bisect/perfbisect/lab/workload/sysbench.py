"""Composes the sysbench command line of a workload, and parses the output of sysbench. The functions have no side
effects."""

import re
from collections.abc import Callable, Iterable, Mapping
from itertools import accumulate
from pathlib import PurePath

from perfbisect.core.domain import metrics
from perfbisect.errors import UsageError
from perfbisect.lab.workload import TIMED_OUT, ProcessResult, RunResult, lines_of, signal_sentence
from perfbisect.recipes.workload import Option, Workload

# Options that are fixed for all runs, so that every run draws the same random numbers. Args of a workload may override
# these options.
FIXED: Mapping[str, Option] = {
    "events": 0,
    "report-interval": 1,
    "percentile": 95,
    "histogram": True,
    "rand-type": "uniform",
    "rand-seed": 1,
}

ANSWER = "perfbisect answer: "

_NUMBER = r"([0-9]{1,18}(?:\.[0-9]{1,18})?)(?![0-9.])"
_PROGRESS = re.compile(rf"\[ {_NUMBER}s \] thds: \d+ (?:eps: {_NUMBER}|tps: {_NUMBER} qps: {_NUMBER})")
_WINDOW = re.compile(rf"perfbisect window: {_NUMBER} {_NUMBER}")
_ROLE = re.compile(rf"perfbisect role: ([a-z]{{1,20}}) {_NUMBER} {_NUMBER} {_NUMBER} {_NUMBER} {_NUMBER} {_NUMBER}")
_CLIENT = re.compile(rf"perfbisect client: {_NUMBER} {_NUMBER}")
_BUCKET = re.compile(rf"\s*{_NUMBER} \|\**\s+([0-9]{{1,18}})\b")
_TOTAL = re.compile(rf"\s+([\w ]+?)(?: \(\w+\))?:\s+{_NUMBER}s?\b")


def run_argv(workload: Workload, script: PurePath, options: Mapping[str, Option] | None = None) -> list[str]:
    """The argv of a timed run; ``options`` are the options with which sysbench connects to the server. Raises
    UsageError if the duration of the workload is not a whole number of seconds."""
    if workload.time < 1 or workload.time != int(workload.time):
        text = f"Workload {workload.name} has time = {workload.time:g}, but sysbench counts whole seconds."
        raise UsageError(text, "Write a whole number of at least 1.")
    chosen = {"threads": workload.threads, "time": int(workload.time), **FIXED, **(options or {}), **workload.args}
    return ["sysbench", str(script), *_flags(chosen), "run"]


def prepare_argv(workload: Workload, script: PurePath, options: Mapping[str, Option] | None = None) -> list[str]:
    """The argv that loads the dataset."""
    chosen = {"rand-type": "uniform", "rand-seed": 1, **(options or {}), **workload.prepare_args}
    return ["sysbench", str(script), *_flags(chosen), "prepare"]


def check_argv(script: PurePath, options: Mapping[str, Option]) -> list[str]:
    """The argv that runs a workload's check, which prints the answers to some queries; each printed row begins with
    ANSWER."""
    return ["sysbench", str(script), *_flags(options), "check"]


def _flags(options: Mapping[str, Option]) -> list[str]:
    text = {True: "on", False: "off"}
    return [f"--{name}={text[value] if isinstance(value, bool) else value}" for name, value in options.items()]


def interval_progress(line: str, operation: str) -> tuple[float, float] | None:
    """For an output line that reports an interval, the pair (seconds since the start, operations per second); None for
    any other line."""
    match = _PROGRESS.match(line)
    if not match:
        return None
    second, events, transactions, queries = match.groups()
    return float(second), float(events or (queries if operation == "query" else transactions))


def run_result(ended: ProcessResult, workload: Workload) -> RunResult:
    """The result of a run. Raises ValueError, whose text is a sentence for the user, if the run failed."""
    if wrong := failure_reason(ended.output_lines(), ended.status, ended.limit):
        raise ValueError(wrong)
    if ended.note:
        raise ValueError("sysbench printed too much")
    return parse_output(lines_of(ended.stdout), workload.operation)


def parse_output(lines: Iterable[str], operation: str) -> RunResult:
    """The result of a run, read from its output; ``operation`` is the unit in which operations are counted: "event" or
    "query".

    The measured time is the time that the Lua module ``perfbisect`` prints, if it prints any, and not sysbench's total
    time, which includes time before and after the measured operations. If the threads of a script have several roles,
    the script prints counters of each role, which are added to the result. Raises ValueError, whose text is a sentence
    for the user, if the totals are missing, or no operation was counted.
    """
    samples: list[float] = []
    buckets: list[tuple[float, int]] = []
    totals: dict[str, float] = {}
    counters: dict[str, float] = {}
    window: tuple[float, float] | None = None
    for line in lines:
        if interval := interval_progress(line, operation):
            samples.append(interval[1])
        elif match := _WINDOW.match(line):
            window = float(match[1]), float(match[2])
        elif match := _ROLE.match(line):
            counters |= metrics.role_counters(match[1], *map(float, match.groups()[1:]))
        elif match := _CLIENT.match(line):
            counters |= {metrics.CLIENT_CPU: float(match[1]), metrics.CLIENT_BUSY: float(match[2])}
        elif match := _BUCKET.match(line):
            buckets.append((float(match[1]), int(match[2])))
        elif match := _TOTAL.match(line):
            totals.setdefault(match[1], float(match[2]))
    events = int(totals.get("total number of events", 0))
    seconds = window[1] if window else totals.get("total time", totals.get("time elapsed"))
    if seconds is None or "total number of events" not in totals:
        raise ValueError("sysbench ended without its statistics")
    if operation == "query" and "queries" not in totals:
        raise ValueError("sysbench counted no queries: set `operation` of this workload to event")
    operations = int(totals["queries"]) if operation == "query" else events
    if not operations or not seconds:
        raise ValueError("no operation was finished in the measured time")
    if len(samples) == round(seconds) - 1:  # sysbench often ends before it reports the last interval
        samples.append(max(0.0, (operations - sum(samples)) / (seconds - len(samples))))
    opened, latency = window[0] if window else None, _latency(totals, buckets, events)
    return RunResult(opened, seconds, operations, latency, tuple(samples), counters=counters)


def _latency(totals: Mapping[str, float], buckets: list[tuple[float, int]], events: int) -> dict[str, float | None]:
    """The minimum, the average, percentiles and the maximum of the latency of an event, in milliseconds. The average is
    computed from the printed sum, and the percentiles from the printed histogram, because these give more digits than
    sysbench's own average and percentiles."""
    spent = totals.get("sum")
    return {
        "min": totals.get("min"),
        "avg": spent / events if spent is not None and events else totals.get("avg"),
        "p95": _percentile(buckets, 0.95) or totals.get("95th percentile"),
        "p99": _percentile(buckets, 0.99),
        "max": totals.get("max"),
    }


def _percentile(buckets: list[tuple[float, int]], share: float) -> float | None:
    counts = [*accumulate(count for _, count in buckets)]
    return next((value for (value, _), count in zip(buckets, counts, strict=True) if count >= share * counts[-1]), None)


def failure_reason(lines: Iterable[str], status: int, limit: float) -> str:
    """The reason why a run that ended with ``status`` failed: sysbench's first error, or the signal that killed
    sysbench; "" if the run succeeded.

    ``lines`` are the whole output of the run, ``limit`` is the time limit of the run in seconds.
    """
    error = ""
    for line in lines:
        error = error or (line.strip() if "rror" in line else "")
        _, is_fatal, text = line.partition("FATAL: ")
        if is_fatal:
            return text.strip()
        if line.startswith("sysbench: "):  # perf ends with 0 if its command crashes, and reports the signal
            return f"sysbench crashed: {line.removeprefix('sysbench: ')}"
    if status in TIMED_OUT:
        return f"sysbench did not end within {limit:.0f} s, and was killed"
    if signal := signal_sentence(status):
        return signal
    if status == 0:
        return ""
    return error or f"sysbench ended with status {status}"


def failure_finder(time_limit: float) -> Callable[[str, int], str]:
    """A function that returns the ``failure_reason`` of a run with the time limit ``time_limit``, given the run's
    output and exit status."""
    return lambda printed, status: failure_reason(lines_of(printed), status, time_limit)
