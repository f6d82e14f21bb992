"""Which builds are made in an empty folder, and what happens where an incremental build was wrong.

For the search a commit may be built in the tree of the last build: the build system makes what has changed. That is quick, and
now and then wrong, as a Makefile may not know that an object depends on a header. So the ends, a named commit, and its parents
are built in an empty folder. If such a build has another binary than the incremental build before it, or fails, the readings of
that are dropped (``SessionState``). If a proof by clean builds contradicts the search, or it ends without a name, it begins again:
readings of incremental builds count no more, except of commits whose clean build has the same binary, and none is made from then on.
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
    Purpose,
    Reason,
    Share,
    Step,
    all_steps,
)
from perfbisect.core.inference.observations import Built, Observation, Reading, without
from perfbisect.core.search.situation import Situation

# Reasons for an end without a name that do not follow from readings.
OTHER = {
    Reason.RUNS_SPENT, Reason.BUILDS_SPENT, Reason.MINUTES_SPENT, Reason.NO_HOST, Reason.GOOD_UNMEASURABLE,
    Reason.BAD_UNMEASURABLE, Reason.LEFT_OUT, Reason.MERGE_BASE,
}  # fmt: skip


def with_clean_builds(decision: Decision, now: Situation) -> Decision:
    """The decision with its builds marked as incremental where they may be; a verdict waits for the clean builds that it needs."""
    if isinstance(decision.order, Measure):
        ends = {0, now.bad}
        order = replace(decision.order, incremental=decision.order.purpose is Purpose.SEARCH and not now.clean)
        builds = (
            replace(build, incremental=not now.clean and build.candidate not in ends) for build in decision.builds
        )
        return replace(decision, order=order, builds=tuple(builds))
    incremental = incremental_builds(now.observations)
    if unproven := [each for each in named(decision.order) if each in incremental]:
        plan = tuple(Share(each, 0) for each in unproven)
        return replace(decision, order=Measure(plan, Purpose.CONFIRM, now.fleet.free_host))
    return decision


def contradicted(decision: Decision, now: Situation) -> bool:
    """Whether incremental builds may have misled the search: by clean builds, made for a proof, or as it ends. A name counts if
    the clean builds alone ``suspect`` it, too.
    """
    incremental = incremental_builds(now.observations)
    telling = (  # how fast a build is: runs, or that it has the binary of another
        seen for seen in now.observations if isinstance(seen, Reading) or getattr(seen, "same_as", None) is not None
    )
    if now.clean or incremental.isdisjoint(seen.candidate for seen in telling):
        return False
    match decision.order:
        case Found() as found:  # it waits for the builds that it needs; then it has to follow from clean builds alone
            return not incremental.intersection(named(found))
        case NotReproduced():
            return True
        case Inconclusive(reason=reason):
            return reason not in OTHER
        case Measure(purpose=Purpose.SEARCH):
            tried = now.proofs.difference(*((step.candidate, *step.parents) for step in decision.found))
            return bool(tried) and int(decision.belief.culprit.argmax()) not in tried
        case _:
            return False


def named(order: Order) -> tuple[int, ...]:
    """The candidates that a verdict names, with their parents, each once."""
    return tuple(dict.fromkeys(each for step in all_steps(order) for each in (step.candidate, *step.parents)))


def suspect(by_clean: Decision, step: Step) -> bool:
    """Whether the clean builds alone suspect the commit of a step most."""
    return int(by_clean.belief.culprit.argmax()) == step.candidate


def incremental_builds(observations: Iterable[Observation]) -> frozenset[int]:
    """The candidates whose latest build is incremental."""
    latest = {seen.candidate: seen.incremental for seen in observations if isinstance(seen, Built)}
    return frozenset(candidate for candidate, incremental in latest.items() if incremental)


def without_incremental(now: Situation) -> Situation:
    """The situation by clean builds alone; runs of other builds have been spent elsewhere."""
    kept = without(now.observations, incremental_builds(now.observations))
    return replace(now, observations=kept, clean=True).charged(now)
