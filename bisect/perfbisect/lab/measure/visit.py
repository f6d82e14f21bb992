"""Visits and runs: a new copy of the data, the start of the server (if there is a server), the workload under perf, and
the facts of the run.

Runs that take several times as long as runs of the good end may be stopped. A stopped run gives a reading that is a
bound: the build is slower than this bound. The counters of stopped runs are not used."""

import errno
import math
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath
from statistics import median
from typing import ClassVar

from perfbisect.core.domain.events import LabEvent, RunFinished, RunProgress, RunStarted, Warned
from perfbisect.core.domain.facts import RunFacts
from perfbisect.core.domain.orders import Purpose
from perfbisect.errors import EnvironmentFailure, MetricNotPrinted, PerfBisectError, RunFailed, UsageError
from perfbisect.host import jobs
from perfbisect.host.facts import cpu_numbers
from perfbisect.host.jobs import Job
from perfbisect.host.protocol import Host, disk_full_error
from perfbisect.lab import servers
from perfbisect.lab.measure import perf
from perfbisect.lab.measure.counting import Counter
from perfbisect.lab.measure.perf import perf_stat_command as under_perf
from perfbisect.lab.servers import LONGEST_LINE, Installation, Service, driver_options
from perfbisect.lab.workload import (
    TIMED_OUT,
    ProcessResult,
    RunResult,
    command,
    dataset,
    lines_of,
    lua,
    sysbench,
    times_not_recorded_error,
)
from perfbisect.masking import mask_credentials
from perfbisect.process import CLOCK
from perfbisect.recipes.inventory import HostEntry
from perfbisect.recipes.output_pattern import NoNumber
from perfbisect.recipes.workload import Workload
from perfbisect.wording.text import printable

SLACK = 1.0  # seconds from the start of a job to the start of the timed command or statement, at most


@dataclass(slots=True)
class SlowRuns:
    """Stops runs that take ``max_slowdown`` times the time of a run of good; 0: no run is stopped."""

    max_slowdown: float = 0.0
    good: str = ""
    runs_of_good: list[RunFacts] = field(default_factory=list)  # ended runs of the good end on this host

    def add_runs_of_good(self, runs: Iterable[RunFacts]) -> None:
        """Add the successful runs of good among ``runs``; the limit is computed from their times."""
        self.runs_of_good += (run for run in runs if run.commit == self.good and not (run.slower_than or run.round))

    def stop_seconds(self, commit: str, warmup: float) -> float | None:
        """Whole seconds after which a run of ``commit`` is stopped, its ``warmup`` included; None if it is not stopped.

        The seconds are rounded up: a stopped run takes at least ``max_slowdown`` times the time of a run of good."""
        if not self.max_slowdown or commit == self.good or not self.runs_of_good:
            return None
        return float(math.ceil(self.max_slowdown * (warmup + median(run.seconds for run in self.runs_of_good)) + SLACK))

    def stopped_run_facts(self, run: RunFacts) -> RunFacts:
        """The facts of a stopped run; the fields that identify the run are copied from ``run``."""
        operations = round(median(good.operations for good in self.runs_of_good))
        seconds = self.max_slowdown * median(good.seconds for good in self.runs_of_good)
        latency = {"avg": 1000 * seconds / operations}
        return replace(run, seconds=seconds, operations=operations, latency=latency, slower_than=self.max_slowdown)


NAME = "run"  # name of the job that runs the workload
LONGEST_COMMAND = 3600.0  # a command may take this number of seconds in addition to its expected time
QUOTED = 10  # last lines of a command's output that the error for a missing result quotes
ATTEMPTS = 5  # most attempts to attach perf to a server whose processes begin and end

_COLLECT = """for file do [ ! -e "$file" ] || cat "$file"; printf '\\f'; done"""


@dataclass(frozen=True, slots=True)
class RunContext:
    """The host, the workload and the settings that all runs of a hunt on one host share."""

    host: Host
    entry: HostEntry
    workload: Workload
    scripts: PurePosixPath  # the folder of its scripts on the host
    perf: bool = False  # whether perf can count
    add_perf: Callable[..., list[str]] = under_perf  # puts a run under perf, if perf can count
    argv_prefix: Sequence[str] = ()  # words before the measured command
    longest_run_seconds: float = 0.0  # the longest run so far: the length of a command, if known
    # For exact counts, in place of perf, vmstat and iostat; the workload then has a number of operations.
    counter: Counter | None = None
    recognition: command.Recognition | None = None

    def report_output_format(self) -> Iterator[Warned]:
        """Yield warnings about the next runs, derived from the output of the latest run."""
        if self.recognition:
            yield from self.recognition.report_output_format()

    @property
    def warmup_seconds(self) -> float:
        """Seconds of warm-up before the measured time of a run; 0 if the workload is a command."""
        return 0.0 if self.workload.command else self.workload.warmup

    @property
    def planned_seconds(self) -> float:
        """The planned seconds of a run, warm-up included; 0 if unknown, as for a command and for exact counts."""
        return 0.0 if self.workload.command or self.counter else self.workload.warmup + self.workload.time

    @property
    def kill_seconds(self) -> float:
        """Seconds after which a run that has not ended is killed."""
        usual = 5 * (self.workload.warmup + self.workload.time)
        return self.workload.timeout or usual + (LONGEST_COMMAND if self.workload.command or self.counter else 60)


