"""Plans of statements, asked from SQLite on a real host. Servers are asked in tests/e2e."""

import ctypes
import ctypes.util
from pathlib import Path, PurePosixPath

import pytest
from msgspec.structs import replace

from perfbisect.core.domain.events import Planned
from perfbisect.core.domain.orders import Purpose
from perfbisect.errors import RunFailed
from perfbisect.host.local import LocalHost
from perfbisect.lab.measure.studies import PlanStudy, has_statements, parse, short
from perfbisect.lab.measure.visit import RunContext, Turn
from perfbisect.lab.servers import System
from perfbisect.lab.workload import dataset, lua, sysbench
from perfbisect.recipes.builder_reader import load_builder
from perfbisect.recipes.inventory import HostEntry
from perfbisect.recipes.workload import Workload, load_workload

PRINTED = r"""sysbench 1.0.20
perfbisect statement: SELECT a,\n  '\\n' FROM t
perfbisect plan: Seq Scan on t
perfbisect plan:   Filter: (b = 1)
FATAL: a line of another program
perfbisect statement: COMMIT
perfbisect statement: SELECT 1
perfbisect plan: Result
"""


def test_what_the_script_prints() -> None:
    assert parse(PRINTED.splitlines()) == {
        "SELECT a,\n  '\\n' FROM t": "Seq Scan on t\n  Filter: (b = 1)",
        "SELECT 1": "Result",
    }


def test_a_run_that_only_shows_its_statements_is_short() -> None:
    workload = load_workload("range-covered-si", "sqlite")
    argv = sysbench.command(short(workload), Path("plans.lua"))
    assert {"--threads=1", "--time=2", "--events=10", "--rand-seed=1", "--on-id=off"} <= {*argv}


def test_who_asks() -> None:
    """A driver has its own script; sysbench's drivers share one; a command and an engine without SQL have none."""
    root = Path(__file__).parents[3] / "workloads"
    assert lua.explaining(load_workload("scan", "sqlite")) == root / "sqlite" / "plans.lua"
    assert lua.explaining(load_workload("scan", "pgsql")) == root / "plans.lua"
    assert not has_statements(load_workload("scan", "demo"))
    assert not has_statements(Workload(summary="", group="", driver="mysql", command=["true"]))


def shared_library() -> PurePosixPath:
    """The machine's own SQLite."""
    name = ctypes.util.find_library("sqlite3")
    if name is None:
        pytest.skip("no shared libsqlite3 on this machine")
    ctypes.CDLL(name)
    loaded = (line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "libsqlite3" in line)
    return PurePosixPath(next(loaded))


@pytest.mark.tools
@pytest.mark.parametrize(
    ("name", "statement", "plan"),
    [
        (
            "range-notcovered-si",
            "SELECT k, c FROM sbtest1 WHERE k BETWEEN ? AND ?",
            "SEARCH sbtest1 USING INDEX k_1 (k>? AND k<?)",
        ),
        (
            "update-index",
            "UPDATE sbtest1 SET k = k + 1 WHERE id = ?",
            "SEARCH sbtest1 USING INTEGER PRIMARY KEY (rowid=?)",
        ),
    ],
)
def test_the_plans_of_sqlite(name: str, statement: str, plan: str, host: LocalHost) -> None:
    library, size = shared_library(), {"table-size": 1000}
    workload = load_workload(name, "sqlite")
    workload = replace(workload, args={**workload.args, **size}, prepare_args={**workload.prepare_args, **size})
    builder = replace(load_builder("sqlite"), library=library.name)
    system = System("a commit", "key", library.parent, builder)
    context = RunContext(host, HostEntry(name="here"), workload, lua.place(host, workload))
    data, _ = dataset.make(host, system, workload)
    ended: list[None] = []
    turn = Turn(3, 1, 1, 1, Purpose.EXPLAIN, left=1)
    [event] = PlanStudy(context, lambda: ended.append(None)).visit(system, data, turn)
    assert isinstance(event, Planned)
    assert (event.candidate, event.facts.commit, event.facts.build_key) == (3, "a commit", "key")
    assert (event.facts.statement, event.facts.plan.replace(" TABLE ", " ")) == (statement, plan)
    assert (len(ended), turn.left) == (1, 0)
    assert not list(Path(host.root, "jobs").iterdir())


@pytest.mark.tools
def test_a_script_that_fails(host: LocalHost) -> None:
    library = shared_library()
    workload = replace(load_workload("left-join-view", "sqlite"), statement="SELECT a FROM nowhere")
    system = System("a commit", "key", library.parent, replace(load_builder("sqlite"), library=library.name))
    context = RunContext(host, HostEntry(name="here"), workload, lua.place(host, workload))
    with pytest.raises(RunFailed, match=r"its statements cannot be explained: .*no such table: nowhere"):
        list(PlanStudy(context, lambda: None).visit(system, "", Turn(0, 1, 1, 1, Purpose.EXPLAIN, left=1)))
