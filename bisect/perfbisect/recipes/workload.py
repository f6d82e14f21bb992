"""The schema of a suite of workloads, ``workloads/SUITE/suite.toml``, and how suites are found and read.

A workload is a sysbench Lua script with its arguments, plain SQL, or a command that is run without sysbench. sysbench
runs a Lua script or plain SQL with these environment variables, which the Lua module ``workloads/perfbisect.lua``
reads:

    PERFBISECT_LIBRARY  path of the embedded library (absent for a server)
    PERFBISECT_DATA     the copy of the dataset for this visit (one start of the server)
    PERFBISECT_WARMUP   seconds to run the operation in thread_init, before sysbench's clock starts
    PERFBISECT_CONTROL  FIFO of ``perf stat --control``; thread 0 writes "enable" at its first event, and "disable" at
                        its end
    PERFBISECT_ACK      FIFO on which perf answers
    PERFBISECT_SETUP, PERFBISECT_PREPARE, PERFBISECT_CHECK, PERFBISECT_STATEMENT  the SQL of a plain SQL workload
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import msgspec
from msgspec import Meta

from perfbisect.core.domain.settings import PrintedResult
from perfbisect.errors import RecipeError
from perfbisect.recipes.builder import COMMAND_PLACEHOLDERS, LONGEST, MEASURED, Argv, Builder, Need, Seconds, Weight
from perfbisect.recipes.builder_reader import find_variant
from perfbisect.recipes.configuration import WORKLOADS, recipe_files_by_name, recipe_folders
from perfbisect.recipes.output_pattern import check_pattern, unit_in
from perfbisect.recipes.placeholders import check_placeholders_in
from perfbisect.recipes.toml import (
    Location,
    convert_table,
    merged_tables,
    read_table,
    similar_words_hint,
    sorted_list,
    text_constraint,
)

MOST_LISTED = 12  # most names that a message lists
# Name of the argument with the number of operations of a run: an option of sysbench, or {events} in a command.
EVENTS = "events"

Drivers = str | Annotated[list[str], Meta(min_length=1, description="a list with at least one value")]
Option = str | int | float | bool
LatencyName = Literal["min", "avg", "p95", "p99", "max"]
Name = Annotated[str, text_constraint(r"^[^/]*\Z", "a name without /, which separates suite and workload")]
OptionName = Annotated[str, text_constraint(r"^(?!-)", "an option without its leading dashes")]
Script = Annotated[
    str, text_constraint(r"(?s)^(?!/|(.*/)?\.\.(/|\Z))", "a file of the suite's folder, without .. or a leading /")
]
Unit = Annotated[str, text_constraint(r"^[\w%/.^*-]{0,16}\Z", 'a unit such as "MB/s"')]
SecondsOrZero = Annotated[float, Meta(ge=0, le=LONGEST, description="a number of seconds, 0 or more")]


FILE = "suite.toml"
OF_SYSBENCH = ("script", "statement", "setup", "prepare", "prepare_script", "prepare_args", "check")
READING = "Write a regular expression such as 'ops/s: ([0-9.]+)', or a path into JSON such as '$.results[0].ops'."
OF_PATTERNS = ("rate", "cost", "operations", "latencies")
OF_COMMANDS = ("prepare_commands", *OF_PATTERNS, "unit", "format", "only")


class Workload(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A workload: one microbenchmark, with the keys of its table."""

    filled_in: ClassVar[frozenset[str]] = frozenset(
        {"name", "suite", "folder", "driver", "asks", "output", "outputs", "filter"}
    )

    name: str = ""  # name of the workload's table in suite.toml
    suite: str = ""
    folder: str = ""  # absolute path of the suite's folder
    driver: str = ""  # a driver of the suite; a suite with several drivers has a Workload for each driver
    summary: str
    group: str  # point, range, range-aggregate, scan, write, …: the section in a table of results
    script: Script = ""  # Lua file in the suite's folder
    args: dict[
        OptionName, Option
    ] = {}  # options of sysbench without the leading dashes, or values of a command's own placeholders
    prepare_script: Script = ""  # loads the dataset; sysbench runs it with the command "prepare"
    prepare_args: dict[OptionName, Option] = {}
    prepare: str = ""  # plain SQL instead of a script: loads the dataset
    check: str = ""  # plain SQL, run once in each session; its result must be the result that it had after loading
    setup: str = ""  # plain SQL run in each connection before the measured statement
    statement: str = ""  # plain SQL that is measured
    suspects: dict[str, Weight] = {}  # path in the system's source → factor of the prior of commits that touch it
    # What counts as one operation: "event" (a call of event()) or "query" (counted by sysbench).
    operation: Literal["event", "query"] = "event"
    threads: Annotated[int, Meta(ge=1, le=1_000_000, description="a whole number from 1 to 1000000")] = 1
    warmup: SecondsOrZero = 2.0
    time: Seconds = 10.0  # the measured window
    command: list[str] = []  # in place of a script; measured from its start to its end; run in {prefix}
    prepare_commands: list[Argv] = []  # commands that load the dataset into {data}
    rate: str = ""  # pattern of a rate in the output (higher is better): see perfbisect.recipes.output_pattern
    cost: str = ""  # pattern of a cost in the output (lower is better)
    unit: Unit = ""  # unit of the rate or the cost; by default the unit in the pattern
    operations: str = ""  # pattern of the number of operations in the output; "": the whole execution is one operation
    latencies: dict[LatencyName, str] = {}  # "avg", "p95", …: patterns of latencies in the output, in milliseconds
    # In place of patterns: the program whose JSON output is parsed; see perfbisect.lab.workload.command.
    format: Literal["", "fio"] = ""
    only: str = ""  # the result that is measured, of an output in a known format: its name, or a pattern of names
    asks: bool = False  # whether perfbisect must find the result in the command's output
    output: PrintedResult | None = None  # the result that perfbisect found in the output
    outputs: tuple[PrintedResult, ...] = ()  # all results that are read from the runs; empty if only one is
    filter: tuple[str, ...] = ()  # words added to the command, so that it measures only the hunted results
    needs: list[Need] = []  # programs for its commands, beside those of the build
    # Seconds after which a run is killed; 0: five times its length, plus an hour for a command, otherwise a minute.
    timeout: SecondsOrZero = 0.0

    @property
    def metric(self) -> str:
        """The default metric."""
        if self.recognised_outputs:
            return self.recognised_outputs[0].metric
        return "rate" if self.rate or self.format else "cost" if self.cost else "latency" if self.command else "qps"

    @property
    def recognised_outputs(self) -> tuple[PrintedResult, ...]:
        """The results in the command's output that perfbisect can measure; empty if perfbisect does not recognise the
        format of the output.
        """
        return self.outputs or ((self.output,) if self.output else ())

    @property
    def has_unspecified_result(self) -> bool:
        """Whether a command has no key that selects the result in its output."""
        return bool(self.command) and not (self.format or any(getattr(self, key) for key in OF_PATTERNS))

    @property
    def printed_unit(self) -> str:
        """The unit of the rate or the cost that is printed; "" if it is unknown."""
        if self.output:
            return self.output.unit
        return self.unit or ("IOPS" if self.format else unit_in(self.rate or self.cost))


