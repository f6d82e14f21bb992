"""A place of labgrid is leased by a real coordinator, of which an exporter says where the machine is."""

import json
import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from program import bisect, bisect_until
from waiting import until

LACKING = [name for name in ("labgrid-coordinator", "labgrid-exporter", "labgrid-client") if not shutil.which(name)]

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.tools,
    pytest.mark.slow,
    pytest.mark.xdist_group("labgrid"),
    pytest.mark.skipif(bool(LACKING), reason=f"no {LACKING[0] if LACKING else '-'}: pip install labgrid"),
]

HOSTS = """
[leases.labgrid]
extends = "labgrid"
[leases.labgrid.host]
root = "{folder}/root"
through = ["env"] # the place is this machine, which has no sshd of labgrid's
"""


class Lab:
    """A coordinator with one place, box, whose tags are board=quiet and arch=any."""

    def __init__(self, folder: Path) -> None:
        with closing(socket.socket()) as one:
            one.bind(("127.0.0.1", 0))
            self.address = f"127.0.0.1:{one.getsockname()[1]}"
        (folder / "exporter.yaml").write_text("box:\n  NetworkService:\n    address: 127.0.0.1\n    username: root\n")
        self.daemons: list[subprocess.Popen[bytes]] = []
        self.folder = folder
        try:
            self._daemon("labgrid-coordinator", "-l", self.address)
            until(lambda: self._client("places") is not None)
            self._daemon("labgrid-exporter", "-c", self.address, "-n", "here", "exporter.yaml")
            until(lambda: self._client("resources"))
            for words in (
                ["create"],
                ["add-match", "here/box/NetworkService"],
                ["set-tags", "board=quiet", "arch=any"],
            ):
                assert self._client("-p", "box", *words) is not None
        except BaseException:
            self.end()
            raise

    def _daemon(self, *command: str) -> None:
        out = subprocess.DEVNULL
        self.daemons.append(subprocess.Popen(command, cwd=self.folder, stdin=out, stdout=out, stderr=out))

    def _client(self, *words: str) -> str | None:
        done = subprocess.run(
            ["labgrid-client", "-x", self.address, *words], capture_output=True, text=True, check=False, timeout=60
        )
        return done.stdout if done.returncode == 0 else None

    def used(self) -> str:
        """What is acquired, and what is reserved."""
        return "\n".join((self._client("who") or "").splitlines()[1:]) + (self._client("reservations") or "")

    def end(self) -> None:
        for daemon in reversed(self.daemons):
            daemon.terminate()
            daemon.wait()


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    made = Lab(tmp_path_factory.mktemp("labgrid"))
    yield made
    made.end()


@pytest.fixture
def lab(running: Lab, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Lab:
    monkeypatch.setenv("LG_COORDINATOR", running.address)
    (tmp_path / "hosts.toml").write_text(HOSTS.format(folder=tmp_path))
    assert running.used() == ""
    return running


def doctor(folder: Path) -> list[str]:
    return ["doctor", "labgrid:board=quiet,arch=any", "--hosts", str(folder / "hosts.toml"), "--json"]


def test_a_place_is_reserved_acquired_and_released(lab: Lab, tmp_path: Path) -> None:
    done = bisect(*doctor(tmp_path))
    assert json.loads(done.stdout)["host"]["settings"]["node"] == "127.0.0.1", done.stderr
    assert lab.used() == ""


def test_sessions_wait_for_each_other(lab: Lab, tmp_path: Path) -> None:
    """One that is killed leaves its place, or its reservation, to the next session."""
    acquire = {"LG_HOSTNAME": "them", "LG_USERNAME": "other"}
    other = ["labgrid-client", "-p", "box"]
    subprocess.run([*other, "acquire"], env=os.environ | acquire, check=True, capture_output=True)
    seen = []

    def kill(process: subprocess.Popen[str]) -> None:
        seen.append(lab.used())
        process.send_signal(signal.SIGKILL)

    assert bisect_until(doctor(tmp_path), "Waiting for labgrid:", kill).returncode == -signal.SIGKILL
    assert "state: waiting" in seen[0]

    def free(_: object) -> None:
        subprocess.run([*other, "release"], env=os.environ | acquire, check=True, capture_output=True)

    done = bisect_until(doctor(tmp_path), "Waiting for labgrid:", free)
    assert "was left by a session that has ended, and is released" in done.stderr
    assert json.loads(done.stdout)["host"]["settings"]["node"] == "127.0.0.1"
    assert lab.used() == ""
