"""The store of builds on a host: atomic storage, transfers between hosts, hashes of binaries, and changed files."""

import shutil
import subprocess
from pathlib import Path, PurePosixPath
from threading import Timer

import pytest

from machine import Machine
from perfbisect.core.domain.facts import BuildFacts
from perfbisect.errors import CommandFailed
from perfbisect.host.local import LocalHost
from perfbisect.host.protocol import Host
from perfbisect.host.ssh import SshHost
from perfbisect.lab.building import build_store
from perfbisect.lab.building.build_store import hash_artifacts, ship_build
from program import executable
from sharing import break_stream

pytestmark = pytest.mark.tools


FACTS = BuildFacts("c" * 40, "key", "binary", 1.0, 0, 0, reused=False, log="")


@pytest.fixture
def host(tmp_path: Path) -> LocalHost:
    (tmp_path / "log").write_text("log")
    (tmp_path / "prefix").mkdir()
    (tmp_path / "prefix" / "file").write_text("installed")
    return LocalHost("here", PurePosixPath(tmp_path))


def keep(host: LocalHost) -> None:
    build_store.add(host, FACTS, "1.0", host.root / "prefix", host.root / "log")
    kept = Path(build_store.prefix_folder(host, "key"))
    assert (kept / "file").read_text() == "installed"
    assert build_store.find_build(host, "key", "c" * 40) is not None


@pytest.mark.parametrize("text", ["", '{"facts": {"commit": "c', "{}", None])
def test_build_is_stored_again(host: LocalHost, text: str | None) -> None:
    """If the build exists, if it cannot be read, or (None) if its storage was interrupted."""
    keep(host)
    keep(host)
    place = Path(build_store.build_folder(host, "key"))
    if text is None:
        place.rename(place.with_name("key.part"))
    else:
        (place / "build.json").write_text(text)
    assert build_store.find_build(host, "key", "c" * 40) is None
    Path(host.root, "prefix").mkdir(exist_ok=True)
    Path(host.root, "prefix", "file").write_text("installed")
    keep(host)
    assert not place.with_name("key.part").exists()


def test_files_are_synced_all_at_once(host: LocalHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One by one, the files of a large build would take longer than its linking."""
    noting = f'#!/bin/sh\necho "$*" >>{tmp_path}/synced\nexec {shutil.which("sync")} "$@"\n'
    monkeypatch.setenv("PATH", str(executable(tmp_path / "bin" / "sync", noting).parent), prepend=":")
    keep(host)
    place = build_store.build_folder(host, "key")
    synced = (tmp_path / "synced").read_text().splitlines()
    assert synced[0] == f"-f -- {host.root}/prefix {place}.part" and "prefix/file" not in "".join(synced)


SIZE = 10_000_000  # bytes: more than fits into the buffers on the way


@pytest.fixture
def near(tmp_path: Path) -> LocalHost:
    return LocalHost("near", PurePosixPath(tmp_path, "near"))


def make(host: Host) -> None:
    """Make a minimal build, which this machine can read on each host."""
    place = Path(build_store.build_folder(host, "key"))
    (place / "prefix").mkdir(parents=True)
    (place / "build.json").write_text("{}")
    (place / "log").write_bytes(b"0123456789" * (SIZE // 10))


@pytest.mark.parametrize("what", ["maker", "maker restarted", "receiver"])
def test_build_is_sent_completely_over_a_lost_connection(
    near: LocalHost, far: SshHost, machine: Machine, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lose() -> None:
        if "restarted" in what:  # at first, the machine does not answer
            machine.power_off()
            Timer(1.0, machine.power_on).start()
        else:
            machine.kill_sshd()

    maker, receiver = (near, far) if what == "receiver" else (far, near)
    make(maker)
    break_stream(monkeypatch, what == "receiver", lose)
    ship_build(maker, "b", "key", receiver)
    place = Path(build_store.build_folder(receiver, "key"))
    assert (place / "log").stat().st_size == SIZE and (place / "build.json").exists()


def test_failure_of_the_receiver_is_reported(near: LocalHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(near)
    tar = shutil.which("tar")
    fails = f'#!/bin/sh\n[ "$1" != -xf ] || {{ echo "the disk is gone" >&2; exit 2; }}\nexec {tar} "$@"\n'
    monkeypatch.setenv("PATH", str(executable(tmp_path / "bin" / "tar", fails).parent), prepend=":")
    with pytest.raises(CommandFailed, match=r"on host other, tar .*the disk is gone"):
        ship_build(near, "b", "key", LocalHost("other", PurePosixPath(tmp_path, "other")))


CODE = "int answer = 42; int f(int x) { return x + answer; } int main(void) { return f(0); }\n"


def compiled(folder: Path, name: str, code: str, *options: str) -> str:
    (folder / "a.c").write_text(code)
    subprocess.run(["gcc", "-O1", *options, "-o", str(folder / name), "a.c"], cwd=folder, check=True)
    return name


def test_hash_covers_only_loaded_sections_of_programs(host: LocalHost, tmp_path: Path) -> None:
    changes = [CODE.replace("42", "43"), CODE.replace("x +", "x -"), f"char room[1 << 20];{CODE}"]
    for shared in (("-shared", "-fPIC"), ("-no-pie",), ("-pie", "-fPIE")):

        def made(code: str, *options: str, build_id: str = "none", shared: tuple[str, ...] = shared) -> str:
            compiled(tmp_path, "out", code, *options, f"-Wl,--build-id={build_id}", *shared)
            return hash_artifacts(host, PurePosixPath(tmp_path), ["out"])

        assert made(CODE, "-g") == made(CODE, "-s") == (plain := made(CODE))
        assert plain not in [made(code) for code in changes]
        assert made(CODE, build_id="0x11") == made(CODE, build_id="0x22")


def test_hash_covers_other_files_completely(host: LocalHost, tmp_path: Path) -> None:
    relocated = CODE.replace("answer = 42", "reply = 42").replace("+ answer", "+ reply")  # only a relocation differs
    found = []
    for script, code in (("sh", CODE), ("sh", CODE), ("sh", relocated), ("bash", relocated)):
        (tmp_path / "script").write_text(f"#!/bin/{script}\n")
        (tmp_path / "empty").touch()
        compiled(tmp_path, "f.o", code, "-c")
        found.append(hash_artifacts(host, PurePosixPath(tmp_path), ["script", "empty", "f.o"]))
    assert found[0] == found[1]
    assert len(set(found)) == 3


MAKING = r"""
printf '#!/bin/sh\n' >program; chmod +x program; echo 7 >use; echo y >-rf; ln -s use link; mkdir empty full
printf y >"full/$(printf 'two\nlines')"; printf y >"full/$(printf 'caf\351')"; printf y >'full/a  b "$(c)'
"""
# The name of each change ("same: …" if the change does not count), and the commands that make the change.
CHANGES = dict(block.split("\n", 1) for block in Path(__file__).with_name("changes.txt").read_text().split("\n\n"))


@pytest.mark.parametrize("name", CHANGES)
def test_changes_of_a_build_by_its_program_are_detected(host: LocalHost, name: str) -> None:
    subprocess.run(["sh", "-ec", MAKING], cwd=host.root / "prefix", check=True)
    keep(host)
    place = build_store.build_folder(host, "key")
    assert build_store.changed_files(host, place) == ""
    subprocess.run(["sh", "-ec", CHANGES[name]], cwd=place / "prefix", check=True)
    assert (build_store.changed_files(host, place) == "") == name.startswith("same: ")
