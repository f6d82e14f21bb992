"""Visits to the PostgreSQL and MariaDB of this machine, by recipes; "builds" differ only in their settings."""

import contextlib
import json
import os
import re
import signal
import socket
import tempfile
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
from msgspec.structs import replace

from labs import lab_of, measure, runs, skipped, warnings, workload_of
from perfbisect.core.domain.events import LabEvent, RunProgress, RunStarted
from perfbisect.core.domain.orders import Measure, PlannedRuns, Purpose
from perfbisect.errors import EnvironmentFailure
from perfbisect.host import jobs
from perfbisect.host.local import LocalHost
from perfbisect.lab import servers
from perfbisect.lab.host_lab import EarlierAttempts, HostLab
from perfbisect.lab.measure import visit
from perfbisect.recipes.builder_reader import load_builder
from perfbisect.recipes.workload import Workload
from postgres import BIN, needs_postgres
from repos import Repo
from waiting import ended, finish, processes, until

pytestmark = [pytest.mark.dbms, pytest.mark.slow]


GIVEN = Path(__file__).parent / "given"
RECIPE = (GIVEN / "postgres.toml").read_text().replace("PROGRAMS", str(BIN)).replace("VERSION", BIN.parent.name)
SERVER = tomllib.loads((Path(__file__).parents[2] / "builders" / "postgres" / "builder.toml").read_text())["server"]

WORKLOAD = workload_of(
    prepare="create table t (id int primary key, k int);\ninsert into t select i, i from generate_series(1, 20000) i;",
    check="select count(*), sum(k) from t",
    statement="select k from t where id = 777",
    operation="query",
    warmup=0.1,
    time=1.0,
)

# A workload with little load, for tests that do not compare speeds.
RESTING = replace(WORKLOAD, statement="select k, pg_sleep(0.02) from t where id = 777")

PLAIN, SLOW, WRONG = "work_mem = 4MB\n", "enable_indexscan = off\nenable_bitmapscan = off\n", "no_such = 1\n"


@dataclass
class Place:
    """A host, and a recipe ``mine`` for a repository whose commits differ in the file ``extra.conf``."""

    folder: Path
    git: Repo
    host: LocalHost

    def recipe(self, text: str) -> None:
        folder = self.folder / "builders" / "mine"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "builder.toml").write_text(text)

    def commits(self, *texts: str) -> tuple[str, ...]:
        return tuple(self.git.commit({"extra.conf": text}) for text in texts)

    def lab(self, workload: Workload, hashes: tuple[str, ...], **more: Any) -> HostLab:
        builder, earlier = (
            load_builder("mine", self.folder / "builders"),
            EarlierAttempts(memory_mib=600, cores=3),
        )  # rounded down
        return lab_of(more.pop("host", self.host), builder, workload, self.git.path, hashes, earlier=earlier, **more)

    def server(self) -> tuple[jobs.Job, list[int]]:
        """The job of the running server, and its processes, without the servers of other tests."""
        (server,) = [job for job in jobs.running_jobs(self.host) if job.name == servers.NAME]
        below = self.host.run(["ps", "-e", "-o", "pid=", "-o", "ppid="]).stdout
        return server, [*servers.descendants(below, server.pid)[1:]]  # the first is `timeout`


@pytest.fixture
def place(tmp_path: Path, git: Repo) -> Iterator[Place]:
    """The root folder has a short path, because a socket's path is limited, and only the user may enter the folder."""
    with tempfile.TemporaryDirectory(prefix="lab") as root:
        made = Place(tmp_path, git, LocalHost("here", PurePosixPath(root)))
        made.recipe(RECIPE)
        yield made
        assert not (*jobs.running_jobs(made.host), *jobs.leaderless_jobs(made.host)), "no job is left"


