"""Runs that a hunt makes beside those of its search: of given commits, as many as its log still lacks.

`--metric auto`: where time does not tell both ends apart, the hunt changes over to their instructions, if these do. They are
counted exactly where that can be done. Elsewhere those count that perf has recorded with the timed runs.

Those after a verdict change none, and say more about what was named:

* A culprit that counts have named is timed beside its parents, so that the verdict says whether QPS confirms it.
* A commit that makes a difference by code placement alone is counted beside its parents, where that can be done, so that
  the verdict says whether it executes the same instructions.
"""

import math
from collections.abc import Callable, Generator, Sequence
from dataclasses import replace

from perfbisect.core.domain.events import CandidateSkipped, Event, LabEvent, MetricChosen, RunFinished, Warned
from perfbisect.core.domain.facts import RunFacts
from perfbisect.core.domain.metrics import INSTRUCTIONS
from perfbisect.core.domain.orders import CodePlacement, Found, Interval, Measure, Purpose, Share, Verdict
from perfbisect.core.domain.settings import COUNTED, Direction
from perfbisect.core.inference.instruction_counts import COUNTS, Shown, commits_of_step, shown_by
from perfbisect.errors import EnvironmentFailure, UsageError
from perfbisect.hunt.loop import Append, Listed, run
from perfbisect.hunt.search_problem import SavedLog, SearchProblem, TimedEvent, WorkersFor
from perfbisect.hunt.setup import SessionSetup
from perfbisect.lab.measure.counting import PERF, has_length
from perfbisect.wording.unnamed import changed_over, not_taken


def beside(log: SavedLog) -> Append[LabEvent, TimedEvent]:
    """What enters runs after a verdict: what fails in them is a warning, and no reason to skip what was measured before."""

    def append(event: Event, _: int | None) -> TimedEvent:
        if isinstance(event, CandidateSkipped):
            event = Warned(f"{event.facts.commit[:10]} is not measured further: {event.facts.reason}")
        return log.append(event)

    return append


def missing(
    problem: SearchProblem,
    log: SavedLog,
    nodes: Sequence[int],
    wanted: int,
    *,
    counted: bool = False,
    purpose: Purpose = Purpose.ENDS,
) -> Measure | None:
    """The order for the runs that these nodes lack of those ``wanted`` of each.

    None where there are enough, or where the budget does not allow all of them after the runs so far.
    """
    lacking = {node: wanted - len(runs_of(log, problem.commits[node], counted=counted)) for node in nodes}
    plan = tuple(Share(node, runs) for node, runs in lacking.items() if runs > 0)
    runs = sum(share.runs for share in plan) + sum(isinstance(event, RunFinished) for _, event in log.entries)
    return Measure(plan, purpose) if plan and runs <= (problem.policy.max_runs or math.inf) else None


def runs_of(log: SavedLog, commit: str, *, counted: bool = False) -> list[RunFacts]:
    """The runs of a commit that were timed, or those that were counted exactly."""
    found = [event.facts for _, event in log.entries if isinstance(event, RunFinished) and event.facts.commit == commit]
    return [facts for facts in found if bool(facts.counted) is counted]


def count(
    order: Measure, problem: SearchProblem, append: Append[LabEvent, TimedEvent], workers: WorkersFor
) -> Generator[TimedEvent]:
    """Carry out an order by counting. Where that cannot be done there is a warning, and the hunt goes on without it."""
    try:
        yield from run(Listed(iter([order])), append, workers(problem.commits))
    except (EnvironmentFailure, UsageError) as trouble:
        yield append(Warned(f"Instructions are not counted exactly: {trouble}", trouble.advice), None)


TIMED = 6  # runs of a culprit and of each parent, to see what it does to QPS
COUNTED_RUNS = 1  # the same of runs in which instructions are counted exactly


