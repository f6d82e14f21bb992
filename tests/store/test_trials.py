"""A/As in the history, and what hunts learn from them."""

import math
import random
from dataclasses import replace

import pytest

import sample_hunt as sample
from perfbisect.core.domain.events import BuildFinished, HuntEnded, RunFinished
from perfbisect.core.domain.facts import RunFacts, SkipFacts
from perfbisect.core.domain.orders import Interval, NotReproduced
from perfbisect.core.domain.settings import (
    Reverts,
    Series,
    Settings,
    TrialBuild,
    TrialRequest,
    TrialType,
    TrialWorkload,
)
from perfbisect.core.domain.trials import Trial, TrialRun, TrialSkip
from perfbisect.core.stats.noise import noise_in
from perfbisect.errors import EnvironmentFailure, UsageError
from perfbisect.store.history import History
from perfbisect.store.prior_data import read_kept, read_noise, read_pinned


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
    """A trial of the first commit, and of others by their names."""
    first, *_ = sample.COMMITS
    subjects = (
        TrialBuild("v1.0", first.sha, key="key-0"),
        *(TrialBuild(name, path=f"/{name}", key=name) for name in names),
    )
    works = (TrialWorkload(settings.workload, "write", 2.0, 10.0),)
    what = (settings.builder, settings.variant, settings.host, settings.metric, settings.overrides)
    return TrialRequest(kind, *what, subjects, works, rounds=3, runs=2)


def begin(history: History, wanted: TrialRequest, at: float = 1.0) -> Trial:
    return history.begin_trial(wanted, sample.HOST, sample.COMMITS[:1], at)


def enter(history: History, runs: list[tuple[int, RunFacts]], settings: Settings = sample.SETTINGS) -> int:
    trial = begin(history, request(TrialType.NOISE, settings))
    for visit, run in runs:
        history.add_to_trial(trial.id, TrialRun(visit, 0, 0, run.started + 12, 14.0, run))
    return trial.id


def test_an_aa_goes_before_what_old_hunts_let_guess(history: History) -> None:
    hunt = sample.begin(history)
    chance = random.Random(3)
    for turn in range(30):
        run = sample.run(turn % 2, 20.0 * turn, qps=20_000 * math.exp(chance.gauss(0, 0.05)))
        history.append(hunt, RunFinished(turn % 2, run), 20.0 * turn + 12)
    guessed = read_noise(history, sample.SETTINGS)
    assert guessed == pytest.approx(0.05, rel=0.4)
    runs = visits(0.01, 0.002)
    enter(history, runs)
    exact = noise_in(runs, "qps")
    assert exact is not None
    assert read_noise(history, sample.SETTINGS) == pytest.approx(exact.run)
    assert exact.run == pytest.approx(0.01, rel=0.5)


@pytest.mark.parametrize(
    "change",
    [{"host": "other"}, {"builder": "other"}, {"variant": "lto"}, {"workload": "scan"}, {"overrides": {"time": 60}}],
)
def test_an_aa_speaks_only_of_the_same_work(history: History, change: dict[str, object]) -> None:
    enter(history, visits(0.01, 0.01), replace(sample.SETTINGS, **change))  # type: ignore[arg-type]
    assert read_noise(history, sample.SETTINGS) is None


def test_too_few_runs_teach_nothing_and_the_newest_counts(history: History) -> None:
    enter(history, visits(0.01, 0.01)[:5])
    assert read_noise(history, sample.SETTINGS) is None
    enter(history, visits(0.02, 0.01))
    enter(history, visits(0.0, 0.001))
    assert (read_noise(history, sample.SETTINGS) or 1) < 0.01
    assert read_noise(history, replace(sample.SETTINGS, metric="p99")) is None


def test_every_run_is_kept_as_it_ends_and_the_estimates_beside(history: History) -> None:
    runs = visits(0.01, 0.01)[:3]
    trial = enter(history, runs)
    found = noise_in(visits(0.01, 0.01), "qps")
    assert found is not None
    history.record_noise(trial, found)
    stored = history.query(
        "select t.between_visits, t.noise, count(*), max(r.visit) from trials t join trial_runs r"
    ).rows
    assert list(stored) == [(found.between, found.run, 3, 1)]


def test_runs_that_share_a_visit_are_not_taken_for_the_noise_between_visits(history: History) -> None:
    """As servers are measured in hunts: several similar runs in each visit, and visits that differ."""
    hunt = sample.begin(history)
    for number, (_, run) in enumerate(visits(0.03, 0.001, count=30, runs=3)):
        history.append(hunt, RunFinished(0, run), 20.0 * number + 12)
    assert read_noise(history, sample.SETTINGS) == pytest.approx(0.03, rel=0.4)


