"""The submodules of a commit: their paths and commits, and the address of each in the ``.gitmodules`` of that commit.

Which paths are submodules is what the tree says (its "gitlinks"). ``.gitmodules`` is text that anyone may have written:
names, paths and addresses are checked before they are used.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from perfbisect.errors import EnvironmentFailure
from perfbisect.repository.git import Repository, all_but, git
from perfbisect.repository.objects import FILE, entries, headers

SCHEMES = ("file", "https", "ssh")  # of addresses that are used
LARGEST = 1 << 20  # bytes of a .gitmodules
_MODULES = ".gitmodules"
_GITLINK = "160000"


@dataclass(frozen=True, slots=True)
class Submodule:
    """A submodule of a commit."""

    path: str  # from the top of the commit's tree
    commit: str
    ignore: tuple[str, ...] = ()  # glob patterns of paths that do not count, from the top of its own tree


@dataclass(frozen=True, slots=True)
class Entry:
    """A submodule in ``.gitmodules``, as it stands there."""

    name: str
    url: str


class Unavailable(EnvironmentFailure):
    """A submodule cannot be had; ``tried`` are the places, and why none of them serves."""

    def __init__(self, sentence: str, advice: str = "", *, tried: Sequence[str] = ()) -> None:
        super().__init__(sentence, advice)
        self.tried = tuple(tried)


def submodules(repo: Repository, commit: str, ignore: Sequence[str]) -> tuple[Submodule, ...]:
    """The submodules of a commit that are needed: neither ignored themselves nor below an ignored path, nor empty by it."""
    empty = git(repo, "hash-object", "-t", "tree", "--stdin").strip()
    paths = ["--", *all_but(ignore)]
    # Otherwise `submodule.NAME.ignore` of the present checkout would leave some out.
    listing = ["diff-tree", "-r", "-z", "--no-renames", "--no-ext-diff", "--ignore-submodules=none", empty, commit]
    fields = git(repo, *listing, *paths).split("\0")
    found = (
        Submodule(path, about.split(" ")[3], below(ignore, path))
        for about, path in zip(fields[::2], fields[1::2], strict=False)
        if about.split(" ")[1] == _GITLINK
    )
    return tuple(each for each in found if "**" not in each.ignore)


def below(ignore: Sequence[str], path: str) -> tuple[str, ...]:
    """Glob patterns as they apply below a folder of the tree: what of them is left there.

    A pattern with a character class or a backslash before that is left out: nothing is ignored by it.

    >>> below(["storage/rocksdb/tools/**", "**/doc/**", "mysql-test/**"], "storage/rocksdb")
    ('tools/**', '**/doc/**')
    """
    left: dict[str, None] = {}
    for pattern in ignore:
        for rest in _rests(pattern.split("/"), path.split("/")):
            left["/".join(rest)] = None
    return tuple(left)


def _rests(pattern: Sequence[str], path: Sequence[str]) -> list[Sequence[str]]:
    if not pattern:
        return []
    if not path:
        return [pattern]
    if pattern[0] == "**":
        return [*_rests(pattern, path[1:]), *_rests(pattern[1:], path)]
    if re.search(r"[\[\\]", pattern[0]) or not fnmatchcase(path[0], pattern[0]):
        return []
    return _rests(pattern[1:], path[1:])


def declared(repo: Repository, commit: str) -> Mapping[str, Entry]:
    """The entries of a commit's ``.gitmodules``, by path. Raises Unavailable when it cannot be read."""
    entry = next((each for each in entries(repo, commit) if each.path == _MODULES), None)
    if entry is None:
        return {}
    if entry.type != FILE:
        raise Unavailable(f"{_MODULES} is no file")
    [header] = headers(repo, [entry.hash])
    if header and header[2] > LARGEST:
        raise Unavailable(f"{_MODULES} has {header[2]} bytes, more than the {LARGEST} that are read")
    try:
        found = git(repo, "config", f"--blob={entry.hash}", "--no-includes", "-z", "--list")
    except EnvironmentFailure as failed:
        raise Unavailable(f"{_MODULES} cannot be read: {failed}") from failed
    values: dict[tuple[str, str], str] = {}
    for line in found.split("\0"):
        key, _, value = line.partition("\n")
        if part := re.fullmatch(r"submodule\.(.*)\.(path|url)", key, re.DOTALL):
            values[part[1], part[2]] = value
    return {path: Entry(name, values.get((name, "url"), "")) for (name, key), path in values.items() if key == "path"}


def safe_name(name: str) -> bool:
    """Whether a submodule's name can be a folder below ``modules``, as for git: no part of it leads upwards."""
    return bool(name) and ".." not in re.split(r"[/\\]", name) and "\0" not in name


def resolved(url: str, base: str) -> str:
    """The address that ``url`` means beside the address ``base`` of the repository that names it, as git has it.

    A relative one that leads above the path of the base, where git would change its host, is returned as it is.

    >>> resolved("../sub.git", "https://example.org/group/super.git")
    'https://example.org/group/sub.git'
    """
    if not url.startswith(("./", "../")):
        return url
    found = re.fullmatch(r"([^/]+://[^/]*|[^/:]+:|)(.*)", base.rstrip("/"), re.DOTALL)
    assert found
    parts, rest = found[2].split("/") if found[2] or not found[1].endswith(":") else [], url
    while rest.startswith(("./", "../")):
        step, _, rest = rest.partition("/")
        if step == ".." and not (parts and parts.pop()):
            return url
    return found[1] + "/".join([*parts, rest.rstrip("/")])


def refusal(url: str) -> str:
    """Why an address, which is no relative one any more, is not used; "" for one that is."""
    if not url:
        return "it is empty"
    if url.startswith(("./", "../")):
        return "it is relative, and leads outside of the address of the repository"
    scheme = re.match(r"([A-Za-z0-9][A-Za-z0-9+.-]*)(://|::)", url)
    if scheme and (scheme[2] == "::" or scheme[1] not in SCHEMES):
        return f"only {', '.join(SCHEMES[:-1])} and {SCHEMES[-1]} are used"
    if re.search(r"[\x00-\x20\x7f]", url) or url.startswith("-"):
        return "it is no address"
    host = re.match(r"[^/]+://(?:[^/]*@)?(-?)" if scheme else r"(?:[^/:]*@)?(-?)[^/:]+:", url)
    if host and host[1]:
        return "its host begins with a dash"
    if not scheme and not host and not url.startswith("/"):
        return "it is neither a URL nor an absolute path"
    return ""
