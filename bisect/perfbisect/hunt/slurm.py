"""Hunts of a batch as jobs of Slurm, whose own are the queue, its order, limits, dependencies and accounts; and Slurm's own
commands: jobs are submitted, looked at, cancelled. Nodes on lease are those of hosts.toml: ``host.leases``.

A job is `bisect run` on the node that it gets, there with the host ``local``. Where the node has this history, it enters the
hunt and how it ends here, and one that is submitted or started again goes on. Otherwise the node's history has the hunt,
which begins anew each time, and here is known what Slurm says.
"""

import math
import os
import shutil
import signal
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from perfbisect.errors import INTERRUPTED, EnvironmentFailure, PerfBisectError, UsageError
from perfbisect.host.leases import MARGIN, run_briefly
from perfbisect.hunt.batch import PROGRAM, VERDICTS, error_in, log_of, read_batch_at_end, title_of
from perfbisect.masking import masked
from perfbisect.recipes.inventory import parse_lease_name
from perfbisect.report.command_line import command_on
from perfbisect.store.batches import (
    Batch,
    BatchHunt,
    PlannedHunt,
    enter_status,
    jobs_of,
    read_batch,
    remove_batch,
    update_hunt,
)
from perfbisect.store.history import History
from perfbisect.wording.text import printable

