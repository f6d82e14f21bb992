"""Simulated hunts of a benchmark, as lines of JSON: those of many that are missing are played in parallel, and can be stopped."""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, Protocol, TypeVar

Facts = dict[str, Any]  # of one hunt, or one group of hunts
Played = dict[str, dict[str, Facts]]  # by cell and seed


class Named(Protocol):
    """A cell of a table: worlds and rules that are played with many seeds."""

    @property
    def name(self) -> str:
        """Unlike that of any other cell."""


C = TypeVar("C", bound=Named)


def load(results: Path) -> Played:
    """What was played so far."""
    played: Played = {}
    for line in results.read_text().splitlines() if results.exists() else ():
        one = json.loads(line)
        played.setdefault(one["cell"], {})[str(one["seed"])] = one
    return played


def play(
    wanted: Sequence[tuple[C, int]],
    hunt: Callable[[C, int], Mapping[str, Any]],
    minutes: float,
    jobs: int,
    results: Path,
) -> None:
    """Play what is missing, a few of each cell at a time, and add it to the results.

    ``wanted`` are cells with the number of their hunts, whose seeds count from 1; ``hunt`` plays one in a process of its own.
    Ends after about ``minutes``, if that is not 0.
    """
    played, began = load(results), time.monotonic()
    missing = [
        (cell, seed)
        for seed in range(1, max(hunts for _, hunts in wanted) + 1)
        for cell, hunts in wanted
        if seed <= hunts and str(seed) not in played.get(cell.name, {})
    ]
    chunk = 4 * jobs
    with ProcessPoolExecutor(jobs) as pool, results.open("a") as file:
        for start in range(0, len(missing), chunk):
            if minutes and time.monotonic() > began + 60 * minutes:
                return
            some = missing[start : start + chunk]
            for (one, seed), facts in zip(some, pool.map(hunt, *zip(*some, strict=True)), strict=True):
                file.write(json.dumps({"cell": one.name, "seed": seed, **facts}) + "\n")
            file.flush()
