"""Reads objects of a repository: headers, contents, and the tree of a commit.

GitPython reads SHA-1 repositories. SHA-256 repositories, and trees in which GitPython finds errors, are read with git
commands.
"""

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from perfbisect.repository.git import Repository, git, git_failure

if TYPE_CHECKING:
    from perfbisect.repository.library import Header

FILE, LINK, FOLDER, MODULE = 0o100, 0o120, 0o040, 0o160  # types of tree entries: the modes without the permission bits
LARGEST = 1 << 20  # most bytes of a file that is read
MAX_FILES = 1000  # files that are read at once


T = TypeVar("T")


def within_limits(sizes: Mapping[T, int], max_size: int, max_total: int, max_count: int) -> list[T]:
    """The first items that fit into the limits: at most ``max_count`` items, at most ``max_size`` for each item, and at
    most ``max_total`` for all items together."""
    chosen: list[T] = []
    for item, size in sizes.items():
        max_total -= size
        if size <= max_size and max_total >= 0 and len(chosen) < max_count:
            chosen.append(item)
    return chosen


class TreeEntry(NamedTuple):
    """A file, a symbolic link, a folder or a submodule in a tree."""

    type: int  # FILE, LINK, FOLDER or MODULE
    hash: str
    path: str  # in which bytes that are not UTF-8 are replaced


@dataclass(frozen=True, slots=True)
class TreeFiles:
    """All files and submodules of a tree."""

    files: Mapping[str, str]  # path → hash of its content
    submodules: tuple[str, ...]  # paths of the submodules


def object_headers(repo: Repository, names: Sequence[str]) -> list["Header | None"]:
    """The hash, the type and the size of each object; objects are given by any names that git accepts. The entry for an
    unknown name is None.

    Raises EnvironmentFailure if git fails.
    """
    if not names:
        return []
    if repo.object_format == "sha1":
        from perfbisect.repository.library import object_reader

        with object_reader(repo) as read:
            return [read.object_header(name) for name in names]
    # The names are sent by standard input, where git parses no options.
    lines = git(repo, "cat-file", "--batch-check", stdin="".join(f"{name}\n" for name in names)).splitlines()
    rows = (line.split(" ") for line in lines)
    return [(row[0], row[1], int(row[2])) if row[-1].isdecimal() else None for row in rows]


def file_texts(repo: Repository, hash_by_path: Mapping[str, str]) -> dict[str, str]:
    """The contents of files, as path → text. ``hash_by_path`` maps each path to the hash of the file's content. Files
    that contain a NUL are left out.

    Raises EnvironmentFailure if the repository lacks a file.
    """
    read: list[str] = []
    if repo.object_format == "sha1":
        from perfbisect.repository.library import object_reader

        with object_reader(repo) as reader:
            for name in hash_by_path.values():
                try:
                    data = reader.object_content(name)
                except ValueError as missing:
                    raise git_failure(f"git cat-file failed in {repo.git_dir}", f"fatal: {missing}") from missing
                read.append(data.decode(errors="replace").replace("\r\n", "\n"))
    else:
        read = [git(repo, "cat-file", "blob", name) for name in hash_by_path.values()]
    return {path: text for path, text in zip(hash_by_path, read, strict=True) if "\0" not in text}


def tree_entries(repo: Repository, tree: str, *, recursive: bool = False) -> list[TreeEntry]:
    """The entries at the top of a tree or of the tree of a commit. If ``recursive`` is true, the result also has the
    entries of all folders, but not the folders themselves.
    """
    if repo.object_format == "sha1":
        from perfbisect.repository.library import object_reader

        with suppress(ValueError, TypeError, IndexError), object_reader(repo) as read:
            items = read.tree_entries(tree, recursive=recursive)
            return [
                TreeEntry(
                    item.mode >> 9,
                    item.hexsha,
                    str(item.path).encode(errors="surrogateescape").decode(errors="replace"),
                )
                for item in items
            ]
    listed = git(repo, "ls-tree", *(["-r"] if recursive else []), "-z", "--full-tree", tree).split("\0")[:-1]
    rows = (entry.partition("\t") for entry in listed)
    return [TreeEntry(int(about.split()[0], 8) >> 9, about.split()[2], path) for about, _, path in rows]


def top_level_files(repo: Repository, commit: str) -> frozenset[str]:
    """The names of the files and symbolic links at the top of a commit's tree; names of folders are left out."""
    return frozenset(entry.path for entry in tree_entries(repo, commit) if entry.type in (FILE, LINK))


def tree_files(repo: Repository, commit: str) -> TreeFiles:
    """All files and submodules of a commit's tree; symbolic links are left out."""
    content = tree_entries(repo, commit, recursive=True)
    files = {entry.path: entry.hash for entry in content if entry.type == FILE}
    return TreeFiles(files, tuple(entry.path for entry in content if entry.type == MODULE))


def lines_containing(repo: Repository, commit: str, words: Collection[str], file_patterns: Collection[str]) -> str:
    """The lines with any of these words, in the files of a commit that match the patterns ``file_patterns``."""
    options = [option for word in words for option in ("-e", word)]
    plain = ("-h", "-I", "-F", "--no-line-number", "--no-column", "--no-recurse-submodules")
    return git(repo, "grep", *plain, *options, commit, "--", *file_patterns, allowed=(0, 1))


def small_file_texts(repo: Repository, tree: TreeFiles, paths: Collection[str]) -> dict[str, str]:
    """The contents of the text files among ``paths``: path → text, for at most MAX_FILES files smaller than LARGEST
    bytes."""
    blobs = {path: tree.files[path] for path in paths if path in tree.files}
    pairs = zip(blobs, object_headers(repo, [*blobs.values()]), strict=True)
    sizes = {path: header[2] for path, header in pairs if header}
    return file_texts(
        repo, {path: blobs[path] for path in within_limits(sizes, LARGEST - 1, LARGEST * MAX_FILES, MAX_FILES)}
    )
