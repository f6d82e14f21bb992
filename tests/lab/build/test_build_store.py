"""A build appears in one step, also when that is taken twice or was cut short; it travels whole; equal builds have one hash."""

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
from perfbisect.lab.build import build_store
from perfbisect.lab.build.build_store import hash_artifacts, ship
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
    build_store.keep(host, FACTS, "1.0", host.root / "prefix", host.root / "log")
    kept = Path(build_store.prefix(host, "key"))
    assert (kept / "file").read_text() == "installed"
    assert build_store.find(host, "key", "c" * 40) is not None


def test_once_is_as_good_as_twice(host: LocalHost) -> None:
    keep(host)
    keep(host)


def test_what_was_cut_short_is_finished(host: LocalHost) -> None:
    keep(host)
    place = Path(build_store.folder(host, "key"))
    place.rename(place.with_name("key.part"))
    keep(host)
    assert not place.with_name("key.part").exists()


@pytest.mark.parametrize("text", ["", '{"facts": {"commit": "c', "{}"])
def test_a_build_that_cannot_be_read_is_made_anew(host: LocalHost, text: str) -> None:
    keep(host)
    Path(build_store.folder(host, "key"), "build.json").write_text(text)
    assert build_store.find(host, "key", "c" * 40) is None
    Path(host.root, "prefix").mkdir()
    Path(host.root, "prefix", "file").write_text("installed")
    keep(host)


SIZE = 10_000_000  # bytes: more than fits into the buffers on the way


@pytest.fixture
def near(tmp_path: Path) -> LocalHost:
    return LocalHost("near", PurePosixPath(tmp_path, "near"))


