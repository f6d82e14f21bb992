"""Statements that the culprit executes in another way: said before any other reason, with both plans."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

import sample_hunt as sample
from perfbisect.core.domain.events import Planned
from perfbisect.core.domain.facts import PlanFacts
from perfbisect.report import markdown, terminal
from perfbisect.report.content import Story
from perfbisect.report.reader import read_story
from perfbisect.store.history import History

PARENT = 6
STATEMENT = "SELECT c FROM sbtest1\nWHERE k BETWEEN ? AND ?"
INDEX = "Bitmap Heap Scan on sbtest1\n  ->  Bitmap Index Scan on k_1"
SCAN = "Seq Scan on sbtest1\x1b[2J"


@pytest.fixture
def history(tmp_path: Path) -> Iterator[History]:
    with closing(History.open(tmp_path / "history.db")) as opened:
        yield opened


def story(history: History, *plans: tuple[int, str, str]) -> Story:
    """The report of the sample hunt, in which builds executed statements so."""
    hunt = sample.write(history)
    for node, statement, plan in plans:
        facts = PlanFacts(sample.CANDIDATES[node], "key", "local", statement, plan)
        history.append(hunt, Planned(node, facts), sample.BEGAN + 9000)
    return read_story(history, hunt)


def test_both_plans_come_first(history: History) -> None:
    seen = story(
        history,
        (PARENT, STATEMENT, INDEX),
        (PARENT, "SELECT 1", "Result"),
        (sample.CULPRIT, STATEMENT, SCAN),
        (sample.CULPRIT, "SELECT 1", "Result"),
    )
    printed = terminal.render(seen)
    assert (
        """\
Since 6da84d17ef, 1 statement of the workload has another plan.

  SELECT c FROM sbtest1
  WHERE k BETWEEN ? AND ?
    before  Bitmap Heap Scan on sbtest1
              -> Bitmap Index Scan on k_1
    since   Seq Scan on sbtest1\\x1b[2J

Why 6da84d17ef: """
        in printed
    )
    written = markdown.render(seen)
    assert written.index("another plan") < written.index(seen.cases[0].why[:20])
    assert "\n  before  Bitmap Heap Scan on sbtest1\n" in written


def test_the_same_plans_are_not_mentioned(history: History) -> None:
    seen = story(history, (PARENT, STATEMENT, INDEX), (sample.CULPRIT, STATEMENT, INDEX), (0, STATEMENT, SCAN))
    assert seen.cases[0].plans == ()
    assert "another plan" not in terminal.render(seen)
