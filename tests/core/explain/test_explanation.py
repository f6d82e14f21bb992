"""The causes that counters and profiles of two builds show, and the sentences about these causes."""

import re
import tomllib
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from counted import BLOATED, FULL, changed, counted, profile, run
from perfbisect.core.domain.events import ChangedFunctions, Profiled, Unexplained
from perfbisect.core.domain.facts import ChangeFacts, PlanFacts, RunFacts
from perfbisect.core.domain.orders import Interval, LayoutRatios, Step
from perfbisect.core.explain.classes import classify, comparable_plan, different_plans
from perfbisect.core.explain.evidence import (
    BACK,
    EXACT_GROUP,
    Cause,
    Evidence,
    Explanation,
    FunctionRow,
    PlanRow,
    Sureness,
    counter_rows,
    share_error,
)
from perfbisect.core.explain.explanation import NO_COUNTERS, explanation
from perfbisect.core.explain.functions import function_rows
from perfbisect.wording.reasons import class_sentence, open_questions
from perfbisect.wording.reasons import reason_sentences as sentences


def sampled(commit: str, reported: float | None = None, **costs: int) -> Profiled:
    """A profile in which `main` calls each function of ``costs``, which has that number of samples."""
    facts = profile(commit, {("main", name): each for name, each in costs.items()}, operations=1 if reported else 1000)
    return Profiled(1, replace(facts, reported=reported))


def explained(parent: list[RunFacts], culprit: list[RunFacts]) -> tuple[Cause, str]:
    found = explanation([], "p", "c", (parent, culprit))
    return found.classes[0].cause, " ".join(sentences(found))


def timed(*operations: int) -> list[RunFacts]:
    """Runs with these numbers of operations, and the same CPU time each."""
    return [run(each, {"task-clock": 9_600.0, "context-switches": 800.0}) for each in operations]


MISSING = changed(140_000, instructions=1.01, cycles=1.43, task_clock=1.43, dTLB_load_misses=6.0)
FROM_STORAGE = {**FULL, "task-clock": 4_800.0, "instructions": 28e9, "cycles": 14e9, "context-switches": 6e4}
BOTH = changed(100_000, instructions=1.5, cycles=1.95, task_clock=2.0)


@pytest.mark.parametrize(
    ("parent", "culprit", "cause", "part"),
    [
        pytest.param([run()] * 3, [BLOATED] * 3, Cause.INSTRUCTIONS, "×1.42", id="more instructions"),
        pytest.param([run()] * 3, [MISSING] * 3, Cause.MEMORY, "by the data TLB … dTLB-load-misses/o ×6.00", id="memory"),
        pytest.param(
            [run()] * 3, [changed(140_000, cycles=1.0, task_clock=1.43)] * 3, Cause.CLOCK, "was slower: ×0.70", id="clock"
        ),
        pytest.param([run()] * 3, [changed(110_000, context_switches=4.0)] * 3, Cause.WAITING, "contention", id="locks"),
        pytest.param(
            [run()] * 3, [run(100_000, FROM_STORAGE, {"r/s": 500.0})] * 3, Cause.WAITING, "storage", id="storage"
        ),
        pytest.param([run()], [BOTH], Cause.INSTRUCTIONS, "also the number of instructions per cycle", id="both"),
        pytest.param([BLOATED], [run()], Cause.INSTRUCTIONS, "fewer instructions per operation", id="an improvement"),
        # a hunt for instructions/o may name a commit that is as fast as its parent
        pytest.param([run()], [changed(200_000, instructions=1.06)], Cause.INSTRUCTIONS, "×1.06", id="at the same speed"),
        # the ratio is computed from means of logarithms: it may change although the medians are equal
        pytest.param(timed(200_000, 200_000, 180_000), timed(200_000, 200_000, 140_000), Cause.UNKNOWN, "", id="equal medians"),
        pytest.param([run()], [], Cause.UNKNOWN, "no runs of both builds", id="no runs of one side"),
        pytest.param([run()] * 2, [run()] * 2, Cause.UNKNOWN, "differs enough", id="the same build twice"),
    ],
)  # fmt: skip
def test_counters_show_the_cause_and_its_evidence(
    parent: list[RunFacts], culprit: list[RunFacts], cause: Cause, part: str
) -> None:
    found, sentence = explained(parent, culprit)
    assert found is cause
    assert all(each in sentence for each in part.split(" … "))


