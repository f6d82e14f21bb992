"""From a commit to an installed system, with ccache.

Everything happens at fixed paths below ``root/work/BUILDER``: ``source``, an empty ``build``, and ``prefix``, where it
is installed before it moves to its place among the finished builds. All builds see the same paths and the same
environment, so that only the commit makes a difference. Configure, compile and install are one job on the host.
"""

import re
import shlex
import time
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from perfbisect.core.domain.facts import BuildFacts
from perfbisect.errors import BuildFailed, EnvironmentFailure
from perfbisect.host import facts, jobs
from perfbisect.host.conditions import SYSTEM
from perfbisect.host.outcome import TIMED_OUT, no_space
from perfbisect.host.programs import absent
from perfbisect.host.protocol import Host
from perfbisect.lab.build import build_store, ccache, checkout
from perfbisect.lab.build.binary_hash import hash_artifacts
from perfbisect.lab.build.log_parser import COMPILE, CONFIGURE, INSTALL, STAGE, BuildLog
from perfbisect.lab.build.requirements import NEEDED, lacking_for, own_packages
from perfbisect.lab.build.toolchain import Toolchain, toolchain
from perfbisect.lab.upload import recipe
from perfbisect.recipes.builder import Builder, Variant
from perfbisect.recipes.builder_reader import build_of, variant_of
from perfbisect.recipes.inventory import HostEntry
from perfbisect.recipes.placeholders import fill, fill_text
from perfbisect.recipes.versions import version_text
from perfbisect.recipes.when import TreeFacts, applied

PREFIX = "build-"  # of the names of builds' jobs
# Prints the steps that the last build took.
_STEPS = 'cat "$1/steps" 2>/dev/null || :'
_EMPTY = 'mkdir -p "$1" && cd "$1" && rm -rf build prefix ccache.log && mkdir build && cat steps 2>/dev/null || :'
_REMEMBER = 'printf "%s" "$2" >"$1/steps" && cat "$1/ccache.log" 2>/dev/null || :'
_SAVE_LOG = 'mkdir -p "${2%/*}" && cp -- "$1" "$2"'


@dataclass(frozen=True, slots=True)
class Progress:
    """Steps done of steps known in one stage of a build; ``total`` 0 when unknown."""

    stage: str  # "checkout", "configure", "compile", "install"
    done: int = 0
    total: int = 0


@dataclass(frozen=True, slots=True)
class Built:
    """A built commit: its facts, and the recipe as it applies to this commit."""

    facts: BuildFacts
    builder: Builder  # its conditions applied
    version: str  # of the system, "" when the recipe has no command for it, or it fails
    prefix: PurePosixPath | None = None  # where it is installed, if that is outside the root folder


@dataclass(frozen=True, slots=True)
class Plan:
    """How a commit is built."""

    builder: Builder  # its conditions applied
    version: str  # of the system, "" when the recipe has no command for it, or it fails
    commands: tuple[tuple[str, list[str]], ...]  # stage, argv
    env: Mapping[str, str]


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

    @property
    def work(self) -> PurePosixPath:
        """The folder of the fixed paths."""
        return self.host.root / "work" / self.builder.work_name


def build_context(host: Host, entry: HostEntry, builder: Builder, variant: str, bare: PurePosixPath) -> BuildContext:
    """What builds of a variant ("" is the recipe's own choice) need on a host.

    Raises EnvironmentFailure, naming the packages to install, when the host lacks a program.
    """
    name = variant or builder.variant
    settings = variant_of(builder, name)
    how = build_of(builder)
    if lacks := lacking_for(host, [*NEEDED], how, settings):
        system = facts.ask(host, SYSTEM) or ""
        raise absent(lacks, host.name, system, own_packages(how))
    ccache.share(host, entry.ccache_remote)
    return BuildContext(host, entry, builder, name, settings, toolchain(host, settings), bare)


def key_of(context: BuildContext, sha: str) -> str:
    """The key of the build of a commit, built or not."""
    return _key(context, sha, present(context, sha))


