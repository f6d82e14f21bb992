"""A new history and one that grew up step by step are the same, and released steps stay as they were."""

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
import sqlite_utils

import sample_hunt as sample
from perfbisect.core.domain.codec import builtins, dumps
from perfbisect.core.domain.facts import SkipFacts
from perfbisect.core.domain.settings import TrialBuild, TrialRequest, TrialType, TrialWorkload
from perfbisect.core.domain.trials import TrialRun, TrialSkip
from perfbisect.store.batches import Planned, begin_batch, read_batch
from perfbisect.store.connection import VERSION, open_writer
from perfbisect.store.drop_hunts import enter_drop_hunt, enter_settings
from perfbisect.store.history import History
from perfbisect.store.migrations import migrate, migrations

RELEASED = Path(__file__).parent / "schema.sql"


def schema(connection: sqlite3.Connection) -> str:
    """Every table, index and view, in the order of their names."""
    rows = connection.execute(
        "select sql from sqlite_master where sql is not null and name not like '\\_sqlite%' escape '\\' order by name"
    )
    return "".join(f"{sql};\n\n" for (sql,) in rows)


def names() -> list[str]:
    """The steps, in order."""
    with closing(sqlite_utils.Database(memory=True)) as empty:
        return [step.name for step in migrations.pending(empty)]


def test_the_version_is_the_number_of_steps() -> None:
    assert len(names()) == VERSION


@pytest.mark.parametrize("stop", names()[1:])
def test_growing_up_ends_where_a_new_one_begins(tmp_path: Path, stop: str) -> None:
    with closing(open_writer(tmp_path / "old.db")) as connection:
        db = sqlite_utils.Database(connection, execute_plugins=False)
        migrations.apply(db, stop_before=stop)
        assert stop in [step.name for step in migrations.pending(db)]
        migrate(db)
        grown = schema(connection)
    with closing(History.open(tmp_path / "new.db")) as new:
        assert grown == schema(new.connection)
    with closing(History.open(tmp_path / "old.db")) as old:
        assert sample.write(old) == 1


def contents(path: Path) -> list[str]:
    """The version, the schema and all rows of a file."""
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        return [str(connection.execute("PRAGMA user_version").fetchone()), *connection.iterdump()]


def old_history(folder: Path) -> Path:
    """A history that a released version wrote."""
    path = folder / "old.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(f"BEGIN;{(RELEASED.parent / 'released.sql').read_text()}COMMIT;")
    return path


def test_a_migration_that_is_killed_leaves_the_history_as_it_was(tmp_path: Path) -> None:
    """At each of its statements, of which one edits the text of the schema: by the files as they are at that moment."""
    path, cuts = old_history(tmp_path), list[Path]()
    before = contents(path)

    def cut(_statement: str) -> None:
        cuts.append(tmp_path / str(len(cuts)))
        cuts[-1].mkdir()
        for file in tmp_path.glob("old.db*"):
            shutil.copy(file, cuts[-1])

    with closing(open_writer(path)) as connection:
        connection.set_trace_callback(cut)
        migrate(sqlite_utils.Database(connection, execute_plugins=False))
        connection.set_trace_callback(None)
    assert contents(path)[0] == f"({VERSION},)"
    assert len(cuts) > 10
    assert all(contents(folder / "old.db") == before for folder in cuts)
    with closing(History.open(cuts[-1] / "old.db")) as history:
        assert len(list(history.events(1))) > 10


def test_a_migration_that_fails_leaves_the_history_as_it_was(tmp_path: Path) -> None:
    """In the midst of the step that edits the text of the schema, after that."""
    path = old_history(tmp_path)
    before = contents(path)
    with closing(open_writer(path)) as connection:
        connection.set_authorizer(
            lambda action, name, *_: (
                sqlite3.SQLITE_DENY
                if action == sqlite3.SQLITE_DROP_VIEW and name == "trial_readings"
                else sqlite3.SQLITE_OK
            )
        )
        with pytest.raises(sqlite3.DatabaseError, match="not authorized"):
            migrate(sqlite_utils.Database(connection, execute_plugins=False))
    assert contents(path) == before
    with closing(History.open(path)) as history:
        assert len(list(history.events(1))) > 10
    assert contents(path)[0] == f"({VERSION},)"