def confirming_runs(
    verdict: Verdict, problem: SearchProblem, log: SavedLog, workers: WorkersFor
) -> Generator[TimedEvent]:
    """Time a culprit, or count the instructions of a commit that moves code, and of what it was compared with."""
    match verdict:
        case Found(step):
            nodes = (step.candidate, *step.parents)
            if order := missing(problem, log, nodes, TIMED, purpose=Purpose.CONFIRM):
                yield from run(Listed(iter([order])), beside(log), workers(problem.commits))
        case CodePlacement(step):
            nodes = tuple(problem.commits.index(sha) for sha in commits_of_step(step, problem.commits, log.entries))
            if order := missing(problem, log, nodes, COUNTED_RUNS, counted=True, purpose=Purpose.CONFIRM):
                yield from count(order, problem, beside(log), workers)
        case _:
            pass


LONGEST = 10.0  # seconds of a run, from which on a whole command takes too long under valgrind


def by_instructions(
    setup: SessionSetup,
    problem: SearchProblem,
    log: SavedLog,
    time: Interval,
    workers_of: Callable[[SessionSetup], WorkersFor],
    *,
    last: bool,
) -> Generator[TimedEvent, None, SessionSetup | None]:
    """The setup with which a hunt goes on by instructions; its settings are stored as those of the hunt.

    None where they show nothing either, or cannot be had. ``time`` is what the ends have shown of the workload's metric;
    ``last``: that was all. A hunt that is interrupted meanwhile counts what is missing.
    """
    settings = setup.settings
    policy = replace(settings.policy, direction=Direction.RISE)
    wanted = replace(settings, metric=INSTRUCTIONS, choose_metric=False, policy=policy)
    changed = setup.by_metric(replace(wanted, prior=replace(settings.prior, noise=None)))
    exact = changed.settings.prior.exact
    counted = runs_of(log, problem.commits[0], counted=True)
    if settings.metric == INSTRUCTIONS or (exact and not counted and takes_long(changed, problem, log)):
        return None
    shown = yield from instructions_of_ends(problem, log, workers_of(changed) if exact else None)
    if shown is None or not shown.clear:
        return None
    if not shown.large(policy) or not shown.explains(time, settings.metric, policy):
        if last and shown.ratio > 1 + COUNTED:
            yield log.append(Warned(*not_taken(shown, settings.metric, policy)))
        return None
    changed = replace(changed, settings=replace(changed.settings, run_hash=changed.run_hash(changed.workload)))
    with log.history.transaction():
        log.history.update_settings(log.hunt, changed.settings)
        chosen = log.append(MetricChosen(INSTRUCTIONS, changed_over(shown, settings.metric, time), settings.metric))
    yield chosen
    return changed


def takes_long(setup: SessionSetup, problem: SearchProblem, log: SavedLog) -> bool:
    """Whether it would take too long to count a run of a command as a whole."""
    runs = runs_of(log, problem.commits[0])
    by_valgrind = any(site.counts != PERF for site in setup.hosts) and not has_length(setup.workload)
    return by_valgrind and min((run.seconds for run in runs), default=0.0) >= LONGEST


def instructions_of_ends(
    problem: SearchProblem, log: SavedLog, counted: WorkersFor | None
) -> Generator[TimedEvent, None, Shown | None]:
    """What the instructions of both ends show, counted exactly by workers that do so, or else as the log has them."""
    ends = [problem.commits[0], problem.commits[-1]]
    if counted is None:
        timed = ([run for run in runs_of(log, end) if not (run.round or run.layout)] for end in ends)
        return shown_by(*timed)
    shown = None
    for wanted in range(1, COUNTS + 1):
        if order := missing(problem, log, (0, len(problem.commits) - 1), wanted, counted=True):
            yield from count(order, problem, log.append, counted)
        shown = shown_by(*(runs_of(log, end, counted=True) for end in ends))
        if shown is None or shown.ratio < 1 + min(COUNTED, problem.policy.of_counts().min_effect) / 2:
            break
    return shown