def exactly(instructions: float) -> RunFacts:
    """A run with an exact count of instructions, and no other counter."""
    return replace(run(counters={"instructions": instructions}), counted="valgrind-3.19.0")


def test_exact_instruction_counts_alone_show_code_bloat() -> None:
    for factor, sentence in (
        (1.14, "After this commit, the program executes more instructions per operation (code bloat): ×1.14."),
        (1.00213, "After this commit, the program executes more instructions per operation (code bloat): ×1.0021."),
        (0.5, "After this commit, the program executes fewer instructions per operation: ×0.50."),
    ):
        assert explained([exactly(1e9)], [exactly(factor * 1e9)]) == (Cause.INSTRUCTIONS, sentence)


def test_cpu_time_separates_computing_from_waiting_without_instructions() -> None:
    few = {"task-clock": 9_600.0, "context-switches": 1e5, "instructions": None, "cycles": None}
    idle = run(100_000, {**few, "task-clock": 4_800.0, "context-switches": 2e5})
    cause, sentence = explained([run(counters=few)], [run(100_000, few)])
    assert (
        cause is Cause.UNKNOWN
        and sentence == "Possibly: After this commit, the program mainly computes longer: CPU time per operation ×2.00."
    )
    found = explanation([], "p", "c", ([run(counters=few)], [idle]))
    assert found.classes[0].cause is Cause.WAITING and found.missing == (NO_COUNTERS,)
    failed = Unexplained("instructions", "run: it ended with status 1: no room. Try more")
    found = explanation([failed], "p", "c", ([run(counters=few)], [run(100_000, few)]))
    assert found.missing == (f"instructions: {failed.reason}",), "nothing shows that the host cannot count instructions"
    assert [*open_questions(found)] == [
        "Not measured: instructions, because run: it ended with status 1: no room. Try more"
    ]


def timed_and_counted(cpu: float, instructions: float) -> Explanation:
    """The explanation for a host without counters: timed runs of two builds, and one exact count of each build."""
    exact = [exactly(1e9)], [exactly(instructions * 1e9)]
    parent, culprit = (
        [run(operations, {"task-clock": 9_600.0 * wobble}) for wobble in wobbles]
        for operations, wobbles in ((200_000, (0.99, 1.01, 1.0)), (round(200_000 / cpu), (1.01, 1.0, 0.99)))
    )
    return explanation(counted(*exact, EXACT_GROUP), "p", "c", (parent, culprit))


@pytest.mark.parametrize(
    ("cpu", "instructions", "sentence"),
    [
        (
            1.3,
            1.3,
            r"After this commit, the program executes more instructions per operation \(code bloat\): ×1\.30\.$",
        ),
        (
            1.305,
            1.3,
            r"After this commit, the program executes more instructions per operation \(code bloat\): ×1\.30\.$",
        ),  # cpu/o varies by more than the difference
        (
            1.3,
            1.0,
            r"After this commit, the program takes more CPU time per instruction \(slower memory, or a slower clock\): ×1\.30 \(",
        ),
        (
            1.8,
            1.3,
            r"After this commit, the program takes more CPU time per .*×1\.38 \(.*\); in part also the number of instructions per operation",
        ),
        (
            1.8,
            1.45,
            r"After this commit, the program executes more .*×1\.45; in part also the time of an instruction \(cpu/instruction ×1\.24",
        ),
        (1 / 1.3, 1.0, r"After this commit, the program takes less CPU time per instruction: ×0\.77 \("),
    ],
)
def test_exact_counts_separate_more_from_slower_instructions(cpu: float, instructions: float, sentence: str) -> None:
    found = timed_and_counted(cpu, instructions)
    assert re.search(sentence, " ".join(sentences(found)))
    assert found.missing == ()
    assert {row.name for row in found.counters} >= {"instructions/o", "cpu/o"}


def test_kernel_time_is_not_explained_by_exact_counts_of_user_code() -> None:
    before = {("main", "print"): 3000, ("main", "print", "write@libc.so.6", "vfs_write@[kernel]"): 300}
    after = {**before, ("main", "print", "write@libc.so.6", "vfs_write@[kernel]"): 4500}
    rows = function_rows(([profile("p", before)], [profile("c", after)]))
    counters = timed_and_counted(2.4, 1.0).counters
    texts = [class_sentence(classify(counters, functions=functions)[0]) for functions in (rows, ())]
    assert texts[0].startswith("After this commit, the program takes more CPU time in the kernel: ×2.40 (")
    assert texts[1].startswith("After this commit, the program takes more CPU time per instruction")


