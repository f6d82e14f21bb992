"""Jobs and benchmarks that print endlessly or overwrite perfbisect's files, and clocks that are set during a run."""

import contextlib
import os
import signal
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from itertools import pairwise
from pathlib import Path, PurePosixPath

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import sample_hunt as sample
from labs import bench_lab, measure, runs, skipped, warnings
from perfbisect.core.domain.events import RunFinished
from perfbisect.core.domain.orders import PlannedRuns
from perfbisect.errors import EnvironmentFailure, HostClockChanged, JobLost, RunLost
from perfbisect.host import jobs
from perfbisect.host.local import LocalHost
from perfbisect.host.protocol import HEAD, LINE, TAIL
from perfbisect.hunt.search_problem import SavedLog
from perfbisect.lab.host_lab import HostLab
from perfbisect.lab.host_watch import LOSSES
from perfbisect.lab.measure import perf
from perfbisect.lab.measure.perf import SHARE, TICK, ClockStamp
from perfbisect.lab.workload import ProcessResult, command
from perfbisect.process import CLOCK
from perfbisect.store.history import History
from program import executable
from repos import Repo
from waiting import finish, processes, until

pytestmark = pytest.mark.tools

MB = 1_000_000
FLOOD = 25 * MB  # bytes; more than twice the size that is kept


def shell(host: LocalHost, script: str, **options: object) -> jobs.Job:
    return jobs.start(host, ["sh", "-c", script], name="test", **{"timeout": 120, **options})  # type: ignore[arg-type]


def waiting(host: LocalHost, script: str) -> tuple[jobs.Job, Path]:
    """A job, and the named pipe from which the script of the job reads a line."""
    go = Path(host.root, "go")
    os.mkfifo(go)
    return shell(host, script, cwd=host.root), go


def kept(job: jobs.Job) -> int:
    """The size of the files in the job's folder. Meanwhile files may be renamed and removed."""
    total = 0
    for path in Path(job.folder).iterdir():
        with contextlib.suppress(FileNotFoundError):
            total += path.stat().st_size
    return total


def collectors(job: jobs.Job) -> list[int]:
    """The processes that copy the job's output: their standard input is a pipe of the job."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if f"{job.folder}/std" in str((folder / "fd" / "0").readlink()):
                found.append(int(folder.name))
    return found


def signal_collectors(job: jobs.Job, sent: signal.Signals) -> None:
    for pid in collectors(job):
        with contextlib.suppress(ProcessLookupError):  # the process ended together with the previous one
            os.kill(pid, sent)


@pytest.mark.parametrize(
    ("flood", "stream"), [("yes a line", "stdout"), ("yes x | tr -d '\\n'", "stderr"), ("cat /dev/zero", "merged")]
)
def test_beginning_and_end_of_a_long_output_are_kept(host: LocalHost, flood: str, stream: str) -> None:
    name, redirect = ("stderr", ">&2") if stream == "stderr" else ("stdout", "")
    script = f"{{ echo begin; {flood} | head -c {FLOOD}; echo; echo end; }} {redirect}; exit 5"
    job = shell(host, script, merge_stderr=stream == "merged")
    assert jobs.wait_for_status(host, job) == 5
    printed = jobs.job_output(host, job, name)
    assert printed.omitted_bytes == FLOOD + len("begin\n\nend\n") - HEAD - TAIL
    assert printed.text.endswith("end\n")
    assert "MB from the middle of its output are missing" in printed.omitted_output_note
    whole = Path(job.folder, name).read_bytes()
    assert whole.startswith(b"begin\n")
    assert whole.endswith(b"\nend\n")
    note = b"\n[perfbisect left out %d bytes here]\n" % printed.omitted_bytes
    assert whole[HEAD:].startswith(note)
    assert len(whole) == HEAD + len(note) + TAIL
    assert kept(job) < HEAD + TAIL + 10_000


def test_output_within_the_limit_is_kept_whole(host: LocalHost) -> None:
    for size in (HEAD, HEAD + 1, HEAD + TAIL, HEAD + TAIL + 1):
        job = shell(host, f"yes 123456789 | head -c {size}")
        assert jobs.wait_for_status(host, job) == 0
        left = max(0, size - HEAD - TAIL)
        assert jobs.job_output(host, job).omitted_bytes == left
        assert left or Path(job.folder, "stdout").read_bytes() == (b"123456789\n" * (size // 10 + 1))[:size]


def test_endless_output_is_bounded_and_can_be_ended(host: LocalHost) -> None:
    job = shell(host, "yes a line of a server that has gone mad")
    until(lambda: list(Path(job.folder).glob("stdout.[0-9]*")))
    for _ in range(10):
        time.sleep(0.1)
        assert kept(job) < HEAD + 2 * TAIL + 10_000
    lines = jobs.follow_stdout(host, job, poll_seconds=0.05)
    assert next(lines) == "a line of a server that has gone mad"
    lines.close()
    assert jobs.running_jobs(host) == ()
    until(lambda: not collectors(job))


def test_followed_lines_are_cut_at_the_limit(host: LocalHost) -> None:
    long = f"head -c {5 * MB} /dev/zero | tr '\\0'"
    job = shell(host, f"{long} x; echo; echo short; {long} y")
    lines, status = finish(jobs.follow_stdout(host, job))
    assert status == 0
    assert lines[:2] == ["x" * LINE, "short"]
    assert all(len(line) <= LINE for line in lines)


@pytest.mark.parametrize("leave", ["", "setsid"])
def test_job_does_not_wait_for_background_processes(host: LocalHost, leave: str) -> None:
    mark = f"{3_000_000 + os.getpid()}"
    job = shell(host, f"{leave} sleep {mark} & echo done; exit 3")
    assert jobs.wait_for_status(host, job) == 3
    assert jobs.job_output(host, job).text == "done\n"
    left = processes(f"sleep\0{mark}")
    assert left
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    until(lambda: not collectors(job))


def test_background_process_can_print_after_the_job_ended(host: LocalHost) -> None:
    """For example, a recipe starts a daemon without a log. The daemon's pipe does not break, and its output is kept."""
    job, go = waiting(host, "{ read -r line <go; echo later; echo $? >survived; } & echo now")
    assert jobs.wait_for_status(host, job) == 0
    go.write_text("on\n")
    survived = Path(host.root, "survived")
    until(lambda: survived.exists() and survived.read_text() == "0\n")
    until(lambda: Path(job.folder, "stdout").read_text() == "now\nlater\n")


