"""Writes the demo's repository: a storage engine from v1.0 to v1.1, in which one commit slows update-index down.

The same seed gives the same commit hashes: author, dates and texts are fixed, and the git configuration of the machine
is not read.
"""

import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from perfbisect.demo.plan import HistoryPlan, Tree, applied, draw, first_tree
from perfbisect.errors import EnvironmentFailure, UsageError
from perfbisect.repository.git import failure, run, sealed

GOOD, BAD = "v1.0", "v1.1"
AUTHOR = "perfbisect demo <demo@perfbisect.invalid>"
BEGUN = datetime(2024, 1, 8, 9, 0, tzinfo=UTC)
PACE = timedelta(hours=11, minutes=7)  # between two commits


@dataclass(frozen=True, slots=True)
class DemoAnswer:
    """The expected result of a hunt. The caller stores it outside of the repository."""

    commit: str  # full hash of the planted commit
    parent: str
    subject: str
    position: int  # among the commits after GOOD, in the order of their creation, from 1
    commits: int  # after GOOD, merges included
    drop: float  # planned fraction of update-index's throughput that is lost
    broken: tuple[str, ...]  # commits that do not compile, oldest first
    further: Mapping[str, str] = field(default_factory=dict)  # other workload → the commit that slows it


def write_history(
    folder: Path, seed: int, commits: int = 60, drop: float | None = None, changes: int = 1
) -> DemoAnswer:
    """Write the repository of ``seed`` to ``folder``, which must not exist or be empty.

    ``drop`` is a fraction and replaces the one that the seed chooses; ``changes`` is how many are planted. Raises UsageError for a history that is not
    possible, EnvironmentFailure where git is missing or fails.
    """
    if folder.exists() and any(folder.iterdir()):
        raise UsageError(f"{folder} is not empty.", "Choose a folder that does not exist yet.")
    try:
        plan = draw(seed, commits, drop, changes)
    except ValueError as error:
        raise UsageError(f"No demo history can be written: {error}.", "Choose other numbers.") from None
    folder.mkdir(parents=True, exist_ok=True)
    _git(folder, "init", "-q", "--template=", "--initial-branch=main")
    hashes = _import(folder, plan)
    _git(folder, "reset", "-q", "--hard", "main")
    step = plan.steps[plan.planted - 1]
    return DemoAnswer(
        commit=hashes[plan.planted],
        parent=hashes[step.parents[0]],
        subject=step.change.subject,
        position=plan.planted,
        commits=len(plan.steps),
        drop=round(plan.drop, 3),
        broken=tuple(hashes[position] for position in plan.broken),
        further={plan.steps[position - 1].change.name: hashes[position] for position in plan.further},
    )


def _import(folder: Path, plan: HistoryPlan) -> list[str]:
    """Import the plan into git; the hash of each position, the first release included."""
    with tempfile.TemporaryDirectory() as aside:
        marks = Path(aside) / "marks"
        _git(folder, "fast-import", "--quiet", f"--export-marks={marks}", stdin="".join(_stream(plan)))
        pairs = dict(line[1:].split() for line in marks.read_text().splitlines())
    return [pairs[str(position + 1)] for position in range(len(plan.steps) + 1)]


def _stream(plan: HistoryPlan) -> Iterator[str]:
    """The input of git fast-import. Position p has mark p + 1, as marks begin at 1."""
    trees = [first_tree()]
    yield _commit(0, "Release 1.0\n", (), {}, trees[0])
    for position, step in enumerate(plan.steps, 1):
        first, *others = step.parents
        after = applied(plan.history(position), trees[0]) if others else applied([step.change], trees[first])
        trees.append(after)
        yield _commit(position, step.change.message, step.parents, trees[first], after)
    for tag, position in ((GOOD, 0), (BAD, len(plan.steps))):
        yield f"tag {tag}\nfrom :{position + 1}\ntagger {_signature(position)}\n{_data(f'Release {tag[1:]}')}"


def _commit(position: int, message: str, parents: tuple[int, ...], before: Tree, after: Tree) -> str:
    """One commit with the files that differ from those of its first parent. No change removes a file."""
    links = [f"{'merge' if rank else 'from'} :{parent + 1}\n" for rank, parent in enumerate(parents)]
    files = [
        f"M 100644 inline {path}\n{_data(text)}" for path, text in sorted(after.items()) if before.get(path) != text
    ]
    head = f"commit refs/heads/main\nmark :{position + 1}\ncommitter {_signature(position)}\n{_data(message)}"
    return "".join((head, *links, *files))


def _signature(position: int) -> str:
    return f"{AUTHOR} {int((BEGUN + position * PACE).timestamp())} +0000"


def _data(text: str) -> str:
    return f"data {len(text.encode())}\n{text}\n"


def _git(folder: Path, *arguments: str, stdin: str = "") -> None:
    """Run git in ``folder`` without the configuration of the machine."""
    try:
        done = run(arguments, folder, sealed(), stdin)
    except FileNotFoundError:
        raise EnvironmentFailure("git is not installed.", "Install it, for example with: apt install git") from None
    if done.returncode:
        raise failure(f"git {arguments[0]} failed in {folder}", done.stderr)
