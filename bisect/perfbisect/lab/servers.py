"""A database server during a visit: starts the server from a build on a copy of the data, waits until the server is
ready, stops it, and never leaves it running.

The settings of a server depend only on the state of the host when the hunt began. The settings do not depend on the
size of the data, which is unknown until a server has loaded the data, and is never quite equal for two builds.
Therefore the settings of the server are equal for all builds of a hunt."""

import errno
import hashlib
import os
import re
import shlex
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from perfbisect.errors import EnvironmentFailure, PerfBisectError, RunFailed
from perfbisect.host import jobs
from perfbisect.host.facts import CORES, MEMORY_MIB, cpu_numbers, read_fact
from perfbisect.host.jobs import Job
from perfbisect.host.protocol import Host, Result, disk_full_error
from perfbisect.lab import upload
from perfbisect.masking import mask_credentials
from perfbisect.recipes.builder import SIZE_PLACEHOLDERS, Builder, Server
from perfbisect.recipes.builder_reader import config_template
from perfbisect.recipes.inventory import HostEntry
from perfbisect.recipes.placeholders import Values, fill_command, fill_text


@dataclass(frozen=True, slots=True)
class Installation:
    """An installed build, which perfbisect has made, or which the user has given as prebuilt binaries."""

    commit: str  # hash of the commit, or the user's name of prebuilt binaries
    key: str  # key of the build
    prefix: PurePosixPath
    builder: Builder  # the builder's recipe after its conditions were applied
    values: Mapping[str, str | int] = field(default_factory=dict)  # {prefix}, {recipe}, {commit}, {version}, {jobs}
    layout: int = 0  # 0: the usual layout; n: the layout of seed n

    @property
    def library(self) -> PurePosixPath | None:
        """The library that the workload loads; None for a server."""
        return self.prefix / self.builder.library if self.builder.library else None


NAME = "server"  # name of a server's job
FIRST_PORT = 23306
LONGEST_SOCKET = 90  # most bytes of a socket's path: the kernel allows 107, but some servers append to the path
LONGEST_LIFE = 7 * 24 * 3600.0  # seconds after which a server ends, if nothing else has ended it
LONGEST_STEP = 4 * 3600.0  # most seconds of one command of the recipe, such as the analysis of large tables
LONGEST_PROBE = 10.0  # most seconds of one attempt to reach the server
LOG_LINES = 3  # number of lines of the server's log that an error quotes
LONGEST_LINE = 240  # most characters of each line of the log that an error quotes
PATIENCE = 5.0  # seconds for which a failed run waits, to find out whether the server has ended

PORT_TAKEN = "End that server: `sudo ss -lxtnp` lists listening programs. The placeholders {port} and {socket} of a recipe are always free."

_TAKEN, _FULL = os.strerror(errno.EADDRINUSE), os.strerror(errno.ENOSPC)
_ERROR = re.compile(r"\b(ERROR|FATAL|PANIC|error:|signal \d+|[Aa]ssertion)\b")
# Appends the end of the server's own log $2 to the server's output $1, and prints the last lines, of any length.
_LOG = '[ ! -s "$2" ] || tail -c 1000000 -- "$2" | tail -n 1000 >>"$1"; tail -c 200000 -- "$1" | tail -n 200'

# Servers that refuse to run as root run in a user namespace, where root has another number: so the servers can use all
# files that root can use, for example the folders below root's home. Without user namespaces, the servers run as the
# user nobody with the capability to read and write all files; but access(2), which some servers call, denies access.
NOBODY = "65534"
AS_ANOTHER = ("unshare", "--user", f"--map-user={NOBODY}", f"--map-group={NOBODY}")
AS_NOBODY = (
    "setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups",
    "--inh-caps=+dac_override", "--ambient-caps=+dac_override",
)  # fmt: skip
_WHO = '[ "$(id -u)" != 0 ] && echo user || { "$@" true 2>/dev/null && echo another || echo nobody; }'


