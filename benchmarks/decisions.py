"""Records what the search orders and says in simulated hunts of all worlds, and compares two such records. See README.md.

decisions.py FILE [--hunts 1000]       plays the hunts that are missing in FILE, each a line of JSON
decisions.py FILE --against OTHER      compares: every order, the verdict, and the probabilities to 1e-9
"""

import argparse
import dataclasses
import math
import os
import sys
from collections.abc import Iterator
from enum import Enum
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any
from unittest.mock import patch

for library in ("OPENBLAS", "OMP", "MKL"):
    os.environ.setdefault(f"{library}_NUM_THREADS", "1")

sys.path[1:1] = [str(Path(__file__).parent), *(str(Path(__file__).parent / name) for name in ("search", "duet"))]

import worlds as duet
from cells import Cell, all_cells
from played import Facts, load, play

from perfbisect.core.domain.orders import Measure
from perfbisect.simulate import hunt as simulated
from perfbisect.simulate.world import World

LARGEST = 1000  # candidates: hunts in larger histories take minutes
EXACT = 1e-9


@cache
def cells() -> dict[str, Cell]:
    """The cells of the search's benchmark by name, without the largest histories."""
    return {cell.name: cell for cell in all_cells() if cell.scenario.graph.size <= LARGEST + 10}


def paired_cells() -> list[duet.Cell]:
    """The worlds in which two builds may run at the same time."""
    return [duet.Cell(world, changed) for world in duet.WORLDS for changed in (True, False)]


def plain(value: Any) -> Any:
    """The value in what JSON has, without names of classes and fields."""
    if dataclasses.is_dataclass(value):
        return [plain(getattr(value, field.name)) for field in dataclasses.fields(value)]
    if isinstance(value, tuple | list):
        return [plain(each) for each in value]
    if isinstance(value, Enum):
        return value.value
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def play_one(cell: "Cell | duet.Cell", seed: int) -> Facts:
    """One hunt: each order that it gave, its verdict, and its most probable candidates."""
    orders: list[Any] = []
    outcomes: list[simulated.HuntResult] = []
    measure, hunt = World.measure, simulated.simulate_hunt

    def recorded(world: World, order: Measure) -> Any:
        shares = [[share.candidate, share.runs] for share in order.plan]
        orders.append([shares, order.purpose.value, order.host, order.fresh, order.together])
        return measure(world, order)

    def followed(*args: Any, **options: Any) -> simulated.HuntResult:
        outcomes.append(hunt(*args, **options))
        return outcomes[-1]

    with patch.object(World, "measure", recorded), patch.object(duet, "simulate_hunt", followed):
        if isinstance(cell, duet.Cell):
            duet.one(cell, seed)
        else:
            policy = cell.policy
            if seed == 3:  # a hunt for all changes without a budget takes a minute of CPU time
                policy = dataclasses.replace(policy, all_steps=True, max_runs=policy.max_runs or 200)
            try:
                followed(cell.scenario.world(seed), policy, hosts=cell.hosts, build_hosts=int(seed == 2))
            except RuntimeError as endless:
                return {"orders": orders, "verdict": str(endless)}
    if not outcomes:
        return {"orders": orders, "verdict": "endless"}
    outcome = outcomes[0]
    likely = sorted(enumerate(outcome.belief.culprit.tolist()), key=lambda each: (-each[1], each[0]))[:20]
    return {
        "orders": orders,
        "verdict": [type(outcome.verdict).__name__, plain(outcome.verdict)],
        "likely": likely,
        "change": outcome.belief.change,
        "spent": [outcome.builds, outcome.runs, outcome.minutes],
    }


def differs(one: Any, other: Any) -> bool:
    """Whether two values differ by more than a rounding."""
    if isinstance(one, float) and isinstance(other, float):
        return not math.isclose(one, other, rel_tol=EXACT, abs_tol=EXACT)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) != len(other) or any(map(differs, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() != other.keys() or any(differs(one[key], other[key]) for key in one)
    return bool(one != other)


def differences(file: Path, other: Path) -> Iterator[str]:
    """A line for each hunt that differs, and one for all."""
    hunts, differing = 0, 0
    second = load(other)
    for cell, seeds in load(file).items():
        for seed in seeds.keys() & second.get(cell, {}).keys():
            hunts += 1
            apart = [key for key, value in seeds[seed].items() if differs(value, second[cell][seed].get(key))]
            if apart:
                differing += 1
                yield f"{cell}, seed {seed}: {', '.join(apart)} differ"
    yield f"{hunts} hunts of both files, {differing} differ"


def main() -> None:
    """Play, or compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--hunts", type=int, default=1000, help="of all worlds together (default: 1000)")
    parser.add_argument("--against", type=Path, metavar="OTHER", help="compare with what this file has")
    parser.add_argument("--jobs", type=int, default=1)
    asked = parser.parse_args()
    if asked.against:
        print("\n".join(differences(asked.file, asked.against)))
        return
    every: list[Cell | duet.Cell] = [*paired_cells(), *cells().values()]
    each = math.ceil(asked.hunts / len(every))
    wanted = list(islice(((cell, each) for cell in every), asked.hunts))
    play(wanted, play_one, 0.0, asked.jobs, asked.file)


if __name__ == "__main__":
    main()
