"""What the user requests of the search, and what is known of the hosts before it begins: from hosts.toml and earlier hunts."""

from dataclasses import dataclass, replace
from enum import StrEnum

# Smallest change of interest of an exact count. Counts repeat to 0.001 %, and another layout does not change them; but many
# commits move a few instructions, and to name each of them would tell nobody why a database is slower.
COUNTED = 0.002
CAP = 0.995  # no model is better than this: no higher probability of a culprit is ever stated or required


class Direction(StrEnum):
    """The direction of the change of the metric from good to bad that is hunted."""

    DROP = "drop"
    RISE = "rise"
    ANY = "any"


@dataclass(frozen=True, slots=True)
class Policy:
    """The rules of one hunt. Fractions, not percentages; 0 for a budget means no limit."""

    confidence: float = 0.95  # name a culprit from this probability on
    direction: Direction = Direction.DROP
    min_effect: float = 0.02  # smallest change of interest between the ends
    min_counted: float = 0.0  # the same of an exact count; 0: as ``min_effect``
    max_builds: int = 0
    max_runs: int = 0
    max_minutes: float = 0.0
    all_steps: bool = False  # hunt every change of at least ``min_effect``, not only the largest
    slow_after: float = 0.0  # a run is stopped after so many times what a run of the good end takes; 0: never
    layouts: bool = False  # whether builds can be linked again, with their functions in another order

    def hunts(self, ratio: float) -> bool:
        """Whether a change by the factor ``ratio`` has the direction that is hunted."""
        return self.direction is Direction.ANY or (ratio < 1) is (self.direction is Direction.DROP)

    def of_counts(self) -> "Policy":
        """The same rules for a hunt by an exact count."""
        return replace(self, min_effect=self.min_counted or self.min_effect)

    def unlimited(self) -> "Policy":
        """The same rules for a hunt for the largest change alone, without budgets."""
        return replace(self, all_steps=False, max_builds=0, max_runs=0, max_minutes=0.0)


@dataclass(frozen=True, slots=True)
class PriorKnowledge:
    """All of it is optional: the hunt learns what is missing, except host classes."""

    build_cost: float = 10.0  # of one build, in runs, until this hunt has builds of its own
    noise: float | None = None  # s.d. of one run, as a fraction, on the first host or on one of its class
    # class of each host; hosts of one class show the same change. Empty: all are of one class
    host_classes: tuple[str, ...] = ()
    exact: bool = False  # the metric is a count that repeats, by the method that these hosts have

    @property
    def classes(self) -> tuple[str, ...]:
        """The host classes; one without a name where they are not given."""
        return tuple(dict.fromkeys(self.host_classes)) or ("",)

    def class_of(self, host: int) -> int:
        """The place of a host's class among ``classes``."""
        return self.classes.index(self.host_classes[host]) if self.host_classes else 0


NOTHING_KNOWN = PriorKnowledge()
