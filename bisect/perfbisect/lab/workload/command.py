"""Runs and times workloads that are commands, and parses their output.

The JSON output of fio (``--output-format=json``, since fio 3.0, 2017) has the IOPS, latencies and CPU time of a job.
"""

import hashlib
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePosixPath

import msgspec

from perfbisect.core.domain.events import Warned
from perfbisect.core.domain.settings import PrintedResult
from perfbisect.errors import HostClockChanged, UsageError
from perfbisect.host.protocol import Host
from perfbisect.lab import upload
from perfbisect.lab.servers import Installation, Service
from perfbisect.lab.workload import (
    SECONDS,
    TIMED_OUT,
    ProcessResult,
    RunResult,
    lua,
    signal_sentence,
    times_not_recorded_error,
)
from perfbisect.masking import mask_credentials
from perfbisect.recipes.build_systems import command_to_build_program
from perfbisect.recipes.builder import SIZE_PLACEHOLDERS, Builder
from perfbisect.recipes.output_pattern import NoNumber, find_number
from perfbisect.recipes.outputs import RecognisedOutput, filter_arguments, read_result, read_results, recognise_output
from perfbisect.recipes.placeholders import Values, fill_command
from perfbisect.recipes.requested import RECIPE
from perfbisect.recipes.workload import READING, Workload

CPU = "fio-cpu"  # milliseconds of usr and sys time: a counter of a run
PERCENTILES = {"p95": "95.000000", "p99": "99.000000"}


class OutputNumbersRecognised(Exception):
    """Raised after the first run of a workload, to report which numbers of the output perfbisect has recognised and
    measures; not a failure."""

    def __init__(self, workload: Workload, found: RecognisedOutput, words: tuple[str, ...] = ()) -> None:
        """``words`` are a filter: arguments that, after the workload's command, restrict the command to the measured
        numbers.
        """
        super().__init__(found.summary)
        self.workload, self.found, self.words = workload, found, words


@dataclass(slots=True)
class Recognition:
    """Finds the numbers in the output of a workload whose recipe does not say which number is measured."""

    workload: Workload
    found: RecognisedOutput | None = None
    over: bool = False  # whether the first output had no known format, so that no further output is tried
    numbers: bool = False  # whether the first output, which had no known format, contains numbers

    def with_recognised_numbers(self, ended: ProcessResult, result: RunResult) -> RunResult:
        """``result`` with the numbers that are recognised in the output of the run. Raises UsageError if --only has no
        effect on this output.
        """
        if self.over:
            return result
        if pattern := self.workload.recognised_outputs:  # an earlier session found the results
            every = recognise_output(ended.stdout, "")
            self.found = RecognisedOutput(pattern, result.results, "", every.result_count if every else len(pattern))
            return result
        self.found = recognise_output(ended.stdout, self.workload.only)
        if self.found:
            return with_results(result, self.found.values, self.found.outputs)
        if self.workload.only:
            raise UsageError(
                f"--only {self.workload.only} has no effect: the output of the command is not the output of a known benchmark.",
                READING,
            )
        self.over, self.numbers = True, re.search(r"\d", ended.stdout) is not None
        return result

    def recognition_with_filter(self) -> "Recognition | None":
        """A ``Recognition`` for a run with a filter (arguments that restrict the command to the measured results), by
        which ``raise_if_filter_works`` finds whether the filter works. None if all results are measured, or if no
        filter is known for this output format.
        """
        recognised_output = self.found
        if (
            not recognised_output
            or recognised_output.result_count == len(recognised_output.outputs)
            or not (words := filter_arguments(recognised_output.outputs))
        ):
            return None
        outputs = recognised_output.outputs
        return Recognition(msgspec.structs.replace(self.workload, filter=words, output=None, outputs=outputs))

    def raise_if_filter_works(self, filtered: "Recognition") -> None:
        """Raise OutputNumbersRecognised if the filter worked in the run whose output ``filtered`` has read. The first
        run was made without the filter and is then not used, because later runs are made with the filter.
        """
        shown, recognised_output = filtered.found, self.found
        if (
            shown
            and recognised_output
            and shown.result_count < recognised_output.result_count
            and len(shown.values) in (0, len(recognised_output.outputs))
        ):
            raise OutputNumbersRecognised(self.workload, recognised_output, filtered.workload.filter)

    def report_output_format(self) -> Iterator[Warned]:
        """Yield a warning, only once, if the output has numbers but no known format. Raises OutputNumbersRecognised if
        the output has a known format."""
        if self.found:
            raise OutputNumbersRecognised(self.workload, self.found)
        if self.numbers:
            self.numbers = False
            text = "the output of the command is not the output of a known benchmark, so the duration is measured"
            yield Warned(
                text,
                "To measure a number of the output, add --rate or --cost. To measure the duration without this warning: --metric latency.",
            )


