"""Comparison of two profiles by function, with the functions that a commit changes."""

import math
import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from counted import PERIOD, profile
from perfbisect.core.domain.facts import ChangeFacts, ProfileFacts
from perfbisect.core.explain.calls import locate_difference
from perfbisect.core.explain.evidence import (
    NOISE_ERRORS,
    OTHER_FUNCTIONS,
    FunctionRow,
    difference_and_error,
    share_error,
)
from perfbisect.core.explain.functions import MAX_ROWS, function_rows, off_cpu_rows
from perfbisect.core.explain.profiles import comparable_profiles, non_system_functions

Samples = Mapping[tuple[str, ...], int]

NAMES = st.sampled_from(["main", "scan", "search", "insert", "copy", "hash", "log", "copy.cold"])
SAMPLES = st.dictionaries(st.lists(NAMES, min_size=1, max_size=5).map(tuple), st.integers(1, 5000), min_size=1)
HOT = {("main", "scan"): 400, ("main", "scan", "search"): 900, ("main", "insert"): 700, ("main", "insert", "copy"): 500}


def joined(parent: Samples, culprit: Samples, change: ChangeFacts | None = None) -> dict[str, FunctionRow]:
    rows = function_rows(([profile("p", parent)], [profile("c", culprit)]), change)
    return {row.function: row for row in rows}


def changes(*functions: str, callers: Mapping[str, tuple[str, ...]] | None = None) -> ChangeFacts:
    return ChangeFacts("c", "p", functions, callers or {}, files=1)


@given(SAMPLES, SAMPLES, st.integers(1, 10**6), st.integers(1, 10**6))
def test_differences_sum_to_the_total_difference(before: Samples, after: Samples, first: int, second: int) -> None:
    rows = function_rows(([profile("p", before, first)], [profile("c", after, second)]))
    costs = [PERIOD * sum(samples.values()) / count for samples, count in ((before, first), (after, second))]
    assert sum(row.difference for row in rows) == pytest.approx(costs[1] - costs[0], abs=1e-6 * max(costs))
    if not math.isclose(*costs, rel_tol=1e-6):
        assert sum(row.part for row in rows) == pytest.approx(1.0, abs=1e-3)


@given(SAMPLES, st.integers(1, 4))
def test_equal_profiles_have_no_difference(samples: Samples, rounds: int) -> None:
    runs = [profile("p", samples) for _ in range(rounds)]
    rows = function_rows((runs, [replace(run, commit="c") for run in runs]))
    assert all(row.difference == pytest.approx(0.0, abs=1e-6) and not row.partner for row in rows)


@given(SAMPLES, SAMPLES, st.integers(2, 50))
def test_number_of_operations_of_a_run_does_not_matter(before: Samples, after: Samples, factor: int) -> None:
    """A longer run has proportionally more samples: costs per operation stay, and errors decrease."""
    longer = ({stack: factor * number for stack, number in samples.items()} for samples in (before, after))
    p, c = (profile(commit, samples, 1000 * factor) for commit, samples in zip("pc", longer, strict=True))
    usual = joined(before, after)
    for row in function_rows(([p], [c])):
        one = usual[row.function]
        assert (row.parent, row.culprit, row.part) == pytest.approx((one.parent, one.culprit, one.part))
        assert row.error <= one.error


def test_samples_of_one_distribution_are_rarely_beyond_noise() -> None:
    """Tests the coverage of the error, with 4 functions × 100 pairs; by chance, 0.27 % are beyond 3 errors."""
    dice = random.Random(1)

    def drawn(commit: str) -> ProfileFacts:
        return profile(commit, {each: sum(dice.random() < 0.25 for _ in range(4 * n)) for each, n in HOT.items()})

    rows = [row for _ in range(100) for row in function_rows(([drawn("p")], [drawn("c")]))]
    errors = [abs(row.difference) / row.error for row in rows]
    assert sum(each > NOISE_ERRORS for each in errors) <= 0.01 * len(rows)
    within = sum(each <= 1 for each in errors) / len(rows)
    assert 0.6 < within < 0.9, "of binomial counts, whose spread is a little smaller than Poisson's"


