"""Converts TOML to typed structs, and structs to TOML. An error names the file, the key, the value and the allowed
values.

The library msgspec checks the types. In a table whose keys the user chooses (such as ``variants``), an error of msgspec
does not name the key. After an error, perfbisect therefore checks the entries of the table one by one.
"""

import math
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin

import msgspec
from msgspec.inspect import type_info

from perfbisect.errors import RecipeError

Table = dict[str, Any]
Shape = TypeVar("Shape", bound=msgspec.Struct)

DEPTH = 32  # most levels of nested tables and lists
PASSWORD = re.compile(r"//.*@")  # passwords and user names in addresses
WORDS = {"Str": "text", "Int": "a whole number", "Float": "a number", "Bool": "true or false", "List": "a list",
         "Dict": "a table", "Struct": "a table"}  # fmt: skip
_FIELD = re.compile(r"Object (contains unknown|missing required) field `(.*)`")


def text_constraint(pattern: str, description: str) -> msgspec.Meta:
    """The constraint that a text contains a match of the regular expression ``pattern``. An error prints
    ``description``, which explains the pattern."""
    return msgspec.Meta(pattern=pattern, description=description)


@dataclass(frozen=True, slots=True)
class Location:
    """The file and the key of a value."""

    file: Path
    keys: str = ""

    def at(self, *path: str | int) -> "Location":
        """The location of an entry at any depth of this table or list; ``path`` has the keys from the outermost to the
        innermost."""
        keys = self.keys
        for key in path:
            keys = f"{keys}[{key}]" if isinstance(key, int) else f"{keys}.{key}" if keys else key
        return Location(self.file, keys)

    def mistake(self, what: str, advice: str = "") -> RecipeError:
        """The error for a wrong value at this location. The sentence of the error begins with the file and the key, or
        with the option if the value is from the command line, and ends with ``what``, such as "is missing"."""
        subject = f"{self.file}: `{self.keys}`" if self.keys else f"{self.file}"
        if self.file == LINE.file and self.keys:
            subject = f"--{self.keys.partition('[')[0]}"
        return RecipeError(f"{subject} {what}", advice)

    def unknown_name_error(self, noun: str, name: str, known: Iterable[str]) -> RecipeError:
        """The error for an unknown name at this location; ``noun`` states what the name should name, such as
        "builder"."""
        names = [*known]
        advice = f"{noun.capitalize()}s: {sorted_list(names)}."
        return self.mistake(f'is "{name}", but no such {noun} exists.{similar_words_hint(name, names)}', advice)


LINE = Location(Path("the command line"))  # the location of options in errors


def read_table(file: Path) -> Table:
    """The contents of a TOML file. Raises RecipeError if the file cannot be read, is not TOML, or has an unusable
    value.
    """
    text = read_text(file)
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise RecipeError(f"{file} is not valid TOML: {error}") from error
    except RecursionError as error:
        raise RecipeError(f"{file} is nested too deeply.") from error
    except ValueError as error:  # int() refuses a number with thousands of digits
        raise RecipeError(f"{file} has a number that is too large.") from error
    for location, value in all_values(table, Location(file)):
        _check_value(value, location)
    return table


def all_values(value: object, location: Location, depth: int = DEPTH) -> Iterator[tuple[Location, object]]:
    """Yields, with their locations, all keys and all values in a table or list at any depth; tables and lists
    themselves are left out. Raises RecipeError if the value is nested too deeply.
    """
    if not depth:
        raise location.mistake("is nested too deeply.")
    if not isinstance(value, dict | list):
        yield location, value
        return
    for key, entry in value.items() if isinstance(value, dict) else enumerate(value):
        if isinstance(key, str):
            yield location, key
        yield from all_values(entry, location.at(key), depth - 1)


def _check_value(value: object, location: Location) -> None:
    """Raise RecipeError for a value that is valid TOML, but cannot be used in commands, JSON or SQLite."""
    match value:
        case str() if "\0" in value:
            raise location.mistake("has a NUL character, which is not allowed in a command.")
        case float() if not math.isfinite(value):
            raise location.mistake(f"is {value}, but must be finite.")
        case int() if abs(value) >= 2**63:
            raise location.mistake("is a number of more than 64 bits.")


