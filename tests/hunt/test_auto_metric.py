"""`--metric auto`: measured at the ends, chosen once, kept."""

from collections.abc import Generator
from dataclasses import dataclass, replace

import pytest

from computed import HOST, ComputedLab, commits, culprit, measured_by, problem, settings, speeds, started
from perfbisect.core.domain.events import Event, HuntStarted, LabEvent, RunFinished, Warned
from perfbisect.core.domain.orders import Measure
from perfbisect.core.domain.policy import Direction, Policy
from perfbisect.core.domain.settings import Settings
from perfbisect.core.inference.metric_choice import RUNS
from perfbisect.hunt.auto_metric import with_metric_chosen
from perfbisect.hunt.search_problem import SavedLog, hunt
from perfbisect.store.history import History

NAMES = commits(30)
AUTO = replace(settings(), choose_metric=True)


@dataclass
class CountingLab(ComputedLab):
    """It counts instructions too: 1,000 an operation, and more by the factor ``extra`` in slow builds."""

    extra: float = 1.05

    def measure(self, order: Measure) -> Generator[LabEvent]:
        """As a real lab does it."""
        for event in ComputedLab.measure(self, order):
            if isinstance(event, RunFinished):
                slow = self.speed[event.facts.commit] < max(self.speed.values())
                total = event.facts.operations * 1000 * (self.extra if slow else 1.0)
                event = replace(event, facts=replace(event.facts, counters={"instructions": total}))
            yield event


def begin(history: History, of: Settings = AUTO) -> int:
    """A hunt."""
    return history.begin(of, HOST, started(NAMES), 1000.0)


def chosen(history: History, number: int, lab: ComputedLab, of: Settings = AUTO) -> tuple[Settings, list[Event]]:
    """The settings after the choice, and the events until then."""
    log, events = SavedLog(history, number), []
    steps = with_metric_chosen(of, problem(NAMES), started(NAMES), log, measured_by(lab))
    while True:
        try:
            events.append(next(steps)[1])
        except StopIteration as end:
            return end.value, events


def test_counts_show_what_a_rate_hides(history: History) -> None:
    """A drop of 1 % by 5 % more instructions, with runs that vary by 1 %."""
    lab, number = CountingLab(NAMES, speeds(NAMES, 17, slow=0.99)), begin(history)
    found, events = chosen(history, number, lab)
    assert (found.metric, found.policy.direction, found.choose_metric) == ("instructions/o", Direction.RISE, False)
    assert history.settings(number) == found
    assert isinstance(events[0], HuntStarted) and isinstance(events[-1], Warned)
    assert events[-1].text.startswith(
        "The metric is instructions/o, which shows the change between the ends best: a rise"
    )
    runs = [event.facts.commit for event in events if isinstance(event, RunFinished)]
    assert (runs.count(NAMES[0]), runs.count(NAMES[-1]), len(runs)) == (RUNS, RUNS, 2 * RUNS)
    again = replace(problem(NAMES, found.metric), policy=found.policy)
    hunted = [event for _, event in hunt(again, started(NAMES), SavedLog(history, number), measured_by(lab))]
    assert culprit(hunted).candidate == 17


def test_without_a_change_it_stays_that_of_the_workload(history: History) -> None:
    found, events = chosen(history, begin(history), CountingLab(NAMES, speeds(NAMES, 17, slow=1.0)))
    assert (found.metric, found.policy.direction, found.choose_metric) == ("qps", Direction.DROP, False)
    assert isinstance(events[-1], Warned) and "no recorded metric shows a change" in events[-1].text


@pytest.mark.parametrize("cut", range(1, 14))
def test_a_cut_choice_goes_on_by_the_same_runs(history: History, cut: int) -> None:
    lab, number = CountingLab(NAMES, speeds(NAMES, 17, slow=0.99)), begin(history)
    steps = with_metric_chosen(AUTO, problem(NAMES), started(NAMES), SavedLog(history, number), measured_by(lab))
    for _ in range(cut):
        next(steps)
    steps.close()
    found, _ = chosen(history, number, lab)
    assert found.metric == "instructions/o"
    runs = [event for _, event in history.log(number) if isinstance(event, RunFinished)]
    assert len(runs) == 2 * RUNS
    assert len(lab.built) == 2


def test_the_budget_counts_for_it(history: History) -> None:
    few = replace(AUTO, policy=Policy(max_runs=4))
    lab = CountingLab(NAMES, speeds(NAMES, 17))
    _, events = chosen(history, begin(history, few), lab, few)
    assert sum(isinstance(event, RunFinished) for event in events) == 4


def test_an_end_that_does_not_build(history: History) -> None:
    """Nothing can be compared: the hunt ends by itself, in the workload's own metric."""
    lab = CountingLab(NAMES, speeds(NAMES, 17), frozenset({NAMES[0]}))
    found, _ = chosen(history, begin(history), lab)
    assert found.metric == "qps"
    assert chosen(history, begin(history), lab)[0] == found
