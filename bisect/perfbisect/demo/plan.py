"""Draws a plan from a seed: the changes of a history, their order, and the side branches.

A plan has names only; ``history`` makes trees and commits of it. Plans are drawn until the planted commits have some
distance from those that do not compile, so that a hunt can name them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from perfbisect.demo.change import Change, read_changes
from perfbisect.demo.choice import Unit, choose, is_broken
from perfbisect.demo.effort import COST, RARE, effort_for

BRANCHES = ("interface", "checks", "smaller-steps", "tidy")
LENGTHS = range(5, 10)  # commits between fork and merge, on both sides together
SMALLEST, LARGEST = 0.32, 0.50  # of the drops that a seed chooses, with a margin for other machines
ON_SIDE = 0.3  # probability that the planted commit is on a side branch
CLEAR = 2  # generations between the planted commit and one that does not compile
TRIES = 2000
SHORTEST = 30


@dataclass(frozen=True, slots=True)
class Step:
    """One commit: a change, or the merge of a side branch, which has no edits."""

    change: Change
    parents: tuple[int, ...]  # positions of earlier steps, first parent first; position 0 is the first release


@dataclass(frozen=True, slots=True)
class Plan:
    """All commits after the first release, in the order of their creation; ``steps[0]`` has position 1."""

    steps: tuple[Step, ...]
    planted: int  # position
    drop: float  # planned, a fraction
    further: tuple[int, ...] = ()  # positions of the other changes that slow a workload, named after it

    def history(self, position: int) -> list[Change]:
        """The changes that a commit contains, oldest first, its own last."""
        found, waiting = set[int](), [position]
        while waiting:
            here = waiting.pop()
            if here and here not in found:
                found.add(here)
                waiting += self.steps[here - 1].parents
        return [self.steps[at - 1].change for at in sorted(found)]

    @property
    def broken(self) -> tuple[int, ...]:
        """The positions of the commits that do not compile."""
        positions = range(1, len(self.steps) + 1)
        return tuple(at for at in positions if is_broken(change.name for change in self.history(at)))


def draw(seed: int, commits: int, drop: float | None, changes: int = 1) -> Plan:
    """The plan of a seed, with so many planted changes. Raises ValueError for numbers or a drop that are not possible."""
    if commits < SHORTEST:
        raise ValueError(f"{commits} commits are too few: not possible below {SHORTEST}")
    random = Random(seed)
    chosen = random.uniform(SMALLEST, LARGEST)  # always drawn, so that later random numbers do not depend on ``drop``
    drop = chosen if drop is None else drop
    feature, on_side = random.choice(sorted(COST)), random.random() < ON_SIDE
    effort = effort_for(feature, drop)
    index = [change.filled((effort if change.name == feature else RARE).words) for change in read_changes("index")]
    further = read_changes("further")[: changes - 1]
    for _ in range(TRIES):
        units = choose(random, commits - 3, [*index, *further])  # without two merges and the release
        steps = _steps(units, random)
        place = {step.change.name: at for at, step in enumerate(steps, 1)}
        planted = place.get(feature, 0)
        if planted and on_side == _is_on_side(steps, planted):
            plan = Plan(steps, planted, drop, tuple(place[change.name] for change in further))
            if all(_stands_clear(plan, at) for at in (planted, *plan.further)):
                return plan
    raise ValueError(f"seed {seed} gives no history of {commits} commits")


def _steps(units: Sequence[Unit], random: Random) -> tuple[Step, ...]:
    """The commits of ``units`` with two side branches and the release; empty where no branch is possible."""
    names = random.sample(BRANCHES, 2)
    lengths = random.choices(LENGTHS, k=2)
    middle = len(units) // 2
    starts = (random.randrange(middle - lengths[0]), random.randrange(middle, len(units) - lengths[1]))
    steps: list[Step] = []
    main = done = 0
    for name, start, length in zip(names, starts, lengths, strict=True):
        main = _append(steps, units[done:start], main)
        done = start + length
        sides = _divide(units[start:done], random)
        if not sides:
            return ()
        main = _append_branched(steps, units[start:done], sides, main, name)
    main = _append(steps, units[done:], main)
    _append(steps, [read_changes("release")], main)
    return tuple(steps)


def _append(steps: list[Step], units: Sequence[Unit], parent: int) -> int:
    """Append the units in succession; the position of the last commit."""
    for unit in units:
        for change in unit:
            steps.append(Step(change, (parent,)))
            parent = len(steps)
    return parent


def _append_branched(steps: list[Step], units: Sequence[Unit], sides: Sequence[bool], fork: int, name: str) -> int:
    """Append each unit to the main line or to a side branch, and the merge; the position of the merge."""
    tips = {False: fork, True: fork}
    for unit, side in zip(units, sides, strict=True):
        tips[side] = _append(steps, [unit], tips[side])
    steps.append(Step(Change(f"merge-{name}", f"Merge branch '{name}'", ()), (tips[False], tips[True])))
    return len(steps)


def _divide(units: Sequence[Unit], random: Random) -> list[bool]:
    """For each unit True if it is on the side branch; empty where one side needs the other."""
    sides = [random.random() < 0.5 for _ in units]
    names = {
        side: {unit[0].name for unit, on in zip(units, sides, strict=True) if on == side} for side in (False, True)
    }
    needs = {
        side: {n for unit, on in zip(units, sides, strict=True) if on == side for n in unit[0].needs} for side in names
    }
    dependent = needs[False] & names[True] or needs[True] & names[False]
    fits = not dependent and sum(sides) >= 2 and not all(sides) and all(len(unit) == 1 for unit in units)
    return sides if fits else []


def _is_on_side(steps: Sequence[Step], position: int) -> bool:
    """True where ``position`` is not on the line of first parents from the end."""
    here = len(steps)
    while here > position:
        here = steps[here - 1].parents[0]
    return here != position


def _stands_clear(plan: Plan, position: int) -> bool:
    """True where no commit within CLEAR generations of ``position`` fails to compile."""
    near = {position}
    for _ in range(CLEAR):
        children = {at for at, step in enumerate(plan.steps, 1) if near & set(step.parents)}
        near |= children.union(*(plan.steps[at - 1].parents for at in near if at))
    return not near & set(plan.broken)
