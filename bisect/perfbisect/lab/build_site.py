"""A host that builds, as one lab uses it: for what is measured now, or ahead of what is measured elsewhere."""

import time
from collections.abc import Generator, Iterator
from contextlib import closing, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath
from typing import TypeVar

from perfbisect.clock import elapsed
from perfbisect.core.domain.events import BuildFinished, BuildProgress, BuildStarted, LabEvent, Warned
from perfbisect.errors import (
    BuildFailed,
    ConnectionLost,
    EndFailed,
    EnvironmentFailure,
    HostAway,
    JobLost,
    PerfBisectError,
)
from perfbisect.host.facts import free_bytes
from perfbisect.host.lock import HostLock
from perfbisect.host.protocol import Host
from perfbisect.lab import Steps
from perfbisect.lab.build import checkout, pipeline
from perfbisect.lab.build.candidates import BuildsMade, Candidates
from perfbisect.lab.build.lab_host import LabHost
from perfbisect.lab.build.plan import BuildContext, Built
from perfbisect.lab.build.shared_builds import obtain
from perfbisect.lab.guarded_lab import RetryPolicy, enough_space
from perfbisect.lab.training import Trainer
from perfbisect.lab.upkeep import tidy
from perfbisect.recipes.builder import Builder
from perfbisect.recipes.workload import Workload

T = TypeVar("T")


@dataclass
class BuildSite:
    """Builds candidates on one host, and keeps what it has built in ``made``.

    Nothing is done there before the first build. ``named``: its events have the name of the host. With ``layouts`` its
    builds can be linked again.
    """

    place: LabHost
    builder: Builder
    variant: str
    candidates: Candidates
    made: BuildsMade
    layouts: bool = False
    named: bool = False
    training: tuple[Workload, ...] = ()  # with which builds are trained, where they are optimised with a profile
    _announced: bool = field(default=False, init=False)
    _retry: RetryPolicy | None = field(default=None, init=False)

    @property
    def name(self) -> str:
        """The name of the host."""
        return self.place.host.name

    def build(self, candidate: int) -> Generator[LabEvent, None, bool]:
        """Build a candidate, or find it built there; false when it is skipped. Waits until the host is free.

        Raises UsageError when builds would differ from earlier sessions', and EnvironmentFailure.
        """
        with self.place.lock:
            return (yield from self._marked(self._build(candidate)))

    def find(self, candidate: int) -> Generator[LabEvent, None, bool]:
        """Whether the host has a build of a candidate, which is kept in ``made`` then. On a host that only builds it does
        not wait for the present build.
        """
        with self.place.beside:
            return (yield from self._marked(self._find(candidate)))

    def key(self, candidate: int) -> Generator[LabEvent, None, str]:
        """The key of the build of a candidate, which is the same on all build hosts. Raises BuildFailed where there is none."""
        with self.place.beside:
            context = yield from self._marked(self._open(candidate))
            return pipeline.key_of(context, self.candidates.commits[candidate])

    def _marked(self, events: Generator[LabEvent, None, T]) -> Generator[LabEvent, None, T]:
        steps = Steps(events)
        try:
            for event in steps:
                yield replace(event, host=self.name) if self.named and not isinstance(event, Warned) else event
        finally:
            events.close()
        return steps.result

    def _open(self, candidate: int) -> Generator[LabEvent, None, BuildContext]:
        """What all builds there share.

        The first time, what earlier sessions have left is ended and removed, and the sources are sent, as a part of the
        build of the candidate.
        """
        host, candidates = self.place.host, self.candidates
        context = self.made.context(self.name)
        if context is None:
            yield from self.made.tidy_once(self.name, tidy(host))
            assert candidates.repository
            bare, self._announced = yield from send_sources(host, self.builder.work_name, candidates, candidate)
            context = pipeline.build_context(
                host, self.place.entry, self.builder, self.variant, bare, candidates.repository, candidates.patches,
                layouts=self.layouts,
                training=Trainer(host, self.place.entry, self.builder, self.training) if self.training else None,
            )  # fmt: skip
            self.made.open(context, candidate)
        self._retry = self._retry or RetryPolicy(host, candidates)
        return replace(context, host=host)

    def _find(self, candidate: int) -> Generator[LabEvent, None, bool]:
        context = yield from self._open(candidate)
        built = pipeline.find(context, self.candidates.commits[candidate])
        if built is None:
            return False
        yield from self._announce(candidate)
        yield from self._keep(candidate, built)
        return True

    def _build(self, candidate: int) -> Generator[LabEvent, None, bool]:
        began = time.monotonic()
        with self.place.only_builds or nullcontext():
            context = yield from self._open(candidate)
        assert self._retry
        yield from self._announce(candidate)
        while True:
            try:
                yield from self._attempt(context, candidate)
            except JobLost as lost:
                yield (event := self._retry.lost(candidate, lost, "compile", began))
                if not isinstance(event, Warned):
                    return False
            except BuildFailed as failure:
                yield self._retry.failed(candidate, failure, began)
                return False
            else:
                self._retry.succeeded()
                return True

    def _announce(self, candidate: int) -> Iterator[BuildStarted]:
        """Yield BuildStarted, unless sending the sources did."""
        if not self._announced:
            yield BuildStarted(candidate, self.candidates.describe(self.candidates.commits[candidate]))
        self._announced = False

    def _attempt(self, context: BuildContext, candidate: int) -> Generator[LabEvent]:
        building = Steps(obtain(self.place.shared, context, self.candidates.commits[candidate]))
        try:
            for step in building:
                if isinstance(step, Warned):
                    yield step
                else:
                    yield BuildProgress(candidate, step.done, step.total, step.stage)
        finally:
            building.work.close()
        yield from self._keep(candidate, building.result)

    def _keep(self, candidate: int, built: Built) -> Generator[LabEvent]:
        """Keep a build and report it; threads report in the order in which they keep."""
        with self.made.lock:
            if built.facts.fixed and not any(other.facts.fixed for other in self.made.built.values()):
                yield Warned(
                    f"{self.candidates.name(candidate)} cannot be linked again with its functions in another order:"
                    f" {built.facts.fixed}",
                    "What placement of the code alone does to the speed is then not known.",
                )
            yield BuildFinished(candidate, built.facts, self.made.add(candidate, built, self.name))


