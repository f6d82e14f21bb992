"""From the events of a hunt to the explanation of one of its steps. Pure: reports are made from the history alone.

Statements that the two builds execute in another way: plans are compared without what differs between two servers of
one build, or between versions in wording only: estimates of rows and costs, sizes, possible keys, values of the
statement.
"""

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from statistics import median, variance
from typing import TypeVar

from perfbisect.core.domain.events import ChangedFunctions, Counted, Event, Planned, Profiled, Studied, Unexplained
from perfbisect.core.domain.facts import PlanFacts, ProfileFacts, RunFacts
from perfbisect.core.domain.metrics import find_metric
from perfbisect.core.domain.orders import Step
from perfbisect.core.domain.session_state import SessionState
from perfbisect.core.explain.calls import FEWEST, calls_anywhere, count_rows, place_of, really, samples_of
from perfbisect.core.explain.classes import classify
from perfbisect.core.explain.evidence import (
    EXACT_GROUP,
    Cause,
    CounterRow,
    Evidence,
    Explanation,
    FunctionRow,
    PlanRow,
    Runs,
    Sureness,
    counter_rows,
)
from perfbisect.core.explain.functions import NAMED_PART, function_rows, waiter_rows, whole
from perfbisect.core.explain.profiles import COUNTED, Sides, comparable, functions_in, of_kinds
from perfbisect.core.inference.observations import counted_exactly
from perfbisect.core.stats.distributions import Z_975, Student

ESTIMATES = re.compile(
    r"""
      \s*\((?:cost|actual\ time|actual\ rows|never\ executed)[^()]*\)  # PostgreSQL, and trees of MySQL
    | \s*\(~\d+\ rows?\)                                              # SQLite before 3.8
    | \b(?:rows|filtered|possible_keys)=\S+\ ?                        # the table of MySQL
    """,
    re.VERBOSE,
)
OLD_WORDS = re.compile(r"\b(SCAN|SEARCH) (?:TABLE|SUBQUERY) ")  # SQLite before 3.36
VALUES = re.compile(r"'(?:[^']|'')*'|(?<![\w.])-?\d[\d.]*(?![\w.])|\b0x[0-9a-f]+\b")
COLUMN = re.compile(r"(\b(?:id|key_len)=\d+)")  # a number that is a part of the plan


def comparable_plan(plan: str) -> str:
    """A plan without what is no difference; lines keep their order and how far they are indented."""
    lines = []
    for line in plan.splitlines():
        parts = COLUMN.split(OLD_WORDS.sub(r"\1 ", ESTIMATES.sub("", line)))  # every second one is a column
        lines.append("".join(part if place % 2 else VALUES.sub("?", part) for place, part in enumerate(parts)).rstrip())
    return "\n".join(line for line in lines if line)


def different_plans(parent: Iterable[PlanFacts], culprit: Iterable[PlanFacts]) -> tuple[PlanRow, ...]:
    """The statements whose plan differs, in the order of the culprit's, with both plans as they were printed.

    A statement that only one of the builds has explained is left out: a plan that is missing is no other plan.
    """
    before = {facts.statement: facts.plan for facts in parent}
    both = [(facts.statement, before[facts.statement], facts.plan) for facts in culprit if facts.statement in before]
    return tuple(PlanRow(*row) for row in both if comparable_plan(row[1]) != comparable_plan(row[2]))


ENOUGH = 3  # rounds of groups of counters, from which on they have intervals of their own
SIDES = ("parent", "culprit")
FUNCTIONS = "functions"  # the part that reads what the commit changes
NO_RUNS = "no runs"  # detail of an unknown cause
LEAST_COUNT = 1000.0  # operations of a run of the parent, at least, where they are known by a rate or a cost alone
MOST_OPERATIONS = 1e15  # of a run whose rate is no speed
FIXED = 0.2  # of the change of a rate: a change of the length of runs below that says that they have a fixed length
ABSURD = math.log(1e6)  # change of a rate from which on it is no speed
# What units of a rate or a cost are of: of what is done in a second, or of the time of what is done once.
A_SECOND = re.compile(
    r"(?:(?P<what>\S*)/s(?:ec(?:onds?)?)?|(?P<short>q|r|t|io|f|[kMG]?b|[kMG]i?B)ps|[kMG]?Hz)", re.IGNORECASE
)
A_TIME = re.compile(r"(?P<time>ns|[uµ]s|ms|s|sec|seconds)(?:/(?P<what>\S*))?")
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
    "Not measured: instructions and cycles, because this host does not count them, so more code and slower memory are not told"
    " apart; get it by: a host whose processor counts them."
)


