"""Randomized layouts distinguish code placement from changes, in simulated worlds where the usual layout misleads."""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from counted import run
from perfbisect.core.domain.events import BuildFinished, RunFinished
from perfbisect.core.domain.facts import BuildFacts
from perfbisect.core.domain.graph import Graph
from perfbisect.core.domain.measured_log import MeasuredEvent
from perfbisect.core.domain.orders import (
    CodePlacement,
    Found,
    Inconclusive,
    Interval,
    Measure,
    NotReproduced,
    Purpose,
    Reason,
    Step,
)
from perfbisect.core.domain.settings import ChangeDirection, Policy, PriorKnowledge
from perfbisect.core.inference.instruction_counts import step_commit_and_parents, with_count_result
from perfbisect.core.inference.noise_model import correct_to_fast_mode
from perfbisect.core.inference.observations import Built, Observation, Reading
from perfbisect.core.inference.record import Record, arrange_observations
from perfbisect.core.search.randomized_layouts import FEWEST
from perfbisect.simulate.hunt import HuntResult, simulate_hunt
from perfbisect.simulate.world import HostModel, World
from simulated_worlds import decide, found, several

LINE = Graph.straight_history(40)
QUIET = HostModel(noise=0.005, layout=0.002, outliers=0.0)
AGAIN = Policy(layouts=True)
MOVED = frozenset(range(17, 41))  # builds in the slow mode of layout, from commit 17 on


def fresh(seen: Sequence[Observation]) -> list[Reading]:
    return [each for each in seen if isinstance(each, Reading) and each.layout]


def test_verdict_is_code_placement_if_builds_are_linked_again() -> None:
    usual, outcome = (
        simulate_hunt(World(LINE, {}, QUIET, mode_gap=0.15, slow_modes=MOVED, seed=1), rules)
        for rules in (Policy(), AGAIN)
    )
    assert found(usual.verdict).candidate == 17, "without randomized layouts, commit 17 is named"
    assert isinstance(outcome.verdict, CodePlacement) and outcome.verdict.detectable < 0.1
    step = outcome.verdict.step
    assert step.candidate == 17 and step.ratio.high < 0.9
    assert step.layouts and step.layouts.ratio.low > 0.9 and step.layouts.compared >= FEWEST


@pytest.mark.parametrize(
    ("moved", "change", "hosts"),
    [
        *((moved, -0.05, 1) for moved in (MOVED, frozenset(range(17)), frozenset(range(8, 30)), frozenset[int]())),
        *((moved, -0.05, 3) for moved in (MOVED, frozenset[int]())),
        (frozenset[int](), 0.05, 1),  # compared in the direction that is hunted
    ],
)
def test_change_is_found_despite_commits_that_move_code(moved: frozenset[int], change: float, hosts: int) -> None:
    world = World(LINE, {26: change}, replace(QUIET, host_spread=0.02), mode_gap=0.15, slow_modes=moved, seed=2)
    outcome = simulate_hunt(
        world, Policy(layouts=True, direction=ChangeDirection.ANY if change > 0 else ChangeDirection.DROP), hosts=hosts
    )
    step, linked = found(outcome.verdict), fresh(outcome.observations)
    assert step.candidate == 26 and step.layouts
    assert step.layouts.changed >= 0.9 * step.layouts.compared >= 4
    assert (step.layouts.ratio.low if change > 0 else 1 / step.layouts.ratio.high) > 1
    if hosts == 1:  # every run has a layout of its own
        assert len({(seen.candidate, seen.layout) for seen in linked}) == len(linked) >= 2 * FEWEST
        builds = [seen.candidate for seen in outcome.observations if isinstance(seen, Built)]
        assert len(builds) == len({*builds})


@pytest.mark.parametrize(("costs", "accused"), [(1.5, False), (2.4, False), (4.0, True)])
def test_moved_code_is_no_change_up_to_a_factor_of_three(costs: float, accused: bool) -> None:
    """The real change is a later commit, which takes 1.4 times as long in any layout."""
    moved = dict.fromkeys(MOVED, -math.log(costs))
    step = found(simulate_hunt(World(LINE, {26: -math.log(1.4)}, QUIET, layouts=moved, seed=2), AGAIN).verdict)
    assert (step.candidate, step.layouts is None) == ((17, True) if accused else (26, False))


@pytest.mark.parametrize(("drop", "layout", "layouts"), [(-0.15, 0.04, {}), (-0.05, 0.002, {26: 0.025})])
def test_ratio_is_the_mean_over_spread_layouts(drop: float, layout: float, layouts: dict[int, float]) -> None:
    """In the second case, the usual layout is half way between slow and fast."""
    broad = HostModel(noise=0.005, layout=layout, outliers=0.0)
    step = found(simulate_hunt(World(LINE, {26: drop}, broad, layouts=layouts, seed=4), AGAIN).verdict)
    assert step.candidate == 26
    assert step.layouts and step.layouts.ratio.low < math.exp(drop) < step.layouts.ratio.high


