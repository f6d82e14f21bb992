"""Finds the benchmarks in a source tree: for each benchmark, the program to build and the command to measure."""

import re
import tomllib
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import PurePosixPath
from typing import Any

from perfbisect.recipes.proposal import (
    PLAIN,
    SOURCES,
    Benchmark,
    MeasuredCommand,
    SourceTree,
    is_benchmark_name,
    is_benchmark_path,
    main_language,
)

C = (".c", ".cc", ".cpp", ".cxx")
MAKEFILES = ("GNUmakefile", "makefile", "Makefile")

GOOGLE = ["--benchmark_format=json"], "$.benchmarks[0].cpu_time"  # path of the first benchmark's time
CRITERION = ["--bench", "--output-format", "bencher"], r"bench: +([0-9,]+) ns/iter"
# Starts a server for each run, and measures it with a client such as redis-benchmark.
SERVED = (
    "cd {{data}} || exit; rm -f s; {server} --port 0 --unixsocket s --save '' >log &"
    " until [ -S s ] || ! kill -0 $!; do sleep 0.05; done;"
    " {client} -s s -t set -n 200000 --csv; status=$?; kill $!; wait; exit $status"
)
SERVED_RATE = '"SET","([0-9.]+)"'
GO_COST = r"Benchmark\S+\s+[0-9]+\s+([0-9.]+) ns/op"

_CALL = re.compile(r"""(?im)^[^#\n]*?\b(\w*add_executable|\w*bench\w*)\s*\(\s*"?(?:\$\{\w+\}/)?([^\s")$]+)""")
_CUSTOM = re.compile(r"(?im)^[^#\n]*?\badd_custom_target\s*\(\s*([\w.-]+)")
_OPTION = re.compile(r"""(?i)\boption\s*\(\s*(\w*BENCH\w*)\s+(?:"[^"]*"\s*)?(\w*)\s*\)""")
_OUTPUT = re.compile(
    r"(?i)\bset\s*\(\s*CMAKE_RUNTIME_OUTPUT_DIRECTORY\s+\"?\$\{(?:CMAKE|PROJECT|CMAKE_CURRENT)_BINARY_DIR\}/?([\w./-]*)\"?"
)
_MESON = re.compile(r"\bexecutable\s*\(\s*'([^']+)'")
_PROGRAMS = re.compile(r"^(\w+)_PROGRAMS\s*\+?=((?:[^\\\n]|\\\n)*)", re.MULTILINE)
# A rule of a makefile; a suffix such as $(EXE) of the target is not a part of the name.
_RULE = re.compile(r"^([\w./+-]+)(?:\$[({][\w.]+[)}])?[ \t]*:(?!=)", re.MULTILINE)
_MAIN = re.compile(r"\bmain\s*\(|BENCHMARK_MAIN")
_GO_BENCHMARK = re.compile(r"^func (Benchmark\w+)\(\w+ \*testing\.B\)", re.MULTILINE)


def find_common_benchmarks(systems: Iterable[str], good: SourceTree, bad: SourceTree) -> tuple[str, list[Benchmark]]:
    """The first build system of ``systems`` for which good and bad have benchmarks with the same names; and these
    benchmarks, each name once. Programs that are probably benchmarks, by their names, come first.
    """
    for system in systems:
        older = {benchmark.workload.name for benchmark in _likely_benchmarks(system, good)}
        newer = _likely_benchmarks(system, bad)[::-1]
        both = {benchmark.workload.name: benchmark for benchmark in newer if benchmark.workload.name in older}
        if both:
            return system, [*both.values()][::-1]
    return "", []


def _likely_benchmarks(system: str, tree: SourceTree) -> list[Benchmark]:
    """The programs of a source tree that are probably benchmarks, for the build system ``system``. If ``system`` is "",
    only benchmarks in Python are found."""
    if not system:
        return [*_python_benchmarks(tree)] if main_language(tree.paths) == "Python" else []
    candidates = [*_OF_SYSTEM[system](tree)]
    if system in ("cargo", "go"):
        return candidates
    if not candidates and system != "meson":
        return [*_benchmark_target(system, tree)]
    # Programs with the name of a benchmark come first.
    return sorted(candidates, key=lambda benchmark: not is_benchmark_name(benchmark.workload.name))


