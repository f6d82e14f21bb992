"""sysbench: command line, output, files of workloads, and the fingerprint of the conditions of runs."""

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace as changed

from labs import workload_of
from perfbisect.errors import RecipeError, UsageError
from perfbisect.lab.workload import dataset, lua
from perfbisect.lab.workload.lua import fingerprint
from perfbisect.lab.workload.sysbench import failure_reason, interval_progress, parse_output, prepare_argv, run_argv
from perfbisect.recipes.builder import Builder, Server, When
from perfbisect.recipes.builder_reader import load_builder
from perfbisect.recipes.inventory import HostEntry
from perfbisect.recipes.workload import Workload, load_workload

OUTPUTS = Path(__file__).parents[2] / "outputs"


def workload(**keys: Any) -> Workload:
    return Workload(name="w", summary="", group="point", **{"threads": 2, "time": 10.0} | keys)


def lines(name: str) -> list[str]:
    return (OUTPUTS / name).read_text().splitlines()


def test_command_line_has_the_arguments_of_the_workload() -> None:
    """Every run draws the same uniform numbers; arguments of a workload override; preparing has its own arguments."""
    argv = run_argv(workload(), Path("/s/point.lua"), {"db-driver": "pgsql"})
    assert (argv[:2], argv[-1]) == (["sysbench", "/s/point.lua"], "run")
    assert {"--rand-type=uniform", "--rand-seed=1", "--events=0", "--threads=2", "--time=10"} <= set(argv)
    assert {"--report-interval=1", "--percentile=95", "--db-driver=pgsql"} <= set(argv)
    own = run_argv(workload(args={"rand-type": "zipfian", "secondary": True}), Path("x.lua"))
    assert {"--rand-type=zipfian", "--secondary=on"} <= set(own)
    assert "--rand-type=uniform" not in own
    argv = prepare_argv(workload(args={"batch": 5}, prepare_args={"rows": 7}), Path("x.lua"))
    assert argv[-1] == "prepare"
    assert "--rows=7" in argv and "--batch=5" not in argv
    for time in (0.5, 1.5):
        with pytest.raises(UsageError, match=rf"time = {time}.*whole seconds"):
            run_argv(workload(time=time), Path("x.lua"))


def test_progress_lines_of_both_formats_are_read() -> None:
    event = "[ 2s ] thds: 1 eps: 653474.15 lat (ms,95%): 0.00"
    sql = "[ 3s ] thds: 2 tps: 2037.62 qps: 8152.48 (r/w/o: 1/2/3) lat (ms,95%): 4.33 err/s: 0.00 reconn/s: 0.00"
    assert interval_progress(event, "event") == (2.0, 653474.15)
    assert (interval_progress(sql, "event"), interval_progress(sql, "query")) == ((3.0, 2037.62), (3.0, 8152.48))
    odd = ("[ 1s ] thds: 1 eps: 1.2.3", f"[ 1s ] thds: 1 eps: {'9' * 5_000}", "[ 1s ] thds: 1 tps: . qps: .")
    for line in ("Threads started!", "[ 1..2s ] thds: 1 eps: 5", *odd):
        assert interval_progress(line, "event") is None


def test_output_of_a_script_of_perfbisect_is_read() -> None:
    outcome = parse_output(lines("sysbench-event.txt"), "event")
    assert outcome.opened is not None
    assert outcome.seconds == pytest.approx(2.0, abs=0.001), "the window, not the total time of 2.0019 s"
    assert outcome.operations == 1312814
    inferred = pytest.approx(1312814 - 665019.52, rel=1e-4)
    assert outcome.samples == (665019.52, inferred), "the last is not reported by sysbench"
    assert outcome.latency["avg"] == pytest.approx(1823.01 / 1312814), "not rounded to 0.00"
    assert outcome.latency["max"] == 4.90
    assert outcome.latency["p95"] and outcome.latency["p99"]