@needs_postgres
def test_visit_to_postgres_counts_the_backend(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGHOSTADDR", "192.0.2.1")  # must not reach the measured server
    hashes = place.commits(PLAIN, SLOW)
    events = measure(place.lab(WORKLOAD, hashes), PlannedRuns(0, 2), PlannedRuns(1, 1))
    speed = {run.commit: run.qps for run in runs(events)}
    assert speed[hashes[0]] > 2 * speed[hashes[1]]
    assert len({run.dataset for run in runs(events)}) == 1, "the catalogue's version is the same"
    costs = {run.commit: (run.counters["task-clock"] or 0) / (run.operations or 1) for run in runs(events)}
    assert costs[hashes[1]] > 5 * costs[hashes[0]] > 0, "the backend is counted"
    assert not warnings(events)
    visited = Path(place.host.root, "visit")
    known = (visited / "config.known").read_text()
    for line in ("shared_buffers = 358MB", "max_parallel_workers = 3", "restart_after_crash = off"):
        assert line in known
    assert "checkpoint_segments" not in known, "removed in PostgreSQL 9.5"
    argv = ["env", "LC_ALL=C", str(BIN / "pg_controldata"), str(visited / "data")]
    table = place.host.run(argv).stdout
    assert "shut down" in table
    assert re.search(r"checksum version: +1", table)


@needs_postgres
def test_build_that_alone_answers_wrongly_is_skipped_and_data_stays(place: Place) -> None:
    note = "copy (select 'as loaded') to program 'cat >note'"
    check = "select split_part(pg_read_file('note'), E'\\n', 1), current_setting('enable_indexscan')"
    workload = replace(RESTING, prepare=f"{WORKLOAD.prepare}\n{note};", check=check)
    hashes = place.commits(PLAIN, SLOW, "work_mem = 5MB\n")
    measure(place.lab(workload, hashes), PlannedRuns(0, 1))

    lab = place.lab(workload, hashes, is_range=False)
    why = skipped(measure(lab, PlannedRuns(1, 1)))
    assert "gives as loaded off on a dataset that the build has loaded itself" in why.reason
    assert "gave as loaded on with the build that loaded" in why.reason
    events = measure(lab, PlannedRuns(0, 1))
    assert (warnings(events), len(runs(events))) == ([], 1)

    [kept] = Path(place.host.root, "datasets").iterdir()
    (kept / "data" / "note").write_text("as l0aded\n")
    events = measure(place.lab(workload, hashes), PlannedRuns(2, 1))
    [warned] = warnings(events)
    assert "gives as l0aded on, but gave as loaded on" in warned
    assert len(runs(events)) == 1


@needs_postgres
def test_crash_during_a_run_is_reported_with_the_log_of_the_server(place: Place) -> None:
    """One backend crashes; the postmaster ends a moment after sysbench has complained."""
    workload = replace(WORKLOAD, statement="select pg_sleep(0.01)", time=4.0)
    events: list[LabEvent] = []
    killed = False
    for event in place.lab(workload, place.commits(PLAIN, SLOW, "#\n")).measure(
        Measure((PlannedRuns(1, 1),), Purpose.SEARCH)
    ):
        events.append(event)
        if isinstance(event, RunProgress) and not killed:
            pids = ",".join(map(str, place.server()[1]))
            table = place.host.run(["ps", "-p", pids, "-o", "pid=", "-o", "args="]).stdout.splitlines()
            (backend,) = [line.split()[0] for line in table if "postgres: bench bench" in line]
            os.kill(int(backend), signal.SIGSEGV)
            killed = True
    facts = skipped(events)
    assert facts.stage == "run"
    assert "the server ended during the run" in facts.reason
    assert "terminated by signal 11" in facts.reason
    assert "Failed process was running" in Path(facts.log).read_text()


@needs_postgres
def test_occupied_port_skips_no_commit(place: Place) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        start = [*SERVER["start"][:-1], str(other.getsockname()[1]), "-h", "127.0.0.1"]
        place.recipe(RECIPE + f"start = {json.dumps(start)}\n")
        taken = "another process listens on the port or socket of the server: .*Address already in use"
        with pytest.raises(EnvironmentFailure, match=taken):
            measure(place.lab(RESTING, place.commits(PLAIN, SLOW)), PlannedRuns(0, 1))


@needs_postgres
def test_answer_of_another_server_is_a_failure(place: Place) -> None:
    hashes = place.commits(PLAIN, SLOW)
    events = place.lab(RESTING, hashes).measure(Measure((PlannedRuns(0, 1),), Purpose.SEARCH))
    next(event for event in events if isinstance(event, RunStarted))
    (served,) = Path(place.host.root, "visit", "data").glob(".s.PGSQL.*[0-9]")
    with tempfile.TemporaryDirectory(prefix="lab") as elsewhere:
        ready = [*SERVER["ready"]]
        ready[5], ready[7] = str(served.parent), served.name.rpartition(".")[2]
        place.recipe(RECIPE + f"ready = {json.dumps(ready)}\n")
        second = place.lab(RESTING, hashes, host=LocalHost("there", PurePosixPath(elsewhere)))
        with pytest.raises(EnvironmentFailure, match="another server answers on host there"):
            measure(second, PlannedRuns(0, 1))
    events.close()


@needs_postgres
@pytest.mark.parametrize("leader", [False, True])
def test_server_of_a_killed_session_is_ended(place: Place, leader: bool) -> None:
    """The session is killed; with ``leader``, so is the shell that leads the job of the server."""
    hashes = place.commits(PLAIN, SLOW)
    killed = os.fork()
    if not killed:
        with contextlib.suppress(BaseException):
            for event in place.lab(replace(RESTING, time=60.0), hashes).measure(
                Measure((PlannedRuns(0, 1),), Purpose.SEARCH)
            ):
                if isinstance(event, RunProgress):
                    os.kill(os.getpid(), signal.SIGKILL)
        os._exit(1)
    assert os.waitpid(killed, 0)[1] == signal.SIGKILL
    left, (postmaster, *_) = place.server()
    if leader:
        os.kill(left.pid, signal.SIGKILL)
        assert left not in jobs.running_jobs(place.host)
    assert Path(f"/proc/{postmaster}").exists()
    assert len(runs(measure(place.lab(RESTING, hashes), PlannedRuns(0, 1)))) == 1
    assert ended(postmaster)


def spent(pids: Iterable[int]) -> float:
    """The CPU seconds of processes. Processes that have ended count as 0."""
    ticks = 0
    for pid in pids:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            ticks += sum(map(int, Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]))
    return ticks / os.sysconf("SC_CLK_TCK")