LIMIT = 20.0  # seconds for a command: sessions wait 30 for the history, which is locked while a job is submitted
BY_ITSELF = ("COMPLETED", "FAILED")  # states of jobs whose exit status is that of their program
ENDED = (
    *BY_ITSELF, "BOOT_FAIL", "CANCELLED", "DEADLINE", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "REVOKED", "TIMEOUT",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class JobState:
    """What Slurm says of a job."""

    word: str  # as Slurm writes it: PENDING
    reason: str = ""  # why it waits
    status: int | None = None  # the exit status of a program that has ended by itself

    @property
    def is_open(self) -> bool:
        """Whether it waits or runs."""
        return self.word not in ENDED

    def __str__(self) -> str:
        return f"{self.word} ({self.reason})" if self.word == "PENDING" else self.word


Jobs = Mapping[str, JobState]  # by their numbers


def check_commands(command: str = "sbatch") -> None:
    """Raise UsageError where this machine has no commands of Slurm."""
    if not shutil.which(command):
        raise UsageError(f"There is no {command} here.", "Use a machine with Slurm's commands, such as a login node.")


def sbatch(options: Sequence[str], script: str, arguments: Sequence[str]) -> str:
    """Submit a job: a script with its arguments, each of which it gets behind a point. Returns its number.

    Without that, a lone colon would separate two jobs. Raises EnvironmentFailure with what Slurm says where it refuses it.
    """
    # Not as a text made for this job: sbatch finds options in it, also those in a name that begins a line with #SBATCH.
    # An option without its value takes the -- for it, and not the script.
    words = [f".{argument}" for argument in arguments]
    printed = _run(["sbatch", "--parsable", *options, "--", "/dev/stdin", *words], script)
    if not printed:  # as with --test-only
        raise EnvironmentFailure("sbatch has submitted nothing.")
    return printed.strip().partition(";")[0]  # behind it, the name of a cluster


def job_states(jobs: Collection[str]) -> dict[str, JobState]:
    """The state of each job that Slurm knows; of ended ones it forgets most after minutes, unless it keeps accounts."""
    asked = ",".join([*jobs, *jobs])  # of a single number that it does not know, squeue makes an error
    fields = "JobID:30,State:30,exit_code:30,Reason:80"
    queued = _run(["squeue", "--noheader", "--states=all", f"--jobs={asked}", f"--Format={fields}"]) if jobs else ""
    states_of = {}
    for job, word, waited, *reason in (line.split(maxsplit=3) for line in queued.splitlines()):
        states_of[job] = _state(word, int(waited) >> 8, int(waited) & 127, "".join(reason).strip())
    accounts = ["sacct", "--allocations", "--noheader", "--parsable2", "--format=JobIDRaw,State,ExitCode"]
    if unlisted := [job for job in jobs if job not in states_of]:
        with suppress(PerfBisectError):  # no accounts are kept
            for line in _run([*accounts, f"--jobs={','.join(unlisted)}"]).splitlines():
                job, state, ended = line.split("|")
                status, _, signal = ended.partition(":")
                states_of[job] = _state(state.split()[0], int(status), int(signal))  # CANCELLED by 1000
    return states_of


def _state(word: str, status: int, signal: int, reason: str = "") -> JobState:
    """The state of a program that has ended with that status, or by a signal (0: none), to which a shell's status is given."""
    return JobState(word, reason, (128 + signal if signal else status) if word in BY_ITSELF else None)


def cancel(jobs: Collection[str]) -> None:
    """Cancel jobs: those that run get SIGTERM, and are killed some time later."""
    if jobs:
        _run(["scancel", *jobs])


def _run(command: Sequence[str], text: str = "") -> str:
    """What a command of Slurm prints. Raises UsageError where there is none, EnvironmentFailure where it fails."""
    check_commands(command[0])
    status, printed = run_briefly(command, text, LIMIT)
    if status:
        raise EnvironmentFailure(f"{command[0]} of Slurm has failed: {printed or f'it ended with status {status}'}")
    return printed


NOTICE = 120  # seconds before its time limit at which a job is told to stop

# Status 4 says that no hunt can begin; python's own 1 would be a verdict. The log is made by the job itself, as patterns in
# sbatch's --output cannot be quoted.
SCRIPT = """\
#!/bin/sh
for word; do set -- "$@" "${word#.}"; shift; done
log=$1 folder=$2 member=$3 python=$4 program=$5; shift 5
mkdir -p "${log%/*}" && {
    cd "$folder" && "$python" -P -c 'import perfbisect.cli.main' &&
        exec "$python" -P -c "$program" run "--in-batch=$member:$SLURM_JOB_ID" "$@"
} >>"$log" 2>&1; exit 4
"""


@dataclass(frozen=True, slots=True)
class SlurmJob:
    """One hunt of a file, and what it wants of Slurm."""

    planned: PlannedHunt
    options: tuple[str, ...]  # of sbatch
    minutes: float  # in which it may measure; 0: that is not limited
    range: str = ""  # equal for hunts that can share builds

    def words(self) -> list[str]:
        """The options of sbatch; those of the file are the last, and hold."""
        name = masked(printable(title_of(self.planned)))[:100]  # all users see it
        limit = [f"--time={math.ceil(self.minutes) + MARGIN}"] if self.minutes else []
        usual = [f"--job-name={name}", "--exclusive", "--output=/dev/null", f"--signal=B:TERM@{NOTICE}"]
        return [*usual, *limit, *constraint(self.planned), *self.options]

    def arguments(self, log: Path, member: str, history: Path) -> list[str]:
        """Those of the script."""
        python, _, _, program = PROGRAM
        place = ["--history", str(history.absolute()), "--wait", "--plain", "--host=local"]
        return [str(log.absolute()), self.planned.folder, member, python, program, *place, *self.planned.arguments]


def constraint(planned: PlannedHunt) -> list[str]:
    """The features of its node: those of `slurm:FEATURES`, or of any of several. Raises UsageError for other hosts."""
    if planned.hosts == (("local",),):
        return []
    named = [parse_lease_name(hosts[0]) if len(hosts) == 1 else None for hosts in planned.hosts]
    if not all(each and each.lease == "slurm" and each.count == 1 for each in named):
        advice = 'Leave out host and any-host, or write host = "slurm:FEATURES" for a node with these features.'
        raise UsageError(f"{title_of(planned)} names hosts, but Slurm chooses the node of a job.", advice)
    features = "|".join(dict.fromkeys(each.features for each in named if each and each.features))
    return [f"--constraint={features}"] if features else []


def look(history: History, number: int) -> tuple[Batch, Jobs]:
    """A batch, and what Slurm says of its jobs; enters how those have ended of which it is known from Slurm alone."""
    batch = read_batch(history, number)
    states = job_states([one.job for one in batch.hunts if one.job])
    for one in batch.hunts:
        status = states[one.job].status if one.job in states else None
        if one.status is None and status not in (None, INTERRUPTED):
            failure = "" if status in VERDICTS else error_in(log_of(history, number, one.number))
            enter_status(history, number, one.number, status, failure)
    return read_batch_at_end(history, number), states


def is_kept(one: BatchHunt, states: Jobs) -> bool:
    """Whether a hunt needs no job: it has one that waits or runs, or has ended well."""
    return one.status in VERDICTS or (one.job in states and states[one.job].is_open)


def submit(history: History, number: int, jobs: Sequence[SlurmJob]) -> int:
    """Submit each hunt of a batch that needs a job; returns how many these were. Raises UsageError at the first that is refused."""
    batch, states = look(history, number)
    wanted = [one for one in batch.hunts if not is_kept(one, states)]
    for one in wanted:
        job, log = jobs[one.number], log_of(history, number, one.number)
        arguments = job.arguments(log, f"{number}:{one.number}", history.path)
        # So that no job is submitted that is not entered.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM, signal.SIGHUP))
        try:
            with history.transaction():  # the job cannot read the history before it is entered
                submitted = sbatch(job.words(), SCRIPT, arguments)
                update_hunt(history, number, one.number, job=submitted, status=None, failure=None)
        except PerfBisectError as refused:
            if one is batch.hunts[0] and not any(each.hunt or each.job for each in batch.hunts):
                remove_batch(history, number)
            advice = "Correct that, and submit again: the jobs of the hunts before it are kept."
            raise UsageError(f"{title_of(one.planned)}: {refused}", advice) from refused
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return len(wanted)


def refuse_job(history: History, hunt: int) -> None:
    """Raise UsageError for a hunt on which a job works, or will, unless that is this process."""
    for batch, _, job in jobs_of(history, hunt):
        if job != os.environ.get("SLURM_JOB_ID") and any(each.is_open for each in job_states([job]).values()):
            see = command_on("batch", f"b{batch}", history.path)
            raise UsageError(f"Hunt {hunt} is carried out by job {job} of Slurm.", f"See it: {see}")
