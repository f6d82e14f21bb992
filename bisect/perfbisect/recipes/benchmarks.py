"""The benchmark of a tree: the program to build, and the commands that measure it."""

import re
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any

from perfbisect.recipes.proposal import PLAIN, Benchmark, Measured, Tree, is_benchmark, is_own

MOST = 30  # workloads

GOOGLE = ["--benchmark_format=json"], "$.benchmarks[0].cpu_time"  # its times are of the first benchmark
CRITERION = ["--bench", "--output-format", "bencher"], r"bench: +([0-9,]+) ns/iter"
GO_COST = r"Benchmark\S+\s+[0-9]+\s+([0-9.]+) ns/op"

_CALL = re.compile(r"""(?im)^[^#\n]*?\b(\w*add_executable|\w*bench\w*)\s*\(\s*"?([^\s")$]+)""")
_OPTION = re.compile(r"""(?i)\boption\s*\(\s*(\w*BENCH\w*)\s+(?:"[^"]*"\s*)?(\w*)\s*\)""")
_OUTPUT = re.compile(
    r"(?i)\bset\s*\(\s*CMAKE_RUNTIME_OUTPUT_DIRECTORY\s+\"?\$\{(?:CMAKE|PROJECT|CMAKE_CURRENT)_BINARY_DIR\}/?([\w./-]*)\"?"
)
_MESON = re.compile(r"\bexecutable\s*\(\s*'([^']+)'")
_PROGRAMS = re.compile(r"^(\w+)_PROGRAMS\s*\+?=((?:[^\\\n]|\\\n)*)", re.MULTILINE)
_RULE = re.compile(
    r"^([\w./+-]+)(?:\$[({][\w.]+[)}])?[ \t]*:(?!=)", re.MULTILINE
)  # with or without a suffix such as $(EXE)
_MAIN = re.compile(r"\bmain\s*\(|BENCHMARK_MAIN")
_GO_BENCHMARK = re.compile(r"^func (Benchmark\w+)\(\w+ \*testing\.B\)", re.MULTILINE)


def found(system: str, good: Tree, bad: Tree) -> Benchmark | None:
    """The benchmark that both ends have, with this build system ("": none); None where nothing looks like one."""
    older = {each.name for candidate in _candidates(system, good) for each in candidate.workloads}
    candidates = _candidates(system, bad)
    in_both = [
        replace(candidate, workloads=kept)
        for candidate in candidates
        if (kept := [each for each in candidate.workloads if each.name in older])
    ]
    if not in_both:
        return None
    names = dict.fromkeys(each.name for candidate in candidates for each in candidate.workloads)
    first = replace(in_both[0], workloads=in_both[0].workloads[:MOST])
    used = {each.name for each in first.workloads}
    return replace(first, others=[name for name in names if name not in used][:MOST])


def _candidates(system: str, tree: Tree) -> list[Benchmark]:
    """What looks like a benchmark, the best guess first."""
    if not system:
        return list(_scripts(tree))
    candidates = list(_OF_SYSTEM[system](tree))
    return candidates or (list(_target(tree)) if system in ("make", "autotools") else [])


def _program(tree: Tree, path: str, targets: list[str], options: list[str] | None = None) -> Benchmark:
    """A program at this path below {prefix}, which is not installed."""
    name = PurePosixPath(path).name
    source = tree.source_of(name)
    arguments, cost = GOOGLE if "benchmark/benchmark.h" in tree.texts.get(source, "") else ([], "")
    build = {"in_place": True, "options": options or [], "targets": targets}
    return Benchmark(
        f"{name}, which is built and run in a copy of the tree",
        [Measured(name, [f"{{prefix}}/{path}", *arguments], cost)],
        {key: value for key, value in build.items() if value},
    )


def _join(*parts: str) -> str:
    return str(PurePosixPath(*parts))


def _cmake(tree: Tree) -> Iterator[Benchmark]:
    everything = "\n".join(text for path, text in sorted(tree.texts.items()) if is_own(path) and _is_cmake(path))
    options = [
        f"-D{name}=ON"
        for name, default in _OPTION.findall(everything)
        if default.upper() in ("", "OFF", "FALSE", "NO", "0")
    ]
    output = _OUTPUT.search(everything)
    for path, text in sorted(tree.texts.items(), key=lambda each: (each[0].count("/"), each[0])):
        if not is_own(path) or not _is_cmake(path):
            continue
        where = str(PurePosixPath(path).parent) if path.endswith("CMakeLists.txt") else "."
        for call, word in _CALL.findall(text):
            name = PurePosixPath(word).stem if PurePosixPath(word).suffix in (".c", ".cc", ".cpp", ".cxx") else word
            defined = (
                call.lower().endswith("add_executable") or name != word
            )  # a function of the project, with a source
            if defined and is_benchmark(name) and "/" not in name:
                yield _program(
                    tree, _join("build", output[1] if output else where, name), [name], list(dict.fromkeys(options))
                )