def test_output_of_a_server_counts_queries_or_events() -> None:
    events, queries = (parse_output(lines("sysbench-sql.txt"), operation) for operation in ("event", "query"))
    assert (events.operations, queries.operations) == (7486, 29944)
    assert (events.seconds, events.opened) == (3.0158, None)
    assert events.samples == (2688.27, 2756.04, 2037.62)
    assert queries.samples == (10757.07, 11023.17, 8152.48)
    assert events.latency["p95"] == pytest.approx(3.96, abs=0.005), "the histogram agrees with sysbench's percentile"
    assert 3.96 < (events.latency["p99"] or 0) < 14.36


def test_output_without_a_result_is_refused() -> None:
    totals, unfinished = ["General statistics:", "    total time:   10.0s"], "without its statistics"
    odd = {"0": "no operation was finished"} | dict.fromkeys(("9" * 400, "9" * 5_000, "1.2.3", "-1", "nan"), unfinished)
    for printed, operation, sentence in (
        (lines("sysbench-event.txt"), "query", "no queries"),
        (["[ 1s ] thds: 1 eps: 10.00 lat (ms,95%): 0.00"], "event", unfinished),
        *(([*totals, f"    total number of events:   {n}", f"  1.0 |****  {n}"], "event", odd[n]) for n in odd),
    ):
        with pytest.raises(ValueError, match=sentence):
            parse_output(printed, operation)


def test_failures_of_sysbench_are_reported() -> None:
    assert failure_reason(lines("sysbench-sql.txt"), 0, 66.0) == ""
    for output, status, sentence in (
        ("x\nFATAL: `thread_init' function failed: w.lua:7: no library\nFATAL: more", 1, "`thread_init' function"),
        ("sysbench: Segmentation fault", 0, "sysbench crashed: Segmentation fault"),
        ("", 139, "signal 11"),
        ("", 255, "sysbench ended with status 255"),
        ("", 124, "did not end within 66 s"),
        ("(last message repeated)\nerror: no such option", 1, "no such option"),
        ("", 3, "status 3"),
    ):
        assert sentence in failure_reason(output.splitlines(), status, 66.0)


ROLES = """\
perfbisect window: 1795447055.237551 3.001123
    total time: 3.0011s
    total number of events: 11148
    min: 0.023
    avg: 0.2680
    max: 32.093
0.025000 | 11000
4.700000 | 148
perfbisect role: query 11148 0 0 0 4.7000 32.0935
perfbisect role: insert 2900 3000 1000.000 100 25.0584 25.0584
perfbisect client: 196.541 0.0602
"""


def test_output_of_several_roles_of_threads_is_read() -> None:
    """The first role is measured. The other roles and the CPU time of the client are counters."""
    found = parse_output(ROLES.splitlines(), "event")
    assert (found.operations, found.seconds) == (11148, 3.001123)
    assert found.latency == {"min": 0.023, "avg": 0.268, "p95": 0.025, "p99": 4.7, "max": 32.093}
    assert "query-due" not in found.counters, "the role has no given rate"
    counters = {
        "query-done": 11148, "insert-done": 2900, "insert-due": 3000, "insert-rate": 1000, "insert-batch": 100,
        "insert-p99": 25.0584, "client-cpu": 196.541, "client-busy": 0.0602,
    }  # fmt: skip
    assert found.counters.items() >= counters.items()


DEMO, WRITES = load_builder("demo"), load_workload("update-index", "demo")


def test_dataset_key_depends_on_the_modules_of_the_script(tmp_path: Path) -> None:
    suite = tmp_path / "kv"
    suite.mkdir()
    (suite / "prepare.lua").write_text('local rows = require("kv.rows")\nrequire "ffi"\n')
    (suite / "rows.lua").write_text("return 1 -- require('prepare')\n")
    point = changed(WRITES, folder=str(suite), prepare_script="prepare.lua")
    before = dataset.dataset_key(DEMO, point, {})
    assert dataset.dataset_key(DEMO, point, {}) == before
    (suite / "rows.lua").write_text("return 2\n")
    assert dataset.dataset_key(DEMO, point, {}) != before


