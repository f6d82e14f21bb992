"""Finds the commits that users name (releases, revisions, ranges), and reads descriptions, changed paths and diffs of
commits.

Releases are named by tags. ``proposed_range`` chooses the range of commits to try first. ``releases_in_range`` finds
all releases from a first to a last release for `bisect compare --each-release 8.0.20..8.0.40`, ordered by version, not
by date (8.0.9, 8.0.10, 8.1.0). The releases belong to one line of development: the last release contains all their
commits. A release of an older branch is left out: 3.42.0 does not contain the commits of 3.41.1 if 3.41.1 was made on a
branch.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import NamedTuple

from perfbisect.core.domain.events import Commit
from perfbisect.errors import EnvironmentFailure, UsageError
from perfbisect.masking import mask_credentials
from perfbisect.repository.git import Repository, git
from perfbisect.repository.objects import object_headers, within_limits

# Forge, or forge software with which the name of a host begins → the part of a commit's address before its hash.
FORGES = dict.fromkeys(("github", "gitea", "forgejo", "codeberg", "git.sr.ht"), "commit")
FORGES |= {"gitlab": "-/commit", "bitbucket.org": "commits"}
# https://host:port/path, ssh://user@host:port/path or user@host:path
REMOTE = re.compile(
    r"(?ai)(?:(https?|git\+ssh|ssh|git)://(?:[^/@]*@)?|(?:[\w.-]+@)?(?=[^/:]+:[^:]*$))(?:alt)?(?:ssh\.)?"
    r"((?:[a-z0-9-]+\.)+[a-z]+)(:\d+(?=/))?[:/]/*((?:[\w.~+-]+/)+[\w.~+-]+?)(?:\.git)?/*"
)
LONGEST = 500  # characters of a subject or an author that are kept
DOTS = ".."


class UnknownRevision(UsageError):
    """The repository does not have the named release or revision."""


def resolve_commit(repo: Repository, name: str, release_tags: Sequence[str]) -> str:
    """The commit of ``name``: a version of a release ("8.0.28"), whose tag has a form in ``release_tags``, or a git
    revision.

    Raises UnknownRevision, with similar releases, if the revision does not exist, and UsageError for an ambiguous hash.
    """
    logged = "@{" in name  # git fails if a reflog is too short, or a branch has no upstream
    spelled_so = [] if logged else [f"refs/tags/{tag}" for tag in possible_tags(name, release_tags)]
    try:
        if commit := next(filter(None, commits_of_names(repo, [*spelled_so, name])), None):
            return commit
    except EnvironmentFailure as failed:
        if not logged:
            raise
        why = str(failed).partition("fatal: ")[2]
        raise UnknownRevision(f"'{name}' is not a revision in {repo.folder}: {why}.") from failed
    asked = f"{name}\n" if re.fullmatch("[0-9a-f]{4,}", name) else ""
    if git(repo, "cat-file", "--batch-check", stdin=asked).endswith(" ambiguous\n"):
        raise UsageError(f"'{name}' is the beginning of several hashes.", "Write more characters of the hash.")
    tags = list_refs(repo, "refs/tags", names="strip=2")
    releases = [version for pattern in release_tags for version, _ in versions_of_tags(tags, pattern)]
    near = get_close_matches(name, dict.fromkeys([*releases, *tags]), 3)
    raise UnknownRevision(
        f"'{name}' is neither a release nor a revision in {repo.folder}.",
        f"Similar names: {', '.join(near)}." if near else "`git tag` lists releases, `git log` lists revisions.",
    )


def root_commit(repo: Repository, commit: str) -> str:
    """The oldest commit on the first-parent line to ``commit``; it is the same in every clone."""
    return git(repo, "rev-list", "--first-parent", "--max-parents=0", commit).strip()


def tags_named_like_branches(repo: Repository, names: Iterable[str]) -> list[str]:
    """The names in revisions and ranges that are both a tag and a branch; git uses the tag."""
    names_of_refs = set(list_refs(repo, "refs/heads", "refs/tags"))
    bare = dict.fromkeys(re.split(r"[~^:@+]", end)[0] for name in names for end in name.split(".."))
    return [name for name in bare if {f"refs/heads/{name}", f"refs/tags/{name}"} <= names_of_refs]


def list_refs(repo: Repository, *selection: str, names: str = "") -> list[str]:
    """The names of references, which never contain a blank. ``selection`` are arguments of ``git for-each-ref``:
    folders of references, and options.
    """
    return git(repo, "for-each-ref", f"--format=%(refname{names and ':'}{names})", *selection).split()


def refs_with_subjects(repo: Repository) -> dict[str, str]:
    """HEAD, the branches and the tags, newest first, each with its date and the subject of its commit."""
    form = "--format=%(refname:short)%09%(creatordate:short) %(subject)"
    folders = ("refs/heads", "refs/tags", "refs/remotes")
    lines = git(repo, "for-each-ref", form, "--sort=-creatordate", *folders).splitlines()
    return {"HEAD": "the commit that is checked out"} | dict(line.split("\t", 1) for line in lines if "\t" in line)


def possible_tags(version: str, release_tags: Sequence[str]) -> list[str]:
    """The names that the tag of a release can have, one for each of the recipe's patterns of tags."""
    return [tag.replace("{version}", version).replace("{version:_}", version.replace(".", "_")) for tag in release_tags]


