"""Which changes a history of so many commits has, and in what order they can come."""

from collections.abc import Iterable, Sequence
from random import Random

from perfbisect.demo.change import Change, read_changes

Unit = tuple[Change, ...]  # changes that follow each other without a gap, on one branch

OPTIONAL = ("documentation", "comments", "refactorings", "tests", "features")
KEPT = {"children-without-division"}  # the small improvement is in every history
MENDED_TOGETHER = "both-mended"


def choose(random: Random, commits: int, index_features: Iterable[Change]) -> list[Unit]:
    """The units of a history with ``commits`` changes, its release excepted, in an order that can be applied.

    Raises ValueError where that is fewer or more than there can be.
    """
    units = [*_breaks(random), *((change,) for change in index_features)]
    wanted = commits - sum(map(len, units))
    optional = [change for kind in OPTIONAL for change in read_changes(kind)]
    if not len(KEPT) <= wanted <= len(optional):
        raise ValueError(
            f"{commits} commits are not possible: there are {len(optional)} changes to choose from, and {wanted} are needed"
        )
    random.shuffle(optional)
    while len(optional) > wanted:
        needed = KEPT.union(*(change.needs for change in optional))
        optional.remove(next(change for change in optional if change.name not in needed))
    units += ((change,) for change in optional)
    random.shuffle(units)
    return _in_order(units)


def _breaks(random: Random) -> list[Unit]:
    """Two commits that do not compile: far apart, each mended by the next, or side by side and mended together."""
    first, first_mend, second, second_mend = read_changes("broken")
    if random.random() < 0.5:
        return [(first, first_mend), (second, second_mend)]
    mend = Change(MENDED_TOGETHER, "Mend the build", first_mend.edits + second_mend.edits)
    return [(first, second, mend)]


def _in_order(units: Sequence[Unit]) -> list[Unit]:
    """The units in their order, except that what a change needs comes before it."""
    waiting, ordered = list(units), list[Unit]()
    while waiting:
        there = {change.name for unit in ordered for change in unit}
        ready = next(unit for unit in waiting if there.issuperset(*(c.needs for c in unit[:1])))
        waiting.remove(ready)
        ordered.append(ready)
    return ordered


def is_broken(names: Iterable[str]) -> bool:
    """True where a tree with these changes does not compile."""
    names = set(names)
    first, first_mend, second, second_mend = (change.name for change in read_changes("broken"))
    return any(
        broken in names and not names & {mend, MENDED_TOGETHER}
        for broken, mend in ((first, first_mend), (second, second_mend))
    )
