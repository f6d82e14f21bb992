"""Studies for the reason of a change: which builds, in which order, for how long, and what happens if a study fails."""

from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from pathlib import Path

import pytest
from msgspec.structs import replace as struct_replace

from computed import ComputedLab, commits, culprit, hunt, kept, log_of, measured_by, one_host, problem, speeds, started
from counted import profile
from perfbisect.core.domain.events import (
    BuildFinished,
    BuildProgress,
    BuildStarted,
    CandidateSkipped,
    ChangedFunctions,
    Counted,
    Event,
    LabEvent,
    Planned,
    Profiled,
    RunFinished,
    SessionEnded,
    Unexplained,
    Warned,
)
from perfbisect.core.domain.facts import BuildFacts, ChangeFacts, PlanFacts, ProfileFacts, RunFacts, SkipFacts
from perfbisect.core.domain.orders import Found, Inconclusive, Interval, Measure, Purpose, Reason, Step, Verdict
from perfbisect.core.domain.session_state import SessionState, fold
from perfbisect.core.explain.evidence import EXACT_GROUP
from perfbisect.errors import EnvironmentFailure
from perfbisect.hunt import explanation
from perfbisect.hunt.explanation import (
    LEAST_SECONDS,
    PARTS,
    StudyPart,
    counted_operations,
    explained_part,
    is_count_by_function,
    is_often_off_cpu,
    measure_reason,
    store_changed_functions,
    visit_overhead,
)
from perfbisect.hunt.lifecycle import compare_merge_base
from perfbisect.hunt.search_problem import SavedLog, TimedEvent
from perfbisect.lab.measure.counting import SLOWER
from perfbisect.process import CLOCK
from perfbisect.recipes.builder_reader import load_builder
from perfbisect.recipes.workload import Workload
from perfbisect.store.history import History

NAMES = commits(12)
CULPRIT = 5
PARENT = CULPRIT - 1
WORKLOAD = Workload(name="w", summary="", group="point", script="w.lua")
BUILDER = load_builder("sqlite")
GROUPS = ("core", "caches")
EXACT, SAMPLED = (part for part in PARTS if part.name == "instructions")


@dataclass(frozen=True)
class NoStudy:
    """A placeholder for a study, with the seconds that a turn may take and the state of the session."""

    seconds: float
    state: SessionState


PLANS = StudyPart("plans", NoStudy, rounds=1, share=0.1, has_certain_round=lambda _: True, of_all_builds=True)  # type: ignore[arg-type]
COUNTERS = StudyPart("counters", NoStudy, rounds=3, share=0.5)  # type: ignore[arg-type]
COUNTS = replace(COUNTERS, name="instructions", rounds=1)


@dataclass
class StudyLab:
    """A lab whose studies take ``seconds`` each; ``studied`` has the studied builds."""

    part: StudyPart = COUNTERS
    seconds: float = 0.0  # of this process's clock, for one turn
    fails: frozenset[int] = frozenset()
    broken: bool = False
    groups: tuple[str, ...] = GROUPS
    studied: list[int] = field(default_factory=list)

    def measure(self, order: Measure) -> Generator[LabEvent]:
        """Study one build once, as a real lab does."""
        assert order.purpose is Purpose.EXPLAIN
        (share,) = order.plan
        node, commit = share.candidate, NAMES[share.candidate]
        self.studied.append(node)
        if self.broken:
            raise EnvironmentFailure("The host is away.", "Bring it back.")
        CLOCK.advance_to(CLOCK.now() + self.seconds)
        if node in self.fails:
            yield CandidateSkipped(node, SkipFacts(commit, "run", "it ended", "log", 1.0))
        elif self.part.name == "plans":
            yield Planned(node, PlanFacts(commit, commit, "local", "select ?", "SCAN t"))
        else:
            for group in self.groups:
                facts = replace(run_facts(CLOCK.now(), 1.0, 100), commit=commit, build_key=commit, events=77)
                yield Counted(node, replace(facts, counted="valgrind" * (group == EXACT_GROUP)), group)


