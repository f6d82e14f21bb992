import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Generator
from pathlib import Path, PurePosixPath
from types import FrameType

import pytest

from perfbisect.errors import Cancelled, EnvironmentFailure, JobLost
from perfbisect.host import jobs
from perfbisect.host.local import LocalHost
from waiting import finish, processes, until

pytestmark = pytest.mark.tools


@pytest.fixture
def host(tmp_path: Path) -> LocalHost:
    root = tmp_path / "root 'of' $ours"
    root.mkdir()
    return LocalHost("here", PurePosixPath(root))


MARK = str(1_000_000 + os.getpid())  # seconds of sleep that no other run of these tests uses


def shell(host: LocalHost, script: str, **options: object) -> jobs.Job:
    return jobs.start(host, ["sh", "-c", script], name="test", **{"timeout": 60, **options})  # type: ignore[arg-type]


def wait(host: LocalHost, job: jobs.Job) -> tuple[list[str], int]:
    return finish(jobs.follow_stdout(host, job, poll_seconds=0.05))


def wait_for_sleep(mark: str) -> None:
    """Wait until the sleep with this mark runs."""
    until(lambda: processes(f"sleep\x00{MARK}{mark}"))


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    """A pipe that a job can wait for."""
    os.mkfifo(tmp_path / "gate")
    return tmp_path / "gate"


def test_job_output_and_status_are_read(host: LocalHost) -> None:
    job = shell(host, "echo one; echo two >&2; cat; printf last; exit 5")
    assert wait(host, job) == (["one", "last"], 5)
    assert jobs.status(host, job) == 5
    assert jobs.job_output(host, job, "stderr").text == "two\n"
    assert wait(host, shell(host, "echo 1; echo 2 >&2; echo 3", merge_stderr=True)) == (["1", "2", "3"], 0)


