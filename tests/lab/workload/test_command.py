"""Workloads that are commands: their results and failures, and real measurements of a command."""

import json
import re
import subprocess
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace as changed

from labs import lab_of, measure, runs, skipped, workload_of
from perfbisect.core.domain.events import BuildFinished, RunStarted
from perfbisect.core.domain.metrics import metric_value
from perfbisect.core.domain.orders import PlannedRuns
from perfbisect.errors import EnvironmentFailure
from perfbisect.host.local import LocalHost
from perfbisect.lab.host_lab import HostLab
from perfbisect.lab.servers import Installation
from perfbisect.lab.workload import ProcessResult, RunResult
from perfbisect.lab.workload.command import (
    CLOCK,
    CPU,
    command_placeholders,
    data_inputs,
    read_fio,
    run_result,
    timed_argv,
)
from perfbisect.recipes.builder import Builder
from perfbisect.recipes.requested import quick_builder
from perfbisect.recipes.workload import Workload
from repos import Repo
from waiting import ended as is_ended

BUILDER = Builder(summary="", driver="d")


def workload(*command: str, **keys: str) -> Workload:
    return Workload(name="w", summary="", group="", command=list(command), **keys)  # type: ignore[arg-type]


def ended(*stdout: str, stderr: str = "", status: int = 0, clock: str = "1000.5 0 1002.5\n") -> ProcessResult:
    return ProcessResult("\n".join(stdout), stderr, status, 90.0, clock)


def test_result_has_time_operations_and_the_printed_number() -> None:
    found = run_result(ended(), workload("x"))
    assert (found.opened, found.seconds, found.operations, found.reported) == (1000.5, 2.0, 1, None)
    assert found.latency == {"avg": 2000.0}
    found = run_result(ended("did 4,000 ops"), workload("x", operations="did (.*) ops"))
    assert (found.operations, found.latency) == (4000, {"avg": 0.5})
    for key in ("rate", "cost"):
        for printed, where in (("n=2.5", "n=(.*)"), ('{"n": 2.5}', "$.n")):
            assert run_result(ended(printed), workload("x", **{key: where})).reported == 2.5
    too_many = "operations, which is too large a number"
    for amount, sentence in (("0.3", "less than one operation"), ("9" * 19, too_many), ("1e308", too_many)):
        with pytest.raises(ValueError, match=sentence):
            run_result(ended(f"n={amount}"), workload("x", operations="n=(.*)"))


def test_failure_of_a_command_is_reported_with_its_reason() -> None:
    for how, sentence in (
        (ended(status=124, clock=""), "the command did not end within 90 s, and was killed"),
        (ended(status=137, clock=""), "the command did not end within 90 s, and was killed"),
        (ended(status=143, clock="1 143 2"), "the run was killed by signal 15"),
        (ended("a", "", stderr="no such option\n\n", clock="1 2 3"), "the command ended with status 2: no such option"),
        (ended("last words", clock="1 1 3"), "the command ended with status 1: last words"),
        (ended(clock="1 124 3"), "the command ended with status 124: the command printed nothing"),
        (ended(stderr="Segmentation fault", clock="1 139 3"), "the run was killed by signal 11: Segmentation fault"),
        (ended(stderr="no", clock="1 255 3"), "the command ended with status 255: no"),
        (ended(stderr="perf is lost", status=255, clock=""), "the command could not be run: perf is lost"),
        (
            ended(stderr="timed: 4: ./x: not found", clock="1 127 3"),
            "the command ended with status 127: ./x: not found",
        ),
        (ended(stderr="timed: line 4: ./x: No such file", clock="1 127 3"), "status 127: ./x: No such file"),
        (ended(status=1, clock=""), "the command could not be run: the command printed nothing"),
        (ended("n=x"), "the output has 'x' where n=(.*) matches, which is not a number above 0"),
        (ended("m=1"), "the output has no metric: no text matches the pattern n=(.*)"),
        (replace(ended("m=1", stderr="n=8"), is_whole=False), "no text matches the pattern n=(.*)"),
    ):
        with pytest.raises(ValueError, match=re.escape(sentence)):
            run_result(how, workload("x", rate="n=(.*)"))


def test_times_and_status_of_a_command_are_written(tmp_path: Path) -> None:
    for script, status, told in (
        ("exit 3", 0, "3"),
        ("exit 124", 0, "124"),  # not the limit of perfbisect
        ("kill -SEGV $$", 0, "139"),
        ("kill -TERM $$", 143, "143"),  # perhaps from outside: the caller decides
    ):
        argv = timed_argv(workload("sh", "-c", script), {}, PurePosixPath(tmp_path))
        done = subprocess.run(argv, capture_output=True, check=False)
        began, said, end = (tmp_path / CLOCK).read_text().split()
        assert (done.returncode, said) == (status, told)
        assert 0 < float(end) - float(began) < 60


