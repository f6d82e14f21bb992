"""The submodules of a commit: their paths, their commits, their addresses, and the repositories that contain these
commits.

The tree of a commit shows which paths are submodules (the tree's "gitlinks"). ``.gitmodules`` is untrusted text, so
names, paths and addresses are checked before they are used.

perfbisect takes the commit of a submodule from the user's clone (below ``.git/modules`` or in the folder of the
submodule). If the clone lacks the commit, perfbisect fetches it once into a repository in the user's cache. Only the
tree of a submodule's commit is needed, so a shallow clone is enough. If the server permits it, perfbisect fetches only
this commit.
"""

import hashlib
import os
import re
import shlex
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from perfbisect.errors import EnvironmentFailure, PerfBisectError, UsageError
from perfbisect.folders import cache_folder
from perfbisect.repository.discovery import REFS, download_lock, is_partial_clone, open_repository
from perfbisect.repository.git import (
    Repository,
    config_value,
    ensure_bare_repository,
    git,
    pathspecs_except,
    remote_environment,
    run_with_progress,
)
from perfbisect.repository.objects import FILE, object_headers, tree_entries

SCHEMES = ("file", "https", "ssh")  # allowed schemes of addresses
LARGEST = 1 << 20  # most bytes of a .gitmodules that is read
_MODULES = ".gitmodules"
_GITLINK = "160000"

# git must not collect garbage in the background, which would disturb a measurement. A connection without data for 120
# seconds is given up.
_SETTINGS = ("-c", "gc.auto=0", "-c", "http.lowSpeedLimit=1", "-c", "http.lowSpeedTime=120")
_FETCH = ("fetch", "--progress", "--no-tags", "--no-write-fetch-head", "--no-recurse-submodules")
# in the error message of a server that provides only branches and tags
_UNADVERTISED = "does not allow request for unadvertised object"


@dataclass(frozen=True, slots=True)
class Submodule:
    """A submodule of a commit."""

    path: str  # relative to the top of the commit's tree
    commit: str
    ignore: tuple[str, ...] = ()  # glob patterns of ignored paths, relative to the top of the submodule's tree


@dataclass(frozen=True, slots=True)
class ModuleEntry:
    """An entry of ``.gitmodules``, unchecked."""

    name: str
    url: str


class Unavailable(EnvironmentFailure):
    """A submodule cannot be obtained; ``tried`` lists the places that were tried, each with the reason of its
    failure."""

    def __init__(self, sentence: str, advice: str = "", *, tried: Sequence[str] = ()) -> None:
        super().__init__(sentence, advice)
        self.tried = tuple(tried)


def needed_submodules(repo: Repository, commit: str, ignore: Sequence[str]) -> tuple[Submodule, ...]:
    """The submodules that a commit needs. A submodule is not needed if its path is ignored, if a folder above it is
    ignored, or if all paths in it are ignored.
    """
    empty = git(repo, "hash-object", "-t", "tree", "--stdin").strip()
    paths = ["--", *pathspecs_except(ignore)]
    # Without --ignore-submodules=none, git would leave out submodules that `submodule.NAME.ignore` of the user names.
    listing = ["diff-tree", "-r", "-z", "--no-renames", "--no-ext-diff", "--ignore-submodules=none", empty, commit]
    fields = git(repo, *listing, *paths).split("\0")
    modules = (
        Submodule(path, about.split(" ")[3], patterns_below(ignore, path))
        for about, path in zip(fields[::2], fields[1::2], strict=False)
        if about.split(" ")[1] == _GITLINK
    )
    return tuple(module for module in modules if "**" not in module.ignore)


def patterns_below(ignore: Sequence[str], path: str) -> tuple[str, ...]:
    """The glob patterns of ``ignore`` that can match paths below the folder ``path``, made relative to this folder.

    A pattern is left out (and then ignores no path) if the part of the pattern that would match ``path`` has a
    character class or a backslash.

    >>> patterns_below(["storage/rocksdb/tools/**", "**/doc/**", "mysql-test/**"], "storage/rocksdb")
    ('tools/**', '**/doc/**')
    """
    patterns: dict[str, None] = {}
    for pattern in ignore:
        for parts in _pattern_rests(pattern.split("/"), path.split("/")):
            patterns["/".join(parts)] = None
    return tuple(patterns)


