"""How often the intervals of the table of candidates hold the truth, at the end of whole simulated hunts. See README.md.

ratios.py [--hunts 25] [--worlds REGEX]     a line for each world, then for each kind of row in all of them
"""

import argparse
import math
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise, product
from statistics import median

for library in ("OPENBLAS", "OMP", "MKL"):
    os.environ.setdefault(f"{library}_NUM_THREADS", "1")

from perfbisect.core.domain.graph import Graph
from perfbisect.core.domain.orders import Interval
from perfbisect.core.domain.settings import Policy
from perfbisect.core.inference.observations import Reading
from perfbisect.core.inference.relative_speed import ratios_of_candidates_to_good, split_by_measurement_kind
from perfbisect.simulate.host_model import HostModel, HostSpeed
from perfbisect.simulate.hunt import simulate_hunt
from perfbisect.simulate.scenario import Scenario

RUN = 10.0  # seconds of a run
MOVED = 0.2  # of the logarithm of the host's speed


@dataclass(frozen=True, slots=True)
class Row:
    """A candidate that was measured, and its interval."""

    held: bool
    width: float  # of the logarithm; NaN without an interval
    runs: int
    apart: float  # runs that fit between its nearest run and one of the baseline
    moved: bool  # whether the speed of the host has changed between these two


def scenario(effect: float, noise: float, *, changes: str = "one", build: float = 4.0, **habits: object) -> Scenario:
    """A drop in 60 commits on a host with these habits."""
    usual = HostModel(noise=noise, run_seconds=RUN, build_seconds=build * RUN, link_seconds=RUN / 10)
    return Scenario(Graph.straight_history(60), effect, changes, replace(usual, **habits))  # type: ignore[arg-type]


BURSTS: dict[str, object] = {"phases": (0.12, math.log(0.6), 3 * RUN)}  # of three runs on average
FROM_THEN_ON: dict[str, object] = {"phases": (1.0, math.log(0.5), 50 * RUN)}
FOR_A_WHILE: dict[str, object] = {"phases": (0.5, math.log(0.5), 25 * RUN)}
DRIFT: dict[str, object] = {"drift": 0.15, "drift_memory": 40 * RUN}
NOISES = ((0.01, 0.05), (0.03, 0.10), (0.08, 0.20))  # s.d. of a run, drop
WORLDS: Mapping[str, Scenario] = {
    f"{name}, noise {noise:.0%}": scenario(effect, noise, **host)
    for name, host in (
        ("calm", {}),
        ("half speed from then on", FROM_THEN_ON),
        ("half speed for a while", FOR_A_WHILE),
        ("bursts of load", BURSTS),
    )
    for noise, effect in NOISES
} | {
    "calm, builds of 20 runs": scenario(0.05, 0.01, build=20.0),
    "half speed from then on, builds of 20 runs": scenario(
        0.05, 0.01, build=20.0, phases=(1.0, math.log(0.5), 150 * RUN)
    ),
    "half speed for a while, no change": scenario(0.1, 0.03, changes="nothing", **FOR_A_WHILE),
    "half speed from then on, further changes": scenario(0.1, 0.03, changes="smaller", **FROM_THEN_ON),
    "10 % of the runs are outliers": scenario(0.08, 0.02, outliers=0.1),
    "10 % of the runs at 0.6 of the speed": scenario(0.1, 0.03, second_speed=(0.1, math.log(0.6))),
    "jumps of 20 %": scenario(0.1, 0.03, jumps=(1 / (25 * RUN), 0.2)),
    "drift of 15 %": scenario(0.1, 0.03, **DRIFT),
    "drift of 15 % and bursts": scenario(0.15, 0.04, **DRIFT, **BURSTS),
}


def rows(world: Scenario, seed: int) -> Iterator[Row]:
    """The rows of the table at the end of a hunt; every fourth may link builds again."""
    drawn = world.world(seed)
    bad, speed = drawn.graph.size - 1, HostSpeed(world.habits, seed, 0)
    seen = simulate_hunt(drawn, Policy(layouts=seed % 4 == 0, max_runs=300), most_orders=300).observations
    shown = ratios_of_candidates_to_good(seen, bad)
    sorts = [[one for one in alike if isinstance(one, Reading)] for _, alike in split_by_measurement_kind(seen)]
    for candidate in sorted({each.candidate for alike in sorts for each in alike} - {0}):
        # the last sort that has both is shown
        own = [one for one in sorts if {0, candidate} <= {each.candidate for each in one}][-1]
        level = math.fsum(size for step, size in drawn.steps.items() if step <= candidate)
        truth = level if own[0].layout else drawn.level(candidate) - drawn.level(0)
        mine, good = ([each.at * 60 for each in own if each.candidate == build] for build in (candidate, 0))
        one, other = min(product(mine, good), key=lambda pair: abs(pair[0] - pair[1]))
        interval = shown.get(candidate, Interval(0.0, 1.0, math.inf))
        held = interval.low <= math.exp(truth) <= interval.high
        width = math.log(interval.high / interval.low) if interval.has_known_bound else math.nan
        moved = abs(speed.value_at(one) - speed.value_at(other)) > MOVED
        yield Row(held, width, len(mine), abs(one - other) / RUN, moved)


def line(name: str, found: list[Row]) -> str:
    """How many rows have an interval, how many of these hold the truth, and how wide they are."""
    known = [row for row in found if not math.isnan(row.width)]
    held = sum(row.held for row in known) / max(len(known), 1)
    width = median(row.width for row in known) if known else math.nan
    return f"{name:<45} {len(found):>5} {len(found) - len(known):>5} {held:>6.3f} {width:>6.3f}"


def main() -> None:
    """Play the hunts, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hunts", type=int, default=25, help="in each world (default: 25)")
    parser.add_argument("--worlds", default="", metavar="REGEX", help="only worlds whose name matches")
    asked = parser.parse_args()
    every: list[Row] = []
    print(f"{'':<45} {'rows':>5} {'none':>5} {'held':>6} {'width':>6}")
    for name, world in WORLDS.items():
        if re.search(asked.worlds, name):
            found = [row for seed in range(100, 100 + asked.hunts) for row in rows(world, seed)]
            print(line(name, found), flush=True)
            every += found
    for low, high in ((1, 1), (2, 2), (3, 5), (6, 999)):
        print(line(f"{low} to {high} runs", [row for row in every if low <= row.runs <= high]))
    for near, far in pairwise((0.0, 1.5, 4.0, 10.0, 30.0, math.inf)):
        print(line(f"{near:g} to {far:g} runs from good", [row for row in every if near < row.apart <= far]))
    print(line("the host's speed has changed since good's run", [row for row in every if row.moved]))
    print(line("all", every))


if __name__ == "__main__":
    main()
