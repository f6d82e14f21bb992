"""The settings that all builds on a host share; how a commit is built, by which commands in which environment; and the
key of its build.

Profile-guided optimization: an instrumented build counts what it executes while it runs the workloads, and a second
build uses these counts. The instrumented build and the final build have the same paths, because the compiler finds the
counts of an object file by its path. The counts of a profile are kept in ``root/work/BUILDER/profile`` until the second
build is made. The counts differ a little from one training to the next, so they are not part of a build's key; variant,
workloads and options are. ccache is switched off for both builds, because counts are never equal twice, and because
ccache rewrites the paths by which the counts are found.
"""

import hashlib
import json
import shlex
from collections.abc import Collection, Generator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import PurePosixPath
from typing import Any, Protocol

import msgspec

from perfbisect.core.domain.events import Warned
from perfbisect.core.domain.facts import BuildFacts
from perfbisect.core.domain.settings import Patch
from perfbisect.errors import BuildFailed, TooMuchOutput
from perfbisect.host import facts
from perfbisect.host.protocol import Host
from perfbisect.lab import upload
from perfbisect.lab.building import build_store, checkout, links
from perfbisect.lab.building.log_parser import COMPILE, CONFIGURE, INSTALL
from perfbisect.lab.building.toolchain import NATIVE, Toolchain, cache_environment, compiler_environment
from perfbisect.lab.upload import recipe_archive
from perfbisect.recipes.build_systems import (
    MARKERS,
    SYSTEMS,
    build_with_commands,
    commands_hash,
    has_commands,
    no_system_sentence,
    system_of_commit,
)
from perfbisect.recipes.builder import Builder, Variant
from perfbisect.recipes.builder_reader import TreeFacts, find_variant, recipe_for_tree, required_build, version_text
from perfbisect.recipes.inventory import HostEntry
from perfbisect.recipes.placeholders import archive_names_in, fill_command, fill_text
from perfbisect.recipes.programs import started_program_lines
from perfbisect.repository.git import Repository

MERGED = "merged.profdata"  # clang's counts of all processes, in the folder of counts


class BuildPhase(StrEnum):
    """The kind of a build among the builds of one commit."""

    PLAIN = ""  # the only build
    INSTRUMENTED = "instrumented"  # counts what it executes
    OPTIMISED = "optimised"  # is made with these counts


@dataclass(frozen=True, slots=True)
class InstrumentedBuild:
    """A build that makes a profile when it is run. It is at its fixed path, and is not a finished build yet."""

    commit: str
    key: str  # of the final build
    builder: Builder  # its conditions applied
    version: str
    prefix: PurePosixPath
    profile: PurePosixPath  # the folder of its counts
    cc: str
    compiler: str  # "gcc" or "clang"


class Training(Protocol):
    """How the builds of a variant are trained on a host, to make a profile."""

    @property
    def identity(self) -> str:
        """The part of a build's key for its training; equal on all hosts."""

    @property
    def named(self) -> str:
        """The names of the workloads, as a message shows them."""

    def check(self) -> None:
        """Raise EnvironmentFailure if the host lacks a program of the workloads. It is called before anything is built."""

    def train(self, build: InstrumentedBuild) -> Generator[Warned, None, bool]:
        """Run the workloads once; returns whether these runs produced a profile. Raises BuildFailed."""


@dataclass(frozen=True, slots=True)
class InstalledBuild:
    """A built commit: its facts, and the recipe as it applies to this commit."""

    facts: BuildFacts
    builder: Builder  # its conditions applied
    version: str  # of the system; "" if the recipe has no command for it, or the command fails
    prefix: PurePosixPath | None = None  # where it is installed, if that is outside the root folder
    tarball: str = ""  # the path of the tarball that was unpacked in place of a build
    borrowed: tuple[str, ...] = ()  # paths of the host's clients that are used, as the installation has none that run


