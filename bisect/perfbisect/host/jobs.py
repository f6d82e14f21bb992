"""Long commands on a host: detached, with one folder each, so that the controller can disconnect and come back.

A job is the folder ``root/jobs/ID`` with

    command   the script, which can be read and run again
    pid       /proc/PID/stat of its leader, written by the leader when it starts
    boot      the id of the host's boot at that time
    stdout    its output
    stderr
    status    the exit status, blank until it ends, and for good when it was killed from outside
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

from perfbisect.errors import Cancelled, CommandFailed, EnvironmentFailure, JobLost
from perfbisect.host.programs import absent, missing
from perfbisect.host.protocol import Host, Result

LOST = -1  # stands for the missing status of a job that was killed from outside, or whose host was restarted
GRACE = 10.0  # seconds between TERM and KILL
NOT_THERE = 127  # the status of a shell, of env and of timeout for a program that does not exist

_NAME = re.compile(r"[^A-Za-z0-9._-]+")
ID = r"[0-9]{8}-[0-9]{6}-[A-Za-z0-9._-]+-[0-9a-f]{6}"  # for re and for find
_CHUNK = 1 << 20  # bytes of output that one poll brings at most

# A signal that is handled, unlike one that is ignored, is not inherited: the leader outlives TERM, its command does
# not. A command that was killed from outside has no status: neither when the leader got a signal, too, as in an orderly
# shutdown (where it may get it a little later than the command), nor when the command's signal, or the status that
# timeout makes of one, came before $2 seconds had passed. The status overwrites blanks in place, which needs no space
# on a full disk. When memory runs out, the kernel kills the command first.
_LEADER = """\
exec 9>>"$1/alive"; flock -n 9 && [ ! -s "$1/pid" ] || exit
signalled=
trap signalled=1 HUP INT TERM
read -r stat </proc/self/stat
read -r began rest </proc/uptime
cat /proc/sys/kernel/random/boot_id >"$1/boot"
printf '%s\\n' "$stat" >"$1/pid"
({ echo 1000 >/proc/self/oom_score_adj; } 2>/dev/null; exec sh "$1/command") 9>&-
status=$?
read -r now rest </proc/uptime
[ "$status" = 0 ] || [ "$status" -ge 128 ] || sleep 0.1
case $status in
    124|129|130|137|143) [ "$((${now%.*} - ${began%.*}))" -ge "$2" ] || signalled=1;;
esac
[ -n "$signalled" ] || printf '%s\\n' "$status" 1<>"$1/status"
"""

# Writing goes through cat, whose message names a full disk: that of a shell's own printf is just "I/O error".
_START = """\
cd -- "$2" || exit 1
command -v -- "$3" >/dev/null || exit 127
mkdir -p "$1" "$5" || exit 1
set -e
if [ ! -e "$1/alive" ]; then
    printf '    \\n' | cat >"$1/status"
    printf '%s' "$4" | cat >"$1/command"
    : >"$1/stdout"; : >"$1/stderr"
fi
if [ ! -s "$1/pid" ]; then
    if [ "$6" = merged ]; then errors="$1/stdout"; else errors="$1/stderr"; fi
    setsid sh -c "$7" leader "$1" "$8" </dev/null >>"$1/stdout" 2>>"$errors" &
fi
tries=0
until [ -s "$1/pid" ]; do
    tries=$((tries + 1))
    [ "$tries" -le 500 ] || { echo "the leader does not start" >&2; exit 1; }
    sleep 0.01
done
cat "$1/pid"
"""

# Prints the state ("running", "lost" or a number), then a chunk of the output. The state is read first, so that
# the output of an ended job is complete. A zombie has ended: its parent does not reap it.
_STATE = """\
from_this_boot() {
    { read -r then <"$1/boot" && read -r now </proc/sys/kernel/random/boot_id; } 2>/dev/null && [ "$then" = "$now" ]
}
state() {
    read -r status <"$1/status" || status=
    [ -z "$status" ] || { echo "$status"; return; }
    from_this_boot "$1" || { echo lost; return; }
    { read -r stat </proc/"$2"/stat; } 2>/dev/null || stat=
    set -- "$1" "$3" ${stat##*) }
    case $3 in ''|Z|X) ;; *) [ "${22}" != "$2" ] || { echo running; return; };; esac
    read -r status <"$1/status" || status=
    echo "${status:-lost}"
}
"""
# It waits up to $7 seconds for the leader's end first.
_POLL = (
    _STATE
    + """\
[ "$7" = 0 ] || flock -s -w "$7" "$1/alive" true || :
state "$1" "$2" "$3"
[ "$5" = 0 ] || dd if="$1/$6" iflag=skip_bytes skip="$4" bs="$5" count=1 status=none | base64 -w 0
"""
)

# Every process of the leader's session and their descendants (some servers' children open sessions of their own) get
# TERM once, whenever they appear, then KILL until none is left. If the leader's pid belongs to another process by now,
# the session has ended: its number stays taken as long as the session exists. It ends with its boot, too, and its number
# may then be that of another session.
_KILL = (
    _STATE
    + """\