class Suite(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A folder of workloads that share a driver and, usually, a dataset."""

    filled_in: ClassVar[frozenset[str]] = frozenset({"name"})  # set by the reader

    name: str = ""  # the folder's name
    summary: str
    driver: Drivers  # driver or drivers of builders that can run it
    defaults: dict[str, object] = {}  # keys of all workloads; a workload may override them
    # Name of a workload → keys of Workload.
    workloads: Annotated[dict[Name, Any], Meta(min_length=1, description="a table with at least one entry")]

    @property
    def drivers(self) -> list[str]:
        """The driver or drivers, as a list."""
        return [self.driver] if isinstance(self.driver, str) else self.driver


def read_suite(file: Path) -> Suite:
    """The suite of a file, with its defaults merged into each workload. Raises RecipeError for the first mistake."""
    table, location = read_table(file), Location(file)
    suite = convert_table(table, Suite, location)
    convert_table({"summary": "", "group": "", **suite.defaults}, Workload, location.at("defaults"))
    folder, workloads = file.parent, {}
    for name, keys in suite.workloads.items():
        workload = convert_table(merged_tables(suite.defaults, keys), Workload, location.at("workloads", name))
        _check_workload(workload, location.at("workloads", name))
        workloads[name] = msgspec.structs.replace(
            workload, name=name, suite=folder.name, folder=str(folder), driver=suite.drivers[0]
        )
    return msgspec.structs.replace(suite, name=folder.name, workloads=workloads)


def workloads_for_each_driver(suite: Suite) -> list[Workload]:
    """The workloads of a suite in the order of its file; each workload occurs once for each driver of the suite."""
    workloads = suite.workloads.values()
    return [msgspec.structs.replace(workload, driver=driver) for workload in workloads for driver in suite.drivers]


def _check_workload(workload: Workload, location: Location) -> None:
    """Check rules that types cannot express."""
    if workload.command:
        check_command_workload(workload, location)
        return
    for key in OF_COMMANDS:
        if getattr(workload, key):
            raise location.at(key).mistake(
                "is only for workloads with a `command`, but this workload has no `command`."
            )
    if bool(workload.script) == bool(workload.statement):
        problem = "has both a script and a statement" if workload.script else "has neither a script nor a statement"
        advice = "Give a Lua file as `script`, or SQL as `statement`, or a program as `command`."
        raise location.mistake(f"{problem}.", advice)
    if workload.prepare_script and workload.prepare:
        raise location.mistake("has both prepare_script and prepare.", "Give one of the two: a Lua file or SQL.")
    folder = location.file.parent
    for key in ("script", "prepare_script"):
        script = getattr(workload, key)
        if script and not (folder / script).is_file():
            scripts = [path.name for path in folder.glob("*.lua")]
            raise location.at(key).mistake(
                f'is "{script}", but {folder} has no such file.{similar_words_hint(script, scripts)}'
            )


def check_command_workload(workload: Workload, location: Location) -> None:
    """Raise RecipeError for a mistake in a workload that is a command."""
    for key in OF_SYSBENCH:
        if getattr(workload, key):
            raise location.at(key).mistake("is only for sysbench, but this workload has a `command`.")
    if workload.rate and workload.cost:
        advice = "Give `rate` if higher values are better, or `cost` if lower values are better."
        raise location.mistake("has both a rate and a cost.", advice)
    if workload.format and (both := [key for key in OF_PATTERNS if getattr(workload, key)]):
        problem = "is not allowed beside `format`, which already defines this value."
        raise location.at(both[0]).mistake(problem, "Remove `format`, or remove the patterns.")
    if workload.only and not workload.has_unspecified_result:
        text = "has no effect, because the workload already defines the measured number, for example by `rate`."
        raise location.at("only").mistake(text, "Remove `only`.")
    if reserved := COMMAND_PLACEHOLDERS & workload.args.keys():
        raise location.at("args").mistake(
            f'has "{min(reserved)}", but {{{min(reserved)}}} already is a placeholder of every command.'
        )
    for key in ("command", "prepare_commands"):
        check_placeholders_in(getattr(workload, key), location.at(key), COMMAND_PLACEHOLDERS | workload.args.keys())
    patterns = {key: getattr(workload, key) for key in ("rate", "cost", "operations")}
    patterns |= {f"latencies.{name}": pattern for name, pattern in workload.latencies.items()}
    for key, pattern in patterns.items():
        try:
            check_pattern(pattern or "()")
        except ValueError as error:
            raise location.at(*key.split(".")).mistake(f'is "{pattern}", which {error}.', READING) from error


def load_workload(name: str, driver: str, user_path: str | Path = "") -> Workload:
    """The workload called ``name`` or ``suite/name`` for ``driver``.

    Raises RecipeError if no suite or several suites have a workload called ``name``, or if a suite has a mistake.
    """
    return _workload_by_name(name, driver, load_workloads(user_path))


def _workload_by_name(name: str, driver: str, everything: Sequence[Workload]) -> Workload:
    matches = workloads_by_name(name, everything, driver)
    if len(matches) > 1:
        text = f"Several suites have a workload '{name}' for {driver}."
        raise RecipeError(text, f"Choose one of {sorted_list(qualified_name(workload) for workload in matches)}.")
    return matches[0]


def workloads_by_name(name: str, everything: Iterable[Workload], driver: str = "") -> list[Workload]:
    """The workloads called ``name`` or ``suite/name``, for ``driver`` or, by default, for any driver. Raises
    RecipeError if no workload has that name.
    """
    fitting: list[Workload] = []
    unfitting: list[Workload] = []
    for workload in everything:
        (fitting if driver in ("", workload.driver) else unfitting).append(workload)
    if matches := [workload for workload in fitting if name in (workload.name, qualified_name(workload))]:
        return matches
    whose, names = f" for {driver}" if driver else "", {workload.name for workload in fitting}
    elsewhere = {candidate.driver for candidate in unfitting if name in (candidate.name, qualified_name(candidate))}
    near = similar_words_hint(name, names | {qualified_name(workload) for workload in fitting})
    why = f" The workload of that name is for {sorted_list(elsewhere)}." if elsewhere else near
    raise RecipeError(f"There is no workload '{name}'{whose}.{why}", advice_listing_workloads(whose, names))


def advice_listing_workloads(whose: str, names: Iterable[str]) -> str:
    """Advice that lists all workloads or, if there are too many workloads for a message, names the command that lists
    them.
    """
    every = {*names}
    return (
        f"Workloads{whose}: {sorted_list(every)}."
        if len(every) <= MOST_LISTED
        else f"`bisect workloads` lists all {len(every)}{whose}."
    )


def load_workloads(user_path: str | Path = "") -> list[Workload]:
    """All workloads: suites in alphabetical order, and the workloads of a suite in the order of the suite's file. A
    workload for several drivers occurs once for each driver."""
    files = recipe_files_by_name(recipe_folders(WORKLOADS, user_path), FILE)
    return [workload for _, file in sorted(files.items()) for workload in workloads_for_each_driver(read_suite(file))]


def choose_workloads(words: str, driver: str, user_path: str | Path = "") -> dict[str, Workload]:
    """The workloads for ``driver`` that ``words`` name, each workload once; the keys of the mapping are unambiguous
    names.

    ``words`` are names of workloads, groups and suites, separated by commas; a workload precedes a group of the same
    name. Raises RecipeError for a word that names no workload, group or suite; also raises the errors of
    ``load_workload``.
    """
    everything = load_workloads(user_path)
    fitting = [workload for workload in everything if workload.driver == driver]
    short = [workload.name for workload in fitting]
    chosen: dict[str, tuple[str, Workload]] = {}  # full name → (requested name, workload)
    for word in filter(None, map(str.strip, words.split(","))):
        members = {} if word in short else {
            member.name if short.count(member.name) == 1 else qualified_name(member): member
            for member in fitting
            if word in (member.group, member.suite)
        }  # fmt: skip
        if not members and word not in short and "/" not in word:
            groups = {workload.group for workload in fitting}
            raise RecipeError(
                f"There is no workload and no group '{word}' for {driver}.{similar_words_hint(word, [*short, *groups])}",
                f"{advice_listing_workloads(f' for {driver}', short)} Groups: {sorted_list(groups)}.",
            )
        for name, workload in (members or {word: _workload_by_name(word, driver, everything)}).items():
            chosen.setdefault(qualified_name(workload), (name, workload))
    return dict(chosen.values())


def load_training_workloads(
    builder: Builder, variant: str, measured: Sequence[Workload], user_path: str | Path = ""
) -> tuple[Workload, ...]:
    """The workloads with which builds of a variant are trained; empty if the variant does not use profile-guided
    optimization.

    ``measured`` are the workloads of the hunt or the comparison. The result is sorted by name, so that the order of
    ``measured`` does not change builds. Raises RecipeError for a workload that does not exist.
    """
    names = find_variant(builder, variant).train
    if not names:
        return ()
    workloads = measured if names == MEASURED else choose_workloads(names, builder.driver, user_path).values()
    return tuple(sorted(workloads, key=qualified_name))


def qualified_name(workload: Workload) -> str:
    """The name of a workload with its suite: suite/name."""
    return f"{workload.suite}/{workload.name}"
