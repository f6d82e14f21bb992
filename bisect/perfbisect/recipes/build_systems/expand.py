"""A ``[build]`` that names a system, or nothing, as one with commands.

Each system has a module, whose ``commands`` gets a Plan. Commands run in the empty folder ``{build}``.
"""

import hashlib
import json
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace

import msgspec

from perfbisect.recipes.build_systems import autotools, cargo, cmake, go, make, meson
from perfbisect.recipes.build_systems.detect import MARKERS, chosen
from perfbisect.recipes.build_systems.plan import OFFLINE, Commands, Plan
from perfbisect.recipes.build_systems.uninstalled import copying
from perfbisect.recipes.builder import Build, Builder


@dataclass(frozen=True, slots=True)
class _System:
    commands: Callable[[Plan], Commands]
    needs: tuple[str, ...]  # programs
    compiler: tuple[str, ...] = ()  # prints the version of one that is not the variant's


SYSTEMS: dict[str, _System] = {
    "cmake": _System(cmake.commands, ("cmake", "make")),
    "meson": _System(meson.commands, ("meson", "ninja")),
    "autotools": _System(autotools.commands, ("make",)),
    "make": _System(make.commands, ("make",)),
    "cargo": _System(cargo.commands, ("cargo",), ("rustc", "--version")),
    "go": _System(go.commands, ("go",), ("env", "GOTOOLCHAIN=local", "go", "version")),
}


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
    plan = Plan(
        options=tuple(build.options),
        requested=tuple(builder.requested),
        targets=tuple(build.targets),
        programs=tuple(builder.programs),
        library=builder.library,
        paths=frozenset(paths),
        in_place=build.in_place,
    )
    made = _commands(system, plan)
    return msgspec.structs.replace(
        build,
        configure=[list(argv) for argv in made.configure],
        compile=[list(argv) for argv in made.compile],
        install=[list(argv) for argv in made.install],
        env={**OFFLINE, **made.env, **build.env},
        needs=list(dict.fromkeys((*SYSTEMS[system].needs, *made.needs, *build.needs))),
        artifacts=build.artifacts or [*builder.programs, *([builder.library] if builder.library else [])],
    )


def _commands(system: str, plan: Plan) -> Commands:
    made = SYSTEMS[system].commands(plan)
    return replace(made, install=(*made.install, *copying(plan)))


def revision(system: str) -> str:
    """A hash of what this version of the program runs for a system, which belongs to the keys of its builds."""
    plans = (
        Plan(("o",), (), targets, programs, "l.so", paths, in_place)
        for in_place in (False, True)
        for paths in (MARKERS | {"Cargo.lock"}, frozenset())
        for targets in ((), ("t",))
        for programs in ((), ("p",))
    )
    made = [_commands(system, plan) for plan in plans]
    text = json.dumps([OFFLINE, *(msgspec.to_builtins(each) for each in made)], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def compiler_of(system: str) -> tuple[str, ...]:
    """A command that prints the version of a system's own compiler; () where the variant's is used."""
    return SYSTEMS[system].compiler if system else ()


def system_of(builder: Builder, paths: frozenset[str]) -> str | None:
    """The build system of a commit with these ``paths``; "" where the recipe has commands, None where the tree has none."""
    if builder.build is None or has_commands(builder.build):
        return ""
    return chosen(builder.build.system, paths) or None