def versions_of_tags(tags: Sequence[str], pattern: str) -> list[tuple[str, str]]:
    """A pair (version, tag) for each tag that matches ``pattern``, which is one of the recipe's patterns."""
    head, spelling, tail = re.split(r"\{version(:_|)\}", pattern, maxsplit=1)
    matches = [re.fullmatch(f"{re.escape(head)}(.+){re.escape(tail)}", tag) for tag in tags]
    return [(match[1].replace("_", ".") if spelling else match[1], match[0]) for match in matches if match]


def commits_of_names(repo: Repository, names: Sequence[str]) -> list[str | None]:
    """For each name of a revision, the full hash of its commit; None if the repository does not have the revision."""
    safe = [name if name and not re.search(r"[\n\0]", name) else "." for name in names]
    # Behind :/TEXT, which means the newest commit whose message contains TEXT, ^{commit} would be a part of the text.
    objects = object_headers(repo, [name if name.startswith(":/") else f"{name}^{{commit}}" for name in safe])
    return [header[0] if header else None for header in objects]


def describe_commit(repo: Repository, commit: str) -> Commit:
    """The description of a commit with a full hash. Fields are empty if the commit object lacks them."""
    shown = git(repo, "rev-list", "--max-count=1", "--no-commit-header", "--format=%H%x00%cs%x00%an%x00%s", commit)
    sha, date, author, subject = shown.rstrip("\n").split("\0")
    return Commit(sha, date if re.match(r"\d", date) else "", _shortened(author), _shortened(subject))


def commit_web_page(repo: Repository, commit: str) -> str:
    """The address of a commit's web page on the site of the usual remote; "" for an unknown site."""
    match = REMOTE.fullmatch(git(repo, "ls-remote", "--get-url", allowed=(0, 128)).strip())
    scheme, host, port, path = match.groups("") if match else ("",) * 4
    kind = FORGES.get(host.lower()) or FORGES.get(host.lower().partition(".")[0])
    server = f"{scheme}://{host}{port}" if scheme.lower().startswith("http") else f"https://{host}"
    return f"{server}/{path}/{kind}/{commit}" if kind else ""


def _shortened(text: str) -> str:
    text = mask_credentials(text)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"


def revision_or_range_ends(text: str) -> tuple[str, ...]:
    """The revisions in ``text``: a single revision, or both ends of A..B. Raises UsageError for anything else."""
    ends = tuple(text.split(DOTS))
    if len(ends) > 2 or not all(ends) or any(end.startswith(".") for end in ends):
        raise UsageError(
            f"'{text}' is neither a revision nor a range of two revisions.",
            "Write one revision, REV, or a range, A..B.",
        )
    return ends


