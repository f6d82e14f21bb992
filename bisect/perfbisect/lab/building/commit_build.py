"""Builds a commit on a host in stages: check out, configure, compile, install, and store the files that measurements
need."""

import hashlib
import re
import time
from collections.abc import Collection, Generator, Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec

from perfbisect.core.domain.events import Warned
from perfbisect.core.domain.facts import BuildFacts
from perfbisect.errors import BuildFailed, EnvironmentFailure
from perfbisect.host import facts, jobs
from perfbisect.host.protocol import TIMED_OUT, Host, disk_full_error
from perfbisect.lab.building import build_store, checkout, incremental, links, prebuilt
from perfbisect.lab.building.build_store import hash_artifacts, measured_files
from perfbisect.lab.building.checkout import BuildSource, with_common_patches, with_version_patches
from perfbisect.lab.building.configure_results import commands_with_configure_results
from perfbisect.lab.building.incremental import LastBuild
from perfbisect.lab.building.log_parser import (
    CHECKOUT,
    CONFIGURE,
    DISK_FULL,
    INSTALL,
    LINK,
    OUT_OF_MEMORY,
    PATCH,
    RECORD,
    RELINK,
    TRAIN,
    BuildLog,
    BuildStep,
    KnownFailure,
    PhaseStopwatch,
    build_script,
    follow_build,
)
from perfbisect.lab.building.plan import (
    BuildContext,
    BuildPlan,
    InstalledBuild,
    InstrumentedBuild,
    PgoBuildKind,
    Training,
    build_key,
    job_count,
    plan_for,
    present_condition_paths,
    resolved_for,
    version_by_recipe_command,
)
from perfbisect.lab.building.toolchain import (
    COMPILERS,
    EVENTS,
    SYSTEM_FACTS,
    build_dependencies_command,
    cache_statistics,
)
from perfbisect.recipes.build_systems import system_of_commit
from perfbisect.recipes.builder_reader import required_build_section

JOB_PREFIX = "build-"  # begins the names of jobs that build


def end_running_builds(host: Host, *, kept_job_names: Collection[str] = ()) -> jobs.Job | None:
    """End a host's running builds, except a job with a name in ``kept_job_names``; returns this job, or None."""
    kept_job = None
    for job in jobs.running_jobs(host):
        if job.name in kept_job_names:
            kept_job = job
        elif job.name.startswith(JOB_PREFIX):
            jobs.kill(host, job)
    return kept_job


_ALONE = "-alone"  # ends the name of a build that is repeated with one job
_AGAIN = "-again"  # ends the name of an incremental build
# Prints how many steps the last build took.
_STEPS = 'cat "$1/steps" 2>/dev/null || :'
_EMPTY = 'mkdir -p "$1" && cd "$1" && rm -rf base build prefix links objects ccache.log && mkdir build && cat steps 2>/dev/null || :'
_REMEMBER = f'cd -- "$1" && rm -rf profile && {{ [ -z "$2" ] || printf "%s" "$2" >steps; }} && {EVENTS}'
_LATE = (TIMED_OUT, 128 + 9)  # exit statuses of a job whose time ran out
_SAVE_LOG = '(umask 077; mkdir -p "${2%/*}") && cp -- "$1" "$2"'


def incremental_key(key: str) -> str:
    """The key of a commit's incremental build; ``key`` is the key of the commit's clean build."""
    return hashlib.sha256(f"{key} incremental".encode()).hexdigest()[:32]


@dataclass(frozen=True, slots=True)
class BuildAttempt:
    """The result of a build process that has ended, successfully or not; the build is not stored yet."""

    plan: BuildPlan
    job: jobs.Job
    output: BuildLog
    status: int
    failed: bool = True
    artifacts: Sequence[str] = ()  # the measured files, as paths below the prefix
    binary: str = ""  # a hash of the artifacts; "" if the recipe names none
    incremental: bool = False


