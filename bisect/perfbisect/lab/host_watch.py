"""Watches a host during measurements. Warns of changed properties of the host and of runs that the host may have
disturbed, and decides whether the host or the commit has caused a failure."""

import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from textwrap import indent
from typing import TypeVar

from perfbisect.core.domain.events import CandidateSkipped, LabEvent, RunFinished, Warned
from perfbisect.core.domain.facts import HostFacts, RunFacts, SkipFacts, host_differences
from perfbisect.core.domain.metrics import BUSY, largest_client_load, log_metric, most_delayed_background
from perfbisect.errors import (
    BuildFailed,
    ConnectionLost,
    EnvironmentFailure,
    JobLost,
    MetricNotPrinted,
    MetricPatternUnmatched,
    NoMetricValues,
    RangeEndFailed,
    RunFailed,
    RunLost,
)
from perfbisect.host.facts import (
    BOOT,
    CORES,
    KERNEL,
    SETTINGS,
    THROTTLED,
    Fact,
    free_bytes_fact,
    is_disk_nearly_full,
    read_fact,
    read_facts,
)
from perfbisect.host.lock import HostLock
from perfbisect.host.protocol import Host, disk_full_error
from perfbisect.lab import GeneratorWithResult
from perfbisect.lab.building.candidates import Candidates
from perfbisect.lab.building.log_parser import KnownFailure
from perfbisect.lab.checks.machine import GIB, LITTLE, TOO_LITTLE
from perfbisect.wording.quantities import figure, percent

T = TypeVar("T")

# Facts that can change unnoticed. All are read from files of the kernel, within milliseconds.
PASSING: tuple[Fact[object], ...] = (CORES, KERNEL, THROTTLED)
SET = {name: SETTINGS[name] for name in ("governor", "turbo", "smt", "aslr", "huge pages")}


def change_warnings(host: str, before: HostFacts, after: HostFacts) -> tuple[Warned, ...]:
    """A warning if the facts of a host differ from its facts earlier in the hunt."""
    differences = host_differences(before, after)
    advice = "Runs before and after the change may not be comparable. Undo the change, or begin a new hunt."
    text = f"host {host} has changed during this hunt: {', '.join(differences)}"
    return (Warned(text, advice),) if differences else ()


def while_lock_held(held: HostLock, work: Generator[LabEvent, None, T]) -> Generator[LabEvent, None, T]:
    """Yield the events of ``work`` on a host, and check before each event that this process still holds the lock
    ``held``; returns the result of the work.

    Raises EnvironmentFailure if the lock is lost, or if the work fails because the root folder was removed.
    """
    steps = GeneratorWithResult(work)
    try:
        with closing(work):
            for event in steps:
                held.check_held()
                if isinstance(event, CandidateSkipped):
                    held.check_root()
                yield event
    except EnvironmentFailure as failure:
        if not isinstance(failure, ConnectionLost):
            held.check_root()
        raise
    return steps.result


