"""Metrics of a run, background work of a workload, differences of hosts, and instructions counted at the ends."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import sample_hunt
from counted import FULL, run
from perfbisect.core.domain.facts import HostFacts, RunFacts, host_differences
from perfbisect.core.domain.metrics import (
    METRICS,
    find_metric,
    largest_client_load,
    metric_value,
    most_delayed_background,
    role_counters,
    share_of_required_rate,
    shown_unit,
)
from perfbisect.core.domain.orders import SAME, UNKNOWN, Inconclusive, Interval, NotReproduced, Reason
from perfbisect.core.domain.settings import COUNTED, Policy
from perfbisect.core.inference.instruction_counts import instruction_change, ratio_of_indistinct_ends
from perfbisect.errors import UsageError
from perfbisect.lab.measure import perf


def test_metric_values_are_per_operation() -> None:
    shown = {"qps": 20_000, "cpu/o": 48.0, "instructions/o": 280_000, "ipc": 2.0, "r/o": 0.005, "wKB/o": 0.25}
    shown |= {"latency": 0.05, "cs/o": 0.6, "p95": 0.09}  # cs/o is of the processes, not of the machine
    assert {metric: metric_value(run(), metric) for metric in shown} == shown
    assert metric_value(run(counters={"context-switches": None}), "cs/o") == 2.0, "of the machine, if perf has no count"


@pytest.mark.parametrize("metric", METRICS)
def test_missing_counter_gives_none_and_zero_operations_no_error(metric: str) -> None:
    empty = run(counters=dict.fromkeys(FULL), system={})
    assert (metric_value(empty, metric) is None) == (metric not in ("qps", "latency", "p95"))
    assert metric_value(run(operations=0), metric) in (None, 0.0, 0.05, 0.09, 2.0)


def test_unknown_metric_error_lists_all_metrics() -> None:
    with pytest.raises(UsageError, match="speed") as wrong:
        find_metric("speed")
    assert all(name in wrong.value.advice for name in METRICS)


def test_directions_events_and_units_of_metrics() -> None:
    assert {name for name, metric in METRICS.items() if metric.higher_is_better} == {"qps", "ipc", "rate", "background"}
    events = {"qps": (), "cs/o": (), "cpu/o": ("task-clock",), "ipc": ("instructions", "cycles")}
    assert {name: METRICS[name].events for name in events} == events, "vmstat counts switches where perf does not"
    assert [shown_unit(name) for name in ("qps", "latency", "p95", "rate", "cpu/o")] == [
        "QPS",
        "ms",
        "QPS",
        "rate",
        "QPS",
    ]


def ten_seconds(batch: float = 0.0, **roles: tuple[float, float]) -> RunFacts:
    """A run of ten seconds. ``roles``: operations done and due; ``batch``: operations of each client's transaction."""
    found: dict[str, float | None] = {}
    for role, (done, due) in roles.items():
        found |= role_counters(role, done, due, due / 10, batch, 1.0, 2.0)
    return replace(sample_hunt.run(0, 0.0), counters=found)


def test_worst_background_is_the_role_furthest_behind() -> None:
    found = most_delayed_background([ten_seconds(query=(5000, 0), insert=(1000, 1000), delete=(900, 1000))])
    assert found and (found.role, found.wanted, found.held, found.sustained) == ("delete", 100.0, 90.0, False)


def test_background_without_a_rate_has_no_share() -> None:
    paceless = ten_seconds(query=(5000, 0), insert=(0, 0))
    assert (
        most_delayed_background([paceless])
        is share_of_required_rate(paceless)
        is metric_value(paceless, "background")
        is most_delayed_background([])
        is None
    )


def test_background_is_sustained_within_one_percent_or_two_transactions() -> None:
    for batch, due, runs, sustained in (
        (0, 1000, [989], False), (0, 1000, [990], True), (0, 1000, [1000], True),
        (10, 500, [490], True), (10, 500, [480], True), (10, 500, [470], False),
        (10, 500, [470, 500], True), (10, 500, [470, 480], False), (10, 500, [480, 480, 480], True),
        (10, 10_000, [9_900], True), (10, 10_000, [9_890], False),
    ):  # fmt: skip
        found = most_delayed_background([ten_seconds(batch, insert=(done, due)) for done in runs])
        assert found and found.sustained is sustained


@given(st.lists(st.tuples(st.floats(0, 1), st.integers(1, 10_000)), min_size=1, max_size=6))
def test_background_of_several_runs_is_summed(runs: list[tuple[float, int]]) -> None:
    """The share is that of all due operations of all runs."""
    facts = [ten_seconds(insert=(share * due, due)) for share, due in runs]
    assert [share_of_required_rate(each) for each in facts] == pytest.approx([share for share, _ in runs])
    found, due = most_delayed_background(facts), sum(due for _, due in runs)
    assert found and found.held / found.wanted == pytest.approx(sum(share * due for share, due in runs) / due)


def test_largest_client_load_is_the_maximum_of_all_runs() -> None:
    shares = [replace(ten_seconds(), counters={"client-busy": share}) for share in (0.2, None, 0.4)]
    assert largest_client_load(shares) == 0.4
    assert largest_client_load([ten_seconds()]) is None


BEFORE = HostFacts("here", "A CPU", 8, 16384, "6.1.0-18", "gcc 12", {"perf": "6.1"}, {"governor": "performance"})