def make(host: Host) -> None:
    """A build, as far as it matters here. It can be read everywhere on this machine."""
    place = Path(build_store.folder(host, "key"))
    (place / "prefix").mkdir(parents=True)
    (place / "build.json").write_text("{}")
    (place / "log").write_bytes(b"0123456789" * (SIZE // 10))


def is_whole(host: Host) -> bool:
    place = Path(build_store.folder(host, "key"))
    return (place / "log").stat().st_size == SIZE and (place / "build.json").exists()


@pytest.mark.parametrize("restarted", [False, True])
def test_a_lost_maker_is_asked_again(
    near: LocalHost, far: SshHost, machine: Machine, restarted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    maker = far
    make(maker)
    break_stream(monkeypatch, False, lambda: lose(machine, restarted))
    ship(maker, "b", "key", near)
    assert is_whole(near)


def test_a_lost_receiver_is_sent_everything_again(
    near: LocalHost, far: SshHost, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = far
    make(near)
    break_stream(monkeypatch, True, machine.kill_sshd)
    ship(near, "b", "key", host)
    assert is_whole(host)


def lose(machine: Machine, restarted: bool) -> None:
    if restarted:  # nobody answers at first
        machine.power_off()
        Timer(1.0, machine.power_on).start()
    else:
        machine.kill_sshd()


def test_a_receiver_that_cannot_go_on_says_why(
    near: LocalHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(near)
    tar = tmp_path / "bin" / "tar"
    tar.parent.mkdir()
    tar.write_text(
        f'#!/bin/sh\n[ "$1" != -xf ] || {{ echo "the disk is gone" >&2; exit 2; }}\nexec {shutil.which("tar")} "$@"\n'
    )
    tar.chmod(0o755)
    monkeypatch.setenv("PATH", str(tar.parent), prepend=":")
    with pytest.raises(CommandFailed, match=r"on host other, tar .*the disk is gone"):
        ship(near, "b", "key", LocalHost("other", PurePosixPath(tmp_path, "other")))


CODE = "int answer = 42; int f(int x) { return x + answer; } int main(void) { return f(0); }\n"


def compiled(folder: Path, name: str, code: str, *options: str) -> str:
    (folder / "a.c").write_text(code)
    subprocess.run(["gcc", "-O1", *options, "-o", str(folder / name), "a.c"], cwd=folder, check=True)
    return name


def test_only_what_is_loaded_counts(host: LocalHost, tmp_path: Path) -> None:
    def made(code: str, *options: str) -> str:
        return hash_artifacts(host, PurePosixPath(tmp_path), [compiled(tmp_path, "out", code, *options)])

    for shared in (("-shared", "-fPIC"), ("-no-pie",), ("-pie", "-fPIE")):
        plain = made(CODE, "-Wl,--build-id=none", *shared)
        assert made(CODE, "-g", "-Wl,--build-id=none", *shared) == plain
        assert made(CODE, "-s", "-Wl,--build-id=none", *shared) == plain
        assert made(CODE.replace("42", "43"), "-Wl,--build-id=none", *shared) != plain
        assert made(CODE.replace("x +", "x -"), "-Wl,--build-id=none", *shared) != plain
        assert made(f"char room[1 << 20];{CODE}", "-Wl,--build-id=none", *shared) != plain
        with_id = made(CODE, "-Wl,--build-id=0x11", *shared)
        assert made(CODE, "-Wl,--build-id=0x22", *shared) == with_id


def test_other_files_count_as_a_whole(host: LocalHost, tmp_path: Path) -> None:
    (tmp_path / "script").write_text("#!/bin/sh\n")
    (tmp_path / "empty").touch()
    compiled(tmp_path, "f.o", CODE, "-c")
    first = hash_artifacts(host, PurePosixPath(tmp_path), ["script", "empty", "f.o"])
    assert hash_artifacts(host, PurePosixPath(tmp_path), ["script", "empty", "f.o"]) == first
    compiled(tmp_path, "f.o", CODE.replace("answer = 42", "reply = 42").replace("+ answer", "+ reply"), "-c")
    second = hash_artifacts(host, PurePosixPath(tmp_path), ["script", "empty", "f.o"])
    assert second != first  # only a relocation differs
    (tmp_path / "script").write_text("#!/bin/bash\n")
    assert hash_artifacts(host, PurePosixPath(tmp_path), ["script", "empty", "f.o"]) != second


def test_an_absent_artifact_is_named(host: LocalHost, tmp_path: Path) -> None:
    (tmp_path / "there").touch()
    (tmp_path / "folder").mkdir()
    with pytest.raises(FileNotFoundError, match="lib/x y"):
        hash_artifacts(host, PurePosixPath(tmp_path), ["there", "lib/x y"])
    with pytest.raises(FileNotFoundError, match="folder"):
        hash_artifacts(host, PurePosixPath(tmp_path), ["folder"])


MAKING = r"""
printf '#!/bin/sh\n' >program; chmod +x program; echo 7 >use; echo y >-rf; ln -s use link; mkdir empty full
printf y >"full/$(printf 'two\nlines')"; printf y >"full/$(printf 'caf\351')"; printf y >'full/a  b "$(c)'
"""
CHANGES = {
    "another content": "echo 8 >>use",
    "another content of the same size and time": "touch -r use t && printf '8\n' 1<>use && touch -r t use",
    "another file of the same size and time": "printf '8\n' >t && touch -r use t && mv t use",
    "a file that is gone": "rm use",
    "a file that cannot be executed": "chmod a-x program",
    "a link that leads elsewhere": "ln -sfn program link",
    "an empty folder that is gone": "rmdir empty",
    "a folder for a link to one like it": "cp -a full t && rm -r full && ln -s t full",
    "a name with a newline": 'for file in full/*; do case $file in *"\n"*) echo x >"$file";; esac; done',
    "a name that is not UTF-8": "echo x >\"full/$(printf 'caf\\351')\"",
    "a name that begins with -": "echo x >-rf",
    "everything in the folder": "rm -rf ./* .[!.]*",
    "the folder": 'rm -rf "$PWD"',
    "its times": "touch use full",
    "a copy in its place": "cp use t && mv t use",
    "what is no file of the build": "echo x >new; mkdir -p full/new",
}
NO_CHANGES = {"its times", "a copy in its place", "what is no file of the build"}


@pytest.mark.parametrize("name", CHANGES)
def test_what_a_program_changes_in_its_build(host: LocalHost, name: str) -> None:
    subprocess.run(["sh", "-ec", MAKING], cwd=host.root / "prefix", check=True)
    keep(host)
    place = build_store.folder(host, "key")
    assert build_store.changes(host, place) == ""
    subprocess.run(["sh", "-ec", CHANGES[name]], cwd=place / "prefix", check=True)
    assert (build_store.changes(host, place) == "") == (name in NO_CHANGES)
