"""What makes runs other runs."""

from pathlib import Path

import msgspec
import pytest

from perfbisect.lab.workload.lua import fingerprint
from perfbisect.recipes.builder import Builder, Server, When
from perfbisect.recipes.inventory import HostEntry
from perfbisect.recipes.workload import Workload

SERVER = Server(initialise=[["init"]], start=["start"], ready=["ready"], sysbench={"pgsql-host": "{socket}"})
BUILDER = Builder(name="served", summary="", driver="pgsql", server=SERVER)
HOST = HostEntry(name="here")
changed = msgspec.structs.replace


@pytest.fixture
def workload(tmp_path: Path) -> Workload:
    (tmp_path / "point.lua").write_text('require("sql")')
    (tmp_path / "suite.toml").write_text("")
    return Workload(
        name="point", suite="mine", folder=str(tmp_path), driver="pgsql", summary="", group="point", script="point.lua"
    )


@pytest.mark.parametrize("change", [{"args": {"tables": 2}}, {"threads": 2}, {"time": 9.0}, {"setup": "select 1"}])
def test_a_workload_makes_other_runs(workload: Workload, change: dict[str, object]) -> None:
    now = changed(workload, **change)
    assert fingerprint(BUILDER, now, [HOST]) != fingerprint(BUILDER, workload, [HOST])


def test_a_script_makes_other_runs_and_what_only_people_read_does_not(workload: Workload, tmp_path: Path) -> None:
    before = fingerprint(BUILDER, workload, [HOST])
    (tmp_path / "suite.toml").write_text("[workloads.another]")
    told = changed(workload, summary="one row", group="points", suspects={"src": 2.0})
    assert fingerprint(changed(BUILDER, summary="a server"), told, [HOST]) == before
    (tmp_path / "point.lua").write_text('require("sql") -- and more')
    assert fingerprint(BUILDER, workload, [HOST]) != before


@pytest.mark.parametrize(
    "builder",
    [
        changed(BUILDER, server=changed(SERVER, sysbench={"pgsql-host": "{data}"})),
        changed(BUILDER, server=changed(SERVER, perf_scope="connections")),
        changed(BUILDER, when=[When(version=">9", change={"server": {"perf_scope": "connections"}})]),
        changed(BUILDER, library="lib.so"),
    ],
)
def test_a_recipe_makes_other_runs(workload: Workload, builder: Builder) -> None:
    assert fingerprint(builder, workload, [HOST]) != fingerprint(BUILDER, workload, [HOST])


def test_a_file_that_no_script_requires_makes_no_other_runs(workload: Workload, tmp_path: Path) -> None:
    before = fingerprint(BUILDER, workload, [HOST])
    (tmp_path / "range.lua").write_text("")
    assert fingerprint(BUILDER, workload, [HOST]) == before
    (tmp_path / "sql.lua").write_text("")
    assert fingerprint(BUILDER, workload, [HOST]) != before


def test_a_command_may_read_what_lies_beside_its_suite_if_it_is_reported_where_that_is(
    workload: Workload, tmp_path: Path
) -> None:
    told, untold = (changed(workload, script="", command=[word]) for word in ("{suite}/run", "run"))
    before = [fingerprint(BUILDER, each, [HOST]) for each in (told, untold)]
    (tmp_path / "run").write_text("")
    (tmp_path / "suite.toml").write_text("[workloads.another]")
    assert [fingerprint(BUILDER, each, [HOST]) == was for each, was in zip((told, untold), before, strict=True)] == [
        False,
        True,
    ]


@pytest.mark.parametrize("word", ["{memory}", "{cache}", "{jobs}"])
def test_sizes_of_the_host_count_for_commands_that_are_reported_them(workload: Workload, word: str) -> None:
    larger = HostEntry(name="here", memory=900, jobs=7)
    assert fingerprint(BUILDER, workload, [larger]) == fingerprint(BUILDER, workload, [HOST])
    told = changed(workload, script="", command=["run", word])
    assert fingerprint(BUILDER, told, [larger]) != fingerprint(BUILDER, told, [HOST])


@pytest.mark.parametrize("entry", [HostEntry(name="here", server_cpus="0"), HostEntry(name="here", client_cpus="1")])
def test_a_share_of_the_host_makes_other_runs(workload: Workload, entry: HostEntry) -> None:
    assert fingerprint(BUILDER, workload, [entry]) != fingerprint(BUILDER, workload, [HOST])
    assert fingerprint(BUILDER, workload, [HOST, entry]) != fingerprint(BUILDER, workload, [entry, HOST])


def test_runs_that_are_counted_exactly_are_other_runs(workload: Workload) -> None:
    timed = fingerprint(BUILDER, workload, [HOST])
    assert fingerprint(BUILDER, workload, [HOST], [""]) == timed
    methods = ("perf-user", "valgrind-3.19.0", "valgrind-3.21.0")
    assert len({timed, *(fingerprint(BUILDER, workload, [HOST], [each]) for each in methods)}) == 4
