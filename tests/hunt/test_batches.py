"""Hunts of a batch: their order, their Slurm jobs, and Slurm's answers (``tests/e2e/test_leases.py`` uses real ones).
Hunts for the drops of a comparison and of a watched branch.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import sample_hunt as sample
from perfbisect.core.domain.facts import DropHunt
from perfbisect.core.domain.settings import TrialBuild
from perfbisect.core.stats.drops import Drop, DropRange
from perfbisect.core.stats.paired_comparison import Ratio
from perfbisect.core.stats.watched_branch import BranchLevels
from perfbisect.errors import EnvironmentFailure, RunsNotComparable, UsageError
from perfbisect.hunt import batch, drop_hunts, session, slurm
from perfbisect.hunt.attempt import CommandCallbacks
from perfbisect.hunt.batch import Hosts, Task
from perfbisect.hunt.drop_hunts import hunt_drops_in_range
from perfbisect.hunt.nightly import CombinedNightsComparison
from perfbisect.hunt.slurm import JobState, SlurmJob, needs_no_job, read_batch_and_jobs, refuse_if_job_is_open, submit
from perfbisect.store.batches import (
    PlannedHunt,
    all_batches,
    batch_jobs_of_hunt,
    begin_batch,
    claim_batch_hunt,
    enter_batch_hunt_status,
    read_batch,
    update_batch_hunt,
)
from perfbisect.store.connection import WAIT
from perfbisect.store.history import History
from program import executable
from repos import Repo
from sample_hunt import begin

A, B, C = ("a",), ("b",), ("c",)


def waiting(number: int, *choices: Hosts, span: str = "") -> Task:
    """A hunt that has not begun, with its choices of hosts. ``span``: its range, if it shares the range."""
    return Task(str(number), (), "", choices, span or str(number))


X, Y = [waiting(number, A, B, span="x") for number in range(2)], waiting(2, A, B, span="y")
NEXT: tuple[tuple[str, list[Task], Hosts, Mapping[str, Collection[Hosts]], list[tuple[int, Hosts]]], ...] = (
    ("a host takes hunts in their order", [waiting(0, A), waiting(1, A)], (), {}, [(0, A)]),
    ("a busy host takes no hunt", [waiting(0, A), waiting(1, A)], A, {}, []),
    ("hunts for other hosts begin", [waiting(0, A), waiting(1, A), waiting(2, B)], (), {}, [(0, A), (2, B)]),
    ("a hunt for two hosts is not overtaken", [waiting(0, ("a", "b")), waiting(1, B), waiting(2, C)], A, {}, [(2, C)]),
    ("the hunts of a range begin one after the other", [*X, Y], (), {}, [(0, A), (2, B)]),
    ("a hunt begins where builds of its range are", X[1:], (), {"x": {B}}, [(1, B)]),
    ("no host is idle while a hunt could use it", X[1:], B, {"x": {B}}, [(1, A)]),
    ("hosts without locks (of a scheduler) take all", [waiting(0, ()), waiting(1, ())], (), {}, [(0, ()), (1, ())]),
)  # fmt: skip


def test_next_hunts_of_a_batch() -> None:
    """Each hunt locks the hosts on which it measures."""
    for what, tasks, busy, homes, expected in NEXT:
        begun = batch.tasks_to_start(tasks, busy, homes, lambda _, hosts: hosts)
        assert [(int(task.title), hosts) for task, hosts in begun.items()] == expected, what


@pytest.fixture
def answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """``answers(squeue="…")`` makes a command of Slurm print this text; the commands without a text fail."""
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))

    def answer(**texts: str) -> None:
        for command in ("sbatch", "squeue", "sacct", "scancel"):
            said = tmp_path / f"{command}.out"
            said.write_text(texts.get(command, ""))
            text = f"exec /bin/cat {said}" if command in texts else "echo 'no answer' >&2; exit 1"
            executable(tmp_path / "bin" / command, f"#!/bin/sh\n{text}\n")

    return answer


def planned(*hosts: tuple[str, ...], bad: str = "b", run: str = "--builder=x") -> PlannedHunt:
    return PlannedHunt((run, "--workload=w", "--", "a", bad), "/f", hosts or (("local",),))


def options(*hosts: tuple[str, ...], given: tuple[str, ...] = (), minutes: float = 0) -> list[str]:
    """The options of sbatch after the four options that each job has."""
    words = SlurmJob(planned(*hosts), given, minutes).sbatch_options()
    assert words[:4] == ["--job-name=x w a..b", "--exclusive", "--output=/dev/null", "--signal=B:TERM@120"]
    return words[4:]


def test_sbatch_options_of_a_hunt() -> None:
    """The batch file's options come last, unchanged. The time limit is an hour more than the time for measurements."""
    assert options() == options(("slurm:",)) == []
    assert options(given=("--nice=100", "--comment=a 'b'\n$(c)")) == ["--nice=100", "--comment=a 'b'\n$(c)"]
    assert options(minutes=89.5, given=("-t5",)) == ["--time=150", "-t5"]
    assert options(("slurm:quiet",)) == ["--constraint=quiet"]
    assert options(("slurm:a&b",), ("slurm:c",)) == ["--constraint=a&b|c"]
    assert "hidden" not in str(SlurmJob(planned(run="--run=./x postgresql://me:hidden@db"), (), 0).sbatch_options())
    hostile = SlurmJob(planned(bad="b\n\x1b[2J $(x)" + "y" * 200), (), 0).sbatch_options()[0]
    assert hostile.startswith("--job-name=x w a..b \\x1b[2J $(x)yy") and len(hostile) < 120
    for hosts in (("c8-1",), ("slurm:a", "slurm:b"), ("labgrid:a",), ("slurm:a*2",)):
        with pytest.raises(UsageError, match=r"The hunt x w a\.\.b names hosts, but Slurm chooses the node"):
            options(hosts)


