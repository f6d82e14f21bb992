"""From a commit to an installed system, with ccache.

Everything happens at fixed paths below ``root/work/BUILDER``: ``source``, an empty ``build``, and ``prefix``, where it
is installed before it moves to its place among the finished builds. All builds see the same paths and the same
environment, so that only the commit makes a difference. Configure, compile and install are one job on the host.
"""

import re
import time
from collections.abc import Collection, Generator, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePosixPath

import msgspec

from perfbisect.core.domain.events import Warned
from perfbisect.core.domain.facts import BuildFacts
from perfbisect.errors import BuildFailed, EnvironmentFailure
from perfbisect.host import facts, jobs
from perfbisect.host.facts import SYSTEM
from perfbisect.host.packages import absent
from perfbisect.host.protocol import TIMED_OUT, Host, no_space
from perfbisect.lab.building import build_store, checkout, links, prebuilt
from perfbisect.lab.building.build_store import hash_artifacts, measured
from perfbisect.lab.building.checkout import Sources, for_all, for_version
from perfbisect.lab.building.log_parser import (
    CONFIGURE,
    INSTALL,
    OUT_OF_MEMORY,
    TRAIN,
    BuildLog,
    BuildStep,
    KnownFailure,
    follow,
    script,
)
from perfbisect.lab.building.plan import (
    BuildContext,
    BuildPhase,
    BuildPlan,
    InstalledBuild,
    Instrumented,
    Training,
    build_key,
    jobs_of,
    plan_for,
    present,
    resolved_for,
    version_of,
)
from perfbisect.lab.building.shared_builds import SharedBuilds
from perfbisect.lab.building.toolchain import (
    COMPILERS,
    EVENTS,
    NEEDED,
    SYSTEM_FACTS,
    cache_namespace,
    count_cached,
    how_to_build,
    lacking_for,
    own_packages,
    share_cache,
    toolchain,
)
from perfbisect.recipes.build_systems import system_of
from perfbisect.recipes.builder import Builder
from perfbisect.recipes.builder_reader import build_of, variant_of
from perfbisect.recipes.inventory import HostEntry
from perfbisect.repository.git import Repository

JOB_PREFIX = "build-"  # of their names


def end_all(host: Host, *, but: Collection[str] = ()) -> jobs.Job | None:
    """End the builds that run, but for one whose job has one of these names; that one is returned if it runs."""
    spared = None
    for job in jobs.running(host):
        if job.name in but:
            spared = job
        elif job.name.startswith(JOB_PREFIX):
            jobs.kill(host, job)
    return spared


_ALONE = "-alone"  # ends the name of one that is repeated with one job
# Prints the steps that the last build took.
_STEPS = 'cat "$1/steps" 2>/dev/null || :'
_EMPTY = 'mkdir -p "$1" && cd "$1" && rm -rf build prefix links ccache.log && mkdir build && cat steps 2>/dev/null || :'
_REMEMBER = f'cd -- "$1" && rm -rf profile && printf "%s" "$2" >steps && {EVENTS}'
_LATE = (TIMED_OUT, 128 + 9)  # statuses of a job that has run out of time
_SAVE_LOG = '(umask 077; mkdir -p "${2%/*}") && cp -- "$1" "$2"'


def build_context(
    host: Host,
    entry: HostEntry,
    builder: Builder,
    variant: str,
    bare: PurePosixPath,
    repository: Repository,
    *,
    layouts: bool = False,
) -> BuildContext:
    """What builds of a variant ("" is the recipe's own choice) need on a host; with ``layouts`` to be linked again, too.

    Raises EnvironmentFailure, naming the packages to install, when the host lacks a program.
    """
    name = variant or builder.variant
    recorder = links.recorder(host) if layouts else None
    settings = links.movable(variant_of(builder, name), recorder)
    how = build_of(builder)
    if lacks := lacking_for(host, [*NEEDED], how, settings):
        answers = facts.ask_all(host, SYSTEM_FACTS)
        system = answers.get(SYSTEM) or ""
        raise absent(lacks, host.name, system, own_packages(how), how_to_build(builder, answers))
    share_cache(host, entry.ccache_remote)
    tools = toolchain(host, settings)
    namespace = cache_namespace(host, tools.processor)
    return BuildContext(host, entry, builder, name, settings, tools, bare, repository, namespace, recorder=recorder)


