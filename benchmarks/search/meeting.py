"""Two rules in the same worlds of one cell."""

from dataclasses import dataclass

from cells import Cell
from contest import OURS
from figures import how_often, is_right
from results import Played


@dataclass(frozen=True, slots=True)
class Meeting:
    """`bisect run` and another rule, over the seeds that both have played."""

    cell: Cell
    ratio: float  # mean cost of the other rule, relative to ours
    ours: float  # share of right verdicts
    theirs: float

    @classmethod
    def of(cls, cell: Cell, played: Played, peer: str) -> "Meeting | None":
        """None without such seeds."""
        mine, other = played.get((cell.name, OURS), {}), played.get((cell.name, peer), {})
        seeds = sorted(mine.keys() & other.keys())
        if not seeds:
            return None
        each = [[by_seed[seed] for seed in seeds] for by_seed in (mine, other)]
        cost = [sum(t.cost for t in trials) for trials in each]
        right = [how_often(trials, is_right).middle for trials in each]
        return cls(cell, cost[1] / cost[0], *right)
