"""Proposes a builder and a suite of workloads for a repository without a recipe, by guesses from the names of its files
and from its build files.

A proposal is only a guess: perfbisect runs no command to check it, and the user may change the written recipe. Paths
that a recipe ignores are missing in the checkout, so a build must not need these paths. Therefore the proposal never
ignores a file whose name is in a build file, or a folder that contains code or a build file.
"""

import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

import tomli_w

PLAIN = re.compile(r"[A-Za-z0-9_@%+=:,./-]+")  # a name that neither a shell nor a recipe changes

EMBEDDING = ("include_str!", "include_bytes!", "//go:embed")  # precede names of files that become part of a program

_BENCH = re.compile(r"bench|(?:^|[_-])perf(?!ect)|speed_?test", re.IGNORECASE)
BENCH_FOLDERS = ("bench", "benches", "benchmark", "benchmarks", "perf")
LOOKED_FOR = (
    f"programs and targets called *bench*, perf* or speedtest*, or in a folder {', '.join(BENCH_FOLDERS)};"
    " benches of cargo, benchmarks of `go test`, and Python scripts with these names"
)
_BUILD_FILES = re.compile(
    r"CMakeLists\.txt|.*\.cmake|meson\.build|meson_options\.txt|meson\.options|GNUmakefile|[Mm]akefile.*|.*\.mk"
    r"|configure|configure\.(?:ac|in)|.*\.am|Cargo\.toml|build\.rs|go\.mod|setup\.py|pyproject\.toml"
)
SOURCES = {
    ".c": "C", ".cc": "C++", ".cpp": "C++", ".cxx": "C++", ".rs": "Rust", ".go": "Go", ".py": "Python", ".java": "Java",
    ".h": "", ".hh": "", ".hpp": "", ".s": "", ".S": "", ".inc": "", ".y": "", ".l": "", ".proto": "", ".sql": "",
    ".ts": "TypeScript", ".js": "JavaScript", ".rb": "Ruby", ".zig": "Zig", ".swift": "Swift", ".sh": "", ".pl": "Perl",
}  # fmt: skip
_DEFINED = re.compile(
    r"""(?i)add_executable\s*\(\s*"?([\w.+-]+)|\bexecutable\s*\(\s*'([^']+)'|_PROGRAMS\s*\+?=((?:[^\\\n]|\\\n)*)"""
)
_OTHERS = {"third_party", "third-party", "thirdparty", "vendor", "deps", "extern", "external", "extra", "contrib",
           "subprojects", "node_modules", "testdata"}  # fmt: skip


@dataclass(frozen=True, slots=True)
class SourceTree:
    """The paths of a commit's tree, and the texts of the files that a proposal reads."""

    paths: frozenset[str]  # paths of the tree's files
    texts: Mapping[str, str]  # texts of the files in ``files_to_read``
    embedding_lines: str = ""  # lines of the tree's sources that contain a word of EMBEDDING
    measured_program: str = ""  # the name of the program that the user measures; it need not look like a benchmark

    def project_files(self, condition: Callable[[PurePosixPath], bool]) -> dict[str, str]:
        """The text of each file of the project (``is_own_code``) for which ``condition`` is true, by path. Files
        nearest to the root of the tree come first.
        """
        paths = sorted(self.texts, key=lambda path: (path.count("/"), path))
        return {path: self.texts[path] for path in paths if is_own_code(path) and condition(PurePosixPath(path))}

    def is_benchmark_program(self, program: PurePosixPath) -> bool:
        """Whether the user measures this program, or the program has a name like a benchmark, or is in a folder for
        benchmarks."""
        return program.name == self.measured_program or is_benchmark_path(program)


def is_benchmark_name(name: str) -> bool:
    """Whether the name of a program or a source file looks like the name of a benchmark."""
    return bool(_BENCH.search(name)) and PLAIN.fullmatch(name) is not None


def is_benchmark_path(path: PurePosixPath) -> bool:
    """Whether a program or a source file has a name like a benchmark, or is in a folder for benchmarks."""
    return PLAIN.fullmatch(path.name) is not None and (
        is_benchmark_name(path.stem) or path.parent.name in BENCH_FOLDERS
    )


