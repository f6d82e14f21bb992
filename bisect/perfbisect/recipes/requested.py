"""The builder and the workload that a hunt uses: recipes chosen by name, with the changes that the hunt makes; or
commands of the command line.

A hunt may change the duration, the warm-up, the threads and the args of a workload. `bisect compare REV REV+NAME` adds
one of the recipe's ``configs``, or a file of the user, to the configuration of a builder's server.

Commands of the user need no recipe file: the recipe ``command`` with the commands of --build is the builder, and the
command of --run is the workload. The name of the builder contains a hash of all its options. If the history has a
different command with the same name, a number is added to the name, so that hunts of one command never use results of
the other command."""

import hashlib
import json
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Any

import msgspec

from perfbisect.core.domain.settings import TIMING, QuickCommand, Settings
from perfbisect.errors import UsageError
from perfbisect.masking import mask_credentials
from perfbisect.recipes.build_systems import AUTO, build_with_needs, has_commands
from perfbisect.recipes.builder import BUILD_PLACEHOLDERS, COMMAND_PLACEHOLDERS, Build, Builder, Setting
from perfbisect.recipes.builder_reader import FILE as BUILDER
from perfbisect.recipes.builder_reader import config_template, load_builder, recipe_files, required_build_section
from perfbisect.recipes.configuration import BUILDERS, HOSTS, WORKLOADS, is_trusted_path
from perfbisect.recipes.inventory import HostEntry
from perfbisect.recipes.placeholders import archive_names_in, check_placeholders_in, escaped_braces, placeholders_in
from perfbisect.recipes.toml import LINE, convert_table, read_text, shown_value, similar_words_hint, sorted_list
from perfbisect.recipes.workload import (
    EVENTS,
    Option,
    Workload,
    check_command_workload,
    choose_workloads,
    load_workload,
    qualified_name,
)
from perfbisect.recipes.workload import FILE as SUITE

RECIPE = "command"
OF_SERVERS = ("socket", "port")


COMMANDS_ALONE = Settings("", "", "", "", "", "")
TRUTHS = {"true": True, "on": True, "false": False, "off": False}


def load_requested(settings: Settings) -> tuple[Builder, Workload]:
    """The builder and the workload that the settings request, with the overrides of the settings. Raises UsageError for
    contradictory options."""
    quick = settings.quick
    builder = requested_builder(settings)
    if quick is None:
        workload = load_workload(settings.workload, builder.driver, settings.workloads_path)
    else:
        workload = quick_workload(quick, builder)
    changed = with_settings(workload, settings)
    check_overrides(builder, [changed], settings)
    return builder, changed


def with_settings(workload: Workload, settings: Settings) -> Workload:
    """The workload with the overrides of ``settings``, and with the chosen results that are read from its output.
    Raises like ``converted_overrides``."""
    changed = with_overrides(workload, settings.overrides)
    asks = settings.recognise and (settings.filter is None or not (settings.output or settings.outputs))
    return msgspec.structs.replace(
        changed, asks=asks, output=settings.output, outputs=settings.outputs, filter=settings.filter or ()
    )


def requested_workloads(settings: Settings, builder: Builder, names: str) -> dict[str, Workload]:
    """The workloads ``names``, or the workload of the user's command; the keys of the mapping are unambiguous names.
    Raises like ``choose_workloads``."""
    if settings.quick:
        return {(command := quick_workload(settings.quick, builder)).name: command}
    return choose_workloads(names, builder.driver, settings.workloads_path)


def requested_builder(settings: Settings) -> Builder:
    """The builder that the settings request: a recipe, or a builder made from the commands of --build.

    In the result, the section [build] has the build system that was chosen for the range of the hunt, and the options
    of --configure."""
    if settings.quick is None or settings.quick.build is None:
        builder = load_builder(settings.builder, settings.builders_path)
    else:
        builder = quick_builder(settings.quick.build, settings.repository, settings)
        if settings.root:
            base_name = builder.home.rpartition("-")[0]
            builder = msgspec.structs.replace(builder, home=_unique_name(base_name, [settings.root]))
    builder = msgspec.structs.replace(_with_then_commands(builder, settings.quick), flags=settings.flags)
    if builder.build is None or has_commands(builder.build):
        return builder
    # An option of the user has precedence over an option of the recipe with an archive.
    chosen_options = {option.partition("=")[0] for option in settings.configure}
    kept = [
        word
        for word in builder.build.options
        if not archive_names_in(word) or word.partition("=")[0] not in chosen_options
    ]
    options = [*kept, *(escaped_braces(option) for option in settings.configure)]
    system = "" if settings.system == AUTO else settings.system or builder.build.system
    build = build_with_needs(msgspec.structs.replace(builder.build, options=options, system=system))
    for path in settings.programs:
        if PurePath(path).name not in (
            names := [PurePath(program).name for program in (*builder.programs, *builder.started)]
        ):
            text = f"--program {path} has no effect: the recipe of {builder.name} does not run a program of that name."
            raise UsageError(text, f"Programs of the recipe: {sorted_list(names)}.")
    return msgspec.structs.replace(
        builder, build=build, requested=list(settings.configure), chosen=list(settings.programs)
    )


