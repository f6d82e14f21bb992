"""Studies for the reason of a change: exact counts by function, groups of counters, and query plans."""

import ctypes
import ctypes.util
import shutil
from pathlib import Path, PurePosixPath

import pytest
from msgspec.structs import replace

from perfbisect.core.domain.events import (
    Counted,
    ExecutionStarted,
    LabEvent,
    Planned,
    Profiled,
    RunStarted,
    Unexplained,
)
from perfbisect.core.domain.orders import Purpose
from perfbisect.core.explain.evidence import BACK, EXACT_GROUP, FRONT, RETIRING, WRONG, category_slots
from perfbisect.errors import DatasetDamaged, RunFailed
from perfbisect.host.local import LocalHost
from perfbisect.lab.measure import counting, perf
from perfbisect.lab.measure.studies import (
    PLAIN,
    SLOTS,
    SOFTWARE,
    STALLS,
    FunctionCountStudy,
    PlanStudy,
    available_groups,
    choose_countable_groups,
    has_query_plans,
    parse_plans,
    shortened_context,
    shortened_for_statements,
)
from perfbisect.lab.measure.visit import RunContext, Turn
from perfbisect.lab.servers import Installation
from perfbisect.lab.workload import dataset, lua, sysbench
from perfbisect.lab.workload.dataset import DatasetKeeper
from perfbisect.recipes.builder import Builder
from perfbisect.recipes.builder_reader import load_builder
from perfbisect.recipes.inventory import HostEntry
from perfbisect.recipes.workload import Workload, load_workload

LOOP = Workload(summary="", group="", command=["sh", "-c", "i=0; while [ $i -lt {events} ]; do i=$((i + 1)); done"])


def counted(
    host: LocalHost, workload: Workload = LOOP, builds: tuple[int, ...] = (0, 1), events: int = 0, seconds: float = 30.0
) -> list[LabEvent]:
    """The events of one turn of each build; ``events`` is the number of operations that an earlier attempt found."""
    system = Installation("a commit", "key", host.root, Builder(summary="a shell", driver="command"))
    context = RunContext(host, HostEntry(name="here"), workload, lua.place_scripts(host, workload), perf=True)
    study, found = FunctionCountStudy(context, lambda: None, events, seconds), []
    for build in builds:
        found += study.run_turn(system, "", turn := Turn(build, 1, 1, 1, Purpose.EXPLAIN, runs_left=1))
        assert turn.runs_left == 0
    return found


@pytest.fixture
def version(host: LocalHost, monkeypatch: pytest.MonkeyPatch) -> str:
    """The version of this machine's valgrind, which counts."""
    if shutil.which("valgrind") is None:
        pytest.skip("no valgrind on this machine: apt-get install valgrind")
    found = host.run(["valgrind", "--version"]).stdout.strip()
    monkeypatch.setattr(counting, "counting_methods", lambda _: [found])
    return found


