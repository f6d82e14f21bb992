"""Outputs of benchmarks in known formats: which format it is, its results, and those of them that are measured.

The formats are rows of ``outputs.toml``. JSON is read by Python's parser; the other formats are lines for people, without a grammar
or a library that reads them.
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

from perfbisect.core.domain.settings import Output
from perfbisect.errors import UsageError
from perfbisect.masking import masked
from perfbisect.recipes.output_pattern import NoNumber, number_in

M = TypeVar("M", bound=UsageError)
MOST_NAMED = 20  # results in a message
MOST_TRIED = 1000  # lines with which JSON may begin
_RATE = re.compile(r"^ops/|/s(?:ec)?$|throughput|\b(?:[qtr]|io)ps$", re.IGNORECASE)  # units of which more is better
_TIME = re.compile(r"(p|n|u|µ|μ|micro|m)?s(?:ec)?(?=$|/)")
_SECONDS = {"p": 1e-12, "n": 1e-9, "u": 1e-6, "µ": 1e-6, "μ": 1e-6, "micro": 1e-6, "m": 1e-3, None: 1.0}
_SPECIAL, _ESCAPED = re.compile(r"[][(){}.*+?^$|\\]"), r"\\\g<0>"  # in a regular expression of any dialect
_SUFFIXES = {"k": 1e3, "M": 1e6, "G": 1e9}


class Name(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Another value for results with such a name."""

    name: str
    value: str


