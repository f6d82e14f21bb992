"""The loop with several hosts, driven by labs that compute: who gets which order, what is saved, who may fail."""

import math
import threading
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field, replace

import pytest

import sample_hunt as sample
from computed import ComputedLab, commits, culprit, hunt, log_of, problem, speeds, started, verdict
from perfbisect.core.domain.events import (
    BuildFinished,
    Decided,
    Event,
    LabEvent,
    RunFinished,
    RunStarted,
    Warned,
)
from perfbisect.core.domain.orders import Measure, NotReproduced
from perfbisect.core.domain.settings import PriorKnowledge
from perfbisect.errors import Cancelled, EnvironmentFailure
from perfbisect.hunt.search_problem import SavedLog, SearchProblem, compare_merge_base, replay
from perfbisect.hunt.workers import Member, ThreadWorkers
from perfbisect.store.history import History

NAMES = commits(30)
FAILS = EnvironmentFailure("the connection to host b is lost")


@dataclass
class Scripted(ComputedLab):
    """A computed lab that fails at its n-th order, or waits for ever in its first run."""

    fails_at: int = 0
    waits: threading.Event | None = None
    orders: list[Measure] = field(default_factory=list)
    ended: bool = False
    thread: int = 0

    def measure(self, order: Measure) -> Generator[LabEvent]:
        self.orders.append(order)
        self.thread = threading.get_ident()
        try:
            if len(self.orders) == self.fails_at:
                raise FAILS
            for event in super().measure(order):
                yield event
                if self.waits and isinstance(event, RunStarted):
                    self.waits.wait()
                    raise Cancelled
        finally:
            self.ended = True


SMALL = 0.9  # a larger drop takes so few orders that one host may carry out nearly all of them


def lab(slow: float = 0.8, **change: object) -> Scripted:
    return Scripted(NAMES, speeds(NAMES, 17, slow), **change)  # type: ignore[arg-type]


def threads(*labs: Scripted) -> ThreadWorkers:
    return ThreadWorkers(
        *(Member(name, lab, lab.waits or threading.Event()) for name, lab in zip("abcd", labs, strict=False))
    )


def asked(*classes: str, hosts: str = "ab") -> SearchProblem:
    return replace(problem(NAMES), hosts=tuple(hosts), prior=PriorKnowledge(host_classes=classes))


def told_by(
    history: History, rules: SearchProblem, crew: ThreadWorkers, log: SavedLog | None = None
) -> Iterator[Event]:
    for _, event in hunt(rules, started(NAMES), log or log_of(history, NAMES), lambda _: crew):
        yield event


def test_two_alike_share_the_work(history: History) -> None:
    labs = lab(SMALL), lab(SMALL)
    told = list(told_by(history, asked(), threads(*labs)))
    assert culprit(told).candidate == 17
    assert culprit(told).effects == ()
    ran = [event.host for event in told if isinstance(event, RunFinished)]
    assert set(ran) == {"a", "b"}
    assert all(order.host == number for number, one in enumerate(labs) for order in one.orders)
    assert len({one.thread for one in labs} | {threading.get_ident()}) == 3
    searched = [{order.plan[0].candidate for order in one.orders if order.purpose == "search"} for one in labs]
    assert searched[0] - searched[1]
    assert searched[1] - searched[0]


def test_what_is_reported_is_saved_and_the_host_waits_until_then(history: History) -> None:
    log, busy = log_of(history, NAMES), set[str]()
    for event in told_by(history, asked(), threads(lab(), lab()), log):
        if isinstance(event, BuildFinished | RunFinished):
            assert sample.logged(history, log.hunt)[-1][1] == event
        if isinstance(event, RunStarted):
            assert event.host not in busy
            busy.add(event.host)
        if isinstance(event, RunFinished):
            busy.remove(event.host)


def test_a_replay_takes_the_same_course(history: History) -> None:
    log = log_of(history, NAMES)
    rules = asked(hosts="abc")
    told = list(told_by(history, rules, threads(lab(), lab(), lab()), log))
    recorded = [event.decision.order for event in told if isinstance(event, Decided)]
    entries = [(entry.at, entry.event) for entry in history.events(log.hunt)]
    again = [decision.order for _, decision in replay(rules, entries, log.began)]
    assert again == recorded


@pytest.mark.parametrize("order", [1, 2, 4])
def test_a_host_that_is_gone_leaves_the_hunt_to_the_others(history: History, order: int) -> None:
    gone = lab(SMALL, fails_at=order)
    told = list(told_by(history, asked(), threads(lab(SMALL), gone)))
    assert culprit(told).candidate == 17
    assert len(gone.orders) == order
    [warned] = [event for event in told if isinstance(event, Warned)]
    assert warned.text == f"host b takes no further part: {FAILS}"


