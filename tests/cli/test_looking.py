"""`bisect history`, `show` and `query` as users meet them: in this process, and as a program in a pipe."""

import csv
import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

import sample_hunt as sample
from perfbisect.cli.main import main
from perfbisect.store.history import History

pytestmark = pytest.mark.tools  # starts the program again and again

PROGRAM = "from perfbisect.cli.main import main; main()"
Ended = tuple[int, str, str]  # exit status, standard output, standard error


@pytest.fixture(scope="session")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A history with the sample hunt, and one that was interrupted; not to be changed."""
    path = tmp_path_factory.mktemp("written") / "history.db"
    with closing(History.open(path)) as history:
        sample.write(history)
        hunt = sample.begin(history, at=sample.BEGAN + 3600)
        assert history.writer is not None
        history.writer.execute("update sittings set process = 'elsewhere 1 1' where session_id = ?", [hunt])
    return path


@pytest.fixture
def bisect(invoke: Callable[..., Ended], written: Path) -> Callable[..., Ended]:
    """``bisect(verb, *args)`` on that history."""
    return lambda *args: invoke(*args, "--history", str(written))


def test_history(bisect: Callable[..., Ended]) -> None:
    status, out, _ = bisect("history")
    assert status == 0
    assert [line.split() for line in out.splitlines()] == [
        ["id", "when", "builder", "workload", "host", "range", "builds", "runs", "culprit", "sure", "state"],
        [
            "1",
            "2023-11-14",
            "22:13",
            "engine",
            "update-index",
            "local",
            "1.0..1.1",
            "6",
            "16",
            "6da84d17ef",
            "97",
            "%",
            "found",
        ],
        ["2", "2023-11-14", "23:13", "engine", "update-index", "local", "1.0..1.1", "0", "0", "–", "–", "interrupted"],
    ]


def test_history_as_json(bisect: Callable[..., Ended]) -> None:
    status, out, _ = bisect("history", "--json")
    assert status == 0
    hunts = json.loads(out)
    assert [(hunt["id"], hunt["state"], hunt["culprit"]) for hunt in hunts] == [
        (1, "found", sample.CANDIDATES[sample.CULPRIT]),
        (2, "interrupted", None),
    ]


def test_show_tells_the_latest_or_the_one_asked_for(bisect: Callable[..., Ended]) -> None:
    assert bisect("show")[1].startswith("Hunt 2, ")
    status, out, _ = bisect("show", "1")
    assert status == 0
    assert "The culprit is 6da84d17ef" in out
    assert bisect("show", "1", "--markdown")[1].startswith("## engine update-index")
    assert json.loads(bisect("show", "1", "--json")[1])["hunt"]["id"] == 1


def test_query(bisect: Callable[..., Ended]) -> None:
    sql = "select id, good as 'g', null as n, 0.5 as half from hunts union all select 10, 'ä,\"b', x'ff', 2"
    assert bisect("query", sql)[1].splitlines() == [
        "id  g     n   half",
        " 1  1.0        0.5",
        " 2  1.0        0.5",
        '10  ä,"b  ff     2',
    ]
    assert json.loads(bisect("query", sql, "--json")[1])[2] == {"id": 10, "g": 'ä,"b', "n": "ff", "half": 2}
    assert list(csv.reader(io.StringIO(bisect("query", sql, "--csv")[1])))[-1] == ["10", 'ä,"b', "ff", "2"]


def test_query_without_rows(bisect: Callable[..., Ended]) -> None:
    assert bisect("query", "select 1 as a where 0")[1] == "a\n"
    assert bisect("query", "select 1 as a where 0", "--json")[1] == "[]\n"
    assert bisect("query", "select 1 as a where 0", "--csv")[1] == "a\n"


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["show", "9"], "no hunt 9"),
        (["show", "first"], "first"),
        (["show", "1", "--json", "--markdown"], "one of"),
        (["query", "selec"], "selec"),
        (["query", "delete from hunts"], "only read"),
        (["query", "select 1", "--json", "--csv"], "one of"),
        (["query", "select 1 as a, 2 as b, 3 as a", "--json"], "AS"),
        (["query"], "SQL"),
    ],
)
def test_mistakes_end_with_one_sentence(bisect: Callable[..., Ended], args: list[str], says: str) -> None:
    status, out, err = bisect(*args)
    assert status == 3
    assert says in err
    assert out == ""


@pytest.mark.parametrize("verb", [["history"], ["show"], ["query", "select 1"]])
def test_no_history_yet(
    verb: list[str], seal: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["bisect", *verb])
    with pytest.raises(SystemExit) as leave:
        main()
    assert leave.value.code == 3
    assert capsys.readouterr().err.startswith("Error: There are no hunts yet")
    assert list(seal.iterdir()) == []  # looking makes nothing


@pytest.mark.parametrize(
    "args", [["history"], ["show", "1"], ["query", "select a.* from counters a, counters b", "--csv"]]
)
def test_a_reader_that_has_enough(args: list[str], written: Path) -> None:
    """`bisect … | head`, with the reader gone before the first line."""
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *args, "--history", str(written)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    said = process.stderr.read()
    process.stderr.close()
    assert (process.wait(timeout=600), said) == (0, "")


def test_an_encoding_without_typographic_quotes(written: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, "show", "1", "--history", str(written)],
        env=os.environ | {"PYTHONIOENCODING": "latin-1"},
        capture_output=True,
        check=True,
    )
    assert b"'Check the key order" in done.stdout


def test_the_list_of_hunts_loads_nothing_heavy(written: Path) -> None:
    """It has to answer at once; what takes long is loading these."""
    look = f"{PROGRAM[: -len('main()')]}import sys, atexit; sys.argv[1:] = sys.argv[1:]; atexit.register("
    look += "lambda: print(*sys.modules, file=sys.stderr)); main()"
    done = subprocess.run(
        [sys.executable, "-c", look, "history", "--history", str(written)], capture_output=True, text=True, check=True
    )
    assert "update-index" in done.stdout
    assert not {"numpy", "rich.console", "sqlite_utils", "git", "msgspec"} & set(done.stderr.split())
