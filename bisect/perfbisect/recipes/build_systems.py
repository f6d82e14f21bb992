"""Chooses the build system that builds a tree, and the system's commands. This module has no knowledge about particular
projects.

The names of files at the top of a tree show its systems. A tree may have several build systems, such as a Makefile
beside a CMakeLists.txt, and the system may change within a range of commits. So one system is chosen for a range: the
first system that the trees of all ends have. Commits between the ends that do not support this system are built with
the first system that they support. If the ends have no system in common, every commit is built with its own first
system.

``build_with_commands`` adds the commands of ``build_commands`` to a recipe's ``[build]`` that has no commands.
"""

import hashlib
import json
import re
import shlex
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from itertools import product

import msgspec

from perfbisect.recipes import build_commands
from perfbisect.recipes.build_commands import OFFLINE
from perfbisect.recipes.builder import Build, Builder
from perfbisect.recipes.programs import INCOMPLETE, copy_program_commands, readable_word, started_program_lines

AUTO = "auto"  # instead of a system: each commit has its own


@dataclass(frozen=True, slots=True)
class IncrementalBuilds:
    """The conditions under which a build system may build a commit incrementally, in the tree of another commit's
    build."""

    inputs: str  # pattern of the files on which the results of its configure step depend
    # whether that step can be repeated in an existing folder; otherwise the commit is built in an empty folder
    anew: bool = False
    tracks: bool = True  # whether it knows the files on which an object depends; False: only if dependency files exist


@dataclass(frozen=True, slots=True)
class BuildSystem:
    """A build system: its commands, the programs that the commands need, and the files that identify trees."""

    commands: Callable[[Builder, Build, Collection[str]], Build]  # of a tree with these paths
    needs: tuple[str, ...]  # programs
    files: tuple[str, ...]  # files at the top of a tree; one is enough
    compiler: tuple[str, ...] = ()  # command that prints the version of a compiler that the variant does not set
    incremental: IncrementalBuilds | None = None  # None: it keeps nothing between builds except its cache


# By preference. cmake and meson build out of the tree, and have the compiler's options in one place; a Makefile does
# neither.
SYSTEMS: dict[str, BuildSystem] = {
    "cmake": BuildSystem(
        build_commands.cmake_commands,
        ("cmake", "make"),
        ("CMakeLists.txt",),
        incremental=IncrementalBuilds(r"(?:^|/)CMakeLists\.txt$|\.cmake$|\.in$", anew=True),
    ),
    "meson": BuildSystem(
        build_commands.meson_commands,
        ("meson", "ninja"),
        ("meson.build",),
        incremental=IncrementalBuilds(r"(?:^|/)meson(?:\.build|_options\.txt|\.options)$|\.in$", anew=True),
    ),
    "autotools": BuildSystem(
        build_commands.autotools_commands,
        ("make",),
        ("configure", "configure.ac", "configure.in"),
        incremental=IncrementalBuilds(r"(?:^|/)configure(?:\.ac|\.in)?$|\.(?:ac|m4)$", tracks=False),
    ),
    "make": BuildSystem(
        build_commands.make_commands,
        ("make",),
        ("GNUmakefile", "makefile", "Makefile"),
        incremental=IncrementalBuilds("(?!)", tracks=False),
    ),
    "cargo": BuildSystem(
        build_commands.cargo_commands,
        ("cargo",),
        ("Cargo.toml",),
        ("rustc", "--version"),
        incremental=IncrementalBuilds("(?!)"),
    ),
    "go": BuildSystem(build_commands.go_commands, ("go",), ("go.mod",), ("env", "GOTOOLCHAIN=local", "go", "version")),
}
MARKERS = frozenset(file for system in SYSTEMS.values() for file in system.files)


def systems_in(paths: Collection[str]) -> tuple[str, ...]:
    """The names of the build systems that can build a tree with these ``paths``, preferred systems first."""
    return tuple(name for name, system in SYSTEMS.items() if any(file in paths for file in system.files))


def system_for_range(trees: Iterable[Collection[str]]) -> str:
    """The build system for a range whose ends have these paths; AUTO if the ends have no system in common, "" if no end
    has a system."""
    systems_of_ends = [systems_in(paths) for paths in trees]
    common = [system for system in SYSTEMS if all(system in systems for systems in systems_of_ends)]
    if systems_of_ends and common:
        return common[0]
    return AUTO if any(systems_of_ends) else ""


_NEVER = "(?!)"  # matches nothing
# For a program: pattern in a build file, pattern of its source's path with the folder, and the command that makes it
# there.
_MAKING = (
    (r'(?m)^name *= *"{0}"', r"((?:.*/)?)src/bin/{0}(?:\.rs|/main\.rs)", "cargo build --release --bin={name}"),
    (r"(?m)^module (?:\S*/)?{0}(?:/v\d+)?$", _NEVER, "go build -o {program} ."),
    (_NEVER, r"((?:.*/)?cmd/{0}(?=/[^/]*\.go)|{0}(?=/main\.go)).*", "go build -o {program} ./{folder}"),
    (r"(?m)^{0} *:(?!=)", _NEVER, "make {name}"),
)