def test_job_is_lost_if_its_output_is_no_longer_copied(host: LocalHost) -> None:
    job = shell(host, "while echo line; do sleep 0.01; done")
    until(lambda: collectors(job))
    signal_collectors(job, signal.SIGKILL)
    with pytest.raises(JobLost):
        jobs.wait_for_status(host, job)
    jobs.kill(host, job, grace_seconds=1)


def test_pause_of_the_copying_process_loses_no_output(host: LocalHost) -> None:
    job, go = waiting(host, "read -r line <go; seq 1 100; exit 4")
    until(lambda: collectors(job))
    signal_collectors(job, signal.SIGSTOP)
    go.write_text("on\n")
    assert jobs.status(host, job, wait_seconds=3) is None
    signal_collectors(job, signal.SIGCONT)
    assert jobs.wait_for_status(host, job) == 4
    assert jobs.job_output(host, job).text == "".join(f"{number}\n" for number in range(1, 101))


@pytest.mark.parametrize("script", ["yes | head -c 20000000", "head -c 6000000 /dev/zero >big; yes | head -c 9000 >&2"])
def test_output_that_fills_the_disk_is_a_failure_of_the_host(disk: Path, script: str) -> None:
    small = LocalHost("here", PurePosixPath(disk))
    job = shell(small, f"{script}; exit 0")
    for end in (jobs.wait_for_status, lambda *of: finish(jobs.follow_stdout(*of))):
        with pytest.raises(EnvironmentFailure, match="the disk of host here is full"):
            end(small, job)
    assert not collectors(job)


def test_job_may_open_its_output_again(host: LocalHost) -> None:
    job = shell(host, "echo one; echo two >/dev/stdout; echo three >/dev/stderr; echo four", merge_stderr=True)
    assert jobs.wait_for_status(host, job) == 0
    assert jobs.job_output(host, job).text == "one\ntwo\nthree\nfour\n"


# --- Benchmarks; lab/workload/test_command.py tests which printed numbers are valid


Lab = Callable[[str], HostLab]


@pytest.fixture
def lab(host: LocalHost, git: Repo) -> Lab:
    sha = git.commit()
    return lambda script: bench_lab(host, git.path, sha, command=["sh", "-c", script, "bench", "{data}/.."])


