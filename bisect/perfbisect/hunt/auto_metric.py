"""`--metric auto`: both ends are measured, then one of the recorded metrics is chosen for the whole hunt.

Where instructions can be counted exactly they are counted at the ends, too. A culprit that counts have named is timed
beside its parents before the hunt ends, so that the verdict says whether QPS confirms it.
"""

from collections.abc import Callable, Generator, Sequence
from dataclasses import replace

from perfbisect.core.domain.events import CandidateSkipped, HuntStarted, RunFinished, Warned
from perfbisect.core.domain.facts import RunFacts
from perfbisect.core.domain.metrics import INSTRUCTIONS
from perfbisect.core.domain.orders import Found, Measure, Purpose, Share, Verdict
from perfbisect.core.inference.metric_choice import COUNTS, RUNS, Choice, choose
from perfbisect.errors import EnvironmentFailure, UsageError
from perfbisect.hunt.loop import Listed, run
from perfbisect.hunt.resolve import worse_direction
from perfbisect.hunt.search_problem import SavedLog, SearchProblem, TimedEvent, WorkersFor
from perfbisect.hunt.setup import HuntSetup
from perfbisect.wording.metric_choice import sentence

TIMED = 6  # runs of a culprit and of each parent, to see what it does to QPS


def with_metric_chosen(
    setup: HuntSetup,
    problem: SearchProblem,
    started: HuntStarted,
    log: SavedLog,
    workers_of: Callable[[HuntSetup], WorkersFor],
) -> Generator[TimedEvent, None, HuntSetup]:
    """The setup with the metric that shows the change between the ends best; its settings are stored as those of the hunt.

    A hunt that is interrupted meanwhile measures what is missing and chooses by the same runs.
    """
    settings = setup.settings
    counting = setup.by_metric(replace(settings, metric=INSTRUCTIONS))
    counted = workers_of(counting) if counting.settings.prior.exact and settings.metric != INSTRUCTIONS else None
    choice = yield from choice_at_ends(problem, started, log, workers_of(setup), counted)
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
    yield log.append(Warned(sentence(choice)))
    return chosen


def choice_at_ends(
    problem: SearchProblem,
    started: HuntStarted,
    log: SavedLog,
    timed: WorkersFor,
    counted: WorkersFor | None = None,
) -> Generator[TimedEvent, None, Choice]:
    """Measure what is missing of both ends, and choose; ``counted`` are workers that count instructions exactly."""
    ends = 0, len(problem.commits) - 1
    limit = problem.policy.max_runs // 2 or RUNS + COUNTS
    if order := _missing(problem, log, ends, min(RUNS, limit)):
        yield log.append(started)
        yield from run(Listed(iter([order])), log, timed(problem.commits))
    if counted and (order := _missing(problem, log, ends, min(COUNTS, limit - RUNS), True)):
        try:
            yield from run(Listed(iter([order])), log, counted(problem.commits))
        except (EnvironmentFailure, UsageError) as trouble:
            yield log.append(Warned(f"Instructions are not counted exactly: {trouble}", trouble.advice))
    good, bad = ([*_runs(log, problem.commits[end])[:RUNS], *_runs(log, problem.commits[end], True)] for end in ends)
    return choose(problem.metric, good, bad, problem.policy.min_effect)


def culprit_timed(verdict: Verdict, problem: SearchProblem, log: SavedLog, timed: WorkersFor) -> Generator[TimedEvent]:
    """Time a culprit and what it was compared with, as far as the budget allows."""
    if not isinstance(verdict, Found):
        return
    order = _missing(problem, log, (verdict.step.candidate, *verdict.step.parents), TIMED, purpose=Purpose.CONFIRM)
    spent = sum(isinstance(event, RunFinished) for _, event in log.entries)
    limit = problem.policy.max_runs
    if order and not (limit and spent + sum(share.runs for share in order.plan) > limit):
        yield from run(Listed(iter([order])), log, timed(problem.commits))


def _missing(
    problem: SearchProblem,
    log: SavedLog,
    nodes: Sequence[int],
    wanted: int,
    counted: bool = False,
    purpose: Purpose = Purpose.ENDS,
) -> Measure | None:
    """The order for the runs that are missing; None where there are enough, or a build has failed."""
    commits = {node: problem.commits[node] for node in nodes}
    failed = {event.facts.commit for _, event in log.entries if isinstance(event, CandidateSkipped)}
    lacking = {node: wanted - len(_runs(log, commit, counted)) for node, commit in commits.items()}
    plan = tuple(Share(node, runs) for node, runs in lacking.items() if runs > 0)
    return Measure(plan, purpose) if plan and failed.isdisjoint(commits.values()) else None


def _runs(log: SavedLog, commit: str, counted: bool = False) -> list[RunFacts]:
    """The runs of a commit that were timed, or those that were counted exactly."""
    found = [event.facts for _, event in log.entries if isinstance(event, RunFinished) and event.facts.commit == commit]
    return [facts for facts in found if bool(facts.counted) is counted]
