from pathlib import Path

import msgspec
import pytest

from perfbisect.errors import RecipeError
from perfbisect.lab.workload import dataset, lua
from perfbisect.recipes.builder_reader import load_builder
from perfbisect.recipes.workload import load_workload


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
