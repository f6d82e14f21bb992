"""Runs long commands on a host as jobs: a job has its own folder on the host, and continues while the controller (the
machine on which perfbisect runs) is disconnected.

A job is the folder ``root/jobs/ID`` with

    command   the shell script of the job, which a user can read, and can run again
    pid       the text of /proc/PID/stat of the job's leader, which the leader writes when it starts
    boot      the id of the host's boot when the leader started
    stdout    the output of the command; of a long output only the beginning and the end (``perfbisect.host.protocol``)
    stderr    the error output of the command, shortened like stdout
    stdout.kept, stdout.1 …
              how the process that writes stdout has ended; while the job runs, the last parts of a long output
    status    the exit status of the command; empty while the job runs, and after another program has killed the job;
              "torn" if the output could not be written
    alive     a file that the leader locks while it runs, so that a job has at most one leader, and its end is noticed
              immediately

The leader is a shell that leads its own session, runs the command under ``timeout`` and writes the status. Therefore a
time limit ends a job even while the controller is disconnected. A leader is identified by its pid, the clock tick at
which it started, and the id of the boot, because a later process may have the same pid. Each function of this module
that acts on a job calls ``Host.run`` with a command that may be repeated, so a lost connection neither ends a job nor
starts a job twice.
"""

import base64
import contextlib
import re
import secrets
import shlex
import time
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from perfbisect.errors import Cancelled, EnvironmentFailure, JobLost, TooMuchOutput
from perfbisect.host.job_scripts import ABANDON, COLLECT, FINISH, KILL, LEADER, POLL, START, STATE, UNENDED
from perfbisect.host.packages import missing_needs_error, missing_programs
from perfbisect.host.protocol import ARGUMENT, HEAD, LINE, NO_SPACE, TAIL, Host, Result, disk_full_error, last_line

LOST = -1  # in place of the exit status of a job that another program killed, or whose host was restarted
GRACE = 10.0  # seconds between TERM and KILL for a command that exceeds its time limit
SOON = 0.5  # seconds between TERM and KILL for a job that is no longer needed, such as a run or a build
PINNED = 3  # number of words before the program in a command that taskset pins to CPUs
NOT_THERE = 127  # status of a shell, of env and of timeout for a program that does not exist

_NAME = re.compile(r"[^A-Za-z0-9._-]+")
ID = r"[0-9]{8}-[0-9]{6}-[A-Za-z0-9._-]+-[0-9a-f]{6}"  # a regular expression for Python and for find
_PATIENCE = 5.0  # seconds that one poll waits for the end of a job; a cancellation is noticed after a poll
_CHUNK = 1 << 20  # most bytes of output in one poll
# The line that the leader of a job writes in place of omitted output, and the rest of the line that the omission cuts.
_LEFT_OUT = re.compile(rb"\n\[perfbisect left out (\d+) bytes here\]\n[^\n]*\n?")


@dataclass(frozen=True, slots=True)
class Job:
    """A started job; all other data of the job are in its folder on the host."""

    folder: PurePosixPath
    pid: int  # of its leader
    start_ticks: int  # clock ticks from the host's boot to the leader's start

    @property
    def id(self) -> str:
        """The name of the job's folder: the start time, the job's name, and six random hexadecimal digits."""
        return self.folder.name

    @property
    def name(self) -> str:
        """The name with which the job was started."""
        return self.id[16:-7]


@dataclass(frozen=True, slots=True)
class JobOutput:
    """The text that a job wrote to one stream; only the last whole lines if the text exceeds a limit."""

    text: str
    omitted_bytes: int  # bytes that were not kept

    @property
    def omitted_output_note(self) -> str:
        """A clause that says how much output is missing, to be added to a sentence; "" if no output is missing."""
        text = f"; {self.omitted_bytes / 1e6:,.1f} MB from the middle of its output are missing"
        return text if self.omitted_bytes else ""


