"""`bisect noise` on real builds of the demo's engine, as a user meets it; and trials on leased hosts."""

import json
import math
import signal
import tempfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

import postgres
from perfbisect.core.domain.settings import Settings
from perfbisect.demo.history import write_history
from perfbisect.store.history import History
from perfbisect.store.prior_data import read_noise
from program import SCRIPT, bisect_until, exits, printed, rows

pytestmark = pytest.mark.tools


@pytest.fixture
def arguments(tmp_path: Path) -> list[str]:
    write_history(tmp_path / "repo", 3)
    given = ["--builder", "demo", "--workload", "update-index", "--rev", "v1.0", "--repo", str(tmp_path / "repo")]
    return ["noise", "local", *given, "--history", str(tmp_path / "history.db"), "--warmup", "0"]


def runs(tmp_path: Path) -> list[tuple[int, int]]:
    return rows(tmp_path / "history.db", "select round, count(*) from runs group by round order by round")


@pytest.mark.slow
def test_an_aa_tells_the_noise_and_hunts_begin_with_it(arguments: list[str], tmp_path: Path) -> None:
    told = json.loads(printed(*arguments, "--visits", "2", "--runs", "3", "--json"))
    assert (told["noise"]["visits"], told["noise"]["runs"] + told["noise"]["wild"]) == (2, 6)
    assert told["noise"]["run"] > 0
    drops = [row["drop"] for row in told["detectable"]]
    assert drops == sorted(drops, reverse=True)
    assert told["advice"]["runs"] == 1  # an embedded library is opened for each run
    assert runs(tmp_path) == [(0, 3), (1, 3), (2, 16)], "the last are eight pairs at the same time"
    assert told["pairs"]["time"] > 0
    assert "The ratio of two runs varies by " in printed("show", "n1", "--history", str(tmp_path / "history.db"))
    with closing(History.open(tmp_path / "history.db")) as history:
        wanted = Settings("v1.0", "v1.1", "", "demo", "update-index", "local", "o2nofp", overrides={"warmup": 0.0})
        assert read_noise(history, wanted) == pytest.approx(told["noise"]["run"])


def test_the_failure_of_the_build_itself_ends_it(script: Callable[[str], str]) -> None:
    commit = script("exit 7")
    words = ["noise", *SCRIPT, "--rev", commit]
    assert f"Nothing was measured: {commit} fails in one" in exits(4, *words, "--visits", "2")


@pytest.mark.dbms
@postgres.needs_postgres
def test_runs_of_one_visit_share_a_start_of_the_server(
    tmp_path: Path, git: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    postgres.write(
        tmp_path,
        {
            "repo/server.conf": "listen_addresses = ''\nfsync = off\n",
            "builders/pg/builder.toml": postgres.RECIPE,
            "workloads/pg/suite.toml": postgres.SUITE,
        },
    )
    git("add", ".")
    git("commit", "-qm", "a configuration")
    with tempfile.TemporaryDirectory(prefix="lab") as root:  # short, for the sake of the socket
        (tmp_path / "hosts.toml").write_text(f'[hosts.here]\nroot = "{root}"\n')
        words = ["noise", "here", "--builder", "pg", "--workload", "one-row", "--rev", "HEAD", "--visits", "3"]
        words += [
            "--runs",
            "2",
            "--json",
            "--pairing",
            "turns",
            "--repo",
            str(tmp_path / "repo"),
            "--history",
            str(tmp_path / "history.db"),
        ]
        monkeypatch.chdir(tmp_path)
        noise = json.loads(printed(*words, *postgres.FOLDERS))["noise"]
    assert noise["shared"]
    assert noise["run"] == pytest.approx(math.hypot(noise["between"], noise["within"]))
    shares = rows(tmp_path / "history.db", "select round, count(distinct visit) from runs group by round")
    assert shares == [(0, 1), (1, 1), (2, 1)]


def test_a_revision_that_does_not_exist(arguments: list[str]) -> None:
    wrong = [word if word != "v1.0" else "v9.9" for word in arguments]
    assert "v9.9" in exits(3, *wrong)


# Sittings of trials: cut short, they go on as hunts do, with build hosts and on leased hosts, too.

SHORT = ["--builder", "script", "--repo", "repo", "--runs", "1", "--pairing", "turns"]

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


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["noise", pytest.param("series", marks=pytest.mark.calibrate)])
def test_a_trial_on_a_leased_host_is_built_elsewhere_and_goes_on_there(
    script: Callable[[str], str], git: Callable[..., str], tmp_path: Path, seal: Path, kind: str
) -> None:
    """Each sitting leases the machine anew, and releases it; what one has built and measured the next one has."""
    builds = [script(f"sleep 0.1; echo rate {100 - number}") for number in range(8 if kind == "series" else 2)]
    Path("hosts.toml").write_text(LEASED.format(folder=tmp_path))
    for number, commit in enumerate(builds):
        git("tag", f"v1.{number}", commit)
    words = {
        "noise": ["noise", "pool:", "--rev", builds[0], "--visits", "8"],
        "series": ["compare", "--each-release", "v1.0..v1.7", "--host", "pool:", "--visits", "1"],
    }[kind]
    cut = bisect_until([*words, "--workload", "one", "--hosts", "hosts.toml", *SHORT], "run 3 of 8", signal.SIGINT)
    session = "n1" if kind == "noise" else "c1"
    assert cut.returncode == 130, cut.stderr
    assert f"Interrupted. What was measured is kept; go on with: bisect resume {session}" in cut.stderr
    assert kind == "series" or "Smallest detectable drop" in cut.stdout
    exits(0, "resume", session)
    history = seal / ".local/state/perfbisect/history.db"
    assert rows(history, "select distinct host from runs") == [("pool:",)]
    [runs] = rows(history, "select count(*) from runs")[0]
    assert 8 <= runs <= 11
    made = rows(history, "select host, count(*) from builds where not reused group by host")
    assert made == [("made", 1 if kind == "noise" else len(builds))]
    asked, released = ((tmp_path / file).read_text().split() for file in ("asked", "released"))
    assert sorted(asked) == sorted(released)
    assert len(set(asked)) == 2
