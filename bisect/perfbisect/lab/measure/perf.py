"""perf stat around a run, counting exactly the measured window. Pure, but for ``probe``.

perf starts with its counters disabled. The workload's first operation after the warm-up enables them through the
control FIFO and its end disables them again; see workloads/perfbisect.lua.


What the whole machine did beside a run, by vmstat and iostat, and whether its clock was set. The parsers are pure.

Commands are timed by the clock of the host, so it must not be set meanwhile.
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
from perfbisect.errors import ClockSet, EnvironmentFailure
from perfbisect.host.packages import how_to_install, missing
from perfbisect.host.protocol import Host
from perfbisect.lab.workload import SECONDS

SOFTWARE = ("task-clock", "context-switches", "cpu-migrations", "page-faults", "minor-faults", "major-faults")
HARDWARE = dict.fromkeys(event for metric in METRICS.values() for event in metric.events if event not in SOFTWARE)
EVENTS = (*HARDWARE, *SOFTWARE)

ALLOW = "Allow it with: sysctl kernel.perf_event_paranoid=1"
ALL = 0.995  # perf prints shares in whole percent, and the parts of two kinds of cores are rounded
Counters = Mapping[str, float | None]  # totals; task-clock in milliseconds

# The first two when a process ends before its threads are listed (stat, record), the third when one of these ends after that.
_GONE = re.compile(
    r"Problems finding threads of monitor|Couldn't create thread/CPU maps: No such process|.*sys_perf_event_open\(\) syscall returned with 3\b"
)
_COUNT = re.compile(r"[0-9]{1,30}(\.[0-9]{1,30})?")
# psignal of perf, which ends with 0 when a signal ended its command; only of those that may come from outside
_KILLED = re.compile(r"(sh|sysbench): (Hangup|Interrupt|Killed|Terminated)")
# "cpu_core/instructions/" on a CPU with two kinds of cores, "instructions:u" where the kernel may not be counted
_EVENT = re.compile(r"(?:\w+/([\w.-]+)/\w*|([\w.-]+?)(?::\w+)?)")


def wrap(
    argv: Sequence[str],
    folder: PurePosixPath,
    pids: Iterable[int] = (),
    *,
    whole: bool = False,
    events: Sequence[str] = EVENTS,
) -> list[str]:
    """``argv`` under perf: counts ``pids`` if any are given, otherwise the command itself.

    ``folder`` contains the FIFOs ``control`` and ``ack``, which enable and disable the counters; ``whole`` counts from
    start to end instead. The result is written to ``counters`` there.
    """
    attached = ["-p", ",".join(map(str, pids))] if (pids := tuple(pids)) else []
    controlled = [] if whole else ["--delay=-1", "--control", f"fifo:{folder / 'control'},{folder / 'ack'}"]
    return [
        "perf", "stat", "-x", ",", "-o", str(folder / "counters"), "-e", ",".join(events), *controlled, *attached, "--", *argv,
    ]  # fmt: skip


def parse(text: str) -> dict[str, float | None]:
    """The counters in what ``perf stat -x ,`` wrote; None where an event is not supported or was not counted.

    perf has already extrapolated to the whole time what it counted for a part of it. On a CPU with two kinds of cores it
    does so for each kind, as if all had run there: what was really counted are these numbers weighted by the time on
    each kind.
    """
    return {event: _value(found) for event, found in _counted(text).items()}


def shares(text: str) -> dict[str, float]:
    """The share of the time in which each event was counted, where that is below 1: its counter is extrapolated.

    An event that was never counted has none. The times on two kinds of cores make up one.
    """
    found = {
        event: min(1.0, sum(part.percent for part in parts) / 100) for event, parts in _counted(text).items() if parts
    }
    return {event: share for event, share in found.items() if share < ALL}


class _CoreCount(NamedTuple):
    """A count on one kind of cores."""

    value: float
    nanoseconds: float  # in which it was counted
    percent: float  # of the time for which it is extrapolated


def _counted(text: str) -> dict[str, list[_CoreCount]]:
    """Each event with what was counted of it: nothing, or a part for each kind of cores."""
    counted: dict[str, list[_CoreCount]] = {}
    for line in text.splitlines():
        fields = line.split(",")
        match = _EVENT.fullmatch(fields[2]) if len(fields) >= 5 and not line.startswith("#") else None
        if match:
            parts = counted.setdefault(match[1] or match[2], [])
            numbers = [fields[place] for place in (0, 3, 4)]
            if all(map(_COUNT.fullmatch, numbers)):  # not <not supported>, <not counted>
                parts.append(_CoreCount(*map(float, numbers)))
    return counted


def _value(parts: Sequence[_CoreCount]) -> float | None:
    whole = sum(part.nanoseconds for part in parts)
    if len(parts) > 1 and whole:
        return sum(part.value * part.nanoseconds for part in parts) / whole
    return parts[0].value if parts else None


def missed(output: Iterable[str]) -> bool:
    """Whether perf ended at once, because a process or thread to count had ended."""
    return any(_GONE.match(line) for line in output)


def killed(errors: Iterable[str]) -> bool:
    """Whether perf reports that a signal ended the command that it started: its own status is 0 then."""
    return any(_KILLED.fullmatch(line) for line in errors)


def probe(host: Host) -> Counters:
    """What perf can count on the host, from a trial of all events. Raises EnvironmentFailure when it cannot count."""
    if missing(host, ["perf"]):
        raise EnvironmentFailure(f"perf is not installed on host {host.name}", how_to_install(["perf"]))
    trial = host.run(["perf", "stat", "-x", ",", "-e", ",".join(EVENTS), "--", "true"], check=False)
    counters = parse(trial.stderr)
    if counters.get("task-clock") is None:
        raise EnvironmentFailure(refusal(host.name, trial.stderr), ALLOW)
    return counters


def counts(host: Host) -> bool:
    """Whether perf can count there."""
    try:
        return bool(probe(host))
    except EnvironmentFailure:
        return False


def refusal(host: str, output: str) -> str:
    """The sentence for a perf that counts nothing."""
    if "paranoid" in output or "ermission" in output:
        return f"perf is not permitted on host {host}"
    lines = output.strip().splitlines()
    return f"perf does not work on host {host}: {lines[0] if lines else 'it printed nothing'}"


TICK = 0.02  # seconds: two of the ticks in which /proc/uptime counts
SHARE = 1e-3  # of a run that a step of the clock may be: far below the noise of any host

# Prints the seconds since the epoch, and the uptime before and after they were read.
STAMP = """\
stamp() { read -r before rest </proc/uptime; now=$(date +%s.%N); read -r after rest </proc/uptime; echo "$now $before $after"; }
"""
_LINE = re.compile(rf"^{SECONDS} {SECONDS} {SECONDS}$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Stamp:
    """One reading of the clock, between two readings of the uptime."""

    at: float  # seconds since the epoch
    before: float  # seconds since the start of the host, by a clock that is never set
    after: float


def read_stamps(text: str) -> tuple[Stamp, ...]:
    """What ``stamp`` has printed at the begin and the end of a run; less when it was killed, or the disk is full.

    A program that is measured could write there, too: anything else is left out.
    """
    return tuple(Stamp(*map(float, line.groups())) for line in islice(_LINE.finditer(text), 2))


def check_clock(stamps: tuple[Stamp, ...], host: str) -> None:
    """Raise ClockSet when the clock of that host was set between the begin and the end of a run."""
    if len(stamps) < 2:
        return
    began, ended = stamps
    least, most = ended.before - began.after, ended.after - began.before
    slack = TICK + SHARE * most
    passed = ended.at - began.at
    if not least - slack <= passed <= most + slack:
        step = passed - (least + most) / 2
        to = "forward" if step > 0 else "back"
        raise ClockSet(f"the clock of host {host} was set {to} by {abs(step):,.1f} s during a run")


# $1: folder for the reports, $2: "yes" for vmstat and iostat, where they are installed, $3: device ("" for no iostat),
# $4: folder of the other run of a round ("" for none), $5: how many threads a run has, then the command. Both runs of a round
# begin when the FIFO ``go`` is opened. The one that ends first keeps its share of the cores busy: otherwise the rest of the
# other would be faster.
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
# The first word of a header, and the columns that are read.
COLUMNS = {
    "vmstat": ("r", "r", "b", "bi", "bo", "in", "cs", "us", "sy", "id", "wa", "st"),
    "iostat": ("Device", "r/s", "w/s", "rkB/s", "wkB/s", "%util"),
}

Row = Mapping[str, float]


def beside(
    argv: Sequence[str], folder: PurePosixPath, device: str, *, watched: bool = True, other: PurePosixPath | None = None,
    threads: int = 1,
) -> list[str]:  # fmt: skip
    """``argv`` with vmstat, and with iostat on ``device`` unless it is empty, running as long as it does if ``watched``.

    The reports go to ``vmstat`` and ``iostat`` in ``folder``, the host's clock at begin and end to ``time``. ``other`` is
    the folder of what runs at the same time: both begin at one signal, and last as long, with as many ``threads``.
    """
    options = [str(folder), "yes" if watched else "", device.removeprefix("/dev/"), str(other or ""), str(threads)]
    return ["sh", "-c", _BESIDE, "beside", *options, *argv]


def rows(tool: str, report: str) -> list[Row]:
    """One row a second of what vmstat printed, or iostat of one device, by the names in the header.

    Headers may be repeated and may change: old versions of iostat write ``Device:``, and each version has another order. The
    first row of vmstat, which is about the time since boot, is left out.
    """
    header, found, (first, *columns) = list[str](), list[Row](), COLUMNS[tool]
    for words in map(str.split, report.splitlines()):
        if words and words[0].removesuffix(":") == first:
            header = words
        elif header and len(words) == len(header):
            row = dict(zip(header, words, strict=True))
            with suppress(ValueError):  # the second header line of vmstat, or a line cut off
                numbers = {name: float(row[name]) for name in columns if name in row}
                found += [numbers] if all(map(isfinite, numbers.values())) else []
    return found[tool == "vmstat" :]


def means(rows: Sequence[Row], begin: float, end: float) -> dict[str, float | None]:
    """The mean of each column over the rows of the window; row i covers the seconds from i to i + 1.

    ``begin`` and ``end`` are in seconds after the start of the report. A row belongs to the window when its middle does.
    """
    inside = [row for second, row in enumerate(rows) if begin <= second + 0.5 <= end]
    return {name: fmean(row[name] for row in inside) for name in inside[0]} if inside else {}


def read(vmstat: str, iostat: str, begin: float, end: float) -> dict[str, float | None]:
    """The means of both reports over the window; see ``means``."""
    return {**means(rows("vmstat", vmstat), begin, end), **means(rows("iostat", iostat), begin, end)}
