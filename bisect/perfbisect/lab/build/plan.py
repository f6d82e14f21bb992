"""What all builds on a host share, and how a commit of them is built: which commands, in which environment."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

import msgspec

from perfbisect.core.domain.facts import BuildFacts
from perfbisect.core.domain.settings import Patch
from perfbisect.errors import BuildFailed, TooMuchOutput
from perfbisect.host import facts
from perfbisect.host.protocol import Host
from perfbisect.lab import upload
from perfbisect.lab.build import ccache, checkout, links
from perfbisect.lab.build.log_parser import COMPILE, CONFIGURE, INSTALL
from perfbisect.lab.build.pgo import ENVIRONMENT, FOLDER, Phase, Training, options
from perfbisect.lab.build.toolchain import Toolchain
from perfbisect.recipes.build_systems import MARKERS, expanded, has_commands, nothing_found, system_of
from perfbisect.recipes.builder import Builder, Variant
from perfbisect.recipes.builder_reader import build_of, variant_of
from perfbisect.recipes.inventory import HostEntry
from perfbisect.recipes.placeholders import fill, fill_text
from perfbisect.recipes.when import TreeFacts, applied, version_text
from perfbisect.repository.git import Repository


@dataclass(frozen=True, slots=True)
class Built:
    """A built commit: its facts, and the recipe as it applies to this commit."""

    facts: BuildFacts
    builder: Builder  # its conditions applied
    version: str  # of the system, "" when the recipe has no command for it, or it fails
    prefix: PurePosixPath | None = None  # where it is installed, if that is outside the root folder
    tarball: str = ""  # the path of that which was unpacked in place of a build


@dataclass(frozen=True, slots=True)
class Plan:
    """How a commit is built."""

    builder: Builder  # its conditions applied
    version: str  # of the system, "" when the recipe has no command for it, or it fails
    commands: tuple[tuple[str, list[str]], ...]  # stage, argv
    env: Mapping[str, str]
    system: str = ""  # the build system; "" where the recipe has commands
    with_libraries: bool = (
        False  # builds are equal only if all shared libraries are, too: the recipe names no artifacts
    )


@dataclass(frozen=True, slots=True)
class BuildContext:
    """What all builds of one builder on one host share."""

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
    recorder: links.Recorder | None = None  # where builds are to be linked again in other layouts
    training: Training | None = None  # where builds are optimised with a profile
    phase: Phase = Phase.PLAIN

    @property
    def work(self) -> PurePosixPath:
        """The folder of the fixed paths."""
        return self.host.root / "work" / self.builder.work_name

    @property
    def profile(self) -> PurePosixPath:
        """The folder of the counts of an instrumented build."""
        return self.work / FOLDER


def plan_for(context: BuildContext, sha: str, paths: frozenset[str]) -> Plan:
    """How commit ``sha``, which is checked out, is built; ``paths`` as ``present`` has them.

    Raises BuildFailed for a tree without a build system, where the recipe has no commands.
    """
    version = version_of(context, sha)
    resolved = resolved_for(context, paths, version)
    values = _values(context, resolved, sha, version)
    system = system_of(resolved, paths)
    if system is None:
        raise BuildFailed(f"{sha[:10]} does not configure: {nothing_found()}", stage=CONFIGURE, log="")
    named = build_of(resolved).artifacts
    how = expanded(resolved, system, paths) if system else build_of(resolved)
    resolved = msgspec.structs.replace(resolved, build=how)
    stages = ((CONFIGURE, how.configure), (COMPILE, how.compile), (INSTALL, how.install))
    commands = tuple((stage, fill(command, values)) for stage, commands in stages for command in commands)
    return Plan(resolved, version, commands, _environment(context, resolved, values), system, not named)


def present(context: BuildContext, sha: str) -> frozenset[str]:
    """The paths of the tree that the recipe's conditions depend on, and by which its build system is known."""
    builder = context.builder
    paths = {path for block in builder.when for path in (block.file, block.missing) if path}
    if builder.build and not has_commands(builder.build):
        return checkout.present(context.host, context.bare, sha, paths, files=MARKERS | {"Cargo.lock"})
    return checkout.present(context.host, context.bare, sha, paths)


def version_of(context: BuildContext, sha: str) -> str:
    """What the recipe's version command prints for the checkout; "" when it fails or is missing."""
    if not context.builder.version:
        return ""
    checkout = context.work / "source"
    values = {"source": str(checkout), "recipe": str(upload.place_recipe(context.host, context.builder)), "commit": sha}
    try:
        printed = context.host.run(fill(context.builder.version, values), cwd=checkout, check=False)
    except TooMuchOutput:
        return ""
    return version_text(printed.stdout) if printed.ok else ""


def resolved_for(context: BuildContext, paths: frozenset[str], version: str) -> Builder:
    """The recipe with its conditions applied, for a tree of that version that has these paths."""
    return applied(context.builder, TreeFacts(version, paths.__contains__, context.tools.name, context.tools.version))


def _values(context: BuildContext, resolved: Builder, sha: str, version: str) -> dict[str, str | int]:
    """The placeholders of a build."""
    variant = links.movable(variant_of(resolved, context.name), context.recorder)
    variant = options(variant, context.tools.name, context.phase, context.profile)
    return {
        "source": str(context.work / "source"),
        "recipe": str(upload.place_recipe(context.host, context.builder)),
        "commit": sha,
        "version": version,
        "build": str(context.work / "build"),
        "prefix": str(context.work / "prefix"),
        "cc": f"ccache {variant.cc}{links.for_compiler(build_of(resolved), context.recorder)}",
        "cxx": f"ccache {variant.cxx}{links.for_compiler(build_of(resolved), context.recorder)}",
        "compiler": variant.cc,
        "cxx_compiler": variant.cxx,
        "cflags": variant.cflags,
        "ldflags": variant.ldflags,
        "jobs": jobs_of(context),
    }


def jobs_of(context: BuildContext) -> int:
    return context.entry.jobs or facts.ask(context.host, facts.CORES) or 1


def _environment(context: BuildContext, builder: Builder, values: dict[str, str | int]) -> dict[str, str]:
    cache = ccache.environment(context.host.root, context.work, context.entry.ccache_size, context.namespace)
    fixed = {
        "TZ": "UTC",
        "SOURCE_DATE_EPOCH": "315532800",  # 1980: the first year that every archive format can hold
        "ZERO_AR_DATE": "1",
        # A repository that contains the root folder is not the one being built.
        "GIT_CEILING_DIRECTORIES": str(context.work),
    }
    recorded = context.recorder.environment(context.work) if context.recorder else {}
    profiled = ENVIRONMENT if context.phase else {}
    return (
        cache
        | fixed
        | recorded
        | profiled
        | {name: fill_text(text, values) for name, text in build_of(builder).env.items()}
    )
