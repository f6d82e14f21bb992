"""Derives the explanation of a change from the events of a hunt, without other data, so that a report can be made from
the history alone."""

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from statistics import median, variance
from typing import TypeVar

from perfbisect.core.domain.events import (
    ChangedFunctions,
    Counted,
    Event,
    ExplanationEvent,
    Planned,
    Profiled,
    Unexplained,
)
from perfbisect.core.domain.facts import ProfileFacts, RunFacts
from perfbisect.core.domain.metrics import find_metric
from perfbisect.core.domain.orders import Step
from perfbisect.core.domain.session_state import SessionState
from perfbisect.core.explain.calls import (
    MIN_SAMPLES,
    calls_in_one_build,
    instruction_rows,
    locate_difference,
    total_samples,
    without_calls_in_both_builds,
)
from perfbisect.core.explain.classes import classify, different_plans
from perfbisect.core.explain.evidence import (
    EXACT_GROUP,
    Cause,
    CounterRow,
    Evidence,
    Explanation,
    FunctionRow,
    RunsByGroup,
    Sureness,
    counter_rows,
    difference_and_error,
)
from perfbisect.core.explain.functions import NAMED_PART, function_rows, off_cpu_rows
from perfbisect.core.explain.profiles import (
    COUNTED,
    ProfilesOfBoth,
    comparable_profiles,
    non_system_functions,
    waits_by_kind,
)
from perfbisect.core.inference.observations import has_exact_counts
from perfbisect.core.stats.distributions import Z_975, Student

MIN_ROUNDS = 3  # smallest number of rounds of a counter group from which intervals are computed
BUILD_NAMES = ("parent", "culprit")
FUNCTIONS = "functions"  # name of the part that reads which functions the commit changes
NO_RUNS = "no runs"  # detail of an unknown cause
MIN_OPERATIONS = 1000.0  # smallest number of operations of a run of the parent that is derived from a rate or a cost
MAX_OPERATIONS = 1e15  # a run with more operations does not report a speed
MAX_LENGTHENING = 0.2  # runs are of fixed length if their length changes by less than this share of the rate's change
MAX_RATE_CHANGE = math.log(1e6)  # a rate that changes more is not a speed
# Patterns of units: a rate is a number of operations in a second; a cost is the time of one operation.
RATE_UNIT = re.compile(
    r"(?:(?P<what>\S*)/s(?:ec(?:onds?)?)?|(?P<short>q|r|t|io|f|[kMG]?b|[kMG]i?B)ps|[kMG]?Hz)", re.IGNORECASE
)
TIME_UNIT = re.compile(r"(?P<time>ns|[uµ]s|ms|s|sec|seconds)(?:/(?P<what>\S*))?")
SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3}
NOUNS = {
    "q": "queries",
    "r": "requests",
    "req": "requests",
    "t": "transactions",
    "io": "I/Os",
    "op": "operations",
    "ops": "operations",
}
NO_COUNTERS = (
    "Not measured: instructions and cycles, because this host does not count them. More code and slower memory cannot be"
    " distinguished. To measure instructions and cycles, use a host that counts them."
)


RunsOfBoth = tuple[Sequence[RunFacts], Sequence[RunFacts]]  # runs of the parent and of the culprit


def step_explanation(state: SessionState, step: Step) -> Explanation:
    """The explanation of the change at ``step`` (a change that the verdict names), from the whole log of a hunt."""
    runs = state.runs_of_step(step, counted=has_exact_counts(state.log, state.metric))
    parent = state.commits[step.parents[0]] if step.parents else ""
    return explanation(state.explanation_events, parent, state.commits[step.candidate], runs, step, state.metric)


