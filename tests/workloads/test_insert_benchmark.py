"""The Insert Benchmark on a real PostgreSQL and a real MariaDB: each step against what the server counts itself."""

import dataclasses
import tempfile
from pathlib import PurePosixPath

import pytest
from msgspec.structs import replace

import sample_hunt
from installed_servers import BUILDERS, WORKLOADS, Installed
from labs import lab_of, measure, runs
from perfbisect.core.domain.metrics import CLIENT_BUSY, background_share, worst_background
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
    """A server with databases that this suite loads."""

    def load(self, database: str, after: str, **args: Option) -> None:
        self.create(database)
        sizes: dict[str, Option] = {"tables": CLIENTS, "rows": ROWS, "after": after, **args}
        workload = replace(STEPS["qr100"], prepare_args=sizes)
        self.sysbench(sysbench.prepare_argv(workload, SUITE / workload.prepare_script, self.options(database)))

    def said(self, step: Workload, database: str = "steps", **args: Option) -> list[str]:
        """What a second of a step prints, without warm-up."""
        quick = replace(step, time=1, threads=CLIENTS * step.threads, args={**step.args, "tables": CLIENTS, **args})
        return self.sysbench(sysbench.run_argv(quick, SUITE / step.script, self.options(database))).splitlines()

    def step(self, name: str, database: str = "steps", **args: Option) -> RunResult:
        return sysbench.parse_output(self.said(STEPS[name], database, **args), STEPS[name].operation)

    def written(self, database: str) -> tuple[int, int]:
        """Rows inserted and deleted so far, as the server has counted them.

        PostgreSQL adds most of what a connection has done only when its process ends, after the client has gone.
        """
        if self.mysql:
            inserted, deleted = self.status("Handler_write", "Handler_delete")
            return inserted, deleted
        others = "from pg_stat_activity where backend_type = 'client backend' and pid <> pg_backend_pid()"
        until(lambda: self.sql(f"select count(*) {others}", database).strip() == "0")
        inserted, deleted = self.sql("select sum(n_tup_ins), sum(n_tup_del) from pg_stat_user_tables", database).split()
        return int(inserted), int(deleted)

    def answered(self) -> tuple[int, int]:
        """Queries so far, and the rows that they have returned."""
        if self.mysql:
            queries, rows = self.status("Com_select", "Rows_sent")
            return queries, rows
        counted = "from pg_stat_statements where query ~ '^SELECT .* FROM pi'"
        calls, rows = self.sql(f"select sum(calls), sum(rows) {counted}", "steps").split()
        return int(calls), int(rows)

    def state(self) -> list[list[int]]:
        """Of each table: rows, the first and the last key."""
        asked = "select count(*), coalesce(min(transactionid), 0), coalesce(max(transactionid), 0) from pi{}"
        found = [self.sql(asked.format(client + 1), "steps").split() for client in range(CLIENTS)]
        return [[int(number) for number in each] for each in found]

    def indexes(self) -> int:
        """The secondary indexes of all tables."""
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
    """A step, and the rows that the server has inserted and deleted meanwhile."""
    before = server.written(database)
    outcome = server.step(name, database, **args)
    after = server.written(database)
    return outcome, after[0] - before[0], after[1] - before[1]


def done(outcome: RunResult, role: str) -> float:
    return outcome.counters[f"{role}-done"] or 0


def test_the_steps_in_their_order(server: Server) -> None:
    """What each step says that it did is what the server counts, and leaves the tables as the next one needs them."""
    outcome, inserted, deleted = counted(server, "l.i0")
    assert (inserted, deleted) == (outcome.operations, 0)
    assert sum(rows for rows, _, _ in server.state()) == outcome.operations
    loaded = outcome.operations

    assert server.indexes() == 0
    assert server.step("l.x").operations == loaded
    assert server.step("l.x").operations == loaded, "what an earlier run has made, it makes again"
    assert server.indexes() == 3 * CLIENTS

    for name in ("l.i1", "l.i2"):
        batch = int(STEPS[name].args["rows-per-commit"])
        before = server.state()
        outcome, inserted, deleted = counted(server, name)
        assert inserted == outcome.operations == done(outcome, "insert") > 0
        assert deleted == done(outcome, "delete") > 0
        assert 0 <= inserted - deleted <= 11 * batch * CLIENTS, "as many: ten transactions ahead at most"
        for (_, oldest, newest), (rows, first, last) in zip(before, server.state(), strict=True):
            assert first >= oldest, "the oldest are deleted; on a busy machine one client may not have come to it"
            assert last > newest, "at the other end new ones are added"
            assert last - first + 1 == rows, "nothing is missing between"

    for name in ("qr100", "qp1000"):
        rate = int(STEPS[name].args["background"])
        queries, sent = server.answered()
        outcome, inserted, deleted = counted(server, name)
        assert (inserted, deleted) == (done(outcome, "insert"), done(outcome, "delete"))
        due = rate * CLIENTS  # on a busy machine not all of it is done
        assert outcome.counters["insert-due"] == due >= max(inserted, deleted) > 0
        now_queries, now_sent = server.answered()
        assert outcome.operations == done(outcome, "query")
        beyond = now_queries - queries - outcome.operations
        assert 0 <= beyond <= 6 * CLIENTS, "and those for the oldest and newest keys"
        fewest = 9 if name == "qr100" else 0.9 * LIMIT  # at the end of an index, or of ids just deleted
        assert fewest * outcome.operations < now_sent - sent < LIMIT * outcome.operations + 100
        assert 0 < (outcome.counters[CLIENT_BUSY] or 0) < 1
        p95, p99, longest = (outcome.latency[kind] or 0 for kind in ("p95", "p99", "max"))
        assert 0 < p95 <= p99 <= 1.05 * longest


