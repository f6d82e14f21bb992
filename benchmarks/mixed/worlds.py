"""Worlds drawn at random, in which several things go wrong at once."""

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # what benchmarks share

from planted import Planted
from shapes import criss_cross, long_branch, octopus, older_branches, two_roots

from perfbisect.core.domain.graph import Graph
from perfbisect.core.domain.settings import Policy
from perfbisect.simulate.host_model import HostModel
from perfbisect.simulate.scenario import Scenario, random_merging_graph

SIZES = (3, 6, 12, 25, 60, 150, 400)
FEW = 60  # most commits of hunts for every change, as these are long
GRAPHS: dict[str, Callable[[int, int], Graph]] = {
    "line": lambda commits, _: Graph.straight_history(commits),
    "merges": lambda commits, seed: random_merging_graph(commits, seed),
    "back-merges": lambda commits, seed: random_merging_graph(
        commits, seed, merge_chance=0.3, branch_length=8.0, back_merge_chance=0.4
    ),
    "older branches": lambda commits, seed: older_branches(max(commits, 30), branches=1 + seed % 4),
    "long branch": lambda commits, _: long_branch(max(commits, 6)),
    "criss-cross": lambda commits, _: criss_cross(max(commits, 6)),
    "octopus": lambda commits, _: octopus(max(commits, 20)),
    "two roots": lambda commits, _: two_roots(max(commits, 8)),
}
CHANGES = ("one",) * 6 + (
    "nothing", "nothing", "improvement", "smaller", "large", "cancelling", "before-and-after", "adjacent", "reverted",
    "sloping",
)  # fmt: skip

Trouble = tuple[str, float, Callable[[Random, float], dict[str, Any]]]  # its probability; fields by the noise of a run
HABITS: tuple[Trouble, ...] = (
    ("drift", 0.3, lambda rng, noise: {"drift": 0.02}),
    ("ramp", 0.15, lambda rng, noise: {"ramp": rng.choice((-0.01, 0.01))}),
    ("day and night", 0.1, lambda rng, noise: {"daily": 0.02}),
    ("jumps", 0.15, lambda rng, noise: {"jumps": (1 / 7200, 0.02)}),
    ("phases", 0.15, lambda rng, noise: {"phases": (0.3, -0.05, 1800.0)}),
    ("second speed", 0.1, lambda rng, noise: {"second_speed": (0.3, -0.04)}),
    ("visits differ", 0.15, lambda rng, noise: {"visits": 0.7 * noise}),
    ("slow builds are noisier", 0.1, lambda rng, noise: {"slow_noise": 2.0}),
    ("builds share a cache", 0.3, lambda rng, noise: {"cached_share": 0.1}),
    ("flaky builds", 0.15, lambda rng, noise: {"flaky": 0.1}),
)
SCENARIOS: tuple[Trouble, ...] = (
    ("commits do not build", 0.3, lambda rng, noise: {"failing": rng.choice((0.1, 0.3))}),
    ("nor does the culprit", 0.15, lambda rng, noise: {"block": rng.choice((2, 5))}),
    ("commits crash", 0.15, lambda rng, noise: {"crashing": 0.05}),
    ("equal binaries", 0.2, lambda rng, noise: {"identical": 0.3}),
)
BUDGETS = {"runs": (20, 60), "builds": (4, 8)}


@dataclass(frozen=True, slots=True)
class Drawn:
    """A random scenario and policy, and what is special about them in words."""

    scenario: Scenario
    policy: Policy
    hosts: int
    features: tuple[str, ...]


def draw(seed: int, *, every_change: bool) -> Drawn:
    """The scenario of this seed; the meaning of each of ``features`` is in the line that names it."""
    rng = Random(seed)
    size = rng.choice([size for size in SIZES if size <= FEW or not every_change])
    shape, changes = rng.choice(list(GRAPHS)), rng.choice(CHANGES)
    effect, noise = rng.choice((0.03, 0.05, 0.1, 0.2)), rng.choice((0.005, 0.01, 0.02, 0.03))
    features = [shape, f"change: {changes}", f"drop of {effect:.0%}", f"noise of {noise:.1%}"]
    habits = HostModel(
        noise=noise, layout=rng.choice((0.0, 0.003, 0.005)), outliers=rng.choice((0.0, 0.02, 0.08)), host_spread=0.05
    )
    scenario = Planted(GRAPHS[shape](size, seed), effect, changes)
    policy, hosts = Policy(all_steps=every_change), 1

    def happens(feature: str, probability: float) -> bool:
        if rng.random() < probability:
            features.append(feature)
            return True
        return False

    for feature, probability, change in HABITS:
        if happens(feature, probability):
            habits = replace(habits, **change(rng, noise))
    for feature, probability, change in SCENARIOS:
        if happens(feature, probability):
            scenario = replace(scenario, **change(rng, noise))
    if scenario.graph.branch_points and happens("older branches differ", 0.6):
        scenario = replace(scenario, older=rng.choice((-0.05, 0.03, 0.1)))
    if happens("several hosts", 0.15):
        hosts = rng.choice((2, 3))
    for feature, limits in BUDGETS.items():
        if happens(f"budget of {feature}", 0.1):
            policy = replace(policy, **{f"max_{feature}": rng.choice(limits)})
    return Drawn(replace(scenario, habits=habits), policy, hosts, tuple(features))
