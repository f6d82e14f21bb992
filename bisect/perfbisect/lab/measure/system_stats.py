"""What the whole machine did beside a run, by vmstat and iostat, and whether its clock was set. The parsers are pure.

Commands are timed by the clock of the host, so it must not be set meanwhile.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from math import isfinite
from pathlib import PurePosixPath
from statistics import fmean

from perfbisect.errors import ClockSet
from perfbisect.lab.workload.result import SECONDS

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


def time_here(at: float, ended: Stamp, uptime: float, now: float) -> float:
    """The time of this process at which the clock of the host showed ``at``, during a run that ``ended`` then.

    ``uptime`` is that of the host at the time ``now`` of this process.
    """
    return now - max(0.0, uptime - ended.after) - (ended.at - at)


# $1: folder for the reports, $2: device ("" for no iostat), $3: "yes" for vmstat, then the command
_BESIDE = f"""\
{STAMP}folder=$1 device=$2 vmstat=$3; shift 3
stamp >"$folder/time"
pids=
if [ "$vmstat" = yes ]; then vmstat -n 1 >"$folder/vmstat" & pids="$pids $!"; fi
if [ -n "$device" ]; then iostat -y -k -x "$device" 1 >"$folder/iostat" & pids="$pids $!"; fi
"$@"
status=$?
stamp >>"$folder/time"
[ -z "$pids" ] || kill $pids
exit $status
"""
VMSTAT_COLUMNS = ("r", "b", "bi", "bo", "in", "cs", "us", "sy", "id", "wa", "st")
IOSTAT_COLUMNS = ("r/s", "w/s", "rkB/s", "wkB/s", "%util")

Row = Mapping[str, float]


def beside(argv: Sequence[str], folder: PurePosixPath, *, vmstat: bool, device: str) -> list[str]:
    """``argv`` with vmstat, and with iostat on ``device`` unless it is empty, running as long as it does.

    The reports go to ``vmstat`` and ``iostat`` in ``folder``, the host's clock at begin and end to ``time``.
    """
    options = [str(folder), device.removeprefix("/dev/"), "yes" if vmstat else ""]
    return ["sh", "-c", _BESIDE, "beside", *options, *argv]


def parse_vmstat(lines: Sequence[str]) -> list[Row]:
    """One row a second, by the names in the header. The first row, which is about the time since boot, is left out."""
    return list(_rows(lines, first="r", columns=VMSTAT_COLUMNS))[1:]


def parse_iostat(lines: Sequence[str]) -> list[Row]:
    """One row a second for the one device reported on. Old versions write ``Device:``, and each version has another order."""
    return list(_rows(lines, first="Device", columns=IOSTAT_COLUMNS))


def _rows(lines: Sequence[str], first: str, columns: Sequence[str]) -> Iterator[Row]:
    """The table rows under headers whose first word is ``first``; headers may be repeated and may change."""
    header: list[str] = []
    for line in lines:
        words = line.split()
        if words and words[0].removesuffix(":") == first:
            header = words
        elif header and len(words) == len(header):
            found = dict(zip(header, words, strict=True))
            try:
                row = {name: float(found[name]) for name in columns if name in found}
            except ValueError:  # the second header line of vmstat, or a line cut off
                continue
            if all(map(isfinite, row.values())):
                yield row


def means(rows: Sequence[Row], begin: float, end: float) -> dict[str, float | None]:
    """The mean of each column over the rows of the window; row i covers the seconds from i to i + 1.

    ``begin`` and ``end`` are in seconds after the start of the report. A row belongs to the window when its middle does.
    """
    inside = [row for second, row in enumerate(rows) if begin <= second + 0.5 <= end]
    return {name: fmean(row[name] for row in inside) for name in inside[0]} if inside else {}


def read(vmstat: str, iostat: str, begin: float, end: float) -> dict[str, float | None]:
    """The means of both reports over the window; see ``means``."""
    tables = parse_vmstat(vmstat.splitlines()), parse_iostat(iostat.splitlines())
    return {name: mean for table in tables for name, mean in means(table, begin, end).items()}
