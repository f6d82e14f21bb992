"""A command that measures a server: pgbench on Debian's PostgreSQL."""

import tempfile
from collections.abc import Callable
from pathlib import Path, PurePosixPath

import pytest

from labs import lab_of
from perfbisect.core.domain.events import CandidateSkipped, RunFinished
from perfbisect.core.domain.metrics import value
from perfbisect.core.domain.orders import Measure, Purpose, Share
from perfbisect.host.local import LocalHost
from perfbisect.recipes.workload import Workload
from postgres import AT, BIN, BUILDER, needs_postgres

pytestmark = [
    pytest.mark.tools,
    pytest.mark.dbms,
    needs_postgres,
]

FILE = "select k from t where id = 777;\n"


def test_a_benchmark_of_its_own_measures_a_server(tmp_path: Path, git: Callable[..., str]) -> None:
    (tmp_path / "repo" / "server.conf").write_text("fsync = off\n")
    git("add", ".")
    git("commit", "-q", "-m", "change")
    commit = git("rev-parse", "HEAD")
    suite = tmp_path / "suite"
    suite.mkdir()
    (suite / "select.sql").write_text(FILE)
    workload = Workload(
        name="select",
        suite="suite",
        folder=str(suite),
        driver="pgsql",
        summary="",
        group="point",
        prepare_commands=[
            [
                f"{BIN}/psql",
                *AT,
                "-c",
                "create table t as select i as id, i as k from generate_series(1, 1000) i",
                "bench",
            ]
        ],
        command=[f"{BIN}/pgbench", "-n", *AT, "-T", "{time}", "-c", "{threads}", "-f", "{suite}/select.sql", "bench"],
        rate=r"tps = ([0-9.]+)",
        operations=r"actually processed: (\d+)",
        time=1.0,
    )
    with tempfile.TemporaryDirectory(prefix="lab") as root:
        lab = lab_of(LocalHost("here", PurePosixPath(root)), BUILDER, workload, tmp_path / "repo", (commit,))
        events = list(lab.measure(Measure((Share(0, 2),), Purpose.ENDS)))
    assert not [event for event in events if isinstance(event, CandidateSkipped)]
    runs = [event.facts for event in events if isinstance(event, RunFinished)]
    assert len(runs) == 2
    assert runs[0].visit == runs[1].visit, "one start of the server for both"
    for run in runs:
        assert run.dataset
        assert run.reported == pytest.approx(run.operations / 1.0, rel=0.2)
        if run.counters:  # of the server
            assert 0 < (value(run, "cpu/o") or 0) < 1e6 * run.seconds / run.operations
