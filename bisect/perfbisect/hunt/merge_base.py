"""Good is not an ancestor of bad: the merge base stands in for it if both are equally fast."""

from collections.abc import Generator
from dataclasses import replace

from perfbisect.core.domain.events import HuntEnded, HuntStarted, Warned
from perfbisect.core.domain.orders import UNKNOWN, CodePlacement, Found, Inconclusive, MergeBase, NotReproduced, Reason
from perfbisect.core.domain.settings import Direction, Settings
from perfbisect.errors import UsageError
from perfbisect.hunt.search_problem import SavedLog, SearchProblem, TimedEvent, WorkersFor, compare_merge_base
from perfbisect.report.command_line import command_to_run
from perfbisect.wording.quantities import ratio
from perfbisect.wording.text import metric_title


def merge_base_equals_good(
    problem: SearchProblem, started: HuntStarted, settings: Settings, log: SavedLog, workers_for: WorkersFor
) -> Generator[TimedEvent, None, bool]:
    """Measure the merge base against good: true when they are equally fast. When that is inconclusive, the hunt ends.

    Raises UsageError when they are not: then a change lies between the merge base and good.
    """
    base, good = problem.commits[0][:10], settings.good_commit[:10]
    verdict = yield from compare_merge_base(problem, started, settings.good_commit, log, workers_for)
    own_side = command_to_run(replace(settings, good=base), log.history.path)
    match verdict:
        case NotReproduced() | CodePlacement():
            yield log.append(Warned(f"The merge base {base} is as fast as good and stands in for it."))
            return True
        case Found(step):
            direction = Direction.RISE if step.ratio.middle > 1 else Direction.DROP
            policy = replace(settings.policy, direction=direction)
            between = replace(settings, good=base, bad=settings.good, policy=policy)
            raise UsageError(
                f"The merge base {base} does not have the speed of good {good}, so it cannot stand in for it:"
                f" {metric_title(problem.metric)} of good is {ratio(step.ratio)} of that of the merge base.",
                f"To hunt the change between them: {command_to_run(between, log.history.path)}\n"
                f"To hunt one on bad's own side of the fork: {own_side}",
            )
        case Inconclusive():
            yield log.append(started)  # the range of the hunt again, in place of the two commits compared
            yield log.append(
                Warned("bad was not measured: the merge base comes first", f"To hunt without good: {own_side}")
            )
            compared = MergeBase(base, good, verdict)
            yield log.append(HuntEnded(Inconclusive((), (), UNKNOWN, Reason.MERGE_BASE, detail=compared)))
            return False
        case _:
            raise AssertionError(f"{verdict} is no verdict on a range of one commit")