def _program_benchmark(tree: SourceTree, path: str, targets: list[str], options: list[str] | None = None) -> Benchmark:
    """The benchmark that runs a program at ``path`` below {prefix}; the program is built in a copy of the tree, and is
    not installed."""
    name = PurePosixPath(path).name
    description = f"{name}, which is built and run in a copy of the tree"
    server = name.removesuffix("benchmark") + "server"
    if name.endswith("-benchmark") and server in "".join(tree.project_files(lambda of: "akefile" in of.name).values()):
        client = f"{{prefix}}/{path}"
        script = SERVED.format(server=f"{client.removesuffix(name)}{server}", client=client)
        both = [*targets, server] if targets else []
        command = MeasuredCommand(name, ["sh", "-c", script], rate=SERVED_RATE)
        return _benchmark_in_copy(f"{description}, with {server}", command, both, options)
    sources = [of for of in tree.texts if PurePosixPath(of).stem == name and PurePosixPath(of).suffix in SOURCES]
    source = min(sources, key=lambda of: (of.count("/"), of), default="")
    uses_google = "benchmark/benchmark.h" in tree.texts.get(source, "")
    arguments, cost = GOOGLE if uses_google else ([], "")
    measured = MeasuredCommand(name, [f"{{prefix}}/{path}", *arguments], cost)
    return _benchmark_in_copy(description, measured, targets, options)


def _benchmark_in_copy(
    what: str, measured: MeasuredCommand, targets: list[str], options: list[str] | None = None
) -> Benchmark:
    build = {"in_place": True, "options": options, "targets": targets}
    return Benchmark(what, measured, {key: value for key, value in build.items() if value})


def _joined_path(*parts: str) -> str:
    return str(PurePosixPath(*parts))


def _cmake_files_and_options(tree: SourceTree) -> tuple[dict[str, str], str, list[str]]:
    """Returns three values: the text of each cmake file by its path, the joined text of all cmake files, and the cmake
    options that enable benchmarks."""
    files = tree.project_files(lambda path: path.name == "CMakeLists.txt" or path.suffix == ".cmake")
    everything = "\n".join(files.values())
    defaults = dict(_OPTION.findall(everything))
    off = [name for name, default in defaults.items() if default.upper() in ("", "OFF", "FALSE", "NO", "0")]
    return files, everything, [f"-D{name}=ON" for name in off]


def _cmake_benchmarks(tree: SourceTree) -> Iterator[Benchmark]:
    files, everything, options = _cmake_files_and_options(tree)
    output = _OUTPUT.search(everything)
    for path, text in files.items():
        where = str(PurePosixPath(path).parent) if path.endswith(".txt") else "."
        for call, word in _CALL.findall(text):
            source = PurePosixPath(word)
            name = source.stem if source.suffix in C else word
            # A CMake function of the project defines a program, too, if a source file is an argument of the function.
            defined = call.lower().endswith("add_executable") or name != word
            if defined and "/" not in name and tree.is_benchmark_program(PurePosixPath(where, name)):
                program = _joined_path("build", output[1] if output else where, name)
                yield _program_benchmark(tree, program, [name], options)


def _meson_benchmarks(tree: SourceTree) -> Iterator[Benchmark]:
    """The programs that meson builds."""
    for path, text in sorted(tree.project_files(lambda path: path.name == "meson.build").items()):
        for name in _MESON.findall(text):
            if tree.is_benchmark_program(PurePosixPath(path).parent / name):
                target = _joined_path(str(PurePosixPath(path).parent), name)
                yield _program_benchmark(tree, _joined_path("build", target), [target])


def _autotools_benchmarks(tree: SourceTree) -> Iterator[Benchmark]:
    for path, text in tree.project_files(lambda path: path.name == "Makefile.am").items():
        where = str(PurePosixPath(path).parent)
        for kind, names in _PROGRAMS.findall(text):
            for name in names.replace("\\\n", " ").split():
                if not tree.is_benchmark_program(PurePosixPath(where, name)):
                    continue
                if where == "." or kind not in ("check", "EXTRA"):  # if a plain `make` builds the program
                    yield _program_benchmark(tree, _joined_path(where, name), [name] if where == "." else [])
    yield from _makefile_benchmarks(tree, ("Makefile.in", "Makefile"))