def on_a_busy_host(time: float, cpu: float, **counters: float) -> RunFacts:
    """A run of 10 seconds whose operations take ``time`` µs each, of which ``cpu`` µs are CPU time."""
    operations = 1e7 / time
    return run(
        round(operations),
        {"task-clock": cpu * operations / 1000, "context-switches": counters.get("switches", 0.004) * operations},
        {"r/s": counters.get("reads", 0.0) / 10, "wkB/s": counters.get("written", 0.0) / 10},
    )


def test_waiting_on_a_busy_host_is_the_time_beyond_the_usual_slowdown() -> None:
    """Other load makes a CPU second take 3 or 4 s. Only longer times are waiting, even if system calls add CPU time."""
    usual = on_a_busy_host(56.1, 13.5)
    twice = usual, on_a_busy_host(112.2, 27.0)
    synced = on_a_busy_host(56.1, 13.5, written=6000), on_a_busy_host(1522.0, 110.0, switches=1.3, written=31_500)
    locked = on_a_busy_host(55.7, 38.9, reads=20), on_a_busy_host(170.0, 68.2, switches=0.06, reads=41)
    busier = on_a_busy_host(60.7, 12.8), on_a_busy_host(89.6, 18.4)
    computing = on_a_busy_host(56.1, 26.0), on_a_busy_host(135.7, 62.9)
    for (parent, culprit), cause, sentence in (
        (synced, Cause.WAITING, "points to storage"),
        (locked, Cause.WAITING, "points to contention"),  # in spite of a few reads
        *((each, Cause.UNKNOWN, "mainly computes longer") for each in (twice, busier, computing)),
    ):
        found, text = explained([parent] * 3, [culprit] * 3)
        assert found is cause and sentence in text


@pytest.mark.parametrize("metric", ["rate", "cost"])
def test_operations_of_runs_of_fixed_length_follow_from_the_rate(metric: str) -> None:
    """Counters and profiles of both builds have equal totals, but one build did half the work."""
    rates = (4.0, 2.0) if metric == "rate" else (2.0, 4.0)
    before, after = ([replace(run(1), reported=rate, unit="" if metric == "rate" else "s")] * 3 for rate in rates)
    profiled = [sampled("p", reported=rates[0], scan=20, log=80), sampled("c", reported=rates[1], scan=60, log=40)] * 3
    found = explanation(profiled, "p", "c", (before, after), metric=metric)
    assert found.operation == ("thousandth of a run of the parent" if metric == "rate" else "0.001 operations")
    ratios = {row.name: round(row.ratio.middle, 3) for row in found.counters}
    assert (ratios["cpu/o"], ratios["time/o"]) == (2, 2)
    factors = {row.function: row.culprit / row.parent for row in found.functions}
    assert factors == pytest.approx({"scan": 6, "log": 1}, rel=0.01)

    busy = [replace(each, seconds=1.4 * each.seconds) for each in after]  # runs of a fixed CPU time, on a busy host
    assert explanation(profiled, "p", "c", (before, busy), metric=metric).functions == found.functions

    longer = [replace(each, seconds=2 * each.seconds) for each in after]
    fixed_work = explanation(profiled, "p", "c", (before, longer), metric=metric)
    assert (fixed_work.missing, fixed_work.operation) == ((), "run")
    assert [row.ratio.middle for row in fixed_work.counters if row.name == "time/o"] == [pytest.approx(2)]