def run_facts(at: float, seconds: float, operations: int) -> RunFacts:
    return RunFacts("a", "a", f"{at}", "local", at, seconds, operations, {}, (), {}, {})


@pytest.fixture
def log(history: History) -> SavedLog:
    return log_of(history, NAMES, CLOCK.now())


@dataclass
class Explained:
    """Runs a hunt for commit ``place``, whose reason is studied by a lab for each part; ``again`` resumes the hunt."""

    log: SavedLog
    patch: pytest.MonkeyPatch

    def __call__(
        self, *labs: StudyLab, slow: float = 0.8, place: int = CULPRIT, again: bool = False, worked: float = 0.0
    ) -> Generator[Event]:
        """``worked`` are the seconds that the hunt takes."""
        CLOCK.advance_to(CLOCK.now() + worked)
        self.patch.setattr(explanation, "PARTS", tuple(lab.part for lab in labs))
        log, left = SavedLog(self.log.history, self.log.hunt) if again else self.log, iter(labs)

        def afterwards(reached: Verdict) -> Iterator[TimedEvent]:
            return measure_reason(reached, log, lambda _: one_host(next(left).measure), BUILDER, WORKLOAD)

        lab = ComputedLab(NAMES, speeds(NAMES, place, slow))
        for _, event in hunt(problem(NAMES), started(NAMES), log, measured_by(lab), afterwards=afterwards):
            yield event


@pytest.fixture
def explained(monkeypatch: pytest.MonkeyPatch, log: SavedLog) -> Explained:
    monkeypatch.setattr(CLOCK, "_begin", CLOCK._begin)  # what a test does to the clock ends with it
    return Explained(log, monkeypatch)


def measured(events: Iterable[Event]) -> set[int]:
    return {event.candidate for event in events if isinstance(event, RunFinished)}


def reasons(events: Iterable[Event]) -> list[tuple[str, str]]:
    """The unexplained parts, each with the reason why it is unexplained."""
    return [(event.part, event.reason) for event in events if isinstance(event, Unexplained)]


def test_counters_alternate_culprit_and_parent_and_plans_cover_all_builds(log: SavedLog, explained: Explained) -> None:
    plans, counters = StudyLab(PLANS), StudyLab()
    events = list(explained(plans, counters))
    assert culprit(events).candidate == CULPRIT
    others = measured(events) - {CULPRIT, PARENT}
    assert len(others) > 1
    assert plans.studied == [CULPRIT, PARENT, *sorted(others)]
    assert counters.studied == [CULPRIT, PARENT, PARENT, CULPRIT, CULPRIT, PARENT]
    assert isinstance(events[-1], SessionEnded)
    stored = Counter(type(event) for _, event in kept(log))
    assert stored[Planned] == 2 + len(others)
    assert stored[Counted] == 6 * len(GROUPS)


@pytest.mark.parametrize("place", [CULPRIT, 1])
def test_build_of_the_merge_base_comparison_is_not_studied(log: SavedLog, explained: Explained, place: int) -> None:
    """Before the search, good was compared with the merge base, as candidate 1 of a range with these two commits."""
    good = "f" * 40
    alone = measured_by(ComputedLab((NAMES[0], good), {NAMES[0]: 1.0, good: 1.0}))
    list(compare_merge_base(problem(NAMES), started(NAMES), good, log, alone))
    timed: list[RunFacts] = []
    plans = StudyLab(replace(PLANS, least_seconds=lambda _, runs: timed.extend(runs) or 0.0))  # type: ignore[func-returns-value]
    events = list(explained(plans, place=place))
    assert culprit(events).candidate == place
    assert plans.studied == [place, place - 1, *sorted(measured(events) - {place, place - 1})]
    assert {run.commit for run in timed} == {*NAMES[place - 1 : place + 1]}