def _makefile_benchmarks(tree: SourceTree, names: tuple[str, ...]) -> Iterator[Benchmark]:
    """Yields programs for which the makefile in the top folder has a rule, then programs in subfolders that have a
    makefile."""
    # The makefile, and the files *.mk, which the makefile may include.
    of_top = [*filter(tree.texts.__contains__, names)][:1]
    of_top += sorted(path for path in tree.texts if path.endswith(".mk") and "/" not in path)
    rules = dict.fromkeys(_RULE.findall("\n".join(tree.texts[path] for path in of_top)))
    named = tree.project_files(lambda path: path.suffix in C and is_benchmark_path(path))
    sources = [PurePosixPath(path) for path, text in named.items() if _MAIN.search(text)]
    stems = {source.stem for source in sources}
    for rule in rules:
        if PurePosixPath(rule).name in {*stems, tree.measured_program} and PLAIN.fullmatch(rule):
            yield _program_benchmark(tree, _joined_path(rule), [rule])
    for source in sources:
        makefile_texts = [tree.texts[path] for name in names if (path := str(source.parent / name)) in tree.texts]
        if len(source.parts) > 1 and makefile_texts:
            heads = (line.partition(":")[0] for text in makefile_texts for line in text.splitlines() if ":" in line)
            # Without a rule that names the program, `make` without a target may build it.
            has_rule = any(source.stem in re.split(r"[\s$]", head) for head in heads)
            arguments = ["-C", str(source.parent), source.stem] if has_rule else []
            yield _program_benchmark(tree, str(source.with_suffix("")), arguments)


def _benchmark_target(system: str, tree: SourceTree) -> Iterator[Benchmark]:
    """A make or cmake target that runs the benchmark. The target is also made once during the build, so that measured
    runs compile nothing."""
    options: list[str] = []
    if system == "cmake":
        _, everything, options = _cmake_files_and_options(tree)
        names, argv = _CUSTOM.findall(everything), ["cmake", "--build", "{prefix}/build", "--target"]
    else:
        texts = [tree.texts.get(makefile, "") for makefile in (*MAKEFILES, "Makefile.in", "Makefile.am")]
        names, argv = _RULE.findall("\n".join(texts)), ["make", "-s", "-C", "{prefix}"]
    for name in dict.fromkeys(names):
        if is_benchmark_name(name) and not {"/", "."} & set(name) and "clean" not in name:
            description = f"target {name} of {system}, in a copy of the tree"
            yield _benchmark_in_copy(description, MeasuredCommand(name, [*argv, name]), [name], options)


def _cargo_benchmarks(tree: SourceTree) -> Iterator[Benchmark]:
    """The benchmarks of all crates of a tree."""
    for path, text in tree.project_files(lambda path: path.name == "Cargo.toml").items():
        table: dict[str, Any] = {}
        with suppress(ValueError, RecursionError):  # a Cargo.toml of the tree may be invalid
            table = tomllib.loads(text)
        package = table.get("package")
        if isinstance(package, dict) and isinstance(package.get("name"), str) and PLAIN.fullmatch(package["name"]):
            yield from _crate_benchmarks(tree, str(PurePosixPath(path).parent), package["name"], table)


def _crate_benchmarks(tree: SourceTree, folder: str, crate: str, table: dict[str, Any]) -> Iterator[Benchmark]:
    """The benchmarks of one crate: first programs, then the benches of `cargo bench`, then examples."""
    of_crate = [] if folder == "." else [f"--package={crate}"]
    for name in _cargo_targets(tree, table, "bin", _joined_path(folder, "src/bin")):
        if is_benchmark_name(name) or name == tree.measured_program:
            measured = MeasuredCommand(name, [f"{{prefix}}/bin/{name}"])
            build, top = {"targets": [*of_crate, f"--bin={name}"]}, {"programs": [f"bin/{name}"]}
            yield Benchmark(f"{name}, which is already installed on this machine", measured, build, top)
    criterion = "criterion" in str(table.get("dev-dependencies", ""))
    for name in _cargo_targets(tree, table, "bench", _joined_path(folder, "benches")):
        arguments, cost = CRITERION if criterion else (["--bench"], "")
        # Cargo adds a hash to the names of these programs.
        program = f"{{prefix}}/target/release/deps/{name.replace('-', '_')}-"
        find = f'for program in {program}*; do [ ! -x "$program" ] || exec "$program" {" ".join(arguments)}; done; exit 127'
        measured = MeasuredCommand(name, ["sh", "-c", find], cost)
        yield _benchmark_in_copy(f"{name} of `cargo bench`", measured, [*of_crate, f"--bench={name}"])
    for name in _cargo_targets(tree, table, "example", _joined_path(folder, "examples")):
        if is_benchmark_name(name):
            measured = MeasuredCommand(name, [f"{{prefix}}/target/release/examples/{name}"])
            yield _benchmark_in_copy(f"{name}, an example", measured, [*of_crate, f"--example={name}"])


