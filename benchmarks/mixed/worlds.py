"""Worlds drawn at random, in which several things go wrong at once."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random

from perfbisect.core.domain.graph import Graph
from perfbisect.core.domain.policy import Policy
from perfbisect.simulate.graphs import criss_cross, long_branch, merging, octopus, older_branches, two_roots
from perfbisect.simulate.habits import Habits
from perfbisect.simulate.scenario import Scenario

SIZES = (3, 6, 12, 25, 60, 150, 400)
FEW = 60  # most commits of hunts for every change, as these are long
GRAPHS: dict[str, Callable[[int, int], Graph]] = {
    "line": lambda commits, _: Graph.line(commits),
    "merges": lambda commits, seed: merging(commits, seed),
    "back-merges": lambda commits, seed: merging(commits, seed, branching=0.3, length=8.0, returning=0.4),
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


@dataclass(frozen=True, slots=True)
class Drawn:
    """A random scenario and policy, and what is special about them in words."""

    scenario: Scenario
    policy: Policy
    hosts: int
    features: tuple[str, ...]


def draw(seed: int, *, every_change: bool) -> Drawn:
    """The scenario of this seed; the meaning of each of ``features`` is in the line that adds it."""
    rng = Random(seed)
    size = rng.choice([size for size in SIZES if size <= FEW or not every_change])
    shape, changes = rng.choice(list(GRAPHS)), rng.choice(CHANGES)
    effect, noise = rng.choice((0.03, 0.05, 0.1, 0.2)), rng.choice((0.005, 0.01, 0.02, 0.03))
    features = [shape, f"change: {changes}", f"drop of {effect:.0%}", f"noise of {noise:.1%}"]
    habits = Habits(
        noise=noise, layout=rng.choice((0.0, 0.003, 0.005)), outliers=rng.choice((0.0, 0.02, 0.08)), host_spread=0.05
    )
    scenario = Scenario(GRAPHS[shape](size, seed), effect, changes)
    policy, hosts = Policy(all_steps=every_change), 1

    def happens(feature: str, probability: float) -> bool:
        if rng.random() < probability:
            features.append(feature)
            return True
        return False

    if happens("drift", 0.3):
        habits = replace(habits, drift=0.02)
    if happens("ramp", 0.15):
        habits = replace(habits, ramp=rng.choice((-0.01, 0.01)))
    if happens("day and night", 0.1):
        habits = replace(habits, daily=0.02)
    if happens("jumps", 0.15):
        habits = replace(habits, jumps=(1 / 7200, 0.02))
    if happens("phases", 0.15):
        habits = replace(habits, phases=(0.3, -0.05, 1800.0))
    if happens("second speed", 0.1):
        habits = replace(habits, second_speed=(0.3, -0.04))
    if happens("visits differ", 0.15):
        habits = replace(habits, visits=0.7 * noise)
    if happens("slow builds are noisier", 0.1):
        habits = replace(habits, slow_noise=2.0)
    if happens("builds share a cache", 0.3):
        habits = replace(habits, cached_share=0.1)
    if happens("flaky builds", 0.15):
        habits = replace(habits, flaky=0.1)
    if happens("commits do not build", 0.3):
        scenario = replace(scenario, failing=rng.choice((0.1, 0.3)))
    if happens("nor does the culprit", 0.15):
        scenario = replace(scenario, block=rng.choice((2, 5)))
    if happens("commits crash", 0.15):
        scenario = replace(scenario, crashing=0.05)
    if happens("equal binaries", 0.2):
        scenario = replace(scenario, identical=0.3)
    if scenario.graph.branch_points and happens("older branches differ", 0.6):
        scenario = replace(scenario, older=rng.choice((-0.05, 0.03, 0.1)))
    if happens("several hosts", 0.15):
        hosts = rng.choice((2, 3))
    if happens("budget of runs", 0.1):
        policy = replace(policy, max_runs=rng.choice((20, 60)))
    if happens("budget of builds", 0.1):
        policy = replace(policy, max_builds=rng.choice((4, 8)))
    return Drawn(replace(scenario, habits=habits), policy, hosts, tuple(features))