def end_all(host: Host, *, but: str = "") -> jobs.Job | None:
    """End the builds that run, but for the one whose job has that name; that one is returned if it runs."""
    spared = None
    for job in jobs.running(host):
        if but and job.name == but:
            spared = job
        elif job.name.startswith(PREFIX):
            jobs.kill(host, job)
    return spared


def build(context: BuildContext, sha: str) -> Generator[Progress, None, Built]:
    """Build commit ``sha``, or find it built. Yields progress; what was built is the return value.

    A build of it that a killed session has left running is followed to its end. Closing the generator
    ends the build and leaves nothing running. Raises BuildFailed when the commit cannot be checked out or does not
    configure, compile or install, JobLost when the host was restarted meanwhile, EnvironmentFailure when something else is the host's fault.
    """
    began = time.monotonic()
    paths = present(context, sha)
    key = _key(context, sha, paths)
    if found := build_store.find(context.host, key, sha):
        return Built(found.facts, _resolved(context, paths, found.version), found.version)
    yield Progress("checkout")
    job = end_all(context.host, but=_job_name(context, key))
    if job is None:
        checkout.checkout(context.host, context.bare, sha, context.work / "source", context.builder.ignore)
    plan = plan_for(context, sha, paths)
    how = build_of(plan.builder)
    steps = context.host.run(["sh", "-c", _STEPS if job else _EMPTY, "steps", str(context.work)], timeout=600).stdout
    output = BuildLog(expected=int(steps) if steps.isdecimal() else 0)
    job = job or jobs.start(
        context.host,
        ["sh", "-c", _script(plan.commands)],
        name=_job_name(context, key),
        cwd=context.work / "build",
        env=plan.env,
        timeout=how.timeout,
        merged=True,
    )
    status = yield from _follow(context.host, job, output)
    if status:
        raise _failure(context, sha, key, job, output, status, how.timeout)
    try:
        binary = hash_artifacts(context.host, context.work / "prefix", how.artifacts) if how.artifacts else key
    except FileNotFoundError as absent:
        output.error, output.stage = f"it did not install {absent}", INSTALL
        raise _failure(context, sha, key, job, output, 0, how.timeout) from None
    hits, misses = ccache.count(
        context.host.run(["sh", "-c", _REMEMBER, "remember", str(context.work), str(output.steps)]).stdout
    )
    built = BuildFacts(sha, key, binary, time.monotonic() - began, hits, misses, reused=False, log="")
    built = build_store.keep(context.host, built, plan.version, context.work / "prefix", job.folder / "stdout")
    jobs.remove(context.host, job)
    return Built(built, plan.builder, plan.version)


def plan_for(context: BuildContext, sha: str, paths: frozenset[str]) -> Plan:
    """How commit ``sha``, which is checked out, is built; ``paths`` as ``present`` has them.

    Without commands where the recipe has no [build], which only happens in a dry run.
    """
    version = _version(context, sha)
    resolved = _resolved(context, paths, version)
    values = _values(context, resolved, sha, version)
    if resolved.build is None:
        return Plan(resolved, version, (), {})
    how = resolved.build
    stages = ((CONFIGURE, how.configure), (COMPILE, how.compile), (INSTALL, how.install))
    commands = tuple((stage, fill(command, values)) for stage, commands in stages for command in commands)
    return Plan(resolved, version, commands, _environment(context, resolved, values))


def _key(context: BuildContext, sha: str, paths: frozenset[str]) -> str:
    tree = checkout.filtered_tree(context.host, context.bare, sha, context.builder.ignore)
    return build_store.key_of(context.builder, context.variant, context.tools, tree, paths, sha)


def _job_name(context: BuildContext, key: str) -> str:
    """The name of a build's job, by which later sessions find it."""
    return f"{PREFIX}{context.builder.name}-{key}"


def _follow(host: Host, job: jobs.Job, output: BuildLog) -> Generator[Progress, None, int]:
    lines = jobs.wait(host, job)
    try:
        while True:
            if output.read(next(lines)):
                yield Progress(output.stage, output.done, output.total)
    except StopIteration as end:
        status: int = end.value
        return status
    finally:
        lines.close()


