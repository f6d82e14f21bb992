"""A suite of workloads, read from its folder."""

from pathlib import Path, PurePosixPath

import msgspec

from perfbisect.recipes.builder import COMMAND_PLACEHOLDERS
from perfbisect.recipes.output_pattern import check_pattern
from perfbisect.recipes.placeholders import check_texts
from perfbisect.recipes.suggestions import hint
from perfbisect.recipes.toml_reader import Location, convert, merged, read_table, verify
from perfbisect.recipes.workload import Suite, Workload

FILE = "suite.toml"
OF_SYSBENCH = ("script", "statement", "setup", "prepare", "prepare_script", "prepare_args", "check")
READING = "Write a regular expression such as 'ops/s: ([0-9.]+)', or a path into JSON such as '$.results[0].ops'."
OF_PATTERNS = ("rate", "cost", "operations", "latencies")
OF_COMMANDS = ("prepare_commands", *OF_PATTERNS, "format")


def read_suite(file: Path) -> Suite:
    """The suite of a file, its defaults merged into each workload. Raises RecipeError for the first mistake."""
    table, location = read_table(file), Location(file)
    verify(table, Suite, location, partial=True)
    defaults = table.get("defaults", {})
    verify(defaults, Workload, location.at("defaults"), partial=True)
    own = table.get("workloads", {})
    table = {**table, "workloads": {name: merged(defaults, workload) for name, workload in own.items()}}
    suite = convert(table, Suite, location)
    if not suite.workloads:
        raise location.at("workloads").mistake("is empty: a suite has at least one workload.")
    folder = file.parent
    for name, workload in suite.workloads.items():
        _check_workload(workload, location.at("workloads", name))
    return msgspec.structs.replace(
        suite,
        name=folder.name,
        workloads={
            name: msgspec.structs.replace(
                workload, name=name, suite=folder.name, folder=str(folder), driver=suite.drivers[0]
            )
            for name, workload in suite.workloads.items()
        },
    )


def for_each_driver(suite: Suite) -> list[Workload]:
    """The workloads in the order of the file, one for each driver of the suite."""
    return [
        msgspec.structs.replace(workload, driver=driver)
        for workload in suite.workloads.values()
        for driver in suite.drivers
    ]


def _check_workload(workload: Workload, location: Location) -> None:
    """What types cannot express."""
    if "/" in location.keys.rpartition(".")[2]:
        raise location.mistake("has a / in its name; / separates suite and workload.")
    if workload.command:
        check_command(workload, location)
        return
    for key in OF_COMMANDS:
        if getattr(workload, key):
            raise location.at(key).mistake("is for workloads with a `command`, which this one does not have.")
    if bool(workload.script) == bool(workload.statement):
        found = "has both a script and a statement" if workload.script else "has neither a script nor a statement"
        raise location.mistake(
            f"{found}.",
            "Give the Lua file to run as `script`, plain SQL as `statement`, or any program as `command`.",
        )
    if workload.prepare_script and workload.prepare:
        raise location.mistake("has both prepare_script and prepare.", "Give one of them: a Lua file, or plain SQL.")
    folder = location.file.parent
    for key in ("script", "prepare_script"):
        script = getattr(workload, key)
        if script.startswith("/") or ".." in PurePosixPath(script).parts:
            raise location.at(key).mistake(f'is "{script}", but must be a file in {folder}, without .. or a leading /.')
        if script and not (folder / script).is_file():
            scripts = [path.name for path in folder.glob("*.lua")]
            raise location.at(key).mistake(f'is "{script}", but {folder} has no such file.{hint(script, scripts)}')
    for key in ("args", "prepare_args"):
        for option in getattr(workload, key):
            if option.startswith("-"):
                raise location.at(key).mistake(f'has "{option}": write options without the leading dashes.')


def check_command(workload: Workload, location: Location) -> None:
    """Raise RecipeError for a mistake in a workload that is a command."""
    for key in OF_SYSBENCH:
        if getattr(workload, key):
            raise location.at(key).mistake("is for sysbench, which does not run a workload with a `command`.")
    if workload.rate and workload.cost:
        raise location.mistake(
            "has both a rate and a cost.",
            "Give one of them: a rate is better when it is higher, a cost when it is lower.",
        )
    if workload.format and (both := [key for key in OF_PATTERNS if getattr(workload, key)]):
        raise location.at(both[0]).mistake("is read from the format of the output.", "Give the format, or patterns.")
    if taken := COMMAND_PLACEHOLDERS & workload.args.keys():
        raise location.at("args").mistake(
            f'has "{min(taken)}", which is a placeholder of every command: {{{min(taken)}}}.'
        )
    for key in ("command", "prepare_commands"):
        check_texts(getattr(workload, key), location.at(key), COMMAND_PLACEHOLDERS | workload.args.keys())
    patterns = {key: getattr(workload, key) for key in ("rate", "cost", "operations")}
    patterns |= {f"latencies.{name}": pattern for name, pattern in workload.latencies.items()}
    for key, pattern in patterns.items():
        try:
            check_pattern(pattern or "()")
        except ValueError as error:
            raise location.at(*key.split(".")).mistake(f'is "{pattern}", which {error}.', READING) from error