@dataclass(frozen=True, slots=True)
class _KeyedCommit:
    """A commit, and by which key its build is known."""

    sources: Sources
    paths: frozenset[str]  # as ``present`` has them
    needed: dict[str, prebuilt.Needed]  # archives, by name
    key: str

    @property
    def sha(self) -> str:
        return self.sources.sha

    @property
    def sums(self) -> dict[str, str]:
        """Of its archives, by their names."""
        return {name: each.sha256 for name, each in self.needed.items()}


def _wanted(context: BuildContext, sha: str) -> _KeyedCommit:
    """Raises BuildFailed for a commit that git cannot read or whose archives are unknown, and EnvironmentFailure."""
    host, builder, ignore = context.host, context.builder, context.builder.ignore
    sources = for_all(host, context.bare, sha, context.patches)
    paths = present(context, sources.commit)
    tree = checkout.filtered_tree(host, context.bare, sources.commit, ignore)
    tree = checkout.with_submodules(tree, context.repository, sha, ignore)
    needed = prebuilt.needed(host, context.bare, sources, builder, paths)
    sums = [each.sha256 for each in needed.values()]
    key = build_key(context, tree, paths, sha, system_of(builder, paths) or "", sums)
    return _KeyedCommit(sources, paths, needed, key)


def key_of(context: BuildContext, sha: str) -> str:
    """The key of the build of a commit, built or not. Raises BuildFailed for one that git cannot read."""
    return _wanted(context, sha).key


def find(context: BuildContext, sha: str) -> InstalledBuild | None:
    """The stored build of commit ``sha``; None where there is none. Raises as ``key_of``."""
    return _stored(context, _wanted(context, sha))


def _stored(context: BuildContext, wanted: _KeyedCommit) -> InstalledBuild | None:
    found = build_store.find(context.host, wanted.key, wanted.sha)
    if found is None:
        return None
    known = replace(
        found.facts,
        patches=for_version(context.host, context.bare, wanted.sources, context.patches, found.version).patches,
    )
    return InstalledBuild(known, resolved_for(context, wanted.paths, found.version), found.version)


def build(
    context: BuildContext, sha: str, shared: SharedBuilds | None = None
) -> Generator[BuildStep | Warned, None, InstalledBuild]:
    """Build commit ``sha``, or find it built; yields progress. A build that others have made is fetched from the ``shared``
    ones, and one that they lack is given to them: while the host does nothing else, so that no run is disturbed.

    A build with several jobs at once that fails is no verdict on the commit: it may depend on their order, or have taken
    all memory. It is repeated with one job. A build that a killed session has left running is followed to its end.
    Closing the generator ends the build and leaves nothing running. Raises BuildFailed when the commit cannot be checked
    out, does not configure, compile or install, or fails in its training, JobLost when the host was restarted meanwhile,
    EnvironmentFailure when something else is the host's fault.
    """
    began = time.monotonic()
    wanted = _wanted(context, sha)
    built = _stored(context, wanted)
    if shared and not built and (yield from shared.fetch(context, wanted.key)) and (built := _stored(context, wanted)):
        return replace(built, facts=replace(built.facts, shared=True, seconds=time.monotonic() - began))
    built = built or (yield from _build(context, wanted))
    if shared:
        yield from shared.offer(context, built.facts)
    return built


def _build(context: BuildContext, wanted: _KeyedCommit) -> Generator[BuildStep | Warned, None, InstalledBuild]:
    began, host, name = time.monotonic(), context.host, _job_name(context, wanted)
    yield BuildStep("checkout")
    job = end_all(host, but=(name, f"{name}{_ALONE}"))
    try:
        if context.training:
            if job is None:
                yield from _train(context, wanted, context.training)
            context = replace(context, phase=BuildPhase.OPTIMISED)
        ended = yield from _made(context, wanted, name, job)
    except BuildFailed:  # a build that was interrupted may still run, and reads the profile
        host.run(["rm", "-rf", "--", str(context.profile)], timeout=600)
        raise
    plan, folder = ended.plan, ended.job.folder
    argv = ["sh", "-c", _REMEMBER, "remember", str(context.work), str(ended.output.steps)]
    hits, misses, remote = count_cached(host.run(argv, timeout=600).stdout)
    facts = BuildFacts(
        commit=wanted.sha, key=wanted.key, binary=ended.binary or wanted.key, seconds=time.monotonic() - began,
        cache_hits=hits, cache_misses=misses, remote_hits=remote, reused=False, log="", system=plan.system,
        patches=for_version(host, context.bare, wanted.sources, context.patches, plan.version).patches,
        partial=_with_short_paths(context, ended.output.partial), programs=ended.output.programs,
        flags=context.builder.flags.options,
    )  # fmt: skip
    if context.recorder:
        yield BuildStep(links.LINK)
        facts = links.keep(host, context.work, ended.artifacts, context.variant, context.recorder, facts)
    facts = build_store.keep(host, facts, plan.version, context.work / "prefix", folder / "stdout")
    jobs.remove(host, ended.job)
    return InstalledBuild(facts, plan.builder, plan.version)


