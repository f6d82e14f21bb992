"""Whole hunts on nodes of a real Slurm, from its queue to the release."""

import json
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from program import Process, bisect, bisect_until, bisect_watched, rows
from slurm import Slurm, why_not

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.tools,
    pytest.mark.xdist_group("slurm"),
    pytest.mark.skipif(bool(why_not()), reason=f"a real Slurm: {why_not() or '-'}"),
]

COMMITS, CULPRIT = 8, 5
BENCH = 'awk -v n="$(date +%N)" -v base={base} \'BEGIN {{ srand(n); print "rate:", base * (1 + rand() / 100) }}\'\n'


@pytest.fixture(scope="module")
def cluster() -> Iterator[Slurm]:
    made = Slurm()
    yield made
    made.end()


@pytest.fixture
def slurm(cluster: Slurm, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Slurm]:
    """The cluster without jobs, and a hosts.toml with the shipped lease, whose machines are alike."""
    monkeypatch.setenv("SLURM_CONF", str(cluster.configuration))
    (tmp_path / "hosts.toml").write_text(
        '[leases.slurm]\nextends = "slurm"\nevery = 1\n'
        f'[leases.slurm.host]\nroot = "{cluster.roots}/perfbisect"\nclass = "node"\njobs = 1\n'
        f'[hosts.here]\nroot = "{tmp_path}/here"\nbuild_hosts = ["slurm:both*2"]\n'
    )
    yield cluster
    assert cluster.jobs() in ({}, {"other": "RUNNING"})
    cluster.cancel()


@pytest.fixture
def commits(git: Callable[..., str], tmp_path: Path) -> list[str]:
    """A program that prints a rate, half of it from one commit on."""
    hashes = []
    for number in range(COMMITS):
        (tmp_path / "repo" / "bench.sh").write_text(
            f"# {number}\n" + BENCH.format(base=500 if number >= CULPRIT else 1000)
        )
        git("add", "-A")
        git("commit", "-qm", f"change {number}")
        git("tag", f"v{number}")
        hashes.append(git("rev-parse", "HEAD"))
    return hashes


def words(folder: Path, *hosts: str, history: str = "h.db") -> list[str]:
    """A hunt on these hosts."""
    named = [word for host in hosts for word in ("--host", host)]
    kept = ["--hosts", str(folder / "hosts.toml"), "--history", str(folder / history), "--repo", str(folder / "repo")]
    measured = ["--build", "true", "--run", "sh bench.sh", "--rate", "rate: ([0-9.]+)", "--no-explain"]
    return ["run", "v0", f"v{COMMITS - 1}", *measured, *named, *kept, "--json"]


def resumed(folder: Path) -> list[str]:
    return ["resume", "--history", str(folder / "h.db"), "--json"]


def culprit(folder: Path, history: str = "h.db") -> str:
    [[named]] = rows(folder / history, "select culprit from culprits")
    return str(named)


def ours(slurm: Slurm) -> dict[str, str]:
    return {name: state for name, state in slurm.jobs().items() if name != "other"}


def records(seal: Path) -> list[str]:
    return [path.name for path in (seal / ".local/state/perfbisect/leases").glob("*.json")]


@pytest.mark.slow
def test_from_the_queue_to_the_release(slurm: Slurm, seal: Path, tmp_path: Path, commits: list[str]) -> None:
    """It waits for a node that another has, is told so, and gives the node back."""
    slurm.occupy("quiet")
    seen = []

    def free(line: str, _: Process) -> None:
        if "Waiting for slurm:quiet: PENDING" in line:
            seen.append((ours(slurm), records(seal)))
            slurm.cancel("other")

    done = bisect_watched(words(tmp_path, "slurm:quiet"), free)
    assert done.returncode == 0, done.stderr
    [[waiting, noted]] = seen
    assert [*waiting.values()] == ["PENDING"]
    assert noted == [f"{name}.json" for name in waiting]
    assert "slurm:quiet is leased, after" in done.stderr
    assert culprit(tmp_path) == commits[CULPRIT]
    started = json.loads(next(line for line in done.stdout.splitlines() if '"HuntStarted"' in line))
    assert (started["host"]["name"], started["host"]["settings"]["node"]) == ("slurm:quiet", "n1")
    assert (slurm.jobs(), records(seal)) == ({}, [])


@pytest.mark.slow
def test_two_hunts_for_one_node_run_one_after_the_other(
    slurm: Slurm, seal: Path, tmp_path: Path, commits: list[str]
) -> None:
    with ThreadPoolExecutor(2) as pool:
        names = ("a.db", "b.db")
        done = list(pool.map(lambda name: bisect(*words(tmp_path, "slurm:quiet", history=name)), names))
    assert [each.returncode for each in done] == [0, 0], done
    assert [culprit(tmp_path, name) for name in names] == [commits[CULPRIT]] * 2
    assert sum("Waiting for slurm:quiet" in each.stderr for each in done) == 1
    spans = [rows(tmp_path / name, "select min(started), max(started) from runs")[0] for name in names]
    first, second = sorted(spans)
    assert first[1] < second[0]
    assert records(seal) == []


