"""The builder and the workload of a hunt: recipes by name with what the hunt changes of them, or commands of the command line.

Of a workload a hunt changes its duration, warm-up and threads, and its args.

Commands need no recipe file: their builder is the recipe ``command`` with the commands of --build, their workload is the
command of --run. The names of both contain a hash of all their options, so that the history of one command is never
used for another.
"""

import hashlib
import json
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePath

import msgspec

from perfbisect.core.domain.settings import TIMING, Quick, Settings
from perfbisect.errors import UsageError
from perfbisect.masking import masked
from perfbisect.recipes.build_systems import AUTO, has_commands, with_needs
from perfbisect.recipes.builder import BUILD_PLACEHOLDERS, COMMAND_PLACEHOLDERS, Build, Builder
from perfbisect.recipes.builder_reader import build_of
from perfbisect.recipes.find import full_name, load_builder, load_workload
from perfbisect.recipes.placeholders import check_texts, literal, placeholders_in
from perfbisect.recipes.toml_reader import Location, hint, listed, show
from perfbisect.recipes.workload import EVENTS, Option, Workload, check_command

RECIPE = "command"
OF_SERVERS = ("socket", "port")
LINE = Location(Path("command line"))  # the location that errors in options name


TRUTHS = {"true": True, "on": True, "false": False, "off": False}


def load_requested(settings: Settings) -> tuple[Builder, Workload]:
    """Builder and workload with the overrides of the settings. Raises UsageError for options that contradict each other."""
    quick = settings.quick
    builder = requested_builder(settings)
    if quick is None:
        workload = load_workload(settings.workload, builder.driver, settings.workloads_path)
    else:
        workload = quick_workload(quick, builder)
    changed = overridden(workload, settings.overrides)
    check_fit(builder, [changed], settings)
    return builder, changed


def requested_builder(settings: Settings) -> Builder:
    """The builder of the settings: a recipe, or one built from the commands of --build.

    The build system that was chosen for the range, and the options of --configure, are in its [build].
    """
    if settings.quick is None or settings.quick.build is None:
        builder = load_builder(settings.builder, settings.builders_path)
    else:
        builder = quick_builder(
            settings.quick.build, settings.repository, settings.builders_path, settings.system, settings.configure
        )
        if settings.root:
            called = builder.home.rpartition("-")[0]
            builder = msgspec.structs.replace(builder, home=_named(called, [settings.root]))
    if builder.build is None or has_commands(builder.build):
        return builder
    options = [*builder.build.options, *(literal(option) for option in settings.configure)]
    system = "" if settings.system == AUTO else settings.system or builder.build.system
    build = with_needs(msgspec.structs.replace(builder.build, options=options, system=system))
    return msgspec.structs.replace(builder, build=build, requested=list(settings.configure))


def quick_builder(
    commands: tuple[str, ...], repository: str, given: str = "", system: str = "", configure: tuple[str, ...] = ()
) -> Builder:
    """A builder for a repository without a recipe: each command is run in a copy of the checkout, which is kept.

    With a ``system`` and without commands that copy is built by the system; its options ``configure`` are in the name,
    so that the history of one is never used for another. Raises UsageError for a command that cannot be split into
    words, or that has an unknown placeholder.
    """
    recipe = load_builder(RECIPE, given)
    build = build_of(recipe)
    argvs = [words("--build", command) for command in commands]
    check_texts(argvs, LINE.at("build"), BUILD_PLACEHOLDERS)
    compile_ = [*build.compile, *(["env", "-C", "{prefix}", *argv] for argv in argvs)]
    name = Path(repository).name.removesuffix(".git") or "repository"
    in_place = bool(system) and not commands
    return msgspec.structs.replace(
        recipe,
        name=_named(name, [repository, *(["", system, *configure] if in_place else commands)]),
        home=_named(name, [repository]),  # sources are sent once for all commands
        build=Build(in_place=True) if in_place else msgspec.structs.replace(build, compile=compile_),
    )


