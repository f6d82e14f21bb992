"""Profiles of a real PostgreSQL: of the processes of its connections, which begin while perf already waits."""

import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path, PurePosixPath

import pytest
from msgspec.structs import replace

from labs import lab_of
from perfbisect.core.domain.events import LabEvent, Profiled, Unexplained
from perfbisect.core.domain.orders import Measure, Purpose, Share
from perfbisect.core.explain.profiles import UNKNOWN, frames, read_frame
from perfbisect.host.local import LocalHost
from perfbisect.lab.measure.profiles import Profiles, Waits
from perfbisect.recipes.workload import Workload
from postgres import BUILDER, needs_postgres

pytestmark = [pytest.mark.tools, pytest.mark.dbms, needs_postgres]


def test_the_connections_of_a_server_are_profiled_and_nothing_else(tmp_path: Path, git: Callable[..., str]) -> None:
    (tmp_path / "repo" / "server.conf").write_text("listen_addresses = ''\nfsync = off\n")
    git("add", ".")
    git("commit", "-q", "-m", "change")
    workload = Workload(
        name="sum",
        suite="pg",
        folder=str(tmp_path),
        driver="pgsql",
        summary="",
        group="scan",
        prepare="create table t as select i as id, i as k from generate_series(1, 20000) i;",
        statement="select sum(k) from t;",
        warmup=0.5,
        time=2.0,
    )
    assert BUILDER.server
    builder = replace(BUILDER, server=replace(BUILDER.server, perf_scope="connections"))
    with tempfile.TemporaryDirectory(prefix="lab") as root:
        host = LocalHost("here", PurePosixPath(root))
        events: list[LabEvent] = []
        for study in Profiles, partial(Waits, switches=1.0):  # each of them is sampled
            lab = lab_of(host, builder, workload, tmp_path / "repo", (git("rev-parse", "HEAD"),))
            lab.study = partial(study, seconds=3.0)
            events += lab.measure(Measure((Share(0, 1),), Purpose.EXPLAIN))
        assert not [event for event in events if isinstance(event, Unexplained)]
        facts, *waits = [event.facts for event in events if isinstance(event, Profiled)]
    assert {stack.partition(";")[0] for stack in facts.stacks} == {"postgres"}, "sysbench is not in it"
    whole = sum(facts.stacks.values())
    known = {stack: [read_frame(frame)[0] for frame in frames(stack)] for stack in facts.stacks}
    inside = sum(cost for stack, cost in facts.stacks.items() if "PostgresMain" in known[stack])
    assert inside > 0.8 * whole, "each connection's stack is known down to its own process"
    assert sum(cost for stack, cost in facts.stacks.items() if frames(stack)[-1] == UNKNOWN) < 0.1 * whole
    assert any(
        "ExecInterpExpr" in chain or "ExecAgg" in chain or "heap_getnextslot" in chain for chain in known.values()
    )
    if facts.unit == "us":
        assert whole <= 1.2e6 * facts.seconds, "one connection, and nothing of the warm-up"
    for waiting in waits:
        assert waiting.off_cpu
        assert any("WaitEventSetWait" in stack and "schedule ([kernel])" in stack for stack in waiting.stacks)
        whole = sum(waiting.stacks.values())
        assert whole <= 1.2e6 * waiting.seconds, "of one connection"
