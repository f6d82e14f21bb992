"""Commands as workloads in the whole lab: real git, jobs and perf."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path, PurePosixPath

import msgspec
import pytest

from lab_events import measure, runs, skipped
from labs import lab_of
from perfbisect.core.domain.events import BuildFinished, RunStarted
from perfbisect.core.domain.metrics import value
from perfbisect.core.domain.orders import Share
from perfbisect.errors import EnvironmentFailure
from perfbisect.host.local import LocalHost
from perfbisect.lab.host_lab import HostLab
from perfbisect.recipes.requested import quick_builder
from perfbisect.recipes.workload import Workload
from waiting import ended

pytestmark = pytest.mark.tools

SCRIPT = """\
#!/bin/sh
# $1: data, $2: threads
cat "$1/loaded" "$SUITE/beside.txt"
echo mine >>"$1/loaded"
echo "threads: $2, ops/s: {rate}, done: 50"
"""
GOOD, SLOW, FAILING, SILENT, HANGING, LAST = range(6)
CHANGES = ("200", "100", "1; exit 7", "nothing", "1; sleep 60", "90")


@pytest.fixture
def commits(tmp_path: Path, git: Callable[..., str]) -> tuple[str, ...]:
    """A script at each commit: fast, slow, one that fails, one that tells no number, one that hangs, slow."""
    hashes = []
    for change in CHANGES:
        script = tmp_path / "repo" / "bench"
        rate, _, more = change.partition("; ")
        script.write_text(SCRIPT.format(rate=rate) + more)
        script.chmod(0o755)
        git("add", ".")
        git("commit", "-q", "-m", "change")
        hashes.append(git("rev-parse", "HEAD"))
    return tuple(hashes)


@pytest.fixture
def lab(tmp_path: Path, commits: tuple[str, ...]) -> HostLab:
    suite = tmp_path / "suite"
    suite.mkdir()
    (suite / "beside.txt").write_text("beside\n")
    root = tmp_path / "root"
    root.mkdir()
    builder = quick_builder(("sh -c 'pwd >built && echo {jobs} >>built'",), str(tmp_path / "repo"))
    workload = Workload(
        name="bench",
        suite="suite",
        folder=str(suite),
        driver="command",
        summary="",
        group="command",
        command=["env", "SUITE={suite}", "./bench", "{data}", "{threads}"],
        prepare_commands=[["sh", "-c", "cat {suite}/beside.txt >{data}/loaded; ls bench"]],
        rate=r"ops/s: (\w+)",
        operations=r"done: (\d+)",
        threads=3,
        timeout=60.0,
    )
    return lab_of(LocalHost("here", PurePosixPath(root)), builder, workload, tmp_path / "repo", commits)


def with_workload(lab: HostLab, **changes: object) -> HostLab:
    return replace(lab, workload=msgspec.structs.replace(lab.workload, **changes))


def test_a_command_is_measured_in_the_place_where_it_was_built(lab: HostLab) -> None:
    events = measure(lab, Share(GOOD, 2), Share(SLOW, 1))
    done = runs(events)
    assert sorted(value(run, "rate") or 0 for run in done) == [100, 200, 200]
    assert {run.operations for run in done} == {50}
    assert all(0 < run.seconds < 60 for run in done)
    assert all(run.latency["avg"] == pytest.approx(20 * run.seconds) for run in done)
    assert [event.seconds for event in events if isinstance(event, RunStarted)] == [0, 0, 0]
    [built, *_] = (event.facts for event in events if isinstance(event, BuildFinished))
    there = Path(built.log).parent / "prefix" / "built"
    assert there.read_text().splitlines()[0] == str(lab.place.host.root / "work" / lab.builder.work_name / "prefix")
    assert len({run.dataset for run in done}) == 1
    [kept] = Path(lab.place.host.root, "datasets").rglob("loaded")
    assert kept.read_text() == "beside\n"  # each run had a copy of its own


def test_what_a_command_leaves_running_is_ended(lab: HostLab, tmp_path: Path) -> None:
    script = """sh -c 'echo $$ >>"$1"; exec sleep 60' child "$1" & echo ops/s: 5, done: 1"""
    lab = with_workload(lab, command=["sh", "-c", script, "leave", str(tmp_path / "left")])
    assert len(runs(measure(lab, Share(GOOD, 2)))) == 2
    left = (tmp_path / "left").read_text().split()
    assert left
    assert all(map(ended, left))


def test_perf_counts_the_whole_command(lab: HostLab) -> None:
    [run] = runs(measure(lab, Share(GOOD, 1)))
    if not run.counters:
        pytest.skip("perf is not permitted here")
    spent = run.counters["task-clock"]
    assert spent is not None
    assert spent > 0
    assert value(run, "cpu/o") == pytest.approx(1000 * spent / 50)


@pytest.mark.parametrize(
    ("candidate", "reason"),
    [
        (FAILING, "it ended with status 7: threads: 3, ops/s: 1, done: 50"),
        (SILENT, r"it printed 'nothing' where ops/s: (\w+) matches, which is not a number above 0"),
    ],
)
def test_a_commit_that_gives_no_number_is_skipped(lab: HostLab, candidate: int, reason: str) -> None:
    facts = skipped(measure(lab, Share(candidate, 2)))
    assert (facts.stage, facts.reason) == ("run", reason)
    assert "ops/s" in Path(facts.log).read_text()


def test_a_commit_whose_command_does_not_end_is_skipped(lab: HostLab) -> None:
    for limit in (2, 20):  # on a busy machine, the first may be over before it prints
        facts = skipped(measure(with_workload(lab, timeout=float(limit)), Share(HANGING, 2)))
        assert (facts.stage, facts.reason) == ("run", f"it did not end in {limit} s and was killed")
        if printed := "ops/s" in Path(facts.log).read_text():
            break
    assert printed


def test_a_program_of_the_commit_that_loading_lacks_is_the_commits_fault_and_one_of_the_host_the_hosts(
    lab: HostLab,
) -> None:
    facts = skipped(measure(with_workload(lab, prepare_commands=[["./loader"]]), Share(SLOW, 1)))
    assert facts.reason.startswith("the data cannot be loaded: ./loader ended with status 127: ")
    lab = with_workload(lab, prepare_commands=[["bench-loader"]])
    with pytest.raises(EnvironmentFailure, match="bench-loader is not installed on host here"):
        measure(lab, Share(GOOD, 1))


def test_no_two_builds_count_as_one(lab: HostLab) -> None:
    events = measure(lab, Share(GOOD, 1), Share(SLOW, 1), Share(LAST, 1))
    assert [event.same_as for event in events if isinstance(event, BuildFinished)] == [None] * 3
