"""`bisect init` in small repositories of several types, and with bad input; and `bisect demo` without its hunt."""

import os
import pty
import shlex
import subprocess
import tomllib
from collections.abc import Mapping
from pathlib import Path
from unittest.mock import Mock

import click
import msgspec
import pytest
from click.testing import CliRunner

from perfbisect.cli.commands.demo import demo
from perfbisect.demo.history import DemoAnswer
from perfbisect.errors import INTERRUPTED, UsageError
from perfbisect.hunt import setup
from perfbisect.recipes.builder_reader import load_builder
from perfbisect.recipes.workload import load_workload
from perfbisect.repository.commits import resolve_commit
from perfbisect.repository.discovery import open_repository
from program import LIMIT, PROGRAM, exits
from repos import Repo

pytestmark = pytest.mark.tools

TREES = tomllib.loads(Path(__file__).with_name("trees.toml").read_text())
MAKE, GO = ({name: f"{text}\n" for name, text in TREES[of]["files"].items()} for of in ("make", "go"))
PROSE = {"README.md": "# kv", "doc/manual.txt": "…", ".github/ci.yml": "on: push"}


@pytest.fixture
def repo(git: Repo, monkeypatch: pytest.MonkeyPatch) -> Repo:
    """A repository without commits, in which the program runs."""
    monkeypatch.chdir(git.path)
    return git


def two_releases(repo: Repo, tree: Mapping[str, str]) -> None:
    repo.commit(tree | PROSE, tag="v1.9")
    repo.commit({"kv.c": "int kv2;"}, tag="v1.10")


@pytest.mark.parametrize("of", TREES)
def test_init_proposes_working_recipes_for_each_type_of_tree(of: str, repo: Repo) -> None:
    tree = TREES[of]
    two_releases(repo, {name: f"{text}\n" for name, text in tree["files"].items()})
    output = exits(0, "init", "--name", "kv")
    builder, name = load_builder("kv"), output.partition("--workload ")[2].split()[0]
    workload = load_workload(name, "kv")
    assert builder.release_tags == ["v{version}"]
    assert {key: getattr(builder.build, key) for key in tree["build"]} == tree["build"]
    assert workload.command[: len(tree["command"])] == tree["command"]
    assert ("**/*.md" not in builder.ignore) is tree.get("prose", False)
    assert {"doc/**", ".github/**"} <= set(builder.ignore)
    for verb, shown in (("builders", "kv"), ("workloads", name)):
        exits(0, verb, "--show", shown)
    for recipe in (Path(builder.folder) / "builder.toml", Path(workload.folder) / "suite.toml"):
        assert len(recipe.read_text().splitlines()) <= 15
    for verb in ("run 1.9 1.10", "compare 1.9 1.10", "noise --rev 1.10"):
        assert f"bisect {verb} --builder kv --workload {name} --repo" in output
    if of in ("cmake", "cargo", "go", "python"):  # one tree for each way to run a benchmark
        [command] = [line for line in output.splitlines() if line.startswith("  bisect run ")]
        dry = exits(0, *shlex.split(command)[1:], "--dry-run")
        assert "# good: 1.9 " in dry and "# bad: 1.10 " in dry and "# a visit" in dry


def test_init_overwrites_no_recipe_and_print_writes_no_file(repo: Repo, tmp_path: Path, seal: Path) -> None:
    two_releases(repo, MAKE)
    assert 'release_tags = ["v{version}"]' in exits(0, "init", "--print")
    for name, error in {
        "mysql": "A builder mysql exists already",
        "sysbench": "A suite sysbench exists already",
        "../x": "cannot be the name of a recipe",
    }.items():
        assert error in exits(3, "init", "--name", name)
    assert not [*seal.rglob("*.toml")]
    folder = tmp_path / "own"
    own = ["init", "--into", str(folder), "--name", "kv"]
    exits(0, *own)
    builder, suite = folder / "builders/kv/builder.toml", folder / "workloads/kv/suite.toml"
    assert {*folder.rglob("*.toml")} == {builder, suite}
    builder.unlink()
    suite.write_text("mine")
    assert f"{suite} exists already. No file was written." in exits(3, *own)
    assert suite.read_text() == "mine" and not builder.exists()


