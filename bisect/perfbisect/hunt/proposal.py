"""Looks at a repository and proposes a recipe for it; reads git objects only, and executes nothing of the repository."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from perfbisect.errors import UsageError
from perfbisect.masking import masked
from perfbisect.recipes import benchmarks
from perfbisect.recipes.build_systems import AUTO, SYSTEMS, for_range, nothing_found, system_for_commit, systems_in
from perfbisect.recipes.builder import Builder
from perfbisect.recipes.builder_reader import load_builders
from perfbisect.recipes.proposal import (
    EMBEDDING,
    LOOKED_FOR,
    Benchmark,
    RecipeProposal,
    Tree,
    defined_programs,
    ignored_patterns,
    language,
    to_read,
)
from perfbisect.recipes.workload import load_workloads
from perfbisect.repository.commits import ProposedRange, latest_range, resolve, tags_of
from perfbisect.repository.discovery import open_repository
from perfbisect.repository.git import Repository, configured, git
from perfbisect.repository.objects import Listing, lines_with, listing, texts_in
from perfbisect.wording.text import shell_words

_NAMES = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,39}")
_URL = re.compile(r"(?:https|ssh|git)://[\w@:/.~+-]+|[\w.-]+@[\w.-]+:[\w/.~+-]+", re.ASCII)


@dataclass(frozen=True, slots=True)
class Look:
    """What a repository has."""

    repository: Repository
    range: ProposedRange
    files: int
    language: str  # of most of them, or ""
    submodules: tuple[str, ...]
    proposal: RecipeProposal
    benchmarks: list[Benchmark]  # the best guess first, which the proposal has


@dataclass(frozen=True, slots=True)
class Described:
    """A repository of a system that has a recipe already."""

    repository: Repository
    builder: Builder
    workload: str
    good: str
    bad: str


def look(path: Path, name: str = "", wanted: str = "", *, named: bool) -> Look | Described:
    """What ``bisect init`` finds at ``path``, which the user has ``named`` or is in; ``name`` is that of the new recipe.
    Beside what is called like a benchmark, it may measure a program ``wanted``.

    With a name, a recipe is proposed also for a system that has one. Raises UsageError for what is no repository, has no
    range, or cannot be built and measured by any guess; and for a name that cannot be used.
    """
    repo = open_repository(path, named=named)
    url = configured(repo, "remote.origin.url")
    range_ = latest_range(repo)
    ends = [resolve(repo, revision, range_.patterns) for revision in (range_.good, range_.bad)]
    listings = [listing(repo, commit) for commit in ends]
    good, bad = trees = [tree_of(repo, commit, each, wanted) for commit, each in zip(ends, listings, strict=True)]
    if not name and (described := _described(repo, url, bad, range_)):
        return described
    folder = repo.folder.parent if repo.folder.name == ".git" else repo.folder
    last = _canonical(url).rpartition("/")[2] or folder.name.removesuffix(".git")
    title = _usable(name or re.sub(r"[^a-z0-9._-]+", "-", last.lower()).strip("-._")[:40], given=bool(name))
    default = for_range(tree.paths for tree in trees)
    systems = [each for each in SYSTEMS if all(each in systems_in(tree.paths) for tree in trees)]
    system, found = benchmarks.find_benchmarks(systems or [system_for_commit(default, bad.paths)], good, bad)
    if system != default and default != AUTO:  # such as a Makefile beside a go.mod
        found = [
            each if "compile" in each.build else replace(each, build={"system": system, **each.build}) for each in found
        ]
    if not found:
        ends = [_revision(end, range_) for end in (range_.good, range_.bad)]
        words = ["bisect", "run", *(ends if range_.patterns else ("GOOD", "BAD"))]
        raise UsageError(
            f"No benchmark was found that both {range_.good} and {range_.bad} have"
            f" ({f'built by {default}' if default else nothing_found()}). Looked for: {LOOKED_FOR}.",
            "Name a program of the build: bisect init --benchmark PROGRAM. Or measure any command:"
            f" {shell_words(words)}{'' if default else ' --build COMMAND'} --run 'PROGRAM ARGUMENTS'",
        )
    public = (
        url if _URL.fullmatch(url) and masked(url) == url else ""
    )  # another machine can clone it, and it has no password
    proposal = RecipeProposal(
        title, range_.bad, system, public, range_.patterns, _version(repo, ends), ignored_patterns(good, bad), found[0]
    )
    return Look(repo, range_, len(bad.paths), language(bad.paths), listings[1].submodules, proposal, found)


def tree_of(repo: Repository, commit: str, listed: Listing, wanted: str = "") -> Tree:
    """The tree of a commit, and of its files what a proposal needs."""
    paths, embedding = frozenset(listed.files), lines_with(repo, commit, EMBEDDING, ("*.rs", "*.go"))
    return Tree(paths, texts_in(repo, listed, to_read(paths)), embedding, wanted)


def _described(repo: Repository, url: str, tree: Tree, range_: ProposedRange) -> Described | None:
    """The recipe of the system that this is: of the same URL, or all of whose programs the tree builds."""
    known = load_builders()
    here, programs = _canonical(url), defined_programs(tree)
    same = [each for each in known if here and each.repository and _canonical(each.repository) == here]
    same = same or [
        each
        for each in known
        if len(each.programs) > 1 and {path.rpartition("/")[2] for path in each.programs} <= programs
    ]
    if not same:
        return None
    builder = same[0]
    fitting = [each for each in load_workloads() if each.driver == builder.driver]
    if not fitting:
        return None
    workload = next((each.name for each in fitting if each.group == "write"), fitting[0].name)

    ends = [range_.good, range_.bad]
    if not (range_.patterns and range_.patterns[0] in builder.release_tags):
        ends = [_revision(end, range_) for end in ends]
    return Described(repo, builder, workload, *ends)


def _revision(version: str, range_: ProposedRange) -> str:
    """An end of the range as git knows it, without a recipe."""
    tagged = range_.patterns and not version.startswith("HEAD")
    return tags_of(version, range_.patterns[:1])[0] if tagged else version


def _canonical(url: str) -> str:
    """A URL without what differs between ways to reach one repository: github.com/mysql/mysql-server."""
    scp = re.fullmatch(r"(?:[^@/]*@)?([^:/]+):(?!//)(.*)", url)
    text = f"{scp[1]}/{scp[2]}" if scp else re.sub(r"^[a-z+]+://(?:[^@/]*@)?", "", url)
    return text.rstrip("/").removesuffix(".git").lower()


def _usable(name: str, *, given: bool) -> str:
    """The name, if a builder and a suite may have it. Raises UsageError otherwise."""
    advice = "Choose another with --name NAME." if given else "Choose one with --name NAME."
    if not _NAMES.fullmatch(name):
        raise UsageError(f"'{name}' is no name for a recipe: at most 40 of a to z, digits, dots, - and _.", advice)
    for folder in (each.folder for each in load_builders() if each.name == name):
        raise UsageError(f"A builder {name} exists already: {folder}. Nothing was written.", advice)
    for folder in (each.folder for each in load_workloads() if each.suite == name):
        raise UsageError(f"A suite {name} exists already: {folder}. Nothing was written.", advice)
    return name


def _version(repo: Repository, ends: Sequence[str]) -> list[str]:
    """The command that prints the version of a tree, where a file VERSION of both ends has nothing else."""
    texts_of_it = [git(repo, "cat-file", "blob", f"{commit}:VERSION", allowed=(0, 128)) for commit in ends]
    plain = all(re.fullmatch(r"\s*v?[0-9]+(?:\.[0-9]+)+\S*\s*", text) for text in texts_of_it)
    return ["cat", "{source}/VERSION"] if plain else []