def start(
    host: Host,
    argv: Sequence[str],
    *,
    name: str,
    timeout: float,
    cwd: PurePosixPath | None = None,
    env: Mapping[str, str] | None = None,
    merge_stderr: bool = False,
) -> Job:
    """Start ``argv`` as a job, and return without waiting for its end.

    The command has a clean environment: PATH, HOME and USER of the host, LC_ALL=C, a TMPDIR below the root folder, and
    ``env``. The command gets no other variables, because each variable shifts the addresses of the stack, and because
    variables differ between terminals. After ``timeout`` seconds the command gets TERM, and GRACE seconds later KILL;
    the status is then 124 or 137. ``merge_stderr`` sends stderr to stdout.

    Raises EnvironmentFailure if the program does not exist, or an argument is too long. If the folder ``cwd`` does not
    exist, the command fails: the folder may belong to a build, and the build may have deleted it.
    """
    _check_length(argv, env or {})
    program = argv[PINNED] if [*argv[:2]] == ["taskset", "-c"] and argv[PINNED:] else argv[0]
    identifier = f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{_NAME.sub('_', name)}-{secrets.token_hex(3)}"
    folder = host.root / "jobs" / identifier
    where = cwd or host.root
    command = _command_file_text(host, argv, where, env, timeout)
    streams = "merged" if merge_stderr else "apart"
    limits = [str(int(timeout)), COLLECT + FINISH + LEADER, str(HEAD), str(TAIL)]
    arguments = [str(folder), str(where), program, str(temp_files_folder(host)), streams, *limits]
    search = {"PATH": env["PATH"]} if env and "PATH" in env else None
    try:
        started = host.run(["sh", "-c", START, "start", *arguments], env=search, stdin=command, check=False)
    except (KeyboardInterrupt, SystemExit, Cancelled):
        with contextlib.suppress(EnvironmentFailure):  # if the command file is missing, the job does nothing
            if stat := host.script(ABANDON, folder).stdout:
                kill(host, _job_from_stat(folder, stat))
        raise
    if started.status == NOT_THERE:
        raise missing_needs_error([program], host.name)
    if not started.ok:
        reason = last_line(started.stderr) or "the command printed nothing"
        raise EnvironmentFailure(f"{program} cannot be started as job {folder} on host {host.name}: {reason}")
    return _job_from_stat(folder, started.stdout)


def run(
    host: Host,
    argv: Sequence[str],
    *,
    timeout: float,
    cwd: PurePosixPath | None = None,
    env: Mapping[str, str] | None = None,
) -> Result:
    """Run a short command, and wait for its end. The command is not a job, but has the same folder and environment as a
    job that ``start`` would start.

    Raises EnvironmentFailure if the program does not exist on the host. If ``argv[0]`` is a path, the program belongs
    to a build; then no error is raised for a missing program, and the exit status is 127. The exit status is 1 if the
    command prints more than the limits allow.
    """
    _check_length(argv, env or {})
    # The script's own time limit is longer, so that the time limit of ``run`` applies first.
    command = _command_file_text(host, argv, cwd or host.root, env, timeout + GRACE)
    try:
        result = host.run(["sh", "-c", command], timeout=timeout, check=False)
    except TooMuchOutput as flood:
        return Result(tuple(argv), 1, "", str(flood))
    if result.status == NOT_THERE and "/" not in argv[0] and missing_programs(host, [argv[0]]):
        raise missing_needs_error([argv[0]], host.name)
    return result


def running_jobs(host: Host) -> tuple[Job, ...]:
    """All running jobs, oldest first, including jobs of a controller that was interrupted."""
    return _jobs_in_state(host, "running")


def leaderless_jobs(host: Host) -> tuple[Job, ...]:
    """The jobs without an exit status whose leader was killed, and of which other processes still run."""
    return _jobs_in_state(host, "orphaned")


def status(host: Host, job: Job, *, wait_seconds: float = 0) -> int | None:
    """The exit status; None while the job runs, LOST if the job ended without an exit status.

    For a running job, the call returns when the job ends, or after ``wait_seconds`` seconds. Raises EnvironmentFailure
    if the job's output could not be written, for example because the disk was full.
    """
    return _poll(host, job, patience=wait_seconds)[0]


