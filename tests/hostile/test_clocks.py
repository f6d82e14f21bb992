"""Clocks that are set while something is measured: on the host, and on the controller."""

import os
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import sample_hunt as sample
from labs import bench_lab, measure, runs, warnings
from perfbisect.clock import CLOCK
from perfbisect.core.domain.events import CandidateSkipped, LabEvent, RunFinished
from perfbisect.core.domain.facts import RunFacts
from perfbisect.core.domain.orders import Share
from perfbisect.errors import ClockSet
from perfbisect.host.local import LocalHost
from perfbisect.hunt.search_problem import SavedLog
from perfbisect.lab.guarded_lab import LOSSES
from perfbisect.lab.host_lab import HostLab
from perfbisect.lab.measure import perf
from perfbisect.lab.measure.perf import SHARE, TICK, Stamp
from perfbisect.lab.workload import ProcessResult, command
from perfbisect.store.history import History
from repos import Repo

SCRIPT = """\
#!/bin/sh
[ ! -s "$JUMPS/next" ] || {
    sed -n 1p "$JUMPS/next" >"$JUMPS/now"
    sed -i 1d "$JUMPS/next"
}
echo "ops/s: 5, done: 50"
"""
DATE = """\
#!/bin/sh
exec /bin/date -d "$(cat {jumps}/now) seconds" "$@"
"""


