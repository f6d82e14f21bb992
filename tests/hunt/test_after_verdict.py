"""What is counted once code placement is the verdict: by which builds, once, and what the verdict then says."""

from collections.abc import Generator
from dataclasses import dataclass, replace

import pytest

from computed import ComputedLab, CountingLab, commits, hunt, log_of, measured_by, problem, speeds, started, verdict
from perfbisect.core.domain.events import CandidateSkipped, Event, HuntEnded, LabEvent, RunFinished, Warned
from perfbisect.core.domain.facts import SkipFacts
from perfbisect.core.domain.orders import CodePlacement, Measure, Verdict
from perfbisect.core.domain.settings import Policy
from perfbisect.core.inference.code_placement import RESOLVED
from perfbisect.errors import EnvironmentFailure
from perfbisect.hunt.further_runs import placement_counted
from perfbisect.hunt.search_problem import SavedLog, SearchProblem, replay
from perfbisect.lab.guarded_lab import Lab
from perfbisect.store.history import History

NAMES = commits(12)
MOVED = 5  # from this commit on builds are slow as they are linked usually


@dataclass
class LinkingLab(ComputedLab):
    """It links builds again where that is ordered: they are all as fast then."""

    def measure(self, order: Measure) -> Generator[LabEvent]:
        """As a real lab does it."""
        for event in ComputedLab.measure(self, order):
            if isinstance(event, RunFinished) and order.fresh:
                speed = self.speed[event.facts.commit]
                layout = round(self.clock / 10)
                event = replace(
                    event,
                    facts=replace(event.facts, operations=round(event.facts.operations / speed), layout=layout),
                )
            yield event


def linking() -> LinkingLab:
    return LinkingLab(NAMES, speeds(NAMES, MOVED, slow=0.85))


def counting(extra: float = 0.0) -> CountingLab:
    """From the commit on that moves code it counts more by the fraction ``extra``."""
    return CountingLab(NAMES, speeds(NAMES, MOVED, slow=0.85), extra=1 + extra, exactly=True)


def asked(most: int = 0) -> SearchProblem:
    return replace(problem(NAMES), policy=Policy(layouts=True, max_runs=most))


def hunted(log: SavedLog, counted: Lab, question: SearchProblem | None = None) -> Generator[Event]:
    """The events of a hunt whose verdict is code placement."""
    question = question or asked()

    def afterwards(reached: Verdict) -> Generator[tuple[float, Event]]:
        assert isinstance(reached, CodePlacement)
        return placement_counted(reached.step, question, log, measured_by(counted, "instructions/o"))

    for _, event in hunt(question, started(NAMES), log, measured_by(linking()), afterwards=afterwards):
        yield event


def placement(events: list[Event]) -> CodePlacement:
    """The verdict of a hunt that has ended."""
    reached = verdict(events)
    assert isinstance(reached, CodePlacement)
    assert reached.step.candidate == MOVED
    return reached


def counted_in(log: SavedLog) -> list[str]:
    """The commits that were counted."""
    return [e.facts.commit for _, e in log.entries if isinstance(e, RunFinished) and e.facts.counted]


@pytest.mark.parametrize(("extra", "same"), [(0.0, True), (RESOLVED / 2, True), (2 * RESOLVED, False), (0.1, False)])
def test_a_commit_that_moves_code_is_counted_beside_its_parent(history: History, extra: float, same: bool) -> None:
    log = log_of(history, NAMES)
    assert placement(list(hunted(log, counting(extra)))).same_counts is same
    assert sorted(counted_in(log)) == [NAMES[MOVED - 1], NAMES[MOVED]]


def test_a_replay_has_the_same_verdict_with_and_without_counts(history: History) -> None:
    log = log_of(history, NAMES)
    reached = placement(list(hunted(log, counting(0.01))))
    events = [(entry.at, entry.event) for entry in history.events(log.hunt)]
    *_, (_, again) = replay(asked(), events, log.began)
    assert again.order == reached
    uncounted = [each for each in events if not (isinstance(each[1], RunFinished) and each[1].facts.counted)]
    *_, (_, before) = replay(asked(), uncounted, log.began)
    assert before.order == replace(reached, same_counts=None)


@pytest.mark.parametrize("cut", [1, 2])
def test_a_hunt_that_is_cut_while_it_counts_goes_on_with_what_is_missing(history: History, cut: int) -> None:
    log = log_of(history, NAMES)
    for event in hunted(log, counting()):
        if isinstance(event, RunFinished) and event.facts.counted and len(counted_in(log)) == cut:
            break
    again = SavedLog(history, log.hunt)
    assert len(counted_in(again)) == cut
    assert placement(list(hunted(again, counting()))).same_counts is True
    assert sorted(counted_in(again)) == [NAMES[MOVED - 1], NAMES[MOVED]]


def test_the_budget_of_runs_counts_for_it(history: History) -> None:
    log = log_of(history, NAMES)
    list(hunted(log, counting()))
    spent = sum(isinstance(event, RunFinished) for _, event in log.entries) - 2
    for most, counts in ((spent + 1, 0), (spent + 2, 2)):
        limited = log_of(history, NAMES)
        placement(list(hunted(limited, counting(), asked(most))))
        assert len(counted_in(limited)) == counts


class Failing(ComputedLab):
    """Nothing can be counted on it."""

    def measure(self, order: Measure) -> Generator[LabEvent]:
        """As a lab whose host lacks something."""
        raise EnvironmentFailure("no.", "Do this.")
        yield


class Refusing(ComputedLab):
    """The first build does not run where it is counted."""

    def measure(self, order: Measure) -> Generator[LabEvent]:
        """As a lab whose build fails."""
        node = order.plan[0].candidate
        yield CandidateSkipped(node, SkipFacts(self.commits[node], "run", "illegal instruction", "log", 1.0))


@pytest.mark.parametrize(
    ("lab", "said"),
    [
        (Failing, Warned("Instructions are not counted exactly: no.", "Do this.")),
        (Refusing, Warned(f"{NAMES[MOVED][:10]} is not measured further: illegal instruction")),
    ],
)
def test_where_it_fails_the_verdict_stays(history: History, lab: type[ComputedLab], said: Warned) -> None:
    log = log_of(history, NAMES)
    events = list(hunted(log, lab(NAMES, {})))
    assert placement(events).same_counts is None
    assert said in events
    assert isinstance(events[-1], HuntEnded)
    assert not any(isinstance(event, CandidateSkipped) for event in events)
