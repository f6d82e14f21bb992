"""The loop alone: orders are listed, workers are scripted, the log is a list."""

from collections.abc import Sequence

import pytest

from perfbisect.core.domain.events import Warned
from perfbisect.core.domain.fleet import Fleet
from perfbisect.core.domain.orders import Measure, Purpose, Share
from perfbisect.errors import EnvironmentFailure
from perfbisect.hunt.loop import Ended, Listed, Step, Workers, run

FAILS = EnvironmentFailure("the connection is lost")


def order(candidate: int, host: int = 0) -> Measure:
    return Measure((Share(candidate, 1),), Purpose.SEARCH, host)


class Scripted:
    """Workers that report each order as an event, the oldest order first; ``failing`` candidates end with a failure."""

    def __init__(self, hosts: str, *failing: int) -> None:
        self.hosts: Sequence[str] = tuple(hosts)
        self.failing = failing
        self.orders: list[Measure] = []
        self.reported = self.stopped = False

    def submit(self, order: Measure) -> None:
        assert all(each.host != order.host for each in self.orders)
        self.orders.append(order)

    def next(self) -> tuple[int, str | Ended]:
        first = self.orders[0]
        self.reported = not self.reported
        candidate = first.plan[0].candidate
        if self.reported:
            return first.host, f"measured {candidate}"
        self.orders.pop(0)
        return first.host, Ended(FAILS if candidate in self.failing else None)

    def stop(self) -> None:
        self.stopped = True


class Events(list[object]):
    """A log that returns how many events it has."""

    def append(self, event: object) -> int:  # type: ignore[override]
        super().append(event)
        return len(self)


def test_one_host_carries_out_one_order_after_another() -> None:
    log, workers = Events(), Scripted("a")
    typed: Workers[str] = workers
    assert list(run(Listed(map(order, (3, 1))), log, typed)) == [1, 2]
    assert log == ["measured 3", "measured 1"]
    assert workers.stopped


class FirstFree:
    """Gives each free host one of the orders; ends when all are given."""

    def __init__(self, *candidates: int) -> None:
        self.candidates = list(candidates)
        self.fleets: list[Fleet] = []

    def next(self, fleet: Fleet) -> Step:
        self.fleets.append(fleet)
        return Step(order(self.candidates.pop(0), fleet.free_host)) if self.candidates else Step(None)


def test_free_hosts_get_orders_at_once_and_the_end_waits_for_all() -> None:
    log, planner = Events(), FirstFree(1, 2, 3)
    workers: Workers[str] = Scripted("ab")
    assert len(list(run(planner, log, workers))) == 3
    assert [len(fleet.busy) for fleet in planner.fleets] == [0, 1, 1, 1, 0]


def test_a_host_that_fails_gets_no_further_order() -> None:
    log, planner = Events(), FirstFree(1, 2, 3)
    workers: Workers[str] = Scripted("ab", 1)
    list(run(planner, log, workers))
    assert [event.text for event in log if isinstance(event, Warned)] == [f"host a takes no further part: {FAILS}"]
    assert planner.fleets[-1].gone == (0,)


def test_the_failure_of_the_last_host_is_raised() -> None:
    workers = Scripted("a", 1)
    typed: Workers[str] = workers
    with pytest.raises(EnvironmentFailure, match="is lost"):
        list(run(FirstFree(1, 2), Events(), typed))
    assert workers.stopped


def test_an_abandoned_loop_stops_its_workers() -> None:
    workers = Scripted("a")
    typed: Workers[str] = workers
    course = run(FirstFree(1, 2), Events(), typed)
    next(course)
    course.close()
    assert workers.stopped