def quick_builder(commands: tuple[str, ...], repository: str, settings: Settings = COMMANDS_ALONE) -> Builder:
    """A builder for a repository without a recipe. Each command is run in a copy of the checkout, and this copy is the
    build.

    If there are no ``commands``, but ``settings`` has a build system, the build system builds the copy: the programs
    that --run starts, and the files of --program. The name of the builder depends on these programs and files, and on
    the options of the build system and of the compilers, so that different builders do not share a history. Raises
    UsageError for a command with an unknown placeholder."""
    recipe = load_builder(RECIPE, settings.builders_path)
    build, chosen, quick = required_build_section(recipe), settings.programs, settings.quick
    started = program_and_files(command_words(quick.run) if quick and not quick.then else [], chosen)
    then = quick.then if quick else ()
    with_files = _file_hash_variable(commands)
    compile_ = [*build.compile, *_build_commands("build", commands, with_files)]
    name = Path(repository).name.removesuffix(".git") or "repository"
    in_place = bool(settings.system) and not commands
    how = ["", settings.system, *settings.configure, *started, *chosen] if in_place else commands
    return msgspec.structs.replace(
        recipe,
        name=_unique_name(
            name, [repository, *how, *settings.flags.arguments, *with_files, *then, *_file_hash_variable(then)]
        ),
        home=_unique_name(name, [repository]),  # equal for all commands, so that the sources are sent once
        started=list(started) if in_place else [],
        build=Build(in_place=True) if in_place else msgspec.structs.replace(build, compile=compile_),
    )


def _file_hash_variable(commands: Sequence[str]) -> list[str]:
    """An environment variable with a hash of the files that commands name, so that the key of a build depends on the
    content of these files."""
    return [f"PERFBISECT_FILES={named}"] if (named := "".join(file_hashes(commands))) else []


def _build_commands(option_name: str, commands: Sequence[str], variables: Sequence[str]) -> list[list[str]]:
    """The commands of the option --``option_name``, in the form of a recipe; the commands are run in the folder
    {prefix}. Raises UsageError if the commands have a mistake."""
    argvs = [command_words(command) for command in commands]
    check_placeholders_in(argvs, LINE.at(option_name), BUILD_PLACEHOLDERS)
    return [["env", "-C", "{prefix}", *variables, *argv] for argv in argvs]


def _with_then_commands(builder: Builder, quick: QuickCommand | None) -> Builder:
    """The builder with the commands of --then added after its own commands."""
    if not quick or not quick.then:
        return builder
    if builder.build is None:
        raise UsageError(f"--then has no effect: builder {builder.name} builds nothing.", "Omit --then.")
    then = _build_commands("then", quick.then, ["CC={cc}", "CXX={cxx}", *_file_hash_variable(quick.then)])
    # It is not known which files --then builds; these files may be measured, so no two builds count as equal.
    build = msgspec.structs.replace(builder.build, then=[*builder.build.then, *then], artifacts=[])
    return msgspec.structs.replace(builder, build=build)


def file_hashes(commands: Sequence[str]) -> Iterator[str]:
    """For each file outside of the tree that commands name by its full path, such as a benchmark: a hash of its
    content."""
    for path in re.findall(r"/[^\s;|&()<>\"'`$*?]+", " ".join(commands)):
        with suppress(OSError):
            if Path(path).is_file():
                yield hashlib.sha256(Path(path).read_bytes()).hexdigest()[:12]


_BELOW = re.compile(
    r"(?:\{prefix\}/|\./)?((?!-|\.\.?/)[^\s;|&()<>\"'`$={}:*?\[\]\\/]+(?:/[^\s;|&()<>\"'`$={}:*?\[\]\\/]+)*)"
)


def program_and_files(command: list[str], chosen_files: Sequence[str]) -> list[str]:
    """Paths of files of a build: first the program that ``command`` starts, which is the first relative path in the
    command; then ``chosen_files``, except a file with the program's name."""
    every = (word for text in command for word in re.split(r"[\s;|&()<>\"'`]+", text) if "/" in word)
    program = next((match[1] for word in every if (match := _BELOW.fullmatch(word))), "")
    names = {PurePath(program).name} if program else set()
    return [*([program] if program else []), *(path for path in chosen_files if PurePath(path).name not in names)]


