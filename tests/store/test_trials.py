"""Trials in the history, and the noise that hunts read from A/A tests."""

import math
import random
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

import sample_hunt as sample
from perfbisect.core.domain.events import (
    BuildFinished,
    CandidateSkipped,
    RunFinished,
    SessionEnded,
    SessionStarted,
    Warned,
)
from perfbisect.core.domain.facts import DropHunt, RunFacts, SkipFacts, TrialRun, TrialSkip
from perfbisect.core.domain.settings import (
    ReleaseSeries,
    RevertedCommits,
    Settings,
    TrialBuild,
    TrialRequest,
    TrialType,
    TrialWorkload,
)
from perfbisect.core.domain.trials import visits_of_each_round as to_visit
from perfbisect.core.stats.noise import noise_of_metric
from perfbisect.errors import EnvironmentFailure, UsageError
from perfbisect.store.history import History
from perfbisect.store.prior_data import read_run_noise
from perfbisect.store.transfer import copy_sessions, numbers_with_related


def visits(between: float, within: float, count: int = 20, runs: int = 2) -> list[tuple[int, RunFacts]]:
    chance = random.Random(2)
    made = []
    for visit in range(count):
        level = chance.gauss(0, between)
        for number in range(runs):
            qps = 20_000 * math.exp(level + chance.gauss(0, within))
            made.append((visit, replace(sample.run(0, 100.0 * visit + 20 * number, qps=qps), visit=f"visit-{visit}")))
    return made


def request(kind: TrialType, settings: Settings = sample.SETTINGS, *names: str) -> TrialRequest:
    """The request of a trial of v1.0, the first commit, and of the builds ``names``."""
    first, *_ = sample.COMMITS
    subjects = (TrialBuild("v1.0", first.sha), *(TrialBuild(name, path=f"/{name}", key=name) for name in names))
    works = (TrialWorkload(settings.workload, "write", 2.0, 10.0),)
    what = (settings.builder, settings.variant, settings.host, settings.metric, settings.overrides)
    return TrialRequest(kind, *what, subjects, works, rounds=3, runs=2)


def enter(history: History, runs: list[tuple[int, RunFacts]], settings: Settings = sample.SETTINGS) -> int:
    """Store an A/A test with these runs, which has not ended. Return its number."""
    trial = sample.begin_trial(history, request(TrialType.NOISE, settings), settings=settings)
    for visit, run in runs:
        history.append(trial, RunFinished(0, run, round=visit), run.started + 12)
    return trial


def left(history: History, trial: int, failure: str = "") -> None:
    """End the process that works on a trial, in the history."""
    history.connection.execute("UPDATE attempts SET process = 'gone 1 1' WHERE session_id = ?", [trial])
    history.sessions_of_process.clear()
    if failure:
        history.enter_failure(trial, failure, 9.0)


def test_noise_of_an_aa_test_precedes_an_estimate_from_hunts(history: History) -> None:
    """In this hunt on a server, runs of one visit are similar, and visits differ."""
    hunt = sample.begin(history)
    for number, (_, run) in enumerate(visits(0.03, 0.001, count=30, runs=3)):
        history.append(hunt, RunFinished(0, run), 20.0 * number + 12)
    assert read_run_noise(history, sample.SETTINGS) == pytest.approx(0.03, rel=0.4)
    runs = visits(0.01, 0.002)
    enter(history, runs)
    exact = noise_of_metric(runs, "qps")
    assert exact is not None
    assert read_run_noise(history, sample.SETTINGS) == pytest.approx(exact.run)
    assert exact.run == pytest.approx(0.01, rel=0.5)


def test_noise_is_read_from_the_newest_suitable_aa_test(history: History) -> None:
    """Suitable: the same host, builder, variant, workload and settings, enough runs, and no failure."""
    for change in ({"host": "x"}, {"builder": "x"}, {"variant": "lto"}, {"workload": "x"}, {"overrides": {"time": 60}}):
        enter(history, visits(0.01, 0.01), replace(sample.SETTINGS, **change))  # type: ignore[arg-type]
    enter(history, visits(0.01, 0.01)[:5])
    left(history, enter(history, visits(0.01, 0.01)), "it crashed")
    compared = sample.begin_trial(history, request(TrialType.COMPARE))
    for visit, run in visits(0.01, 0.01):
        history.append(compared, RunFinished(0, run, round=visit), run.started)
    assert read_run_noise(history, sample.SETTINGS) is None
    enter(history, visits(0.02, 0.01))
    enter(history, visits(0.0, 0.001))
    assert (read_run_noise(history, sample.SETTINGS) or 1) < 0.01
    assert read_run_noise(history, replace(sample.SETTINGS, metric="p99")) is None