@dataclass(frozen=True, slots=True)
class BuildPlan:
    """How a commit is built."""

    builder: Builder  # its conditions applied
    version: str  # of the system; "" if the recipe has no command for it, or the command fails
    commands: tuple[tuple[str, list[str]], ...]  # stage, argv
    env: Mapping[str, str]
    system: str = ""  # the build system; "" if the recipe has commands
    # The recipe names no artifacts: builds are equal only if all their shared libraries are, too.
    with_libraries: bool = False


@dataclass(frozen=True, slots=True)
class BuildContext:
    """The settings and tools that all builds by one builder on one host share."""

    host: Host
    entry: HostEntry
    builder: Builder
    name: str  # of the variant
    variant: Variant  # before the recipe's conditions
    tools: Toolchain
    bare: PurePosixPath  # the repository on the host: see `checkout.mirror`
    repository: Repository  # the local one, where submodules are looked for
    namespace: str = ""  # of the compiler cache
    patches: tuple[Patch, ...] = ()
    recorder: links.LinkRecorder | None = None  # if builds are to be linked again in other layouts
    training: Training | None = None  # if builds are optimised with a profile
    phase: BuildPhase = BuildPhase.PLAIN
    session: str = ""  # results of configure steps are kept for one session

    @property
    def work(self) -> PurePosixPath:
        """The folder with the fixed paths of builds."""
        return self.host.root / "work" / self.builder.work_name

    @property
    def profile(self) -> PurePosixPath:
        """The folder for the counts of an instrumented build."""
        return self.work / "profile"


def plan_for(context: BuildContext, sha: str, paths: frozenset[str], archives: Mapping[str, str]) -> BuildPlan:
    """How the checked-out commit ``sha`` is built; for ``paths`` see ``present_paths``; ``archives`` is name → checksum.

    Raises BuildFailed for a tree without a build system if the recipe has no commands.
    """
    version = version_of(context, sha)
    resolved = resolved_for(context, paths, version)
    values = _values(context, resolved, sha, version)
    values |= {f"archives.{name}": "" for name in resolved.archives}
    values |= {
        f"archives.{name}": str(build_store.prefix_folder(context.host, checksum[:32]))
        for name, checksum in archives.items()
    }
    how = required_build(resolved)
    options = [option for option in how.options if archive_names_in(option) <= archives.keys()]
    resolved = msgspec.structs.replace(resolved, build=msgspec.structs.replace(how, options=options))
    system = system_of_commit(resolved, paths)
    if system is None:
        raise BuildFailed(f"{sha[:10]} does not configure: {no_system_sentence()}", stage=CONFIGURE, log="")
    named = required_build(resolved).artifacts
    how = build_with_commands(resolved, system, paths) if system else required_build(resolved)
    resolved = msgspec.structs.replace(resolved, build=how)
    stages = ((CONFIGURE, how.configure), (COMPILE, how.compile), (INSTALL, how.install), (COMPILE, how.then))
    commands = tuple((stage, fill_command(command, values)) for stage, commands in stages for command in commands)
    return BuildPlan(resolved, version, commands, _environment(context, resolved, values, system), system, not named)


def present_paths(context: BuildContext, sha: str) -> frozenset[str]:
    """The paths of the tree that decide about the recipe's conditions, the archives and the build system."""
    builder = context.builder
    conditions = [(block.file, block.missing) for block in builder.when]
    conditions += [(archive.file, archive.unless) for archive in builder.archives.values()]
    paths = {path for condition in conditions for path in condition if path}
    if builder.build and not has_commands(builder.build):
        return checkout.present_paths(context.host, context.bare, sha, paths, files=MARKERS | {"Cargo.lock"})
    return checkout.present_paths(context.host, context.bare, sha, paths)


def version_of(context: BuildContext, sha: str) -> str:
    """The output of the recipe's version command in the checkout; "" if the command fails or the recipe has none."""
    if not context.builder.version:
        return ""
    checkout = context.work / "source"
    values = {"source": str(checkout), "recipe": str(upload.place_recipe(context.host, context.builder)), "commit": sha}
    try:
        printed = context.host.run(fill_command(context.builder.version, values), cwd=checkout, check=False)
    except TooMuchOutput:
        return ""
    return version_text(printed.stdout) if printed.ok else ""


