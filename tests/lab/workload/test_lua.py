"""Which files a workload has, and what makes runs other runs."""

from pathlib import Path

import msgspec
import pytest

from perfbisect.errors import RecipeError
from perfbisect.lab.workload import dataset, lua
from perfbisect.lab.workload.lua import fingerprint
from perfbisect.recipes.builder import Builder, Server, When
from perfbisect.recipes.builder_reader import load_builder
from perfbisect.recipes.inventory import HostEntry
from perfbisect.recipes.workload import Workload, load_workload


def test_the_shipped_demo_is_prepared_by_its_table_and_the_shared_module() -> None:
    workload = load_workload("update-index", "demo")
    script = lua.preparing(workload)
    assert script is not None
    names = [file.name for file in lua.with_modules(workload, script)]
    assert names[0] == "prepare.lua"
    assert "perfbisect.lua" in names
    assert len(names) == len(set(names))


def test_data_is_made_anew_when_a_module_of_its_script_changes(tmp_path: Path) -> None:
    suite = tmp_path / "kv"
    suite.mkdir()
    (suite / "prepare.lua").write_text('local rows = require("kv.rows")\nrequire "ffi"\n')
    (suite / "rows.lua").write_text("return 1 -- require('prepare')\n")
    workload = msgspec.structs.replace(
        load_workload("update-index", "demo"), folder=str(suite), prepare_script="prepare.lua"
    )
    builder = load_builder("demo")
    before = dataset.key(builder, workload, {})
    assert dataset.key(builder, workload, {}) == before
    (suite / "rows.lua").write_text("return 2\n")
    assert dataset.key(builder, workload, {}) != before


def test_a_script_that_is_no_text_is_a_mistake_of_its_author(tmp_path: Path) -> None:
    workload = msgspec.structs.replace(
        load_workload("update-index", "demo"), folder=str(tmp_path), script="odd.lua", prepare_script="odd.lua"
    )
    (tmp_path / "odd.lua").write_bytes(b"-- gr\xfc\xdfe\n")
    for read in (lambda: dataset.key(load_builder("demo"), workload, {}), lambda: lua.to_send(workload)):
        with pytest.raises(RecipeError, match=r"odd.lua: is not UTF-8 text: .* at byte 5"):
            read()


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
