"""Chooses the build system that builds a source tree, and the commands of this build system. The choice does not depend
on the project.

The files at the top of a source tree show which build systems can build the tree. A tree may have several build
systems, such as a Makefile beside a CMakeLists.txt, and the build systems of a project may change within a range of
commits. So one build system is chosen for the whole range: the first build system in ``SYSTEMS`` that can build the
trees of all ends. If this build system cannot build a commit between the ends, the first build system that can build
this commit is used. If no build system can build all ends, each commit is built with the first build system that can
build the commit.

If the section ``[build]`` of a recipe has no commands, ``build_with_commands`` adds the commands of the chosen build
system, from the module ``build_commands``.
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
from perfbisect.recipes.programs import (
    INCOMPLETE,
    copy_to_prefix_commands,
    measured_program_lines,
    word_or_script_purpose,
)

AUTO = "auto"  # in place of a build system: the build system of each commit is detected


@dataclass(frozen=True, slots=True)
class IncrementalBuilds:
    """The conditions under which a build system may build a commit incrementally, that is, in the folder of another
    commit's build."""

    inputs: str  # pattern of the files on which the results of its configure step depend
    # Whether the configure step can be repeated in an existing folder; otherwise a commit that changes ``inputs`` is
    # built in an empty folder.
    anew: bool = False
    tracks: bool = True  # whether it knows on which files an object depends; False: only if dependency files exist


@dataclass(frozen=True, slots=True)
class BuildSystem:
    """A build system: its commands, the programs that the commands need, and the files by which trees that it can build
    are recognised."""

    commands: Callable[[Builder, Build, Collection[str]], Build]  # returns the commands for a tree with these paths
    needs: tuple[str, ...]  # programs that the commands need
    files: tuple[str, ...]  # a tree with one of these files at its top has the build system
    compiler: tuple[str, ...] = ()  # command that prints the version of a compiler that the variant does not set
    incremental: IncrementalBuilds | None = None  # None: no incremental builds, only the cache of the build system


# The preferred system is first. cmake and meson are preferred to make, because they build outside the tree, and have
# the compiler's options in one place.
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
    """The build system for a range; ``trees`` has, for each end, the paths in its tree. The result is AUTO if no single
    build system can build all ends, and "" if no end has a known build system."""
    systems_of_ends = [systems_in(paths) for paths in trees]
    common = [system for system in SYSTEMS if all(system in systems for systems in systems_of_ends)]
    if systems_of_ends and common:
        return common[0]
    return AUTO if any(systems_of_ends) else ""


_NEVER = "(?!)"  # matches nothing
# Ways to build one program, whose name is {0}: a pattern of the text of build files, a pattern of the path of the
# program's source (its group is the folder), and the command that builds the program.
_MAKING = (
    (r'(?m)^name *= *"{0}"', r"((?:.*/)?)src/bin/{0}(?:\.rs|/main\.rs)", "cargo build --release --bin={name}"),
    (r"(?m)^module (?:\S*/)?{0}(?:/v\d+)?$", _NEVER, "go build -o {program} ."),
    (_NEVER, r"((?:.*/)?cmd/{0}(?=/[^/]*\.go)|{0}(?=/main\.go)).*", "go build -o {program} ./{folder}"),
    (r"(?m)^{0} *:(?!=)", _NEVER, "make {name}"),
)


def command_to_build_program(program: str, paths: Iterable[str], text: str) -> str:
    """The command that builds a single program; "" if unknown. ``paths`` are the paths in the tree, and ``text`` is the
    text of its build files."""
    name = program.rpartition("/")[2]
    for says, source, command in _MAKING:
        says, source = (pattern.format(re.escape(name)) for pattern in (says, source))
        match = next(filter(None, (re.fullmatch(source, path) for path in paths)), None)
        if match or re.search(says, text):
            return command.format(name=name, program=program, folder=match[1] if match else "")
    return ""


def system_for_commit(range_system: str, paths: Collection[str]) -> str:
    """The build system for a commit whose tree has these ``paths``; "" if the tree has no known build system.
    ``range_system`` is the build system of the range, which is preferred."""
    systems = systems_in(paths)
    return range_system if range_system in systems else next(iter(systems), "")


