"""Plans the build of a commit on a host: the commands, their environment, and the key of the build.

With profile-guided optimization, a commit is built twice: an instrumented build counts how often its code is executed
while it runs the workloads (the training), and the final build uses these counts. The instrumented build and the final
build have the same paths, because the compiler finds the counts of an object file by its path. The counts are kept in
``root/work/BUILDER/profile`` until the final build is made. No two trainings give equal counts, so the key of a build
does not depend on the counts; the key depends on the variant, the training workloads and the compiler options. Neither
build uses ccache, because the counts differ after each training, and because ccache rewrites the paths by which the
compiler finds the counts.
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
from perfbisect.lab.building.toolchain import NATIVE, Toolchain, cache_environment, compiler_wrapper_environment
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
from perfbisect.recipes.builder_reader import (
    TreeFacts,
    find_variant,
    recipe_for_tree,
    required_build_section,
    version_text,
)
from perfbisect.recipes.inventory import HostEntry
from perfbisect.recipes.placeholders import archive_names_in, fill_command, fill_text
from perfbisect.recipes.programs import measured_program_lines
from perfbisect.repository.git import Repository

MERGED = "merged.profdata"  # clang's counts of all processes, in the folder of counts


class PgoBuildKind(StrEnum):
    """The kind of a build: with profile-guided optimization, a commit has an instrumented build and a final build."""

    PLAIN = ""  # the only build
    INSTRUMENTED = "instrumented"  # the first build, which counts how often its code is executed
    OPTIMISED = "optimised"  # the second build, which the compiler optimises by these counts


@dataclass(frozen=True, slots=True)
class InstrumentedBuild:
    """A build that writes a profile (counts) when it is run. It stays at the path where it was built, and is not stored
    with the finished builds."""

    commit: str
    key: str  # key of the final build
    builder: Builder  # the builder after its conditions are applied
    version: str
    prefix: PurePosixPath
    profile_folder: PurePosixPath  # the folder of the execution counts of the instrumented build
    cc: str
    compiler: str  # "gcc" or "clang"


class Training(Protocol):
    """Trains the builds of a variant on a host: an instrumented build runs workloads, and writes a profile."""

    @property
    def training_key(self) -> str:
        """A text that describes the training, as a part of the build's key. The text is the same on all hosts."""

    @property
    def workload_names(self) -> str:
        """The names of the workloads, as text for messages."""

    def check_workload_programs(self) -> None:
        """Raise EnvironmentFailure if the host lacks a program of the workloads. Called before the first build."""

    def train(self, build: InstrumentedBuild) -> Generator[Warned, None, bool]:
        """Run the workloads once; return whether these runs wrote a profile. Raises BuildFailed."""


@dataclass(frozen=True, slots=True)
class InstalledBuild:
    """An installed build of a commit: its facts, and the recipe after the recipe's conditions are applied to the
    commit."""

    facts: BuildFacts
    builder: Builder  # the builder after its conditions are applied
    version: str  # version of the system; "" if the recipe has no command for it, or the command fails
    prefix: PurePosixPath | None = None  # folder of the installation, if it is outside the root folder
    tarball: str = ""  # the path of the tarball that was unpacked in place of a build
    borrowed: tuple[str, ...] = ()  # paths of clients of the host, used because those of the installation do not run


@dataclass(frozen=True, slots=True)
class BuildPlan:
    """The commands that build a commit, with their environment."""

    builder: Builder  # the builder after its conditions are applied
    version: str  # version of the system; "" if the recipe has no command for it, or the command fails
    commands: tuple[tuple[str, list[str]], ...]  # pairs (stage, argv)
    env: Mapping[str, str]
    system: str = ""  # the build system; "" if the recipe has commands
    # Whether builds are equal only if all their shared libraries are equal, too: if the recipe names no artifacts.
    with_libraries: bool = False


@dataclass(frozen=True, slots=True)
class BuildContext:
    """The settings and tools that are the same for all builds by one builder on one host."""

    host: Host
    entry: HostEntry
    builder: Builder
    variant_name: str
    variant: Variant  # before the recipe's conditions
    tools: Toolchain
    bare: PurePosixPath  # the repository on the host: see `checkout.mirror`
    repository: Repository  # the user's repository, in which submodules are searched
    namespace: str = ""  # namespace of the compiler cache
    patches: tuple[Patch, ...] = ()
    recorder: links.LinkRecorder | None = None  # records links, so that builds can be linked again in other layouts
    training: Training | None = None  # None if builds are not optimised with a profile
    pgo_kind: PgoBuildKind = PgoBuildKind.PLAIN
    session: str = ""  # the session for which results of configure steps are kept

    @property
    def work(self) -> PurePosixPath:
        """The folder in which every build of the builder is made, so that all builds have the same paths."""
        return self.host.root / "work" / self.builder.work_name

    @property
    def profile_folder(self) -> PurePosixPath:
        """The folder for the counts of an instrumented build."""
        return self.work / "profile"


