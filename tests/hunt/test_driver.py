"""Hunts of a group and of several hosts, by labs that compute: what is built for one is in all logs, what is measured in one;
who gets which order, who may fail; what cuts them short loses nothing; and what a failure says about going on.
"""

import math
import re
import threading
from collections.abc import Generator, Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

import sample_hunt as sample
from computed import ComputedLab, commits, culprit, hunt, log_of, problem, speeds, started, verdict
from perfbisect.core.domain.events import (
    BuildFinished,
    CandidateSkipped,
    Decided,
    Event,
    HuntEnded,
    LabEvent,
    RunFinished,
    RunStarted,
    Unexplained,
    Warned,
)
from perfbisect.core.domain.facts import BuildFacts, Known
from perfbisect.core.domain.graph import Graph
from perfbisect.core.domain.orders import (
    UNKNOWN,
    Found,
    Inconclusive,
    Measure,
    NotReproduced,
    Purpose,
    Reason,
    Share,
    Verdict,
)
from perfbisect.core.domain.settings import Flags, Policy, PriorKnowledge, Quick
from perfbisect.core.inference.hunt_state import fold
from perfbisect.core.search.decide import decide
from perfbisect.errors import (
    BuildFailed,
    Cancelled,
    ConnectionLost,
    EndFailed,
    EnvironmentFailure,
    NothingToCompare,
    PerfBisectError,
    RunFailed,
    UsageError,
    WrongPattern,
)
from perfbisect.hunt.driver import Driver, LabOfSeveral, Member, Numbered, WorkloadFailed
from perfbisect.hunt.search_problem import SavedLog, SearchProblem, TimedEvent, compare_merge_base, ending, replay
from perfbisect.hunt.searches import Searches
from perfbisect.hunt.sitting import Sitting
from perfbisect.hunt.workers import InlineWorkers, ThreadWorkers
from perfbisect.hunt.workers import Member as HostMember
from perfbisect.lab.build.known_errors import KnownFailure
from perfbisect.store.history import History

NAMES = commits(40)
CULPRITS = (9, 30, 0)  # 0: none


@dataclass
class FailingLab(ComputedLab):
    """A lab that fails at its first measurement, after the builds."""

    failure: Exception = field(default_factory=RuntimeError)

    def measure(self, order: Measure) -> Generator[LabEvent]:
        """Build, then fail."""
        for event in ComputedLab.measure(self, order):
            if isinstance(event, RunFinished):
                raise EndFailed("the bad end fails") from self.failure
            yield event


@dataclass
class ComputedCourse:
    """What the driver needs of a course."""

    log: SavedLog
    policy: Policy = field(default_factory=Policy)

    def __post_init__(self) -> None:
        self.problem = replace(problem(NAMES), policy=self.policy)

    def opening(self) -> Generator[TimedEvent, None, bool]:
        yield self.log.append(started(NAMES))
        return True

    def closing(self, verdict: Verdict) -> Generator[TimedEvent]:
        yield ending(self.problem, self.log, verdict)
        yield self.log.append(Unexplained("counters", "of no use here"))


@dataclass
class Session:
    """One session of a group."""

    group: Driver
    failed: list[tuple[int, PerfBisectError]]

    def events(self) -> Generator[Numbered]:
        with closing(self.group.session()) as happened:
            for number, (at, event) in happened:
                if isinstance(event, HuntEnded):
                    self.group.members[number].verdict = event.verdict
                yield number, (at, event)


def labs_of(built: list[str], unbuildable: frozenset[str] = frozenset()) -> list[ComputedLab]:
    """A lab for each workload; they share what they have built."""
    return [
        ComputedLab(NAMES, speeds(NAMES, culprit or len(NAMES)), unbuildable, built=built, clock=1000.0 + place)
        for place, culprit in enumerate(CULPRITS)
    ]