def _is_cmake(path: str) -> bool:
    return path.endswith(("CMakeLists.txt", ".cmake"))


def _meson(tree: Tree) -> Iterator[Benchmark]:
    for path, text in sorted(tree.texts.items()):
        if PurePosixPath(path).name == "meson.build" and is_own(path):
            for name in _MESON.findall(text):
                if is_benchmark(name):
                    target = _join(str(PurePosixPath(path).parent), name)
                    yield _program(tree, _join("build", target), [target])


def _autotools(tree: Tree) -> Iterator[Benchmark]:
    for path, text in sorted(tree.texts.items(), key=lambda each: (each[0].count("/"), each[0])):
        if PurePosixPath(path).name != "Makefile.am" or not is_own(path):
            continue
        where = str(PurePosixPath(path).parent)
        for kind, names in _PROGRAMS.findall(text):
            for name in names.replace("\\\n", " ").split():
                at_top = where == "."
                if is_benchmark(name) and (at_top or kind not in ("check", "EXTRA")):  # which `make all` builds
                    yield _program(tree, _join(where, name), [name] if at_top else [])
    yield from _by_rule(tree, ("Makefile.in", "Makefile"))


def _make(tree: Tree) -> Iterator[Benchmark]:
    yield from _by_rule(tree, ("GNUmakefile", "makefile", "Makefile"))


def _by_rule(tree: Tree, names: tuple[str, ...]) -> Iterator[Benchmark]:
    """Programs with a rule at the top; then those with a source file in a folder with a makefile of its own."""
    of_top = [*filter(tree.texts.__contains__, names)][:1]  # and what it may include
    of_top += sorted(path for path in tree.texts if path.endswith(".mk") and "/" not in path)
    at_top = "\n".join(tree.texts[path] for path in of_top)
    sources = [path for path, text in sorted(tree.texts.items(), key=lambda each: (each[0].count("/"), each[0]))
               if PurePosixPath(path).suffix in (".c", ".cc", ".cpp", ".cxx") and is_own(path)
               and is_benchmark(PurePosixPath(path).stem) and _MAIN.search(text)]  # fmt: skip
    rules = dict.fromkeys(_RULE.findall(at_top))
    stems = {PurePosixPath(path).stem for path in sources}
    for rule in rules:
        if PurePosixPath(rule).name in stems and PLAIN.fullmatch(rule):
            yield _program(tree, _join(rule), [rule])
    for path in sources:
        place = PurePosixPath(path)
        if len(place.parts) > 1 and any(str(place.parent / name) in tree.texts for name in names):
            yield _program(tree, str(place.with_suffix("")), [])


def _target(tree: Tree) -> Iterator[Benchmark]:
    """A target of make that runs the benchmark. It is made during the build, too, so that a run compiles nothing."""
    for makefile in ("GNUmakefile", "makefile", "Makefile", "Makefile.in", "Makefile.am"):
        for rule in dict.fromkeys(_RULE.findall(tree.texts.get(makefile, ""))):
            if rule in ("bench", "benchmark", "benchmarks"):
                command = ["make", "-s", "-C", "{prefix}", rule]
                build = {"in_place": True, "targets": [rule]}
                yield Benchmark(f"`make {rule}`, in a copy of the tree", [Measured(rule, command)], build)


def _cargo(tree: Tree) -> Iterator[Benchmark]:
    for path in sorted(tree.texts, key=lambda each: (each.count("/"), each)):
        if PurePosixPath(path).name == "Cargo.toml" and is_own(path):
            table = _toml(tree.texts[path])
            package = table.get("package")
            if isinstance(package, dict) and isinstance(package.get("name"), str) and PLAIN.fullmatch(package["name"]):
                yield from _crate(tree, str(PurePosixPath(path).parent), package["name"], table)


