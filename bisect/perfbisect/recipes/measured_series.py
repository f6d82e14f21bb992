"""Reads series of measurements that other systems have made, from CSV, TSV, JSON of github-action-benchmark or of
Bencher, or a JSON list of rows.

A row has the time of a measurement, its commit and a value. The columns are recognised by the names that Apache Otava
uses in its files.
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

# Names of columns, in lower case and reduced to letters and digits
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
MILLISECONDS = 1e11  # largest number of seconds since the epoch; a larger number is in milliseconds
EXPECTED = "The file needs the columns time, commit and value; or, in place of value, a column for each metric. See docs/compare.md."


@dataclass(frozen=True, slots=True)
class MeasurementRow:
    """One measurement."""

    name: str
    at: float | None  # seconds since the epoch
    commit: str
    value: float
    unit: str


@dataclass(slots=True)
class MeasuredSeries:
    """The values of one result of a benchmark for successive commits, in the order of time."""

    name: str
    is_rate: bool  # whether higher is better
    values: dict[str, list[float]] = field(default_factory=dict)  # commit → its repeated measurements

    @property
    def medians_of_commits(self) -> list[float]:
        """For each commit, the median of its values."""
        return [median(repetitions) for repetitions in self.values.values()]


def read_series_by_time(path: Path) -> tuple[list[MeasuredSeries], bool]:
    """The series in a file, sorted by time; and whether the file was already sorted by time. Raises UsageError if the
    file cannot be read as series."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not a text file: {error}") from error
    rows = [*(rows_of_json(text, path) if re.match(r"\s*(?:[{\[]|window\.)", text) else rows_of_table(text, path))]
    if not rows:
        raise UsageError(f"{path} has no measurements.", EXPECTED)
    # `bisect run` would read a commit that begins with - as an option.
    if option := next((row.commit for row in rows if row.commit.startswith("-")), ""):
        raise UsageError(f"{path}: the commit {option} is not a revision.", EXPECTED)
    times: dict[str, list[float | None]] = {}
    for row in rows:
        times.setdefault(row.name, []).append(row.at)
    ordered = all(None in series or series == sorted(series, key=lambda at: at or 0.0) for series in times.values())
    if not ordered:
        rows.sort(key=lambda row: row.at or 0.0)
    by_name: dict[str, MeasuredSeries] = {}
    for row in rows:
        series = by_name.setdefault(row.name, MeasuredSeries(row.name, is_rate(row.unit or row.name)))
        series.values.setdefault(row.commit, []).append(row.value)
    return [*by_name.values()], ordered


def rows_of_table(text: str, path: Path) -> Iterator[MeasurementRow]:
    """The rows of a CSV or TSV text with a header; comments are skipped."""
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    if not lines:
        return
    yield from rows_of_records(csv.DictReader(lines, delimiter=max(",;\t", key=lines[0].count)), path)


def rows_of_records(records: Iterable[Mapping[Any, Any]], path: Path) -> Iterator[MeasurementRow]:
    """The rows from ``records``, which map names of columns to values."""
    every = [{str(key).strip(): value for key, value in record.items() if key is not None} for record in records]
    columns = [*dict.fromkeys(column for record in every for column in record)]
    role = {column: re.sub("[^a-z0-9]", "", column.lower()) for column in columns}
    [commit, *_], [time, *_] = (
        [*(candidate for candidate in columns if role[candidate] in names), ""] for names in (COMMITS, TIMES)
    )
    names = [column for column in columns if role[column] in NAMES]
    unassigned = [column for column in columns if column not in (commit, time, "unit", *names)]
    values = [column for column in unassigned if role[column] in VALUES] or [
        column for column in unassigned if all(map(is_number, filled := [record[column] for record in every if record.get(column)])) and filled
    ]  # fmt: skip
    if every and not (commit and values):
        missing = "its values" if commit else "the commit"
        raise UsageError(f"{path} has no column for {missing}. Its columns: {', '.join(columns) or 'none'}.", EXPECTED)
    for record in every:
        record_name = " ".join(str(record[column]) for column in names if record.get(column))
        for column in values:
            if record.get(column) in ("", None) or not record.get(commit):
                continue
            name = record_name if record_name and role[column] in VALUES else f"{record_name} {column}".strip()
            unit = str(record.get("unit") or "")
            at = seconds_since_epoch(record.get(time), path)
            yield MeasurementRow(name, at, str(record[commit]), parsed_number(record[column], path), unit)


