import subprocess
from pathlib import Path, PurePosixPath

import pytest

from perfbisect.host.local import LocalHost
from perfbisect.lab.build.build_store import hash_artifacts

pytestmark = pytest.mark.tools

CODE = "int answer = 42; int f(int x) { return x + answer; } int main(void) { return f(0); }\n"


@pytest.fixture
def host(tmp_path: Path) -> LocalHost:
    return LocalHost("here", PurePosixPath(tmp_path))


def compiled(folder: Path, name: str, code: str, *options: str) -> str:
    (folder / "a.c").write_text(code)
    subprocess.run(["gcc", "-O1", *options, "-o", str(folder / name), "a.c"], cwd=folder, check=True)
    return name


def test_only_what_is_loaded_counts(host: LocalHost, tmp_path: Path) -> None:
    def made(code: str, *options: str) -> str:
        return hash_artifacts(host, host.root, [compiled(tmp_path, "out", code, *options)])

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
    first = hash_artifacts(host, host.root, ["script", "empty", "f.o"])
    assert hash_artifacts(host, host.root, ["script", "empty", "f.o"]) == first
    compiled(tmp_path, "f.o", CODE.replace("answer = 42", "reply = 42").replace("+ answer", "+ reply"), "-c")
    second = hash_artifacts(host, host.root, ["script", "empty", "f.o"])
    assert second != first  # only a relocation differs
    (tmp_path / "script").write_text("#!/bin/bash\n")
    assert hash_artifacts(host, host.root, ["script", "empty", "f.o"]) != second


def test_an_absent_artifact_is_named(host: LocalHost, tmp_path: Path) -> None:
    (tmp_path / "there").touch()
    (tmp_path / "folder").mkdir()
    with pytest.raises(FileNotFoundError, match="lib/x y"):
        hash_artifacts(host, host.root, ["there", "lib/x y"])
    with pytest.raises(FileNotFoundError, match="folder"):
        hash_artifacts(host, host.root, ["folder"])
