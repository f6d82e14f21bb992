"""Loaded data: made once by the first build that needs it, kept pristine, copied for each visit."""

import hashlib
from pathlib import PurePosixPath

from perfbisect.errors import RunFailed
from perfbisect.host import jobs
from perfbisect.host.protocol import Host
from perfbisect.lab import command, scripts, sysbench
from perfbisect.lab.server import NOBODY, Service, driver_options, initialise, runs_as_nobody, serve, site
from perfbisect.lab.system import System
from perfbisect.recipes.builder import Builder
from perfbisect.recipes.placeholders import fill
from perfbisect.recipes.workload import Workload

LONG = 6 * 3600.0  # seconds: loading and copying of large data

# The time of a dataset's folder is that of its last use.
_LAY_OUT = """\
rm -rf "$1" && mkdir -p "$1" && mkfifo "$1/control" "$1/ack" || exit 1
if [ -n "$2" ]; then touch -c "$2"; cp -a --reflink=auto "$2" "$1/data"; else mkdir "$1/data"; fi || exit 1
[ -z "$3" ] || chown "$3:$3" "$1" "$1/data"
"""
# Whatever has this name is whole, and outlives a power failure.
_KEEP = """\
[ ! -d "$2" ] || exit 0
mkdir -p "${2%/*}" && find "$1" -type f -exec sync -- {} + && mv -T "$1" "$2"
"""


def key(builder: Builder, workload: Workload) -> str:
    """The name of the data that this workload needs; "" when it needs none.

    It depends on the system, its on-disk format, how it is initialised, and all that loading is told; not on a build.
    """
    script = scripts.preparing(workload)
    if script is None and builder.server is None and not workload.prepare_commands:
        return ""
    server = builder.server
    told = [
        builder.driver, builder.name, builder.dataset.format,
        repr((server.initialise, server.create, sorted(server.env.items())) if server else ()),
        *(file.read_text() for file in (scripts.with_modules(workload, script) if script else ())),
        workload.prepare, repr(sorted(workload.prepare_args.items())),
        *(command.told_to_prepare(workload) if workload.prepare_commands else ()),
    ]  # fmt: skip
    return hashlib.sha256("\0".join(told).encode()).hexdigest()[:16]


def pristine(host: Host, name: str) -> PurePosixPath:
    """Where the data of that key is kept."""
    return host.root / "datasets" / name


def visit_folder(host: Host) -> PurePosixPath:
    """The folder of the present visit: always the same, so that no path moves anything about."""
    return host.root / "visit"


def copy(host: Host, name: str, folder: PurePosixPath, owner: str = "") -> None:
    """Make ``folder`` afresh for a visit: its FIFOs, and as ``data`` a copy of the data of that key (nothing for "").

    ``owner`` is the user id of a server that does not run as we do.
    """
    source = str(pristine(host, name)) if name else ""
    host.run(["sh", "-c", _LAY_OUT, "copy", str(folder), source, owner], timeout=LONG)


def make(host: Host, system: System, workload: Workload) -> str:
    """The key of the data for this workload, loaded with this build if it is not there yet.

    Raises RunFailed when loading fails.
    """
    name = key(system.builder, workload)
    kept = pristine(host, name)
    if not name or host.run(["test", "-d", str(kept)], check=False).ok:
        return name
    folder = visit_folder(host)
    server = system.builder.server
    copy(host, "", folder, NOBODY if server and runs_as_nobody(host, server) else "")
    if server:
        service = Service(host, server, {**system.values, **site(host, folder)}, folder)
        initialise(service)
        with serve(service):
            for command in server.create:
                service.do(command, "prepare")
            load(host, system, workload, folder, service)
    else:
        load(host, system, workload, folder, None)
    host.run(["sh", "-c", _KEEP, "keep", str(folder / "data"), str(kept)], timeout=LONG)
    return name


def load(host: Host, system: System, workload: Workload, folder: PurePosixPath, service: Service | None) -> None:
    """Run the workload's prepare step. Raises RunFailed."""
    placed = scripts.place(host, workload)
    for argv in workload.prepare_commands:
        filled = fill(argv, command.values(system, workload, placed, folder, service))
        job = jobs.start(host, filled, name="prepare", timeout=LONG, cwd=system.prefix, merged=True)
        lines = list(jobs.wait(host, job))
        if status := jobs.status(host, job):
            reason = f"the data cannot be made: {argv[0]} ended with status {status}: {command.last(lines)}"
            raise RunFailed(reason, stage="prepare", log=str(job.folder / "stdout"))
        jobs.remove(host, job)
    script = scripts.preparing(workload)
    if script is None:
        return
    there = scripts.on_host(placed, workload, script)
    argv = sysbench.prepare_command(workload, there, driver_options(system.builder, service))
    env = scripts.environment(workload, placed, folder / "data", system.library)
    job = jobs.start(host, argv, name="prepare", timeout=LONG, cwd=folder, env=env, merged=True)
    said = "\n".join(jobs.wait(host, job))
    if status := jobs.status(host, job):
        reason = f"the data cannot be loaded: {sysbench.complaint(said, status, LONG)}"
        raise RunFailed(reason, stage="prepare", log=str(job.folder / "stdout"))
    jobs.remove(host, job)
