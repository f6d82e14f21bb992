"""The worlds of the benchmark: a grid of sizes, and one world for each thing that can go wrong."""

import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # what benchmarks share

from planted import Odd, Place, Planted
from shapes import criss_cross, long_branch, octopus, older_branches, two_roots

from perfbisect.core.domain.graph import Graph
from perfbisect.core.domain.settings import ChangeDirection, Policy
from perfbisect.simulate.host_model import HostModel
from perfbisect.simulate.scenario import Scenario, random_merging_graph

RUN = 60.0  # seconds
EFFECTS = (0.45, 0.20, 0.10, 0.05, 0.03)
NOISES = (0.01, 0.03)
USUAL = Policy()
COUNTED = Policy(min_effect=0.001)


@dataclass(frozen=True, slots=True, eq=False)
class Cell:
    """Worlds that are counted together."""

    name: str
    group: str  # "grid", "world" or "counts"
    scenario: Scenario
    build: float  # cost of a build in runs
    hosts: int = 1
    policy: Policy = USUAL  # without the cost of a build
    exact: bool = False  # the metric is a count that repeats

    @property
    def separation(self) -> float:
        """The drop in standard deviations of a run."""
        return self.scenario.log_drop / self.scenario.habits.noise

    @property
    def urgent(self) -> bool:
        """Whether it counts for most goals: worlds, and the lines of 1,000 commits of the grid."""
        return self.name.startswith(("world/", "counts/", "grid/1000/"))

    @property
    def core(self) -> bool:
        """Whether the drop is clearly visible."""
        return self.scenario.effect > 0.05 or self.scenario.habits.noise < 0.03


@cache
def line(commits: int) -> Graph:
    """One graph for all cells that share it."""
    return Graph.straight_history(commits)


def habits(noise: float = 0.01, build: float = 10.0, **more: object) -> HostModel:
    """Of a usual host; ``build`` in runs."""
    return HostModel(noise=noise, run_seconds=RUN, build_seconds=build * RUN, **more)  # type: ignore[arg-type]


def grid() -> Iterator[Cell]:
    """Sizes of ranges, effects and noises, with and without drift and further steps."""
    graphs = {"100": line(100), "1000": line(1000), "10000": line(10_000), "dag": random_merging_graph(1000, seed=1)}
    for (name, graph), effect, noise, build, drift, steps in product(
        graphs.items(), EFFECTS, NOISES, (1.0, 10.0), (0.0, 0.02), ("one", "smaller")
    ):
        conditions = f"{'drift' if drift else 'steady'},{'steps' if steps == 'smaller' else 'plain'}"
        scenario = Scenario(graph, effect, steps, habits=habits(noise, build, drift=drift))
        yield Cell(f"grid/{name}/{effect:.0%}@{noise:.0%}/B={build:g}/{conditions}", "grid", scenario, build)