def test_host_differences_state_both_values() -> None:
    after = replace(BEFORE, kernel="6.1.0-22", tools={"perf": "6.1", "git": "2.39"}, settings={"governor": "powersave"})
    assert host_differences(BEFORE, after) == (
        "its kernel was 6.1.0-18 and is 6.1.0-22",
        "its governor was performance and is powersave",
    )
    unknown = replace(BEFORE, tools={}, settings={}, compiler="")
    assert host_differences(BEFORE, replace(BEFORE)) == host_differences(BEFORE, unknown) == ()
    memory = host_differences(BEFORE, replace(BEFORE, memory_mib=8192))
    assert memory == ("its memory was 16,384 MiB and is 8,192 MiB",)
    long, longer = (replace(BEFORE, settings={"mitigations": "x" * size}) for size in (500, 600))
    [mitigations] = host_differences(long, longer)
    assert len(mitigations) < 180


# The change of instructions between good and bad, compared with the change of time.


USUAL = Policy(min_counted=COUNTED)
VARIES = (1.06, 0.95, 1.0)


def executing(*instructions: float, counted: str = "valgrind-3.19.0", operations: int = 1000) -> list[RunFacts]:
    """One run for each number of ``instructions`` per operation."""
    runs = (run(operations, {"instructions": each * operations}) for each in instructions)
    return [replace(each, visit=str(number), counted=counted) for number, each in enumerate(runs)]


HUNTED = [  # increase of instructions, interval of the ratio of the metric, metric
    (0.010, (0.97, 1.00, 1.03), "latency"),  # time shows no change
    (0.010, (0.60, 1.00, 1.60), "latency"),  # time is too noisy
    (0.010, (0.60, 1.00, 1.60), "qps"),
    (0.010, (1.005, 1.02, 1.035), "latency"),  # as large as instructions and the layouts of two builds explain
    (0.010, (0.965, 0.98, 0.995), "qps"),
    (0.003, (0.995, 1.00, 1.015), "latency"),  # a small increase, and time excludes a change of interest
]
NOT_HUNTED = [
    (0.001, (0.97, 1.00, 1.03), "latency"),  # no change of interest
    (-0.010, (0.97, 1.00, 1.03), "latency"),
    (0.003, (0.995, 1.02, 1.05), "latency"),  # a small increase, and time may hide another change
    (0.003, (1.03, 1.05, 1.07), "latency"),  # time shows another change
    (0.010, (0.93, 0.95, 0.97), "qps"),
    (0.010, (0.93, 0.95, 0.97), "latency"),  # time gets better
    (0.010, (1.03, 1.05, 1.07), "qps"),
]


def test_instructions_are_hunted_if_they_may_explain_the_time() -> None:
    for added, time, metric in HUNTED + NOT_HUNTED:
        shown = instruction_change(executing(1000.0, 1000.0), executing(*[1000.0 * (1 + added)] * 2))
        assert shown and shown.are_counts_exact
        hunted = shown.is_clear and shown.is_large(USUAL) and shown.may_explain(Interval(*time), metric, USUAL)
        assert hunted is ((added, time, metric) in HUNTED)


def test_instruction_change_is_clear_if_counts_agree() -> None:
    shown = instruction_change(executing(1000.0), executing(1012.0))
    assert (
        shown
        and shown.is_clear
        and not shown.is_large(Policy(min_effect=0.02))
        and shown.is_large(Policy(min_effect=0.01))
    )
    varying = instruction_change(executing(1000.0, 1003.0), executing(1100.0, 1104.0))
    assert varying and not varying.is_clear, "for example, counts of a program that runs for a fixed time"
    timed = executing(1000.0, 1001.0, counted="")
    assert (
        instruction_change(timed, timed)
        is instruction_change(executing(1000.0), [])
        is instruction_change([], [])
        is None
    ), "too few runs, or no runs"
    blank = [replace(run, counters={}) for run in executing(*VARIES, counted="")]
    assert instruction_change(blank, blank) is None


PERF = "{:.0f},,instructions:u,{:.0f},100.00,,\n812.31,msec,task-clock,812310000,100.00,0.801,CPUs utilized\n"


@pytest.mark.parametrize(("added", "varies", "clear"), [(0.04, 0.002, True), (0.04, 0.02, False), (0.0, 0.002, False)])
def test_instructions_of_timed_runs_are_judged_by_their_variation(added: float, varies: float, *, clear: bool) -> None:
    """The counts are printed by perf for a server, whose instructions cannot be counted exactly."""

    def timed(of: float) -> list[RunFacts]:
        counters = [perf.parse_counters(PERF.format(1e6 * of * (1 + varies * each), 8e8)) for each in (-1, 0.2, 0.8)]
        assert [each["instructions"] for each in counters] == [pytest.approx(1e6 * of, rel=0.05)] * 3
        return [replace(run, counters=each) for run, each in zip(executing(*VARIES, counted=""), counters, strict=True)]

    shown = instruction_change(timed(1.0), timed(1 + added))
    assert shown and not shown.are_counts_exact
    assert (shown.is_clear and shown.is_large(USUAL)) is clear


WIDE = Interval(0.9, 1.0, 1.1)


def test_ends_are_indistinct_if_not_reproduced_or_too_noisy() -> None:
    noisy = Inconclusive((1, 2), (0.5, 0.4), WIDE, Reason.TOO_NOISY)
    others = NotReproduced(SAME, 0.0), replace(noisy, reason=Reason.RUNS_SPENT), None
    unknown = Inconclusive((), (), UNKNOWN, Reason.BAD_UNMEASURABLE)
    asked = [ratio_of_indistinct_ends(verdict) for verdict in (NotReproduced(WIDE, 0.05), noisy, unknown, *others)]
    assert asked == [WIDE, WIDE, *[None] * 4]
