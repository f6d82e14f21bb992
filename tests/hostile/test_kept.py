"""A whole hunt prints and keeps no password of a URL, and a damaged history is named."""

import json
import os
import re
import shutil
import sqlite3
import stat
from contextlib import closing
from pathlib import Path
from unittest import mock

import pytest

from perfbisect.store.history import History
from program import rows, run
from repos import Repo

pytestmark = [pytest.mark.tools, pytest.mark.xdist_group("kept")]  # two hunts for all

GOOD, BAD, BROKEN = "echo rate 100", "echo rate 50", "echo cannot reach https://u:s3cret@h/x; exit 3"


@pytest.fixture
def repository(git: Repo) -> Path:
    """Four commits: fast, two that do not build, slow."""
    for number, (bench, build) in enumerate(((GOOD, "true"), (GOOD, BROKEN), (BAD, BROKEN), (BAD, "true"))):
        git.commit({"run.sh": f"{bench}\n", "build.sh": f"{build}\n"}, f"{number} https://u:s3cret@h/y")
    return git.path


def hunt_in(repository: Path, *more: str) -> list[str]:
    build, run = "sh build.sh", "sh {prefix}/run.sh https://u:s3cret@h"
    return [
        "run", "HEAD~3", "HEAD", "--repo", str(repository), "--build", build, "--run", run, "--rate", "rate (.*)",
        "--plain", *more,
    ]  # fmt: skip


def test_a_hunt_prints_and_keeps_no_password(repository: Path, tmp_path: Path) -> None:
    """Its own command has one, too: it is kept, since resume repeats it, in a history that only the user can read."""
    history = tmp_path / "history.db"
    words = ["--history", str(history)]
    done = run(*hunt_in(repository, *words, "--max-runs", "2"))
    assert done.status == 2
    assert "https://***@h/x" in done.out + done.err or "budget" in done.out
    resumed = run(*hunt_in(repository, *words))
    told = (["show"], ["show", "--json"], ["show", "--markdown"], ["history"], ["replay"])
    asked = [
        ["query", f"select {what} from hunts", *form]
        for what, *form in (("*",), ("settings", "--json"), ("settings", "--csv"))
    ]
    outputs = [done, resumed, *(run(*verb, *words) for verb in (*told, *asked))]
    outputs += [run(*hunt_in(repository, *words)[:-2], "--dry-run")]
    for output in outputs:
        assert output.status in (0, 2), output.err
        assert "s3cret" not in output.out + output.err
    assert any("https://***@h/x" in output.out for output in outputs)
    with closing(sqlite3.connect(history)) as connection:
        dump = "\n".join(connection.iterdump())
    kept = [line for line in dump.splitlines() if "s3cret" in line]
    assert kept
    assert all(line.startswith('INSERT INTO "sessions"') for line in kept)
    assert stat.S_IMODE(history.stat().st_mode) == 0o600


def test_a_hunt_with_a_password_in_its_command_goes_on(repository: Path, tmp_path: Path) -> None:
    history = tmp_path / "history.db"
    run(*hunt_in(repository, "--history", str(history), "--no-explain"))
    with closing(sqlite3.connect(history)) as connection:  # as if it had been killed before its verdict
        connection.executescript(
            "DELETE FROM suspects; DELETE FROM verdicts; DELETE FROM events WHERE kind = 'HuntEnded';"
            "UPDATE sessions SET ended = NULL"
        )
    done = run("resume", "--plain", "--history", str(history))
    assert done.status in (0, 2), done.err
    assert "resumed" in done.out
    assert "s3cret" not in done.out + done.err


def test_addresses_of_recipes_and_hosts_are_shown_without_passwords(tmp_path: Path) -> None:
    hosts = tmp_path / "hosts.toml"
    hosts.write_text('[hosts.local]\nccache_remote = "redis://u:s3cret@cache:6379"\n')
    shown = run("hosts", "--show", "local", "--hosts", str(hosts))
    assert "redis://***@cache" in shown.out, shown.err
    builder = tmp_path / "builders" / "mine" / "builder.toml"
    builder.parent.mkdir(parents=True)
    builder.write_text(
        'summary = "x"\ndriver = "mine"\nvariants.o2nofp = {}\nrepository = "https://u:s3cret@127.0.0.1:1/x.git"\n'
        '[build]\nartifacts = ["x"]\ncompile = [["true"]]\ninstall = [["true"]]\n'
    )
    mine = ["--builders", str(builder.parents[1])]
    described = run("builders", "--show", "mine", *mine)
    cloned = run("run", "a", "b", "--builder", "mine", "--workload", "x", *mine)
    assert cloned.status != 0
    hosts.write_text('[hosts.local]\nccache_remote = "nonsense://u:s3cret@cache" \nunknown = "https://s3cret@h"\n')
    refused = run("hosts", "--hosts", str(hosts))
    assert refused.status == 3
    for done in (shown, described, cloned, refused):
        assert "s3cret" not in done.out + done.err


# A damaged history

