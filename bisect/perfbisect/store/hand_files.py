"""Reads files of results that were made by hand, in the forms in which the field keeps them.

- ``sb.r.qps…``: a line for each test: ``QPS<TAB>engine test range=R``.
- ``sb.met…``: six lines of rates by iostat and vmstat, per second and per operation; the test is in the file's name, as
  ``sb.met.scan.range100.pk1.dop1``.
- A table of absolute QPS: lines ``col-1 : BUILD``, an empty line, ``col-1<TAB>col-2…``, and a row for each test with its
  name at the end.

A folder with files of the first two forms is one build. Every mistake is a UsageError with the file and the line.
"""

import os
import re
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from perfbisect.errors import UsageError
from perfbisect.masking import masked

MOST_BYTES = 4 << 20  # of one file
MOST_FILES = 2000  # in one folder
LONGEST = 200  # characters of a name
MOST_QPS = 1e12
NUMBER = re.compile(r"\d{1,15}(\.\d{1,15})?([eE][+-]?\d{1,3})?", re.ASCII)
UNKNOWN = re.compile(r"[-+]?(nan|inf)", re.IGNORECASE)  # as awk prints a division by zero
NAMED = re.compile(r"(?P<test>.+)\.range(?P<range>\d+)(\.pk\d+)?(\.dop\d+)?", re.ASCII)
COLUMN = re.compile(r"col-(?P<number>\d+)\s*:\s*(?P<build>.+)", re.ASCII)
BASE = re.compile(r"(.+ )?relative to:?\s", re.IGNORECASE)
HEAD = "samp"  # begins a line of column titles in ``sb.met``
QPS, METRICS = "sb.r.qps", "sb.met"
USUAL = "_range=100"  # left out of the names of tests, as in published tables


@dataclass(frozen=True, slots=True)
class Measured:
    """What is known of one build in one test."""

    where: str  # file and line
    qps: float  # 0 for a test that has failed
    engine: str = ""
    costs: Mapping[str, float] = field(default_factory=dict)  # "cs/o", "cpu/o" (% of the machine per operation/s) …


@dataclass(frozen=True, slots=True)
class Results:
    """One run of all tests with one build: test → what was measured."""

    build: str
    path: str
    tests: Mapping[str, Measured]


def read_results(path: Path, build: str = "") -> list[Results]:
    """The results in a folder or a file. ``build`` is their name; by default it is taken from the folder, or from the table.

    Raises UsageError.
    """
    if path.is_dir():
        found = sorted(each for each in listed(path) if each.name.startswith((QPS, METRICS)))
        if not found:
            raise UsageError(f"{path} has no file {QPS}… or {METRICS}….")
        return [of_build(found, build or build_of(path), path)]
    text = read_text(path)
    if path.name.startswith((QPS, METRICS)) or (not COLUMN.match(text.removeprefix("\ufeff")) and not BASE.match(text)):
        return [of_build([path], build or build_of(path.absolute().parent), path)]
    if build:
        raise UsageError(f"{path} is a table, which names its builds itself.", "Leave out NAME=.")
    return parse_table(text, str(path))


def listed(folder: Path) -> Iterator[Path]:
    """What a folder contains."""
    for number, entry in enumerate(os.scandir(folder)):
        if number >= MOST_FILES * 10:
            raise UsageError(f"{folder} has more than {MOST_FILES * 10:,} files.")
        yield folder / entry.name


def build_of(folder: Path) -> str:
    """The name of a build from its folder: x.my8028_rel.z12a_c8r32.pk1 is my8028_rel.z12a_c8r32."""
    return checked_name(re.sub(r"\.pk\d+$", "", folder.absolute().name.removeprefix("x.")), str(folder))


def of_build(files: list[Path], build: str, path: Path) -> Results:
    """What the files of one build have."""
    if len(files) > MOST_FILES:
        raise UsageError(f"{path} has more than {MOST_FILES:,} files of results.")
    speeds: dict[str, Measured] = {}
    costs: dict[str, Measured] = {}
    for file in files:
        text, where = read_text(file), str(file)
        is_metrics = file.name.startswith(METRICS)
        for test, measured in [parse_metrics(text, where, file.name)] if is_metrics else parse_qps(text, where):
            once(costs if is_metrics else speeds, test, measured)
    both = {
        test: Measured(known.where, known.qps, known.engine, costs[test].costs if test in costs else {})
        for test, known in (costs | speeds).items()
    }
    return Results(checked_name(build, str(path)), masked(str(path)), both)


def once(known: dict[str, Measured], test: str, measured: Measured) -> None:
    """Enter the result of a test. Raises UsageError where it has one already."""
    if test in known:
        raise UsageError(f"{measured.where}: {test} has a result already, in {known[test].where}.")
    known[test] = measured


def parse_qps(text: str, where: str) -> Iterator[tuple[str, Measured]]:
    """The tests of ``sb.r.qps``."""
    for place, line in lines(text, where):
        words = line.split()
        if len(words) > 2 and NUMBER.fullmatch(words[1]):
            raise UsageError(f"{place}: results of several numbers of clients.", "Keep the column of one of them.")
        if len(words) < 3:
            raise UsageError(f"{place}: expected QPS<TAB>engine test range=R, found {quoted(line)}.")
        test = test_name("_".join(words[2:]), place)
        yield test, Measured(place, speed(words[0], place), checked_name(words[1], place))


