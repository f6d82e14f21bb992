"""Tables line up, fit, and cost little to import."""

import subprocess
import sys

from rich.cells import cell_len

from perfbisect.wording.table import columns, cut, table


def test_tables_line_up_in_any_script() -> None:
    lines = table(("name", "n", "rest"), [("数据库", "1", "a"), ("e\u0301", "22", "b")], right=("n",))
    assert {cell_len(line) for line in lines[1:]} == {6 + 2 + 2 + 2 + 1}
    assert [cut("数据库", width) for width in (0, 1, 3, 4, 6)] == ["", "…", "数…", "数…", "数据库"]
    assert cut("abc", 3) == "abc"


def test_a_narrow_table_leaves_out_columns_before_it_cuts() -> None:
    rows = [("a" * 10, "b" * 10, "c" * 30)]
    assert table(("one", "two", "three"), rows, width=44, drop=("two",))[1] == f"{'a' * 10}  {'b' * 10}  {'c' * 19}…"
    assert table(("one", "two", "three"), rows, width=36, drop=("two",))[1] == f"{'a' * 10}  {'c' * 23}…"
    assert table(("one", "two", "three"), rows, drop=("two",))[1] == f"{'a' * 10}  {'b' * 10}  {'c' * 30}"


def test_columns_need_no_header() -> None:
    assert columns([("a", "b"), ("long", "")]) == ["a     b", "long"]
    assert columns([]) == []


def test_the_list_of_hunts_needs_no_numpy() -> None:
    """`bisect history` must answer at once."""
    code = "import sys, perfbisect.wording.table, perfbisect.wording.quantities, perfbisect.wording.text; print(sorted(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "'rich.cells'" in loaded
    assert not any(f"'{name}'" in loaded for name in ("numpy", "rich.console", "rich.text"))
