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


@pytest.mark.parametrize("kind", ["comparison", "noise", "series"])
def test_a_trial_on_a_leased_host_is_built_elsewhere_and_goes_on_there(
    exits: Exits, script: Callable[[str], str], git: Callable[..., str], tmp_path: Path, seal: Path, kind: str
) -> None:
    """Each sitting leases the machine anew, and releases it; what one has built and measured the next one has."""
    builds = [script(f"sleep 0.1; echo rate {100 - number}") for number in range(8 if kind == "series" else 2)]
    Path("hosts.toml").write_text(LEASED.format(folder=tmp_path))
    for number, commit in enumerate(builds):
        git("tag", f"v1.{number}", commit)
    words = {
        "comparison": ["compare", *builds, "--host", "pool:", "--visits", "4"],
        "noise": ["noise", "pool:", "--rev", builds[0], "--visits", "8"],
        "series": ["compare", "--each-release", "v1.0..v1.7", "--host", "pool:", "--visits", "1"],
    }[kind]
    cut = bisect_until([*words, "--workload", "one", "--hosts", "hosts.toml", *HOW], "run 3 of 8", signal.SIGINT)
    assert cut.returncode == 130, cut.stderr
    exits(0, "resume", "n1" if kind == "noise" else "c1")
    history = seal / ".local/state/perfbisect/history.db"
    assert rows(history, "select distinct host from runs") == [("pool:",)]
    [runs] = rows(history, "select count(*) from runs")[0]
    assert 8 <= runs <= 11
    made = rows(history, "select host, count(*) from builds where not reused group by host")
    assert made == [("made", 1 if kind == "noise" else len(builds))]
    asked, released = ((tmp_path / file).read_text().split() for file in ("asked", "released"))
    assert sorted(asked) == sorted(released)
    assert len(set(asked)) == 2