def worlds() -> Iterator[Cell]:
    """A drop of 5 % in a line of 1,000 commits, noise of 1 %, builds of 10 runs; and one difference."""

    def cell(name: str, *, graph: Graph | None = None, effect: float = 0.05, build: float = 10.0, hosts: int = 1,
             host: dict[str, object] | None = None, policy: Policy = USUAL, **more: object) -> Cell:  # fmt: skip
        scenario = Planted(graph or line(1000), effect, habits=habits(build=build, **(host or {})), **more)  # type: ignore[arg-type]
        return Cell(f"world/{name}", "world", scenario, build, hosts, policy)

    dag = random_merging_graph(1000, seed=1)
    yield cell("usual")
    yield cell("first after good", place=Place.FIRST)
    yield cell("bad itself", place=Place.LAST)
    for commits in (1, 2, 3, 100_000):
        yield cell(f"{commits} commits", graph=line(commits))
    yield cell("effect 2 %", effect=0.02)
    for separation in (1.0, 1.7, 3.0, 5.0, 10.0):
        noise = Scenario(line(1000)).log_drop / separation
        yield cell(f"D/s {separation:g}", host={"noise": noise})
    yield cell("layout 1 %", host={"layout": 0.01})
    for odd in Odd:
        yield cell(f"layout half way, {odd}", odd=odd)
    yield cell("drift 2 %", host={"drift": 0.02})
    yield cell("drift 4 %", host={"drift": 0.04})
    yield cell("ramp 1 %/h", host={"ramp": 0.01})
    yield cell("daily 3 %", host={"daily": 0.03})
    yield cell("jumps 4 %, hourly", host={"jumps": (1 / 3600, 0.04)})
    yield cell("phases of 30 min, -4 %", host={"phases": (0.3, -0.04, 1800.0)})
    yield cell("visits differ 1 %", host={"visits": 0.01})
    yield cell("outliers 10 %", host={"outliers": 0.10})
    yield cell("outliers 10 %, up and down", host={"outliers": 0.10, "lucky": 0.5})
    yield cell("outliers beside the culprit", spoiled=True)
    yield cell("two speeds of runs", host={"second_speed": (0.3, -0.04)})
    yield cell("two speeds of builds", host={"second_build": (0.1, -0.02)})
    yield cell("slow side noisier", host={"slow_noise": 3.0})
    for change in (
        "smaller",
        "large",
        "cancelling",
        "before-and-after",
        "adjacent",
        "reverted",
        "culprit-on-slope",
        "slope",
    ):
        yield cell(f"changes: {change}", changes=change)
    yield cell("no change", changes="nothing")
    yield cell("no change, noise 3 %, drift", changes="nothing", host={"noise": 0.03, "drift": 0.02})
    yield cell("improvement (ends swapped)", changes="improvement")
    yield cell("unbuildable 10 %", failing=0.1)
    yield cell("unbuildable 30 %", failing=0.3)
    yield cell("unbuildable block of 50", block=50)
    yield cell(
        "unbuildable stretch on a graph",
        graph=random_merging_graph(1000, seed=1, merge_chance=0.3, max_branch_age=60),
        broken=150,
    )
    yield cell("crashing 10 %", crashing=0.1)
    for share in (0.1, 0.3):
        yield cell(f"flaky build {share:.0%}".replace("%", " %"), host={"flaky": share})
    yield cell("identical binaries 50 %", identical=0.5)
    yield cell("merges: anywhere", graph=dag)
    yield cell("merges: on a branch", graph=dag, place=Place.BRANCH)
    yield cell("merges: evil merge", graph=dag, place=Place.MERGE)
    yield cell(
        "back-merges",
        graph=random_merging_graph(1000, seed=1, merge_chance=0.3, branch_length=12.0, back_merge_chance=0.5),
    )
    older = older_branches(1000)
    yield cell("older branches", graph=older)
    for effect in (0.05, 0.3, -0.05):
        than = "slower" if effect > 0 else "faster"
        yield cell(f"older branches, {abs(effect):.0%} {than}".replace("%", " %"), graph=older, older=effect)
    yield cell("criss-cross", graph=criss_cross(1000))
    yield cell("octopus", graph=octopus(1000))
    yield cell("two roots", graph=two_roots(1000))
    yield cell("long branch", graph=long_branch(1000))
    for build in (0.1, 1.0, 60.0):
        yield cell(f"build {build:g} runs", build=build)
    yield cell("ccache", host={"cached_share": 0.1, "cache_reach": 180.0})
    for hosts in (2, 4, 8):
        yield cell(f"{hosts} hosts", hosts=hosts, host={"host_spread": 0.01})
    modes: dict[str, object] = {"modes": (0.10, 0.25)}  # gaps; one of the modes ends after 20 to 200 commits
    small = Policy(min_effect=0.005)
    for again in (False, True):  # each world with the builds as they are linked, and where they can be linked again
        for name, more in (
            ("two modes of layout", {"host": modes}),
            ("two modes of layout, no change", {"host": modes, "changes": "nothing"}),
            ("layout 1 %, drop 3 %", {"host": {"layout": 0.01}, "effect": 0.03}),
            ("drop 1 %", {"effect": 0.01, "policy": small}),
            *((f"layout half way, {odd}", {"odd": odd}) for odd in (Odd.BEFORE, Odd.CULPRIT) if again),
            *((name, kind) for name, kind in (("usual", {}), ("no change", {"changes": "nothing"})) if again),
        ):
            known: dict[str, Any] = {"policy": USUAL, "host": {}, **more}
            host = {**known.pop("host"), "link_seconds": RUN / 10}
            policy = replace(known.pop("policy"), layouts=again)
            yield cell(f"{name}{', linked again' * again}", host=host, policy=policy, **known)
    in_any_direction = Policy(direction=ChangeDirection.ANY)
    yield cell("beside good: base as fast", graph=line(1), changes="nothing", policy=in_any_direction)
    yield cell("beside good: base not as fast", graph=line(1), policy=in_any_direction)
    yield cell("budget: 20 runs", policy=Policy(max_runs=20))
    yield cell("budget: 8 builds", policy=Policy(max_builds=8))
    yield cell("budget: 100 minutes", policy=Policy(max_minutes=100.0))
    yield cell("2 hosts, one bad", hosts=2, host={"host_spread": 0.01, "bad_host": 5.0})


def counts() -> Iterator[Cell]:
    """Counts that repeat: 1,000 commits, of which 30 % change the count by some 0.01 %, and a culprit."""
    exact = {"layout": 0.0, "outliers": 0.0}

    def cell(name: str, effect: float, *, noise: float = 1e-5, **more: object) -> Cell:
        scenario = Planted(line(1000), effect, habits=habits(noise, **exact), **{"neutral": (0.3, 1e-4)} | more)  # type: ignore[arg-type]
        return Cell(f"counts/{name}", "counts", scenario, 10.0, policy=COUNTED, exact=True)

    for effect in (0.1, 0.01, 0.003):
        yield cell(f"{100 * effect:g} %", effect)
    for noise in (1e-7, 1e-4):
        yield cell(f"1 %, noise {noise:g}", 0.01, noise=noise)
    yield cell("0.1 %, others smaller", 0.0011, neutral=(0.1, 3e-5))
    for change in ("smaller", "large", "cancelling", "before-and-after", "culprit-on-slope", "slope"):
        yield cell(f"1 %, changes: {change}", 0.01, changes=change)
    yield cell("no change", 0.01, changes="nothing", neutral=(0.05, 3e-5))


def all_cells() -> list[Cell]:
    """All cells, the most important first."""
    return sorted([*worlds(), *counts(), *grid()], key=lambda cell: not cell.urgent)
