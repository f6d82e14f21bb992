"""A database server for the length of a visit: started on a copy of the data, found ready, stopped, never left behind."""

import errno
import os
import re
import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import PurePosixPath

from perfbisect.errors import EnvironmentFailure, JobLost, RunFailed
from perfbisect.host import jobs
from perfbisect.host.jobs import Job
from perfbisect.host.outcome import no_space
from perfbisect.host.protocol import Host, Result
from perfbisect.lab.server import config
from perfbisect.lab.server.installation import System
from perfbisect.recipes.builder import Builder, Server
from perfbisect.recipes.placeholders import Values, fill, fill_text

NAME = "server"  # of the job
FIRST_PORT = 23306
LONGEST_SOCKET = 90  # bytes; the kernel takes 107, and some servers append to the path
LONGEST_LIFE = 7 * 24 * 3600.0  # seconds: a bound, should everything else fail
LONGEST_STEP = 4 * 3600.0  # seconds: of one command of the recipe, such as the analysis of large tables
LONGEST_QUESTION = 10.0  # seconds: of one attempt to reach it
LAST_WORDS = 3  # lines of its log
LONGEST_WORD = 240  # signs of each
PATIENCE = 5.0  # seconds that the end of a server may come after its clients have noticed

NOT_OURS = "End that one: `sudo ss -lxtnp` lists who listens. A recipe's {port} and {socket} are always free."

_TAKEN, _FULL = os.strerror(errno.EADDRINUSE), os.strerror(errno.ENOSPC)
_TELLING = re.compile(r"\b(ERROR|FATAL|PANIC|error:|signal \d+|[Aa]ssertion)\b")
# What the server wrote into its own log joins what it printed.
_LOG = '[ ! -s "$2" ] || tail -n 1000 -- "$2" >>"$1"; tail -n 200 -- "$1"'

# Servers that refuse to be root run in a user namespace of their own, where root's number is another: so they can use
# whatever root can, above all the folders below root's home. Where there are no such namespaces they run as nobody, who
# may read and write everything, too, but is told otherwise by access(2), which some servers ask.
NOBODY = "65534"
AS_ANOTHER = ("unshare", "--user", f"--map-user={NOBODY}", f"--map-group={NOBODY}")
AS_NOBODY = (
    "setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups",
    "--inh-caps=+dac_override", "--ambient-caps=+dac_override",
)  # fmt: skip
_WHO = '[ "$(id -u)" != 0 ] && echo somebody || { "$@" true 2>/dev/null && echo another || echo nobody; }'


@dataclass(frozen=True, slots=True)
class Service:
    """A server recipe with everything that its commands need, on one host."""

    host: Host
    recipe: Server
    values: Values  # of all its placeholders
    folder: PurePosixPath  # of the visit: the working directory
    disguise: tuple[str, ...] = ()  # the command that makes another of root
    cpus: str = ""

    @property
    def env(self) -> Mapping[str, str]:
        """The recipe's environment variables."""
        return {name: fill_text(text, self.values) for name, text in self.recipe.env.items()}

    def argv(self, command: Sequence[str]) -> list[str]:
        """A command of the recipe, as the user that may run it."""
        return [*self.disguise, *fill(command, self.values)]

    def do(self, command: Sequence[str], stage: str, *, merged: bool = True) -> list[str]:
        """Run one command of the recipe to its end; returns the lines that it printed, with its errors if ``merged``.

        Raises RunFailed.
        """
        host, argv = self.host, by_path(self.argv(command))
        job = jobs.start(host, argv, name=stage, timeout=LONGEST_STEP, cwd=self.folder, env=self.env, merged=merged)
        said = list(jobs.wait(host, job))
        if status := jobs.status(host, job):
            last = last_words("\n".join(said) if merged else jobs.output(host, job, stream="stderr")[0])
            raise RunFailed(
                f"{command[0].rpartition('/')[2]} ended with status {status}: {last or 'it said nothing'}",
                stage=stage,
                log=str(job.folder / ("stdout" if merged else "stderr")),
            )
        jobs.remove(host, job)
        return said


def by_path(argv: list[str]) -> list[str]:
    """The same for a job, but of a program that is named by its path a shell tells that it is not there.

    That one is of the build, and lacking it a fault of the commit. A program of the host is looked for before.
    """
    return ["sh", "-c", 'exec "$@"', "sh", *argv] if "/" in argv[0] else argv


