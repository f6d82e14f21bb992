"""The lab of a host that only builds, ahead of what is measured elsewhere."""

from collections.abc import Generator
from contextlib import closing
from dataclasses import dataclass, field

from perfbisect.clock import elapsed
from perfbisect.core.domain.events import LabEvent
from perfbisect.errors import ConnectionLost, EndFailed, EnvironmentFailure, HostAway, PerfBisectError
from perfbisect.host.facts import free_bytes
from perfbisect.host.lock import HostLock
from perfbisect.lab.build_site import BuildSite
from perfbisect.lab.guarded_lab import enough_space


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
