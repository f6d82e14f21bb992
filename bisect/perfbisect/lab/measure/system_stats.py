"""vmstat and iostat beside a run: what the whole machine did meanwhile. The parsers are pure."""

from collections.abc import Iterator, Mapping, Sequence
from math import isfinite
from pathlib import PurePosixPath
from statistics import fmean

from perfbisect.lab.measure.host_clock import STAMP

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
