"""Makes the builds of a session on the hosts that build, in advance or when a measurement needs the builds, and copies
the builds to the host that measures.
"""

import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, nullcontext, suppress
from dataclasses import dataclass, field, replace
from pathlib import PurePath
from typing import TypeVar

from perfbisect.core.domain.events import BuildFinished, BuildProgress, BuildStarted, CandidateSkipped, LabEvent, Warned
from perfbisect.core.domain.orders import BuildOrder
from perfbisect.errors import (
    BuildFailed,
    BuildFilesChanged,
    ConnectionLost,
    EnvironmentFailure,
    HostUnreachable,
    JobLost,
    PerfBisectError,
    RangeEndFailed,
)
from perfbisect.host.facts import free_bytes
from perfbisect.host.protocol import Host
from perfbisect.lab import GeneratorWithResult
from perfbisect.lab.building import build_store, checkout, links, pipeline, prebuilt
from perfbisect.lab.building.candidates import BuildRegistry, Candidates, LabHost, build_with_remedy
from perfbisect.lab.building.log_parser import LINK, SEND, BuildStep, KnownFailure
from perfbisect.lab.building.plan import BuildContext, InstalledBuild
from perfbisect.lab.host_watch import WorkRetryPolicy, warn_if_space_low, while_lock_held
from perfbisect.lab.training import Trainer
from perfbisect.lab.upkeep import tidy_after_killed_sessions
from perfbisect.process import seconds_since_boot
from perfbisect.recipes.builder import Builder
from perfbisect.recipes.workload import Workload

T = TypeVar("T")