@pytest.mark.slow
@pytest.mark.tools
def test_all_builds_are_counted_with_one_length(host: LocalHost, version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of operations is found with the first build, or in an earlier attempt."""
    monkeypatch.setattr(counting, "ENOUGH_BY_FUNCTION", 4e6)
    events = counted(host)
    found = [event for event in events if isinstance(event, Counted)]
    assert [(each.candidate, each.group, each.facts.counted) for each in found] == [
        (build, EXACT_GROUP, version) for build in (0, 1)
    ]
    first, second = (event.facts for event in found)
    assert first.events == second.events > 1
    counts = [(facts.counters["instructions"] or 0) / facts.operations for facts in (first, second)]
    assert counts[0] == pytest.approx(counts[1], rel=1e-3)
    for facts, profile in zip(
        (first, second), [each.facts for each in events if isinstance(each, Profiled)], strict=True
    ):
        assert sum(profile.stacks.values()) == pytest.approx(facts.counters["instructions"], rel=0.01)
        assert profile.samples == 0 and profile.calls and profile.operations == first.operations
    monkeypatch.setattr(counting, "counting_methods", lambda _: [counting.PERF, version])
    again = counted(host, builds=(1,), events=123)
    assert [type(event) for event in again if not isinstance(event, ExecutionStarted | RunStarted)] == [Profiled]
    assert [event.operations for event in again if isinstance(event, ExecutionStarted)] == [123, 246]


@pytest.mark.tools
@pytest.mark.usefixtures("version")
def test_command_that_never_ends_under_valgrind_is_stopped(host: LocalHost) -> None:
    with pytest.raises(RunFailed, match="2 s"):
        counted(host, replace(LOOP, command=["sleep", "1000"]), seconds=0.5)


def test_perf_alone_leaves_functions_uncounted(host: LocalHost, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counting, "counting_methods", lambda _: [counting.PERF])
    [said] = counted(host, builds=(0,))
    assert isinstance(said, Unexplained)
    assert (said.part, "apt-get install valgrind" in said.reason) == ("instructions", True)


OUTPUTS = Path(__file__).parents[2] / "outputs"


def test_no_group_needs_more_counters_than_processors_have() -> None:
    """The argument has the syntax of perf."""
    assert all(len(group.events) <= 4 for group in (*PLAIN, STALLS))
    assert all(len(set(group.events)) == len(group.events) for group in (*PLAIN, *SLOTS, STALLS))
    assert PLAIN[0].perf_argument == "cycles,instructions,branches,branch-misses"
    assert SLOTS[1].perf_argument.startswith("{cpu_core/slots/,cpu_core/topdown-retiring/,")


def test_groups_of_counters_are_chosen_by_trials() -> None:
    """Slots are chosen if all are counted, else stalls; but no group that would count only cycles and instructions."""
    assert choose_countable_groups({group: {} for group in (*PLAIN, *SLOTS, STALLS)}) == (SOFTWARE,)
    counted = {"cycles": 1.0, "instructions": 1.0}
    counts = {group: counted | dict.fromkeys(group.events[2:]) for group in PLAIN}
    assert choose_countable_groups(counts) == (SOFTWARE,)
    assert choose_countable_groups({PLAIN[0]: dict.fromkeys(PLAIN[0].events)}) == (SOFTWARE,)
    plain = {PLAIN[0]: dict.fromkeys(PLAIN[0].events, 1.0)}
    assert choose_countable_groups(counts | plain) == (PLAIN[0],)
    stalls = {STALLS: {**counted, "stalled-cycles-frontend": 1.0, "stalled-cycles-backend": None}}
    every = dict.fromkeys(SLOTS[1].events, 1.0)
    assert choose_countable_groups(plain | stalls)[-1] is STALLS
    assert choose_countable_groups(plain | stalls | {SLOTS[1]: every})[-1] is SLOTS[1]
    assert choose_countable_groups(plain | stalls | {SLOTS[1]: every | {"slots": None}})[-1] is STALLS


def test_slots_of_an_intel_processor_agree_with_its_metrics() -> None:
    lines = (OUTPUTS / "perf-intel-top-down.csv").read_text().splitlines()
    counters = perf.parse_counters("\n".join(line.partition(",")[2] for line in lines if line[0] != "#"))
    total, shown = counters["TOPDOWN.SLOTS"], {RETIRING: 0.102, WRONG: 0.076, FRONT: 0.510, BACK: 0.311}
    assert total
    found = {category: (category_slots(counters, category) or 0.0) / total for category in shown}
    assert found == pytest.approx(shown, abs=0.006), "as perf printed them"


def test_discarded_slots_are_a_difference_and_never_negative() -> None:
    assert category_slots({"op_spec": 12.0, "op_retired": 10.0}, WRONG) == 2
    assert category_slots({"de_src_op_disp.all": 12.0, "ex_ret_ops": 10.0}, WRONG) == 2
    assert category_slots({"op_spec": 9.0, "op_retired": 10.0}, WRONG) is category_slots({}, WRONG) is None


@pytest.mark.tools
def test_this_machine_counts_each_group_without_multiplexing(host: LocalHost) -> None:
    groups = available_groups(host)
    assert groups
    for group in groups:
        argument = ",".join((*filter(None, [group.perf_argument]), *perf.SOFTWARE))
        printed = host.run(["perf", "stat", "-x", ",", "-e", argument, "--", "ls", "/"], check=False).stderr
        assert perf.parse_counters(printed)["task-clock"] is not None
        assert perf.counted_shares(printed) == {}, printed


def test_runs_of_studies_are_shortened_to_whole_seconds() -> None:
    workload = replace(load_workload("update-index", "demo"), time=20.0, warmup=2.0)
    host = LocalHost("here", PurePosixPath("/nowhere"))
    context = RunContext(host, HostEntry(name="here"), workload, host.root, perf=True)
    for seconds, time, warmup in ((0.2, 1, 1.0), (3.4, 3, 2.0), (99.0, 10, 2.0), (7.0, 7, 2.0)):
        shorter = shortened_context(context, seconds).workload
        assert (shorter.time, shorter.warmup) == (time, warmup)
        assert f"--time={time}" in sysbench.run_argv(shorter, PurePosixPath("x.lua"))
    argv = sysbench.run_argv(shortened_for_statements(load_workload("range-covered-si", "sqlite")), Path("plans.lua"))
    assert {"--threads=1", "--time=2", "--events=10", "--rand-seed=1", "--on-id=off"} <= {*argv}, "to show statements"


PRINTED = r"""sysbench 1.0.20
perfbisect statement: SELECT a,\n  '\\n' FROM t
perfbisect plan: Seq Scan on t
perfbisect plan:   Filter: (b = 1)
FATAL: a line of another program
perfbisect statement: COMMIT
perfbisect statement: SELECT 1
perfbisect plan: Result
"""


def test_plans_are_parsed_from_the_output_of_the_script() -> None:
    first = {"SELECT a,\n  '\\n' FROM t": "Seq Scan on t\n  Filter: (b = 1)"}
    assert parse_plans(PRINTED.splitlines()) == {**first, "SELECT 1": "Result"}


def test_script_for_plans_depends_on_the_driver() -> None:
    """Drivers may have an own script; sysbench's drivers share a script; commands and engines without SQL have none."""
    root = Path(__file__).parents[3] / "workloads"
    assert lua.plan_script(load_workload("scan", "sqlite")) == root / "sqlite" / "plans.lua"
    assert lua.plan_script(load_workload("scan", "pgsql")) == root / "plans.lua"
    assert not has_query_plans(load_workload("scan", "demo"))
    assert not has_query_plans(Workload(summary="", group="", driver="mysql", command=["true"]))


def of_sqlite(host: LocalHost, workload: Workload) -> tuple[Installation, RunContext]:
    """The machine's own SQLite, and the context of a run with it."""
    name = ctypes.util.find_library("sqlite3")
    if name is None:
        pytest.skip("no shared libsqlite3 on this machine")
    ctypes.CDLL(name)
    loaded = (line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "libsqlite3" in line)
    library = PurePosixPath(next(loaded))
    system = Installation("a commit", "key", library.parent, replace(load_builder("sqlite"), library=library.name))
    return system, RunContext(host, HostEntry(name="here"), workload, lua.place_scripts(host, workload))


RANGE = "SELECT k, c FROM sbtest1 WHERE k BETWEEN ? AND ?", "SEARCH sbtest1 USING INDEX k_1 (k>? AND k<?)"
UPDATE = "UPDATE sbtest1 SET k = k + 1 WHERE id = ?", "SEARCH sbtest1 USING INTEGER PRIMARY KEY (rowid=?)"


@pytest.mark.tools
@pytest.mark.parametrize(("name", "found"), [("range-notcovered-si", RANGE), ("update-index", UPDATE)])
def test_plans_of_sqlite_are_read(name: str, found: tuple[str, str], host: LocalHost) -> None:
    workload, size = load_workload(name, "sqlite"), {"table-size": 1000}
    workload = replace(workload, args={**workload.args, **size}, prepare_args={**workload.prepare_args, **size})
    system, context = of_sqlite(host, workload)
    keeper, ended = DatasetKeeper(host, workload, {}), []
    assert not list(keeper.ensure_loaded(system))
    key = keeper.keys["a commit"]
    study = PlanStudy(context, lambda: ended.append(None))
    [event] = study.run_turn(system, key, turn := Turn(3, 1, 1, 1, Purpose.EXPLAIN, runs_left=1))
    assert isinstance(event, Planned)
    assert (event.candidate, event.facts.commit, event.facts.build_key) == (3, "a commit", "key")
    assert (event.facts.statement, event.facts.plan.replace(" TABLE ", " ")) == found
    assert (len(ended), turn.runs_left) == (1, 0)
    assert not list(Path(host.root, "jobs").iterdir())
    Path(host.root, "datasets", key, "dataset.json").unlink()
    with pytest.raises(DatasetDamaged, match="is damaged: the record of its size is missing"):
        dataset.copy_for_visit(host, key, None)


@pytest.mark.tools
def test_failure_of_the_script_is_reported(host: LocalHost) -> None:
    workload = replace(load_workload("left-join-view", "sqlite"), statement="SELECT a FROM nowhere")
    system, context = of_sqlite(host, workload)
    with pytest.raises(RunFailed, match=r"plans of its statements are not available: .*no such table: nowhere"):
        list(PlanStudy(context, lambda: None).run_turn(system, "", Turn(0, 1, 1, 1, Purpose.EXPLAIN, runs_left=1)))
