"""Counts events with ``perf stat`` between the end of the warm-up and the end of a run. The functions make commands and
read output; only ``counters_of_test_run`` and ``can_count`` run perf themselves.

When perf starts, its counters are disabled. The workload enables the counters through perf's control FIFO before the
first operation after the warm-up, and disables the counters at its end; see workloads/perfbisect.lua.

During a run, vmstat and iostat report the activity of the whole machine. The runs of a workload that is a command are
timed by the host's wall clock, so perfbisect checks that the clock was not set during the run.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from math import isfinite
from pathlib import PurePosixPath
from statistics import fmean
from typing import NamedTuple

from perfbisect.core.domain.metrics import METRICS
from perfbisect.errors import EnvironmentFailure, HostClockChanged
from perfbisect.host.packages import how_to_install, missing_programs
from perfbisect.host.protocol import Host
from perfbisect.lab.workload import SECONDS

SOFTWARE = ("task-clock", "context-switches", "cpu-migrations", "page-faults", "minor-faults", "major-faults")
HARDWARE = dict.fromkeys(event for metric in METRICS.values() for event in metric.events if event not in SOFTWARE)
EVENTS = (*HARDWARE, *SOFTWARE)

ALLOW = "To allow perf: sysctl kernel.perf_event_paranoid=1"
ALL = 0.995  # a larger share of the time counts as 1: perf prints whole percent, and rounds each of two kinds of cores
Counters = Mapping[str, float | None]  # totals; task-clock in milliseconds

# Messages of perf about processes that end early. The first two messages, of perf stat and perf record: a process has
# ended before perf listed its threads. The third message: a thread has ended after that.
_GONE = re.compile(
    r"Problems finding threads of monitor|Couldn't create thread/CPU maps: No such process|.*sys_perf_event_open\(\) syscall returned with 3\b"
)
_COUNT = re.compile(r"[0-9]{1,30}(\.[0-9]{1,30})?")
# perf's message that a signal ended the measured command (perf itself then ends with status 0), for the signals that
# other processes may send.
_KILLED = re.compile(r"(sh|sysbench): (Hangup|Interrupt|Killed|Terminated)")
# "cpu_core/instructions/" on a CPU with two kinds of cores, "instructions:u" if perf may not count the kernel.
_EVENT = re.compile(r"(?:\w+/([\w.-]+)/\w*|([\w.-]+?)(?::\w+)?)")


def perf_stat_command(
    argv: Sequence[str],
    folder: PurePosixPath,
    pids: Iterable[int] = (),
    *,
    from_start: bool = False,
    events: Sequence[str] = EVENTS,
) -> list[str]:
    """The command that runs ``argv`` under ``perf stat``. perf counts the processes ``pids``; if ``pids`` is empty,
    perf counts the command itself.

    The counters are enabled and disabled through the FIFOs ``control`` and ``ack`` in ``folder``. If ``from_start`` is
    true, the counters are enabled from the start to the end of the command. perf writes the result to the file
    ``counters`` in ``folder``.
    """
    attached = ["-p", ",".join(map(str, pids))] if (pids := tuple(pids)) else []
    controlled = [] if from_start else ["--delay=-1", "--control", f"fifo:{folder / 'control'},{folder / 'ack'}"]
    return [
        "perf", "stat", "-x", ",", "-o", str(folder / "counters"), "-e", ",".join(events), *controlled, *attached, "--", *argv,
    ]  # fmt: skip


def parse_counters(text: str) -> dict[str, float | None]:
    """The counters in the output of ``perf stat -x ,``; None for an event that is not supported or was not counted.

    If perf has counted an event for only a part of the time (multiplexing), perf's number is extrapolated to the whole
    time. On a CPU with two kinds of cores, perf prints a number for each kind of core, extrapolated as if the whole
    program had run on this kind. The result is then the mean of the numbers, weighted by the time on each kind of core.
    """
    return {event: _value(parts) for event, parts in _counts(text).items()}


def counted_shares(text: str) -> dict[str, float]:
    """For each event that perf counted for only a part of the time: the share of the time.

    An event that was never counted is missing in the result. On a CPU with two kinds of cores, the shares of both kinds
    are added up.
    """
    share_of = {
        event: min(1.0, sum(part.percent for part in parts) / 100) for event, parts in _counts(text).items() if parts
    }
    return {event: share for event, share in share_of.items() if share < ALL}


class _CoreCount(NamedTuple):
    """The count of an event on one kind of cores; a CPU may have two kinds of cores."""

    value: float
    nanoseconds: float  # nanoseconds in which the event was counted
    percent: float  # percent of the time in which the event was counted; perf extrapolates to the whole time


def _counts(text: str) -> dict[str, list[_CoreCount]]:
    """Maps each event to its counts: one count for each kind of cores, or an empty list if perf did not count the
    event."""
    counted: dict[str, list[_CoreCount]] = {}
    for line in text.splitlines():
        fields = line.split(",")
        match = _EVENT.fullmatch(fields[2]) if len(fields) >= 5 and not line.startswith("#") else None
        if match:
            parts = counted.setdefault(match[1] or match[2], [])
            numbers = [fields[index] for index in (0, 3, 4)]
            if all(map(_COUNT.fullmatch, numbers)):  # not <not supported>, <not counted>
                parts.append(_CoreCount(*map(float, numbers)))
    return counted


def _value(parts: Sequence[_CoreCount]) -> float | None:
    total_time = sum(part.nanoseconds for part in parts)
    if len(parts) > 1 and total_time:
        return sum(part.value * part.nanoseconds for part in parts) / total_time
    return parts[0].value if parts else None


def has_target_ended(output: Iterable[str]) -> bool:
    """Whether the output of perf says that perf could not begin, because a process or thread to count had already
    ended."""
    return any(_GONE.match(line) for line in output)


def is_killed(perf_stderr: Iterable[str]) -> bool:
    """Whether the stderr of perf says that a signal ended the measured command, which the exit status of perf (0) does
    not show."""
    return any(_KILLED.fullmatch(line) for line in perf_stderr)


def counters_of_test_run(host: Host) -> Counters:
    """The values of all events in a short test run of perf; None for an event that the host cannot count. Raises
    EnvironmentFailure if perf is missing or cannot count on the host."""
    if missing_programs(host, ["perf"]):
        raise EnvironmentFailure(f"perf is not installed on host {host.name}", how_to_install(["perf"]))
    trial = host.run(["perf", "stat", "-x", ",", "-e", ",".join(EVENTS), "--", "true"], check=False)
    counters = parse_counters(trial.stderr)
    if counters.get("task-clock") is None:
        raise EnvironmentFailure(refusal_sentence(host.name, trial.stderr), ALLOW)
    return counters


def can_count(host: Host) -> bool:
    """Whether perf is installed and can count events on the host."""
    try:
        return bool(counters_of_test_run(host))
    except EnvironmentFailure:
        return False


def refusal_sentence(host: str, output: str) -> str:
    """A sentence that states why perf cannot count on the host ``host``; ``output`` is the output of perf."""
    if "paranoid" in output or "ermission" in output:
        return f"perf is not permitted on host {host}"
    lines = output.strip().splitlines()
    return f"perf does not work on host {host}: {lines[0] if lines else 'perf printed nothing'}"


TICK = 0.02  # seconds: two ticks of /proc/uptime
SHARE = 1e-3  # a step of the clock by at most this share of a run is tolerated: it is far below the noise of any host

# Prints the seconds since the epoch, and the uptime before and after they were read.
STAMP = """\
stamp() { read -r before rest </proc/uptime; now=$(date +%s.%N); read -r after rest </proc/uptime; echo "$now $before $after"; }
"""
_LINE = re.compile(rf"^{SECONDS} {SECONDS} {SECONDS}$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class ClockStamp:
    """The time of the host's wall clock, which can be set, and the uptime immediately before and after."""

    at: float  # seconds since the epoch
    uptime_before: float  # seconds since the start of the host, by a clock that is never set
    uptime_after: float