def explanation(
    events: Sequence[ExplanationEvent],
    parent: str,
    culprit: str,
    search_runs: RunsOfBoth = ((), ()),
    step: Step | None = None,
    metric: str = "qps",
) -> Explanation:
    """The explanation of the difference between ``culprit`` and ``parent`` (full hashes).

    ``search_runs`` are the runs of the parent and of the culprit that the search made. If a counter was measured both
    in the search and for the explanation, the ratio with the narrower interval is used (``counter_rows``). If only few
    runs were made for the explanation, the runs of the search are added. Exact counts are always taken from the search,
    because the verdict is based on the exact counts of the search. ``step`` is the change that the verdict states, and
    ``metric`` is the metric of the hunt.
    """
    commits, operation = (parent, culprit), operation_unit(search_runs, metric)
    runs_with_operations = [[with_operation_count(facts, operation, metric) for facts in side] for side in search_runs]
    # If ``operation`` is derived from a rate or a cost, exact counts are left out, because they are for whole runs.
    counted = [event for event in events if isinstance(event, Counted)]
    counted = [event for event in counted if not (operation and event.group == EXACT_GROUP)]
    counted = [replace(event, facts=with_operation_count(event.facts, operation, metric)) for event in counted]
    hunt_profiles = [event.facts for event in profiles_with_operations(events, search_runs, metric)]
    counters = all_counter_rows(runs_with_operations, [runs_by_counter_group(counted, commit) for commit in commits])
    planned = [event.facts for event in events if isinstance(event, Planned)]
    plans = different_plans(*([facts for facts in planned if facts.commit == commit] for commit in commits))
    before, after = ([facts for facts in hunt_profiles if facts.commit == commit] for commit in commits)
    all_profiles, names = comparable_profiles((before, after)), non_system_functions((*before, *after))
    changes = [event.facts for event in events if isinstance(event, ChangedFunctions)]  # only the last event is valid
    change = next((facts for facts in reversed(changes) if (facts.parent, facts.commit) == commits), None)
    profiles, off_cpu = map(sufficient_profiles, (all_profiles, comparable_profiles((before, after), off_cpu=True)))
    functions = function_rows(profiles, change, names)
    waits_of_both = [waits_by_kind(run) for run in off_cpu[0]], [waits_by_kind(run) for run in off_cpu[1]]
    counted_profiles = comparable_profiles((before, after), counted=True)
    counts = instruction_rows(counted_profiles, change)
    if not (counters or plans or functions or counts):
        return Explanation(*commits, (Evidence(Cause.UNKNOWN, None, Sureness.POSSIBLE, detail=NO_RUNS),))
    failures = failures_by_part(events, parent, culprit)
    missing = [f"{part}: {cause}" for part, cause in failures.items()]
    # A failed count of instructions already has its reason in ``missing``.
    if counters and "instructions" not in failures and not any(row.name == "instructions/o" for row in counters):
        missing.append(NO_COUNTERS)
    missing += [change.note] if (functions or counts) and change and change.note else []
    if profiles != all_profiles:
        builds = zip(all_profiles, BUILD_NAMES, strict=True)
        numbers = " and ".join(f"{total_samples(side)} of the {name}" for side, name in builds)
        missing.append(f"profiles: there are {numbers}, and at least {MIN_SAMPLES} samples of each are needed.")
    layouts, location = step.layouts if step else None, locate_difference(profiles, functions, change, names)
    runs = chain(*runs_with_operations) if any(runs_with_operations) else chain(*all_profiles)
    runs_are_operations = all(run.operations == 1 for run in runs)
    slower = (step.ratio.middle < 1) is find_metric(metric).higher_is_better if step else None
    calls = () if location else calls_in_one_build(profiles, functions, change, names)
    return Explanation(
        *commits,
        classify(counters, plans, functions, layouts, metric, slower),
        counters,
        functions=functions,
        location=location and replace(location, calls=without_calls_in_both_builds(location.calls, counts)),
        calls=without_calls_in_both_builds(calls, counts),
        share_without_callers=share_without_callers(chain(*profiles)),
        shared_error=error_shared_by_functions(runs_with_operations, min(map(len, all_profiles))),
        waits=off_cpu_rows(off_cpu, change, names),
        kinds_of_waits=off_cpu_rows(comparable_profiles(waits_of_both, off_cpu=True)),
        counts=counts,
        whole_runs=all(run.operations == 1 for runs in counted_profiles for run in runs),
        operation=operation.name if operation else "run" if runs_are_operations else "operation",
        unit=all_profiles[0][0].unit if functions else "",
        changed=change.functions if change else (),
        paths=change.paths if change and not (change.functions or change.note) else (),
        lines=change.lines if change else (),
        sources=change.files if change else 0,
        change_known=change is not None and change.files > 0 and not change.approximate and not change.note,
        plans=plans,
        missing=tuple(dict.fromkeys(missing)),
        metric=metric,
        layouts=layouts,
    )


