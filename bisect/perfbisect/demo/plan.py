"""The changes of the demo's history, and a plan drawn from a seed: their order, the side branches, and how much the planted
commit adds.

Changes are small edits of the engine's sources, stored as TOML in ``changes/``. An edit is located by a passage of text,
not by a line number, so that changes can be applied in almost any order; one that depends on others names them in
``needs``. A plan has names only; ``history`` makes trees and commits of it. Plans are drawn until the planted commits have
some distance from those that do not compile, so that a hunt can name them.

Each of the features in ``changes/index.toml`` has two knobs: EFFORT_EVERY, how many changes of the index lie between
two checks, and EFFORT_SIZE, how much one check reads. Their cost was measured in one thread on a server of 2021, as a
multiple of the time of one update-index; other machines differ by a few hundredths.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from math import ceil
from pathlib import Path
from random import Random

import msgspec

FOLDER = Path(__file__).parent

Tree = dict[str, str]  # path → text


class Edit(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Put ``text`` instead of a passage, after it or before it; without a passage, at the end of the file."""

    file: str
    text: str
    replace: str = ""
    after: str = ""
    before: str = ""

    def apply(self, tree: Tree) -> None:
        """Change the tree. Raises ValueError unless the file contains the passage exactly once."""
        old = tree.get(self.file, "")
        passage = self.replace or self.after or self.before
        if not passage:
            tree[self.file] = old + self.text
            return
        if (found := old.count(passage)) != 1:
            raise ValueError(f"{self.file} has {passage!r} {found} times, not once")
        new = self.text if self.replace else passage + self.text if self.after else self.text + passage
        tree[self.file] = old.replace(passage, new)