@pytest.mark.parametrize(
    ("metric", "unit", "ratio", "operation"),
    [
        ("cost", "bytes", 1.27, "run"),  # the size of an output
        ("cost", "", 1.27, "run"),  # without a unit
        ("cost", "ms", 2.0, "operation"),
        ("cost", "ns/op", 2.0, "1,000,000 operations"),
        ("rate", "MB/s", 0.5, "MB"),
        ("rate", "req/s", 0.25, "request"),
        ("rate", "QPS", 0.25, "query"),
        ("rate", "%", 0.7, "run"),  # a compression ratio
    ],
)
def test_unit_of_the_metric_decides_what_an_operation_is(metric: str, unit: str, ratio: float, operation: str) -> None:
    """A wrong choice would multiply counters and costs of functions by the ratio of the metric."""
    value = {"ns/op": 2.0, "ms": 2.0}.get(unit, 400.0)
    sides = [[replace(run(1), reported=each, unit=unit)] * 3 for each in (value, ratio * value)]
    events = [
        sampled(commit, reported=side[0].reported, scan=5000, log=5000)
        for commit, side in zip("pc", sides, strict=True)
    ]
    found = explanation(events, "p", "c", (sides[0], sides[1]), metric=metric)
    [cpu] = [row.ratio.middle for row in found.counters if row.name == "cpu/o"]
    slower = 1.0 if operation == "run" else ratio if metric == "cost" else 1 / ratio
    assert (found.operation, cpu) == (operation, pytest.approx(slower, rel=0.001))
    assert {row.function: row.culprit / row.parent for row in found.functions} == pytest.approx(
        {"scan": slower, "log": slower}, rel=0.001
    )
    work = [
        [replace(each, seconds=each.seconds * length) for each in side]
        for side, length in zip(sides, (1, 1 / ratio), strict=True)
    ]
    if metric == "rate":
        assert explanation(events, "p", "c", (work[0], work[1]), metric=metric).operation == "run"


def test_profiles_with_few_samples_are_not_used() -> None:
    found = explanation([sampled("p", scan=2), sampled("c", scan=40), changes("scan")], "p", "c", ([run()], [BLOATED]))
    assert (found.functions, found.location) == ((), None)
    [sentence] = open_questions(found)
    assert sentence.startswith("Not measured: profiles, because there are 2 of the parent and 40 of the culprit")


@pytest.mark.parametrize(
    ("facts", "sentence"),
    [
        (
            {"paths": ("runtime/syntax/c.vim",)},
            "The commit changes no compiled code: it changes `runtime/syntax/c.vim`.",
        ),
        ({"paths": ("config.c",), "files": 1}, "data, types, or the default of a setting in `config.c`."),
        (
            {"paths": ("list.wren", "list.wren.inc"), "files": 1},
            "no function of C, C++, Rust or Go: it changes `list.wren` and `list.wren.inc`.",
        ),
        ({"paths": ("config.c",), "files": 1, "note": "ctags failed."}, ""),
        (
            {"paths": ("Makefile",), "lines": (("Makefile", "CFLAGS ?= -g -O2", "CFLAGS ?= -g -O3"),)},
            "This commit sets compiler options in `Makefile`: `-O3` in place of `-O2`.",
        ),
        (
            {"paths": ("Makefile",), "lines": (("Makefile", "CFLAGS ?= -g -O2", "CFLAGS ?= -g"),)},
            "This commit sets compiler options in `Makefile`: no `-O2`.",
        ),
        (
            {"paths": ("Makefile",), "lines": (("Makefile", "LIBS = -ltinfo", "LIBS ="), ("Makefile", "a", "b"))},
            "The commit changes no function: in `Makefile`, `LIBS = -ltinfo` is now `LIBS =` (and 1 more line).",
        ),
    ],
)
def test_explanation_describes_a_commit_that_changes_no_function(facts: dict[str, Any], sentence: str) -> None:
    change = ChangedFunctions(1, replace(ChangeFacts("c", "p", ()), **facts))
    lines = sentences(explanation([sampled("p", scan=5000), sampled("c", scan=9000), change], "p", "c"))
    assert lines[-1].endswith(sentence) and len(lines) == 1 + bool(sentence)


@pytest.mark.slow
def test_interval_of_a_share_covers_the_truth_if_the_speed_of_runs_varies() -> None:
    """In each run and profile, one random factor with a standard deviation of 2 % multiplies all costs."""
    random, trials, held = Random(6), 400, 0

    def off() -> float:
        return random.lognormvariate(0, 0.02)

    def drawn(commit: str, **costs: int) -> Profiled:
        speed = off()
        return sampled(
            commit, **{name: round(each * random.gauss(1, each**-0.5) * speed) for name, each in costs.items()}
        )

    for _ in range(trials):
        sides = [[replace(run(1000), counters={"task-clock": 10.0 * off()}) for _ in range(6)] for _ in "pc"]
        profiled = [drawn("p", scan=3000, log=5000, sort=2000), drawn("c", scan=5400, log=5000, sort=2800)]
        found = explanation(profiled, "p", "c", (sides[0], sides[1]))
        [row] = [row for row in found.functions if row.function == "scan"]
        held += abs(row.part - 0.75) <= 1.96 * share_error([row], found.functions, found.shared_error)
    assert 0.93 <= held / trials <= 0.985, held


