"""Which hosts of a hunt are busy, and which are lost.

Hosts measure. Build hosts make builds for them meanwhile; without any, each host builds what it measures.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import count

from perfbisect.core.domain.orders import Measure


@dataclass(frozen=True, slots=True)
class Building:
    """A build in flight."""

    candidate: int
    build_host: int
    seconds: float = 0.0  # that it has taken so far
    cancelled: bool = False  # it is being ended


@dataclass(frozen=True, slots=True)
class Fleet:
    """A busy host takes no order until its present one is done; a lost host takes none any more. So do build hosts."""

    busy: tuple[Measure, ...] = ()  # the orders that hosts are carrying out
    gone: tuple[int, ...] = ()  # the hosts that are lost
    hosts: int = 0  # so many, where that is needed: with build hosts, the search is also asked while all are busy
    build_hosts: int = 0  # numbered from 0; none: hosts make their builds themselves
    building: tuple[Building, ...] = ()
    gone_build_hosts: tuple[int, ...] = ()
    builds_between: bool = False  # whether hosts may build, too, while they have nothing to measure
    minutes: float = 0.0  # of the limit of time, once it has ended what was under way; 0 before

    @property
    def free_host(self) -> int:
        """The first host that can take an order; without any, the first that is busy, whose order is left to it."""
        left = [host for host in range(self.hosts) if host not in self.gone]
        return next((host for host in left or count() if self.is_free(host)), left[0] if left else 0)

    def is_free(self, host: int) -> bool:
        """Whether the host can take an order now."""
        return host not in self.gone and all(order.host != host for order in self.busy)

    @property
    def builds_ahead(self) -> bool:
        """Whether a build host is left, so that hosts measure what has been built."""
        return self.build_hosts > len(self.gone_build_hosts)

    @property
    def free_build_hosts(self) -> tuple[int, ...]:
        """Those that can begin a build now."""
        taken = {*self.gone_build_hosts, *(one.build_host for one in self.building)}
        return tuple(host for host in range(self.build_hosts) if host not in taken)

    @property
    def in_flight(self) -> frozenset[int]:
        """The candidates that are being built ahead."""
        return frozenset(one.candidate for one in self.building if not one.cancelled)

    @property
    def runs(self) -> int:
        """The runs of all present orders."""
        return sum(share.runs for order in self.busy for share in order.plan)

    @property
    def subjects(self) -> frozenset[int]:
        """The candidates of interest of all present orders, without the references beside them."""
        return frozenset(share.candidate for order in self.busy for share in order.plan[:1])

    @property
    def candidates(self) -> frozenset[int]:
        """All candidates of all present orders."""
        return frozenset(share.candidate for order in self.busy for share in order.plan)

    def renumbered(self, place: Mapping[int, int]) -> "Fleet":
        """The fleet with its orders renumbered: see ``Measure.renumbered``."""
        building = (replace(one, candidate=place[one.candidate]) for one in self.building if one.candidate in place)
        return replace(self, busy=tuple(order.renumbered(place) for order in self.busy), building=tuple(building))


ALL_FREE = Fleet()