@dataclass
class BuildSite:
    """Builds candidates on one host, and stores the facts of these builds in ``made``.

    A BuildSite does nothing on the host before the first build. If ``names_host`` is true, the events of a BuildSite
    have the name of the host. If ``layouts`` is true, the builds are made so that they can be linked again in
    randomized layouts.
    """

    lab_host: LabHost
    builder: Builder
    variant: str
    candidates: Candidates
    made: BuildRegistry
    layouts: bool = False
    names_host: bool = False
    training: tuple[Workload, ...] = ()  # workloads that train builds with profile-guided optimization
    stood_in: bool = False  # whether other hosts can build while this host is out of reach
    _warned: set[str] = field(default_factory=set, init=False)
    _announced: int | None = field(default=None, init=False)  # the candidate whose build began with sending the sources
    _retry: WorkRetryPolicy | None = field(default=None, init=False)

    @property
    def host_name(self) -> str:
        return self.lab_host.host.name

    def build(self, candidate: int, *, clean: bool = True) -> Generator[LabEvent, None, bool]:
        """Build a candidate on this host, unless the host has built it; returns false if the candidate is skipped. The
        call waits until the host is free. The build may be incremental, unless ``clean`` is true.

        Raises UsageError if builds would differ from the builds of earlier sessions, and EnvironmentFailure if the host
        cannot build.
        """
        with self.lab_host.lock:
            work, held = self._with_build_start(candidate, self._build(candidate, clean)), self.lab_host.host_lock
            return (yield from while_lock_held(held, work) if held else work)

    def build_ahead(self, order: BuildOrder) -> Generator[LabEvent]:
        """Build the candidate of a build order (a request to build in advance), unless the candidate is already built.
        The build stays on this host until another host needs the build. If the build fails, the candidate is skipped.

        Raises EnvironmentFailure if the host cannot build or its lock is lost; the host then builds no further
        candidate. If the error is HostUnreachable, the host builds again when it can be reached. Raises
        PerfBisectError, which ends the hunt, if an end of the range cannot be built, because other hosts could not
        build the end either, and might fail only after hours.
        """
        held = self.lab_host.host_lock
        assert held
        try:
            held.check_held()
            yield from warn_if_space_low(self.lab_host.host, free_bytes(self.lab_host.host), self._warned)
            yield from self.build(order.candidate, clean=not order.incremental)
        except RangeEndFailed as failure:
            raise PerfBisectError(str(failure), failure.advice) from failure.__cause__
        except EnvironmentFailure as failure:
            self.made.lost.add(self.host_name)
            since = seconds_since_boot()
            if self.stood_in and isinstance(failure, ConnectionLost):
                raise HostUnreachable(failure, lambda: held.seen > since and not held.lost) from failure
            raise

    def find_build(self, candidate: int) -> Generator[LabEvent, None, bool]:
        """Whether the host has a build of a candidate; a build that is found is added to ``made``. If the host is
        making a build, this function does not wait for the end of that build, unless the host also measures.
        """
        with self.lab_host.short_task_lock:
            context = yield from self._with_build_start(candidate, self._build_context(candidate))
            if built := pipeline.find_stored_build(context, self.candidates.commits[candidate]):
                yield from self._with_build_start(candidate, self._report_build(candidate, built))
            return built is not None

    def build_key(self, candidate: int) -> Generator[LabEvent, None, str]:
        """The key of a candidate's build. The key is equal on all build hosts. Raises BuildFailed if git cannot read
        the commit."""
        with self.lab_host.short_task_lock:
            context = yield from self._with_build_start(candidate, self._build_context(candidate))
            return pipeline.build_key_of_commit(context, self.candidates.commits[candidate])

    def has_build(self, key: str) -> bool:
        """Whether the host has the build with the given key. A host that cannot be reached is excluded from further
        builds."""
        try:
            return build_store.has_build_or_layout(self.lab_host.host, key)
        except EnvironmentFailure:
            self.made.lost.add(self.host_name)
            return False

    def _build_context(self, candidate: int) -> Generator[LabEvent, None, BuildContext]:
        """The context that all builds on this host use.

        Before the first build, processes and files that earlier sessions have left are removed, and the sources are
        sent to the host; events report these steps as a part of the candidate's build.
        """
        host, entry, candidates = self.lab_host.host, self.lab_host.entry, self.candidates
        context = self.made.contexts.get(self.host_name)
        if context is None:
            yield from self.made.tidy_host_once(self.host_name, tidy_after_killed_sessions(host))
            assert candidates.repository
            self._announced, tips = None, candidates.commits_to_fetch()
            sending = GeneratorWithResult(
                checkout.bring_mirror(host, candidates.repository, self.builder.work_name, tips)
            )
            for done, total in sending:
                if self._announced is None:
                    yield self._started(candidate)
                    self._announced = candidate
                yield BuildProgress(candidate, done, total, SEND)
            training = Trainer(host, entry, self.builder, self.training) if self.training else None
            context = pipeline.build_context(
                host, entry, self.builder, self.variant, sending.result, candidates.repository, layouts=self.layouts
            )
            context = replace(context, patches=candidates.patches, training=training)
            self.made.check_and_add_host(context, candidate)
        self._retry = self._retry or WorkRetryPolicy(host, candidates)
        return replace(context, host=host)

    def _build(self, candidate: int, clean: bool) -> Generator[BuildStep | LabEvent, None, bool]:
        began, sha = time.monotonic(), self.candidates.commits[candidate]
        with self.lab_host.second_lock or nullcontext():
            context = yield from self._build_context(candidate)
        assert self._retry
        while True:
            try:
                yield from self._report_build(
                    candidate, (yield from pipeline.build_commit(context, sha, self.lab_host.shared, clean=clean))
                )
            except JobLost as lost:
                yield (event := self._retry.lost_work_event(candidate, lost, "compile", began))
                if not isinstance(event, Warned):
                    return False
            except BuildFailed as failure:
                if isinstance(failure, KnownFailure) and self.made.should_try_remedies(candidate, failure):
                    yield from build_with_remedy(context, sha, failure)
                yield self._retry.skip_event(candidate, failure, began)
                return False
            else:
                self._retry.note_success()
                return True

    def _started(self, candidate: int, *, reused: bool = False) -> BuildStarted:
        return BuildStarted(candidate, self.candidates.describe(self.candidates.commits[candidate]), reused=reused)

    def _with_build_start(
        self, candidate: int, work: Generator[BuildStep | LabEvent, None, T]
    ) -> Generator[LabEvent, None, T]:
        """Yield the events of a build on this host. The first event reports the start of the build, unless the start
        was already reported when the sources were sent, or the build exists already.
        """
        steps, begun = GeneratorWithResult(work), False
        with closing(work):
            for step in steps:
                if isinstance(step, Warned):
                    yield step
                    continue
                events = [
                    BuildProgress(candidate, step.done, step.total, step.stage) if isinstance(step, BuildStep) else step
                ]
                if not (begun or self._announced == candidate or isinstance(step, BuildStarted)):
                    is_reused = isinstance(step, BuildFinished) and step.facts.reused and not step.facts.shared
                    events.insert(0, self._started(candidate, reused=is_reused))
                begun = True
                for event in events:
                    yield replace(event, host=self.host_name) if self.names_host else event
                if isinstance(step, BuildFinished | CandidateSkipped) and self._announced == candidate:
                    self._announced = None
        return steps.result

    def _report_build(self, candidate: int, built: InstalledBuild) -> Generator[LabEvent]:
        """Store the facts of a build in ``made``, and report the build; the order of the reports is the order in which
        threads store builds.
        """
        with self.made.lock:
            yield from self._new_warnings(candidate, built)
            yield BuildFinished(candidate, built.facts, self.made.add(candidate, built, self.host_name))

    def _new_warnings(self, candidate: int, built: InstalledBuild) -> Iterator[Warned]:
        """Warnings about a build. A warning that was already given for another build is not repeated."""
        facts, facts_of_all = built.facts, [earlier.facts for earlier in self.made.built.values()]
        name = self.candidates.display_name(candidate)
        if facts.partial and not any(earlier.partial for earlier in facts_of_all):
            text = f"a part of {name} does not build: {facts.partial}"
            yield Warned(
                text,
                f"The measured programs were built, so the commit is measured. Similar warnings are not repeated. See {facts.log}.",
            )
        if (trouble := self.made.why_other_program_file(built)) and not any(
            map(self.made.why_other_program_file, self.made.built.values())
        ):
            text = f"{name} may run another program than other commits: {trouble}"
            yield Warned(
                text,
                "The commit is measured. Similar warnings are not repeated. To run the same file for all commits: --program PATH.",
            )
        if facts.fixed not in ("", links.NOT_COMPILED) and not any(earlier.fixed for earlier in facts_of_all):
            yield links.layouts_unavailable_warning(facts.fixed)
        for program, (path, *rivals) in facts.programs.items():
            if rivals and not any(earlier.programs.get(program, ("",))[0] == path for earlier in facts_of_all):
                text = f"several files of the build have the name {PurePath(program).name}: {path} is run, not"
                first = "Preferred are the path of the command, then files that load no library of the build, then the shortest path."
                yield Warned(f"{text} {' or '.join(rivals)}", f"{first} To choose another file: --program PATH.")