QUEUE = (Path(__file__).parents[1] / "outputs" / "squeue.txt").read_text()


def test_job_states_are_read_from_squeue_and_sacct(answers: Callable[..., None]) -> None:
    """A job that a signal has ended has no verdict, although Slurm's exit status is 0."""
    answers(squeue=QUEUE)
    jobs = [str(number) for number in range(1, 11)]
    found = slurm.job_states(jobs)
    words = ["RUNNING", "PENDING (Dependency)", "FAILED", "CANCELLED", "COMPLETED", "FAILED"]
    assert [str(state) for state in found.values()] == words
    assert [state.is_open for state in found.values()] == [True, True, False, False, False, False]
    assert [state.status for state in found.values()] == [None, None, 3, None, 0, 137]
    answers(squeue=QUEUE, sacct="7|CANCELLED by 0|0:15\n8|FAILED|2:0\n9|FAILED|0:9\n")
    found = slurm.job_states(jobs)
    accounts = [JobState("CANCELLED"), JobState("FAILED", "", 2), JobState("FAILED", "", 137), None]
    assert [found.get(job) for job in jobs[6:]] == accounts
    answers()
    with pytest.raises(EnvironmentFailure, match="squeue of Slurm has failed: no answer"):
        slurm.job_states(jobs)


def test_missing_slurm_commands_are_named_in_the_error(answers: Callable[..., None]) -> None:
    with pytest.raises(UsageError, match="This machine has no sbatch") as refused:
        slurm.check_slurm_command()
    assert "login node" in refused.value.advice


def begun(history: History, hunts: int) -> tuple[int, list[SlurmJob]]:
    """The number of a new batch, and the jobs of its hunts."""
    number = begin_batch(history, Path("/f/batch.toml"), [planned()] * hunts, 1.0)
    return number, [SlurmJob(hunt.planned, (), 0) for hunt in read_batch(history, number).hunts]


def test_hunts_without_job_or_verdict_get_a_job(history: History, answers: Callable[..., None], tmp_path: Path) -> None:
    """An end that only Slurm knows (a node may not share the history) is stored before Slurm forgets the job."""
    number, jobs = begun(history, 6)
    answers(sbatch="7\n")
    assert submit(history, number, jobs) == 6
    for place, job in enumerate("123459"):
        update_batch_hunt(history, number, place, job=job, status=None, failure=None)
    log = tmp_path / "history-batches" / "b1" / "3.log"
    log.parent.mkdir(parents=True)
    log.write_text("Error: there is no such thing\n")
    answers(squeue=QUEUE)
    batch, states = read_batch_and_jobs(history, number)
    assert [needs_no_job(hunt, states) for hunt in batch.hunts] == [True, True, False, False, True, False]
    ends = [(hunt.status, hunt.failure) for hunt in batch.hunts]
    assert ends[2:5] == [(3, "there is no such thing"), (None, ""), (0, "")]
    answers(squeue="", sbatch="8;cluster\n")  # Slurm has forgotten all jobs
    assert submit(history, number, jobs) == 5
    assert [hunt.job for hunt in read_batch(history, number).hunts] == ["8", "8", "8", "8", "5", "8"]
    answers(squeue="", sbatch="")
    with pytest.raises(UsageError, match=r"x w a\.\.b: sbatch has submitted no job"):
        submit(history, number, jobs)
    with pytest.raises(UsageError, match="sbatch has submitted no job"):
        submit(history, *begun(history, 2))
    assert [batch.id for batch in all_batches(history)] == [number], "a batch without any job is not kept"
    for place in range(6):
        enter_batch_hunt_status(history, number, place, place % 3)
    read_batch_and_jobs(history, number)
    assert read_batch(history, number).ended