def service_in(host: Host, system: System, folder: PurePosixPath, cpus: str = "") -> Service | None:
    """The server of a build, in the folder of a visit, where its configuration file is written; None without a server.

    Raises RecipeError when the recipe's file is not what it was.
    """
    server = system.builder.server
    if server is None:
        return None
    values = {**system.values, **site(host, folder)}
    if text := config.configuration(system.builder, values):
        host.run(["sh", "-c", 'cat >"$1"', "write", str(values["config"])], stdin=text)
    return Service(host, server, values, folder, disguise(host, server), cpus)


def driver_options(builder: Builder, service: Service | None) -> dict[str, str]:
    """How sysbench reaches a server; none for an embedded library."""
    if service is None:
        return {}
    options = {name: fill_text(text, service.values) for name, text in service.recipe.sysbench.items()}
    return {"db-driver": builder.driver, **options}


def disguise(host: Host, recipe: Server) -> tuple[str, ...]:
    """What stands before a server's commands when it refuses to be root and root is what we are."""
    if not recipe.refuses_root:
        return ()
    who = host.run(["sh", "-c", _WHO, "who", *AS_ANOTHER]).stdout.strip()
    return {"another": AS_ANOTHER, "nobody": AS_NOBODY}.get(who, ())


def owner(host: Host, recipe: Server | None) -> str:
    """The user id that the data has to belong to; "" for our own."""
    return NOBODY if recipe and disguise(host, recipe) == AS_NOBODY else ""


def initialise(service: Service) -> None:
    """Make an empty database. Raises RunFailed."""
    for command in service.recipe.initialise:
        service.do(command, "start")


@contextmanager
def serve(service: Service) -> Iterator[Job]:
    """The server, ready, as a job; stopped at the end, and killed with all its children if it does not stop.

    Its log is kept only if something failed.

    Raises RunFailed, with the end of the server's log, when it does not become ready or does not end well;
    EnvironmentFailure when something else is where it has to listen.
    """
    probe = service.argv(service.recipe.ready)
    if answers(service, probe).ok:
        raise EnvironmentFailure(
            f"another server answers on host {service.host.name}, where the one to be measured has to listen:"
            f" {shlex.join(probe)} succeeds before it is started",
            NOT_OURS,
        )
    job = jobs.start(
        service.host,
        by_path(service.argv(service.recipe.start)),
        name=NAME,
        timeout=LONGEST_LIFE,
        cwd=service.folder,
        env=service.env,
        cpus=service.cpus,
        merged=True,
    )
    try:
        wait_until_ready(service, job)
        yield job
        stop(service, job)
    finally:
        jobs.kill(service.host, job, grace=5)
    jobs.remove(service.host, job)


def wait_until_ready(service: Service, job: Job) -> None:
    """Ask until the server answers. Raises RunFailed when it ends, or does not answer in time."""
    deadline = time.monotonic() + service.recipe.ready_timeout
    probe = service.argv(service.recipe.ready)
    while not (asked := answers(service, probe)).ok:
        ended(service, job, "before it was ready")
        if asked.status == jobs.NOT_THERE:
            raise failure(service, job, f"nobody can tell whether the server is ready: {last_words(asked.stderr)}")
        if time.monotonic() > deadline:
            told = last_words(asked.stderr or asked.stdout)
            why = f"; the last attempt to reach it said: {told}" if told else ""
            raise failure(service, job, f"the server is not ready after {service.recipe.ready_timeout:g} s{why}")
        time.sleep(0.1)
    ended(service, job, "before it was ready")  # something else may have answered


def answers(service: Service, probe: Sequence[str]) -> Result:
    """What comes of the recipe's ``ready``, as it is given with everything filled in: ok when a server answers."""
    return jobs.run(service.host, probe, timeout=LONGEST_QUESTION, cwd=service.folder, env=service.env)


def ended(service: Service, job: Job, when: str, stage: str = "start") -> None:
    """Raise RunFailed if the server has ended."""
    status = jobs.status(service.host, job)
    if status is not None:
        raise failure(service, job, f"the server ended with status {status} {when}", stage)


