"""The releases of a repository, as its tags name them, and which range of commits to try first."""

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from perfbisect.errors import UsageError
from perfbisect.repository.git import Repository, git
from perfbisect.repository.resolve import look_up

FEW = 20  # commits of the range where no release exists
TRIED = 20  # releases that are tried as the good end

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
    pattern: str  # as in a recipe's release_tags: "v{version}"
    version: str  # as the user writes it: "1.2"


class Range(NamedTuple):
    """The range to try first."""

    good: str
    bad: str
    patterns: tuple[str, ...]  # of the tags of releases, the one of this range first


def by_pattern(tags: Iterable[Tag]) -> dict[str, list[Release]]:
    """Pattern → its releases, the latest version first. First is the pattern with the latest tag of those with two or more."""
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
        found.setdefault(pattern, []).append(Release(tag.name, pattern, match["version"].replace("_", ".")))
        latest[pattern] = max(latest.get(pattern, 0), tag.seconds)
    for releases in found.values():
        releases.sort(key=lambda release: [int(part) for part in release.version.split(".")], reverse=True)
    order = sorted(found, key=lambda pattern: (len(found[pattern]) > 1, latest[pattern], len(found[pattern])))
    return {pattern: found[pattern] for pattern in reversed(order)}


def latest_range(repo: Repository) -> Range:
    """The last two releases, of which one precedes the other if any two do; or the last commits where no tags exist.

    Raises UsageError where the repository has no commit, or only one.
    """
    head = look_up(repo, ["HEAD"])[0]
    if head is None:
        raise UsageError(f"{repo.folder} has no commit on its present branch.", "Check out a branch that has commits.")
    known = by_pattern(tags_of_commits(repo, "--merged=HEAD")) or by_pattern(tags_of_commits(repo))
    patterns = tuple(known)[:4]
    releases = known[patterns[0]] if patterns else []
    if len(releases) > 1:
        bad = releases[0]
        older = _older(repo, bad.tag, [release.tag for release in releases[1 : TRIED + 1]])
        if older:
            return Range(next(release.version for release in releases if release.tag == older), bad.version, patterns)
    if releases and _older(repo, "HEAD", [releases[0].tag]):
        return Range(releases[0].version, "HEAD", patterns)
    first_parents = git(repo, "rev-list", "--first-parent", f"--max-count={FEW + 1}", head).split()
    if len(first_parents) == 1:
        raise UsageError(f"{repo.folder} has a single commit, so nothing to hunt in.", "Is it the whole history?")
    return Range(f"HEAD~{len(first_parents) - 1}", "HEAD", patterns)


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