def test_job_resumes_its_hunt(history: History, answers: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    """The job resumes a hunt that has begun. While the job is open, no other process resumes the hunt."""
    number, _ = begun(history, 1)
    assert claim_batch_hunt(history, number, 0) == 0
    update_batch_hunt(history, number, 0, job="2", status=None, failure=None)
    assert [claim_batch_hunt(history, *each) for each in ((number, 0, "2"), (number, 0, "3"), (7, 0, "2"))] == [
        0,
        None,
        None,
    ]
    hunt = begin(history)
    update_batch_hunt(history, number, 0, hunt_id=hunt)
    assert claim_batch_hunt(history, number, 0, "2") == hunt
    answers(squeue=QUEUE)
    with pytest.raises(UsageError, match=f"Hunt {hunt} is carried out by job 2 of Slurm"):
        refuse_if_job_is_open(history, hunt)
    with monkeypatch.context() as patched:
        patched.setenv("SLURM_JOB_ID", "2")
        refuse_if_job_is_open(history, hunt)
    [(*place, _)] = batch_jobs_of_hunt(history, hunt)
    enter_batch_hunt_status(history, *place, 4, "it broke")
    [ended] = read_batch(history, number).hunts
    assert (ended.status, ended.failure) == (4, "it broke")
    update_batch_hunt(history, number, 0, job="4", status=None, failure=None)
    answers(squeue=QUEUE.splitlines()[3])
    refuse_if_job_is_open(history, hunt)
    assert read_batch(history, number).hunts[0].status is None


def test_slurm_time_limit_is_below_the_wait_for_the_history() -> None:
    """A job is submitted while the history is locked, and running hunts wait for the history."""
    assert slurm.TIME_LIMIT < WAIT


def test_hunt_that_cannot_resume_is_replaced_by_a_new_hunt(history: History, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each drop of the comparison has a hunt already, whose number is the index of the drop's workload."""
    resumed: list[int] = []
    begun: list[Drop] = []

    def hunt_of(drop: Drop) -> DropHunt:
        return DropHunt(drop.work, 0, 1, drop.work, ("found", "failed", "failed")[drop.work], "", "")

    def resume(hunt: int, *_: object) -> tuple[()]:
        resumed.append(hunt)
        if hunt == 2:
            raise RunsNotComparable("Hunt 2 cannot go on")
        return ()

    monkeypatch.setattr(session, "resume", resume)
    monkeypatch.setattr(drop_hunts, "run_drop_hunts", lambda _history, _found, drops, *_: begun.extend(drops))
    comparison: Any = SimpleNamespace(hunt_of=hunt_of)
    span: Any = SimpleNamespace(drops=[SimpleNamespace(work=work) for work in range(3)])
    hunt_drops_in_range(history, comparison, span, CommandCallbacks(None, lambda _: pytest.fail("shown")))
    assert resumed == [1, 2]
    assert begun == [span.drops[2]]


@pytest.mark.tools
def test_steps_of_a_watched_branch_are_hunted_once(tmp_path: Path) -> None:
    """The branch has five tips, at each second commit: commit 3 is between the tips 1 and 2."""
    repo = Repo(tmp_path / "repo")
    commits = [repo.commit({"file": f"{number}"}) for number in range(9)]
    tips = tuple(TrialBuild(f"tip {number}", commit) for number, commit in enumerate(commits[::2]))
    trial = sample.night(4)
    trial.request = replace(trial.request, subjects=tips)
    settings = replace(sample.SETTINGS, repository=str(repo.path))

    def todo(drops: list[tuple[int, int]], *hunts: DropHunt) -> list[tuple[int, int]]:
        """The ranges of ``drops`` that are still to be hunted."""
        spans = tuple(DropRange(*ends, (Drop(0, *ends, Ratio(0.8, None, 0)),)) for ends in drops)
        watched = CombinedNightsComparison(replace(trial, hunts=hunts), settings, BranchLevels((), ()), spans, trial)
        return [(span.first, span.last) for span in watched.ranges_to_hunt()]

    found, last = (DropHunt(0, 1, 2, 7, "found", commits[number]) for number in (3, 4))
    assert todo([(1, 2)]) == [(1, 2)]
    assert todo([(1, 2), (0, 2), (1, 3), (2, 3)], found) == [(2, 3)]
    assert todo([(1, 2), (2, 3)], last) == [(2, 3)], "a range contains its last tip, but not its first tip"
    assert todo([(1, 2)], replace(found, work=1)) == [(1, 2)], "the hunt is of another workload"
    begun, placement = DropHunt(0, 0, 1, 7, "interrupted"), DropHunt(0, 1, 2, 8, "code placement")
    assert todo([(2, 3)], begun, placement) == [(0, 1), (2, 3)], "an interrupted hunt goes on before new hunts begin"