def is_own_code(path: str) -> bool:
    """Whether a path is outside of the folders in which a project usually has copies of other projects' code."""
    return not _OTHERS & set(PurePosixPath(path).parts) and PLAIN.fullmatch(path) is not None


def is_build_file(path: str) -> bool:
    """Whether a build system reads the file at ``path``."""
    return _BUILD_FILES.fullmatch(PurePosixPath(path).name) is not None


def files_to_read(paths: frozenset[str]) -> list[str]:
    """The files whose contents a proposal needs: build files, benchmarks, and Go tests. Files nearest to the root of
    the tree come first.
    """

    def needed(path: str) -> bool:
        name = PurePosixPath(path)
        is_source = name.suffix in SOURCES and is_benchmark_path(name)
        return is_build_file(path) or is_source or path.endswith("_test.go")

    return sorted(filter(needed, paths), key=lambda path: (not is_build_file(path), path.count("/"), path))


def main_language(paths: frozenset[str]) -> str:
    """The language in which most files are written; "" if no language is recognised."""
    counts = Counter(filter(None, (SOURCES.get(PurePosixPath(path).suffix) for path in paths)))
    return max(sorted(counts), key=counts.__getitem__, default="")


def defined_programs(tree: SourceTree) -> set[str]:
    """The names of the programs that cmake, meson or automake build in a tree."""
    return {
        name for text in tree.texts.values() for groups in _DEFINED.findall(text) for name in " ".join(groups).split()
    }


# Names of folders at the top of a tree that builds usually do not read.
_FOLDERS = (
    "doc", "docs", "documentation", "Documentation", "man", "manual", "po", "locale", "locales", "translations",
    "website", "www", "site", "screenshots", "assets", "LICENSES", ".github", ".gitlab", ".circleci", ".vscode", ".idea",
)  # fmt: skip
_FILES = (
    ".gitlab-ci.yml", ".travis.yml", ".cirrus.yml", ".appveyor.yml", "appveyor.yml", "azure-pipelines.yml",
    ".pre-commit-config.yaml", ".editorconfig", ".clang-format", ".clang-tidy", ".gitignore", ".mailmap", "CODEOWNERS",
)  # fmt: skip
_PROSE = (".md", ".rst")


def ignored_patterns(good: SourceTree, bad: SourceTree) -> list[str]:
    """The patterns for the ``ignore`` list of a recipe. Builds of good and bad need no path that matches a pattern."""
    of_good = _of(good)
    return [pattern for pattern in _of(bad) if pattern in of_good or not _has_path(good, pattern)]


# Names of files with news for users. Such a file is ignored only by its name, because automake may require it.
_NEWS = re.compile(r"(?:changes|changelog|news|history|release-?notes)(?:\.txt)?", re.IGNORECASE)


def is_unread_prose(tree: SourceTree, path: str, commands: str) -> bool:
    """Whether a file contains text for readers (documentation, news) that the build does not need: neither the tree's
    build files nor ``commands`` name the file."""
    alone = SourceTree(frozenset({path}), {})
    named = f"{_text_naming_files(tree)}\n{commands}"
    is_news = _NEWS.fullmatch(PurePosixPath(path).name) is not None
    is_prose = is_news or any(_has_path(alone, pattern) for pattern in _of(tree))
    return is_prose and not any(_mentions(named if is_news else commands, part) for part in PurePosixPath(path).parts)


def _has_path(tree: SourceTree, pattern: str) -> bool:
    folder, suffix = pattern.removesuffix("**"), pattern.removeprefix("**/*")
    if folder != pattern:
        return any(path.startswith(folder) for path in tree.paths)
    return any(path.endswith(suffix) for path in tree.paths) if suffix != pattern else pattern in tree.paths


def _text_naming_files(tree: SourceTree) -> str:
    """The texts of the files that may contain names of files that a build needs, such as build files."""
    generated = {"configure"} if {"configure.ac", "configure.in"} & tree.paths else set()
    read = (text for path, text in tree.texts.items() if path not in generated and is_build_file(path))
    return "\n".join((*read, tree.embedding_lines))


