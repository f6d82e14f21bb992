"""A builder and a suite for a repository that no recipe describes, guessed from names and build files of its tree.

Guesses only propose: nothing here runs, and what is written is for the user to change. Ignored paths are left out of the
checkout, so a build must not need them: what a build file names stays, and so does a folder that holds code or a build
file.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

import tomli_w

from perfbisect.recipes.toml import Table

PLAIN = re.compile(r"[A-Za-z0-9_@%+=:,./-]+")  # a name that neither a shell nor a recipe changes

EMBEDDING = ("include_str!", "include_bytes!", "//go:embed")  # names of files that become part of a program

_BENCH = re.compile(r"bench|(?:^|[_-])perf(?:$|[_-])|speed_?test", re.IGNORECASE)
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

    def own(self, wanted: Callable[[PurePosixPath], bool]) -> dict[str, str]:
        """The wanted files that ``is_own``, path → text, the nearest to the top first."""
        paths = sorted(self.texts, key=lambda path: (path.count("/"), path))
        return {path: self.texts[path] for path in paths if is_own(path) and wanted(PurePosixPath(path))}

    def source_of(self, name: str) -> str:
        """The path of the source file of that name without its suffix; "" where none exists."""
        found = (
            path for path in self.texts if PurePosixPath(path).stem == name and PurePosixPath(path).suffix in SOURCES
        )
        return min(found, key=lambda path: (path.count("/"), path), default="")


def is_benchmark(name: str) -> bool:
    """Whether a program or a source file is called like a benchmark."""
    return bool(_BENCH.search(name)) and PLAIN.fullmatch(name) is not None


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
        is_source = name.suffix in SOURCES and (is_benchmark(name.stem) or name.parts[0] in ("bench", "benches"))
        return is_build_file(path) or is_source or path.endswith("_test.go")

    return sorted(filter(needed, paths), key=lambda path: (not is_build_file(path), path.count("/"), path))


def language(paths: frozenset[str]) -> str:
    """The language of most files; "" for none that is known."""
    counts: dict[str, int] = {}
    for path in paths:
        if name := SOURCES.get(PurePosixPath(path).suffix):
            counts[name] = counts.get(name, 0) + 1
    return max(sorted(counts), key=lambda name: counts[name], default="")


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


def _has(tree: Tree, pattern: str) -> bool:
    folder, suffix = pattern.removesuffix("**"), pattern.removeprefix("**/*")
    if folder != pattern:
        return any(path.startswith(folder) for path in tree.paths)
    return any(path.endswith(suffix) for path in tree.paths) if suffix != pattern else pattern in tree.paths


def _of(tree: Tree) -> list[str]:
    generated = {"configure"} if {"configure.ac", "configure.in"} & tree.paths else set()
    read = (text for path, text in tree.texts.items() if path not in generated and is_build_file(path))
    named = "\n".join((*read, tree.embedding))
    folders = {path.partition("/")[0] for path in tree.paths if "/" in path}
    found = [f"{name}/**" for name in _FOLDERS if name in folders and _is_free(tree, name, named)]
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


def _is_free(tree: Tree, folder: str, named: str) -> bool:
    """Whether a folder holds neither code nor a build file, and no build file names what is in it."""
    inside = [PurePosixPath(path) for path in tree.paths if path.startswith(f"{folder}/")]
    if any(path.suffix in SOURCES or is_build_file(str(path)) for path in inside) and not folder.startswith("."):
        return False
    return not re.search(rf"(?<![\w.-]){re.escape(folder)}(?![\w.-])(?!\s*=)", named)


def _mentions(text: str, name: str) -> bool:
    return re.search(rf"(?<![\w.-]){re.escape(name)}(?![\w-])", text) is not None


@dataclass(frozen=True, slots=True)
class Measured:
    """A command to measure."""

    name: str
    command: list[str]
    cost: str = ""  # where the output has it; "": the duration is measured
    time: float = 0.0  # seconds, of a command that takes them


@dataclass(frozen=True, slots=True)
class Benchmark:
    """What is measured, and the keys of a recipe that it needs."""

    what: str  # in a sentence
    workloads: list[Measured]
    build: dict[str, Any] = field(default_factory=dict)  # keys of [build]
    top: dict[str, Any] = field(default_factory=dict)  # keys of the recipe
    others: list[str] = field(default_factory=list)  # what else looks like a benchmark


@dataclass(frozen=True, slots=True)
class Proposal:
    """What the files say."""

    name: str
    of: str  # the revision that was looked at
    system: str  # the build system, "" for none
    repository: str
    patterns: tuple[str, ...]  # of the tags of releases
    version: list[str]
    ignore: list[str]
    benchmark: Benchmark | None

    @property
    def workload(self) -> str:
        """The workload to run first."""
        return self.workloads[0].name

    @property
    def workloads(self) -> list[Measured]:
        """What is measured; where nothing was found, a command that says so and fails, since a made-up one would mislead."""
        if self.benchmark:
            return self.benchmark.workloads
        said = "echo 'This is no benchmark yet: put the command to measure into the suite.toml.' >&2; exit 1"
        return [Measured("to-be-written", ["sh", "-c", said])]


def builder(proposal: Proposal) -> str:
    """The text of the builder.toml."""
    bench = proposal.benchmark or Benchmark("", [])
    parts = [
        f"""\