RunSides = tuple[Sequence[RunFacts], Sequence[RunFacts]]  # runs of the parent and of the culprit


def reason(state: SessionState, step: Step) -> Explanation:
    """Why the metric changed at a step, by all that the log of a hunt has.

    Read by what measures the reason, to see whether it is known well enough, by the screen, and by the report.
    """
    runs = state.runs_of(step, exact=counted_exactly(state.log, state.metric))
    parent = state.commits[step.parents[0]] if step.parents else ""
    return explanation(state.studied, parent, state.commits[step.candidate], runs, step, state.metric)


def explanation(
    events: Sequence[Studied],
    parent: str,
    culprit: str,
    usual: RunSides = ((), ()),
    step: Step | None = None,
    metric: str = "qps",
) -> Explanation:
    """Why ``culprit`` differs from ``parent`` (full hashes).

    ``usual`` are the runs of both, parent first, in the search. Of a counter in these and in the runs of the explanation
    the more precise interval is taken (``counter_rows``); the latter are joined by the former where they are few. Exact
    counts are always those of the search: they are what the hunt went by. ``step`` is that of the verdict on ``metric``,
    which is explained.
    """
    commits, work = (parent, culprit), work_of(usual, metric)
    timed = [[done(facts, work, metric) for facts in side] for side in usual]
    found = (event for event in events if isinstance(event, Counted))
    # An exact count is of one run, whatever that does.
    of_operations = (event for event in found if not (work and event.group == EXACT_GROUP))
    counted = [replace(event, facts=done(event.facts, work, metric)) for event in of_operations]
    recorded = [event.facts for event in profiled(events, usual, metric)]
    counters = all_counters(timed, [of_commit(counted, commit) for commit in commits])
    planned = [event.facts for event in events if isinstance(event, Planned)]
    plans = different_plans(*([facts for facts in planned if facts.commit == commit] for commit in commits))
    before, after = ([facts for facts in recorded if facts.commit == commit] for commit in commits)
    profiles, seen = comparable((before, after)), functions_in((*before, *after))
    changes = [event.facts for event in events if isinstance(event, ChangedFunctions)]  # the last is valid
    change = next((facts for facts in reversed(changes) if (facts.parent, facts.commit) == commits), None)
    of_work, off_cpu = map(enough, (profiles, comparable((before, after), off_cpu=True)))
    functions = function_rows(of_work, change, seen)
    kinds = [of_kinds(run) for run in off_cpu[0]], [of_kinds(run) for run in off_cpu[1]]
    of_counts = comparable((before, after), counted=True)
    counts = count_rows(of_counts, change)
    if not (counters or plans or functions or counts):
        return Explanation(*commits, (Evidence(Cause.UNKNOWN, None, Sureness.POSSIBLE, detail=NO_RUNS),))
    failed = not_done(events, parent, culprit)
    missing = [f"{part}: {why}" for part, why in failed.items()]
    # Why instructions were not counted is said where that failed.
    if counters and "instructions" not in failed and not any(row.name == "instructions/o" for row in counters):
        missing.append(NO_COUNTERS)
    missing += [change.note] if (functions or counts) and change and change.note else []
    if of_work != profiles:
        few = " and ".join(f"{samples_of(side)} of the {name}" for side, name in zip(profiles, SIDES, strict=True))
        missing.append(f"profiles: there are {few}, and fewer than {FEWEST} samples say nothing.")
    layouts, place = step.layouts if step else None, place_of(of_work, functions, change, seen)
    of_runs = all(run.operations == 1 for run in (chain(*timed) if any(timed) else chain(*profiles)))
    slower = (step.ratio.middle < 1) is find_metric(metric).higher_is_better if step else None
    return Explanation(
        *commits,
        classify(counters, plans, functions, layouts, metric, slower),
        counters,
        functions=functions,
        place=place and replace(place, calls=really(place.calls, counts)),
        calls=() if place else really(calls_anywhere(of_work, functions, change, seen), counts),
        alone=alone(chain(*of_work)),
        shared=shared_error(timed, min(map(len, profiles))),
        waits=waiter_rows(off_cpu, change, seen),
        kinds_of_waits=waiter_rows(comparable(kinds, off_cpu=True)),
        counts=counts,
        whole_runs=all(run.operations == 1 for runs in of_counts for run in runs),
        operation=work.name if work else "run" if of_runs else "operation",
        unit=profiles[0][0].unit if functions else "",
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


def enough(both: Sides) -> Sides:
    """The profiles of both builds, if each has enough samples."""
    return both if min(map(samples_of, both)) >= FEWEST else ([], [])


def alone(runs: Iterable[ProfileFacts]) -> float:
    """The share of the cost of several runs whose callers were not found."""
    costs = [(run.alone, sum(run.stacks.values())) for run in runs]
    return sum(share * cost for share, cost in costs) / (sum(cost for _, cost in costs) or 1.0)


def profiled(events: Sequence[Studied], usual: RunSides, metric: str) -> list[Profiled]:
    """The profiles of a hunt with the operations that their runs did; see ``work_of``, and ``explanation``."""
    work = work_of(usual, metric)
    found = (event for event in events if isinstance(event, Profiled) and (event.facts.samples or not work))
    return [replace(event, facts=done(event.facts, work, metric)) for event in found]


def all_counters(usual: Sequence[Sequence[RunFacts]], studied: Sequence[Runs]) -> tuple[CounterRow, ...]:
    """The ratios of the counters of both builds, parent first, in the runs of the search and in those for the reason."""
    before, after = studied
    rounds = [min(len(before[group]), len(after[group])) for group in {*before} & {*after} - {EXACT_GROUP}]
    if max(rounds, default=0) < ENOUGH:
        before, after = ({"": runs, **groups} for runs, groups in zip(usual, studied, strict=True))
    parent, culprit = beside(*usual)
    searched = counter_rows({"": parent}, {"": culprit})
    hunted = searched if any(run.counted for run in usual[0]) else ()
    names = {row.name for row in hunted}
    return (*hunted, *(row for row in counter_rows(before, after, searched) if row.name not in names))


def beside(parent: Sequence[RunFacts], culprit: Sequence[RunFacts]) -> RunSides:
    """Paired runs, each beside the other, where there are enough; else all, in order of time."""
    both = {run.round for run in parent if run.round} & {run.round for run in culprit}
    if len(both) < ENOUGH:
        return parent, culprit
    by_round, culprits = ({run.round: run for run in side} for side in (parent, culprit))
    return [by_round[name] for name in sorted(both)], [culprits[name] for name in sorted(both)]


@dataclass(frozen=True, slots=True)
class Work:
    """What stands for an operation where runs have a fixed length, so that a faster one does more of them."""

    value: float  # the rate or the cost of the parent
    each: float  # operations in a run of the parent
    name: str  # of one of them: "1,000 requests"


def work_of(usual: RunSides, metric: str) -> Work | None:
    """What runs do, by their rate or cost; None where that counts nothing: a run stands for an operation then, or has a count.

    A rate counts what is done in runs of a fixed length, a cost if it is the time of what is done once. The length may be of CPU
    time: on a busy host the time by the clock says nothing of it then, but for a run that takes longer by just what its rate fell
    by: it is the same work, and waits.
    """
    if metric not in ("rate", "cost") or not all(usual):
        return None
    if any(run.operations != 1 or not run.reported or run.reported < 0 for run in chain(*usual)):
        return None
    before, after = (median(run.reported or 0.0 for run in side) for side in usual)
    faster = (math.log(after) - math.log(before)) * (-1 if metric == "cost" else 1)  # a quotient may be no number

    def longer(length: Callable[[RunFacts], float | None]) -> float:
        of_parent, of_culprit = ([length(run) or 0.0 for run in side] for side in usual)
        return math.log(median(of_culprit) / median(of_parent)) if all((*of_parent, *of_culprit)) else math.inf

    by_clock, by_cpu = longer(lambda run: run.seconds), longer(lambda run: run.counters.get("task-clock"))
    least = FIXED * abs(faster)
    fixed = abs(by_clock) < least or (abs(by_cpu) < least and abs(by_clock + faster) >= least)
    seconds = median(run.seconds for run in usual[0])
    return counted_by(before, usual[0][0].unit, metric, seconds) if fixed and abs(faster) <= ABSURD else None


def counted_by(value: float, unit: str, metric: str, seconds: float) -> Work | None:
    """What a rate or a cost in that unit counts in so many seconds; None where it counts nothing."""
    if not (found := (A_TIME if metric == "cost" else A_SECOND).fullmatch(unit)):
        return Work(value, LEAST_COUNT, "thousandth of a run before") if metric == "rate" and not unit else None
    parts = found.groupdict()
    what = parts["what"] or parts.get("short") or "operations"
    done = seconds / (value * SECONDS.get(parts["time"], 1.0)) if metric == "cost" else seconds * value
    if not 0 < done < MOST_OPERATIONS:
        return None
    together = 10.0 ** math.floor(math.log10(done / LEAST_COUNT))
    noun = NOUNS.get(what.lower(), what)
    return Work(
        value,
        done / together,
        f"{together:,.10g} {noun}" if together != 1 else noun.replace("ies", "y").removesuffix("s"),
    )


Facts = TypeVar("Facts", RunFacts, ProfileFacts)


def done(facts: Facts, work: Work | None, metric: str) -> Facts:
    """A run with the operations that it did, by its own rate or cost beside the parent's; as it is where these count nothing."""
    if not work or not facts.reported:
        return facts
    faster = work.value / facts.reported if metric == "cost" else facts.reported / work.value
    return replace(facts, operations=max(1, round(min(work.each * faster, MOST_OPERATIONS))))


def shared_error(runs: Iterable[Sequence[RunFacts]], pairs: int) -> float:
    """Relative standard error of all costs of a build together beside those of another, each profiled ``pairs`` times.

    A host works at another speed from run to run: so does the CPU time of an operation vary among ``runs`` of each build.
    0.0 where that is not known; made larger, as intervals go by the normal law, where they are few. Runs in rounds are left out, which share their cores with another build.
    """
    clocks = ([(run.counters.get("task-clock"), run.operations) for run in side if not run.round] for side in runs)
    sides = ([math.log(cpu / operations) for cpu, operations in side if cpu] for side in clocks)
    known = [side for side in sides if len(side) > 1]
    if not (known and pairs):
        return 0.0
    freedom = sum(len(side) - 1 for side in known)
    pooled = sum(variance(side) * (len(side) - 1) for side in known) / freedom
    return math.sqrt(2 * pooled / pairs) * Student(freedom).quantile() / Z_975


def not_done(events: Sequence[Studied], parent: str, culprit: str) -> dict[str, str]:
    """Part → why it could not be measured, as it was last; without those that were measured later."""
    reasons: dict[str, str] = {}
    for event in events:
        if isinstance(event, Unexplained):
            reasons[event.part] = event.reason
        elif not isinstance(event, ChangedFunctions) or (event.facts.parent, event.facts.commit) == (parent, culprit):
            reasons.pop(part_of(event), None)
    return reasons


def part_of(event: Event) -> str:
    """The name of the part to which an event belongs; "" if it is of none."""
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


def of_commit(events: Sequence[Counted], commit: str) -> Runs:
    """The runs of a commit in each group of counters, in order of time."""
    runs: dict[str, list[RunFacts]] = {}
    for event in events:
        if event.facts.commit == commit:
            runs.setdefault(event.group, []).append(event.facts)
    return runs


def by_calls(found: Explanation) -> bool:
    """Whether most of what is executed more is due to more calls: it would be with each call as long as before."""
    more = sum(row.parent * (row.calls[1] / row.calls[0] - 1) for row in found.counts if row.calls and row.calls[0] > 0)
    return 0 < whole(found.counts)[0] / 2 < more


def explained_by_change(found: Explanation) -> bool:
    """Whether a function that the commit changes, or what it calls, has a good part of what was measured by function.

    A binary without symbols may hide one.
    """
    if found.place and found.place.top:
        return True
    rows = (row for row in (*found.functions, *waits_of(found), *found.counts) if row.own or row.below or row.nameless)
    return any(row.beyond_noise and row.part >= NAMED_PART for row in rows)


def may_explain(found: Explanation, ratio: float) -> tuple[FunctionRow, ...]:
    """The functions of the diff that may have half of the difference as far as noise shows; costs became ``ratio`` as large."""
    expected = max(abs(whole(found.functions)[0]), abs(ratio - 1) * sum(row.parent for row in found.functions))
    of_diff = (row for row in found.functions if (row.own or row.below) and not found.counts)
    return tuple(row for row in of_diff if abs(row.difference) + 2 * row.error > expected / 2)


def waits_of(found: Explanation) -> tuple[FunctionRow, ...]:
    """Where both builds wait; empty where that is no reason."""
    return found.waits if any(each.cause is Cause.WAITING for each in found.classes) else ()