@dataclass
class HostWatch:
    """Watches a host during measurements, while this process holds the ``lock`` of the host. Warns if a property
    of the host has changed since the last check.
    """

    host: Host
    lock: HostLock
    facts: HostFacts  # facts of the host at the last check
    throttled: int | None = None
    warned: set[str] = field(default_factory=set)

    def guard(self, work: Generator[LabEvent]) -> Generator[LabEvent]:
        """Check the host, then yield the events of a measurement on the host, and warnings about its runs.

        Raises EnvironmentFailure if the disk is full or the lock is lost. If the lock is lost, the events of the
        measurement are invalid.
        """
        self.lock.check_held()
        yield from self.changes_since_last_check()
        runs: dict[str, list[RunFacts]] = {}  # build → its runs
        with closing(while_lock_held(self.lock, work)) as events:
            for event in events:
                yield event
                if isinstance(event, RunFinished):
                    runs.setdefault(event.facts.build_key, []).append(event.facts)
                    yield from warn_if_client_busy(event.facts, self.warned)
        for of_build in runs.values():
            yield from missed_background_rate_warnings(of_build, self.warned)

    def changes_since_last_check(self) -> Iterator[Warned]:
        """Warnings about what has changed on the host since the last check. Raises EnvironmentFailure if the disk has
        no space for another build."""
        space = free_bytes_fact(self.host.root)
        answers = read_facts(self.host, (*PASSING, *SET.values(), space))
        present = {name: value for name, fact in SET.items() if (value := answers.get(fact))}
        cores, kernel = answers.get(CORES) or self.facts.cores, answers.get(KERNEL) or self.facts.kernel
        now = replace(self.facts, cores=cores, kernel=kernel, settings={**self.facts.settings, **present})
        yield from change_warnings(self.host.name, self.facts, now)
        throttled = answers.get(THROTTLED)
        if throttled is not None and self.throttled is not None and throttled > self.throttled:
            times = f"{throttled - self.throttled:,} times since the last measurement"
            text = f"heat has slowed down the cores of host {self.host.name} {times}"
            yield Warned(text, "Improve the cooling, or lower the clock rate.")
        self.facts, self.throttled = now, throttled
        yield from warn_if_space_low(self.host, answers.get(space), self.warned)


def warn_if_client_busy(run: RunFacts, warned: set[str]) -> Iterator[Warned]:
    """Warn once if the client of a run was so busy that it may limit the measured rate."""
    share = largest_client_load([run])
    if share is not None and share >= BUSY and "client" not in warned:
        warned.add("client")
        text = f"the client itself uses {percent(share)} of the measured time on host {run.host}"
        advice = (
            "Use more --threads, or separate processors for client and server (client_cpus, server_cpus in hosts.toml)."
        )
        yield Warned(f"{text}, so changes of the server look smaller than they are", advice)


def missed_background_rate_warnings(runs: Sequence[RunFacts], warned: set[str]) -> Iterator[Warned]:
    """Warn once about a build if, over all ``runs``, threads that run in the background of the workload do not reach
    their planned rate.
    """
    load, build = most_delayed_background(runs), runs[0].build_key
    if load and not load.sustained and build not in warned:
        warned.add(build)
        rows = f"{figure(load.held)} of {figure(load.wanted)} rows per second ({load.role})"
        text = f"{runs[0].commit[:10]} fails the SLA: it sustains {rows} beside the queries"
        advice = "Its QPS is not comparable, because the server had less work. To hunt this rate: --metric background"
        yield Warned(text, advice)


def warn_if_space_low(host: Host, free: int | None, warned: set[str]) -> Iterator[Warned]:
    """Warn if a host has little free disk space (``free`` bytes). The warning is given once: ``warned`` then contains
    "space". Raises EnvironmentFailure if the free space is too small."""
    if free is not None and free < TOO_LITTLE:
        raise disk_full_error(host.name, f"only {free >> 20} MiB are free below {host.root}")
    if free is not None and free < LITTLE and "space" not in warned:
        warned.add("space")
        advice = f"Free space with `bisect gc {host.name}` before the disk is full."
        yield Warned(f"only {free / GIB:.1f} GiB are free below {host.root} on host {host.name}", advice)


def require_metric_values(metric: str, work: Generator[LabEvent]) -> Generator[LabEvent]:
    """Yield the events of a measurement whose runs must have a value for the metric.

    Raises NoMetricValues after the measurement if no run of a build had a value, because the search would then only
    repeat the same work order.
    """
    valued: dict[tuple[int, str], bool] = {}  # (candidate, commit) → whether a run had a value
    with closing(work):
        for event in work:
            yield event
            if isinstance(event, RunFinished):
                key = event.candidate, event.facts.commit
                valued[key] = valued.get(key, False) or log_metric(event.facts, metric) is not None
    for _, commit in sorted(key for key, has_value in valued.items() if not has_value):
        why = f"The last runs of {commit[:10]} have no value of {metric}, or a value that is 0 or infinite"
        raise NoMetricValues(f"{why}, so there is nothing to compare.", "Choose another metric with --metric.")


