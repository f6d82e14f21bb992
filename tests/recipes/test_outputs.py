"""Outputs of real benchmarks: the recognised format, and the results that are read."""

import json
from pathlib import Path

import pytest

from perfbisect.core.domain.settings import PrintedResult
from perfbisect.errors import UsageError
from perfbisect.recipes.output_pattern import NoNumber
from perfbisect.recipes.outputs import filter_arguments, known_formats, read_result, read_results, recognise_output

OUTPUTS = Path(__file__).parents[1] / "outputs" / "benchmarks"
EXPECTED = json.loads((OUTPUTS / "expected.json").read_text())


def output(name: str) -> str:
    return (OUTPUTS / name).read_bytes().decode()


@pytest.mark.parametrize("name", EXPECTED)
def test_each_result_is_read_with_its_unit(name: str) -> None:
    text, expected = output(name), EXPECTED[name]
    if expected is None:
        assert recognise_output(text, "") is None
        return
    for result, shown in expected[1].items():
        found = recognise_output(f"Built in 3 s\n{text}", result)
        assert found, "lines before it do not matter"
        assert (found.only_result.format, found.only_result.result) == (expected[0], result)
        assert f"{found.only_result.metric} {found.values[result]:.6g} {found.only_result.unit}" == shown
        assert read_result(found.only_result, text) == found.values[result]
        assert f": {len(expected[1])} result{'s' * (len(expected[1]) > 1)}; measured: {result}" in found.summary


def test_every_format_has_a_recorded_output() -> None:
    assert {row.name for row in known_formats()} == {expected[0] for expected in EXPECTED.values() if expected}


@pytest.mark.parametrize(
    ("name", "only", "why"),
    [
        ("google-1.7.1.json", "*/1024", "Google Benchmark: 3 results; measured: BM_Insert/1024, by cpu_time"),
        ("google-1.9.5.txt", "sum*", "Google Benchmark: 2 results; measured: sum_/real_time, by real_time"),
        ("memtier.txt", "", "memtier: 3 results; measured: Totals"),
        ("memtier.txt", "S*", "memtier: 3 results; measured: Sets"),
        ("ycsb-0.17.0.txt", "READ", "YCSB: 1 result; measured: READ"),
        ("pgbench-15.txt", "", "pgbench: 1 result; measured: tps"),
        ("pytest-benchmark-5.3.1.txt", "test_sort[10]", "pytest-benchmark: 3 results; measured: test_sort[10]"),
    ],
)
def test_one_result_is_chosen_for_the_hunt(name: str, only: str, why: str) -> None:
    found = recognise_output(output(name), only)
    assert found and found.summary == why


def one_of(text: str, only: str) -> PrintedResult:
    found = recognise_output(text, only)
    assert found
    return found.only_result


def test_ambiguous_choice_is_refused_with_a_list_of_results() -> None:
    text, listed = output("google-1.7.1.txt"), "BM_Insert/64, BM_Insert/1024"
    for only, what in (("", "2 results"), ("BM*", r"2 results that match BM\*"), ("BM_Erase", "no result BM_Erase")):
        with pytest.raises(UsageError, match=f"^The output of Google Benchmark has {what}") as refused:
            one_of(text, only)
        assert refused.value.advice.endswith(f": {listed}."), only
    many = "".join(f"test t{number} ... bench: {number + 1} ns/iter (+/- 1)\n" for number in range(50))
    with pytest.raises(UsageError, match="50 results") as refused:
        one_of(many, "")
    assert refused.value.advice.endswith("t19 and 30 more.")


def test_results_with_the_same_direction_are_measured_together() -> None:
    text = "BenchmarkGet-8 9 5 ns/op\nBenchmarkPut-8 9 7 ms/op\nBenchmarkCopy-8 9 7 MB/s\n"
    found = recognise_output(text, "")
    assert found and found.summary == "go test: 3 results; measured: 2 of them"
    assert found.values == {"BenchmarkGet-8": 5.0, "BenchmarkPut-8": 7.0} == read_results(found.outputs, text)
    assert read_results(found.outputs, "BenchmarkPut-8 9 70 us/op") == {"BenchmarkPut-8": 0.07}


@pytest.mark.parametrize(
    ("form", "names", "words"),
    [
        ("Google Benchmark", ["BM<int>/8", "BM.x(2)"], ("--benchmark_filter=^(BM<int>/8|BM\\.x\\(2\\))$",)),
        ("go test", ["BenchmarkSort/n=10-8", "BenchmarkSort/n=100-8"], ("-bench", "^(BenchmarkSort)$/^(n=10|n=100)$")),
        ("pytest-benchmark", ["tests/a.py::test_sort[10]", "test_get"], ("-k", "test_sort[10] or test_get")),
        ("wrk", ["Requests"], ()),
    ],
)
def test_filter_arguments_of_a_program_name_the_results(form: str, names: list[str], words: tuple[str, ...]) -> None:
    assert filter_arguments([PrintedResult(form, name, "ns", "cost") for name in names]) == words


def test_result_keeps_its_unit_if_a_program_changes_units() -> None:
    """Some programs choose the unit by the size of the result. Commits are compared in the unit of the first result."""
    text = "fib 10                  time:   [229.98 {0} 271.95 {0} 335.23 {0}]\n"
    found = recognise_output(text.format("µs"), "")
    criterion = PrintedResult("Criterion", "fib 10", "µs", "cost")
    assert found and found.only_result == criterion
    assert [read_result(criterion, text.format(unit)) for unit in ("ns", "ms")] == [0.27195, 271950.0]
    with pytest.raises(NoNumber, match="lacks the result readrandom of db_bench"):
        read_result(PrintedResult("db_bench", "readrandom", "ops/s", "rate"), output("db_bench-leveldb-1.23.txt"))
    with pytest.raises(NoNumber, match="lacks the result fib 10 of Criterion"):
        read_result(criterion, "it crashed")


@pytest.mark.parametrize(
    "text", ["", "time 12 s", '{"results": [{"ops": 5}]}', "[1, 2]", '{"a": {"b": 3}}', "{" * 100_000]
)
def test_text_of_no_benchmark_is_not_recognised(text: str) -> None:
    assert recognise_output(text, "") is None


def test_long_output_of_another_program_is_searched_quickly() -> None:
    """The outputs are as long as an output that is kept. A pattern that backtracks over lines would take hours."""
    for line in (
        "word " * 20,
        "BM_x 1 ns ",
        "| 1 | ",
        "x" * 100,
        "=" * 100,
        "benchmark name samples iterations est",
        "{",
    ):
        assert recognise_output(f"{line}\n" * 20_000, "") is None
