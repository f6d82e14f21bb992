"""Which Lua scripts a workload runs, and the environment variables that they read."""

import re
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from perfbisect.errors import RecipeError
from perfbisect.recipes.places import recipe_folders
from perfbisect.recipes.workload import Workload

SHARED = "perfbisect.lua"
PLAIN_SQL = "sql.lua"
REQUIRE = re.compile(r"""\brequire\s*\(?\s*["']([\w.]+)["']""")
SYSBENCH_DRIVERS = ("mysql", "pgsql")


def measured(workload: Workload) -> Path:
    """The script of a timed run. Raises RecipeError when it is not there."""
    return _own(workload, workload.script) if workload.script else _plain_sql(workload)


def preparing(workload: Workload) -> Path | None:
    """The script that makes the dataset; None for a workload that needs none. Raises RecipeError as above."""
    if workload.prepare_script:
        return _own(workload, workload.prepare_script)
    return _plain_sql(workload) if workload.prepare else None


def environment(workload: Workload, data: PurePosixPath, library: PurePosixPath | None) -> dict[str, str]:
    """What a script of ours expects to find; ``library`` is None for a server."""
    given = {
        "LUA_PATH": "".join(f"{path}/?.lua;" for path in _module_folders(workload)) + ";",  # ;; : and sysbench's own
        "PERFBISECT_DATA": str(data),
        "PERFBISECT_LIBRARY": str(library or ""),
        "PERFBISECT_WARMUP": f"{workload.warmup:g}",
        "PERFBISECT_PREPARE": workload.prepare,
        "PERFBISECT_SETUP": workload.setup,
        "PERFBISECT_STATEMENT": workload.statement,
    }
    return {name: value for name, value in given.items() if value}


def perf_environment(folder: PurePosixPath) -> Mapping[str, str]:
    """Where the script finds the FIFOs of a perf that waits for it."""
    return {"PERFBISECT_CONTROL": str(folder / "control"), "PERFBISECT_ACK": str(folder / "ack")}


def with_modules(workload: Workload, script: Path) -> list[Path]:
    """A script and every module of ours that it requires, directly or through others, in the order of discovery."""
    found = [script]
    for file in found:
        for module in REQUIRE.findall(file.read_text()):
            places = (folder / f"{module.replace('.', '/')}.lua" for folder in _module_folders(workload))
            known = next((place for place in places if place.is_file()), None)
            if known is not None and known not in found:
                found.append(known)
    return found


def _module_folders(workload: Workload) -> list[Path]:
    """Where Lua looks for modules of ours, in this order."""
    shared = [folder for folder in recipe_folders("workloads") if (folder / SHARED).is_file()][:1]
    suite = Path(workload.folder)
    return list(dict.fromkeys([suite, suite.parent, *shared]))


def _own(workload: Workload, name: str) -> Path:
    script = Path(workload.folder, name)
    if not script.is_file():
        raise RecipeError(f"Workload {workload.suite}/{workload.name} names a script that is not there: {script}.")
    return script


def _plain_sql(workload: Workload) -> Path:
    """The script that runs plain SQL: of the suite, of the driver, or the one for all that sysbench has a driver for."""
    folders = recipe_folders("workloads")
    places = [Path(workload.folder), *(folder / workload.driver for folder in folders)]
    if workload.driver in SYSBENCH_DRIVERS:
        places += folders
    for place in places:
        if (place / PLAIN_SQL).is_file():
            return place / PLAIN_SQL
    raise RecipeError(
        f"Workload {workload.suite}/{workload.name} is plain SQL, but no {PLAIN_SQL} runs it with {workload.driver}.",
        f"Give it a script, or write {workload.driver}/{PLAIN_SQL} in the folder of your workloads.",
    )