@dataclass(frozen=True, slots=True)
class Visit:
    """One start of a system on a new copy of the data."""

    bench: RunContext
    system: Installation
    candidate: int
    folder: PurePosixPath
    dataset: str
    service: Service | None = None
    server: Job | None = None
    slow: SlowRuns = field(default_factory=SlowRuns)


@contextmanager
def begin_visit(
    bench: RunContext,
    system: Installation,
    candidate: int,
    dataset_key: str,
    slow: SlowRuns | None = None,
    side: str = "",
) -> Iterator[Visit]:
    """A visit (one start of the server), whose server runs during the ``with`` block; ``side`` names one of two paired
    builds.

    Raises RunFailed if the server ends too early, DatasetDamaged if the copied data differs from the loaded data."""
    folder = dataset.copy_for_visit(bench.host, dataset_key, system.builder.server, side)
    served = servers.service_in(bench.host, system, folder, bench.entry.server_cpus)
    with servers.run_server(served) if served else nullcontext() as job:
        yield Visit(bench, system, candidate, folder, dataset_key, served, job, slow or SlowRuns())


def timed_run(visit: Visit) -> Generator[RunProgress, None, RunFacts]:
    """Carry out one timed run; yields the report of each interval; returns the run's facts. Raises RunFailed and
    RunLost.

    If the run is stopped as too slow, its facts are returned while the server may still execute an operation of the
    run."""
    for _ in range(ATTEMPTS):
        running = RunInProgress(visit)
        yield from running.wait()
        if facts := running.collect():
            return facts
    attempts = f"on host {visit.bench.host.name} in {ATTEMPTS} attempts"
    raise EnvironmentFailure(f"perf could not attach to the server {attempts}: its processes start and end too fast")


class RunInProgress:
    """A timed run that has begun. With ``other``, the run waits until the run in the folder ``other`` has begun."""

    def __init__(self, visit: Visit, other: PurePosixPath | None = None) -> None:
        """Start the run."""
        slow_after = None if other else visit.slow.stop_seconds(visit.system.commit, visit.bench.warmup_seconds)
        self.visit, self.stopped_as_slow = visit, slow_after is not None
        self.limit = slow_after or visit.bench.kill_seconds * (2 if other else 1)
        self.job = start_run(visit, self.limit, other)

    def wait(self) -> Generator[RunProgress]:
        """Wait for the end of the run; yields the report of each interval."""
        bench, host, job, workload = self.visit.bench, self.visit.bench.host, self.job, self.visit.bench.workload
        if workload.command:
            jobs.wait_for_status(host, job)
            jobs.kill(host, job, grace_seconds=1)  # a server that still runs would disturb the next run
        else:
            # Polls are rare, because a poll takes some milliseconds of the machine that runs the workload.
            for line in jobs.follow_stdout(host, job, poll_seconds=min(5.0, max(1.0, bench.planned_seconds / 20))):
                if interval := sysbench.interval_progress(line, workload.operation):
                    yield RunProgress(self.visit.candidate, *interval)

    def collect(self) -> RunFacts | None:
        """The facts of the ended run; None if a process of the server ended before perf could attach to it."""
        visit, job, limit = self.visit, self.job, self.limit
        bench, host, workload = visit.bench, visit.bench.host, visit.bench.workload
        reports = [str(visit.folder / name) for name in (command.CLOCK, "time", "counters", "vmstat", "iostat")]
        paths = ["/proc/uptime", str(job.folder / "status"), *reports]
        output = host.run(["sh", "-c", _COLLECT, "collect", *paths]).stdout.removesuffix("\f")
        collected = CLOCK.now()
        # If the measured program wrote into one of these files, the last fields are wrong: they are parsed with care.
        uptime, status, clock, times, counted, of_vmstat, of_iostat = output.split("\f", 6)
        stdout, stderr = jobs.job_output(host, job), jobs.job_output(host, job, "stderr")
        note = stdout.omitted_output_note or stderr.omitted_output_note
        ended = ProcessResult(stdout.text, stderr.text, int(status), limit, clock, note, not stdout.omitted_bytes)
        if perf.has_target_ended(ended.output_lines()):
            jobs.remove_folder(host, job)
            return None
        if (bench.perf or bench.counter) and ended.status == 0 and not clock and perf.is_killed(lines_of(ended.stderr)):
            raise jobs.lost_job_error(host, job)
        stamps = perf.read_stamps(times)

        def host_to_own_clock(host_time: float, stamp: perf.ClockStamp) -> float:
            """``host_time``, a time by the host's clock, converted to the clock of this process."""
            return collected - max(0.0, float(uptime.split()[0]) - stamp.uptime_after) - (stamp.at - host_time)

        if self.stopped_as_slow and stamps and ended.status in TIMED_OUT:
            opened = stamps[0].at + bench.warmup_seconds
            jobs.kill(host, job, grace_seconds=1)
            jobs.remove_folder(host, job)
            result, at = RunResult(opened, 0.0, 0, {}), host_to_own_clock(opened, stamps[0])
            return visit.slow.stopped_run_facts(run_facts(visit, job, result, at, "", {}))
        perf.check_clock(stamps, host.name)
        try:
            outcome = (command if workload.command else sysbench).run_result(ended, workload)
        except ValueError as error:
            failed = run_failure(visit, job, ended.output_lines(), f"{error}{note}")
            if isinstance(error, NoNumber) and isinstance(failed, RunFailed):
                last = [*filter(str.strip, ended.output_lines())][-QUOTED:]
                printed = "\n".join(printable(mask_credentials(line.rstrip())[: command.LONGEST_LINE]) for line in last)
                failed = MetricNotPrinted(str(failed), stage="run", log=failed.log, last_lines=printed)
            raise failed from error
        if bench.recognition:
            outcome = bench.recognition.with_recognised_numbers(ended, outcome)
        if len(stamps) < 2:
            raise times_not_recorded_error()
        begin, end = stamps
        opened = outcome.opened or begin.at + bench.warmup_seconds
        window = opened - begin.at, opened - begin.at + outcome.seconds
        system = perf.report_means(of_vmstat, of_iostat, *window)
        measured = run_facts(visit, job, outcome, host_to_own_clock(opened, end), counted, system)
        jobs.remove_folder(host, job)
        return measured


