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


NOTHING_KNOWN = PriorKnowledge()
