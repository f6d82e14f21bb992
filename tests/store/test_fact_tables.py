"""Tables and views repeat the log in columns."""

from dataclasses import replace

import pytest

import sample_hunt as sample
from perfbisect.core.domain.events import BuildFinished, CandidateSkipped, HuntEnded, RunFinished
from perfbisect.core.domain.facts import RunFacts
from perfbisect.core.domain.orders import Inconclusive, Interval, Reason, Several, Step, Unsettled
from perfbisect.store.history import History


def ask(history: History, sql: str) -> list[tuple[object, ...]]:
    """All rows of a query."""
    return list(history.query(sql).rows)


def test_culprits(sampled: History) -> None:
    [row] = ask(sampled, "select hunt_id, culprit, date, subject, probability, ratio, low, high from culprits")
    culprit = sample.COMMITS[sample.CULPRIT]
    assert row == (1, culprit.sha, culprit.date, culprit.subject, 0.9731, 0.718, 0.706, 0.731)


def test_several_culprits_oldest_first(sampled: History) -> None:
    steps = tuple(Step(node, 0.9, Interval(0.7, 0.8, 0.9), (node - 1,)) for node in (2, 5))
    sampled.append(1, HuntEnded(Several(steps)), 9e9)
    assert ask(sampled, "select culprit from culprits") == [(sample.CANDIDATES[2],), (sample.CANDIDATES[5],)]


def test_a_hunt_with_open_subranges_has_its_reason_and_no_culprit_in_them(sampled: History) -> None:
    step = Step(2, 0.9, Interval(0.7, 0.8, 0.9), (1,))
    known = Inconclusive((5, 6), (0.5, 0.4), Interval(0.7, 0.8, 0.9), Reason.UNBUILDABLE)
    sampled.append(1, HuntEnded(Several((step,), (), (Unsettled(4, 6, known),))), 9e9)
    assert ask(sampled, "select reason from verdicts") == [("unbuildable",)]
    assert ask(sampled, "select culprit from culprits") == [(sample.CANDIDATES[2],)]
    assert sampled.listed(1).state == "unsettled"
    sampled.append(1, HuntEnded(Several((step,))), 9.1e9)
    assert sampled.listed(1).state == "several"


def test_candidates_in_the_order_of_the_range(sampled: History) -> None:
    rows = ask(sampled, "select node, commit_hash, builds, runs, same_as, skipped from candidates")
    assert [row[0] for row in rows] == [0, 4, 5, 6, 7, 8, 10]
    assert [row[1] for row in rows] == [sample.CANDIDATES[row[0]] for row in rows]  # type: ignore[index]
    about = {row[0]: row[2:] for row in rows}
    assert about[4] == (0, 0, None, "compile: src/pager.c:88: 'cursor' undeclared")
    assert about[6] == (1, 3, sample.CANDIDATES[5], None)
    assert about[8] == (1, 5, None, None)


def test_relative_qps_cancels_the_drift_of_the_host(sampled: History) -> None:
    ratios = dict(ask(sampled, "select node, rqps from rqps"))
    assert ratios[0] == pytest.approx(1.0, abs=0.001)
    assert ratios[5] == pytest.approx(1.0, abs=0.006)
    assert ratios[8] == pytest.approx(0.72, abs=0.006)


def test_build_costs(sampled: History) -> None:
    [row] = ask(sampled, "select host, builder, variant, builds, fastest, slowest, hit_rate from build_costs")
    assert row == ("local", "engine", "o2nofp", 6, 7.5, 31.0, pytest.approx(36 * 5 / (40 * 6)))


def test_counters_that_are_missing_are_null(sampled: History) -> None:
    assert ask(sampled, "select distinct value from counters where name = 'dTLB-load-misses'") == [(None,)]
    [(each,)] = ask(
        sampled,
        "select value / operations from counters join runs on event_id = run_id"
        " where source = 'perf' and name = 'instructions' and node = 5 limit 1",
    )
    assert each == pytest.approx(280_000)


def test_the_cost_of_a_run_holds_its_warm_up(sampled: History) -> None:
    assert ask(sampled, "select min(cost), max(cost) from runs where node = 5") == [(12.5, 12.5)]


def test_runs_of_one_visit_share_it(history: History) -> None:
    hunt = sample.begin(history)
    for at in (1.0, 20.0):
        history.append(hunt, RunFinished(1, replace(sample.run(1, at), visit="one")), at + 10)
    assert ask(history, "select count(*), count(distinct visit_id), dataset_key from runs join visits on id = visit_id") == [
        (2, 1, "data-1")
    ]  # fmt: skip


def test_a_host_that_changed_is_another_host(history: History) -> None:
    sample.begin(history)
    changed = replace(sample.HOST, kernel="6.2")
    history.begin(sample.SETTINGS, changed, sample.started(), 5.0)
    sample.begin(history, at=sample.BEGAN + 9)
    rows = ask(history, "select kernel, first_seen, last_seen from hosts order by id")
    assert rows == [("6.1", sample.BEGAN, sample.BEGAN + 9), ("6.2", 5.0, 5.0)]


def test_a_commit_outside_the_range_has_no_node(history: History) -> None:
    """The merge base is checked against good, which is not in the range."""
    hunt = sample.begin(history)
    outside = replace(sample.build(1), commit="f" * 40)
    history.append(hunt, BuildFinished(1, outside, None), 5.0)
    assert ask(history, "select node from builds") == [(None,)]


def test_a_skip_after_runs_stands_beside_them(history: History) -> None:
    hunt = sample.begin(history)
    history.append(hunt, RunFinished(3, sample.run(3, 1.0)), 11.0)
    history.append(hunt, CandidateSkipped(3, sample.skip(3, "run")), 12.0)
    assert ask(history, "select node, runs, skipped like 'run:%' from candidates") == [(3, 1, 1)]


def test_several_hosts(history: History) -> None:
    """The cost of a run and its baseline are those of its own host."""
    hunt = sample.begin(history)
    good, other = sample.CANDIDATES[0], sample.CANDIDATES[1]
    for at, host, commit, operations in (
        (10, "a", good, 100),
        (12, "b", good, 900),
        (20, "a", other, 50),
        (21, "b", other, 810),
    ):
        facts = RunFacts(commit, "key", f"{at}", host, float(at - 1), 1.0, operations, {}, (), {}, {})
        history.append(hunt, RunFinished(0, facts, host), 1000.0 + at)
    assert ask(history, f"select host, cost from runs where commit_hash != '{good}'") == [("a", 10.0), ("b", 9.0)]
    assert ask(history, f"select host, rqps from rqps where commit_hash = '{other}' order by 1") == [
        ("a", 0.5),
        ("b", 0.9),
    ]
    assert ask(history, "select distinct host from events where kind = 'RunFinished' order by 1") == [("a",), ("b",)]
