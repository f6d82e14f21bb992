"""The whole lab on a small library in C: real git, gcc, ccache, sysbench and perf."""

import dataclasses
import os
import shutil
import signal
from pathlib import Path

import pytest
from msgspec.structs import replace

from lab_events import finished, measure
from perfbisect.core.domain.events import (
    BuildStarted,
    CandidateSkipped,
    RunFinished,
    RunProgress,
    RunStarted,
)
from perfbisect.core.domain.metrics import value
from perfbisect.core.domain.orders import Measure, Purpose, Share
from perfbisect.host import jobs
from perfbisect.host.local import LocalHost
from perfbisect.lab.upkeep.leftovers import KEPT, tidy
from perfbisect.recipes.inventory import HostEntry
from small import CRASHING, FAST, SLOW, Open
from waiting import processes, until

pytestmark = pytest.mark.tools


def test_two_builds_take_turns_and_every_run_is_reported_in_full(open_lab: Open, host: LocalHost) -> None:
    lab = open_lab({"rest": 0}, entry=HostEntry(name="here", client_cpus="0"))
    lab = dataclasses.replace(lab, workload=replace(lab.workload, warmup=1.0, time=2.0))
    events = measure(lab, Share(SLOW, 2), Share(FAST, 1))
    assert [type(event) for event in events[:1]] == [BuildStarted]
    assert [event.number for event in events if isinstance(event, RunStarted)] == [1, 2, 3]
    runs = finished(events)
    assert [candidate for candidate, _ in runs] == [SLOW, FAST, SLOW]
    (_, first), (_, fast), (_, second) = runs
    assert first.visit != second.visit, "an embedded library starts afresh for each run"
    assert first.commit == second.commit != fast.commit
    cost, twice = value(fast, "cpu/o"), value(first, "cpu/o")
    assert cost and twice, "CPU time, which other tests on this machine hardly change"
    assert twice / cost == pytest.approx(2, rel=0.5)
    clock = fast.counters["task-clock"]
    assert clock is not None
    assert 1.95 < fast.seconds < 2.9, "the warm-up of a second is not part of it"
    assert clock <= 1000 * fast.seconds * 1.02, "perf counted the window and no more"
    assert any(set(run.system) >= {"us", "cs"} for _, run in runs), "vmstat, which may be late on a busy machine"
    assert len(fast.samples) == 2, "one for each second"
    assert fast.dataset
    assert not list(Path(host.root, "jobs").iterdir()), "what ended well is put away"
    assert not jobs.running(host)

    again = measure(lab, Share(FAST, 1))
    assert not [event for event in again if isinstance(event, BuildStarted)], "built once"
    assert len(finished(again)) == 1


def test_a_candidate_that_crashes_is_skipped_with_its_log(open_lab: Open, host: LocalHost) -> None:
    lab = open_lab()
    measure(lab, Share(FAST, 1))  # makes the data
    *_, last = measure(lab, Share(CRASHING, 1), Share(FAST, 1))
    assert isinstance(last, CandidateSkipped)
    assert (last.candidate, last.facts.stage) == (CRASHING, "run")
    assert "Segmentation fault" in last.facts.reason
    assert Path(last.facts.log).is_file()
    assert not jobs.running(host)


def test_folders_of_jobs_do_not_pile_up(host: LocalHost) -> None:
    left = Path(host.root, "jobs")
    for number in range(KEPT + 20):
        Path(left, f"20200101-{number:06}-run-abcdef").mkdir(parents=True)
    Path(host.root, "tmp").mkdir()
    Path(host.root, "tmp", "of a compiler that was killed").touch()
    assert list(tidy(host)) == []
    assert len(list(left.iterdir())) == KEPT
    assert not Path(host.root, "tmp").exists()


def test_where_builds_are_made_may_be_cleared_away(open_lab: Open, host: LocalHost) -> None:
    """As a clean-up does it; the repository on the host, with git's index of that checkout, stays."""
    assert len(finished(measure(open_lab(), Share(FAST, 1)))) == 1
    shutil.rmtree(Path(host.root, "work"))
    assert len(finished(measure(open_lab(), Share(SLOW, 1), Share(FAST, 1)))) == 2


def test_what_a_killed_session_has_left_running_is_ended_with_a_word(host: LocalHost) -> None:
    jobs.start(host, ["sleep", "100"], name="server", timeout=100)
    orphan = jobs.start(host, ["sleep", "99.87"], name="run", timeout=100)
    # Otherwise its leader may be killed before it has started anything.
    until(lambda: "sleep\x0099.87\0" in processes("99.87").values())
    os.kill(orphan.pid, signal.SIGKILL)
    assert [event.text for event in tidy(host)] == [
        "2 jobs of an earlier session on host here, a load and a server, were still running and have been ended"
    ]
    assert not (*jobs.running(host), *jobs.orphaned(host))


def test_a_measurement_that_is_given_up_leaves_nothing_running(open_lab: Open, host: LocalHost) -> None:
    events = open_lab().measure(Measure((Share(FAST, 1),), Purpose.SEARCH))
    assert any(isinstance(event, RunStarted) for event in events)
    events.close()  # type: ignore[attr-defined]
    assert not jobs.running(host)


def test_an_interruption_in_the_middle_of_a_run_leaves_nothing_running(open_lab: Open, host: LocalHost) -> None:
    lab = open_lab()
    events = lab.measure(Measure((Share(FAST, 2),), Purpose.SEARCH))
    assert any(isinstance(event, RunProgress | RunFinished) for event in events)
    with pytest.raises(KeyboardInterrupt):
        events.throw(KeyboardInterrupt)  # type: ignore[attr-defined]
    assert not jobs.running(host)


def test_without_perf_and_vmstat_there_is_still_qps(
    open_lab: Open, host: LocalHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bin").mkdir()
    for program in {*Path("/bin").iterdir(), *Path("/usr/bin").iterdir()}:
        if program.name not in ("perf", "vmstat") and not (tmp_path / "bin" / program.name).is_symlink():
            (tmp_path / "bin" / program.name).symlink_to(program)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    ((_, run),) = finished(measure(open_lab(), Share(FAST, 1)))
    assert run.qps > 0
    assert run.counters == {}
    assert run.system == {}
