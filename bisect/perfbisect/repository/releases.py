"""The releases of a repository, as its tags name them.

``latest_range`` chooses the range of commits to try first. ``release_range`` has the releases from one to another, as
`bisect compare --each-release 8.0.20..8.0.40` measures them: in the order of their versions, not of their dates (8.0.9,
8.0.10, 8.1.0). Taken are those of one line of development, of which the last release contains every commit. A fix of an
older branch has no place between them: 3.41.1 is no predecessor of 3.42.0 where it was made beside it.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import NamedTuple

from perfbisect.errors import UsageError
from perfbisect.repository.commits import look_up, refs, spelled
from perfbisect.repository.git import Repository, git

FEW = 20  # commits of the range where no release exists
RECENT = 31_536_000  # seconds between HEAD and the last release of its line: a year
TRIED = 20  # releases that are tried as the good end

FORM = "Write the first release and the last one with two dots between them: 8.0.20..8.0.40"

Version = tuple[int, ...]

_RELEASE = re.compile(
    r"(?P<head>[A-Za-z0-9._+/@-]*?)(?<![0-9])(?<![0-9][._])"
    r"(?P<version>[0-9]+(?:\.[0-9]+)+|[0-9]+(?:_[0-9]+)+|[0-9]+)"
)

_SUFFIX = re.compile(r"[0-9][._][0-9]|(?:alpha|beta|dev|pre|rc)[._-]?$", re.IGNORECASE)  # of a version before it


class Tag(NamedTuple):
    """A tag, and when it was made, in seconds."""

    name: str
    seconds: int


class Release(NamedTuple):
    """A tag that names a release."""

    tag: str
    version: str  # as the user writes it: "1.2"


class ProposedRange(NamedTuple):
    """The range to try first."""

    good: str
    bad: str
    patterns: tuple[str, ...]  # of the tags of releases, the one of this range first


def by_pattern(tags: Iterable[Tag]) -> dict[str, list[Release]]:
    """Pattern as in a recipe's release_tags ("v{version}") → its releases, the latest version first.

    First is the pattern with the latest tag of those with two or more.
    """
    found: dict[str, list[Release]] = {}
    latest: dict[str, int] = {}
    for tag in tags:
        match = _RELEASE.fullmatch(tag.name)
        if not match or _SUFFIX.search(match["head"]):
            continue
        if match["version"].isdecimal() and not re.fullmatch("[^0-9]+", match["head"]):
            continue  # a year, or the number of a release candidate
        written = "{version:_}" if "_" in match["version"] else "{version}"
        pattern = match["head"] + written
        found.setdefault(pattern, []).append(Release(tag.name, match["version"].replace("_", ".")))
        latest[pattern] = max(latest.get(pattern, 0), tag.seconds)
    for releases in found.values():
        releases.sort(key=lambda release: [int(part) for part in release.version.split(".")], reverse=True)
    order = sorted(found, key=lambda pattern: (len(found[pattern]) > 1, latest[pattern], len(found[pattern])))
    return {pattern: found[pattern] for pattern in reversed(order)}


def latest_range(repo: Repository) -> ProposedRange:
    """The last two releases, of which one precedes the other if any two do; or the last commits where no tags exist.

    Raises UsageError where the repository has no commit, or only one.
    """
    head = look_up(repo, ["HEAD"])[0]
    if head is None:
        raise UsageError(f"{repo.folder} has no commit on its present branch.", "Check out a branch that has commits.")
    merged, since = tags_of_commits(repo, "--merged=HEAD"), int(git(repo, "log", "-1", "--format=%ct", head)) - RECENT
    # Where releases are on branches, the tags that HEAD contains are years old.
    known = by_pattern(merged if any(tag.seconds > since for tag in merged) else tags_of_commits(repo))
    patterns = tuple(known)[:4]
    releases = known[patterns[0]] if patterns else []
    if len(releases) > 1:
        bad = releases[0]
        older = _older(repo, bad.tag, [release.tag for release in releases[1 : TRIED + 1]])
        if older:
            return ProposedRange(
                next(release.version for release in releases if release.tag == older), bad.version, patterns
            )
    if releases and _older(repo, "HEAD", [releases[0].tag]):
        return ProposedRange(releases[0].version, "HEAD", patterns)
    first_parents = git(repo, "rev-list", "--first-parent", f"--max-count={FEW + 1}", head).split()
    if len(first_parents) == 1:
        raise UsageError(f"{repo.folder} has a single commit, so nothing to hunt in.", "Is it the whole history?")
    return ProposedRange(f"HEAD~{len(first_parents) - 1}", "HEAD", patterns)


def tags_of_commits(repo: Repository, *which: str) -> list[Tag]:
    """The tags of commits. Names and dates never contain a blank."""
    lines = git(
        repo, "for-each-ref", "--format=%(creatordate:unix) %(refname:strip=2)", *which, "refs/tags"
    ).splitlines()
    tags = [Tag(name, int(seconds or 0)) for seconds, _, name in (line.partition(" ") for line in lines)]
    commits = look_up(repo, [f"refs/tags/{tag.name}" for tag in tags])
    return [tag for tag, commit in zip(tags, commits, strict=True) if commit]


def _older(repo: Repository, newer: str, tags: Sequence[str]) -> str:
    """The first of these tags that precedes ``newer``; else the first of another commit, or ""."""
    name = newer if newer == "HEAD" else f"refs/tags/{newer}"
    [end, *commits] = look_up(repo, [name, *(f"refs/tags/{tag}" for tag in tags)])
    others = [(tag, commit) for tag, commit in zip(tags, commits, strict=True) if commit and commit != end]
    for tag, commit in others:
        if git(repo, "merge-base", commit, str(end), allowed=(0, 1)).strip() == commit:
            return tag
    return others[0][0] if others and newer != "HEAD" else ""


@dataclass(frozen=True, slots=True)
class ReleaseRange:
    """The releases of a range, oldest version first: versions, or tags where the recipe has no pattern of them."""

    taken: tuple[str, ...]
    left_out: tuple[tuple[str, str], ...]  # with the reason


def release_range(repo: Repository, text: str, release_tags: Sequence[str]) -> ReleaseRange:
    """The releases from A to B, both included, of ``A..B``, by the recipe's patterns (none: those that the tags have).

    Raises UsageError where an end is no release, or the two are not in this order.
    """
    first, last = ends_of(text)
    tags = tags_of_commits(repo)
    patterns = release_tags or list(by_pattern(tags))[:1]
    known = dict[str, str]()  # version → its tag; a recipe's first pattern has precedence
    for pattern in patterns:
        for version, tag in spelled([tag.name for tag in tags], pattern):
            known.setdefault(version, tag)
    first, last = (named(end, known, patterns, repo) for end in (first, last))
    low, high = number_of(first), number_of(last)
    if low >= high:
        raise UsageError(f"{first} is not before {last}.", FORM)
    within = sorted((number, version) for version in known if low <= (number := number_of(version)) <= high)
    contained = refs(repo, "refs/tags", f"--merged=refs/tags/{known[last]}", names="strip=2")
    taken, left_out = [], []
    for _, version in within:
        name = version if release_tags else known[version]  # a recipe without patterns knows no versions
        if not plain(version):
            left_out.append((name, "a pre-release"))
        elif version not in (first, last) and known[version] not in contained:
            left_out.append((name, f"{last} does not contain it"))
        else:
            taken.append(name)
    return ReleaseRange(tuple(taken), tuple(left_out))


def ends_of(text: str) -> tuple[str, str]:
    """The two ends of ``A..B``."""
    first, dots, last = text.partition("..")
    if not (first and dots and last) or ".." in last or last.startswith("."):
        raise UsageError(f"'{text}' is no range of releases.", FORM)
    return first, last


def named(end: str, known: dict[str, str], patterns: Sequence[str], repo: Repository) -> str:
    """The version that is meant by itself or by its tag. Raises UsageError for any other word."""
    versions = {version: version for version in known} | {tag: version for version, tag in known.items()}
    if end not in versions or not plain(versions[end]):
        near = get_close_matches(end, [version for version in known if plain(version)], 3)
        raise UsageError(
            f"'{end}' is no release in {repo.folder}, whose tags are written {' or '.join(patterns) or 'in no common way'}.",
            f"Similar: {', '.join(near)}."
            if near
            else "`git tag` lists them. Any revisions are compared as `bisect compare A B C`.",
        )
    return versions[end]


def plain(version: str) -> bool:
    """Whether a version is made of numbers alone, as pre-releases are not."""
    return re.fullmatch(r"[0-9]+(?:[.-][0-9]+)*", version) is not None


def number_of(version: str) -> Version:
    """What versions are ordered by: its numbers up to the first sign that is none. 8.0.11-rc follows 8.0.10."""
    head = re.match(r"[0-9]+(?:[.-][0-9]+)*", version)
    return tuple(int(part) for part in re.split("[.-]", head[0])) if head else ()