def test_arguments_of_a_command_are_not_split(tmp_path: Path) -> None:
    words = workload("printf", "[%s]", "a b", "$(x)", ";", "{prefix}")
    argv = timed_argv(words, {"prefix": "/p q"}, PurePosixPath(tmp_path))
    assert subprocess.run(argv, capture_output=True, text=True, check=True).stdout == "[a b][$(x)][;][/p q]"


def loading(*command: str) -> Workload:
    return changed(workload("run"), prepare_commands=[[*command]])


def test_args_fill_placeholders_and_identify_the_dataset() -> None:
    one = changed(loading("load", "{keys}"), command=["run", "{keys}", "{sync}"], args={"keys": 5, "sync": True})
    path = PurePosixPath("/x")
    filled = command_placeholders(Installation("c", "k", path, BUILDER, {"prefix": "/x"}), one, path, path, None)
    assert (filled["keys"], filled["sync"], filled["prefix"]) == ("5", "true", "/x")
    more, unsynced = (changed(one, args=one.args | change) for change in ({"keys": 6}, {"sync": False}))
    assert inputs(more) != inputs(one) == inputs(unsynced)


def inputs(workload: Workload, builder: Builder = BUILDER, **filled: int) -> list[str]:
    return data_inputs(builder, workload, filled)


def test_sizes_identify_the_dataset_only_if_loading_uses_them() -> None:
    deaf = loading("load")
    for word in ("memory", "cache", "cores", "jobs"):
        one = loading("load", f"--size={{{word}}}")
        assert inputs(one, **{word: 4}) == inputs(one, **{word: 4}) != inputs(one, **{word: 5})
        assert inputs(deaf, **{word: 4}) == inputs(deaf, **{word: 5}) == [repr([["load"]]), "{}", ""]


def test_recipe_files_identify_the_dataset_only_if_loading_uses_them(tmp_path: Path) -> None:
    builder, found = Builder(summary="", driver="d", folder=str(tmp_path)), []
    for text in ("old", "new"):
        (tmp_path / "fill").write_text(text)
        found.append([inputs(loading(*command), builder) for command in (("{recipe}/fill", "{data}"), ("load",))])
    assert [one == other for one, other in zip(*found, strict=True)] == [False, True]


PERCENTILES = {"50.000000": 100000, "95.000000": 200000, "99.000000": 300000}


def printed(**keys: Any) -> str:
    side = {"iops": 500.0, "total_ios": 1000}
    side["clat_ns"] = {"mean": 150000.0, "max": 400000, "N": 1000, "percentile": PERCENTILES}
    job = {"error": 0, "job_runtime": 2000, "usr_cpu": 3.0, "sys_cpu": 7.0, "read": side, "write": {"iops": 0.0}}
    return json.dumps({"fio version": "fio-3.33", "jobs": [job | keys]}, indent=2)


def fio(text: str) -> RunResult:
    return read_fio(text, 0.0, 2.0)


def test_result_of_fio_has_iops_latencies_and_cpu_time() -> None:
    """If a job calls fsync, the latencies are those of fsync."""
    found = fio(printed())
    assert (found.reported, found.operations, found.counters) == (500.0, 1000, {CPU: 200.0})
    assert found.latency == {"avg": 0.15, "max": 0.4, "p95": 0.2, "p99": 0.3}
    warned = fio(f"fio: this platform does not support process shared mutexes {{}}\n{printed()}")
    assert warned == found, "what is before the JSON is passed over"
    assert fio(printed(write={"iops": 100.0, "total_ios": 200})).operations == 1200
    fsync = {"lat_ns": {"mean": 4e6, "max": 9e6, "N": 1000, "percentile": {"95.000000": 8e6, "99.000000": 8.5e6}}}
    assert fio(printed(sync=fsync)).latency == {"avg": 4.0, "max": 9.0, "p95": 8.0, "p99": 8.5}


def test_invalid_output_of_fio_is_reported() -> None:
    for text, sentence in (
        ("fio: no such engine", "not JSON of fio"),
        ('{"jobs": [{"read": {"iops": "many"}}]}', "not JSON of fio"),
        ('{"jobs": []}', "has 0 jobs"),
        ('{"jobs": [{}, {}]}', "--group_reporting"),
        (printed(error=5), "error 5"),
        (printed(read={"iops": 0.0}), "less than one I/O"),
    ):
        with pytest.raises(ValueError, match=sentence):
            fio(text)


SCRIPT = """\
#!/bin/sh
# $1: data, $2: threads
cat "$1/loaded" "$SUITE/beside.txt"
echo mine >>"$1/loaded"
echo "threads: $2, ops/s: {rate}, done: 50"
"""
GOOD, SLOW, FAILING, SILENT, LAST = range(5)
CHANGES = ("200", "100", "1; exit 7", "nothing", "90")


