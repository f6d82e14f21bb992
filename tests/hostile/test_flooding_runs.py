"""What a benchmark may print in place of a number: too much, too deep, too long, and text that makes a search endless."""

import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from labs import bench_lab, measure, runs, skipped, warnings
from perfbisect.core.domain.orders import Share
from perfbisect.errors import EnvironmentFailure, RunLost
from perfbisect.host.local import LocalHost
from perfbisect.lab.build.log_parser import STAGE, BuildLog
from perfbisect.lab.host_lab import HostLab
from perfbisect.lab.measure import perf
from perfbisect.lab.measure.perf import parse_vmstat
from perfbisect.lab.workload import sysbench
from perfbisect.recipes import output_pattern
from perfbisect.recipes.output_pattern import find_number
from repos import Repo

NUMBERS = [
    "inf", "-inf", "nan", "NaN", "Infinity", "1e400", "1e-400", "-1", "-0", "0", "0.0", "0e5", "1_000", "1__0", "0x10", "١٢",
    "１２", "²", "1e", "e5", "1e+", ".", "+", "--1", "1.2.3", "1,23", "1 000", "1'000", "", "True", "None", "1f", "12%",
    "-1e400", "-Infinity", "-" + "1" * 5_000, "1" * 5_000, "0." + "0" * 5_000 + "1", "1" * 5_000 + "e-4990", "1e" + "9" * 5_000, "9" * 309 + "0",
]  # fmt: skip


OF_JSON = {"1e400", "-1e400", "NaN", "Infinity", "-Infinity", "0", "-0", "1" * 5_000, "-" + "1" * 5_000, "0.0"}


@pytest.mark.parametrize("text", NUMBERS, ids=[repr(text[:12]) for text in NUMBERS])
def test_what_is_no_finite_number_above_0_is_a_sentence(text: str) -> None:
    asked = [(r"n=<(.*)>", f"n=<{text}>\n"), ("$.n", f'{{"n": "{text}"}}')]
    if text in OF_JSON:
        asked.append(("$.n", f'{{"n": {text}}}'))
    for where, output in asked:
        with pytest.raises(ValueError, match=r"where .* matches, which is not a number above 0"):
            find_number(where, output)


@pytest.mark.parametrize(
    ("text", "number"),
    [("1e308", 1e308), ("+1.5E+3", 1500), (".5", 0.5), ("7.", 7), ("1,234.5", 1234.5), ("4.9e-324", 5e-324)],
)
def test_what_is_one_is_read(text: str, number: float) -> None:
    assert find_number(r"n=(\S+)", f"n={text}") == number


DEEP = ["[" * 200_000, "[" * 200_000 + "]" * 200_000, '{"n":' * 200_000, "[" * 5_000 + "]" * 5_000, "[{" * 100_000]


@pytest.mark.parametrize("text", DEEP, ids=["open", "closed", "tables", "some", "mixed"])
def test_brackets_in_each_other_are_a_sentence(text: str) -> None:
    for where in ("$.n", "$[0]", "$"):
        with pytest.raises(ValueError, match="it printed no metric: "):
            find_number(where, text)
    assert find_number("$.n", f'{text}\n{{"n": 3}}\n{text}') == 3


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        (r"^(?:a+)+(b)$", "a" * 60),
        (r"(?:x|xx|xxx)*(\d)$", "x" * 200),
        (r"(?:.*,)*(\d+)$", "1," * 60),
        (r"(?:\s*\S*)*ops: (\d+)", "word " * 100),
    ],
)
def test_a_search_that_would_not_end_is_a_sentence(pattern: str, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output_pattern, "LONGEST", 0.5)
    with pytest.raises(ValueError, match=r"^the search of its output for .* took more than 0.5 s$"):
        find_number(pattern, f"{text}\n")


@pytest.mark.parametrize(
    ("does", "why"),
    [
        ("raise MemoryError('no memory')", r"status 1, MemoryError: no memory$"),
        ("import os; os.kill(os.getpid(), 9)", r"status -9$"),
        ("import sys; sys.exit('\\x1b]0;owned\\u2026')", r"status 1, "),
    ],
)
def test_a_search_that_is_killed_or_lacks_memory_is_a_sentence(
    does: str, why: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(output_pattern, "_SEARCH", does)
    with pytest.raises(EnvironmentFailure, match=why):
        find_number(r"(\d+) ops", "7 ops")
    assert capfd.readouterr() == ("", ""), "what it printed is in the sentence alone"


def test_a_search_that_cannot_be_started_is_a_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "gone"))
    with pytest.raises(EnvironmentFailure, match="on this machine: No such file or directory"):
        find_number(r"(\d+) ops", "7 ops")