class LatencyDistribution(msgspec.Struct, frozen=True):
    """The distribution of latencies; times are in nanoseconds."""

    mean: float = 0.0
    max: float = 0.0
    N: int = 0
    percentile: dict[str, float] = {}


class FioDirection(msgspec.Struct, frozen=True):
    """fio's numbers for the reads, the writes or the fsyncs of a job; for fsyncs, only the latency is used."""

    iops: float = 0.0
    total_ios: int = 0
    clat_ns: LatencyDistribution = LatencyDistribution()
    lat_ns: LatencyDistribution = LatencyDistribution()


class FioJob(msgspec.Struct, frozen=True):
    """A job of fio, or a group of jobs that fio reports as one job."""

    error: int = 0
    job_runtime: float = 0.0  # milliseconds, the sum over the jobs of a group
    usr_cpu: float = 0.0  # CPU time in user mode, as a percentage of job_runtime
    sys_cpu: float = 0.0
    read: FioDirection = FioDirection()
    write: FioDirection = FioDirection()
    sync: FioDirection = FioDirection()


class FioReport(msgspec.Struct, frozen=True):
    """The parts of fio's output that are used."""

    jobs: list[FioJob] = []


def read_fio(stdout: str, began: float, seconds: float) -> RunResult:
    """The result of a run, read from fio's output; warnings before the JSON are skipped. The number of operations is
    the number of I/Os that fio reports.

    If the job calls fsync, the latencies are the latencies of the fsyncs; otherwise of the reads or of the writes,
    whichever are more numerous. Raises ValueError, whose text is a sentence for the user, if there is no result.
    """
    job = _job(stdout)
    sides = sorted((job.read, job.write), key=lambda side: side.total_ios)
    iops, operations = sum(side.iops for side in sides), sum(side.total_ios for side in sides)
    if not 0 < iops < float("inf") or not operations:
        raise ValueError("fio did less than one I/O operation")
    cpu = {CPU: (job.usr_cpu + job.sys_cpu) / 100 * job.job_runtime or None}
    times = job.sync.lat_ns if job.sync.lat_ns.N else sides[-1].clat_ns
    percentiles = {name: times.percentile.get(key, 0.0) for name, key in PERCENTILES.items()}
    nanoseconds = {"avg": times.mean, "max": times.max, **percentiles}
    latency = {name: value / 1e6 or None for name, value in nanoseconds.items()}
    return RunResult(began, seconds, operations, latency, reported=iops, counters=cpu)


def _job(stdout: str) -> FioJob:
    begin, end = stdout.find("\n{") + 1, stdout.rfind("}") + 1
    try:
        jobs = msgspec.json.decode(stdout[0 if stdout.startswith("{") else begin : end], type=FioReport).jobs
    except msgspec.DecodeError as error:
        raise ValueError(f"the output is not JSON of fio (--output-format=json): {error}") from error
    if len(jobs) != 1:
        raise ValueError(f"the output has {len(jobs)} jobs, but must have one job: add --group_reporting")
    if jobs[0].error:
        raise ValueError(f"fio reports error {jobs[0].error}")
    return jobs[0]


LONGEST_LINE = 500  # most characters of a line that an error quotes
MAX_OPERATIONS = (1 << 63) - 1  # the largest number that the history can keep
CLOCK = "clock"  # file in the visit's folder with the command's start time, exit status and end time

_CLOCK = re.compile(rf"{SECONDS} ([0-9]{{1,3}}) {SECONDS}\s*")