# Written by `bisect init` from the tree of {_one_line(proposal.of)}: guesses, for you to change.
# All keys: docs/recipes.md of perfbisect.
""",
        _table(
            {
                **bench.top,
                "summary": f"{proposal.name}, as bisect init found it",
                "repository": proposal.repository,
                "release_tags": list(proposal.patterns),
                "version": proposal.version,
                "ignore": proposal.ignore,
                "driver": proposal.name,
            }
        ),
        """\
# Commits that touch only paths of `ignore` are never built, and these paths are left out of the checkout.
# If the build needs no tests, add "tests/**".
""",
    ]
    if proposal.system and "compile" not in bench.build:
        parts.append(f"# Built by {proposal.system}, as read from the tree; `options` are for its configure step.\n")
    if bench.build.get("in_place"):
        parts.append("""\
# The benchmark is not installed, so it is built and run in a copy of the tree. Builds are one candidate
# where all of their `artifacts` are equal, such as the benchmark, if it loads no library of this tree.
""")
    return "\n".join([*parts, *([_table({"build": bench.build})] if bench.build else [])])


def suite(proposal: Proposal) -> str:
    """The text of the suite.toml."""
    parts = [
        "# Written by `bisect init`: guesses, for you to change.\n",
        _table({"summary": f"benchmarks of {proposal.name}", "driver": proposal.name}),
    ]
    if proposal.benchmark and proposal.benchmark.others:
        names = "".join(f"#   {_one_line(name)}\n" for name in proposal.benchmark.others)
        parts.append(f"# Not used, but called like a benchmark:\n{names}")
    if any(not each.cost for each in proposal.workloads):
        parts.append("""\
# The duration of a command is measured, unless a pattern finds a number in its output:
#   rate = 'ops/s: ([0-9.]+)'       # higher is better
#   cost = '$.results[0].seconds'   # lower is better; a path into JSON
# Add its arguments, and let it take half a second or more. {data} is an empty folder for its files.
""")
    for each in proposal.workloads:
        table: Table = {
            "summary": f"{each.name}, as bisect init found it",
            "group": "benchmark",
            "command": each.command,
        }
        table |= {key: value for key, value in {"cost": each.cost, "time": each.time}.items() if value}
        parts.append(_table({"workloads": {each.name: table}}))
    return "\n".join(parts)


def _table(table: Mapping[str, Any]) -> str:
    return tomli_w.dumps({key: value for key, value in table.items() if value})


def _one_line(name: str) -> str:
    """A name as it can be in a comment of TOML."""
    return " ".join(name.splitlines()).rstrip()