def test_runs_are_stored_as_they_end_and_the_noise_at_the_end(history: History) -> None:
    runs = visits(0.01, 0.01)[:3]
    trial = enter(history, runs)
    stored = "select between_visits, noise, run_count, max(round) from trials join runs on session_id = id"
    assert list(history.query(stored).rows) == [(None, None, 3, 1)]
    history.append(trial, SessionEnded(), 90.0)
    found = noise_of_metric(runs, "qps")
    assert found is not None
    assert list(history.query(stored).rows) == [(found.between, found.run, 3, 1)]


def test_trial_is_read_from_its_log(history: History) -> None:
    """Runs and failures with round and build, builds with their facts, and the seconds since the entry before."""
    sample.begin(history)  # hunts and trials are numbered together
    wanted = request(TrialType.COMPARE, sample.SETTINGS, "old", "new")
    trial = sample.begin_trial(history, wanted, 5.0)
    run = replace(sample.run(0, 30.0), commit="new")
    crash = SkipFacts("old", "run", "it crashed", "/log", 3.0)
    for at, event in (
        (6.0, BuildFinished(0, sample.build(0), None)),
        (7.0, CandidateSkipped(1, sample.skip(1))),
        (8.0, Warned("the fan is loud")),
        (44.0, RunFinished(2, run, round=4)),
        (55.0, RunFinished(2, run, round=4)),
        (60.0, CandidateSkipped(2, crash, round=5)),
    ):
        history.append(trial, event, at)
    known = history.trial("c2")
    made = sample.build(0)
    base, old, new = wanted.subjects
    built = replace(base, key=made.key, binary=made.binary, seconds=made.seconds)
    assert known.request == replace(wanted, subjects=(built, replace(old, trouble=sample.skip(1).reason), new))
    assert known.runs == [TrialRun(4, 0, 2, 44.0, 36.0, run), TrialRun(4, 0, 2, 55.0, 11.0, run)]
    assert known.skips == [TrialSkip(0, 2, 60.0, crash)]
    assert (known.host, known.began, known.state) == (sample.HOST, 5.0, "running")
    assert to_visit(known) == [(0, 0)]
    rows = history.query(
        "select t.round, t.workload, build, t.qps, cost from trial_readings t join runs using (event_id)"
    ).rows
    assert [*rows] == [(4, "update-index", "new", 20_000.0, cost) for cost in (36.0, 11.0)]
    history.append(trial, SessionEnded(), 61.0)
    [listed] = history.trials_except_fitness_checks()
    assert (listed.id, listed.compared, listed.runs, listed.state) == ("c2", ("v1.0", "old", "new"), 2, "done")
    for wrong in ("n2", "c1", "c3"):
        with pytest.raises(UsageError, match=f"no (comparison|A.A test) {wrong} in the history"):
            history.trial(wrong)
    assert history.settings(trial) == sample.SETTINGS


def test_series_and_proof_are_stored_and_are_no_hunts(history: History) -> None:
    series = ReleaseSeries("1.0..1.9", (("1.3-rc1", "a pre-release"),), ("--builder", "demo", "--metric", "qps"))
    wanted = replace(request(TrialType.COMPARE), series=series)
    trial, hunt = sample.begin_trial(history, wanted), sample.begin(history)
    proved = replace(request(TrialType.PROVE), reverts=RevertedCommits(hunt, ("c" * 40, "d" * 40)))
    sample.begin_trial(history, proved)
    assert (history.trial("c1").request, history.trial("p3").request) == (wanted, proved)
    assert [(each.title, each.series) for each in history.trials_except_fitness_checks() if each.series] == [
        ("1.0..1.9", "1.0..1.9")
    ]
    assert [[proof.name for proof in history.proofs(number)] for number in (trial, hunt)] == [[], ["p3"]]
    assert [each.id for each in history.hunts()] == [hunt]
    with pytest.raises(UsageError, match="no hunt 1"):
        history.candidates(trial)