def read_stamps(text: str) -> tuple[ClockStamp, ...]:
    """The two clock readings that the shell function in STAMP has printed, at the begin and the end of a run; fewer
    than two if the run was killed or the disk is full.

    All other text is ignored, because the measured program may write to the same output.
    """
    return tuple(ClockStamp(*map(float, line.groups())) for line in islice(_LINE.finditer(text), 2))


def check_clock(stamps: tuple[ClockStamp, ...], host: str) -> None:
    """Raise HostClockChanged if the clock of ``host`` was set between the begin and the end of a run."""
    if len(stamps) < 2:
        return
    began, ended = stamps
    least, longest = ended.uptime_before - began.uptime_after, ended.uptime_after - began.uptime_before
    slack = TICK + SHARE * longest
    passed = ended.at - began.at
    if not least - slack <= passed <= longest + slack:
        step = passed - (least + longest) / 2
        to = "forward" if step > 0 else "back"
        raise HostClockChanged(f"the clock of host {host} was set {to} by {abs(step):,.1f} s during a run")


# $1 is the folder for the reports; $2 "yes" for vmstat and iostat, if they are installed; $3 the device ("" for no iostat); $4 the
# folder of the other run of a round ("" for none); $5 the threads of a run; then the command. Both runs of a round begin when the
# FIFO ``go`` is opened. The run that ends first keeps its share of the cores busy: otherwise the rest of the other run would be
# faster.
_BESIDE = f"""\
{STAMP}folder=$1 watched=$2 device=$3 other=$4 threads=$5; shift 5
[ -z "$other" ] || {{ echo $$ >"$folder/shell"; read -r go <"$folder/go"; }}
stamp >"$folder/time"
pids=
watch() {{
    report=$1; shift
    if command -v "$1" >/dev/null; then "$@" >"$folder/$report" & pids="$pids $!"; fi
}}
if [ "$watched" ]; then watch vmstat vmstat -n 1; fi
if [ "$watched" ] && [ "$device" ]; then watch iostat iostat -y -k -x "$device" 1; fi
"$@"
status=$?
stamp >>"$folder/time"
if [ "$other" ]; then
    true >"$folder/ended"
    read -r shell <"$other/shell"
    fill() {{ while [ ! -e "$other/ended" ] && kill -0 "$shell" 2>/dev/null; do :; done; }}
    while [ "$threads" -gt 1 ]; do fill & threads=$((threads - 1)); done
    fill
fi
[ -z "$pids" ] || kill $pids
exit $status
"""
# Program → the first word of its header, and the columns that are read.
COLUMNS = {
    "vmstat": ("r", "r", "b", "bi", "bo", "in", "cs", "us", "sy", "id", "wa", "st"),
    "iostat": ("Device", "r/s", "w/s", "rkB/s", "wkB/s", "%util"),
}