def resolved_for(context: BuildContext, paths: frozenset[str], version: str) -> Builder:
    """The recipe for a tree of that version with these paths, with its conditions applied."""
    return recipe_for_tree(
        context.builder, TreeFacts(version, paths.__contains__, context.tools.name, context.tools.version)
    )


def _values(context: BuildContext, resolved: Builder, sha: str, version: str) -> dict[str, str | int]:
    """The values of the placeholders in a build's commands."""
    variant = links.with_function_sections(find_variant(resolved, context.name), context.recorder)
    variant = with_profile_options(variant, context.tools.name, context.phase, context.profile)
    return {
        "source": str(context.work / "source"),
        "recipe": str(upload.place_recipe(context.host, context.builder)),
        "commit": sha,
        "version": version,
        "build": str(context.work / "build"),
        "prefix": str(context.work / "prefix"),
        "cc": f"ccache {variant.cc}{links.section_options_for_compiler(required_build(resolved), context.recorder)}",
        "cxx": f"ccache {variant.cxx}{links.section_options_for_compiler(required_build(resolved), context.recorder)}",
        "compiler": variant.cc,
        "cxx_compiler": variant.cxx,
        "cflags": variant.cflags,
        "ldflags": variant.ldflags,
        "jobs": job_count(context),
    }


def job_count(context: BuildContext) -> int:
    return context.entry.jobs or facts.read_fact(context.host, facts.CORES) or 1


def _environment(context: BuildContext, builder: Builder, values: dict[str, str | int], system: str) -> dict[str, str]:
    cache = cache_environment(context.host.root, context.work, context.entry.ccache_size, context.namespace)
    fixed = {
        "TZ": "UTC",
        "SOURCE_DATE_EPOCH": "315532800",  # 1980: the first year that every archive format can hold
        "ZERO_AR_DATE": "1",
        # If a repository contains the root folder, git must not take it for the repository of the build.
        "GIT_CEILING_DIRECTORIES": str(context.work),
    }
    recorded = context.recorder.environment(context.work) if context.recorder else {}
    uncached = {"CCACHE_DISABLE": "1"} if context.phase else {}
    recipe_variables = {name: fill_text(text, values) for name, text in required_build(builder).env.items()}
    compilers = compiler_environment(context.host, builder.flags, context.variant, system)
    return cache | fixed | recorded | uncached | recipe_variables | compilers


def with_profile_options(variant: Variant, compiler: str, phase: BuildPhase, folder: PurePosixPath) -> Variant:
    """The variant with the options for that phase of the compiler ("gcc", "clang"); ``folder`` has the counts."""
    if phase is BuildPhase.PLAIN:
        return variant
    counts = shlex.quote(str(folder))
    if phase is BuildPhase.INSTRUMENTED:
        further = f"-fprofile-generate={counts}"
        only_c = " -fprofile-update=prefer-atomic" if compiler == "gcc" else ""  # threads count together
    elif compiler == "clang":
        further = f"-fprofile-use={shlex.quote(str(folder / MERGED))}"
        only_c = "".join(f" -Wno-profile-instr-{warning}" for warning in ("unprofiled", "out-of-date", "missing"))
    else:
        # Code that was never executed has no counts. A file that is compiled twice under one name has the counts of one compilation.
        further = f"-fprofile-use={counts}"
        only_c = " -fprofile-correction -Wno-missing-profile -Wno-error=coverage-mismatch"
    cflags, ldflags = f"{variant.cflags} {further}{only_c}".strip(), f"{variant.ldflags} {further}".strip()
    return msgspec.structs.replace(variant, cflags=cflags, ldflags=ldflags)


