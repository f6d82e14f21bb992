"""Profiles of a culprit and its parent, and the files of them that other tools read.

A folded stack is a line `outermost;…;innermost cost`. Costs are per operation; in folded stacks they are of a million
operations, as the tools that read them expect whole numbers.
"""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
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
    runs = [
        [event.facts for event in found if event.candidate == each and event.facts.unit == unit] for each in candidates
    ]
    parent, culprit = map(per_operation, runs)
    notes = dict.fromkeys(run.note for side in runs for run in side if run.note)
    return HuntProfiles(parent, culprit, unit, tuple(notes)) if parent and culprit else None


def per_operation(runs: Sequence[ProfileFacts]) -> dict[str, float]:
    """The cost of each stack per operation, over all runs together."""
    total = Counter[str]()
    for run in runs:
        total.update(run.stacks)
    operations = sum(run.operations for run in runs)
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
        about = {"type": "sampled", "name": f"{side}, {found.unit} an operation", "startValue": 0}
        unit = "microseconds" if found.unit == "us" else "none"
        made.append(about | {"unit": unit, "endValue": sum(weights), "samples": samples, "weights": weights})
    form = {"$schema": "https://www.speedscope.app/file-format-schema.json", "exporter": "perfbisect", "name": name}
    frames = {"frames": [{"name": frame} for frame in numbers]}
    return json.dumps(form | {"activeProfileIndex": 0, "shared": frames, "profiles": made}, ensure_ascii=True)
