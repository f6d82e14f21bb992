"""A builder and a suite for a repository that no recipe describes, guessed from names and build files of its tree.

Guesses only propose: nothing here runs, and what is written is for the user to change. Ignored paths are left out of the
checkout, so a build must not need them: what a build file names stays, and so does a folder that holds code or a build
file.
"""

import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

import tomli_w

PLAIN = re.compile(r"[A-Za-z0-9_@%+=:,./-]+")  # a name that neither a shell nor a recipe changes

EMBEDDING = ("include_str!", "include_bytes!", "//go:embed")  # names of files that become part of a program

_BENCH = re.compile(r"bench|(?:^|[_-])perf(?!ect)|speed_?test", re.IGNORECASE)
BENCH_FOLDERS = ("bench", "benches", "benchmark", "benchmarks", "perf")
LOOKED_FOR = (
    f"programs and targets called *bench*, perf* or speedtest*, or in a folder {', '.join(BENCH_FOLDERS)};"
    " benches of cargo, benchmarks of `go test`, and scripts in Python called so"
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
class Tree:
    """The tree of a commit."""

    paths: frozenset[str]  # of files
    texts: Mapping[str, str]  # of the files that ``to_read`` names, as far as they are text
    embedding: str = ""  # the lines of its sources that EMBEDDING finds
    wanted: str = ""  # the program that the user measures, whatever its name is

    def own(self, wanted: Callable[[PurePosixPath], bool]) -> dict[str, str]:
        """The wanted files that ``is_own``, path → text, the nearest to the top first."""
        paths = sorted(self.texts, key=lambda path: (path.count("/"), path))
        return {path: self.texts[path] for path in paths if is_own(path) and wanted(PurePosixPath(path))}

    def measures(self, program: PurePosixPath) -> bool:
        """Whether a program is the wanted one, or called like a benchmark, or in a folder that is."""
        return program.name == self.wanted or in_benchmarks(program)


def is_benchmark(name: str) -> bool:
    """Whether a program or a source file is called like a benchmark."""
    return bool(_BENCH.search(name)) and PLAIN.fullmatch(name) is not None


def in_benchmarks(path: PurePosixPath) -> bool:
    """Whether a program or a source file is called like a benchmark, or is in a folder that is."""
    return PLAIN.fullmatch(path.name) is not None and (is_benchmark(path.stem) or path.parent.name in BENCH_FOLDERS)


def is_own(path: str) -> bool:
    """Whether a path is outside of the folders that hold the code of other projects."""
    return not _OTHERS & set(PurePosixPath(path).parts) and PLAIN.fullmatch(path) is not None


def is_build_file(path: str) -> bool:
    """Whether a build system reads this file."""
    return _BUILD_FILES.fullmatch(PurePosixPath(path).name) is not None


def to_read(paths: frozenset[str]) -> list[str]:
    """The files whose contents a proposal needs: build files, benchmarks, and tests of Go, the nearest to the top first."""

    def needed(path: str) -> bool:
        name = PurePosixPath(path)
        is_source = name.suffix in SOURCES and in_benchmarks(name)
        return is_build_file(path) or is_source or path.endswith("_test.go")

    return sorted(filter(needed, paths), key=lambda path: (not is_build_file(path), path.count("/"), path))


def language(paths: frozenset[str]) -> str:
    """The language of most files; "" for none that is known."""
    counts = Counter(filter(None, (SOURCES.get(PurePosixPath(path).suffix) for path in paths)))
    return max(sorted(counts), key=counts.__getitem__, default="")


def defined(tree: Tree) -> set[str]:
    """The names of the programs that cmake, meson or automake build in a tree."""
    return {
        name for text in tree.texts.values() for found in _DEFINED.findall(text) for name in " ".join(found).split()
    }


# Of folders at the top.
_FOLDERS = (
    "doc", "docs", "documentation", "Documentation", "man", "manual", "po", "locale", "locales", "translations",
    "website", "www", "site", "screenshots", "assets", "LICENSES", ".github", ".gitlab", ".circleci", ".vscode", ".idea",
)  # fmt: skip
_FILES = (
    ".gitlab-ci.yml", ".travis.yml", ".cirrus.yml", ".appveyor.yml", "appveyor.yml", "azure-pipelines.yml",
    ".pre-commit-config.yaml", ".editorconfig", ".clang-format", ".clang-tidy", ".gitignore", ".mailmap", "CODEOWNERS",
)  # fmt: skip
_PROSE = (".md", ".rst")


def ignored(good: Tree, bad: Tree) -> list[str]:
    """The patterns of paths that neither end needs, as a recipe's ``ignore`` has them."""
    of_good = _of(good)
    return [pattern for pattern in _of(bad) if pattern in of_good or not _has(good, pattern)]


# What tells users what is new; as names, for automake wants some of them to be there.
_NEWS = re.compile(r"(?:changes|changelog|news|history|release-?notes)(?:\.txt)?", re.IGNORECASE)


def is_unread(tree: Tree, path: str, commands: str) -> bool:
    """Whether a file of the tree is prose that neither its build files nor these commands name."""
    alone = Tree(frozenset({path}), {})
    named = f"{_named(tree)}\n{commands}"
    is_news = _NEWS.fullmatch(PurePosixPath(path).name) is not None
    is_prose = is_news or any(_has(alone, pattern) for pattern in _of(tree))
    return is_prose and not any(_mentions(named if is_news else commands, part) for part in PurePosixPath(path).parts)


def _has(tree: Tree, pattern: str) -> bool:
    folder, suffix = pattern.removesuffix("**"), pattern.removeprefix("**/*")
    if folder != pattern:
        return any(path.startswith(folder) for path in tree.paths)
    return any(path.endswith(suffix) for path in tree.paths) if suffix != pattern else pattern in tree.paths


def _named(tree: Tree) -> str:
    """All that may name a file that a build needs."""
    generated = {"configure"} if {"configure.ac", "configure.in"} & tree.paths else set()
    read = (text for path, text in tree.texts.items() if path not in generated and is_build_file(path))
    return "\n".join((*read, tree.embedding))


def _of(tree: Tree) -> list[str]:
    named = _named(tree)
    folders = {path.partition("/")[0] for path in tree.paths if "/" in path}
    found = []
    for folder in (name for name in _FOLDERS if name in folders):
        inside = [PurePosixPath(path) for path in tree.paths if path.startswith(f"{folder}/")]
        is_code = any(path.suffix in SOURCES or is_build_file(str(path)) for path in inside)
        is_named = re.search(rf"(?<![\w.-]){re.escape(folder)}(?![\w.-])(?!\s*=)", named)
        if not is_named and (folder.startswith(".") or not is_code):
            found.append(f"{folder}/**")
    for suffix in _PROSE:
        prose = [path for path in tree.paths if path.endswith(suffix)]
        needed = {path for path in prose if _mentions(named, PurePosixPath(path).name)}
        if suffix == ".md" and "configure.ac" in tree.paths:  # automake may require one
            needed |= {"README.md"} & set(prose)
        if prose and not needed:
            found.append(f"**/*{suffix}")
        else:
            found += sorted(path for path in prose if "/" not in path and path not in needed and PLAIN.fullmatch(path))
    return found + [name for name in _FILES if name in tree.paths and not _mentions(named, name)]


def _mentions(text: str, name: str) -> bool:
    return re.search(rf"(?<![\w.-]){re.escape(name)}(?![\w-])", text) is not None


@dataclass(frozen=True, slots=True)
class Measured:
    """A command to measure."""

    name: str
    command: list[str]
    cost: str = ""  # where the output has it
    rate: str = ""  # likewise; without either, the duration is measured
    time: float = 0.0  # seconds, of a command that takes them


@dataclass(frozen=True, slots=True)
class Benchmark:
    """What is measured, and the keys of a recipe that it needs."""

    what: str  # in a sentence
    workload: Measured
    build: dict[str, Any] = field(default_factory=dict)  # keys of [build]
    top: dict[str, Any] = field(default_factory=dict)  # keys of the recipe


@dataclass(frozen=True, slots=True)
class RecipeProposal:
    """What the files say, and the benchmark that was chosen."""

    name: str
    of: str  # the revision that was looked at
    system: str  # the build system, "" for none
    repository: str
    patterns: tuple[str, ...]  # of the tags of releases
    version: list[str]
    ignore: list[str]
    benchmark: Benchmark

    def builder(self) -> str:
        """The text of the builder.toml."""
        recipe = {
            **self.benchmark.top,
            "summary": f"{self.name}, as bisect init found it",
            "repository": self.repository,
            "release_tags": list(self.patterns),
            "version": self.version,
            "ignore": self.ignore,
            "driver": self.name,
            "build": self.benchmark.build,
        }
        revision = " ".join(self.of.splitlines()).rstrip()  # as it can be in a comment of TOML
        return f"# Guessed by `bisect init` from the tree of {revision}: change what is wrong.\n{_text(recipe)}"

    def suite(self) -> str:
        """The text of the suite.toml."""
        measured = self.benchmark.workload
        keys: dict[str, Any] = {"summary": f"{measured.name}, as bisect init found it", "group": "benchmark"}
        keys |= {"command": measured.command, "cost": measured.cost, "rate": measured.rate, "time": measured.time}
        workload = {key: value for key, value in keys.items() if value}
        hint = (
            "" if measured.cost or measured.rate else "# Its duration is measured, unless there is a pattern: " + HINT
        )
        text = _text(
            {"summary": f"benchmarks of {self.name}", "driver": self.name, "workloads": {measured.name: workload}}
        )
        return text + hint


HINT = "rate = 'ops/s: ([0-9.]+)', or cost = '…' where lower is better.\n"


def _text(table: Mapping[str, Any]) -> str:
    """TOML with each list in a line of its own: strings hold no line breaks, which are escapes."""
    text = tomli_w.dumps({key: value for key, value in table.items() if value}, indent=0)
    return text.replace("[\n", "[").replace(",\n]", "]").replace(",\n", ", ")