def plan_for(context: BuildContext, sha: str, paths: frozenset[str], archives: Mapping[str, str]) -> BuildPlan:
    """The plan for building commit ``sha``, which is checked out. ``paths`` is the result of
    ``present_condition_paths``; ``archives`` maps the name of each archive to its checksum.

    Raises BuildFailed if the recipe has no commands and the tree has no known build system.
    """
    version = version_by_recipe_command(context, sha)
    resolved = resolved_for(context, paths, version)
    values = _placeholder_values(context, resolved, sha, version)
    values |= {f"archives.{name}": "" for name in resolved.archives}
    values |= {
        f"archives.{name}": str(build_store.prefix_folder(context.host, checksum[:32]))
        for name, checksum in archives.items()
    }
    how = required_build_section(resolved)
    options = [option for option in how.options if archive_names_in(option) <= archives.keys()]
    resolved = msgspec.structs.replace(resolved, build=msgspec.structs.replace(how, options=options))
    system = system_of_commit(resolved, paths)
    if system is None:
        raise BuildFailed(f"{sha[:10]} does not configure: {no_system_sentence()}", stage=CONFIGURE, log="")
    named = required_build_section(resolved).artifacts
    how = build_with_commands(resolved, system, paths) if system else required_build_section(resolved)
    resolved = msgspec.structs.replace(resolved, build=how)
    stages = ((CONFIGURE, how.configure), (COMPILE, how.compile), (INSTALL, how.install), (COMPILE, how.then))
    commands = tuple((stage, fill_command(command, values)) for stage, commands in stages for command in commands)
    return BuildPlan(resolved, version, commands, _environment(context, resolved, values, system), system, not named)


def present_condition_paths(context: BuildContext, sha: str) -> frozenset[str]:
    """The paths that exist in the commit's tree, among the paths on which the recipe's conditions, its archives and the
    choice of the build system depend."""
    builder = context.builder
    conditions = [(block.file, block.missing) for block in builder.when]
    conditions += [(archive.file, archive.unless) for archive in builder.archives.values()]
    paths = {path for condition in conditions for path in condition if path}
    if builder.build and not has_commands(builder.build):
        return checkout.present_paths(context.host, context.bare, sha, paths, files=MARKERS | {"Cargo.lock"})
    return checkout.present_paths(context.host, context.bare, sha, paths)


def version_by_recipe_command(context: BuildContext, sha: str) -> str:
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
    """The recipe after its conditions are applied to a tree with the version ``version`` and the paths ``paths``."""
    facts = TreeFacts(version, paths.__contains__, context.tools.name, context.tools.version)
    return recipe_for_tree(context.builder, facts)


def _placeholder_values(context: BuildContext, resolved: Builder, sha: str, version: str) -> dict[str, str | int]:
    """The values of the placeholders in a build's commands."""
    variant = links.with_function_sections(find_variant(resolved, context.variant_name), context.recorder)
    variant = with_profile_options(variant, context.tools.name, context.pgo_kind, context.profile_folder)
    section_options = links.section_options_for_compiler(required_build_section(resolved), context.recorder)
    return {
        "source": str(context.work / "source"),
        "recipe": str(upload.place_recipe(context.host, context.builder)),
        "commit": sha,
        "version": version,
        "build": str(context.work / "build"),
        "prefix": str(context.work / "prefix"),
        "cc": f"ccache {variant.cc}{section_options}",
        "cxx": f"ccache {variant.cxx}{section_options}",
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
        # If the root folder is in a git repository, a build must not use this repository as its own.
        "GIT_CEILING_DIRECTORIES": str(context.work),
    }
    recorded = context.recorder.environment(context.work) if context.recorder else {}
    uncached = {"CCACHE_DISABLE": "1"} if context.pgo_kind else {}
    recipe_variables = {name: fill_text(text, values) for name, text in required_build_section(builder).env.items()}
    compilers = compiler_wrapper_environment(context.host, builder.flags, context.variant, system)
    return cache | fixed | recorded | uncached | recipe_variables | compilers


