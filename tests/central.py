"""A real PostgreSQL server for tests. Its databases are central histories."""

import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg

from installed_servers import BIN
from perfbisect.store.central import central_schema_sql

RUN_AS = {"user": "nobody", "group": "nogroup", "extra_groups": []} if os.geteuid() == 0 else {}


@dataclass
class Server:
    """A PostgreSQL server that listens on a loopback port, so that tests can cut its connections."""

    folder: Path
    port: int

    def control(self, *words: str) -> None:
        """Start, stop or restart the server with pg_ctl."""
        options = f"-p {self.port} -k {self.folder} -c listen_addresses=127.0.0.1 -c fsync=off"
        place = ["-D", str(self.folder / "data"), "-l", str(self.folder / "log")]
        command = [str(BIN / "pg_ctl"), "-w", "-t", "600", *place, "-o", options]
        subprocess.run([*command, *words], check=True, stdout=subprocess.DEVNULL, **RUN_AS)

    def address(self, database: str, user: str = "bench", port: int = 0) -> str:
        """The URL of a database for a user."""
        return f"postgresql://{user}@127.0.0.1:{port or self.port}/{database}"

    def create(self, name: str) -> str:
        """Create a central history, and return its URL."""
        with psycopg.connect(self.address("postgres"), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}".encode())
        with psycopg.connect(self.address(name), autocommit=True) as connection:
            connection.execute("\n".join(central_schema_sql()).encode())
        return self.address(name)


@contextmanager
def served() -> Iterator[Server]:
    """A new server, which is stopped and removed at the end."""
    folder = Path(tempfile.mkdtemp(prefix="perfbisect-central-"))
    if RUN_AS:
        shutil.chown(folder, "nobody", "nogroup")
    how = ("-A", "trust", "-U", "bench", "--no-sync", "--locale=C.UTF-8")
    initialise = [str(BIN / "initdb"), "-D", str(folder / "data"), *how]
    subprocess.run(initialise, check=True, stdout=subprocess.DEVNULL, **RUN_AS)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    server = Server(folder, port)
    try:
        server.control("start")
        yield server
    finally:
        server.control("-m", "immediate", "stop")
        shutil.rmtree(folder)