def test_no_build_is_studied_without_a_culprit(explained: Explained) -> None:
    plans = StudyLab(PLANS)
    assert isinstance([*explained(plans, slow=1.0)][-1], SessionEnded)
    assert plans.studied == []


@pytest.mark.parametrize(
    ("seconds", "turns"), [(0.1, 6), (LEAST_SECONDS / 6, 4), (LEAST_SECONDS / 3, 2), (LEAST_SECONDS, 2)]
)
def test_round_that_would_exceed_the_time_is_not_begun(explained: Explained, seconds: float, turns: int) -> None:
    """The hunt is short, so the studies have the minimum time. The length of a turn is known after the first turn."""
    counters = StudyLab(seconds=seconds)
    list(explained(counters))
    assert len(counters.studied) == turns


def test_hunt_with_long_visits_has_plans_but_no_counters(explained: Explained) -> None:
    plans, counters = StudyLab(PLANS, seconds=LEAST_SECONDS), StudyLab()
    explained.patch.setattr(explanation, "visit_overhead", lambda _: LEAST_SECONDS)
    list(explained(plans, counters))
    assert plans.studied == [CULPRIT, PARENT], "the plans of other builds are left out"
    assert counters.studied == []


def test_time_for_the_plans_of_other_builds_is_bounded(explained: Explained) -> None:
    plans, counters = StudyLab(PLANS, seconds=LEAST_SECONDS / 30), StudyLab()
    events = list(explained(plans, counters))
    assert 2 < len(plans.studied) < len(measured(events))
    assert len(counters.studied) == 6, "the other part has its time"


def test_turn_of_a_study_has_its_share_of_the_time(explained: Explained) -> None:
    """After a hunt of one hour, studies have a tenth of an hour: six turns of the counters and the overhead of visits.

    A part that is not useful leaves its time to the counters. Exact counts have a fifth of the hour in addition.
    """
    explained.patch.setattr(explanation, "visit_overhead", lambda _: 5.0)
    never = StudyLab(replace(COUNTERS, name="waits", share=5.0, is_useful=lambda *_: False))
    asked: list[float] = []
    lab = StudyLab(
        replace(COUNTERS, make_study=lambda seconds, _: asked.append(seconds) or NoStudy(seconds, SessionState()))
    )  # type: ignore[func-returns-value,arg-type,return-value]
    alone = replace(lab, part=replace(lab.part, name="instructions", share=0.0, hunt_share=0.2))
    list(explained(alone, lab, never, worked=3600.0))
    assert asked == [pytest.approx(seconds / 6 - 5, abs=0.1) for seconds in (720, 360)]
    assert never.studied == []


def test_visit_overhead_is_the_time_between_runs() -> None:
    runs = [(at, RunFinished(0, run_facts(at, 10, 1))) for at in (13.0, 26.0, 40.0, 50.0)]
    assert visit_overhead([(0.0, Warned("", "")), *runs]) == 4
    assert visit_overhead([]) == 0


@pytest.mark.parametrize("cut", range(1, 7))
def test_resumed_session_makes_only_the_missing_turns(explained: Explained, cut: int) -> None:
    first, second = StudyLab(), StudyLab()
    counts = (event for event in explained(first) if isinstance(event, Counted))
    assert len([*islice(counts, cut)]) == cut
    counts.close()
    list(explained(second, again=True))
    assert Counter(first.studied + second.studied) == {CULPRIT: 3, PARENT: 3}


def test_exact_counts_and_groups_of_counters_are_separate_parts(explained: Explained) -> None:
    """The two parts have events of the same type, but a turn of one part does not count as a turn of the other part."""
    for expected in (2, 6), (0, 0):
        labs = StudyLab(COUNTS, groups=(EXACT_GROUP,)), StudyLab()
        list(explained(*labs, again=True))
        assert tuple(len(lab.studied) for lab in labs) == expected


