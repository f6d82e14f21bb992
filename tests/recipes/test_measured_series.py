"""Series of measurements in the file formats of other programs."""

import json
from pathlib import Path
from typing import Any

import pytest

from perfbisect.errors import UsageError
from perfbisect.recipes.measured_series import MeasuredSeries, read_series_by_time

Found = dict[str, dict[str, list[float]]]
OTAVA = "2024.01.02 3:00:00 +0100,b,{1},7.5\n2024.01.01 23:00:00 +0100,a,{0},7\n"


def found(tmp_path: Path, text: str) -> tuple[list[MeasuredSeries], bool]:
    (tmp_path / "file").write_text(text)
    return read_series_by_time(tmp_path / "file")


def bencher(value: float, commit: str | None) -> dict[str, Any]:
    own = {"value": value, "lower_value": None, "upper_value": None}
    return {"metric": own, "version": {"number": 1, "hash": commit}, "start_time": f"2024-01-0{int(value)}T00:00:00Z"}


def named(**names: str) -> dict[str, Any]:
    usual = {"branch": "main", "testbed": "host", "benchmark": "get", "measure": "Latency"}
    return {key: {"name": name} for key, name in {**usual, **names}.items()}


ACTION = {
    "entries": {
        suite: [
            {"commit": {"id": commit}, "date": 1700000000000 + place, "tool": "cargo", "benches": [{"name": "get", "value": place + 1, "unit": unit}]}
            for place, commit in enumerate("aba")
        ]
        for suite, unit in (("fast", "ns/iter"), ("slow", "ops/s"))
    }
}  # fmt: skip
PERF = {"results": [{**named(), "metrics": [bencher(1, "a"), bencher(2, "b"), bencher(3, "a")]}]}
REPORTS = [
    {
        "branch": {"name": "main", "head": {"version": {"hash": commit}}}, "testbed": {"name": "host"}, "start_time": f"2024-01-0{at}T00:00:00Z",
        "results": [[{"benchmark": {"name": "get"}, "measures": [{"measure": {"name": "Latency"}, "metric": {"value": at}}]}]],
    }
    for at, commit in ((3, "a"), (2, "b"), (1, "a"))
]  # fmt: skip
GET = {"main host get Latency": {"a": [1, 3], "b": [2]}}


@pytest.mark.parametrize(
    ("text", "expected", "ordered"),
    [
        ("Time;Commit;qps\n1700000001;a;1\n1700000002;b;2\n1700000003;a;3", {"qps": {"a": [1, 3], "b": [2]}}, True),
        ("# of a host\ntime,commit,metric1,metric2\n" + OTAVA.format(5, 6), {"metric1": {"a": [5], "b": [6]}, "metric2": {"a": [7], "b": [7.5]}}, False),
        ("git_sha\tbenchmark\tvalue\tunit\na\tget\t1\tops/s\na\tput\t2\ts\nb\tget\t3\tops/s\nb\tput\t\ts", {"get": {"a": [1], "b": [3]}, "put": {"a": [2]}}, True),
        ("commit,branch,ms,note\na,main,1,x\nb,side,2,y", {"main ms": {"a": [1]}, "side ms": {"b": [2]}}, True),
        (json.dumps([{"sha": "a", "value": 1}, {"sha": "b", "value": "2"}]), {"value": {"a": [1], "b": [2]}}, True),
        (f"window.BENCHMARK_DATA = {json.dumps(ACTION)};", {"fast get": {"a": [1, 3], "b": [2]}, "slow get": {"a": [1, 3], "b": [2]}}, True),
        (json.dumps(PERF), GET, True),
        (json.dumps(REPORTS), GET, False),
    ],
    ids=["csv", "otava", "tsv", "branches", "rows", "action", "perf", "reports"],
)  # fmt: skip
def test_each_file_format_is_read(tmp_path: Path, text: str, expected: Found, ordered: bool) -> None:
    series, sorted_before = found(tmp_path, text)
    assert {each.name: each.values for each in series} == expected
    assert sorted_before is ordered
    assert [each.name for each in series if each.is_rate] == [name for name in expected if name in ("qps", "slow get") or (name == "get" and "ops" in text)]  # fmt: skip
    assert [each.medians_of_commits for each in series] == [[sum(own) / len(own) for own in each.values()] for each in expected.values()]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("commit,value", "has no measurement"),
        ("time,value\n1,2", "no column for the commit. Its columns: time, value"),
        ("commit,note\na,b", "no column for its values"),
        ("commit,value\na,b", "the value 'b' is not a number"),
        ("commit,time,value\na,yesterday,1", "the time 'yesterday' has an unknown format"),
        ("[1, 2]", "JSON of an unknown format"),
        ("window.x = 1", "is not valid JSON: Expecting value"),
        ("commit,value\n--build=x,1", "the commit --build=x is not a revision"),
        (json.dumps({"entries": {"suite": [{"benches": [{"name": "get", "value": 1}]}]}}), "incomplete: KeyError"),
        (json.dumps({"results": [{**named(), "metrics": [bencher(1, None)]}]}), "no hash of its commit"),
    ],
)
def test_unreadable_series_is_reported(tmp_path: Path, text: str, why: str) -> None:
    with pytest.raises(UsageError, match=f"^{tmp_path / 'file'}.*{why}"):
        found(tmp_path, text)
