"""The commit that a user means by a release or a revision."""

import re
from collections.abc import Iterable, Sequence
from difflib import get_close_matches

from perfbisect.errors import UsageError
from perfbisect.repository.git import Repository, git
from perfbisect.repository.objects import headers


class UnknownRevision(UsageError):
    """The repository has no such release or revision."""


def resolve(repo: Repository, name: str, release_tags: Sequence[str]) -> str:
    """The commit of a release as the recipe's tags spell it ("8.0.28"), or of any git revision.

    Raises UnknownRevision, with similar releases, when none exists, and UsageError for an ambiguous hash.
    """
    refs = [f"refs/tags/{tag}" for tag in tags_of(name, release_tags)]
    for commit in look_up(repo, [*refs, name]):
        if commit:
            return commit
    if re.fullmatch("[0-9a-f]{4,}", name) and _is_ambiguous(repo, name):
        raise UsageError(f"'{name}' is the beginning of several hashes.", "Give more of it.")
    tags = git(repo, "for-each-ref", "--format=%(refname:strip=2)", "refs/tags").split()
    near = get_close_matches(name, dict.fromkeys([*releases(tags, release_tags), *tags]), 3)
    raise UnknownRevision(
        f"'{name}' is neither a release nor a revision in {repo.folder}.",
        f"Similar: {', '.join(near)}." if near else "`git tag` and `git log` list them.",
    )


def first_commit(repo: Repository, commit: str) -> str:
    """The commit with which the main line to ``commit`` begins, the same in every clone."""
    return git(repo, "rev-list", "--first-parent", "--max-parents=0", commit).strip()


def ambiguous(repo: Repository, names: Iterable[str]) -> list[str]:
    """The tags among revisions and ranges as they are written that are branches, too: git takes the tag."""
    refs = set(git(repo, "for-each-ref", "--format=%(refname)", "refs/heads", "refs/tags").split())
    bare = dict.fromkeys(re.split(r"[~^:@+]", end)[0] for name in names for end in name.split(".."))
    return [name for name in bare if {f"refs/heads/{name}", f"refs/tags/{name}"} <= refs]


def tags_of(version: str, release_tags: Sequence[str]) -> list[str]:
    """The tags that a release may have, by the recipe's patterns."""
    return [tag.replace("{version}", version).replace("{version:_}", version.replace(".", "_")) for tag in release_tags]


def releases(tags: Sequence[str], release_tags: Sequence[str]) -> list[str]:
    """The releases of these tags, by the recipe's patterns."""
    return [version for pattern in release_tags for version, _ in spelled(tags, pattern)]


def spelled(tags: Sequence[str], pattern: str) -> list[tuple[str, str]]:
    """The version, and the tag, of those of the tags that one of the recipe's patterns spells."""
    head, spelling, tail = re.split(r"\{version(:_|)\}", pattern, maxsplit=1)
    matches = [re.fullmatch(f"{re.escape(head)}(.+){re.escape(tail)}", tag) for tag in tags]
    return [(match[1].replace("_", ".") if spelling else match[1], match[0]) for match in matches if match]


def look_up(repo: Repository, names: Sequence[str]) -> list[str | None]:
    """The commit of each name; None for an unknown name."""
    known = [name if name and not re.search(r"[\n\0]", name) else "." for name in names]
    # what follows :/ is the text that a commit is looked for by
    found = headers(repo, [name if name.startswith(":/") else f"{name}^{{commit}}" for name in known])
    return [header[0] if header else None for header in found]


def _is_ambiguous(repo: Repository, start: str) -> bool:
    """Whether several objects have a hash that begins so."""
    return git(repo, "cat-file", "--batch-check", stdin=f"{start}\n").endswith(" ambiguous\n")