def test_job_gets_environment_folder_and_cpu(host: LocalHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If memory runs out, the kernel kills the job, and no other process."""
    monkeypatch.setenv("SOMETHING_OF_THE_TERMINAL", "x")
    cpu, place = min(os.sched_getaffinity(0)), PurePosixPath(tmp_path)
    script = "pwd; cat /proc/self/oom_score_adj; grep Cpus_allowed_list /proc/self/status; exec env"
    argv = [*jobs.taskset(str(cpu)), "sh", "-c", script]
    job = jobs.start(host, argv, name="test", timeout=60, cwd=place, env={"GIVEN": "a; b 'c"})
    (where, score, pinned, *env), _ = wait(host, job)
    assert (where, pinned) == (str(place), f"Cpus_allowed_list:\t{cpu}")
    assert "GIVEN=a; b 'c" in env
    names = {line.partition("=")[0] for line in env} - {"PWD", "OLDPWD"}
    assert names == {"PATH", "HOME", "USER", "LC_ALL", "TMPDIR", "GIVEN"}
    assert score == "1000" and int(Path("/proc/self/oom_score_adj").read_text()) < 1000


def test_job_that_cannot_start_reports_why(host: LocalHost) -> None:
    with pytest.raises(EnvironmentFailure, match="no-such-program is not installed on host here"):
        jobs.start(host, [*jobs.taskset("0"), "no-such-program"], name="x", timeout=60)
    nowhere = jobs.start(host, ["true"], name="x", timeout=60, cwd=PurePosixPath("/nowhere"), merge_stderr=True)
    lines, status = wait(host, nowhere)
    assert status == 2
    assert "can't cd to /nowhere" in lines[-1]


def test_time_limit_of_a_job_is_enforced_on_the_host(host: LocalHost) -> None:
    for limit in (0.2, 2, 20):  # on a busy machine, 0.2 s may end before the job prints
        lines, status = wait(host, shell(host, f"echo on; sleep {MARK}.1", timeout=limit))
        assert status == 124
        if lines:
            break
    assert lines == ["on"]
    assert not processes(f"{MARK}.1")


def test_output_of_a_running_job_is_read(host: LocalHost, gate: Path) -> None:
    job = shell(host, rf"printf 'a\377\nb\n'; read -r line <{gate}; echo $line")
    until(lambda: jobs.job_output(host, job).text == "a\ufffd\nb\n")
    assert (jobs.status(host, job), jobs.running_jobs(host)) == (None, (job,))
    gate.write_text("went\n")
    until(lambda: jobs.status(host, job) == 0)
    assert jobs.job_output(host, job).text == "a\ufffd\nb\nwent\n"
    assert jobs.running_jobs(host) == ()


def test_kill_ends_all_processes_of_a_job(host: LocalHost) -> None:
    """Also a child that ignores TERM, and a child in another session."""
    job = shell(host, f"setsid sleep {MARK}.21 & (trap '' TERM; sleep {MARK}.22; sleep {MARK}.23) & wait")
    until(lambda: len(processes(f"sleep\x00{MARK}.2")) == 2)
    jobs.kill(host, job, grace_seconds=0.2)
    assert not processes(f"{MARK}.2")
    assert jobs.status(host, job) not in (None, 0, jobs.LOST)
    jobs.kill(host, job)


def test_job_without_its_leader_is_found_and_can_be_killed(host: LocalHost) -> None:
    left, whole = shell(host, f"sleep {MARK}; true"), shell(host, "sleep 60")
    wait_for_sleep("")
    assert jobs.leaderless_jobs(host) == ()
    os.kill(left.pid, signal.SIGKILL)
    until(lambda: jobs.status(host, left) == jobs.LOST)
    assert (jobs.running_jobs(host), jobs.leaderless_jobs(host)) == ((whole,), (left,))
    jobs.kill(host, left, grace_seconds=1)
    assert not processes(MARK)
    assert jobs.leaderless_jobs(host) == ()
    jobs.kill(host, whole, grace_seconds=1)


def test_kill_does_not_end_a_process_with_a_reused_pid(host: LocalHost) -> None:
    mine = shell(host, f"sleep {MARK}.3")
    stale = jobs.Job(mine.folder, mine.pid, mine.start_ticks - 1)
    assert jobs.status(host, stale) == jobs.LOST
    jobs.kill(host, stale, grace_seconds=0.2)
    assert jobs.status(host, mine) is None
    jobs.kill(host, mine)
    assert jobs.status(host, mine) == 137


def test_job_of_an_earlier_boot_is_lost_and_its_pid_is_not_killed(host: LocalHost) -> None:
    """The pid may now be the session id of a daemon whose first process has ended."""
    started = ["setsid", "sh", "-c", f"echo $$; sleep {MARK}.9 >/dev/null 2>&1 &"]
    job = shell(host, f"sleep {MARK}.31")
    earlier = jobs.Job(job.folder, int(subprocess.check_output(started)), 1)
    boot = Path(job.folder, "boot")
    current = boot.read_text()
    for text in ("00000000-0000-0000-0000-000000000000\n", current):
        wait_for_sleep(".9")
        boot.write_text(text)
        assert jobs.running_jobs(host) == ((job,) if text == current else ())
        jobs.kill(host, earlier, grace_seconds=0.1)
    assert not processes(f"sleep\x00{MARK}.9")
    jobs.kill(host, job)


@pytest.mark.parametrize("leave", [Generator.close, lambda waiting: waiting.throw(KeyboardInterrupt)])
def test_abandoned_wait_kills_the_job(host: LocalHost, leave: Callable[[object], object]) -> None:
    waiting = jobs.follow_stdout(host, shell(host, f"echo on; sleep {MARK}.4"), poll_seconds=0.05)
    assert next(waiting) == "on"
    with contextlib.suppress(KeyboardInterrupt):
        leave(waiting)
    assert not processes(f"{MARK}.4") and jobs.running_jobs(host) == ()


@pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning")  # the interrupted process
def test_interrupted_start_leaves_no_running_process(host: LocalHost) -> None:
    """The interruption comes before the folder exists, before the leader starts, or later."""

    def interrupt(_: int, frame: FrameType | None) -> None:
        if frame and frame.f_globals["__name__"] != "_weakrefset":  # exceptions are ignored there
            raise Cancelled
        signal.setitimer(signal.ITIMER_REAL, 0.001)

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        for after in range(1, 31):
            with contextlib.suppress(Cancelled):
                signal.setitimer(signal.ITIMER_REAL, after / 500)
                shell(host, f"sleep {MARK}.7")
                signal.setitimer(signal.ITIMER_REAL, 0)
                break
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert after > 1
    jobs.kill_all(host)
    until(lambda: not processes(f"{MARK}.7"))
    assert all(path.read_text().strip() for path in Path(host.root, "jobs").glob("*/status"))


def test_lost_job_is_an_error_and_leaves_no_process(host: LocalHost) -> None:
    job = shell(host, f"sleep {MARK}.5")
    wait_for_sleep(".5")
    os.killpg(job.pid, 9)  # only the leader: the command has another process group
    with pytest.raises(EnvironmentFailure, match="ended without an exit status"):
        wait(host, job)
    assert not processes(f"{MARK}.5")
    assert jobs.status(host, job) == 137


@pytest.mark.parametrize("last", [False, True], ids=["leader first", "leader last"])
def test_job_ended_by_a_shutdown_of_the_host_is_lost(host: LocalHost, last: bool) -> None:
    """A shutdown sends TERM to all processes, in any order, and then KILL."""
    job = shell(host, f"sleep {MARK}.8; exit 3")
    wait_for_sleep(".8")
    table = subprocess.check_output(["ps", "-o", "pid=", "-s", str(job.pid)])
    members = sorted(map(int, table.split()), reverse=last)
    assert len(members) >= 3
    for number in (signal.SIGTERM, signal.SIGKILL):
        for pid in members:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        until(lambda: jobs.status(host, job) is not None)
    assert jobs.status(host, job) == jobs.LOST


def test_command_killed_before_its_time_limit_is_lost(host: LocalHost) -> None:
    for signal_of_others in ("KILL", "TERM"):
        with pytest.raises(JobLost):
            wait(host, shell(host, f"kill -s {signal_of_others} $$"))
    assert wait(host, shell(host, "kill -s SEGV $$"))[1] == 128 + signal.SIGSEGV
    assert wait(host, shell(host, "trap '' TERM; sleep 1 & wait; exit 137", timeout=1))[1] in (124, 137)


OTHER = """
import os, sys; from pathlib import PurePosixPath
from perfbisect.host import jobs; from perfbisect.host.local import LocalHost
jobs.start(LocalHost("here", PurePosixPath(sys.argv[1])), ["head", "-n1", sys.argv[2]], name="x", timeout=60)
os.kill(os.getpid(), 9)
"""


def test_job_survives_a_killed_controller(host: LocalHost, gate: Path) -> None:
    subprocess.run([sys.executable, "-c", OTHER, str(host.root), str(gate)], check=False)
    (job,) = jobs.running_jobs(host)
    gate.write_text("came back\n")
    assert wait(host, job) == (["came back"], 0)
