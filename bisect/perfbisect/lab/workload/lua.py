"""The Lua scripts of a workload: which scripts it runs, where they are on a host, and their environment variables."""

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
from perfbisect.recipes.configuration import WORKLOADS, checked_within_folder, recipe_folders
from perfbisect.recipes.inventory import HostEntry
from perfbisect.recipes.toml import read_text
from perfbisect.recipes.workload import FILE, Workload

SHARED = "perfbisect.lua"
PLAIN_SQL = "sql.lua"
PLANS = "plans.lua"
SUITE, _SHARED = "suite", "shared"  # folders on a host: all files of the suite, and modules that all suites use
REQUIRE = re.compile(r"""\brequire\s*\(?\s*["'](\w+(?:\.\w+)*)["']""")
SYSBENCH_DRIVERS = ("mysql", "pgsql")


def timed_run_script(workload: Workload) -> Path:
    """The script of a timed run. Raises RecipeError if the script is missing."""
    return _own(workload, workload.script) if workload.script else lua_script_for_sql(workload)


def prepare_script(workload: Workload) -> Path | None:
    """The script that makes the dataset; None if the workload needs no script. Raises RecipeError if the script is
    missing."""
    if workload.prepare_script:
        return _own(workload, workload.prepare_script)
    return lua_script_for_sql(workload) if workload.prepare else None


def plan_script(workload: Workload) -> Path | None:
    """The script that asks for the query plans of a workload's statements; None if the workload's driver has no such
    script."""
    return None if workload.command else _for_driver(workload, PLANS)


def place_scripts(host: Host, workload: Workload) -> PurePosixPath:
    """Copy the workload's scripts, all files of its suite's folder, and required modules to the host; returns the
    folder with these files."""
    return upload.place_files(host, "scripts", files_to_send(workload))


def script_path_on_host(folder: PurePosixPath, workload: Workload, script: Path) -> PurePosixPath:
    """The path of a script of the workload on the host; ``folder`` is the result of ``place_scripts``."""
    suite = Path(workload.folder)
    return folder / (SUITE / script.relative_to(suite) if script.is_relative_to(suite) else script.name)


def environment(
    workload: Workload, folder: PurePosixPath, data: PurePosixPath, library: PurePosixPath | None
) -> dict[str, str]:
    """The environment variables of a script that is in ``folder``; ``library`` is the path of an embedded library, None
    for a server."""
    variables = {
        "LUA_PATH": f"{folder}/{SUITE}/?.lua;{folder}/{_SHARED}/?.lua;;",  # ;; stands for sysbench's own folders
        "PERFBISECT_DATA": str(data),
        "PERFBISECT_LIBRARY": str(library or ""),
        "PERFBISECT_WARMUP": f"{workload.warmup:g}",
        "PERFBISECT_PREPARE": workload.prepare,
        "PERFBISECT_CHECK": workload.check,
        "PERFBISECT_SETUP": workload.setup,
        "PERFBISECT_STATEMENT": workload.statement,
    }
    return {name: value for name, value in variables.items() if value}


def script_and_modules(workload: Workload, script: Path) -> list[Path]:
    """A script and all modules of the suite or of perfbisect that it requires, directly or indirectly, in the order in
    which they are found.

    Raises RecipeError if a file cannot be read.
    """
    return [script, *_required_modules(workload, script).values()]


def _required_modules(workload: Workload, script: Path) -> dict[str, Path]:
    """The Lua modules that a script requires: path below a folder of modules → file."""
    modules: dict[str, Path] = {}
    unread, suite = [script], Path(workload.folder)
    shared = [folder for folder in _suite_folders(workload) if (folder / SHARED).is_file()][:1]
    folders = dict.fromkeys([suite, suite.parent, *shared])  # in the order in which Lua searches them
    for file in unread:  # the loop appends to ``unread``
        for name in (f"{module.replace('.', '/')}.lua" for module in REQUIRE.findall(read_text(file))):
            module = next((folder / name for folder in folders if (folder / name).is_file()), None)
            if module and module not in unread:
                unread.append(checked_within_folder(module, suite.parent))
                modules[name] = module
    return modules


def files_to_send(workload: Workload) -> dict[str, Path]:
    """The files to send to a host: name on the host → local file."""
    if not workload.folder:  # the workload is a command of the user, without a suite
        return {}
    suite = Path(workload.folder)
    files = [path for path in suite.rglob("*") if path.is_file()]
    sent = {
        f"{SUITE}/{path.relative_to(suite).as_posix()}": checked_within_folder(path, suite.parent) for path in files
    }
    for script in [] if workload.command else _run_by_sysbench(workload):
        sent[str(script_path_on_host(PurePosixPath(), workload, script))] = script
        sent |= {f"{_SHARED}/{name}": file for name, file in _required_modules(workload, script).items()}
    return sent


