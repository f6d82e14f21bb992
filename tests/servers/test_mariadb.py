"""The recipe for MariaDB with the version that this machine has."""

from collections.abc import Callable
from pathlib import Path

import pytest

from lab_events import measure, runs, warnings
from perfbisect.core.domain.orders import Share
from perfbisect.host.local import LocalHost
from perfbisect.lab.host_lab import HostLab
from perfbisect.recipes.workload import Workload

pytestmark = [
    pytest.mark.dbms,
    pytest.mark.skipif(not Path("/usr/sbin/mariadbd").exists(), reason="no MariaDB: apt-get install mariadb-server"),
]

RECIPE = """
extends = "mariadb"
[build]
needs = []
compile = [["true"]]
install = [["sh", "-c", '''
mkdir -p {prefix}/sbin && cp {source}/extra.conf {prefix} && ln -s /usr/bin /usr/share {prefix}
ln -s /usr/sbin/mariadbd {prefix}/sbin
''']]
artifacts = ["extra.conf"]
"""

WORKLOAD = Workload(
    name="update",
    suite="plain",
    folder=str(Path(__file__).parent),
    driver="mysql",
    summary="",
    group="write",
    prepare="create table t (id int primary key, k int);\ninsert into t select seq, seq from seq_1_to_20000;",
    check="select count(*), sum(k) from t",
    statement="update t set k = k + 1 where id = 777",
    operation="query",
    warmup=0.1,
    time=1.0,
)


def test_a_visit_with_the_recipes_settings(
    open_lab: Callable[..., HostLab],
    commits: Callable[..., tuple[str, ...]],
    recipe: Callable[[str], None],
    host: LocalHost,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two sessions: the second finds the data, and asks whether it is what was loaded."""
    monkeypatch.setenv("MYSQL_PWD", "ours, for another server")
    recipe(RECIPE)
    hashes = commits("# 1\n", "# 2\n")
    lab = open_lab(WORKLOAD, hashes)
    events = measure(lab, Share(0, 2), Share(1, 1)) + measure(open_lab(WORKLOAD, hashes), Share(0, 1))
    assert len({run.dataset for run in runs(events)}) == 1
    assert all(run.counters["task-clock"] for run in runs(events))
    assert not warnings(events)
    (kept,) = Path(host.root, "datasets").iterdir()
    assert sum(file.stat().st_size for file in kept.glob("data/binlog.0*")) < 1000, "the log of the loading is gone"
    settings = Path(host.root, "visit", "config").read_text()
    assert "innodb_buffer_pool_size = 358M" in settings