def commits_in_set(repo: Repository, revision_set: str) -> frozenset[str]:
    """The full hashes of the commits of ``revision_set``: a full hash, or a range A..B of two full hashes."""
    older, *newer = revision_or_range_ends(revision_set)
    return frozenset(git(repo, "rev-list", "--stdin", stdin=f"{newer[0]}\n^{older}\n").split() if newer else [older])


def commits_touching(
    repo: Repository, good: str, bad: str, paths: Iterable[str], *, first_parent: bool = False
) -> dict[str, frozenset[str]]:
    """For each path (a folder, a file or one of git's globs) the commits (full hashes) of good..bad that change it.

    A merge is included if it differs from all of its parents; with ``first_parent``, it is included if it differs from
    its first parent.
    """
    walk = ["rev-list", "--full-history", *(["--first-parent"] if first_parent else []), bad, f"^{good}", "--"]
    return {path: frozenset(git(repo, *walk, f":(top,glob){path}").split()) for path in paths}


LINES = 3000  # most changed lines that are printed
FILES = 200
LARGE = "512k"  # a file of at least this size counts as binary
OPTIONS = ("--no-ext-diff", "--no-textconv", "--no-color", "--ignore-submodules=none")


@dataclass(frozen=True, slots=True)
class Diff:
    """A unified diff; if the diff is too large, only the diffs of the smallest files."""

    text: str
    left_out: int  # number of files that are left out


def unified_diff(repo: Repository, before: str, after: str) -> Diff:
    """The difference between two commits, given by their full hashes.

    Raises EnvironmentFailure if the repository lacks one of the commits.
    """
    sizes = changed_line_counts(repo, before, after)
    paths_shown = within_limits(dict(sorted(sizes.items(), key=lambda item: item[1])), LINES, LINES, FILES)
    if not paths_shown:
        return Diff("", len(sizes))
    paths = [f":(top,literal){path}" for path in paths_shown]
    text = git(
        repo, "diff-tree", "-p", "-U4", *OPTIONS, "--src-prefix=a/", "--dst-prefix=b/", before, after, "--", *paths,
        options=("-c", f"core.bigFileThreshold={LARGE}"),
    )  # fmt: skip
    return Diff(text, len(sizes) - len(paths_shown))


def changed_line_counts(repo: Repository, before: str, after: str) -> dict[str, int]:
    """For each changed path, the numbers of added and removed lines, which are 0 for binary files. git accepts the
    returned paths as arguments, whatever bytes they contain.
    """
    text = git(repo, "diff-tree", "-r", "-z", "--numstat", *OPTIONS, before, after, errors="surrogateescape")
    sizes = {}
    for entry in filter(None, text.split("\0")):
        added, removed, path = entry.split("\t", 2)
        sizes[path] = sum(int(number) for number in (added, removed) if number != "-")
    return sizes


FEW = 20  # number of commits of a proposed range if there are no releases
RECENT = 31_536_000  # seconds between HEAD and the last release of its line: a year
TRIED = 20  # releases that are tried as the good end

FORM = "Write the first and the last release, with two dots between them. Example: 8.0.20..8.0.40"

_RELEASE = re.compile(
    r"(?P<head>[A-Za-z0-9._+/@-]*?)(?<![0-9])(?<![0-9][._])"
    r"(?P<version>[0-9]+(?:\.[0-9]+)+|[0-9]+(?:_[0-9]+)+|[0-9]+)"
)

# Found in the text before a version, if this text already has a version: the tag is no release.
_SUFFIX = re.compile(r"[0-9][._][0-9]|(?:alpha|beta|dev|pre|rc)[._-]?$", re.IGNORECASE)


class Tag(NamedTuple):
    """A tag of the repository, with its time in seconds since the epoch."""

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
    patterns: tuple[str, ...]  # patterns of the tags of releases, the pattern of this range first


