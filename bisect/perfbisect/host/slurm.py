"""Jobs of Slurm, by its own commands: submitted, looked at, cancelled. Nodes on lease are those of hosts.toml: ``leases``."""

import shutil
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from perfbisect.errors import EnvironmentFailure, PerfBisectError, UsageError
from perfbisect.host.leases import short

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


def submit(options: Sequence[str], script: str, arguments: Sequence[str]) -> str:
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


def states(jobs: Collection[str]) -> dict[str, JobState]:
    """The state of each job that Slurm knows; of ended ones it forgets most after minutes, unless it keeps accounts."""
    asked = ",".join([*jobs, *jobs])  # of a single number that it does not know, squeue makes an error
    fields = "JobID:30,State:30,exit_code:30,Reason:80"
    queue = ["squeue", "--noheader", "--states=all", f"--jobs={asked}", f"--Format={fields}"]
    queued = _run(queue) if jobs else ""
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
    """A state, of a program that has ended with that status, or by a signal (0: none), which is told as a shell does it."""
    return JobState(word, reason, (128 + signal if signal else status) if word in BY_ITSELF else None)


def cancel(jobs: Collection[str]) -> None:
    """Cancel jobs: those that run get SIGTERM, and are killed some time later."""
    if jobs:
        _run(["scancel", *jobs])


def _run(command: Sequence[str], text: str = "") -> str:
    """What a command of Slurm prints. Raises UsageError where there is none, EnvironmentFailure where it fails."""
    check_commands(command[0])
    status, printed = short(command, text, LIMIT)
    if status:
        raise EnvironmentFailure(f"{command[0]} of Slurm has failed: {printed or f'it ended with status {status}'}")
    return printed