def sufficient_profiles(profiles: ProfilesOfBoth) -> ProfilesOfBoth:
    """The profiles of both builds; two empty lists if one build has fewer than ``MIN_SAMPLES`` samples."""
    return profiles if min(map(total_samples, profiles)) >= MIN_SAMPLES else ([], [])


def share_without_callers(runs: Iterable[ProfileFacts]) -> float:
    """The share of the total cost of profiles that belongs to stacks without known callers."""
    costs = [(run.alone, sum(run.stacks.values())) for run in runs]
    return sum(share * cost for share, cost in costs) / (sum(cost for _, cost in costs) or 1.0)


def profiles_with_operations(
    events: Sequence[ExplanationEvent], search_runs: RunsOfBoth, metric: str
) -> list[Profiled]:
    """The profiles of a hunt, with the number of operations of each run (see ``operation_unit``)."""
    operation = operation_unit(search_runs, metric)
    profiled = (event for event in events if isinstance(event, Profiled) and (event.facts.samples or not operation))
    return [replace(event, facts=with_operation_count(event.facts, operation, metric)) for event in profiled]


def all_counter_rows(
    search_runs: Sequence[Sequence[RunFacts]], reason_runs: Sequence[RunsByGroup]
) -> tuple[CounterRow, ...]:
    """The ratios of all counters, from the runs of the search and the runs for the explanation. Each argument has two
    entries: the runs of the parent and the runs of the culprit.
    """
    before, after = reason_runs
    rounds = [min(len(before[group]), len(after[group])) for group in {*before} & {*after} - {EXACT_GROUP}]
    if max(rounds, default=0) < MIN_ROUNDS:
        before, after = ({"": runs, **groups} for runs, groups in zip(search_runs, reason_runs, strict=True))
    parent, culprit = paired_or_all_runs(*search_runs)
    search_rows = counter_rows({"": parent}, {"": culprit})
    exact_rows = search_rows if any(run.counted for run in search_runs[0]) else ()
    names = {row.name for row in exact_rows}
    return (*exact_rows, *(row for row in counter_rows(before, after, search_rows) if row.name not in names))


def paired_or_all_runs(parent: Sequence[RunFacts], culprit: Sequence[RunFacts]) -> RunsOfBoth:
    """The paired runs of parent and culprit if there are at least ``MIN_ROUNDS`` pairs; otherwise all runs."""
    common = {run.round for run in parent if run.round} & {run.round for run in culprit}
    if len(common) < MIN_ROUNDS:
        return parent, culprit
    parents, culprits = ({run.round: run for run in runs} for runs in (parent, culprit))
    return [parents[number] for number in sorted(common)], [culprits[number] for number in sorted(common)]


@dataclass(frozen=True, slots=True)
class OperationUnit:
    """The unit of work of runs that have a fixed duration, so that a faster build does more work in a run."""

    parent_value: float  # the rate or the cost of the parent
    operations_per_run: float  # operations in a run of the parent
    name: str  # the name of an operation: "1,000 requests"


