"""A recipe for the PostgreSQL that is installed on this machine; its "builds" are configurations."""

import json
import tomllib
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from installed_servers import BIN, GIVEN, POSTGRES
from perfbisect.recipes.builder import Builder

needs_postgres = pytest.mark.skipif(not POSTGRES, reason="no PostgreSQL: apt-get install postgresql")

OPTIONS = ["-D", "{data}", "-k", "{data}", "-p", "{port}"]


def served(programs: str, start: Sequence[str]) -> str:
    """The table of a recipe for a server with its programs in the folder ``programs``."""
    table = (GIVEN / "postgres.toml").read_text()
    return table.replace("PROGRAMS", programs).replace("START", json.dumps(start))


CONFIGURED = served(str(BIN), [f"{BIN}/postgres", *OPTIONS, "-c", "config_file={prefix}/server.conf"])

RECIPE = (GIVEN / "configured.toml").read_text() + CONFIGURED

BUILDER = msgspec.convert(
    tomllib.loads(RECIPE) | {"name": "postgres", "folder": str(Path(__file__).parent / "lab")}, Builder
)

FOLDERS = ("--builders", "builders", "--workloads", "workloads", "--hosts", "hosts.toml")  # with files of ``write``

SUITE = (GIVEN / "one-row.toml").read_text()


def write(folder: Path, files: dict[str, str]) -> None:
    """Write ``files`` (path → text) below a folder."""
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
