"""Which hosts of a hunt are busy, and which are lost."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import count

from perfbisect.core.domain.orders import Measure


@dataclass(frozen=True, slots=True)
class Fleet:
    """A busy host takes no order until its present one is done; a lost host takes none any more."""

    busy: tuple[Measure, ...] = ()  # the orders that hosts are carrying out
    gone: tuple[int, ...] = ()  # the hosts that are lost

    @property
    def free_host(self) -> int:
        """The first host that can take an order, if there are enough hosts."""
        return next(host for host in count() if self.is_free(host))

    def is_free(self, host: int) -> bool:
        """Whether the host can take an order now."""
        return host not in self.gone and all(order.host != host for order in self.busy)

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
        return replace(self, busy=tuple(order.renumbered(place) for order in self.busy))


ALL_FREE = Fleet()
