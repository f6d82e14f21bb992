"""Records every decision of many simulated hunts, and compares two such records. See benchmarks/README.md.

A change of the code that is not to change the search is judged by it: orders and verdicts have to be the same, and
probabilities within 1e-9.
"""

import argparse
import json
import math
import os
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

for library in ("OPENBLAS", "OMP", "MKL"):
    os.environ.setdefault(f"{library}_NUM_THREADS", "1")

sys.path.insert(0, str(Path(__file__).parents[1]))  # what benchmarks share

import groups
import numpy as np
from planted import Planted
from worlds import draw

from perfbisect.core.domain.codec import clamp_infinity, encode_order
from perfbisect.core.domain.graph import Graph
from perfbisect.core.domain.orders import Belief, Decision
from perfbisect.core.domain.settings import NOTHING_KNOWN, Policy, PriorKnowledge
from perfbisect.core.search.situation import Situation
from perfbisect.hunt.loop import SearchPlanner, run
from perfbisect.simulate.host_model import HostModel
from perfbisect.simulate.hunt import MemoryLog, SimulatedWorkers
from perfbisect.simulate.world import World

KINDS = ("mixed", "all", "layouts", "ahead", "together", "counts")  # of hunts, in turn
LEADERS = 5  # candidates whose probabilities are kept
ORDERS = 400  # of a hunt, at most; one that takes more is recorded up to there
NEAR = 1e-9

Facts = dict[str, Any]


class Decisions(MemoryLog):
    """The log of a hunt, which also keeps each decision."""

    def __init__(self) -> None:
        super().__init__()
        self.all: list[Facts] = []

    def append(self, event: Any, workload: int | None = None) -> None:
        """Keep an observation or a decision."""
        before = self.decision
        super().append(event, workload)
        if self.decision is not before and self.decision:
            self.all.append(facts_of(self.decision))


def facts_of(decision: Decision) -> Facts:
    """An order or a verdict, the builds that are begun and ended, and the probabilities."""
    builds = [[build.candidate, build.build_host] for build in decision.builds]
    order = json.loads(json.dumps(clamp_infinity(encode_order(decision.order))))
    for name in ("layouts", "workload", "round"):  # for the views and the driver
        order.pop(name, None)
    return {"order": order, "builds": builds, "cancelled": [*decision.cancelled], "belief": of_belief(decision.belief)}


def of_belief(belief: Belief) -> list[float]:
    """The most probable culprits with their probabilities, the entropy, and the probability of a change."""
    culprit = belief.culprit
    leaders = np.argsort(-culprit, kind="stable")[:LEADERS]
    entropy = -float((culprit[culprit > 0] * np.log(culprit[culprit > 0])).sum())
    return [*map(float, leaders), *culprit[leaders].tolist(), entropy, float(belief.change), float(belief.noise)]


def play(number: int, kinds: Sequence[str]) -> Facts:
    """All decisions of one hunt."""
    kind, seed = kinds[number % len(kinds)], number // len(kinds) + 1
    rng = Random(f"{kind} {seed}")
    try:
        return {"kind": kind, "seed": seed, "decisions": PLAYERS[kind](seed, rng)}
    except RuntimeError as endless:
        return {"kind": kind, "seed": seed, "decisions": [], "endless": str(endless)}


def decisions(
    world: World, policy: Policy, prior: PriorKnowledge = NOTHING_KNOWN, hosts: int = 1, build_hosts: int = 0
) -> list[Facts]:
    """Those of a hunt in this world."""
    log = Decisions()
    planner = SearchPlanner(partial(Situation, world.graph, log.observations, policy, prior))
    for _ in run(planner, log.append, SimulatedWorkers(world, hosts, ORDERS, build_hosts)):
        pass
    return log.all


def mixed(seed: int, rng: Random, *, every_change: bool = False) -> list[Facts]:
    """A hunt in which several things go wrong at once."""
    drawn = draw(seed, every_change=every_change)
    return decisions(drawn.scenario.world(seed), drawn.policy, hosts=drawn.hosts)


def in_layouts(seed: int, rng: Random) -> list[Facts]:
    """One where builds can be linked again, and the usual layout misleads."""
    commits, slow = rng.choice((20, 60, 150)), rng.choice((0.0, 0.03, 0.06))
    habits = HostModel(
        noise=rng.choice((0.005, 0.01)), layout=rng.choice((0.002, 0.01)), outliers=rng.choice((0.0, 0.02))
    )
    begin = rng.randrange(1, commits)
    moved = frozenset(range(begin, commits + 1))
    gap = rng.choice((0.0, 0.15))
    culprit = rng.randrange(1, commits + 1)
    world = World(
        Graph.straight_history(commits),
        {culprit: -slow} if slow else {},
        habits,
        mode_gap=gap,
        slow_modes=moved,
        seed=seed,
    )
    return decisions(world, Policy(layouts=True))