def session(logs: list[SavedLog], labs: list[ComputedLab], policy: Policy | None = None, hosts: int = 1) -> Session:
    """A session of hunts with these logs."""
    failed: list[tuple[int, PerfBisectError]] = []
    courses = [ComputedCourse(log, policy or Policy()) for log in logs]
    members = [Member(course.problem, log, course) for course, log in zip(courses, logs, strict=True)]
    lab = labs[0] if len(labs) == 1 else LabOfSeveral(dict(enumerate(labs)))

    def workers() -> InlineWorkers | ThreadWorkers:
        if hosts == 1:
            return InlineWorkers("local", lab)
        return ThreadWorkers(*(HostMember(f"host {number}", lab, threading.Event()) for number in range(hosts)))

    return Session(
        Driver(members, Searches(members), workers, lambda number, failure: failed.append((number, failure))), failed
    )


def new_logs(history: History) -> list[SavedLog]:
    return [log_of(history, NAMES) for _ in CULPRITS]


def check(found: Session) -> None:
    """Each hunt has the right verdict."""
    for member, node in zip(found.group.members, CULPRITS, strict=True):
        if node:
            assert isinstance(member.verdict, Found)
            assert member.verdict.step.candidate == node
        else:
            assert isinstance(member.verdict, NotReproduced)


def test_builds_are_in_all_logs_and_runs_in_one(history: History) -> None:
    built: list[str] = []
    logs = new_logs(history)
    now = session(logs, labs_of(built, frozenset(NAMES[18:21])))
    events = [*now.events()]
    check(now)
    assert len(built) == len(set(built))
    made = [
        event.facts.commit
        for log in logs
        for _, event in log.entries
        if isinstance(event, BuildFinished) and not event.facts.reused
    ]
    assert sorted(made) == sorted(built)
    skipped = [{e.facts.commit for _, e in log.entries if isinstance(e, CandidateSkipped)} for log in logs[:2]]
    assert skipped[0] & skipped[1]
    states = [fold((entry.at, entry.event) for entry in history.events(log.hunt)) for log in logs]
    spent = [row.failed_seconds for state in states for row in state.tested.values()]
    assert sum(spent) == len(skipped[0] | skipped[1])  # one second each, in one hunt
    assert history.connection.execute("SELECT sum(seconds) FROM skips").fetchone() == (sum(spent),)
    seconds = {e.facts.seconds for log in logs for _, e in log.entries if isinstance(e, BuildFinished)}
    assert seconds == {5.0}  # also of builds for others: the search knows what builds cost
    runs = [number for number, (_, event) in events if isinstance(event, RunFinished)]
    for number, log in enumerate(logs):
        assert runs.count(number) == sum(isinstance(event, RunFinished) for _, event in log.entries)
        stored = [entry.event for entry in history.events(log.hunt)]
        assert [e for _, e in log.entries] == [
            e for e in stored if isinstance(e, BuildFinished | CandidateSkipped | RunFinished)
        ]


def test_each_hunt_of_a_group_can_be_replayed_alone(history: History) -> None:
    logs = new_logs(history)
    assert [*session(logs, labs_of([], frozenset(NAMES[18:21]))).events()]
    for log in logs:
        entries = [(entry.at, entry.event) for entry in history.events(log.hunt)]
        decided = [event.decision.order for _, event in entries if isinstance(event, Decided)]
        assert [decision.order for _, decision in replay(problem(NAMES), entries, log.began)] == decided


def test_a_replay_knows_which_builds_were_made_for_others() -> None:
    """Made for another workload, a build that is not in the middle is measured; otherwise the middle is built."""
    lab = ComputedLab(NAMES, speeds(NAMES, 30))
    ends = [(lab.clock, event) for event in lab.measure(Measure((Share(39, 6), Share(0, 6)), Purpose.ENDS))]
    decided = (lab.clock, Decided(decide(Graph.line(39), [], Policy())))
    # The last was kept on the host, so that its event does not say for which hunt it was obtained.
    for elsewhere, shared, seconds, measured in (
        (True, False, 600.0, 14), (False, False, 600.0, 19), (True, True, 0.0, 14),
    ):  # fmt: skip
        made = BuildFinished(14, BuildFacts(NAMES[14], "", "", seconds, 0, 0, elsewhere, ""), None)
        [(_, decision)] = replay(problem(NAMES), [*ends, (lab.clock, made), decided], 1000.0, shared=shared)
        assert isinstance(decision.order, Measure)
        assert decision.order.plan[0].candidate == measured