def test_the_last_host_takes_its_failure_with_it(history: History) -> None:
    with pytest.raises(EnvironmentFailure, match="is lost"):
        list(told_by(history, asked(), threads(lab(fails_at=2), lab(fails_at=2))))


@pytest.mark.parametrize("cut", [3, 12, 30])
def test_a_cut_hunt_ends_what_is_under_way_and_goes_on(history: History, cut: int) -> None:
    log = log_of(history, NAMES)
    labs = lab(), lab()
    course = told_by(history, asked(), threads(*labs), log)
    before = [event for _, event in zip(range(cut), course, strict=False)]
    course.close()
    assert all(one.ended for one in labs if one.orders)
    finished = [event for event in before if isinstance(event, BuildFinished | RunFinished)]
    again = SavedLog(history, log.hunt)
    assert [event for _, event in again.entries] == finished
    assert culprit(list(told_by(history, asked(), threads(*labs), again))).candidate == 17


def test_a_host_in_the_middle_of_something_is_interrupted(history: History) -> None:
    """As by Ctrl-C: the stop reaches it where it works, not only where it tells."""
    stuck = lab(waits=threading.Event())
    course = told_by(history, asked(), threads(lab(), stuck))
    for event in course:
        if isinstance(event, RunStarted) and event.host == "b":
            break
    course.close()
    assert stuck.ended


def test_a_culprit_that_stands_waits_for_nobody(history: History) -> None:
    stuck = lab(waits=threading.Event())
    told = list(told_by(history, asked(), threads(lab(), stuck)))
    assert culprit(told).candidate == 17
    assert stuck.ended
    assert {event.host for event in told if isinstance(event, RunFinished)} == {"a"}


class TestClasses:
    """Hosts on which the change is not of one size."""

    def test_each_has_its_effect_and_all_have_one_culprit(self, history: History) -> None:
        other = replace(lab(), speed={name: 500 * speed**3 for name, speed in speeds(NAMES, 17).items()})
        told = list(told_by(history, asked("x86", "arm"), threads(lab(), other)))
        step = culprit(told)
        assert step.candidate == 17
        x86, arm = step.effects
        assert (x86.host_class, arm.host_class) == ("x86", "arm")
        # Which host gets which order is a matter of threads: an interval of 95 % may miss its value. It is never far.
        for effect, slow in ((x86, 0.8), (arm, 0.8**3)):
            assert effect.ratio.low < effect.ratio.high
            assert math.log(effect.ratio.low) - 0.02 < math.log(slow) < math.log(effect.ratio.high) + 0.02

    def test_one_that_does_not_show_it_is_left_alone(self, history: History) -> None:
        steady = replace(lab(), speed=dict.fromkeys(NAMES, 1.0))
        told = list(told_by(history, asked("x86", "arm"), threads(steady, lab())))
        step = culprit(told)
        assert step.candidate == 17
        assert {order.purpose for order in steady.orders} == {"ends"}
        assert step.effects[0].ends
        assert step.effects[0].ratio.low < 1 < step.effects[0].ratio.high

    def test_none_that_shows_it(self, history: History) -> None:
        steady = [replace(lab(), speed=dict.fromkeys(NAMES, 1.0), orders=[]) for _ in "ab"]
        found = verdict(list(told_by(history, asked("x86", "arm"), threads(*steady))))
        assert isinstance(found, NotReproduced)
        assert [effect.host_class for effect in found.effects] == ["x86", "arm"]

    def test_the_only_one_that_shows_it_is_gone(self, history: History) -> None:
        steady = replace(lab(), speed=dict.fromkeys(NAMES, 1.0), orders=[])
        with pytest.raises(EnvironmentFailure, match="is lost"):
            list(told_by(history, asked("x86", "arm"), threads(steady, lab(fails_at=3))))


def test_the_merge_base_is_checked_on_all(history: History) -> None:
    good = "f" * 40
    truth = speeds(NAMES, 17) | {good: 1.0}

    def crew(nodes: tuple[str, ...]) -> ThreadWorkers:
        return threads(Scripted(nodes, truth), Scripted(nodes, truth))

    told = [event for _, event in compare_merge_base(asked(), started(NAMES), good, log_of(history, NAMES), crew)]
    assert {event.host for event in told if isinstance(event, RunFinished)} == {"a", "b"}