def test_no_build_is_linked_again_if_layouts_cannot_matter() -> None:
    """Layouts cannot matter for equal binaries and for exact counts. Equally fast ends are only linked again."""
    exact = HostModel(noise=1e-6, layout=0.0, outliers=0.0)
    same = simulate_hunt(World(Graph.straight_history(1), {}, QUIET, binaries={1: 0}, seed=5), AGAIN)
    counted = simulate_hunt(World(LINE, {26: -0.05}, exact, seed=9), AGAIN, PriorKnowledge(exact=True))
    alike = simulate_hunt(World(LINE, {}, QUIET, seed=5), AGAIN)
    assert isinstance(same.verdict, NotReproduced) and isinstance(alike.verdict, NotReproduced)
    assert found(counted.verdict).candidate == 26
    assert fresh(same.observations) == fresh(counted.observations) == []
    assert alike.builds == 2 and 0 < len(fresh(alike.observations)) <= 30


def test_resumed_hunt_makes_the_same_decisions() -> None:
    outcome = simulate_hunt(World(LINE, {26: -0.05}, QUIET, mode_gap=0.15, slow_modes=MOVED, seed=2), AGAIN)
    seen = outcome.observations
    assert decide(LINE, seen, AGAIN).order == outcome.verdict
    first = seen.index(fresh(seen)[0])
    before = decide(LINE, seen[:first], AGAIN).order
    assert isinstance(before, Measure)
    assert (before.fresh, before.purpose, before.layouts) == (True, Purpose.CONFIRM, None)
    assert {share.candidate for share in before.plan} == {16, 17}
    assert not isinstance(decide(LINE, seen[:first], Policy()).order, Measure)


def test_order_of_further_layouts_has_the_results_so_far() -> None:
    broad = HostModel(noise=0.005, layout=0.03, outliers=0.0)
    seen = simulate_hunt(World(LINE, {26: -0.05}, broad, seed=1), AGAIN).observations
    begin = seen.index(fresh(seen)[0])
    orders = [decide(LINE, seen[:end], AGAIN).order for end in range(begin + 10, len(seen))]
    shown = [order.layouts for order in orders if isinstance(order, Measure) and order.layouts]
    assert shown and shown[-1].compared > shown[0].compared >= FEWEST
    assert shown[-1].ratio != shown[0].ratio


def test_no_culprit_is_named_if_budget_ends_before_other_layouts() -> None:
    def hunted(**rules: int | bool) -> HuntResult:
        return simulate_hunt(World(LINE, {26: -0.05}, QUIET, seed=6), Policy(**rules))  # type: ignore[arg-type]

    usual = hunted()
    short = hunted(layouts=True, max_runs=usual.runs)
    assert isinstance(usual.verdict, Found) and isinstance(short.verdict, Inconclusive)
    assert (short.verdict.reason, short.verdict.candidates) == (Reason.RUNS_SPENT, (26,))
    assert hunted(layouts=True, max_runs=usual.runs + 4).runs <= usual.runs + 4


def test_every_change_is_compared_in_other_layouts() -> None:
    policy = Policy(layouts=True, all_steps=True)
    verdict = simulate_hunt(World(LINE, {10: -0.06, 30: -0.1}, QUIET, seed=7), policy).verdict
    assert several(verdict)[0] == [10, 30]
    assert all(step.layouts and step.layouts.ratio.high < 1 for step in verdict.steps)  # type: ignore[union-attr]


def test_usual_layout_decides_if_a_build_cannot_be_linked_again() -> None:
    outcome = simulate_hunt(World(LINE, {26: -0.05}, QUIET, seed=5), AGAIN)
    begun = next(at for at, seen in enumerate(outcome.observations) if isinstance(seen, Reading) and seen.layout)
    seen = [*outcome.observations[: begun + 1], Built(26, 0.0, fixed=True)]
    usual = [each for each in seen if not (isinstance(each, Reading) and each.layout)]
    decision = decide(LINE, seen, AGAIN)
    assert decision.order == decide(LINE, usual, Policy()).order
    assert (found(decision.order).candidate, found(decision.order).layouts) == (26, None)


# Two modes of layout, fast and slow, are recognised, and other distributions are not mistaken for two modes.


BAD = 9


def record(values: dict[int, list[float]]) -> Record:
    """Interleaved readings of some builds."""
    rows = [(place, build, value) for build, of in values.items() for place, value in enumerate(of)]
    seen = [Reading(v, value, float(at), at, layout=place + 1) for at, (place, v, value) in enumerate(sorted(rows))]
    return arrange_observations(seen, Policy(), BAD)


