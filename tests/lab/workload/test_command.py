"""A workload that is a command: what its end means, and how it is really timed."""

import subprocess
from pathlib import Path, PurePosixPath

import pytest
from msgspec.structs import replace

from perfbisect.lab.server.installation import System
from perfbisect.lab.workload.command import CLOCK, outcome, prepare_inputs, timed, values
from perfbisect.lab.workload.result import ProcessResult
from perfbisect.recipes.builder import Builder
from perfbisect.recipes.workload import Workload

BUILDER = Builder(summary="", driver="d")


def workload(*command: str, rate: str = "", cost: str = "", operations: str = "") -> Workload:
    return Workload(name="w", summary="", group="", command=list(command), rate=rate, cost=cost, operations=operations)


def ended(*stdout: str, stderr: str = "", status: int = 0, clock: str = "1000.5 0 1002.5\n") -> ProcessResult:
    return ProcessResult("\n".join(stdout), stderr, status, 90.0, clock)


def test_without_a_metric_its_time_counts() -> None:
    found = outcome(ended(), workload("x"))
    assert (found.opened, found.seconds, found.operations, found.reported) == (1000.5, 2.0, 1, None)
    assert found.latency == {"avg": 2000.0}


def test_operations_divide_its_time() -> None:
    found = outcome(ended("did 4,000 ops"), workload("x", operations="did (.*) ops"))
    assert (found.operations, found.latency) == (4000, {"avg": 0.5})


@pytest.mark.parametrize("key", ["rate", "cost"])
def test_a_rate_or_a_cost_is_reported(key: str) -> None:
    assert outcome(ended("n=2.5"), workload("x", **{key: "n=(.*)"})).reported == 2.5
    assert outcome(ended('{"n": 2.5}'), workload("x", **{key: "$.n"})).reported == 2.5


@pytest.mark.parametrize(
    ("how", "sentence"),
    [
        (ended(status=124, clock=""), "it did not end in 90 s and was killed"),
        (ended(status=137, clock=""), "it did not end in 90 s and was killed"),
        (ended(status=143, clock="1 143 2"), "it was killed by signal 15"),
        (ended("a", "", stderr="no such option\n\n", clock="1 2 3"), "it ended with status 2: no such option"),
        (ended("last words", clock="1 1 3"), "it ended with status 1: last words"),
        (ended(clock="1 1 3"), "it ended with status 1: it printed nothing"),
        (ended(clock="1 124 3"), "it ended with status 124: it printed nothing"),
        (ended(stderr="Segmentation fault", clock="1 139 3"), "it was killed by signal 11: Segmentation fault"),
        (ended(stderr="no", clock="1 255 3"), "it ended with status 255: no"),
        (ended(stderr="perf is lost", status=255, clock=""), "it could not be run: perf is lost"),
        (ended(stderr="timed: 4: ./x: not found", clock="1 127 3"), "it ended with status 127: ./x: not found"),
        (ended(stderr="timed: line 4: ./x: No such file", clock="1 127 3"), "status 127: ./x: No such file"),
        (ended(stderr="perf: no", status=1, clock=""), "it could not be run: perf: no"),
        (ended(status=1, clock=""), "it could not be run: it printed nothing"),
        (ended("n=x"), "it printed 'x' where n=(.*) matches, which is not a number above 0"),
        (ended("m=1"), "it printed no metric: nothing in its output matches n=(.*)"),
    ],
)
def test_a_failure_is_reported(how: ProcessResult, sentence: str) -> None:
    with pytest.raises(ValueError) as caught:
        outcome(how, workload("x", rate="n=(.*)"))
    assert sentence in str(caught.value)


def test_less_than_an_operation_is_none() -> None:
    with pytest.raises(ValueError, match="less than one operation"):
        outcome(ended("n=0.3"), workload("x", operations="n=(.*)"))


@pytest.mark.parametrize(
    ("script", "status", "told"),
    [
        ("exit 0", 0, "0"),
        ("exit 3", 0, "3"),
        ("exit 124", 0, "124"),  # not our own limit
        ("kill -SEGV $$", 0, "139"),
        ("kill -TERM $$", 143, "143"),  # perhaps from outside: those who wait for the job decide
    ],
)
def test_the_end_of_a_command_is_written_down(tmp_path: Path, script: str, status: int, told: str) -> None:
    argv = timed(workload("sh", "-c", script), {}, PurePosixPath(tmp_path))
    done = subprocess.run(argv, capture_output=True, check=False)
    began, said, end = (tmp_path / CLOCK).read_text().split()
    assert (done.returncode, said) == (status, told)
    assert 0 < float(end) - float(began) < 60


def test_words_of_a_command_stay_words(tmp_path: Path) -> None:
    argv = timed(
        workload("printf", "[%s]", "a b", "$(x)", ";", "{prefix}"), {"prefix": "/p q"}, PurePosixPath(tmp_path)
    )
    assert subprocess.run(argv, capture_output=True, text=True, check=True).stdout == "[a b][$(x)][;][/p q]"


def test_args_are_filled_in_and_tell_data_apart_that_they_change() -> None:
    one = Workload(
        name="w", summary="", group="", command=["run", "{keys}", "{sync}"], prepare_commands=[["load", "{keys}"]],
        args={"keys": 5, "sync": True},
    )  # fmt: skip
    path = PurePosixPath("/x")
    filled = values(System("c", "k", path, BUILDER, {"prefix": "/x"}), one, path, path, None)
    assert (filled["keys"], filled["sync"], filled["prefix"]) == ("5", "true", "/x")
    more, unsynced = replace(one, args=one.args | {"keys": 6}), replace(one, args=one.args | {"sync": False})
    assert told(more) != told(one) == told(unsynced)


def told(workload: Workload, builder: Builder = BUILDER, **filled: int) -> list[str]:
    return prepare_inputs(builder, workload, filled)


@pytest.mark.parametrize("word", ["memory", "cache", "cores", "jobs"])
def test_sizes_tell_data_apart_where_loading_is_reported_them(word: str) -> None:
    one = Workload(name="w", summary="", group="", command=["run"], prepare_commands=[["load", f"--size={{{word}}}"]])
    assert told(one, **{word: 4}) == told(one, **{word: 4}) != told(one, **{word: 5})
    deaf = replace(one, prepare_commands=[["load"]])
    assert told(deaf, **{word: 4}) == told(deaf, **{word: 5}) == [repr([["load"]]), "{}", ""]


def test_a_recipes_files_tell_data_apart_where_loading_uses_them(tmp_path: Path) -> None:
    builder = Builder(summary="", driver="d", folder=str(tmp_path))
    one = Workload(name="w", summary="", group="", command=["run"], prepare_commands=[["{recipe}/fill", "{data}"]])
    deaf = replace(one, prepare_commands=[["load"]])
    (tmp_path / "fill").write_text("old")
    before = told(one, builder), told(deaf, builder)
    (tmp_path / "fill").write_text("new")
    assert told(one, builder) != before[0]
    assert told(deaf, builder) == before[1]
