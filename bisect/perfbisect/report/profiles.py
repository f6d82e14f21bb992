"""Profiles of a culprit and its parent, and their export to the file formats of other tools.

A folded stack is a line `outermost;…;innermost cost`. Costs are per operation. In the written files, costs are per
million operations, because the tools that read the files expect integers.
"""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from perfbisect.core.domain.events import Profiled
from perfbisect.core.domain.facts import ProfileFacts

OPERATIONS = 1_000_000  # costs in folded stacks are for this number of operations


@dataclass(frozen=True, slots=True)
class HuntProfiles:
    """The profiles of a culprit and its parent: each maps a folded stack to the self cost of the stack per
    operation."""

    parent: Mapping[str, float]
    culprit: Mapping[str, float]
    unit: str  # of costs: "us", "cycles"
    notes: tuple[str, ...] = ()  # limits of the profiles for the reader: missing callers, …


def hunt_profiles(events: Iterable[object]) -> HuntProfiles | None:
    """The on-CPU profiles that a hunt recorded after its verdict; None unless both the culprit and its parent have a
    profile.

    Of the two candidates with profiles, the older candidate is the parent. If the profiles have several units, only the
    profiles with the unit of the first profile are used.
    """
    recorded = [
        event for event in events if isinstance(event, Profiled) and not event.facts.off_cpu and event.facts.operations
    ]
    candidates = sorted({event.candidate for event in recorded})
    if len(candidates) != 2:
        return None
    unit = recorded[0].facts.unit
    runs = [
        [event.facts for event in recorded if event.candidate == candidate and event.facts.unit == unit]
        for candidate in candidates
    ]
    parent, culprit = map(cost_by_stack, runs)
    notes = dict.fromkeys(run.note for side in runs for run in side if run.note)
    return HuntProfiles(parent, culprit, unit, tuple(notes)) if parent and culprit else None


def cost_by_stack(runs: Sequence[ProfileFacts]) -> dict[str, float]:
    """For each folded stack, its self cost per operation, over all runs of a build."""
    total = Counter[str]()
    for run in runs:
        total.update(run.stacks)
    operations = sum(run.operations for run in runs)
    return {stack: cost / operations for stack, cost in total.items()}


def folded_text(stacks: Mapping[str, float]) -> str:
    """The folded stacks of a build as text. Each line has a stack and its cost per million operations."""
    lines = ((" ".join(stack.split("\n")), round(OPERATIONS * cost)) for stack, cost in sorted(stacks.items()))
    return "".join(f"{stack} {cost}\n" for stack, cost in lines if cost > 0)


def speedscope_json(profiles: HuntProfiles, name: str) -> str:
    """A file in JSON for https://www.speedscope.app, with a profile of the culprit and a profile of the parent."""
    numbers: dict[str, int] = {}
    sides = []
    for side, stacks in (("culprit", profiles.culprit), ("parent", profiles.parent)):
        samples = [[numbers.setdefault(frame, len(numbers)) for frame in stack.split(";")] for stack in stacks]
        weights = list(stacks.values())
        about = {"type": "sampled", "name": f"{side}, {profiles.unit} an operation", "startValue": 0}
        unit = "microseconds" if profiles.unit == "us" else "none"
        sides.append(about | {"unit": unit, "endValue": sum(weights), "samples": samples, "weights": weights})
    form = {"$schema": "https://www.speedscope.app/file-format-schema.json", "exporter": "perfbisect", "name": name}
    frames = {"frames": [{"name": frame} for frame in numbers]}
    return json.dumps(form | {"activeProfileIndex": 0, "shared": frames, "profiles": sides}, ensure_ascii=True)
