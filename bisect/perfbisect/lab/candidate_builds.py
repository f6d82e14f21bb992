"""The builds of candidates on the host that measures them: made there, or brought from the hosts that build."""

from collections.abc import Generator, Iterator, Sequence
from contextlib import suppress

from perfbisect.core.domain.events import BuildProgress, LabEvent, Warned
from perfbisect.errors import BuildChanged, BuildFailed, EndFailed, EnvironmentFailure
from perfbisect.host.facts import PROCESSOR, ask
from perfbisect.host.protocol import Host
from perfbisect.lab.build import build_store, links, prebuilt
from perfbisect.lab.build.build_store import ship
from perfbisect.lab.build.candidates import BuildsMade, Candidates
from perfbisect.lab.build.pipeline import end_all
from perfbisect.lab.build.plan import BuildContext
from perfbisect.lab.build_site import BuildSite


class CandidateBuilds:
    """Brings what ``sites`` have built to ``host``, which measures; builds there what none has."""

    def __init__(self, sites: Sequence[BuildSite], host: Host, candidates: Candidates, made: BuildsMade) -> None:
        self.sites = sites
        self.host = host
        self.candidates = candidates
        self.made = made
        self._here: set[int] = set(candidates.prebuilt)
        self._alone = False  # no build of an earlier session runs on ``host``
        self._compared: set[str] = set()  # sites whose processor was compared with that of ``host``
        self._linked: dict[str, tuple[Host, str]] = {}  # key of a layout → where it was linked, key of its build

    def obtain(self, candidate: int) -> Generator[LabEvent, None, bool]:
        """Have a candidate built and installed on ``host``; true when it is worth measuring.

        It is not where it is skipped, or was built just now and is the binary of another.
        Raises EnvironmentFailure, and UsageError when builds would differ from earlier sessions'.
        """
        while candidate not in self._here or not self.made.has(candidate):
            new = not self.made.has(candidate)
            if new and not (yield from self._found(candidate)) and not (yield from self._build(candidate)):
                return False
            yield from self._bring(candidate)
            if new and candidate in self._here and self.made.same_binary(candidate) != candidate:
                return False
        return True

    def _found(self, candidate: int) -> Generator[LabEvent, None, bool]:
        """Whether one of several sites has built the candidate earlier; a single one looks for itself when it builds."""
        known = self.made.place(candidate)
        sites = sorted(self._left(), key=lambda site: site.name != known)
        if len(self.sites) == 1 or not sites:
            return False
        with suppress(BuildFailed, EnvironmentFailure):  # which a build will report
            key = yield from sites[0].key(candidate)
            for site in sites:
                if self._has(site, key):
                    return (yield from site.find(candidate))
        return False

    def _build(self, candidate: int) -> Generator[LabEvent, None, bool]:
        """Build a candidate here if ``host`` builds, or on the site that is least busy; false when it is skipped."""
        while left := self._left():
            site = min(left, key=lambda site: (site.name != self.host.name, site.place.lock.requests))
            try:
                return (yield from site.build(candidate))
            except EndFailed:
                raise
            except EnvironmentFailure as failure:
                if not self._left(without=site):
                    raise
                self.made.lose(site.name)
                yield Warned(f"host {site.name} builds no further: {failure}", "The others go on without it.")
        raise EnvironmentFailure(
            f"{self.candidates.name(candidate)} cannot be built: no build host of {self.host.name} is left"
        )

    def _left(self, without: BuildSite | None = None) -> list[BuildSite]:
        """Where builds are made; on a host that should only measure, where there is no other."""
        left = [site for site in self.sites if site is not without and not self.made.is_lost(site.name)]
        return [site for site in left if site.name != self.host.name or site.place.entry.builds] or left

    def _has(self, site: BuildSite, key: str) -> bool:
        """Whether a site has the build with that key. One that cannot be reached builds no further."""
        try:
            return build_store.has(site.place.host, key)
        except EnvironmentFailure:
            self.made.lose(site.name)
            return False

    def _bring(self, candidate: int) -> Iterator[LabEvent]:
        """Send a build to ``host``. If the site that has it is lost, the build is forgotten instead, with a warning."""
        facts, site = self.made.built[candidate].facts, self._site(candidate)
        yield from self._processors(site)
        if site.name == self.host.name:
            self._alone = self._alone or not facts.reused  # a build ends all others first
        else:
            yield BuildProgress(candidate, 0, 0, "ship")
            try:
                with site.place.beside:
                    ship(site.place.host, site.builder.work_name, facts.key, self.host)
            except BuildChanged as changed:
                self.renew(changed)
                yield Warned(f"{self.candidates.name(candidate)}: {changed}: it is made again")
                return
            except EnvironmentFailure as failure:
                yield self.give_up(candidate, failure)
                return
        self._here.add(candidate)

    def give_up(self, candidate: int, failure: EnvironmentFailure) -> Warned:
        """Forget a build that cannot be had from the host that made it. Raises ``failure`` where it has another cause."""
        site = self._site(candidate)
        here = site.name == self.host.name or not self._left(without=site)
        if here or self._has(site, self.made.built[candidate].facts.key):
            raise failure
        self.made.forget(candidate)
        self._here.discard(candidate)
        name = self.candidates.name(candidate)
        return Warned(f"{name} cannot be brought from host {site.name}: {failure}", "It is built again.")

    def _site(self, candidate: int) -> BuildSite:
        place = self.made.place(candidate)
        return next(site for site in self.sites if site.name == place)

    def _processors(self, site: BuildSite) -> Iterator[Warned]:
        """Once for each site, ``other_processor``."""
        context = self.made.context(site.name)
        if context and site.name not in self._compared:
            self._compared.add(site.name)
            yield from other_processor(context, site.place.host, self.host)

    def link(self, candidate: int, layout: int) -> str:
        """Link a built candidate again in the layout of that seed; returns the key of what is installed then.

        Raises BuildFailed where that cannot be, and BuildChanged where the build is not as it was made.
        """
        facts = self.made.built[candidate].facts
        site = self._site(candidate) if facts.linker else None
        context = self.made.context(site.name) if site else None
        if site is None or context is None or context.recorder is None:
            reason = facts.fixed or "its links were not recorded"
            raise BuildFailed(f"it cannot be linked again: {reason}", stage=links.LINK, log=facts.log)
        with site.place.beside:
            made = links.link(site.place.host, facts.key, layout, context.recorder.linker)
            self._linked[made] = site.place.host, facts.key
            if site.name != self.host.name:
                ship(site.place.host, site.builder.work_name, made, self.host)
        return made

    def unlink(self, made: str) -> None:
        """Remove what ``link`` has made."""
        linked, key = self._linked.pop(made, (self.host, ""))
        for host in {host.name: host for host in (linked, self.host)}.values():
            build_store.remove(host, made, key)

    def renew(self, changed: BuildChanged) -> None:
        """Remove a build that is not as it was made: ``obtain`` makes it again, or brings it. A tarball is unpacked again."""
        hosts = {host.name: host for host in (self.host, *(site.place.host for site in self.sites))}
        build_store.remove(hosts[changed.host], changed.key)
        for candidate, built in list(self.made.built.items()):  # which other threads add to
            if built.facts.key != changed.key:
                continue
            if built.tarball:
                prebuilt.unpack(self.host, built.tarball)
                continue
            self._here.discard(candidate)
            if self.made.place(candidate) == changed.host:
                self.made.forget(candidate)

    def end_others(self) -> None:
        """End builds of earlier sessions on the host that measures."""
        if not self._alone:
            end_all(self.host)
            self._alone = True


def other_processor(context: BuildContext, build_host: Host, host: Host) -> Iterator[Warned]:
    """Warn when builds are made for a processor that ``host``, which measures them, does not have."""
    if build_host.name == host.name or not build_store.for_processor(context.builder, context.variant):
        return
    built_for, measured_on = ask(build_host, PROCESSOR), ask(host, PROCESSOR)
    if built_for and measured_on and built_for != measured_on:
        yield Warned(
            f"host {build_host.name} compiles for its own processor, {built_for}, and host {host.name} has another:"
            f" {measured_on}",
            f"Choose a variant that does not depend on it, or remove {build_host.name} from `build_hosts` of {host.name} in"
            " hosts.toml.",
        )
