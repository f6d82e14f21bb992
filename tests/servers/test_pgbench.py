"""The workloads of pgbench, on the PostgreSQL that this machine has."""

import json

import pytest

from postgres import BIN, needs_postgres
from program import bisect

pytestmark = [pytest.mark.dbms, pytest.mark.slow, needs_postgres]


@pytest.fixture(autouse=True)
def sealed() -> None:
    """The shipped recipes are in sight here."""


def test_every_workload_runs() -> None:
    """Two that are the same, as they are installed."""
    same = [f"{name}={BIN.parent}" for name in ("one", "two")]
    short = ["--builder", "postgres", "--visits", "1", "--runs", "1", "--time", "1", "--set", "scale=1", "--json"]
    done = bisect("compare", *same, "--workload", "pgbench", *short)
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["workloads"]
    assert [row["work"] for row in rows] == ["pgbench-select", "pgbench-simple-update", "pgbench-tpcb"]
    assert all(row["ratios"][0]["ratio"] > 0 for row in rows)