DAMAGE = {
    "truncated": "substr({column}, 1, length({column}) / 2)",
    "empty": "''",
    "number": "7",
    "list": "'[1, 2]'",
    "null": "'null'",
    "text": "'\"text\"'",
    "binary": "x'00ff8081'",
    "no UTF-8": "CAST(x'7b22ff223a317d' AS TEXT)",
    "deep": "'" + "[" * 100_000 + "'",
    "other fields": "'{{\"a\": 1}}'",
    "wrong types": "replace({column}, ':', ':[') ",
}
PLACES = {
    "the first event": ("events", "body", "id = (SELECT min(id) FROM events WHERE session_id = 1)"),
    "a run": ("events", "body", "id = (SELECT min(id) FROM events WHERE session_id = 1 AND kind = 'RunFinished')"),
    "the verdict": ("events", "body", "session_id = 1 AND kind = 'HuntEnded'"),
    "its kind": ("events", "kind", "session_id = 1 AND kind = 'HuntEnded'"),
    "its time": ("events", "at", "session_id = 1 AND kind = 'HuntEnded'"),
    "the settings": ("sessions", "settings", "id = 1"),
    "the range": ("ranges", "candidates", "session_id = 1"),
}


def short_hunt(repository: Path, history: Path) -> None:
    """One of a few runs, in a range of two commits that build nothing."""
    words = hunt_in(repository, "--history", str(history), "--max-runs", "2")
    words[1], words[words.index("sh build.sh")] = "HEAD~1", "true"
    done = run(*words)
    assert done.status == 2, done.err


@pytest.fixture(scope="module")
def two_hunts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A history with two hunts, whose repository still exists; never changed."""
    folder = tmp_path_factory.mktemp("two")
    git = Repo(folder / "repo")
    git.history({"run.sh": f"{bench}\n"} for bench in (GOOD, BAD))
    # Locks of its own: a thread that an earlier test has left behind may wait for those of the worker.
    with mock.patch.dict(os.environ, {"HOME": str(folder), "PERFBISECT_LOCKS": str(folder / "locks")}):
        for _ in range(2):
            short_hunt(git.path, folder / "history.db")
    return folder / "history.db"


@pytest.fixture
def damaged(two_hunts: Path, tmp_path: Path) -> Path:
    """A copy to be damaged."""
    return copied(two_hunts, tmp_path)


def copied(history: Path, folder: Path) -> Path:
    History.open(history).close()  # what is in its write-ahead log
    return Path(shutil.copy(history, folder / "history.db"))


def damage(history: Path, place: str, how: str) -> None:
    table, column, where = PLACES[place]
    with closing(sqlite3.connect(history)) as connection:
        changed = connection.execute(f"UPDATE {table} SET {column} = {DAMAGE[how].format(column=column)} WHERE {where}")
        assert changed.rowcount == 1
        connection.commit()


CASES = [
    *(("a run", how) for how in DAMAGE), *(("the settings", how) for how in DAMAGE), *(("the range", how) for how in DAMAGE if how != "wrong types"),
    ("the first event", "truncated"), ("the verdict", "truncated"), ("the verdict", "other fields"), ("its kind", "number"),
    ("its kind", "no UTF-8"), ("its time", "text"), ("its time", "binary"),
]  # fmt: skip


DAMAGED = r"is damaged: hunt 1, table {}(, row \d+)?(, column \w+)?, cannot be read"


def test_a_damaged_row_is_named(two_hunts: Path, tmp_path: Path) -> None:
    for place, how in CASES:
        folder = tmp_path / f"{place}, {how}"
        folder.mkdir()
        history = copied(two_hunts, folder)
        damage(history, place, how)
        status, _, said = run("show", "1", "--history", str(history))
        assert status == 4, (place, how, said)
        assert re.search(DAMAGED.format(PLACES[place][0]), said), (place, how, said)


@pytest.mark.parametrize(
    ("place", "how"), [("a run", "deep"), ("the settings", "no UTF-8"), ("the range", "binary"), ("its kind", "number")]
)
def test_of_a_damaged_hunt_no_verb_makes_another_and_other_hunts_stay(damaged: Path, place: str, how: str) -> None:
    damage(damaged, place, how)
    table = PLACES[place][0]
    words = ["--history", str(damaged)]
    for verb in ("replay", "resume"):
        status, _, said = run(verb, "1", *words)
        assert status == 4, said
        assert re.search(DAMAGED.format(table), said), said
    assert run("show", "2", *words)[0] == 0
    assert run("history", *words)[0] == 0
    assert run("history", "--json", *words)[0] == 0
    for form in ([], ["--json"], ["--csv"]):
        status, out, said = run("query", f"select * from {table}", *form, *words)
        assert status == 0, said
        if form == ["--json"]:
            json.loads(out)


def test_a_query_names_what_is_no_json(damaged: Path) -> None:
    damage(damaged, "a run", "truncated")
    status, _, said = run("query", "select json_extract(body, '$.candidate') from events", "--history", str(damaged))
    assert status == 4
    assert re.search(r"is damaged: hunt 1, table events, row \d+, is no JSON", said)
    status, _, said = run("query", "select json_extract('{', '$.a')", "--history", str(damaged))
    assert status == 4, "the damage comes first"


def test_a_number_beyond_those_of_sqlite_is_no_hunt(two_hunts: Path) -> None:
    for verb in ("show", "replay", "resume"):
        for number in (2**63 - 1, 2**63, 2**64, "9" * 400, -1):
            status, _, said = run(verb, "--history", str(two_hunts), "--", str(number))
            assert status == 3, said
            assert "Error: " in said


def test_damage_does_not_keep_a_new_hunt_from_beginning(damaged: Path) -> None:
    """It reads the costs, the noise and the failures of earlier ones."""
    for place, how in (("a run", "truncated"), ("the settings", "truncated")):
        damage(damaged, place, how)
    [(repo,)] = rows(damaged, "SELECT repository FROM hunts WHERE id = 2")
    short_hunt(Path(repo), damaged)
