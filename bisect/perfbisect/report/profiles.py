"""HuntProfiles of a culprit and its parent, as files that other tools read: folded stacks and speedscope's format.

A folded stack is a line `outermost;…;innermost cost`. Costs are per operation; in folded stacks they are of a million
operations, as the tools that read them expect whole numbers.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from perfbisect.core.domain.events import Profiled
from perfbisect.core.domain.facts import ProfileFacts

OPERATIONS = 1_000_000  # whose cost a line of folded stacks has


@dataclass(frozen=True, slots=True)
class HuntProfiles:
    """Folded stacks with their own cost per operation, of both builds."""

    parent: Mapping[str, float]
    culprit: Mapping[str, float]
    unit: str  # of costs: "us", "cycles"
    notes: tuple[str, ...] = ()  # what a reader must know: callers that are missing, …


def profiles(events: Iterable[object]) -> HuntProfiles | None:
    """The profiles on CPU that a hunt has recorded after its verdict; None where one side has none.

    The older of the two candidates is the parent. Of profiles in several units, those in the first are used.
    """
    found = [
        event for event in events if isinstance(event, Profiled) and not event.facts.off_cpu and event.facts.operations
    ]
    candidates = sorted({event.candidate for event in found})
    if len(candidates) != 2:
        return None
    unit = found[0].facts.unit
    parent, culprit = (
        [event.facts for event in found if event.candidate == candidate and event.facts.unit == unit]
        for candidate in candidates
    )
    if not (any(one.stacks for one in parent) and any(one.stacks for one in culprit)):
        return None
    notes = dict.fromkeys(one.note for one in (*parent, *culprit) if one.note)
    return HuntProfiles(per_operation(parent), per_operation(culprit), unit, tuple(notes))


def per_operation(runs: Iterable[ProfileFacts]) -> dict[str, float]:
    """The cost of each stack per operation, over all runs together."""
    total: dict[str, float] = {}
    operations = 0
    for run in runs:
        operations += run.operations
        for stack, cost in run.stacks.items():
            total[stack] = total.get(stack, 0.0) + cost
    return {stack: cost / operations for stack, cost in total.items()}


def folded(stacks: Mapping[str, float]) -> str:
    """The stacks of one build, a line each, with the cost of a million operations."""
    lines = ((" ".join(stack.split("\n")), round(OPERATIONS * cost)) for stack, cost in sorted(stacks.items()))
    return "".join(f"{stack} {cost}\n" for stack, cost in lines if cost > 0)


def speedscope(found: HuntProfiles, name: str) -> str:
    """Both profiles as one file of https://www.speedscope.app, which shows them one at a time."""
    numbers: dict[str, int] = {}
    made = []
    for side, stacks in (("culprit", found.culprit), ("parent", found.parent)):
        samples = [[numbers.setdefault(frame, len(numbers)) for frame in stack.split(";")] for stack in stacks]
        weights = list(stacks.values())
        made.append(
            {
                "type": "sampled",
                "name": f"{side}, {found.unit} an operation",
                "unit": "microseconds" if found.unit == "us" else "none",
                "startValue": 0,
                "endValue": sum(weights),
                "samples": samples,
                "weights": weights,
            }
        )
    return json.dumps(
        {
            "$schema": "https://www.speedscope.app/file-format-schema.json",
            "exporter": "perfbisect",
            "name": name,
            "activeProfileIndex": 0,
            "shared": {"frames": [{"name": frame} for frame in numbers]},
            "profiles": made,
        },
        ensure_ascii=True,
    )
