"""Recognises the format of a benchmark's output, reads the results in the output, and chooses the results to measure.

``outputs.toml`` describes the formats. A format is either JSON, which Python's parser reads, or lines of text, which a
regular expression reads.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cache
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any, Literal, TypeVar

import msgspec

from perfbisect.core.domain.settings import PrintedResult
from perfbisect.errors import UsageError
from perfbisect.masking import mask_credentials
from perfbisect.recipes.output_pattern import NoNumber, positive_number_or_zero

M = TypeVar("M", bound=UsageError)
MOST_NAMED = 20  # most results that a message names
MOST_TRIED = 1000  # most lines of an output that are tried as the beginning of JSON
_RATE = re.compile(r"^ops/|/s(?:ec)?$|throughput|\b(?:[qtr]|io)ps$", re.IGNORECASE)  # units of which more is better
_TIME = re.compile(r"(p|n|u|µ|μ|micro|m)?s(?:ec)?(?=$|/)")
_SECONDS = {"p": 1e-12, "n": 1e-9, "u": 1e-6, "µ": 1e-6, "μ": 1e-6, "micro": 1e-6, "m": 1e-3, None: 1.0}
# special characters in a regular expression of any dialect
_SPECIAL, _ESCAPED = re.compile(r"[][(){}.*+?^$|\\]"), r"\\\g<0>"
_SUFFIXES = {"k": 1e3, "M": 1e6, "G": 1e9}


class ValueKeyForName(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An exception in a format: if the name of a result matches ``name``, the number of the result is at the key
    ``value``, not at the usual key."""

    name: str
    value: str


