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
from perfbisect.core.domain.settings import Patch
from perfbisect.errors import BuildFailed, EnvironmentFailure
from perfbisect.host import facts, jobs
from perfbisect.host.facts import SYSTEM
from perfbisect.host.packages import absent
from perfbisect.host.protocol import TIMED_OUT, Host, no_space
from perfbisect.lab.build import build_store, ccache, checkout, links, pgo, submodules
from perfbisect.lab.build.binary_hash import hash_artifacts, measured
from perfbisect.lab.build.checkout import Sources, for_all, for_version
from perfbisect.lab.build.log_parser import CONFIGURE, INSTALL, OUT_OF_MEMORY, BuildLog, Progress, follow, script
from perfbisect.lab.build.pgo import Instrumented, Phase, Training
from perfbisect.lab.build.plan import BuildContext, Built, Plan, jobs_of, plan_for, present, resolved_for, version_of
from perfbisect.lab.build.toolchain import (
    NEEDED,
    SYSTEM_FACTS,
    how_to_build,
    lacking_for,
    own_packages,
    toolchain,
    with_compiler,
)
from perfbisect.recipes.build_systems import compiler_of, system_of
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
_REMEMBER = f'cd -- "$1" && printf "%s" "$2" >steps && {ccache.EVENTS}'
# Without the error, which would be found in the second log, too.
_NOTE = "perfbisect: with {at_once} jobs at once this build did not {stage}, and is repeated with one"
_SAVE_LOG = '(umask 077; mkdir -p "${2%/*}") && cp -- "$1" "$2"'