LOSS, RISE = Step(2, 0.97, Interval(0.9, 0.95, 0.99), (1,)), Step(2, 0.97, Interval(1.01, 1.012, 1.014), (1,))


def busy(*times: float) -> list[RunFacts]:
    return [on_a_busy_host(time, 20.0) for time in times]


def test_explanation_is_for_the_metric_of_the_hunt() -> None:
    """Counts rose by 1.2 %. The waits of the timed runs are shorter by chance."""
    events = counted(busy(56.0, 60.0, 58.0), busy(50.0, 57.0, 48.0))
    found = explanation(events, "p", "c", ([exactly(1e9)], [exactly(1.012e9)]), RISE, "instructions/o")
    assert sentences(found) == (
        "After this commit, the program executes more instructions per operation (code bloat): ×1.012.",
    )
    assert [each.cause for each in found.classes] == [Cause.INSTRUCTIONS]


def test_counter_ratio_whose_interval_contains_1_is_no_cause() -> None:
    found = explanation([], "p", "c", (busy(55.0, 62.0, 50.0), busy(60.0, 58.0, 59.0)), LOSS)
    assert [each.cause for each in found.classes] == [Cause.UNKNOWN] and not found.classes[0].rows


MORE_CPU = replace(RISE, ratio=Interval(1.19, 1.2, 1.21))


def test_waiting_is_a_cause_only_if_the_metric_includes_waiting() -> None:
    for parent, culprit, step, metric, cause in (
        ((50.0, 20.0), (60.0, 20.0), LOSS, "qps", Cause.WAITING),
        ((60.0, 20.0), (50.0, 20.0), LOSS, "qps", Cause.UNKNOWN),  # a shorter wait explains no loss
        ((50.0, 20.0), (99.0, 24.0), LOSS, "qps", Cause.WAITING),  # most of the loss is waiting
        ((50.0, 20.0), (99.0, 24.0), MORE_CPU, "cpu/o", Cause.UNKNOWN),  # CPU time includes no waiting
        ((50.0, 10.0), (60.0, 10.005), LOSS, "qps", Cause.WAITING),  # the change of CPU time is tiny, and has no weight
    ):
        sides = [on_a_busy_host(*parent)] * 3, [on_a_busy_host(*culprit)] * 3
        assert explanation([], "p", "c", sides, step, metric).classes[0].cause is cause


WHOLE = ChangeFacts("c", "p", ("search",), files=1)


def test_change_is_known_only_if_the_whole_diff_was_read() -> None:
    parts = ({"files": 0}, {"approximate": True}, {"note": "1 of 2 source files …"}, {"parent": "q"})
    incomplete = [replace(WHOLE, **part) for part in parts]  # type: ignore[arg-type]
    for events in ([], *([ChangedFunctions(2, change)] for change in (WHOLE, *incomplete))):
        found = explanation(events, "p", "c", ([run()], [BLOATED]))
        assert found.change_known is (events == [ChangedFunctions(2, WHOLE)])


def test_later_reading_of_the_diff_replaces_an_earlier_failure() -> None:
    failed, read = Unexplained("functions", "git failed."), ChangedFunctions(2, WHOLE)
    other = ChangedFunctions(3, replace(WHOLE, commit="d", parent="c"))
    missing = ("functions: git failed.",)
    for events, expected in (((failed, read), ()), ((read, failed), missing), ((failed, other), missing)):
        assert explanation(events, "p", "c", ([run()], [BLOATED])).missing == expected


def test_function_that_is_in_off_cpu_stacks_is_not_inlined() -> None:
    on_cpu = [sampled("p", search=900), sampled("c", search=1500)]
    waits = [Profiled(1, replace(profile(commit, {("less",): 9}), off_cpu=True)) for commit in "pc"]
    change = ChangedFunctions(2, replace(WHOLE, functions=("less",), callers={"less": ("search",)}))
    for events, inlined in (([*on_cpu, *waits, change], ()), ([*on_cpu, change], ("less",))):
        assert [row.inlined for row in explanation(events, "p", "c").functions] == [inlined]