def job_output(host: Host, job: Job, stream: str = "stdout") -> JobOutput:
    """The output that an ended job has written to ``stream``."""
    came, omitted = _poll(host, job, 0, _CHUNK, stream)[1], 0
    if len(came) == _CHUNK:
        end = _output_from(host, job, stream, HEAD)
        if gap := _LEFT_OUT.match(end):
            came, omitted = end[gap.end() :], int(gap[1])
        else:
            came += _output_from(host, job, stream, _CHUNK)
    return JobOutput(came.decode(errors="replace").replace("\r\n", "\n"), omitted)


def _output_from(host: Host, job: Job, stream: str, offset: int) -> bytes:
    """The bytes of a stream of an ended job from ``offset`` on."""
    came, is_whole = b"", False
    while not is_whole:
        chunk = _poll(host, job, offset + len(came), _CHUNK, stream)[1]
        came, is_whole = came + chunk, len(chunk) < _CHUNK
    return came


def omitted_output_note(host: Host, job: Job) -> str:
    """A clause that says how much of the stdout of an ended job is missing; "" if nothing is missing."""
    gap = _LEFT_OUT.match(_poll(host, job, HEAD, LINE)[1])
    return JobOutput("", int(gap[1]) if gap else 0).omitted_output_note


def wait_for_status(host: Host, job: Job) -> int:
    """Wait for the job's end, and return the exit status. The job's output is not read. Ctrl-C kills the job. Raises
    JobLost if the job ended without an exit status.
    """
    try:
        while (ended := _poll(host, job, patience=_PATIENCE)[0]) is None:
            pass
    except (KeyboardInterrupt, SystemExit, Cancelled):
        kill(host, job)
        raise
    return _status_unless_lost(host, job, ended)


def follow_stdout(host: Host, job: Job, *, poll_seconds: float = 1.0, offset: int = 0) -> Generator[str, None, int]:
    """Yield each line of the job's stdout from byte ``offset`` on when it is written; return the exit status.

    Of a line longer than ``LINE`` bytes, only the beginning is yielded. The host is polled every ``poll_seconds``
    seconds, and reports the end of the job immediately. Ctrl-C, or closing the generator, kills the job. If the
    connection to the host is lost, the job continues, and the caller may call ``follow_stdout`` again. If the job ended
    without an exit status, kills the remaining processes of the job, because the work will be repeated, and raises
    JobLost. Raises EnvironmentFailure if the job's output could not be written.
    """
    line_begun = b""
    ended: int | None = None
    try:
        while True:
            ended, chunk = _poll(host, job, offset, _CHUNK, patience=poll_seconds)
            offset += len(chunk)
            *lines, line_begun = (line_begun + chunk).split(b"\n")
            line_begun = line_begun[:LINE]
            for line in lines:
                yield line[:LINE].decode(errors="replace").removesuffix("\r")
            if ended is not None and len(chunk) < _CHUNK:
                break
    except (KeyboardInterrupt, GeneratorExit, SystemExit, Cancelled):
        kill(host, job)
        raise
    if line_begun:
        yield line_begun.decode(errors="replace")
    return _status_unless_lost(host, job, ended)


def _status_unless_lost(host: Host, job: Job, ended: int) -> int:
    if ended == LOST:
        kill(host, job)
        raise lost_job_error(host, job)
    return ended


def lost_job_error(host: Host, job: Job) -> JobLost:
    """The error for a job that ended without an exit status."""
    text = f"job {job.folder} on host {host.name} ended without an exit status"
    return JobLost(text, "The job was killed by another program, or the host was restarted. Run the command again.")


def kill(host: Host, job: Job, *, grace_seconds: float = SOON) -> None:
    """End the job and all its processes: send TERM, and KILL after ``grace_seconds`` seconds. Does nothing if the job
    has ended.
    """
    tries = max(1, round(grace_seconds / 0.05))
    host.script(STATE + KILL, job.folder, job.pid, job.start_ticks, tries, timeout=grace_seconds + 60)