TOO_LONG = (
    "it would take 1 min 32 s or more, and 1 min 30 s are left of the time for the reason (`bisect why --max-time`)"
)
SHORTER = "; with {events} in place of a number in the command, a short run would be enough"


@pytest.mark.parametrize(
    ("least", "has_length", "said"),
    [
        (LEAST_SECONDS / 2, True, ""),
        (LEAST_SECONDS / 2 + 1, True, TOO_LONG),
        (LEAST_SECONDS / 2 + 1, False, TOO_LONG + SHORTER),
    ],
)
def test_too_long_exact_counts_are_left_out(explained: Explained, least: float, has_length: bool, said: str) -> None:
    """Exact counts are left out even if their first round is certain: an operation of a slow build may take minutes."""
    explained.patch.setattr(explanation, "can_set_length", lambda _: has_length)
    part = replace(COUNTS, has_certain_round=lambda _: True, least_seconds=lambda _, runs: least if runs else 0.0)
    lab = StudyLab(part, groups=(EXACT_GROUP,))
    assert reasons(explained(lab)) == ([("instructions", said)] if said else [])
    assert len(lab.studied) == (0 if said else 2)


def timed(operations: int, clock: float | None) -> RunFacts:
    """A run of build 0 in two seconds; ``clock`` is its CPU time in milliseconds."""
    return replace(run_facts(0.0, 2.0, operations), counters={"task-clock": clock}, system={"cs": None})


def state_of(*runs: RunFacts, studied: Sequence[Profiled] = ()) -> SessionState:
    """The state of a hunt with these runs of build 0, and these profiles for the reason."""
    return fold((float(at), event) for at, event in enumerate((*(RunFinished(0, run) for run in runs), *studied)))


def test_time_of_an_exact_count_depends_on_the_cpu_time() -> None:
    """Valgrind slows computing, and 4 operations are counted. It does not slow waiting, but counts more operations."""
    least = partial(EXACT.least_seconds, WORKLOAD)
    assert least([timed(10, 2000.0), timed(1000, 2000.0)]) == pytest.approx(4 * SLOWER * 0.2)
    assert least([timed(10, None)]) == pytest.approx(4 * SLOWER * 0.2)
    assert least([timed(0, None)]) == least([]) == 0
    assert least([timed(100_000, 2000.0)]) < 1
    assert least([timed(1000, 20.0)]) > 15, "2 ms an operation, of which 20 µs are computed"
    whole = struct_replace(WORKLOAD, command=["bench"])
    assert EXACT.least_seconds(whole, [timed(1, 1500.0)]) == 2 + SLOWER * 1.5, "a command without a length, once"
    part = struct_replace(whole, command=["bench", "{events}"])
    assert EXACT.least_seconds(part, [timed(10, None)]) == least([timed(10, None)])


@pytest.mark.parametrize(
    ("clock", "threads", "waits"), [(1900.0, 1, False), (1300.0, 1, True), (1900.0, 2, True), (None, 1, False)]
)
def test_waits_are_studied_if_threads_wait(clock: float | None, threads: int, waits: bool) -> None:
    workload = struct_replace(WORKLOAD, threads=threads)
    [part] = (part for part in PARTS if part.name == "waits")
    seen = [timed(100, 1990.0 * threads), timed(100, clock)]
    assert part.is_useful(BUILDER, workload, state_of(*seen)) is is_often_off_cpu(workload, seen) is waits
    assert part.rounds > 1, "a single round does not say how much waits vary by themselves"
    assert not is_often_off_cpu(struct_replace(workload, command=["x"]), seen)


def test_complete_part_ends_after_half_of_its_rounds(explained: Explained) -> None:
    seen: list[int] = []
    counters = StudyLab(replace(COUNTERS, is_complete=lambda found: bool(seen.append(len(found.counters)) or True)))  # type: ignore[func-returns-value]
    list(explained(counters))
    assert len(counters.studied) == 4
    assert seen[0] > 0


