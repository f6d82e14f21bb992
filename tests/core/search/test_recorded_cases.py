"""Four real hunts through one commit each, decided again from their recorded observations.

A record contains the observations of a hunt on a noisy machine: readings with their minutes, and the costs of builds.
benchmarks/hunts.md describes the hunts. The tests check the verdict after the whole record, and that no earlier
decision names a wrong culprit. The orders of the search may differ from those of the real hunt.
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
from perfbisect.core.domain.settings import ChangeDirection, Policy, PriorKnowledge
from perfbisect.core.inference.observations import Built, Observation, Reading
from simulated_worlds import decide

RECORDS = Path(__file__).parents[2] / "records"
RANGE = Graph.straight_history(1)
GOOD, BAD = range(2)


@dataclass(frozen=True, slots=True)
class Record:
    """A hunt: its policy, its observations, and the numbers of observations after which it decided."""

    policy: Policy
    prior: PriorKnowledge
    observations: Sequence[Observation]
    decided_after: Sequence[int]

    @property
    def measured(self) -> float:
        """The ratio of bad to good, computed only from the means of their readings."""
        readings = [one for one in self.observations if isinstance(one, Reading)]
        good, bad = (fmean(one.value for one in readings if one.candidate == end) for end in (GOOD, BAD))
        return math.exp(bad - good)

    def order(self, count: int | None = None, **rules: Any) -> Measure | Verdict:
        """The decision after ``count`` observations (default: all). ``rules`` replace fields of the policy."""
        return decide(RANGE, self.observations[:count], replace(self.policy, **rules), self.prior).order


def read(name: str) -> Record:
    kept = json.loads((RECORDS / f"{name}.json").read_text())
    policy, prior = msgspec.convert(kept["policy"], Policy), msgspec.convert(kept["prior"], PriorKnowledge)
    return Record(policy, prior, [observation(*each) for each in kept["observations"]], kept["asked_after"])


def observation(kind: str, candidate: int, *rest: float) -> Observation:
    """An entry of a record: a build with its seconds, or a run with its value, minute, visit and seconds."""
    if kind == "built":
        return Built(candidate, *rest)
    value, at, visit, seconds = rest
    return Reading(candidate, value, at, int(visit), seconds=seconds)


def holds(interval: Interval, ratio: float) -> bool:
    return interval.low <= ratio <= interval.high


VERDICTS = {
    "float-multiplication-1": Found,  # a rise of about 5 % in CPU time, which is almost hidden by noise:
    "float-multiplication-2": NotReproduced,  # one hunt found it, the next could not
    "hash-aggregation": Found,  # a drop, because the plan of the query changed
    "sorted-groups": NotReproduced,  # the query and commit of hash-aggregation with an equal plan: no change
}
BORDERLINE = 1.05  # the ratio of float multiplications, from interleaved pairs measured another day
CONFIDENCES = (0.8, 0.95)


@pytest.fixture(params=VERDICTS)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize("confidence", CONFIDENCES)
def test_whole_record_leads_to_the_expected_verdict(name: str, confidence: float) -> None:
    record = read(name)
    order = record.order(confidence=confidence)
    assert isinstance(order, VERDICTS[name])
    if isinstance(order, Found):
        assert (order.step.candidate, order.step.parents) == (BAD, (GOOD,))
        assert confidence <= order.step.probability < 1
        assert holds(order.step.ratio, record.measured) and not holds(order.step.ratio, 1.0)
    if isinstance(order, NotReproduced):
        assert holds(order.ratio, record.measured) and holds(order.ratio, 1.0)
        assert record.policy.min_effect / 2 < order.detectable < 0.15, "the hunt would have found a larger change"


def test_more_confidence_than_the_record_supports_names_no_culprit(name: str) -> None:
    order = read(name).order(confidence=0.99)
    assert isinstance(order, VERDICTS[name] | Measure | Inconclusive), "no culprit is named with less confidence"


def test_borderline_change_is_inside_the_interval_of_either_verdict() -> None:
    """One hunt found the change, another hunt did not; both state an interval that contains the ratio."""
    found, not_found = (read(f"float-multiplication-{number}").order() for number in (1, 2))
    assert isinstance(found, Found) and holds(found.step.ratio, BORDERLINE)
    assert isinstance(not_found, NotReproduced) and holds(not_found.ratio, BORDERLINE)
    assert not_found.detectable > BORDERLINE - 1, "the verdict says that so small a change can be missed"


@pytest.mark.parametrize("direction", ChangeDirection)
def test_no_earlier_decision_names_a_wrong_culprit(name: str, direction: ChangeDirection) -> None:
    """Each decision of the hunt is checked for each direction."""
    record = read(name)
    for count in record.decided_after:
        order = record.order(count, direction=direction)
        if isinstance(order, Found):
            rise = order.step.ratio.middle > 1
            assert name != "sorted-groups" and rise == (record.policy.direction is ChangeDirection.RISE)


def test_drop_above_the_detectable_size_is_not_missed() -> None:
    """A drop of 1.5 times the detectable size is added to the record of a hunt without a change."""
    record = read("sorted-groups")
    verdict = record.order()
    assert isinstance(verdict, NotReproduced)
    drop = {GOOD: 0.0, BAD: math.log1p(-1.5 * verdict.detectable)}
    slower = [
        replace(one, value=one.value + drop[one.candidate]) if isinstance(one, Reading) else one
        for one in record.observations
    ]
    assert isinstance(replace(record, observations=slower).order(), Measure | Found)
