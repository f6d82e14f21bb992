"""Proof of the culprit: fresh runs of it and of every parent, taking turns.

The search drifts towards builds whose first readings happened to deviate, and on a host with phases a
build may simply have been measured in a bad one. So a culprit is named only after runs that were made when
both it and the parent had been looked at already, and that have a run of the other side next to them in
time. They enter the posterior like all others; if they speak against the culprit, the search goes on.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from perfbisect.core.ends import Contrast
from perfbisect.core.graph import Graph
from perfbisect.core.levels import Levels
from perfbisect.core.model import Posterior
from perfbisect.core.order import Measure, Purpose, Share
from perfbisect.core.record import Record

LEAST = 3  # fresh runs of each side; one more on a host that drifts
MOST = 40  # fresh runs of each side after which the proof is given up
REACH = 2  # readings between two runs that count as side by side
PROVEN = 2.2  # standard errors between culprit and parent


def opponents(graph: Graph, culprit: int) -> tuple[int, ...]:
    """What the culprit is compared with: its parents, or the good end if it has none."""
    return tuple(dict.fromkeys(graph.parents_of(culprit))) or (0,)


def fresh_contrast(record: Record, levels: Levels, layout: float, culprit: int, parent: int) -> Contrast | None:
    """Parent against culprit from fresh runs only; None while one side has none."""
    slow, fast = _fresh(record, culprit, parent)
    if not len(slow) or not len(fast):
        return None
    drop = float(_centre(record.value[fast]) - _centre(record.value[slow]))
    noise = levels.noise**2 * (1 / len(slow) + 1 / len(fast)) + 2 * layout**2
    return Contrast(drop, float(np.sqrt(noise)), max(levels.freedom - levels.mean.shape[1], 2.0),
                    float(min(len(slow), len(fast))))  # fmt: skip


def confirmation(
    record: Record, levels: Levels, posterior: Posterior, culprit: int, parents: Sequence[int]
) -> Measure | None:
    """The runs still missing for the proof, or None once it stands (or cannot be had)."""
    enough = LEAST + (posterior.drifting > 0.5)
    wanted: dict[int, int] = {}
    for parent in parents:
        slow, fast = (len(side) for side in _fresh(record, culprit, parent))
        seen = min(slow, fast)
        target = enough
        if seen >= enough and not proven(record, levels, posterior, culprit, parent):
            target = min(2 * seen, seen + 8)
        new = record.runs(culprit) == 0 or record.runs(parent) == 0
        for side, have in ((culprit, slow), (parent, fast)):
            lacking = target - have + (1 if new and record.runs(side) == 0 else 0)
            if lacking > 0:
                wanted[side] = max(wanted.get(side, 0), lacking)
    if not wanted:
        return None
    pair = (culprit, *parents)
    fewest = max(1, max(wanted.values()) // 2)  # both sides take turns, even if one already has its runs
    plan = tuple(Share(side, wanted.get(side, fewest)) for side in pair if side == culprit or side in wanted)
    if len(plan) == 1:
        plan = (*plan, Share(parents[0], fewest))
    return Measure(plan, Purpose.CONFIRM)


def proven(record: Record, levels: Levels, posterior: Posterior, culprit: int, parent: int) -> bool:
    """Whether the fresh runs alone set the culprit apart from this parent."""
    seen = fresh_contrast(record, levels, posterior.layout, culprit, parent)
    return seen is not None and seen.clear >= PROVEN


def exhausted(record: Record, culprit: int, parents: Sequence[int]) -> bool:
    """Whether more runs would be stubborn."""
    return any(min(len(side) for side in _fresh(record, culprit, parent)) >= MOST for parent in parents)


def _fresh(record: Record, culprit: int, parent: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Positions of the readings of culprit and parent made after both had been looked at, side by side."""
    slow, fast = record.readings(culprit), record.readings(parent)
    if not len(slow) or not len(fast):
        return slow[:0], fast[:0]
    start = max(slow[0], fast[0])
    slow, fast = slow[slow > start], fast[fast > start]
    return slow[_near(slow, fast)], fast[_near(fast, slow)]


def _near(these: NDArray[np.int64], others: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Which of ``these`` positions have one of ``others`` within reach (parents of a merge take turns, too)."""
    if not len(these) or not len(others):
        return np.zeros(len(these), bool)
    near: NDArray[np.bool_] = np.abs(these[:, None] - others[None]).min(axis=1) <= REACH
    return near


def _centre(values: NDArray[np.float64]) -> float:
    """Mean without the extremes, where there are enough values to have some."""
    if len(values) < 5:
        return float(np.median(values)) if len(values) > 2 else float(values.mean())
    cut = max(1, len(values) // 8)
    return float(np.sort(values)[cut:-cut].mean())
