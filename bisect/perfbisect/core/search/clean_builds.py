"""Chooses which builds must be clean (made in an empty folder), and begins the search again after a wrong incremental
build.

For the search, a commit may be built incrementally: in the tree of the previous build, where the build system makes
only the files that depend on changed files. An incremental build is fast, but sometimes wrong, because a Makefile may
not say that an object depends on a header. Therefore good, bad, each commit that a verdict names, and its parents are
built in an empty folder. If a clean build has another binary than the earlier incremental build, or if the clean build
fails, ``SessionState`` drops the readings of the incremental build. A second search, with clean builds only, begins in
two cases: clean builds that were made to confirm a culprit contradict the search, or the search ends without naming a
commit. The second search does not use readings of incremental builds, except if the clean build of the same commit has
the same binary.
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
    """The decision, in which each build is marked as incremental or clean. If the decision is a verdict whose commits
    have incremental builds, a work order for clean builds replaces the verdict.
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
        return replace(decision, order=Measure(plan, Purpose.CONFIRM, now.fleet.next_host))
    return decision


def is_misled_by_incremental(decision: Decision, now: Situation) -> bool:
    """Whether incremental builds may have misled the search. The result is false until clean builds have been made to
    confirm a culprit, or the search ends.

    If the result is true for a verdict that names a culprit, the function ``decide`` nevertheless accepts the verdict
    if clean builds alone also give this culprit the highest probability (``is_top_suspect``).
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
    """The candidates that a verdict names, and their parents, without repetitions; empty for a work order."""
    return tuple(dict.fromkeys(node for step in all_steps(order) for node in (step.candidate, *step.parents)))


def is_top_suspect(step: Step, decision: Decision) -> bool:
    """Whether, according to ``decision``, the commit of ``step`` is the most probable culprit."""
    return int(decision.belief.culprit.argmax()) == step.candidate


def incremental_builds(observations: Iterable[Observation]) -> frozenset[int]:
    """The candidates whose latest build is incremental."""
    latest = {build.candidate: build.incremental for build in observations if isinstance(build, Built)}
    return frozenset(candidate for candidate, is_incremental in latest.items() if is_incremental)


def without_incremental(now: Situation) -> Situation:
    """The situation without the readings of incremental builds, whose runs still count for the limits of the hunt."""
    clean = without_candidates(now.observations, incremental_builds(now.observations))
    return replace(now, observations=clean, clean=True).charged_with(now)