def test_a_rate_that_cannot_be_sustained_is_a_result(server: Server) -> None:
    server.load("behind", "l.x")
    outcome, inserted, deleted = counted(server, "qr1000", "behind", background=10_000_000)
    assert (inserted, deleted) == (done(outcome, "insert"), done(outcome, "delete"))
    assert outcome.operations
    assert outcome.counters["insert-due"] == outcome.counters["insert-rate"] == 10_000_000 * CLIENTS
    found = worst_background([dataclasses.replace(sample_hunt.run(0, 0.0), counters=outcome.counters)])
    assert found
    assert not found.sustained


def test_what_is_due_is_what_there_is_time_for(server: Server) -> None:
    """Of 100 rows in the second of a run; the first transaction of each client is due after half an interval."""
    server.load("due", "l.x")
    for rows in (60, 40):
        outcome = server.step("qr100", "due", **{"rows-per-commit": rows})
        assert outcome.counters["insert-due"] == 2 * rows * CLIENTS >= done(outcome, "insert")
        assert outcome.counters["insert-batch"] == rows * CLIENTS
    too_few = "background=100 rows per second are not half a transaction of rows-per-commit=200"
    with pytest.raises(AssertionError, match=too_few):
        server.said(STEPS["qr100"], "due", **{"rows-per-commit": 200})


def test_all_rows_that_are_asked_for_are_written(server: Server) -> None:
    """4/5 of 93 are no whole number of transactions of 50, and 1/5 none of 5."""
    for after, written in (("l.i1", 74), ("l.i2", 93)):
        name = f"of_{written}"
        server.load(name, after, written=93, tables=1)
        counts = server.sql("select count(*), min(transactionid), max(transactionid) from pi1", name)
        assert counts.split() == [str(ROWS), str(written + 1), str(ROWS + written)]


def test_a_single_thread_shows_the_statements_of_all_roles(server: Server) -> None:
    server.load("planned", "l.i2", written=100)
    argv = sysbench.run_argv(
        shortened_for_statements(STEPS["qp100"]), WORKLOADS / "plans.lua", server.options("planned")
    )
    plans = parse_plans(server.sysbench(argv, PERFBISECT_SCRIPT=str(SUITE / "query.lua")).splitlines())
    assert {statement.split(" pi1")[0] for statement in plans} >= {
        "SELECT transactionid, productid, data FROM", "INSERT INTO", "DELETE FROM",
    }  # fmt: skip


def test_threads_without_a_table_are_refused(server: Server) -> None:
    with pytest.raises(AssertionError, match="this step has 3 threads for each table: give --threads 9"):
        server.said(STEPS["qr100"], tables=3)


@pytest.mark.parametrize("builder", BUILDERS)
def test_a_visit_measures_a_step(builder: Builder, git: Repo) -> None:
    """The whole way: from the shipped suite, by its name, to a run on the tables as they are after l.i2."""
    asked = {"rows": "1000", "tables": "2", "threads": 6, "time": 1, "warmup": 0.2}
    workload = with_overrides(load_workload("insert-benchmark/qp500", builder.driver), asked)
    with tempfile.TemporaryDirectory(prefix="lab") as root:
        host = LocalHost("here", PurePosixPath(root))
        lab = lab_of(host, builder, workload, git.path, (git.commit({"some.conf": ""}),))
        (run,) = runs(measure(lab, PlannedRuns(0, 1)))
        assert run.operations == run.counters["query-done"]
        assert run.counters["insert-due"] == 2 * 500, "without the warm-up"
        assert background_share(run)
