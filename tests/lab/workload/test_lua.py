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


def other_runs(builder: Builder, workload: Workload, *hosts: HostEntry, than: Workload | None = None) -> bool:
    """Whether these are other runs than those of the usual builder, workload and host."""
    return fingerprint(builder, workload, hosts or [HOST]) != fingerprint(BUILDER, than or workload, [HOST])


@pytest.mark.parametrize("change", [{"args": {"tables": 2}}, {"threads": 2}, {"time": 9.0}, {"setup": "select 1"}])
def test_a_workload_makes_other_runs(workload: Workload, change: dict[str, object]) -> None:
    assert other_runs(BUILDER, changed(workload, **change), than=workload)


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
    assert other_runs(builder, workload)


def test_files_that_runs_read_make_other_runs(workload: Workload, tmp_path: Path) -> None:
    """Those that a script requires; for a command what lies beside its suite, if it is told where that is."""
    told = changed(workload, summary="one row", group="points", suspects={"src": 2.0})
    assert not other_runs(changed(BUILDER, summary="a server"), told, than=workload), "what only people read"
    commands = [changed(workload, script="", command=[word]) for word in ("{suite}/run", "run")]
    before = [fingerprint(BUILDER, each, [HOST]) for each in (workload, *commands)]
    for file, text, others in (
        ("suite.toml", "[workloads.another]", [False, False, False]),
        ("range.lua", "", [False, True, False]),
        ("sql.lua", "", [True, True, False]),
        ("point.lua", 'require("sql") -- and more', [True, True, False]),
    ):
        (tmp_path / file).write_text(text)
        now = [fingerprint(BUILDER, each, [HOST]) for each in (workload, *commands)]
        assert [one != other for one, other in zip(before, now, strict=True)] == others, file
        before = now


@pytest.mark.parametrize("word", ["{memory}", "{cache}", "{jobs}"])
def test_sizes_of_the_host_count_for_commands_that_are_reported_them(workload: Workload, word: str) -> None:
    larger = HostEntry(name="here", memory=900, jobs=7)
    assert not other_runs(BUILDER, workload, larger)
    assert other_runs(BUILDER, changed(workload, script="", command=["run", word]), larger)


def test_the_share_of_a_host_and_exact_counts_make_other_runs(workload: Workload) -> None:
    for entry in (HostEntry(name="here", server_cpus="0"), HostEntry(name="here", client_cpus="1")):
        assert other_runs(BUILDER, workload, entry)
        assert fingerprint(BUILDER, workload, [HOST, entry]) != fingerprint(BUILDER, workload, [entry, HOST])
    methods = ([""], ["perf-user"], ["valgrind-3.19.0"], ["valgrind-3.21.0"])
    found = [fingerprint(BUILDER, workload, [HOST], each) for each in methods]
    assert len(set(found)) == 4 and found[0] == fingerprint(BUILDER, workload, [HOST])