def training_identity(training: Training | None, variant: Variant, compiler: str) -> dict[str, Any]:
    """The part of a build's key for its training; {} if it is not trained."""
    if training is None:
        return {}
    phases = (BuildPhase.INSTRUMENTED, BuildPhase.OPTIMISED)
    variants = [with_profile_options(variant, compiler, phase, PurePosixPath("profile")) for phase in phases]
    return {
        "training": [training.identity, *([phase_variant.cflags, phase_variant.ldflags] for phase_variant in variants)]
    }


_LAYOUT = "2"  # part of every key: raise it when the contents of build folders change their meaning


def build_key(
    context: BuildContext,
    tree: str,
    present: Collection[str],
    sha: str,
    system: str = "",
    archives: Collection[str] = (),
) -> str:
    """The key of a build: a hash of everything that can change the build, and of nothing else.

    ``system`` is the commit's build system, "" if the recipe has commands; ``archives`` are the checksums of the needed
    archives. Patches are in the ``tree``, except patches that are only for some versions: the tree determines whether
    these are applied.

    The conditions of the recipe are in the key with the facts that decide them: the tree, the toolchain, and which of
    the conditions' paths are ``present``, ignored or not.
    """
    builder, variant = context.builder, context.variant
    tools, compiler = context.tools, SYSTEMS[system].compiler if system else ()
    identity = tools.identity + (context.host.run(compiler, check=False).stdout if compiler else "")
    if system:  # builds contain the path of their installation: cmake's RPATH
        how = msgspec.structs.replace(required_build(builder), system=system)
        builder = msgspec.structs.replace(builder, build=how, home=builder.work_name)
    recipe = _recipe(builder, variant) | ({"system": commands_hash(system)} if system else {})
    recipe |= _identity([patch for patch in context.patches if patch.version])
    recipe |= training_identity(context.training, variant, tools.name)
    recipe |= {"links": context.recorder.identity} if context.recorder else {}
    recipe |= {"processor": tools.processor} if is_processor_specific(builder, variant) else {}
    recipe |= {"archives": list(archives)} if archives else {}
    commit = sha if "{commit}" in recipe["commands"] else ""
    of_tree = {"tree": tree, "present": sorted(present), "toolchain": identity, "commit": commit}
    return _hash(recipe | of_tree)[:32]


def is_processor_specific(builder: Builder, variant: Variant) -> bool:
    """Whether the recipe or the variant compiles for the processor type of the host that builds."""
    recipe = _recipe(builder, variant)
    return bool(NATIVE.search(" ".join((recipe["commands"], *recipe["variant"], *recipe.get("flags", ())))))


def build_fingerprint(builder: Builder, variant: Variant, patches: Sequence[Patch] = ()) -> str:
    """A hash of all parts of a recipe that affect builds, and of the patches."""
    return _hash(_recipe(builder, variant) | _identity(patches))[:16]


def _identity(patches: Sequence[Patch]) -> dict[str, Any]:
    return {"patches": [patch.identity for patch in patches]} if patches else {}


def _recipe(builder: Builder, variant: Variant) -> dict[str, Any]:
    build = msgspec.to_builtins(msgspec.structs.replace(required_build(builder), needs=[], packages={}))
    by_system = {key: build.pop(key) for key in ("system", "options", "targets", "in_place")}
    if not build["then"]:
        del build["then"]
    if not has_commands(required_build(builder)):
        build |= by_system | {"programs": builder.programs, "library": builder.library}
        build |= {"server": True} if builder.server else {}  # then everything has to build
        build |= {"started": started_program_lines(builder)} if builder.started or builder.chosen else {}
    commands = json.dumps(build) + json.dumps(msgspec.to_builtins(builder.when))
    parts = {
        "layout": _LAYOUT,
        "commands": commands,
        "version": builder.version,
        "variant": [variant.cc, variant.cxx, variant.cflags, variant.ldflags, *filter(None, [variant.train])],
        "files": hashlib.sha256(recipe_archive(builder)).hexdigest() if "{recipe}" in commands else "",
    }
    parts |= {"flags": [*builder.flags.words]} if builder.flags.words else {}
    return parts | {"home": builder.home} if builder.home else parts  # a build may contain the path of its home


def _hash(parts: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
