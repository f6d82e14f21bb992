"""The demo engine compared with a dictionary: after any changes, its rows, index and file agree with the dictionary."""

import ctypes
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from perfbisect.demo.history import (
    BAD,
    GOOD,
    Change,
    FeatureCost,
    Tree,
    first_release_tree,
    read_changes,
    tree_after,
    write_history,
)
from perfbisect.recipes.workload import read_suite
from repos import git

pytestmark = [pytest.mark.tools, pytest.mark.xdist_group("engine")]  # the engine is built once


OK, MISSING, EXISTS, IO, CORRUPT = 0, 1, 2, 4, 5
MOST, PAGE = 4000, 4096
FLAGS = "-O1 -Wall -Wextra -Werror"


def everything() -> Tree:
    """The engine's sources with all changes, with checks at every change of the index."""
    kinds = ("features", "refactorings", "tests", "broken", "index", "further")
    waiting, order = [change for kind in kinds for change in read_changes(kind)], list[Change]()
    while waiting:
        ready = next(change for change in waiting if {each.name for each in order}.issuperset(change.needs))
        waiting.remove(ready)
        order.append(ready)
    return tree_after(
        [FeatureCost(check_interval=1, check_size=256).fill_placeholders(change) for change in order],
        first_release_tree(),
    )


@pytest.fixture(scope="session", params=["first release", "every change"])
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the engine's sources: as first released, or with all changes."""
    folder = tmp_path_factory.mktemp("engine")
    tree = first_release_tree() if request.param == "first release" else everything()
    for path, text in tree.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    return folder


def make(source: Path, build: Path, *targets: str, fails: bool = False) -> str:
    """Run the Makefile of ``source`` in the folder ``build``, and return the output."""
    build.mkdir(parents=True, exist_ok=True)
    argv = ["make", "-j2", "-f", f"{source}/Makefile", "CC=gcc", f"CFLAGS={FLAGS}", *targets]
    pipe, same = subprocess.PIPE, subprocess.STDOUT
    done = subprocess.run(argv, check=False, cwd=build, stdout=pipe, stderr=same, text=True, timeout=600)
    assert bool(done.returncode) is fails, done.stdout
    assert not fails or "error:" in done.stdout
    return done.stdout