def test_every_event_for_the_reason_belongs_to_one_part() -> None:
    profile = ProfileFacts("a", "a", "h", 10, 1.0, "us", {}, 1, 0, "cpu-clock", "fp")
    events = [
        Planned(0, PlanFacts("a", "a", "h", "s", "p")),
        Profiled(0, profile),
        Profiled(0, replace(profile, off_cpu=True)),
        Counted(0, timed(1, 1.0), EXACT_GROUP),
        Profiled(0, replace(profile, unit="instructions", samples=0)),
        Counted(0, timed(1, 1.0), "core"),
    ]
    assert [explained_part(event) for event in events] == [part.name for part in PARTS]
    assert [is_count_by_function(event) for event in events] == [False, False, False, False, True, False]
    assert explained_part(RunFinished(0, timed(1, 1.0))) == ""


def test_instructions_are_counted_by_function_or_sampled() -> None:
    """Instructions are sampled if they cannot be counted exactly and the processor counts instructions."""
    server, run = load_builder("mysql"), timed(10, 2000.0)
    by_processor = replace(run, counters={"instructions": 5.0})
    exact = Profiled(0, ProfileFacts("a", "a", "h", 10, 1.0, "instructions", {}, 0))
    assert EXACT.is_useful(BUILDER, WORKLOAD, state_of(by_processor))
    assert not EXACT.is_useful(server, WORKLOAD, state_of())
    assert not EXACT.is_useful(BUILDER, struct_replace(WORKLOAD, threads=2), state_of())
    assert SAMPLED.is_useful(server, WORKLOAD, state_of(by_processor))
    assert not SAMPLED.is_useful(server, WORKLOAD, state_of(run))
    assert not SAMPLED.is_useful(BUILDER, WORKLOAD, state_of(by_processor, studied=[exact]))


@pytest.mark.parametrize(("group", "known"), [(EXACT_GROUP, 77), (GROUPS[0], 0)])
def test_resumed_exact_counts_keep_their_number_of_operations(explained: Explained, group: str, known: int) -> None:
    """Other counters have no fixed number of operations."""
    asked: list[int] = []
    part = replace(COUNTS, name="instructions" if group == EXACT_GROUP else "counters")
    part = replace(
        part, make_study=lambda seconds, state: asked.append(counted_operations(state)) or NoStudy(seconds, state)
    )  # type: ignore[func-returns-value,arg-type,return-value]
    for event in explained(StudyLab(part, groups=(group,))):
        if isinstance(event, Counted):
            break
    second = StudyLab(part, groups=(group,))
    list(explained(second, again=True))
    assert second.studied == [PARENT]
    assert asked == [0, known]


@pytest.mark.parametrize("fails", [CULPRIT, PARENT])
def test_failed_build_ends_the_part_and_not_the_hunt(explained: Explained, fails: int) -> None:
    counters, again = StudyLab(fails=frozenset({fails})), StudyLab()
    events = list(explained(StudyLab(PLANS), counters))
    assert reasons(events) == [("counters", "run: it ended")]
    assert isinstance(events[-1], SessionEnded)
    assert counters.studied in ([CULPRIT], [CULPRIT, PARENT])
    assert not any(isinstance(event, CandidateSkipped) for event in events)
    list(explained(StudyLab(PLANS), again, again=True))
    done = Counter(node for node in counters.studied if node != fails)
    assert Counter(again.studied) == Counter({CULPRIT: 3, PARENT: 3}) - done, "another session tries again"


def test_failed_plan_of_another_build_is_skipped(log: SavedLog, explained: Explained) -> None:
    plans = StudyLab(PLANS, fails=frozenset({0}))
    assert reasons(explained(plans)) == []
    assert plans.studied[:3] == [CULPRIT, PARENT, 0]
    assert len(plans.studied) > 3
    assert not any(isinstance(event, CandidateSkipped) for _, event in kept(log))


