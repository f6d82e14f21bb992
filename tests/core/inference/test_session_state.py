"""The state of a hunt after a sequence of events, and the observations in a log with build hosts."""

from dataclasses import replace

import numpy as np
import pytest

from perfbisect.core.domain.events import (
    BuildFinished,
    BuildStarted,
    CandidateSkipped,
    Commit,
    Decided,
    Event,
    RunFinished,
    RunStarted,
    SessionEnded,
    SessionStarted,
    Warned,
)
from perfbisect.core.domain.facts import BuildFacts, HostFacts, RunFacts, SkipFacts
from perfbisect.core.domain.orders import (
    Belief,
    Decision,
    Found,
    Interval,
    Measure,
    NotReproduced,
    PlannedRuns,
    Purpose,
    Step,
)
from perfbisect.core.domain.session_state import SessionState, fold
from perfbisect.core.inference.classification import Classification, classify, ratios_to_good, side_by_interval
from perfbisect.core.inference.observations import Built, read_observations

SHAS = tuple(f"{n:040x}" for n in range(4))
HOST = HostFacts("a", "", 2, 1024, "", "")
STARTED = SessionStarted(1, HOST, False, "demo", "update-index", "v1", "v2", 3, SHAS, 0)
SAME = NotReproduced(Interval(0.99, 1.0, 1.01), 0.02)


def built(candidate: int, binary: str = "", *, host: str = "a", reused: bool = False) -> BuildFinished:
    facts = BuildFacts(SHAS[candidate], "key", binary or SHAS[candidate], 5.0, 3, 1, reused, "")
    return BuildFinished(candidate, facts, None, host)


def ran(candidate: int, qps: float = 100.0, started: float = 1000.0) -> RunFinished:
    visit = f"visit{started}"
    facts = RunFacts(SHAS[candidate], "key", visit, "a", started, 10.0, round(10 * qps), {}, (qps,), {}, {})
    return RunFinished(candidate, facts, "a")


def skipped(candidate: int, stage: str) -> CandidateSkipped:
    return CandidateSkipped(candidate, SkipFacts(SHAS[candidate], stage, "no such field", "", 4.0), "a")


def decided(slow: tuple[float, ...] = (), change: float = 0.99) -> Decided:
    belief = Belief(np.full(4, 0.25), change, 0.01, Interval(0.6, 0.7, 0.8), slow=np.array(slow))
    return Decided(Decision(Measure((PlannedRuns(1, 1),), Purpose.SEARCH), belief))


def after(*events: Event) -> SessionState:
    """The state after the start of a hunt and these events, one second apart."""
    return fold(enumerate((STARTED, *events), 1000))


def measured(*rates: tuple[int, float]) -> SessionState:
    """The state after builds and three interleaved runs of each candidate, at about these rates."""
    runs = [ran(each, qps * (1 + 0.002 * (n % 3)), 1000.0 + 20 * n) for n, (each, qps) in enumerate(rates * 3)]
    builds = [(1000.0, built(candidate)) for candidate, _ in rates]
    return fold([(1000.0, STARTED), *builds, *((each.facts.started + 12, each) for each in runs)])


def test_adding_events_one_by_one_gives_the_folded_state() -> None:
    events = [STARTED, built(0), ran(0), Warned("Slow."), skipped(2, "compile"), decided(), SessionEnded(SAME)]
    whole, state = fold(enumerate(events, 1000)), SessionState()
    for at, event in enumerate(events, 1000):
        before, tested = state, dict(state.tested)
        state = state.after(at, event)
        assert before.tested == tested
    for name in ("commits", "node", "tested", "log", "warnings", "belief", "verdict", "elapsed", "binaries", "since"):
        assert getattr(state, name) == getattr(whole, name), name
    assert state.after(2000.0, RunStarted(0, 1, 2, Purpose.ENDS, 5.0)) is state


def test_facts_of_a_commit_contain_its_builds_and_runs() -> None:
    commit = Commit(SHAS[1], "2023-01-01", "A", "Subject")
    row = after(BuildStarted(1, commit), built(1), built(1, reused=True), ran(1)).facts_of(SHAS[1])
    assert (row.commit, len(row.builds), len(row.new_builds), row.reused) == (commit, 2, 1, True)
    assert (row.build_seconds, row.ccache_hit_rate, [run.qps for run in row.runs]) == (5.0, 0.75, [100.0])
    assert SessionState().facts_of("x").commit == Commit("x")


def test_failed_attempt_costs_build_time_and_a_later_run_ends_the_skip() -> None:
    failed = after(skipped(2, "compile"), built(2), skipped(2, "run"))
    assert failed.facts_of(SHAS[2]).build_seconds == 5.0 + 4.0 and failed.facts_of(SHAS[2]).skip
    failed.add(2000.0, ran(2))
    assert failed.facts_of(SHAS[2]).skip is None


def test_seconds_of_a_run_begin_when_the_host_ends_earlier_work() -> None:
    state = fold([(0.0, STARTED), (100.0, built(0)), (103.0, decided()), (130.0, ran(0)), (150.0, ran(0))])
    assert (state.facts_of(SHAS[0]).run_seconds, state.elapsed) == (30.0 + 20.0, 150.0)
    events = [(10.0, STARTED), (20.0, built(0)), (5000.0, replace(STARTED, resumed=True)), (5015.0, ran(0))]
    state = fold(events, [0.0, 4990.0])
    assert (state.facts_of(SHAS[0]).run_seconds, state.elapsed) == (15.0, 20.0 + 25.0), (
        "without the time between two attempts"
    )


