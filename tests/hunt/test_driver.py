"""Groups of hunts, and hunts on several hosts, with computed labs: logs of builds and runs, orders of hosts, failures,
interruptions, and the advice after a failure.
"""

import math
import re
import threading
from collections import Counter
from collections.abc import Generator
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import cast

import pytest

import sample_hunt as sample
from computed import (
    ComputedLab,
    check_replay,
    commits,
    culprit,
    events_of,
    hunt,
    kept,
    log_of,
    problem,
    speeds,
    started,
    verdict,
)
from perfbisect.core.domain.events import (
    BuildFinished,
    CandidateSkipped,
    Decided,
    Event,
    Foreseen,
    LabEvent,
    RunFinished,
    RunStarted,
    SessionEnded,
    Unexplained,
    Warned,
)
from perfbisect.core.domain.facts import BuildFacts
from perfbisect.core.domain.graph import Graph
from perfbisect.core.domain.orders import (
    UNKNOWN,
    Found,
    Inconclusive,
    Measure,
    NotReproduced,
    PlannedRuns,
    Purpose,
    Reason,
    Verdict,
)
from perfbisect.core.domain.session_state import fold
from perfbisect.core.domain.settings import Policy, PrintedResult, PriorKnowledge
from perfbisect.errors import (
    BuildFailed,
    Cancelled,
    EnvironmentFailure,
    PerfBisectError,
    RangeEndFailed,
    RunFailed,
)
from perfbisect.hunt.driver import HuntsPlanner, SessionDriver, SessionMember, WorkloadFailed, combined_lab
from perfbisect.hunt.lifecycle import compare_merge_base
from perfbisect.hunt.search_problem import SavedLog, SearchProblem, TimedEvent, log_verdict, recompute_decisions
from perfbisect.hunt.workers import MeasuringWorker as HostMember
from perfbisect.hunt.workers import ThreadWorkers
from perfbisect.store.history import History
from simulated_worlds import decide

NAMES = commits(40)
CULPRITS = (9, 30, 0)  # 0: no culprit
NAMED = [9, 30, NotReproduced]
UNBUILDABLE = frozenset(NAMES[18:21])
CRASHES = RunFailed("it crashes", stage="run", log="")


@dataclass
class FailingLab(ComputedLab):
    """A lab that fails at its first measurement, after the builds."""

    failure: Exception = field(default_factory=RuntimeError)

    def measure(self, order: Measure) -> Generator[LabEvent]:
        """Build, then fail."""
        for event in ComputedLab.measure(self, order):
            if isinstance(event, RunFinished):
                raise RangeEndFailed("the bad revision fails") from self.failure
            yield event


@dataclass
class ComputedCourse:
    """The part of a hunt's lifecycle that the driver needs."""

    log: SavedLog
    policy: Policy

    def __post_init__(self) -> None:
        self.problem = replace(problem(NAMES), policy=self.policy)

    def opening(self) -> Generator[TimedEvent, None, bool]:
        yield self.log.append(started(NAMES))
        return True

    def finish_session(self, verdict: Verdict) -> Generator[TimedEvent]:
        yield log_verdict(self.problem, self.log, verdict)
        yield self.log.append(Unexplained("counters", "of no use here"))


def labs_of(
    built: list[str], unbuildable: frozenset[str] = frozenset(), failing: dict[int, Exception] | None = None
) -> list[ComputedLab]:
    """A lab for each workload. The labs share their builds."""
    labs = [
        ComputedLab(NAMES, speeds(NAMES, culprit or len(NAMES)), unbuildable, built=built, clock=1000.0 + place)
        for place, culprit in enumerate(CULPRITS)
    ]
    for place, failure in (failing or {}).items():
        labs[place] = FailingLab(NAMES, labs[place].speed, built=built, failure=failure)
    return labs


