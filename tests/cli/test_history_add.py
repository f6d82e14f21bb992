"""`bisect history add`: results made by hand beside those of perfbisect."""

import json
from pathlib import Path

import click
import pytest

from perfbisect.cli.commands.history import add
from program import bisect

pytestmark = pytest.mark.tools


def results(folder: Path, text: str) -> str:
    folder.mkdir()
    (folder / "sb.r.qps").write_text(text)
    return str(folder)


def test_results_are_added_listed_printed_queried_drawn_and_copied(tmp_path: Path) -> None:
    one = results(tmp_path / "x.one.pk1", "1000\tinnodb scan range=100\n")
    two = results(tmp_path / "x.two.pk1", "550\tinnodb scan range=100\n")
    added = bisect("history", "add", one, f"second={two}", "--host", "dell32", "--date", "2024-02-16")
    assert added.returncode == 0, added.stderr
    assert added.stdout.startswith("c1: 2 builds, 1 test, 2 results\n")
    [listed] = json.loads(bisect("history", "--json").stdout)
    assert (listed["id"], listed["origin"], listed["builds"]) == ("c1", "by hand", ["one", "second"])
    assert "by hand" in bisect("history").stdout
    shown = bisect("show", "c1").stdout
    assert "c1, 2024-02-16" in shown
    assert " 0.55  scan" in shown
    assert "Imported, made by hand: builds did not take turns" in shown
    assert json.loads(bisect("show", "c1", "--json").stdout)["origin"] == "by hand"
    assert "0.55\tscan" in bisect("show", "c1", "--tsv").stdout.splitlines()
    assert "0.55,scan" in bisect("show", "c1", "--csv").stdout.splitlines()
    assert "| 0.55 | scan |" in bisect("show", "c1", "--markdown").stdout, "a single run is never real"
    page = tmp_path / "c1.html"
    assert bisect("report", "c1", "--output", str(page)).returncode == 0
    assert "made by hand" in page.read_text()
    asked = bisect("query", "select build, qps from trial_readings", "--csv").stdout.splitlines()
    assert asked == ["build,qps", "one,1000.0", "second,550.0"]
    other = tmp_path / "other.db"
    assert bisect("history", "export", str(other)).returncode == 0
    assert "by hand" in bisect("history", "--history", str(other)).stdout
    again = bisect("history", "add", one, f"second={two}", "--host", "dell32")
    assert again.stdout == "c1 has these results already.\n"


def test_nothing_is_stored_of_files_of_which_one_is_damaged(tmp_path: Path) -> None:
    good = results(tmp_path / "a", "1000\tinnodb scan range=100\n")
    bad = results(tmp_path / "b", "1000\tinnodb scan range=100\nbroken\n")
    done = bisect("history", "add", good, bad)
    assert done.returncode == 3
    assert f"{bad}/sb.r.qps, line 2: expected QPS<TAB>engine test range=R, found 'broken'." in done.stderr
    kept = results(tmp_path / "c", "900\tinnodb scan range=100\n")
    assert bisect("history", "add", good, kept).returncode == 0
    assert bisect("history", "add", kept, bad).returncode == 3
    assert [each["builds"] for each in json.loads(bisect("history", "--json").stdout)] == [["a", "c"]]


@pytest.mark.parametrize(
    ("words", "why"),
    [(["show", "c1", "--csv", "--json"], "Choose one of --json and --csv."), (["show", "--tsv"], "is for comparisons")],
)
def test_one_form_at_a_time_and_only_where_there_are_tables(words: list[str], why: str) -> None:
    done = bisect(*words)
    assert done.returncode == 3
    assert why in done.stderr


def test_tab_completes_files_and_behind_a_name_those_that_a_shell_takes_as_they_are(tmp_path: Path) -> None:
    (tmp_path / "x.one").mkdir()
    (tmp_path / "x.$(id)").mkdir()
    context = click.Context(add, info_name="add")
    kind = add.params[0].type
    typed = f"one={tmp_path}/x"
    assert [each.value for each in kind.shell_complete(context, add.params[0], typed)] == [f"one={tmp_path}/x.one/"]
    assert [each.type for each in kind.shell_complete(context, add.params[0], "x.")] == ["file"]