def rows_of_json(text: str, path: Path) -> Iterator[MeasurementRow]:
    """The rows from a JSON text, or from a JavaScript text that sets a variable to JSON."""
    try:
        document, _ = json.JSONDecoder().raw_decode(
            text, min((position for sign in "{[" if (position := text.find(sign)) >= 0), default=0)
        )
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} is not valid JSON: {error}.") from error
    try:
        if isinstance(document, dict) and "entries" in document:
            yield from rows_of_github_action(document["entries"], path)
        elif isinstance(document, dict) and "results" in document:
            yield from rows_of_bencher_perf(document["results"], path)
        elif isinstance(document, list) and all(isinstance(item, dict) and "results" in item for item in document):
            yield from rows_of_bencher_reports(document, path)
        elif isinstance(document, list) and all(isinstance(item, dict) for item in document):
            yield from rows_of_records(document, path)
        else:
            raise UsageError(f"{path} is JSON of an unknown format.", EXPECTED)
    except (KeyError, TypeError, AttributeError) as error:
        raise UsageError(f"{path} is incomplete: {error!r}.", EXPECTED) from error


def rows_of_github_action(suites: Mapping[str, Any], path: Path) -> Iterator[MeasurementRow]:
    """The rows from data of github-action-benchmark, which is a list of commits for each suite."""
    better = {"customBiggerIsBetter": "ops/s", "customSmallerIsBetter": "s"}  # in place of the unit in the file
    for suite, entries in suites.items():
        for entry in entries:
            for bench in entry["benches"]:
                name = bench["name"] if len(suites) == 1 else f"{suite} {bench['name']}"
                unit = better.get(entry.get("tool", ""), bench.get("unit", ""))
                at = seconds_since_epoch(entry.get("date"), path)
                yield MeasurementRow(name, at, entry["commit"]["id"], parsed_number(bench["value"], path), unit)


def rows_of_bencher_perf(results: Sequence[Mapping[str, Any]], path: Path) -> Iterator[MeasurementRow]:
    """The rows from the output of `bencher perf`: the metrics of each branch, testbed, benchmark and measure."""
    for result in results:
        for point in result["metrics"]:
            yield row_of_bencher(result, point["version"], point["start_time"], point["metric"]["value"], path)


def rows_of_bencher_reports(reports: Sequence[Mapping[str, Any]], path: Path) -> Iterator[MeasurementRow]:
    """The rows from the output of `bencher report list`, from all reports that have results. A report has a list of
    results for each iteration."""
    for report in reports:
        for result in (item for iteration in report["results"] for item in iteration):
            for measured in result["measures"]:
                names, version = {**report, **result, **measured}, report["branch"]["head"]["version"]
                yield row_of_bencher(names, version, report["start_time"], measured["metric"]["value"], path)


def row_of_bencher(
    names: Mapping[str, Any], version: Mapping[str, Any], at: object, value: object, path: Path
) -> MeasurementRow:
    """The row of one metric of Bencher."""
    name = " ".join(str(names[key]["name"]) for key in ("branch", "testbed", "benchmark", "measure"))
    if not version.get("hash"):
        raise UsageError(f"{path}: a report of {name} has no hash of its commit.", "Add --hash to `bencher run`.")
    return MeasurementRow(
        name,
        seconds_since_epoch(at, path),
        version["hash"],
        parsed_number(value, path),
        str(names["measure"].get("units", "")),
    )


def is_number(text: object) -> bool:
    """Whether ``text`` can be read as a number."""
    try:
        float(str(text))
    except ValueError:
        return False
    return True


def parsed_number(text: object, path: Path) -> float:
    """``text`` as a number. Raises UsageError if ``text`` is not a number."""
    if not is_number(text):
        raise UsageError(f"{path}: the value {text!r} is not a number.")
    return float(str(text))


def seconds_since_epoch(text: object, path: Path) -> float | None:
    """The seconds since 1970, from a number or an ISO 8601 date; points or slashes may separate year, month and day.
    None for an empty text.
    """
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
        advice = "Write seconds or milliseconds since 1970, or ISO 8601."
        raise UsageError(f"{path}: the time {text!r} has an unknown format.", advice) from None
    return (at_day if at_day.tzinfo else at_day.replace(tzinfo=UTC)).timestamp()