members() {
    ps -e -o pid= -o ppid= -o sess= -o stat= | awk -v leader="$1" '
        { parent[$1] = $2; dead[$1] = $4 ~ /^[ZX]/; if ($3 == leader) member[$1] = 1 }
        END {
            do {
                more = 0
                for (p in parent) if (!(p in member) && (parent[p] in member)) { member[p] = 1; more = 1 }
            } while (more)
            for (p in member) if (!dead[p]) print p
        }'
}
from_this_boot "$1" || exit 0
{ read -r stat </proc/"$2"/stat; } 2>/dev/null || stat=
if [ -n "$stat" ]; then
    born=$(set -- ${stat##*) }; echo "${20}")
    [ "$born" = "$3" ] || exit 0
fi
signalled=' '; tries=0
while pids=$(members "$2"); [ -n "$pids" ]; do
    for pid in $pids; do
        if [ "$tries" -ge "$4" ]; then kill -s KILL "$pid" 2>/dev/null
        else case $signalled in *" $pid "*) ;; *) kill -s TERM "$pid" 2>/dev/null; signalled="$signalled$pid ";; esac
        fi
    done
    tries=$((tries + 1))
    sleep 0.05
done
[ "$(state "$1" "$2" "$3")" != lost ] || echo 137 1<>"$1/status"
"""
)


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


def start(
    host: Host,
    argv: Sequence[str],
    *,
    name: str,
    timeout: float,
    cwd: PurePosixPath | None = None,
    env: Mapping[str, str] | None = None,
    cpus: str = "",
    merged: bool = False,
) -> Job:
    """Start ``argv`` as a job and return at once.

    The command sees a clean environment: PATH, HOME and USER of the host, LC_ALL=C, a TMPDIR below the root folder,
    and ``env``. Any other variable would shift the stack, and would differ from one terminal to the next.
    After ``timeout`` seconds the command gets TERM, and KILL after GRACE more; the status is then 124 or 137.
    ``cpus`` is a taskset list, ``merged`` sends stderr to stdout.

    Raises EnvironmentFailure where the program or the folder ``cwd`` does not exist.
    """
    kept = f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{_NAME.sub('_', name)}-{secrets.token_hex(3)}"
    folder = host.root / "jobs" / kept
    where = cwd or host.root
    command = _command(host, argv, where, env, timeout, cpus)
    streams = "merged" if merged else "apart"
    arguments = [str(folder), str(where), argv[0], command, str(_scratch(host)), streams, _LEADER, str(int(timeout))]
    search = {"PATH": env["PATH"]} if env and "PATH" in env else None
    try:
        started = host.run(["sh", "-c", _START, "start", *arguments], env=search, check=False)
    except (KeyboardInterrupt, SystemExit, Cancelled):
        with contextlib.suppress(EnvironmentFailure):
            kill(host, attach(host, kept))
        raise
    if started.status == NOT_THERE:
        raise absent([argv[0]], host.name)
    if not started.ok:
        reason = (started.stderr.strip().splitlines() or ["it printed nothing"])[-1]
        raise EnvironmentFailure(f"{argv[0]} cannot be started as job {folder} on host {host.name}: {reason}")
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
    build: there the status is 127.
    """
    # The script's own limit never applies before that of ``run``.
    command = _command(host, argv, cwd or host.root, env, timeout + GRACE, "")
    result = host.run(["sh", "-c", command], timeout=timeout, check=False)
    if result.status == NOT_THERE and "/" not in argv[0] and missing(host, [argv[0]]):
        raise absent([argv[0]], host.name)
    return result


def attach(host: Host, job_id: str) -> Job:
    """The job with that id, from any session. Raises EnvironmentFailure when none exists."""
    folder = host.root / "jobs" / _NAME.sub("_", job_id)
    try:
        return _job(folder, host.run(["cat", str(folder / "pid")]).stdout)
    except (CommandFailed, ValueError) as error:
        raise EnvironmentFailure(f"host {host.name} has no job {job_id}", f"See {folder.parent} there.") from error


def running(host: Host) -> tuple[Job, ...]:
    """All jobs that run, oldest first: those of an interrupted controller included."""
    script = (
        _STATE
        + """\
for status in "$1"/*/status; do
    read -r ended <"$status" && [ -z "$ended" ] || continue
    folder=${status%/*}
    read -r leader <"$folder/pid" || continue
    set -- "$1" ${leader##*) }
    [ "$(state "$folder" "${leader%% *}" "${21}")" != running ] || printf '%s\\n%s\\n' "$folder" "$leader"
done 2>/dev/null
"""
    )
    return _listed(host, "running", script)


def orphaned(host: Host) -> tuple[Job, ...]:
    """Jobs whose leader was killed alone: it has no status, and some of its processes still run."""
    script = (
        _STATE
        + """\
sessions=$(ps -e -o sess= -o stat= | awk '$2 !~ /^[ZX]/ { printf " %s ", $1 }')
for status in "$1"/*/status; do
    read -r ended <"$status" && [ -z "$ended" ] || continue
    folder=${status%/*}
    from_this_boot "$folder" && read -r leader <"$folder/pid" || continue
    pid=${leader%% *}
    case $sessions in *" $pid "*) ;; *) continue;; esac
    set -- "$1" ${leader##*) }
    [ "$(state "$folder" "$pid" "${21}")" != lost ] || printf '%s\\n%s\\n' "$folder" "$leader"
done 2>/dev/null
"""
    )
    return _listed(host, "orphaned", script)


