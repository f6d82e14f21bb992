"""Long commands on a host: detached, with one folder each, so that the controller can disconnect and come back.

A job is the folder ``root/jobs/ID`` with

    command   the script, which can be read and run again
    pid       /proc/PID/stat of its leader, written by the leader when it starts
    boot      the id of the host's boot at that time
    stdout    its output, or the beginning and the end of it; see ``perfbisect.host.protocol``
    stderr
    stdout.kept, stdout.1 …
              how the process that writes it has ended, and the last of what is too much, for as long as the job runs
    status    the exit status, blank until it ends, and for good when it was killed from outside; "torn" when the output
              could not be written
    alive     locked by the leader while it lives: at most one leader runs, and its end is noticed at once

The leader is a shell that leads a session of its own, runs the command under ``timeout`` and writes the status. So
time limits hold on the host, even without the controller. A leader is identified by its pid, the tick of its start and
the boot: the pid alone may belong to another process by now. Every action is one idempotent call of ``Host.run``: a lost
connection ends no job, and starts none twice.
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
from perfbisect.host.packages import absent, missing
from perfbisect.host.protocol import ARGUMENT, HEAD, LINE, NO_SPACE, TAIL, Host, Result, last_line, no_space

LOST = -1  # stands for the missing status of a job that was killed from outside, or whose host was restarted
GRACE = 10.0  # seconds between TERM and KILL for what exceeds its time
SOON = 0.5  # the same for what is not wanted any more: a run, a server on a copy of data, a build, which begins anew
PINNED = 3  # words of ``pinned``
NOT_THERE = 127  # the status of a shell, of env and of timeout for a program that does not exist

_NAME = re.compile(r"[^A-Za-z0-9._-]+")
ID = r"[0-9]{8}-[0-9]{6}-[A-Za-z0-9._-]+-[0-9a-f]{6}"  # for re and for find
_PATIENCE = 5.0  # seconds of one poll for the end of a job: so late a cancelled one is ended
_CHUNK = 1 << 20  # bytes of output that one poll brings at most
# What the leader writes behind the first HEAD bytes in place of what it left out, and the line whose beginning that was.
_LEFT_OUT = re.compile(rb"\n\[perfbisect left out (\d+) bytes here\]\n[^\n]*\n?")


@dataclass(frozen=True, slots=True)
class Job:
    """A started job; its folder on the host contains everything else."""

    folder: PurePosixPath
    pid: int  # of its leader
    born: int  # clock ticks from the host's boot to the leader's start

    @property
    def id(self) -> str:
        """The folder's name: when it was started, its name, and some random letters."""
        return self.folder.name

    @property
    def name(self) -> str:
        """The name that it was started with."""
        return self.id[16:-7]


@dataclass(frozen=True, slots=True)
class Printed:
    """What a job has written to one stream, as text; only the end of it, in whole lines, where it was too much."""

    text: str
    left: int  # bytes that are kept nowhere

    @property
    def note(self) -> str:
        """What a sentence about it has to say: "" when it is whole."""
        return f"; of what it printed, {self.left / 1e6:,.1f} MB in the middle were not kept" if self.left else ""


def start(
    host: Host,
    argv: Sequence[str],
    *,
    name: str,
    timeout: float,
    cwd: PurePosixPath | None = None,
    env: Mapping[str, str] | None = None,
    merged: bool = False,
) -> Job:
    """Start ``argv`` as a job and return at once.

    The command sees a clean environment: PATH, HOME and USER of the host, LC_ALL=C, a TMPDIR below the root folder,
    and ``env``. Any other variable would shift the stack, and would differ from one terminal to the next.
    After ``timeout`` seconds the command gets TERM, and KILL after GRACE more; the status is then 124 or 137.
    ``merged`` sends stderr to stdout.

    Raises EnvironmentFailure where the program does not exist, or an argument is too long. Where the folder ``cwd`` does not
    exist the command fails: it may be part of a build, which has deleted it.
    """
    _check_length(argv, env or {})
    program = argv[PINNED] if [*argv[:2]] == ["taskset", "-c"] and argv[PINNED:] else argv[0]
    identifier = f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{_NAME.sub('_', name)}-{secrets.token_hex(3)}"
    folder = host.root / "jobs" / identifier
    where = cwd or host.root
    command = _command(host, argv, where, env, timeout)
    streams = "merged" if merged else "apart"
    limits = [str(int(timeout)), COLLECT + FINISH + LEADER, str(HEAD), str(TAIL)]
    arguments = [str(folder), str(where), program, str(scratch(host)), streams, *limits]
    search = {"PATH": env["PATH"]} if env and "PATH" in env else None
    try:
        started = host.run(["sh", "-c", START, "start", *arguments], env=search, stdin=command, check=False)
    except (KeyboardInterrupt, SystemExit, Cancelled):
        with contextlib.suppress(EnvironmentFailure):  # the leader does nothing once its command is not there
            if stat := host.script(ABANDON, folder).stdout:
                kill(host, _job(folder, stat))
        raise
    if started.status == NOT_THERE:
        raise absent([program], host.name)
    if not started.ok:
        reason = last_line(started.stderr) or "it printed nothing"
        raise EnvironmentFailure(f"{program} cannot be started as job {folder} on host {host.name}: {reason}")
    return _job(folder, started.stdout)