LOSSES = 3  # number of successive losses after which lost work is not repeated


class WorkRetryPolicy:
    """Decides whether failed or lost builds and runs on one host are repeated."""

    def __init__(self, host: Host, candidates: Candidates, workload: str = "") -> None:
        """The work is runs of ``workload`` on ``host``, or builds if ``workload`` is "". The constructor reads the
        host's boot id from the host.
        """
        self.host = host
        self.candidates = candidates
        self.workload = workload
        self._boot = read_fact(host, BOOT)
        self._losses = 0  # number of successive losses
        self._changed: set[str] = set()  # keys of builds that were changed since a run last ended well

    def note_success(self) -> None:
        """Note that a build or a run has ended successfully."""
        self._losses = 0
        self._changed.clear()

    def may_remake(self, key: str) -> bool:
        """Whether a build or a layout that has changed is to be made again. If the build or the layout changes twice
        before a run has ended successfully, the candidate fails. A layout and its build share files, so one change can
        affect first the layout and then the build; the layout and the build may each be made again once.
        """
        again = key not in self._changed
        self._changed.add(key)
        return again

    def lost_work_event(self, candidate: int, lost: JobLost, stage: str, began: float) -> Warned | CandidateSkipped:
        """A warning that lost work will be repeated; or, after too many losses, the event that skips the candidate.

        After too many losses, raises ``lost`` and skips no candidate if the host was restarted, or if the connection
        failed.
        """
        self._losses += 1
        of_host = isinstance(lost, RunLost)
        if self._losses <= LOSSES:
            advice = lost.advice if of_host else "The host was restarted, or a user killed the job."
            return Warned(f"{lost}; the work is repeated", advice)
        if of_host or read_fact(self.host, BOOT) != self._boot:
            raise lost
        self._losses = 0
        reason = f"the run was killed {LOSSES + 1} times in succession, perhaps because memory was full (see `dmesg`)"
        return self.skip_event(candidate, RunFailed(reason, stage=stage, log=str(self.host.root / "jobs")), began)

    def skip_event(self, candidate: int, failure: BuildFailed | RunFailed, began: float) -> CandidateSkipped:
        """The event that reports that a failed candidate is skipped.

        Raises EnvironmentFailure if the disk is full, which is not the candidate's fault. Raises RangeEndFailed if the
        candidate is an end of the range, because a hunt needs measurements of both ends. RangeEndFailed usually means
        that the user must fix the machine or the recipe; then the hunt can continue.
        """
        name = self.candidates.display_name(candidate)
        if is_disk_nearly_full(self.host):
            raise disk_full_error(self.host.name, f"{name} cannot be measured: {failure}") from failure
        if end := self.candidates.end_name(candidate):
            built = self.workload and not isinstance(failure, BuildFailed)
            outcome = f"fails in workload {self.workload}" if built else "cannot be built"
            why = "nothing can be compared, because"
            if isinstance(failure, MetricNotPrinted):
                printed = (
                    f"The last lines of the output are:\n{indent(failure.last_lines, '  ')}"
                    if failure.last_lines
                    else "The output is empty."
                )
                advice = f"{printed}\nRun the command again with a pattern that matches."
                raise MetricPatternUnmatched(f"{why} {end}, {name}, has no result: {failure}", advice) from failure
            raise RangeEndFailed(f"{why} {end}, {name}, {outcome}: {failure}", failure.advice) from failure
        seconds, commit = time.monotonic() - began, self.candidates.commits[candidate]
        errors = failure.errors if isinstance(failure, BuildFailed) else ()
        known_error = failure.known if isinstance(failure, KnownFailure) else None
        facts = SkipFacts(commit, failure.stage, str(failure), failure.log, seconds, known_error, errors=errors)
        return CandidateSkipped(candidate, facts)