def _cargo_targets(tree: SourceTree, table: dict[str, Any], kind: str, folder: str) -> list[str]:
    """The names of a crate's targets of the given kind: first the targets that are listed in its Cargo.toml, then the
    files in ``folder``."""
    listed = table.get(kind, [])
    names = [item.get("name", "") for item in listed if isinstance(item, dict)] if isinstance(listed, list) else []
    inside = [PurePosixPath(path).relative_to(folder) for path in sorted(tree.paths) if path.startswith(f"{folder}/")]
    names += [path.stem for path in inside if len(path.parts) == 1 and path.suffix == ".rs"]
    names += [path.parts[0] for path in inside if len(path.parts) == 2 and path.name == "main.rs"]
    return [name for name in dict.fromkeys(names) if isinstance(name, str) and re.fullmatch(r"[\w-]+", name, re.ASCII)]


def _go_benchmarks(tree: SourceTree) -> Iterator[Benchmark]:
    """The benchmarks of `go test`, in programs that are compiled by `go test -c`. Packages with the fewest leading
    folders are first. Among packages with equally many leading folders, packages with the most benchmarks are first.
    """
    packages: dict[str, list[str]] = {}
    for path, text in sorted(tree.project_files(lambda path: path.name.endswith("_test.go")).items()):
        if names := [name for name in _GO_BENCHMARK.findall(text) if name.isascii()]:
            packages.setdefault(str(PurePosixPath(path).parent), []).extend(names)
    depth = {where: len(PurePosixPath(where).parts) for where in packages}
    for where in sorted(packages, key=lambda where: (depth[where], -len(packages[where]))):
        program = "{prefix}/benchmarks.test"
        run = ["env", "-C", _joined_path("{prefix}", where), program, "-test.run=^$", "-test.benchtime={time}s"]
        has_data = any(path.startswith(_joined_path(where, "testdata") + "/") for path in tree.paths)
        flags = ["GOPROXY=off", "GOTOOLCHAIN=local", "GOFLAGS=-buildvcs=false -p={jobs}"]
        make = ["env", "-C", _joined_path("{prefix}", where), *flags]
        compile_ = [[*make, "go", "test", "-c", "-trimpath", "-o", program, "."]]
        build = {"compile": compile_, "needs": ["go"]} | ({} if has_data else {"artifacts": ["benchmarks.test"]})
        for name in packages[where]:
            measured = MeasuredCommand(name, [*run, f"-test.bench=^{name}$"], GO_COST, time=1.0)
            yield Benchmark(f"{name} of `go test` in {where}", measured, build, {"extends": "command"})


def _python_benchmarks(tree: SourceTree) -> Iterator[Benchmark]:
    """The benchmarks in Python of a source tree that needs no build."""
    files = tree.project_files(
        lambda path: path.suffix == ".py" and is_benchmark_path(path) and path.stem not in ("setup", "__init__")
    )
    for path, text in files.items():
        if "__main__" in text:
            command = ["env", "PYTHONPATH={prefix}", "python3", f"{{prefix}}/{path}"]
            measured = MeasuredCommand(PurePosixPath(path).stem, command)
            yield Benchmark(f"{path}, in a copy of the tree", measured, {"needs": ["python3"]}, {"extends": "command"})


_OF_SYSTEM: dict[str, Callable[[SourceTree], Iterator[Benchmark]]] = {
    "cmake": _cmake_benchmarks, "meson": _meson_benchmarks, "autotools": _autotools_benchmarks, "make": partial(_makefile_benchmarks, names=MAKEFILES), "cargo": _cargo_benchmarks, "go": _go_benchmarks,
}  # fmt: skip
