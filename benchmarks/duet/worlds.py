"""Plays simulated hunts that may compare two builds at the same time, in worlds where that helps and where it misleads. See
benchmarks/README.md.

Hunts that were played are kept as lines of JSON; the same command goes on where it was stopped.
"""

import argparse
import math
import os
import re
import sys
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

for library in ("OPENBLAS", "OMP", "MKL"):
    os.environ.setdefault(f"{library}_NUM_THREADS", "1")

sys.path.insert(0, str(Path(__file__).parents[1]))  # what benchmarks share

import numpy as np
from played import Facts, Played, load, play

from perfbisect.core.domain.graph import Graph
from perfbisect.core.domain.orders import Found
from perfbisect.core.domain.settings import Pairing, Policy
from perfbisect.core.inference.ancestry import ancestry_of
from perfbisect.core.inference.observations import Reading
from perfbisect.core.search.pairing import SHOWN_SHARE
from perfbisect.simulate.host_model import HostModel
from perfbisect.simulate.hunt import simulate_hunt
from perfbisect.simulate.scenario import Scenario, random_merging_graph
from perfbisect.simulate.tally import judge_verdict, names_a_culprit

SHARED: dict[str, Any] = {"noise": 0.1, "own_noise": 0.01, "layout": 0.001, "link_seconds": 6.0}  # a shared machine
WORLDS: dict[str, dict[str, Any]] = {
    **{
        f"noise {noise:g} %, own {own:g} %": {"noise": noise / 100, "own_noise": own / 100}
        for noise in (1, 3, 10, 30)
        for own in (0.3, 1, 3)
    },
    "own noise five times the common": {"noise": 0.01, "own_noise": 0.05},
    "half of the effect": {"kept": 0.5},
    "half of the effect, noise 3 %": {"noise": 0.03, "kept": 0.5},
    "twice the effect": {"kept": 2.0},
    "a tenth of the effect, noise 3 %": {"noise": 0.03, "kept": 0.1},
    "one of two starves": {"starved": (0.15, 0.3)},
    "bursts shorter than a slice": {"starved": (0.25, 0.06)},
    "unequal shares, CPU time known": {"starved": (1.0, 0.05), "waits": 0.05},
    "the change is waiting, CPU time known": {"starved": (1.0, 0.02), "waits": 0.05, "stalls": 1.0},
    "both ways alike": {"noise": 0.015},
    "starts differ": {"visits": 0.01},
    "drift and jumps": {"drift": 0.1, "jumps": (1 / 3600, 0.2)},
    "slow phases": {"phases": (0.3, -0.3, 900.0)},
    "noise 10 %, own 1 %, builds as they are linked": {},
    **{
        f"code moves, noise {noise} %": {"noise": noise / 100, "own_noise": 0.015, "starved": (0.1, 0.3)}
        for noise in (5, 30)
    },
}
# In the name of a world where the builds from one commit on take so much of the time longer as they are linked, in which
# nothing but the place of the code differs; the culprit works so much more, wherever it lies.
MOVES, MOVED, WORKED = "code moves", 0.5, 0.4
AS_LINKED = "as they are linked"  # in the name of a world where builds cannot be linked again
SILENT = 0.01  # noise up to which hunts in turns are played, too, to compare what they take
SIZES, MULTIPLES, DROPS = (40, 100, 200, 300), (3.0, 6.0), (0.02, 0.05)
PAIRS = 10
MOST = 0.3  # drop
ENOUGH = 2.999  # multiple of the noise of so many pairs from which a drop is to be named


@dataclass(frozen=True, slots=True)
class Cell:
    """Hunts in one world."""

    world: str
    changed: bool
    pairing: Pairing = Pairing.AUTO

    @property
    def name(self) -> str:
        """Its name in the results."""
        return f"{self.world}/{'culprit' if self.changed else 'empty'}/{self.pairing}"

    @property
    def habits(self) -> HostModel:
        """Those of its host."""
        return HostModel(**SHARED | WORLDS[self.world])


def noise_of_pairs(habits: HostModel) -> float:
    """The s.d. of the mean of ten pairs, outliers left out: as a share of its distribution shows it."""
    rng = np.random.default_rng(0)
    noise = rng.normal(size=20_000) * np.sqrt(2 * (habits.own_noise**2 + habits.visits**2 + habits.layout**2))
    if habits.stalls or not habits.waits:  # what the cores give is no part of CPU time
        share, size = habits.starved
        noise += (rng.random(noise.size) < share) * rng.normal(size=noise.size) * size
    return float(np.quantile(np.abs(noise), 0.683)) / PAIRS**0.5


