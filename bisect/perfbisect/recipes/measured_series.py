"""Series of measurements that others have made: CSV or TSV, JSON of github-action-benchmark, of Bencher, or a list of rows.

A row has the time of a measurement, its commit and a value. Columns are found by their names; Apache Otava's files are such.
"""

import csv
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

from perfbisect.errors import UsageError
from perfbisect.recipes.outputs import is_rate

# The names of columns, in small letters and without what is no letter or digit
TIMES = {"time", "date", "timestamp", "datetime", "committime", "commitdate", "committimestamp", "starttime"}
COMMITS = {
    "commit",
    "sha",
    "revision",
    "rev",
    "hash",
    "commitid",
    "commithash",
    "commitsha",
    "gitcommit",
    "githash",
    "gitsha",
}
VALUES = {"value", "result"}
NAMES = {"metric", "name", "benchmark", "test", "measure", "series", "workload", "branch", "testbed"}
MILLISECONDS = 1e11  # since the epoch, from which on a time is not in seconds
WANTED = "Wanted: columns time, commit and value; or one for each metric in place of value. See docs/compare.md."


@dataclass(frozen=True, slots=True)
class Row:
    """One measurement."""

    name: str
    at: float | None  # seconds since the epoch
    commit: str
    value: float
    unit: str


@dataclass(slots=True)
class MeasuredSeries:
    """The values of one result, a commit after another."""

    name: str
    rate: bool  # of which more is better
    values: dict[str, list[float]] = field(default_factory=dict)  # commit → its repetitions

    @property
    def pooled(self) -> list[float]:
        """The value of each commit: the median of its repetitions."""
        return [median(each) for each in self.values.values()]


