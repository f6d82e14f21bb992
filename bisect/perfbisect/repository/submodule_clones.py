"""The repository in which a submodule's commit is: in the user's clone, or one in the user's cache that fetches it once.

In the user's clone it is below ``.git/modules``, or in the folder of the submodule itself. Only a commit's tree is needed,
so a shallow clone serves as well, and no more is fetched where the server permits it.
"""

import hashlib
import os
import re
import shlex
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from perfbisect.errors import EnvironmentFailure, PerfBisectError, UsageError
from perfbisect.folders import cache_folder
from perfbisect.repository.borrowing import make_bare
from perfbisect.repository.clone import locked
from perfbisect.repository.discovery import is_partial, open_repository
from perfbisect.repository.git import Repository, git, talk, to_remotes
from perfbisect.repository.objects import headers
from perfbisect.repository.submodules import (
    SCHEMES,
    Submodule,
    Unavailable,
    declared,
    refusal,
    resolved,
    safe_name,
)

# git collects no garbage in the background, which would disturb a measurement. A connection that carries nothing for so
# many seconds is given up.
_SETTINGS = ("-c", "gc.auto=0", "-c", "http.lowSpeedLimit=1", "-c", "http.lowSpeedTime=120")
_FETCH = ("fetch", "--progress", "--no-tags", "--no-write-fetch-head", "--no-recurse-submodules")
_ALL = ("+refs/heads/*:refs/heads/*", "+refs/tags/*:refs/tags/*")
_UNADVERTISED = "does not allow request for unadvertised object"  # of a server that gives only branches and tags


@dataclass(frozen=True, slots=True)
class Found:
    """Where a submodule's commit is."""

    repository: Repository
    tree: str  # of its commit
    address: str  # by .gitmodules, resolved: relative ones of its own submodules may begin there; "" if unknown


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a submodule may be had."""

    places: tuple[Path, ...]  # repositories in the user's clone
    address: str  # by .gitmodules, resolved; "" if unknown
    refused: str  # why nothing is fetched; "" when the address serves
    advice: str  # what brings the submodule


def find(repo: Repository, commit: str, submodule: Submodule, upstream: str) -> Generator[tuple[int, int], None, Found]:
    """The repository that has the commit of a submodule of ``commit``; if it is fetched, steps done and in all are yielded.

    ``upstream`` is the address of ``repo`` unless it has one configured. Raises Unavailable.
    """
    origin = origin_of(repo, commit, submodule, upstream)
    found, tried = look(origin, repo, submodule)
    if found:
        return found
    why = origin.refused
    if not why:
        try:
            repository = yield from _fetched(origin.address, submodule.commit, repo.object_format)
            if tree := _tree(repository, submodule.commit):
                return Found(repository, tree, origin.address)
            why = f"{origin.address} lacks it"
        except EnvironmentFailure as failed:
            why = str(failed)
        tried.append(why)
    what = f"submodule {submodule.path} at {submodule.commit[:10]} is not in {repo.folder}"
    raise Unavailable(f"{what}, and {why}", origin.advice, tried=tried)


def look(origin: Origin, repo: Repository, submodule: Submodule) -> tuple[Found | None, list[str]]:
    """Where a submodule of ``repo`` is on this machine; and for each place that does not serve, why."""
    tried = []
    cached = () if origin.refused else (_cache(origin.address, repo.object_format).git_dir,)
    for place in (*origin.places, *(folder for folder in cached if folder.exists())):
        try:
            repository = _open(place)
        except PerfBisectError as error:
            tried.append(f"{place}: {error}")
            continue
        if tree := _tree(repository, submodule.commit):
            return Found(repository, tree, origin.address), tried
        tried.append(f"{place}: it lacks the commit")
    return None, tried


def origin_of(repo: Repository, commit: str, submodule: Submodule, upstream: str) -> Origin:
    """Where a submodule of ``commit`` may be had. Nothing is fetched."""
    try:
        entry = declared(repo, commit).get(submodule.path)
        refused = "" if entry else ".gitmodules has no entry for it"
    except Unavailable as error:
        entry, refused = None, str(error)
    if "\N{REPLACEMENT CHARACTER}" in submodule.path:
        entry, refused = None, "its path is not UTF-8"
    address = resolved(entry.url, _address(repo) or upstream) if entry else ""
    if entry and not safe_name(entry.name):
        refused = f"its name in .gitmodules leads outside of the folder of submodules: {entry.name}"
    elif entry and (reason := refusal(address)):
        refused = f"its address in .gitmodules, {address}, is not used: {reason}"
    places = [*(_absorbed(repo, entry.name) if entry and safe_name(entry.name) else ()), *_checked_out(repo, submodule)]
    bringing = not refused or address.startswith(("http://", "git://"))
    command: list[str] = []
    if bringing and places:
        command = ["git", "-C", str(places[0]), "fetch", "origin", submodule.commit]
    elif bringing and repo.work_tree:
        command = ["git", "-C", str(repo.work_tree), "submodule", "update", "--init", submodule.path]
    pattern = submodule.path.replace("\N{REPLACEMENT CHARACTER}", "?")  # which git matches with one byte
    advice = f'If the build does not need it, leave it out by the recipe: ignore = ["{pattern}"].'
    if command:
        advice = f"`{shlex.join(command)}` may bring it."
    return Origin(tuple(dict.fromkeys(places)), address, refused, advice)


def _address(repo: Repository) -> str:
    """The address from which the clone came; "" without one."""
    url = git(repo, "config", "--get", "remote.origin.url", allowed=(0, 1)).strip()
    is_path = url and not re.match("[^/]*:", url)
    return os.path.normpath(repo.folder / url) if is_path else url


def _absorbed(repo: Repository, name: str) -> Iterator[Path]:
    """The repositories of submodules of that name below the git directory, and for a linked work tree the main one's."""
    common = git(repo, "rev-parse", "--git-common-dir").removesuffix("\n")
    for folder in (repo.git_dir, (repo.git_dir / common).resolve()):
        place = Path(f"{folder}/modules/{name}")
        if _exists(place / "HEAD"):
            yield place