def kill_all(host: Host) -> None:
    """End all running jobs, if the host can be reached. Code that waits for the end of one of these jobs continues
    immediately."""
    with contextlib.suppress(EnvironmentFailure):
        for job in running_jobs(host):
            kill(host, job)


def remove_folder(host: Host, job: Job) -> None:
    """Remove the folder of a job that has ended."""
    host.run(["rm", "-rf", "--", str(job.folder)])


def _jobs_in_state(host: Host, wanted_state: str) -> tuple[Job, ...]:
    """The jobs in the state ``wanted_state``."""
    listing = host.script(STATE + UNENDED, host.root / "jobs", check=False)
    rows = zip(*[iter(listing.stdout.splitlines())] * 3, strict=True)
    return tuple(_job_from_stat(PurePosixPath(folder), stat) for state, folder, stat in rows if state == wanted_state)


def taskset(cpus: str) -> list[str]:
    """The prefix of a command that may use only these processors: ``cpus`` is a taskset list, "" for all."""
    return ["taskset", "-c", cpus] if cpus else []


def temp_files_folder(host: Host) -> PurePosixPath:
    """The folder of temporary files. A hunt that begins removes the temporary files that killed processes have left in
    this folder."""
    return host.root / "tmp"


def _command_file_text(
    host: Host, argv: Sequence[str], cwd: PurePosixPath, env: Mapping[str, str] | None, timeout: float
) -> str:
    """The content of the job's file ``command``."""
    variables = {"LC_ALL": "C", "TMPDIR": str(temp_files_folder(host)), **(env or {})}
    settings = shlex.join(f"{name}={value}" for name, value in variables.items())
    limit = ["timeout", "-k", f"{GRACE:g}", f"{timeout:g}"]
    return (
        f"cd -- {shlex.quote(str(cwd))} &&\n"
        f'exec env -i PATH="$PATH" HOME="$HOME" USER="${{USER:-}}" {settings} \\\n'
        f"    {shlex.join([*limit, *argv])}\n"
    )


def _job_from_stat(folder: PurePosixPath, stat: str) -> Job:
    """The job whose leader has the text ``stat`` in /proc/PID/stat. The program's name in this text is in brackets, and
    may contain blanks and brackets."""
    pid, _, _ = stat.partition(" ")
    return Job(folder, int(pid), int(stat.rpartition(") ")[2].split()[19]))


def _poll(
    host: Host, job: Job, offset: int = 0, limit: int = 0, stream: str = "stdout", patience: float = 0
) -> tuple[int | None, bytes]:
    """The exit status of a job (None while the job runs), and the next chunk of its output, by one command.

    The host sends the output in base64, because offsets in bytes would be wrong in decoded text. The host answers when
    the job ends, at the latest after ``patience`` seconds.
    """
    arguments = [job.folder, job.pid, job.start_ticks, offset, limit, stream, f"{patience:g}"]
    answer = host.script(STATE + POLL, *arguments, timeout=60 + patience).stdout
    state, _, chunk = answer.partition("\n")
    if state == "torn":
        reasons = host.run(["cat", str(job.folder / "stdout.kept"), str(job.folder / "stderr.kept")]).stdout.split("\n")
        reason = next(line.strip() for line in reasons if line.strip() not in {"", "whole"})
        if NO_SPACE in reason:
            raise disk_full_error(host.name, reason)
        raise EnvironmentFailure(f"the output of job {job.folder} on host {host.name} cannot be written: {reason}")
    ended = None if state == "running" else LOST if state == "lost" else int(state)
    return ended, base64.b64decode(chunk)


def _check_length(argv: Sequence[str], env: Mapping[str, str]) -> None:
    """Raise EnvironmentFailure if an argument or a variable is longer than Linux allows for starting a program."""
    for text in (*argv, *(f"{name}={value}" for name, value in env.items())):
        if len(text.encode(errors="replace")) > ARGUMENT:
            raise EnvironmentFailure(
                f"a command is too long: it has {len(text):,} characters, and begins with {text[:60]!r}",
                f"Linux allows {ARGUMENT:,} bytes. Put the commands into a file beside the recipe, and run that file:"
                " the placeholder {recipe} is its folder.",
            )