Row = Mapping[str, float]


def with_vmstat_and_iostat(
    argv: Sequence[str], folder: PurePosixPath, device: str, *, has_reports: bool = True,
    other_folder: PurePosixPath | None = None, busy_threads: int = 1,
) -> list[str]:  # fmt: skip
    """The command that runs ``argv``. If ``has_reports`` is true, vmstat runs at the same time, and, if ``device`` is
    not empty, iostat for this device.

    The reports are written to the files ``vmstat`` and ``iostat`` in ``folder``. The host's clock at the begin and the
    end of the run is written to the file ``time``. If the run is one of two paired runs, ``other_folder`` is the
    folder of the other run. Paired runs begin at the same signal. The run that ends first keeps ``busy_threads``
    threads busy until the other run ends, because the other run would otherwise become faster.
    """
    options = [str(folder), "yes" if has_reports else "", device.removeprefix("/dev/")]
    return ["sh", "-c", _BESIDE, "beside", *options, str(other_folder or ""), str(busy_threads), *argv]


def vmstat_or_iostat_rows(tool: str, report: str) -> list[Row]:
    """The rows of a report of vmstat, or of iostat for one device: one row for each second, which maps the names of
    columns to values.

    Columns are found by the header, because their sequence differs between versions. The first row of vmstat is left
    out, because this row has averages since boot.
    """
    header, numbers_of_rows, (first, *columns) = list[str](), list[Row](), COLUMNS[tool]
    for words in map(str.split, report.splitlines()):
        if words and words[0].removesuffix(":") == first:
            header = words
        elif header and len(words) == len(header):
            row = dict(zip(header, words, strict=True))
            with suppress(ValueError):  # the second header line of vmstat, or a line that is cut off
                numbers = {name: float(row[name]) for name in columns if name in row}
                numbers_of_rows += [numbers] if all(map(isfinite, numbers.values())) else []
    return numbers_of_rows[tool == "vmstat" :]


def window_means(rows: Sequence[Row], begin: float, end: float) -> dict[str, float | None]:
    """The mean of each column over the rows between ``begin`` and ``end``. The row with the index i has the values of
    the second from i to i + 1.

    ``begin`` and ``end`` are seconds since the start of the report. A row is included if the middle of its second is
    between ``begin`` and ``end``.
    """
    inside = [row for second, row in enumerate(rows) if begin <= second + 0.5 <= end]
    return {name: fmean(row[name] for row in inside) for name in inside[0]} if inside else {}


def report_means(vmstat: str, iostat: str, begin: float, end: float) -> dict[str, float | None]:
    """The mean of each column of the reports of vmstat and iostat over the rows between ``begin`` and ``end``; see
    ``window_means``."""
    of_vmstat = window_means(vmstat_or_iostat_rows("vmstat", vmstat), begin, end)
    return of_vmstat | window_means(vmstat_or_iostat_rows("iostat", iostat), begin, end)
