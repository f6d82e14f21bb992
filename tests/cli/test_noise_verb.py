"""`bisect noise` on real builds of the demo's engine, as a user meets it."""

import json
import math
import signal
import sqlite3
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
from program import bisect, bisect_until

pytestmark = pytest.mark.tools


@pytest.fixture
def arguments(tmp_path: Path) -> list[str]:
    write_history(tmp_path / "repo", 3)
    given = ["--builder", "demo", "--workload", "update-index", "--rev", "v1.0", "--repo", str(tmp_path / "repo")]
    return ["noise", "local", *given, "--history", str(tmp_path / "history.db"), "--warmup", "0"]


def runs(tmp_path: Path) -> list[tuple[int, int]]:
    with closing(sqlite3.connect(tmp_path / "history.db")) as history:
        return history.execute("select round, count(*) from runs group by round order by round").fetchall()


def test_an_aa_tells_the_noise_and_hunts_begin_with_it(arguments: list[str], tmp_path: Path) -> None:
    done = bisect(*arguments, "--visits", "2", "--runs", "3", "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["noise"]["visits"], told["noise"]["runs"] + told["noise"]["wild"]) == (2, 6)
    assert told["noise"]["run"] > 0
    drops = [row["drop"] for row in told["detectable"]]
    assert drops == sorted(drops, reverse=True)
    assert told["advice"]["runs"] == 1  # an embedded library is opened for each run
    assert runs(tmp_path) == [(0, 3), (1, 3)]
    with closing(History.open(tmp_path / "history.db")) as history:
        wanted = Settings("v1.0", "v1.1", "", "demo", "update-index", "local", "o2nofp", overrides={"warmup": 0.0})
        assert read_noise(history, wanted) == pytest.approx(told["noise"]["run"])


def test_layouts_of_the_build_are_compared_beside_its_noise(arguments: list[str], tmp_path: Path) -> None:
    layouts = ["--layouts", "3", "--visits", "2", "--runs", "1", "--time", "1"]
    done = bisect(*arguments, *layouts, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["layouts"]["layouts"], found["layouts"]["rounds"]) == (3, 2)
    assert found["layouts"]["low"] <= found["layouts"]["sd"] <= found["layouts"]["high"]
    assert found["layouts"]["lowest"] <= 1 <= found["layouts"]["highest"]
    assert found["noise"]["runs"] + found["noise"]["wild"] == 2  # of the build as it was linked
    with closing(sqlite3.connect(tmp_path / "history.db")) as history:
        measured = history.execute(
            "select node, json_extract(body, '$.facts.layout') from runs join events on id = event_id"
        ).fetchall()
    assert sorted(measured) == [(number, number) for number in range(4) for _ in range(2)]
    shown = bisect("show", "n1", "--history", str(tmp_path / "history.db"))
    assert "Code placement: 3 layouts, each visited 2 times" in shown.stdout
    refused = bisect(*arguments, "--layouts", "3", "--visits", "1")
    assert refused.returncode == 3
    assert "2 visits of each" in refused.stderr


# A C program, which begins to fail at those visits whose numbers the file ``failing`` has.
PROGRAM = (
    "#include <stdio.h>\n"
    + "".join(f"__attribute__((noinline)) int own{n}(int x) {{ return x - {n} * x; }}\n" for n in range(9))
    + f"int main(int count, char **words) {{\n    int sum = {' + '.join(f'own{n}(count)' for n in range(9))};\n"
    + '    printf("rate 100\\n%d\\n", sum & 1);\n    return 0;\n}\n'
)
COMMAND = "echo >>{folder}/visits; wc -l <{folder}/visits | grep -qxFf {folder}/failing && exit 7; exec ./bench"


@pytest.mark.parametrize(
    ("failing", "said"),
    [
        ("3\n", "Code placement: 2 of 3 layouts, each visited 2 times"),
        ("2\n6\n", "Code placement: 1 of 3 layouts measured; it takes two."),
    ],
)
def test_a_layout_that_fails_is_left_out_with_its_reason(
    exits: Callable[..., str], script: Callable[[str], str], tmp_path: Path, failing: str, said: str
) -> None:
    """And is not tried again: its rounds are those of the others."""
    commit = script(PROGRAM)
    Path("builders/script/builder.toml").write_text(
        'summary = "a program"\ndriver = "script"\nvariants.o2nofp = {}\n[build]\n'
        "compile = [['sh', '-c', '{compiler} {cflags} -x c -o bench {source}/run.sh']]\n"
        "install = [['install', '-D', 'bench', '{prefix}/bench']]\nartifacts = ['bench']\n"
    )
    Path("workloads/script/suite.toml").write_text(
        'summary = "s"\ndriver = "script"\n[defaults]\ngroup = "all"\nsummary = "s"\nrate = "rate ([0-9]+)"\nwarmup = 0\n'
        f"[workloads]\none.command = ['sh', '-c', 'cd {{prefix}}; {COMMAND.format(folder=tmp_path)}']\n"
    )
    (tmp_path / "failing").write_text(failing)
    words = ["noise", "--builder", "script", "--workload", "one", "--repo", "repo", "--rev", commit]
    told = exits(0, *words, "--layouts", "3", "--visits", "2", "--runs", "1")
    first = int(failing[0]) - 1
    assert f"layout {first} fails in one: " in told
    for text in (told, exits(0, "show", "n1")):
        assert f"\nlayout {first} is left out: " in text
        assert said in text
    left_out = [skip["subject"] for skip in json.loads(exits(0, "show", "n1", "--json"))["skips"]]
    assert left_out[0] == first and len(left_out) == failing.count("\n")


def test_the_failure_of_the_build_itself_ends_it(exits: Callable[..., str], script: Callable[[str], str]) -> None:
    commit = script("exit 7")
    words = ["noise", "--builder", "script", "--workload", "one", "--repo", "repo", "--rev", commit]
    assert f"Nothing was measured: {commit} fails in one" in exits(4, *words, "--layouts", "2", "--visits", "2")


def test_ctrl_c_keeps_what_was_measured(arguments: list[str], tmp_path: Path) -> None:
    cut = bisect_until([*arguments, "--visits", "50", "--runs", "2"], "run 3 of 100", signal.SIGINT)
    assert cut.returncode == 130
    assert "Interrupted. What was measured is kept." in cut.stderr
    assert "Smallest detectable drop" in cut.stdout
    assert sum(count for _, count in runs(tmp_path)) >= 3


@pytest.mark.dbms
@postgres.needs_postgres
def test_runs_of_one_visit_share_a_start_of_the_server(tmp_path: Path, git: Callable[..., str]) -> None:
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
        words += ["--runs", "2", "--json", "--repo", str(tmp_path / "repo"), "--history", str(tmp_path / "history.db")]
        folders = ["--builders", "builders", "--workloads", "workloads", "--hosts", "hosts.toml"]
        done = bisect(*words, *folders, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    noise = json.loads(done.stdout)["noise"]
    assert noise["shared"]
    assert noise["run"] == pytest.approx(math.hypot(noise["between"], noise["within"]))
    with closing(sqlite3.connect(tmp_path / "history.db")) as history:
        shares = history.execute("select round, count(distinct visit) from runs group by round").fetchall()
    assert shares == [(0, 1), (1, 1), (2, 1)]


def test_a_revision_that_does_not_exist(arguments: list[str]) -> None:
    wrong = [word if word != "v1.0" else "v9.9" for word in arguments]
    done = bisect(*wrong)
    assert done.returncode == 3
    assert "v9.9" in done.stderr
