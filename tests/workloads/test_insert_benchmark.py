"""The Insert Benchmark on PostgreSQL and MariaDB: the results of each step equal the counters of the server."""

import dataclasses
import tempfile
from pathlib import PurePosixPath

import pytest
from msgspec.structs import replace

import sample_hunt
from installed_servers import BUILDERS, WORKLOADS, Installed
from labs import lab_of, measure, runs
from perfbisect.core.domain.metrics import CLIENT_BUSY, most_delayed_background, share_of_required_rate
from perfbisect.core.domain.orders import PlannedRuns
from perfbisect.host.local import LocalHost
from perfbisect.lab.measure.studies import parse_plans, shortened_for_statements
from perfbisect.lab.workload import sysbench
from perfbisect.lab.workload.sysbench import RunResult
from perfbisect.recipes.builder import Builder
from perfbisect.recipes.placeholders import Values
from perfbisect.recipes.requested import with_overrides
from perfbisect.recipes.workload import Option, Workload, load_workload, read_suite
from repos import Repo
from waiting import until

pytestmark = [pytest.mark.dbms, pytest.mark.slow]

SUITE = WORKLOADS / "insert-benchmark"
STEPS = read_suite(SUITE / "suite.toml").workloads
CLIENTS, ROWS = 2, 2000  # each client has a table
LIMIT = 10  # rows of a query


class Server(Installed):
    """A running server, whose databases the suite loads."""

    def load(self, database: str, after: str, **args: Option) -> None:
        self.create(database)
        sizes: dict[str, Option] = {"tables": CLIENTS, "rows": ROWS, "after": after, **args}
        workload = replace(STEPS["qr100"], prepare_args=sizes)
        self.sysbench(sysbench.prepare_argv(workload, SUITE / workload.prepare_script, self.options(database)))

    def printed_lines(self, step: Workload, database: str = "steps", **args: Option) -> list[str]:
        """The lines that a step prints in a run of one second without warm-up."""
        quick = replace(step, time=1, threads=CLIENTS * step.threads, args={**step.args, "tables": CLIENTS, **args})
        return self.sysbench(sysbench.run_argv(quick, SUITE / step.script, self.options(database))).splitlines()

    def step(self, name: str, database: str = "steps", **args: Option) -> RunResult:
        return sysbench.parse_output(self.printed_lines(STEPS[name], database, **args), STEPS[name].operation)

    def written(self, database: str) -> tuple[int, int]:
        """The numbers of inserted and deleted rows, counted by the server.

        PostgreSQL adds most counts of a connection when its process ends, after the client has disconnected.
        """
        if self.mysql:
            inserted, deleted = self.status("Handler_write", "Handler_delete")
            return inserted, deleted
        others = "from pg_stat_activity where backend_type = 'client backend' and pid <> pg_backend_pid()"
        until(lambda: self.sql(f"select count(*) {others}", database).strip() == "0")
        inserted, deleted = self.sql("select sum(n_tup_ins), sum(n_tup_del) from pg_stat_user_tables", database).split()
        return int(inserted), int(deleted)

    def answered(self) -> tuple[int, int]:
        """The number of queries, and of the rows that they returned, counted by the server."""
        if self.mysql:
            queries, rows = self.status("Com_select", "Rows_sent")
            return queries, rows
        counted = "from pg_stat_statements where query ~ '^SELECT .* FROM pi'"
        calls, rows = self.sql(f"select sum(calls), sum(rows) {counted}", "steps").split()
        return int(calls), int(rows)

    def state(self) -> list[list[int]]:
        """The number of rows, the first key and the last key of each table."""
        asked = "select count(*), coalesce(min(transactionid), 0), coalesce(max(transactionid), 0) from pi{}"
        found = [self.sql(asked.format(client + 1), "steps").split() for client in range(CLIENTS)]
        return [[int(number) for number in each] for each in found]

    def indexes(self) -> int:
        """The number of secondary indexes of all tables."""
        if self.mysql:
            where = "table_schema = 'steps' and seq_in_index = 1 and index_name <> 'PRIMARY'"
            return int(self.sql(f"select count(*) from information_schema.statistics where {where}", "steps"))
        return int(self.sql("select count(*) from pg_indexes where indexname ~ '^pi._[mrp].*[tc]$'", "steps"))


@pytest.fixture(scope="module")
def server(installed_server: tuple[Builder, Values]) -> Server:
    running = Server(*installed_server)
    running.load("steps", "none")
    if not running.mysql:
        running.sql("create extension pg_stat_statements", "steps")
    return running


def counted(server: Server, name: str, database: str = "steps", **args: Option) -> tuple[RunResult, int, int]:
    """The result of a step, and the numbers of rows that the server inserted and deleted meanwhile."""
    before = server.written(database)
    outcome = server.step(name, database, **args)
    after = server.written(database)
    return outcome, after[0] - before[0], after[1] - before[1]


def done(outcome: RunResult, role: str) -> float:
    return outcome.counters[f"{role}-done"] or 0