def test_benchmark_with_long_output_gives_the_right_number_or_fails(lab: Lab) -> None:
    loud = lab("yes error | head -c 12000000 >&2; yes 'ops/s: 1' | head -c 12000000; echo; echo ops/s: 7")
    assert [run.reported for run in runs(measure(loud, PlannedRuns(0, 1)))] == [7]
    facts = skipped(measure(lab("echo ops/s: 7; yes x | head -c 12000000; echo ops/s: 8 >&2"), PlannedRuns(0, 1)))
    assert "no text matches" in facts.reason
    assert "MB from the middle of its output are missing" in facts.reason
    assert Path(facts.log).stat().st_size < HEAD + 2 * TAIL
    facts = skipped(measure(lab("yes x | head -c 12000000; echo the reason; exit 3"), PlannedRuns(0, 1)))
    assert "the command ended with status 3: the reason; " in facts.reason


@pytest.mark.slow
def test_benchmark_that_overwrites_timing_files_is_measured_or_lost(lab: Lab) -> None:
    """The benchmark is measured, or the run is lost. No other error is raised."""
    files = "for file in time clock counters vmstat iostat; do printf '\\f\\f1 2 3\\f\\n' >\"$1/$file\"; done"
    try:
        assert [run.reported for run in runs(measure(lab(f"{files}; echo ops/s: 7"), PlannedRuns(0, 1)))] == [7]
    except RunLost as lost:
        assert "the begin and the end of a run could not be written" in str(lost)


def test_run_is_repeated_if_the_process_under_perf_is_killed(lab: Lab, tmp_path: Path) -> None:
    """perf then ends with status 0. The benchmark kills the process only in its first run."""
    flag = tmp_path / "killed"
    script = f"if [ ! -e {flag} ]; then : >{flag}; kill -KILL $PPID; sleep 2; fi; echo ops/s: 7"
    events = measure(lab(script), PlannedRuns(0, 1))
    assert [run.reported for run in runs(events)] == [7]
    [warned] = warnings(events)
    assert "ended without an exit status; the work is repeated" in warned


@pytest.mark.slow
def test_benchmark_that_prints_a_message_of_perf_is_not_repeated(lab: Lab) -> None:
    events = measure(lab("echo 'sh: Killed' >&2; echo ops/s: 7"), PlannedRuns(0, 1))
    assert ([run.reported for run in runs(events)], warnings(events)) == ([7], [])
    failed = measure(lab("echo 'sh: Killed' >&2; exit 3"), PlannedRuns(0, 1))
    assert skipped(failed).reason == "the command ended with status 3: sh: Killed"


# --- Clocks that are set


SCRIPT = """\
#!/bin/sh
[ ! -s "$JUMPS/next" ] || { sed -n 1p "$JUMPS/next" >"$JUMPS/now"; sed -i 1d "$JUMPS/next"; }
echo "ops/s: 5, done: 50"
"""