def test_a_search_in_all_that_is_kept_ends() -> None:
    assert find_number(r"(\d+) ops", "12 ops\n" * 1_400_000) == 12
    assert find_number(r"(\d+) ops", "x" * 10_000_000 + " 7 ops") == 7


@pytest.mark.parametrize(
    "line",
    [
        "[ 1s ] thds: 1 eps: 1.2.3",
        "[ 1..2s ] thds: 1 eps: 5",
        f"[ 1s ] thds: 1 eps: {'9' * 5_000}",
        "[ 1s ] thds: 1 tps: . qps: .",
    ],
)
def test_odd_reports_of_sysbench_are_none(line: str) -> None:
    assert sysbench.progress(line, "event") is None


def test_odd_totals_of_sysbench_are_a_sentence() -> None:
    for number in ("9" * 400, "9" * 5_000, "1.2.3", "-1", "nan", "0"):
        lines = ["General statistics:", "    total time:   10.0s", f"    total number of events:   {number}"]
        with pytest.raises(ValueError, match=r"sysbench ended without its statistics|not one operation"):
            sysbench.parse([*lines, f"  1.0 |****  {number}"], "event")


@pytest.mark.parametrize(
    "line", ["[" + "9" * 5_000 + "/" + "9" * 5_000 + "] x", "[" + "9" * 5_000 + "%] x", "[ ١%] x", "[/] x", "[%] x"]
)
def test_odd_progress_of_a_build_is_none(line: str) -> None:
    log = BuildLog()
    log.read(f"{STAGE}compile: make")
    assert not log.read(line)


UNITS = ("make", "/", "a/", " ", "make[1", "*** ", "make: *** [", "] Error ", "-c ", "error", "CMake Error", "[1/",
         ": not found", "x", "ccache: ")  # fmt: skip