class Change(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of one commit, without its parents."""

    name: str
    subject: str
    edits: tuple[Edit, ...]
    body: str = ""
    needs: tuple[str, ...] = ()

    @property
    def message(self) -> str:
        """The commit message."""
        return f"{self.subject}\n" + (f"\n{self.body}" if self.body else "")

    def filled(self, words: Mapping[str, int]) -> "Change":
        """The change with each of ``words`` in its texts replaced by a number."""
        edits = []
        for edit in self.edits:
            text = edit.text
            for word, number in words.items():
                text = text.replace(word, str(number))
            edits.append(msgspec.structs.replace(edit, text=text))
        return msgspec.structs.replace(self, edits=tuple(edits))


@cache
def read_changes(kind: str) -> tuple[Change, ...]:
    """The changes of ``changes/KIND.toml``, in the order of the file."""
    tables = msgspec.toml.decode((FOLDER / "changes" / f"{kind}.toml").read_bytes(), type=dict[str, tuple[Change, ...]])
    return tables["change"]


def first_tree() -> Tree:
    """The engine of the first release."""
    root = FOLDER / "engine"
    return {str(path.relative_to(root)): path.read_text() for path in sorted(root.rglob("*")) if path.is_file()}


def applied(changes: Iterable[Change], before: Tree) -> Tree:
    """The tree after ``changes``, in that order. Raises ValueError for a change that cannot be applied."""
    tree = dict(before)
    for change in changes:
        for edit in change.edits:
            try:
                edit.apply(tree)
            except ValueError as error:
                raise ValueError(f"change {change.name}: {error}") from None
    return tree


Unit = tuple[Change, ...]  # successive changes on one branch

OPTIONAL = ("documentation", "comments", "refactorings", "tests", "features")
KEPT = {"children-without-division"}  # every history has this small improvement
FIXED_TOGETHER = "both-fixed"


def choose(random: Random, commits: int, wanted_features: Iterable[Change]) -> list[Unit]:
    """The units of a history with ``commits`` changes (without the release), ``wanted_features`` among them, in an order that can be applied.

    Raises ValueError for a number of commits that is not possible.
    """
    units = [*_breaks(random), *((change,) for change in wanted_features)]
    wanted = commits - sum(map(len, units))
    optional = [change for kind in OPTIONAL for change in read_changes(kind)]
    if not len(KEPT) <= wanted <= len(optional):
        raise ValueError(
            f"{commits} commits are not possible: there are {len(optional)} changes to choose from, and {wanted} are needed"
        )
    random.shuffle(optional)
    while len(optional) > wanted:
        needed = KEPT.union(*(change.needs for change in optional))
        optional.remove(next(change for change in optional if change.name not in needed))
    units += ((change,) for change in optional)
    random.shuffle(units)
    return _in_order(units)


def _breaks(random: Random) -> list[Unit]:
    """Two commits that do not compile: each fixed by the next commit, or in succession and fixed together."""
    first, first_fix, second, second_fix = read_changes("broken")
    if random.random() < 0.5:
        return [(first, first_fix), (second, second_fix)]
    fix = Change(FIXED_TOGETHER, "Mend the build", first_fix.edits + second_fix.edits)
    return [(first, second, fix)]


def _in_order(units: Sequence[Unit]) -> list[Unit]:
    """The units in their order, but each after the changes that it needs."""
    waiting, ordered = list(units), list[Unit]()
    while waiting:
        done = {change.name for unit in ordered for change in unit}
        ready = next(unit for unit in waiting if done.issuperset(*(c.needs for c in unit[:1])))
        waiting.remove(ready)
        ordered.append(ready)
    return ordered


def is_broken(names: Iterable[str]) -> bool:
    """True where a tree with these changes does not compile."""
    names = set(names)
    first, first_fix, second, second_fix = (change.name for change in read_changes("broken"))
    return any(
        broken in names and not names & {fix, FIXED_TOGETHER}
        for broken, fix in ((first, first_fix), (second, second_fix))
    )


# feature → (size, extra time with a check at every change), both ascending
COST: Mapping[str, tuple[tuple[int, float], ...]] = {
    "order": ((4, 0.42), (24, 0.60), (100, 1.00), (170, 1.30), (250, 1.50)),
    "repeats": ((32, 0.13), (108, 0.36), (150, 0.54), (256, 1.05), (384, 1.70)),
    "trail": ((64, 0.20), (360, 0.44), (560, 0.66), (1280, 1.55)),
}
GRAIN = 8  # sizes above the smallest are multiples of it; a checksum needs whole words
LARGEST_DROP = 0.6


@dataclass(frozen=True, slots=True)
class Effort:
    """The two knobs."""

    every: int
    size: int

    @property
    def words(self) -> dict[str, int]:
        """The placeholders of the changes and their values."""
        return {"EFFORT_EVERY": self.every, "EFFORT_SIZE": self.size}


RARE = Effort(every=512, size=128)  # under a hundredth of an update


def effort_for(feature: str, drop: float) -> Effort:
    """The effort after which update-index has ``drop`` (a fraction) less throughput. Raises ValueError beyond 0.6."""
    if not 0 < drop <= LARGEST_DROP:
        raise ValueError(f"a planted drop of {drop} is not possible: it must be between 0 and {LARGEST_DROP}")
    extra = drop / (1 - drop)
    points = COST[feature]
    every = ceil(points[0][1] / extra)  # where the smallest size costs too much, checks are rarer
    return Effort(every, _size(points, extra * every))


def _size(points: tuple[tuple[int, float], ...], extra: float) -> int:
    """The size that costs ``extra``, by linear interpolation, and extrapolation beyond the last point."""
    if extra <= points[0][1]:
        return points[0][0]
    for (left, low), (right, high) in pairwise(points):
        if extra <= high or right == points[-1][0]:
            size = left + (right - left) * (extra - low) / (high - low)
            return round(size / GRAIN) * GRAIN
    raise AssertionError("the last pair always returns")


BRANCHES = ("interface", "checks", "smaller-steps", "tidy")
LENGTHS = range(5, 10)  # commits between fork and merge, on both sides together
SMALLEST, LARGEST = 0.32, 0.50  # of the drops that a seed chooses, with a margin for other machines
ON_SIDE = 0.3  # probability that the planted commit is on a side branch
CLEAR = 2  # generations between the planted commit and one that does not compile
TRIES = 2000
SHORTEST = 30


@dataclass(frozen=True, slots=True)
class PlannedCommit:
    """One commit: a change, or the merge of a side branch, which has no edits."""

    change: Change
    parents: tuple[int, ...]  # positions of earlier steps, first parent first; position 0 is the first release


@dataclass(frozen=True, slots=True)
class HistoryPlan:
    """All commits after the first release, in the order of their creation; ``steps[0]`` has position 1."""

    steps: tuple[PlannedCommit, ...]
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


def draw(seed: int, commits: int, drop: float | None, changes: int = 1) -> HistoryPlan:
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
            plan = HistoryPlan(steps, planted, drop, tuple(place[change.name] for change in further))
            if all(_stands_clear(plan, at) for at in (planted, *plan.further)):
                return plan
    raise ValueError(f"seed {seed} gives no history of {commits} commits")


def _steps(units: Sequence[Unit], random: Random) -> tuple[PlannedCommit, ...]:
    """The commits of ``units`` with two side branches and the release; empty where no branch is possible."""
    names = random.sample(BRANCHES, 2)
    lengths = random.choices(LENGTHS, k=2)
    middle = len(units) // 2
    starts = (random.randrange(middle - lengths[0]), random.randrange(middle, len(units) - lengths[1]))
    steps: list[PlannedCommit] = []
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


def _append(steps: list[PlannedCommit], units: Sequence[Unit], parent: int) -> int:
    """Append the units in succession; the position of the last commit."""
    for unit in units:
        for change in unit:
            steps.append(PlannedCommit(change, (parent,)))
            parent = len(steps)
    return parent


def _append_branched(
    steps: list[PlannedCommit], units: Sequence[Unit], sides: Sequence[bool], fork: int, name: str
) -> int:
    """Append each unit to the main line or to a side branch, and the merge; the position of the merge."""
    tips = {False: fork, True: fork}
    for unit, side in zip(units, sides, strict=True):
        tips[side] = _append(steps, [unit], tips[side])
    steps.append(PlannedCommit(Change(f"merge-{name}", f"Merge branch '{name}'", ()), (tips[False], tips[True])))
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


def _is_on_side(steps: Sequence[PlannedCommit], position: int) -> bool:
    """True where ``position`` is not on the line of first parents from the end."""
    here = len(steps)
    while here > position:
        here = steps[here - 1].parents[0]
    return here != position


def _stands_clear(plan: HistoryPlan, position: int) -> bool:
    """True where no commit within CLEAR generations of ``position`` fails to compile."""
    near = {position}
    for _ in range(CLEAR):
        children = {at for at, step in enumerate(plan.steps, 1) if near & set(step.parents)}
        near |= children.union(*(plan.steps[at - 1].parents for at in near if at))
    return not near & set(plan.broken)