def _job_name(context: BuildContext, wanted: _KeyedCommit) -> str:
    """The name of the job that builds, by which later sessions find it."""
    return f"{JOB_PREFIX}{context.builder.name}-{wanted.key}"


def _train(context: BuildContext, wanted: _KeyedCommit, training: Training) -> Generator[BuildStep | Warned]:
    """The profile by which a commit is then built: of an instrumented build of it."""
    training.check()
    name = f"{_job_name(context, wanted)}-{BuildPhase.INSTRUMENTED}"
    ended = yield from _made(replace(context, phase=BuildPhase.INSTRUMENTED), wanted, name)
    yield BuildStep(TRAIN)
    build = Instrumented(
        wanted.sha, wanted.key, ended.plan.builder, ended.plan.version, context.work / "prefix", context.profile,
        context.variant.cc, context.tools.name,
    )  # fmt: skip
    try:
        if not (yield from training.train(build)):
            raise BuildFailed(
                f"{wanted.sha[:10]} has no profile after its training with {training.named}: its programs must be compiled"
                " and linked with {cflags} and {ldflags} of the variant, and end by themselves",
                stage=TRAIN,
                log=_saved_log(context, wanted, ended),
            )
    finally:
        jobs.remove(context.host, ended.job)


@dataclass(frozen=True, slots=True)
class _BuildAttempt:
    """An attempt to build that has ended."""

    plan: BuildPlan
    job: jobs.Job
    output: BuildLog
    status: int
    failed: bool = True
    artifacts: Sequence[str] = ()  # what is measured, below the prefix
    binary: str = ""  # what was installed, by its hash; "" when the recipe names no artifacts


def _made(
    context: BuildContext, wanted: _KeyedCommit, name: str, job: jobs.Job | None = None
) -> Generator[BuildStep | Warned, None, _BuildAttempt]:
    """A build that ended well, by a job of that name; from its checkout on, unless ``job`` makes it already."""
    if job is None:
        yield from prebuilt.bring(context.host, wanted.needed.values())
        yield from _check_out(context, wanted.sources)
    ended = yield from _attempt(context, plan_for(context, wanted.sha, wanted.paths, wanted.sums), name, job)
    if ended.failed and ended.job.name == name and (alone := _alone(context, wanted, ended)):
        failure, at_once = _failure(context, wanted, ended), jobs_of(context)
        yield Warned(f"{failure}: it is repeated with one job instead of {at_once}", failure.advice)
        yield BuildStep("checkout")
        yield from _check_out(context, wanted.sources)
        # Without the error, which would be found in the second log, too.
        note = (
            f"perfbisect: with {at_once} jobs at once this build did not {ended.output.stage}, and is repeated with one"
        )
        ended = yield from _attempt(context, alone, f"{name}{_ALONE}", None, note)
        if not ended.failed and isinstance(failure, BuildFailed):
            yield Warned(
                f"the build of {wanted.sha[:10]} depends on the order of its parts: it failed with {at_once} jobs, and did"
                " not with one",
                "What was built with one job counts. With `jobs = 1` in hosts.toml no build is tried twice.",
            )
    if ended.failed:
        raise _failure(context, wanted, ended)
    return ended


def _check_out(context: BuildContext, sources: Sources) -> Generator[BuildStep]:
    host, builder, sha = context.host, context.builder, sources.sha
    parts = checkout.bring_submodules(
        host, builder.work_name, context.repository, sha, builder.ignore, builder.repository
    )
    check_out(context, sources, (yield from parts))


def check_out(context: BuildContext, sources: Sources, parts: Sequence[checkout.SubTree] = ()) -> None:
    """Check out what is built of a commit, with these submodules."""
    host, bare, place = context.host, context.bare, (context.work / "source", context.builder.ignore, parts)
    checkout.checkout(host, bare, sources.commit, *place)
    if any(patch.version for patch in context.patches):
        fitting = for_version(host, bare, sources, context.patches, version_of(context, sources.sha))
        if fitting.commit != sources.commit:
            checkout.checkout(host, bare, fitting.commit, *place)


