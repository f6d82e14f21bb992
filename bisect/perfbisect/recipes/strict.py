"""TOML into typed structs, where every mistake names the file, the key, what was found and what is allowed.

msgspec checks types too, but stops short of naming the key inside a table of free names (``variants.lto``) and knows
nothing of partial files, whose missing keys come from elsewhere (``extends``, ``defaults``). So tables are verified
against the structs' own type hints first, and converted after that.
"""

import re
import tomllib
import types
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec

from perfbisect.errors import RecipeError
from perfbisect.recipes.nearest import hint

Table = dict[str, Any]
Shape = TypeVar("Shape", bound=msgspec.Struct)

PASSWORD = re.compile(r"//.*@")  # and what else stands before the host of an address
WORDS = {str: "text", int: "a whole number", float: "a number", bool: "true or false", list: "a list", dict: "a table"}


@dataclass(frozen=True, slots=True)
class Place:
    """Where in which file a value stands."""

    file: Path
    keys: str = ""

    def at(self, key: str | int) -> "Place":
        """The place of one entry of the table or list that stands here."""
        if isinstance(key, int):
            return Place(self.file, f"{self.keys}[{key}]")
        return Place(self.file, f"{self.keys}.{key}" if self.keys else key)

    def mistake(self, what: str, advice: str = "") -> RecipeError:
        """The error for what stands here; ``what`` goes on from the key: "is missing"."""
        subject = f" `{self.keys}`" if self.keys else ""
        return RecipeError(f"{self.file}:{subject} {what}", advice)


def read_table(file: Path) -> Table:
    """The contents of a TOML file. Raises RecipeError when it cannot be read or is not TOML."""
    try:
        return tomllib.loads(read_text(file))
    except tomllib.TOMLDecodeError as error:
        raise RecipeError(f"{file}: is not valid TOML: {error}") from error


def read_text(file: Path) -> str:
    """The text of a file. Raises RecipeError when it cannot be read."""
    try:
        return file.read_text(encoding="utf-8")
    except OSError as error:
        raise RecipeError(f"{file}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise RecipeError(f"{file}: is not UTF-8 text: {error.reason} at byte {error.start}") from error


def convert(table: Table, shape: type[Shape], place: Place) -> Shape:
    """The struct that a table describes, verified."""
    verify(table, shape, place)
    return msgspec.convert(table, shape)


def verify(value: object, kind: Any, place: Place, *, partial: bool = False) -> None:
    """Raise RecipeError unless ``value`` fits the type ``kind``; keys may be missing from a partial table."""
    origin, arguments = get_origin(kind), get_args(kind)
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        _verify_struct(value, kind, place, partial)
    elif origin is Annotated:
        if isinstance(value, list) and get_origin(arguments[0]) is list:
            verify(value, arguments[0], place)  # a wrong entry is named by itself
        _verify_leaf(value, kind, place)
    elif origin is dict:
        for key, entry in _expect(value, dict, place).items():
            verify(key, arguments[0], place.at(key))
            verify(entry, arguments[1], place.at(key), partial=partial)
    elif origin is list:
        for index, entry in enumerate(_expect(value, list, place)):
            verify(entry, arguments[0], place.at(index), partial=partial)
    elif origin in (Union, types.UnionType) and types.NoneType in arguments:  # TOML has no null
        verify(value, arguments[0], place, partial=partial)
    else:
        _verify_leaf(value, kind, place)


def _verify_struct(value: object, shape: type[msgspec.Struct], place: Place, partial: bool) -> None:
    table = _expect(value, dict, place)
    fields = {field.encode_name: field for field in msgspec.structs.fields(shape)}  # `class` is no name in Python
    allowed = set(fields) - getattr(shape, "filled_in", frozenset())
    for key in table:
        if key not in allowed:
            where = f"[{place.keys}]" if place.keys else "the file"
            raise place.at(key).mistake(
                f"is not a key that is known here.{hint(key, allowed)}",
                f"Allowed in {where}: {', '.join(name for name in fields if name in allowed)}.",
            )
    for name, field in fields.items():
        if field.required and not partial and name not in table:
            raise place.at(name).mistake(f"is missing: it must be {describe(field.type)}.")
    hints = get_type_hints(shape, include_extras=True)
    for key, entry in table.items():
        verify(entry, hints[fields[key].name], place.at(key), partial=partial)


def _verify_leaf(value: object, kind: Any, place: Place) -> None:
    try:
        msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        near = hint(value, get_args(kind)) if get_origin(kind) is Literal and isinstance(value, str) else ""
        raise place.mistake(f"is {show(value)}, but must be {describe(kind)}.{near}") from error


def _expect(value: object, kind: type, place: Place) -> Any:
    if not isinstance(value, kind):
        raise place.mistake(f"is {show(value)}, but must be {WORDS[kind]}.")
    return value


def describe(kind: Any) -> str:
    """What a key of this type must be, in words."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return arguments[1].description or describe(arguments[0])
    if origin is Literal:
        return "one of " + ", ".join(f'"{choice}"' for choice in arguments)
    if origin in (Union, types.UnionType):
        return " or ".join(describe(choice) for choice in arguments if choice is not types.NoneType)
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return WORDS[dict]
    return WORDS.get(origin or kind, "a value")


def show(value: object) -> str:
    """A value as the user wrote it, but for passwords, with its type where that is not plain to see."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return f'"{PASSWORD.sub("//…@", value)}"'
    if isinstance(value, int | float):
        return f"the number {value}"
    return WORDS.get(type(value), f"{value}")


def merged(below: object, above: object) -> Any:
    """``above`` laid over ``below``: tables key by key at every depth, anything else replaced."""
    if not (isinstance(below, Mapping) and isinstance(above, Mapping)):
        return above
    both = {**below, **above}
    return {key: merged(below[key], value) if key in below and key in above else value for key, value in both.items()}