# Runs a command, and writes its start time, status and end time to the file $1. The script ends with 0, because a
# status 124 of the command would look like the time limit of the job. It passes on only statuses of signals that may
# come from outside.
_TIMED = """\
clock=$1; shift
began=$(date +%s.%N)
"$@"
status=$?
printf '%s %s %s\\n' "$began" "$status" "$(date +%s.%N)" >"$clock"
case $status in 129|130|137|143) exit "$status";; esac
"""


def command_placeholders(
    system: Installation, workload: Workload, placed: PurePosixPath, folder: PurePosixPath, service: Service | None
) -> Values:
    """The values of all placeholders in the workload's commands. ``placed`` is the folder of the workload's files,
    ``folder`` is the folder of the visit."""
    of_system: Values = service.values if service else {**system.values, "data": str(folder / "data")}
    of_workload: Values = {"threads": workload.threads, "time": f"{workload.time:g}", "warmup": f"{workload.warmup:g}"}
    return {**of_system, **of_workload, **_args(workload), "suite": str(placed / lua.SUITE)}


def data_inputs(builder: Builder, workload: Workload, filled: Values) -> list[str]:
    """All inputs, except the build, on which the data depends that the workload's prepare commands make; they identify
    the data. ``filled`` are the values of placeholders that depend on the host. Only the placeholders that the commands
    contain are included.
    """
    commands = repr(workload.prepare_commands)
    of_workload = {"threads": workload.threads, "time": workload.time, "warmup": workload.warmup, **_args(workload)}
    used = {key: value for key, value in of_workload.items() if f"{{{key}}}" in commands}
    used |= {word: filled[word] for word in sorted(SIZE_PLACEHOLDERS | {"jobs"}) if f"{{{word}}}" in commands}
    beside = (
        hashlib.sha256(upload.archive_files(lua.files_to_send(workload))).hexdigest() if "{suite}" in commands else ""
    )
    of_recipe = [hashlib.sha256(upload.recipe_archive(builder)).hexdigest()] if "{recipe}" in commands else []
    return [commands, repr(used), beside, *of_recipe]


def _args(workload: Workload) -> dict[str, str]:
    return {name: str(v).lower() if isinstance(v, bool) else str(v) for name, v in workload.args.items()}


def timed_argv(workload: Workload, filled: Values, folder: PurePosixPath, under: Sequence[str] = ()) -> list[str]:
    """The argv of a timed run; ``folder`` is the folder of the visit, and ``under`` is a prefix that is put before the
    command."""
    command = [*fill_command(workload.command, filled), *workload.filter]
    return ["sh", "-c", _TIMED, "timed", str(folder / CLOCK), *under, *command]


def run_result(ended: ProcessResult, workload: Workload) -> RunResult:
    """The result of a run: the duration of the whole command, and the numbers that the workload's patterns find in its
    output.

    Raises ValueError, whose text is a sentence for the user, if the command failed or its output lacks such a number.
    Raises RunLost if the start and end times of the command were not recorded.
    """
    if ended.status in TIMED_OUT:
        raise ValueError(f"the command did not end within {ended.limit:.0f} s, and was killed")
    if signal := signal_sentence(ended.status):
        raise ValueError(signal)
    if ended.status:
        raise ValueError(f"the command could not be run: {last_output_line(ended.stdout, ended.stderr)}")
    clock = _CLOCK.fullmatch(ended.clock)
    if not clock:
        raise times_not_recorded_error()
    status = int(clock[2])
    if status:
        raise ValueError(
            f"{signal_sentence(status) or f'the command ended with status {status}'}: {last_output_line(ended.stdout, ended.stderr)}"
        )
    began, seconds = float(clock[1]), float(clock[3]) - float(clock[1])
    if seconds <= 0:
        raise HostClockChanged("the host's clock was set back during a run")
    if workload.format:
        return read_fio(ended.stdout, began, seconds)
    errors = ended.stderr if ended.is_whole else ""  # if a part of stdout is missing, the number may be in this part
    reported = reported_value(workload, ended.stdout, errors)
    operations = round(find_number(workload.operations, ended.stdout, errors)) if workload.operations else 1
    if not operations:
        raise ValueError("the command did less than one operation")
    if operations > MAX_OPERATIONS:
        raise ValueError(f"the output has {operations:.3g} operations, which is too large a number")
    latency: dict[str, float | None] = {"avg": 1000 * seconds / operations}
    latency |= {name: _latency(pattern, ended.stdout, errors) for name, pattern in workload.latencies.items()}
    result = RunResult(began, seconds, operations, latency, reported=reported)
    if outputs := workload.outputs:
        return with_results(result, read_results(outputs, ended.stdout), outputs)
    return result