def run(
    host: Host,
    argv: Sequence[str],
    *,
    timeout: float,
    cwd: PurePosixPath | None = None,
    env: Mapping[str, str] | None = None,
) -> Result:
    """Run a short command to its end without a job of its own, where and with what ``start`` would give it.

    Raises EnvironmentFailure where the program does not exist on the host. One that is named by a path belongs to a
    build: there the status is 127. A command that prints too much has failed, too.
    """
    _check_length(argv, env or {})
    # The script's own limit never applies before that of ``run``.
    command = _command(host, argv, cwd or host.root, env, timeout + GRACE)
    try:
        result = host.run(["sh", "-c", command], timeout=timeout, check=False)
    except TooMuchOutput as flood:
        return Result(tuple(argv), 1, "", str(flood))
    if result.status == NOT_THERE and "/" not in argv[0] and missing(host, [argv[0]]):
        raise absent([argv[0]], host.name)
    return result


def running(host: Host) -> tuple[Job, ...]:
    """All jobs that run, oldest first: those of an interrupted controller included."""
    return _unended(host, "running")


def orphaned(host: Host) -> tuple[Job, ...]:
    """Jobs whose leader was killed alone: it has no status, and some of its processes still run."""
    return _unended(host, "orphaned")


def status(host: Host, job: Job, *, patience: float = 0) -> int | None:
    """The exit status, None while the job runs, LOST when it ended without one.

    For a job that runs the answer comes when it ends, or after ``patience`` seconds. Raises EnvironmentFailure when its
    output could not be written, as on a full disk.
    """
    return _poll(host, job, patience=patience)[0]


def printed(host: Host, job: Job, stream: str = "stdout") -> Printed:
    """What a job that has ended has written to ``stream``, without waiting for it."""
    came, left = _rest(host, job, stream, HEAD), 0
    if gap := _LEFT_OUT.match(came):
        came, left = came[gap.end() :], int(gap[1])
    else:
        came = _rest(host, job, stream, 0)
    return Printed(came.decode(errors="replace").replace("\r\n", "\n"), left)


def _rest(host: Host, job: Job, stream: str, offset: int) -> bytes:
    """What a stream of a job that has ended holds from that byte on."""
    came = b""
    while chunk := _poll(host, job, offset + len(came), _CHUNK, stream)[1]:
        came += chunk
    return came


def note(host: Host, job: Job) -> str:
    """What a sentence about the stdout of a job that has ended has to say, as ``Printed.note``."""
    gap = _LEFT_OUT.match(_poll(host, job, HEAD, LINE)[1])
    return Printed("", int(gap[1]) if gap else 0).note


def end(host: Host, job: Job) -> int:
    """Wait for the job's end, whatever it prints; returns the exit status. Interrupted or lost as in ``wait``."""
    try:
        while (ended := _poll(host, job, patience=_PATIENCE)[0]) is None:
            pass
    except (KeyboardInterrupt, SystemExit, Cancelled):
        kill(host, job)
        raise
    return _not_lost(host, job, ended)


def wait(host: Host, job: Job, *, every: float = 1.0, offset: int = 0) -> Generator[str, None, int]:
    """Yield the lines of the job's stdout from byte ``offset`` on as they come; the exit status is the return value.

    Of a long line only the beginning is yielded. The host is polled every ``every`` seconds, and reports the end of the
    job at once. Ctrl-C, or closing the generator, kills the job. When the host cannot be reached any more the job is
    left alone: wait again. Raises JobLost when it ended without a status; what its leader has left running
    is killed first, since the work will be repeated. Raises EnvironmentFailure when its output could not be written.
    """
    line_begun = b""
    ended: int | None = None
    try:
        while True:
            ended, chunk = _poll(host, job, offset, _CHUNK, patience=every)
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
    return _not_lost(host, job, ended)


