"""A simulated world that stops slow runs."""

import math
from dataclasses import dataclass, field, replace
from statistics import median

from perfbisect.core.domain.orders import Measure
from perfbisect.core.inference.observations import Observation, Reading
from perfbisect.simulate.world import World


@dataclass(slots=True, eq=False)
class ImpatientWorld(World):
    """A world that stops runs as slow as that: the bound is read in their place."""

    slow_after: float = 5.0
    good: list[float] = field(default_factory=list)

    def measure(self, order: Measure) -> list[Observation]:
        """Carry out ``order``."""
        return [self.stopped(seen) if isinstance(seen, Reading) else seen for seen in World.measure(self, order)]

    def stopped(self, seen: Reading) -> Reading:
        """The reading, or the bound."""
        if seen.candidate == 0:
            self.good.append(seen.value)
            return seen
        bound = median(self.good) - math.log(self.slow_after)
        return replace(seen, value=bound, bound=-1) if seen.value < bound else seen