class Format(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A row of ``outputs.toml``, which says what its keys are."""

    name: str
    json: str = ""
    lines: str = ""
    has: str = ""
    result: tuple[str, ...] = ("name",)
    value: str = "value"
    unit: str = "unit"
    metric: Literal["", "rate", "cost"] = ""
    instead: Name | None = None
    aggregate: str = ""
    main: str = ""
    filter: tuple[str, ...] = ()
    repeated: Literal["median", "last"] = "median"

    def results(self, text: str, documents: Sequence[Any]) -> dict[str, "Result"]:
        """The results in an output by their names; ``documents`` is the JSON in it."""
        found: dict[str, list[Result]] = {}
        walked = (each for one in documents for each in _walk(one, self.json.split(".")))
        for fields in self._matches(text) if self.lines else walked:
            name = " ".join(" ".join(_words(fields, key) for key in self.result).split())
            key = self.instead.value if self.instead and re.search(self.instead.name, name) else self.value
            value, unit = (
                sum(_scaled(_at(fields, part)) for part in key.split("+")),
                str(_at(fields, self.unit) or self.unit),
            )
            if value and name:
                metric = self.metric or ("rate" if is_rate(unit) else "cost")
                one = Result(value * _factor(unit), unit, metric, key if self.instead else "")
                found.setdefault(name, []).append(one)
        single = {
            name: each for name, each in found.items() if not (self.aggregate and re.search(self.aggregate, name))
        }
        medians = {name.removesuffix("_median"): each for name, each in found.items() if name.endswith("_median")}
        return {name: self._one(each) for name, each in (single or medians).items()}

    def _one(self, every: Sequence["Result"]) -> "Result":
        value = every[-1].value if self.repeated == "last" else median(each.value for each in every)
        return replace(every[0], value=value)

    def _matches(self, text: str) -> Iterator[Mapping[str, Any]]:
        """The groups of each match that has the value, with those of the last one that has not."""
        common: dict[str, str] = {}
        if re.search(self.has, text, re.MULTILINE):
            for match in re.finditer(self.lines, text, re.MULTILINE):
                groups = {name: each for name, each in match.groupdict().items() if each is not None}
                if self.value in groups:
                    yield common | groups
                else:
                    common |= groups


@dataclass(frozen=True, slots=True)
class Result:
    """One result of a benchmark. A time is in seconds, whatever its unit."""

    value: float
    unit: str
    metric: str
    by: str = ""  # which of its numbers it is, where there are several


class SeveralResults(UsageError):
    """One result alone can be measured, and an output has several that are meant."""

    outputs: tuple[Output, ...] = ()


@dataclass(frozen=True, slots=True)
class Recognised:
    """What is measured of an output whose format is known."""

    outputs: tuple[Output, ...]
    values: Mapping[str, float]  # result → its number, in the unit of its output
    why: str  # a sentence without its end
    of: int  # results that the output has
    too_many: SeveralResults | None = None  # raised where one result alone can be measured

    @property
    def one(self) -> Output:
        """The only result that is measured. Raises SeveralResults."""
        if self.too_many:
            self.too_many.outputs = self.outputs
            raise self.too_many
        return self.outputs[0]


@cache
def formats() -> tuple[Format, ...]:
    """All rows."""
    table = msgspec.toml.decode(Path(__file__).with_name("outputs.toml").read_bytes(), type=dict[str, list[Format]])
    return tuple(table["format"])


def recognised(text: str, only: str) -> Recognised | None:
    """The results of an output, or those whose names are or match ``only``; None where no format is known.

    Of several results those count that are better in the same direction as the first. Raises UsageError where none is meant.
    """
    documents = _documents(text)
    row = next((row for row in formats() if row.results(text, documents)), None)
    if row is None:
        return None
    alike = [each.results(text, documents) for each in formats() if each.name == row.name]
    found, every = next(filter(None, alike)), {name: each for one in reversed(alike) for name, each in one.items()}
    names, many = _chosen(row, found, every, only), "1 result" if len(found) == 1 else f"{len(found)} results"
    same = [name for name in names if every[name].metric == every[names[0]].metric]
    outputs = tuple(Output(row.name, name, every[name].unit, every[name].metric) for name in same)
    by = f", by {every[names[0]].by}" if every[names[0]].by else ""
    what = names[0] if len(names) == 1 else f"{len(same)} of them" if len(same) < len(found) else "all"
    too_many = None
    if len(names) > 1:
        several = f"{len(names)} results{f' that match {only}' if only else ''}, of which one is measured here"
        too_many = _mistake(SeveralResults, row, several, names)
    values = {each.result: in_unit(every[each.result], each.unit) for each in outputs}
    verb = "hunted" if len(names) == 1 else "measured"
    return Recognised(outputs, values, f"{row.name}: {many}; {verb}: {what}{by}", len(every), too_many)


def _chosen(row: Format, found: Mapping[str, Result], every: Mapping[str, Result], only: str) -> list[str]:
    names = [only] if only in every else [name for name in every if fnmatchcase(name, only)] if only else [*found]
    if not names:
        raise _mistake(UsageError, row, f"no result {only}", [*every])
    return [row.main] if row.main in names and not only else names


def _mistake(kind: type[M], row: Format, what: str, names: Sequence[str]) -> M:
    shown, left = names[:MOST_NAMED], len(names) - MOST_NAMED
    listed = ", ".join(masked(name) for name in shown) + (f" and {left} more" if left > 0 else "")
    return kind(
        f"The output, of {row.name}, has {what}.", f"Choose with --only NAME, or a pattern such as '*/64': {listed}."
    )


def read_results(outputs: Sequence[Output], text: str) -> dict[str, float]:
    """The same results in a later output, each in its unit; without those that are missing."""
    documents, values = _documents(text), dict[str, float]()
    tables = [row.results(text, documents) for row in formats() if row.name == outputs[0].format]
    for output in outputs:
        for found in (table.get(output.result) for table in tables):
            if found and found.metric == output.metric:  # a later version may print another number for it
                values.setdefault(output.result, in_unit(found, output.unit))
    return values


def read_result(output: Output, text: str) -> float:
    """The same result in a later output, in the same unit. Raises NoNumber where it is missing."""
    if values := read_results([output], text):
        return values[output.result]
    raise NoNumber(f"it printed no metric: no result {output.result} of {output.format} is in its output")


def is_rate(unit: str) -> bool:
    """Whether more of a unit is better."""
    return _RATE.search(unit) is not None


def filter_of(outputs: Sequence[Output]) -> tuple[str, ...]:
    """Words behind a command by which it measures these results, and perhaps a few more; none where its format has no filter."""
    words = next((row.filter for row in formats() if row.name == outputs[0].format and row.filter), ())
    names = [each.result for each in outputs]
    parts = [re.sub(r"-\d+$", "", name).split("/") for name in names]  # of go: without the number of processors
    levels = (_one_of(level) for level in zip(*parts, strict=False))
    values = {
        "names": _one_of(names),
        "levels": "/".join(levels),
        "words": " or ".join(dict.fromkeys(name.rpartition("::")[2] for name in names)),
    }
    return tuple(re.sub(r"\{(\w+)\}", lambda key: values[key[1]], word) for word in words)


def _one_of(names: Iterable[str]) -> str:
    """A regular expression that matches one of these names as a whole."""
    return f"^({'|'.join(_SPECIAL.sub(_ESCAPED, name) for name in dict.fromkeys(names))})$"


def in_unit(result: Result, unit: str) -> float:
    """Its number in a unit, as exact as any benchmark prints it."""
    return float(f"{result.value / _factor(unit):.12g}")


def _factor(unit: str) -> float:
    """Seconds of a unit of time; 1 for any other unit."""
    match = _TIME.match(unit)
    return _SECONDS[match[1]] if match else 1.0


def _scaled(found: object) -> float:
    text = str(found)
    return number_in(text[:-1]) * _SUFFIXES[text[-1]] if text[-1:] in _SUFFIXES else number_in(found)


def _at(fields: Mapping[str, Any], key: str) -> Any:
    """What is at a key, or behind several with points between; None where nothing is."""
    if key in fields:
        return fields[key]
    found: Any = fields
    for part in key.split("."):
        found = found.get(part) if isinstance(found, dict) else None
    return found


def _words(fields: Mapping[str, Any], key: str) -> str:
    found = _at(fields, key)
    if isinstance(found, dict):
        return " ".join(f"{name}={each}" for name, each in found.items())
    return "" if found is None else str(found)


def _walk(found: Any, keys: Sequence[str], names: Mapping[str, str] = {}) -> Iterator[Mapping[str, Any]]:
    """The tables at a path into JSON, each with the keys at which its stars were."""
    if not keys:
        if isinstance(found, dict):
            yield {**found, **names}
    elif keys[0] != "*":
        if isinstance(found, dict):
            yield from _walk(found.get(keys[0]), keys[1:], names)
    elif isinstance(found, dict | list):
        for name, each in found.items() if isinstance(found, dict) else enumerate(found):
            yield from _walk(each, keys[1:], {**names, str(len(names)): str(name)})


def _documents(text: str) -> list[Any]:
    """The first JSON of several lines, or in one, that an output has; lines before it are no JSON."""
    for match in islice(re.finditer(r"^[{\[]", text, re.MULTILINE), MOST_TRIED):
        try:
            return [json.JSONDecoder().raw_decode(text, match.start())[0]]
        except (ValueError, RecursionError):
            continue
    return []