def _pattern_rests(pattern: Sequence[str], path: Sequence[str]) -> list[Sequence[str]]:
    if not pattern:
        return []
    if not path:
        return [pattern]
    if pattern[0] == "**":
        return [*_pattern_rests(pattern, path[1:]), *_pattern_rests(pattern[1:], path)]
    if re.search(r"[\[\\]", pattern[0]) or not fnmatchcase(path[0], pattern[0]):
        return []
    return _pattern_rests(pattern[1:], path[1:])


def module_entries(repo: Repository, commit: str) -> Mapping[str, ModuleEntry]:
    """The entries of a commit's ``.gitmodules``, by path. Raises Unavailable if ``.gitmodules`` cannot be read."""
    entry = next((item for item in tree_entries(repo, commit) if item.path == _MODULES), None)
    if entry is None:
        return {}
    if entry.type != FILE:
        raise Unavailable(f"{_MODULES} is not a file")
    [header] = object_headers(repo, [entry.hash])
    if header and header[2] > LARGEST:
        raise Unavailable(f"{_MODULES} has {header[2]} bytes, but at most {LARGEST} bytes are read")
    try:
        listing = git(repo, "config", f"--blob={entry.hash}", "--no-includes", "-z", "--list")
    except EnvironmentFailure as failed:
        raise Unavailable(f"{_MODULES} cannot be read: {failed}") from failed
    values: dict[tuple[str, str], str] = {}
    for line in listing.split("\0"):
        key, _, value = line.partition("\n")
        if part := re.fullmatch(r"submodule\.(.*)\.(path|url)", key, re.DOTALL):
            values[part[1], part[2]] = value
    return {
        path: ModuleEntry(name, values.get((name, "url"), "")) for (name, key), path in values.items() if key == "path"
    }


def is_safe_name(name: str) -> bool:
    """Whether a submodule's name is safe as a path below ``modules``; as in git, no part of the name may be ".."
    (parent folder).
    """
    return bool(name) and ".." not in re.split(r"[/\\]", name) and "\0" not in name


def resolved_url(url: str, base: str) -> str:
    """The full address for ``url``, which may be relative to ``base``, the address of the repository that contains the
    submodule. The function resolves addresses as git does.

    A relative address that leads above the path of ``base`` is returned unchanged, because git would resolve it to an
    address on another host.

    >>> resolved_url("../sub.git", "https://example.org/group/super.git")
    'https://example.org/group/sub.git'
    """
    if not url.startswith(("./", "../")):
        return url
    match = re.fullmatch(r"([^/]+://[^/]*|[^/:]+:|)(.*)", base.rstrip("/"), re.DOTALL)
    assert match
    parts, relative = match[2].split("/") if match[2] or not match[1].endswith(":") else [], url
    while relative.startswith(("./", "../")):
        step, _, relative = relative.partition("/")
        if step == ".." and not (parts and parts.pop()):
            return url
    return match[1] + "/".join([*parts, relative.rstrip("/")])


def refusal_reason(url: str) -> str:
    """The reason why perfbisect refuses a resolved address; "" for an allowed address."""
    if not url:
        return "the address is empty"
    if url.startswith(("./", "../")):
        return "the address is relative, and leads outside the address of the repository"
    scheme = re.match(r"([A-Za-z0-9][A-Za-z0-9+.-]*)(://|::)", url)
    if scheme and (scheme[2] == "::" or scheme[1] not in SCHEMES):
        return f"its scheme is none of {', '.join(SCHEMES)}"
    if re.search(r"[\x00-\x20\x7f]", url) or url.startswith("-"):
        return "it is not an address"
    host = re.match(r"[^/]+://(?:[^/]*@)?(-?)" if scheme else r"(?:[^/:]*@)?(-?)[^/:]+:", url)
    if host and host[1]:
        return "the name of its host begins with a dash"
    if not scheme and not host and not url.startswith("/"):
        return "it is neither a URL nor an absolute path"
    return ""


@dataclass(frozen=True, slots=True)
class ModuleSource:
    """The repository that contains a submodule's commit."""

    repository: Repository
    tree: str  # tree of the commit
    address: str  # resolved address of .gitmodules, to which addresses of its submodules may be relative; "" if unknown


