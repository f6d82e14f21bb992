"""Hunts through the loop, with a lab that computes: what is saved, ordered and yielded, and in which order."""

import math
from collections.abc import Generator, Sequence
from dataclasses import replace
from itertools import islice

import pytest

import sample_hunt as sample
from computed import ComputedLab, commits, culprit, hunt, log_of, measured_by, problem, speeds, started, verdict
from perfbisect.core.domain.events import (
    BuildFinished,
    CandidateSkipped,
    Decided,
    Event,
    HuntEnded,
    HuntStarted,
    LabEvent,
    Remedied,
    RunFinished,
)
from perfbisect.core.domain.facts import LEFT_OUT, SkipFacts
from perfbisect.core.domain.orders import (
    UNKNOWN,
    Found,
    Inconclusive,
    Interval,
    Measure,
    NotReproduced,
    Reason,
    Verdict,
)
from perfbisect.core.domain.settings import Flags, Policy
from perfbisect.core.inference.hunt_state import fold
from perfbisect.errors import EnvironmentFailure
from perfbisect.hunt.search_problem import SavedLog, compare_merge_base, ill_timed, replay
from perfbisect.lab import Steps
from perfbisect.store.history import History


def hunted(
    history: History,
    lab: ComputedLab,
    failed: Sequence[SkipFacts] = (),
    left_out: Sequence[SkipFacts] = (),
    metric: str = "qps",
) -> list[Event]:
    """The events of a hunt through the commits of a lab; one that does not end is cut."""
    names = lab.commits
    log, workers = log_of(history, names), measured_by(lab, metric)
    return [
        event for _, event in islice(hunt(problem(names, metric), started(names), log, workers, failed, left_out), 500)
    ]


@pytest.mark.parametrize("cut", [1, 3, 10, 25])
def test_a_cut_hunt_goes_on_to_the_same_end_without_repeating(history: History, cut: int) -> None:
    """Stop after any event, read the log back, go on: nothing that was measured is lost."""
    names = commits(30)
    hunt_id = log_of(history, names).hunt
    lab = ComputedLab(names, speeds(names, 11))
    before: list[Event] = []
    for _, event in hunt(problem(names), started(names), SavedLog(history, hunt_id), measured_by(lab)):
        before.append(event)
        if len(before) > cut:
            break
    finished = [event for event in before if isinstance(event, BuildFinished | RunFinished)]
    again = SavedLog(history, hunt_id)
    assert [event for _, event in again.entries] == finished
    events = [event for _, event in hunt(problem(names), started(names), again, measured_by(lab))]
    assert culprit(events).candidate == 11
    assert len(lab.built) == len(set(lab.built))


def test_builds_that_failed_in_an_earlier_hunt_are_not_tried_again_but_for_the_ends(history: History) -> None:
    names = commits(30)
    lab = ComputedLab(names, speeds(names, 11))
    failed = [SkipFacts(names[node], "compile", "error: no", "log", 1.0) for node in (0, 14, 15, 29)]
    events = hunted(history, lab, failed)
    assert {event.candidate for event in events if isinstance(event, CandidateSkipped)} == {14, 15}
    assert not {names[14], names[15]} & set(lab.built)
    assert (culprit(events).candidate, culprit(events).parents) == (11, (10,))
    kinds = [type(event) for event in events if not isinstance(event, CandidateSkipped)]
    assert kinds[:2] + kinds[-2:] == [HuntStarted, Decided, Decided, HuntEnded]