def read_series(path: Path) -> tuple[list[MeasuredSeries], bool]:
    """The series of a file, and whether its times were in order: rows are sorted by them. Raises UsageError."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is no text: {error}") from error
    rows = [*(rows_of_json(text, path) if re.match(r"\s*(?:[{\[]|window\.)", text) else rows_of_table(text, path))]
    if not rows:
        raise UsageError(f"{path} has no measurement.", WANTED)
    if option := next((row.commit for row in rows if row.commit.startswith("-")), ""):  # it would be read by bisect run
        raise UsageError(f"{path}: a commit is {option}, which is no revision.", WANTED)
    times: dict[str, list[float | None]] = {}
    for row in rows:
        times.setdefault(row.name, []).append(row.at)
    ordered = all(None in each or each == sorted(each, key=lambda at: at or 0.0) for each in times.values())
    if not ordered:
        rows.sort(key=lambda row: row.at or 0.0)
    found: dict[str, MeasuredSeries] = {}
    for row in rows:
        series = found.setdefault(row.name, MeasuredSeries(row.name, is_rate(row.unit or row.name)))
        series.values.setdefault(row.commit, []).append(row.value)
    return [*found.values()], ordered


def rows_of_table(text: str, path: Path) -> Iterator[Row]:
    """The rows of CSV or TSV with a header, comments above it passed over."""
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    if not lines:
        return
    yield from rows_of_records(csv.DictReader(lines, delimiter=max(",;\t", key=lines[0].count)), path)


def rows_of_records(records: Iterable[Mapping[Any, Any]], path: Path) -> Iterator[Row]:
    """The rows of records whose keys are the names of columns."""
    every = [{str(key).strip(): value for key, value in each.items() if key is not None} for each in records]
    columns = [*dict.fromkeys(column for each in every for column in each)]
    role = {column: re.sub("[^a-z0-9]", "", column.lower()) for column in columns}
    [commit, *_], [time, *_] = ([*(each for each in columns if role[each] in names), ""] for names in (COMMITS, TIMES))
    names = [column for column in columns if role[column] in NAMES]
    others = [column for column in columns if column not in (commit, time, "unit", *names)]
    values = [column for column in others if role[column] in VALUES] or [
        column for column in others if all(map(is_number, filled := [each[column] for each in every if each.get(column)])) and filled
    ]  # fmt: skip
    if every and not (commit and values):
        missing = "its values" if commit else "the commit"
        raise UsageError(f"{path} has no column for {missing}. It has: {', '.join(columns) or 'none'}.", WANTED)
    for each in every:
        own = " ".join(str(each[column]) for column in names if each.get(column))
        for column in values:
            if each.get(column) in ("", None) or not each.get(commit):
                continue
            name = own if own and role[column] in VALUES else f"{own} {column}".strip()
            unit = str(each.get("unit") or "")
            yield Row(name, moment(each.get(time), path), str(each[commit]), number(each[column], path), unit)


def rows_of_json(text: str, path: Path) -> Iterator[Row]:
    """The rows of JSON, or of JavaScript that sets a variable to it."""
    try:
        found, _ = json.JSONDecoder().raw_decode(
            text, min((place for sign in "{[" if (place := text.find(sign)) >= 0), default=0)
        )
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} is no JSON: {error}.") from error
    try:
        if isinstance(found, dict) and "entries" in found:
            yield from rows_of_action(found["entries"], path)
        elif isinstance(found, dict) and "results" in found:
            yield from rows_of_perf(found["results"], path)
        elif isinstance(found, list) and all(isinstance(each, dict) and "results" in each for each in found):
            yield from rows_of_reports(found, path)
        elif isinstance(found, list) and all(isinstance(each, dict) for each in found):
            yield from rows_of_records(found, path)
        else:
            raise UsageError(f"{path} is JSON, but of none of the known formats.", WANTED)
    except (KeyError, TypeError, AttributeError) as error:
        raise UsageError(f"{path} is like a known format, but incomplete: {error!r}.", WANTED) from error


def rows_of_action(suites: Mapping[str, Any], path: Path) -> Iterator[Row]:
    """Those of github-action-benchmark: suites with their commits."""
    better = {"customBiggerIsBetter": "ops/s", "customSmallerIsBetter": "s"}  # whatever its unit
    for suite, entries in suites.items():
        for entry in entries:
            for each in entry["benches"]:
                name = each["name"] if len(suites) == 1 else f"{suite} {each['name']}"
                unit, at = better.get(entry.get("tool", ""), each.get("unit", "")), moment(entry.get("date"), path)
                yield Row(name, at, entry["commit"]["id"], number(each["value"], path), unit)


def rows_of_perf(results: Sequence[Mapping[str, Any]], path: Path) -> Iterator[Row]:
    """Those of `bencher perf`: the metrics of each branch, testbed, benchmark and measure."""
    for each in results:
        for one in each["metrics"]:
            yield row_of_bencher(each, one["version"], one["start_time"], one["metric"]["value"], path)


def rows_of_reports(reports: Sequence[Mapping[str, Any]], path: Path) -> Iterator[Row]:
    """Those of `bencher report list` with results: of each report a list for each iteration."""
    for report in reports:
        for result in (each for iteration in report["results"] for each in iteration):
            for one in result["measures"]:
                names, version = {**report, **result, **one}, report["branch"]["head"]["version"]
                yield row_of_bencher(names, version, report["start_time"], one["metric"]["value"], path)


def row_of_bencher(names: Mapping[str, Any], version: Mapping[str, Any], at: object, value: object, path: Path) -> Row:
    """A metric of Bencher, whose measure has units."""
    name = " ".join(str(names[key]["name"]) for key in ("branch", "testbed", "benchmark", "measure"))
    if not version.get("hash"):
        raise UsageError(f"{path}: a report of {name} has no hash of its commit.", "Report with bencher run --hash.")
    return Row(name, moment(at, path), version["hash"], number(value, path), str(names["measure"].get("units", "")))


def is_number(text: object) -> bool:
    """Whether it can be read as a number."""
    try:
        float(str(text))
    except ValueError:
        return False
    return True


def number(text: object, path: Path) -> float:
    """A value. Raises UsageError where it is none."""
    if not is_number(text):
        raise UsageError(f"{path}: a value is {text!r}, which is no number.")
    return float(str(text))


def moment(text: object, path: Path) -> float | None:
    """Seconds since the epoch: of a number, of ISO 8601, also with points or slashes in the date; None without a time."""
    if text in ("", None):
        return None
    if is_number(text):
        at = float(str(text))
        return at / 1000 if at > MILLISECONDS else at
    plain = re.sub(r"^(\d{4})[./](\d\d?)[./](\d\d?)", r"\1-\2-\3", str(text).strip())
    plain = re.sub(r"(?<=[ T])(?=\d:)", "0", plain).replace(" +", "+").replace(" -", "-").removesuffix(" UTC")
    try:
        at_day = datetime.fromisoformat(plain)
    except ValueError:
        raise UsageError(
            f"{path}: a time is {text!r}.", "Known are seconds or milliseconds since 1970, and ISO 8601."
        ) from None
    return (at_day if at_day.tzinfo else at_day.replace(tzinfo=UTC)).timestamp()