def test_equal_binaries_share_their_runs() -> None:
    state = after(built(2, "x"), built(1, "x"), built(3, "y"), ran(2))
    assert [state.facts_of(sha).same_as for sha in SHAS] == [None, SHAS[2], None, None]
    assert len(state.runs_of_equal_binaries(SHAS[1])) == len(state.runs_of_equal_binaries(SHAS[1], SHAS[2])) == 1
    assert [state.is_measured(sha) for sha in SHAS] == [False, True, True, False]
    both = replace(STARTED, further=(replace(HOST, name="b"),), host_classes=("x", "x"))
    apart = fold([(0.0, both), (1.0, built(1, "x")), (2.0, built(2, "x", host="b"))])
    assert apart.facts_of(SHAS[2]).same_as is None, "binaries are compared on one host only"
    assert after(built(1, "x"), built(2, "x", host="b")).facts_of(SHAS[2]).same_as == SHAS[1]


def test_change_of_range_clears_the_belief_and_keeps_measurements() -> None:
    """A hunt may begin with a range that compares good with the merge base."""
    first = replace(STARTED, candidates=("good", SHAS[0]))
    state = fold(enumerate((first, built(0, "x"), ran(0), decided(), STARTED)))
    assert state.belief is state.purpose is None and (state.commits, state.node[SHAS[3]]) == (SHAS, 3)
    state.add(5.0, built(1, "x"))
    assert state.facts_of(SHAS[1]).same_as == SHAS[0] and state.is_measured(SHAS[1])


def test_ratios_of_commits_are_relative_to_the_baseline() -> None:
    state = measured((0, 1000.0), (3, 700.0))
    for candidate, like in ((1, 0), (2, 3)):
        state.add(2000.0, built(candidate, SHAS[like]))
    bad = ratios_to_good(state, "qps")[SHAS[3]]
    assert bad.low < 0.7 < bad.high
    assert ratios_to_good(state, "qps") == {SHAS[1]: Interval(1.0, 1.0, 1.0), SHAS[2]: bad, SHAS[3]: bad}
    assert ratios_to_good(SessionState(), "qps") == {}


def test_classification_without_a_belief_follows_the_intervals() -> None:
    state = measured((0, 1000.0), (1, 995.0), (2, 702.0), (3, 700.0))
    found = [classify(state, sha, ratios_to_good(state, "qps")) for sha in SHAS]
    assert found == [Classification.BASELINE, Classification.GOOD, Classification.BAD, Classification.BAD]


DROP, RISE = Interval(0.70, 0.72, 0.74), Interval(1.35, 1.4, 1.45)


def test_commit_is_good_or_bad_only_if_its_whole_interval_is() -> None:
    slow = Interval(0.70, 0.73, 0.80)
    for own, bad, expected in (
        (Interval(0.97, 0.99, 1.01), DROP, Classification.GOOD),
        (slow, DROP, Classification.BAD),
        (Interval(0.80, 0.90, 1.00), DROP, Classification.UNCLEAR),
        (Interval(1.30, 1.38, 1.46), RISE, Classification.BAD),
        (Interval(0.97, 1.01, 1.04), RISE, Classification.GOOD),
        *((slow, each, Classification.UNCLEAR) for each in (Interval(0.9, 1.0, 1.1), None)),
        (None, DROP, Classification.UNCLEAR),
    ):
        assert side_by_interval(bad, own) is expected


def test_belief_classifies_inner_commits_and_a_verdict_overrides_it() -> None:
    baseline, good, unclear, bad = (Classification[name] for name in ("BASELINE", "GOOD", "UNCLEAR", "BAD"))
    clear = decided((0.0, 0.01, 0.99, 1.0))
    for belief, expected in (
        (clear, [baseline, good, bad, bad]),
        (decided((0.0, 0.5, 0.7, 1.0)), [baseline, unclear, unclear, bad]),
        (decided((0.0, 0.01, 0.99, 1.0), change=0.6), [baseline, unclear, unclear, bad]),
    ):
        state = measured((0, 1000.0), (1, 840.0), (2, 700.0), (3, 700.0)).after(2000.0, belief)
        assert [classify(state, sha, {}) for sha in SHAS] == expected
    state = state.after(2000.0, clear)
    for verdict, expected in ((Found(Step(2, 0.98, DROP, (1,))), Classification.CULPRIT), (SAME, unclear)):
        assert classify(state.after(2001.0, SessionEnded(verdict)), SHAS[2], {}) is expected


def test_unmeasured_commit_is_classified_as_built_or_skipped() -> None:
    state = after(built(0), ran(0), built(1), built(2, SHAS[0]), skipped(3, "start"))
    expected = [Classification.BASELINE, Classification.BUILT, Classification.GOOD, Classification.SKIPPED]
    assert [classify(state, sha, {}) for sha in SHAS] == expected


@pytest.mark.parametrize("hosts", [(), ("m", "n")])
def test_build_of_a_build_host_is_available_on_every_host(hosts: tuple[str, ...]) -> None:
    log = [(100.0, built(number, "1", host=name)) for number, name in enumerate(("b1", "b2", "n"))]
    node = {sha: number for number, sha in enumerate(SHAS)}
    first, second, third = read_observations(log, node, "qps", 0.0, hosts, ("b1", "b2"))
    assert (first, second) == (Built(0, 5.0, build_host=0), Built(1, 5.0, 0, build_host=1))
    assert third == (Built(2, 5.0, None, 1) if hosts else Built(2, 5.0, 0)), "a host's own build is only on that host"