def test_varying_rounds_increase_the_error() -> None:
    quiet = [profile("p", HOT)] * 4
    loud = [profile("c", {each: int(n * factor) for each, n in HOT.items()}) for factor in (0.6, 1.5, 0.8, 1.1)]
    steady, varying = (function_rows((quiet, runs)) for runs in ([replace(run, commit="c") for run in quiet], loud))
    errors = [{row.function: row.error for row in rows} for rows in (steady, varying)]
    assert all(errors[1][name] > 3 * errors[0][name] for name in ("scan", "search", "insert"))


def test_suffixes_that_compilers_append_make_no_other_function() -> None:
    rows = joined(HOT, {**HOT, ("main", "scan", "search.cold"): 100, ("main", "scan", "search.part.0"): 300})
    assert rows.keys() == {"scan", "search", "insert", "copy"}
    assert (rows["search"].difference, rows["search"].part) == pytest.approx((400 * PERIOD / 1000, 1.0))


def test_functions_with_one_name_in_two_binaries_are_separate() -> None:
    rows = function_rows(([profile("p", {("f",): 10, ("f@libf.so",): 20})], [profile("c", {("f",): 30})]))
    assert {(row.function, row.binary) for row in rows} == {("f", "engine"), ("f", "libf.so")}


def test_callers_with_most_of_the_cost_are_listed() -> None:
    rows = joined(HOT, {**HOT, ("main", "check", "copy"): 1500, ("main", "copy", "copy"): 10})
    assert (rows["copy"].callers, rows["scan"].callers) == (("check", "insert", "main"), ("main",))
    assert next(iter(rows)) == "copy"


def test_changed_functions_are_marked() -> None:
    rows = joined(HOT, {**HOT, ("main", "scan", "search"): 1500}, changes("search", "Page::insert", "gone"))
    assert [name for name, row in rows.items() if row.changed] == ["search", "insert"]
    other = joined({("B::insert(int)",): 9}, {("B::insert(int)",): 90}, changes("Page::insert"))
    assert not other["B::insert(int)"].changed


def test_changed_function_in_no_profile_marks_its_nearest_callers() -> None:
    """`compare` calls `less`, and is inlined, too. `search` and `sort` call `compare`; `sort` is in no profile."""
    callers = {"less": ("compare",), "compare": ("search", "sort", "compare"), "sort": ("main",)}
    rows = joined(HOT, {**HOT, ("main", "scan", "search"): 1500}, changes("less", callers=callers))
    assert rows["search"].inlined == ("less",)
    assert {name for name, row in rows.items() if row.inlined} == {"search"}
    both = joined(HOT, {**HOT, ("main", "scan", "search"): 1500}, changes("less", "compare", callers=callers))
    assert both["search"].inlined == ("compare", "less"), "the nearest first"
    seen = joined(HOT, {**HOT, ("main", "scan", "search"): 1500, ("less",): 1}, changes("less", callers=callers))
    assert not any(row.inlined for row in seen.values()), "the profiles contain it"


RENAMED = {each: n for each, n in HOT.items() if each[-1] != "search"}


def test_cost_that_moved_to_another_function_is_recognised() -> None:
    search, probe = ("main", "scan", "search"), ("main", "scan", "search", "probe")
    find, low, high = (("main", "scan", name) for name in ("find", "low", "high"))
    cases: list[tuple[Samples, dict[str, str]]] = [
        ({find: 910}, {"search": "find", "find": "search"}),  # another name
        ({("main", "scan"): 1290}, {"search": "scan", "scan": "search"}),  # inlined into its caller
        ({search: 300, probe: 610}, {"search": "probe", "probe": "search"}),  # a part is a function of its own
        ({low: 500, high: 400}, {"search": "low", "low": "search", "high": "search"}),  # split
        ({find: 1900}, {}),  # another name and slower
        ({search: 1500}, {}),  # slower
        ({search: 850, ("main", "scan"): 450}, {}),  # within noise
    ]
    for after, partners in cases:
        rows = joined(HOT, {**RENAMED, **after})
        assert {name: row.partner for name, row in rows.items() if row.partner} == partners


def test_cost_does_not_move_between_unrelated_functions() -> None:
    """One function gains what another loses by chance: neither calls the other, and both profiles contain both."""
    before = {("a", "scan"): 900, ("b", "insert"): 900, ("main",): 4000}
    rows = joined(before, {**before, ("a", "scan"): 1400, ("b", "insert"): 400})
    assert not any(row.partner for row in rows.values())


