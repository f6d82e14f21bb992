"""Paired runs of real systems in hunts and comparisons, and a program for which paired runs mislead."""

import ctypes.util
import json
import re
import tempfile
from collections import Counter
from pathlib import Path

import pytest
from msgspec.structs import replace

import postgres
from installed_servers import MARIADB, installed
from perfbisect.recipes.toml import to_toml
from program import bisect, printed, rows
from repos import Repo

pytestmark = [pytest.mark.e2e, pytest.mark.tools, pytest.mark.slow]

COMMITS, CULPRIT = 5, 3


def program(name: str) -> str:
    """The source of a program of these hunts."""
    return (Path(__file__).parent / "programs" / name).read_text()


def in_pairs(history: Path) -> int:
    """The number of pairs. If a busy machine gives builds unequal CPU time, runs become interleaved, with a reason."""
    query = (
        "select coalesce(json_extract(body, '$.facts.round'), '') from events where kind = 'RunFinished' order by id"
    )
    found = [key for (key,) in rows(history, query)]
    told = rows(history, "select json_extract(body, '$.why') from events where kind = 'PairingChosen'")
    assert all(found) or "could not be used: " in told[-1][0], told
    counted = Counter(filter(None, found))
    assert set(counted.values()) == {2}
    return len(counted)


def chosen(history: Path) -> tuple[bool, str]:
    """Whether the runs are paired, and why."""
    query = (
        "select json_extract(body, '$.together'), json_extract(body, '$.why') from events where kind = 'PairingChosen'"
    )
    *_, (together, why) = rows(history, query)
    return bool(together), why


# The SQLite of this machine, behind a library that counts to WORK at each step of a statement.
SQLITE_RECIPE = (Path(__file__).parent / "programs" / "sqlite.toml").read_text()


def test_paired_runs_find_the_culprit_in_sqlite(git: Repo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library = ctypes.util.find_library("sqlite3")
    if library is None:
        pytest.skip("no shared libsqlite3 on this machine")
    work = (f"#define WORK {100000 if n >= CULPRIT else 0} /* {n} */\n" for n in range(COMMITS))
    hashes = git.history({"sqlite.c": program("sqlite_step.c"), "work.h": text} for text in work)
    postgres.write(tmp_path, {"builders/sqlite/builder.toml": SQLITE_RECIPE.format(library=library)})
    monkeypatch.chdir(tmp_path)
    how = ["--builder", "sqlite", "--builders", "builders", "--workload", "point-query", "--repo", "repo"]
    how += ["--warmup", "0.1", "--time", "1", "--pairing", "paired"]
    ended = bisect("run", "v0", f"v{COMMITS - 1}", *how, "--no-explain", "--plain", "--history", "run.db")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert rows(Path("run.db"), "select culprit from culprits") == [(hashes[CULPRIT],)]
    assert in_pairs(Path("run.db"))


SUITE = (Path(__file__).parent / "programs" / "scan.toml").read_text()


@pytest.mark.dbms
@pytest.mark.skipif(not installed(MARIADB), reason="no mariadb: apt-get install mariadb-server")
@pytest.mark.xdist_group("mariadb")
def test_paired_runs_compare_two_mariadb_servers(git: Repo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first server has a query cache."""
    for number, cached in enumerate((1, 0)):
        git.commit({"some.conf": f"[mariadbd]\nquery_cache_type = {cached}\n"}, tag=f"v{number}")
    server = MARIADB.server
    assert server
    start = ["--defaults-file={prefix}/some.conf" if word == "--no-defaults" else word for word in server.start]
    recipe = to_toml(
        replace(MARIADB, server=replace(server, start=start), name="", folder="", summary="of this machine")
    )
    files = {"builders/maria/builder.toml": recipe, "workloads/maria/suite.toml": SUITE}
    monkeypatch.chdir(tmp_path)
    with tempfile.TemporaryDirectory(prefix="lab") as root:  # short: the path of a socket is limited
        postgres.write(tmp_path, files | {"hosts.toml": f'[hosts.here]\nroot = "{root}"\n'})
        words = ["compare", "v0", "v1", "--builder", "maria", "--workload", "maria/scan", "--repo", "repo"]
        words += ["--host", "here", "--pairing", "paired", "--visits", "2", "--json", "--history", "h.db"]
        [row] = json.loads(printed(*words, *postgres.FOLDERS))["workloads"]
    assert row["ratios"][0]["ratio"] < 0.8
    assert in_pairs(Path("h.db"))


# A simulated disk, which serves one request at a time, and which other users slow by a third now and then.


def test_builds_that_wait_for_one_disk_are_measured_interleaved(git: Repo, tmp_path: Path) -> None:
    """Paired runs would take equally long, because each request of a build waits for a request of the other build."""
    hashes = git.history({"bench.c": program("disk.c"), "work.h": f"#define SERVICE {us}\n"} for us in (5000, 10000))
    history = tmp_path / "h.db"
    words = ["run", "v0", "v1", "--build", "cc -O1 -o bench bench.c", "--run", f"env DISK={tmp_path}/disk ./bench"]
    ended = bisect(*words, "--repo", str(git.path), "--no-explain", "--plain", "--history", str(history))
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert rows(history, "select culprit from culprits") == [(hashes[1],)]
    together, why = chosen(history)
    assert not together
    assert re.search(r"the builds wait for 9\d(\.\d)? % of their time|already show", why)
    assert f"pairing   {why}" in ended.stdout
