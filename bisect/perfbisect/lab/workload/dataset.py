"""Loaded data: made once by the first build that needs it, kept pristine, copied for each visit.

``root/datasets/KEY/`` holds ``data``, and in ``dataset.json`` what is known of it. It appears there in one rename, so
that a folder of that name is always whole. What may happen to it later is noticed when it is copied: by the number of
its files and bytes, and for a server by what it answers to the workload's ``check``. A build that answers otherwise than
the one that has loaded the data may be wrong itself: it is believed only when it is right on data of its own.

A build that does not start on the data of its key, because a commit before it changed the format within a version, has
data that it loaded itself, under a key of its own: KEY-BUILD.
"""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

import msgspec

from perfbisect.errors import DataDamaged, RunFailed
from perfbisect.host import jobs
from perfbisect.host.protocol import Host
from perfbisect.lab.server import config
from perfbisect.lab.server.installation import System
from perfbisect.lab.server.service import Service, by_path, driver_options, ended, initialise, owner, serve, service_in
from perfbisect.lab.workload import command, lua, sysbench
from perfbisect.recipes.builder import Builder
from perfbisect.recipes.placeholders import Values, fill
from perfbisect.recipes.strict import read_text
from perfbisect.recipes.workload import Workload

LONG = 6 * 3600.0  # seconds: loading and copying of large data
SHORT = 300.0  # seconds: what tells of data and makes none

_COUNT = """find "$data" -type f -printf '%s\\n' | awk '{ bytes += $1 } END { printf "%d %.0f\\n", NR, bytes }'"""
# The time of a dataset's folder is that of its last use.
_LAY_OUT = f"""\
rm -rf "$1" && mkdir -p "$1" && mkfifo "$1/control" "$1/ack" || exit 1
data=$1/data
if [ -n "$2" ] && [ -d "$2/data" ]; then touch -c "$2"; cp -a --reflink=auto "$2/data" "$data"; else mkdir "$data"; fi || exit 1
[ -z "$3" ] || chown "$3:$3" "$1" "$data"
[ -z "$2" ] || {{ {_COUNT}; cat "$2/dataset.json" 2>/dev/null || :; }}
"""
# Whatever has its name is whole, and outlives a power failure. Cut short anywhere and run again, it goes on.
_KEEP = """\
set -e
[ ! -d "$2" ] || exit 0
if [ -d "$1" ]; then
    rm -rf "$2.part"; mkdir -p "$2.part"
    cat >"$2.part/dataset.json"
    find "$1" "$2.part" -type f -exec sync -- {} +
    mv -T -- "$1" "$2.part/data"
fi
mv -T -- "$2.part" "$2"
"""


class Kept(msgspec.Struct, frozen=True):
    """What is remembered of loaded data."""

    build: str  # key of the build that loaded it
    files: int
    bytes: int
    answers: list[str]  # to the workload's check, when it had been loaded

    @property
    def size(self) -> str:
        """In words."""
        return f"{self.bytes:,} bytes in {self.files:,} files"


@dataclass(frozen=True, slots=True)
class Data:
    """The data that a build runs on."""

    key: str  # "" when the workload needs none
    fresh: bool  # it was loaded just now


def key(builder: Builder, workload: Workload, values: Values, format_read: str = "") -> str:
    """The name of the data that this workload needs; "" when it needs none.

    It depends on the system, its on-disk format, its settings and how it is initialised, and all that loading is told;
    not on a build. ``values`` are the placeholders, ``format_read`` is what the recipe's command told of the format.
    """
    script = lua.preparing(workload)
    if script is None and builder.server is None and not workload.prepare_commands:
        return ""
    told = [
        builder.driver, builder.name, builder.dataset.format, format_read, config.identity(builder, values),
        *(read_text(file) for file in (lua.with_modules(workload, script) if script else ())),
        workload.prepare, workload.check, repr(sorted(workload.prepare_args.items())),
        *(command.told_to_prepare(builder, workload, values) if workload.prepare_commands else ()),
    ]  # fmt: skip
    return hashlib.sha256("\0".join(told).encode()).hexdigest()[:16]


def kind(name: str) -> str:
    """What all data that is alike but for the build that loaded it has in common."""
    return name.partition("-")[0]


def pristine(host: Host, name: str) -> PurePosixPath:
    """Where the data of that key is kept."""
    return host.root / "datasets" / name


def visit_folder(host: Host) -> PurePosixPath:
    """The folder of the present visit: always the same, so that no path moves anything about."""
    return host.root / "visit"


def remove_visit(host: Host) -> None:
    """Remove what the last visit has left: as much as the data."""
    host.run(["rm", "-rf", "--", str(visit_folder(host))], timeout=LONG)