def test_what_the_user_left_out_is_not_tried_and_says_nothing_of_its_neighbours(history: History) -> None:
    """The culprit lies between two that were left out: nothing that a neighbour does could come from a failed build."""
    names = commits(30)
    lab = ComputedLab(names, speeds(names, 11))
    left = [SkipFacts(names[node], LEFT_OUT, "by --skip x", "", 0.0) for node in (9, 13, 14)]
    log, failed = log_of(history, names), [SkipFacts(names[13], "compile", "error: no", "log", 1.0)]
    events = [event for _, event in hunt(problem(names), started(names), log, measured_by(lab), failed, left)]
    assert [event.facts for event in events if isinstance(event, CandidateSkipped)] == left
    assert not {names[9], names[13], names[14]} & set(lab.built)
    assert culprit(events).candidate == 11
    assert left == [event.facts for _, event in sample.logged(history, log.hunt) if isinstance(event, CandidateSkipped)]
    again = SavedLog(history, log.hunt)
    more = [event for _, event in hunt(problem(names), started(names), again, measured_by(lab), (), left)]
    assert not [event for event in more if isinstance(event, CandidateSkipped)], "a resumed hunt has them in its log"


def test_a_culprit_that_was_left_out_is_one_of_several_and_the_reason_is_that(history: History) -> None:
    names = commits(30)
    lab = ComputedLab(names, speeds(names, 11))
    left = [SkipFacts(names[node], LEFT_OUT, "by --skip x", "", 0.0) for node in range(10, 13)]
    ended = verdict(hunted(history, lab, left_out=left))
    assert isinstance(ended, Inconclusive)
    assert ended.reason is Reason.LEFT_OUT
    assert set(ended.candidates) == set(range(10, 14))
    assert set(lab.built) < {*names[:10], *names[13:]}


class Instant(ComputedLab):
    """Measures runs so short that their QPS is beyond all numbers."""

    def measure(self, order: Measure) -> Generator[LabEvent]:
        for event in super().measure(order):
            yield (
                replace(event, facts=replace(event.facts, seconds=5e-324)) if isinstance(event, RunFinished) else event
            )


@pytest.mark.parametrize(
    ("lab", "slow", "metric", "said"),
    [
        (Instant, 0.8, "qps", "no value for qps, or it is 0 or infinite"),
        (ComputedLab, 0.8, "instructions/o", "instructions/o"),
        (ComputedLab, 0.0, "qps", rf"{commits(5)[-1][:10]} have no value for qps"),
    ],
    ids=["infinite", "not recorded", "only one end has it"],
)
def test_runs_without_the_metric_end_the_hunt(
    history: History, lab: type[ComputedLab], slow: float, metric: str, said: str
) -> None:
    """Otherwise the same order would be given for ever."""
    names = commits(5)
    with pytest.raises(EnvironmentFailure, match=said):
        hunted(history, lab(names, speeds(names, 3, slow=slow)), metric=metric)


class TestMergeBase:
    """Good is not an ancestor of bad: the merge base is compared with it, for a change in either direction."""

    good = "f" * 40

    def check(self, history: History, speed_of_good: float, max_runs: int = 0) -> tuple[list[Event], Verdict]:
        names = commits(6)
        truth = speeds(names, 3) | {self.good: speed_of_good}
        asked = replace(problem(names), policy=Policy(max_runs=max_runs))
        events = Steps(
            compare_merge_base(
                asked,
                replace(started(names), branch_points=2),
                self.good,
                log_of(history, names),
                lambda nodes: measured_by(ComputedLab(nodes, truth))(nodes),
            )
        )
        return [event for _, event in events], events.result

    def test_as_fast(self, history: History) -> None:
        events, verdict = self.check(history, 1.0)
        measured = {event.facts.commit for event in events if isinstance(event, RunFinished)}
        assert measured == {self.good, commits(6)[0]}
        assert isinstance(verdict, NotReproduced)
        assert [event.choices for event in events if isinstance(event, HuntStarted)] == [1]

    @pytest.mark.parametrize("speed", [0.8, 1.25])
    def test_not_as_fast(self, history: History, speed: float) -> None:
        _, verdict = self.check(history, speed)
        assert isinstance(verdict, Found)
        assert verdict.step.ratio.low < speed < verdict.step.ratio.high

    def test_a_budget_that_is_spent_tells_nothing_of_its_speed(self, history: History) -> None:
        events, verdict = self.check(history, 1.0, max_runs=8)
        assert isinstance(verdict, Inconclusive)
        assert len([event for event in events if isinstance(event, RunFinished)]) == 8


