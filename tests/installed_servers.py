"""PostgreSQL and MariaDB of the distribution, started for tests of sysbench."""

import os
import shutil
import subprocess
import tempfile
import time
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest

from perfbisect.lab.workload import sysbench
from perfbisect.recipes.builder import Builder, Server
from perfbisect.recipes.placeholders import Values, fill_command, fill_text
from perfbisect.recipes.workload import Option

WORKLOADS = Path(__file__).parents[1] / "workloads"

POSTGRES = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
BIN = POSTGRES[-1] if POSTGRES else Path("/nowhere")
PATIENCE = 600.0  # seconds for a server to start or to stop, beside other tests
GIVEN = Path(__file__).parent / "given"


def recipe(name: str, folder: str = "workloads") -> Builder:
    """The builder of ``given/NAME.toml``, with the folder tests/``folder``, and with the programs of PostgreSQL."""
    text = (GIVEN / f"{name}.toml").read_text().replace("PROGRAMS", str(BIN))
    place = str(Path(__file__).parent / folder) if folder else ""
    return msgspec.convert(tomllib.loads(text) | {"name": name, "folder": place}, Builder)


POSTGRESQL, MARIADB = recipe("postgresql"), recipe("mariadb")


@dataclass(frozen=True, slots=True)
class Installed:
    """A running server, and sysbench for this server."""

    builder: Builder
    values: Values  # of the placeholders of its recipe

    @property
    def mysql(self) -> bool:
        return self.builder.driver == "mysql"

    def sql(self, text: str, database: str = "sbtest") -> str:
        """The output of the server's client for a statement, with tabs between columns."""
        data, socket, port = (str(self.values[name]) for name in ("data", "socket", "port"))
        if self.mysql:
            argv = ["mariadb", "--no-defaults", f"--socket={socket}", "--user=root", "-N", "-B", "-e", text, database]
        else:
            argv = [f"{BIN}/psql", "-h", data, "-p", port, "-U", "bench", "-AtqF", "\t", "-c", text, database]
        return subprocess.run(argv, capture_output=True, text=True, check=True).stdout

    def create(self, database: str) -> None:
        """Create an empty database."""
        self.sql(f"create database {database}", "mysql" if self.mysql else "postgres")

    def status(self, *names: str) -> list[int]:
        """The present values of these status variables of MySQL."""
        asked = f"show global status where variable_name in {names}"
        found = dict(line.split("\t") for line in self.sql(asked, "mysql").splitlines())
        return [int(found[name]) for name in names]

    def sysbench(self, argv: list[str], **variables: str) -> str:
        """The output of sysbench, which must succeed."""
        env = {**os.environ, "LUA_PATH": f"{WORKLOADS}/?.lua;{WORKLOADS}/insert-benchmark/?.lua;;", **variables}
        done = subprocess.run(argv, capture_output=True, text=True, check=False, env=env, timeout=600)
        output = done.stdout + done.stderr
        assert not (complaint := sysbench.failure_reason(output.splitlines(), done.returncode, 60)), (
            f"{complaint}\n{output}"
        )
        return output

    def options(self, database: str) -> dict[str, Option]:
        assert self.builder.server
        reach = {name: fill_text(text, self.values) for name, text in self.builder.server.sysbench.items()}
        return {"db-driver": self.builder.driver, **reach, f"{self.builder.driver}-db": database}


def installed(builder: Builder) -> bool:
    return bool(builder.server and shutil.which(builder.server.start[0]))


BUILDERS = [
    pytest.param(
        builder,
        id=builder.name,
        marks=[
            pytest.mark.skipif(not installed(builder), reason=f"no {builder.name}: apt-get install {package}"),
            pytest.mark.xdist_group(builder.name),  # tests of one builder share its server
        ],
    )
    for builder, package in ((POSTGRESQL, "postgresql"), (MARIADB, "mariadb-server"))
]


@contextmanager
def started(recipe: Server) -> Iterator[Values]:
    """Start a server in a new folder, and wait until it is ready. Yield the values of its placeholders."""
    with tempfile.TemporaryDirectory(prefix="db") as name:
        folder = Path(name)
        (folder / "data").mkdir()
        values: Values = {key: f"{folder}/{key}" for key in ("data", "socket", "pidfile")} | {"port": 5432}
        env = {**os.environ, "TMPDIR": name}  # MariaDB removes temporary tables of other servers when it starts
        user_switch = []
        if os.getuid() == 0:
            user_switch = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
            for owned in (folder, folder / "data"):
                os.chown(owned, 65534, 65534)
        for command in recipe.initialise:
            argv = [*user_switch, *fill_command(command, values)]
            done = subprocess.run(argv, check=False, capture_output=True, text=True, cwd=folder, env=env)
            assert done.returncode == 0, done.stdout + done.stderr
        with (folder / "log").open("w") as log:
            argv = [*user_switch, *fill_command(recipe.start, values)]
            process = subprocess.Popen(argv, stdout=log, stderr=log, cwd=folder, env=env)
        try:
            deadline = time.monotonic() + PATIENCE
            while subprocess.run(fill_command(recipe.ready, values), check=False, capture_output=True).returncode:
                assert process.poll() is None and time.monotonic() < deadline, (folder / "log").read_text()
                time.sleep(0.1)
            yield values
        finally:
            process.terminate()
            process.wait(PATIENCE)