def _checked_out(repo: Repository, submodule: Submodule) -> Iterator[Path]:
    """The submodule's folder in the user's checkout, if it has a repository and no link leads to it.

    No commit can contain a `.git`.
    """
    if repo.work_tree:
        place = repo.work_tree / submodule.path
        if _exists(place / ".git") and place.resolve() == repo.work_tree.resolve() / submodule.path:
            yield place


def _exists(path: Path) -> bool:
    """Whether a path exists; one that is too long does not."""
    try:
        return path.exists()
    except OSError:
        return False


def _open(place: Path) -> Repository:
    """The repository at exactly this place, which git trusts. Raises PerfBisectError."""
    found = open_repository(place, shallow=True)
    if place.resolve() not in (found.git_dir.resolve(), found.work_tree and found.work_tree.resolve()):
        raise UsageError("it is no repository")
    if is_partial(found):
        raise UsageError("it is a partial clone")
    return found


def _tree(repo: Repository, commit: str) -> str:
    """The tree of a commit; "" if the repository lacks it."""
    [header] = headers(repo, [f"{commit}^{{tree}}"])
    return header[0] if header else ""


def _cache(url: str, object_format: str) -> Repository:
    """The repository in the user's cache for what an address has."""
    name = hashlib.sha256(f"{object_format} {url}".encode()).hexdigest()[:16]
    folder = cache_folder() / "submodules" / f"{name}.git"
    return Repository(folder, folder / "objects", object_format)


def _fetched(url: str, commit: str, object_format: str) -> Generator[tuple[int, int], None, Repository]:
    """The repository in the user's cache, after a commit was fetched into it. Raises EnvironmentFailure when it cannot be."""
    repo = _cache(url, object_format)
    repo.git_dir.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with locked(repo.git_dir.with_suffix(".lock")):
        make_bare(repo.git_dir, object_format)
        if not _tree(repo, commit):  # another hunt may have fetched it meanwhile
            yield from _fetch(repo, url, commit)
    return repo


def _fetch(repo: Repository, url: str, commit: str) -> Iterator[tuple[int, int]]:
    """Fetch one commit without its history; from a server that does not permit that, everything."""
    (repo.git_dir / "shallow.lock").unlink(missing_ok=True)  # of a process that was killed: the lock is ours
    yield 0, 0
    try:
        yield from _talk(repo, url, ["--depth=1"], [f"+{commit}:refs/perfbisect/{commit}"])
    except EnvironmentFailure as failed:
        if _UNADVERTISED not in str(failed):
            raise
        yield from _talk(repo, url, [], _ALL)


def _talk(repo: Repository, url: str, options: Sequence[str], refs: Sequence[str]) -> Iterator[tuple[int, int]]:
    allowed = to_remotes()["GIT_ALLOW_PROTOCOL"].split(":")
    env = to_remotes() | {"GIT_ALLOW_PROTOCOL": ":".join(each for each in SCHEMES if each in allowed) or "none"}
    arguments = [*_SETTINGS, f"--git-dir={repo.git_dir}", *_FETCH, *options, "--", url, *refs]
    for _, done, total in talk(f"{url} cannot be fetched", arguments, env, prompts=False):
        yield done, total