def failure(
    service: Service, job: Job, sentence: str, stage: str = "start"
) -> RunFailed | JobLost | EnvironmentFailure:
    """The error for this server, with the last words of its log. One that is lost was not its own fault.

    Neither is a full disk, nor that something else has its port.
    """
    host = service.host
    if jobs.status(host, job) == jobs.LOST:
        return jobs.lost(host, job)
    log = job.folder / "stdout"
    said = host.run(["sh", "-c", _LOG, "log", str(log), str(service.values["log"])], check=False).stdout
    for line in said.splitlines():
        if _FULL in line:
            return no_space(host.name, line.strip())
        if _TAKEN in line and stage == "start":
            return EnvironmentFailure(
                f"{sentence}: on host {host.name} something else listens where it has to: {line.strip()}",
                NOT_OURS,
            )
    last = last_words(said)
    return RunFailed(f"{sentence}: {last}" if last else sentence, stage=stage, log=str(log))


def last_words(log: str) -> str:
    """The lines that best tell why a server ended: the last ones, unless what tells of an error stands further up."""
    lines = [line.strip()[:LONGEST_WORD] for line in log.splitlines() if line.strip()]
    last, telling = lines[-LAST_WORDS:], [line for line in lines if _TELLING.search(line)]
    if telling and not any(line in telling for line in last):
        last = [*telling[1 - LAST_WORDS :], *last[-1:]]
    return " | ".join(last)


def stop(service: Service, job: Job) -> None:
    """Stop the server as its recipe says, or by SIGTERM. Raises RunFailed when it does not stop well, and in time."""
    ended(service, job, "while it was measured", "run")
    host, patience = service.host, service.recipe.stop_timeout
    if argv := service.recipe.stop:
        told = jobs.run(host, service.argv(argv), timeout=patience, cwd=service.folder, env=service.env)
        if told.status == jobs.NOT_THERE:
            raise failure(service, job, f"the server cannot be stopped: {last_words(told.stderr)}", "run")
    else:
        host.run(["kill", "-s", "TERM", str(pids(service, job)[0])], check=False)
    deadline = time.monotonic() + patience
    while (status := jobs.status(host, job)) is None:
        if time.monotonic() > deadline:
            raise failure(service, job, f"the server does not stop in {patience:g} s", "run")
        time.sleep(0.05)
    if status == jobs.LOST and not argv:
        return  # it does nothing about SIGTERM, and was killed from outside: by us
    if status:
        raise failure(service, job, f"the server ended with status {status} when it was stopped", "run")


def pids(service: Service, job: Job) -> tuple[int, ...]:
    """What perf attaches to: the server's process and all its descendants, itself first.

    perf follows what these start later. So for a server that starts a process for each connection its own process is
    enough where the connections alone are to be counted, which do not exist yet. Raises RunFailed when it is gone.
    """
    found = processes(service.host, job)
    if not found:
        raise failure(service, job, "the server is gone", "run")
    return found[:1] if service.recipe.perf_scope == "connections" else found


def processes(host: Host, job: Job) -> tuple[int, ...]:
    """The same, and nothing when it is gone. The first process below a job's leader is the ``timeout`` that keeps it."""
    return descendants(host.run(["ps", "-e", "-o", "pid=", "-o", "ppid="]).stdout, job.pid)[1:]


def descendants(table: str, ancestor: int) -> tuple[int, ...]:
    """The processes below ``ancestor`` in lines of "pid ppid", parents before their children."""
    children: dict[int, list[int]] = {}
    for line in table.splitlines():
        pid, parent = map(int, line.split())
        children.setdefault(parent, []).append(pid)
    found = [ancestor]
    for known in found:  # grows as it goes
        found += children.get(known, [])
    return tuple(found[1:])


def free_port(tables: str) -> int:
    """The first port of ours that nothing uses, given the contents of /proc/net/tcp and /proc/net/tcp6."""
    local = (line.split()[1] for line in tables.splitlines() if ":" in line and line.strip()[0].isdigit())
    used = {int(address.rpartition(":")[2], 16) for address in local}
    return next(port for port in range(FIRST_PORT, 65536) if port not in used)


def site(host: Host, folder: PurePosixPath) -> dict[str, str | int]:
    """The placeholders that depend on where a server runs: its data, socket, port, and its files."""
    socket = folder / "socket"
    if len(str(socket)) > LONGEST_SOCKET:
        raise EnvironmentFailure(
            f"the path of the server's socket is too long: {socket}",
            "Choose a shorter `root` for this host in hosts.toml.",
        )
    tables = host.run(["cat", "/proc/net/tcp", "/proc/net/tcp6"], check=False).stdout
    return {
        "data": str(folder / "data"),
        "socket": str(socket),
        "port": free_port(tables),
        "pidfile": str(folder / "pid"),
        "log": str(folder / "log"),
        "config": str(folder / "config"),
    }