CODE = {**FULL, "L1-icache-load-misses": 1e8, "iTLB-load-misses": 1e6}
MOVED = {**CODE, "cycles": 30e9, "task-clock": 10_200.0, "L1-icache-load-misses": 3e8}


def placed(functions: tuple[FunctionRow, ...] = (), layouts: LayoutRatios | None = None) -> Cause:
    slower = run(190_000, {name: value * 0.95 for name, value in MOVED.items()})
    rows = counter_rows({"": [run(200_000, CODE)] * 3}, {"": [slower] * 3})
    return classify(rows, functions=functions, layouts=layouts)[0].cause


def test_equal_instructions_and_more_front_end_misses_suggest_layout() -> None:
    assert placed() is Cause.LAYOUT
    even = Interval(0.9, 0.95, 0.99)
    assert placed(layouts=LayoutRatios(even, 8, 8)) is Cause.MEMORY, "the build was as slow in other layouts"
    assert placed(layouts=LayoutRatios(even, 8, 4)) is Cause.LAYOUT
    own = FunctionRow("f", "engine", 1.0, 2.0, part=0.9, changed=True)
    assert placed((own,)) is Cause.MEMORY, "a function that the commit changes has the loss"


def test_profiles_name_the_function_without_counters() -> None:
    loss = FunctionRow("f", "engine", 1000.0, 2000.0, error=10.0, part=1.0, changed=True)
    alone = Explanation("p", "c", (Evidence(Cause.UNKNOWN, None, Sureness.POSSIBLE),))
    assert sentences(alone)[0].startswith("No counter except time differs enough")
    assert sentences(replace(alone, functions=(loss,), unit="us"))[0].endswith("`f`, which this commit changes.")


def test_note_on_unnamed_functions_says_how_to_get_names() -> None:
    for binary, how in (("jit", "perf-PID.map"), ("kv", "linking without -s")):
        rows = (FunctionRow(f"[{binary}]", binary, 1000.0, 2000.0, error=10.0, part=1.0),)
        [sentence] = open_questions(Explanation("p", "c", functions=rows, unit="us"))
        assert sentence.startswith("Not known: which ") and how in sentence


def test_changed_query_plan_is_the_first_cause() -> None:
    found = classify(counter_rows({"": [run()]}, {"": [BLOATED]}), plans=(PlanRow("SELECT", "index", "scan"),))
    assert [each.cause for each in found] == [Cause.PLAN, Cause.INSTRUCTIONS]
    assert sentences(Explanation("p", "c", found))[0].startswith("The server executes a statement differently")


def changes(function: str) -> ChangedFunctions:
    return ChangedFunctions(1, ChangeFacts("c", "p", (function,), files=1))


@pytest.mark.parametrize(
    ("layouts", "tail"),
    [
        (
            LayoutRatios(Interval(0.93, 0.95, 0.97), 12, 11),
            "the placement of code (0.950 (0.930–0.970) in 12 layouts).",
        ),
        (LayoutRatios(Interval(0.93, 0.98, 1.03), 12, 7), "and waiting (time/cpu 1.001 (0.999–1.003))."),
        (None, "Not excluded: the placement of code, because only the usual layout was measured."),
    ],
)
def test_excluded_causes_are_listed_if_no_changed_function_is_slower(layouts: LayoutRatios | None, tail: str) -> None:
    """Each excluded cause is listed with its figures."""
    profiles = sampled("p", scan=5000), sampled("c", scan=5600)
    wobbles = (0.998, 1.0, 1.003)
    parent, culprit = (
        [changed(operations, instructions=count, cycles=1.0, task_clock=cpu * wobble) for wobble in wobbles]
        for operations, count, cpu in ((200_000, 1.0, 1.0), (180_000, 1.0001, 1.11))
    )
    of_another, its_own = (
        explanation([*profiles, changes(name)], "p", "c", (parent, culprit), replace(LOSS, layouts=layouts))
        for name in ("insert", "scan")
    )
    assert sentences(of_another)[-1].endswith(
        " of the loss is in `scan`, which this commit does not change; this commit changes `insert`."
    )
    unprofiled = explanation([changes("insert")], "p", "c", (parent, culprit), replace(LOSS, layouts=layouts))
    assert len(sentences(unprofiled)) == 1, "without profiles, functions are not excluded"
    sentence = " ".join(open_questions(of_another))
    assert sentence.startswith("Excluded: the number of instructions per operation (")
    assert sentence.endswith(tail)
    assert not [*open_questions(its_own)]
    change = changes("insert")
    option = replace(change, facts=replace(change.facts, lines=(("Makefile", "LIBS = -lm -lreadline", "LIBS = -lm"),)))
    linked = explanation([*profiles, option], "p", "c", (parent, culprit), replace(LOSS, layouts=layouts))
    assert sentences(linked)[-1] == "Outside of functions, in `Makefile`, `LIBS = -lm -lreadline` is now `LIBS = -lm`."
    slow = replace(
        changes("scan"), facts=replace(change.facts, lines=(("Makefile", "CFLAGS = -g -O3", "CFLAGS = -g -O0"),))
    )
    unoptimised = explanation([*profiles, slow], "p", "c", (parent, culprit), replace(LOSS, layouts=layouts))
    assert sentences(unoptimised)[-1] == "This commit sets compiler options in `Makefile`: `-O0` in place of `-O3`."