def present(context: BuildContext, sha: str) -> frozenset[str]:
    """The paths of the recipe's conditions that exist in the tree."""
    paths = {path for block in context.builder.when for path in (block.file, block.missing) if path}
    return checkout.present(context.host, context.bare, sha, paths)


def _version(context: BuildContext, sha: str) -> str:
    """What the recipe's version command prints for the checkout; "" when it fails or is missing."""
    if not context.builder.version:
        return ""
    checkout = context.work / "source"
    values = {"source": str(checkout), "recipe": str(recipe.place(context.host, context.builder)), "commit": sha}
    printed = context.host.run(fill(context.builder.version, values), cwd=checkout, check=False)
    return version_text(printed.stdout) if printed.ok else ""


def _resolved(context: BuildContext, paths: frozenset[str], version: str) -> Builder:
    """The recipe with its conditions applied, for a tree of that version that has these paths."""
    return applied(context.builder, TreeFacts(version, paths.__contains__, context.tools.name, context.tools.version))


def _values(context: BuildContext, resolved: Builder, sha: str, version: str) -> dict[str, str | int]:
    """The placeholders of a build."""
    variant = variant_of(resolved, context.name)
    return {
        "source": str(context.work / "source"),
        "recipe": str(recipe.place(context.host, context.builder)),
        "commit": sha,
        "version": version,
        "build": str(context.work / "build"),
        "prefix": str(context.work / "prefix"),
        "cc": f"ccache {variant.cc}",
        "cxx": f"ccache {variant.cxx}",
        "cflags": variant.cflags,
        "ldflags": variant.ldflags,
        "jobs": context.entry.jobs or facts.ask(context.host, facts.CORES) or 1,
    }


def _script(commands: Sequence[tuple[str, Sequence[str]]]) -> str:
    """One shell script that runs every command of a build until one fails, saying which stage it is in."""
    lines = []
    for stage, command in commands:
        words = shlex.join(command)
        lines += [f"printf '%s\\n' {shlex.quote(f'{STAGE}{stage}: {words}')}", f"{words} || exit"]
    return "\n".join(lines)


def _environment(context: BuildContext, builder: Builder, values: dict[str, str | int]) -> dict[str, str]:
    cache = ccache.environment(context.host.root, context.work, context.entry.ccache_size)
    fixed = {
        "TZ": "UTC",
        "SOURCE_DATE_EPOCH": "315532800",  # 1980: the first year that every archive format can hold
        "ZERO_AR_DATE": "1",
        "GIT_CEILING_DIRECTORIES": str(
            context.work
        ),  # a repository that contains the root folder is not the one being built
    }
    return cache | fixed | {name: fill_text(text, values) for name, text in build_of(builder).env.items()}


def _failure(
    context: BuildContext, sha: str, key: str, job: jobs.Job, output: BuildLog, status: int, limit: float
) -> BuildFailed | EnvironmentFailure:
    """The error for a failed build; its log is saved."""
    host = context.host
    log = host.root / "logs" / f"{context.builder.name}-{sha[:10]}-{key[:10]}.log"
    if output.host_trouble.startswith("no space") or facts.is_full(host):
        return no_space(host.name, f"the build of {sha[:10]} stopped at: {output.why()}")
    host.run(["sh", "-c", _SAVE_LOG, "save", str(job.folder / "stdout"), str(log)])
    jobs.remove(host, job)
    if output.host_trouble:
        return EnvironmentFailure(
            f"the build of {sha[:10]} stopped on host {host.name}: {output.host_trouble}",
            f"Fewer jobs at once, with `jobs` in hosts.toml, need less memory. See {log}.",
        )
    # ccache makes paths relative to the build folder
    reason = re.sub(rf"(?:{re.escape(str(context.work))}/|(?<![\w./])(?:\.\./)+)(?:source/)?", "", output.why())
    if status in (TIMED_OUT, 128 + 9):
        reason = f"not done after {limit:g} s"
    return BuildFailed(f"{sha[:10]} does not {output.stage}: {reason}", stage=output.stage, log=str(log))
