"""vmstat and iostat beside a run: what the whole machine did meanwhile. The parsers are pure."""

from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean

VMSTAT = ("vmstat", "-n", "1")
VMSTAT_COLUMNS = ("r", "b", "bi", "bo", "in", "cs", "us", "sy", "id", "wa", "st")
IOSTAT_COLUMNS = ("r/s", "w/s", "rkB/s", "wkB/s", "%util")

Row = Mapping[str, float]


def iostat(device: str) -> tuple[str, ...]:
    """The argv that reports on one block device each second."""
    return ("iostat", "-y", "-k", "-x", device.removeprefix("/dev/"), "1")


def parse_vmstat(lines: Sequence[str]) -> list[Row]:
    """One row a second, by the names in the header. The first row, which is about the time since boot, is left out."""
    return list(_rows(lines, first="r", columns=VMSTAT_COLUMNS))[1:]


def parse_iostat(lines: Sequence[str]) -> list[Row]:
    """One row a second for the one device reported on. Old versions write ``Device:``, and every one orders anew."""
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
                yield {name: float(found[name]) for name in columns if name in found}
            except ValueError:  # the second header line of vmstat, or a line cut off
                continue


def means(rows: Sequence[Row], begin: float, end: float) -> dict[str, float | None]:
    """The mean of each column over the rows of the window; row i covers the seconds from i to i + 1.

    ``begin`` and ``end`` are in seconds after the start of the report. A row belongs to the window when its middle does.
    """
    inside = [row for second, row in enumerate(rows) if begin <= second + 0.5 <= end]
    return {name: fmean(row[name] for row in inside) for name in inside[0]} if inside else {}
