"""What is measured once there is a verdict: it changes none, and says more about what was named.

* A culprit that counts have named is timed beside its parents, so that the verdict says whether QPS confirms it.
* A commit that makes a difference by code placement alone is counted beside its parents, where that can be done, so that
  the verdict says whether it executes the same instructions.
"""

from collections.abc import Generator

from perfbisect.core.domain.orders import Purpose, Step
from perfbisect.core.inference.code_placement import sides
from perfbisect.hunt.further_runs import Beside, affordable, count, missing
from perfbisect.hunt.loop import Listed, run
from perfbisect.hunt.search_problem import SavedLog, SearchProblem, TimedEvent, WorkersFor

TIMED = 6  # runs of a culprit and of each parent, to see what it does to QPS
COUNTED = 1  # the same of runs in which instructions are counted exactly


def culprit_timed(step: Step, problem: SearchProblem, log: SavedLog, timed: WorkersFor) -> Generator[TimedEvent]:
    """Time a culprit and what it was compared with, as far as the budget allows."""
    order = missing(problem, log, (step.candidate, *step.parents), TIMED, purpose=Purpose.CONFIRM)
    if order and affordable(order, problem, log):
        yield from run(Listed(iter([order])), Beside(log), timed(problem.commits))


def placement_counted(step: Step, problem: SearchProblem, log: SavedLog, counted: WorkersFor) -> Generator[TimedEvent]:
    """Count the instructions of a commit that moves code and of what it was compared with, as far as the budget allows."""
    nodes = [problem.commits.index(sha) for sha in sides(step, problem.commits, log.entries)]
    order = missing(problem, log, nodes, COUNTED, counted=True, purpose=Purpose.CONFIRM)
    if order and affordable(order, problem, log):
        yield from count(order, problem, Beside(log), counted)
