"""Whole hunts with a computed lab: saved events, orders, resumption, replays, merge bases and stale builds."""

import math
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

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
    measured_by,
    one_host,
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
    LabEvent,
    Remedied,
    RunFinished,
    SessionEnded,
    SessionStarted,
)
from perfbisect.core.domain.facts import LEFT_OUT, BuildFacts, SkipFacts
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
from perfbisect.core.domain.session_state import fold
from perfbisect.core.domain.settings import Flags, Policy
from perfbisect.errors import EnvironmentFailure
from perfbisect.hunt.lifecycle import compare_merge_base
from perfbisect.hunt.search_problem import SavedLog, recompute_decisions, run_length_warning
from perfbisect.hunt.workers import ThreadWorkers
from perfbisect.lab import GeneratorWithResult
from perfbisect.report.hunt_report import read_hunt_report
from perfbisect.store.history import History

NAMES = commits(30)
CULPRIT = 11


@pytest.fixture
def log(history: History) -> SavedLog:
    return log_of(history, NAMES)


@pytest.fixture
def lab() -> ComputedLab:
    return ComputedLab(NAMES, speeds(NAMES, CULPRIT))


def hunted(
    log: SavedLog, lab: ComputedLab, failed: Sequence[SkipFacts] = (), left_out: Sequence[SkipFacts] = (),
    metric: str = "qps", cut: int = 500,
) -> list[Event]:  # fmt: skip
    """The events of a hunt through the commits of a lab; a hunt that does not end is cut."""
    names = lab.commits
    events = hunt(problem(names, metric), started(names), log, measured_by(lab, metric), failed, left_out)
    return [event for _, event in islice(events, cut)]


def unbuilt(*nodes: int) -> list[SkipFacts]:
    return [SkipFacts(NAMES[node], "compile", "error: no", "log", 1.0) for node in nodes]


def left_out(*nodes: int) -> list[SkipFacts]:
    return [SkipFacts(NAMES[node], LEFT_OUT, "by --skip x", "", 0.0) for node in nodes]


@pytest.mark.parametrize("cut", [2, 4, 11, 26])
def test_resumed_hunt_finds_the_culprit_without_repeated_builds(log: SavedLog, lab: ComputedLab, cut: int) -> None:
    """The hunt stops after an event, reads its log and continues. No measurement is lost."""
    before = hunted(log, lab, cut=cut)
    again = SavedLog(log.history, log.hunt)
    assert events_of(again, Event) == [event for event in before if isinstance(event, BuildFinished | RunFinished)]
    assert culprit(hunted(again, lab)).candidate == CULPRIT
    assert len(lab.built) == len(set(lab.built))


def test_failed_builds_of_earlier_hunts_are_not_repeated_except_ends(log: SavedLog, lab: ComputedLab) -> None:
    events = hunted(log, lab, unbuilt(0, 14, 15, 29))
    assert {event.candidate for event in events if isinstance(event, CandidateSkipped)} == {14, 15}
    assert not {NAMES[14], NAMES[15]} & set(lab.built)
    assert (culprit(events).candidate, culprit(events).parents) == (CULPRIT, (10,))
    kinds = [type(event) for event in events if not isinstance(event, CandidateSkipped)]
    assert kinds[:2] + kinds[-2:] == [SessionStarted, Decided, Decided, SessionEnded]


def test_commits_of_skip_option_are_not_built_and_no_evidence(log: SavedLog, lab: ComputedLab) -> None:
    """The culprit is between commits of `--skip`. Such a skip does not make failures of its neighbours more likely."""
    left = left_out(9, 13, 14)
    events = hunted(log, lab, unbuilt(13), left)
    assert [event.facts for event in events if isinstance(event, CandidateSkipped)] == left
    assert not {NAMES[9], NAMES[13], NAMES[14]} & set(lab.built)
    assert culprit(events).candidate == CULPRIT
    again = SavedLog(log.history, log.hunt)
    assert [event.facts for event in events_of(again, CandidateSkipped)] == left
    more = hunted(again, lab, (), left)
    assert not [event for event in more if isinstance(event, CandidateSkipped)], "a resumed hunt has them in its log"


def test_culprit_of_skip_option_makes_the_verdict_inconclusive(log: SavedLog, lab: ComputedLab) -> None:
    ended = verdict(hunted(log, lab, left_out=left_out(10, 11, 12)))
    assert isinstance(ended, Inconclusive)
    assert ended.reason is Reason.LEFT_OUT
    assert set(ended.candidates) == {10, 11, 12, 13}
    assert set(lab.built) < {*NAMES[:10], *NAMES[13:]}