@dataclass(frozen=True, slots=True)
class Service:
    """The server of a recipe, with all values that its commands need on a host."""

    host: Host
    recipe: Server
    values: Values  # values of all placeholders of the recipe
    folder: PurePosixPath  # folder of the visit, which is the working directory
    user_switch: tuple[str, ...] = ()  # the command prefix that replaces root by another user
    cpus: str = ""

    @property
    def env(self) -> Mapping[str, str]:
        """The recipe's environment variables, and a separate folder for temporary files, because in a shared folder
        some servers remove files of other servers.
        """
        filled = {name: fill_text(text, self.values) for name, text in self.recipe.env.items()}
        return {"TMPDIR": str(self.folder / "tmp"), **filled}

    def argv(self, command: Sequence[str]) -> list[str]:
        """A command of the recipe with its placeholders filled in, and with the prefix ``user_switch``."""
        return [*self.user_switch, *fill_command(command, self.values)]

    def probe(self) -> Result:
        """Try once to reach the server; the result is ok if the server answers."""
        return jobs.run(self.host, self.argv(self.recipe.ready), timeout=LONGEST_PROBE, cwd=self.folder, env=self.env)

    def run_all(self, commands: Iterable[Sequence[str]], stage: str = "prepare") -> None:
        """Run commands of the recipe one after the other. Raises RunFailed."""
        for command in commands:
            self.run(command, stage)

    def run(self, command: Sequence[str], stage: str, *, merged: bool = True) -> str:
        """Run one command of the recipe to its end; returns its output, which includes standard error if ``merged``.

        Raises RunFailed.
        """
        who, limit = command[0].rpartition("/")[2], LONGEST_STEP
        return run_to_end(self.host, HostCommand(self.argv(command), who, stage, limit, self.folder, self.env, merged))


@dataclass(frozen=True, slots=True)
class HostCommand:
    """A command that is run on a host until it ends, and the words of the message if the command fails."""

    argv: list[str]
    who: str  # the beginning of the sentence that reports the command's failure
    stage: str  # stage of the failure, such as "start"
    limit: float  # most seconds until the command ends
    cwd: PurePosixPath
    env: Mapping[str, str] = field(default_factory=dict)
    merged: bool = True  # whether the output includes standard error; only such an output may have omitted parts
    alone: bool = False  # whether processes that the command leaves running are killed
    complain: Callable[[str, int], str] | None = None  # (output, status) → error, or ""; None: the status counts
    name: str = ""  # name of the command's job; "": the stage


def run_to_end(host: Host, command: HostCommand) -> str:
    """Run a command to its end; returns its output. Raises RunFailed."""
    who, stage, merged = command.who, command.stage, command.merged
    argv, name, env = through_shell_if_path(command.argv), command.name or stage, command.env
    job = jobs.start(host, argv, name=name, timeout=command.limit, cwd=command.cwd, env=env, merge_stderr=merged)
    status = jobs.wait_for_status(host, job)
    if command.alone:
        jobs.kill(host, job, grace_seconds=1)
    stream = "stderr" if status and not merged else "stdout"
    printed = jobs.job_output(host, job, stream)
    wrong = (
        f"{who} ended with status {status}: {log_excerpt(printed.text) or 'the command printed nothing'}"
        if status
        else ""
    )
    if command.complain and (wrong := command.complain(printed.text, status)):
        wrong = f"{who}: {wrong}{printed.omitted_output_note}"
    if not wrong and printed.omitted_bytes and not merged:
        wrong = f"{who} printed too much{printed.omitted_output_note}"
    if wrong:
        raise RunFailed(wrong, stage=stage, log=str(job.folder / stream))
    jobs.remove_folder(host, job)
    return printed.text


def through_shell_if_path(argv: list[str]) -> list[str]:
    """``argv`` for a job. A program that is given by its path is started by a shell, because the shell reports if the
    program is missing.

    A program that is given by its path belongs to the build, so the commit is at fault if the program is missing. A
    program that is given by its name belongs to the host, and was checked earlier."""
    return ["sh", "-c", 'exec "$@"', "sh", *argv] if "/" in argv[0] else argv