@dataclass(frozen=True, slots=True)
class CommitBuild:
    """The build of a commit on a host; the method ``build`` carries out all stages."""

    context: BuildContext
    sources: BuildSource
    paths: frozenset[str]  # see ``present_condition_paths``
    needed: Mapping[str, prebuilt.NeededArchive]  # name → archive that the build needs
    key: str
    clock: PhaseStopwatch  # already has the seconds of the patches, which are applied before the key is known
    incremental: bool = False  # whether an incremental build is allowed

    @property
    def job_name(self) -> str:
        """The name of the job that makes the build. A later session finds a running build by this name."""
        return f"{JOB_PREFIX}{self.context.builder.name}-{self.key}"

    def stored_build(self) -> InstalledBuild | None:
        """The finished build in the host's build store, if there is one."""
        key = incremental_key(self.key) if self.incremental else self.key
        built = build_store.find_build(self.context.host, key, self.sources.sha)
        if built is None:
            return None
        facts = replace(built.facts, patches=self.applied_patches(built.version))
        return InstalledBuild(facts, resolved_for(self.context, self.paths, built.version), built.version)

    def applied_patches(self, version: str) -> Mapping[str, bool]:
        """For each patch, by its name: whether the patch is applied to the version ``version``."""
        context = self.context
        with self.clock.measure_phase(PATCH):
            return with_version_patches(context.host, context.bare, self.sources, context.patches, version).patches

    def plan(self, context: BuildContext) -> BuildPlan:
        """The commands and the environment that build the checkout."""
        sums = {name: archive.sha256 for name, archive in self.needed.items()}
        return plan_for(context, self.sources.sha, self.paths, sums)

    def build(self) -> Generator[BuildStep | Warned, None, InstalledBuild]:
        """Build the commit, and store the build."""
        began, context, host = time.monotonic() - self.clock.total, self.context, self.context.host
        yield BuildStep(CHECKOUT)
        again = [f"{self.job_name}{_AGAIN}"] * self.incremental
        job = end_running_builds(host, kept_job_names=(self.job_name, f"{self.job_name}{_ALONE}", *again))
        try:
            if context.training:
                if job is None:
                    yield from self.train(context.training)
                context = replace(context, pgo_kind=PgoBuildKind.OPTIMISED)
            ended = yield from replace(self, context=context).build_or_wait(self.job_name, job)
        except BuildFailed:  # not for other errors: an interrupted build may still run, and reads the profile
            host.run(["rm", "-rf", "--", str(context.profile_folder)], timeout=600)
            raise
        plan = ended.plan
        log = host.script(_REMEMBER, context.work, "" if ended.incremental else ended.output.steps, timeout=600).stdout
        hits, misses, remote = cache_statistics(log)
        key = incremental_key(self.key) if ended.incremental else self.key
        with self.clock.measure_phase(RECORD):
            binary = ended.binary or self.hash_programs(plan) or key
        facts = BuildFacts(
            commit=self.sources.sha, key=key, binary=binary, seconds=time.monotonic() - began,
            cache_hits=hits, cache_misses=misses, remote_hits=remote, reused=False, log="", system=plan.system,
            patches=self.applied_patches(plan.version), partial=self.short_paths(ended.output.partial),
            programs=ended.output.programs, flags=context.builder.flags.options, incremental=ended.incremental,
        )  # fmt: skip
        if context.recorder:
            yield BuildStep(LINK)
            with self.clock.measure_phase(RELINK):
                facts = links.keep_links(host, context.work, ended.artifacts, context.variant, context.recorder, facts)
            if facts.fixed and ended.incremental:  # a link that the build did not repeat may have no record
                jobs.remove_folder(host, ended.job)
                return (yield from replace(self, incremental=False).build())
        with self.clock.measure_phase(RECORD):
            facts = build_store.add(host, facts, plan.version, context.work / "prefix", ended.job.folder / "stdout")
            if not ended.output.partial:  # the next build would search for programs that are missing
                incremental.note_last_build(context, plan, self.sources.built_commit, key)
        jobs.remove_folder(host, ended.job)
        phases = self.clock.phases(time.monotonic() - began)  # a job that an earlier session began took longer
        facts = replace(facts, phases=phases, seconds=sum(phases.values()))
        return InstalledBuild(facts, plan.builder, plan.version)

    def train(self, training: Training) -> Generator[BuildStep | Warned]:
        """Make the profile for a profile-guided build: build the commit with instrumentation, and run workloads."""
        training.check_workload_programs()
        context = replace(self.context, pgo_kind=PgoBuildKind.INSTRUMENTED)
        ended = yield from replace(self, context=context).build_or_wait(f"{self.job_name}-{PgoBuildKind.INSTRUMENTED}")
        yield BuildStep(TRAIN)
        sha, plan = self.sources.sha, ended.plan
        build = InstrumentedBuild(
            sha, self.key, plan.builder, plan.version, context.work / "prefix", context.profile_folder,
            context.variant.cc, context.tools.name,
        )  # fmt: skip
        try:
            with self.clock.measure_phase(TRAIN):
                trained = yield from training.train(build)
            if not trained:
                raise BuildFailed(
                    f"{sha[:10]} has no profile after its training with {training.workload_names}: the recipe must compile and link"
                    " with {cflags} and {ldflags} of the variant, and the programs must end by themselves",
                    stage=TRAIN,
                    log=self.save_log(ended),
                )
        finally:
            jobs.remove_folder(context.host, ended.job)

    def build_or_wait(
        self, name: str, job: jobs.Job | None = None
    ) -> Generator[BuildStep | Warned, None, BuildAttempt]:
        """Check out and build the commit by a job named ``name``, or wait for the running build ``job``."""
        context, sha = self.context, self.sources.sha[:10]
        if job is None:
            with self.clock.measure_phase(CHECKOUT):
                yield from prebuilt.download_and_unpack(context.host, self.needed.values())
            if self.incremental and (base := incremental.take_last_build_note(context)):
                yield from self.check_out(keep_untracked=True)
                if (ended := (yield from self.incremental_attempt(base))) and not ended.failed:
                    return ended
                yield BuildStep(CHECKOUT)
            yield from self.check_out()
        elif job.name.endswith(_AGAIN):
            ended = yield from self.attempt(self.plan(context), job.name, job)
            if not (ended.failed or ended.output.partial):
                return replace(ended, incremental=True)
            jobs.remove_folder(context.host, job)
            job = None
            yield from self.check_out()
        ended = yield from self.attempt(self.plan(context), name, job)
        if ended.failed and ended.job.name == name and (alone := self.single_job_plan(ended)):
            failure, at_once = self.save_failed_build(ended), job_count(context)
            yield Warned(f"{failure}; the build is repeated with one job instead of {at_once} jobs", failure.advice)
            yield BuildStep(CHECKOUT)
            yield from self.check_out()
            # The note begins the log of the second build, which is searched for errors, so the note quotes no error.
            stage = ended.output.stage
            note = f"perfbisect: with {at_once} jobs this build did not {stage}; it is repeated with one job"
            ended = yield from self.attempt(alone, f"{name}{_ALONE}", None, note)
            if not ended.failed and isinstance(failure, BuildFailed):
                yield Warned(
                    f"the build of {sha} depends on the order of its parts: it failed with {at_once} jobs, but succeeded"
                    " with one job",
                    "The build with one job is used. To build always with one job, set `jobs = 1` in hosts.toml.",
                )
        if ended.failed:
            raise self.save_failed_build(ended)
        return ended

    def incremental_attempt(self, base: LastBuild) -> Generator[BuildStep, None, BuildAttempt | None]:
        """Make an incremental build (in the folder of the last build); returns None if this is not possible."""
        context, plan = self.context, self.plan(self.context)
        with self.clock.measure_phase(CHECKOUT):
            way = incremental.incremental_build(context, plan, self.sources.built_commit, base)
            if way:
                way.prepare_tree(context.host, context.work)
        if way is None:
            return None
        ended = yield from self.attempt(replace(plan, commands=way.commands), f"{self.job_name}{_AGAIN}", None)
        failed = ended.failed or bool(ended.output.partial)  # a partial build may contain old programs
        if failed:
            jobs.remove_folder(context.host, ended.job)
        return replace(ended, plan=plan, incremental=True, failed=failed)

    def check_out(self, *, keep_untracked: bool = False) -> Generator[BuildStep]:
        """Check out the commit and its submodules. ``keep_untracked`` keeps files that git does not track."""
        context, builder = self.context, self.context.builder
        of = (context.host, builder.work_name, context.repository, self.sources.sha, builder.ignore, builder.repository)
        with self.clock.measure_phase(CHECKOUT):
            submodules = yield from checkout.bring_submodules(*of)
            check_out(context, self.sources, self.clock, submodules, keep_untracked=keep_untracked)

    def attempt(
        self, plan: BuildPlan, name: str, job: jobs.Job | None, note: str = ""
    ) -> Generator[BuildStep, None, BuildAttempt]:
        """Build the checkout by a job named ``name``, or wait for ``job``, which already builds the checkout. The build
        folder is emptied first, except for an incremental build.
        """
        host, work, how = self.context.host, self.context.work, required_build_section(plan.builder)
        with self.clock.measure_phase(CHECKOUT):
            steps = host.script(_STEPS if job or name.endswith(_AGAIN) else _EMPTY, work, timeout=600).stdout
        output = BuildLog(expected=int(steps) if steps.isdecimal() else 0)
        commands = plan.commands if name.endswith(_AGAIN) else commands_with_configure_results(self.context, plan)
        argv = ["sh", "-c", build_script(commands, note)]
        if COMPILERS in plan.env:  # the folder of COMPILERS becomes the first folder of PATH
            argv = ["sh", "-c", 'PATH=$0:$PATH exec "$@"', plan.env[COMPILERS], *argv]
        job = job or jobs.start(
            host, argv, name=name, cwd=work / "build", env=plan.env, timeout=how.timeout, merge_stderr=True
        )
        status = yield from follow_build(host, job, output)
        self.clock.add(output.phases)
        if status or (output.partial and output.host_trouble):
            return BuildAttempt(plan, job, output, status)
        prefix = work / "prefix"
        try:
            with self.clock.measure_phase(RECORD):
                artifacts = measured_files(host, prefix, how.artifacts, with_libraries=plan.with_libraries)
                binary = hash_artifacts(host, prefix, artifacts) if artifacts else ""
            if not (binary or host.run(["test", "-d", str(prefix)], check=False).ok):
                raise FileNotFoundError("anything")
        except FileNotFoundError as absent:
            output.error, output.stage = f"the build did not install {absent}", INSTALL
            return BuildAttempt(plan, job, output, 0)
        return BuildAttempt(plan, job, output, 0, False, artifacts, binary)

    def hash_programs(self, plan: BuildPlan) -> str:
        """A hash of the commit and its programs, equal for clean and incremental builds with equal programs; "" if
        incremental builds are not possible."""
        host, prefix = self.context.host, self.context.work / "prefix"
        if not incremental.build_method_hash(self.context, plan) or not (
            programs := incremental.built_programs(host, prefix)
        ):
            return ""
        return hashlib.sha256(f"{self.key} {hash_artifacts(host, prefix, programs)}".encode()).hexdigest()

    def single_job_plan(self, ended: BuildAttempt) -> BuildPlan | None:
        """The plan that repeats a failed build with one job; None if parallel jobs cannot be the cause."""
        trouble = ended.output.host_trouble
        of_the_host = bool(trouble) and not trouble.startswith(OUT_OF_MEMORY)
        of_the_host = of_the_host or facts.is_disk_nearly_full(self.context.host)
        if of_the_host or ended.output.stage == CONFIGURE or ended.status in _LATE:
            return None
        alone = self.plan(replace(self.context, entry=msgspec.structs.replace(self.context.entry, jobs=1)))
        return alone if (alone.commands, alone.env) != (ended.plan.commands, ended.plan.env) else None

    def save_log(self, ended: BuildAttempt) -> str:
        """Copy the log of a build into the host's folder ``logs``; returns the path of the copy."""
        host, sha = self.context.host, self.sources.sha
        log = str(host.root / "logs" / f"{self.context.builder.name}-{sha[:10]}-{self.key[:10]}.log")
        host.script(_SAVE_LOG, ended.job.folder / "stdout", log)
        return log

    def short_paths(self, text: str) -> str:
        """A compiler's message whose paths omit the build's folders, and the ``../`` that ccache writes."""
        return re.sub(rf"(?:{re.escape(str(self.context.work))}/|(?<![\w./])(?:\.\./)+)(?:source/)?", "", text)

    def save_failed_build(self, ended: BuildAttempt) -> BuildFailed | EnvironmentFailure:
        """The error to raise for a failed build, after saving the build's log."""
        host, output, sha = self.context.host, ended.output, self.sources.sha[:10]
        if output.host_trouble.startswith(DISK_FULL) or facts.is_disk_nearly_full(host):
            return disk_full_error(host.name, f"the build of {sha} stopped at: {output.failure_line()}")
        log = self.save_log(ended)
        jobs.remove_folder(host, ended.job)
        if output.host_trouble:
            return EnvironmentFailure(
                f"the build of {sha} stopped on host {host.name}: {output.host_trouble}",
                f"If memory is short, set a smaller number of `jobs` in hosts.toml. See {log}.",
            )
        late, stage, builder = ended.status in _LATE, output.stage, self.context.builder
        reason = (
            f"the build did not end within {required_build_section(ended.plan.builder).timeout:g} s"
            if late
            else self.short_paths(output.failure_line())
        )
        hint = build_dependencies_command(builder, facts.read_facts(host, SYSTEM_FACTS)) if stage == CONFIGURE else ""
        hint = hint and f"{hint}."
        kind = f"the {self.context.pgo_kind} build of " if self.context.pgo_kind else ""
        sentence = f"{kind}{sha} does not {stage}: {reason}"
        errors = tuple(map(self.short_paths, output.reports)) if len(output.reports) > 1 and not late else ()
        if output.known and not late:
            return KnownFailure(sentence, output.known, stage=stage, log=log, hint=hint, errors=errors)
        return BuildFailed(sentence, stage=stage, log=log, hint=hint, errors=errors)


