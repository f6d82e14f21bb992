"""`bisect init` in small repositories of several types, and with bad input."""

import os
import pty
import shlex
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from perfbisect.recipes.builder_reader import load_builder
from perfbisect.recipes.workload import load_workload
from perfbisect.repository.commits import resolve
from perfbisect.repository.discovery import open_repository
from program import LIMIT, PROGRAM, exits

pytestmark = pytest.mark.tools

Git = Callable[..., str]
PROSE = {"README.md": "# kv", "doc/manual.txt": "…", ".github/ci.yml": "on: push"}
C_BENCH = "int main(void) { return 0; }"
CMAKE = {
    "CMakeLists.txt": 'project(kv C)\noption(KV_BENCH "no" OFF)\nadd_library(kv kv.c)\nif(KV_BENCH)\nadd_subdirectory(bench)\nendif()\n',
    "bench/CMakeLists.txt": "add_executable(kv_bench kv_bench.c)\n",
    "bench/kv_bench.c": C_BENCH,
    "kv.c": "int kv;",
}
MAKE = {"Makefile": "all: kv\nkv-bench: kv-bench.c kv.o\n\t$(CC) -o $@ $^\n", "kv-bench.c": C_BENCH, "kv.c": "int kv;"}
CARGO = {
    "Cargo.toml": '[package]\nname = "kv"\nversion = "1.0.0"\n',
    "src/main.rs": "fn main() {}",
    "src/bin/kv-bench.rs": "fn main() {}",
}
CRITERION = {
    "Cargo.toml": '[package]\nname = "kv"\n[dev-dependencies]\ncriterion = "0.5"\n[[bench]]\nname = "get-put"\nharness = false\n',
    "src/lib.rs": '#![doc = include_str!("../README.md")]',
    "benches/get-put.rs": "fn main() {}",
}
GO = {
    "go.mod": "module kv\n",
    "kv.go": "package kv",
    "kv_test.go": "package kv\nfunc BenchmarkGet(b *testing.B) {}\nfunc BenchmarkPut(b *testing.B) {}\n",
}
PYTHON = {"kv/__init__.py": "", "benchmarks/bench_get.py": "if __name__ == '__main__': pass\n"}
TARGET = {
    "CMakeLists.txt": "project(kv C)\nadd_library(kv kv.c)\nadd_custom_target(bench COMMAND true)\n",
    "kv.c": "int kv;",
}
FOLDER = {
    "Makefile": "all:\n",
    "perf/Makefile": "get put$(EXE): lib.o\n",
    "perf/get.c": C_BENCH,
    "perf/lib.c": "int x;",
}
SERVED = {"Makefile": "all:\n", "src/Makefile": "NAME = kv-server\n", "src/kv-benchmark.c": C_BENCH}
BESIDE = GO | {"Makefile": "all:\n"}
LATER = {"meson.build": "project('kv', 'c')", "Makefile": "all:\nclean_bench:\nbench-all: all\n"}
MESON = {
    "meson.build": "project('kv', 'c')\nsubdir('perf')\n",
    "perf/meson.build": "executable('kv-perf', 'kv-perf.c')\n",
    "perf/kv-perf.c": C_BENCH,
}
AUTOTOOLS = {
    "configure.ac": "AC_INIT([kv], [1.0])\n",
    "Makefile.am": "bin_PROGRAMS = kv\nEXTRA_PROGRAMS = \\\n  kvbench\n",
    "kvbench.c": C_BENCH,
}
TREES = ["cmake", "make", "meson", "autotools", "cargo", "criterion", "go", "target", "folder", "server", "beside", "later", "python"]  # fmt: skip


