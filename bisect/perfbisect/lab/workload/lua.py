"""Which Lua scripts a workload runs, where they are on a host, and the environment variables that they read."""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath

import msgspec

from perfbisect.errors import RecipeError
from perfbisect.host.protocol import Host
from perfbisect.lab import upload
from perfbisect.recipes.builder import Builder
from perfbisect.recipes.configuration import WORKLOADS, recipe_places, within_top
from perfbisect.recipes.inventory import HostEntry
from perfbisect.recipes.toml import read_text
from perfbisect.recipes.workload import FILE, Workload

SHARED = "perfbisect.lua"
PLAIN_SQL = "sql.lua"
PLANS = "plans.lua"
SUITE, _SHARED = "suite", "shared"  # folders on a host; a script from elsewhere lies beside them
REQUIRE = re.compile(r"""\brequire\s*\(?\s*["'](\w+(?:\.\w+)*)["']""")
SYSBENCH_DRIVERS = ("mysql", "pgsql")


def measured(workload: Workload) -> Path:
    """The script of a timed run. Raises RecipeError when it is missing."""
    return _own(workload, workload.script) if workload.script else plain_sql(workload)


def preparing(workload: Workload) -> Path | None:
    """The script that makes the dataset; None for a workload that needs none. Raises RecipeError as above."""
    if workload.prepare_script:
        return _own(workload, workload.prepare_script)
    return plain_sql(workload) if workload.prepare else None


def explaining(workload: Workload) -> Path | None:
    """The script that asks for the plans of a workload's statements; None where none is for its driver."""
    return None if workload.command else _for_driver(workload, PLANS)


def place(host: Host, workload: Workload) -> PurePosixPath:
    """The folder on the host with the workload's scripts, everything else in its suite's folder, and what they require."""
    return upload.place(host, "scripts", to_send(workload))


def on_host(folder: PurePosixPath, workload: Workload, script: Path) -> PurePosixPath:
    """Where a script of the workload is, ``folder`` being where they were placed."""
    suite = Path(workload.folder)
    return folder / (SUITE / script.relative_to(suite) if script.is_relative_to(suite) else script.name)


def environment(
    workload: Workload, folder: PurePosixPath, data: PurePosixPath, library: PurePosixPath | None
) -> dict[str, str]:
    """The environment variables that a script, placed in ``folder``, reads; ``library`` is None for a server."""
    given = {
        "LUA_PATH": f"{folder}/{SUITE}/?.lua;{folder}/{_SHARED}/?.lua;;",  # ;; : and sysbench's own
        "PERFBISECT_DATA": str(data),
        "PERFBISECT_LIBRARY": str(library or ""),
        "PERFBISECT_WARMUP": f"{workload.warmup:g}",
        "PERFBISECT_PREPARE": workload.prepare,
        "PERFBISECT_CHECK": workload.check,
        "PERFBISECT_SETUP": workload.setup,
        "PERFBISECT_STATEMENT": workload.statement,
    }
    return {name: value for name, value in given.items() if value}


def with_modules(workload: Workload, script: Path) -> list[Path]:
    """A script and every module of the suite or perfbisect that it requires, directly or through others, in the order of discovery.

    Raises RecipeError when one cannot be read.
    """
    return [script, *_required(workload, script).values()]


def _required(workload: Workload, script: Path) -> dict[str, Path]:
    """The modules that a script requires: path below a folder of modules → file."""
    found: dict[str, Path] = {}
    unread, suite = [script], Path(workload.folder)
    shared = [folder for folder in _folders(workload) if (folder / SHARED).is_file()][:1]
    folders = dict.fromkeys([suite, suite.parent, *shared])  # in the order in which Lua searches them
    for file in unread:  # grows as it goes
        for name in (f"{module.replace('.', '/')}.lua" for module in REQUIRE.findall(read_text(file))):
            module = next((folder / name for folder in folders if (folder / name).is_file()), None)
            if module and module not in unread:
                unread.append(within_top(module, suite.parent))
                found[name] = module
    return found


def to_send(workload: Workload) -> dict[str, Path]:
    """Name on the host → file here."""
    if not workload.folder:  # a command that came with no suite
        return {}
    suite = Path(workload.folder)
    files = [path for path in suite.rglob("*") if path.is_file()]
    sent = {f"{SUITE}/{path.relative_to(suite).as_posix()}": within_top(path, suite.parent) for path in files}
    for script in [] if workload.command else _run_by_sysbench(workload):
        sent[str(on_host(PurePosixPath(), workload, script))] = script
        sent |= {f"{_SHARED}/{name}": file for name, file in _required(workload, script).items()}
    return sent


