"""A database server for the length of a visit: started on a copy of the data, found ready, stopped, never left behind."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import PurePosixPath

from perfbisect.errors import EnvironmentFailure, JobLost, RunFailed
from perfbisect.host import jobs
from perfbisect.host.jobs import Job
from perfbisect.host.protocol import Host
from perfbisect.recipes.builder import Builder, Server
from perfbisect.recipes.placeholders import Values, fill, fill_text

NAME = "server"  # of the job
FIRST_PORT = 23306
LONGEST_SOCKET = 90  # bytes; the kernel takes 107, and some servers append to the path
LONGEST_LIFE = 7 * 24 * 3600.0  # seconds: a bound, should everything else fail

# Servers that refuse to be root run as nobody. The capability lets them reach our folders below root's home.
NOBODY = "65534"
AS_NOBODY = (
    "setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups",
    "--inh-caps=+dac_override", "--ambient-caps=+dac_override",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Service:
    """A server recipe with everything that its commands need, on one host."""

    host: Host
    recipe: Server
    values: Values  # of all its placeholders
    folder: PurePosixPath  # of the visit: the working directory
    cpus: str = ""

    @property
    def env(self) -> Mapping[str, str]:
        """The recipe's environment variables."""
        return {name: fill_text(text, self.values) for name, text in self.recipe.env.items()}

    def argv(self, command: Sequence[str]) -> list[str]:
        """A command of the recipe, as the user that may run it."""
        return [*(AS_NOBODY if runs_as_nobody(self.host, self.recipe) else ()), *fill(command, self.values)]

    def do(self, command: Sequence[str], stage: str) -> None:
        """Run one command of the recipe to its end. Raises RunFailed when it fails."""
        job = jobs.start(
            self.host, self.argv(command), name=stage, timeout=600, cwd=self.folder, env=self.env, merged=True
        )
        said = list(jobs.wait(self.host, job))
        if status := jobs.status(self.host, job):
            last = next((line for line in reversed(said) if line.strip()), "it said nothing")
            raise RunFailed(
                f"{command[0].rpartition('/')[2]} ended with status {status}: {last.strip()}",
                stage=stage,
                log=str(job.folder / "stdout"),
            )
        jobs.remove(self.host, job)


def driver_options(builder: Builder, service: Service | None) -> dict[str, str]:
    """How sysbench reaches a server; none for an embedded library."""
    if service is None:
        return {}
    options = {name: fill_text(text, service.values) for name, text in service.recipe.sysbench.items()}
    return {"db-driver": builder.driver, **options}


def runs_as_nobody(host: Host, recipe: Server) -> bool:
    """True when the server refuses to be root and root is what we are."""
    return recipe.refuses_root and host.run(["id", "-u"]).stdout.strip() == "0"


def initialise(service: Service) -> None:
    """Make an empty database. Raises RunFailed."""
    for command in service.recipe.initialise:
        service.do(command, "start")


@contextmanager
def serve(service: Service) -> Iterator[Job]:
    """The server, ready, as a job; stopped at the end, and killed with all its children if it does not stop.

    Its log is kept only if something failed.

    Raises RunFailed, with the end of the server's log, when it does not become ready or does not end well.
    """
    job = jobs.start(
        service.host,
        service.argv(service.recipe.start),
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
    while not service.host.run(probe, env=service.env, check=False, timeout=10).ok:
        ended(service, job, "before it was ready")
        if time.monotonic() > deadline:
            raise failure(service, job, f"the server is not ready after {service.recipe.ready_timeout:g} s")
        time.sleep(0.1)
    ended(service, job, "before it was ready")  # something else may have answered


def ended(service: Service, job: Job, when: str, stage: str = "start") -> None:
    """Raise RunFailed if the server has ended."""
    status = jobs.status(service.host, job)
    if status is not None:
        raise failure(service, job, f"the server ended with status {status} {when}", stage)


def failure(service: Service, job: Job, sentence: str, stage: str = "start") -> RunFailed | JobLost:
    """The error for this server, with the last line of its log. One that is lost was not its own fault."""
    if jobs.status(service.host, job) == jobs.LOST:
        return jobs.lost(service.host, job)
    log = job.folder / "stdout"
    last = service.host.run(["tail", "-n", "1", str(log)], check=False).stdout.strip()
    return RunFailed(f"{sentence}: {last}" if last else sentence, stage=stage, log=str(log))


def stop(service: Service, job: Job) -> None:
    """Stop the server as its recipe says, or by SIGTERM. Raises RunFailed when it does not stop in time."""
    ended(service, job, "while it was measured", "run")
    if service.recipe.stop:
        service.host.run(
            service.argv(service.recipe.stop), env=service.env, check=False, timeout=service.recipe.stop_timeout
        )
    else:
        service.host.run(["kill", "-s", "TERM", str(pids(service, job)[0])], check=False)
    deadline = time.monotonic() + service.recipe.stop_timeout
    while jobs.status(service.host, job) is None:
        if time.monotonic() > deadline:
            raise failure(service, job, f"the server does not stop in {service.recipe.stop_timeout:g} s")
        time.sleep(0.05)


def pids(service: Service, job: Job) -> tuple[int, ...]:
    """The server's process and all its descendants, itself first. Raises RunFailed when it is gone."""
    found = processes(service.host, job)
    if not found:
        raise failure(service, job, "the server is gone", "run")
    return found


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
    """The placeholders that depend on where a server runs: its data, socket, port, pid file and log."""
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
    }
