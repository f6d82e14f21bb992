"""Objects of a repository: headers, contents and trees, read by GitPython.

It reads repositories of SHA-1. Those of SHA-256, and trees that it takes for mistakes, are read by commands of git.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from perfbisect.repository.git import Repository, failure, git

if TYPE_CHECKING:
    from perfbisect.repository.library import Header

FILE, LINK, FOLDER, MODULE = 0o100, 0o120, 0o040, 0o160  # modes of entries, without their permissions


class Entry(NamedTuple):
    """A path in a tree."""

    type: int  # of the four
    hash: str
    path: str  # what is not UTF-8 is replaced


def headers(repo: Repository, names: Sequence[str]) -> list["Header | None"]:
    """Hash, type and bytes of objects, by any names that git knows; None for what it does not know.

    Raises EnvironmentFailure where git fails.
    """
    if not names:
        return []
    if repo.object_format == "sha1":
        from perfbisect.repository.library import objects

        with objects(repo) as read:
            return [read.header(name) for name in names]
    # By standard input, where no name can be parsed as an option.
    lines = git(repo, "cat-file", "--batch-check", stdin="".join(f"{name}\n" for name in names)).splitlines()
    found = (line.split(" ") for line in lines)
    return [(each[0], each[1], int(each[2])) if each[-1].isdecimal() else None for each in found]


def texts(repo: Repository, names: Mapping[str, str]) -> dict[str, str]:
    """The contents of files, as path → text, given as path → name of its content; what has a NUL is no text.

    Raises EnvironmentFailure where the repository lacks one of them.
    """
    read: list[str] = []
    if repo.object_format == "sha1":
        from perfbisect.repository.library import objects

        with objects(repo) as found:
            for name in names.values():
                try:
                    data = found.content(name)
                except ValueError as missing:
                    raise failure(f"git cat-file failed in {repo.git_dir}", f"fatal: {missing}") from missing
                read.append(data.decode(errors="replace").replace("\r\n", "\n"))
    else:
        read = [git(repo, "cat-file", "blob", name) for name in names.values()]
    return {path: text for path, text in zip(names, read, strict=True) if "\0" not in text}


def entries(repo: Repository, tree: str, *, whole: bool = False) -> list[Entry]:
    """What a tree, or that of a commit, holds at its top; of the ``whole`` tree, all but folders."""
    if repo.object_format == "sha1":
        from perfbisect.repository.library import objects

        with suppress(ValueError, TypeError, IndexError), objects(repo) as read:
            found = read.entries(tree, whole=whole)
            return [Entry(each.mode >> 9, each.hexsha, _printable(str(each.path))) for each in found]
    listed = git(repo, "ls-tree", *(["-r"] if whole else []), "-z", "--full-tree", tree).split("\0")[:-1]
    rows = (entry.partition("\t") for entry in listed)
    return [Entry(int(about.split()[0], 8) >> 9, about.split()[2], path) for about, _, path in rows]


def _printable(path: str) -> str:
    return path.encode(errors="surrogateescape").decode(errors="replace")
