"""The diff of two commits, for reports, of a bounded size."""

from dataclasses import dataclass

from perfbisect.repository.git import Repository, git

LINES = 3000  # changed ones that are printed, at most
FILES = 200
LARGE = "512k"  # a file from this size on counts as binary
OPTIONS = ("--no-ext-diff", "--no-textconv", "--no-color", "--ignore-submodules=none")


@dataclass(frozen=True, slots=True)
class Diff:
    """A unified diff, the smallest files where not all of them fit."""

    text: str
    left_out: int  # files


def diff(repo: Repository, before: str, after: str) -> Diff:
    """What differs between two commits, given by their full hashes.

    Raises EnvironmentFailure where the repository lacks one of them.
    """
    sizes = changed_lines(repo, before, after)
    kept: list[str] = []
    lines = 0
    for path, size in sorted(sizes.items(), key=lambda one: one[1]):
        if lines + size > LINES or len(kept) == FILES:
            break
        kept.append(path)
        lines += size
    if not kept:
        return Diff("", len(sizes))
    paths = [f":(top,literal){path}" for path in kept]
    text = git(
        repo, "diff-tree", "-p", "-U4", *OPTIONS, "--src-prefix=a/", "--dst-prefix=b/", before, after, "--", *paths,
        options=("-c", f"core.bigFileThreshold={LARGE}"),
    )  # fmt: skip
    return Diff(text, len(sizes) - len(kept))


def changed_lines(repo: Repository, before: str, after: str) -> dict[str, int]:
    """Path → lines that are added or removed; 0 for binary files. A path can be given to git again, whatever its bytes."""
    text = git(repo, "diff-tree", "-r", "-z", "--numstat", *OPTIONS, before, after, errors="surrogateescape")
    sizes = {}
    for entry in filter(None, text.split("\0")):
        added, removed, path = entry.split("\t", 2)
        sizes[path] = sum(int(number) for number in (added, removed) if number != "-")
    return sizes
