"""Random observations of a search, the changes that a verdict names, and a simulated world that stops slow runs."""

import math
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any

import numpy as np
from hypothesis import strategies as st

from perfbisect.core.domain.graph import Graph
from perfbisect.core.domain.orders import Decision, Found, Measure, Several, Step, Verdict
from perfbisect.core.inference.observations import Built, Observation, Reading, Skipped
from perfbisect.core.search import decide as search
from perfbisect.core.search.situation import Situation
from perfbisect.simulate.scenario import random_merging_graph
from perfbisect.simulate.world import World


def decide(*of_situation: Any, **more: Any) -> Decision:
    """The decision of the search in the Situation with these fields."""
    return search.decide(Situation(*of_situation, **more))


def found(verdict: Verdict) -> Step:
    """The change of a verdict that names the culprit."""
    assert isinstance(verdict, Found)
    return verdict.step


def several(verdict: Verdict) -> tuple[list[int], list[int], list[tuple[int, int]]]:
    """The drops, the improvements, and the ends of the unsettled subranges in a verdict on all changes."""
    assert isinstance(verdict, Several)
    drops, rises = ([step.candidate for step in steps] for steps in (verdict.steps, verdict.improvements))
    return drops, rises, [(subrange.good, subrange.bad) for subrange in verdict.unsettled]


@st.composite
def moments(draw: st.DrawFn, build_hosts: int = 0) -> tuple[Graph, list[Observation]]:
    """A small history with random observations, also implausible: builds without runs, failures, or no runs at all."""
    graph = random_merging_graph(
        draw(st.integers(2, 29)), seed=draw(st.integers(0, 999)), merge_chance=0.3, branch_length=4.0
    )
    size = graph.size
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    culprit, inner = draw(st.integers(1, size - 1)), st.integers(1, size - 2)
    effect, noise = draw(st.sampled_from([0.3, 0.1, 0.0])), draw(st.sampled_from([0.002, 0.03]))
    run = [0, size - 1, *draw(st.lists(inner, max_size=10))] if draw(st.integers(0, 4)) else []
    waiting = draw(st.sets(inner, max_size=3))
    failed = draw(st.sets(inner, max_size=3)) - set(run) - waiting
    seen: list[Observation] = [
        Built(v, 600.0, build_host=draw(st.integers(0, build_hosts - 1)) if build_hosts else None)
        for v in dict.fromkeys([*run, *waiting])
    ]
    seen += [Skipped(v, "does not build", 60.0 * (v % 2), left_out=v % 3 == 0) for v in sorted(failed)]
    for i, v in enumerate(run * 2):
        seen.append(Reading(v, rng.normal() * noise - effect * (v >= culprit), float(i), i, 0, 60.0))
    return graph, seen


@dataclass(slots=True, eq=False)
class ImpatientWorld(World):
    """A world that stops runs ``slow_after`` times slower than good, and gives a bound as their reading."""

    slow_after: float = 5.0
    good: list[float] = field(default_factory=list)

    def measure(self, order: Measure) -> list[Observation]:
        """Carry out ``order``."""
        return [self.stopped(seen) if isinstance(seen, Reading) else seen for seen in World.measure(self, order)]

    def stopped(self, seen: Reading) -> Reading:
        """The reading, or the bound if the run was stopped."""
        if seen.candidate == 0:
            self.good.append(seen.value)
            return seen
        bound = median(self.good) - math.log(self.slow_after)
        return replace(seen, value=bound, bound=-1) if seen.value < bound else seen