@dataclass(frozen=True, slots=True)
class SubmoduleOrigin:
    """The folders and the address from which the commit of a submodule can perhaps be obtained."""

    places: tuple[Path, ...]  # repositories in the user's clone
    address: str  # resolved address of .gitmodules; "" if unknown
    refused: str  # why nothing is fetched; "" if the address can be used
    advice: str  # how the user can obtain the submodule


def find_submodule(
    repo: Repository, commit: str, submodule: Submodule, upstream: str
) -> Generator[tuple[int, int], None, ModuleSource]:
    """The repository that contains the commit of a submodule of ``commit``. During a download, yields the number of
    finished steps and of all steps.

    ``upstream`` is the address of ``repo`` that is used if the git configuration of ``repo`` has no address. Raises
    Unavailable.
    """
    origin = find_origin(repo, commit, submodule, upstream)
    source, tried = find_locally(origin, repo, submodule)
    if source:
        return source
    why = origin.refused
    if not why:
        try:
            repository = yield from _fetched_repository(origin.address, submodule.commit, repo.object_format)
            if tree := _tree_of_commit(repository, submodule.commit):
                return ModuleSource(repository, tree, origin.address)
            why = f"{origin.address} lacks it"
        except EnvironmentFailure as failed:
            why = str(failed)
        tried.append(why)
    subject = f"submodule {submodule.path} at {submodule.commit[:10]} is not in {repo.folder}"
    raise Unavailable(f"{subject}, and {why}", origin.advice, tried=tried)


def find_locally(
    origin: SubmoduleOrigin, repo: Repository, submodule: Submodule
) -> tuple[ModuleSource | None, list[str]]:
    """The repository on this machine that contains the commit of a submodule of ``repo``, or None; and for each folder
    that cannot be used, the reason."""
    tried = []
    cached = () if origin.refused else (_cached_repository(origin.address, repo.object_format).git_dir,)
    for location in (*origin.places, *(folder for folder in cached if folder.exists())):
        try:
            repository = _open_at(location)
        except PerfBisectError as error:
            tried.append(f"{location}: {error}")
            continue
        if tree := _tree_of_commit(repository, submodule.commit):
            return ModuleSource(repository, tree, origin.address), tried
        tried.append(f"{location}: the commit is missing there")
    return None, tried


def find_origin(repo: Repository, commit: str, submodule: Submodule, upstream: str) -> SubmoduleOrigin:
    """The places from which a submodule of ``commit`` can perhaps be obtained. Nothing is fetched."""
    try:
        entry = module_entries(repo, commit).get(submodule.path)
        refused = "" if entry else ".gitmodules has no entry for it"
    except Unavailable as error:
        entry, refused = None, str(error)
    if "\N{REPLACEMENT CHARACTER}" in submodule.path:
        entry, refused = None, "its path is not UTF-8"
    address = resolved_url(entry.url, _clone_address(repo) or upstream) if entry else ""
    if entry and not is_safe_name(entry.name):
        refused = f"its name in .gitmodules, {entry.name}, leads outside the folder of submodules"
    elif entry and (reason := refusal_reason(address)):
        refused = f"its address in .gitmodules, {address}, is not used: {reason}"
    places = dict.fromkeys(_folders_in_clone(repo, submodule, entry.name if entry and is_safe_name(entry.name) else ""))
    bringing = not refused or address.startswith(("http://", "git://"))
    command: list[str] = []
    if bringing and places:
        command = ["git", "-C", str(next(iter(places))), "fetch", "origin", submodule.commit]
    elif bringing and repo.work_tree:
        command = ["git", "-C", str(repo.work_tree), "submodule", "update", "--init", submodule.path]
    pattern = submodule.path.replace("\N{REPLACEMENT CHARACTER}", "?")  # in a glob, ? matches the unreadable byte
    advice = f'If the build does not need the submodule, ignore it in the recipe: ignore = ["{pattern}"].'
    if command:
        advice = f"Try: {shlex.join(command)}."
    return SubmoduleOrigin(tuple(places), address, refused, advice)


