"""The metric that `--metric auto` chooses."""

import math
from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfbisect.core.domain.facts import RunFacts
from perfbisect.core.domain.settings import COUNTED, Policy
from perfbisect.core.inference.metric_choice import choose
from perfbisect.wording.reasons import metric_sentence

USUAL = Policy(min_counted=COUNTED)
STEADY, UNSTEADY = (1.0, 1.001, 0.999), (1.0, 1.06, 0.95)


def runs(qps: tuple[float, ...], counters: Mapping[str, tuple[float, ...]]) -> list[RunFacts]:
    """Runs of ten seconds at these rates, with these counts of each operation."""
    return [
        RunFacts(
            "c", "key", f"{number}", "host", 100.0 * number, 10.0, round(10_000 * rate), {}, (),
            {name: each[number] * round(10_000 * rate) for name, each in counters.items()}, {},
        )
        for number, rate in enumerate(qps)
    ]  # fmt: skip


def counted(instructions: float) -> list[RunFacts]:
    """Runs in which instructions are counted exactly."""
    each = runs((1.0, 1.0), {})
    return [
        replace(run, counted="valgrind-3.19.0", counters={"instructions": instructions * run.operations})
        for run in each
    ]


def times(factor: float, of: tuple[float, ...]) -> tuple[float, ...]:
    """Each of them, multiplied."""
    return tuple(factor * one for one in of)


def test_counts_that_show_what_rates_hide() -> None:
    good = runs(UNSTEADY, {"instructions": STEADY, "task-clock": UNSTEADY})
    bad = runs(times(0.96, UNSTEADY[::-1]), {"instructions": times(1.04, STEADY), "task-clock": times(1.04, UNSTEADY)})
    choice = choose("qps", good, bad, USUAL)
    assert choice.metric == "instructions/o"
    assert choice.best and choice.best.ratio == pytest.approx(1.04, abs=0.001)
    assert choice.usual and choice.usual.metric == "qps" and not choice.usual.clear(USUAL)


@pytest.mark.parametrize(
    ("slower", "more", "policy"),
    [
        pytest.param(0.8, 1.0, USUAL, id="only rates show it"),
        pytest.param(0.5, 1.01, Policy(min_effect=0.005), id="both are clear, and the rate is worth more"),
        pytest.param(0.97, 0.5, USUAL, id="a better metric is none that shows the change"),
    ],
)
def test_rates_are_taken(slower: float, more: float, policy: Policy) -> None:
    good, bad = (
        runs(STEADY, {"instructions": STEADY}),
        runs(times(slower, STEADY), {"instructions": times(more, STEADY)}),
    )
    assert choose("qps", good, bad, policy).metric == "qps"


def test_without_a_change_or_without_values_it_is_that_of_the_workload() -> None:
    good = runs(UNSTEADY, {"instructions": STEADY, "page-faults": (0.0, 0.0, 0.0)})
    assert choose("latency", good, good, USUAL).metric == "latency"
    assert choose("qps", good, [], USUAL) == choose("qps", [], good, USUAL)
    assert choose("qps", good, [], USUAL).usual is None


@pytest.mark.parametrize(
    ("added", "slower", "rates", "chosen"),
    [
        (0.012, 0.99, UNSTEADY, "instructions/o"),  # far below what such rates show
        (0.012, 1.04, UNSTEADY, "instructions/o"),
        (0.001, 0.99, UNSTEADY, "qps"),  # no change of interest
        (-0.012, 0.99, UNSTEADY, "qps"),
        (0.012, 0.985, STEADY, "instructions/o"),  # as large as rates and layouts of two builds allow
        (0.012, 0.8, STEADY, "qps"),  # the rate shows another, larger change
    ],
)
def test_an_exact_count_is_taken_where_time_allows_so_small_a_change(
    added: float, slower: float, rates: tuple[float, ...], chosen: str
) -> None:
    good = [*runs(rates, {}), *counted(1000.0)]
    bad = [*runs(times(slower, rates[::-1]), {}), *counted(1000.0 * (1 + added))]
    assert choose("qps", good, bad, USUAL).metric == chosen


def test_the_smallest_change_that_was_asked_for_holds_for_counts_too() -> None:
    """And what is too small for it is said, with the option that hunts it."""
    good, bad = ([*runs(UNSTEADY, {}), *counted(count)] for count in (1000.0, 1012.0))
    choice = choose("qps", good, bad, Policy(min_effect=0.02))
    assert choice.metric == "qps"
    assert metric_sentence(choice) == (
        "The metric is QPS: no recorded metric shows a change of interest. instructions/o shows a rise of 1.2 %: to hunt"
        " that, use --min-effect 0.8%."
    )


@given(
    st.sampled_from(["instructions", "branches", "task-clock"]), st.floats(0.03, 2.0),
    st.floats(1.0, 1000.0), st.permutations(range(3)),
)  # fmt: skip
def test_units_and_order_do_not_matter(counter: str, effect: float, unit: float, order: list[int]) -> None:
    good, bad = runs(UNSTEADY, {counter: STEADY}), runs(UNSTEADY, {counter: times(1 + effect, STEADY)})
    first = choose("qps", good, bad, USUAL)
    other = [runs(UNSTEADY, {counter: times(unit * factor, STEADY)}) for factor in (1.0, 1 + effect)]
    again = choose("qps", *([each[place] for place in order] for each in other), USUAL)  # type: ignore[arg-type]
    assert first.metric == again.metric != "qps"
    assert first.best and again.best and math.isclose(first.best.information, again.best.information, rel_tol=1e-6)
