"""The releases from one to another, as `bisect compare --each-release 8.0.20..8.0.40` measures them.

They are in the order of their versions, not of their dates: 8.0.9, 8.0.10, 8.1.0. Taken are those of one line of
development, of which the last release contains every commit. A fix of an older branch has no place between them: 3.41.1 is
no predecessor of 3.42.0 where it was made beside it.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from perfbisect.errors import UsageError
from perfbisect.repository.git import Repository, git
from perfbisect.repository.releases import by_pattern, tags_of_commits
from perfbisect.repository.resolve import spelled

FORM = "Write the first release and the last one with two dots between them: 8.0.20..8.0.40"

Version = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ReleaseRange:
    """The releases of a range, oldest version first, as a user writes them."""

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
    contained = set(
        git(
            repo, "for-each-ref", "--format=%(refname:strip=2)", f"--merged=refs/tags/{known[last]}", "refs/tags"
        ).split("\n")
    )
    taken, left_out = [], []
    for _, version in within:
        if not plain(version):
            left_out.append((version, "a pre-release"))
        elif version not in (first, last) and known[version] not in contained:
            left_out.append((version, f"{last} does not contain it"))
        else:
            taken.append(version)
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
