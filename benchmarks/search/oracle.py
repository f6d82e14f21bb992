"""git bisect with the number of runs per commit that is best in each cell, which cannot be known beforehand."""

from collections.abc import Iterable, Mapping

from contest import BEST, ORACLE
from figures import how_often, is_right
from results import Played

from perfbisect.simulate.tally import JudgedHunt, mean

GOAL = 0.95


def with_oracle(cells: Iterable[str], played: Played) -> Played:
    """``played``, and as one more rule the cheapest repeats that reach the goal in a cell, or else the most accurate.

    A cell is left out until all repeats have been played in it.
    """
    chosen: dict[tuple[str, str], dict[int, JudgedHunt]] = {}
    for cell in cells:
        known = [played.get((cell, f"git bisect R={repeats}"), {}) for repeats in ORACLE]
        if all(known):
            chosen[cell, BEST] = _best(known)
    return played | chosen


def _best(known: list[dict[int, JudgedHunt]]) -> dict[int, JudgedHunt]:
    """The hunts with each number of repeats."""

    def accuracy(by_seed: Mapping[int, JudgedHunt]) -> float:
        return how_often([*by_seed.values()], is_right).middle

    enough = [by_seed for by_seed in known if accuracy(by_seed) >= GOAL]
    cheapest = min(enough, key=lambda by_seed: mean(t.cost for t in by_seed.values()), default=None)
    return cheapest or max(known, key=accuracy)