def test_results_of_successive_steps_equal_counters_of_the_server(server: Server) -> None:
    """Each step leaves the tables as the next step needs them."""
    outcome, inserted, deleted = counted(server, "l.i0")
    assert (inserted, deleted) == (outcome.operations, 0)
    assert sum(rows for rows, _, _ in server.state()) == outcome.operations
    loaded = outcome.operations

    assert server.indexes() == 0
    assert server.step("l.x").operations == loaded
    assert server.step("l.x").operations == loaded, "a second run makes the indexes again"
    assert server.indexes() == 3 * CLIENTS

    for name in ("l.i1", "l.i2"):
        batch = int(STEPS[name].args["rows-per-commit"])
        before = server.state()
        outcome, inserted, deleted = counted(server, name)
        assert inserted == outcome.operations == done(outcome, "insert") > 0
        assert deleted == done(outcome, "delete") > 0
        assert 0 <= inserted - deleted <= 11 * batch * CLIENTS, "a client is at most ten transactions ahead"
        for (_, oldest, newest), (rows, first, last) in zip(before, server.state(), strict=True):
            assert first >= oldest, "the oldest rows are deleted, except by a client that a busy machine delays"
            assert last > newest, "new rows are added after the last row"
            assert last - first + 1 == rows, "no row is missing in between"

    for name in ("qr100", "qp1000"):
        rate = int(STEPS[name].args["background"])
        queries, sent = server.answered()
        outcome, inserted, deleted = counted(server, name)
        assert (inserted, deleted) == (done(outcome, "insert"), done(outcome, "delete"))
        due = rate * CLIENTS  # a busy machine does less than is due
        assert outcome.counters["insert-due"] == due >= max(inserted, deleted) > 0
        now_queries, now_sent = server.answered()
        assert outcome.operations == done(outcome, "query")
        beyond = now_queries - queries - outcome.operations
        assert 0 <= beyond <= 6 * CLIENTS, "also queries for the oldest and newest keys"
        fewest = 9 if name == "qr100" else 0.9 * LIMIT  # fewer at the end of an index, or for ids just deleted
        assert fewest * outcome.operations < now_sent - sent < LIMIT * outcome.operations + 100
        assert 0 < (outcome.counters[CLIENT_BUSY] or 0) < 1
        p95, p99, longest = (outcome.latency[kind] or 0 for kind in ("p95", "p99", "max"))
        assert 0 < p95 <= p99 <= 1.05 * longest


def test_unsustainable_background_rate_is_reported(server: Server) -> None:
    server.load("behind", "l.x")
    outcome, inserted, deleted = counted(server, "qr1000", "behind", background=10_000_000)
    assert (inserted, deleted) == (done(outcome, "insert"), done(outcome, "delete"))
    assert outcome.operations
    assert outcome.counters["insert-due"] == outcome.counters["insert-rate"] == 10_000_000 * CLIENTS
    found = most_delayed_background([dataclasses.replace(sample_hunt.run(0, 0.0), counters=outcome.counters)])
    assert found
    assert not found.sustained


def test_due_rows_are_the_transactions_that_fit_into_the_run(server: Server) -> None:
    """A client does 100 rows in the second of a run. Its first transaction is due after half an interval."""
    server.load("due", "l.x")
    for rows in (60, 40):
        outcome = server.step("qr100", "due", **{"rows-per-commit": rows})
        assert outcome.counters["insert-due"] == 2 * rows * CLIENTS >= done(outcome, "insert")
        assert outcome.counters["insert-batch"] == rows * CLIENTS
    too_few = "background=100 rows per second are not half a transaction of rows-per-commit=200"
    with pytest.raises(AssertionError, match=too_few):
        server.printed_lines(STEPS["qr100"], "due", **{"rows-per-commit": 200})


def test_prepare_writes_all_requested_rows(server: Server) -> None:
    """4/5 of 93 rows are no multiple of the 50 rows of a transaction, and 1/5 is no multiple of 5 rows."""
    for after, written in (("l.i1", 74), ("l.i2", 93)):
        name = f"of_{written}"
        server.load(name, after, written=93, tables=1)
        counts = server.sql("select count(*), min(transactionid), max(transactionid) from pi1", name)
        assert counts.split() == [str(ROWS), str(written + 1), str(ROWS + written)]


def test_single_thread_executes_the_statements_of_all_roles(server: Server) -> None:
    server.load("planned", "l.i2", written=100)
    argv = sysbench.run_argv(
        shortened_for_statements(STEPS["qp100"]), WORKLOADS / "plans.lua", server.options("planned")
    )
    plans = parse_plans(server.sysbench(argv, PERFBISECT_SCRIPT=str(SUITE / "query.lua")).splitlines())
    assert {statement.split(" pi1")[0] for statement in plans} >= {
        "SELECT transactionid, productid, data FROM", "INSERT INTO", "DELETE FROM",
    }  # fmt: skip


def test_number_of_threads_that_does_not_fit_the_tables_is_refused(server: Server) -> None:
    with pytest.raises(AssertionError, match="this step has 3 threads for each table: give --threads 9"):
        server.printed_lines(STEPS["qr100"], tables=3)


@pytest.mark.parametrize("builder", BUILDERS)
def test_visit_measures_a_step_of_the_suite(builder: Builder, git: Repo) -> None:
    """From the name of the shipped workload to a run on the tables that l.i2 leaves."""
    overrides = {"rows": "1000", "tables": "2", "threads": 6, "time": 1, "warmup": 0.2}
    workload = with_overrides(load_workload("insert-benchmark/qp500", builder.driver), overrides)
    with tempfile.TemporaryDirectory(prefix="lab") as root:
        host = LocalHost("here", PurePosixPath(root))
        lab = lab_of(host, builder, workload, git.path, (git.commit({"some.conf": ""}),))
        (run,) = runs(measure(lab, PlannedRuns(0, 1)))
        assert run.operations == run.counters["query-done"]
        assert run.counters["insert-due"] == 2 * 500, "without the warm-up"
        assert share_of_required_rate(run)