def quick_workload(quick: QuickCommand, builder: Builder) -> Workload:
    """The workload of the command of --run. Raises UsageError for a mistake in its options."""
    command = command_words(quick.run)
    check_placeholders_in(command, LINE.at("run"), COMMAND_PLACEHOLDERS | {EVENTS})
    table = {name: getattr(quick, name) for name in ("rate", "cost", "operations", "unit", "only")}
    table |= {"summary": quick.run, "group": RECIPE, "command": command}
    table["args"] = {EVENTS: 1} if EVENTS in placeholders_in(command) else {}
    workload = convert_table(table, Workload, LINE)
    check_command_workload(workload, LINE)
    name = quick.name or command_name(quick.run)
    return msgspec.structs.replace(workload, name=name, suite=RECIPE, driver=builder.driver)


LONGEST_NAME = 40


def command_name(run: str) -> str:
    """A readable name of a command: the command without the environment variables that it sets. A long name is
    shortened in the middle."""
    arguments = command_words(run)
    begin = next((index for index, word in enumerate(arguments) if word != "env" and not re.match(r"-|\w+=", word)), 0)
    first, *further = arguments[begin:]
    program = PurePath(first).name if first.startswith("/") else re.sub(r"^(\{prefix}|\.)/", "", first)
    shown = mask_credentials(" ".join([program, *further]))
    name = " ".join(re.sub(r"[^\w.+=:@%/{}-]+", " ", shown).split()) or RECIPE  # a comma separates names
    return name if len(name) <= LONGEST_NAME else f"{name[:24]}…{name[-15:]}"


def command_words(command: str) -> list[str]:
    """The words of a command of the command line, split as a shell splits them."""
    arguments = shlex.split(command)
    return ["env", *arguments] if re.match(r"\w+=", arguments[0]) else arguments  # as a shell treats N=3 ./bench


def _unique_name(name: str, parts: list[str]) -> str:
    """A readable name, made unique by a hash of ``parts``."""
    return f"{re.sub(r'[^A-Za-z0-9._]+', '-', name).strip('-.')[:40]}-{hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:8]}"


def check_overrides(builder: Builder, workloads: Sequence[Workload], settings: Settings) -> None:
    """Raise UsageError for overrides that no command uses, and for commands that need a server if the builder provides
    no server."""
    used = {
        workload.name: placeholders_in(
            [*workload.command, *(word for argv in workload.prepare_commands for word in argv)]
        )
        for workload in workloads
        if workload.command
    }
    all_commands = len(used) == len(workloads)
    for key in settings.overrides:
        if all_commands and not any(key in names for names in used.values()):
            option = f"--{key}" if key in TIMING else f"--set {key}"
            raise UsageError(
                f"{option} would change nothing: the command of workload {' or '.join(used)} does not use {{{key}}}.",
                f"Omit {option}, or write {{{key}}} in the command, where the command expects this value.",
                key if key in TIMING else "set",
            )
    for name, names in used.items():
        if not builder.server and (unavailable := names & set(OF_SERVERS)):
            raise UsageError(
                f"The command of workload {name} uses {{{min(unavailable)}}}, but builder {builder.name} has no server."
            )


def converted_overrides(workload: Workload, overrides: Mapping[str, Option]) -> dict[str, Option]:
    """The overrides, with the value of each arg converted to the type that the arg has in the workload. Raises
    UsageError for an arg that the workload does not have, or for a value that cannot be converted to this type."""
    args = workload.prepare_args | workload.args
    values = dict(overrides)
    for name in (arg for arg in overrides if arg not in TIMING):
        if name not in args:
            raise UsageError(
                f"Workload {qualified_name(workload)} has no argument '{name}' that --set could change.{similar_words_hint(name, args)}",
                f"Arguments of this workload: {sorted_list(args)}. To change other values, write your own suite.toml.",
                "set",
            )
        try:
            is_truth, text = isinstance(args[name], bool), str(overrides[name])
            values[name] = TRUTHS[text.lower()] if is_truth else type(args[name])(text)
        except (KeyError, ValueError):
            allowed = {bool: "true or false", int: "a whole number", float: "a number"}[type(args[name])]
            problem = f"{name}={text} cannot be set: {name} must be {allowed}."
            raise UsageError(problem, f"The default of {name} is {shown_value(args[name])}.") from None
    return values


def with_overrides(workload: Workload, overrides: Mapping[str, Option]) -> Workload:
    """The workload with its overrides; an argument that both loading and runs use is changed in both. Raises like
    ``converted_overrides``."""
    values = converted_overrides(workload, overrides)
    changed: dict[str, Any] = {name: value for name, value in values.items() if name in TIMING}
    for key in ("args", "prepare_args"):
        changed[key] = {name: values.get(name, value) for name, value in getattr(workload, key).items()}
    return msgspec.structs.replace(workload, **changed)


