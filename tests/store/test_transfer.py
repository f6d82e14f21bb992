"""Export and import of hunts and trials, which are copied completely or not at all."""

import shutil
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

import program
import sample_hunt as sample
from perfbisect import process
from perfbisect.core.domain.events import RunFinished, SessionEnded, SessionStarted, Warned
from perfbisect.core.domain.settings import RevertedCommits, TrialBuild, TrialRequest, TrialType, TrialWorkload
from perfbisect.errors import PerfBisectError
from perfbisect.folders import state_folder
from perfbisect.store import transfer
from perfbisect.store.batches import (
    PlannedHunt,
    begin_batch,
    continue_batch,
    enter_batch_hunt_status,
    update_batch_hunt,
)
from perfbisect.store.history import History
from perfbisect.store.prior_data import read_needed_keys, read_run_noise, read_typical_costs
from program import rows


def bisect(*words: str | Path) -> program.Ended:
    """A command of the program."""
    return program.run(*map(str, words))


def refused(*words: str | Path, status: int = 3) -> str:
    """The errors of a command, which must end with this status."""
    ended = bisect(*words)
    assert ended[0] == status, ended
    return ended[2]


def importing(file: Path, history: Path, *how: str) -> program.Ended:
    """Run an import."""
    return bisect("history", "import", file, *how, "--history", history)


def exporting(history: Path, file: Path, *which: str) -> program.Ended:
    """Run an export."""
    return bisect("history", "export", file, *which, "--history", history)


def log(path: Path, hunt: int) -> list[tuple[float, str]]:
    """The log of a hunt, without its number."""
    with closing(History.open(path, read_only=True)) as opened:
        return [
            (
                entry.at,
                repr(replace(entry.event, session=0) if isinstance(entry.event, SessionStarted) else entry.event),
            )
            for entry in opened.events(hunt)
        ]


def dump(path: Path) -> list[str]:
    """The SQL dump of a history."""
    with closing(sqlite3.connect(path)) as connection:
        return [*connection.iterdump()]


def written(path: Path, hunts: int = 1, until: int | None = None) -> Path:
    """A history with ``hunts`` copies of the sample hunt, each with the events before ``until``."""
    with closing(History.open(path)) as opened:
        for _ in range(hunts):
            hunt = sample.begin(opened)
            for at, event in [*sample.events()][:until]:
                opened.append(hunt, event, at)
    return path


def request(kind: TrialType, reverts: RevertedCommits | None = None) -> TrialRequest:
    """A trial of two builds."""
    builds = tuple(TrialBuild(commit.subject, commit.sha) for commit in sample.COMMITS[:2])
    return TrialRequest(
        kind, "engine", "o2nofp", "local", "qps", {"time": 10}, builds, (TrialWorkload("update-index", "scan", 1.0, 2.0),), 2, 2, reverts
    )  # fmt: skip


