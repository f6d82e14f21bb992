"""Programs that write to the files that time them, or are killed below perf, which hides the signal."""

from collections.abc import Callable
from pathlib import Path

import pytest

from labs import bench_lab, measure, runs, skipped, warnings
from perfbisect.core.domain.orders import Share
from perfbisect.errors import RunLost
from perfbisect.host.local import LocalHost
from perfbisect.lab.host_lab import HostLab
from perfbisect.lab.measure import perf
from perfbisect.lab.measure.perf import parse_vmstat

Lab = Callable[[str], HostLab]


@pytest.fixture
def lab(host: LocalHost, tmp_path: Path, git: Callable[..., str]) -> Lab:
    git("commit", "-q", "--allow-empty", "-m", "change")
    sha, folder = git("rev-parse", "HEAD"), tmp_path / "repo"

    def with_command(script: str) -> HostLab:
        return bench_lab(host, folder, sha, command=["sh", "-c", script, "bench", "{data}/.."])

    return with_command


FORGED = {
    "words": "a b c\\n",
    "form feeds": "\\f\\f1 2 3\\f\\n",
    "no numbers": "nan inf -1e400\\n",
    "lines": "1 2 3\\n1 2 3\\n1 2 3\\n",
    "long numbers": "9" * 400 + " 1 1\\n",
    "zeros": "\\0\\0\\0",
    "nothing": "",
}


@pytest.mark.tools
@pytest.mark.parametrize("text", FORGED.values(), ids=FORGED)
def test_a_program_that_writes_to_the_files_that_time_it(lab: Lab, text: str) -> None:
    """It is measured, or the run is lost: there is no third end, and it is never a bug."""
    script = f"""
        for file in time clock counters vmstat iostat; do printf '{text}' >"$1/$file"; done; echo ops/s: 7
    """
    try:
        assert [run.reported for run in runs(measure(lab(script), Share(0, 1)))] == [7]
    except RunLost as lost:
        assert "the begin and the end of a run could not be written" in str(lost)


def test_only_numbers_are_read_from_these_files() -> None:
    assert perf.read_stamps("nan 1 2\n1 2 3 4\n-1 2 3\n1.5 2 3\n") == (perf.Stamp(1.5, 2, 3),)
    assert perf.parse("nan,,instructions,1,1\ninf,,cycles,1,1\n-5,,branches,1,1\n7,,task-clock,1,1\n") == {
        "instructions": None, "cycles": None, "branches": None, "task-clock": 7,
    }  # fmt: skip
    assert parse_vmstat([" r  b us", " 1 0 5", " nan 0 5", " inf 0 5", " 2 0 5"]) == [{"r": 2, "b": 0, "us": 5}]


@pytest.mark.tools
@pytest.mark.parametrize("signal", ["KILL", "TERM", "HUP"])
def test_a_kill_of_what_perf_started_is_not_the_commits_fault(lab: Lab, tmp_path: Path, signal: str) -> None:
    """perf ends with 0 then; the first time only, so the run is repeated."""
    script = f"""
        if [ ! -e {tmp_path}/killed ]; then : >{tmp_path}/killed; kill -{signal} $PPID; sleep 2; fi; echo ops/s: 7
    """
    events = measure(lab(script), Share(0, 1))
    assert [run.reported for run in runs(events)] == [7]
    assert len(warnings(events)) == 1
    assert "ended without an exit status: it is repeated" in warnings(events)[0]


@pytest.mark.parametrize(
    ("line", "outside"),
    [
        ("sysbench: Killed", True),
        ("sh: Terminated", True),
        ("sysbench: Segmentation fault", False),
        ("x sh: Killed", False),
    ],
)
def test_only_signals_that_may_come_from_outside_lose_a_run(line: str, outside: bool) -> None:
    """sysbench that crashes by itself is the commit's fault."""
    assert perf.killed(["a line", line]) is outside


@pytest.mark.tools
def test_what_perf_would_say_counts_only_from_perf(lab: Lab) -> None:
    events = measure(lab("echo 'sh: Killed' >&2; echo ops/s: 7"), Share(0, 1))
    assert ([run.reported for run in runs(events)], warnings(events)) == ([7], [])
    failed = measure(lab("echo 'sh: Killed' >&2; exit 3"), Share(0, 1))
    assert skipped(failed).reason == "it ended with status 3: sh: Killed"
