"""TOML to typed structs. An error names the file, the key, what was found and what is allowed.

msgspec checks types too, but does not name the key inside a table of free names (``variants.lto``), and has no partial
files, whose missing keys are in other files (``extends``, ``defaults``). So tables are verified against the structs'
type hints first, and converted by msgspec after that."""

import math
import re
import tomllib
import types
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec

from perfbisect.errors import RecipeError

Table = dict[str, Any]
Shape = TypeVar("Shape", bound=msgspec.Struct)

DEPTH = 32  # levels of tables and lists
PASSWORD = re.compile(r"//.*@")  # and user names in addresses
WORDS = {str: "text", int: "a whole number", float: "a number", bool: "true or false", list: "a list", dict: "a table"}


@dataclass(frozen=True, slots=True)
class Location:
    """The file and the key of a value."""

    file: Path
    keys: str = ""

    def at(self, *path: str | int) -> "Location":
        """The location of an entry of the table or list at this location, or of an entry of that, and so on."""
        keys = self.keys
        for key in path:
            keys = f"{keys}[{key}]" if isinstance(key, int) else f"{keys}.{key}" if keys else key
        return Location(self.file, keys)

    def mistake(self, what: str, advice: str = "") -> RecipeError:
        """The error for the value here; ``what`` continues the sentence after the key: "is missing"."""
        subject = f" `{self.keys}`" if self.keys else ""
        return RecipeError(f"{self.file}:{subject} {what}", advice)


def read_table(file: Path) -> Table:
    """The contents of a TOML file. Raises RecipeError when it cannot be read, is not TOML, or has an unusable value."""
    text = read_text(file)
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise RecipeError(f"{file}: is not valid TOML: {error}") from error
    except RecursionError as error:
        raise RecipeError(f"{file}: is nested too deeply.") from error
    except ValueError as error:  # of int(), for thousands of digits
        raise RecipeError(f"{file}: has a number that is too large.") from error
    _check_values(table, Location(file), DEPTH)
    return table


def _check_values(value: object, location: Location, depth: int) -> None:
    """Raise RecipeError for what TOML can express, and commands, JSON and SQLite cannot."""
    if not depth:
        raise location.mistake("is nested too deeply.")
    match value:
        case dict():
            for key, entry in value.items():
                _check_values(key, location, depth)
                _check_values(entry, location.at(key), depth - 1)
        case list():
            for index, entry in enumerate(value):
                _check_values(entry, location.at(index), depth - 1)
        case str() if "\0" in value:
            raise location.mistake("has a NUL character, which no command can have.")
        case float() if not math.isfinite(value):
            raise location.mistake(f"is {value}, but must be finite.")
        case int() if abs(value) >= 2**63:
            raise location.mistake("is a number of more than 64 bits.")