def test_unfinished_hunts_pin_what_they_use(sampled: History) -> None:
    hunt = sample.begin(sampled, at=5000.0)
    sampled.append(hunt, RunFinished(1, replace(sample.run(1, 5010.0), dataset="data-2")), 5020.0)
    sampled.append(hunt, BuildFinished(1, replace(sample.build(1), key="mine"), None), 5030.0)
    used = {"mine", "data-2", sample.build(1).key}
    assert read_pinned(sampled, 0.0) == used
    assert read_pinned(sampled, 5025.0) == used
    assert read_pinned(sampled, 6000.0) == frozenset()
    sampled.append(hunt, HuntEnded(NotReproduced(Interval(0.9, 1.0, 1.1), 0.01)), 5040.0)
    assert read_pinned(sampled, 0.0) == frozenset()


def test_what_earlier_hunts_left(sampled: History) -> None:
    keys, _ = read_kept(sampled, sample.SETTINGS)
    assert keys
    assert all(key.startswith("key-") for key in keys)
    assert read_kept(sampled, replace(sample.SETTINGS, builder="other")) == (frozenset(), frozenset())


def test_a_trial_comes_back_as_it_was_entered(history: History) -> None:
    wanted = request(TrialType.COMPARE, sample.SETTINGS, "old", "new")
    trial = begin(history, wanted)
    run = TrialRun(0, 0, 2, 20.0, 14.0, replace(sample.run(0, 5.0), commit="new"))
    history.add_to_trial(trial.id, run)
    stored = history.trial("c1")
    assert (stored.request, stored.host, stored.runs, stored.state) == (wanted, sample.HOST, [run], "running")
    history.end_trial(trial.id, 30.0)
    assert history.trial("c1").state == "done"
    for wrong in ("n1", "c2"):
        with pytest.raises(UsageError, match=f"no {wrong} in the history"):
            history.trial(wrong)
    [listed] = history.trials()
    assert (listed.id, listed.builds, listed.runs, listed.state) == ("c1", ("v1.0", "old", "new"), 1, "done")


def test_an_aa_that_has_failed_teaches_nothing(history: History) -> None:
    failed = enter(history, visits(0.01, 0.01))
    history.end_trial(failed, 9.0, "it crashed")
    assert read_noise(history, sample.SETTINGS) is None


def test_a_trial_without_a_hash_of_its_workload_is_continued(history: History) -> None:
    wanted = request(TrialType.COMPARE, sample.SETTINGS, "old")
    begin(history, wanted)
    history.connection.execute("UPDATE trials SET process = 'gone 1 1'")
    now = replace(wanted, works=tuple(replace(work, run_hash="all") for work in wanted.works))
    history.connection.execute("UPDATE trial_workloads SET told = 'other'")
    assert history.resume_trial(now, sample.HOST) is None
    history.connection.execute("UPDATE trial_workloads SET told = ''")
    assert history.resume_trial(now, sample.HOST) is not None


def test_a_comparison_that_was_interrupted_goes_on_only_with_the_same(history: History) -> None:
    wanted = request(TrialType.COMPARE, sample.SETTINGS, "old")
    begin(history, wanted)
    assert history.resume_trial(wanted, sample.HOST) is None, "this process works on it"
    history.connection.execute("UPDATE trials SET process = 'gone 1 1'")
    changed = replace(wanted.subjects[1], key="another")
    for other in (
        replace(wanted, runs=9),
        replace(wanted, overrides={"time": 99}),
        replace(wanted, subjects=(wanted.subjects[0], changed)),
        replace(wanted, works=wanted.works * 2),
    ):
        assert history.resume_trial(other, sample.HOST) is None
    assert history.resume_trial(wanted, replace(sample.HOST, kernel="7")) is None
    going_on = history.resume_trial(replace(wanted, rounds=9, metric="p95"), sample.HOST)
    assert going_on is not None
    assert going_on.name == "c1"
    assert history.resume_trial(wanted, sample.HOST) is None, "this process continues it now"


def test_a_series_that_goes_on_in_another_metric_hunts_by_that(history: History) -> None:
    def asked(metric: str) -> TrialRequest:
        options = ("--metric", metric)
        wanted = request(TrialType.COMPARE, sample.SETTINGS, "old")
        return replace(wanted, metric=metric, series=Series("v1..v2", (), options))

    begin(history, asked("qps"))
    history.connection.execute("UPDATE trials SET process = 'gone 1 1'")
    assert history.resume_trial(asked("p95"), sample.HOST) is not None
    kept = history.trial("c1").request
    assert (kept.metric, kept.series) == ("p95", asked("p95").series)


def test_a_comparison_that_has_failed_says_why_and_goes_on(history: History) -> None:
    wanted = request(TrialType.COMPARE, sample.SETTINGS, "old")
    trial = begin(history, wanted)
    skip = TrialSkip(0, 1, 2.0, SkipFacts("old", "run", "it crashed", "/log", 3.0))
    history.skip_in_trial(trial.id, skip)
    history.end_trial(trial.id, None, "no room")
    assert history.trial("c1").skips == [skip]
    assert (history.trial("c1").state, history.trial("c1").failure) == ("failed", "no room")
    assert [(listed.state, listed.failure) for listed in history.trials()] == [("failed", "no room")]
    going_on = history.resume_trial(wanted, sample.HOST)
    assert going_on is not None
    assert going_on.skips == [skip]
    assert (history.trial("c1").state, history.trial("c1").failure) == ("running", "")
    history.end_trial(trial.id, 9.0, "nothing was measured")
    assert history.trial("c1").state == "failed"
    assert history.resume_trial(wanted, sample.HOST) is None, "there is nothing to continue"


