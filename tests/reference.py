"""What of the documentation is made from the program: the list of verbs, and the keys of recipes with their defaults.

`.venv/bin/python tests/reference.py` writes it; tests/test_docs.py says when it is stale. What a key means is written by
hand; options are those of `bisect VERB --help`.
"""

import re
from pathlib import Path

import msgspec

from perfbisect.cli.main import VERBS
from perfbisect.recipes import builder, inventory, workload

DOCS = Path(__file__).parents[1] / "docs"
PAGE = DOCS / "commands.md"
BLOCK = re.compile(r"(?<=<!-- written by tests/reference.py -->\n).*?(?=<!-- end -->)", re.DOTALL)
GUIDE = DOCS / "keys.md"
TABLES: dict[str, type[msgspec.Struct]] = {  # what is above a table of keys → what has them
    "## Keys of `builder.toml`": builder.Builder,
    "\n`[variants.NAME]`": builder.Variant,
    "\n`[configs.NAME]`": builder.Config,
    "\n`[build]`": builder.Build,
    "\n`[archives.NAME]`": builder.Archive,
    "\n`[server]`": builder.Server,
    "\n`[dataset]`": builder.Dataset,
    "\n`[[when]]`": builder.When,
    "## Keys of `suite.toml`": workload.Suite,
    "\n`[workloads.NAME]`": workload.Workload,
    "\n`[hosts.NAME]`": inventory.HostEntry,
    "\n`[leases.NAME]`": inventory.LeaseEntry,
}


def written(page: str) -> str:
    """The page of commands with its list as it is now."""
    rows = "\n".join(f"- `bisect {verb}`: {text}" for verb, text in VERBS.items())
    return BLOCK.sub(lambda _: f"\n{rows}\n\n", page)


def with_keys(guide: str) -> str:
    """The guide to recipes with the keys and defaults as they are now. Raises KeyError for a key that it does not explain."""
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
    PAGE.write_text(written(PAGE.read_text()))
    GUIDE.write_text(with_keys(GUIDE.read_text()))