def releases_by_pattern(tags: Iterable[Tag]) -> dict[str, list[Release]]:
    """For each pattern, written as in a recipe's release_tags ("v{version}"), its releases, latest version first.

    Patterns with two or more tags come first; among these patterns, the pattern with the latest tag is first.
    """
    groups: dict[str, list[Release]] = {}
    latest: dict[str, int] = {}
    for tag in tags:
        match = _RELEASE.fullmatch(tag.name)
        if not match or _SUFFIX.search(match["head"]):
            continue
        if match["version"].isdecimal() and not re.fullmatch("[^0-9]+", match["head"]):
            continue  # a year, or the number of a release candidate
        written = "{version:_}" if "_" in match["version"] else "{version}"
        pattern = match["head"] + written
        groups.setdefault(pattern, []).append(Release(tag.name, match["version"].replace("_", ".")))
        latest[pattern] = max(latest.get(pattern, 0), tag.seconds)
    for releases in groups.values():
        releases.sort(key=lambda release: version_sort_key(release.version), reverse=True)
    order = sorted(groups, key=lambda pattern: (len(groups[pattern]) > 1, latest[pattern], len(groups[pattern])))
    return {pattern: groups[pattern] for pattern in reversed(order)}


def proposed_range(repo: Repository) -> ProposedRange:
    """The range between the last two releases (if possible, one is an ancestor of the other), or the last commits if
    there are no tags.

    Raises UsageError if the repository has no commit, or only one.
    """
    head = commits_of_names(repo, ["HEAD"])[0]
    if head is None:
        raise UsageError(f"The current branch of {repo.folder} has no commits.", "Check out a branch with commits.")
    merged, since = tags_of_commits(repo, "--merged=HEAD"), int(git(repo, "log", "-1", "--format=%ct", head)) - RECENT
    # If releases are on branches, the tags that HEAD contains are years old.
    releases_of = releases_by_pattern(merged if any(tag.seconds > since for tag in merged) else tags_of_commits(repo))
    patterns = tuple(releases_of)[:4]
    newest = releases_of[patterns[0]] if patterns else []
    if len(newest) > 1:
        bad = newest[0]
        older = _ancestor_or_other_tag(repo, bad.tag, [release.tag for release in newest[1 : TRIED + 1]])
        if older:
            good = next(release.version for release in newest if release.tag == older)
            return ProposedRange(good, bad.version, patterns)
    if newest and _ancestor_or_other_tag(repo, "HEAD", [newest[0].tag]):
        return ProposedRange(newest[0].version, "HEAD", patterns)
    first_parents = git(repo, "rev-list", "--first-parent", f"--max-count={FEW + 1}", head).split()
    if len(first_parents) == 1:
        advice = "Check whether the clone has its whole history."
        raise UsageError(f"{repo.folder} has only one commit, so there is no range to search.", advice)
    return ProposedRange(f"HEAD~{len(first_parents) - 1}", "HEAD", patterns)


def tags_of_commits(repo: Repository, *selection: str) -> list[Tag]:
    """The tags that point to commits. ``selection`` are options of ``git for-each-ref``."""
    listed = git(repo, "for-each-ref", "--format=%(creatordate:unix) %(refname:strip=2)", *selection, "refs/tags")
    rows = (line.partition(" ") for line in listed.splitlines())
    tags = [Tag(name, int(seconds or 0)) for seconds, _, name in rows]
    commits = commits_of_names(repo, [f"refs/tags/{tag.name}" for tag in tags])
    return [tag for tag, commit in zip(tags, commits, strict=True) if commit]


