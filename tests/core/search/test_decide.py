"""Properties that every decision has, whatever was observed."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfbisect.core.domain.graph import Graph
from perfbisect.core.domain.orders import Fleet, Found, Inconclusive, Measure
from perfbisect.core.domain.settings import Policy
from perfbisect.core.inference.analysis import CAP
from perfbisect.core.inference.ancestry import hypotheses
from perfbisect.core.inference.observations import Built, Observation, Reading, Skipped
from perfbisect.core.inference.posterior import infer
from perfbisect.core.inference.record import arrange, behaviour
from perfbisect.core.inference.state_space import fit, levels_of
from perfbisect.core.search.decide import decide
from perfbisect.simulate.world import Habits, World

POLICY = Policy()


@st.composite
def states(draw: st.DrawFn) -> tuple[Graph, list[Observation]]:
    """A small history and what a hunt may have seen of it, sense or nonsense."""
    size = draw(st.integers(3, 12))
    rows = [(), *(tuple(sorted({v - 1, draw(st.integers(0, v - 1))}, reverse=True)) for v in range(1, size))]
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    candidates = [0, size - 1, *draw(st.lists(st.integers(1, size - 1), max_size=14))]
    effect, noise = draw(st.sampled_from([0.3, 0.05, 0.0])), draw(st.sampled_from([0.002, 0.03]))
    culprit = draw(st.integers(1, size - 1))
    skipped = draw(st.sets(st.integers(1, size - 2), max_size=3)) - set(candidates)
    seen: list[Observation] = [Skipped(v, "does not build") for v in sorted(skipped)]
    built: set[int] = set()
    for i, v in enumerate(candidates * 2):
        if v not in built:
            built.add(v)
            seen.append(Built(v, 300.0))
        seen.append(Reading(v, rng.normal() * noise - effect * (v >= culprit), float(i), i, 0, 60.0))
    return Graph.of(rows), seen


@given(states())
@settings(max_examples=12, deadline=None)
def test_every_decision(state: tuple[Graph, list[Observation]]) -> None:
    graph, seen = state
    decision = decide(graph, seen, POLICY)
    assert decision.belief.culprit.sum() == pytest.approx(1)
    assert decision.belief.culprit[0] == 0
    assert (decision.belief.culprit >= 0).all()
    again = decide(graph, list(seen), POLICY)
    assert again.order == decision.order
    assert np.array_equal(again.belief.culprit, decision.belief.culprit)
    skipped = {s.candidate for s in seen if isinstance(s, Skipped)}
    match decision.order:
        case Measure(plan):
            assert all(share.runs > 0 for share in plan)
            assert not skipped & {share.candidate for share in plan}
            assert len({share.candidate for share in plan}) == len(plan)
        case Found(step):
            assert step.probability <= CAP
            assert step.ratio.low <= step.ratio.middle <= step.ratio.high < 1
        case Inconclusive(candidates, probabilities):
            assert candidates
            assert max(probabilities) <= CAP


@given(states(), st.randoms(use_true_random=False))
@settings(max_examples=12, deadline=None)
def test_the_order_in_which_simultaneous_facts_arrive_does_not_matter(state, random) -> None:
    graph, seen = state
    shuffled = list(seen)
    random.shuffle(shuffled)  # readings carry their own times
    assert np.allclose(decide(graph, shuffled, POLICY).belief.culprit, decide(graph, seen, POLICY).belief.culprit)


@given(states())
@settings(max_examples=12, deadline=None)
def test_another_unit_of_the_metric_or_another_start_changes_nothing(state) -> None:
    graph, seen = state
    moved = [dataclasses.replace(s, value=s.value + 7.0, at=s.at + 500) if isinstance(s, Reading) else s for s in seen]
    one, other = decide(graph, seen, POLICY), decide(graph, moved, POLICY)
    assert np.allclose(one.belief.culprit, other.belief.culprit, atol=1e-6)


@given(states(), st.randoms(use_true_random=False))
@settings(max_examples=12, deadline=None)
def test_numbering_commits_differently_changes_nothing(state, random) -> None:
    """Any other order with parents before children numbers the same history."""
    graph, seen = state
    parents = [graph.parents_of(v) for v in range(graph.size)]
    placed: list[int] = []
    while len(placed) < graph.size:
        ready = [v for v in range(graph.size) if v not in placed and set(parents[v]) <= set(placed)]
        placed.append(random.choice(ready))
    number = {old: new for new, old in enumerate(placed)}
    renamed = Graph.of([tuple(number[p] for p in parents[old]) for old in placed])
    relabelled = [dataclasses.replace(s, candidate=number[s.candidate]) for s in seen]
    one = decide(graph, seen, POLICY).belief.culprit
    other = decide(renamed, relabelled, POLICY).belief.culprit
    assert np.allclose(one, other[[number[v] for v in range(graph.size)]], atol=1e-7)


@given(states())
@settings(max_examples=12, deadline=None)
def test_classes_lose_nothing(state) -> None:
    """The posterior is the same as when every candidate is a class of its own."""
    graph, seen = state
    record = arrange(seen, POLICY, graph.size - 1)
    groups = hypotheses(graph, record)
    levels = levels_of(fit(record, behaviour(record, 0, graph.size - 1).weight))
    quick = groups.spread(infer(levels, groups, 0.3).culprit)
    possible = np.flatnonzero(groups.weight)
    single = dataclasses.replace(
        groups,
        of=np.where(groups.weight > 0, np.searchsorted(possible, np.arange(graph.size)), -1),
        slow=groups.slow[:, groups.of[possible]],
        prior=groups.weight[possible],
    )
    assert np.allclose(single.spread(infer(levels, single, 0.3).culprit), quick, atol=1e-9)


def test_two_contradicting_readings_do_not_confirm_the_favourite() -> None:
    graph = Graph.line(10)
    ends = [Reading(v, -0.1 * (v > 0) + 0.002 * (i % 3), float(i), i) for i, v in enumerate([0, 10] * 6)]
    before = decide(graph, [*ends, Reading(5, -0.1, 12.5, 99)], POLICY).belief.culprit[:6].sum()
    against = [Reading(5, 0.0, 13.5, 100), Reading(5, 0.002, 14.5, 101)]
    after = decide(graph, [*ends, Reading(5, -0.1, 12.5, 99), *against], POLICY).belief.culprit[:6].sum()
    assert before > 0.9
    assert after < 0.5


def test_one_crazy_run_decides_nothing() -> None:
    graph = Graph.line(10)
    ends = [Reading(v, -0.1 * (v > 0) + 0.002 * (i % 3), float(i), i) for i, v in enumerate([0, 10] * 4)]
    steady = [Reading(5, 0.001 * i, 10.0 + i, 50 + i) for i in range(4)]
    crazy = Reading(5, -0.5, 15.0, 60)
    assert decide(graph, [*ends, *steady, crazy], POLICY).belief.culprit[6:].sum() > 0.95


def test_two_speeds_are_noticed() -> None:
    rng = np.random.default_rng(4)

    def warnings(share: float) -> tuple[str, ...]:
        slow = rng.random(40) < share
        value = rng.normal(size=40) * 0.004 - 0.06 * slow
        seen = [Reading(20 * (i % 2), value[i] - 0.3 * (i % 2), float(i), i) for i in range(40)]
        return decide(Graph.line(20), seen, POLICY).belief.warnings

    assert any("two speeds" in text for text in warnings(0.35))
    assert not any("two speeds" in text for text in warnings(0.0))


def test_a_free_host_gets_an_order_and_leaves_the_candidates_of_others_to_them() -> None:
    world = World(Graph.line(200), {90: -0.2}, Habits(noise=0.005), seed=3)
    seen: list[Observation] = []
    first = decide(world.graph, seen, POLICY).order
    assert (first.host, decide(world.graph, seen, POLICY, fleet=Fleet((first,))).order.host) == (0, 1)
    seen += world.measure(first)
    one = decide(world.graph, seen, POLICY).order
    other = decide(world.graph, seen, POLICY, fleet=Fleet((one,))).order
    assert other.plan[0].candidate != one.plan[0].candidate
    assert (one.host, other.host) == (0, 1)


def test_a_build_that_crashed_after_a_run_is_not_measured_again() -> None:
    ends = [Reading(v, -0.2 * (v > 0) + 0.002 * (i % 3), float(i), i) for i, v in enumerate([0, 3] * 6)]
    seen = [*ends, Reading(1, 0.0, 13.0, 20), Reading(2, -0.2, 14.0, 21), Skipped(2, "crashed")]
    for _ in range(12):
        order = decide(Graph.line(3), seen, POLICY).order
        if not isinstance(order, Measure):
            break
        assert all(share.candidate != 2 for share in order.plan)
        seen += [Reading(s.candidate, -0.2 * (s.candidate > 1), 20.0 + len(seen), len(seen)) for s in order.plan]
    assert isinstance(order, Inconclusive)
    assert 2 in order.candidates


def test_changes_that_were_taken_back_rule_nothing_out() -> None:
    """0 = 6 and 3 = 9 by binary, although 0 and 9 differ."""
    equal = [Built(0, 9.0), Built(3, 9.0), Built(6, 9.0, same_as=0), Built(9, 9.0, same_as=3)]
    runs = [Reading(v, -0.2 * (v > 0), float(i), i) for i, v in enumerate([0, 9] * 4)]
    decision = decide(Graph.line(9), [*equal, *runs], POLICY)
    assert decision.belief.culprit.sum() == pytest.approx(1)
