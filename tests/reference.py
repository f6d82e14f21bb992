"""The tables of docs/commands.md that the program itself knows: verbs, and the options of `bisect run`.

`.venv/bin/python tests/reference.py` writes them; tests/test_docs.py says when they are stale.
"""

import re
from pathlib import Path

import click

from perfbisect.cli.main import VERBS, bisect

PAGE = Path(__file__).parents[1] / "docs" / "commands.md"
BLOCK = re.compile(r"(<!-- (\w+): written by tests/reference.py -->\n).*?(<!-- end -->)", re.DOTALL)
RANGE = re.compile(r" RANGE\b|  \[\d+<=x<=\d+\]")  # that a number of any usual size is allowed says nothing


def verbs() -> list[str]:
    """A row for each verb: its name and the line of `bisect --help`."""
    return ["| command | |", "|---|---|", *(f"| `bisect {name}` | {text} |" for name, text in VERBS.items())]


def options() -> list[str]:
    """A row for each option of `bisect run`: its names and what its help says."""
    context = click.Context(bisect)
    run = bisect.get_command(context, "run")
    assert run is not None
    records = [each.get_help_record(context) for each in run.params if isinstance(each, click.Option)]
    rows = [
        [cell.replace("|", r"\|") for cell in RANGE.sub("", "\0".join(each)).split("\0")] for each in records if each
    ]
    return ["| option of `run` | |", "|---|---|", *(f"| `{names}` | {text} |" for names, text in rows)]


def written(page: str) -> str:
    """The page with its tables as they are now."""
    tables = {"verbs": verbs, "options": options}
    return BLOCK.sub(lambda match: "\n".join([match[1], *tables[match[2]](), "", match[3]]), page)


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text()))