def test_a_replay_takes_the_same_course_and_with_a_smaller_budget_ends_earlier(history: History) -> None:
    names = commits(30)
    log, rules = log_of(history, names), problem(names)
    list(hunt(rules, started(names), log, measured_by(ComputedLab(names, speeds(names, 21, slow=0.97)))))
    events = [(entry.at, entry.event) for entry in history.events(log.hunt)]
    recorded = [event.decision.order for _, event in events if isinstance(event, Decided)]
    again = [*replay(rules, events, log.began)]
    assert [decision.order for _, decision in again] == recorded
    poorer = replace(rules, policy=replace(rules.policy, max_runs=again[-1][0] // 2))
    *_, (runs, decision) = replay(poorer, events, log.began)
    assert runs < again[-1][0]
    assert isinstance(decision.order, Inconclusive)


def test_options_that_are_added_set_aside_what_was_measured_until_a_build_is_the_same_binary(history: History) -> None:
    """In the log of the search, as it is and as it is read again, and in what views and reports show."""
    said = [
        BuildFinished(0, sample.build(0, binary="one"), None), RunFinished(0, sample.run(0, 10.0)),
        BuildFinished(9, sample.build(9, binary="two"), None), RunFinished(9, sample.run(9, 20.0)),
        CandidateSkipped(3, sample.skip(3)), CandidateSkipped(4, sample.skip(4, LEFT_OUT)),
        Remedied(Flags("-include x.h"), "it does not build without"),
        BuildFinished(0, sample.build(0, binary="one"), None), BuildFinished(9, sample.build(9, binary="other"), None),
        RunFinished(9, sample.run(9, 30.0)),
    ]  # fmt: skip
    log = SavedLog(history, sample.begin(history))
    kept = [log.append(event) for event in said[:7]]
    assert [event.facts.commit for _, event in log.entries] == [sample.CANDIDATES[4]], "by --skip"
    assert set(log.aside) == {sample.CANDIDATES[0], sample.CANDIDATES[9]}
    kept += [log.append(event) for event in said[7:]]
    runs = [event.facts.started for _, event in log.entries if isinstance(event, RunFinished)]
    assert runs == [10.0, 30.0], "that of the binary which has changed is gone"
    assert not log.aside
    assert SavedLog(history, log.hunt).entries == log.entries
    state = fold([(0.0, sample.started()), *kept])
    assert state.log == log.entries
    assert [len(state.row(sample.CANDIDATES[node]).runs) for node in (0, 9)] == [1, 1]
    assert [state.row(sample.CANDIDATES[node]).skip is None for node in (3, 4)] == [True, False]
    assert state.remedy == ("it does not build without: everything was built with that.",)


@pytest.mark.parametrize(
    ("seconds", "noise", "middle", "hint"),
    [
        (0.4, 0.29, 0.7, "Longer ones vary less: let the benchmark repeat its work for a few seconds."),
        (0.4, 0.02, 0.7, ""),
        (86.0, 0.005, 0.6, "Shorter ones show 40 % as well: a tenth of the work is enough."),
        (86.0, 0.1, 0.6, ""),
        (5.0, 0.29, 0.7, ""),
    ],
)
def test_runs_that_are_far_too_short_or_needlessly_long_are_said(
    seconds: float, noise: float, middle: float, hint: str
) -> None:
    change = Interval.around(math.log(middle), 0.1)
    said = ill_timed(change, noise, [seconds] * 10)
    assert (said.advice if said else "") == hint
    assert ill_timed(change, noise, [seconds] * 9) is None
    assert ill_timed(UNKNOWN, noise, [seconds] * 10) is None