@dataclass(frozen=True, slots=True)
class TimedCommand:
    """The command of a timed run, without vmstat and iostat."""

    argv: list[str]
    env: dict[str, str]
    cwd: PurePosixPath
    cpus: str  # a taskset list; "" for all CPUs


def start_run(visit: Visit, limit: float, other: PurePosixPath | None = None) -> Job:
    """Start sysbench or the workload's command under perf, beside vmstat and iostat; killed after ``limit`` seconds.
    ``other`` is the folder of the other visit of a pair."""
    bench, served = visit.bench, visit.service
    pids = servers.perf_pids(served, visit.server) if bench.perf and served and visit.server else ()
    run = timed_command(visit, pids)
    busy = max(bench.workload.threads, len(cpu_numbers(run.cpus or "0")))
    argv = perf.with_vmstat_and_iostat(
        run.argv, visit.folder, bench.entry.device, has_reports=not bench.counter, other_folder=other, busy_threads=busy
    )
    return jobs.start(bench.host, [*jobs.taskset(run.cpus), *argv], name=NAME, timeout=limit, cwd=run.cwd, env=run.env)


def timed_command(visit: Visit, counted_pids: Sequence[int]) -> TimedCommand:
    """The command of a run; perf counts the processes ``counted_pids``, or the run itself if there are none."""
    bench, folder, served, workload = visit.bench, visit.folder, visit.service, visit.bench.workload
    env: dict[str, str] = {}
    cwd = folder
    under = bench.counter.command_prefix(folder) if bench.counter else [*bench.argv_prefix]
    if workload.command:
        filled = command.command_placeholders(visit.system, workload, bench.scripts, folder, served)
        argv = command.timed_argv(workload, filled, folder, under)
        cwd = visit.system.prefix
    else:
        script = lua.script_path_on_host(bench.scripts, workload, lua.timed_run_script(workload))
        argv = [*under, *sysbench.run_argv(workload, script, driver_options(visit.system.builder, served))]
        env = lua.environment(workload, bench.scripts, folder / "data", visit.system.library)
    if bench.counter:
        env |= bench.counter.env
    elif bench.perf:
        argv = bench.add_perf(argv, folder, counted_pids, from_start=bool(workload.command))
        fifos = {"PERFBISECT_CONTROL": str(folder / "control"), "PERFBISECT_ACK": str(folder / "ack")}
        env |= {} if workload.command else fifos
    cpus = bench.entry.client_cpus if served else bench.entry.client_cpus or bench.entry.server_cpus
    return TimedCommand(argv, env, cwd, cpus)