def test_loss_is_listed_before_a_larger_moved_cost() -> None:
    rows = joined(HOT, {**RENAMED, ("main", "scan", "find"): 905, ("main", "insert"): 1000})
    assert [*rows][:3] == ["insert", "find", "search"]
    assert rows["insert"].part == pytest.approx(300 / 305)


def test_row_of_all_other_functions_completes_the_sum() -> None:
    rows = joined(HOT, {**HOT, **{("main", f"f{number}"): 10 + number for number in range(3 * MAX_ROWS)}})
    assert len(rows) == MAX_ROWS + 1 and [*rows][-1] == OTHER_FUNCTIONS
    assert sum(row.part for row in rows.values()) == pytest.approx(1.0)


def test_error_of_a_share_is_zero_for_the_whole_difference() -> None:
    rows = [*joined(HOT, {**HOT, ("main", "scan", "search"): 1500, ("main", "insert"): 900}).values()]
    total, spread = difference_and_error(rows)
    assert total == pytest.approx(800 * PERIOD / 1000)
    assert 0 < share_error(rows[:1], rows) < spread / total
    assert share_error(rows, rows) == pytest.approx(0.0, abs=1e-9), "the whole is all of it"
    assert share_error(rows[:1], [replace(row, culprit=row.parent) for row in rows]) == math.inf


def test_only_profiles_on_cpu_with_one_unit_are_compared() -> None:
    cycles = replace(profile("p", HOT), unit="cycles")
    waiting = replace(profile("p", HOT), off_cpu=True)
    empty = replace(profile("p", HOT), stacks={})
    assert comparable_profiles(([waiting, empty, cycles, profile("p", HOT)], [profile("c", HOT)]))[0] == [
        profile("p", HOT)
    ]
    assert comparable_profiles(([cycles], [profile("c", HOT)])) == ([], [])
    assert function_rows(comparable_profiles(([], [profile("c", HOT)]))) == ()


def test_placeholder_for_unknown_callers_is_no_caller() -> None:
    """Two functions below the placeholder have no common caller, so no cost has moved between the two."""
    low, high = (
        replace(profile(commit, {}), stacks={"x;[rare stacks];f (x)": f, "x;[rare stacks];g (x)": 1e5 - f})
        for commit, f in (("p", 9e4), ("c", 1e4))
    )
    assert [(row.callers, row.partner) for row in function_rows(([low], [high]))] == [((), ""), ((), "")]


def test_function_that_only_wait_profiles_contain_is_not_inlined() -> None:
    """Nor is a function that only profiles on CPU contain inlined into a function that waits."""
    waits = [replace(profile(commit, {("main", "scan", "less"): 9}), off_cpu=True) for commit in "pc"]
    seen = non_system_functions([profile("p", HOT), *waits])
    change = changes("less", callers={"less": ("search", "scan")})
    slower = profile("c", {**HOT, ("main", "scan", "search"): 1500})
    other = changes("search", callers={"search": ("less",)})
    for known, inlined in (((), True), ((seen,), False)):
        on_cpu = function_rows(([profile("p", HOT)], [slower]), change, *known)
        waiting = off_cpu_rows((waits[:1] * 2, waits[1:] * 2), other, *known)
        assert any(row.inlined for row in on_cpu) is any(row.inlined for row in waiting) is inlined


def test_functions_of_libc_and_the_kernel_are_not_marked_as_changed() -> None:
    """They may have the name of a changed function."""
    before = {("main", "copy@libc.so.6"): 900, ("main", "copy", "schedule@[kernel]", "copy@[kernel]"): 900, **HOT}
    after = {**before, ("main", "copy", "schedule@[kernel]", "copy@[kernel]"): 1900}
    rows = function_rows(([profile("p", before)], [profile("c", after)]), changes("copy"))
    assert {row.binary for row in rows if row.function == "copy" and row.changed} == {"engine"}
    assert [row.below_changed for row in rows if row.function == "copy" and row.binary == "[kernel]"] == ["copy"]
    assert non_system_functions([profile("p", {("main", "copy@libc.so.6"): 1})]) == {"main"}


