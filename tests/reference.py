"""The tables of recipes' keys in docs/keys.md: keys and defaults are read from the program, meanings are written by hand.

`.venv/bin/python tests/reference.py` writes the tables; tests/test_docs.py fails if they are stale.
"""

import re
from pathlib import Path

import msgspec

from perfbisect.recipes import builder, inventory, workload

GUIDE = Path(__file__).parents[1] / "docs" / "keys.md"
TABLES: dict[str, type[msgspec.Struct]] = {  # text above a table of keys → the struct with the keys
    "## Keys of `builder.toml`": builder.Builder,
    "\n`[variants.NAME]`": builder.Variant,
    "\n`[configs.NAME]`": builder.Config,
    "\n`[build]`": builder.Build,
    "\n`[archives.NAME]`": builder.Archive,
    "\n`[server]`": builder.Server,
    "\n`[dataset]`": builder.DataFormat,
    "\n`[[when]]`": builder.When,
    "## Keys of `suite.toml`": workload.Suite,
    "\n`[workloads.NAME]`": workload.Workload,
    "\n`[hosts.NAME]`": inventory.HostEntry,
    "\n`[leases.NAME]`": inventory.LeaseEntry,
}


def with_keys(guide: str) -> str:
    """The guide with the current keys and defaults. Raises KeyError for a key that the guide does not explain."""
    for heading, shape in TABLES.items():

        def table(found: re.Match[str], shape: type[msgspec.Struct] = shape) -> str:
            rows = {row.split("`")[1]: row for row in found[2].splitlines()}
            inner = getattr(shape, "filled_in", ())
            keys = {each.encode_name: each for each in msgspec.structs.fields(shape) if each.name not in inner}
            if new := keys.keys() - rows.keys():
                raise KeyError(f"say in {GUIDE.name} what these mean: {new}")
            return found[1] + "".join(f"{with_default(row, keys[key])}\n" for key, row in rows.items() if key in keys)

        rows = rf"({re.escape(heading)}.*?\n\|---[|-]*\n)((?:\|[^\n]*\n)+)"
        guide, found = re.subn(rows, table, guide, count=1, flags=re.DOTALL)
        assert found, heading
    return guide


def with_default(row: str, field: msgspec.structs.FieldInfo) -> str:
    """The row, with "required" or the default of its key at its end. A default that the program computes is written by hand."""
    match field.default:
        case _ if field.required:
            ending = "required"
        case str(text) if text:
            ending = f'default `"{text}"`'
        case int() | float() as number if number:
            ending = f"default `{number:g}`"
        case _:
            return row
    return re.sub(r"(; required|; default `[^`]*`)? \|$", f"; {ending} |", row)


if __name__ == "__main__":
    GUIDE.write_text(with_keys(GUIDE.read_text()))