def build_context(
    host: Host,
    entry: HostEntry,
    builder: Builder,
    variant: str,
    bare: PurePosixPath,
    repository: Repository,
    patches: tuple[Patch, ...] = (),
    *,
    layouts: bool = False,
    training: Training | None = None,
) -> BuildContext:
    """What builds of a variant ("" is the recipe's own choice) need on a host; with ``layouts`` to be linked again, too.

    ``training`` is how those are trained that are optimised with a profile.

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
    ccache.share(host, entry.ccache_remote)
    tools = toolchain(host, settings)
    namespace = ccache.namespace(host, tools.processor)
    return BuildContext(
        host, entry, builder, name, settings, tools, bare, repository, namespace, patches, recorder, training
    )


def key_of(context: BuildContext, sha: str) -> str:
    """The key of the build of a commit, built or not."""
    sources = for_all(context.host, context.bare, sha, context.patches)
    return _key(context, sources, present(context, sources.commit))


def find(context: BuildContext, sha: str) -> Built | None:
    """The stored build of commit ``sha``; None where there is none. Raises as ``key_of``."""
    sources = for_all(context.host, context.bare, sha, context.patches)
    paths = present(context, sources.commit)
    return _stored(context, sources, paths, _key(context, sources, paths))


def build(context: BuildContext, sha: str) -> Generator[Progress | Warned, None, Built]:
    """Build commit ``sha``, or find it built. Yields progress; what was built is the return value.

    A build with several jobs at once that fails is no verdict on the commit: it may depend on their order, or have taken
    all memory. It is repeated with one job. A build that a killed session has left running is followed to its end.
    Closing the generator ends the build and leaves nothing running. Raises BuildFailed when the commit cannot be checked
    out, does not configure, compile or install, or fails in its training, JobLost when the host was restarted meanwhile, EnvironmentFailure when
    something else is the host's fault.
    """
    began = time.monotonic()
    sources = for_all(context.host, context.bare, sha, context.patches)
    paths = present(context, sources.commit)
    key = _key(context, sources, paths)
    if found := _stored(context, sources, paths, key):
        return found
    name = f"{JOB_PREFIX}{context.builder.name}-{key}"  # by which later sessions find its job
    yield Progress("checkout")
    job = end_all(context.host, but=(name, f"{name}{_ALONE}"))
    wanted = _Wanted(sources, paths, key, name)
    try:
        if context.training:
            if job is None:
                yield from _train(context, wanted, context.training)
            context = replace(context, phase=Phase.OPTIMISED)
        plan, ended = yield from _made(context, wanted, job)
    except BuildFailed:  # a build that was interrupted may still run, and reads the profile
        pgo.remove(context.host, context.profile)
        raise
    pgo.remove(context.host, context.profile)
    hits, misses, remote = ccache.count(
        context.host.run(["sh", "-c", _REMEMBER, "remember", str(context.work), str(ended.output.steps)]).stdout
    )
    binary = ended.binary or key
    seconds = time.monotonic() - began
    patches = _for_version(context, sources, plan.version).patches
    built = BuildFacts(sha, key, binary, seconds, hits, misses, False, "", plan.system, patches, remote_hits=remote)
    if context.recorder:
        yield Progress(links.LINK)
        further = (context.variant, context.recorder, built)
        built = links.keep(context.host, context.work, _measured(context, plan), *further)
    built = build_store.keep(context.host, built, plan.version, context.work / "prefix", ended.job.folder / "stdout")
    jobs.remove(context.host, ended.job)
    return Built(built, plan.builder, plan.version)


def _stored(context: BuildContext, sources: Sources, paths: frozenset[str], key: str) -> Built | None:
    found = build_store.find(context.host, key, sources.sha)
    if found is None:
        return None
    known = replace(found.facts, patches=_for_version(context, sources, found.version).patches)
    return Built(known, resolved_for(context, paths, found.version), found.version)


@dataclass(frozen=True, slots=True)
class _Wanted:
    """What is to be built."""

    sources: Sources
    paths: frozenset[str]  # as ``present`` has them
    key: str
    name: str  # of the job


def _made(
    context: BuildContext, wanted: _Wanted, job: jobs.Job | None = None
) -> Generator[Progress | Warned, None, tuple[Plan, "_Ended"]]:
    """A build that ended well, and how it was made; from its checkout on, unless ``job`` makes it already."""
    sources, sha, key = wanted.sources, wanted.sources.sha, wanted.key
    if job is None:
        yield from _check_out(context, sources)
    plan = plan_for(context, sha, wanted.paths)
    ended = yield from _attempt(context, plan, wanted.name, job)
    if ended.failed and ended.job.name == wanted.name and (alone := _alone(context, sha, wanted.paths, plan, ended)):
        failure = _failure(context, sha, key, ended)
        ended = yield from _repeat(context, sources, alone, ended, failure)
    if ended.failed:
        raise _failure(context, sha, key, ended)
    return plan, ended


def _train(context: BuildContext, wanted: _Wanted, training: Training) -> Generator[Progress | Warned]:
    """The profile by which a commit is then built: of an instrumented build of it."""
    host, sha = context.host, wanted.sources.sha
    training.check()
    pgo.empty(host, context.profile)
    counting = replace(context, phase=Phase.INSTRUMENTED)
    plan, ended = yield from _made(counting, replace(wanted, name=f"{wanted.name}-{Phase.INSTRUMENTED}"))
    yield Progress(pgo.TRAIN)
    instrumented = Instrumented(sha, wanted.key, plan.builder, plan.version, context.work / "prefix")
    try:
        yield from training.train(instrumented, lambda: pgo.empty(host, context.profile))
        if not pgo.finish(host, context.profile, context.variant, context.tools.name):
            raise BuildFailed(
                f"{sha[:10]} has no profile after its training with {training.named}: its programs must be compiled and linked"
                " with {cflags} and {ldflags} of the variant, and end by themselves",
                stage=pgo.TRAIN,
                log=_saved_log(context, sha, wanted.key, ended),
            )
    finally:
        jobs.remove(host, ended.job)


@dataclass(frozen=True, slots=True)
class _Ended:
    """An attempt to build that has ended."""

    job: jobs.Job
    limit: float  # seconds
    output: BuildLog
    status: int
    failed: bool
    binary: str = ""  # what was installed, by its hash; "" when the recipe names no artifacts


def _check_out(context: BuildContext, sources: Sources) -> Generator[Progress]:
    host, builder, sha = context.host, context.builder, sources.sha
    brought = submodules.bring(host, builder.work_name, context.repository, sha, builder.ignore, builder.repository)
    check_out(context, sources, (yield from brought))


def check_out(context: BuildContext, sources: Sources, parts: Sequence[checkout.Part] = ()) -> None:
    """Check out what is built of a commit, with these submodules."""
    place = context.work / "source", context.builder.ignore, parts
    checkout.checkout(context.host, context.bare, sources.commit, *place)
    if any(patch.version for patch in context.patches):
        fitting = _for_version(context, sources, version_of(context, sources.sha))
        if fitting.commit != sources.commit:
            checkout.checkout(context.host, context.bare, fitting.commit, *place)


def _for_version(context: BuildContext, sources: Sources, version: str) -> Sources:
    return for_version(context.host, context.bare, sources, context.patches, version)


def _attempt(
    context: BuildContext, plan: Plan, name: str, job: jobs.Job | None, note: str = ""
) -> Generator[Progress, None, _Ended]:
    """Build what is checked out as a job of that name, in an empty folder, or follow ``job``, which does."""
    host, how = context.host, build_of(plan.builder)
    steps = host.run(["sh", "-c", _STEPS if job else _EMPTY, "steps", str(context.work)], timeout=600).stdout
    output = BuildLog(expected=int(steps) if steps.isdecimal() else 0)
    job = job or jobs.start(
        host,
        ["sh", "-c", script(plan.commands, note)],
        name=name,
        cwd=context.work / "build",
        env=plan.env,
        timeout=how.timeout,
        merged=True,
    )
    if status := (yield from follow(host, job, output)):
        return _Ended(job, how.timeout, output, status, failed=True)
    try:
        artifacts = _measured(context, plan)
        binary = hash_artifacts(host, context.work / "prefix", artifacts) if artifacts else ""
        if not (binary or host.run(["test", "-d", str(context.work / "prefix")], check=False).ok):
            raise FileNotFoundError("anything")
    except FileNotFoundError as absent:
        output.error, output.stage = f"it did not install {absent}", INSTALL
        return _Ended(job, how.timeout, output, 0, failed=True)
    return _Ended(job, how.timeout, output, 0, failed=False, binary=binary)


def _measured(context: BuildContext, plan: Plan) -> list[str]:
    named = build_of(plan.builder).artifacts
    return measured(context.host, context.work / "prefix", named, with_libraries=plan.with_libraries)


def _alone(context: BuildContext, sha: str, paths: frozenset[str], plan: Plan, ended: _Ended) -> Plan | None:
    """How a failed build is repeated with one job; None where that would change nothing."""
    trouble = ended.output.host_trouble
    of_the_host = (bool(trouble) and not trouble.startswith(OUT_OF_MEMORY)) or facts.is_full(context.host)
    if of_the_host or ended.output.stage == CONFIGURE or ended.status in (TIMED_OUT, 128 + 9):
        return None
    alone = plan_for(replace(context, entry=msgspec.structs.replace(context.entry, jobs=1)), sha, paths)
    return alone if (alone.commands, alone.env) != (plan.commands, plan.env) else None


def _repeat(
    context: BuildContext, sources: Sources, alone: Plan, ended: _Ended, failure: BuildFailed | EnvironmentFailure
) -> Generator[Progress | Warned, None, _Ended]:
    """A build that ``ended`` with ``failure`` once more, from its checkout on, as ``alone`` has it."""
    yield Warned(f"{failure}: it is repeated with one job instead of {jobs_of(context)}", failure.advice)
    yield Progress("checkout")
    yield from _check_out(context, sources)
    note = _NOTE.format(at_once=jobs_of(context), stage=ended.output.stage)
    repeated = yield from _attempt(context, alone, f"{ended.job.name}{_ALONE}", None, note)
    if not repeated.failed and isinstance(failure, BuildFailed):
        yield Warned(
            f"the build of {sources.sha[:10]} depends on the order of its parts: it failed with {jobs_of(context)} jobs, and did"
            " not with one",
            "What was built with one job counts. With `jobs = 1` in hosts.toml no build is tried twice.",
        )
    return repeated


def _key(context: BuildContext, sources: Sources, paths: frozenset[str]) -> str:
    ignore, sha = context.builder.ignore, sources.sha
    tree = checkout.filtered_tree(context.host, context.bare, sources.commit, ignore)
    tree = submodules.with_submodules(tree, context.repository, sha, ignore)
    system = system_of(context.builder, paths) or ""
    tools = with_compiler(context.host, context.tools, compiler_of(system))
    training = pgo.identity(context.training, context.variant, context.tools.name)
    how = (context.patches, context.recorder.identity if context.recorder else "", training)
    return build_store.key_of(context.builder, context.variant, tools, tree, paths, sha, system, *how)


def _saved_log(context: BuildContext, sha: str, key: str, ended: _Ended) -> str:
    """Where the log of a build now is, for as long as the user may want it."""
    log = context.host.root / "logs" / f"{context.builder.name}-{sha[:10]}-{key[:10]}.log"
    context.host.run(["sh", "-c", _SAVE_LOG, "save", str(ended.job.folder / "stdout"), str(log)])
    return str(log)


def _failure(context: BuildContext, sha: str, key: str, ended: _Ended) -> BuildFailed | EnvironmentFailure:
    """The error for a failed build; its log is saved."""
    host, job, output = context.host, ended.job, ended.output
    if output.host_trouble.startswith("no space") or facts.is_full(host):
        return no_space(host.name, f"the build of {sha[:10]} stopped at: {output.why()}")
    log = _saved_log(context, sha, key, ended)
    jobs.remove(host, job)
    if output.host_trouble:
        return EnvironmentFailure(
            f"the build of {sha[:10]} stopped on host {host.name}: {output.host_trouble}",
            f"Fewer jobs at once, with `jobs` in hosts.toml, need less memory. See {log}.",
        )
    # ccache makes paths relative to the build folder
    reason = re.sub(rf"(?:{re.escape(str(context.work))}/|(?<![\w./])(?:\.\./)+)(?:source/)?", "", output.why())
    if ended.status in (TIMED_OUT, 128 + 9):
        reason = f"not done after {ended.limit:g} s"
    hint = ""
    if output.stage == CONFIGURE:
        hint = how_to_build(context.builder, facts.ask_all(host, SYSTEM_FACTS))
    which = f"the {context.phase} build of " if context.phase else ""
    sentence = f"{which}{sha[:10]} does not {output.stage}: {reason}"
    return BuildFailed(sentence, stage=output.stage, log=log, hint=hint and f"{hint}.")