def run_facts(
    visit: Visit, job: Job, outcome: RunResult, started: float, counted: str, system: Mapping[str, float | None]
) -> RunFacts:
    """The facts of a run that ended well; ``started`` is the time of its start by the clock of this process."""
    counter = visit.bench.counter
    return RunFacts(
        commit=visit.system.commit, build_key=visit.system.key, visit=(visit.server or job).id,
        host=visit.bench.host.name, started=started, seconds=outcome.seconds, operations=outcome.operations,
        latency=outcome.latency, samples=outcome.samples, system=system, dataset=visit.dataset,
        counters={**(counter.read_counters(counted) if counter else perf.parse_counters(counted)), **outcome.counters},
        reported=outcome.reported, results=outcome.results, unit=outcome.unit or visit.bench.workload.printed_unit, layout=visit.system.layout,
        counted=counter.method if counter else "", running={} if counter else perf.counted_shares(counted),
    )  # fmt: skip


def run_failure(visit: Visit, job: Job, output: Iterable[str], reason: str) -> PerfBisectError:
    """The error for a run without a result. The output and the error output of the run become one log."""
    visit.bench.host.run(["sh", "-c", 'cat "$1/stderr" >>"$1/stdout"', "join", str(job.folder)], check=False)
    if full := next((line for line in output if os.strerror(errno.ENOSPC) in line), None):
        return disk_full_error(visit.bench.host.name, full.strip()[:LONGEST_LINE])
    # sysbench may end because of a crash before the server has ended, so the server gets time to end.
    service, server = visit.service, visit.server
    if service and server and jobs.status(visit.bench.host, server, wait_seconds=servers.PATIENCE) is not None:
        return servers.server_error(service, server, f"the server ended during the run ({reason})", "run")
    return RunFailed(reason, stage="run", log=str(job.folder / "stdout"))


@dataclass(slots=True)
class Turn:
    """Successive runs of one candidate; ``runs_left`` is the number of runs that have not yet ended successfully."""

    candidate: int
    first: int  # number of the visit's first run in the order, from 1
    runs: int
    total: int  # runs of the order
    purpose: Purpose
    runs_left: int = 0
    layout: int = 0  # the layout of all runs of the turn: see ``Installation``
    stopped: bool = False  # whether a run was stopped because it was too slow

    def __post_init__(self) -> None:
        self.runs_left = self.runs_left or self.runs

    def start_event(self, context: RunContext) -> RunStarted:
        """The event that reports the start of the next run."""
        number = self.first + self.runs - self.runs_left
        return RunStarted(self.candidate, number, self.total, self.purpose, context.planned_seconds)


@dataclass
class Study(ABC):
    """Carries out the runs of turns (successive runs of one build); calls ``succeeded`` after each successful run.
    ``TimingStudy`` times runs. The studies in ``studies`` and ``profiles`` examine runs without timing, and yield other
    events than RunFinished."""

    context: RunContext
    succeeded: Callable[[], None]
    at: ClassVar[int] = 0  # index of the build of a pair; changes only in ``rounds.PairedRounds``

    @abstractmethod
    def run_turn(self, system: Installation, dataset: str, turn: Turn) -> Generator[LabEvent]:
        """Carry out a run of ``turn`` on ``dataset``, in one visit or more (starts of the server); decreases
        ``turn.runs_left`` by 1.

        If the host cannot make this kind of run, yields only Unexplained. Raises the errors of
        ``TimingStudy.run_turn``."""


StudyMaker = Callable[[RunContext, Callable[[], None]], Study]
"""Makes a study for one context."""


class _RunStopped(Exception):
    """Ends a visit after a stopped run; the server is then killed as after a failure."""


@dataclass
class TimingStudy(Study):
    """Times runs."""

    slow: SlowRuns = field(default_factory=SlowRuns)

    def run_turn(self, system: Installation, dataset: str, turn: Turn) -> Generator[LabEvent]:
        """Carry out a visit (one start of the system) on ``dataset``: all remaining runs for a server, otherwise a
        single run.

        A run that is stopped as too slow ends the visit. Raises RunFailed, DatasetDamaged and, for lost work, JobLost."""
        asks = self.context.recognition
        with suppress(_RunStopped), begin_visit(self.context, system, turn.candidate, dataset, self.slow) as opened:
            for _ in range(turn.runs_left if system.builder.server else 1):
                yield turn.start_event(self.context)
                facts = yield from timed_run(opened)
                if asks and (alone := asks.recognition_with_filter()):
                    with suppress(RunFailed, UsageError):
                        narrow = replace(self.context, workload=alone.workload, recognition=alone)
                        yield from timed_run(replace(opened, bench=narrow))
                        asks.raise_if_filter_works(alone)
                turn.runs_left -= 1
                self.succeeded()
                self.slow.add_runs_of_good([facts])
                yield RunFinished(turn.candidate, facts)
                yield from self.context.report_output_format()
                if facts.slower_than:
                    turn.stopped = True
                    raise _RunStopped  # kills the server, which may still execute the last operation
