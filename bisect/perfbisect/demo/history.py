"""Writes the demo's repository: a storage engine in which one commit slows down the workload update-index.

A seed determines the order of the changes, the side branches, and how much cost the planted commit (the commit that
slows down the workload) adds. Random histories are drawn until all commits near a planted commit compile, so that a
hunt can name the planted commit.

Changes are small edits of the engine's sources, stored as TOML in ``changes/``. The place of an edit is given by a
passage of text, not by a line number, so that changes can be applied in almost any order. A change lists in ``needs``
the changes that must be applied before it.

Each feature in ``changes/index.toml`` adds checks of the index, and has two parameters: EFFORT_EVERY, the number of
changes of the index between two checks, and EFFORT_SIZE, the number of bytes that a check reads. ``COST_BY_CHECK_SIZE``
has the time that checks add to an operation of update-index, relative to the time of the operation, measured in one
thread on a server of 2021. On other machines these ratios differ by a few hundredths.

A seed always gives the same commit hashes, because author, dates and texts are fixed, and the machine's configuration
of git is not read.
"""

import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cache
from itertools import chain
from math import ceil
from pathlib import Path
from random import Random

import msgspec
import numpy as np

from perfbisect.errors import UsageError
from perfbisect.repository.git import git_failure, isolated_environment, run_git

FOLDER = Path(__file__).parent

Tree = dict[str, str]  # path → text


