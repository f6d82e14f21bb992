"""Chooses the changes of a history with a given number of commits, and their order."""

from collections.abc import Iterable, Sequence
from random import Random

from perfbisect.demo.change import Change, read_changes

Unit = tuple[Change, ...]  # successive changes on one branch

OPTIONAL = ("documentation", "comments", "refactorings", "tests", "features")
KEPT = {"children-without-division"}  # every history has this small improvement
FIXED_TOGETHER = "both-fixed"


def choose(random: Random, commits: int, wanted_features: Iterable[Change]) -> list[Unit]:
    """The units of a history with ``commits`` changes (without the release), ``wanted_features`` among them, in an order that can be applied.

    Raises ValueError for a number of commits that is not possible.
    """
    units = [*_breaks(random), *((change,) for change in wanted_features)]
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
    """Two commits that do not compile: each fixed by the next commit, or in succession and fixed together."""
    first, first_fix, second, second_fix = read_changes("broken")
    if random.random() < 0.5:
        return [(first, first_fix), (second, second_fix)]
    fix = Change(FIXED_TOGETHER, "Mend the build", first_fix.edits + second_fix.edits)
    return [(first, second, fix)]


def _in_order(units: Sequence[Unit]) -> list[Unit]:
    """The units in their order, but each after the changes that it needs."""
    waiting, ordered = list(units), list[Unit]()
    while waiting:
        done = {change.name for unit in ordered for change in unit}
        ready = next(unit for unit in waiting if done.issuperset(*(c.needs for c in unit[:1])))
        waiting.remove(ready)
        ordered.append(ready)
    return ordered


def is_broken(names: Iterable[str]) -> bool:
    """True where a tree with these changes does not compile."""
    names = set(names)
    first, first_fix, second, second_fix = (change.name for change in read_changes("broken"))
    return any(
        broken in names and not names & {fix, FIXED_TOGETHER}
        for broken, fix in ((first, first_fix), (second, second_fix))
    )
