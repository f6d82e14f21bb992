"""Comparisons of hosts: two root folders on this machine, measured by sysbench and by fio."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from perfbisect.recipes.workload import load_workloads
from program import bisect, exits
from repos import Repo

pytestmark = [pytest.mark.e2e, pytest.mark.tools]
needs_fio = pytest.mark.skipif(not shutil.which("fio"), reason="no fio: apt-get install fio")
SHORT = ["--time", "1", "--visits", "1", "--runs", "1", "--json"]


@pytest.fixture(autouse=True)
def sealed() -> None:
    """The tests of this module use the shipped recipes."""


@pytest.fixture
def places(tmp_path: Path) -> list[str]:
    entries = [f'[hosts.{name}]\nroot = "{tmp_path}/{name}"\n' for name in ("one", "two")]
    (tmp_path / "hosts.toml").write_text("\n".join(entries))
    return ["--builder", "host", "--hosts", str(tmp_path / "hosts.toml")]


BOTH = ["--host", "one", "--host", "two"]


def compared(*words: str) -> Any:
    done = bisect("compare", *words, *SHORT)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def can_use_io_uring(folder: Path) -> bool:
    """Whether fio can use io_uring, which containers often forbid."""
    argv = ["fio", "--name=a", f"--filename={folder}/u", "--size=4k", "--rw=write", "--ioengine=io_uring"]
    return subprocess.run(argv, capture_output=True, check=False).returncode == 0


@pytest.mark.slow
@needs_fio
def test_each_host_workload_compares_two_hosts(places: list[str], tmp_path: Path) -> None:
    """With direct=0, because some file systems do not support direct I/O."""
    group = {each.name: each.group for each in load_workloads() if each.driver == "host"}
    names = [name for name in group if name != "randread-uring" or can_use_io_uring(tmp_path)]
    for wanted, further in (("files", []), ("io", ["--set", "direct=0"]), ("host", [])):
        chosen = [name for name in names if group[name] == wanted]
        sizes = [] if wanted == "host" else ["--set", "size=8M"]
        result = compared(*places, *BOTH, "--workload", ",".join(chosen), *sizes, *further)
        assert [each["name"] for each in result["settings"]["subjects"]] == ["one", "two"]
        assert [row["work"] for row in result["workloads"]] == chosen
        assert all(row["ratios"][0]["ratio"] > 0 for row in result["workloads"])
        if wanted == "io":
            assert all(row["counters"]["cpu/io"][0] > 0 for row in result["workloads"])


@pytest.mark.slow
@needs_fio
def test_hosts_are_compared_by_percentiles_and_cpu_time_per_io(places: list[str]) -> None:
    for metric in ("p99", "cpu/io"):
        words = ["--workload", "randread-cached", "--set", "size=8M", "--metric", metric]
        [row] = compared(*places, *BOTH, *words)["workloads"]
        assert row["ratios"][0]["ratio"] > 0, metric


@pytest.mark.slow
def test_noise_of_one_host_is_measured(places: list[str]) -> None:
    done = bisect("noise", "one", *places, "--workload", "cpu", "--time", "1", "--visits", "2", "--runs", "1", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["settings"]["subjects"][0]["name"] == "one"


def test_host_comparison_refuses_builds_and_repeated_hosts(places: list[str], git: Repo) -> None:
    for words, sentence in (
        (["compare", "-w", "cpu", "--host", "one"], "a comparison needs at least two hosts"),
        (["compare", "-w", "cpu", "v1", *BOTH], "v1 cannot be measured"),
        (["compare", "-w", "cpu", "--host", "one", "--host", "one"], "given twice"),
        (["run", "v1", "v2", "-w", "cpu"], "no commits to search"),
        (["noise", "one", "-w", "cpu", "--rev", "v1"], "Omit --rev"),
    ):
        assert sentence in exits(3, *words, *places), words
    demo = ["--builder", "demo", *places[2:], "-w", "scan"]
    git.history([{}, {}])
    twice = ["--repo", str(git.path), "--host", "one", "--host", "one"]
    assert "Host one is given twice" in exits(3, "run", "v0", "v1", *demo, *twice)
    refused = exits(3, "compare", "v1", "v2", *demo, *BOTH)
    assert "several hosts are given" in refused, "builds are compared on one host"


@pytest.mark.slow
def test_error_of_missing_fio_names_package(places: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The PATH has all programs except fio."""
    (tmp_path / "bin").mkdir()
    for folder in ("/usr/bin", "/bin", "/usr/sbin", "/sbin"):
        for program in Path(folder).iterdir():
            link = tmp_path / "bin" / program.name
            if program.name != "fio" and not link.is_symlink():
                link.symlink_to(program)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    for words in (["doctor", "one"], ["compare", *BOTH]):
        done = bisect(*words, *places, "--workload", "randread")
        assert done.returncode == 4, done.stdout + done.stderr
        assert "fio is not installed on host one" in done.stdout + done.stderr
        assert "apt-get install fio" in done.stdout + done.stderr
