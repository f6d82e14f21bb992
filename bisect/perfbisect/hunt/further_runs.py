"""Runs that a hunt makes before or after its search. Runs that the log already has are not repeated.

With `--metric auto`, if the ends differ in instructions but not in time, the hunt continues with instructions as its
metric. A host that can count instructions exactly counts the instructions of the ends in further runs. For all other
hosts, the hunt uses the instructions that perf has counted during the timed runs.

Runs after a verdict do not change the verdict, but give further facts about the commit that the verdict names:

* If exact counts of instructions have named a culprit, the culprit and its parents are also timed. The report then says
  whether the operations per second confirm the culprit.
* If the verdict is code placement, the instructions of the commit and of its parents are counted, if the hosts can
  count exactly. The report then says whether the commit executes as many instructions as its parents.
"""

import math
from collections.abc import Callable, Generator, Sequence
from dataclasses import replace

from perfbisect.core.domain.events import CandidateSkipped, Event, LabEvent, MetricChosen, RunFinished, Warned
from perfbisect.core.domain.facts import RunFacts
from perfbisect.core.domain.metrics import INSTRUCTIONS
from perfbisect.core.domain.orders import CodePlacement, Found, Interval, Measure, PlannedRuns, Purpose, Verdict
from perfbisect.core.domain.settings import COUNTED, ChangeDirection
from perfbisect.core.inference.instruction_counts import (
    COUNTS,
    InstructionChange,
    instruction_change,
    step_commit_and_parents,
)
from perfbisect.errors import EnvironmentFailure, UsageError
from perfbisect.hunt.loop import Append, FixedPlan, run
from perfbisect.hunt.search_problem import SavedLog, SearchProblem, TimedEvent, WorkersFor
from perfbisect.hunt.setup import SessionSetup
from perfbisect.lab.measure.counting import PERF, can_set_length
from perfbisect.wording.unnamed import ignored_instructions_warning, metric_switch_sentence


def append_after_verdict(log: SavedLog) -> Append[LabEvent, TimedEvent]:
    """A function that stores the events of runs after a verdict. If a build or run fails, the function stores a
    warning, not a skipped candidate: the earlier runs of a skipped candidate are excluded, but the verdict is based on
    these runs.
    """

    def append(event: Event, _: int | None) -> TimedEvent:
        if isinstance(event, CandidateSkipped):
            event = Warned(f"commit {event.facts.commit[:10]} is not measured further: {event.facts.reason}")
        return log.append(event)

    return append


def order_of_missing_runs(
    problem: SearchProblem,
    log: SavedLog,
    nodes: Sequence[int],
    runs_each: int,
    *,
    counted: bool = False,
    purpose: Purpose = Purpose.ENDS,
) -> Measure | None:
    """The work order (the description of the next measurement) for the runs that are missing until each of ``nodes``
    has ``runs_each`` runs. The result is None if no run is missing, or if the hunt's limit of runs does not allow all
    missing runs.
    """
    missing = {node: runs_each - len(runs_of(log, problem.commits[node], counted=counted)) for node in nodes}
    plan = tuple(PlannedRuns(node, runs) for node, runs in missing.items() if runs > 0)
    runs = sum(share.runs for share in plan) + sum(isinstance(event, RunFinished) for _, event in log.entries)
    return Measure(plan, purpose) if plan and runs <= (problem.policy.max_runs or math.inf) else None


def runs_of(log: SavedLog, commit: str, *, counted: bool = False) -> list[RunFacts]:
    """The timed runs of a commit or, if ``counted`` is true, its runs in which the instructions were counted exactly."""
    finished = (event.facts for _, event in log.entries if isinstance(event, RunFinished))
    return [facts for facts in finished if facts.commit == commit and bool(facts.counted) is counted]


def count_instructions(
    order: Measure, problem: SearchProblem, append: Append[LabEvent, TimedEvent], workers: WorkersFor
) -> Generator[TimedEvent]:
    """Carry out a work order by runs in which instructions are counted exactly. If the host cannot count, the function
    yields a warning, and the hunt goes on."""
    try:
        yield from run(FixedPlan(iter([order])), append, workers(problem.commits))
    except (EnvironmentFailure, UsageError) as error:
        yield append(Warned(f"Instructions are not counted exactly: {error}", error.advice), None)


TIMED_RUNS = 6  # number of timed runs of a culprit that exact counts have named, and of each parent
COUNTED_RUNS = 1  # number of counted runs of each build if builds differ by code placement