def ahead(seed: int, rng: Random) -> list[Facts]:
    """One with build hosts."""
    drawn = draw(seed, every_change=False)
    return decisions(drawn.scenario.world(seed), drawn.policy, build_hosts=rng.choice((1, 2, 4)))


def counted(seed: int, rng: Random) -> list[Facts]:
    """One by exact counts."""
    habits = HostModel(noise=rng.choice((1e-7, 1e-5)), layout=0.0, outliers=0.0)
    changes = rng.choice(("one", "smaller", "before-and-after", "nothing"))
    scenario = Planted(
        Graph.straight_history(rng.choice((40, 300))), rng.choice((0.004, 0.03)), changes, neutral=(0.3, 1e-4)
    )
    world = replace(scenario, habits=habits).world(seed)
    return decisions(world, Policy(min_effect=0.002, all_steps=rng.random() < 0.5), PriorKnowledge(exact=True))


def of_several(seed: int, rng: Random) -> list[Facts]:
    """Those of several workloads in one process."""
    drawn = draw(seed, every_change=False)
    scenario = replace(drawn.scenario, identical=0.0)
    workloads = [
        groups.Workload(rng.choice((0.03, 0.08)), rng.choice((0, 0, 1, None))) for _ in range(rng.choice((2, 3)))
    ]
    found: list[Facts] = []
    decide = groups.decide_together

    def recorded(*args: Any) -> tuple[int, Decision]:
        turn, decision = decide(*args)
        found.append(facts_of(decision) | {"turn": turn})
        return turn, decision

    groups.decide_together = recorded
    try:
        groups.hunt_together(groups.worlds(scenario, workloads, seed), drawn.policy, most_orders=ORDERS)
    finally:
        groups.decide_together = decide
    return found


PLAYERS = {
    "mixed": mixed, "all": partial(mixed, every_change=True), "layouts": in_layouts, "ahead": ahead,
    "together": of_several, "counts": counted,
}  # fmt: skip


def differences(one: Any, other: Any, where: str = "") -> Iterator[str]:
    """Where two values differ by more than rounding; what is empty may be left out."""
    if not one and not other:
        return
    if isinstance(one, dict) and isinstance(other, dict):
        for key in sorted(one.keys() | other.keys()):
            yield from differences(one.get(key), other.get(key), f"{where}.{key}")
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        for place, pair in enumerate(zip(one, other, strict=True)):
            yield from differences(*pair, where if where.endswith("]") else f"{where}[{place}]")
    elif isinstance(one, float) and isinstance(other, float):
        if not math.isclose(one, other, rel_tol=NEAR, abs_tol=NEAR):
            yield where
    elif one != other:
        yield where


def compare(before: Path, after: Path) -> int:
    """Print how many hunts differ, and where the first decision of each does. Returns the exit status."""
    records = [{(one["kind"], one["seed"]): one for one in map(json.loads, path.open())} for path in (before, after)]
    common = records[0].keys() & records[1].keys()
    wrong: Counter[str] = Counter()
    total = 0
    for key in sorted(common):
        one, other = (record[key] for record in records)
        total += len(one["decisions"])
        if first := next(differences(one, other), None):
            wrong[f"{key[0]}: {first}"] += 1
            print(f"{key[0]} {key[1]}: differs at {first}")
    for what, hunts in wrong.most_common(20):
        print(f"{hunts:5} hunts  {what}")
    print(f"{len(common)} hunts with {total} decisions compared, {sum(wrong.values())} differ")
    return 1 if wrong or records[0].keys() != records[1].keys() else 0


def main() -> int:
    """Play, or compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    playing = verbs.add_parser("play", help="record hunts")
    playing.add_argument("--hunts", type=int, default=2000)
    playing.add_argument("--kinds", default=",".join(KINDS))
    playing.add_argument("--jobs", type=int, default=1)
    playing.add_argument("file", type=Path)
    comparing = verbs.add_parser("compare", help="compare two records")
    comparing.add_argument("before", type=Path)
    comparing.add_argument("after", type=Path)
    args = parser.parse_args()
    if args.verb == "compare":
        return compare(args.before, args.after)
    one = partial(play, kinds=args.kinds.split(","))
    with ProcessPoolExecutor(args.jobs) as pool, args.file.open("w") as file:
        for done, facts in enumerate(pool.map(one, range(args.hunts), chunksize=10), 1):
            file.write(json.dumps(facts) + "\n")
            if done % 100 == 0:
                print(f"{done} of {args.hunts} hunts", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
