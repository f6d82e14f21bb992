"""A real PostgreSQL, with central histories in it."""

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

AS = {"user": "nobody", "group": "nogroup", "extra_groups": []} if os.geteuid() == 0 else {}


@dataclass
class Server:
    """One that listens on a loopback port, so that its connections can be cut."""

    folder: Path
    port: int

    def control(self, *words: str) -> None:
        """Have pg_ctl start, stop or restart it."""
        options = f"-p {self.port} -k {self.folder} -c listen_addresses=127.0.0.1 -c fsync=off"
        place = ["-D", str(self.folder / "data"), "-l", str(self.folder / "log")]
        command = [str(BIN / "pg_ctl"), "-w", "-t", "600", *place, "-o", options]
        subprocess.run([*command, *words], check=True, stdout=subprocess.DEVNULL, **AS)

    def address(self, database: str, user: str = "bench", port: int = 0) -> str:
        """Of a database, for a user."""
        return f"postgresql://{user}@127.0.0.1:{port or self.port}/{database}"

    def create(self, name: str) -> str:
        """Make a central history; returns its address."""
        with psycopg.connect(self.address("postgres"), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}".encode())
        with psycopg.connect(self.address(name), autocommit=True) as connection:
            connection.execute("\n".join(central_schema_sql()).encode())
        return self.address(name)


@contextmanager
def served() -> Iterator[Server]:
    """Started, and stopped at the end."""
    folder = Path(tempfile.mkdtemp(prefix="perfbisect-central-"))
    if AS:
        shutil.chown(folder, "nobody", "nogroup")
    how = ("-A", "trust", "-U", "bench", "--no-sync", "--locale=C.UTF-8")
    initialise = [str(BIN / "initdb"), "-D", str(folder / "data"), *how]
    subprocess.run(initialise, check=True, stdout=subprocess.DEVNULL, **AS)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    server = Server(folder, port)
    try:
        server.control("start")
        yield server
    finally:
        server.control("-m", "immediate", "stop")
        shutil.rmtree(folder)