def commit_build(context: BuildContext, sha: str) -> CommitBuild:
    """The build of a commit on a host, which its method ``build`` carries out.

    Raises BuildFailed if git cannot read the commit or the commit needs an unknown archive. Raises EnvironmentFailure.
    """
    host, builder, bare = context.host, context.builder, context.bare
    with (clock := PhaseStopwatch()).measure_phase(PATCH):
        sources = with_common_patches(host, bare, sha, context.patches)
    paths = present_condition_paths(context, sources.built_commit)
    tree = checkout.filtered_tree(host, bare, sources.built_commit, builder.ignore)
    tree = checkout.tree_id_with_submodules(tree, context.repository, sha, builder.ignore)
    needed = prebuilt.needed_archives(host, bare, sources, builder, paths)
    sums = [archive.sha256 for archive in needed.values()]
    key = build_key(context, tree, paths, sha, system_of_commit(builder, paths) or "", sums)
    return CommitBuild(context, sources, paths, needed, key, clock)


def check_out(
    context: BuildContext,
    sources: BuildSource,
    clock: PhaseStopwatch,
    submodules: Sequence[checkout.SubmoduleTree] = (),
    *,
    keep_untracked: bool = False,
) -> None:
    """Check out the sources of a commit, with the submodules ``submodules``; see ``checkout.checkout``."""
    host, bare, destination = context.host, context.bare, (context.work / "source", context.builder.ignore, submodules)
    checkout.checkout(host, bare, sources.built_commit, *destination, keep_untracked=keep_untracked)
    if any(patch.version for patch in context.patches):
        version = version_by_recipe_command(context, sources.sha)
        with clock.measure_phase(PATCH):
            fitting = with_version_patches(host, bare, sources, context.patches, version)
        if fitting.built_commit != sources.built_commit:
            checkout.checkout(host, bare, fitting.built_commit, *destination)