def test_script_that_is_not_utf8_is_reported(tmp_path: Path) -> None:
    point = changed(WRITES, folder=str(tmp_path), script="odd.lua", prepare_script="odd.lua")
    (tmp_path / "odd.lua").write_bytes(b"-- gr\xfc\xdfe\n")
    for read in (lambda: dataset.dataset_key(DEMO, point, {}), lambda: lua.files_to_send(point)):
        with pytest.raises(RecipeError, match=r"odd.lua is not UTF-8 text: .* at byte 5"):
            read()


SERVER = Server(initialise=[["init"]], start=["start"], ready=["ready"], sysbench={"pgsql-host": "{socket}"})
BUILDER = Builder(name="served", summary="", driver="pgsql", server=SERVER)
HOST = HostEntry(name="here")


@pytest.fixture
def point(tmp_path: Path) -> Workload:
    (tmp_path / "point.lua").write_text('require("sql")')
    (tmp_path / "suite.toml").write_text("")
    return workload_of(name="point", folder=str(tmp_path), script="point.lua")


def other_runs(builder: Builder, point: Workload, *hosts: HostEntry, than: Workload | None = None) -> bool:
    """Whether the fingerprint differs from that of the usual builder, workload and host."""
    return fingerprint(builder, point, hosts or [HOST]) != fingerprint(BUILDER, than or point, [HOST])


def test_fingerprint_depends_on_the_workload_and_the_recipe(point: Workload) -> None:
    for change in ({"args": {"tables": 2}}, {"threads": 2}, {"time": 9.0}, {"setup": "select 1"}):
        assert other_runs(BUILDER, changed(point, **change), than=point)
    for recipe in (
        {"server": changed(SERVER, sysbench={"pgsql-host": "{data}"})},
        {"server": changed(SERVER, perf_scope="connections")},
        {"when": [When(version=">9", change={"server": {"perf_scope": "connections"}})]},
        {"library": "lib.so"},
    ):
        assert other_runs(changed(BUILDER, **recipe), point)


def test_fingerprint_depends_on_files_that_runs_read(point: Workload, tmp_path: Path) -> None:
    """A script reads the files that it requires. A command reads the files of its suite if it contains {suite}."""
    told = changed(point, summary="one row", group="points", suspects={"src": 2.0})
    assert not other_runs(changed(BUILDER, summary="a server"), told, than=point), "texts for readers"
    asked = [point, *(changed(point, script="", command=[word]) for word in ("{suite}/run", "run"))]
    before = [fingerprint(BUILDER, each, [HOST]) for each in asked]
    for file, text, others in (
        ("suite.toml", "[workloads.another]", [False, False, False]),
        ("range.lua", "", [False, True, False]),
        ("sql.lua", "", [True, True, False]),
        ("point.lua", 'require("sql") -- and more', [True, True, False]),
    ):
        (tmp_path / file).write_text(text)
        now = [fingerprint(BUILDER, each, [HOST]) for each in asked]
        assert [one != other for one, other in zip(before, now, strict=True)] == others, file
        before = now


def test_fingerprint_depends_on_sizes_of_the_host_that_a_command_uses(point: Workload) -> None:
    larger = HostEntry(name="here", memory=900, jobs=7)
    assert not other_runs(BUILDER, point, larger)
    for word in ("{memory}", "{cache}", "{jobs}"):
        assert other_runs(BUILDER, changed(point, script="", command=["run", word]), larger)


def test_fingerprint_depends_on_cpus_and_on_the_counting_method(point: Workload) -> None:
    for entry in (HostEntry(name="here", server_cpus="0"), HostEntry(name="here", client_cpus="1")):
        assert other_runs(BUILDER, point, entry)
        assert fingerprint(BUILDER, point, [HOST, entry]) != fingerprint(BUILDER, point, [entry, HOST])
    methods = ([""], ["perf-user"], ["valgrind-3.19.0"], ["valgrind-3.21.0"])
    found = [fingerprint(BUILDER, point, [HOST], each) for each in methods]
    assert len(set(found)) == 4 and found[0] == fingerprint(BUILDER, point, [HOST])
