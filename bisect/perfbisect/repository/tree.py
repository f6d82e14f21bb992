"""What the tree of a commit holds."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from perfbisect.repository import objects
from perfbisect.repository.git import Repository, git

LARGEST = 1 << 20  # bytes of a file that is read
MOST = 1000  # files that are read at once


@dataclass(frozen=True, slots=True)
class Listing:
    """All paths of a tree."""

    files: Mapping[str, str]  # path → hash of its content
    submodules: tuple[str, ...]  # paths


def top_level(repo: Repository, commit: str) -> frozenset[str]:
    """The names of the files at the top of a commit's tree."""
    files = (objects.FILE, objects.LINK)
    return frozenset(entry.path for entry in objects.entries(repo, commit) if entry.type in files)


def listing(repo: Repository, commit: str) -> Listing:
    """All files and submodules of a commit's tree; symbolic links are left out."""
    found = objects.entries(repo, commit, whole=True)
    files = {entry.path: entry.hash for entry in found if entry.type == objects.FILE}
    return Listing(files, tuple(entry.path for entry in found if entry.type == objects.MODULE))


def lines_with(repo: Repository, commit: str, words: Collection[str], files: Collection[str]) -> str:
    """The lines with any of these words, in the files of a commit that match the patterns ``files``."""
    wanted = [option for word in words for option in ("-e", word)]
    plain = ("-h", "-I", "-F", "--no-line-number", "--no-column", "--no-recurse-submodules")
    return git(repo, "grep", *plain, *wanted, commit, "--", *files, allowed=(0, 1))


def texts(repo: Repository, tree: Listing, paths: Collection[str]) -> dict[str, str]:
    """The contents of those of these files that are text: at most MOST, of less than LARGEST bytes each."""
    known = {path: tree.files[path] for path in paths if path in tree.files}
    sizes = zip(known, objects.headers(repo, [*known.values()]), strict=True)
    fitting = [path for path, header in sizes if header and header[2] < LARGEST][:MOST]
    return objects.texts(repo, {path: known[path] for path in fitting})