def test_changed_function_is_not_excluded_if_profiles_are_noisy() -> None:
    parent, culprit = (
        [changed(count, instructions=1.0, cycles=1.0, task_clock=1.0)] * 3 for count in (200_000, 190_000)
    )
    events = sampled("p", scan=900, hash=100), sampled("c", scan=900, hash=105), changes("hash")
    even = LayoutRatios(Interval(0.93, 0.95, 0.97), 12, 11)
    note, _ = open_questions(explanation(events, "p", "c", (parent, culprit), replace(LOSS, layouts=even)))
    assert note.startswith("Not known: whether the change is in `hash`, because profiles are too noisy. To find out: ")


def test_causes_of_runs_recorded_on_three_processors() -> None:
    """pairs.toml has one run of each of two builds. perf counted for a part of the time, so that no cause is sure."""
    main, rows = {}, {}
    for name, pair in tomllib.loads(Path(__file__).with_name("pairs.toml").read_text()).items():
        culprit, parent = (
            replace(
                run(each["operations"], each["counters"], {}), seconds=each["seconds"], running=each.get("running", {})
            )
            for each in pair
        )
        main[name] = explanation([], "p", "c", ([parent], [culprit])).classes[0]
        rows[name] = {row.name: row.ratio.middle for row in counter_rows({"": [parent]}, {"": [culprit]})}
    intel, amd, arm = "intel-ice-lake", "amd-zen-4", "arm-neoverse-v3ae"
    assert {name: each.cause for name, each in main.items()} == {
        intel: Cause.MEMORY,  # the build clears pages with fewer instructions, but through the caches
        amd: Cause.INSTRUCTIONS,  # code without branches, with more instructions
        arm: Cause.MEMORY,  # false sharing
    }
    assert {each.sure for each in main.values()} == {Sureness.POSSIBLE}
    assert rows[intel][BACK] == pytest.approx(1.079, abs=0.001)
    assert rows[intel]["instructions/o"] == pytest.approx(0.9932, abs=0.0001)
    assert main[arm].detail == "first-level data cache"
    assert [row.name for row in main[arm].rows] == ["ipc", "L1-dcache-load-misses/o"]


def plan(text: str, statement: str = "SELECT k FROM sbtest1 WHERE k BETWEEN ? AND ?") -> PlanFacts:
    return PlanFacts("a", "key", "here", statement, text)


def test_plans_differ_only_if_their_operations_differ() -> None:
    """plans.txt has pairs of plans that differ in estimates, values and wording only, and pairs that differ."""
    alike, others = Path(__file__).with_name("plans.txt").read_text().strip().split("## another plan")
    for one, other in (pair.split("\n=\n") for pair in alike.split("\n\n")[1:-1]):
        assert comparable_plan(one) == comparable_plan(other)
        assert different_plans([plan(one)], [plan(other)]) == ()
    for one, other in (pair.split("\n=\n") for pair in others.strip().split("\n\n")):
        [row] = different_plans([plan(one)], [plan(other)])
        assert (row.parent, row.culprit) == (one, other)


def test_plans_are_compared_per_statement() -> None:
    parent = [plan("SCAN a", "one"), plan("SCAN b", "two"), plan("SCAN c", "only there")]
    culprit = [plan("SEARCH b", "two"), plan("SCAN a", "one"), plan("SCAN d", "only here")]
    assert [row.statement for row in different_plans(parent, culprit)] == ["two"]
