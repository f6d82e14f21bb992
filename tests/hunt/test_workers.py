"""Threads that work for one: interruption, order of turns."""

import threading
from collections.abc import Generator
from pathlib import Path, PurePosixPath

import pytest

from perfbisect.core.domain.events import LabEvent, RunProgress, Warned
from perfbisect.core.domain.orders import Measure, Purpose
from perfbisect.host.fair_lock import FairLock
from perfbisect.host.local import LocalHost
from perfbisect.host.stoppable import StoppableHost
from perfbisect.hunt.workers import Member, Threads

ORDER = Measure((), Purpose.SEARCH)


def test_a_stop_is_raised_once(tmp_path: Path) -> None:
    stop = threading.Event()
    host = StoppableHost(LocalHost("here", PurePosixPath(tmp_path)), stop)
    assert host.run(["echo", "before"]).stdout == "before\n"
    stop.set()
    with pytest.raises(KeyboardInterrupt):
        host.run(["echo", "never"])
    assert host.run(["echo", "after"]).stdout == "after\n"


class Idle:
    """A lab that tells of its host for ever, and tidies up with a command."""

    def __init__(self, host: StoppableHost) -> None:
        self.host = host
        self.tidied = ""

    def measure(self, order: Measure) -> Generator[LabEvent]:
        try:
            while True:
                yield RunProgress(0, 1.0, 2.0)
        finally:
            self.tidied = self.host.run(["echo", "tidy"]).stdout


def test_who_is_interrupted_while_telling_tidies_up(tmp_path: Path) -> None:
    stop = threading.Event()
    lab = Idle(StoppableHost(LocalHost("here", PurePosixPath(tmp_path)), stop))
    heard: list[LabEvent] = []

    def tell(event: LabEvent) -> None:
        heard.append(event)
        if len(heard) == 3:
            crew.stop()
            raise KeyboardInterrupt

    crew = Threads((Member("here", lab, stop),))
    done = crew.submit(0, ORDER, tell)
    assert isinstance(done.exception(timeout=10), KeyboardInterrupt)
    assert lab.tidied == "tidy\n"
    assert [event.host for event in heard if not isinstance(event, Warned)] == ["here"] * 3


def test_turns_are_taken_in_order() -> None:
    turn, order = FairLock(), list[int]()

    def wait(number: int) -> None:
        with turn:
            order.append(number)

    workers = [threading.Thread(target=wait, args=[number]) for number in range(5)]
    with turn:
        for waiting, worker in enumerate(workers, 2):
            worker.start()
            while len(turn._waiting) < waiting:
                threading.Event().wait(0.001)
    for worker in workers:
        worker.join()
    assert order == [0, 1, 2, 3, 4]