class Session:
    """Hunts with these logs that are carried out together, on ``hosts`` hosts."""

    def __init__(
        self, logs: list[SavedLog], labs: list[ComputedLab], policy: Policy | None = None, hosts: int = 1
    ) -> None:
        self.failed: list[tuple[int, PerfBisectError]] = []
        courses = [ComputedCourse(log, policy or Policy()) for log in logs]
        self.members = [SessionMember(course.problem, log, course) for course, log in zip(courses, logs, strict=True)]
        lab = labs[0].measure if len(labs) == 1 else combined_lab({n: lab.measure for n, lab in enumerate(labs)})

        def workers() -> ThreadWorkers:
            return ThreadWorkers(*(HostMember(f"host {number}", lab, threading.Event()) for number in range(hosts)))

        def fail(number: int, failure: PerfBisectError) -> None:
            self.failed.append((number, failure))

        self.driver = SessionDriver(self.members, HuntsPlanner(self.members), workers, fail)

    def events(self) -> Generator[tuple[int, Event]]:
        with closing(self.driver.events()) as happened:
            for number, (_, event) in happened:
                if isinstance(event, SessionEnded):
                    self.members[number].verdict = event.verdict
                yield number, event

    def verdicts(self) -> list[object]:
        """The candidate that each hunt names, or the type of its verdict."""
        verdicts = [member.verdict for member in self.members]
        return [each.step.candidate if isinstance(each, Found) else type(each) for each in verdicts]


RESULTS = {"a": 9, "b": 9, "c": 30}  # the result → its culprit


@dataclass
class ResultsLab(ComputedLab):
    """A lab whose command prints several results, in randomized layouts if an order asks for them."""

    own: str = ""
    links: Counter[str] = field(default_factory=Counter)

    def measure(self, order: Measure) -> Generator[LabEvent]:
        for event in ComputedLab.measure(self, order):
            if isinstance(event, RunFinished):
                run = event.facts
                self.links[run.commit] += order.fresh
                fast = {name: 1.0 - 0.2 * (event.candidate >= culprit) for name, culprit in RESULTS.items()}
                results = {name: 50 * rate * math.exp(self.luck.gauss(0, 0.01)) for name, rate in fast.items()}
                layout = self.links[run.commit] if order.fresh else 0
                visit = f"{self.own} {run.visit}"
                run = replace(run, visit=visit, results=results, reported=results[self.own], layout=layout)
                event = replace(event, facts=run)
            yield event


def test_common_run_is_ordered_by_one_hunt_and_read_by_all(logs: list[SavedLog]) -> None:
    """Also in randomized layouts: hunts that have named the same commit share such runs."""
    built: list[str] = []
    labs: list[ComputedLab] = [ResultsLab(NAMES, dict.fromkeys(NAMES, 1.0), built=built, own=name) for name in RESULTS]
    now = Session(logs, labs, policy := Policy(layouts=True))
    for member, name in zip(now.members, RESULTS, strict=True):
        assert isinstance(member.lifecycle, ComputedCourse)
        member.lifecycle.problem = replace(member.lifecycle.problem, metric="rate")
        member.output = PrintedResult("", name, "", "rate")
    assert [*now.events()] and now.verdicts() == [9, 9, 30]
    runs = [[event.facts for event in events_of(log, RunFinished)] for log in logs]
    own = [{run.visit for run in each if not run.for_another} for each in runs]
    assert sum(map(len, own)) == len(set().union(*own)), "each was ordered by one hunt"
    assert {run.visit for each in runs for run in each if run.for_another} <= set().union(*own)
    fresh = [{run.visit for run in each if run.layout and run.commit in (NAMES[8], NAMES[9])} for each in runs]
    assert fresh[0] == fresh[1] and len(fresh[0]) < 15
    for log in logs:
        check_replay(replace(problem(NAMES, "rate"), policy=policy), log)


@pytest.fixture
def logs(history: History) -> list[SavedLog]:
    return [log_of(history, NAMES) for _ in CULPRITS]


def test_builds_are_in_all_logs_and_each_run_in_one_log(history: History, logs: list[SavedLog]) -> None:
    built: list[str] = []
    now = Session(logs, labs_of(built, UNBUILDABLE))
    runs = [number for number, event in now.events() if isinstance(event, RunFinished)]
    assert now.verdicts() == NAMED
    builds = [event.facts for log in logs for event in events_of(log, BuildFinished)]
    assert sorted(facts.commit for facts in builds if not facts.reused) == sorted(built) == sorted(set(built))
    assert {facts.seconds for facts in builds} == {5.0}, "builds for other hunts have their seconds, too"
    skipped = [{event.facts.commit for event in events_of(log, CandidateSkipped)} for log in logs[:2]]
    assert skipped[0] & skipped[1]
    spent = [row.failed_seconds for log in logs for row in fold(kept(log)).tested.values()]
    assert sum(spent) == len(skipped[0] | skipped[1]), "one second each, in one hunt"
    assert history.connection.execute("SELECT sum(seconds) FROM skips").fetchone() == (sum(spent),)
    for number, log in enumerate(logs):
        assert runs.count(number) == len(events_of(log, RunFinished))
        facts = [each for each in kept(log) if isinstance(each[1], BuildFinished | CandidateSkipped | RunFinished)]
        assert log.entries == facts
        check_replay(problem(NAMES), log)


