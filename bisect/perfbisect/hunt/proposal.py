"""Proposes a recipe for a repository, from the files that its commits contain. perfbisect does not execute any program
of the repository for this."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from perfbisect.errors import UsageError
from perfbisect.masking import mask_credentials
from perfbisect.recipes import benchmarks
from perfbisect.recipes.build_systems import (
    AUTO,
    SYSTEMS,
    no_system_sentence,
    system_for_commit,
    system_for_range,
    systems_in,
)
from perfbisect.recipes.builder import Builder
from perfbisect.recipes.builder_reader import load_builders
from perfbisect.recipes.proposal import (
    EMBEDDING,
    LOOKED_FOR,
    Benchmark,
    RecipeProposal,
    SourceTree,
    defined_programs,
    files_to_read,
    ignored_patterns,
    main_language,
)
from perfbisect.recipes.workload import load_workloads
from perfbisect.repository.commits import ProposedRange, possible_tags, proposed_range, resolve_commit
from perfbisect.repository.discovery import open_repository
from perfbisect.repository.git import Repository, config_value, git
from perfbisect.repository.objects import TreeFiles, lines_containing, small_file_texts, tree_files
from perfbisect.wording.text import shell_words

_NAMES = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,39}")
_URL = re.compile(r"(?:https|ssh|git)://[\w@:/.~+-]+|[\w.-]+@[\w.-]+:[\w/.~+-]+", re.ASCII)


@dataclass(frozen=True, slots=True)
class RepositoryProposal:
    """A repository, and the proposed recipe for this repository."""

    repository: Repository
    range: ProposedRange
    file_count: int
    language: str  # the language of most files, or ""
    submodules: tuple[str, ...]
    proposal: RecipeProposal
    benchmarks: list[Benchmark]  # all benchmarks that were found, first the benchmark of the proposal


@dataclass(frozen=True, slots=True)
class KnownRepository:
    """A repository for which perfbisect already has a recipe."""

    repository: Repository
    builder: Builder
    workload: str
    good: str
    bad: str


def propose(path: Path, name: str = "", program: str = "", *, is_named: bool) -> RepositoryProposal | KnownRepository:
    """The recipe that ``bisect init`` proposes for the repository at ``path``, or, if perfbisect already has a recipe
    for this repository, the existing recipe.

    ``is_named`` says that the user has named the path; otherwise the path is the current folder. If ``name`` is given,
    a recipe of this name is proposed even if a recipe exists. The recipe measures a program whose name or folder looks
    like a benchmark's, or a program with the name ``program``. Raises UsageError if no repository, no range of commits,
    no build system or no benchmark is found, or if ``name`` cannot be used.
    """
    repo = open_repository(path, is_named_by_user=is_named)
    url = config_value(repo, "remote.origin.url")
    range_ = proposed_range(repo)
    ends = [resolve_commit(repo, revision, range_.patterns) for revision in (range_.good, range_.bad)]
    listings = [tree_files(repo, commit) for commit in ends]
    good, bad = trees = [read_tree(repo, commit, files, program) for commit, files in zip(ends, listings, strict=True)]
    if not name and (known := _known_repository(repo, url, bad, range_)):
        return known
    folder = repo.folder.parent if repo.folder.name == ".git" else repo.folder
    last = _canonical(url).rpartition("/")[2] or folder.name.removesuffix(".git")
    title = _checked_name(name or re.sub(r"[^a-z0-9._-]+", "-", last.lower()).strip("-._")[:40], is_option=bool(name))
    default = system_for_range(tree.paths for tree in trees)
    systems = [system for system in SYSTEMS if all(system in systems_in(tree.paths) for tree in trees)]
    system, found = benchmarks.find_common_benchmarks(systems or [system_for_commit(default, bad.paths)], good, bad)
    if system != default and default != AUTO:  # the tree has two build systems, such as a Makefile and a go.mod
        found = [
            benchmark
            if "compile" in benchmark.build
            else replace(benchmark, build={"system": system, **benchmark.build})
            for benchmark in found
        ]
    if not found:
        ends = [_revision(end, range_) for end in (range_.good, range_.bad)]
        words = ["bisect", "run", *(ends if range_.patterns else ("GOOD", "BAD"))]
        raise UsageError(
            f"No benchmark was found that {range_.good} and {range_.bad} have in common"
            f" ({f'build system: {default}' if default else no_system_sentence()}). Looked for: {LOOKED_FOR}.",
            "Name a program of the build: bisect init --benchmark PROGRAM. Or measure any command:"
            f" {shell_words(words)}{'' if default else ' --build COMMAND'} --run 'PROGRAM ARGUMENTS'",
        )
    # The recipe gets the URL only if other machines can clone from it, and if it contains no password.
    public = url if _URL.fullmatch(url) and mask_credentials(url) == url else ""
    version = _command_to_print_version_file(repo, ends)
    ignored, language = ignored_patterns(good, bad), main_language(bad.paths)
    proposal = RecipeProposal(title, range_.bad, system, public, range_.patterns, version, ignored, found[0])
    return RepositoryProposal(repo, range_, len(bad.paths), language, listings[1].submodules, proposal, found)


def read_tree(repo: Repository, commit: str, listed: TreeFiles, program: str = "") -> SourceTree:
    """The paths in the tree of a commit, and the texts of the files that a proposal needs."""
    paths, embedding_lines = frozenset(listed.files), lines_containing(repo, commit, EMBEDDING, ("*.rs", "*.go"))
    return SourceTree(paths, small_file_texts(repo, listed, files_to_read(paths)), embedding_lines, program)


def _known_repository(repo: Repository, url: str, tree: SourceTree, range_: ProposedRange) -> KnownRepository | None:
    """The repository, and the existing recipe that has the same URL or builds the same programs; None if no recipe
    matches.
    """
    builders = load_builders()
    address, programs = _canonical(url), defined_programs(tree)
    matching = [builder for builder in builders if address and _canonical(builder.repository) == address]
    matching = matching or [
        builder
        for builder in builders
        if len(builder.programs) > 1 and {path.rpartition("/")[2] for path in builder.programs} <= programs
    ]
    if not matching:
        return None
    builder = matching[0]
    workloads = [workload for workload in load_workloads() if workload.driver == builder.driver]
    if not workloads:
        return None
    name = next((workload.name for workload in workloads if workload.group == "write"), workloads[0].name)

    ends = [range_.good, range_.bad]
    if not (range_.patterns and range_.patterns[0] in builder.release_tags):
        ends = [_revision(end, range_) for end in ends]
    return KnownRepository(repo, builder, name, *ends)


def _revision(version: str, range_: ProposedRange) -> str:
    """An end of the range as a revision that git understands. A version number is replaced by the name of its tag,
    because perfbisect finds the tag of a version only by a recipe, and the proposed command may have no recipe.
    """
    tagged = range_.patterns and not version.startswith("HEAD")
    return possible_tags(version, range_.patterns[:1])[0] if tagged else version


def _canonical(url: str) -> str:
    """The part of a URL that is equal in all URLs of the same repository, such as github.com/mysql/mysql-server."""
    scp = re.fullmatch(r"(?:[^@/]*@)?([^:/]+):(?!//)(.*)", url)
    text = f"{scp[1]}/{scp[2]}" if scp else re.sub(r"^[a-z+]+://(?:[^@/]*@)?", "", url)
    return text.rstrip("/").removesuffix(".git").lower()


def _checked_name(name: str, *, is_option: bool) -> str:
    """Returns the ``name`` itself. Raises UsageError if ``name`` is not allowed as the name of a new builder or
    workload suite."""
    advice = "Choose another name with --name NAME." if is_option else "Choose a name with --name NAME."
    if not _NAMES.fullmatch(name):
        raise UsageError(
            f"'{name}' cannot be the name of a recipe: a name has at most 40 characters: a to z, digits, dots, - and _.",
            advice,
        )
    for folder in (builder.folder for builder in load_builders() if builder.name == name):
        raise UsageError(f"A builder {name} exists already: {folder}. Nothing was written.", advice)
    for folder in (workload.folder for workload in load_workloads() if workload.suite == name):
        raise UsageError(f"A suite {name} exists already: {folder}. Nothing was written.", advice)
    return name


def _command_to_print_version_file(repo: Repository, ends: Sequence[str]) -> list[str]:
    """A command that prints the file VERSION, if this file contains a version number, and nothing else, at both ends of
    the range; otherwise empty.
    """
    texts = [git(repo, "cat-file", "blob", f"{commit}:VERSION", allowed=(0, 128)) for commit in ends]
    is_version = all(re.fullmatch(r"\s*v?[0-9]+(?:\.[0-9]+)+\S*\s*", text) for text in texts)
    return ["cat", "{source}/VERSION"] if is_version else []