@pytest.mark.parametrize("runs", [0, 1])
def test_failed_comparison_says_why_and_can_be_resumed(history: History, runs: int) -> None:
    """If no run was measured, the skipped build is tried again."""

    def state() -> tuple[str, str]:
        [listed], known = history.trials_except_fitness_checks(), history.trial("c1")
        assert (listed.state, listed.failure) == (known.state, known.failure)
        return known.state, known.failure

    wanted = request(TrialType.COMPARE, sample.SETTINGS, "old")
    trial = sample.begin_trial(history, wanted)
    for _ in range(runs):
        history.append(trial, RunFinished(0, sample.run(0, 1.0)), 2.0)
    history.append(trial, CandidateSkipped(1, SkipFacts("old", "run", "it crashed", "/log", 3.0)), 2.0)
    left(history, trial, "no room")
    assert state() == ("failed", "no room")
    history.sessions_of_process.clear()
    history.append(trial, SessionStarted(trial, sample.HOST, True, request=wanted), 10.0)
    assert (len(history.trial("c1").skips), state()) == (runs, ("running", ""))
    history.append(trial, SessionEnded(), 11.0)
    history.enter_failure(trial, "nothing was measured", 12.0)
    assert state() == ("failed", "nothing was measured")


@pytest.mark.parametrize(
    ("table", "column", "named"),
    [("events", "body", "events, row"), ("sessions", "request", "sessions, row 2"), ("hosts", "tools", "hosts, row")],
)
def test_damaged_trial_is_named_and_not_used(history: History, table: str, column: str, named: str) -> None:
    one, two = (enter(history, visits(0.01, 0.002)) for _ in range(2))
    where = {"events": f"session_id = {two}", "sessions": f"id = {two}", "hosts": "true"}[table]
    for value in ("'{'", "7", "x'00ff'", "CAST(x'ff' AS TEXT)"):
        history.connection.execute(f"UPDATE {table} SET {column} = {value} WHERE {where}")
        with pytest.raises(EnvironmentFailure, match=named):
            history.trial(f"n{two}")
        assert [each.id for each in history.trials_except_fitness_checks()] == [f"n{one}", f"n{two}"]
        if table != "hosts":  # both trials have the host
            assert len(history.trial(f"n{one}").runs) == 40
            assert read_run_noise(history, sample.SETTINGS) is not None


def comparison(history: History, *, hunted: bool = True) -> int:
    """A comparison of two workloads. The sample hunt is the hunt for the drop in the second workload."""
    wanted = request(TrialType.COMPARE, sample.SETTINGS, "new")
    works = (TrialWorkload("scan", "scan", 1.0, 2.0), *wanted.works)
    trial = sample.begin_trial(history, replace(wanted, works=works))
    history.append(trial, RunFinished(0, sample.run(0, 1.0), workload=1), 2.0)
    if hunted:
        history.enter_drop_hunt(trial, (1, 0, 1), sample.write(history))
    return trial


def test_comparison_lists_its_hunts_with_their_present_states(history: History) -> None:
    trial = comparison(history)
    begun = sample.begin(history)
    history.enter_drop_hunt(trial, (0, 0, 1), begun)
    culprit = sample.COMMITS[sample.CULPRIT]
    found = DropHunt(1, 0, 1, 2, "found", culprit.sha, culprit.short_subject)
    assert history.trial("c1").hunts == (DropHunt(0, 0, 1, begun, "running"), found)
    again = sample.begin(history)  # replaces the earlier hunt
    history.enter_drop_hunt(trial, (0, 0, 1), again)
    assert [each.hunt for each in history.trial("c1").hunts] == [again, 2]


@pytest.mark.parametrize("later", [False, True])
def test_copied_comparison_has_the_new_numbers_of_its_hunts(tmp_path: Path, later: bool) -> None:
    """Also of hunts that began after the comparison was copied."""
    with closing(History.open(tmp_path / "a.db")) as source, closing(History.open(tmp_path / "b.db")) as target:
        trial = comparison(source, hunted=not later)
        sample.begin(target)  # so that the numbers of sessions differ
        if later:
            copy_sessions(source, target, numbers_with_related(source, ["c1"]), "anna")
            assert target.trial("c2").hunts == ()
            source.enter_drop_hunt(trial, (1, 0, 1), sample.write(source))
        wanted = numbers_with_related(source, ["c1"])
        assert wanted == [1, 2]
        copy_sessions(source, target, wanted, "anna")
        assert target.trial("c2").hunts == (replace(source.trial("c1").hunts[0], hunt=3),)
        assert {done.outcome for done in copy_sessions(source, target, wanted, "anna")} == {"known"}
