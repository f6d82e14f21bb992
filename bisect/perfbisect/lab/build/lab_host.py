"""A host on which labs work, one at a time."""

from dataclasses import dataclass, field

from perfbisect.host.fair_lock import FairLock
from perfbisect.host.protocol import Host
from perfbisect.lab.build.shared.builds import SharedBuilds
from perfbisect.recipes.inventory import HostEntry


@dataclass(frozen=True, slots=True)
class LabHost:
    """A host on which a lab works, while it holds ``lock``: several labs may share the host.

    On a host that ``only_builds`` what needs its files for a moment, to send or to link a build, does not wait for the end of
    the present one: that is another lock. What it builds is given to the ``shared`` builds, and taken from them.
    """

    host: Host
    entry: HostEntry
    lock: FairLock = field(default_factory=FairLock)
    only_builds: FairLock | None = None
    shared: SharedBuilds | None = None

    @property
    def beside(self) -> FairLock:
        """Held for a moment by what needs no more of the host than its files."""
        return self.only_builds or self.lock
