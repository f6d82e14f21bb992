"""`--metric auto`: both ends are measured, then one of the recorded metrics is chosen for the whole hunt.

Where instructions can be counted exactly they are counted at the ends, too.
"""

from collections.abc import Callable, Generator
from dataclasses import replace

from perfbisect.core.domain.events import CandidateSkipped, HuntStarted, MetricChosen
from perfbisect.core.domain.metrics import INSTRUCTIONS
from perfbisect.core.domain.orders import Measure
from perfbisect.core.inference.metric_choice import COUNTS, RUNS, Choice, choose
from perfbisect.hunt.further_runs import count, missing, runs_of
from perfbisect.hunt.loop import Listed, run
from perfbisect.hunt.resolve import worse_direction
from perfbisect.hunt.search_problem import SavedLog, SearchProblem, TimedEvent, WorkersFor
from perfbisect.hunt.setup import HuntSetup
from perfbisect.wording.reasons import metric_sentence


def with_metric_chosen(
    setup: HuntSetup,
    problem: SearchProblem,
    started: HuntStarted,
    log: SavedLog,
    workers_of: Callable[[HuntSetup], WorkersFor],
) -> Generator[TimedEvent, None, HuntSetup]:
    """Begin the session, and choose the metric that shows the change between the ends best.

    Returns the setup with that metric; its settings are stored as those of the hunt.

    A hunt that is interrupted meanwhile measures what is missing and chooses by the same runs.
    """
    settings = setup.settings
    counting = setup.by_metric(replace(settings, metric=INSTRUCTIONS))
    counted = workers_of(counting) if counting.settings.prior.exact and settings.metric != INSTRUCTIONS else None
    yield log.append(started)
    choice = yield from choice_at_ends(problem, log, workers_of(setup), counted)
    policy = replace(settings.policy, direction=worse_direction(choice.metric))
    noise = settings.prior.noise if choice.metric == settings.metric else None
    chosen = setup.by_metric(
        replace(
            settings,
            metric=choice.metric,
            choose_metric=False,
            policy=policy,
            prior=replace(settings.prior, noise=noise),
        )
    )
    chosen = replace(chosen, settings=replace(chosen.settings, run_hash=chosen.run_hash(chosen.workload)))
    log.history.update_settings(log.hunt, chosen.settings)
    yield log.append(MetricChosen(choice.metric, metric_sentence(choice)))
    return chosen


def choice_at_ends(
    problem: SearchProblem,
    log: SavedLog,
    timed: WorkersFor,
    counted: WorkersFor | None = None,
) -> Generator[TimedEvent, None, Choice]:
    """Measure what is missing of both ends, and choose; ``counted`` are workers that count instructions exactly."""
    ends = 0, len(problem.commits) - 1
    limit = (problem.policy.max_runs or 2 * (RUNS + COUNTS)) // 2
    if order := _missing(problem, log, ends, min(RUNS, limit)):
        yield from run(Listed(iter([order])), log, timed(problem.commits))
    if counted and (order := _missing(problem, log, ends, min(COUNTS, limit - RUNS), counted=True)):
        yield from count(order, problem, log, counted)
    good, bad = (
        [*runs_of(log, problem.commits[end])[:RUNS], *runs_of(log, problem.commits[end], counted=True)] for end in ends
    )
    return choose(problem.metric, good, bad, problem.policy)


def _missing(
    problem: SearchProblem, log: SavedLog, ends: tuple[int, int], wanted: int, *, counted: bool = False
) -> Measure | None:
    """The order for the runs that the ends lack; None where there are enough, or a build has failed."""
    failed = {event.facts.commit for _, event in log.entries if isinstance(event, CandidateSkipped)}
    if not failed.isdisjoint(problem.commits[end] for end in ends):
        return None
    return missing(problem, log, ends, wanted, counted=counted)