def with_profile_options(variant: Variant, compiler: str, kind: PgoBuildKind, folder: PurePosixPath) -> Variant:
    """The variant, with the compiler options that a build of the kind ``kind`` needs for profile-guided optimization;
    ``compiler`` is "gcc" or "clang", and ``folder`` is the folder of the counts."""
    if kind is PgoBuildKind.PLAIN:
        return variant
    counts = shlex.quote(str(folder))
    if kind is PgoBuildKind.INSTRUMENTED:
        further = f"-fprofile-generate={counts}"
        only_c = " -fprofile-update=prefer-atomic" if compiler == "gcc" else ""  # because threads share counters
    elif compiler == "clang":
        further = f"-fprofile-use={shlex.quote(str(folder / MERGED))}"
        only_c = "".join(f" -Wno-profile-instr-{warning}" for warning in ("unprofiled", "out-of-date", "missing"))
    else:
        # No warnings about code without counts, which was never executed; no error if a file was compiled twice,
        # because then the counts are from one of its two compilations.
        further = f"-fprofile-use={counts}"
        only_c = " -fprofile-correction -Wno-missing-profile -Wno-error=coverage-mismatch"
    cflags, ldflags = f"{variant.cflags} {further}{only_c}".strip(), f"{variant.ldflags} {further}".strip()
    return msgspec.structs.replace(variant, cflags=cflags, ldflags=ldflags)


def training_identity(training: Training | None, variant: Variant, compiler: str) -> dict[str, Any]:
    """The part of a build's key that depends on the training; {} if there is no training."""
    if training is None:
        return {}
    kinds = (PgoBuildKind.INSTRUMENTED, PgoBuildKind.OPTIMISED)
    variants = [with_profile_options(variant, compiler, kind, PurePosixPath("profile")) for kind in kinds]
    return {"training": [training.training_key, *([each.cflags, each.ldflags] for each in variants)]}


_LAYOUT = "2"  # part of every key; to be raised if a new perfbisect cannot use old build folders


def build_key(
    context: BuildContext,
    tree: str,
    present: Collection[str],
    sha: str,
    system: str = "",
    archives: Collection[str] = (),
) -> str:
    """The key of a build: a hash of all inputs that can change the build, and of nothing else.

    ``system`` is the commit's build system, "" if the recipe has commands. ``archives`` are the checksums of the needed
    archives. ``tree`` is the hash of the tree after the patches are applied; patches that apply only to certain
    versions are not in ``tree``, and are a separate input.

    The inputs include the recipe's conditions and all facts on which the conditions depend: the tree, the toolchain,
    and ``present``, the existing paths that conditions name, also if these paths are ignored.
    """
    builder, variant = context.builder, context.variant
    tools, compiler = context.tools, SYSTEMS[system].compiler if system else ()
    identity = tools.identity + (context.host.run(compiler, check=False).stdout if compiler else "")
    if system:  # a build may contain its installation's path (RPATH of cmake)
        how = msgspec.structs.replace(required_build_section(builder), system=system)
        builder = msgspec.structs.replace(builder, build=how, home=builder.work_name)
    recipe = _recipe(builder, variant) | ({"system": commands_hash(system)} if system else {})
    recipe |= _identity([patch for patch in context.patches if patch.version])
    recipe |= training_identity(context.training, variant, tools.name)
    recipe |= {"links": context.recorder.linker_identity} if context.recorder else {}
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
    """A hash of the patches, and of all parts of a recipe that affect builds."""
    return _hash(_recipe(builder, variant) | _identity(patches))[:16]


def _identity(patches: Sequence[Patch]) -> dict[str, Any]:
    return {"patches": [patch.identity for patch in patches]} if patches else {}


def _recipe(builder: Builder, variant: Variant) -> dict[str, Any]:
    build = msgspec.to_builtins(msgspec.structs.replace(required_build_section(builder), needs=[], packages={}))
    by_system = {key: build.pop(key) for key in ("system", "options", "targets", "in_place")}
    if not build["then"]:
        del build["then"]
    if not has_commands(required_build_section(builder)):
        build |= by_system | {"programs": builder.programs, "library": builder.library}
        build |= {"server": True} if builder.server else {}  # all targets of a server are built
        build |= {"started": measured_program_lines(builder)} if builder.started or builder.chosen else {}
    commands = json.dumps(build) + json.dumps(msgspec.to_builtins(builder.when))
    parts = {
        "layout": _LAYOUT,
        "commands": commands,
        "version": builder.version,
        "variant": [variant.cc, variant.cxx, variant.cflags, variant.ldflags, *filter(None, [variant.train])],
        "files": hashlib.sha256(recipe_archive(builder)).hexdigest() if "{recipe}" in commands else "",
    }
    parts |= {"flags": [*builder.flags.arguments]} if builder.flags.arguments else {}
    return parts | {"home": builder.home} if builder.home else parts  # a build may contain the path of its home


def _hash(parts: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
