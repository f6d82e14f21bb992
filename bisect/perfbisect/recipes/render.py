"""A recipe as TOML text, resolved: what `--show` prints can be read back."""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from perfbisect.recipes.builder import Variant

BARE = re.compile(r"[A-Za-z0-9_-]+")


def to_toml(recipe: msgspec.Struct) -> str:
    """The recipe as a TOML document; what is not set is left out."""
    return "\n".join(_table(_plain(recipe), "")).strip() + "\n"


def _plain(value: object) -> Any:
    """Structs as tables, without what the reader fills in and without empty keys that may be left out."""
    if isinstance(value, msgspec.Struct):
        pairs = zip(value.__struct_encode_fields__, value.__struct_fields__, strict=True)
        fields = {encoded: getattr(value, name) for encoded, name in pairs}
        hidden: frozenset[str] = getattr(value, "filled_in", frozenset())
        whole = isinstance(value, Variant)  # an empty flag of its own hides a shared one
        required = {field.encode_name for field in msgspec.structs.fields(value) if field.required}
        return {
            name: _plain(entry)
            for name, entry in fields.items()
            if name not in hidden and (whole or name in required or not _is_empty(entry))
        }
    if isinstance(value, list):
        return [_plain(entry) for entry in value]
    if isinstance(value, Mapping):
        return {key: _plain(entry) for key, entry in value.items()}
    return value


def _is_empty(value: object) -> bool:
    return value is None or (isinstance(value, str | list | Mapping) and not value)


def _table(table: Mapping[str, Any], name: str) -> Iterator[str]:
    """The lines of a table: plain values first, since TOML gives everything after a header to that header."""
    for key, value in table.items():
        if not _is_tables(value):
            yield f"{_key(key)} = {_value(value)}"
    for key, value in table.items():
        if not _is_tables(value):
            continue
        path = f"{name}.{_key(key)}" if name else _key(key)
        for each in value if isinstance(value, list) else [value]:
            if isinstance(value, list) or not all(map(_is_tables, each.values())):
                yield ""
                yield f"[[{path}]]" if isinstance(value, list) else f"[{path}]"
            yield from _table(each, path)


def _is_tables(value: object) -> bool:
    return isinstance(value, Mapping) or (
        isinstance(value, list) and bool(value) and all(isinstance(entry, Mapping) for entry in value)
    )


def _value(value: object) -> str:
    match value:
        case str() if "\n" in value:
            return '"""\n' + "\n".join(_text(line)[1:-1] for line in value.split("\n")) + '"""'
        case str():
            return _text(value)
        case list() if any(isinstance(entry, list) for entry in value):
            return "[\n" + "".join(f"    {_value(entry)},\n" for entry in value) + "]"
        case list():
            return "[" + ", ".join(_value(entry) for entry in value) + "]"
        case _:
            return json.dumps(value)


def _text(text: str) -> str:
    # JSON's escapes are TOML's, but for DEL, which JSON leaves as it is.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007F")


def _key(key: str) -> str:
    return key if BARE.fullmatch(key) else _text(key)