@pytest.mark.parametrize("cut", [1, 11, 40])
def test_a_group_that_is_cut_goes_on_without_building_twice(history: History, cut: int) -> None:
    built: list[str] = []
    logs, labs = new_logs(history), labs_of(built)
    first = session(logs, labs)
    for _, _event in zip(range(cut), first.events(), strict=False):
        pass
    before = [*built]
    again = session([SavedLog(history, log.hunt) for log in logs], labs_of(built))
    assert [*again.events()]
    check(again)
    assert built[: len(before)] == before
    assert len(built) == len(set(built))


def test_a_verdict_that_nothing_follows_ends_its_hunt_at_once(history: History) -> None:
    events = [(number, event) for number, (_, event) in session(new_logs(history), labs_of([])).events()]
    ends = [place for place, (_, event) in enumerate(events) if isinstance(event, HuntEnded)]
    assert [events[place][0] for place in ends] == [2, 0, 1]
    assert any(isinstance(event, RunFinished) for _, event in events[ends[0] :])
    assert ends[1:] == [len(events) - 4, len(events) - 3]
    assert [(number, type(event)) for number, event in events[-2:]] == [(0, Unexplained), (1, Unexplained)], "reasons"


def test_a_budget_is_that_of_all(history: History) -> None:
    logs = new_logs(history)
    now = session(logs, labs_of([]), Policy(max_runs=20))
    runs = sum(isinstance(event, RunFinished) for _, (_, event) in now.events())
    assert 10 <= runs <= 20


@pytest.mark.parametrize("hosts", [1, 2])
def test_a_workload_that_fails_stops_no_other(history: History, hosts: int) -> None:
    built: list[str] = []
    labs = labs_of(built)
    labs[1] = FailingLab(NAMES, labs[1].speed, built=built, failure=RunFailed("it crashes", stage="run", log=""))
    now = session(new_logs(history), labs, hosts=hosts)
    assert [*now.events()]
    assert now.group.append(WorkloadFailed(RunFailed("no", stage="run", log="")), 1) == (), "as another host might say"
    [(number, reported)] = now.failed
    assert number == 1
    assert str(reported) == "the bad end fails"
    assert [type(member.verdict) for member in now.group.members] == [Found, type(None), NotReproduced]


@pytest.mark.parametrize("builds", [0, 8])
def test_a_hunt_that_goes_on_later_knows_what_was_built_meanwhile(history: History, builds: int) -> None:
    """For others, from the same budget; its course is the shorter for it."""
    built: list[str] = []
    unbuildable = frozenset(NAMES[18:21])
    logs, labs = new_logs(history), labs_of(built, unbuildable)
    labs[1] = FailingLab(NAMES, labs[1].speed, built=built, failure=RunFailed("it crashes", stage="run", log=""))
    policy = Policy(max_builds=builds)
    assert [*session(logs, labs, policy).events()]
    before = {*built}
    again = session([SavedLog(history, log.hunt) for log in logs], labs_of(built, unbuildable), policy)
    for number in (0, 2):
        again.group.members[number].course = None
    assert [*again.events()]
    log = again.group.members[1].log
    tried = {event.facts.commit for _, event in log.entries if isinstance(event, BuildFinished | CandidateSkipped)}
    assert before <= tried
    assert all(
        event.facts.reused
        for _, event in log.entries[2:]
        if isinstance(event, BuildFinished) and event.facts.commit in before
    )
    assert not builds or len(tried) <= builds
    assert again.group.members[1].verdict


def test_a_hunt_that_ends_before_its_search_is_not_searched(history: History) -> None:
    """As where the merge base is not shown to be as fast as good."""
    logs, labs = new_logs(history), labs_of([])
    now = session(logs, labs)
    member = now.group.members[0]

    def opening() -> Generator[TimedEvent, None, bool]:
        yield ending(problem(NAMES), logs[0], Inconclusive((), (), UNKNOWN, Reason.MERGE_BASE))
        return False

    cast("ComputedCourse", member.course).opening = opening  # type: ignore[method-assign]
    events = [*now.events()]
    assert not any(isinstance(event, RunFinished) for number, (_, event) in events if number == 0)
    assert [type(member.verdict) for member in now.group.members] == [Inconclusive, Found, NotReproduced]


