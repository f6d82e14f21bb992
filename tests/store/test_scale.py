"""What is read and written does not grow with the history: counted in steps of SQLite's virtual machine, not in seconds."""

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

import sample_hunt as sample
from perfbisect.core.domain.events import RunFinished
from perfbisect.store.history import History
from perfbisect.store.prior_data import RECENT, read_costs, read_kept, read_noise

MANY = 40  # hunts

pytestmark = pytest.mark.xdist_group("scale")  # the histories are written once


@pytest.fixture(scope="module")
def sizes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[History, History]]:
    """A history with one hunt, and one with many, of which the last has the most runs."""
    folder = tmp_path_factory.mktemp("sizes")
    with closing(History.open(folder / "one.db")) as one, closing(History.open(folder / "many.db")) as many:
        for history, hunts in ((one, 1), (many, MANY)):
            with history.transaction():
                for _ in range(hunts):
                    sample.write(history)
        with many.transaction():
            for number in range(300):
                at = sample.BEGAN + 1e6 + 20 * number
                many.append(MANY, RunFinished(1, sample.run(1, at)), at + 10)
        yield one, many


@contextmanager
def counted(history: History) -> Iterator[Callable[[], int]]:
    """Count the steps that are taken within."""
    steps = [0]

    def step() -> int:
        steps[0] += 1
        return 0

    history.connection.set_progress_handler(step, 10)
    try:
        yield lambda: steps[0]
    finally:
        history.connection.set_progress_handler(None, 0)


def steps(history: History, work: Callable[[History], object]) -> int:
    """The steps of one piece of work, whose statements have been prepared before."""
    work(history)
    with counted(history) as so_far:
        work(history)
        return so_far()


def query(sql: str) -> Callable[[History], object]:
    """All rows of a query about hunt 1."""
    return lambda history: history.connection.execute(sql).fetchall()


def test_adding_a_run_costs_the_same_in_a_large_history_and_a_long_hunt(sizes: tuple[History, History]) -> None:
    one, many = sizes
    at = [sample.BEGAN + 1e7]

    def add(history: History, hunt: int) -> None:
        at[0] += 20
        history.append(hunt, RunFinished(1, sample.run(1, at[0])), at[0] + 10)

    first = steps(one, lambda history: add(history, 1))
    assert first > 0
    assert steps(many, lambda history: add(history, MANY)) <= 1.1 * first


@pytest.mark.parametrize(
    "sql",
    [
        "select * from rqps where hunt_id = 1",
        "select * from candidates where hunt_id = 1",
        "select * from candidates where hunt_id = 1 and skipped is not null",
        "select * from runs where session_id = 1 order by started",
        "select node, avg(value) from counters join runs on event_id = run_id where session_id = 1 and name = 'cycles' group by 1",
    ],
)
def test_queries_about_a_hunt_look_at_that_hunt(sizes: tuple[History, History], sql: str) -> None:
    one, many = sizes
    assert steps(many, query(sql)) <= 1.5 * steps(one, query(sql)) + 50


def test_the_list_does_not_look_at_runs(sizes: tuple[History, History]) -> None:
    one, many = sizes
    before = steps(many, History.hunts)
    assert before <= 1.2 * MANY * steps(one, History.hunts) + 50
    assert [hunt.runs for hunt in many.hunts()][:2] == [16, 16]
    [(runs,)] = many.connection.execute("select count(*) from runs where session_id = ?", [MANY])
    assert many.listed(MANY).runs == runs


def test_a_new_hunt_reads_the_latest_runs_only(tmp_path: Path) -> None:
    """With the runs that it needs in the latest hunts, it does not matter how many others there are."""
    found = []
    with closing(History.open(tmp_path / "h.db")) as history:
        for later in (0.0, 1e6):
            with history.transaction():
                for _ in range(2):
                    hunt = sample.begin(history, at=sample.BEGAN + later)
                    for number in range(10 * RECENT // 2):
                        at = sample.BEGAN + later + 20 * number
                        history.append(hunt, RunFinished(1, sample.run(1, at)), at + 10)

            def read(history: History) -> object:
                return [each(history, sample.SETTINGS) for each in (read_noise, read_costs, read_kept)]

            found.append(steps(history, read))
    assert found[1] <= 1.3 * found[0]