def operation_unit(search_runs: RunsOfBoth, metric: str) -> OperationUnit | None:
    """The operation (unit of work) to which the rate or cost that runs report refers; None if each run is one
    operation, or if the runs report the number of their operations.

    If runs have a fixed duration, the number of operations of a run follows from its rate, or from its cost (the time
    of one operation). Runs have a fixed duration if their wall-clock time or their CPU time is fixed; the CPU time is
    also considered because the wall-clock time varies on a busy host. If the wall-clock time of runs grew as much as
    their rate fell, the runs did the same work more slowly, so their duration is not fixed.
    """
    if metric not in ("rate", "cost") or not all(search_runs):
        return None
    if any(run.operations != 1 or not run.reported or run.reported < 0 for run in chain(*search_runs)):
        return None
    parent_value, culprit_value = (median(run.reported or 0.0 for run in runs) for runs in search_runs)
    # The quotient of the values could overflow; the difference of their logarithms cannot.
    speedup = (math.log(culprit_value) - math.log(parent_value)) * (-1 if metric == "cost" else 1)

    def log_ratio(length: Callable[[RunFacts], float | None]) -> float:
        """The logarithm of the ratio of the median lengths of runs, culprit to parent; infinite if the length of a run
        is missing."""
        before, after = ([length(run) or 0.0 for run in runs] for runs in search_runs)
        return math.log(median(after) / median(before)) if all((*before, *after)) else math.inf

    by_clock, by_cpu = log_ratio(lambda run: run.seconds), log_ratio(lambda run: run.counters.get("task-clock"))
    limit = MAX_LENGTHENING * abs(speedup)
    has_fixed_length = abs(by_clock) < limit or (abs(by_cpu) < limit and abs(by_clock + speedup) >= limit)
    if not has_fixed_length or abs(speedup) > MAX_RATE_CHANGE:
        return None
    seconds = median(run.seconds for run in search_runs[0])
    return operation_of_unit(parent_value, search_runs[0][0].unit, metric, seconds)


def operation_of_unit(value: float, unit: str, metric: str, seconds: float) -> OperationUnit | None:
    """The operation to which a rate or a cost refers; None if unknown. ``value`` (in ``unit``) is the rate or cost of a
    run that takes ``seconds``."""
    if not (match := (TIME_UNIT if metric == "cost" else RATE_UNIT).fullmatch(unit)):
        has_unit = metric != "rate" or bool(unit)
        return None if has_unit else OperationUnit(value, MIN_OPERATIONS, "thousandth of a run of the parent")
    parts = match.groupdict()
    counted_noun = parts["what"] or parts.get("short") or "operations"
    operations = seconds / (value * SECONDS.get(parts["time"], 1.0)) if metric == "cost" else seconds * value
    if not 0 < operations < MAX_OPERATIONS:
        return None
    operations_per_unit = 10.0 ** math.floor(math.log10(operations / MIN_OPERATIONS))
    noun = NOUNS.get(counted_noun.lower(), counted_noun)
    singular = noun.replace("ies", "y").removesuffix("s")
    name = f"{operations_per_unit:,.10g} {noun}" if operations_per_unit != 1 else singular
    return OperationUnit(value, operations / operations_per_unit, name)


Facts = TypeVar("Facts", RunFacts, ProfileFacts)


def with_operation_count(facts: Facts, operation: OperationUnit | None, metric: str) -> Facts:
    """``facts`` with the number of operations of the run, computed from the rate or cost of the run divided by the rate
    or cost of the parent. Facts without a rate or cost are returned unchanged.
    """
    if not operation or not facts.reported:
        return facts
    speedup = operation.parent_value / facts.reported if metric == "cost" else facts.reported / operation.parent_value
    return replace(facts, operations=max(1, round(min(operation.operations_per_run * speedup, MAX_OPERATIONS))))


def error_shared_by_functions(runs_of_builds: Iterable[Sequence[RunFacts]], profiled_pairs: int) -> float:
    """The relative standard error that is common to the cost ratios (culprit to parent) of all functions.

    The speed of a host varies between runs, and this variation changes the costs of all functions by the same factor.
    The error is computed from the variance of the CPU time per operation among runs of the same build.
    ``profiled_pairs`` is the number of profiles of each build. The error is 0.0 if no build has two runs. If there are
    few runs, the error is enlarged by Student's quantile, because the intervals made from the error assume a normal
    distribution. Paired runs are ignored, because each of two paired builds has only a share of the cores.
    """
    clocks = (
        [(run.counters.get("task-clock"), run.operations) for run in side if not run.round] for side in runs_of_builds
    )
    log_times = ([math.log(cpu / operations) for cpu, operations in side if cpu] for side in clocks)
    repeated = [times for times in log_times if len(times) > 1]
    if not (repeated and profiled_pairs):
        return 0.0
    degrees_of_freedom = sum(len(times) - 1 for times in repeated)
    pooled_variance = sum(variance(times) * (len(times) - 1) for times in repeated) / degrees_of_freedom
    return math.sqrt(2 * pooled_variance / profiled_pairs) * Student(degrees_of_freedom).quantile() / Z_975