class BuildFetcher:
    """Copies builds from the build hosts ``sites`` to ``host``, the host that measures; makes missing builds first."""

    def __init__(self, sites: Sequence[BuildSite], host: Host, candidates: Candidates, made: BuildRegistry) -> None:
        self.sites = sites
        self.host = host
        self.candidates = candidates
        self.made = made
        # Candidate → the key of its build that ``host`` has.
        self._here = {candidate: built.facts.key for candidate, built in candidates.prebuilt.items()}
        self.alone = False  # whether it is certain that no build of an earlier session runs on ``host``
        self._linked: dict[str, tuple[Host, str]] = {}  # key of a layout → (host that linked it, key of its build)

    def build_and_copy(self, candidate: int, *, clean: bool = True) -> Generator[LabEvent, None, bool]:
        """Build a candidate and copy the build to ``host``; returns whether the candidate is worth measuring. If
        ``clean`` is true, a clean build replaces an incremental build.

        A candidate is not worth measuring if it is skipped, or if its new build has the same binary as another
        candidate. Raises EnvironmentFailure if the hosts cannot build the candidate or send its build, and UsageError
        if builds would differ from the builds of earlier sessions.
        """
        while not self._is_here(candidate) or not self.made.has_build(candidate, clean=clean):
            new = not self.made.has_build(candidate, clean=clean)
            if new:
                self._here.pop(candidate, None)
            if new and not (yield from self._find_build(candidate)) and not (yield from self._build(candidate, clean)):
                return False
            yield from self._send_build(candidate)
            if new and self._is_here(candidate) and self.made.first_with_same_binary(candidate) != candidate:
                return False
        return True

    def _is_here(self, candidate: int) -> bool:
        """Whether ``host`` has the latest build of a candidate. A later call can return false after an earlier call has
        returned true, because another host's work order may have caused a new build of the candidate."""
        built = self.made.built.get(candidate)
        return built is not None and self._here.get(candidate) == built.facts.key

    def _find_build(self, candidate: int) -> Generator[LabEvent, None, bool]:
        """Whether one of the build hosts already has a build of the candidate. With only one build host, the result is
        false without a search, because ``BuildSite.build`` itself searches for an earlier build.
        """
        host = self.made.host_of(candidate)
        sites = sorted(self._usable_sites(), key=lambda site: site.host_name != host)
        if len(self.sites) == 1 or not sites:
            return False
        with suppress(BuildFailed, EnvironmentFailure):  # an error is ignored here: the later build will report it
            key = yield from sites[0].build_key(candidate)
            if site := next((site for site in sites if site.has_build(key)), None):
                return (yield from site.find_build(candidate))
        return False

    def _build(self, candidate: int, clean: bool) -> Generator[LabEvent, None, bool]:
        """Build a candidate on ``host`` if ``host`` can build, otherwise on the build host with the least work; returns
        false if the candidate is skipped.
        """
        while sites := self._usable_sites():
            site = min(sites, key=lambda site: (site.host_name != self.host.name, len(site.lab_host.lock.waiting)))
            try:
                return (yield from site.build(candidate, clean=clean))
            except RangeEndFailed:
                raise
            except EnvironmentFailure as failure:
                if not self._usable_sites(without=site):
                    raise
                self.made.lost.add(site.host_name)
                yield Warned(f"host {site.host_name} does not build any more: {failure}", "The other hosts continue.")
        name = self.candidates.display_name(candidate)
        raise EnvironmentFailure(f"{name} cannot be built: all build hosts of {self.host.name} failed")

    def _usable_sites(self, without: BuildSite | None = None) -> list[BuildSite]:
        """The build hosts that can still build. The measuring host is included only if its entry allows builds, or if
        there is no other build host.
        """
        sites = [site for site in self.sites if site is not without and site.host_name not in self.made.lost]
        name = self.host.name
        return [site for site in sites if site.host_name != name or site.lab_host.entry.builds_itself] or sites

    def _send_build(self, candidate: int) -> Iterator[LabEvent]:
        """Send a build to ``host``. If the host that has the build cannot be reached, the function forgets the build
        and yields a warning."""
        facts, site = self.made.built[candidate].facts, self._site(candidate)
        if site.host_name == self.host.name:
            self.alone = self.alone or not facts.reused  # a new build first ends all other builds on the host
        else:
            yield BuildProgress(candidate, 0, 0, "ship")
            try:
                with site.lab_host.short_task_lock:
                    build_store.ship_build(site.lab_host.host, site.builder.work_name, facts.key, self.host)
            except BuildFilesChanged as changed:
                self.remove_changed_build(changed)
                yield Warned(f"{self.candidates.display_name(candidate)} is built again: {changed}")
                return
            except EnvironmentFailure as failure:
                yield self.forget_lost_build(candidate, failure)
                return
        self._here[candidate] = facts.key

    def forget_lost_build(self, candidate: int, failure: EnvironmentFailure) -> Warned:
        """Forget a build that its host can no longer send to the measuring host. Raises ``failure`` if the build's host
        is not to blame or no other host can build."""
        site, key = self._site(candidate), self.made.built[candidate].facts.key
        if site.host_name == self.host.name or not self._usable_sites(without=site):
            raise failure
        if isinstance(failure, ConnectionLost):  # even if the build host answers again by now
            build_store.has_build_or_layout(self.host, key)  # raises an error if the measuring host is out of reach
            self.made.lost.add(site.host_name)
        elif site.has_build(key):
            raise failure
        self.made.places.pop(candidate, None)
        self._here.pop(candidate, None)
        name = self.candidates.display_name(candidate)
        text = f"the build of {name} cannot be copied from host {site.host_name}: {failure}"
        return Warned(text, "The commit is built again.")

    def _site(self, candidate: int) -> BuildSite:
        host = self.made.host_of(candidate)
        return next(site for site in self.sites if site.host_name == host)

    def relink(self, candidate: int, seed: int) -> str:
        """Link a built candidate again, in the layout with ``seed``; returns the key of the layout.

        Raises BuildFailed if the build cannot be linked again, and BuildFilesChanged if files of the build have changed
        since it was made.
        """
        facts = self.made.built[candidate].facts
        site = self._site(candidate) if facts.linker else None
        context = self.made.contexts.get(site.host_name) if site else None
        if site is None or context is None or context.recorder is None:
            reason = facts.fixed or "the commands of the linker were not recorded"
            raise BuildFailed(f"the build cannot be linked again: {reason}", stage=LINK, log=facts.log)
        with site.lab_host.short_task_lock:
            layout_key = links.link_layout(site.lab_host.host, facts.key, seed, context.recorder.linker)
            self._linked[layout_key] = site.lab_host.host, facts.key
            if site.host_name != self.host.name:
                build_store.ship_build(site.lab_host.host, site.builder.work_name, layout_key, self.host)
        return layout_key

    def remove_layout(self, layout_key: str) -> None:
        """Remove a layout that was made by ``link``."""
        linked, key = self._linked.pop(layout_key, (self.host, ""))
        for host in {host.name: host for host in (linked, self.host)}.values():
            build_store.remove_build_or_layout(host, layout_key, key)

    def remove_changed_build(self, changed: BuildFilesChanged) -> None:
        """Remove a build whose files have changed, so that ``build_and_copy`` builds or sends it again. If the build
        came from a tarball, the tarball is unpacked again."""
        hosts = {host.name: host for host in (self.host, *(site.lab_host.host for site in self.sites))}
        build_store.remove_build_or_layout(hosts[changed.host], changed.key)
        builds = list(self.made.built.items())  # a copy, because other threads add builds
        for candidate, built in ((candidate, built) for candidate, built in builds if built.facts.key == changed.key):
            if built.tarball:
                prebuilt.unpack_tarball_as_build(self.host, built.tarball)
                continue
            self._here.pop(candidate, None)
            if self.made.host_of(candidate) == changed.host:
                self.made.places.pop(candidate, None)
