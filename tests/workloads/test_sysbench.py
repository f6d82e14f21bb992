"""The file of the suite sysbench, and what each workload does on a real PostgreSQL and a real MariaDB."""

import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
from msgspec.structs import replace

from installed_servers import WORKLOADS, Installed
from perfbisect.lab.workload import sysbench
from perfbisect.lab.workload.lua import SYSBENCH_DRIVERS, prepare_script, script_and_modules, timed_run_script
from perfbisect.lab.workload.sysbench import RunResult
from perfbisect.recipes.builder import Builder
from perfbisect.recipes.placeholders import Values
from perfbisect.recipes.workload import Option, Workload, read_suite, workloads_for_each_driver

FOLDER = WORKLOADS / "sysbench"
SUITE = read_suite(FOLDER / "suite.toml")
ALL = SUITE.workloads
WRITE = {name for name, workload in ALL.items() if workload.group == "write"}
TABLES, SIZE, EVENTS = 2, 1000, 20
SMALL: Mapping[str, Option] = {"tables": TABLES, "table-size": SIZE}


def test_drivers_seeds_and_operations_of_workloads() -> None:
    """Each workload has both drivers. Workloads that write have a new seed in each run. Transactions count queries."""
    found = workloads_for_each_driver(SUITE)
    assert (len(found), {workload.driver for workload in found}) == (2 * len(ALL), set(SYSBENCH_DRIVERS))
    assert {name for name, workload in ALL.items() if workload.args.get("rand-seed") == 0} == WRITE
    for workload in ALL.values():
        assert (workload.operation == "query") == (workload.script == "transaction.lua")


def test_pre_workloads_differ_only_in_the_dataset() -> None:
    for name, workload in ALL.items():
        churned = workload.prepare_args.get("churn", 0)
        assert churned == (0 if name.endswith(".pre") or name in WRITE else 1), name
        if name.endswith(".pre"):
            like = ALL[name.removesuffix(".pre")]
            same = {"name": name, "summary": workload.summary, "prepare_args": workload.prepare_args}
            assert replace(like, **same) == workload


def test_args_are_script_options_with_equal_tables_for_loading_and_runs() -> None:
    declared = re.findall(r"^    (\w+) = \{\"", (FOLDER / "sbtest.lua").read_text(), re.MULTILINE)
    known = {name.replace("_", "-") for name in declared} | {"rand-seed"}
    for workload in ALL.values():
        assert {*workload.args, *workload.prepare_args} <= known
        for arg in ("tables", "table-size"):
            assert workload.args[arg] == workload.prepare_args[arg] != 0
        assert workload.args.get("range-size", 0) <= workload.args["table-size"]  # type: ignore[operator]


def test_each_script_of_the_suite_is_used() -> None:
    scripts = [(each, script) for each in ALL.values() for script in (timed_run_script(each), prepare_script(each))]
    assert all(script for _, script in scripts)
    used = {path.name for each, script in scripts if script for path in script_and_modules(each, script)}
    assert used - {"perfbisect.lua"} == {path.name for path in FOLDER.glob("*.lua")}


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows that statements returned and changed."""

    sent: int = 0
    updated: int = 0
    deleted: int = 0
    inserted: int = 0


class Running(Installed):
    """A running server with the tables of the suite."""

    def load(self, database: str, **args: Option) -> None:
        """Create a database with the tables of the suite."""
        self.create(database)
        workload = replace(ALL["point-query"], prepare_args={**SMALL, **args})
        script = FOLDER / workload.prepare_script
        self.sysbench(sysbench.prepare_argv(workload, script, self.options(database)))

    def lines(self, workload: Workload, **args: Option) -> list[str]:
        """The output of a run in the database sbtest, on small tables."""
        width = min(SIZE, int(workload.args.get("range-size", 1)))
        workload = replace(workload, args={**workload.args, **SMALL, "range-size": width, **args})
        argv = sysbench.run_argv(workload, FOLDER / workload.script, self.options("sbtest"))
        return self.sysbench(argv, PERFBISECT_WARMUP=str(workload.warmup)).splitlines()

    def run(self, workload: Workload, **args: Option) -> RunResult:
        """The parsed output of ``lines``."""
        return sysbench.parse_output(self.lines(workload, **args), workload.operation)

    def rows(self, work: Callable[[], object]) -> Rows:
        """The rows that the server returned and changed during ``work``."""
        if self.mysql:
            names = ("Rows_sent", "Handler_update", "Handler_delete", "Handler_write")
            before = self.status(*names)
            work()
            sent, *changed = (now - then for now, then in zip(self.status(*names), before, strict=True))
            return Rows(sent - len(names), *changed)  # the queries of the status return rows, too
        self.sql("select pg_stat_statements_reset()", "postgres")
        work()
        counts = "coalesce(sum(rows) filter (where query like '{}%'), 0)"
        columns = ", ".join(counts.format(word) for word in ("SELECT", "UPDATE", "DELETE", "INSERT"))
        where = "dbid = (select oid from pg_database where datname = 'sbtest')"
        found = self.sql(f"select {columns} from pg_stat_statements where {where}", "postgres")
        return Rows(*map(int, found.split()))


@pytest.fixture(scope="module")
def server(installed_server: tuple[Builder, Values]) -> Running:
    """A server with the suite's tables, as loaded, in the database sbtest."""
    running = Running(*installed_server)
    if not running.mysql:
        running.sql("create extension pg_stat_statements", "postgres")
    running.load("sbtest")
    return running