@pytest.fixture
def commits(git: Repo) -> tuple[str, ...]:
    """Commits whose script is, in order: fast, slow, failing, without a number, and slow."""
    (git.path / "bench").touch(0o755)
    parts = (change.partition("; ") for change in CHANGES)
    return tuple(git.history({"bench": SCRIPT.format(rate=rate) + more} for rate, _, more in parts))


@pytest.fixture
def lab(host: LocalHost, tmp_path: Path, commits: tuple[str, ...]) -> HostLab:
    suite, repository = tmp_path / "suite", tmp_path / "repo"
    suite.mkdir()
    (suite / "beside.txt").write_text("beside\n")
    builder = quick_builder(("sh -c 'pwd >built && echo {jobs} >>built'",), str(repository))
    load = [["sh", "-c", "cat {suite}/beside.txt >{data}/loaded; ls bench"]]
    workload = workload_of(
        name="bench", folder=str(suite), driver="command", threads=3, timeout=60.0, prepare_commands=load,
        command=["env", "SUITE={suite}", "./bench", "{data}", "{threads}"],
        rate=r"ops/s: (\w+)", operations=r"done: (\d+)",
    )  # fmt: skip
    return lab_of(host, builder, workload, repository, commits)


def with_workload(lab: HostLab, **changes: object) -> HostLab:
    return replace(lab, workload=msgspec.structs.replace(lab.workload, **changes))


@pytest.mark.tools
def test_command_is_measured_in_the_folder_where_it_was_built(lab: HostLab) -> None:
    """No two builds count as equal. If perf is permitted, perf counts the whole command."""
    events = measure(lab, PlannedRuns(GOOD, 2), PlannedRuns(SLOW, 1), PlannedRuns(LAST, 1))
    assert [event.same_as for event in events if isinstance(event, BuildFinished)] == [None] * 3
    done = runs(events)
    assert sorted(metric_value(run, "rate") or 0 for run in done) == [90, 100, 200, 200]
    assert {run.operations for run in done} == {50}
    assert all(0 < run.seconds < 60 for run in done)
    assert all(run.latency["avg"] == pytest.approx(20 * run.seconds) for run in done)
    for run in done:
        if run.counters:
            assert metric_value(run, "cpu/o") == pytest.approx(1000 * (run.counters["task-clock"] or 0) / 50) != 0
    assert [event.seconds for event in events if isinstance(event, RunStarted)] == [0, 0, 0, 0]
    [built, *_] = (event.facts for event in events if isinstance(event, BuildFinished))
    there = Path(built.log).parent / "prefix" / "built"
    assert there.read_text().splitlines()[0] == str(lab.lab_host.host.root / "work" / lab.builder.work_name / "prefix")
    assert len({run.dataset for run in done}) == 1
    [kept] = Path(lab.lab_host.host.root, "datasets").rglob("loaded")
    assert kept.read_text() == "beside\n"  # each run had a copy of its own


@pytest.mark.tools
def test_background_processes_of_a_command_are_ended(lab: HostLab, tmp_path: Path) -> None:
    script = """sh -c 'echo $$ >>"$1"; exec sleep 60' child "$1" & echo ops/s: 5, done: 1"""
    lab = with_workload(lab, command=["sh", "-c", script, "leave", str(tmp_path / "left")])
    assert len(runs(measure(lab, PlannedRuns(GOOD, 2)))) == 2
    left = (tmp_path / "left").read_text().split()
    assert left and all(map(is_ended, left))


@pytest.mark.tools
def test_commit_whose_command_prints_no_number_is_skipped(lab: HostLab) -> None:
    for candidate, reason in (
        (FAILING, "the command ended with status 7: threads: 3, ops/s: 1, done: 50"),
        (SILENT, r"the output has 'nothing' where ops/s: (\w+) matches, which is not a number above 0"),
    ):
        facts = skipped(measure(lab, PlannedRuns(candidate, 2)))
        assert (facts.stage, facts.reason) == ("run", reason)
        assert "ops/s" in Path(facts.log).read_text()


@pytest.mark.tools
def test_missing_loader_is_a_failure_of_the_commit_or_of_the_host(lab: HostLab) -> None:
    facts = skipped(measure(with_workload(lab, prepare_commands=[["./loader"]]), PlannedRuns(SLOW, 1)))
    assert facts.reason.startswith("the dataset cannot be loaded: ./loader ended with status 127: ")
    lab = with_workload(lab, prepare_commands=[["bench-loader"]])
    with pytest.raises(EnvironmentFailure, match="bench-loader is not installed on host here"):
        measure(lab, PlannedRuns(GOOD, 1))