def service_in(
    host: Host, system: Installation, folder: PurePosixPath, cpus: str = "", *, write_config: bool = True
) -> Service | None:
    """The server of a build, in the folder of a visit; None if the build needs no server. With ``write_config``, the
    configuration file of the server is written into this folder.

    Raises RecipeError if the recipe's configuration file cannot be read.
    """
    server = system.builder.server
    if server is None:
        return None
    values = {**system.values, **folder_placeholders(host, folder)}
    if write_config and (text := configuration_text(system.builder, values)):
        host.run(["sh", "-c", 'cat >"$1"', "write", str(values["config"])], stdin=text)
    return Service(host, server, values, folder, user_switch(host, server), cpus)


def driver_options(builder: Builder, service: Service | None) -> dict[str, str]:
    """sysbench's options to reach a server; {} for an embedded library."""
    if service is None:
        return {}
    options = {name: fill_text(text, service.values) for name, text in service.recipe.sysbench.items()}
    return {"db-driver": builder.driver, **options}


def user_switch(host: Host, recipe: Server) -> tuple[str, ...]:
    """The prefix that runs a server's commands as another user, if the server refuses to run as root and the user is
    root; else ().
    """
    if not recipe.refuses_root:
        return ()
    who = host.run(["sh", "-c", _WHO, "who", *AS_ANOTHER]).stdout.strip()
    return {"another": AS_ANOTHER, "nobody": AS_NOBODY}.get(who, ())


def data_owner_id(host: Host, recipe: Server | None) -> str:
    """The user id that must own the data; "" if the user that runs perfbisect owns the data."""
    return NOBODY if recipe and user_switch(host, recipe) == AS_NOBODY else ""


@contextmanager
def run_server(service: Service) -> Iterator[Job]:
    """The server as a job, ready for connections; it is stopped at the end of the ``with`` block, and killed with its
    child processes if it does not stop.

    The log of the server is kept only after a failure. Raises RunFailed, with the end of the server's log, if the
    server does not become ready or fails when it ends. Raises EnvironmentFailure if another process listens on the
    server's port or socket.
    """
    if service.probe().ok:
        where = f"on host {service.host.name}, at the address of the server to measure"
        command = shlex.join(service.argv(service.recipe.ready))
        raise EnvironmentFailure(
            f"another server answers {where}: {command} succeeds before the start of the server", PORT_TAKEN
        )
    argv = [*jobs.taskset(service.cpus), *through_shell_if_path(service.argv(service.recipe.start))]
    folder, env = service.folder, service.env
    job = jobs.start(service.host, argv, name=NAME, timeout=LONGEST_LIFE, cwd=folder, env=env, merge_stderr=True)
    try:
        wait_until_ready(service, job)
        yield job
        stop_server(service, job)
    finally:
        jobs.kill(service.host, job)
    jobs.remove_folder(service.host, job)


def wait_until_ready(service: Service, job: Job) -> None:
    """Probe until the server answers. Raises RunFailed if the server ends, or does not answer in time."""
    deadline = time.monotonic() + service.recipe.ready_timeout
    while not (probed := service.probe()).ok:
        raise_if_ended(service, job, "before it was ready")
        if probed.status == jobs.NOT_THERE:
            missing = "the command that checks whether the server is ready is missing"
            raise server_error(service, job, f"{missing}: {log_excerpt(probed.stderr)}")
        if time.monotonic() > deadline:
            printed = log_excerpt(probed.stderr or probed.stdout)
            why = f"; the last attempt to connect printed: {printed}" if printed else ""
            raise server_error(service, job, f"the server was not ready within {service.recipe.ready_timeout:g} s{why}")
        time.sleep(0.1)
    raise_if_ended(service, job, "before it was ready")  # if the server has ended, another server has answered