def drawn(rng: np.random.Generator, level: float, runs: int, gap: float, noise: float = 0.01) -> list[float]:
    slow = np.arange(runs) % 2 == 0  # so that both modes occur
    return (level - gap * slow + noise * rng.normal(size=runs)).tolist()


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.integers(0, 1000), st.floats(0.13, 0.25), st.sampled_from([0.0, -0.05]), st.floats(-3, 8))
def test_readings_of_both_modes_are_brought_to_one_level(seed: int, gap: float, change: float, unit: float) -> None:
    rng = np.random.default_rng(seed)
    values = {0: drawn(rng, unit, 8, gap), BAD: drawn(rng, unit + change, 8, gap)}
    seen = record(values)
    raised, trust = correct_to_fast_mode(seen, 0, BAD)
    certain = trust > 0.5
    assert certain.mean() > 0.8
    for build, level in ((0, unit), (BAD, unit + change)):
        own = [at for at in seen.reading_positions(build) if certain[at]]
        assert raised.value[own] == pytest.approx(level, abs=0.05) and raised.value[own].std() < 0.02


@pytest.mark.parametrize(("spread", "change"), [(0.001, 0.0), (0.02, -0.05), (0.1, -0.05), (0.1, 0.0), (0.2, -0.3)])
@pytest.mark.parametrize("runs", [5, 8, 20])
def test_broad_distribution_is_rarely_mistaken_for_two_modes(spread: float, change: float, runs: int) -> None:
    rng, changed = np.random.default_rng(0), 0
    for _ in range(20):
        seen = record({0: drawn(rng, 2.0, runs, 0.0, spread), BAD: drawn(rng, 2.0 + change, runs, 0.0, spread)})
        changed += bool((correct_to_fast_mode(seen, 0, BAD)[0].value != seen.value).any())
    assert changed <= 1


def test_mode_of_a_single_reading_is_inferred_from_the_ends() -> None:
    rng = np.random.default_rng(1)
    ends = {0: drawn(rng, 0.0, 10, 0.15), BAD: drawn(rng, -0.05, 10, 0.15)}
    for value, fast in ((0.0, 0.0), (-0.05, -0.05), (-0.15, 0.0), (-0.2, -0.05)):
        raised, trust = correct_to_fast_mode(seen := record({**ends, 4: [value]}), 0, BAD)
        [at] = seen.reading_positions(4)
        assert raised.value[at] == pytest.approx(fast, abs=0.02) and trust[at] > 0.9


def test_reading_that_fits_both_modes_hardly_counts() -> None:
    rng = np.random.default_rng(1)
    ends = {0: drawn(rng, 0.0, 20, 0.1), BAD: drawn(rng, -0.1, 20, 0.1)}
    _, trust = correct_to_fast_mode(seen := record({**ends, 4: [-0.1]}), 0, BAD)
    assert trust[seen.reading_positions(4)[0]] < 0.1
    assert trust[seen.reading_positions(0)].min() > 0.5


def test_few_readings_show_no_modes() -> None:
    for runs in (1, 2, 3):
        raised, trust = correct_to_fast_mode(seen := record({0: [0.0, -0.15, 0.0][:runs], BAD: [0.0, -0.15]}), 0, BAD)
        assert (raised.value == seen.value).all() and (trust == 1).all()


COMMITS = ("good", "side", "main", "merge")
ALIKE = Interval(0.98, 1.0, 1.02)
MERGE = Step(3, 0.97, Interval(0.8, 0.85, 0.9), (1, 2))
PLACEMENT = CodePlacement(MERGE, ALIKE, 0.02)


def made(commit: str, binary: str) -> tuple[float, MeasuredEvent]:
    return 0.0, BuildFinished(0, BuildFacts(commit, commit, binary, 1.0, 0, 0, False, ""), None)


def ran(commit: str, instructions: float, counted: str = "perf-user") -> tuple[float, MeasuredEvent]:
    facts = run(counters={"instructions": instructions})
    return 0.0, RunFinished(0, replace(facts, commit=commit, counted=counted))


def test_instruction_counts_are_compared_with_all_parents() -> None:
    merge, side, main = (ran(commit, 1000) for commit in ("merge", "side", "main"))
    one_binary = [made("good", "a"), made("side", "a")]
    for log, same in (
        ([merge, side, main], True),
        ([merge, ran("side", 1001), main], False),
        ([merge, main], None),
        ([side, main], None),
        ([merge, side, ran("main", 1000, counted="")], None),
        ([merge, side, ran("main", 0)], None),
        ([*one_binary, ran("good", 1000), merge, main], True),
        ([made("side", "a"), made("main", "a"), side, merge], True),
    ):
        found = with_count_result(PLACEMENT, COMMITS, log)
        assert isinstance(found, CodePlacement) and found.same_counts is same
    assert step_commit_and_parents(MERGE, COMMITS, []) == ("merge", "side", "main")
    one_of_equal_binaries = step_commit_and_parents(MERGE, COMMITS, [*one_binary, made("main", "a")])
    assert one_of_equal_binaries == ("merge", "good")


def test_other_verdicts_and_step_without_parents_are_unchanged() -> None:
    for verdict in (NotReproduced(ALIKE, 0.02), CodePlacement(Step(3, 0.97, ALIKE, ()), ALIKE, 0.02)):
        assert with_count_result(verdict, COMMITS, [ran("merge", 1000)]) is verdict