def _attempt(
    context: BuildContext, plan: BuildPlan, name: str, job: jobs.Job | None, note: str = ""
) -> Generator[BuildStep, None, _BuildAttempt]:
    """Build what is checked out as a job of that name, in an empty folder, or follow ``job``, which does."""
    host, how, prefix = context.host, build_of(plan.builder), context.work / "prefix"
    steps = host.run(["sh", "-c", _STEPS if job else _EMPTY, "steps", str(context.work)], timeout=600).stdout
    output = BuildLog(expected=int(steps) if steps.isdecimal() else 0)
    argv = ["sh", "-c", script(plan.commands, note)]
    if COMPILERS in plan.env:  # which the build finds first
        argv = ["sh", "-c", 'PATH=$0:$PATH exec "$@"', plan.env[COMPILERS], *argv]
    cwd = context.work / "build"
    job = job or jobs.start(host, argv, name=name, cwd=cwd, env=plan.env, timeout=how.timeout, merged=True)
    status = yield from follow(host, job, output)
    if status or (output.partial and output.host_trouble):
        return _BuildAttempt(plan, job, output, status)
    artifacts = measured(host, prefix, how.artifacts, with_libraries=plan.with_libraries)
    try:
        binary = hash_artifacts(host, prefix, artifacts) if artifacts else ""
        if not (binary or host.run(["test", "-d", str(prefix)], check=False).ok):
            raise FileNotFoundError("anything")
    except FileNotFoundError as absent:
        output.error, output.stage = f"it did not install {absent}", INSTALL
        return _BuildAttempt(plan, job, output, 0)
    return _BuildAttempt(plan, job, output, 0, False, artifacts, binary)


def _alone(context: BuildContext, wanted: _KeyedCommit, ended: _BuildAttempt) -> BuildPlan | None:
    """How a failed build is repeated with one job; None where that would change nothing."""
    trouble = ended.output.host_trouble
    of_the_host = (bool(trouble) and not trouble.startswith(OUT_OF_MEMORY)) or facts.is_full(context.host)
    if of_the_host or ended.output.stage == CONFIGURE or ended.status in _LATE:
        return None
    entry = msgspec.structs.replace(context.entry, jobs=1)
    alone = plan_for(replace(context, entry=entry), wanted.sha, wanted.paths, wanted.sums)
    return alone if (alone.commands, alone.env) != (ended.plan.commands, ended.plan.env) else None


def _saved_log(context: BuildContext, wanted: _KeyedCommit, ended: _BuildAttempt) -> str:
    """Where the log of a build now is, for as long as the user may want it."""
    log = context.host.root / "logs" / f"{context.builder.name}-{wanted.sha[:10]}-{wanted.key[:10]}.log"
    context.host.run(["sh", "-c", _SAVE_LOG, "save", str(ended.job.folder / "stdout"), str(log)])
    return str(log)


def _with_short_paths(context: BuildContext, text: str) -> str:
    """A line of a compiler; ccache makes paths relative to the build folder."""
    return re.sub(rf"(?:{re.escape(str(context.work))}/|(?<![\w./])(?:\.\./)+)(?:source/)?", "", text)


def _failure(context: BuildContext, wanted: _KeyedCommit, ended: _BuildAttempt) -> BuildFailed | EnvironmentFailure:
    """The error for a failed build; its log is saved."""
    host, output, sha = context.host, ended.output, wanted.sha[:10]
    if output.host_trouble.startswith("no space") or facts.is_full(host):
        return no_space(host.name, f"the build of {sha} stopped at: {output.why()}")
    log = _saved_log(context, wanted, ended)
    jobs.remove(host, ended.job)
    if output.host_trouble:
        return EnvironmentFailure(
            f"the build of {sha} stopped on host {host.name}: {output.host_trouble}",
            f"Fewer jobs at once, with `jobs` in hosts.toml, need less memory. See {log}.",
        )
    reason = _with_short_paths(context, output.why())
    if ended.status in _LATE:
        reason = f"not done after {build_of(ended.plan.builder).timeout:g} s"
    hint = how_to_build(context.builder, facts.ask_all(host, SYSTEM_FACTS)) if output.stage == CONFIGURE else ""
    which = f"the {context.phase} build of " if context.phase else ""
    sentence = f"{which}{sha} does not {output.stage}: {reason}"
    hint = hint and f"{hint}."
    if output.known and ended.status not in _LATE:
        return KnownFailure(sentence, output.known, stage=output.stage, log=log, hint=hint)
    return BuildFailed(sentence, stage=output.stage, log=log, hint=hint)