def one(cell: Cell, seed: int) -> Facts:
    """One hunt; the same seed is the same history and the same drop for all cells of a world."""
    rng, habits = Random(f"{cell.world} {seed}"), cell.habits
    commits, pairs = rng.choice(SIZES), noise_of_pairs(habits)
    graph = rng.choice((Graph.straight_history(commits), random_merging_graph(commits, seed=seed)))
    drop = min(rng.choice([*(multiple * pairs / min(habits.kept, 1.0) for multiple in MULTIPLES), *DROPS]), MOST)
    shown = min(max(habits.kept, SHOWN_SHARE), 1.0)  # of the drop in rounds, where these are valid
    if cell.world.startswith(MOVES):
        commits, drop = rng.choice((8, 40)), 1 - 1 / (1 + WORKED)
        graph = rng.choice((Graph.straight_history(commits), random_merging_graph(commits, seed=seed)))
    policy = Policy(
        min_effect=0.75 * shown * min(drop, 0.02), pairing=cell.pairing, layouts=AS_LINKED not in cell.world
    )
    world = Scenario(graph, drop, "one" if cell.changed else "nothing", habits).world(seed)
    if cell.world.startswith(MOVES):
        world.layouts = moved(graph, rng.choice(graph.candidates), world.steps)
    facts: Facts = {"commits": commits, "drop": drop, "multiple": drop * min(habits.kept, 1.0) / pairs}
    began = time.process_time()
    try:
        outcome = simulate_hunt(world, policy)
    except RuntimeError:  # no verdict after very many orders
        return facts | {"verdict": "endless", "judged": "honest", "named": False, "runs": world.runs}
    verdict = outcome.verdict
    return facts | {
        "verdict": type(verdict).__name__, "reason": getattr(verdict, "reason", ""), "judged": judge_verdict(verdict, world, policy.min_effect),
        "named": names_a_culprit(verdict), "together": isinstance(verdict, Found) and verdict.step.together,
        "rounds": sum(isinstance(seen, Reading) and seen.partner is not None for seen in outcome.observations),
        "runs": outcome.runs, "minutes": outcome.minutes, "seconds": round(time.process_time() - began, 2),
    }  # fmt: skip


def moved(graph: Graph, by: int, culprits: Collection[int]) -> dict[int, float]:
    """What the builds with the commit ``by`` lose by the place of their code, as they are linked; it costs the same time in all."""
    lost = {}
    for build in range(graph.size):
        with_it = ancestry_of(graph).with_ancestors(build)
        work = 1 + WORKED * any(with_it[each] for each in culprits)
        if with_it[by]:
            lost[build] = -math.log((work + MOVED) / work)
    return lost


def table(played: Played) -> Iterator[str]:
    """A line for each world."""
    yield (
        "| world | hunts | right | wrong | not named | named where the drop is ≥ 3 × the noise of ten pairs | named together |"
        " runs | empty: hunts | accused | runs | time ÷ in turns |"
    )
    yield f"|{'---|' * 12}"
    for world in WORLDS:
        hunts, empty, turns = (
            played.get(Cell(world, *of).name, {}) for of in ((True,), (False,), (True, Pairing.INTERLEAVED))
        )
        if not hunts:
            continue
        named = [each for each in hunts.values() if each["named"]]
        right = sum(each["judged"] == "right" for each in named)
        large = [each["named"] for each in hunts.values() if each["multiple"] >= ENOUGH]
        both = [seed for seed in hunts.keys() & turns.keys() if "minutes" in hunts[seed] and "minutes" in turns[seed]]
        slower = [hunts[seed]["minutes"] / turns[seed]["minutes"] for seed in both]
        total = sum(hunts[seed]["minutes"] for seed in both) / max(sum(turns[seed]["minutes"] for seed in both), 1e-9)
        cells = [
            world, len(hunts), right, len(named) - right, len(hunts) - len(named), f"{sum(large)} of {len(large)}",
            sum(each["together"] for each in named), _middle([*hunts.values()]), len(empty),
            sum(each["named"] for each in empty.values()), _middle([*empty.values()]),
            f"{median(slower):.2f}, of all {total:.2f}" if slower else "",
        ]  # fmt: skip
        yield f"| {' | '.join(map(str, cells))} |"


def _middle(hunts: Sequence[Facts]) -> str:
    """The median of the runs."""
    return f"{median(each['runs'] for each in hunts):.0f}" if hunts else "–"


def main() -> None:
    """Play what is missing, then print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path, help="file of the hunts played so far, a JSON object a line")
    parser.add_argument("--hunts", type=int, default=60, help="with a culprit in each world (default: 60)")
    parser.add_argument("--empty", type=int, default=200, help="without one (default: 200)")
    parser.add_argument("--worlds", default="", metavar="REGEX", help="only worlds whose name matches")
    parser.add_argument("--minutes", type=float, default=0.0, help="stop after so long; the next call goes on")
    parser.add_argument("--jobs", type=int, default=1)
    asked = parser.parse_args()
    wanted = []
    for world in (name for name in WORLDS if re.search(asked.worlds, name)):
        wanted += [(Cell(world, True), asked.hunts), (Cell(world, False), asked.empty)]
        if Cell(world, True).habits.noise <= SILENT:
            wanted.append((Cell(world, True, Pairing.INTERLEAVED), asked.hunts))
    play(wanted, one, asked.minutes, asked.jobs, asked.results)
    print("\n".join(table(load(asked.results))))


if __name__ == "__main__":
    main()