def test_replay_knows_which_builds_were_made_for_other_hunts() -> None:
    """A build that was made for another workload is measured, although the build is not in the middle of the range."""
    lab = ComputedLab(NAMES, speeds(NAMES, 30))
    ends = [(lab.clock, event) for event in lab.measure(Measure((PlannedRuns(39, 6), PlannedRuns(0, 6)), Purpose.ENDS))]
    decided = (lab.clock, Decided(decide(Graph.straight_history(39), [], Policy())))
    # The last build was stored on the host, so its event does not name the hunt for which it was made.
    for elsewhere, shared, seconds, measured in (
        (True, False, 600.0, {14}), (False, False, 600.0, {19, 20}), (True, True, 0.0, {14}),
    ):  # fmt: skip
        made = BuildFinished(14, BuildFacts(NAMES[14], "", "", seconds, 0, 0, elsewhere, ""), None)
        events = [*ends, (lab.clock, made), decided]
        [(_, decision)] = recompute_decisions(problem(NAMES), events, 1000.0, shares_builds=shared)
        assert isinstance(decision.order, Measure)
        assert decision.order.plan[0].candidate in measured  # 19 and 20 are equally good: rounding chooses


@pytest.mark.parametrize(("hosts", "cut"), [(1, 1), (1, 11), (1, 40), (2, 0), (2, 90)])
def test_resumed_session_keeps_builds_and_runs(history: History, logs: list[SavedLog], hosts: int, cut: int) -> None:
    """Each host carries out orders of any workload."""
    built: list[str] = []
    with closing(Session(logs, labs_of(built), hosts=hosts).events()) as events:
        list(islice(events, cut))
    before, logs = [*built], [SavedLog(history, log.hunt) for log in logs]
    known = [events_of(log, RunFinished) for log in logs]
    assert any(known) or cut < 40
    now = Session(logs, labs_of(built), hosts=hosts)
    assert [*now.events()]
    assert now.verdicts() == NAMED
    assert built[: len(before)] == before
    assert hosts > 1 or len(built) == len(set(built))
    runs = [events_of(log, RunFinished) for log in logs]
    assert [each[: len(some)] for each, some in zip(runs, known, strict=True)] == known
    assert hosts == 1 or {event.host for each in runs for event in each} == {"host 0", "host 1"}


def test_verdict_without_explanation_ends_its_hunt_at_once(logs: list[SavedLog]) -> None:
    events = [*Session(logs, labs_of([])).events()]
    ends = [place for place, (_, event) in enumerate(events) if isinstance(event, SessionEnded)]
    assert [events[place][0] for place in ends] == [2, 0, 1]
    assert any(isinstance(event, RunFinished) for _, event in events[ends[0] :])
    assert ends[1:] == [len(events) - 4, len(events) - 3]
    assert [(number, type(event)) for number, event in events[-2:]] == [(0, Unexplained), (1, Unexplained)], "reasons"


def test_budget_is_shared_by_all_hunts(logs: list[SavedLog]) -> None:
    events = Session(logs, labs_of([]), Policy(max_runs=20)).events()
    assert 10 <= sum(isinstance(event, RunFinished) for _, event in events) <= 20


@pytest.mark.parametrize("hosts", [1, 2])
def test_failed_workload_stops_no_other_workload(logs: list[SavedLog], hosts: int) -> None:
    now = Session(logs, labs_of([], failing={1: CRASHES}), hosts=hosts)
    assert [*now.events()]
    assert now.driver.append(WorkloadFailed(CRASHES), 1) == (), "another host may report the failure, too"
    assert [(number, str(failure)) for number, failure in now.failed] == [(1, "the bad revision fails")]
    assert now.verdicts() == [9, type(None), NotReproduced]


