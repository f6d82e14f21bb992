"""`--metric auto`: both ends are measured, then one of the recorded metrics is chosen for the whole hunt."""

from collections.abc import Generator
from dataclasses import replace

from perfbisect.core.domain.events import CandidateSkipped, HuntStarted, RunFinished, Warned
from perfbisect.core.domain.facts import RunFacts
from perfbisect.core.domain.orders import Measure, Purpose, Share
from perfbisect.core.domain.settings import Settings
from perfbisect.core.inference.metric_choice import RUNS, choose
from perfbisect.hunt.loop import Listed, run
from perfbisect.hunt.resolve import worse_direction
from perfbisect.hunt.search_problem import SavedLog, SearchProblem, TimedEvent, WorkersFor
from perfbisect.wording.metric_choice import sentence


def with_metric_chosen(
    settings: Settings, problem: SearchProblem, started: HuntStarted, log: SavedLog, workers_for: WorkersFor
) -> Generator[TimedEvent, None, Settings]:
    """The settings with the metric that shows the change between the ends best; they are stored as those of the hunt.

    A hunt that is interrupted meanwhile measures what is missing and chooses by the same runs.
    """
    good, bad = problem.commits[0], problem.commits[-1]
    most = settings.policy.max_runs // 2 or RUNS
    wanted = {0: good, len(problem.commits) - 1: bad}
    failed = {event.facts.commit for _, event in log.entries if isinstance(event, CandidateSkipped)}
    lacking = {node: max(min(RUNS, most) - len(_runs(log, commit)), 0) for node, commit in wanted.items()}
    if any(lacking.values()) and failed.isdisjoint(wanted.values()):
        yield log.append(started)
        order = Measure(tuple(Share(node, runs) for node, runs in lacking.items() if runs), Purpose.ENDS)
        yield from run(Listed(iter([order])), log, workers_for(problem.commits))
    choice = choose(settings.metric, _runs(log, good), _runs(log, bad), settings.policy.min_effect)
    chosen = replace(
        settings,
        metric=choice.metric,
        choose_metric=False,
        policy=replace(settings.policy, direction=worse_direction(choice.metric)),
        prior=replace(settings.prior, noise=settings.prior.noise if choice.metric == settings.metric else None),
    )
    log.history.update_settings(log.hunt, chosen)
    yield log.append(Warned(sentence(choice)))
    return chosen


def _runs(log: SavedLog, commit: str) -> list[RunFacts]:
    """The runs of one end, as many as a choice is made from."""
    found = [event.facts for _, event in log.entries if isinstance(event, RunFinished) and event.facts.commit == commit]
    return found[:RUNS]