def command_to_build_program(program: str, paths: Iterable[str], text: str) -> str:
    """The command that builds a program, in a tree with these paths whose build files have this ``text``; "" if
    unknown."""
    name = program.rpartition("/")[2]
    for says, source, command in _MAKING:
        says, source = (pattern.format(re.escape(name)) for pattern in (says, source))
        match = next(filter(None, (re.fullmatch(source, path) for path in paths)), None)
        if match or re.search(says, text):
            return command.format(name=name, program=program, folder=match[1] if match else "")
    return ""


def system_for_commit(system: str, paths: Collection[str]) -> str:
    """The build system for one commit with these paths; ``system`` is the build system of the range. The result is ""
    if the commit has no known build system."""
    systems = systems_in(paths)
    return system if system in systems else next(iter(systems), "")


def no_system_sentence() -> str:
    """The sentence for a tree without a known build system."""
    return f"its tree has no build system: none of {', '.join(sorted(MARKERS, key=str.casefold))}"


def has_commands(build: Build) -> bool:
    """Whether a recipe itself has commands that build a commit."""
    return bool(build.configure or build.compile or build.install)


def build_with_needs(build: Build) -> Build:
    """The ``[build]`` with the programs of its build system added to ``needs``."""
    needs = SYSTEMS[build.system].needs if build.system and not has_commands(build) else ()
    return msgspec.structs.replace(build, needs=list(dict.fromkeys((*needs, *build.needs))))


def build_with_commands(builder: Builder, system: str, paths: Collection[str]) -> Build:
    """The recipe's ``[build]`` with the commands of ``system`` for a tree with these ``paths``.

    The environment, the needs and the artifacts of the recipe are kept, and the build system's are added.
    """
    build = builder.build or Build()
    commands = SYSTEMS[system].commands(builder, build, paths)
    copied = [["cp", "-a", "{source}/.", "{prefix}"]] if build.in_place else []
    install = [] if build.in_place else commands.install
    if started_program_lines(builder) and not builder.server:  # an installation may fail if not everything was built
        install = [["sh", "-c", f'"$@" || [ -e {INCOMPLETE} ]', "install", *argv] for argv in install]
    return msgspec.structs.replace(
        build,
        configure=[*copied, *commands.configure],
        compile=commands.compile,
        install=[*install, *copy_program_commands(builder, build)],
        env={**OFFLINE, **commands.env, **build.env},
        needs=list(dict.fromkeys((*SYSTEMS[system].needs, *commands.needs, *build.needs))),
        artifacts=build.artifacts
        or ([] if build.then else [*builder.programs, *([builder.library] if builder.library else [])]),
    )


def commands_hash(system: str) -> str:
    """A hash of the commands that this version of perfbisect has for a build system. The hash is a part of the keys of
    the system's builds."""
    builds = []
    for in_place, paths, targets, programs in product(
        (False, True), (MARKERS | {"Cargo.lock"}, frozenset()), ([], ["t"]), ([], ["p"])
    ):
        build = Build(options=["o"], targets=targets, in_place=in_place)
        recipe = Builder(summary="", driver="", library="l.so", programs=programs, build=build)
        builds.append(msgspec.to_builtins(build_with_commands(recipe, system, paths)))
    return hashlib.sha256(json.dumps(builds, sort_keys=True).encode()).hexdigest()[:16]


def system_of_commit(builder: Builder, paths: frozenset[str]) -> str | None:
    """The build system for a commit with these ``paths``; "" if the recipe has its own commands, None if the tree has
    no known build system."""
    if builder.build is None or has_commands(builder.build):
        return ""
    return system_for_commit(builder.build.system, paths) or None


def commented_commands(builder: Builder) -> Iterator[str]:
    """The commands of each system that the recipe allows, as comments of a TOML document."""
    build = builder.build or Build()
    if builder.installed or has_commands(build):
        return
    if build.system:
        yield f"# Its tree is built with {build.system}:"
    else:
        yield "# Its tree is built with the first system of these that both ends of the range have:"
    for system in [build.system] if build.system else SYSTEMS:
        yield "#"
        yield f"# {system}, for a tree with {' or '.join(SYSTEMS[system].files)}"
        commands = build_with_commands(builder, system, SYSTEMS[system].files[:1])
        for argv in (*commands.configure, *commands.compile, *commands.install):
            text = shlex.join(map(readable_word, argv)).replace("{{", "{").replace("}}", "}")
            yield from (f"#     {line}" for line in text.split("\n"))