class Instant(ComputedLab):
    """A lab whose runs are so short that their QPS is infinite."""

    def measure(self, order: Measure) -> Generator[LabEvent]:
        for event in super().measure(order):
            if isinstance(event, RunFinished):
                event = replace(event, facts=replace(event.facts, seconds=5e-324))
            yield event


@pytest.mark.parametrize(
    ("lab", "slow", "metric", "said"),
    [
        (Instant, 0.8, "qps", "no value of qps, or a value that is 0 or infinite"),
        (ComputedLab, 0.8, "instructions/o", "instructions/o"),
        (ComputedLab, 0.0, "qps", rf"{NAMES[4][:10]} have no value of qps"),
    ],
    ids=["infinite", "not recorded", "only one end has it"],
)
def test_runs_without_metric_end(history: History, lab: type[ComputedLab], slow: float, metric: str, said: str) -> None:
    """Otherwise, the search would repeat the same order forever."""
    names = NAMES[:5]
    with pytest.raises(EnvironmentFailure, match=said):
        hunted(log_of(history, names), lab(names, speeds(names, 3, slow=slow)), metric=metric)


class TestMergeBase:
    """Good is not an ancestor of bad: the merge base is compared with good, for a change in either direction."""

    good = "f" * 40

    def check(self, history: History, speed_of_good: float, max_runs: int = 0) -> tuple[list[Event], Verdict]:
        names = NAMES[:6]
        truth = speeds(names, 3) | {self.good: speed_of_good}
        asked = replace(problem(names), policy=Policy(max_runs=max_runs))
        begun = replace(started(names), branch_points=2)

        def crew(nodes: tuple[str, ...]) -> ThreadWorkers:
            return one_host(ComputedLab(nodes, truth).measure)

        events = GeneratorWithResult(compare_merge_base(asked, begun, self.good, log_of(history, names), crew))
        return [event for _, event in events], events.result

    def test_merge_base_is_as_fast_as_good(self, history: History) -> None:
        events, verdict = self.check(history, 1.0)
        measured = {event.facts.commit for event in events if isinstance(event, RunFinished)}
        assert measured == {self.good, NAMES[0]}
        assert isinstance(verdict, NotReproduced)
        assert [event.possible_culprits for event in events if isinstance(event, SessionStarted)] == [1]

    @pytest.mark.parametrize("speed", [0.8, 1.25])
    def test_merge_base_is_not_as_fast_as_good(self, history: History, speed: float) -> None:
        _, verdict = self.check(history, speed)
        assert isinstance(verdict, Found)
        assert verdict.step.ratio.low < speed < verdict.step.ratio.high

    def test_spent_budget_makes_the_comparison_inconclusive(self, history: History) -> None:
        events, verdict = self.check(history, 1.0, max_runs=8)
        assert isinstance(verdict, Inconclusive)
        assert len([event for event in events if isinstance(event, RunFinished)]) == 8