def failures_by_part(events: Sequence[ExplanationEvent], parent: str, culprit: str) -> dict[str, str]:
    """Maps each part of the explanation (such as "counters") to the last reason why this part could not be measured. A
    part is left out if a later attempt measured the part.
    """
    reasons: dict[str, str] = {}
    for event in events:
        if isinstance(event, Unexplained):
            reasons[event.part] = event.reason
        elif not isinstance(event, ChangedFunctions) or (event.facts.parent, event.facts.commit) == (parent, culprit):
            reasons.pop(explained_part(event), None)
    return reasons


def explained_part(event: Event) -> str:
    """The name of the part of the explanation (such as "counters") to which an event belongs; "" if the event belongs
    to no part."""
    match event:
        case Planned():
            return "plans"
        case Profiled(facts=facts):
            return "waits" if facts.off_cpu else "instructions" if facts.unit == COUNTED else "profiles"
        case Counted(group=group):
            return "instructions" if group == EXACT_GROUP else "counters"
        case ChangedFunctions():
            return FUNCTIONS
        case _:
            return ""


def runs_by_counter_group(events: Sequence[Counted], commit: str) -> RunsByGroup:
    """Maps each group of counters to the runs of a commit with this group, sorted by time."""
    runs: dict[str, list[RunFacts]] = {}
    for event in events:
        if event.facts.commit == commit:
            runs.setdefault(event.group, []).append(event.facts)
    return runs


def is_mostly_by_more_calls(explanation: Explanation) -> bool:
    """Whether most of the additional instructions come from functions that are called more often, not from more
    instructions in each call."""
    extra_by_calls = sum(
        row.parent * (row.calls[1] / row.calls[0] - 1) for row in explanation.counts if row.calls and row.calls[0] > 0
    )
    return 0 < difference_and_error(explanation.counts)[0] / 2 < extra_by_calls


def is_explained_by_change(explanation: Explanation) -> bool:
    """Whether a changed function, or a callee of a changed function, has at least the share ``NAMED_PART`` of the
    difference in CPU time, waiting time or instructions.

    The functions of a binary without symbols count as changed, because a changed function may be among them.
    """
    if explanation.location and explanation.location.top:
        return True
    rows = (
        row
        for row in (*explanation.functions, *waits_if_cause(explanation), *explanation.counts)
        if row.has_changed_code or row.below_changed or row.is_whole_binary
    )
    return any(row.beyond_noise and row.part >= NAMED_PART for row in rows)


def suspected_functions(explanation: Explanation, cost_ratio: float) -> tuple[FunctionRow, ...]:
    """The changed functions, and the functions that changed functions call, for which a share of half of the cost
    difference is compatible with the noise. ``cost_ratio`` is the ratio of the CPU times of the two builds.
    """
    cost_before = sum(row.parent for row in explanation.functions)
    expected_difference = max(abs(difference_and_error(explanation.functions)[0]), abs(cost_ratio - 1) * cost_before)
    rows = () if explanation.counts else explanation.functions
    changed_rows = (row for row in rows if row.has_changed_code or row.below_changed)
    return tuple(row for row in changed_rows if abs(row.difference) + 2 * row.error > expected_difference / 2)


def waits_if_cause(explanation: Explanation) -> tuple[FunctionRow, ...]:
    """The functions in which parent and culprit wait; empty if waiting is not a cause of the change."""
    return explanation.waits if any(evidence.cause is Cause.WAITING for evidence in explanation.classes) else ()