def test_an_end_that_does_not_build_stops_all(history: History) -> None:
    logs, labs = new_logs(history), labs_of([])
    labs[0] = FailingLab(NAMES, labs[0].speed, failure=BuildFailed("no", stage="compile", log=""))
    with pytest.raises(EndFailed, match="the bad end fails"):
        list(session(logs, labs).events())


@pytest.mark.parametrize(("noise", "slow"), [(0.18, 0.98), (0.18, 0.5), (0.01, 0.98)])
def test_a_hunt_that_will_take_very_many_runs_says_so_once_and_goes_on(
    history: History, noise: float, slow: float
) -> None:
    """A hunt of its own, whose session is that of one; several say it each."""
    lab = ComputedLab(NAMES, speeds(NAMES, 17, slow=slow), noise=noise)
    events = [event for _, (_, event) in session([log_of(history, NAMES)], [lab]).events()]
    warned = [place for place, event in enumerate(events) if isinstance(event, Warned)]
    assert len(warned) == (noise / (1 - slow) > 5)
    for place in warned:
        warning = events[place]
        assert isinstance(warning, Warned)
        assert re.fullmatch(
            r"runs are taken to vary by \d+ %, so a change of [\d.]+ % takes some [\d,]+00 runs to find", warning.text
        )
        assert "--metric instructions/o" in warning.advice
        assert any(isinstance(event, RunFinished) for event in events[place:])


@pytest.mark.parametrize("cut", [0, 90])
def test_several_workloads_share_several_hosts(history: History, cut: int) -> None:
    """Each host carries out orders of any workload. One that is cut off goes on with every reading that it had."""
    logs, built = new_logs(history), list[str]()
    if cut:
        with closing(session(logs, labs_of(built), hosts=2).events()) as events:
            for _, _event in zip(range(cut), events, strict=False):
                pass
        logs = [SavedLog(history, log.hunt) for log in logs]
    before = [[event for _, event in log.entries if isinstance(event, RunFinished)] for log in logs]
    now = session(logs, labs_of(built), hosts=2)
    assert [*now.events()]
    check(now)
    for log, known in zip(logs, before, strict=True):
        runs = [event for _, event in log.entries if isinstance(event, RunFinished)]
        assert runs[: len(known)] == known
        assert all(event.facts.commit in NAMES for event in runs)
    assert {event.host for log in logs for _, event in log.entries if isinstance(event, RunFinished)} == {
        "host 0", "host 1",
    }  # fmt: skip
    assert not cut or any(before)


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


def threads(*labs: Scripted) -> ThreadWorkers:
    return ThreadWorkers(
        *(HostMember(name, lab, lab.waits or threading.Event()) for name, lab in zip("abcd", labs, strict=False))
    )


def asked(*classes: str, hosts: str = "ab") -> SearchProblem:
    return replace(problem(LINE), hosts=tuple(hosts), prior=PriorKnowledge(host_classes=classes))


def told_by(
    history: History, rules: SearchProblem, crew: ThreadWorkers, log: SavedLog | None = None
) -> Iterator[Event]:
    for _, event in hunt(rules, started(LINE), log or log_of(history, LINE), lambda _: crew):
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
    log, busy = log_of(history, LINE), set[str]()
    for event in told_by(history, asked(), threads(lab(), lab()), log):
        if isinstance(event, BuildFinished | RunFinished):
            assert sample.logged(history, log.hunt)[-1][1] == event
        if isinstance(event, RunStarted):
            assert event.host not in busy
            busy.add(event.host)
        if isinstance(event, RunFinished):
            busy.remove(event.host)


