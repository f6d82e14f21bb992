"""A new history and one that grew up step by step are the same, and released steps stay as they were."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
import sqlite_utils

import sample_hunt as sample
from perfbisect.store.connection import VERSION, open_writer
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


def test_what_was_released_is_not_edited(history: History) -> None:
    """A change of the schema is a new migration; then this file is written anew, and its difference is only added."""
    assert schema(history.connection) == RELEASED.read_text()


def test_migrating_again_changes_nothing(history: History) -> None:
    before = schema(history.connection)
    assert history.writer is not None
    migrate(history.writer)
    assert schema(history.connection) == before


def test_every_table_is_filled_by_a_plausible_hunt_and_an_aa(told: History) -> None:
    trial = told.begin_trial(sample.SETTINGS, sample.HOST, sample.COMMITS[0], 1.0)
    told.add_to_trial(trial, 0, sample.run(0, 1.0), 2.0, 1.0)
    [*tables] = told.query("select name from sqlite_master where type in ('table', 'view')").rows
    for (table,) in tables:
        [(rows,)] = told.query(f"select count(*) from {table}").rows
        assert rows > 0, table