def test_comparisons_that_were_interrupted_pin_what_they_use(history: History) -> None:
    trial = begin(history, request(TrialType.COMPARE, sample.SETTINGS, "old"), 100.0)
    facts = replace(sample.run(0, 5.0), build_key="key-0", dataset="data-1")
    history.add_to_trial(trial.id, TrialRun(0, 0, 0, 120.0, 14.0, facts))
    assert read_pinned(history, 50.0) == {"key-0", "data-1"}
    assert read_pinned(history, 150.0) == frozenset()
    history.end_trial(trial.id, 130.0)
    assert read_pinned(history, 50.0) == frozenset()


def test_a_comparison_teaches_hunts_nothing_of_noise(history: History) -> None:
    trial = begin(history, request(TrialType.COMPARE))
    for visit, run in visits(0.01, 0.01):
        history.add_to_trial(trial.id, TrialRun(visit, 0, 0, run.started, 1.0, run))
    assert read_noise(history, sample.SETTINGS) is None


@pytest.mark.parametrize(
    ("table", "column", "named"),
    [
        ("trial_runs", "body", "trial_runs, row 0"),
        ("trials", "overrides", "trials, row 1"),
        ("hosts", "tools", "hosts, row 1"),
    ],
)
@pytest.mark.parametrize("value", ["'{'", "7", "x'00ff'", "CAST(x'ff' AS TEXT)"])
def test_a_damaged_trial_is_named_and_not_used(
    history: History, table: str, column: str, named: str, value: str
) -> None:
    one = enter(history, visits(0.01, 0.002))
    two = enter(history, visits(0.01, 0.002))
    where = f"trial_id = {two} AND number = 0" if table == "trial_runs" else f"id = {two if table == 'trials' else 1}"
    history.connection.execute(f"UPDATE {table} SET {column} = {value} WHERE {where}")
    with pytest.raises(EnvironmentFailure, match=named.replace("trials, row 1", f"trials, row {two}")):
        history.trial(f"n{two}")
    assert [each.id for each in history.trials()] == [f"n{one}", f"n{two}"]
    if table != "hosts":  # which both trials have
        assert len(history.trial(f"n{one}").runs) == 40
        assert read_noise(history, sample.SETTINGS) is not None


def test_a_proof_is_kept_with_its_hunt_and_continues_as_that_of_the_same_commits(history: History) -> None:
    hunt = sample.begin(history)
    wanted = replace(request(TrialType.PROVE), reverts=Reverts(hunt, ("c" * 40, "d" * 40)))
    made = begin(history, wanted)
    begin(history, request(TrialType.COMPARE))
    assert made.name == "p1"
    assert history.trial("p1").request == wanted
    assert history.trial("c2").request.reverts is None
    assert [trial.name for trial in history.proofs(hunt)] == ["p1"]
    assert history.proofs(hunt + 1) == []
    history.end_trial(made.id, None, "interrupted")
    other = replace(wanted, reverts=Reverts(hunt, ("c" * 40,)))
    assert history.resume_trial(other, sample.HOST) is None
    found = history.resume_trial(replace(wanted, rounds=9), sample.HOST)
    assert found is not None
    assert found.name == "p1"


def test_builds_of_a_variant_and_a_configuration_are_kept(history: History) -> None:
    """And a trial of others is not continued."""
    plain = request(TrialType.COMPARE)
    build = replace(plain.subjects[0], name="v1.0@lto+my.cnf", variant="lto", config="/my.cnf", config_hash="ab")
    wanted = replace(plain, subjects=(*plain.subjects, build))
    trial = begin(history, wanted)
    history.end_trial(trial.id, None, "stopped")
    assert history.trial(trial.name).request == wanted
    changed = replace(wanted, subjects=(*plain.subjects, replace(build, config_hash="cd")))
    assert history.resume_trial(changed, sample.HOST) is None
    assert history.resume_trial(wanted, sample.HOST)


def test_a_series_of_releases_is_kept_and_continues_in_another_metric(history: History) -> None:
    series = Series("1.0..1.9", (("1.3-rc1", "a pre-release"),), ("--builder", "demo", "--metric", "qps"))
    wanted = replace(request(TrialType.COMPARE), series=series)
    trial = begin(history, wanted)
    assert history.trial(trial.name).request == wanted
    assert [(each.title, each.series) for each in history.trials()] == [("1.0..1.9", "1.0..1.9")]
    history.end_trial(trial.id, None, "stopped")
    other = replace(wanted, metric="p95", series=replace(series, options=("--metric", "p95")))
    assert history.resume_trial(other, sample.HOST)
    assert history.resume_trial(replace(wanted, series=replace(series, text="1.0..1.8")), sample.HOST) is None
    assert history.resume_trial(replace(wanted, series=None), sample.HOST) is None
