"""Sittings of trials: cut short, they go on as hunts do, with build hosts and on leased hosts, too."""

import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from program import bisect_until, rows

pytestmark = pytest.mark.tools

Exits = Callable[..., str]
HOW = ["--builder", "script", "--repo", "repo", "--runs", "1"]

LEASED = """
[hosts.made]
root = "{folder}/made"
[leases.pool]
acquire = ["sh", "-ec", "echo {{job}} >>{folder}/asked; echo n1"]
release = ["sh", "-ec", "echo {{job}} >>{folder}/released"]
[leases.pool.host]
through = ["env"]
root = "{folder}/{{address}}"
build_hosts = ["made"]
"""


@pytest.mark.parametrize(
    ("verb", "name", "visits"), [("compare", "c1", 3), ("noise", "n1", 6)], ids=["comparison", "noise"]
)
def test_a_trial_on_a_leased_host_is_built_elsewhere_and_goes_on_there(
    exits: Exits, script: Callable[[str], str], tmp_path: Path, seal: Path, verb: str, name: str, visits: int
) -> None:
    """Each sitting leases the machine anew, and releases it; what one has built and measured the next one has."""
    builds = [script(f"sleep 0.2; echo rate {rate}") for rate in (100, 50)]
    Path("hosts.toml").write_text(LEASED.format(folder=tmp_path))
    what = [*builds, "--host", "pool:"] if verb == "compare" else ["pool:", "--rev", builds[0]]
    words = [verb, *what, "--workload", "one", "--visits", str(visits), "--hosts", "hosts.toml", *HOW]
    cut = bisect_until(words, "run 3 of 6", signal.SIGINT)
    assert cut.returncode == 130, cut.stderr
    exits(0, "resume", name)
    history = seal / ".local/state/perfbisect/history.db"
    assert rows(history, "select distinct host from runs") == [("pool:",)]
    [runs] = rows(history, "select count(*) from runs")[0]
    assert 6 <= runs <= 9
    made = rows(history, "select host, count(*) from builds where not reused group by host")
    assert made == [("made", len(builds) if verb == "compare" else 1)]
    asked, released = ((tmp_path / file).read_text().split() for file in ("asked", "released"))
    assert sorted(asked) == sorted(released)
    assert len(set(asked)) == 2