@needs_postgres
@pytest.mark.parametrize("scope", ["connections", "server"])
def test_counters_of_connections_leave_out_the_rest_of_the_server(place: Place, scope: str) -> None:
    """A query that began before the run uses much CPU; the connection of the workload sleeps."""
    place.recipe(RECIPE + f'perf_scope = "{scope}"\n')
    lab = place.lab(replace(WORKLOAD, statement="select pg_sleep(0.1)", time=2.0), place.commits(PLAIN, SLOW))
    measure(lab, PlannedRuns(0, 1))
    system = lab._system(0)
    with visit.begin_visit(lab.runner.context, system, 0, lab.data.keys[system.commit]) as opened:
        assert opened.service
        query = "do $$ begin loop end loop; end $$"
        busy = jobs.start(place.host, [*opened.service.argv(SERVER["ready"])[:-1], query], name="busy", timeout=600)

        def busy_ones() -> list[int]:
            found = processes("postgres: bench postgres").keys() & {*place.server()[1]}
            return [pid for pid in found if spent([pid]) > 0.1]

        until(busy_ones)
        others, before = busy_ones(), spent(busy_ones())
        facts = finish(visit.timed_run(opened))[1]
        theirs = spent(others) - before
        jobs.kill(place.host, busy, grace_seconds=1)
    clock = facts.counters["task-clock"]
    assert clock is not None
    assert (clock / 1000 > 0.2 * theirs) == (scope == "server"), (clock, theirs)


MARIADB_WORKLOAD = replace(
    WORKLOAD,
    driver="mysql",
    prepare="create table t (id int primary key, k int);\ninsert into t select seq, seq from seq_1_to_20000;",
    statement="update t set k = k + 1 where id = 777",
)


@pytest.mark.skipif(not Path("/usr/sbin/mariadbd").exists(), reason="no MariaDB: apt-get install mariadb-server")
def test_visits_to_mariadb_of_two_sessions_share_a_dataset(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second session finds the dataset, and checks that the data are as loaded."""
    monkeypatch.setenv("MYSQL_PWD", "ours, for another server")
    place.recipe((GIVEN / "mariadb.toml").read_text())
    hashes = place.commits("# 1\n", "# 2\n")
    events = [
        *measure(place.lab(MARIADB_WORKLOAD, hashes), PlannedRuns(0, 2), PlannedRuns(1, 1)),
        *measure(place.lab(MARIADB_WORKLOAD, hashes), PlannedRuns(0, 1)),
    ]
    assert len({run.dataset for run in runs(events)}) == 1
    assert all(run.counters["task-clock"] for run in runs(events))
    assert not warnings(events)
    (kept,) = Path(place.host.root, "datasets").iterdir()
    assert sum(file.stat().st_size for file in kept.glob("data/binlog.0*")) < 1000, "the log of the loading is gone"
    assert "innodb_buffer_pool_size = 358M" in Path(place.host.root, "visit", "config").read_text()