def read_by_runs(workload: Workload) -> dict[str, Path]:
    """Name → file of what decides what its loading and its runs do.

    A command may read anything beside its suite if it gets the folder's path; a script only what it requires.
    """
    if workload.command:
        uses_suite = "{suite}" in repr([workload.command, workload.prepare_commands])
        return {name: file for name, file in to_send(workload).items() if uses_suite and name != f"{SUITE}/{FILE}"}
    read = dict.fromkeys(file for script in _run_by_sysbench(workload) for file in with_modules(workload, script))
    return {str(number): file for number, file in enumerate(read)}


def _run_by_sysbench(workload: Workload) -> list[Path]:
    """The scripts of its runs, of its loading and of its check. Raises RecipeError when one is missing."""
    check = plain_sql(workload) if workload.check else None
    return [script for script in (measured(workload), preparing(workload), check) if script]


def _folders(workload: Workload) -> list[Path]:
    """The folders of suites, the one with the workload's suite included."""
    own, beside = recipe_places(WORKLOADS), Path(workload.folder).parent.resolve()
    return own if beside in own else [beside, *own]


def _own(workload: Workload, name: str) -> Path:
    script = Path(workload.folder, name)
    if not script.is_file():
        raise RecipeError(f"Workload {workload.suite}/{workload.name} names a script that does not exist: {script}.")
    return within_top(script, Path(workload.folder).parent)


def plain_sql(workload: Workload) -> Path:
    """The script that runs plain SQL, or asks it in a check. Raises RecipeError where none is for the driver of the workload."""
    if script := _for_driver(workload, PLAIN_SQL):
        return script
    text = f"Workload {workload.suite}/{workload.name} is plain SQL, but no {PLAIN_SQL} runs it with {workload.driver}."
    path = f"{workload.driver}/{PLAIN_SQL}"
    raise RecipeError(text, f"Give it a script, or write {path} in the folder of your workloads.")


def _for_driver(workload: Workload, name: str) -> Path | None:
    """A script with that name: of the suite, of the driver, or the one for all that sysbench has a driver for."""
    folders = _folders(workload)
    places = [Path(workload.folder), *(folder / workload.driver for folder in folders)]
    if workload.driver in SYSBENCH_DRIVERS:
        places += folders
    found = next((place / name for place in places if (place / name).is_file()), None)
    return within_top(found, Path(workload.folder).parent) if found else None


NO_EFFECT = frozenset(
    {"summary", "group", "unit", "folder", "suspects", "only", "asks"}
)  # keys of a workload that do not affect runs
OF_SERVER = ("sysbench", "perf_scope")  # the rest of a server's recipe is in the key of its data


def fingerprint(builder: Builder, workload: Workload, entries: Sequence[HostEntry], counted: Sequence[str] = ()) -> str:
    """A hash of the inputs of a run of the workload, its files included; ``entries`` are those of the hosts.

    ``counted`` is how each of them counts exactly; "" where runs are timed. Defaults are omitted, so that new keys do not
    change old hashes.
    """
    own = {name: each for name, each in msgspec.to_builtins(workload).items() if name not in NO_EFFECT}
    defaults = {field.name: field.default for field in msgspec.structs.fields(workload)}
    own = {name: each for name, each in own.items() if each and each != defaults[name]}
    served = msgspec.to_builtins(builder.server) if builder.server else {}
    commands = json.dumps([own, served])
    shares = [_share(entry, commands) for entry in entries]
    methods = [list(counted)] if any(counted) else []
    conditional = [
        [when.version, when.file, when.missing, when.compiler, parts]
        for when in builder.when
        if (parts := _driven(when.change.get("server")))
    ]
    inputs = json.dumps([own, builder.library, _driven(served), conditional, shares, *methods], sort_keys=True)
    given = upload.recipe_archive(builder) if "{recipe}" in inputs else b""
    return hashlib.sha256(inputs.encode() + upload.archive(read_by_runs(workload)) + given).hexdigest()[:16]


def _driven(server: object) -> dict[str, object]:
    """The parts of a server's recipe that affect how it is driven and counted."""
    return {key: server[key] for key in OF_SERVER if key in server} if isinstance(server, Mapping) else {}


def _share(entry: HostEntry, commands: str) -> list[object]:
    """The resources of a host for server and client; its sizes only if ``commands`` use them."""
    memory = entry.memory if "{memory}" in commands or "{cache}" in commands else 0
    return [entry.server_cpus, entry.client_cpus, memory, entry.jobs if "{jobs}" in commands else 0]