def read_text(file: Path) -> str:
    """The text of a file. Raises RecipeError if the file cannot be read."""
    try:
        return file.read_text(encoding="utf-8")
    except OSError as error:
        raise RecipeError(f"{file} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise RecipeError(f"{file} is not UTF-8 text: {error.reason} at byte {error.start}") from error


def convert_table(table: object, shape: type[Shape], location: Location) -> Shape:
    """The struct of type ``shape`` that a TOML table describes. Raises RecipeError for a mistake, and for a key that
    only the reader may set (``fields_set_by_reader``)."""
    if isinstance(table, dict) and (reserved := fields_set_by_reader(shape) & table.keys()):
        raise _unknown_key_error(min(reserved), shape, location)
    try:
        return msgspec.convert(table, shape)
    except msgspec.ValidationError as error:
        raise _validation_error(error, table, shape, location) from error


def fields_set_by_reader(shape: type[msgspec.Struct]) -> frozenset[str]:
    """The fields of a struct that the code which reads recipes sets itself. A recipe that sets one of these fields is
    refused."""
    return getattr(shape, "filled_in", frozenset())


def _validation_error(error: msgspec.ValidationError, value: object, kind: Any, location: Location) -> RecipeError:
    """The error for a value that is not of type ``kind``. The error names the wrong entry that is nested deepest in the
    value."""
    shape = _container_type(kind, value)
    for key, entry, inner in _typed_entries(value, shape):
        try:
            msgspec.convert(entry, inner)
        except msgspec.ValidationError as inner_error:
            return _validation_error(inner_error, entry, inner, location.at(key))
    if field := _FIELD.fullmatch(str(error)):
        if field[1] == "contains unknown":
            return _unknown_key_error(field[2], shape, location)
        expected = next(member.type for member in msgspec.structs.fields(shape) if member.encode_name == field[2])
        return location.at(field[2]).mistake(f"is missing: it must be {_allowed_values(type_info(expected))}.")
    info = type_info(kind)
    choices = getattr(info, "values", ())
    near = similar_words_hint(value, choices) if choices and isinstance(value, str) else ""
    return location.mistake(f"is {shown_value(value)}, but must be {_allowed_values(info)}.{near}")


def _container_type(kind: Any, value: object) -> Any:
    """The struct, list or dict type inside an annotated or optional type. For a union type, the result is the member of
    the union that fits ``value``.
    """
    if get_origin(kind) is Annotated:
        return _container_type(get_args(kind)[0], value)
    if get_origin(kind) in (Union, UnionType):
        shapes = [_container_type(option, value) for option in get_args(kind)]
        return next((option for option in shapes if isinstance(value, get_origin(option) or option)), shapes[0])
    return kind


def _typed_entries(value: object, shape: Any) -> Iterator[tuple[str | int, object, Any]]:
    """Yields the key, the value and the required type of each entry of a table or list of type ``shape``. If the user
    chooses the keys of the table, the keys are also yielded as values.
    """
    if isinstance(value, list) and get_origin(shape) is list:
        yield from ((index, entry, get_args(shape)[0]) for index, entry in enumerate(value))
    elif isinstance(value, dict) and get_origin(shape) is dict:
        for key, entry in value.items():
            yield from ((key, item, kind) for item, kind in zip((key, entry), get_args(shape), strict=True))
    elif isinstance(value, dict) and isinstance(shape, type) and issubclass(shape, msgspec.Struct):
        fields = ((member.encode_name, member.type) for member in msgspec.structs.fields(shape))
        yield from ((name, value[name], kind) for name, kind in fields if name in value)


def _unknown_key_error(key: str, shape: type[msgspec.Struct], location: Location) -> RecipeError:
    allowed = [name for name in shape.__struct_encode_fields__ if name not in fields_set_by_reader(shape)]
    where = f"[{location.keys}]" if location.keys else "the file"
    text = f"is an unknown key.{similar_words_hint(key, allowed)}"
    return location.at(key).mistake(text, f"Allowed keys in {where}: {', '.join(allowed)}.")


def _allowed_values(info: Any) -> str:
    """A text for an error that lists or describes the values that a type allows."""
    match info:
        case msgspec.inspect.Metadata():
            return (info.extra_json_schema or {}).get("description") or _allowed_values(info.type)
        case msgspec.inspect.LiteralType():
            return "one of " + ", ".join(f'"{choice}"' for choice in info.values)
        case msgspec.inspect.UnionType():
            return " or ".join(
                _allowed_values(option) for option in info.types if not isinstance(option, msgspec.inspect.NoneType)
            )
        case _:
            return WORDS.get(type(info).__name__.removesuffix("Type"), "a value")


def shown_value(value: object) -> str:
    """A value for an error, as the user wrote the value, but with passwords masked. The type is added if it is not
    obvious."""
    match value:
        case bool():
            return "true" if value else "false"
        case str():
            return f'"{PASSWORD.sub("//…@", value)}"'
        case int() | float():
            return f"the number {value}"
        case list():
            return "a list" if value else "an empty list"
        case dict():
            return "a table"
        case _:
            return f"{value}"


def merged_tables(base: object, overrides: object) -> Any:
    """``base`` with the changes ``overrides``: tables are merged key by key at every depth, and all other values are
    replaced."""
    if not (isinstance(base, Mapping) and isinstance(overrides, Mapping)):
        return overrides
    both = {**base, **overrides}
    return {
        key: merged_tables(base[key], value) if key in base and key in overrides else value
        for key, value in both.items()
    }


def inherited_tables(
    start: Location, named: Sequence[tuple[str, Location]], read: Callable[[Location], Table], noun: str
) -> dict[Location, Table]:
    """The tables of a recipe and of all recipes that it extends, directly or through other recipes, by their locations.

    ``named`` has the names and locations of all recipes. Several recipes may have the same name. A recipe that extends
    a recipe with its own name extends the next recipe in ``named`` with this name. Raises RecipeError if an extended
    recipe does not exist, and if recipes extend each other in a cycle.
    """
    tables, location = {start: read(start)}, start
    while base := tables[location].get("extends", ""):
        places = [candidate for name, candidate in named if name == base]
        if location in places:
            places = places[places.index(location) + 1 :] or [location]
        if not places:
            raise location.at("extends").unknown_name_error(noun, base, {name for name, _ in named})
        if places[0] in tables:
            chain = [*tables, places[0]]
            cycle = " → ".join(step.keys or str(step.file) for step in chain[chain.index(places[0]) :])
            raise location.at("extends").mistake(f"is a cycle: {cycle}.")
        location = places[0]
        tables[location] = read(location)
    return tables


def similar_words_hint(word: str, known: Iterable[str]) -> str:
    """A sentence that proposes up to three words of ``known`` that are most similar to ``word``; "" if no word is
    similar."""
    near = [f"'{match}'" for match in get_close_matches(word, [*dict.fromkeys(known)], 3)]
    return f" Did you mean {' or '.join(filter(None, (', '.join(near[:-1]), near[-1])))}?" if near else ""


def sorted_list(words: Iterable[str]) -> str:
    """A text that lists the words in alphabetical order; "none" if there are no words."""
    return ", ".join(sorted(words)) or "none"


def to_toml(recipe: msgspec.Struct) -> str:
    """A TOML document that describes the recipe, without keys whose values are empty."""
    import tomli_w

    table = _table_without_empty_keys(recipe)
    # in multi-line strings tomli-w writes \n for \r\n
    return tomli_w.dumps(table, multiline_strings=r"\r\n" not in repr(table))


def _table_without_empty_keys(value: object) -> Any:
    """``value``, with each struct converted to a table, without the fields that the reader sets, and without optional
    keys whose values are empty."""
    match value:
        case msgspec.Struct():
            keeps_empty = getattr(value, "whole", False)
            return {
                field.encode_name: _table_without_empty_keys(entry)
                for field in msgspec.structs.fields(value)
                if field.name not in fields_set_by_reader(type(value))
                and ((entry := getattr(value, field.name)) not in (None, "", [], {}) or keeps_empty or field.required)
            }
        case list():
            return [_table_without_empty_keys(entry) for entry in value]
        case dict():
            return {key: _table_without_empty_keys(entry) for key, entry in value.items()}
        case _:
            return value