PLACED = "=/"  # suffix of a reserved word: only a value that is a path is left out
_WORD = re.compile(r"\s*([!\w.-]+)")
_PATH = re.compile(r"[^#]*/")


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """An addition to the configuration of a recipe's server."""

    settings: Mapping[str, Setting] = field(default_factory=dict)
    text: str = ""  # with placeholders
    left_out: tuple[str, ...] = ()  # settings of a user's file that the recipe reserves

    @property
    def content_hash(self) -> str:
        """A hash of the settings and the text."""
        return hashlib.sha256(json.dumps([sorted(self.settings.items()), self.text]).encode()).hexdigest()[:16]

    def applied_to(self, builder: Builder) -> Builder:
        """The recipe with the addition applied; ``addition`` is put at the end of the server's configuration file."""
        if builder.server is None or not (self.settings or self.text):
            return builder
        server = msgspec.structs.replace(builder.server, settings={**builder.server.settings, **self.settings})
        return msgspec.structs.replace(builder, server=server, addition=self.text)


def has_config(builder: Builder, name: str) -> bool:
    """Whether ``name`` is the name of a configuration or the path of a file."""
    return name in builder.configs or (bool(name) and Path(name).expanduser().is_file())


def load_config(builder: Builder, name: str) -> ServerConfig:
    """The configuration ``name``. Raises UsageError if the configuration does not exist, or if the builder's server has
    no configuration file."""
    server = builder.server
    if server is None or not server.config:
        raise UsageError(
            f"+{name} cannot be used: builder {builder.name} has no configuration file of a server.",
            "To change settings of an embedded library, set args of the workload: --set NAME=VALUE.",
        )
    if named_config := builder.configs.get(name):
        if named_config.settings and "{settings}" not in config_template(builder):
            raise UsageError(
                f"The file {server.config} of builder {builder.name} has no place for the settings of configuration {name}.",
                "Write {settings} on a line of the file.",
            )
        return ServerConfig(
            named_config.settings, read_text(recipe_files(builder)[named_config.file]) if named_config.file else ""
        )
    path = Path(name).expanduser()
    if not path.is_file():
        raise unknown_config_error(builder, name)
    return config_from_text(read_text(path), server.reserved)


def config_from_text(text: str, reserved: list[str]) -> ServerConfig:
    """The configuration in a user's file. A byte order mark is removed, because otherwise the first word would not
    match a reserved setting.
    """
    reserved_words = {_comparable_name(word) for word in reserved}
    lines, left_out = [], []
    for line in text.removeprefix("\ufeff").splitlines():
        word = _WORD.match(line)
        if word and (
            _comparable_name(word[1]) in reserved_words
            or (_PATH.match(line, word.end()) and _comparable_name(word[1]) + PLACED in reserved_words)
        ):
            left_out.append(word[1])
        else:
            lines.append(line)
    return ServerConfig(text=escaped_braces("\n".join(lines)), left_out=tuple(dict.fromkeys(left_out)))


def unknown_config_error(builder: Builder, name: str) -> UsageError:
    """The error for a name that is neither the name of a configuration nor the path of a file."""
    beside = {str(path) for path in Path(name).expanduser().parent.glob("*") if path.is_file()}
    return UsageError(
        f"'{name}' is neither a configuration of builder {builder.name} nor a file.{similar_words_hint(name, [*builder.configs, *beside])}",
        f"Configurations of {builder.name}: {sorted_list(builder.configs)}. For a file, give its path.",
    )


def _comparable_name(word: str) -> str:
    """The name of a setting, normalised as servers normalise names to compare them."""
    return word.lower().replace("-", "_").removeprefix("loose_")


def untrusted_recipe_files(
    builder: Builder | None, workloads: Iterable[Workload], hosts: Iterable[HostEntry]
) -> dict[str, Path]:
    """A map, title → file, of all recipes that are neither part of perfbisect nor in the user's configuration folder."""
    folders = [Path(folder_name) for folder_name in (builder.folder, *builder.inherited)] if builder else []
    # A workload without a folder is a command, which belongs to no suite.
    suites = dict.fromkeys(Path(workload.folder) for workload in workloads if workload.folder)
    files = [
        *((f"Builder {folder.name}", folder / BUILDER, folder.parent, BUILDERS) for folder in folders),
        *((f"Suite {suite.name}", suite / SUITE, suite.parent, WORKLOADS) for suite in suites),
        *((f"Host {host.name}", Path(host.file), Path(host.file), HOSTS) for host in hosts),
    ]
    return {title: file for title, file, top, name in files if not is_trusted_path(top, name)}