def everything(server: Running, database: str = "sbtest") -> str:
    return "".join(server.sql(f"select * from sbtest{number} order by id", database) for number in range(1, TABLES + 1))


def test_tables_have_the_columns_and_values_of_sysbench(server: Running) -> None:
    match = "regexp" if server.mysql else "~"
    groups = "^([0-9]{11}-){%d}[0-9]{11} *$"
    for number in range(1, TABLES + 1):
        facts = f"count(*), count(distinct id), min(id), max(id) from sbtest{number} where k between 1 and {SIZE}"
        assert server.sql(f"select {facts}").split() == [str(SIZE), str(SIZE), "1", str(SIZE)]
        shapes = f"c {match} '{groups % 9}' and pad {match} '{groups % 4}'"
        texts = f"count(distinct c), count(distinct pad) from sbtest{number} where {shapes}"
        assert server.sql(f"select {texts}").split() == [str(SIZE), str(SIZE)]
        tenths = server.sql(f"select floor((k - 1) / {SIZE / 10}), count(*) from sbtest{number} group by 1").split()
        assert len(tenths) == 20
        assert all(60 < int(count) < 140 for count in tenths[1::2]), "uniform: 100 each, give or take 4 sigma"
        index = f"key_name = 'k_{number}'"
        if server.mysql:
            assert server.sql(f"show index from sbtest{number} where {index} and column_name = 'k'")
            assert "CHARSET=latin1" in server.sql(f"show create table sbtest{number}"), "whatever the server's default"
        else:
            found = server.sql(f"select indexdef from pg_indexes where indexname = 'k_{number}'")
            assert f"sbtest{number} USING btree (k)" in found


def test_each_loading_makes_the_same_data(server: Running) -> None:
    server.load("once", churn=1)
    server.load("again", churn=1)
    assert everything(server, "once") == everything(server, "again")
    fresh, churned = (
        [line.split("\t") for line in everything(server, database).splitlines()] for database in ("sbtest", "once")
    )
    assert [row[0] for row in fresh] == [row[0] for row in churned], "the same ids"
    kept = sum(old == new for old, new in zip(fresh, churned, strict=True))
    assert kept < 0.1 * len(fresh), "a row escapes each of three writes with a probability of 1/e"


ROWS = tomllib.loads((Path(__file__).parent / "rows.toml").read_text())
QUERIES = {"read-only": 16, "read-write": 20, "write-only": 6}
OF_ONE_RANGE = dict.fromkeys(("read-only-simple", "read-only-sum", "read-only-order", "read-only-distinct"), 13)


def test_each_workload_reads_and_changes_the_stated_rows(server: Running) -> None:
    wrong = {}
    for seed, (name, workload) in enumerate(ALL.items(), 1):
        plain = name.removesuffix(".pre")
        outcomes: list[RunResult] = []
        args: dict[str, Option] = {"events": EVENTS, "time": 0, "rand-seed": seed}
        quick = replace(workload, warmup=0)
        rows = server.rows(lambda quick=quick, args=args, to=outcomes: to.append(server.run(quick, **args)))
        queries = 1
        if workload.operation == "query":
            queries = OF_ONE_RANGE.get(plain) or next(QUERIES[kind] for kind in QUERIES if plain.startswith(kind))
        if outcomes[0].operations != queries * EVENTS:
            wrong[name] = f"{outcomes[0].operations} operations"
        for kind, expected in ROWS.items():
            least, most = expected.get(plain, (0, 0))
            if not least * EVENTS <= (found := getattr(rows, kind)) <= most * EVENTS:
                wrong[f"{name}, {kind}"] = f"{found} is not in {least * EVENTS} to {most * EVENTS}"
    assert not wrong
    new = [server.sql(f"select count(*), max(id) from sbtest{number} where id > {SIZE}").split() for number in (1, 2)]
    assert sum(int(count) for count, _ in new) == EVENTS, "insert goes on where the loaded ids end"
    assert all(int(last) - SIZE >= int(count) for count, last in new)


def test_zipfian_updates_prefer_low_ids(server: Running) -> None:
    server.sql("create table earlier as select id, c from sbtest1")
    server.run(replace(ALL["update-zipf"], warmup=0), **{"events": 400, "time": 0, "rand-seed": 1, "tables": 1})
    changed = server.sql("select id from sbtest1 join earlier using (id) where sbtest1.c <> earlier.c")
    ids = [int(line) for line in changed.split()]
    # Of 400 draws, 0.53 are below 101; many of these are of the same few rows.
    assert 0.25 < sum(each <= 100 for each in ids) / len(ids) < 0.5
    assert 0.02 < sum(each > 900 for each in ids) / len(ids) < 0.1


def test_operations_of_the_warmup_are_not_counted(server: Running) -> None:
    threads = 2
    lines = server.lines(replace(ALL["read-only-10"], warmup=0.5, time=1, threads=threads))
    events, queries = (sysbench.parse_output(lines, operation).operations for operation in ("event", "query"))
    assert abs(queries - 16 * events) <= 16 * threads, "except events that the window cuts"


def test_conflicts_of_transactions_stop_no_run(server: Running) -> None:
    """Four threads write to the same three rows, so the server aborts some transactions, also in the warm-up."""
    count = "select count(*) from sbtest1 where id <= 3"
    before = server.sql(count)
    narrow: dict[str, Option] = {"tables": 1, "table-size": 3, "ranges": ""}
    lines = server.lines(replace(ALL["read-write-10"], warmup=0.5, time=1, threads=4), **narrow)
    (errors,) = (int(line.split()[2]) for line in lines if "ignored errors:" in line)
    assert errors
    assert server.sql(count) == before