def raise_if_ended(service: Service, job: Job, when: str, stage: str = "start") -> None:
    """Raise RunFailed if the server has ended."""
    status = jobs.status(service.host, job)
    if status is not None:
        raise server_error(service, job, f"the server ended with status {status} {when}", stage)


def server_error(service: Service, job: Job, sentence: str, stage: str = "start") -> PerfBisectError:
    """The error for a failure of this server, with an excerpt of its log.

    The error is RunFailed, which blames the candidate, unless the job was lost, the disk is full, or another process
    has the server's port.
    """
    host = service.host
    if jobs.status(host, job) == jobs.LOST:
        return jobs.lost_job_error(host, job)
    log = job.folder / "stdout"
    printed = host.run(["sh", "-c", _LOG, "log", str(log), str(service.values["log"])], check=False).stdout
    for line in printed.splitlines():
        if _FULL in line:
            return disk_full_error(host.name, line.strip())
        if _TAKEN in line and stage == "start":
            cause = f"on host {host.name} another process listens on the port or socket of the server: {line.strip()}"
            return EnvironmentFailure(f"{sentence}: {cause}", PORT_TAKEN)
    reason = ": ".join(filter(None, (sentence, log_excerpt(printed))))
    return RunFailed(f"{reason}{jobs.omitted_output_note(host, job)}", stage=stage, log=str(log))


