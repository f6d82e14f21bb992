"""`bisect resume` of a hunt that has failed: when something has changed since then, and when nothing has."""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from perfbisect.hunt.driver import Driver
from perfbisect.hunt.search_problem import TimedEvent
from perfbisect.store.batches import begin_batch, end_batch
from perfbisect.store.history import History
from program import HUNT, SCRIPT, exits

pytestmark = pytest.mark.tools

SUITE, HISTORY = Path("workloads/script/suite.toml"), Path(".local/state/perfbisect/history.db")


def test_a_hunt_that_has_failed_goes_on_as_it_began(script: Callable[[str], str], seal: Path, tmp_path: Path) -> None:
    """The bad end needs a file to run, which comes later; both write down how many processors they get."""
    fixed, seen = tmp_path / "fixed", tmp_path / "seen"
    SUITE.write_text(SUITE.read_text().replace('"{threads}"', '"{cores}"'))
    good = script(f"echo $2 >>{seen}; echo rate 100")
    bad = script(f"[ -e {fixed} ] || exit 7; echo $2 >>{seen}; echo rate 10")
    said = exits(4, "run", good, bad, *HUNT)
    assert "the bad end" in said and "bisect resume 1" in said
    assert "failed: nothing can be compared, because the bad end," in exits(0, "history")
    assert "The last session failed: nothing can be compared" in exits(0, "show")

    before = SUITE.read_text()
    SUITE.write_text(before.replace('"one", "{cores}"]', '"one", "{cores}", "more"]'))
    said = exits(3, "resume", "--plain")
    assert "Hunt 1 cannot go on: its runs would be made in another way" in said
    assert "undo that, or begin a new hunt" in said

    SUITE.write_text(before)
    fixed.touch()
    seen.unlink(missing_ok=True)
    with closing(sqlite3.connect(seal / HISTORY)) as history, history:
        history.execute("update events set body = json_set(body, '$.host.cores', 77) where kind = 'HuntStarted'")
    out = exits(0, "resume", "--plain")
    assert "The culprit is" in out
    assert set(seen.read_text().split()) == {"77"}
    assert "found" in exits(0, "history")


def test_a_recipe_that_was_fixed_updates_the_hash_of_the_hunt(ends: tuple[str, str], seal: Path) -> None:
    recipe = Path("builders/script/builder.toml")
    whole = recipe.read_text()
    recipe.write_text(whole.replace("[build]", '[build]\nconfigure = [["false"]]'))
    good, bad = ends
    exits(4, "run", good, bad, *HUNT)
    recipe.write_text(whole)
    exits(0, "resume", "--plain")
    exits(0, "run", good, bad, *HUNT)
    with closing(sqlite3.connect(seal / HISTORY)) as history:
        resumed, new = history.execute(
            "select json_extract(settings, '$.build_hash') from hunts order by id"
        ).fetchall()
    assert resumed == new


def test_commands_in_messages_name_the_history(
    script: Callable[[str], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fixed, option = tmp_path / "fixed", ["--history", "of mine.db"]
    good, bad = script("echo rate 100"), script(f"[ -e {fixed} ] || exit 7; echo rate 10")
    said = exits(4, "run", good, bad, *HUNT, *option)
    assert "go on with: bisect resume 1 --history 'of mine.db'\n" in said

    def interrupted(*_: object) -> Iterator[TimedEvent]:
        raise KeyboardInterrupt
        yield

    with monkeypatch.context() as patch:
        patch.setattr(Driver, "session", interrupted)
        said = exits(130, "resume", *option)
    assert "go on with: bisect resume 1 --history 'of mine.db'\n" in said

    with closing(History.open(Path("of mine.db"))) as history:
        numbers = [begin_batch(history, file, [], 1.0) for file in (Path("/b 1.toml"), "")]
        end_batch(history, numbers[1], 2.0)
    assert "Go on with: bisect batch '/b 1.toml' --history 'of mine.db'\n" in exits(3, "resume", "b1", *option)
    assert "See them: bisect show b2 --history 'of mine.db'\n" in exits(3, "resume", "b2", *option)
    assert "See what it has: bisect show b1 --history 'of mine.db'\n" in exits(3, "watch", "b1", *option)
    for name in ("c1", "c99"):  # the number of a hunt, and one of nothing
        assert f"There is no {name} in the history" in exits(3, "watch", name, *option)

    fixed.touch()
    out = exits(0, "resume", *option)
    assert "Full report: bisect show 1 --history 'of mine.db'\n" in out
    said = exits(0, "compare", good, bad, *SCRIPT, "--visits", "1", "--runs", "1", *option)
    assert "bisect show c2 --history 'of mine.db'\n" in said