def read_text(file: Path) -> str:
    """The text of a file. Raises RecipeError when it cannot be read."""
    try:
        return file.read_text(encoding="utf-8")
    except OSError as error:
        raise RecipeError(f"{file}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise RecipeError(f"{file}: is not UTF-8 text: {error.reason} at byte {error.start}") from error


def convert(table: Table, shape: type[Shape], location: Location) -> Shape:
    """The struct that a table describes. Raises RecipeError for the first mistake."""
    verify(table, shape, location)
    return msgspec.convert(table, shape)


def verify(value: object, expected: Any, location: Location, *, partial: bool = False) -> None:
    """Raise RecipeError unless ``value`` has the type ``expected``; a ``partial`` table may lack required keys."""
    origin, arguments = get_origin(expected), get_args(expected)
    if isinstance(expected, type) and issubclass(expected, msgspec.Struct):
        _verify_struct(value, expected, location, partial)
    elif origin is Annotated:
        if isinstance(value, list) and get_origin(arguments[0]) is list:
            verify(value, arguments[0], location)  # the error names the wrong entry
        _verify_leaf(value, expected, location)
    elif origin is dict:
        for key, entry in _expect(value, dict, location).items():
            verify(key, arguments[0], location.at(key))
            verify(entry, arguments[1], location.at(key), partial=partial)
    elif origin is list:
        for index, entry in enumerate(_expect(value, list, location)):
            verify(entry, arguments[0], location.at(index), partial=partial)
    elif origin in (Union, types.UnionType) and types.NoneType in arguments:  # TOML has no null
        verify(value, arguments[0], location, partial=partial)
    else:
        _verify_leaf(value, expected, location)


def _verify_struct(value: object, shape: type[msgspec.Struct], location: Location, partial: bool) -> None:
    table = _expect(value, dict, location)
    fields = _fields(shape)
    allowed = set(fields) - getattr(shape, "filled_in", frozenset())
    for key in table:
        if key not in allowed:
            where = f"[{location.keys}]" if location.keys else "the file"
            raise location.at(key).mistake(
                f"is an unknown key.{hint(key, allowed)}",
                f"Allowed in {where}: {', '.join(name for name in fields if name in allowed)}.",
            )
    for name, field in fields.items():
        if field.required and not partial and name not in table:
            raise location.at(name).mistake(f"is missing: it must be {describe(field.type)}.")
    hints = _hints(shape)
    for key, entry in table.items():
        verify(entry, hints[fields[key].name], location.at(key), partial=partial)


@cache
def _hints(shape: type[msgspec.Struct]) -> dict[str, Any]:
    return get_type_hints(shape, include_extras=True)


@cache
def _fields(shape: type[msgspec.Struct]) -> dict[str, msgspec.structs.FieldInfo]:
    """By their keys: `class` is a keyword of Python."""
    return {field.encode_name: field for field in msgspec.structs.fields(shape)}


def _verify_leaf(value: object, expected: Any, location: Location) -> None:
    try:
        msgspec.convert(value, expected)
    except msgspec.ValidationError as error:
        near = hint(value, get_args(expected)) if get_origin(expected) is Literal and isinstance(value, str) else ""
        raise location.mistake(f"is {show(value)}, but must be {describe(expected)}.{near}") from error


def _expect(value: object, expected: type, location: Location) -> Any:
    if not isinstance(value, expected):
        raise location.mistake(f"is {show(value)}, but must be {WORDS[expected]}.")
    return value


def describe(expected: Any) -> str:
    """The values that a type allows, for an error."""
    origin, arguments = get_origin(expected), get_args(expected)
    if origin is Annotated:
        return arguments[1].description or describe(arguments[0])
    if origin is Literal:
        return "one of " + ", ".join(f'"{choice}"' for choice in arguments)
    if origin in (Union, types.UnionType):
        return " or ".join(describe(choice) for choice in arguments if choice is not types.NoneType)
    if isinstance(expected, type) and issubclass(expected, msgspec.Struct):
        return WORDS[dict]
    return WORDS.get(origin or expected, "a value")


def show(value: object) -> str:
    """A value as the user wrote it, without passwords, and with its type where that is not obvious."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return f'"{PASSWORD.sub("//…@", value)}"'
    if isinstance(value, int | float):
        return f"the number {value}"
    return WORDS.get(type(value), f"{value}")


def merged(below: object, above: object) -> Any:
    """``above`` merged over ``below``: tables by key at every depth, other values replaced."""
    if not (isinstance(below, Mapping) and isinstance(above, Mapping)):
        return above
    both = {**below, **above}
    return {key: merged(below[key], value) if key in below and key in above else value for key, value in both.items()}


def hint(word: str, known: Iterable[str]) -> str:
    """A sentence with the known word most similar to ``word``; "" when none is similar."""
    near = get_close_matches(word, list(known), 1)
    return f" Did you mean '{near[0]}'?" if near else ""


def listed(words: Iterable[str]) -> str:
    """The words in alphabetical order, for a sentence; "none" when there are none."""
    return ", ".join(sorted(words)) or "none"
