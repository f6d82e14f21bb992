"""The engine against a dictionary: rows, index and file say the same after any changes."""

import ctypes
import os
import re
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from perfbisect.demo.history import BAD, GOOD, write_history
from perfbisect.demo.plan import Effort, Tree, applied, first_tree, read_changes
from perfbisect.recipes.workload import read_suite
from repos import git

pytestmark = [pytest.mark.tools, pytest.mark.xdist_group("engine")]  # which is built once


OK, MISSING, EXISTS, IO, CORRUPT = 0, 1, 2, 4, 5
MOST, PAGE = 4000, 4096
FLAGS = "-O1 -Wall -Wextra -Werror"


def everything() -> Tree:
    """The engine with all changes, with checks at every change of its index."""
    kinds = ("features", "refactorings", "tests", "broken", "index", "further")
    waiting = [change for kind in kinds for change in read_changes(kind)]
    order, there = [], set[str]()
    while waiting:
        ready = next(change for change in waiting if there.issuperset(change.needs))
        waiting.remove(ready)
        order.append(ready.filled(Effort(every=1, size=256).words))
        there.add(ready.name)
    return applied(order, first_tree())


@pytest.fixture(scope="session", params=["first release", "every change"])
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the engine's sources: as first released, or with all changes."""
    folder = tmp_path_factory.mktemp("engine")
    tree = first_tree() if request.param == "first release" else everything()
    for path, text in tree.items():
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return folder


def make(
    source: Path, build: Path, targets: Iterable[str] = (), flags: str = FLAGS
) -> subprocess.CompletedProcess[str]:
    """Run the Makefile of ``source`` in the folder ``build``; both outputs are in stdout."""
    build.mkdir(parents=True, exist_ok=True)
    argv = ["make", "-j2", "-f", f"{source}/Makefile", "CC=gcc", f"CFLAGS={flags}", *targets]
    return subprocess.run(
        argv, check=False, cwd=build, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=600
    )