def _not_lost(host: Host, job: Job, ended: int) -> int:
    if ended == LOST:
        kill(host, job)
        raise lost(host, job)
    return ended


def lost(host: Host, job: Job) -> JobLost:
    """The error for a job that ended without an exit status."""
    return JobLost(
        f"job {job.folder} on host {host.name} ended without an exit status",
        "It was killed from outside, or the host was restarted; start again.",
    )


def kill(host: Host, job: Job, *, grace: float = SOON) -> None:
    """End the job and all its processes: TERM, and KILL after ``grace`` seconds. Does nothing when it has ended."""
    tries = max(1, round(grace / 0.05))
    host.script(STATE + KILL, job.folder, job.pid, job.born, tries, timeout=grace + 60)


def kill_all(host: Host) -> None:
    """End all jobs that run, if the host can be reached: what waits for one goes on at once."""
    with contextlib.suppress(EnvironmentFailure):
        for job in running(host):
            kill(host, job)


def remove(host: Host, job: Job) -> None:
    """Remove the folder of a job that has ended."""
    host.run(["rm", "-rf", "--", str(job.folder)])


def _unended(host: Host, wanted: str) -> tuple[Job, ...]:
    """The jobs in that state."""
    listing = host.script(STATE + UNENDED, host.root / "jobs", check=False)
    rows = zip(*[iter(listing.stdout.splitlines())] * 3, strict=True)
    return tuple(_job(PurePosixPath(folder), stat) for state, folder, stat in rows if state == wanted)


def pinned(cpus: str) -> list[str]:
    """The prefix of a command that may use only these processors: a taskset list, "" for all."""
    return ["taskset", "-c", cpus] if cpus else []


def scratch(host: Host) -> PurePosixPath:
    """The folder of temporary files: what killed processes leave there is removed when the next hunt begins."""
    return host.root / "tmp"


def _command(host: Host, argv: Sequence[str], cwd: PurePosixPath, env: Mapping[str, str] | None, timeout: float) -> str:
    """The text of the file ``command``."""
    given = {"LC_ALL": "C", "TMPDIR": str(scratch(host)), **(env or {})}
    settings = shlex.join(f"{name}={value}" for name, value in given.items())
    limit = ["timeout", "-k", f"{GRACE:g}", f"{timeout:g}"]
    return (
        f"cd -- {shlex.quote(str(cwd))} &&\n"
        f'exec env -i PATH="$PATH" HOME="$HOME" USER="${{USER:-}}" {settings} \\\n'
        f"    {shlex.join([*limit, *argv])}\n"
    )


def _job(folder: PurePosixPath, stat: str) -> Job:
    """A job from the /proc/PID/stat of its leader; the name in brackets may itself hold blanks and brackets."""
    pid, _, _ = stat.partition(" ")
    return Job(folder, int(pid), int(stat.rpartition(") ")[2].split()[19]))


def _poll(
    host: Host, job: Job, offset: int = 0, limit: int = 0, stream: str = "stdout", patience: float = 0
) -> tuple[int | None, bytes]:
    """The status of a job that has ended, and a chunk of its output, in one call. Base64 keeps offsets exact, whatever bytes a program writes.

    The answer comes when the job ends, or after ``patience`` seconds.
    """
    arguments = [job.folder, job.pid, job.born, offset, limit, stream, f"{patience:g}"]
    answer = host.script(STATE + POLL, *arguments, timeout=60 + patience).stdout
    state, _, chunk = answer.partition("\n")
    if state == "torn":
        reasons = host.run(["cat", str(job.folder / "stdout.kept"), str(job.folder / "stderr.kept")]).stdout.split("\n")
        reason = next(line.strip() for line in reasons if line.strip() not in {"", "whole"})
        if NO_SPACE in reason:
            raise no_space(host.name, reason)
        raise EnvironmentFailure(f"the output of job {job.folder} on host {host.name} cannot be written: {reason}")
    ended = None if state == "running" else LOST if state == "lost" else int(state)
    return ended, base64.b64decode(chunk)


def _check_length(argv: Sequence[str], env: Mapping[str, str]) -> None:
    """Raise EnvironmentFailure when no program can be started with these arguments and variables."""
    for text in (*argv, *(f"{name}={value}" for name, value in env.items())):
        if len(text.encode(errors="replace")) > ARGUMENT:
            raise EnvironmentFailure(
                f"a command is too long to be started: {len(text):,} characters, which begin with {text[:60]!r}",
                f"Linux allows {ARGUMENT:,} bytes. Put what it does into a file beside the recipe; the placeholder"
                " {recipe} is its folder.",
            )
