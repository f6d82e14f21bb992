"""The repository of a recipe, cloned once into the user's cache, and fetched when a revision is missing from it."""

import fcntl
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from perfbisect.errors import UsageError
from perfbisect.folders import cache_folder
from perfbisect.recipes.builder import Builder
from perfbisect.repository.commits import look_up, tags_of
from perfbisect.repository.discovery import open_repository
from perfbisect.repository.git import git, talk, to_remotes

Progress = Callable[[str, int, int], None]  # what git does, steps done, steps in all

# Branches and tags only: pull requests, which some servers offer too, can outweigh the history.
REFS = ("+refs/heads/*:refs/heads/*", "+refs/tags/*:refs/tags/*")


def cached_clone(builder: Builder, revisions: Sequence[str] = (), progress: Progress | None = None) -> Path:
    """The path of a bare clone of the recipe's repository.

    It is fetched when one of ``revisions`` is missing from it or is a branch, which may have moved.
    Raises UsageError when the recipe names no repository, EnvironmentFailure when it cannot be reached.
    """
    if not builder.repository:
        raise UsageError(f"Builder {builder.name} names no repository.", "Give a local clone: --repo FOLDER")
    folder = cache_folder() / "repositories"
    path = folder / f"{builder.name}.git"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)  # git keeps the address, which may contain a password
    with locked(folder / f"{builder.name}.lock"):
        if not path.exists():
            _clone(builder.repository, path, progress)
        elif _is_behind(path, builder, revisions):
            _fetch(builder.repository, path, progress)
    return path


@contextmanager
def locked(lock: Path) -> Iterator[None]:
    """A lock between hunts: of two that start at once the second waits for the clone of the first."""
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _clone(url: str, path: Path, progress: Progress | None) -> None:
    """Clone to a temporary name; the clone gets its own name when it is complete."""
    partial = path.with_suffix(".partial")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        clone = ["clone", "--bare", "--progress", "--origin=origin", "--template="]
        _talk(f"{url} cannot be cloned", [*clone, "--", url, str(partial)], progress)
        partial.rename(path)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _fetch(url: str, path: Path, progress: Progress | None) -> None:
    fetch = [f"--git-dir={path}", "fetch", "--progress", "--prune", "--no-tags", "--no-write-fetch-head"]
    _talk(f"{url} cannot be fetched", [*fetch, "--", url, *REFS], progress)
    _talk(f"{path} cannot be written", [f"--git-dir={path}", "config", "remote.origin.url", url], None)


def _is_behind(path: Path, builder: Builder, revisions: Sequence[str]) -> bool:
    repo = open_repository(path)
    if git(repo, "config", "--get", "remote.origin.url", allowed=(0, 1)).strip() != builder.repository:
        return True
    for revision in revisions:
        fixed = [f"refs/tags/{tag}" for tag in (*tags_of(revision, builder.release_tags), revision)]
        if re.fullmatch("[0-9a-f]{7,}", revision):
            fixed.append(revision)
        if not any(look_up(repo, fixed)):
            return True
    return False


def _talk(what: str, arguments: Sequence[str], progress: Progress | None) -> None:
    for step in talk(what, arguments, to_remotes()):
        if progress:
            progress(*step)
