"""A recipe as TOML, resolved: a recipe file with the text that `--show` prints describes the same recipe."""

from collections.abc import Mapping
from typing import Any

import msgspec

from perfbisect.recipes.builder import Variant


def to_toml(recipe: msgspec.Struct) -> str:
    """The recipe as a TOML document; keys without a value are omitted."""
    import tomli_w

    table = _plain(recipe)
    return tomli_w.dumps(table, multiline_strings=r"\r\n" not in repr(table))  # in those, tomli-w writes \n for \r\n


def _plain(value: object) -> Any:
    """Structs as tables, without the fields that the reader fills in and without optional keys that are empty."""
    if isinstance(value, msgspec.Struct):
        hidden: frozenset[str] = getattr(value, "filled_in", frozenset())
        whole = isinstance(value, Variant)  # an empty flag of a recipe overrides a shared one
        return {
            field.encode_name: _plain(entry)
            for field in msgspec.structs.fields(value)
            if field.name not in hidden
            and ((entry := getattr(value, field.name)) not in (None, "", [], {}) or whole or field.required)
        }
    if isinstance(value, list):
        return [_plain(entry) for entry in value]
    if isinstance(value, Mapping):
        return {key: _plain(entry) for key, entry in value.items()}
    return value