def _clone_address(repo: Repository) -> str:
    """The address from which a repository was cloned; "" if unknown."""
    url = config_value(repo, "remote.origin.url")
    return os.path.normpath(repo.folder / url) if url and not re.match("[^/]*:", url) else url


def _folders_in_clone(repo: Repository, submodule: Submodule, name: str) -> Iterator[Path]:
    """The folders of the user's clone that contain a repository of a submodule.

    The first folder is `modules/NAME` in the git directory. A linked work tree has a second folder: `modules/NAME` in
    the main git directory. The last folder is the submodule's folder in the checkout, if the folder has an entry `.git`
    and its path contains no symbolic link. The user has made this repository, because a commit cannot contain an entry
    named `.git`.
    """
    if name:
        common = git(repo, "rev-parse", "--git-common-dir").removesuffix("\n")
        for folder in (repo.git_dir, (repo.git_dir / common).resolve()):
            if _has_entry(module_folder := Path(f"{folder}/modules/{name}"), "HEAD"):
                yield module_folder
    if repo.work_tree:
        module_folder = repo.work_tree / submodule.path
        if _has_entry(module_folder, ".git") and module_folder.resolve() == repo.work_tree.resolve() / submodule.path:
            yield module_folder


def _has_entry(folder: Path, name: str) -> bool:
    """Whether a folder has an entry with a name; false if the path is too long."""
    try:
        return (folder / name).exists()
    except OSError:
        return False


def _open_at(place: Path) -> Repository:
    """The repository whose root is the folder ``place``. Raises PerfBisectError if ``place`` is no root of a
    repository, if git does not trust the repository, or if it is a partial clone."""
    repository = open_repository(place, allow_shallow=True)
    if place.resolve() not in (repository.git_dir.resolve(), repository.work_tree and repository.work_tree.resolve()):
        raise UsageError("it is not a repository")
    if is_partial_clone(repository):
        raise UsageError("it is a partial clone")
    return repository


def _tree_of_commit(repo: Repository, commit: str) -> str:
    """The tree of a commit; "" if the repository lacks the commit."""
    [header] = object_headers(repo, [f"{commit}^{{tree}}"])
    return header[0] if header else ""


def _cached_repository(url: str, object_format: str) -> Repository:
    """The repository in the user's cache for the address ``url``; it may not exist yet."""
    name = hashlib.sha256(f"{object_format} {url}".encode()).hexdigest()[:16]
    folder = cache_folder() / "submodules" / f"{name}.git"
    return Repository(folder, folder / "objects", object_format)


def _fetched_repository(url: str, commit: str, object_format: str) -> Generator[tuple[int, int], None, Repository]:
    """The repository in the user's cache, after a commit was fetched into it. Raises EnvironmentFailure if git fails."""
    repo = _cached_repository(url, object_format)
    repo.git_dir.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with download_lock(repo.git_dir.with_suffix(".lock")):
        ensure_bare_repository(repo.git_dir, object_format)
        if _tree_of_commit(repo, commit):  # another hunt has fetched the commit meanwhile
            return repo
        (repo.git_dir / "shallow.lock").unlink(missing_ok=True)  # left by a killed process
        yield 0, 0
        try:  # --depth=1: without the commit's history
            yield from _fetch_with_progress(repo, url, ["--depth=1"], [f"+{commit}:refs/perfbisect/{commit}"])
        except EnvironmentFailure as failed:
            if _UNADVERTISED not in str(failed):
                raise
            yield from _fetch_with_progress(
                repo, url, [], REFS
            )  # fetches everything, because the server provides only branches and tags
    return repo


def _fetch_with_progress(
    repo: Repository, url: str, options: Sequence[str], refs: Sequence[str]
) -> Iterator[tuple[int, int]]:
    allowed = remote_environment()["GIT_ALLOW_PROTOCOL"].split(":")
    env = remote_environment() | {"GIT_ALLOW_PROTOCOL": ":".join(name for name in SCHEMES if name in allowed) or "none"}
    arguments = [*_SETTINGS, f"--git-dir={repo.git_dir}", *_FETCH, *options, "--", url, *refs]
    for _, done, total in run_with_progress(f"{url} cannot be fetched", arguments, env, may_prompt=False):
        yield done, total
