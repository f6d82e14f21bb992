"""Runs that a hunt makes beside those of its search: of given commits, as many as its log still lacks.

Those after a verdict change none, and say more about what was named:

* A culprit that counts have named is timed beside its parents, so that the verdict says whether QPS confirms it.
* A commit that makes a difference by code placement alone is counted beside its parents, where that can be done, so that
  the verdict says whether it executes the same instructions.
"""

import math
from collections.abc import Generator, Sequence
from dataclasses import dataclass

from perfbisect.core.domain.events import CandidateSkipped, Event, RunFinished, Warned
from perfbisect.core.domain.facts import RunFacts
from perfbisect.core.domain.orders import CodePlacement, Found, Measure, Purpose, Share, Verdict
from perfbisect.core.inference.instruction_counts import sides
from perfbisect.errors import EnvironmentFailure, UsageError
from perfbisect.hunt.loop import Listed, run
from perfbisect.hunt.search_problem import SavedLog, SearchProblem, TimedEvent, WorkersFor


@dataclass(frozen=True, slots=True)
class Beside:
    """A log for runs after a verdict: what fails in them is a warning, and no reason to skip what was measured before."""

    log: SavedLog

    def append(self, event: Event, workload: int | None = None) -> TimedEvent:
        """Make ``event`` durable."""
        if isinstance(event, CandidateSkipped):
            event = Warned(f"{event.facts.commit[:10]} is not measured further: {event.facts.reason}")
        return self.log.append(event)


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


def count(order: Measure, problem: SearchProblem, log: SavedLog | Beside, workers: WorkersFor) -> Generator[TimedEvent]:
    """Carry out an order by counting. Where that cannot be done there is a warning, and the hunt goes on without it."""
    try:
        yield from run(Listed(iter([order])), log, workers(problem.commits))
    except (EnvironmentFailure, UsageError) as trouble:
        yield log.append(Warned(f"Instructions are not counted exactly: {trouble}", trouble.advice))


TIMED = 6  # runs of a culprit and of each parent, to see what it does to QPS
COUNTED = 1  # the same of runs in which instructions are counted exactly


def confirming_runs(
    verdict: Verdict, problem: SearchProblem, log: SavedLog, workers: WorkersFor
) -> Generator[TimedEvent]:
    """Time a culprit, or count the instructions of a commit that moves code, and of what it was compared with."""
    match verdict:
        case Found(step):
            nodes = (step.candidate, *step.parents)
            if order := missing(problem, log, nodes, TIMED, purpose=Purpose.CONFIRM):
                yield from run(Listed(iter([order])), Beside(log), workers(problem.commits))
        case CodePlacement(step):
            nodes = tuple(problem.commits.index(sha) for sha in sides(step, problem.commits, log.entries))
            if order := missing(problem, log, nodes, COUNTED, counted=True, purpose=Purpose.CONFIRM):
                yield from count(order, problem, Beside(log), workers)
        case _:
            pass