def no_system_sentence() -> str:
    """A sentence that says that a tree has no known build system."""
    return f"the tree has no build system: none of {', '.join(sorted(MARKERS, key=str.casefold))}"


def has_commands(build: Build) -> bool:
    """Whether the section ``[build]`` of a recipe has commands, so that perfbisect chooses no build system."""
    return bool(build.configure or build.compile or build.install)


def build_with_needs(build: Build) -> Build:
    """The section ``[build]`` of a recipe, with the programs of its build system added to ``needs``."""
    needs = SYSTEMS[build.system].needs if build.system and not has_commands(build) else ()
    return msgspec.structs.replace(build, needs=list(dict.fromkeys((*needs, *build.needs))))


def build_with_commands(builder: Builder, system: str, paths: Collection[str]) -> Build:
    """The recipe's section ``[build]``, to which the commands of the build system ``system`` are added. ``paths`` are
    the paths in the tree.

    The environment variables and the needed programs of the build system are added to the recipe's own. If the recipe
    names no artifacts, the recipe's programs and library are the artifacts.
    """
    build = builder.build or Build()
    commands = SYSTEMS[system].commands(builder, build, paths)
    copied = [["cp", "-a", "{source}/.", "{prefix}"]] if build.in_place else []
    install = [] if build.in_place else commands.install
    if measured_program_lines(builder) and not builder.server:  # if some programs were not built, it may fail
        install = [["sh", "-c", f'"$@" || [ -e {INCOMPLETE} ]', "install", *argv] for argv in install]
    return msgspec.structs.replace(
        build,
        configure=[*copied, *commands.configure],
        compile=commands.compile,
        install=[*install, *copy_to_prefix_commands(builder, build)],
        env={**OFFLINE, **commands.env, **build.env},
        needs=list(dict.fromkeys((*SYSTEMS[system].needs, *commands.needs, *build.needs))),
        artifacts=build.artifacts
        or ([] if build.then else [*builder.programs, *([builder.library] if builder.library else [])]),
    )


def commands_hash(system: str) -> str:
    """A hash of the commands that this version of perfbisect has for a build system. The hash is a part of the key of
    each build by this build system, so that builds are made again after a change of these commands."""
    builds = []
    for in_place, paths, targets, programs in product(
        (False, True), (MARKERS | {"Cargo.lock"}, frozenset()), ([], ["t"]), ([], ["p"])
    ):
        build = Build(options=["o"], targets=targets, in_place=in_place)
        recipe = Builder(summary="", driver="", library="l.so", programs=programs, build=build)
        builds.append(msgspec.to_builtins(build_with_commands(recipe, system, paths)))
    return hashlib.sha256(json.dumps(builds, sort_keys=True).encode()).hexdigest()[:16]


def system_of_commit(builder: Builder, paths: frozenset[str]) -> str | None:
    """The build system for a commit whose tree has these ``paths``; "" if the recipe has its own build commands, and
    None if the tree has no known build system."""
    if builder.build is None or has_commands(builder.build):
        return ""
    return system_for_commit(builder.build.system, paths) or None


def commented_commands(builder: Builder) -> Iterator[str]:
    """The commands of each build system that the recipe allows, as comment lines for a TOML file."""
    build = builder.build or Build()
    if builder.installed or has_commands(build):
        return
    if build.system:
        yield f"# Its tree is built with {build.system}:"
    else:
        yield "# Each tree is built with the first of these build systems that both ends of the range have:"
    for system in [build.system] if build.system else SYSTEMS:
        yield "#"
        yield f"# {system}, for a tree with {' or '.join(SYSTEMS[system].files)}"
        commands = build_with_commands(builder, system, SYSTEMS[system].files[:1])
        for argv in (*commands.configure, *commands.compile, *commands.install):
            text = shlex.join(map(word_or_script_purpose, argv)).replace("{{", "{").replace("}}", "}")
            yield from (f"#     {line}" for line in text.split("\n"))