def _ancestor_or_other_tag(repo: Repository, newer: str, tags: Sequence[str]) -> str:
    """The first of ``tags`` that is an ancestor of ``newer``; otherwise the first tag of another commit, or ""."""
    name = newer if newer == "HEAD" else f"refs/tags/{newer}"
    [end, *commits] = commits_of_names(repo, [name, *(f"refs/tags/{tag}" for tag in tags)])
    distinct = [(tag, commit) for tag, commit in zip(tags, commits, strict=True) if commit and commit != end]
    for tag, commit in distinct:
        if git(repo, "merge-base", commit, str(end), allowed=(0, 1)).strip() == commit:
            return tag
    return distinct[0][0] if distinct and newer != "HEAD" else ""


@dataclass(frozen=True, slots=True)
class ReleaseRange:
    """The releases of a range, oldest version first: versions, or tags if the recipe has no pattern for tags."""

    included: tuple[str, ...]
    left_out: tuple[tuple[str, str], ...]  # (release, the reason why the release is left out)


def releases_in_range(repo: Repository, text: str, release_tags: Sequence[str]) -> ReleaseRange:
    """The releases from A to B, both included; ``text`` is ``A..B``. Tags are matched by the recipe's patterns; if the
    recipe has no patterns, by a pattern that is derived from the tags.

    Raises UsageError if an end is no release, or if the first release is not older than the last.
    """
    first, last = ends_of_release_range(text)
    tags = tags_of_commits(repo)
    patterns = release_tags or list(releases_by_pattern(tags))[:1]
    tag_of = dict[str, str]()  # version → its tag; a recipe's first pattern has precedence
    for pattern in patterns:
        for version, tag in versions_of_tags([tag.name for tag in tags], pattern):
            tag_of.setdefault(version, tag)
    first, last = (_version_of_end(end, tag_of, patterns, repo) for end in (first, last))
    low, high = version_sort_key(first), version_sort_key(last)
    if low >= high:
        raise UsageError(f"Release {first} is not older than release {last}.", FORM)
    within = sorted((number, version) for version in tag_of if low <= (number := version_sort_key(version)) <= high)
    contained = list_refs(repo, "refs/tags", f"--merged=refs/tags/{tag_of[last]}", names="strip=2")
    included, left_out = [], []
    for _, version in within:
        name = version if release_tags else tag_of[version]  # without patterns of tags, a recipe knows no versions
        if not is_numeric_version(version):
            left_out.append((name, "a pre-release"))
        elif version not in (first, last) and tag_of[version] not in contained:
            left_out.append((name, f"{last} does not contain it"))
        else:
            included.append(name)
    return ReleaseRange(tuple(included), tuple(left_out))


def ends_of_release_range(text: str) -> tuple[str, str]:
    """The two ends of ``A..B``. Raises UsageError for anything else."""
    match text.split(DOTS):
        case [first, last] if first and last and not last.startswith("."):
            return first, last
    raise UsageError(f"'{text}' is not a range of releases.", FORM)


def _version_of_end(end: str, tag_of: dict[str, str], patterns: Sequence[str], repo: Repository) -> str:
    """The version of the release that ``end`` names. Raises UsageError if ``end`` is no release."""
    versions = {version: version for version in tag_of} | {tag: version for version, tag in tag_of.items()}
    if end not in versions or not is_numeric_version(versions[end]):
        near = get_close_matches(end, [version for version in tag_of if is_numeric_version(version)], 3)
        raise UsageError(
            f"'{end}' is not a release in {repo.folder}. Its tags of releases have the form {' or '.join(patterns) or '(none)'}.",
            f"Similar releases: {', '.join(near)}."
            if near
            else "`git tag` lists releases. To compare any revisions: bisect compare A B C",
        )
    return versions[end]


def is_numeric_version(version: str) -> bool:
    """Whether a version consists of numbers only, so that it is no pre-release."""
    return re.fullmatch(r"[0-9]+(?:[.-][0-9]+)*", version) is not None


def version_sort_key(version: str) -> tuple[int, ...]:
    """The leading numbers of a version, as its sort key. 8.0.11-rc follows 8.0.10."""
    head = re.match(r"[0-9]+(?:[.-][0-9]+)*", version)
    return tuple(int(part) for part in re.split("[.-]", head[0])) if head else ()