def with_results(result: RunResult, values: Mapping[str, float], outputs: Sequence[PrintedResult]) -> RunResult:
    """The result of a run, with the numbers ``values`` that were read from its output. Raises NoNumber if ``values`` is
    empty."""
    if not values:
        raise NoNumber(f"the output has no metric: it lacks all {len(outputs)} results of {outputs[0].format}")
    if result.reported is None:
        [first, *_] = (output for output in outputs if output.result in values)
        result = replace(result, reported=values[first.result], unit=first.unit)
    return replace(result, results=values if len(outputs) > 1 else {})


def reported_value(workload: Workload, stdout: str, errors: str = "") -> float | None:
    """The rate or the cost in the output of a workload; None if the recipe says that the workload reports neither.
    Raises ValueError if the output lacks the rate or the cost."""
    if workload.output:
        return read_result(workload.output, stdout)
    where = workload.rate or workload.cost
    return find_number(where, stdout, errors) if where else None


def _latency(pattern: str, stdout: str, stderr: str) -> float | None:
    """A latency in milliseconds; None if the number is missing, or is so small that the command printed 0. No error is
    raised, because the run is valid without the latency.
    """
    try:
        return find_number(pattern, stdout, stderr)
    except ValueError:
        return None


# Messages of a shell, env and perf if a program cannot be started. A shell prints them, too, if a program that the
# measured program started cannot start.
_NOT_STARTED = re.compile(
    r"status 12[67]: .*?([^\s:'‘]+)['’]?: [^:]*$|sh: (?:line )?\d+: ([^\s:]+): (?:command )?not found$"
)


def not_started_advice(
    host: Host, prefix: PurePosixPath, workload: Workload, started: Sequence[str], reason: str
) -> str:
    """Advice for a run that failed because a program did not start; "" if no advice is known. The advice names a file
    of the build with the program's name, or an option with which perfbisect builds the program. If perfbisect built
    only the programs ``started``, the advice may be to build the programs that these programs start.
    """
    if not (not_found := _NOT_STARTED.search(reason)):
        return ""
    program, text = not_found[1] or not_found[2], workload.summary if workload.suite == RECIPE else ""
    argv = ["find", ".", "-name", PurePosixPath(program).name, "-type", "f", "-perm", "-u+x", "-printf", "%P\\n"]
    same_name = [path for path in host.run(argv, cwd=prefix, check=False).stdout.splitlines() if path != program]
    word = rf"(?<![\w./-]){re.escape(program)}(?![\w./-])"
    if same_name and re.search(word, text):
        path = min(same_name, key=lambda path: (len(path), path))
        return f" The build has {path}: use --run {shlex.quote(re.sub(word, lambda _: path, text, count=1))}"
    script = "cat GNUmakefile makefile Makefile Cargo.toml go.mod; find . -type f"
    files = host.run(["sh", "-c", script], cwd=prefix, check=False)
    paths = [line.removeprefix("./") for line in files.stdout.splitlines() if line.startswith("./")]
    if command := command_to_build_program(program.removeprefix("./"), paths, files.stdout):
        return f" To build the program: --build {shlex.quote(command)}"
    only = f" Perhaps {', '.join(started)} starts other programs, which were not built: add --program PATH for each."
    return only if started else ""


def last_output_line(*streams: str) -> str:
    """The last line that is not blank, of the last of ``streams`` that has such a line; shortened if it is long.

    If the line is the shell's message that a program is missing, the shell's prefix is removed.
    """
    for text in reversed(streams):
        if stripped := text.rstrip():
            line = mask_credentials(stripped[stripped.rfind("\n") + 1 :]).strip()[:LONGEST_LINE]
            return re.sub(r"^timed: (line )?\d+: ", "", line)
    return "the command printed nothing"