def parse_metrics(text: str, where: str, name: str) -> tuple[str, Measured]:
    """The test of ``sb.met``, whose ``name`` is that of the file."""
    named = NAMED.fullmatch(name.removeprefix(METRICS).removeprefix("."))
    if not named:
        raise UsageError(f"{where}: the name does not say which test it is; expected {METRICS}.TEST.rangeN.pkN.dopN.")
    titles: list[str] = []
    found: dict[str, tuple[str, str]] = {}
    for place, line in lines(text, where):
        words = line.split()
        if words[0] == HEAD:
            titles = words
        elif titles:
            if len(words) != len(titles):
                raise UsageError(f"{place}: {len(words)} values below {len(titles)} titles.")
            found |= {title: (word, place) for title, word in zip(titles, words, strict=True)}
            titles = []
        elif found:
            raise UsageError(f"{place}: values without titles: {quoted(line)}.")
    if "o/s" not in found or titles:
        raise UsageError(f"{where}: expected titles and values of iostat with o/s, then those of vmstat.")
    costs = {title: number(*found[title]) for title in ("cpu/o", "cs/o", "r/o", "rKB/o", "wKB/o") if title in found}
    qps = speed(*found["o/s"])
    test = test_name(f"{named['test']}_range={named['range']}", where)
    return test, Measured(found["o/s"][1], qps, "", {name: cost for name, cost in costs.items() if cost is not None})


def parse_table(text: str, where: str) -> list[Results]:
    """The builds of a table of absolute QPS, in the order of its columns."""
    builds: list[str] = []
    tests: list[dict[str, Measured]] = []
    for place, line in lines(text, where):
        if BASE.match(line):
            raise UsageError(f"{place}: a relative table, from which no QPS can be known.", "Import its absolute twin.")
        if column := COLUMN.fullmatch(line):
            if tests or int(column["number"][:6]) != len(builds) + 1:
                raise UsageError(f"{place}: expected col-{len(builds) + 1}, found {quoted(line)}.")
            name = column["build"].strip().partition(" = ")[0]
            builds.append(checked_name(re.sub(r"\.pk\d+$", "", name.removeprefix("x.")), place))
            continue
        words = re.split(r"\t|,| +", line)
        if not tests:
            if words[: len(builds)] != [f"col-{n}" for n in range(1, len(builds) + 1)]:
                raise UsageError(f"{place}: expected the titles col-1 to col-{len(builds)}, found {quoted(line)}.")
            tests = [{} for _ in builds]
            continue
        if len(words) != len(builds) + 1:
            raise UsageError(f"{place}: expected {len(builds)} values and a name, found {quoted(line)}.")
        test = test_name(words[-1], place)
        for known, word in zip(tests, words, strict=False):
            once(known, test, Measured(place, speed(word, place)))
    if len(set(builds)) < len(builds):
        raise UsageError(f"{where}: two columns have the same build.")
    return [
        Results(build, masked(where), known) for build, known in zip(builds, tests or [{} for _ in builds], strict=True)
    ]


def lines(text: str, where: str) -> Iterator[tuple[str, str]]:
    """Each line that is not empty, with its place."""
    for number, line in enumerate(text.removeprefix("\ufeff").split("\n"), 1):
        if shown := line.strip():
            if not shown.replace("\t", "").isprintable():
                raise UsageError(f"{where}, line {number}: characters that are not printable: {quoted(shown)}.")
            yield f"{where}, line {number}", shown


def speed(word: str, place: str) -> float:
    """Operations per second."""
    found = number(word, place)
    if found is None or found > MOST_QPS:
        raise UsageError(f"{place}: {quoted(word)} is no number of operations per second.")
    return found


def number(word: str, place: str) -> float | None:
    """A number; None for one that was divided by zero."""
    if UNKNOWN.fullmatch(word):
        return None
    found = float(word) if NUMBER.fullmatch(word) else -1.0
    if not 0 <= found <= MOST_QPS:
        raise UsageError(f"{place}: {quoted(word)} is no number from 0 to {MOST_QPS:.0e}.")
    return found


def test_name(written: str, place: str) -> str:
    """The name of a test, as published tables have it."""
    return checked_name(written.removesuffix(USUAL), place)


def checked_name(name: str, place: str) -> str:
    """A name that can be shown. Raises UsageError."""
    if not name or len(name) > LONGEST or not name.isprintable():
        raise UsageError(f"{place}: {quoted(name)} is no name.")
    return name


def quoted(text: str) -> str:
    """The beginning of a text from a file, for a sentence."""
    return repr(text if len(text) <= 60 else f"{text[:59]}…")


def read_text(path: Path) -> str:
    """The text of a regular file of limited size. Raises UsageError."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise UsageError(f"{path} is no regular file.")
        with os.fdopen(descriptor, "rb") as file:
            content = file.read(MOST_BYTES + 1)
    except OSError as trouble:
        raise UsageError(f"{path}: {trouble.strerror}.") from None
    if len(content) > MOST_BYTES:
        raise UsageError(f"{path} has more than {MOST_BYTES >> 20} MiB.")
    try:
        return content.decode()
    except UnicodeDecodeError as wrong:
        line = content.count(b"\n", 0, wrong.start) + 1
        raise UsageError(f"{path}, line {line}: no UTF-8 text.") from None