def status(host: Host, job: Job, *, patience: float = 0) -> int | None:
    """The exit status, None while the job runs, LOST when it ended without one.

    For a job that runs the answer comes when it ends, or after ``patience`` seconds.
    """
    return _poll(host, job, 0, 0, "stdout", patience)[0]


def output(host: Host, job: Job, offset: int = 0, stream: str = "stdout") -> tuple[str, int]:
    """What the job has written to ``stream`` from byte ``offset`` on (at most 1 MiB), and the offset after it."""
    chunk = _poll(host, job, offset, _CHUNK, stream)[1]
    return chunk.decode(errors="replace"), offset + len(chunk)


def wait(host: Host, job: Job, *, every: float = 1.0, offset: int = 0) -> Generator[str, None, int]:
    """Yield the lines of the job's stdout from byte ``offset`` on as they come; the exit status is the return value.

    The host is polled every ``every`` seconds, and reports the end of the job at once.
    Ctrl-C, or closing the generator, kills the job. When the host cannot be reached any more the job is left alone:
    ``attach`` and wait again. Raises JobLost when it ended without a status; what its leader has left running is killed
    first, since the work will be repeated.
    """
    rest = b""
    ended: int | None = None
    try:
        while True:
            ended, chunk = _poll(host, job, offset, _CHUNK, "stdout", patience=every)
            offset += len(chunk)
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                yield line.decode(errors="replace").removesuffix("\r")
            if ended is not None and len(chunk) < _CHUNK:
                break
    except (KeyboardInterrupt, GeneratorExit, SystemExit, Cancelled):
        kill(host, job)
        raise
    if rest:
        yield rest.decode(errors="replace")
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


def kill(host: Host, job: Job, *, grace: float = GRACE) -> None:
    """End the job and all its processes: TERM, and KILL after ``grace`` seconds. Does nothing when it has ended."""
    tries = str(max(1, round(grace / 0.05)))
    arguments = [str(job.folder), str(job.pid), str(job.born), tries]
    host.run(["sh", "-c", _KILL, "kill", *arguments], timeout=grace + 60)


def remove(host: Host, job: Job) -> None:
    """Remove the folder of a job that has ended."""
    host.run(["rm", "-rf", "--", str(job.folder)])


def _listed(host: Host, name: str, script: str) -> tuple[Job, ...]:
    """The jobs whose folder and stat the script of that name prints; its argument is the folder of all jobs."""
    lines = host.run(["sh", "-c", script, name, str(host.root / "jobs")], check=False).stdout.splitlines()
    return tuple(_job(PurePosixPath(folder), stat) for folder, stat in zip(lines[::2], lines[1::2], strict=True))


def pinned(cpus: str) -> list[str]:
    """The prefix of a command that may use only these processors: a taskset list, "" for all."""
    return ["taskset", "-c", cpus] if cpus else []


def _scratch(host: Host) -> PurePosixPath:
    return host.root / "tmp"


def _command(
    host: Host, argv: Sequence[str], cwd: PurePosixPath, env: Mapping[str, str] | None, timeout: float, cpus: str
) -> str:
    """The text of the file ``command``."""
    given = {"LC_ALL": "C", "TMPDIR": str(_scratch(host)), **(env or {})}
    settings = shlex.join(f"{name}={value}" for name, value in given.items())
    limit = ["timeout", "-k", f"{GRACE:g}", f"{timeout:g}"]
    return (
        f"cd -- {shlex.quote(str(cwd))} &&\n"
        f'exec env -i PATH="$PATH" HOME="$HOME" USER="${{USER:-}}" {settings} \\\n'
        f"    {shlex.join([*limit, *pinned(cpus), *argv])}\n"
    )


def _job(folder: PurePosixPath, stat: str) -> Job:
    """A job from the /proc/PID/stat of its leader; the name in brackets may itself hold blanks and brackets."""
    pid, _, _ = stat.partition(" ")
    after_name = stat.rpartition(") ")[2].split()
    return Job(folder, int(pid), int(after_name[19]))


def _poll(host: Host, job: Job, offset: int, limit: int, stream: str, patience: float = 0) -> tuple[int | None, bytes]:
    """State and a chunk of output in one call. Base64 keeps offsets exact, whatever bytes a program writes.

    The answer comes when the job ends, or after ``patience`` seconds.
    """
    arguments = [str(job.folder), str(job.pid), str(job.born), str(offset), str(limit), stream, f"{patience:g}"]
    answer = host.run(["sh", "-c", _POLL, "poll", *arguments], timeout=60 + patience).stdout
    state, _, chunk = answer.partition("\n")
    ended = None if state == "running" else LOST if state == "lost" else int(state)
    return ended, base64.b64decode(chunk)
