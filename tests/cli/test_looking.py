"""`bisect history`, `show` and `query` as users meet them: in this process, and as a program in a pipe."""

import csv
import io
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

import sample_hunt as sample
from perfbisect.store.history import History
from perfbisect.store.maker import maker
from program import PROGRAM, exits, printed, run

pytestmark = pytest.mark.tools  # starts the program again and again


@pytest.fixture(scope="session")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A history with the sample hunt, and one that was interrupted; not to be changed."""
    path = tmp_path_factory.mktemp("written") / "history.db"
    with closing(History.open(path)) as history:
        sample.write(history)
        hunt = sample.begin(history, at=sample.BEGAN + 3600)
        assert history.writer is not None
        ended = f"{maker()} elsewhere 0 1 1"
        history.writer.execute("update sittings set process = ? where session_id = ?", [ended, hunt])
    return path


@pytest.fixture
def looked(written: Path) -> Callable[..., str]:
    """``looked(verb, *args)``: what it prints about that history."""
    return lambda *args: printed(*args, "--history", str(written))


def test_history(looked: Callable[..., str]) -> None:
    hunt = "engine update-index local 1.0..1.1"
    assert [" ".join(line.split()) for line in looked("history").splitlines()] == [
        "id when builder workload host range builds runs culprit sure state subject",
        f"1 2023-11-14 22:13 {hunt} 6 16 6da84d17ef 97 % found Check the key order of a page after each update",
        f"2 2023-11-14 23:13 {hunt} 0 0 – – interrupted",
    ]
    assert [(hunt["id"], hunt["state"], hunt["culprit"]) for hunt in json.loads(looked("history", "--json"))] == [
        (1, "found", sample.CANDIDATES[sample.CULPRIT]),
        (2, "interrupted", None),
    ]


def test_show_tells_the_latest_or_the_one_asked_for(looked: Callable[..., str], written: Path) -> None:
    assert looked("show").startswith("Hunt 2, ")
    assert "The culprit is 6da84d17ef" in looked("show", "1")
    commands = [line for line in looked("show", "1").splitlines() if re.match("To [a-z]+: +bisect ", line)]
    assert len(commands) == 2 and all(f" --history {written}" in line for line in commands), "repeat and prove"
    assert looked("show", "1", "--markdown").startswith("## engine update-index")
    assert json.loads(looked("show", "1", "--json"))["hunt"]["id"] == 1


def test_the_examples_of_queries_can_be_pasted(looked: Callable[..., str]) -> None:
    """The history has one hunt with a verdict, and a later one that has measured nothing."""
    commands = [shlex.split(line) for line in printed("query", "--examples").splitlines() if line[0] != "#"]
    assert [len(looked(*words[1:]).splitlines()) for words in commands] == [2, 1, 1]
    assert all(words[:2] == ["bisect", "query"] for words in commands)


def test_query(looked: Callable[..., str]) -> None:
    sql = "select id, good as 'g', null as n, 0.5 as half from hunts union all select 10, 'ä,\"b', x'ff', 2"
    assert looked("query", sql).splitlines() == [
        "id  g     n   half",
        " 1  1.0        0.5",
        " 2  1.0        0.5",
        '10  ä,"b  ff     2',
    ]
    assert json.loads(looked("query", sql, "--json"))[2] == {"id": 10, "g": 'ä,"b', "n": "ff", "half": 2}
    assert list(csv.reader(io.StringIO(looked("query", sql, "--csv"))))[-1] == ["10", 'ä,"b', "ff", "2"]
    for form, empty in ((), "a\n"), (("--json",), "[]\n"), (("--csv",), "a\n"):
        assert looked("query", "select 1 as a where 0", *form) == empty


def test_mistakes_end_with_one_sentence(written: Path) -> None:
    for words, says in (
        (["show", "9"], "no hunt 9"),
        (["show", "first"], "first"),
        (["show", "1", "--json", "--markdown"], "one of"),
        (["query", "selec"], "selec"),
        (["query", "delete from hunts"], "only read"),
        (["query", "select 1", "--json", "--csv"], "one of"),
        (["query", "select 1 as a, 2 as b, 3 as a", "--json"], "AS"),
        (["query"], "SQL"),
    ):
        ended = run(*words, "--history", str(written))
        assert (ended.status, ended.out) == (3, "")
        assert says in ended.err


def test_no_history_yet(seal: Path) -> None:
    for verb in (["history"], ["show"], ["query", "select 1"]):
        assert exits(3, *verb).startswith("Error: There are no hunts yet")
    assert [each.name for each in seal.rglob("*") if each.is_file()] == ["maker"]  # looking makes nothing
    assert exits(3, "resume").startswith("Error: ")


@pytest.mark.parametrize(
    "args", [["history"], ["show", "1"], ["query", "select a.* from counters a, counters b", "--csv"]]
)
def test_a_reader_that_has_enough(args: list[str], written: Path) -> None:
    """`bisect … | head`, with the reader gone before the first line."""
    words = [*PROGRAM, *args, "--history", str(written)]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    said = process.stderr.read()
    process.stderr.close()
    assert (process.wait(timeout=600), said) == (0, "")


def test_an_encoding_without_typographic_quotes(written: Path) -> None:
    words, env = [*PROGRAM, "show", "1", "--history", str(written)], os.environ | {"PYTHONIOENCODING": "latin-1"}
    done = subprocess.run(words, env=env, capture_output=True, check=True)
    assert b"'Check the key order" in done.stdout


def test_the_list_of_hunts_loads_nothing_heavy(written: Path) -> None:
    """It has to answer at once; what takes long is loading these."""
    look = f"import sys, atexit; atexit.register(lambda: print(*sys.modules, file=sys.stderr)); {PROGRAM[-1]}"
    words = [sys.executable, "-c", look, "history", "--history", str(written)]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert "update-index" in done.stdout
    assert not {"numpy", "rich.console", "sqlite_utils", "git", "msgspec"} & set(done.stderr.split())