@pytest.fixture(scope="session")
def library(engine: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The shared library built from ``engine``."""
    build = tmp_path_factory.mktemp("build")
    done = make(engine, build)
    assert done.returncode == 0, done.stdout
    return build / "libdemo.so"


class Row(ctypes.Structure):
    _fields_ = (
        ("id", ctypes.c_uint32),
        ("k", ctypes.c_uint32),
        ("c", ctypes.c_char * 120),
        ("pad", ctypes.c_char * 60),
    )


class Engine:
    """The library with the types of its functions, and a table."""

    def __init__(self, path: Path) -> None:
        self.api = ctypes.CDLL(str(path))
        self.api.demo_create.restype = self.api.demo_open.restype = ctypes.c_void_p
        self.rows = (Row * MOST)()
        self.db = ctypes.c_void_p(self.api.demo_create())

    def replay(self, commands: list[tuple[str, int, int, int, int]]) -> dict[int, tuple[int, bytes]]:
        """Obey, comparing each status with what a dictionary expects; returns the dictionary."""
        table: dict[int, tuple[int, bytes]] = {}
        for what, first, count, stride, k in commands:
            for i in (at % 2**32 for at in range(first, first + count * stride, stride)):
                expected = (EXISTS if i in table else OK) if what == "insert" else OK if i in table else MISSING
                assert self.one(what, i, k, table) == expected, (what, i, k)
        return table

    def one(self, what: str, i: int, k: int, table: dict[int, tuple[int, bytes]]) -> int:
        text = b"%d" % k
        match what:
            case "insert":
                table.setdefault(i, (k, text))
                return int(self.api.demo_insert(self.db, ctypes.byref(Row(i, k, text, b"pad"))))
            case "delete":
                table.pop(i, None)
                return int(self.api.demo_delete(self.db, i))
            case "add":
                if i in table:
                    table[i] = ((table[i][0] + k) % 2**32, table[i][1])
                return int(self.api.demo_add_to_k(self.db, i, k))
            case _:
                if i in table:
                    table[i] = (table[i][0], text)
                return int(self.api.demo_set_c(self.db, i, text.ljust(120, b"\0")))

    def by_id(self, first: int = 0, last: int = 2**32 - 1) -> list[tuple[int, int, bytes]]:
        count = self.api.demo_range(self.db, first, last, self.rows, MOST)
        return [(row.id, row.k, row.c) for row in self.rows[:count]]

    def by_k(self, first: int = 0, last: int = 2**32 - 1) -> list[tuple[int, int, bytes]]:
        count = self.api.demo_range_by_k(self.db, first, last, self.rows, MOST)
        return [(row.id, row.k, row.c) for row in self.rows[:count]]

    def open(self, path: Path) -> int:
        """Go on with a saved table; the status, and the old table stays where it is not 0."""
        status = ctypes.c_int(-1)
        opened = self.api.demo_open(str(path).encode(), ctypes.byref(status))
        if opened:
            self.close()
            self.db = ctypes.c_void_p(opened)
        return status.value

    def save(self, path: Path) -> int:
        return int(self.api.demo_save(self.db, str(path).encode()))

    def close(self) -> None:
        self.api.demo_close(self.db)


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


def consistent(engine: Engine, table: dict[int, tuple[int, bytes]]) -> None:
    rows = sorted((i, k, text) for i, (k, text) in table.items())[:MOST]
    assert engine.by_id() == rows
    if len(table) <= MOST:
        assert engine.by_k() == sorted(rows, key=lambda row: (row[1], row[0]))
    assert engine.by_id(100, 1500) == [row for row in rows if 100 <= row[0] <= 1500]
    assert engine.by_k(3, 20) == sorted((r for r in rows if 3 <= r[1] <= 20), key=lambda r: (r[1], r[0]))


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(commands=COMMANDS)
@example(
    commands=[
        *([("insert", 0, MOST, 1, 7), ("add", 0, MOST, 2, 5), ("delete", 0, MOST, 1, 0)] * 2),
        ("insert", 0, MOST, 1, 7),
    ]
)
@example(  # rows before the first one, after the leaf that had them was given back
    commands=[
        ("insert", 0, 43, 1, 0),
        ("insert", 2**32 - 1100, 15, 2, 2**32 - 1),
        ("delete", 0, 32, 1, 30),
        ("insert", 0, 12, 1, 2**32 - 1),
    ]
)
def test_rows_index_and_file_agree_with_a_dictionary(
    library: Path, tmp_path: Path, commands: list[tuple[str, int, int, int, int]]
) -> None:
    engine = Engine(library)
    try:
        table = engine.replay(commands)
        consistent(engine, table)
        assert engine.save(tmp_path / "table") == OK
        assert engine.open(tmp_path / "table") == OK
        consistent(engine, table)
    finally:
        engine.close()


def test_damage_is_noticed(library: Path, tmp_path: Path) -> None:
    engine = Engine(library)
    engine.replay([("insert", 0, 500, 1, 3)])
    table, damaged = tmp_path / "table", tmp_path / "damaged"
    assert engine.save(table) == OK
    whole = table.read_bytes()
    for text in (whole[:-PAGE], whole[:9] + b"!" + whole[10:], whole[:-100] + b"!" + whole[-99:], b"", b"text"):
        damaged.write_bytes(text)
        assert engine.open(damaged) == CORRUPT
    assert engine.open(tmp_path / "nowhere") == engine.save(tmp_path / "no" / "folder") == IO
    engine.close()


@pytest.mark.slow
def test_no_undefined_behaviour(engine: Path, tmp_path: Path) -> None:
    """The engine's own tests under the sanitizers."""
    sources = sorted(map(str, (engine / "src").glob("*.c")))
    flags = ["-std=c11", "-g", "-O1", "-Wall", "-Wextra", "-Werror", '-DDEMO_VERSION="test"', f"-I{engine}/src"]
    sanitizers = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    for test in sorted((engine / "tests").glob("*.c")):
        program = tmp_path / test.stem
        subprocess.run(["gcc", *flags, *sanitizers, "-o", str(program), str(test), *sources], check=True, timeout=600)
        done = subprocess.run([str(program)], check=False, cwd=tmp_path, capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, done.stderr


def test_the_makefile_has_what_it_promises(engine: Path, tmp_path: Path) -> None:
    done = make(engine, tmp_path / "build", ["check", "install", f"PREFIX={tmp_path}/prefix"])
    assert done.returncode == 0, done.stdout
    assert "check: all is well" in done.stdout
    installed = sorted(str(p.relative_to(tmp_path / "prefix")) for p in (tmp_path / "prefix").rglob("*.*"))
    assert installed == ["include/demo.h", "lib/libdemo.so"]
    asked = ["nm", "-D", "--defined-only", tmp_path / "prefix/lib/libdemo.so"]
    symbols = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.splitlines()
    assert all(line.split()[-1].startswith("demo_") for line in symbols), "only the interface is exported"


SAMPLE = 20  # every so many commits of the range, besides the interesting ones


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 5])  # broken commits side by side, and apart
def test_all_commits_compile_but_two(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    repository = tmp_path / "repository"
    answer = write_history(repository, seed)
    commits = git(repository, "rev-list", "--reverse", "--topo-order", f"{GOOD}..{BAD}").split()
    around = {c for broken in answer.broken for c in git(repository, "rev-list", "-2", broken).split()}
    fixed = {c for c in commits if set(git(repository, "rev-parse", f"{c}^").split()) & set(answer.broken)}
    chosen = [*commits[::SAMPLE], commits[-1], answer.commit, answer.parent, *around, *fixed]
    monkeypatch.setenv("CCACHE_DIR", str(tmp_path / "ccache"))
    failed = set()
    for commit in dict.fromkeys(chosen):
        git(repository, "checkout", "-q", commit)
        done = make(repository, tmp_path / "build" / commit, ["CC=ccache gcc"])
        if done.returncode:
            failed.add(commit)
            assert "error:" in done.stdout
    assert failed == set(answer.broken)


def test_a_comment_leaves_the_binary_as_it_was(tmp_path: Path) -> None:
    repository = tmp_path / "repository"
    write_history(repository, 1)
    commit = git(repository, "log", "--format=%H", "--grep=Say what the checksum is made for", BAD)
    binaries = set()
    for revision in (commit, f"{commit}^"):
        git(repository, "checkout", "-q", revision)
        assert make(repository, tmp_path / revision).returncode == 0
        binaries.add((tmp_path / revision / "libdemo.so").read_bytes())
    assert len(binaries) == 1


WORKLOADS = Path(__file__).parents[2] / "workloads"
SUITE = read_suite(WORKLOADS / "demo" / "suite.toml")
ROWS = 1000
EVENTS = 200


def sysbench(library: Path, data: Path, script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {
        "LUA_PATH": f"{WORKLOADS}/?.lua;;",
        "PERFBISECT_LIBRARY": str(library),
        "PERFBISECT_DATA": str(data),
        "PERFBISECT_WARMUP": "0.01",
    }
    argv = ["sysbench", f"--events={EVENTS}", "--time=0", str(WORKLOADS / "demo" / script), *arguments]
    return subprocess.run(argv, check=False, env=environment, capture_output=True, text=True, timeout=600)


@pytest.fixture(scope="module")
def dataset(library: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    done = sysbench(library, folder, "prepare.lua", f"--table-size={ROWS}", "prepare")
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_every_workload_runs(library: Path, dataset: Path, tmp_path: Path) -> None:
    loaded = (dataset / "table.demo").read_bytes()
    assert sysbench(library, tmp_path, "prepare.lua", f"--table-size={ROWS}", "prepare").returncode == 0
    assert (tmp_path / "table.demo").read_bytes() == loaded, "always the same"
    for name, workload in SUITE.workloads.items():
        copy = shutil.copytree(dataset, tmp_path / name)
        arguments = {**workload.args, "table-size": ROWS}
        done = sysbench(
            library, copy, workload.script, *(f"--{key}={value}" for key, value in arguments.items()), "run"
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert int(re.findall(r"total number of events:\s+(\d+)", done.stdout)[0]) == EVENTS
        assert (copy / "table.demo").read_bytes() == loaded, "a run saves nothing"


def test_a_missing_table_or_row_ends_the_run(library: Path, dataset: Path, tmp_path: Path) -> None:
    for data, size, said in (
        (tmp_path, ROWS, "demo_open failed with status 4"),
        (dataset, 100 * ROWS, "demo_get failed with status 1"),
    ):
        done = sysbench(library, data, "point-query.lua", f"--table-size={size}", "run")
        assert done.returncode != 0
        assert said in done.stdout + done.stderr