def files_read_by_runs(workload: Workload) -> dict[str, Path]:
    """The files that affect the loading of data and the runs: name → file.

    A command may read all files of its suite's folder if it gets the folder's path; a script reads only required
    modules.
    """
    if workload.command:
        uses_suite = "{suite}" in repr([workload.command, workload.prepare_commands])
        return {
            name: file for name, file in files_to_send(workload).items() if uses_suite and name != f"{SUITE}/{FILE}"
        }
    read = dict.fromkeys(file for script in _run_by_sysbench(workload) for file in script_and_modules(workload, script))
    return {str(number): file for number, file in enumerate(read)}


def _run_by_sysbench(workload: Workload) -> list[Path]:
    """The scripts with which sysbench runs the workload, loads its data and checks it. Raises RecipeError if a script
    is missing.
    """
    check = lua_script_for_sql(workload) if workload.check else None
    return [script for script in (timed_run_script(workload), prepare_script(workload), check) if script]


def _suite_folders(workload: Workload) -> list[Path]:
    """The folders that contain suites, including the folder that contains the suite of the workload."""
    suites, beside = recipe_folders(WORKLOADS), Path(workload.folder).parent.resolve()
    return suites if beside in suites else [beside, *suites]


def _own(workload: Workload, name: str) -> Path:
    script = Path(workload.folder, name)
    if not script.is_file():
        raise RecipeError(f"Workload {workload.suite}/{workload.name} has a script that does not exist: {script}.")
    return checked_within_folder(script, Path(workload.folder).parent)


def lua_script_for_sql(workload: Workload) -> Path:
    """The Lua script that executes the SQL statements in a workload's recipe: the statements of a timed run, of the
    prepare step, or of the check. Raises RecipeError if the workload's driver has no such script."""
    if script := _for_driver(workload, PLAIN_SQL):
        return script
    text = (
        f"Workload {workload.suite}/{workload.name} is plain SQL, but {workload.driver} has no {PLAIN_SQL} to run it."
    )
    path = f"{workload.driver}/{PLAIN_SQL}"
    raise RecipeError(text, f"Add a script to the workload, or write {path} in the folder of your workloads.")


def _for_driver(workload: Workload, name: str) -> Path | None:
    """The script ``name`` in the first folder that contains it: the suite's folder, the driver's folder, or the folder
    for all sysbench drivers; None if no folder contains it.
    """
    folders = _suite_folders(workload)
    places = [Path(workload.folder), *(folder / workload.driver for folder in folders)]
    if workload.driver in SYSBENCH_DRIVERS:
        places += folders
    script = next((folder / name for folder in places if (folder / name).is_file()), None)
    return checked_within_folder(script, Path(workload.folder).parent) if script else None


NO_EFFECT = frozenset(
    {"summary", "group", "unit", "folder", "suspects", "only", "asks"}
)  # keys of a workload's table that do not affect runs
OF_SERVER = ("sysbench", "perf_scope")  # keys of [server] that affect runs; the dataset's key covers the other keys


def fingerprint(builder: Builder, workload: Workload, entries: Sequence[HostEntry], counted: Sequence[str] = ()) -> str:
    """A hash of everything that affects a run of the workload, including its files; ``entries`` are the entries of the
    hosts in hosts.toml.

    ``counted`` has, for each host, the method that counts instructions exactly, or "" for timed runs. The hash ignores
    settings with default values, so that a setting that a later version of perfbisect adds does not change the hashes
    of old workloads.
    """
    settings = {name: setting for name, setting in msgspec.to_builtins(workload).items() if name not in NO_EFFECT}
    defaults = {field.name: field.default for field in msgspec.structs.fields(workload)}
    settings = {name: setting for name, setting in settings.items() if setting and setting != defaults[name]}
    served = msgspec.to_builtins(builder.server) if builder.server else {}
    commands = json.dumps([settings, served])
    shares = [_used_host_resources(entry, commands) for entry in entries]
    methods = [list(counted)] if any(counted) else []
    conditional = [
        [when.version, when.file, when.missing, when.compiler, parts]
        for when in builder.when
        if (parts := _driver_relevant_parts(when.change.get("server")))
    ]
    recipe = _driver_relevant_parts(served)
    inputs = json.dumps([settings, builder.library, recipe, conditional, shares, *methods], sort_keys=True)
    recipe_files = upload.recipe_archive(builder) if "{recipe}" in inputs else b""
    archive = upload.archive_files(files_read_by_runs(workload))
    return hashlib.sha256(inputs.encode() + archive + recipe_files).hexdigest()[:16]


def _driver_relevant_parts(server: object) -> dict[str, object]:
    """The parts of a server's recipe that affect how sysbench connects to the server, and how perf counts the
    server."""
    return {key: server[key] for key in OF_SERVER if key in server} if isinstance(server, Mapping) else {}


def _used_host_resources(entry: HostEntry, commands: str) -> list[object]:
    """The CPUs that a host gives to server and client; and the host's memory and number of parallel jobs, if
    ``commands`` use these values.
    """
    memory = entry.memory if "{memory}" in commands or "{cache}" in commands else 0
    return [entry.server_cpus, entry.client_cpus, memory, entry.jobs if "{jobs}" in commands else 0]