def add_trial(path: Path, kind: TrialType, runs: int = 12, hunt: int | None = None) -> str:
    """Add a trial; returns its name."""
    with closing(History.open(path)) as opened:
        reverts = RevertedCommits(hunt, (sample.CANDIDATES[8],)) if hunt else None
        trial = sample.begin_trial(opened, request(kind, reverts), 5.0)
        for number in range(runs):
            facts = sample.run(0, 100.0 * number, qps=20_000 + 300 * (number % 3))
            opened.append(trial, RunFinished(number % 2, facts, round=number // 4), 9.0 + number)
        return f"{kind[0]}{trial}"


def test_imported_sessions_get_new_numbers(tmp_path: Path) -> None:
    anna, ours, file = written(tmp_path / "a.db", 2), written(tmp_path / "ours.db"), tmp_path / "anna.db"
    proof = add_trial(anna, TrialType.PROVE, hunt=2)
    aa = add_trial(anna, TrialType.NOISE)
    assert exporting(anna, file)[0] == 0
    assert not [each.name for each in tmp_path.iterdir() if each.name.startswith(".")]
    status, printed, _ = importing(file, ours)
    assert status == 0
    assert "hunt 2 of the file is hunt 3 in your history" in printed
    assert log(ours, 3) == log(anna, 2)
    assert rows(ours, "select id, origin, run_count from hunts") == [(1, None, 16), (2, "anna", 16), (3, "anna", 16)]
    assert rows(ours, "select hunt_id from trials where kind = 'prove'") == [(3,)]
    with closing(History.open(ours, read_only=True)) as opened, closing(History.open(anna, read_only=True)) as hers:
        assert opened.trial("n5").runs == hers.trial(aa).runs
        assert opened.proofs(3)[0].runs == hers.trial(proof).runs
        assert next(entry.event.session for entry in opened.events(3) if isinstance(entry.event, SessionStarted)) == 3
        assert opened.latest_hunt() == 1  # the latest of our own
    for table in ("builds", "skips", "verdicts", "suspects", "candidates", "rqps"):
        both = [rows(path, f"select count(*) from {table}")[0][0] for path in (anna, ours)]
        assert both[1] == both[0] / 2 * 3, table  # type: ignore[operator]


def test_batches_are_copied_with_their_hunts_and_not_begun(tmp_path: Path) -> None:
    hers, ours, file = written(tmp_path / "hers.db", 4), written(tmp_path / "ours.db"), tmp_path / "two.db"
    with closing(History.open(hers)) as opened:
        planned = [PlannedHunt(("--build=touch ran", "--", "a", "b"), "/", (("local",),))] * 3
        for batch, begun in (
            (begin_batch(opened, Path("/nightly.toml"), planned, 1.0), (2, 3)),
            (begin_batch(opened, "", planned[:2], 2.0), (1, 4)),
        ):
            for place, hunt in enumerate(begun):
                update_batch_hunt(opened, batch, place, hunt_id=hunt)
                enter_batch_hunt_status(opened, batch, place, 0)
    assert exporting(hers, file, "b1")[:2] == (0, f"Written to {file}: 2 hunts\n")
    assert "b1: hunts 1, 2 of /nightly.toml; 2 of 2 have a verdict" in bisect("history", "--history", file)[1]
    for _ in range(2):
        importing(file, ours)
        importing(hers, ours, "--from", "two")
        listed = bisect("history", "--history", ours)[1]
        assert (
            "\nb1: hunts 2, 3 of /nightly.toml; 2 of 2 have a verdict\nb2: hunts 4, 5 of one command; 2 of 2 have"
            in listed
        )
        assert "\nb3" not in listed
    assert bisect("show", "b1", "--history", ours)[1].count("engine update-index 1.0..1.1") == 2
    assert bisect("resume", "--all", "--history", ours)[2] == "No hunt is interrupted.\n"
    with closing(History.open(ours)) as opened:
        begin_batch(opened, "", planned[:1], 3.0)
        update_batch_hunt(opened, 3, 0, hunt_id=1)
    before = dump(ours)
    with closing(sqlite3.connect(hers)) as connection, closing(sqlite3.connect(ours)) as own:
        uid = own.execute("select uid from sessions where id = 1").fetchone()
        connection.execute("update sessions set uid = ? where id = 1", uid)
        connection.commit()
    importing(hers, ours, "--from", "two")
    assert dump(ours) == before, "a batch with a hunt of this history stays"
    status, _, said = exporting(hers, tmp_path / "none.db", "b9")
    assert status == 3 and "There is no batch b9" in said


def test_second_import_adds_only_new_events_and_sessions(tmp_path: Path) -> None:
    hers, ours = written(tmp_path / "hers.db", until=20), tmp_path / "ours.db"
    assert importing(hers, ours)[0] == 0
    add_trial(hers, TrialType.COMPARE)
    assert "1 session added, 0 updated, 1 unchanged" in importing(hers, ours)[1]
    before = dump(ours)
    assert "0 sessions added, 0 updated, 2 unchanged" in importing(hers, ours)[1]
    assert dump(ours) == before
    with closing(History.open(hers)) as opened:
        for at, event in [*sample.events()][20:]:
            opened.append(1, event, at)
    assert "0 sessions added, 1 updated, 1 unchanged" in importing(hers, ours)[1]
    assert log(ours, 1) == log(hers, 1)
    assert rows(ours, "select run_count, ended is null from hunts") == [(16, 0)]


def went_on(path: Path, text: str) -> None:
    """One more entry in the log of hunt 1."""
    with closing(History.open(path)) as opened:
        opened.append(1, Warned(text), sample.BEGAN + 9e5)


def test_hosts_of_imported_hunts_are_other_machines(tmp_path: Path) -> None:
    """Even if the hosts have the same names and properties."""
    hers = written(tmp_path / "hers.db", 2, until=40)
    add_trial(hers, TrialType.NOISE)
    add_trial(hers, TrialType.COMPARE, 2)
    settings = replace(sample.SETTINGS, overrides={"time": 10})
    found = {}
    for how in ("--from=anna", "--own"):
        ours = tmp_path / f"{how[2:5]}.db"
        assert importing(hers, ours, how)[0] == 0
        with closing(History.open(ours)) as opened:
            found[how] = (
                read_run_noise(opened, settings),
                read_typical_costs(opened, settings).run_seconds,
                read_needed_keys(opened, 0.0),
            )
    assert found["--from=anna"] == (None, None, frozenset())
    assert all(found["--own"])


def test_import_does_not_change_own_hunts_or_hunts_that_diverged(tmp_path: Path) -> None:
    """The imported events could contain commands that `bisect resume` would execute."""
    ours, hers = written(tmp_path / "ours.db", until=20), tmp_path / "hers.db"
    exporting(ours, hers)
    went_on(hers, "more")
    with closing(History.open(ours)) as opened:
        opened.enter_failure(
            1, "stopped", sample.BEGAN + 8e5
        )  # so that it does not look as if this process worked on it
    before = log(ours, 1)
    for how, added in (((), 0), (("--own",), 1)):
        assert importing(hers, ours, *how)[0] == 1 - added
        assert len(log(ours, 1)) == len(before) + added
    went_on(hers, "one")
    went_on(ours, "other")
    before = log(ours, 1)
    status, _, said = importing(hers, ours, "--own")
    assert (
        status,
        "hunt 1 of the file is hunt 1 in your history, but each was continued separately, so the logs differ" in said,
        log(ours, 1),
    ) == (
        1,
        True,
        before,
    )


@pytest.mark.parametrize("exported", [True, False])
def test_commands_of_other_users_are_not_executed(tmp_path: Path, exported: bool) -> None:
    """The file is an export, or a copy of a history that another user made; or the session was imported."""
    hers, file, ours = written(tmp_path / "hers.db"), tmp_path / "mail.db", tmp_path / "ours.db"
    with closing(History.open(hers)) as opened:
        sample.begin(opened)
        batch = begin_batch(opened, "/x.toml", [PlannedHunt((), "", ())], 3.0)

    def shown(history: Path, hunt: str = "2") -> str:
        return bisect("show", hunt, "--history", history)[1]

    resume = "bisect resume 2"
    assert resume in shown(hers)
    if exported:
        exporting(hers, file)
    else:
        shutil.copy(hers, file)
        (state_folder() / "maker").write_text("me@desk4:1")
        process._read_or_create_secret.cache_clear()
        with closing(History.open(file)) as opened, pytest.raises(PerfBisectError, match="made by tester@here"):
            continue_batch(opened, batch)
    assert resume not in shown(file) and "prove" not in shown(file, "1")
    for verb, number in (("resume", "2"), ("why", "1"), ("prove", "1")):
        said = refused(verb, number, "--history", file)
        assert "@" in said and " was made by " in said, verb
        assert f"bisect history import {file} --own" in said and f"bisect show {number} --history {file}`" in said
    assert importing(file, ours, "--own")[0] == 0
    assert resume in shown(ours)
    importing(hers, tmp_path / "theirs.db", "--from", "anna")
    for verb in ("resume", "prove"):
        assert "imported from anna" in refused(verb, "1", "--history", tmp_path / "theirs.db")


DAMAGES = [line for line in Path(__file__).with_name("damages.sql").read_text().splitlines() if line[:2] != "--"]


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Another user's history with two hunts and a comparison, and an own history. Tests must not change them."""
    folder = tmp_path_factory.mktemp("originals")
    hers, ours = written(folder / "hers.db", 2), written(folder / "ours.db")
    add_trial(hers, TrialType.COMPARE)
    return hers, ours


@pytest.fixture
def both(originals: tuple[Path, Path], tmp_path: Path) -> tuple[Path, Path]:
    """Copies of the histories of ``originals``."""
    hers, ours = (Path(shutil.copy(each, tmp_path)) for each in originals)
    return hers, ours


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_or_hostile_file_changes_nothing(both: tuple[Path, Path], damage: str) -> None:
    """Sessions before the damage are not imported either."""
    hers, ours = both
    before = dump(ours)
    with closing(sqlite3.connect(hers)) as connection:
        connection.executescript(damage)
    status, _, said = importing(hers, ours)
    assert status in (3, 4), said
    assert said.count(str(hers)) == 1, "one message, and none within another"
    assert said.count("cannot be read") <= 1 and "not affected" not in said
    assert "Nothing was imported." in said or "is damaged: " not in said
    assert ("-5, which is not between 0" in said or "-6, which is not between 0" in said) == ("-5" in damage)
    assert dump(ours) == before


def test_file_that_is_no_history_changes_nothing_and_is_reported(both: tuple[Path, Path], tmp_path: Path) -> None:
    """The error says which file to give instead."""
    (hers, ours), file, other = both, tmp_path / "letter", tmp_path / "other.db"
    assert exporting(hers, file)[0] == 0
    with closing(sqlite3.connect(other)) as connection:
        connection.executescript("CREATE TABLE letters (text)")
    before, whole = dump(ours), file.read_bytes()
    for content, reason in (
        (whole[: len(whole) // 2], ""),
        (whole[:50], ""),
        (b"a letter to Anna\n" * 99, "is not a history: it is not an SQLite database."),
        (b"ten bytes\n", "is not a history: it is not an SQLite database."),
        (b"", "is empty: it has no hunts yet."),
        (other.read_bytes(), "is an SQLite database, but not a history of perfbisect."),
    ):
        file.write_bytes(content)
        status, _, said = importing(file, ours)
        assert dump(ours) == before
        assert status == 3 or (status == 4 and not reason), said
        if reason:
            assert f"{file} {reason}" in said
            assert "bisect history export" in said and "--history" not in said


IMPORTED = "from perfbisect.store import transfer; transfer.TURN, transfer.PAUSE = 0, 0.001\n"  # an entry for each turn


def started(before: str, hers: Path, ours: Path) -> "subprocess.Popen[bytes]":
    """A process that executes the code ``before``, and then imports a file."""
    argv = ["bisect", "history", "import", str(hers), "--history", str(ours)]
    code = f"{IMPORTED}{before}import sys; sys.argv = {argv}\nfrom perfbisect.cli.main import main; main()"
    return subprocess.Popen([sys.executable, "-c", code])


def test_import_continues_after_a_kill(both: tuple[Path, Path], tmp_path: Path) -> None:
    (hers, ours), whole = both, tmp_path / "whole.db"
    shutil.copy(ours, whole)
    importing(hers, whole)
    rehearsed = sum(len(log(hers, session)) for session in (1, 2, 3))  # before anything is written here
    for after in (1.5 * len(log(hers, 1)), len(log(hers, 1)) // 2 + 3):  # in the second hunt, and in the comparison
        code = (
            "import os; from perfbisect.store.log import SessionLog; done, append = [], SessionLog.append\n"
            "def killed(*given):\n"
            f"    if len(done) == {rehearsed + int(after)}: os.kill(os.getpid(), 9)\n"
            "    done.append(append(*given))\n"
            "SessionLog.append = killed\n"
        )
        assert started(code, hers, ours).wait() == -signal.SIGKILL
        assert rows(ours, "PRAGMA integrity_check") == [("ok",)]
        assert dump(ours) != dump(whole)
    status, printed, _ = importing(hers, ours)
    assert (status, "0 sessions added, 1 updated, 2 unchanged" in printed) == (0, True), printed
    assert dump(ours) == dump(whole)


@pytest.mark.slow
def test_two_imports_at_once_add_a_file_once(both: tuple[Path, Path], tmp_path: Path) -> None:
    (hers, ours), whole = both, tmp_path / "whole.db"
    shutil.copy(ours, whole)
    importing(hers, whole)
    two = [started("", hers, ours) for _ in range(2)]
    assert [each.wait() for each in two] == [0, 0]
    for table in ("sessions", "attempts", "events", "runs"):
        assert rows(ours, f"select count(*) from {table}") == rows(whole, f"select count(*) from {table}"), table
    assert [log(ours, hunt) for hunt in (1, 2, 3)] == [log(whole, hunt) for hunt in (1, 2, 3)]


def test_hunt_can_write_during_an_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hers, ours = written(tmp_path / "hers.db"), tmp_path / "ours.db"
    add_trial(hers, TrialType.COMPARE)
    with closing(History.open(ours)) as running:
        sample.begin(running)
        running.connection.execute("PRAGMA busy_timeout = 0")  # it fails at once if it has to wait
        appended: list[float] = []

        def pause(seconds: float) -> None:
            appended.append(seconds)
            running.append(1, Warned("between two turns"), sample.BEGAN + len(appended))

        monkeypatch.setattr(transfer, "TURN", 0)
        monkeypatch.setattr("perfbisect.store.transfer.time.sleep", pause)
        assert importing(hers, ours)[0] == 0
        monkeypatch.undo()
        assert len(log(ours, 1)) == len(appended) > len(log(hers, 1)) + 10
    assert log(ours, 2) == log(hers, 1)


def test_passwords_are_not_exported(tmp_path: Path) -> None:
    """Other users cannot read the own history. An import of the exported file adds no session."""
    path, file, secret = tmp_path / "ours.db", tmp_path / "file.db", "https://me:secret@example.org/engine"
    settings = replace(sample.SETTINGS, repository=secret, overrides={"url": secret})
    with closing(History.open(path)) as opened:
        sample.begin(opened, settings)
        compared = replace(request(TrialType.COMPARE), overrides=settings.overrides)
        opened.append(sample.begin_trial(opened, compared, settings=settings), SessionEnded(), 9.0)
    assert path.stat().st_mode & 0o077 == 0
    assert exporting(path, file)[0] == 0
    assert b"secret" not in file.read_bytes()
    for name, *which in ((file,), (tmp_path / "other.db", "7")):  # the first exists, and there is no hunt 7
        refused("history", "export", name, *which, "--history", path)
    assert not (tmp_path / "other.db").exists()
    status, printed, _ = importing(file, path)
    assert (status, "2 unchanged" in printed) == (0, True), printed


def test_export_to_an_id_and_import_of_itself_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = written(tmp_path / "ours.db")
    monkeypatch.chdir(tmp_path)
    for name in ("12", "c3", "p5", "n4", "b2"):
        said = refused("history", "export", name, "1", "--history", ours)
        assert f"bisect history export hunts.db {name} 1 --history {ours}" in said
        assert not Path(name).exists()
    refused("history", "--history", ours, "import", ours)


def test_failed_transaction_stores_nothing(tmp_path: Path) -> None:
    path = written(tmp_path / "ours.db")
    before = dump(path)
    with closing(History.open(path)) as opened, pytest.raises(PerfBisectError), opened.transaction():
        sample.write(opened)
        opened.columns(99, "id")
    assert dump(path) == before