def test_init_explains_why_it_cannot_propose_recipes(repo: Repo, seal: Path, tmp_path: Path) -> None:
    assert "is not a git repository" in exits(3, "init", "--repo", str(tmp_path))
    assert "has no commits" in exits(3, "init")
    repo.commit(MAKE)
    assert "has only one commit" in exits(3, "init")
    repo.commit({"kv.c": "int a;"})
    repo.commit({"kv.c": "int b;"})
    assert "bisect run 'HEAD~2' HEAD --builder" in exits(0, "init", "--into", str(tmp_path))
    repo.write(dict.fromkeys(MAKE))
    two_releases(repo, {"kv.txt": ""})
    assert "the tree has no build system" in exits(3, "init")
    repo("clone", "-q", "--depth", "1", f"file://{repo.path}", str(tmp_path / "shallow"))
    assert "is a shallow clone" in exits(3, "init", "--repo", str(tmp_path / "shallow"))
    repo("tag", "-d", "v1.9", "v1.10")
    two_releases(repo, {"Makefile": "all:\n"})
    errors = exits(3, "init", "--name", "kv")
    assert (
        "No benchmark was found that 1.9 and 1.10 have in common (build system: make). Looked for: programs and tar"
        in errors
    )
    assert "bisect run v1.9 v1.10 --run 'PROGRAM ARGUMENTS'" in errors
    assert not [*seal.rglob("*.toml")]


@pytest.mark.parametrize("path", ["kv", "build/kv"])
def test_init_accepts_a_benchmark_program_by_its_name(path: str, repo: Repo) -> None:
    """The program of a Makefile, and the program of CMake."""
    of_make, of_cmake = {"Makefile": "all: kv\nkv: kv.c\n"}, {"CMakeLists.txt": "add_executable(kv kv.c)\n"}
    two_releases(repo, of_make if path == "kv" else of_cmake)
    assert "bisect init --benchmark PROGRAM" in exits(3, "init", "--print")
    assert f'command = ["{{prefix}}/{path}"]' in exits(0, "init", "--print", "--benchmark", "kv")


def test_init_asks_which_benchmark_only_at_a_terminal(repo: Repo) -> None:
    two_releases(repo, GO)
    text = exits(0, "init", "--print")
    assert "BenchmarkGet of `go test`" in text and "others      BenchmarkPut: choose one with --benchmark NAME" in text
    assert "[workloads.BenchmarkPut]" in exits(0, "init", "--print", "--benchmark", "BenchmarkPut")
    assert "Benchmarks that good and bad have: BenchmarkGet, BenchmarkPut." in exits(
        3, "init", "--benchmark", "BenchmarkDrop"
    )
    ours, theirs = pty.openpty()
    with subprocess.Popen([*PROGRAM, "init", "--print"], stdin=theirs, stdout=theirs, stderr=theirs) as process:
        os.write(ours, b"2\n")
        assert process.wait(LIMIT) == 0
    text = os.read(ours, 1 << 16).decode()
    assert "Which benchmark" in text and "[workloads.BenchmarkPut]" in text


def test_init_uses_the_shipped_builder_of_a_known_system(repo: Repo, seal: Path) -> None:
    two_releases(repo, MAKE)
    repo("remote", "add", "origin", "git@github.com:mysql/mysql-server")
    output = exits(0, "init")
    assert "builder mysql" in output and "bisect run v1.9 v1.10 --builder mysql --workload " in output
    assert not [*seal.rglob("*.toml")]
    assert "bisect run 1.9 1.10 --builder my-mysql" in exits(0, "init", "--name", "my-mysql")


def test_init_reads_a_bare_monorepo_with_a_submodule(repo: Repo, tmp_path: Path) -> None:
    here = repo.commit(MAKE | {"third_party/x/x_bench.c": "int main(void) { return 0; }"}, tag="kv/v1.0")
    repo.move_module("third_party/lib", here)
    repo("tag", "kv/v1.1")
    repo("clone", "-q", "--bare", str(repo.path), str(tmp_path / "bare.git"))
    output = exits(0, "init", "--repo", str(tmp_path / "bare.git"), "--print")
    assert "submodules  third_party/lib" in output and "kv/v{version}" in output and "x_bench" not in output