@pytest.mark.parametrize("unit", UNITS)
def test_the_time_of_a_long_line_of_a_build_is_not_its_square(unit: str) -> None:
    def seconds(size: int) -> float:
        line = unit * (size // len(unit))
        best = []
        for _ in range(5):
            log = BuildLog()
            began = time.process_time()
            log.read(line)
            best.append(time.process_time() - began)
        return min(best)

    assert seconds(64_000) < 100 * seconds(4_000) + 0.01  # linear: 16; square: 256
    log = BuildLog()
    log.read(unit * 64_000 + " error: x")
    assert len(log.why()) < 1_500


BENCHES = {
    "flood": (r"yes 'ops/s: 1' | head -c {size}; echo ops/s: 7", 7),
    "flood of errors": (r"yes error | head -c {size} >&2; echo ops/s: 7", 7),
    "one line": (r"head -c {size} /dev/zero | tr '\0' x; echo; echo ops/s: 7", 7),
    "number before the flood": (r"echo ops/s: 7; yes x | head -c {size}", "nothing in its output matches"),
    "number in the flood": (
        r"yes x | head -c {size}; echo ops/s: 7; yes x | head -c {size}",
        "MB in the middle were not kept",
    ),
    "number among the errors": (
        r"echo ops/s: 9; yes x | head -c {size}; echo ops/s: 8 >&2",
        "nothing in its output matches",
    ),
    "status": (
        r"yes x | head -c {size}; echo the reason; exit 3",
        "it ended with status 3: the reason; of what it printed, ",
    ),
}


@pytest.fixture
def lab(host: LocalHost, git: Repo) -> HostLab:
    return bench_lab(host, git.path, git.commit())


def with_command(lab: HostLab, script: str, **changes: object) -> HostLab:
    return replace(lab, workload=msgspec.structs.replace(lab.workload, command=["sh", "-c", script], **changes))


@pytest.mark.tools
@pytest.mark.parametrize("bench", BENCHES, ids=str)
def test_a_benchmark_that_floods(lab: HostLab, bench: str) -> None:
    script, result = BENCHES[bench]
    events = measure(with_command(lab, script.format(size=50_000_000)), Share(0, 1))
    if isinstance(result, int):
        assert [run.reported for run in runs(events)] == [result]
        return
    facts = skipped(events)
    assert result in facts.reason
    assert "MB in the middle were not kept" in facts.reason
    assert Path(facts.log).stat().st_size < 25_000_000


@pytest.mark.tools
@pytest.mark.parametrize("amount", ["9" * 19, "1e30", "1e308"])
def test_operations_that_cannot_be_counted_are_the_runs_failure(lab: HostLab, amount: str) -> None:
    broken = with_command(lab, f"echo ops/s: 5; echo done: {amount}", operations=r"done: (\S+)")
    assert "operations, more than can be counted" in skipped(measure(broken, Share(0, 1))).reason


@pytest.mark.tools
def test_200_000_brackets_are_the_runs_failure(lab: HostLab) -> None:
    deep = with_command(lab, "head -c 200000 /dev/zero | tr '\\0' '['", rate="$.n")
    assert skipped(measure(deep, Share(0, 1))).reason == (
        "it printed no metric: its output is JSON with too many lists or tables in each other"
    )


Lab = Callable[[str], HostLab]


@pytest.fixture
def scripted_lab(host: LocalHost, git: Repo) -> Lab:
    sha = git.commit()
    return lambda script: bench_lab(host, git.path, sha, command=["sh", "-c", script, "bench", "{data}/.."])


FORGED = {
    "words": "a b c\\n",
    "form feeds": "\\f\\f1 2 3\\f\\n",
    "no numbers": "nan inf -1e400\\n",
    "lines": "1 2 3\\n1 2 3\\n1 2 3\\n",
    "long numbers": "9" * 400 + " 1 1\\n",
    "zeros": "\\0\\0\\0",
    "nothing": "",
}


@pytest.mark.tools
@pytest.mark.parametrize("text", FORGED.values(), ids=FORGED)
def test_a_program_that_writes_to_the_files_that_time_it(scripted_lab: Lab, text: str) -> None:
    """It is measured, or the run is lost: there is no third end, and it is never a bug."""
    script = f"""
        for file in time clock counters vmstat iostat; do printf '{text}' >"$1/$file"; done; echo ops/s: 7
    """
    try:
        assert [run.reported for run in runs(measure(scripted_lab(script), Share(0, 1)))] == [7]
    except RunLost as lost:
        assert "the begin and the end of a run could not be written" in str(lost)


def test_only_numbers_are_read_from_these_files() -> None:
    assert perf.read_stamps("nan 1 2\n1 2 3 4\n-1 2 3\n1.5 2 3\n") == (perf.Stamp(1.5, 2, 3),)
    assert perf.parse("nan,,instructions,1,1\ninf,,cycles,1,1\n-5,,branches,1,1\n7,,task-clock,1,1\n") == {
        "instructions": None, "cycles": None, "branches": None, "task-clock": 7,
    }  # fmt: skip
    assert parse_vmstat([" r  b us", " 1 0 5", " nan 0 5", " inf 0 5", " 2 0 5"]) == [{"r": 2, "b": 0, "us": 5}]


@pytest.mark.tools
@pytest.mark.parametrize("signal", ["KILL", "TERM", "HUP"])
def test_a_kill_of_what_perf_started_is_not_the_commits_fault(scripted_lab: Lab, tmp_path: Path, signal: str) -> None:
    """perf ends with 0 then; the first time only, so the run is repeated."""
    script = f"""
        if [ ! -e {tmp_path}/killed ]; then : >{tmp_path}/killed; kill -{signal} $PPID; sleep 2; fi; echo ops/s: 7
    """
    events = measure(scripted_lab(script), Share(0, 1))
    assert [run.reported for run in runs(events)] == [7]
    assert len(warnings(events)) == 1
    assert "ended without an exit status: it is repeated" in warnings(events)[0]


@pytest.mark.parametrize(
    ("line", "outside"),
    [
        ("sysbench: Killed", True),
        ("sh: Terminated", True),
        ("sysbench: Segmentation fault", False),
        ("x sh: Killed", False),
    ],
)
def test_only_signals_that_may_come_from_outside_lose_a_run(line: str, outside: bool) -> None:
    """sysbench that crashes by itself is the commit's fault."""
    assert perf.killed(["a line", line]) is outside


@pytest.mark.tools
def test_what_perf_would_say_counts_only_from_perf(scripted_lab: Lab) -> None:
    events = measure(scripted_lab("echo 'sh: Killed' >&2; echo ops/s: 7"), Share(0, 1))
    assert ([run.reported for run in runs(events)], warnings(events)) == ([7], [])
    failed = measure(scripted_lab("echo 'sh: Killed' >&2; exit 3"), Share(0, 1))
    assert skipped(failed).reason == "it ended with status 3: sh: Killed"
