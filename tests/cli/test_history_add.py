"""`bisect history add`: results made by hand beside those of perfbisect."""

import json
from pathlib import Path

import click
import pytest

from perfbisect.cli.commands.history import add
from program import exits, printed

pytestmark = pytest.mark.tools


def results(folder: Path, text: str) -> str:
    folder.mkdir()
    (folder / "sb.r.qps").write_text(text)
    return str(folder)


def test_results_are_added_listed_printed_queried_drawn_and_copied(tmp_path: Path) -> None:
    one = results(tmp_path / "x.one.pk1", "1000\tinnodb scan range=100\n")
    two = results(tmp_path / "x.two.pk1", "550\tinnodb scan range=100\n")
    added = printed("history", "add", one, f"second={two}", "--host", "dell32", "--date", "2024-02-16")
    assert added.startswith("c1: 2 builds, 1 test, 2 results\n")
    [listed] = json.loads(printed("history", "--json"))
    assert (listed["id"], listed["origin"], listed["builds"]) == ("c1", "by hand", ["one", "second"])
    assert "by hand" in printed("history")
    shown = printed("show", "c1")
    for part in ("c1, 2024-02-16", " 0.55  scan", "Imported, made by hand: builds did not take turns"):
        assert part in shown
    assert json.loads(printed("show", "c1", "--json"))["origin"] == "by hand"
    assert "0.55\tscan" in printed("show", "c1", "--tsv").splitlines()
    assert "0.55,scan" in printed("show", "c1", "--csv").splitlines()
    assert "| 0.55 | scan |" in printed("show", "c1", "--markdown"), "a single run is never real"
    page, other = tmp_path / "c1.html", str(tmp_path / "other.db")
    exits(0, "report", "c1", "--output", str(page))
    assert "made by hand" in page.read_text()
    asked = printed("query", "select build, qps from trial_readings", "--csv").splitlines()
    assert asked == ["build,qps", "one,1000.0", "second,550.0"]
    exits(0, "history", "export", other)
    assert "by hand" in printed("history", "--history", other)
    again = printed("history", "add", one, f"second={two}", "--host", "dell32")
    assert again == "c1 has these results already.\n"


def test_nothing_is_stored_of_files_of_which_one_is_damaged(tmp_path: Path) -> None:
    good = results(tmp_path / "a", "1000\tinnodb scan range=100\n")
    bad = results(tmp_path / "b", "1000\tinnodb scan range=100\nbroken\n")
    kept = results(tmp_path / "c", "900\tinnodb scan range=100\n")
    said = exits(3, "history", "add", good, bad)
    assert f"{bad}/sb.r.qps, line 2: expected QPS<TAB>engine test range=R, found 'broken'." in said
    exits(0, "history", "add", good, kept)
    exits(3, "history", "add", kept, bad)
    assert [each["builds"] for each in json.loads(printed("history", "--json"))] == [["a", "c"]]


def test_one_form_at_a_time_and_only_where_there_are_tables() -> None:
    assert "Choose one of --json and --csv." in exits(3, "show", "c1", "--csv", "--json")
    assert "is for comparisons" in exits(3, "show", "--tsv")


def test_tab_completes_files_and_behind_a_name_those_that_a_shell_takes_as_they_are(tmp_path: Path) -> None:
    (tmp_path / "x.one").mkdir()
    (tmp_path / "x.$(id)").mkdir()
    files, context = add.params[0], click.Context(add, info_name="add")
    assert [each.value for each in files.shell_complete(context, f"one={tmp_path}/x")] == [f"one={tmp_path}/x.one/"]
    assert [each.type for each in files.shell_complete(context, "x.")] == ["file"]