@pytest.mark.slow
def test_a_lease_that_ends_in_the_middle(slurm: Slurm, seal: Path, tmp_path: Path, commits: list[str]) -> None:
    """The hunt says so and stops; resumed, it waits for the same node and goes on where it was."""
    done = bisect_until(words(tmp_path, "slurm:quiet"), '"RunFinished"', lambda _: slurm.cancel())
    assert done.returncode == 4, done.stdout + done.stderr
    assert "the lease of host slurm:quiet (n1) has ended" in done.stderr
    assert records(seal) == []
    before = rows(tmp_path / "h.db", "select event_id from runs")
    assert before

    slurm.occupy("other")
    again = bisect_until(resumed(tmp_path), "slurm:quiet", lambda _: None)
    assert again.returncode == 0, again.stderr
    assert culprit(tmp_path) == commits[CULPRIT]
    assert set(before) < set(rows(tmp_path / "h.db", "select event_id from runs"))
    assert "its node was" not in again.stdout


@pytest.mark.slow
def test_a_lease_that_ends_while_another_goes_on(slurm: Slurm, seal: Path, tmp_path: Path, commits: list[str]) -> None:
    """What it had begun is measured on the other node."""

    def cancel(line: str, _: Process) -> None:
        if '"RunFinished"' in line and '"host":"slurm:quiet"' in line and len(ours(slurm)) == 2:
            [job] = slurm.run("squeue", "--noheader", "--nodelist=n1", "--format=%j").split()
            slurm.cancel(job)

    done = bisect_watched(words(tmp_path, "slurm:quiet", "slurm:other"), cancel)
    assert done.returncode == 0, done.stderr
    assert "host slurm:quiet takes no further part: the lease of host slurm:quiet (n1) has ended" in done.stdout
    assert culprit(tmp_path) == commits[CULPRIT]
    assert records(seal) == []


@pytest.mark.slow
def test_a_killed_session_leaves_a_lease_that_the_next_one_ends(
    slurm: Slurm, seal: Path, tmp_path: Path, commits: list[str]
) -> None:
    killed = bisect_until(words(tmp_path, "slurm:quiet"), '"RunFinished"', signal.SIGKILL)
    assert killed.returncode == -signal.SIGKILL
    [left] = ours(slurm)
    assert records(seal) == [f"{left}.json"]
    told = bisect("hosts")
    assert f"job {left}," in told.stdout
    assert "which has ended. Give it back with: bisect gc" in told.stdout

    again = bisect(*resumed(tmp_path))
    assert again.returncode == 0, again.stderr
    assert f"job {left}," in again.stderr
    assert "was left by a session that has ended, and is released" in again.stderr
    assert culprit(tmp_path) == commits[CULPRIT]
    assert (slurm.jobs(), records(seal)) == ({}, [])


@pytest.mark.parametrize(("how", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 130), (signal.SIGKILL, -9)])
def test_a_place_in_the_queue_is_given_back(
    slurm: Slurm, seal: Path, tmp_path: Path, commits: list[str], how: signal.Signals, status: int
) -> None:
    """At once, or by the next session if this one is killed."""
    slurm.occupy("quiet")
    done = bisect_until(words(tmp_path, "slurm:quiet"), "Waiting for slurm:quiet", how)
    assert done.returncode == status, done.stderr
    assert len(ours(slurm)) == len(records(seal)) == (how is signal.SIGKILL)
    bisect("gc")
    assert (ours(slurm), records(seal)) == ({}, [])
    assert len(commits) == COMMITS


@pytest.mark.slow
def test_builders_are_leased_too(slurm: Slurm, seal: Path, tmp_path: Path, commits: list[str]) -> None:
    """Two nodes in one job build for a machine that has none of the sources."""
    done = bisect(*words(tmp_path, "here"))
    assert done.returncode == 0, done.stderr
    assert culprit(tmp_path) == commits[CULPRIT]
    assert {host for (host,) in rows(tmp_path / "h.db", "select distinct host from runs")} == {"here"}
    assert not list((tmp_path / "here" / "git").glob("*"))
    assert (slurm.jobs(), records(seal)) == ({}, [])


def test_what_cannot_be_leased(slurm: Slurm, seal: Path, tmp_path: Path, commits: list[str]) -> None:
    done = bisect(*words(tmp_path, "slurm:nosuchfeature"))
    assert done.returncode == 4
    assert (
        "slurm:nosuchfeature cannot be leased: salloc: error: Job submit/allocate failed: Invalid feature"
        in done.stderr
    )
    assert (slurm.jobs(), records(seal), len(commits)) == ({}, [], COMMITS)


def test_doctor_checks_a_node_and_gives_it_back(slurm: Slurm, seal: Path, tmp_path: Path) -> None:
    done = bisect("doctor", "slurm:quiet", "--hosts", str(tmp_path / "hosts.toml"), "--json")
    assert json.loads(done.stdout)["host"]["settings"]["node"] == "n1", done.stderr
    assert (slurm.jobs(), records(seal)) == ({}, [])