def quick_workload(quick: Quick, builder: Builder) -> Workload:
    """The workload of the command of --run. Raises UsageError for a mistake in its options."""
    command = words("--run", quick.run)
    check_texts(command, LINE.at("run"), COMMAND_PLACEHOLDERS | {EVENTS})
    program = next((word for word in command if PurePath(word).suffix or "/" in word), command[0])
    workload = Workload(
        name=_named(PurePath(masked(program)).name, [quick.run, quick.rate, quick.cost, quick.operations]),
        suite=RECIPE,
        driver=builder.driver,
        summary=quick.run,
        group=RECIPE,
        command=command,
        args={EVENTS: 1} if EVENTS in placeholders_in(command) else {},
        rate=quick.rate,
        cost=quick.cost,
        operations=quick.operations,
    )
    check_command(workload, LINE)
    return workload


def words(option: str, text: str) -> list[str]:
    """A command split into words as a shell would. Raises UsageError when it cannot be split or is empty."""
    try:
        found = shlex.split(text)
    except ValueError as error:
        raise UsageError(
            f"{option} {text!r} cannot be split into words: {str(error).lower()}.",
            "Quote as in a shell; it is run without a shell unless it names one: sh -c '…'.",
        ) from error
    if not found:
        raise UsageError(f"{option} is empty.", "Give a command: a program and its arguments.")
    return found


def _named(name: str, parts: list[str]) -> str:
    """A readable name, made unique by a hash of ``parts``."""
    return f"{re.sub(r'[^A-Za-z0-9._]+', '-', name).strip('-.')[:40]}-{hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:8]}"


def check_fit(builder: Builder, workloads: Sequence[Workload], settings: Settings) -> None:
    """Raise UsageError for overrides that no command uses, and for a command that uses a server the builder does not have."""
    used = {each.name: placeholders_in(_words(each)) for each in workloads if each.command}
    all_commands = len(used) == len(workloads)
    for key in settings.overrides:
        if all_commands and not any(key in names for names in used.values()):
            option = f"--{key}" if key in TIMING else f"--set {key}"
            raise UsageError(
                f"{option} would change nothing: the command of workload {' or '.join(used)} does not use {{{key}}}.",
                f"Leave it out, or write {{{key}}} where the command takes it.",
            )
    for name, names in used.items():
        if not builder.server and (wanted := names & set(OF_SERVERS)):
            raise UsageError(
                f"The command of workload {name} uses {{{min(wanted)}}}, but builder {builder.name} has no server."
            )


def _words(workload: Workload) -> list[str]:
    return [*workload.command, *(word for argv in workload.prepare_commands for word in argv)]


def typed(workload: Workload, overrides: Mapping[str, Option]) -> dict[str, Option]:
    """The overrides, the value of each arg converted to the type that it has in the workload.

    Raises UsageError for an arg that the workload does not have, or for a value of another type.
    """
    known = workload.prepare_args | workload.args
    found = dict(overrides)
    for name, value in overrides.items():
        if name in TIMING:
            continue
        if name not in known:
            raise UsageError(
                f"Workload {full_name(workload)} has no arg '{name}' to set.{hint(name, known)}",
                f"It has {listed(known)}; for anything else write a suite of your own.",
            )
        found[name] = _like(known[name], name, str(value))
    return found


def overridden(workload: Workload, overrides: Mapping[str, Option]) -> Workload:
    """The workload with its overrides; an arg of both loading and runs is changed in both. Raises as ``typed``."""
    found = typed(workload, overrides)
    return msgspec.structs.replace(
        workload,
        args=_replaced(workload.args, found),
        prepare_args=_replaced(workload.prepare_args, found),
        **{name: value for name, value in found.items() if name in TIMING},
    )


def _replaced(args: Mapping[str, Option], overrides: Mapping[str, Option]) -> dict[str, Option]:
    return {name: overrides.get(name, value) for name, value in args.items()}


def _like(known: Option, name: str, text: str) -> Option:
    """``text`` converted to the type of ``known``."""
    try:
        if isinstance(known, bool):
            return TRUTHS[text.lower()]
        return type(known)(text)
    except (KeyError, ValueError):
        allowed = {bool: "true or false", int: "a whole number", float: "a number"}[type(known)]
        raise UsageError(
            f"{name}={text} cannot be set: {name} is {allowed}.", f"It is {show(known)} unless set."
        ) from None