def test_init_prints_and_stores_no_hostile_names(repo: Repo) -> None:
    hostile = 'a"b\n\x1b]0;x\x07{prefix}$(touch x)_bench'
    repo("config", "remote.origin.url", "https://user:secret@example.org/x\x1b[2J")
    named = {f"{hostile}.c": "", f"{hostile}/CMakeLists.txt": f"add_executable({hostile} x.c)", "doc/\x1b.md": ""}
    repo.commit(MAKE | named, tag="v1")
    repo.commit({"kv.c": "int b;"}, tag='v2";$(touch${IFS}x)')
    repo.move_module("sub\x1b[2J", repo.commit({"kv.c": "int c;"}, tag="v3"))
    repo("tag", "v4")
    output = exits(0, "init", "--name", "kv")
    assert "\x1b" not in output and "secret" not in output
    assert load_builder("kv").repository == ""
    assert load_workload("kv-bench", "kv").command == ["{prefix}/kv-bench"]


def test_init_starts_no_program_of_the_repository(repo: Repo, tmp_path: Path) -> None:
    """The ends are written in the notation of the recipe's release tags."""
    two_releases(repo, MAKE | {".gitattributes": "* diff=x filter=x"})
    repo.commit({"kv.c": "int kv3;"}, tag="v2.0")
    for key in ("core.fsmonitor", "diff.x.textconv", "filter.x.smudge", "core.pager", "core.hooksPath"):
        repo("config", key, f"touch {tmp_path}/ran; cat")
    for key in ("grep.lineNumber", "grep.column", "grep.fullName", "submodule.recurse"):
        repo("config", key, "true")
    assert "bisect run 1.10 2.0 --builder kv --workload kv-bench" in exits(0, "init", "--name", "kv")
    assert not (tmp_path / "ran").exists()
    opened = open_repository(repo.path)
    assert resolve_commit(opened, "1.10", load_builder("kv").release_tags) == resolve_commit(opened, "v1.10", [])


# `bisect demo --folder` deletes only files of an earlier demo.

ANSWER = DemoAnswer("c", "p", "subject", 1, 2, 0.5, ())


@pytest.mark.parametrize("answer", [None, b"42", b'{"commit": "c"}', b"\xff"])
def test_demo_refuses_a_folder_without_a_valid_answer_file(tmp_path: Path, answer: bytes | None) -> None:
    thesis, kept = tmp_path / "repository" / "thesis", tmp_path / "answer.json"
    thesis.parent.mkdir()
    thesis.touch()
    if answer is not None:
        kept.write_bytes(answer)
    errors = exits(3, "demo", "--folder", str(tmp_path))
    assert str(tmp_path) in errors and "a new folder" in errors
    assert thesis.exists() and (answer is None or kept.read_bytes() == answer)


@pytest.mark.parametrize("given", [True, False])
def test_demo_replaces_an_older_demo(seal: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: bool) -> None:
    """In the default folder, also a demo that was interrupted before it wrote its answer."""
    monkeypatch.setattr(setup.SessionSetup, "set_up", Mock(side_effect=UsageError("far enough")))
    folder = tmp_path if given else seal / ".cache" / "perfbisect" / "demo" / "seed-1"
    (folder / "repository" / "old").mkdir(parents=True)
    if given:
        (folder / "answer.json").write_bytes(msgspec.json.encode(ANSWER))
    assert "far enough" in exits(3, "demo", *(["--folder", str(folder)] if given else []))
    assert not (folder / "repository" / "old").exists()
    assert msgspec.json.decode((folder / "answer.json").read_bytes(), type=DemoAnswer).commits == 60


def test_interrupted_demo_does_not_print_the_planted_commits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    @click.command()
    def interrupted(**_options: object) -> int:
        return INTERRUPTED

    monkeypatch.setattr("perfbisect.cli.commands.trials.compare", interrupted)
    done = CliRunner().invoke(demo, ["--changes", "3", "--folder", str(tmp_path)], standalone_mode=False)
    assert done.return_value == INTERRUPTED, done.output
    assert "planted" not in done.output