def test_unreachable_host_does_not_change_the_verdict(explained: Explained) -> None:
    counters = StudyLab()
    events = list(explained(StudyLab(PLANS, broken=True), counters))
    assert culprit(events).candidate == CULPRIT
    assert [part for part, _ in reasons(events)] == ["plans"]
    assert len(counters.studied) == 6


def test_reused_builds_are_not_announced_for_each_part() -> None:
    facts = BuildFacts("a" * 40, "key", "binary", 5.0, 0, 0, reused=True, log="")
    turn = [BuildStarted(1, "a"), BuildFinished(1, facts, None), Warned("", "")]
    made = [BuildStarted(1, "a"), BuildProgress(1, 1, 2, "build"), BuildFinished(1, replace(facts, reused=False), None)]
    events: list[TimedEvent] = [(float(at), event) for at, event in enumerate([*turn, *made, *turn])]
    shown = [event for _, event in explanation.without_reuse_events(events)]
    assert shown == [Warned("", ""), *made, Warned("", "")]


HALF = Interval(0.4, 0.5, 0.6)


class Clone:
    """Replaces the reading of a repository: records its arguments in ``asked``, and raises ``failure`` if given."""

    def __init__(self, failure: Exception | None = None, changed: str = "search") -> None:
        self.asked: list[frozenset[str]] = []
        self.failure = failure
        self.changed = changed

    def __call__(self, parent: str, culprit: str, seen: frozenset[str]) -> ChangeFacts:
        assert (parent, culprit) == (NAMES[2], NAMES[3])
        self.asked.append(seen)
        if self.failure:
            raise self.failure
        return ChangeFacts(culprit, parent, (self.changed,), {self.changed: ("scan",)}, 1)


def read(log: SavedLog, clone: Clone, verdict: Verdict | None = None) -> list[Event]:
    """The events of `store_changed_functions`, which calls ``clone`` instead of reading a repository."""
    found = Found(Step(3, 0.99, HALF, (2,)))
    if not log.state.commits:
        log.append(started(NAMES))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(explanation, "open_repository", lambda folder: folder)
        patch.setattr(explanation, "changed_functions", lambda _, *change: clone(*change))
        return [event for _, event in store_changed_functions(verdict or found, log, Path("clone"))]


def test_changed_functions_are_stored_once_and_read_with_the_profiles(log: SavedLog) -> None:
    log.append(Profiled(3, profile(NAMES[3], {("main", "scan.cold"): 5})))
    clone = Clone()
    [event] = read(log, clone)
    assert clone.asked == [frozenset({"main", "scan"})]
    assert isinstance(event, ChangedFunctions)
    assert event.candidate == 3
    assert kept(log)[-1][1] == event, "stored as it was"
    assert read(log, clone) == [], "a session that resumes reads the same"
    log.append(Profiled(2, profile(NAMES[2], {("main", "search"): 5})))
    assert read(log, clone) == []
    assert clone.asked[-1] == frozenset({"main", "scan", "search"}), "a function may be inlined in one build"


def test_changed_functions_are_stored_again_if_read_differently(log: SavedLog) -> None:
    older, newer = Clone(), Clone(changed="Table::search")
    assert len(read(log, older)) == len(read(log, newer)) == 1
    assert read(log, newer) == []
    last = kept(log)[-1][1]
    assert isinstance(last, ChangedFunctions)
    assert last.facts.functions == ("Table::search",)
    assert read(log, Clone(EnvironmentFailure("git failed.", "Install it."))) == [], "what was read is still known"


def test_unreadable_repository_leaves_functions_unexplained(log: SavedLog) -> None:
    gone = Clone(EnvironmentFailure("git failed.", "Install it."))
    assert reasons(read(log, gone)) == [("functions", "git failed.")]


def test_repository_is_not_read_without_a_culprit(log: SavedLog) -> None:
    clone = Clone()
    assert read(log, clone, Inconclusive((1,), (0.5,), HALF, Reason.TOO_NOISY)) == clone.asked == []
