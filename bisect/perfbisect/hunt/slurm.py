"""Carries out the hunts of a batch as jobs of Slurm: submits, lists and cancels jobs by Slurm's commands.

Slurm decides the order, limits, dependencies and accounts of jobs. Another way to use Slurm is a host in hosts.toml
that is leased from Slurm: see ``host.leases``.

A job runs `bisect run` with the host ``local`` on the node that Slurm has chosen. The user who submits
the job has a history (a database of hunts). If the node can write to the user's history, the job stores the hunt there,
and a repeated job resumes the hunt. If the node cannot write to the user's history, the job stores the hunt in a
separate database on the node, and a repeated job begins a new hunt. The user's history then contains only the state
that Slurm reports for the job.
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
from perfbisect.hunt.batch import PROGRAM, VERDICTS, end_batch_if_complete, hunt_output_file, last_error, title_of
from perfbisect.masking import mask_credentials
from perfbisect.recipes.inventory import parse_leased_host_name
from perfbisect.report.command_line import bisect_command
from perfbisect.store.batches import (
    Batch,
    BatchHunt,
    PlannedHunt,
    batch_jobs_of_hunt,
    enter_batch_hunt_status,
    read_batch,
    remove_planned_batch,
    update_batch_hunt,
)
from perfbisect.store.history import History
from perfbisect.wording.text import printable

TIME_LIMIT = 20.0  # seconds of a command; less than the 30 s that sessions wait for the locked history
EXITED = ("COMPLETED", "FAILED")  # states of jobs whose program has exited by itself
ENDED = (*EXITED, "BOOT_FAIL", "CANCELLED", "DEADLINE", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "REVOKED", "TIMEOUT")


@dataclass(frozen=True, slots=True)
class JobState:
    """The state of a Slurm job, as Slurm's commands print it."""

    word: str  # Slurm's word for the state, such as PENDING
    reason: str = ""  # the reason why the job waits
    status: int | None = None  # the exit status of a program that has exited by itself

    @property
    def is_open(self) -> bool:
        """Whether the job waits or runs."""
        return self.word not in ENDED

    def __str__(self) -> str:
        return f"{self.word} ({self.reason})" if self.word == "PENDING" else self.word


Jobs = Mapping[str, JobState]  # number of a job → state


def check_slurm_command(command: str = "sbatch") -> None:
    """Raise UsageError if this machine does not have ``command``, a command of Slurm."""
    if not shutil.which(command):
        advice = "Use a machine with Slurm's commands, such as a login node."
        raise UsageError(f"This machine has no {command}.", advice)


def sbatch(options: Sequence[str], script: str, arguments: Sequence[str]) -> str:
    """Submit a job that runs a script with arguments; returns the number of the job.

    Each argument of the script gets a leading point, because sbatch interprets an argument that is a single colon as
    the separator of two jobs. Raises EnvironmentFailure with Slurm's message if Slurm refuses the job.
    """
    # All jobs have the same script, because sbatch would find options in it, for example in a name with a line #SBATCH.
    # Because of the --, an option without a value takes the --, and not the script, as its value.
    words = [f".{argument}" for argument in arguments]
    printed = _run(["sbatch", "--parsable", *options, "--", "/dev/stdin", *words], script)
    if not printed:  # for example with --test-only
        raise EnvironmentFailure("sbatch has submitted no job: it has printed no job number.")
    return printed.strip().partition(";")[0]  # the name of a cluster may follow the number


def job_states(jobs: Collection[str]) -> dict[str, JobState]:
    """The states of the jobs that Slurm knows. Without accounting, Slurm forgets ended jobs after minutes."""
    numbers = ",".join([*jobs, *jobs])  # twice, because squeue fails for a single number that it does not know
    fields = "JobID:30,State:30,exit_code:30,Reason:80"
    queued = _run(["squeue", "--noheader", "--states=all", f"--jobs={numbers}", f"--Format={fields}"]) if jobs else ""
    states_of = {}
    for job, word, waited, *reason in (line.split(maxsplit=3) for line in queued.splitlines()):
        states_of[job] = _job_state(word, int(waited) >> 8, int(waited) & 127, "".join(reason).strip())
    accounts = ["sacct", "--allocations", "--noheader", "--parsable2", "--format=JobIDRaw,State,ExitCode"]
    if unlisted := [job for job in jobs if job not in states_of]:
        with suppress(PerfBisectError):  # raised if Slurm keeps no accounting records
            for line in _run([*accounts, f"--jobs={','.join(unlisted)}"]).splitlines():
                job, state, ended = line.split("|")
                status, _, signal = ended.partition(":")
                states_of[job] = _job_state(state.split()[0], int(status), int(signal))  # "CANCELLED by 1000"
    return states_of


def _job_state(word: str, status: int, signal: int, reason: str = "") -> JobState:
    """The state of a job; its exit status is 128 + signal if ``signal`` ended its program (0: no signal did)."""
    return JobState(word, reason, (128 + signal if signal else status) if word in EXITED else None)


def cancel(jobs: Collection[str]) -> None:
    """Cancel jobs. Slurm sends SIGTERM to running jobs, and kills jobs that still run some time later."""
    if jobs:
        _run(["scancel", *jobs])


def _run(command: Sequence[str], stdin: str = "") -> str:
    """Run a command of Slurm; returns its output. Raises UsageError if the command is missing, EnvironmentFailure if it
    fails.
    """
    check_slurm_command(command[0])
    status, printed = run_briefly(command, stdin, TIME_LIMIT)
    if status:
        raise EnvironmentFailure(f"{command[0]} of Slurm has failed: {printed or f'it ended with status {status}'}")
    return printed