def test_interrupted_thread_does_not_count_as_waiting() -> None:
    call, switch = "do_syscall_64@[kernel]", "schedule@[kernel]"
    for end, counted in (
        (("fdatasync@libc.so.6", "do_fsync@[kernel]", "io_schedule@[kernel]", switch), True),
        (("asm_sysvec_apic_timer_interrupt@[kernel]", "irqentry_exit_to_user_mode@[kernel]", switch), False),
        ((call, "syscall_exit_to_user_mode@[kernel]", switch, "__schedule@[kernel]"), False),
        ((call, "copy_page@[kernel]", "__cond_resched@[kernel]"), False),
        ((call, "preempt_schedule_irq@[kernel]"), False),
        (("irqentry_exit_of_mine@engine", "schedule_work@engine"), True),
    ):
        stacks = {("main", "copy", *end): 900, ("main", "log", "futex_wait@[kernel]", switch): 100}
        waits = [replace(profile(commit, stacks), off_cpu=True) for commit in "pc"]
        names = {row.function for row in off_cpu_rows((waits[:1] * 2, waits[1:] * 2)) if row.parent}
        assert ({"copy", "schedule_work"} & names != set()) is counted
        assert "log" in names
    stacks = {("main", "copy", "irqentry_exit_to_user_mode@[kernel]", switch): 900}
    waits = [replace(profile(commit, stacks), off_cpu=True) for commit in "pc"]
    assert [row for row in off_cpu_rows((waits[:1] * 2, waits[1:] * 2)) if row.difference] == [], "only interrupted"


def simulated(seed: int, kind: str) -> str:
    """Judges the function named for a random program, in which one function changes by ``kind`` and one is renamed."""
    rng = random.Random(seed)
    parents = {i: rng.choice(range(max(0, i - 6), i)) for i in range(1, 30)}
    paths = {0: (0,)}
    for i, parent in parents.items():
        paths[i] = (*paths[parent], i)
    costs = {i: rng.lognormvariate(0, 1.2) for i in paths}
    total = sum(costs.values())
    below = {f: [i for i, path in paths.items() if f in path and i != f] for f in paths}
    shares = {f: sum(costs[i] for i in (f, *inner)) / total for f, inner in below.items() if f and inner}
    if not (chosen := [f for f, share in shares.items() if 0.05 < share < 0.7]):
        return ""
    f = rng.choice(chosen)
    callee = rng.choice([i for i in below[f] if parents[i] == f])
    factor = {"faster": 0.15, "slower": 3.0, "dearer": 2.5, "own": 1.0}[kind]
    after = {i: cost * (factor if callee in paths[i] else 1.0) for i, cost in costs.items()}
    after[f] += 0.15 * total * (kind == "own")
    names = {i: f"g{i}" if callee in path and kind in ("faster", "slower") else f"f{i}" for i, path in paths.items()}
    leaves = [i for i, inner in below.items() if not inner and f not in paths[i] and costs[i] > 0.01 * total]
    names |= {i: f"renamed{i}" for i in leaves[:1]}
    if abs(sum(after.values()) - total) < 0.04 * total:
        return ""

    def drawn(commit: str, costs: Mapping[int, float], names: Mapping[int, str]) -> list[ProfileFacts]:
        rates = {i: 8000 * cost / total for i, cost in costs.items()}
        runs = ({i: round(rng.gauss(rate, math.sqrt(rate))) for i, rate in rates.items()} for _ in range(2))
        return [
            profile(commit, {tuple(names[i] for i in paths[i]): n for i, n in run.items() if n > 0}) for run in runs
        ]

    old = {i: f"f{i}" for i in paths}
    both = drawn("p", costs, old), drawn("c", after, names)
    renamed = [name for i, name in names.items() if name != old[i]]
    change, seen = changes(old[f], *renamed, *(old[i] for i in leaves[:1])), non_system_functions(chain(*both))
    place = locate_difference(both, function_rows(both, change, seen), change, seen)
    if place is None or place.top is None:
        return "none"
    inside = {name for i in (f, *below[f]) for name in (old[i], names[i])}
    of_diff = {row.function for row in place.changed_functions}
    return (
        "right" if place.top.function in inside or (not place.top.has_changed_code and old[f] in of_diff) else "wrong"
    )


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["faster", "slower", "dearer", "own"])
def test_difference_is_located_in_random_programs(kind: str) -> None:
    """A callee is replaced by a faster or a slower one, or is called more often; or the function itself costs more."""
    found = Counter(filter(None, (simulated(seed, kind) for seed in range(200))))
    assert found["right"] >= 0.94 * found.total() and found["wrong"] <= 0.02 * found.total(), found