class Format(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A format of ``outputs.toml``; comments in this file explain the keys."""

    name: str
    json: str = ""
    lines: str = ""
    has: str = ""
    result: tuple[str, ...] = ("name",)
    value: str = "value"
    unit: str = "unit"
    metric: Literal["", "rate", "cost"] = ""
    instead: ValueKeyForName | None = None
    aggregate: str = ""
    main: str = ""
    filter: tuple[str, ...] = ()
    repeated: Literal["median", "last"] = "median"

    def results(self, text: str, documents: Sequence[Any]) -> dict[str, "BenchmarkResult"]:
        """The results in the output ``text``, by their names; ``documents`` are the JSON documents in the output."""
        by_name: dict[str, list[BenchmarkResult]] = {}
        walked = (table for document in documents for table in _objects_at_path(document, self.json.split(".")))
        for fields in self._matched_groups(text) if self.lines else walked:
            name = " ".join(" ".join(_text_at(fields, key) for key in self.result).split())
            key = self.instead.value if self.instead and re.search(self.instead.name, name) else self.value
            value = sum(_number_with_suffix(_value_at(fields, part)) for part in key.split("+"))
            unit = str(_value_at(fields, self.unit) or self.unit)
            if value and name:
                metric = self.metric or ("rate" if is_rate(unit) else "cost")
                result = BenchmarkResult(value * _seconds_of_unit(unit), unit, metric, key if self.instead else "")
                by_name.setdefault(name, []).append(result)
        single = {
            name: repeats
            for name, repeats in by_name.items()
            if not (self.aggregate and re.search(self.aggregate, name))
        }
        medians = {name.removesuffix("_median"): values for name, values in by_name.items() if name.endswith("_median")}
        return {name: self._one(repeats) for name, repeats in (single or medians).items()}

    def _one(self, every: Sequence["BenchmarkResult"]) -> "BenchmarkResult":
        value = every[-1].value if self.repeated == "last" else median(result.value for result in every)
        return replace(every[0], value=value)

    def _matched_groups(self, text: str) -> Iterator[Mapping[str, Any]]:
        """Yields the named groups of each match of the regular expression that contains a value. A match without a
        value is a heading, such as the name of a test, so its groups are added to all following matches."""
        common: dict[str, str] = {}
        if re.search(self.has, text, re.MULTILINE):
            for match in re.finditer(self.lines, text, re.MULTILINE):
                groups = {name: matched for name, matched in match.groupdict().items() if matched is not None}
                if self.value in groups:
                    yield common | groups
                else:
                    common |= groups


@dataclass(frozen=True, slots=True)
class BenchmarkResult:
    """A result of a benchmark. If the result is a time, ``value`` is in seconds, even if the benchmark prints another
    unit."""

    value: float
    unit: str
    metric: str
    number_name: str = ""  # says which number of the result this is, if the result has several numbers


class SeveralResults(UsageError):
    """Raised because a hunt measures only one result, but the output has several matching results."""

    outputs: tuple[PrintedResult, ...] = ()


@dataclass(frozen=True, slots=True)
class RecognisedOutput:
    """The results to measure in an output whose format was recognised."""

    outputs: tuple[PrintedResult, ...]
    values: Mapping[str, float]  # result → the result's number, in the unit of the output
    summary: str  # a sentence without its end
    result_count: int  # number of results in the output
    several_error: SeveralResults | None = None  # the error if only one result can be measured

    @property
    def only_result(self) -> PrintedResult:
        """The only result to measure. Raises SeveralResults if there are several results."""
        if self.several_error:
            self.several_error.outputs = self.outputs
            raise self.several_error
        return self.outputs[0]


@cache
def known_formats() -> tuple[Format, ...]:
    """All rows of ``outputs.toml``."""
    table = msgspec.toml.decode(Path(__file__).with_name("outputs.toml").read_bytes(), type=dict[str, list[Format]])
    return tuple(table["format"])


def recognise_output(text: str, result_pattern: str) -> RecognisedOutput | None:
    """The results to measure in the output ``text``, or None if the format is not recognised: the results whose names
    match ``result_pattern``; without a pattern, the main result of the format or, if the format has no main result, all
    results.

    Rates are better if larger, and times are better if smaller; if the output has both, only results of the kind of the
    first result are measured. Raises UsageError if no result matches.
    """
    documents = _first_json_document(text)
    row = next((row for row in known_formats() if row.results(text, documents)), None)
    if row is None:
        return None
    alike = [format_row.results(text, documents) for format_row in known_formats() if format_row.name == row.name]
    first, every = next(filter(None, alike)), {name: x for results in reversed(alike) for name, x in results.items()}
    names = _chosen_results(row, first, every, result_pattern)
    many = "1 result" if len(first) == 1 else f"{len(first)} results"
    comparable = [name for name in names if every[name].metric == every[names[0]].metric]
    outputs = tuple(PrintedResult(row.name, name, every[name].unit, every[name].metric) for name in comparable)
    by = f", by {every[names[0]].number_name}" if every[names[0]].number_name else ""
    selection = names[0] if len(names) == 1 else f"{len(comparable)} of them" if len(comparable) < len(first) else "all"
    too_many = None
    if len(names) > 1:
        several = f"{len(names)} results{f' that match {result_pattern}' if result_pattern else ''}, but this session can measure only one result"
        too_many = _result_error(SeveralResults, row, several, names)
    values = {output.result: number_in_unit(every[output.result], output.unit) for output in outputs}
    return RecognisedOutput(outputs, values, f"{row.name}: {many}; measured: {selection}{by}", len(every), too_many)


def _chosen_results(
    row: Format, found: Mapping[str, BenchmarkResult], every: Mapping[str, BenchmarkResult], only: str
) -> list[str]:
    names = [only] if only in every else [name for name in every if fnmatchcase(name, only)] if only else [*found]
    if not names:
        raise _result_error(UsageError, row, f"no result {only}", [*every])
    return [row.main] if row.main in names and not only else names


def _result_error(kind: type[M], row: Format, problem: str, names: Sequence[str]) -> M:
    shown, further = names[:MOST_NAMED], len(names) - MOST_NAMED
    listed = ", ".join(mask_credentials(name) for name in shown) + (f" and {further} more" if further > 0 else "")
    advice = f"Choose a result with --only NAME, or with a pattern such as '*/64'. Results: {listed}."
    return kind(f"The output of {row.name} has {problem}.", advice)


def read_results(outputs: Sequence[PrintedResult], text: str) -> dict[str, float]:
    """The values of the results ``outputs`` in ``text``, the output of a later run, by the names of the results. Each
    value is converted to the unit of the entry in ``outputs``. Results that ``text`` lacks are left out.
    """
    documents, values = _first_json_document(text), dict[str, float]()
    tables = [row.results(text, documents) for row in known_formats() if row.name == outputs[0].format]
    for output in outputs:
        for result in (table.get(output.result) for table in tables):
            if result and result.metric == output.metric:  # a later version may print another number as this result
                values.setdefault(output.result, number_in_unit(result, output.unit))
    return values


def read_result(output: PrintedResult, text: str) -> float:
    """The value of the result ``output`` in ``text``, the output of a later run, in the unit of ``output``. Raises
    NoNumber if the output lacks the result."""
    if values := read_results([output], text):
        return values[output.result]
    raise NoNumber(f"the output has no metric: it lacks the result {output.result} of {output.format}")


def is_rate(unit: str) -> bool:
    """Whether a unit is a rate, so that a larger number is better."""
    return _RATE.search(unit) is not None


def filter_arguments(outputs: Sequence[PrintedResult]) -> tuple[str, ...]:
    """The words to append to the benchmark's command, so that the benchmark measures only ``outputs`` and perhaps a few
    other results; empty if the benchmark has no option for this.
    """
    words = next((row.filter for row in known_formats() if row.name == outputs[0].format and row.filter), ())
    names = [output.result for output in outputs]
    parts = [re.sub(r"-\d+$", "", name).split("/") for name in names]  # go appends the number of processors: -8
    levels = (_any_name_pattern(level) for level in zip(*parts, strict=False))
    last_parts = " or ".join(dict.fromkeys(name.rpartition("::")[2] for name in names))
    values = {"names": _any_name_pattern(names), "levels": "/".join(levels), "words": last_parts}
    return tuple(re.sub(r"\{(\w+)\}", lambda key: values[key[1]], word) for word in words)


def _any_name_pattern(names: Iterable[str]) -> str:
    """A regular expression that matches a text that equals one of ``names``."""
    return f"^({'|'.join(_SPECIAL.sub(_ESCAPED, name) for name in dict.fromkeys(names))})$"


def number_in_unit(result: BenchmarkResult, unit: str) -> float:
    """The value of a result, converted to ``unit``, and rounded to as many digits as benchmarks print."""
    return float(f"{result.value / _seconds_of_unit(unit):.12g}")


def _seconds_of_unit(unit: str) -> float:
    """The number of seconds in a unit of time, such as 0.001 for ms; 1 for a unit that is not a time."""
    match = _TIME.match(unit)
    return _SECONDS[match[1]] if match else 1.0


def _number_with_suffix(value: object) -> float:
    text = str(value)
    return (
        positive_number_or_zero(text[:-1]) * _SUFFIXES[text[-1]]
        if text[-1:] in _SUFFIXES
        else positive_number_or_zero(value)
    )


def _value_at(fields: Mapping[str, Any], key: str) -> Any:
    """The value at ``key``, which may be a path of keys separated by points; None if there is no such value."""
    if key in fields:
        return fields[key]
    value: Any = fields
    for part in key.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value


def _text_at(fields: Mapping[str, Any], key: str) -> str:
    value = _value_at(fields, key)
    if isinstance(value, dict):
        return " ".join(f"{name}={entry}" for name, entry in value.items())
    return "" if value is None else str(value)


def _objects_at_path(value: Any, path: Sequence[str], star_keys: Mapping[str, str] = {}) -> Iterator[Mapping[str, Any]]:
    """The objects at a path of keys in a JSON document. A star in the path matches each entry of a list or object; each
    result also has the keys ``star_keys`` of the matched entries."""
    if not path:
        if isinstance(value, dict):
            yield {**value, **star_keys}
    elif path[0] != "*":
        if isinstance(value, dict):
            yield from _objects_at_path(value.get(path[0]), path[1:], star_keys)
    elif isinstance(value, dict | list):
        for name, entry in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _objects_at_path(entry, path[1:], {**star_keys, str(len(star_keys)): str(name)})


def _first_json_document(text: str) -> list[Any]:
    """The first JSON document in an output, which may extend over several lines; an empty list if there is no
    document."""
    for match in islice(re.finditer(r"^[{\[]", text, re.MULTILINE), MOST_TRIED):
        try:
            return [json.JSONDecoder().raw_decode(text, match.start())[0]]
        except (ValueError, RecursionError):
            continue
    return []
