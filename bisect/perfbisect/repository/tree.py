"""What the tree of a commit holds."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from perfbisect.repository.git import Repository, git

LARGEST = 1 << 20  # bytes of a file that is read
MOST = 1000  # files that are read at once


@dataclass(frozen=True, slots=True)
class Listing:
    """All paths of a tree."""

    files: dict[str, int]  # path → bytes
    submodules: tuple[str, ...]  # paths


def top_level(repo: Repository, commit: str) -> frozenset[str]:
    """The names of the files at the top of a commit's tree."""
    entries = (entry.partition("\t") for entry in git(repo, "ls-tree", "-z", "--full-tree", commit).split("\0"))
    return frozenset(name for kind, _, name in entries if name and kind.split()[1] == "blob")


def listing(repo: Repository, commit: str) -> Listing:
    """All files and submodules of a commit's tree; symbolic links are left out."""
    files, submodules = {}, []
    for entry in git(repo, "ls-tree", "-r", "-l", "-z", "--full-tree", commit).split("\0")[:-1]:
        about, _, path = entry.partition("\t")
        mode, _, _, size = about.split()
        if mode == "160000":
            submodules.append(path)
        elif mode.startswith("100"):
            files[path] = int(size) if size.isdecimal() else 0
    return Listing(files, tuple(submodules))


def lines_with(repo: Repository, commit: str, words: Collection[str], files: Collection[str]) -> str:
    """The lines with any of these words, in the files of a commit that match the patterns ``files``."""
    wanted = [option for word in words for option in ("-e", word)]
    plain = ("-h", "-I", "-F", "--no-line-number", "--no-column", "--no-recurse-submodules")
    return git(repo, "grep", *plain, *wanted, commit, "--", *files, allowed=(0, 1))


def texts(repo: Repository, commit: str, tree: Listing, paths: Collection[str]) -> dict[str, str]:
    """The contents of those of these files of a commit that are text, in one command: at most MOST, of LARGEST bytes each."""
    return texts_of(repo, commit, [path for path in paths if tree.files.get(path, LARGEST) < LARGEST][:MOST])


def texts_of(repo: Repository, commit: str, paths: Sequence[str]) -> dict[str, str]:
    """The contents of those of these files of a commit that are text, in one command."""
    if not paths:
        return {}
    found: dict[str, list[str]] = {}
    path = ""
    # Every line of these files: git has no other command that prints files of one commit with their names.
    every_line = ("-I", "-z", "--no-line-number", "--no-column", "--full-name", "--no-recurse-submodules", "-e", "")
    printed = git(repo, "grep", *every_line, commit, "--", *paths, options=["--literal-pathspecs"], allowed=(0, 1))
    for line in printed.split("\n"):
        head, named, text = line.partition("\0")
        if named:
            path = head.removeprefix(f"{commit}:")
        found.setdefault(path, []).append(text if named else line)
    return {name: "\n".join(lines) for name, lines in found.items()}
