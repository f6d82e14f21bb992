"""`--metric auto`: where time does not tell both ends apart, the hunt changes over to their instructions, if these do.

They are counted exactly where that can be done. Elsewhere those count that perf has recorded with the timed runs.
"""

from collections.abc import Callable, Generator
from dataclasses import replace

from perfbisect.core.domain.events import MetricChosen, Warned
from perfbisect.core.domain.metrics import INSTRUCTIONS
from perfbisect.core.domain.orders import Interval
from perfbisect.core.domain.settings import COUNTED, Direction
from perfbisect.core.inference.instruction_counts import COUNTS, Shown, shown_by
from perfbisect.hunt.further_runs import count, missing, runs_of
from perfbisect.hunt.search_problem import SavedLog, SearchProblem, TimedEvent, WorkersFor
from perfbisect.hunt.setup import SessionSetup
from perfbisect.lab.measure.counting import PERF, has_length
from perfbisect.wording.unnamed import changed_over, not_taken

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
    if settings.metric == INSTRUCTIONS or (exact and takes_long(changed, problem, log)):
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
        why = changed_over(shown, settings.metric, time)
        chosen = log.append(MetricChosen(INSTRUCTIONS, why, settings.metric))
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
            yield from count(order, problem, log, counted)
        shown = shown_by(*(runs_of(log, end, counted=True) for end in ends))
        if shown is None or shown.ratio < 1 + min(COUNTED, problem.policy.of_counts().min_effect) / 2:
            break
    return shown
