"""Four hunts through one commit each that were really made, decided again from what was measured.

A record contains the observations of a hunt on a noisy machine: readings as logarithms of the metric with their minute, and
what each build cost; benchmarks/hunts.md tells the story. What is asserted is what the whole record leads to, and that
nothing wrong is named on the way: the orders of the search may differ.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import msgspec
import pytest

from perfbisect.core.domain.graph import Graph
from perfbisect.core.domain.orders import Found, Inconclusive, Interval, Measure, NotReproduced, Verdict
from perfbisect.core.domain.settings import Direction, Policy, PriorKnowledge
from perfbisect.core.inference.observations import Built, Observation, Reading
from simulated_worlds import decide

RECORDS = Path(__file__).parents[2] / "records"
RANGE = Graph.straight_history(1)
GOOD, BAD = range(2)


@dataclass(frozen=True, slots=True)
class Record:
    """One hunt: its rules, what it observed, and after how many observations it decided."""

    policy: Policy
    prior: PriorKnowledge
    observations: Sequence[Observation]
    decided_after: Sequence[int]

    @property
    def measured(self) -> float:
        """Bad against good by nothing but the mean of all readings."""
        readings = [one for one in self.observations if isinstance(one, Reading)]
        good, bad = (fmean(one.value for one in readings if one.candidate == end) for end in (GOOD, BAD))
        return math.exp(bad - good)

    def order(self, count: int | None = None, **rules: Any) -> Measure | Verdict:
        """What so many of its observations lead to, or all of them, by its own rules or by others."""
        return decide(RANGE, self.observations[:count], replace(self.policy, **rules), self.prior).order


def read(name: str) -> Record:
    """The record of that name."""
    kept = json.loads((RECORDS / f"{name}.json").read_text())
    policy, prior = msgspec.convert(kept["policy"], Policy), msgspec.convert(kept["prior"], PriorKnowledge)
    return Record(policy, prior, [observation(*each) for each in kept["observations"]], kept["asked_after"])


def observation(kind: str, candidate: int, *rest: float) -> Observation:
    """One entry: a build with its seconds, or a run with its value, minute, visit and seconds."""
    if kind == "built":
        return Built(candidate, *rest)
    value, at, visit, seconds = rest
    return Reading(candidate, value, at, int(visit), seconds=seconds)


def holds(interval: Interval, ratio: float) -> bool:
    return interval.low <= ratio <= interval.high


VERDICTS = {
    "float-multiplication-1": Found,  # a rise of about 5 % in CPU time, at the edge of what the machine shows:
    "float-multiplication-2": NotReproduced,  # one hunt found it, the next could not
    "hash-aggregation": Found,  # a drop by another plan
    "sorted-groups": NotReproduced,  # the same query and commit with an equal plan: no change
}
BORDERLINE = 1.05  # the ratio of float multiplications, from interleaved pairs measured another day
CONFIDENCES = (0.8, 0.95)


@pytest.fixture(params=VERDICTS)
def name(request: pytest.FixtureRequest) -> str:
    """Each record in turn."""
    return str(request.param)


@pytest.mark.parametrize("confidence", CONFIDENCES)
def test_the_whole_record_leads_to_its_verdict(name: str, confidence: float) -> None:
    record = read(name)
    order = record.order(confidence=confidence)
    assert isinstance(order, VERDICTS[name])
    if isinstance(order, Found):
        assert (order.step.candidate, order.step.parents) == (BAD, (GOOD,))
        assert confidence <= order.step.probability < 1
        assert holds(order.step.ratio, record.measured) and not holds(order.step.ratio, 1.0)
    if isinstance(order, NotReproduced):
        assert holds(order.ratio, record.measured) and holds(order.ratio, 1.0)
        assert record.policy.min_effect / 2 < order.detectable < 0.15, "so large a change would have been seen"


def test_more_confidence_than_the_record_supports_names_no_culprit(name: str) -> None:
    order = read(name).order(confidence=0.99)
    assert isinstance(order, VERDICTS[name] | Measure | Inconclusive), "no culprit is named with less"


def test_a_borderline_change_is_within_every_interval() -> None:
    """Both hunts state a ratio that contains it, whether they found a change or not."""
    found, not_found = (read(f"float-multiplication-{number}").order() for number in (1, 2))
    assert isinstance(found, Found) and holds(found.step.ratio, BORDERLINE)
    assert isinstance(not_found, NotReproduced) and holds(not_found.ratio, BORDERLINE)
    assert not_found.detectable > BORDERLINE - 1, "so small a change could have been missed, and that is said"


@pytest.mark.parametrize("direction", Direction)
def test_nothing_wrong_is_named_on_the_way(name: str, direction: Direction) -> None:
    """At every decision of the hunt, for every direction."""
    record = read(name)
    for count in record.decided_after:
        order = record.order(count, direction=direction)
        if isinstance(order, Found):
            rise = order.step.ratio.middle > 1
            assert name != "sorted-groups" and rise == (record.policy.direction is Direction.RISE)


def test_a_drop_that_is_called_detectable_is_not_missed() -> None:
    """The record of nothing, with half as much again put into it, is not called alike."""
    record = read("sorted-groups")
    verdict = record.order()
    assert isinstance(verdict, NotReproduced)
    drop = {GOOD: 0.0, BAD: math.log1p(-1.5 * verdict.detectable)}
    slower = [
        replace(one, value=one.value + drop[one.candidate]) if isinstance(one, Reading) else one
        for one in record.observations
    ]
    assert isinstance(replace(record, observations=slower).order(), Measure | Found)
