"""Builds compared on another machine: commits are built there, a tarball travels there, a folder is there."""

import json
import subprocess
from pathlib import Path

import pytest

from machine import Machine
from perfbisect.demo.history import write_history
from program import bisect

pytestmark = [pytest.mark.e2e, pytest.mark.tools, pytest.mark.slow]

MAKE = "git -C {repo} checkout -q {tag} && make -s -f {repo}/Makefile install PREFIX={prefix} CC=gcc CFLAGS=-O2"


def test_commits_and_prebuilt_binaries_on_another_machine(machine: Machine, tmp_path: Path) -> None:
    repo, there = tmp_path / "repo", machine.folder / "opt"
    write_history(repo, 6)
    for tag, prefix in (("v1.0", tmp_path / "demo-1.0"), ("v1.1", there / "demo-1.1")):
        build = tmp_path / f"build-{tag}"
        build.mkdir()
        subprocess.run(["sh", "-c", MAKE.format(repo=repo, tag=tag, prefix=prefix)], cwd=build, check=True)
    subprocess.run(["tar", "-C", str(tmp_path), "-czf", "demo.tar.gz", "demo-1.0"], cwd=tmp_path, check=True)
    builds = [f"old={tmp_path / 'demo.tar.gz'}", f"new={there / 'demo-1.1'}"]
    words = ["compare", "v1.1", *builds, "v1.0", "--repo", str(repo), "--builder", "demo", "--host", "far"]
    words += ["--workload", "update-index"]
    asked = ["--visits", "2", "--runs", "1", "--warmup", "0.1", "--metric", "cpu/o", "--json"]
    done = bisect(*words, *asked)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    [row] = told["workloads"]
    old, new, built = (ratio["ratio"] for ratio in row["ratios"])
    assert max(old, built) < 0.85 < new, "relative to the slow one"
    assert told["host"]["name"] == "far"
    kept = Path(machine.root, "builds", told["settings"]["subjects"][1]["key"], "prefix", "lib", "libdemo.so")
    assert kept.is_file()

    words[3] = "new=relative"
    refused = bisect(*words, *asked)
    assert refused.returncode == 3
    assert "does not begin with /" in refused.stderr
    words[3] = "new=/opt/nothing-there"
    refused = bisect(*words, *asked)
    assert refused.returncode == 3
    assert "no folder /opt/nothing-there on host far" in refused.stderr