def copy(host: Host, name: str, folder: PurePosixPath, owner: str = "") -> None:
    """Make ``folder`` afresh for a visit: its FIFOs, and as ``data`` a copy of the data of that key (nothing for "").

    ``owner`` is the user id of a server that does not run as we do. Raises DataDamaged for a copy of another size than
    what was loaded.
    """
    source = str(pristine(host, name)) if name else ""
    said = host.run(["sh", "-c", _LAY_OUT, "copy", str(folder), source, owner], timeout=LONG).stdout
    if not name:
        return
    counted, _, remembered = said.partition("\n")
    if (kept := _read(remembered)) is None:
        raise DataDamaged(f"the loaded data {name} on host {host.name} is damaged: what is known of it is gone")
    files, size = map(int, counted.split())
    if (files, size) != (kept.files, kept.bytes):
        found = Kept("", files, size, [])
        raise DataDamaged(
            f"the loaded data {name} on host {host.name} is damaged: {found.size} were copied, but {kept.size} were loaded"
        )


def remove(host: Host, name: str) -> None:
    """Remove the data of that key."""
    host.run(["rm", "-rf", "--", str(pristine(host, name))], timeout=LONG)


def make(host: Host, system: System, workload: Workload, refused: Sequence[str] = ()) -> Data:
    """The data for this workload and build, loaded with this build if it is not there yet.

    ``refused`` are keys of data on which the build did not start: it gets other builds' own data of the same kind as
    long as there is any that it has not refused, then its own. Raises RunFailed when loading fails.
    """
    name = key(system.builder, workload, system.values, _format(host, system))
    if not name:
        return Data("", fresh=False)
    own = f"{name}-{system.key[:8]}"
    there = host.run(["ls", "-1", str(host.root / "datasets")], check=False).stdout.splitlines()
    known = [name, *sorted(each for each in there if each.startswith(f"{name}-") and not each.endswith(".part"))]
    name = next((each for each in known if each not in refused), own) if refused else name
    if name in there:
        return Data(name, fresh=False)
    answers = load_anew(host, system, workload)
    keep(host, name, system, visit_folder(host) / "data", answers)
    return Data(name, fresh=True)


def load_anew(host: Host, system: System, workload: Workload) -> list[str]:
    """Load data with this build into the folder of the visit; returns the answers to the check. Raises RunFailed."""
    folder = visit_folder(host)
    copy(host, "", folder, owner(host, system.builder.server))
    service = service_in(host, system, folder)
    if service is None:
        load(host, system, workload, folder, None)
        return []
    initialise(service)
    with serve(service):
        for command in service.recipe.create:
            service.do(command, "prepare")
        load(host, system, workload, folder, service)
        for command in service.recipe.settle:
            service.do(command, "prepare")
        return ask(service, system, workload)


def keep(host: Host, name: str, system: System, data: PurePosixPath, answers: list[str]) -> None:
    """Move what was loaded to its place."""
    counted = host.run(["sh", "-c", f"data=$1; {_COUNT}", "count", str(data)], timeout=LONG).stdout
    files, size = map(int, counted.split())
    about = msgspec.json.encode(Kept(system.key, files, size, answers)).decode()
    host.run(["sh", "-c", _KEEP, "keep", str(data), str(pristine(host, name))], stdin=about, timeout=LONG)


def verify(host: Host, system: System, workload: Workload, name: str) -> None:
    """Ask the build's server, on a copy of the data, what the workload's check asks.

    Raises DataDamaged when it does not answer as when the data had been loaded, but either has loaded it itself, or
    answers so on what it loads now; RunFailed when it does not start, or is the only one that answers so.
    """
    if not (workload.check and system.builder.server):
        return
    folder = visit_folder(host)
    copy(host, name, folder, owner(host, system.builder.server))
    kept = _read(host.run(["cat", str(pristine(host, name) / "dataset.json")]).stdout)
    assert kept
    try:
        _compare_answers(host, system, workload, name, kept)
    except DataDamaged:
        if kept.build == system.key or (own := load_anew(host, system, workload)) == kept.answers:
            raise
        raise RunFailed(
            f"it answers the workload's check with {_shown(own)} on data that it has just loaded itself, and the build"
            f" that has loaded {name} with {_shown(kept.answers)}",
            stage="prepare",
            log=str(pristine(host, name) / "dataset.json"),
        ) from None