@pytest.fixture(scope="session")
def library(engine: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The shared library built from ``engine``."""
    build = tmp_path_factory.mktemp("build")
    make(engine, build)
    return build / "libdemo.so"


Stored = tuple[int, int, bytes]
Table = dict[int, tuple[int, bytes]]


class Row(ctypes.Structure):
    _fields_ = [
        ("id", ctypes.c_uint32),
        ("k", ctypes.c_uint32),
        ("c", ctypes.c_char * 120),
        ("pad", ctypes.c_char * 60),
    ]


class Engine:
    """The demo library, called through ctypes, and an open table."""

    def __init__(self, path: Path) -> None:
        self.api = ctypes.CDLL(str(path))
        self.api.demo_create.restype = self.api.demo_open.restype = ctypes.c_void_p
        self.rows = (Row * MOST)()
        self.db = ctypes.c_void_p(self.api.demo_create())

    def call(self, name: str, *arguments: Any) -> int:
        return int(getattr(self.api, f"demo_{name}")(self.db, *arguments))

    def read(self, name: str, first: int = 0, last: int = 2**32 - 1) -> list[Stored]:
        return [(row.id, row.k, row.c) for row in self.rows[: self.call(name, first, last, self.rows, MOST)]]

    def replay(self, commands: list[tuple[str, int, int, int, int]]) -> Table:
        """Execute commands on the engine and on a dictionary, and compare each status. Returns the dictionary."""
        table: Table = {}
        for what, first, count, stride, k in commands:
            for i in (at % 2**32 for at in range(first, first + count * stride, stride)):
                expected = (EXISTS if i in table else OK) if what == "insert" else OK if i in table else MISSING
                assert self.apply(what, i, k, table) == expected, (what, i, k)
        return table

    def apply(self, what: str, i: int, k: int, table: Table) -> int:
        text, there = b"%d" % k, table.get(i)
        match what:
            case "insert":
                table.setdefault(i, (k, text))
                return self.call("insert", ctypes.byref(Row(i, k, text, b"pad")))
            case "delete":
                table.pop(i, None)
                return self.call("delete", i)
        if there:
            table[i] = ((there[0] + k) % 2**32, there[1]) if what == "add" else (there[0], text)
        return self.call("add_to_k", i, k) if what == "add" else self.call("set_c", i, text.ljust(120, b"\0"))

    def open(self, path: Path) -> int:
        """Open a saved table, and return the status. If the status is not 0, the old table stays open."""
        status = ctypes.c_int(-1)
        opened = self.api.demo_open(str(path).encode(), ctypes.byref(status))
        if opened:
            self.api.demo_close(self.db)
            self.db = ctypes.c_void_p(opened)
        return status.value

    def save(self, path: Path) -> int:
        return self.call("save", str(path).encode())


COMMANDS = st.lists(
    st.tuples(
        st.sampled_from(["insert", "insert", "delete", "add", "set"]),
        st.integers(0, 3000) | st.just(2**32 - 1100),
        st.integers(1, 900),
        st.sampled_from([1, 1, 2]),
        st.integers(0, 50) | st.just(2**32 - 1),
    ),
    max_size=12,
)
FILLED = [("insert", 0, MOST, 1, 7), ("add", 0, MOST, 2, 5), ("delete", 0, MOST, 1, 0)]
GIVEN_BACK = [  # inserts rows before the first row, after the leaf for these rows was freed
    ("insert", 0, 43, 1, 0),
    ("insert", 2**32 - 1100, 15, 2, 2**32 - 1),
    ("delete", 0, 32, 1, 30),
    ("insert", 0, 12, 1, 2**32 - 1),
]


def consistent(engine: Engine, table: Table) -> None:
    rows = sorted((i, k, text) for i, (k, text) in table.items())[:MOST]
    assert engine.read("range") == rows
    assert engine.read("range_by_k") == sorted(rows, key=by_k) or len(table) > MOST
    assert engine.read("range", 100, 1500) == [row for row in rows if 100 <= row[0] <= 1500]
    assert engine.read("range_by_k", 3, 20) == sorted((row for row in rows if 3 <= row[1] <= 20), key=by_k)


def by_k(row: Stored) -> tuple[int, int]:
    return row[1], row[0]


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(commands=COMMANDS)
@example([*FILLED, *FILLED, ("insert", 0, MOST, 1, 7)])
@example(GIVEN_BACK)
def test_rows_index_and_file_agree_with_a_dictionary(
    library: Path, tmp_path: Path, commands: list[tuple[str, int, int, int, int]]
) -> None:
    engine = Engine(library)
    try:
        table = engine.replay(commands)
        consistent(engine, table)
        assert engine.save(tmp_path / "table") == engine.open(tmp_path / "table") == OK
        consistent(engine, table)
    finally:
        engine.call("close")


def test_damaged_file_is_not_opened(library: Path, tmp_path: Path) -> None:
    engine = Engine(library)
    engine.replay([("insert", 0, 500, 1, 3)])
    table, damaged = tmp_path / "table", tmp_path / "damaged"
    assert engine.save(table) == OK
    whole = table.read_bytes()
    for text in (whole[:-PAGE], whole[:9] + b"!" + whole[10:], whole[:-100] + b"!" + whole[-99:], b"", b"text"):
        damaged.write_bytes(text)
        assert engine.open(damaged) == CORRUPT
    assert engine.open(tmp_path / "nowhere") == engine.save(tmp_path / "no" / "folder") == IO
    engine.call("close")


@pytest.mark.slow
def test_engine_has_no_undefined_behaviour(engine: Path, tmp_path: Path) -> None:
    """The engine's own tests run with sanitizers."""
    sources = sorted(map(str, (engine / "src").glob("*.c")))
    flags = ["-std=c11", "-g", *FLAGS.split(), '-DDEMO_VERSION="test"', f"-I{engine}/src"]
    sanitizers = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    for test in sorted((engine / "tests").glob("*.c")):
        program = tmp_path / test.stem
        subprocess.run(["gcc", *flags, *sanitizers, "-o", str(program), str(test), *sources], check=True, timeout=600)
        subprocess.run([str(program)], check=True, cwd=tmp_path, timeout=600)


def test_makefile_checks_and_installs_the_library(engine: Path, tmp_path: Path) -> None:
    prefix = tmp_path / "prefix"
    assert "check: all is well" in make(engine, tmp_path / "build", "check", "install", f"PREFIX={prefix}")
    installed = sorted(str(path.relative_to(prefix)) for path in prefix.rglob("*.*"))
    assert installed == ["include/demo.h", "lib/libdemo.so"]
    asked = ["nm", "-D", "--defined-only", prefix / "lib/libdemo.so"]
    symbols = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.splitlines()
    assert all(line.split()[-1].startswith("demo_") for line in symbols), "only the interface is exported"


SAMPLE = 20  # every 20th commit of the range is compiled, and the special commits


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 5])  # broken commits side by side, and apart
def test_all_commits_except_two_compile(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    repository = tmp_path / "repository"
    answer = write_history(repository, seed)
    commits = git(repository, "rev-list", "--reverse", "--topo-order", f"{GOOD}..{BAD}").split()
    around = {c for broken in answer.broken for c in git(repository, "rev-list", "-2", broken).split()}
    fixed = {c for c in commits if set(git(repository, "rev-parse", f"{c}^").split()) & set(answer.broken)}
    monkeypatch.setenv("CCACHE_DIR", str(tmp_path / "ccache"))
    for commit in {*commits[::SAMPLE], commits[-1], answer.commit, answer.parent, *around, *fixed}:
        git(repository, "checkout", "-q", commit)
        make(repository, tmp_path / "build" / commit, "CC=ccache gcc", fails=commit in answer.broken)


def test_commit_that_changes_a_comment_keeps_the_binary(tmp_path: Path) -> None:
    repository = tmp_path / "repository"
    write_history(repository, 1)
    commit = git(repository, "log", "--format=%H", "--grep=Say what the checksum is made for", BAD)
    for revision in (commit, f"{commit}^"):
        git(repository, "checkout", "-q", revision)
        make(repository, tmp_path / revision)
    assert len({(tmp_path / each / "libdemo.so").read_bytes() for each in (commit, f"{commit}^")}) == 1


WORKLOADS = Path(__file__).parents[2] / "workloads"
SUITE = read_suite(WORKLOADS / "demo" / "suite.toml")
ROWS = 1000
EVENTS = 200


def sysbench(library: Path, data: Path, script: str, rows: int, *arguments: str, fails: bool = False) -> str:
    """Run sysbench with the library, and return the output."""
    environment = os.environ | {
        "LUA_PATH": f"{WORKLOADS}/?.lua;;",
        "PERFBISECT_LIBRARY": str(library),
        "PERFBISECT_DATA": str(data),
        "PERFBISECT_WARMUP": "0.01",
    }
    words = [f"--events={EVENTS}", "--time=0", str(WORKLOADS / "demo" / script), f"--table-size={rows}", *arguments]
    done = subprocess.run(
        ["sysbench", *words], check=False, env=environment, capture_output=True, text=True, timeout=600
    )
    assert bool(done.returncode) is fails, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_every_workload_runs(library: Path, tmp_path: Path) -> None:
    """A workload fails if the table or a row is missing."""
    whole, again, point = tmp_path / "whole", tmp_path / "again", "point-query.lua"
    for folder in (whole, again):
        folder.mkdir()
        sysbench(library, folder, "prepare.lua", ROWS, "prepare")
    loaded = (whole / "table.demo").read_bytes()
    assert (again / "table.demo").read_bytes() == loaded, "loading is deterministic"
    for name, workload in SUITE.workloads.items():
        copy = shutil.copytree(whole, tmp_path / name)
        arguments = (f"--{key}={value}" for key, value in workload.args.items() if key != "table-size")
        said = sysbench(library, copy, workload.script, ROWS, *arguments, "run")
        assert int(re.findall(r"total number of events:\s+(\d+)", said)[0]) == EVENTS
        assert (copy / "table.demo").read_bytes() == loaded, "a run saves nothing"
    assert "demo_open failed with status 4" in sysbench(library, tmp_path, point, ROWS, "run", fails=True)
    assert "demo_get failed with status 1" in sysbench(library, whole, point, 100 * ROWS, "run", fails=True)