def _crate(tree: Tree, where: str, crate: str, table: dict[str, Any]) -> Iterator[Benchmark]:
    """The benchmarks of one crate: programs, then those of `cargo bench`, then examples."""
    of_crate = [] if where == "." else [f"--package={crate}"]
    for name in _targets(tree, table, "bin", _join(where, "src/bin")):
        if is_benchmark(name):
            yield Benchmark(
                f"{name}, which is installed",
                [Measured(name, [f"{{prefix}}/bin/{name}"])],
                {"targets": [*of_crate, f"--bin={name}"]},
                {"programs": [f"bin/{name}"]},
            )
    criterion = "criterion" in str(table.get("dev-dependencies", ""))
    for name in _targets(tree, table, "bench", _join(where, "benches")):
        arguments, cost = CRITERION if criterion else (["--bench"], "")
        # Cargo adds a hash to the names of these programs.
        program = f"{{prefix}}/target/release/deps/{name.replace('-', '_')}-"
        find = f'for program in {program}*; do [ ! -x "$program" ] || exec "$program" {" ".join(arguments)}; done; exit 127'
        yield Benchmark(
            f"{name} of `cargo bench`", [Measured(name, ["sh", "-c", find], cost)],
            {"in_place": True, "targets": [*of_crate, f"--bench={name}"]},
        )  # fmt: skip
    for name in _targets(tree, table, "example", _join(where, "examples")):
        if is_benchmark(name):
            yield Benchmark(
                f"{name}, an example",
                [Measured(name, [f"{{prefix}}/target/release/examples/{name}"])],
                {"in_place": True, "targets": [*of_crate, f"--example={name}"]},
            )


def _targets(tree: Tree, table: dict[str, Any], kind: str, folder: str) -> list[str]:
    """The names of a crate's targets of one kind: those that its Cargo.toml lists, and those of a folder."""
    listed = table.get(kind, [])
    names = [each.get("name", "") for each in listed if isinstance(each, dict)] if isinstance(listed, list) else []
    inside = [PurePosixPath(path).relative_to(folder) for path in sorted(tree.paths) if path.startswith(f"{folder}/")]
    names += [path.stem for path in inside if len(path.parts) == 1 and path.suffix == ".rs"]
    names += [path.parts[0] for path in inside if len(path.parts) == 2 and path.name == "main.rs"]
    return [name for name in dict.fromkeys(names) if isinstance(name, str) and re.fullmatch(r"[\w-]+", name, re.ASCII)]


def _toml(text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError):
        return {}


def _go(tree: Tree) -> Iterator[Benchmark]:
    """The package with the most benchmarks nearest to the top, compiled as `go test -c` does it."""
    packages: dict[str, list[str]] = {}
    for path, text in sorted(tree.texts.items()):
        if path.endswith("_test.go") and is_own(path):
            names = [name for name in _GO_BENCHMARK.findall(text) if name.isascii()]
            packages.setdefault(str(PurePosixPath(path).parent), []).extend(names)
    order = sorted(
        filter(packages.get, packages), key=lambda where: (where.count("/") + (where != "."), -len(packages[where]))
    )
    for where in order:
        folder = "{prefix}" if where == "." else f"{{prefix}}/{where}"
        program = "{prefix}/benchmarks.test"
        run = ["env", "-C", folder, program, "-test.run=^$", "-test.benchtime={time}s"]
        has_data = any(path.startswith(_join(where, "testdata/x")[:-1]) for path in tree.paths)
        yield Benchmark(
            f"the benchmarks of `go test` in {where}",
            [Measured(name, [*run, f"-test.bench=^{name}$"], GO_COST, 1.0) for name in packages[where]],
            {
                "compile": [["env", "-C", folder, "go", "test", "-c", "-trimpath", "-o", program, "."]],
                "artifacts": [] if has_data else ["benchmarks.test"],
                "needs": ["go"],
                "env": {"GOPROXY": "off", "GOTOOLCHAIN": "local", "GOFLAGS": "-buildvcs=false -p={jobs}"},
            },
            {"extends": "command"},
        )


def _scripts(tree: Tree) -> Iterator[Benchmark]:
    """Benchmarks in Python of a tree that is not built."""
    paths = [path for path, text in sorted(tree.texts.items(), key=lambda each: (each[0].count("/"), each[0]))
             if path.endswith(".py") and is_own(path) and is_benchmark(PurePosixPath(path).stem)
             and not path.endswith(("setup.py", "__init__.py")) and "__main__" in text]  # fmt: skip
    workloads = [
        Measured(PurePosixPath(path).stem, ["env", "PYTHONPATH={prefix}", "python3", f"{{prefix}}/{path}"])
        for path in paths
    ]
    if workloads:
        unique = list({each.name: each for each in reversed(workloads)}.values())[::-1]
        yield Benchmark(
            "scripts in Python, in a copy of the tree", unique, {"needs": ["python3"]}, {"extends": "command"}
        )


_OF_SYSTEM: dict[str, Callable[[Tree], Iterator[Benchmark]]] = {
    "cmake": _cmake, "meson": _meson, "autotools": _autotools, "make": _make, "cargo": _cargo, "go": _go,
}  # fmt: skip