NOTICE = 120  # seconds between SIGTERM and the time limit of a job

# Status 4 says that the hunt could not begin. Status 1, with which Python ends after an error, would be taken for a
# verdict. The job itself makes its log, because patterns in sbatch's --output cannot be quoted.
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
    """A hunt of a batch file as a job of Slurm."""

    planned: PlannedHunt
    options: tuple[str, ...]  # options of sbatch
    minutes: float  # the time limit of the hunt; 0: no limit
    range: str = ""  # a key that is equal for hunts that can share builds

    def sbatch_options(self) -> list[str]:
        """The options of sbatch. The options of the batch file come last, so that they override the defaults."""
        name = mask_credentials(printable(title_of(self.planned)))[:100]  # without passwords, because all users see it
        limit = [f"--time={math.ceil(self.minutes) + MARGIN}"] if self.minutes else []
        defaults = [f"--job-name={name}", "--exclusive", "--output=/dev/null", f"--signal=B:TERM@{NOTICE}"]
        return [*defaults, *limit, *constraint_option(self.planned), *self.options]

    def script_arguments(self, log: Path, hunt_key: str, history: Path) -> list[str]:
        """The arguments of the job's script; ``hunt_key`` is the numbers of the batch and of the hunt, such as 3:0."""
        python, _, _, program = PROGRAM
        options = ["--history", str(history.absolute()), "--wait", "--plain", "--host=local"]
        return [str(log.absolute()), self.planned.folder, hunt_key, python, program, *options, *self.planned.arguments]


def constraint_option(planned: PlannedHunt) -> list[str]:
    """The option --constraint of sbatch, from hosts that are written as `slurm:FEATURES`. If several such hosts are
    given, a node needs the features of only one of them.

    The result is empty if no host names features. Raises UsageError for hosts that are not single Slurm nodes.
    """
    if planned.hosts == (("local",),):
        return []
    names = [parse_leased_host_name(hosts[0]) if len(hosts) == 1 else None for hosts in planned.hosts]
    if not all(name and name.lease == "slurm" and name.count == 1 for name in names):
        advice = 'Remove the keys host and any-host, or write host = "slurm:FEATURES" for a node with these features.'
        raise UsageError(f"The hunt {title_of(planned)} names hosts, but Slurm chooses the node of a job.", advice)
    features = "|".join(dict.fromkeys(name.features for name in names if name and name.features))
    return [f"--constraint={features}"] if features else []


def read_batch_and_jobs(history: History, number: int) -> tuple[Batch, Jobs]:
    """A batch and the states of its jobs. If a job has ended and the batch does not have its exit status yet, the exit
    status is copied from Slurm into the batch."""
    batch = read_batch(history, number)
    states = job_states([hunt.job for hunt in batch.hunts if hunt.job])
    for hunt in batch.hunts:
        status = states[hunt.job].status if hunt.job in states else None
        if hunt.status is None and status not in (None, INTERRUPTED):
            failure = "" if status in VERDICTS else last_error(hunt_output_file(history, number, hunt.number))
            enter_batch_hunt_status(history, number, hunt.number, status, failure)
    return end_batch_if_complete(history, number), states


def needs_no_job(hunt: BatchHunt, states: Jobs) -> bool:
    """Whether a hunt has a verdict, or already has a job that waits or runs."""
    return hunt.status in VERDICTS or (hunt.job in states and states[hunt.job].is_open)


def submit(history: History, number: int, jobs: Sequence[SlurmJob]) -> int:
    """Submit a job for each hunt of a batch that needs a job. Returns the number of submitted jobs.

    Raises UsageError if Slurm refuses a job; later jobs are not submitted.
    """
    batch, states = read_batch_and_jobs(history, number)
    hunts = [hunt for hunt in batch.hunts if not needs_no_job(hunt, states)]
    for hunt in hunts:
        job, log = jobs[hunt.number], hunt_output_file(history, number, hunt.number)
        arguments = job.script_arguments(log, f"{number}:{hunt.number}", history.path)
        # Signals are blocked, so that each submitted job is stored.
        signal_mask = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM, signal.SIGHUP))
        try:
            with history.transaction():  # the job cannot read the history before the job is stored
                submitted = sbatch(job.sbatch_options(), SCRIPT, arguments)
                update_batch_hunt(history, number, hunt.number, job=submitted, status=None, failure=None)
        except PerfBisectError as error:
            if hunt is batch.hunts[0] and not any(planned.hunt or planned.job for planned in batch.hunts):
                remove_planned_batch(history, number)
            advice = "Correct this hunt and submit the file again. The jobs of the hunts before it are kept."
            raise UsageError(f"{title_of(hunt.planned)}: {error}", advice) from error
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, signal_mask)
    return len(hunts)


def refuse_if_job_is_open(history: History, hunt: int) -> None:
    """Raise UsageError if a job of Slurm carries out a hunt or waits to do so, unless this process is that job."""
    for batch, _, job in batch_jobs_of_hunt(history, hunt):
        if job != os.environ.get("SLURM_JOB_ID") and any(state.is_open for state in job_states([job]).values()):
            command = bisect_command("batch", f"b{batch}", history.path)
            raise UsageError(f"Hunt {hunt} is carried out by job {job} of Slurm.", f"See the job: {command}")