def _of(tree: SourceTree) -> list[str]:
    named = _text_naming_files(tree)
    folders = {path.partition("/")[0] for path in tree.paths if "/" in path}
    patterns = []
    for folder in (name for name in _FOLDERS if name in folders):
        inside = [PurePosixPath(path) for path in tree.paths if path.startswith(f"{folder}/")]
        is_code = any(path.suffix in SOURCES or is_build_file(str(path)) for path in inside)
        is_named = re.search(rf"(?<![\w.-]){re.escape(folder)}(?![\w.-])(?!\s*=)", named)
        if not is_named and (folder.startswith(".") or not is_code):
            patterns.append(f"{folder}/**")
    for suffix in _PROSE:
        prose = [path for path in tree.paths if path.endswith(suffix)]
        needed = {path for path in prose if _mentions(named, PurePosixPath(path).name)}
        if suffix == ".md" and "configure.ac" in tree.paths:  # automake may require README.md
            needed |= {"README.md"} & set(prose)
        if prose and not needed:
            patterns.append(f"**/*{suffix}")
        else:
            patterns += sorted(
                path for path in prose if "/" not in path and path not in needed and PLAIN.fullmatch(path)
            )
    return patterns + [name for name in _FILES if name in tree.paths and not _mentions(named, name)]


def _mentions(text: str, name: str) -> bool:
    return re.search(rf"(?<![\w.-]){re.escape(name)}(?![\w-])", text) is not None


@dataclass(frozen=True, slots=True)
class MeasuredCommand:
    """The command that a proposed workload measures, and the patterns that find numbers in its output."""

    name: str
    command: list[str]
    cost: str = ""  # pattern of a cost in the output
    rate: str = ""  # pattern of a rate; without cost and rate, the duration is measured
    time: float = 0.0  # seconds of a run, for a command that takes the duration as an argument


@dataclass(frozen=True, slots=True)
class Benchmark:
    """A benchmark of the project, and the keys of a recipe that build and measure it."""

    what: str  # a phrase that describes the benchmark
    workload: MeasuredCommand
    build: dict[str, Any] = field(default_factory=dict)  # keys of [build]
    top: dict[str, Any] = field(default_factory=dict)  # keys at the top level of the recipe


@dataclass(frozen=True, slots=True)
class RecipeProposal:
    """A proposed recipe, made from guesses about the files of a tree and from the chosen benchmark."""

    name: str
    of: str  # the revision whose tree was read
    system: str  # the build system, "" for none
    repository: str
    patterns: tuple[str, ...]  # patterns of the tags of releases
    version: list[str]
    ignore: list[str]
    benchmark: Benchmark

    def builder_toml(self) -> str:
        """The text of the proposed builder.toml."""
        recipe = {
            **self.benchmark.top,
            "summary": f"{self.name}, found by bisect init",
            "repository": self.repository,
            "release_tags": list(self.patterns),
            "version": self.version,
            "ignore": self.ignore,
            "driver": self.name,
            "build": self.benchmark.build,
        }
        revision = " ".join(self.of.splitlines()).rstrip()  # on one line, for a comment of TOML
        return f"# Guessed by `bisect init` from the tree of {revision}. Correct wrong values.\n{_toml_text(recipe)}"

    def suite_toml(self) -> str:
        """The text of the proposed suite.toml."""
        measured = self.benchmark.workload
        keys: dict[str, Any] = {"summary": f"{measured.name}, found by bisect init", "group": "benchmark"}
        keys |= {"command": measured.command, "cost": measured.cost, "rate": measured.rate, "time": measured.time}
        workload = {key: value for key, value in keys.items() if value}
        hint = (
            ""
            if measured.cost or measured.rate
            else "# The duration of the command is measured, unless a pattern is given: " + HINT
        )
        workloads = {measured.name: workload}
        text = _toml_text({"summary": f"benchmarks of {self.name}", "driver": self.name, "workloads": workloads})
        return text + hint


HINT = "rate = 'ops/s: ([0-9.]+)', or cost = '…' where lower is better.\n"


def _toml_text(table: Mapping[str, Any]) -> str:
    """The table as TOML. Each list is written on one line, and line breaks in strings are written as escapes."""
    text = tomli_w.dumps({key: value for key, value in table.items() if value}, indent=0)
    return text.replace("[\n", "[").replace(",\n]", "]").replace(",\n", ", ")