@pytest.mark.parametrize("builds", [0, 8])
def test_resumed_hunt_knows_the_builds_made_since(history: History, logs: list[SavedLog], builds: int) -> None:
    """The builds were made for other hunts, from the shared budget."""
    built: list[str] = []
    policy = Policy(max_builds=builds)
    assert [*Session(logs, labs_of(built, UNBUILDABLE, {1: CRASHES}), policy).events()]
    before = {*built}
    again = Session([SavedLog(history, log.hunt) for log in logs], labs_of(built, UNBUILDABLE), policy)
    for number in (0, 2):
        again.members[number].lifecycle = None
    assert [*again.events()]
    assert again.members[1].verdict
    later = events_of(again.members[1].log, BuildFinished, CandidateSkipped)
    tried = {event.facts.commit for event in later}
    assert before <= tried and (not builds or len(tried) <= builds)
    builds_later = [event.facts for event in later[2:] if isinstance(event, BuildFinished)]
    assert all(facts.reused for facts in builds_later if facts.commit in before)


def test_hunt_that_ends_before_its_search_gets_no_runs(logs: list[SavedLog]) -> None:
    """For example, a hunt whose merge base may not be as fast as good."""
    now = Session(logs, labs_of([]))

    def opening() -> Generator[TimedEvent, None, bool]:
        yield log_verdict(problem(NAMES), logs[0], Inconclusive((), (), UNKNOWN, Reason.MERGE_BASE))
        return False

    cast("ComputedCourse", now.members[0].lifecycle).opening = opening  # type: ignore[method-assign]
    assert {number for number, event in now.events() if isinstance(event, RunFinished)} == {1, 2}
    assert now.verdicts() == [Inconclusive, 30, NotReproduced]


def test_unbuildable_end_stops_all_hunts(logs: list[SavedLog]) -> None:
    failing = {0: BuildFailed("no", stage="compile", log="")}
    with pytest.raises(RangeEndFailed, match="the bad revision fails"):
        list(Session(logs, labs_of([], failing=failing)).events())


@pytest.mark.parametrize(("noise", "slow"), [(0.18, 0.98), (0.18, 0.5), (0.01, 0.98)])
def test_hunt_that_needs_many_runs_warns_once_and_continues(history: History, noise: float, slow: float) -> None:
    lab = ComputedLab(NAMES, speeds(NAMES, 17, slow=slow), noise=noise)
    events = [event for _, event in Session([log_of(history, NAMES)], [lab]).events()]
    warned = [place for place, event in enumerate(events) if isinstance(event, Warned)]
    assert len(warned) == (noise / (1 - slow) > 5)
    for place in warned:
        warning = cast("Warned", events[place])
        assert re.fullmatch(
            r"the noise of runs is estimated as \d+ %, so a search for a change of [\d.]+ % takes some [\d,]+00 runs",
            warning.text,
        )
        assert "--metric instructions/o" in warning.advice
        assert any(isinstance(event, RunFinished) for event in events[place:])


@pytest.mark.parametrize(("noise", "slow"), [(0.01, 0.9), (0.05, 0.6)])
def test_expected_costs_are_printed_once_the_ends_are_measured(history: History, noise: float, slow: float) -> None:
    lab = ComputedLab(NAMES, speeds(NAMES, 17, slow=slow), noise=noise)
    events = [event for _, event in Session([log_of(history, NAMES)], [lab]).events()]
    [place] = [place for place, event in enumerate(events) if isinstance(event, Foreseen)]
    assert {event.candidate for event in events[:place] if isinstance(event, RunFinished)} == {0, len(NAMES) - 1}
    said = cast("Foreseen", events[place]).text
    found = re.fullmatch(
        r"about (\d+) to (\d+) builds and (\d+) to (\d+) runs in all, because good and bad differ by .*", said
    )
    assert found, said
    low, high, few, many = map(int, found.groups())
    assert low <= len(lab.built) <= high
    assert few <= sum(isinstance(event, RunFinished) for event in events) <= many


LINE = commits(30)
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
    return Scripted(LINE, speeds(LINE, 17, slow), **change)  # type: ignore[arg-type]


def stuck_lab() -> Scripted:
    return lab(waits=threading.Event())


def threads(*labs: Scripted) -> ThreadWorkers:
    members = zip("abcd", labs, strict=False)
    return ThreadWorkers(*(HostMember(name, lab.measure, lab.waits or threading.Event()) for name, lab in members))


def hunted(log: SavedLog, *labs: Scripted, classes: tuple[str, ...] = ()) -> Generator[Event]:
    """The events of a hunt on hosts with these labs."""
    for _, event in hunt(asked(len(labs), classes), started(LINE), log, lambda _: threads(*labs)):
        yield event