def test_a_replay_takes_the_same_course(history: History) -> None:
    log = log_of(history, LINE)
    rules = asked(hosts="abc")
    told = list(told_by(history, rules, threads(lab(), lab(), lab()), log))
    recorded = [event.decision.order for event in told if isinstance(event, Decided)]
    entries = [(entry.at, entry.event) for entry in history.events(log.hunt)]
    again = [decision.order for _, decision in replay(rules, entries, log.began)]
    assert again == recorded


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
        other = replace(lab(), speed={name: 500 * speed**3 for name, speed in speeds(LINE, 17).items()})
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
        steady = replace(lab(), speed=dict.fromkeys(LINE, 1.0))
        told = list(told_by(history, asked("x86", "arm"), threads(steady, lab())))
        step = culprit(told)
        assert step.candidate == 17
        assert {order.purpose for order in steady.orders} == {"ends"}
        assert step.effects[0].ends
        assert step.effects[0].ratio.low < 1 < step.effects[0].ratio.high

    def test_none_that_shows_it(self, history: History) -> None:
        steady = [replace(lab(), speed=dict.fromkeys(LINE, 1.0), orders=[]) for _ in "ab"]
        found = verdict(list(told_by(history, asked("x86", "arm"), threads(*steady))))
        assert isinstance(found, NotReproduced)
        assert [effect.host_class for effect in found.effects] == ["x86", "arm"]

    def test_the_only_one_that_shows_it_is_gone(self, history: History) -> None:
        steady = replace(lab(), speed=dict.fromkeys(LINE, 1.0), orders=[])
        with pytest.raises(EnvironmentFailure, match="is lost"):
            list(told_by(history, asked("x86", "arm"), threads(steady, lab(fails_at=3))))


def test_the_merge_base_is_checked_on_all(history: History) -> None:
    good = "f" * 40
    truth = speeds(LINE, 17) | {good: 1.0}

    def crew(nodes: tuple[str, ...]) -> ThreadWorkers:
        return threads(Scripted(nodes, truth), Scripted(nodes, truth))

    told = [event for _, event in compare_merge_base(asked(), started(LINE), good, log_of(history, LINE), crew)]
    assert {event.host for event in told if isinstance(event, RunFinished)} == {"a", "b"}


RECIPE, BUILT, OWN = None, Quick("bench", rate="x"), Quick("bench", build=("make",), rate="x")
RAN = RunFailed("it ended with status 1", stage="run", log="")
NOT_BUILT = BuildFailed("it does not compile", stage="compile", log="")
HEADER = KnownFailure("it does not compile", Known("a header", Flags("-include x.h")), stage="compile", log="", hint="")


@pytest.mark.parametrize(
    ("quick", "failure", "cause", "said"),
    [
        (OWN, ConnectionLost("lost"), None, r"What was measured is kept; go on with: bisect resume 1"),
        (OWN, EndFailed("bad fails"), RAN, r"Change --run, or what it needs, and begin anew: builds .* used again\."),
        (OWN, EndFailed("bad fails"), NOT_BUILT, r"Change --build and begin anew; or add .*: bisect resume 1"),
        (BUILT, EndFailed("bad fails"), NOT_BUILT, r"Mend the recipe, or add .*: bisect resume 1"),
        (RECIPE, EndFailed("bad fails"), RAN, r"Mend the recipe, or add .*: bisect resume 1"),
        (OWN, EndFailed("bad fails"), HEADER, r"Begin a new hunt: bisect run .* --cflags '-include x.h'.*"),
        (OWN, WrongPattern("finds nothing"), RAN, ""),
        (RECIPE, NothingToCompare("no value"), None, ""),
        (RECIPE, UsageError("The merge base does not have the speed of good."), None, ""),
    ],
)
def test_going_on_is_advised_where_it_can_help(
    quick: Quick | None, failure: PerfBisectError, cause: Exception | None, said: str
) -> None:
    setup: Any = SimpleNamespace(settings=replace(sample.SETTINGS, quick=quick))
    unused: Any = None
    failure.__cause__ = cause
    sitting = Sitting(SimpleNamespace(path=None), "1", (), (), setup, unused, unused, False)  # type: ignore[arg-type]
    assert re.fullmatch(said, sitting.what_next(failure))
