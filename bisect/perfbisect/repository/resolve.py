"""A local repository, and the commit that a user means by a release or a revision."""

import re
import shutil
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING

from perfbisect.errors import EnvironmentFailure, UsageError
from perfbisect.repository.git import git, unsteered

if TYPE_CHECKING:
    from git import Repo


class UnknownRevision(UsageError):
    """The repository has no such release or revision."""


def open_repository(path: Path) -> "Repo":
    """The repository at ``path`` or in a folder above it, bare or not. The working tree is never read.

    Raises UsageError when none exists, or for a shallow clone.
    """
    if shutil.which("git") is None:
        raise EnvironmentFailure("git is not installed.", "apt-get install git")
    from git import Repo  # its import needs the program git
    from git.exc import InvalidGitRepositoryError, NoSuchPathError

    try:
        with unsteered():
            repo = Repo(path.expanduser(), search_parent_directories=True, expand_vars=False)
    except NoSuchPathError as error:
        raise UsageError(f"There is no folder {path}.", "--repo takes the folder of a git repository.") from error
    except InvalidGitRepositoryError as error:
        raise UsageError(f"{path} is not a git repository.", "--repo takes the folder of a git repository.") from error
    if Path(repo.common_dir, "shallow").exists():
        raise UsageError(
            f"{path} is a shallow clone: its history is cut off.", f"Fetch the rest: git -C {path} fetch --unshallow"
        )
    return repo


def is_dirty(repo: "Repo") -> bool:
    """True where the user's checkout has uncommitted changes of tracked files; False without a checkout."""
    # A folder of objects and refs without a configuration does not say that it is bare.
    if repo.bare or not Path(str(repo.working_tree_dir), ".git").exists():
        return False
    tree = ("--no-optional-locks", f"--work-tree={repo.working_tree_dir}")
    return bool(git(repo, *tree, "status", "--porcelain", "--untracked-files=no"))


def resolve(repo: "Repo", name: str, release_tags: Sequence[str]) -> str:
    """The commit of a release as the recipe's tags spell it ("8.0.28"), or of any git revision.

    Raises UnknownRevision, with similar releases, when none exists, and UsageError for an ambiguous hash.
    """
    refs = [f"refs/tags/{tag}" for tag in tags_of(name, release_tags)]
    for commit in look_up(repo, [*refs, name]):
        if commit:
            return commit
    if re.fullmatch("[0-9a-f]{4,}", name) and _ask(repo, [name])[0].endswith(" ambiguous"):
        raise UsageError(f"'{name}' is the beginning of several hashes.", "Give more of it.")
    tags = git(repo, "for-each-ref", "--format=%(refname:strip=2)", "refs/tags").split()
    near = get_close_matches(name, dict.fromkeys([*releases(tags, release_tags), *tags]), 3)
    raise UnknownRevision(
        f"'{name}' is neither a release nor a revision in {repo.working_tree_dir or repo.git_dir}.",
        f"Similar: {', '.join(near)}." if near else "`git tag` and `git log` list them.",
    )


def tags_of(version: str, release_tags: Sequence[str]) -> list[str]:
    """The tags that a release may have, by the recipe's patterns."""
    return [tag.replace("{version}", version).replace("{version:_}", version.replace(".", "_")) for tag in release_tags]


def releases(tags: Sequence[str], release_tags: Sequence[str]) -> list[str]:
    """The releases of these tags, by the recipe's patterns."""
    found = []
    for pattern in release_tags:
        head, spelling, tail = re.split(r"\{version(:_|)\}", pattern, maxsplit=1)
        matches = [re.fullmatch(f"{re.escape(head)}(.+){re.escape(tail)}", tag) for tag in tags]
        versions = [match[1] for match in matches if match]
        found += [version.replace("_", ".") for version in versions] if spelling else versions
    return found


def look_up(repo: "Repo", names: Sequence[str]) -> list[str | None]:
    """The commit of each name; None for an unknown name."""
    known = [name if name and not re.search(r"[\n\0]", name) else "." for name in names]
    lines = _ask(repo, [f"{name}^{{commit}}" for name in known])
    return [None if line.endswith((" missing", " ambiguous")) else line.split(" ")[0] for line in lines]


def _ask(repo: "Repo", names: Sequence[str]) -> list[str]:
    """git's answer for each name. Names are passed on standard input, where none can be parsed as an option."""
    return git(repo, "cat-file", "--batch-check", stdin="".join(f"{name}\n" for name in names)).splitlines()