@pytest.fixture
def jumps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for jumps of the host's clock: `date` is ahead by the seconds in the file `now`, and each run of the
    benchmark moves the first line of the file `next` to `now`.
    """
    folder = tmp_path / "jumps"
    folder.mkdir()
    (folder / "now").write_text("+0\n")
    date = f'#!/bin/sh\nexec /bin/date -d "$(cat {folder}/now) seconds" "$@"\n'
    monkeypatch.setenv("PATH", str(executable(tmp_path / "programs" / "date", date).parent), prepend=":")
    return folder


@pytest.fixture
def clocked(host: LocalHost, git: Repo, jumps: Path) -> HostLab:
    commits = git.history({"bench": f"{SCRIPT}# {version}\n"} for version in range(2))
    lab = bench_lab(host, git.path, *commits, command=["env", f"JUMPS={jumps}", "sh", "bench"])
    return replace(lab, workload=msgspec.structs.replace(lab.workload, operations=r"done: (\d+)", rate=""))


def with_script(lab: HostLab, script: str) -> HostLab:
    return replace(lab, workload=msgspec.structs.replace(lab.workload, command=["sh", "-c", script]))


@pytest.mark.parametrize("jump", [-1, pytest.param(86400 * 365, marks=pytest.mark.slow)])
def test_run_is_repeated_if_the_clock_is_set_meanwhile(clocked: HostLab, jumps: Path, jump: int) -> None:
    (jumps / "next").write_text(f"{jump:+}\n")
    before = CLOCK.now()
    events = measure(clocked, PlannedRuns(0, 1), PlannedRuns(1, 1))
    done = runs(events)
    assert len(done) == 2, "it is no result"
    [warned] = warnings(events)
    assert f"the clock of host here was set {'forward' if jump > 0 else 'back'} by " in warned
    assert warned.endswith("during a run; the work is repeated")
    assert all(0 < run.seconds < 60 for run in done)
    assert all(before < run.started < CLOCK.now() for run in done), "on the clock of this process"


def test_clock_that_is_set_in_every_run_ends_the_hunt(clocked: HostLab, jumps: Path) -> None:
    (jumps / "next").write_text("".join(f"+{3600 * (n % 2 + 1)}\n" for n in range(20)))
    events = []
    with pytest.raises(HostClockChanged, match="the clock of host here was set") as caught:
        events.extend(measure(clocked, PlannedRuns(0, 1), PlannedRuns(1, 1)))
    assert "timedatectl" in caught.value.advice
    assert len((jumps / "next").read_text().splitlines()) == 20 - LOSSES - 1
    assert not [event for event in events if isinstance(event, RunFinished)]


@pytest.mark.slow
def test_failed_run_is_repeated_if_the_clock_is_set_meanwhile(clocked: HostLab, jumps: Path) -> None:
    """The change of the clock may be the reason for the failure."""
    flag = jumps / "failed"
    script = f"if [ -e {flag} ]; then echo done: 50; else touch {flag}; echo -3600 >{jumps}/now; exit 3; fi"
    assert len(runs(measure(with_script(clocked, script), PlannedRuns(0, 1)))) == 1


def test_run_is_repeated_if_its_times_cannot_be_written(clocked: HostLab, jumps: Path) -> None:
    """A folder in the place of the file has the same effect as a disk that is full for a moment."""
    flag, file = jumps / "done", Path(clocked.lab_host.host.root, "visit", "clock")
    script = f"if [ ! -e {flag} ]; then touch {flag}; rm -f {file}; mkdir {file}; fi; echo done: 50"
    events = measure(with_script(clocked, script), PlannedRuns(0, 2))
    assert len(runs(events)) == 2
    assert warnings(events) == ["the begin and the end of a run could not be written; the work is repeated"]


@pytest.mark.parametrize("jump", [-3600.0, 1e9])
def test_clock_jump_does_not_use_the_time_budget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, jump: float) -> None:
    """The times in a log also stay in order, even if the clock is set back between two attempts."""
    with closing(History.open(tmp_path / "h.db")) as history:
        hunt = sample.begin(history, sample.SETTINGS, at=CLOCK.now())
        log, event = SavedLog(history, hunt), RunFinished(1, sample.run(1, CLOCK.now()))
        times = [log.append(event)[0]]
        real = time.time
        monkeypatch.setattr(time, "time", lambda: real() + jump)
        times += [log.append(event)[0], SavedLog(history, hunt).append(event)[0]]
        assert all(0 <= later - earlier < 60 for earlier, later in pairwise(times))


SECONDS = st.floats(0, 1e5)
Delays = tuple[float, float, float, float]
DELAY = st.floats(0, 30)  # seconds between readings of clocks on a busy machine


def stamps(uptime: float, length: float, delays: Delays, step: float) -> tuple[ClockStamp, ClockStamp]:
    """The clock stamps at the begin and end of a run, with these delays. The uptime has a resolution of 0.01 s."""
    one, two, three, four = delays
    begin = ClockStamp(1e9 + one, *(round(seconds - 0.005, 2) for seconds in (uptime, uptime + one + two)))
    last = uptime + one + two + length
    at = 1e9 + one + two + length + three + step
    return begin, ClockStamp(at, *(round(seconds - 0.005, 2) for seconds in (last, last + three + four)))


@given(SECONDS, SECONDS, st.tuples(DELAY, DELAY, DELAY, DELAY))
def test_delays_of_a_busy_machine_are_no_clock_change(uptime: float, length: float, delays: Delays) -> None:
    perf.check_clock(stamps(uptime, length, delays, 0), "here")


@given(SECONDS, st.floats(0, 1e4), st.booleans(), st.floats(1, 1e8))
def test_clock_change_between_prompt_readings_is_found(uptime: float, length: float, back: bool, factor: float) -> None:
    step = factor * (3 * TICK + SHARE * length)
    with pytest.raises(HostClockChanged, match="back" if back else "forward"):
        perf.check_clock(stamps(uptime, length, (0, 0, 0, 0), -step if back else step), "here")


def test_command_that_ends_before_its_start_is_a_clock_change(clocked: HostLab) -> None:
    """The change of the clock is too small for the comparison with the uptime."""
    ended = ProcessResult("done: 50", "", 0, 60, "1002.000 0 1001.999")
    with pytest.raises(HostClockChanged, match="set back"):
        command.run_result(ended, clocked.workload)