def asked(hosts: int = 2, classes: tuple[str, ...] = ()) -> SearchProblem:
    return replace(problem(LINE), hosts=tuple("abcd"[:hosts]), prior=PriorKnowledge(host_classes=classes))


@pytest.fixture
def log(history: History) -> SavedLog:
    return log_of(history, LINE)


def test_two_equal_hosts_share_the_work(log: SavedLog) -> None:
    labs = lab(SMALL), lab(SMALL)
    step = culprit(list(hunted(log, *labs)))
    assert (step.candidate, step.effects) == (17, ())
    assert {event.host for event in events_of(log, RunFinished)} == {"a", "b"}
    assert all(order.host == number for number, each in enumerate(labs) for order in each.orders)
    assert len({each.thread for each in labs} | {threading.get_ident()}) == 3
    searched = [{order.plan[0].candidate for order in each.orders if order.purpose == "search"} for each in labs]
    assert searched[0] - searched[1]
    assert searched[1] - searched[0]


def test_event_is_saved_before_its_host_continues(log: SavedLog) -> None:
    busy = set[str]()
    for event in hunted(log, lab(), lab(), lab()):
        if isinstance(event, BuildFinished | RunFinished):
            assert sample.logged(log.history, log.hunt)[-1][1] == event
        if isinstance(event, RunStarted):
            assert event.host not in busy
            busy.add(event.host)
        if isinstance(event, RunFinished):
            busy.remove(event.host)
    check_replay(asked(3), log)


def test_host_is_interrupted_during_a_run(log: SavedLog) -> None:
    """As by Ctrl-C: the stop interrupts the run, before the host reports another event."""
    stuck = stuck_lab()
    events = hunted(log, lab(), stuck)
    for event in events:
        if isinstance(event, RunStarted) and event.host == "b":
            break
    events.close()
    assert stuck.ended


def test_found_culprit_does_not_wait_for_a_stuck_host(log: SavedLog) -> None:
    stuck = stuck_lab()
    assert culprit(list(hunted(log, lab(), stuck))).candidate == 17
    assert stuck.ended
    assert {event.host for event in events_of(log, RunFinished)} == {"a"}


class TestClasses:
    """Hosts of two classes, on which the change has different sizes."""

    def test_each_class_has_its_effect_and_all_have_one_culprit(self, log: SavedLog) -> None:
        other = replace(lab(), speed={name: 500 * speed**3 for name, speed in speeds(LINE, 17).items()})
        step = culprit(list(hunted(log, lab(), other, classes=("x86", "arm"))))
        assert step.candidate == 17
        assert [effect.host_class for effect in step.effects] == ["x86", "arm"]
        # Threads decide which host gets which order, so a 95 % interval may miss its value, but only slightly.
        for effect, slow in zip(step.effects, (0.8, 0.8**3), strict=True):
            assert effect.ratio.low < effect.ratio.high
            assert math.log(effect.ratio.low) - 0.02 < math.log(slow) < math.log(effect.ratio.high) + 0.02

    def test_class_without_the_change_measures_only_the_ends(self, log: SavedLog) -> None:
        steady = lab(1.0)
        step = culprit(list(hunted(log, steady, lab(), classes=("x86", "arm"))))
        assert step.candidate == 17
        assert {order.purpose for order in steady.orders} == {"ends"}
        assert step.effects[0].ends
        assert step.effects[0].ratio.low < 1 < step.effects[0].ratio.high

    def test_no_class_shows_the_change(self, log: SavedLog) -> None:
        found = verdict(list(hunted(log, lab(1.0), lab(1.0), classes=("x86", "arm"))))
        assert isinstance(found, NotReproduced)
        assert [effect.host_class for effect in found.effects] == ["x86", "arm"]

    def test_loss_of_the_only_host_with_the_change_is_a_failure(self, log: SavedLog) -> None:
        with pytest.raises(EnvironmentFailure, match="is lost"):
            list(hunted(log, lab(1.0), lab(fails_at=3), classes=("x86", "arm")))


def test_merge_base_is_compared_on_all_hosts(log: SavedLog) -> None:
    good = "f" * 40
    truth = speeds(LINE, 17) | {good: 1.0}

    def crew(nodes: tuple[str, ...]) -> ThreadWorkers:
        return threads(Scripted(nodes, truth), Scripted(nodes, truth))

    events = [event for _, event in compare_merge_base(asked(), started(LINE), good, log, crew)]
    assert {event.host for event in events if isinstance(event, RunFinished)} == {"a", "b"}