@pytest.fixture
def jumps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What ``date`` prints on the host is ``now`` seconds ahead; each run of the benchmark takes the first line of
    ``next`` for it.
    """
    folder, programs = tmp_path / "jumps", tmp_path / "programs"
    folder.mkdir()
    programs.mkdir()
    (folder / "now").write_text("+0\n")
    (programs / "date").write_text(DATE.format(jumps=folder))
    (programs / "date").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    return folder


@pytest.fixture
def lab(host: LocalHost, git: Repo, jumps: Path) -> HostLab:
    commits = git.history({"bench": f"{SCRIPT}# {version}\n"} for version in range(2))
    lab = bench_lab(host, git.path, *commits, command=["env", f"JUMPS={jumps}", "sh", "bench"])
    return replace(lab, workload=msgspec.structs.replace(lab.workload, operations=r"done: (\d+)", rate=""))


def with_script(lab: HostLab, script: str) -> HostLab:
    return replace(lab, workload=msgspec.structs.replace(lab.workload, command=["sh", "-c", script]))


def not_skipped(events: list[LabEvent]) -> list[RunFacts]:
    """The runs, where it was no fault of the commit."""
    assert not [event for event in events if isinstance(event, CandidateSkipped)]
    return runs(events)


@pytest.mark.tools
@pytest.mark.parametrize("jump", [-1, 86400 * 365])
def test_a_run_during_which_the_clock_is_set_is_lost_and_repeated(lab: HostLab, jumps: Path, jump: int) -> None:
    (jumps / "next").write_text(f"{jump:+}\n")
    before = CLOCK.now()
    events = measure(lab, Share(0, 1), Share(1, 1))
    done = not_skipped(events)
    assert len(done) == 2, "it is no result"
    [warned] = warnings(events)
    assert f"the clock of host here was set {'forward' if jump > 0 else 'back'} by " in warned
    assert warned.endswith("during a run: it is repeated")
    assert all(0 < run.seconds < 60 for run in done)
    assert all(before < run.started < CLOCK.now() for run in done), "on the clock of this process"


@pytest.mark.tools
def test_a_clock_that_is_set_in_every_run_ends_the_hunt_and_skips_no_commit(lab: HostLab, jumps: Path) -> None:
    (jumps / "next").write_text("".join(f"+{3600 * (n % 2 + 1)}\n" for n in range(20)))
    events = []
    with pytest.raises(ClockSet, match="the clock of host here was set") as caught:
        events.extend(measure(lab, Share(0, 1), Share(1, 1)))
    assert "timedatectl" in caught.value.advice
    assert len((jumps / "next").read_text().splitlines()) == 20 - LOSSES - 1
    assert not [event for event in events if isinstance(event, RunFinished)]


@pytest.mark.tools
def test_a_failure_at_a_moment_when_the_clock_is_set_is_repeated_too(lab: HostLab, jumps: Path) -> None:
    """It may have failed for that."""
    flag = jumps / "failed"
    script = f"if [ -e {flag} ]; then echo done: 50; else touch {flag}; echo -3600 >{jumps}/now; exit 3; fi"
    assert len(not_skipped(measure(with_script(lab, script), Share(0, 1)))) == 1


@pytest.mark.tools
@pytest.mark.parametrize("name", ["clock", pytest.param("time", marks=pytest.mark.slow)])
def test_a_run_whose_times_could_not_be_written_is_repeated(lab: HostLab, jumps: Path, name: str) -> None:
    """As on a disk that is full for a moment: a folder in the place of the file has the same effect."""
    flag, file = jumps / "done", Path(lab.place.host.root, "visit", name)
    script = f"if [ ! -e {flag} ]; then touch {flag}; rm -f {file}; mkdir {file}; fi; echo done: 50"
    events = measure(with_script(lab, script), Share(0, 2))
    assert len(not_skipped(events)) == 2
    assert warnings(events) == ["the begin and the end of a run could not be written: it is repeated"]


@pytest.mark.tools
def test_a_host_whose_clock_is_wrong_costs_no_time(lab: HostLab, jumps: Path) -> None:
    (jumps / "now").write_text("-86400\n")
    before = CLOCK.now()
    events = measure(lab, Share(0, 2))
    assert warnings(events) == []
    assert all(before < run.started < CLOCK.now() for run in runs(events))


@pytest.mark.tools
@pytest.mark.parametrize("jump", [-3600.0, 1e9])
def test_the_budget_of_time_is_not_spent_by_a_jump(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, jump: float
) -> None:
    """Nor are the times of a log ever out of order, when the clock is set back between two sessions, too."""
    with closing(History.open(tmp_path / "h.db")) as history:
        hunt = sample.begin(history, sample.SETTINGS, at=CLOCK.now())
        log = SavedLog(history, hunt)
        event = RunFinished(1, sample.run(1, CLOCK.now()))
        first, _ = log.append(event)
        real = time.time
        monkeypatch.setattr(time, "time", lambda: real() + jump)
        second, _ = log.append(event)
        assert 0 <= second - first < 60
        again = SavedLog(history, hunt)
        third, _ = again.append(event)
        assert 0 <= third - second < 60


SECONDS = st.floats(0, 1e5)
DELAY = st.floats(0, 30)  # of a machine that is too busy to read its clocks at once


def stamps(uptime: float, length: float, delays: tuple[float, float, float, float], step: float) -> tuple[Stamp, Stamp]:
    """What is read with so many seconds between the readings; the uptime counts in hundredths."""
    one, two, three, four = delays
    begin = Stamp(1e9 + one, *(round(seconds - 0.005, 2) for seconds in (uptime, uptime + one + two)))
    last = uptime + one + two + length
    at = 1e9 + one + two + length + three + step
    return begin, Stamp(at, *(round(seconds - 0.005, 2) for seconds in (last, last + three + four)))


@given(SECONDS, SECONDS, st.tuples(DELAY, DELAY, DELAY, DELAY))
def test_a_busy_machine_is_no_clock_that_is_set(
    uptime: float, length: float, delays: tuple[float, float, float, float]
) -> None:
    perf.check_clock(stamps(uptime, length, delays, 0), "here")


@given(SECONDS, st.floats(0, 1e4), st.booleans(), st.floats(1, 1e8))
def test_a_step_is_seen_on_any_machine_that_reads_its_clocks_at_once(
    uptime: float, length: float, back: bool, factor: float
) -> None:
    step = factor * (3 * TICK + SHARE * length)
    with pytest.raises(ClockSet, match="back" if back else "forward"):
        perf.check_clock(stamps(uptime, length, (0, 0, 0, 0), -step if back else step), "here")


@pytest.mark.parametrize("text", ["", "\n", "1 2\n", "1 2 3\n", "1 2 3 4\n1\n"])
def test_readings_that_are_cut_short_are_none(text: str) -> None:
    found = perf.read_stamps(text)
    assert len(found) < 2
    perf.check_clock(found, "here")


def test_a_command_that_ends_before_it_began_is_no_failure_of_the_commit(lab: HostLab) -> None:
    """A step that is too small to be seen in the uptime."""
    ended = ProcessResult("done: 50", "", 0, 60, "1002.000 0 1001.999")
    with pytest.raises(ClockSet, match="set back"):
        command.outcome(ended, lab.workload)