class Edit(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Replaces a passage by ``text``, or inserts ``text`` before or after it; without a passage, appends ``text``.

    The passage is in ``replace``, ``after`` or ``before``; at most one of them is set.
    """

    file: str
    text: str
    replace: str = ""
    after: str = ""
    before: str = ""

    def apply(self, tree: Tree) -> None:
        """Change the tree. Raises ValueError unless the file contains the passage exactly once."""
        old, passage = tree.get(self.file, ""), self.replace or self.after or self.before
        if passage and (occurrences := old.count(passage)) != 1:
            raise ValueError(f"{self.file} has {passage!r} {occurrences} times, not once")
        new = self.text if self.replace else passage + self.text if self.after else self.text + passage
        tree[self.file] = old.replace(passage, new) if passage else old + self.text


class Change(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of one commit, without the commit's parents."""

    name: str
    subject: str
    edits: tuple[Edit, ...]
    body: str = ""
    needs: tuple[str, ...] = ()


@cache
def read_changes(kind: str) -> tuple[Change, ...]:
    """The changes that the file ``changes/KIND.toml`` lists, in the order of the file."""
    tables = msgspec.toml.decode((FOLDER / "changes" / f"{kind}.toml").read_bytes(), type=dict[str, tuple[Change, ...]])
    return tables["change"]


def first_release_tree() -> Tree:
    """The source tree of the engine in the first release."""
    root = FOLDER / "engine"
    return {str(path.relative_to(root)): path.read_text() for path in sorted(root.rglob("*")) if path.is_file()}


def tree_after(changes: Iterable[Change], tree: Tree) -> Tree:
    """The tree after ``changes``, applied one after the other. Raises ValueError if a change cannot be applied."""
    tree = dict(tree)
    for name, edit in ((change.name, edit) for change in changes for edit in change.edits):
        try:
            edit.apply(tree)
        except ValueError as error:
            raise ValueError(f"change {name}: {error}") from None
    return tree


ChangeSequence = tuple[Change, ...]  # successive changes on one branch

OPTIONAL = ("documentation", "comments", "refactorings", "tests", "features")
ALWAYS = {"children-without-division"}  # a small improvement that every history has
FIXED_TOGETHER = "both-fixed"


def choose_change_sequences(random: Random, commit_count: int, features: Iterable[Change]) -> list[ChangeSequence]:
    """Sequences with ``commit_count`` changes in all, among them ``features``, in an order that can be applied.

    Raises ValueError if there are too few or too many changes for ``commit_count``.
    """
    sequences = [*_broken_sequences(random), *((change,) for change in features)]
    optional_count = commit_count - sum(map(len, sequences))
    optional = [change for kind in OPTIONAL for change in read_changes(kind)]
    if not len(ALWAYS) <= optional_count <= len(optional):
        available = f"there are {len(optional)} changes to choose from, and {optional_count} are needed"
        raise ValueError(f"{commit_count} commits are not possible: {available}")
    random.shuffle(optional)
    while len(optional) > optional_count:
        needed = ALWAYS.union(*(change.needs for change in optional))
        optional.remove(next(change for change in optional if change.name not in needed))
    sequences += ((change,) for change in optional)
    random.shuffle(sequences)
    return _ordered_by_needs(sequences)


def _broken_sequences(random: Random) -> list[ChangeSequence]:
    """The sequences with the two changes that do not compile, and with their fixes. Either each change is followed by
    its fix, or both changes are followed by a single fix."""
    first, first_fix, second, second_fix = read_changes("broken")
    if random.random() < 0.5:
        return [(first, first_fix), (second, second_fix)]
    fix = Change(FIXED_TOGETHER, "Mend the build", first_fix.edits + second_fix.edits)
    return [(first, second, fix)]


def _ordered_by_needs(sequences: Sequence[ChangeSequence]) -> list[ChangeSequence]:
    """The sequences in the given order, but each sequence comes after the changes that its first change needs."""
    waiting, ordered = list(sequences), list[ChangeSequence]()
    while waiting:
        done = {change.name for change in chain(*ordered)}
        ready = next(sequence for sequence in waiting if done.issuperset(*(c.needs for c in sequence[:1])))
        waiting.remove(ready)
        ordered.append(ready)
    return ordered


# feature → (size of a check, time that checks at every change add, relative to update-index), both ascending
COST_BY_CHECK_SIZE: Mapping[str, tuple[tuple[int, float], ...]] = {
    "order": ((4, 0.42), (24, 0.60), (100, 1.00), (170, 1.30), (250, 1.50)),
    "repeats": ((32, 0.13), (108, 0.36), (150, 0.54), (256, 1.05), (384, 1.70)),
    "trail": ((64, 0.20), (360, 0.44), (560, 0.66), (1280, 1.55)),
}
GRAIN = 8  # check sizes above the smallest are multiples of it: a checksum needs whole words
LARGEST_DROP = 0.6


@dataclass(frozen=True, slots=True)
class FeatureCost:
    """The parameters of a feature: the number of changes of the index between checks, and the bytes of a check."""

    check_interval: int
    check_size: int

    def fill_placeholders(self, change: Change) -> Change:
        """The change, with the values of the two parameters instead of EFFORT_EVERY and EFFORT_SIZE in its texts."""
        interval, size = str(self.check_interval), str(self.check_size)
        texts = (edit.text.replace("EFFORT_EVERY", interval).replace("EFFORT_SIZE", size) for edit in change.edits)
        edits = (msgspec.structs.replace(edit, text=text) for edit, text in zip(change.edits, texts, strict=True))
        return msgspec.structs.replace(change, edits=tuple(edits))


RARE = FeatureCost(check_interval=512, check_size=128)  # the checks take less than 1 % of an update


def cost_for_drop(feature: str, drop: float) -> FeatureCost:
    """The parameters with which ``feature`` lowers the throughput of update-index by the fraction ``drop``. Raises
    ValueError unless 0 < drop ≤ 0.6."""
    if not 0 < drop <= LARGEST_DROP:
        raise ValueError(f"a planted drop of {drop} is not possible: it must be between 0 and {LARGEST_DROP}")
    extra = drop / (1 - drop)
    sizes, costs = zip(*COST_BY_CHECK_SIZE[feature], strict=True)
    every = ceil(costs[0] / extra)  # not every change is checked if checks of the smallest size cost too much
    return FeatureCost(every, max(sizes[0], round(np.interp(extra * every, costs, sizes) / GRAIN) * GRAIN))


BRANCHES = ("interface", "checks", "smaller-steps", "tidy")
LENGTHS = range(5, 10)  # commits between fork and merge, on both sides together
SMALLEST, LARGEST = 0.32, 0.50  # drops that a seed chooses from, with a margin for other machines
ON_SIDE = 0.3  # probability that the planted commit is on a side branch
CLEAR_GENERATIONS = 2  # generations around the planted commit in which all commits compile
TRIES = 2000  # plans that are drawn at most
SHORTEST = 30  # commits


@dataclass(frozen=True, slots=True)
class PlannedCommit:
    """A commit of the history: a change with edits, or a merge of a side branch, without edits."""

    change: Change
    parents: tuple[int, ...]  # positions of earlier commits, first parent first; position 0 is the first release


@dataclass(frozen=True, slots=True)
class HistoryPlan:
    """All commits after the first release, in the order of their creation; ``commits[0]`` has position 1."""

    commits: tuple[PlannedCommit, ...]
    planted_position: int
    drop: float  # planned drop of the throughput, as a fraction
    # positions of the other slow changes; each change has the name of the workload that it slows
    further_positions: tuple[int, ...] = ()

    def changes_up_to(self, position: int) -> list[Change]:
        """The changes of the commit at ``position`` and of all its ancestors, oldest first."""
        contained = {position}
        for at in range(position, 0, -1):  # parents come earlier
            contained |= {*self.commits[at - 1].parents} if at in contained else set()
        return [self.commits[at - 1].change for at in sorted(contained - {0})]

    @property
    def broken_positions(self) -> tuple[int, ...]:
        """The positions of the commits that do not compile."""
        first, first_fix, second, second_fix = (change.name for change in read_changes("broken"))
        mended = {first: {first_fix, FIXED_TOGETHER}, second: {second_fix, FIXED_TOGETHER}}
        contents = [{change.name for change in self.changes_up_to(at)} for at in range(len(self.commits) + 1)]
        breaks = [[name for name in names & mended.keys() if not names & mended[name]] for names in contents]
        return tuple(position for position, names in enumerate(breaks) if names)


def draw_plan(seed: int, commit_count: int, drop: float | None, planted_count: int = 1) -> HistoryPlan:
    """The history of a seed, with ``planted_count`` slow changes. Raises ValueError if no such history is possible."""
    if commit_count < SHORTEST:
        raise ValueError(f"{commit_count} commits are too few: not possible below {SHORTEST}")
    random = Random(seed)
    chosen = random.uniform(SMALLEST, LARGEST)  # always drawn, so that later random numbers do not depend on ``drop``
    drop = chosen if drop is None else drop
    feature, on_side = random.choice(sorted(COST_BY_CHECK_SIZE)), random.random() < ON_SIDE
    effort = cost_for_drop(feature, drop)
    index = [(effort if change.name == feature else RARE).fill_placeholders(change) for change in read_changes("index")]
    further = read_changes("further")[: planted_count - 1]
    for _ in range(TRIES):
        # Two merges and the release are added later.
        sequences = choose_change_sequences(random, commit_count - 3, [*index, *further])
        steps = _planned_commits(sequences, random)
        position_of = {step.change.name: at for at, step in enumerate(steps, 1)}
        planted = position_of.get(feature, 0)
        on_main = len(steps)  # the walk along first parents ends at the planted commit or before it
        while on_main > planted:
            on_main = steps[on_main - 1].parents[0]
        if planted and on_side == (on_main != planted):
            plan = HistoryPlan(steps, planted, drop, tuple(position_of[change.name] for change in further))
            if all(_is_clear_of_broken_commits(plan, at) for at in (planted, *plan.further_positions)):
                return plan
    raise ValueError(f"seed {seed} gives no history of {commit_count} commits")


def _planned_commits(sequences: Sequence[ChangeSequence], random: Random) -> tuple[PlannedCommit, ...]:
    """The commits of ``sequences`` and of the release, with two side branches; empty if these are not possible."""
    names = random.sample(BRANCHES, 2)
    lengths = random.choices(LENGTHS, k=2)
    middle = len(sequences) // 2
    starts = (random.randrange(middle - lengths[0]), random.randrange(middle, len(sequences) - lengths[1]))
    steps: list[PlannedCommit] = []
    main = done = 0
    for name, start, length in zip(names, starts, lengths, strict=True):
        main = _append_sequences(steps, sequences[done:start], main)
        done = start + length
        sides = _side_branch_members(sequences[start:done], random)
        if not sides:
            return ()
        tips = {False: main, True: main}  # of the main line and of the side branch
        for sequence, side in zip(sequences[start:done], sides, strict=True):
            tips[side] = _append_sequences(steps, [sequence], tips[side])
        steps.append(PlannedCommit(Change(f"merge-{name}", f"Merge branch '{name}'", ()), (tips[False], tips[True])))
        main = len(steps)
    main = _append_sequences(steps, sequences[done:], main)
    _append_sequences(steps, [read_changes("release")], main)
    return tuple(steps)


def _append_sequences(commits: list[PlannedCommit], sequences: Sequence[ChangeSequence], parent: int) -> int:
    """Append the changes of ``sequences`` as a chain of commits after ``parent``; return the position of the last."""
    for change in chain(*sequences):
        commits.append(PlannedCommit(change, (parent,)))
        parent = len(commits)
    return parent


def _side_branch_members(sequences: Sequence[ChangeSequence], random: Random) -> list[bool]:
    """For each sequence, whether the sequence is on the side branch, drawn at random; empty if the drawn branches are
    not possible, for example because a change on one branch needs a change on the other branch.
    """
    sides = [random.random() < 0.5 for _ in sequences]
    placed = [*zip(sequences, sides, strict=True)]
    side_of = {sequence[0].name: side for sequence, side in placed}
    dependent = any(side_of.get(need, side) is not side for sequence, side in placed for need in sequence[0].needs)
    fits = not dependent and sum(sides) >= 2 and not all(sides) and all(len(sequence) == 1 for sequence in sequences)
    return sides if fits else []


def _is_clear_of_broken_commits(plan: HistoryPlan, position: int) -> bool:
    """Whether all commits within CLEAR_GENERATIONS generations of ``position`` compile."""
    near = {position}
    for _ in range(CLEAR_GENERATIONS):
        children = {at for at, step in enumerate(plan.commits, 1) if near & set(step.parents)}
        near |= children.union(*(plan.commits[at - 1].parents for at in near if at))
    return not near & set(plan.broken_positions)


GOOD, BAD = "v1.0", "v1.1"
AUTHOR = "perfbisect demo <demo@perfbisect.invalid>"
BEGUN = datetime(2024, 1, 8, 9, 0, tzinfo=UTC)
PACE = timedelta(hours=11, minutes=7)  # between two commits


@dataclass(frozen=True, slots=True)
class DemoAnswer:
    """The planted commits, which a hunt should find. They are stored outside of the repository; no hunt reads them."""

    commit: str  # full hash of the planted commit
    parent: str
    subject: str
    position: int  # among the commits after GOOD, in the order of their creation, from 1
    commits: int  # after GOOD, merges included
    drop: float  # fraction of its throughput that the workload update-index loses by plan
    broken: tuple[str, ...]  # commits that do not compile, oldest first
    further: Mapping[str, str] = field(default_factory=dict)  # other workload → the commit that slows it


def write_history(
    folder: Path, seed: int, commit_count: int = 60, drop: float | None = None, planted_count: int = 1
) -> DemoAnswer:
    """Write the repository with the history of ``seed`` to ``folder``, which must be empty or missing.

    ``drop`` is the drop that the planted commit causes, as a fraction; if None, the seed determines the drop. Raises
    UsageError if no such history is possible. Raises EnvironmentFailure if git is missing or fails.
    """
    if folder.exists() and any(folder.iterdir()):
        raise UsageError(f"{folder} is not empty.", "Give the path of a new folder with --folder.")
    try:
        plan = draw_plan(seed, commit_count, drop, planted_count)
    except ValueError as error:
        raise UsageError(f"No demo history can be written: {error}.", "Give other numbers.") from None
    folder.mkdir(parents=True, exist_ok=True)
    _git(folder, "init", "-q", "--template=", "--initial-branch=main")
    with tempfile.TemporaryDirectory() as aside:
        marks = Path(aside) / "marks"
        _git(folder, "fast-import", "--quiet", f"--export-marks={marks}", stdin="".join(_fast_import_input(plan)))
        pairs = dict(line[1:].split() for line in marks.read_text().splitlines())
    hashes = [pairs[str(position + 1)] for position in range(len(plan.commits) + 1)]  # hashes[0] is the first release
    _git(folder, "reset", "-q", "--hard", "main")
    step = plan.commits[plan.planted_position - 1]
    broken = tuple(hashes[position] for position in plan.broken_positions)
    further = {plan.commits[position - 1].change.name: hashes[position] for position in plan.further_positions}
    return DemoAnswer(
        hashes[plan.planted_position], hashes[step.parents[0]], step.change.subject, plan.planted_position, len(plan.commits),
        round(plan.drop, 3), broken, further,
    )  # fmt: skip


def _fast_import_input(plan: HistoryPlan) -> Iterator[str]:
    """The input of git fast-import. Marks begin at 1 and positions at 0, so the commit at position p has mark p + 1."""
    trees = [first_release_tree()]
    yield _fast_import_commit(0, "Release 1.0\n", (), {}, trees[0])
    for position, step in enumerate(plan.commits, 1):
        first, *merged = step.parents
        tree = tree_after(plan.changes_up_to(position), trees[0]) if merged else tree_after([step.change], trees[first])
        trees.append(tree)
        body = step.change.body
        message = f"{step.change.subject}\n" + (f"\n{body}" if body else "")
        yield _fast_import_commit(position, message, step.parents, trees[first], tree)
    for tag, position in ((GOOD, 0), (BAD, len(plan.commits))):
        yield f"tag {tag}\nfrom :{position + 1}\ntagger {_signature(position)}\n{_data(f'Release {tag[1:]}')}"


def _fast_import_commit(position: int, message: str, parents: tuple[int, ...], former_tree: Tree, tree: Tree) -> str:
    """A commit for `git fast-import`: the files that differ from the first parent's tree. No change removes a file."""
    links = [f"{'merge' if rank else 'from'} :{parent + 1}\n" for rank, parent in enumerate(parents)]
    changed = sorted((path, text) for path, text in tree.items() if former_tree.get(path) != text)
    files = (f"M 100644 inline {path}\n{_data(text)}" for path, text in changed)
    head = f"commit refs/heads/main\nmark :{position + 1}\ncommitter {_signature(position)}\n{_data(message)}"
    return "".join((head, *links, *files))


def _signature(position: int) -> str:
    return f"{AUTHOR} {int((BEGUN + position * PACE).timestamp())} +0000"


def _data(text: str) -> str:
    return f"data {len(text.encode())}\n{text}\n"


def _git(folder: Path, *arguments: str, stdin: str = "") -> None:
    """Run git in ``folder``; the machine's configuration of git is ignored. Raises EnvironmentFailure if it fails."""
    done = run_git(arguments, folder, isolated_environment(), stdin)
    if done.returncode:
        raise git_failure(f"git {arguments[0]} failed in {folder}", done.stderr)
