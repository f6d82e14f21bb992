"""The hosts of a hunt, as far as a decision depends on them: which of them are busy, and which are lost."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from perfbisect.core.domain.orders import Measure


@dataclass(frozen=True, slots=True)
class Fleet:
    """A busy host takes no order until it has carried out its present one; a lost host takes none any more."""

    busy: tuple[Measure, ...] = ()  # the orders that hosts are carrying out
    gone: tuple[int, ...] = ()  # the hosts that are lost

    @property
    def free_host(self) -> int:
        """The first host that can take an order, as if there were always one more."""
        host = 0
        while not self.is_free(host):
            host += 1
        return host

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
        """The fleet as a hunt over the candidates in ``place`` sees it; what they are called there is its value."""
        return replace(self, busy=tuple(order.renumbered(place) for order in self.busy))


ALL_FREE = Fleet()