def log_excerpt(log: str) -> str:
    """The lines that best explain the end of a server: the last lines, and earlier lines with errors."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    last, errors = lines[-LOG_LINES:], [line for line in lines if _ERROR.search(line[:LONGEST_LINE])]
    if errors and not any(line in errors for line in last):
        last = [*errors[1 - LOG_LINES :], *last[-1:]]
    return " | ".join(mask_credentials(line)[:LONGEST_LINE] for line in last)


def stop_server(service: Service, job: Job) -> None:
    """Stop the server by its recipe's command, or by SIGTERM. Raises RunFailed if the server does not stop in time, or
    fails while it stops.
    """
    raise_if_ended(service, job, "during a measurement", "run")
    host, patience = service.host, service.recipe.stop_timeout
    if argv := service.recipe.stop:
        stopped = jobs.run(host, service.argv(argv), timeout=patience, cwd=service.folder, env=service.env)
        if stopped.status == jobs.NOT_THERE:
            raise server_error(service, job, f"the server cannot be stopped: {log_excerpt(stopped.stderr)}", "run")
    else:
        host.run(["kill", "-s", "TERM", str(perf_pids(service, job)[0])], check=False)
    deadline = time.monotonic() + patience
    while (status := jobs.status(host, job)) is None:
        if time.monotonic() > deadline:
            raise server_error(service, job, f"the server did not stop within {patience:g} s", "run")
        time.sleep(0.05)
    if status == jobs.LOST and not argv:
        return  # SIGTERM has killed the server, which has no handler for SIGTERM
    if status:
        raise server_error(service, job, f"the server ended with status {status} when it was stopped", "run")


def perf_pids(service: Service, job: Job) -> tuple[int, ...]:
    """The processes that perf attaches to: the server, then all its descendants. Raises RunFailed if the server ended.

    perf also follows processes that the listed processes start later. If only connections are counted, and the server
    starts a process for each connection, perf attaches only to the server's first process and follows the processes of
    the connections, which start later.
    """
    # The first process below a job's leader is ``timeout``, which is left out.
    processes = descendants(service.host.run(["ps", "-e", "-o", "pid=", "-o", "ppid="]).stdout, job.pid)[1:]
    if not processes:
        raise server_error(service, job, "the server has ended", "run")
    return processes[:1] if service.recipe.perf_scope == "connections" else processes


def descendants(ppid_table: str, ancestor: int) -> tuple[int, ...]:
    """The descendants of ``ancestor`` in lines of "pid ppid", parents before their children."""
    pairs = [tuple(map(int, line.split())) for line in ppid_table.splitlines()]
    family = [ancestor]
    for process in family:  # the loop appends to ``family``
        family += (pid for pid, parent in pairs if parent == process)
    return tuple(family[1:])


def free_port(tcp_tables: str) -> int:
    """The first unused port from FIRST_PORT on, given the contents of /proc/net/tcp and /proc/net/tcp6."""
    local = (line.split()[1] for line in tcp_tables.splitlines() if ":" in line and line.strip()[0].isdigit())
    used = {int(address.rpartition(":")[2], 16) for address in local}
    return next(port for port in range(FIRST_PORT, 65536) if port not in used)


def folder_placeholders(host: Host, folder: PurePosixPath) -> dict[str, str | int]:
    """The placeholders that depend on the folder in which a server runs: its data, socket, port, and files."""
    socket = folder / "socket"
    if len(str(socket)) > LONGEST_SOCKET:
        long = f"the path of the server's socket is too long: {socket}"
        raise EnvironmentFailure(long, "Set a shorter `root` for this host in hosts.toml.")
    tables = host.run(["cat", "/proc/net/tcp", "/proc/net/tcp6"], check=False).stdout
    files = {"data": "data", "socket": "socket", "pidfile": "pid", "log": "log", "config": "config"}
    return {"port": free_port(tables), **{name: str(folder / file) for name, file in files.items()}}


GRAIN = 256  # memory is rounded down to a multiple of GRAIN MiB, because kernels reserve slightly different amounts
CACHE = 0.7  # share of the memory; the rest is for the server's other needs, the client, and the system's own cache


def size_placeholders(entry: HostEntry, memory: int, cores: int) -> dict[str, int]:
    """The placeholders for the memory (MiB), the cache (MiB) and the cores that a server may use on a host with this
    ``memory`` and these ``cores``."""
    usable = max(GRAIN, (entry.memory or memory) // GRAIN * GRAIN)
    cores = len(cpu_numbers(entry.server_cpus)) if entry.server_cpus else cores
    return {"memory": usable, "cache": int(usable * CACHE), "cores": cores}


def host_placeholders(
    host: Host, entry: HostEntry, builder: Builder, memory: int = 0, cores: int = 0
) -> dict[str, str | int]:
    """The placeholders that all builds on a host share; if ``memory`` (MiB) or ``cores`` is 0, the host's present value
    is used."""
    cores = cores or read_fact(host, CORES) or 1
    size = size_placeholders(entry, memory or read_fact(host, MEMORY_MIB) or 0, cores)
    return {"recipe": str(upload.place_recipe(host, builder)), "jobs": entry.jobs or cores, **size}


def configuration_text(builder: Builder, values: Values) -> str:
    """The builder's configuration file, with its placeholders filled in; "" if the builder has none. Raises
    RecipeError.
    """
    if builder.server is None:
        return ""
    texts = {name: ("off", "on")[v] if isinstance(v, bool) else str(v) for name, v in builder.server.settings.items()}
    settings = "\n".join(f"{name} = {fill_text(text, values)}" for name, text in texts.items())
    template = config_template(builder) + (f"\n{builder.addition}\n" if builder.addition else "")
    return fill_text(template, {**values, "settings": settings})


def server_identity(builder: Builder, values: Values | None = None) -> str:
    """A text with all inputs of a builder's server except paths; two servers with equal texts have equal settings.

    Without ``values``, the text does not contain the memory and the cores of the host, so it is equal on all hosts."""
    server = builder.server
    if server is None:
        return ""
    inputs = repr((
        server.initialise, server.start, server.create, server.settle, sorted(server.env.items()),
        sorted(server.settings.items()), config_template(builder), *([builder.addition] if builder.addition else []),
    ))  # fmt: skip
    scripts = hashlib.sha256(upload.recipe_archive(builder)).hexdigest() if "{recipe}" in inputs else ""
    used = sorted(word for word in SIZE_PLACEHOLDERS if f"{{{word}}}" in inputs)
    return inputs + scripts + (repr([(word, values[word]) for word in used]) if values is not None else "")
