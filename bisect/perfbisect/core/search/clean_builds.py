"""Orders clean builds (builds in an empty folder), and restarts the search after a wrong incremental build.

For the search, a commit may be built in the tree of the previous build, where the build system builds only the files
that depend on changed files. Such an incremental build is fast, and sometimes wrong, because a Makefile may not know
that an object depends on a header. Therefore the ends, a commit that a verdict names, and its parents are always built
in an empty folder. If a clean build has another binary than the earlier incremental build, or if the clean build fails,
``SessionState`` drops the readings of the incremental build. If clean builds that were made for a proof contradict the
search, or if the search ends without naming a commit, a second search begins, which makes only clean builds. The second
search does not use the readings of incremental builds, except readings of a commit whose clean build has the same
binary as its incremental build.
"""

from collections.abc import Iterable
from dataclasses import replace

from perfbisect.core.domain.orders import (
    Decision,
    Found,
    Inconclusive,
    Measure,
    NotReproduced,
    Order,
    PlannedRuns,
    Purpose,
    Reason,
    Step,
    all_steps,
)
from perfbisect.core.inference.observations import Built, Observation, Reading, without_candidates
from perfbisect.core.search.situation import Situation

# Reasons of inconclusive verdicts that do not depend on readings, such as a spent budget.
REASONS_WITHOUT_READINGS = {
    Reason.RUNS_SPENT, Reason.BUILDS_SPENT, Reason.MINUTES_SPENT, Reason.NO_HOST, Reason.GOOD_UNMEASURABLE,
    Reason.BAD_UNMEASURABLE, Reason.LEFT_OUT, Reason.MERGE_BASE,
}  # fmt: skip


def with_clean_builds(decision: Decision, now: Situation) -> Decision:
    """The decision, which states for each of its builds whether the build may be incremental. If the decision is a
    verdict that needs clean builds, an order for these builds replaces the verdict.
    """
    if isinstance(decision.order, Measure):
        ends = {0, now.bad}
        order = replace(decision.order, incremental=decision.order.purpose is Purpose.SEARCH and not now.clean)
        builds = (
            replace(build, incremental=not now.clean and build.candidate not in ends) for build in decision.builds
        )
        return replace(decision, order=order, builds=tuple(builds))
    incremental = incremental_builds(now.observations)
    if unproven := [candidate for candidate in named_and_parents(decision.order) if candidate in incremental]:
        plan = tuple(PlannedRuns(candidate, 0) for candidate in unproven)
        return replace(decision, order=Measure(plan, Purpose.CONFIRM, now.fleet.free_host))
    return decision


def is_contradicted(decision: Decision, now: Situation) -> bool:
    """Whether incremental builds may have misled the search. The answer is false until clean builds for a proof exist,
    or until the search ends.

    If the answer is true for a verdict that names a culprit, ``decide`` still accepts the verdict if this culprit is
    the most probable culprit by clean builds alone (``is_top_suspect``).
    """
    incremental = incremental_builds(now.observations)
    evidence = (  # evidence of a build's speed: its runs, or an equal binary of another build
        item for item in now.observations if isinstance(item, Reading) or getattr(item, "same_as", None) is not None
    )
    if now.clean or incremental.isdisjoint(item.candidate for item in evidence):
        return False
    match decision.order:
        case Found() as found:  # clean builds come later, and must support the verdict alone
            return not incremental.intersection(named_and_parents(found))
        case NotReproduced():
            return True
        case Inconclusive(reason=reason):
            return reason not in REASONS_WITHOUT_READINGS
        case Measure(purpose=Purpose.SEARCH):
            unproven = now.proofs.difference(*((step.candidate, *step.parents) for step in decision.found))
            return bool(unproven) and int(decision.belief.culprit.argmax()) not in unproven
        case _:
            return False


def named_and_parents(order: Order) -> tuple[int, ...]:
    """The candidates that a verdict names and the parents of these candidates, each candidate once."""
    return tuple(dict.fromkeys(node for step in all_steps(order) for node in (step.candidate, *step.parents)))


def is_top_suspect(step: Step, decision: Decision) -> bool:
    """Whether the commit of ``step`` is the most probable culprit of ``decision``."""
    return int(decision.belief.culprit.argmax()) == step.candidate


def incremental_builds(observations: Iterable[Observation]) -> frozenset[int]:
    """The candidates whose latest build is incremental."""
    latest = {build.candidate: build.incremental for build in observations if isinstance(build, Built)}
    return frozenset(candidate for candidate, is_incremental in latest.items() if is_incremental)


def without_incremental(now: Situation) -> Situation:
    """The situation with only the readings of clean builds; the budget still includes the runs of incremental builds."""
    clean = without_candidates(now.observations, incremental_builds(now.observations))
    return replace(now, observations=clean, clean=True).charged_with(now)
