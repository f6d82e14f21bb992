"""The culprit is the commit that moves a submodule; without the submodule the hunt ends with the command that brings it."""

import shutil
from pathlib import Path

import pytest

from program import bisect, rows
from repos import Repo

COMMANDS = ["--build", "cp {source}/lib/speed .", "--run", "sh -c 'echo rate $(($(cat speed) + $(od -An -N1 -tu1 /dev/urandom) % 9))'",
            "--rate", r"rate (\d+)"]  # fmt: skip


@pytest.mark.e2e
@pytest.mark.slow
def test_a_submodule_made_it_slower(tmp_path: Path) -> None:
    lib, git = Repo(tmp_path / "lib"), Repo(tmp_path / "repo")
    repo = git.path
    speeds = [lib.commit({"speed": f"{speed}\n"}) for speed in (1001, 1000, 700, 701)]
    git.add_module("../lib", "lib", speeds[0])
    git("config", "remote.origin.url", str(tmp_path / "repo"))
    hashes = [git.commit({"code": "1"})]
    hashes += [git.move_module("lib", speed) for speed in speeds[1:]]
    shutil.rmtree(repo / "lib")
    shutil.rmtree(repo / ".git/modules")
    hunt = ["run", hashes[0], hashes[-1], "--repo", str(repo), *COMMANDS]
    dry = bisect(*hunt, "--dry-run")
    assert dry.returncode == 0, dry.stderr
    assert f"# lib at {speeds[3][:10]}: fetched from {lib.path}" in dry.stdout
    found = bisect(*hunt, "--no-explain", "--history", str(tmp_path / "h.db"), "--plain")
    assert found.returncode == 0, found.stdout + found.stderr
    assert rows(tmp_path / "h.db", "select culprit from culprits") == [(hashes[2],)]

    missing = git.move_module("lib", "1234512345" * 4)
    done = bisect("run", hashes[0], missing, "--repo", str(repo), *COMMANDS, "--history", str(tmp_path / "h.db"))
    assert done.returncode == 4
    said = done.stdout + done.stderr
    assert (
        f"because the bad end, {missing[:10]}, cannot be built: {missing[:10]} cannot be checked out: submodule lib"
        in said
    )
    assert f"git -C {repo} submodule update --init lib" in said
