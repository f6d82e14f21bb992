"""The PostgreSQL that this machine has, by a recipe of a few lines; its "builds" are configurations."""

import json
import tomllib
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from perfbisect.recipes.builder import Build, Builder, Server, Variant

POSTGRES = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"))
BIN = POSTGRES[-1].parent if POSTGRES else Path()
needs_postgres = pytest.mark.skipif(not POSTGRES, reason="no PostgreSQL: apt-get install postgresql")

OPTIONS = ["-D", "{data}", "-k", "{data}", "-p", "{port}"]
AT = ["-h", "{data}", "-p", "{port}", "-U", "bench"]


def served(programs: str, start: Sequence[str]) -> str:
    """The recipe's table for a server with its programs in that folder."""
    return f"""
[server]
initialise = [["{programs}/initdb", "-D", "{{data}}", "-A", "trust", "-U", "bench", "--no-sync"]]
start = {json.dumps(start)}
ready = ["{programs}/pg_isready", "-q", "-h", "{{data}}", "-p", "{{port}}"]
create = [{json.dumps([f"{programs}/createdb", *AT, "bench"])}]
refuses_root = true
ready_timeout = 600
stop_timeout = 600
[server.sysbench]
pgsql-host = "{{data}}"
pgsql-port = "{{port}}"
pgsql-user = "bench"
pgsql-db = "bench"
"""


CONFIGURED = served(str(BIN), [f"{BIN}/postgres", *OPTIONS, "-c", "config_file={prefix}/server.conf"])

RECIPE = f"""
summary = "an installed PostgreSQL; what is built is its configuration"
driver = "pgsql"
[variants.o2nofp]
[build]
compile = [["true"]]
install = [["install", "-D", "-m", "644", "{{source}}/server.conf", "{{prefix}}/server.conf"]]
artifacts = ["server.conf"]
{CONFIGURED}
"""

BUILDER = Builder(
    name="postgres",
    folder=str(Path(__file__).parent / "lab"),
    summary="",
    driver="pgsql",
    variants={"o2nofp": Variant()},
    build=Build(
        compile=[["true"]],
        install=[["install", "-D", "-m", "644", "{source}/server.conf", "{prefix}/server.conf"]],
        artifacts=["server.conf"],
    ),
    server=msgspec.convert(tomllib.loads(CONFIGURED)["server"], Server),
)

FOLDERS = ("--builders", "builders", "--workloads", "workloads", "--hosts", "hosts.toml")  # with the files of ``write``

SUITE = """
summary = "one row"
driver = "pgsql"
[workloads.one-row]
summary = "one row by its key"
group = "point"
prepare = "create table t (id int primary key, k int); insert into t select i, i from generate_series(1, 2000) i;"
statement = "select k from t where id = 777"
warmup = 0.1
time = 1
"""


def write(folder: Path, files: dict[str, str]) -> None:
    """Write these texts below a folder."""
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