@pytest.fixture
def commit(tmp_path: Path, git: Git, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """``commit(tree, tag)`` commits these files; the program runs in the repository, with a root folder of its own."""
    monkeypatch.chdir(tmp_path / "repo")

    def make(tree: Mapping[str, str], tag: str = "") -> None:
        for path, text in tree.items():
            file = tmp_path / "repo" / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        git("add", "-A")
        git("commit", "-q", "--allow-empty", "-m", tag or "change")
        if tag:
            git("tag", tag)

    return make


def two_releases(commit: Callable[..., None], tree: Mapping[str, str]) -> None:
    commit(tree | PROSE, "v1.9")
    commit({"kv.c": "int kv2;"}, "v1.10")


@pytest.mark.parametrize(
    ("tree", "command", "build", "ignored"),
    [
        (
            CMAKE,
            ["{prefix}/build/bench/kv_bench"],
            {"in_place": True, "targets": ["kv_bench"], "options": ["-DKV_BENCH=ON"]},
            True,
        ),
        (MAKE, ["{prefix}/kv-bench"], {"in_place": True, "targets": ["kv-bench"]}, True),
        (MESON, ["{prefix}/build/perf/kv-perf"], {"in_place": True, "targets": ["perf/kv-perf"]}, True),
        (AUTOTOOLS, ["{prefix}/kvbench"], {"in_place": True, "targets": ["kvbench"]}, False),
        (CARGO, ["{prefix}/bin/kv-bench"], {"in_place": False, "targets": ["--bin=kv-bench"]}, True),
        (CRITERION, ["sh", "-c"], {"in_place": True, "targets": ["--bench=get-put"]}, False),
        (GO, ["env", "-C", "{prefix}", "{prefix}/benchmarks.test"], {"artifacts": ["benchmarks.test"]}, True),
        (TARGET, ["cmake", "--build", "{prefix}/build", "--target", "bench"], {"targets": ["bench"]}, True),
        (FOLDER, ["{prefix}/perf/get"], {"targets": ["-C", "perf", "get"]}, True),
        (SERVED, ["sh", "-c"], {"in_place": True, "targets": []}, True),
        (BESIDE, ["env", "-C", "{prefix}", "{prefix}/benchmarks.test"], {"artifacts": ["benchmarks.test"]}, True),
        (LATER, ["make", "-s", "-C", "{prefix}", "bench-all"], {"system": "make", "targets": ["bench-all"]}, True),
        (PYTHON, ["env", "PYTHONPATH={prefix}", "python3", "{prefix}/benchmarks/bench_get.py"], {}, True),
    ],
    ids=TREES,
)
def test_trees(
    tree: Mapping[str, str], command: list[str], build: dict[str, object], ignored: bool,
    commit: Callable[..., None]) -> None:  # fmt: skip
    two_releases(commit, tree)
    said = exits(0, "init", "--name", "kv")
    builder = load_builder("kv")
    name = said.partition("--workload ")[2].split()[0]
    workload = load_workload(name, "kv")
    assert builder.release_tags == ["v{version}"]
    assert builder.build is not None
    assert {key: getattr(builder.build, key) for key in build} == build
    assert workload.command[: len(command)] == command
    assert ("**/*.md" in builder.ignore) is ignored, "README.md is needed by some builds"
    assert {"doc/**", ".github/**"} <= set(builder.ignore)
    for verb, of in (("builders", "kv"), ("workloads", name)):
        exits(0, verb, "--show", of)
    for recipe in (Path(builder.folder) / "builder.toml", Path(workload.folder) / "suite.toml"):
        assert len(recipe.read_text().splitlines()) <= 15
    for verb in ("run 1.9 1.10", "compare 1.9 1.10", "noise --rev 1.10"):
        assert f"bisect {verb} --builder kv --workload {name} --repo" in said
    if tree not in (CMAKE, CARGO, GO, PYTHON):  # one of each way to run a benchmark
        return
    run = shlex.split(next(line for line in said.splitlines() if line.startswith("  bisect run ")))
    dry = exits(0, *run[1:], "--dry-run")
    assert "# 1.9, " in dry and "# 1.10, " in dry and "# a visit" in dry


def test_nothing_is_overwritten(commit: Callable[..., None], tmp_path: Path) -> None:
    two_releases(commit, MAKE)
    exits(0, "init", "--into", str(tmp_path / "own"), "--name", "kv")
    files = sorted(path for path in (tmp_path / "own").rglob("*.toml"))
    assert [path.relative_to(tmp_path / "own").as_posix() for path in files] == [
        "builders/kv/builder.toml",
        "workloads/kv/suite.toml",
    ]
    files[0].unlink()
    files[1].write_text("mine")
    said = exits(3, "init", "--into", str(tmp_path / "own"), "--name", "kv")
    assert f"{files[1]} exists already. Nothing was written." in said
    assert files[1].read_text() == "mine"
    assert not files[0].exists()
    assert "A builder mysql exists already" in exits(3, "init", "--name", "mysql")
    assert "A suite sysbench exists already" in exits(3, "init", "--name", "sysbench")
    assert "is no name for a recipe" in exits(3, "init", "--name", "../x")


def test_printed_only(commit: Callable[..., None], seal: Path) -> None:
    two_releases(commit, MAKE)
    said = exits(0, "init", "--print")
    assert 'release_tags = ["v{version}"]' in said
    assert not [*seal.rglob("*.toml")]


def test_no_tags_and_few_commits(commit: Callable[..., None]) -> None:
    assert "has no commit on its present branch" in exits(3, "init")
    commit(MAKE)
    assert "has a single commit" in exits(3, "init")
    commit({"kv.c": "int a;"})
    commit({"kv.c": "int b;"})
    assert "bisect run 'HEAD~2' HEAD --builder" in exits(0, "init")


def test_no_benchmark(commit: Callable[..., None], seal: Path) -> None:
    two_releases(commit, {"Makefile": "all:\n", "kv.c": ""})
    said = exits(3, "init", "--name", "kv")
    assert (
        "No benchmark was found that both 1.9 and 1.10 have (built by make). Looked for: programs and targets" in said
    )
    assert "bisect run v1.9 v1.10 --run 'PROGRAM ARGUMENTS'" in said
    assert not [*seal.rglob("*.toml")]


@pytest.mark.parametrize(
    ("name", "text", "path"),
    [("Makefile", "all: kv\nkv: kv.c\n", "kv"), ("CMakeLists.txt", "add_executable(kv kv.c)\n", "build/kv")],
)
def test_a_program_of_any_name(name: str, text: str, path: str, commit: Callable[..., None]) -> None:
    two_releases(commit, {name: text})
    assert "bisect init --benchmark PROGRAM" in exits(3, "init", "--print")
    assert f'command = ["{{prefix}}/{path}"]' in exits(0, "init", "--print", "--benchmark", "kv")


def test_one_of_several(commit: Callable[..., None], seal: Path) -> None:
    two_releases(commit, GO)
    said = exits(0, "init", "--print")
    assert "BenchmarkGet of `go test`" in said and "others      BenchmarkPut: --benchmark NAME" in said, (
        "nobody is asked"
    )
    assert "[workloads.BenchmarkPut]" in exits(0, "init", "--print", "--benchmark", "BenchmarkPut")
    assert "There are: BenchmarkGet, BenchmarkPut." in exits(3, "init", "--benchmark", "BenchmarkDrop")
    ours, theirs = pty.openpty()
    with subprocess.Popen([*PROGRAM, "init", "--print"], stdin=theirs, stdout=theirs, stderr=theirs) as process:
        os.write(ours, b"2\n")
        assert process.wait(LIMIT) == 0
    said = os.read(ours, 1 << 16).decode()
    assert "Which benchmark" in said and "[workloads.BenchmarkPut]" in said


def test_what_cannot_be_proposed(commit: Callable[..., None], git: Git, tmp_path: Path) -> None:
    assert "is not a git repository" in exits(3, "init", "--repo", str(tmp_path))
    two_releases(commit, {"kv.txt": ""})
    assert "its tree has no build system" in exits(3, "init")
    git("clone", "-q", "--depth", "1", f"file://{tmp_path}/repo", str(tmp_path / "shallow"))
    assert "is a shallow clone" in exits(3, "init", "--repo", str(tmp_path / "shallow"))


def test_a_system_with_a_recipe(commit: Callable[..., None], git: Git, seal: Path) -> None:
    two_releases(commit, TARGET)
    git("remote", "add", "origin", "git@github.com:mysql/mysql-server")
    said = exits(0, "init")
    assert "builder mysql" in said
    assert "bisect run v1.9 v1.10 --builder mysql --workload " in said
    assert not [*seal.rglob("*.toml")]
    assert "bisect run 1.9 1.10 --builder my-mysql" in exits(0, "init", "--name", "my-mysql")


def test_a_bare_monorepo_with_a_submodule(commit: Callable[..., None], git: Git, tmp_path: Path) -> None:
    commit(MAKE | {"third_party/x/x_bench.c": C_BENCH}, "kv/v1.0")
    git("update-index", "--add", "--cacheinfo", f"160000,{git('rev-parse', 'HEAD')},third_party/lib")
    git("commit", "-qm", "lib")
    git("tag", "kv/v1.1")
    git("clone", "-q", "--bare", str(tmp_path / "repo"), str(tmp_path / "bare.git"))
    said = exits(0, "init", "--repo", str(tmp_path / "bare.git"), "--print")
    assert "submodules  third_party/lib" in said
    assert "kv/v{version}" in said
    assert "x_bench" not in said


def test_hostile_names(commit: Callable[..., None], git: Git) -> None:
    hostile = 'a"b\n\x1b]0;x\x07{prefix}$(touch x)_bench'
    git("config", "remote.origin.url", "https://user:secret@example.org/x\x1b[2J")
    commit(
        MAKE
        | {f"{hostile}.c": C_BENCH, f"{hostile}/CMakeLists.txt": f"add_executable({hostile} x.c)", "doc/\x1b.md": ""},
        "v1",
    )
    commit({"kv.c": "int b;"}, 'v2";$(touch${IFS}x)')
    commit({"kv.c": "int c;"}, "v3")
    git("update-index", "--add", "--cacheinfo", f"160000,{git('rev-parse', 'HEAD')},sub\x1b[2J")
    git("commit", "-qm", "sub")
    git("tag", "v4")
    said = exits(0, "init", "--name", "kv")
    assert "\x1b" not in said
    assert "secret" not in said
    assert load_builder("kv").repository == ""
    assert load_workload("kv-bench", "kv").command == ["{prefix}/kv-bench"]


def test_nothing_of_the_repository_runs(commit: Callable[..., None], git: Git, tmp_path: Path) -> None:
    two_releases(commit, MAKE | {".gitattributes": "* diff=x filter=x"})
    commit({"kv.c": "int kv3;"}, "v2.0")
    trap = f"touch {tmp_path}/ran; cat"
    for key in ("core.fsmonitor", "diff.x.textconv", "filter.x.smudge", "core.pager", "core.hooksPath"):
        git("config", key, trap)
    for key in ("grep.lineNumber", "grep.column", "grep.fullName", "submodule.recurse"):
        git("config", key, "true")
    assert "bisect run 1.10 2.0 --builder kv --workload kv-bench" in exits(0, "init", "--name", "kv")
    assert not (tmp_path / "ran").exists()


def test_the_ends_are_what_the_recipe_calls_them(commit: Callable[..., None]) -> None:
    two_releases(commit, MAKE)
    exits(0, "init", "--name", "kv")
    repo = open_repository(Path.cwd())
    assert resolve(repo, "1.10", load_builder("kv").release_tags) == resolve(repo, "v1.10", [])