def _compare_answers(host: Host, system: System, workload: Workload, name: str, kept: Kept) -> None:
    """Raises DataDamaged when they differ: how the server then ends, on whatever data that is, says nothing more."""
    service = service_in(host, system, visit_folder(host))
    assert service
    damaged = f"the loaded data {name} on host {host.name} is damaged"
    with serve(service) as job:
        try:
            answers = ask(service, system, workload)
        except RunFailed as failure:
            ended(service, job, "while the workload's check was asked", "run")  # then it is no fault of the data
            raise DataDamaged(f"{damaged}: {failure}") from failure
        if answers != kept.answers:
            raise DataDamaged(
                f"{damaged}: the workload's check is answered {_shown(answers)}, and was answered {_shown(kept.answers)}"
                " when it had been loaded"
            )


def loader(host: Host, name: str) -> str:
    """The key of the build that loaded the data of that key; "" when nobody knows."""
    kept = _read(host.run(["cat", str(pristine(host, name) / "dataset.json")], check=False).stdout)
    return kept.build if kept else ""


def load(host: Host, system: System, workload: Workload, folder: PurePosixPath, service: Service | None) -> None:
    """Run the workload's prepare step. Raises RunFailed."""
    placed = lua.place(host, workload)
    for argv in workload.prepare_commands:
        filled = fill(argv, command.values(system, workload, placed, folder, service))
        _carry_out(host, filled, system.prefix, "the data cannot be made", limit=LONG)
    script = lua.preparing(workload)
    if script is None:
        return
    there = lua.on_host(placed, workload, script)
    argv = sysbench.prepare_command(workload, there, driver_options(system.builder, service))
    env = lua.environment(workload, placed, folder / "data", system.library)
    _do(host, argv, folder, env, "the data cannot be loaded")


def _carry_out(
    host: Host, argv: list[str], cwd: PurePosixPath, trouble: str, *, limit: float, merged: bool = True
) -> list[str]:
    """Run a command of a recipe to its end; returns the lines that it printed, with its errors if ``merged``."""
    job = jobs.start(host, by_path(argv), name="prepare", timeout=limit, cwd=cwd, merged=merged)
    lines = list(jobs.wait(host, job))
    jobs.kill(host, job, grace=1)  # what it left running
    if status := jobs.status(host, job):
        stream = "stdout" if merged else "stderr"
        said = lines if merged else jobs.output(host, job, stream=stream)[0].splitlines()
        reason = f"{trouble}: {argv[0]} ended with status {status}: {command.last(said)}"
        raise RunFailed(reason, stage="prepare", log=str(job.folder / stream))
    jobs.remove(host, job)
    return lines


def ask(service: Service, system: System, workload: Workload) -> list[str]:
    """What the server answers to the workload's check; nothing when it has none. Raises RunFailed."""
    if not workload.check:
        return []
    placed = lua.place(service.host, workload)
    there = lua.on_host(placed, workload, lua.checking(workload))
    argv = sysbench.check_command(there, driver_options(system.builder, service))
    env = lua.environment(workload, placed, service.folder / "data", None)
    said = _do(service.host, argv, service.folder, env, "the workload's check fails")
    return [line.removeprefix(sysbench.ANSWER) for line in said if line.startswith(sysbench.ANSWER)]


def _do(host: Host, argv: list[str], folder: PurePosixPath, env: dict[str, str], trouble: str) -> list[str]:
    """Run sysbench to its end; returns the lines that it printed."""
    job = jobs.start(host, argv, name="prepare", timeout=LONG, cwd=folder, env=env, merged=True)
    said = list(jobs.wait(host, job))
    if status := jobs.status(host, job):
        reason = f"{trouble}: {sysbench.complaint(chr(10).join(said), status, LONG)}"
        raise RunFailed(reason, stage="prepare", log=str(job.folder / "stdout"))
    jobs.remove(host, job)
    return said


def _format(host: Host, system: System) -> str:
    """What the recipe's command prints of the format of the data that a build makes. Raises RunFailed."""
    asked = system.builder.dataset.format_command
    if not asked:
        return ""
    folder = visit_folder(host)
    copy(host, "", folder, owner(host, system.builder.server))
    if service := service_in(host, system, folder):
        return "\n".join(service.do(asked, "prepare", merged=False))
    filled = format_argv(system, folder)
    trouble = "the format of its data cannot be told"
    return "".join(f"{line}\n" for line in _carry_out(host, filled, folder, trouble, limit=SHORT, merged=False))


def format_argv(system: System, folder: PurePosixPath) -> list[str]:
    """The recipe's command that tells the format of the data, where there is no server; ``folder`` is of the visit."""
    return fill(system.builder.dataset.format_command, {**system.values, "data": str(folder / "data")})


def _read(text: str) -> Kept | None:
    try:
        return msgspec.json.decode(text, type=Kept)
    except msgspec.DecodeError:
        return None


def _shown(answers: list[str]) -> str:
    text = re.sub(r"\s+", " ", ", ".join(answers)) or "with nothing"
    return text if len(text) <= 100 else f"{text[:99]}…"