def confirming_runs(
    verdict: Verdict, problem: SearchProblem, log: SavedLog, workers: WorkersFor
) -> Generator[TimedEvent]:
    """If the verdict is a culprit that exact counts have named, make timed runs of the culprit and its parents. If the
    verdict is code placement, count the instructions of the named commit and its parents."""
    match verdict:
        case Found(step):
            nodes = (step.candidate, *step.parents)
            if order := order_of_missing_runs(problem, log, nodes, TIMED_RUNS, purpose=Purpose.CONFIRM):
                yield from run(FixedPlan(iter([order])), append_after_verdict(log), workers(problem.commits))
        case CodePlacement(step):
            shas = step_commit_and_parents(step, problem.commits, log.entries)
            nodes = tuple(problem.commits.index(sha) for sha in shas)
            if order := order_of_missing_runs(problem, log, nodes, COUNTED_RUNS, counted=True, purpose=Purpose.CONFIRM):
                yield from count_instructions(order, problem, append_after_verdict(log), workers)
        case _:
            pass


MAX_COUNTED_SECONDS = 10.0  # a command that runs longer, and whose length cannot be set, is too slow under valgrind


def setup_by_instructions(
    setup: SessionSetup,
    problem: SearchProblem,
    log: SavedLog,
    time_ratio: Interval,
    workers_of: Callable[[SessionSetup], WorkersFor],
    *,
    has_ended: bool,
) -> Generator[TimedEvent, None, SessionSetup | None]:
    """The setup with which a hunt continues, with instructions as its metric; None if the instructions of good and bad
    do not differ, do not explain the change, or cannot be counted. The settings of this setup replace the stored
    settings of the hunt. ``time_ratio`` is the ratio of bad to good in the hunt's metric so far, and ``has_ended`` is
    true if the search by this metric has ended. If an interrupted hunt is resumed, counts that the log already has are
    not repeated.
    """
    settings = setup.settings
    policy = replace(settings.policy, direction=ChangeDirection.RISE)
    by_instructions = replace(settings, metric=INSTRUCTIONS, choose_metric=False, policy=policy)
    changed = setup.for_settings(replace(by_instructions, prior=replace(settings.prior, noise=None)))
    exact = changed.settings.prior.exact
    counted = runs_of(log, problem.commits[0], counted=True)
    if settings.metric == INSTRUCTIONS or (exact and not counted and is_too_long_to_count(changed, problem, log)):
        return None
    difference = yield from instruction_change_of_ends(problem, log, workers_of(changed) if exact else None)
    if difference is None or not difference.is_clear:
        return None
    if not difference.is_large(policy) or not difference.may_explain(time_ratio, settings.metric, policy):
        if has_ended and difference.ratio > 1 + COUNTED:
            yield log.append(Warned(*ignored_instructions_warning(difference, settings.metric, policy)))
        return None
    changed = replace(changed, settings=replace(changed.settings, run_hash=changed.run_hash(changed.workload)))
    with log.history.transaction():
        log.history.update_settings(log.hunt, changed.settings)
        reason = metric_switch_sentence(difference, settings.metric, time_ratio)
        chosen = log.append(MetricChosen(INSTRUCTIONS, reason, settings.metric))
    yield chosen
    return changed


def is_too_long_to_count(setup: SessionSetup, problem: SearchProblem, log: SavedLog) -> bool:
    """Whether instructions are not counted because runs under valgrind would take too long. This is the case if the
    workload is a command with a fixed amount of work, whose shortest timed run took 10 s or more.
    """
    runs = runs_of(log, problem.commits[0])
    by_valgrind = any(site.count_method != PERF for site in setup.hosts) and not can_set_length(setup.workload)
    return by_valgrind and min((run.seconds for run in runs), default=0.0) >= MAX_COUNTED_SECONDS


def instruction_change_of_ends(
    problem: SearchProblem, log: SavedLog, counting_workers: WorkersFor | None
) -> Generator[TimedEvent, None, InstructionChange | None]:
    """The difference of good and bad in instructions; None if the difference is unknown. ``counting_workers`` are the
    workers that count instructions exactly. If ``counting_workers`` is None, the difference is computed from the counts
    that perf recorded during the timed runs.
    """
    ends = [problem.commits[0], problem.commits[-1]]
    if counting_workers is None:
        timed = ([run for run in runs_of(log, end) if not (run.round or run.layout)] for end in ends)
        return instruction_change(*timed)
    difference = None
    for runs_each in range(1, COUNTS + 1):
        if order := order_of_missing_runs(problem, log, (0, len(problem.commits) - 1), runs_each, counted=True):
            yield from count_instructions(order, problem, log.append, counting_workers)
        difference = instruction_change(*(runs_of(log, end, counted=True) for end in ends))
        if difference is None or difference.ratio < 1 + min(COUNTED, problem.policy.for_exact_count().min_effect) / 2:
            break
    return difference
