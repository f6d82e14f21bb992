"""Build systems: what a tree is built with, and which commands that takes. Nothing here knows a project.

The system is read from the names of files at the top of a tree. A tree may have several, such as a Makefile beside a
CMakeLists.txt, and a range of commits may move from one to another. So the choice is made for a range: the first system
that all its ends have. Commits between them that lack it, and all commits of a range whose ends have none in common, are
built with the first that each has.

``expanded`` turns a recipe's ``[build]`` without commands into one with those of ``build_commands``.
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
from perfbisect.recipes.programs import INCOMPLETE, finding, short, started

AUTO = "auto"  # in the place of a system: each commit has its own


@dataclass(frozen=True, slots=True)
class Incremental:
    """When a build system may build a commit in the tree of another."""

    inputs: str  # a pattern of the files on which depends what its configure step finds out
    anew: bool = False  # that step can begin anew in a folder that exists; else the commit is built in an empty folder
    tracks: bool = True  # it knows which files an object depends on; False: only where dependency files say so


@dataclass(frozen=True, slots=True)
class BuildSystem:
    """How trees with some files at their top are built."""

    commands: Callable[[Builder, Build, Collection[str]], Build]  # of a tree with these paths
    needs: tuple[str, ...]  # programs
    files: tuple[str, ...]  # at the top of a tree, of which one is enough
    compiler: tuple[str, ...] = ()  # prints the version of one that is not the variant's
    incremental: Incremental | None = None  # None: it keeps nothing between builds but its own cache


# By preference. cmake and meson build out of the tree and have the compiler's options in one place; a Makefile has neither.
SYSTEMS: dict[str, BuildSystem] = {
    "cmake": BuildSystem(
        build_commands.cmake,
        ("cmake", "make"),
        ("CMakeLists.txt",),
        incremental=Incremental(r"(?:^|/)CMakeLists\.txt$|\.cmake$|\.in$", anew=True),
    ),
    "meson": BuildSystem(
        build_commands.meson,
        ("meson", "ninja"),
        ("meson.build",),
        incremental=Incremental(r"(?:^|/)meson(?:\.build|_options\.txt|\.options)$|\.in$", anew=True),
    ),
    "autotools": BuildSystem(
        build_commands.autotools,
        ("make",),
        ("configure", "configure.ac", "configure.in"),
        incremental=Incremental(r"(?:^|/)configure(?:\.ac|\.in)?$|\.(?:ac|m4)$", tracks=False),
    ),
    "make": BuildSystem(
        build_commands.make,
        ("make",),
        ("GNUmakefile", "makefile", "Makefile"),
        incremental=Incremental("(?!)", tracks=False),
    ),
    "cargo": BuildSystem(
        build_commands.cargo,
        ("cargo",),
        ("Cargo.toml",),
        ("rustc", "--version"),
        incremental=Incremental("(?!)"),
    ),
    "go": BuildSystem(build_commands.go, ("go",), ("go.mod",), ("env", "GOTOOLCHAIN=local", "go", "version")),
}
MARKERS = frozenset(file for system in SYSTEMS.values() for file in system.files)


def found_in(paths: Collection[str]) -> tuple[str, ...]:
    """The systems of a tree that has these ``paths``, by preference."""
    return tuple(name for name, system in SYSTEMS.items() if any(file in paths for file in system.files))


def for_range(trees: Iterable[Collection[str]]) -> str:
    """The system for a range whose ends have these paths; AUTO where they have none in common, "" where none has any."""
    known = [found_in(paths) for paths in trees]
    common = [system for system in SYSTEMS if all(system in systems for systems in known)]
    if known and common:
        return common[0]
    return AUTO if any(known) else ""


_NEVER = "(?!)"  # matches nothing
# Of a program: what a build file says of it, which path its source has, with the folder, and the command that makes it there.
_MAKING = (
    (r'(?m)^name *= *"{0}"', r"((?:.*/)?)src/bin/{0}(?:\.rs|/main\.rs)", "cargo build --release --bin={name}"),
    (r"(?m)^module (?:\S*/)?{0}(?:/v\d+)?$", _NEVER, "go build -o {program} ."),
    (_NEVER, r"((?:.*/)?cmd/{0}(?=/[^/]*\.go)|{0}(?=/main\.go)).*", "go build -o {program} ./{folder}"),
    (r"(?m)^{0} *:(?!=)", _NEVER, "make {name}"),
)


def making(program: str, paths: Iterable[str], text: str) -> str:
    """The command that builds a program in a tree with these paths and this ``text`` of its build files; "" if unknown."""
    name = program.rpartition("/")[2]
    for says, source, command in _MAKING:
        says, source = (pattern.format(re.escape(name)) for pattern in (says, source))
        place = next(filter(None, (re.fullmatch(source, path) for path in paths)), None)
        if place or re.search(says, text):
            return command.format(name=name, program=program, folder=place[1] if place else "")
    return ""


def chosen(system: str, paths: Collection[str]) -> str:
    """The system of one commit with these paths, where ``system`` is that of the range; "" where it has none."""
    own = found_in(paths)
    return system if system in own else next(iter(own), "")


def nothing_found() -> str:
    """A sentence for a tree without any system."""
    return f"its tree has no build system: none of {', '.join(sorted(MARKERS, key=str.casefold))}"


def has_commands(build: Build) -> bool:
    """Whether a recipe says itself how a commit is built."""
    return bool(build.configure or build.compile or build.install)


def with_needs(build: Build) -> Build:
    """The ``[build]`` with the programs that its system needs among its needs."""
    needs = SYSTEMS[build.system].needs if build.system and not has_commands(build) else ()
    return msgspec.structs.replace(build, needs=list(dict.fromkeys((*needs, *build.needs))))


def expanded(builder: Builder, system: str, paths: Collection[str]) -> Build:
    """The recipe's ``[build]`` with the commands of ``system`` for a tree that has these ``paths``.

    What the recipe says of environment, needs and artifacts is kept and added to.
    """
    build = builder.build or Build()
    made = SYSTEMS[system].commands(builder, build, paths)
    copied = [["cp", "-a", "{source}/.", "{prefix}"]] if build.in_place else []
    install = [] if build.in_place else made.install
    if started(builder) and not builder.server:  # an installation may fail where not all was built
        install = [["sh", "-c", f'"$@" || [ -e {INCOMPLETE} ]', "install", *argv] for argv in install]
    return msgspec.structs.replace(
        build,
        configure=[*copied, *made.configure],
        compile=made.compile,
        install=[*install, *finding(builder, build)],
        env={**OFFLINE, **made.env, **build.env},
        needs=list(dict.fromkeys((*SYSTEMS[system].needs, *made.needs, *build.needs))),
        artifacts=build.artifacts
        or ([] if build.then else [*builder.programs, *([builder.library] if builder.library else [])]),
    )


def revision(system: str) -> str:
    """A hash of what this version of the program runs for a system, which belongs to the keys of its builds."""
    made = []
    for in_place, paths, targets, programs in product(
        (False, True), (MARKERS | {"Cargo.lock"}, frozenset()), ([], ["t"]), ([], ["p"])
    ):
        build = Build(options=["o"], targets=targets, in_place=in_place)
        recipe = Builder(summary="", driver="", library="l.so", programs=programs, build=build)
        made.append(msgspec.to_builtins(expanded(recipe, system, paths)))
    return hashlib.sha256(json.dumps(made, sort_keys=True).encode()).hexdigest()[:16]


def system_of(builder: Builder, paths: frozenset[str]) -> str | None:
    """The build system of a commit with these ``paths``; "" where the recipe has commands, None where the tree has none."""
    if builder.build is None or has_commands(builder.build):
        return ""
    return chosen(builder.build.system, paths) or None


def listing(builder: Builder) -> Iterator[str]:
    """How each system that the recipe allows would build a commit, as comments of a TOML document."""
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
        made = expanded(builder, system, SYSTEMS[system].files[:1])
        for argv in (*made.configure, *made.compile, *made.install):
            text = shlex.join(map(short, argv)).replace("{{", "{").replace("}}", "}")
            yield from (f"#     {line}" for line in text.split("\n"))