def send_sources(
    host: Host, name: str, candidates: Candidates, first: int
) -> Generator[LabEvent, None, tuple[PurePosixPath, bool]]:
    """Bring the sources to the host that builds, as a part of the build of the candidate ``first``.

    Returns the folder of the repository there, and whether that build has been announced.
    """
    assert candidates.repository
    announced = False
    sending = Steps(checkout.mirror(host, candidates.repository, name, candidates.tips()))
    for done, total in sending:
        if not announced:
            announced = True
            yield BuildStarted(first, candidates.describe(candidates.commits[first]))
        yield BuildProgress(first, done, total, "send")
    return sending.result, announced


@dataclass
class BuildLab:
    """Builds on ``site`` while it holds the host's lock; what it builds stays there until it is wanted elsewhere."""

    site: BuildSite
    held: HostLock
    stood_in: bool = False  # others can build while it is out of reach
    warned: set[str] = field(default_factory=set)

    def build(self, candidate: int) -> Generator[LabEvent]:
        """Build a candidate, or find it built; one that fails yields CandidateSkipped.

        Raises EnvironmentFailure when the host cannot do it, or its lock is lost: it builds no further then, or with
        HostAway for a while. What is not the host's fault ends the hunt: an end of the range that does not build there
        would not build elsewhere, after hours perhaps.
        """
        try:
            self.held.confirm()
            yield from enough_space(self.site.place.host, free_bytes(self.site.place.host), self.warned)
            with closing(self.site.build(candidate)) as events:
                for event in events:
                    self.held.confirm()
                    yield event
        except EndFailed as failure:
            raise PerfBisectError(str(failure), failure.advice) from failure.__cause__
        except EnvironmentFailure as failure:
            self.site.made.lose(self.site.name)
            since = elapsed()
            if self.stood_in and isinstance(failure, ConnectionLost):
                raise HostAway(failure, lambda: self.held.seen > since and not self.held.lost) from failure
            raise
