"""The whole lab on a small library in C: real git, gcc, ccache, sysbench and perf."""

import dataclasses
import os
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from labs import BUILDER, FAST, SLOW, Open, finished, measure, runs, skipped
from perfbisect.core.domain.events import (
    BuildFinished,
    BuildProgress,
    BuildStarted,
    LabEvent,
    RunFinished,
    RunProgress,
    RunStarted,
)
from perfbisect.core.domain.metrics import metric_value
from perfbisect.core.domain.orders import Measure, PlannedRuns, Purpose
from perfbisect.host import jobs
from perfbisect.host.local import LocalHost
from perfbisect.lab.upkeep import tidy_after_killed_sessions
from perfbisect.recipes.builder import DataFormat
from perfbisect.recipes.inventory import HostEntry
from waiting import processes, until

pytestmark = pytest.mark.tools


def test_runs_of_two_builds_alternate_and_report_all_counters(open_lab: Open, host: LocalHost) -> None:
    lab = open_lab({"rest": 0}, entry=HostEntry(name="here", client_cpus="0"))
    lab = dataclasses.replace(lab, workload=replace(lab.workload, warmup=1.0))
    events = measure(lab, PlannedRuns(SLOW, 2), PlannedRuns(FAST, 1))
    assert isinstance(events[0], BuildStarted)
    assert [event.number for event in events if isinstance(event, RunStarted)] == [1, 2, 3]
    assert [candidate for candidate, _ in finished(events)] == [SLOW, FAST, SLOW]
    first, fast, second = found = runs(events)
    assert first.visit != second.visit, "an embedded library starts afresh for each run"
    assert first.commit == second.commit != fast.commit
    cost, twice = metric_value(fast, "cpu/o"), metric_value(first, "cpu/o")
    assert cost and twice, "CPU time, which other tests on this machine hardly change"
    assert twice / cost == pytest.approx(2, rel=0.5)
    clock = fast.counters["task-clock"]
    assert clock and clock <= 1000 * fast.seconds * 1.02, "perf counted only the measured window"
    assert any(set(run.system) >= {"us", "cs"} for run in found), "vmstat, which may be late on a busy machine"
    assert len(fast.samples) == 1, "one for each second of the window: the warm-up is not part of it"
    assert fast.dataset
    assert not list(Path(host.root, "jobs").iterdir()), "folders of ended jobs are removed"
    assert not jobs.running_jobs(host)


@pytest.mark.slow
def test_lab_builds_after_its_work_folder_was_removed(open_lab: Open, host: LocalHost) -> None:
    """A clean-up removes the folder, but not the repository on the host, with git's index of the removed checkout."""
    measure(open_lab(), PlannedRuns(FAST, 0))
    shutil.rmtree(Path(host.root, "work"))
    assert len(finished(measure(open_lab(), PlannedRuns(SLOW, 0), PlannedRuns(FAST, 1)))) == 1


def test_jobs_of_a_killed_session_are_ended_with_a_warning(host: LocalHost) -> None:
    jobs.start(host, ["sleep", "100"], name="server", timeout=100)
    orphan = jobs.start(host, ["sleep", "99.87"], name="run", timeout=100)
    # Otherwise the leader of the job may be killed before it starts a program.
    until(lambda: "sleep\x0099.87\0" in processes("99.87").values())
    os.kill(orphan.pid, signal.SIGKILL)
    assert [event.text for event in tidy_after_killed_sessions(host)] == [
        "2 jobs of an earlier session on host here, a load and a server, were still running and have been ended"
    ]
    assert not (*jobs.running_jobs(host), *jobs.leaderless_jobs(host))


@pytest.mark.parametrize("interrupted", [False, True])
def test_abandoned_measurement_leaves_no_job_running(open_lab: Open, host: LocalHost, *, interrupted: bool) -> None:
    """The measurement is closed, or interrupted during a run."""
    events = open_lab().measure(Measure((PlannedRuns(FAST, 2),), Purpose.SEARCH))
    assert any(isinstance(event, RunProgress | RunFinished if interrupted else RunStarted) for event in events)
    if interrupted:
        with pytest.raises(KeyboardInterrupt):
            events.throw(KeyboardInterrupt)
    events.close()
    assert not jobs.running_jobs(host)


@pytest.mark.slow
def test_qps_needs_no_perf_or_vmstat(
    open_lab: Open, host: LocalHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bin").mkdir()
    programs = {path.name: path for folder in ("/bin", "/usr/bin") for path in Path(folder).iterdir()}
    for name in programs.keys() - {"perf", "vmstat"}:
        (tmp_path / "bin" / name).symlink_to(programs[name])
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    [run] = runs(measure(open_lab(), PlannedRuns(FAST, 1)))
    assert run.qps > 0
    assert (run.counters, run.system) == ({}, {})


def test_build_whose_format_command_fails_is_skipped(open_lab: Open) -> None:
    for command, why in (
        (["sh", "-c", "! echo no format >&2"], "dataset cannot be determined: sh ended with status 1: no format"),
        (["{prefix}/bin/tell", "{data}"], "bin/tell"),
    ):
        lab = open_lab(builder=replace(BUILDER, dataset=DataFormat(format_command=command)))
        facts = skipped(measure(lab, PlannedRuns(SLOW, 1)))
        assert facts.stage == "prepare"
        assert why in facts.reason
        assert why.rpartition(": ")[2] in Path(facts.log).read_text()


def test_next_session_waits_for_the_build_of_a_killed_session(open_lab: Open, host: LocalHost, tmp_path: Path) -> None:
    """The build waits for a file, so it still runs when the next session begins. The build needs the temporary file of
    its compiler, which the next session must not remove.
    """
    go, begun = tmp_path / "go", tmp_path / "begun"
    wait = f"touch $TMPDIR/x.s && echo >>{begun}; until [ -e {go} ]; do sleep 0.05; done; rm $TMPDIR/x.s && "
    patient = replace(BUILDER.build, compile=[["sh", "-c", wait + BUILDER.build.compile[0][2]]])

    def session() -> Iterator[LabEvent]:
        lab = open_lab(builder=replace(BUILDER, build=patient))
        return lab.measure(Measure((PlannedRuns(FAST, 0),), Purpose.SEARCH))

    killed = os.fork()
    if not killed:
        list(session())
        os._exit(0)
    until(begun.exists)
    at = time.monotonic()
    os.kill(killed, signal.SIGKILL)
    os.waitpid(killed, 0)
    [left] = jobs.running_jobs(host)
    events = []
    for event in session():
        events.append(event)
        if isinstance(event, BuildProgress) and event.stage == "compile" and not go.exists():  # the session waits
            waited = time.monotonic() - at
            go.touch()
    [facts] = [event.facts for event in events if isinstance(event, BuildFinished)]
    assert facts.seconds >= facts.phases["compile"] > waited - 0.02, "from the build's beginning, by the host's clock"
    assert begun.read_text() == "\n"
    assert jobs.running_jobs(host) == ()
    assert not Path(left.folder).exists()
