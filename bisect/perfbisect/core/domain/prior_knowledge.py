"""What is known of the hosts before a hunt begins, from hosts.toml and from earlier hunts."""

from dataclasses import dataclass


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