def test_replay_repeats_the_hunt_or_ends_earlier_with_less_budget(log: SavedLog) -> None:
    rules = problem(NAMES)
    hunted(log, ComputedLab(NAMES, speeds(NAMES, 21, slow=0.97)))
    check_replay(rules, log)
    runs = len(events_of(log, RunFinished))
    poorer = replace(rules, policy=replace(rules.policy, max_runs=runs // 2))
    *_, (fewer, decision) = recompute_decisions(poorer, kept(log), log.began)
    assert fewer < runs
    assert isinstance(decision.order, Inconclusive)


def test_added_options_exclude_runs_until_a_build_has_the_same_binary(history: History) -> None:
    """In the log of the search, in the log that is read again, in views and in reports."""
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
    assert set(log.state.excluded_runs) == {sample.CANDIDATES[0], sample.CANDIDATES[9]}
    kept += [log.append(event) for event in said[7:]]
    runs = [event.facts.started for _, event in log.entries if isinstance(event, RunFinished)]
    assert runs == [10.0, 30.0], "the run of the changed binary is excluded"
    assert not log.state.excluded_runs
    assert SavedLog(history, log.hunt).entries == log.entries
    state = fold([(0.0, sample.started()), *kept])
    assert state.log == log.entries
    rows = [state.facts_of(sample.CANDIDATES[node]) for node in (0, 9, 3, 4)]
    assert [(len(row.runs), row.skip is None) for row in rows] == [(1, True), (1, True), (0, True), (0, False)]
    assert state.remedy == ("it does not build without: everything was built with that.",)
    costs = read_hunt_report(history, log.hunt).costs
    assert (costs.builds, costs.runs) == (4, 3), "costs contain all builds and runs"
    assert history.select("SELECT build_count, run_count FROM sessions") == [(4, 3)]


@dataclass
class StaleLab(ComputedLab):
    """A lab with incremental builds. Those of two commits after the culprit are stale, and as fast as good."""

    incremental: dict[str, bool] = field(default_factory=dict)

    def measure(self, order: Measure) -> Generator[LabEvent]:
        stale = self.commits[CULPRIT + 3 : CULPRIT + 5]
        for share in order.plan:
            commit, end = self.commits[share.candidate], share.candidate in (0, len(self.commits) - 1)
            wanted = order.incremental and not end
            if self.incremental.get(commit, True) and (not wanted or commit not in self.incremental):
                self.incremental[commit] = wanted
                of_it = f"{commit}{wanted * 'i'}", f"{commit}{(wanted and commit in stale) * '~'}"
                facts = BuildFacts(commit, *of_it, 5.0, 1, 1, False, "log", incremental=wanted)
                yield BuildFinished(share.candidate, facts, None)
        self.built = list(self.incremental)
        for event in super().measure(order):
            if isinstance(event, RunFinished) and event.facts.commit in stale and self.incremental[event.facts.commit]:
                event = replace(event, facts=replace(event.facts, operations=round(event.facts.operations / 0.8)))
            yield event


@pytest.mark.parametrize("cut", [500, 12, 20, 25, 30])
def test_search_misled_by_stale_builds_restarts_and_can_be_resumed(log: SavedLog, cut: int) -> None:
    rules = replace(problem(NAMES), policy=Policy(incremental=True))
    lab = StaleLab(NAMES, speeds(NAMES, CULPRIT))
    list(islice(hunt(rules, started(NAMES), log, measured_by(lab)), cut))
    if log.state.verdict is None:
        log = SavedLog(log.history, log.hunt)
        list(hunt(rules, None, log, measured_by(lab)))
    decided = [event.decision for _, event in kept(log) if isinstance(event, Decided)]
    assert sum(decision.clean for decision in decided) == 1
    assert isinstance(decided[-1].order, Found) and decided[-1].order.step.candidate == CULPRIT
    assert [text for text in log.state.warnings if "begins again without incremental builds" in text]
    again = SavedLog(log.history, log.hunt)
    assert (again.entries, again.state.proofs, again.state.clean) == (log.entries, log.state.proofs, True)
    check_replay(rules, log)


def test_runs_before_a_changed_or_failed_build_do_not_count(history: History) -> None:
    """If one of two builds of a commit is incremental."""
    first = replace(sample.build(3, binary="one"), incremental=True)
    log = SavedLog(history, sample.begin(history))
    for event in (BuildFinished(3, first, None), RunFinished(3, sample.run(3, 10.0)), BuildFinished(3, first, None)):
        log.append(event)
    assert len(events_of(log, RunFinished)) == 1, "the binary is the same"
    log.append(BuildFinished(3, replace(first, binary="two"), None))
    assert not events_of(log, RunFinished), "made in another tree, under the same key"
    log.append(RunFinished(3, sample.run(3, 20.0)))
    log.append(CandidateSkipped(3, sample.skip(3)))
    assert not events_of(log, RunFinished) and not log.state.facts_of(sample.CANDIDATES[3]).runs
    assert not log.state.proofs


@pytest.mark.parametrize(
    ("seconds", "noise", "middle", "hint"),
    [
        (0.4, 0.29, 0.7, "Longer runs vary less: let the benchmark repeat its work for a few seconds."),
        (0.4, 0.02, 0.7, ""),
        (86.0, 0.005, 0.6, "Shorter runs show a change of 40 % as well: a tenth of the work is enough."),
        (86.0, 0.1, 0.6, ""),
        (5.0, 0.29, 0.7, ""),
    ],
)
def test_too_short_or_too_long_runs_are_a_warning(seconds: float, noise: float, middle: float, hint: str) -> None:
    change = Interval.from_log_ratio(math.log(middle), 0.1)
    said = run_length_warning(change, noise, [seconds] * 10)
    assert (said.advice if said else "") == hint
    assert run_length_warning(change, noise, [seconds] * 9) is None
    assert run_length_warning(UNKNOWN, noise, [seconds] * 10) is None