def test_old_aas_are_reported_as_new_ones_are(tmp_path: Path) -> None:
    """From before a trial could have several builds and workloads."""
    with closing(open_writer(tmp_path / "old.db")) as connection:
        db = sqlite_utils.Database(connection, execute_plugins=False)
        migrations.apply(db, stop_before="m005_subjects")
        db.execute("INSERT INTO hosts VALUES (1, 'local', 1, 1, 'cpu', 2, 4096, '6', 'gcc', '{}', '{}', 'print')")
        db.execute("INSERT INTO commits VALUES ('abc', NULL, NULL, NULL)")
        db.execute(
            "INSERT INTO trials VALUES (7, 5.0, 'v1.0', 'abc', 'demo', 'lto', 'scan', '{\"time\":10}', 'local', 1, 'p95',"
            " 0.01, 0.02, 0.03)"
        )
        for number in range(4):
            body = dumps(builtins(sample.run(0, 100.0 * number)))
            db.execute("INSERT INTO trial_runs VALUES (7, ?, ?, ?, 12.0, ?)", [number, number // 2, number + 9.0, body])
        db.conn.commit()
    with closing(History.open(tmp_path / "old.db")) as history:
        trial = history.trial("n7")
        assert [(run.round, run.work, run.subject) for run in trial.runs] == [
            (0, 0, 0),
            (0, 0, 0),
            (1, 0, 0),
            (1, 0, 0),
        ]
        assert trial.runs[3].facts == sample.run(0, 300.0)
        request = trial.request
        assert (request.subjects[0].name, request.subjects[0].commit, request.works[0].name) == ("v1.0", "abc", "scan")
        assert (request.rounds, request.runs, request.metric, request.overrides) == (2, 2, "p95", {"time": 10})
        assert list(history.query("select between_visits, within_visits, noise from trials").rows) == [
            (0.01, 0.02, 0.03)
        ]
        assert history.connection.execute("PRAGMA foreign_key_check").fetchall() == []
        after = history.begin_trial(request, sample.HOST, sample.COMMITS[:0], 9.0)
        assert after.id == 8


def test_what_was_released_is_not_edited(history: History) -> None:
    """A change of the schema is a new migration; then this file is written anew, and its difference is only added."""
    assert schema(history.connection) == RELEASED.read_text()


def test_migrating_again_changes_nothing(history: History) -> None:
    before = schema(history.connection)
    assert history.writer is not None
    migrate(history.writer)
    assert schema(history.connection) == before


def test_every_table_is_filled_by_a_plausible_hunt_and_an_aa(sampled: History) -> None:
    request = TrialRequest(
        TrialType.NOISE, "demo", "o2nofp", "local", "qps", {}, (TrialBuild("v1.0", sample.COMMITS[0].sha),),
        (TrialWorkload("scan", "scan", 1.0, 2.0),), 1, 1,
    )  # fmt: skip
    trial = sampled.begin_trial(request, sample.HOST, sample.COMMITS[:1], 1.0)
    sampled.add_to_trial(trial.id, TrialRun(0, 0, 0, 2.0, 1.0, sample.run(0, 1.0)))
    sampled.skip_in_trial(trial.id, TrialSkip(0, 0, 3.0, SkipFacts("v1.0", "run", "it crashed", "/log", 1.0)))
    enter_settings(sampled, trial.id, sample.SETTINGS)
    enter_drop_hunt(sampled, trial.id, (0, 0, 1), sampled.latest())
    batch = begin_batch(sampled, Path("/batch.toml"), [Planned(("1.0", "1.1"), "/", (("local",),))], 1.0)
    assert [hunt.number for hunt in read_batch(sampled, batch).hunts] == [0]
    [*tables] = sampled.query("select name from sqlite_master where type in ('table', 'view')").rows
    for (table,) in tables:
        [(rows,)] = sampled.query(f"select count(*) from {table}").rows
        assert rows > 0, table
