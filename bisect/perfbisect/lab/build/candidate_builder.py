"""Builds candidates, and brings the results to the host that measures."""

from collections.abc import Generator, Iterator, Mapping
from pathlib import PurePosixPath

from perfbisect.core.domain.events import BuildFinished, BuildProgress, BuildStarted, LabEvent, Warned
from perfbisect.errors import BuildFailed, UsageError
from perfbisect.host.facts import PROCESSOR, ask
from perfbisect.host.protocol import Host
from perfbisect.lab.build import build_store, checkout, links, pipeline
from perfbisect.lab.build.candidates import Candidates
from perfbisect.lab.build.transfer import ship
from perfbisect.lab.steps import Steps


def send_sources(
    build_host: Host, name: str, candidates: Candidates, first: int
) -> Generator[LabEvent, None, tuple[PurePosixPath, bool]]:
    """Bring the sources to the host that builds, as a part of the build of the candidate ``first``.

    Returns the folder of the repository there, and whether that build has been announced.
    """
    assert candidates.repository
    announced = False
    sending = Steps(checkout.mirror(build_host, candidates.repository, name, candidates.tips()))
    for done, total in sending:
        if not announced:
            announced = True
            yield BuildStarted(first, candidates.describe(candidates.commits[first]))
        yield BuildProgress(first, done, total, "send")
    return sending.result, announced


def check_known(context: pipeline.BuildContext, candidates: Candidates, known: Mapping[str, str]) -> None:
    """Raise UsageError when commits would be built differently now; ``known`` is the key of each build so far."""
    commit = next((commit for commit in candidates.commits if commit in known), None)
    if commit and pipeline.key_of(context, commit) != known[commit]:
        raise UsageError(
            f"{commit[:10]} would now be built differently than earlier in this hunt, so the runs of then and now cannot"
            " be compared.",
            f"The recipe of {context.builder.name} or the compiler has changed: undo that, or begin a new hunt.",
        )


def other_processor(context: pipeline.BuildContext, host: Host) -> Iterator[Warned]:
    """Warn when builds are made for a processor that ``host``, which measures them, does not have."""
    if not build_store.for_processor(context.builder, context.variant):
        return
    built_for, measured_on = ask(context.host, PROCESSOR), ask(host, PROCESSOR)
    if built_for and measured_on and built_for != measured_on:
        yield Warned(
            f"host {context.host.name} compiles for its own processor, {built_for}, and host {host.name} has another:"
            f" {measured_on}",
            f"Choose a variant that does not depend on it, or remove `build_host` of {host.name} from hosts.toml.",
        )


class CandidateBuilder:
    """Builds with ``context``, on its host; ``host`` measures. ``context`` is None when every candidate is prebuilt."""

    def __init__(
        self, context: pipeline.BuildContext | None, host: Host, candidates: Candidates, *, announced: bool
    ) -> None:
        """``announced`` is whether BuildStarted of the first build has been yielded already."""
        self.built = dict(candidates.prebuilt)  # candidate → its build
        self.context = context
        self.host = host
        self.candidates = candidates
        self._announced = announced
        self._alone = False  # no build of an earlier session runs on ``host``

    @property
    def build_host(self) -> Host:
        """The host that builds."""
        return self.context.host if self.context else self.host

    def announce(self, candidate: int) -> Generator[LabEvent]:
        """Yield BuildStarted, unless sending the sources did."""
        if not self._announced:
            yield BuildStarted(candidate, self.candidates.describe(self.candidates.commits[candidate]))
        self._announced = False

    def build(self, candidate: int) -> Generator[LabEvent]:
        """Build a candidate, or find it built. Raises BuildFailed, and JobLost when the host has lost the build."""
        assert self.context
        commit = self.candidates.commits[candidate]
        building = Steps(pipeline.build(self.context, commit))
        try:
            for step in building:
                if isinstance(step, Warned):
                    yield step
                else:
                    yield BuildProgress(candidate, step.done, step.total, step.stage)
        finally:
            building.work.close()
        built = building.result
        if built.facts.fixed and not any(other.facts.fixed for other in self.built.values()):
            yield Warned(
                f"{self.candidates.name(candidate)} cannot be linked again with its functions in another order:"
                f" {built.facts.fixed}",
                "What placement of the code alone does to the speed is then not known.",
            )
        elsewhere = self.context.host.name != self.host.name
        if elsewhere:
            yield BuildProgress(candidate, 0, 0, "ship")
            ship(self.context.host, self.context.builder.work_name, built.facts.key, self.host)
        self._alone = self._alone or not (built.facts.reused or elsewhere)  # a build ends all others first
        same = self.same_binary(candidate, built)
        self.built[candidate] = built
        yield BuildFinished(candidate, built.facts, same)

    def link(self, candidate: int, layout: int) -> str:
        """Link a built candidate again in the layout of that seed; returns the key of what is installed then.

        Raises BuildFailed where that cannot be.
        """
        facts = self.built[candidate].facts
        if self.context is None or self.context.recorder is None or not facts.linker:
            reason = facts.fixed or "its links were not recorded"
            raise BuildFailed(f"it cannot be linked again: {reason}", stage=links.LINK, log=facts.log)
        made = links.link(self.context.host, facts.key, layout, self.context.recorder.linker)
        if self.context.host.name != self.host.name:
            ship(self.context.host, self.context.builder.work_name, made, self.host)
        return made

    def unlink(self, made: str) -> None:
        """Remove what ``link`` has made."""
        for host in {self.build_host.name: self.build_host, self.host.name: self.host}.values():
            links.remove(host, made)

    def same_binary(self, candidate: int, built: pipeline.Built) -> int | None:
        """The first candidate with the same binary in the same layout."""
        binary, layout = built.facts.binary, self.candidates.layouts.get(candidate)
        return next(
            (
                other
                for other, known in self.built.items()
                if known.facts.binary == binary and self.candidates.layouts.get(other) == layout
            ),
            None,
        )

    def end_others(self) -> None:
        """End builds of earlier sessions on the host that measures."""
        if not self._alone:
            pipeline.end_all(self.host)
            self._alone = True
