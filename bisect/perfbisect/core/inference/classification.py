"""On which side of the change a commit is, as far as a hunt has shown."""

import math
from collections.abc import Mapping
from enum import StrEnum

from perfbisect.core.domain.orders import CodePlacement, Found, Interval, NotReproduced, Several, Verdict
from perfbisect.core.inference.hunt_state import HuntState

SURE = 0.95


class Classification(StrEnum):
    """What is known of a commit that was built, measured or skipped; the values are those of reports in JSON."""

    BASELINE = "base"  # the good end
    GOOD = "good"  # as fast as the good end
    BAD = "bad"  # as slow as the bad end
    CULPRIT = "culprit"
    UNCLEAR = "measured"
    BUILT = "built"  # and not measured
    SKIPPED = "skipped"
    NOW = "now"  # being built or measured: for live views


def classify(state: HuntState, sha: str, ratios: Mapping[str, Interval]) -> Classification:
    """The classification of a commit; ``ratios`` are those to the good end.

    The ends are what the user says they are. Between them the search's belief decides, or, outside of the range, the
    commit's own interval.
    """
    good, bad = state.commits[0], state.commits[-1]
    build = state.binary_of(sha)
    if state.row(sha).skip is not None:
        return Classification.SKIPPED
    if sha == good:
        return Classification.BASELINE
    if sha in blamed(state.verdict, state.commits):
        return Classification.CULPRIT
    if build == state.binary_of(good):
        return Classification.GOOD
    if not state.measured(sha):
        return Classification.BUILT
    if build == state.binary_of(bad):
        return Classification.BAD
    candidate = state.node.get(build, state.node.get(sha))
    if candidate is not None and state.belief is not None and len(state.belief.slow) == len(state.commits):
        return by_belief(state, float(state.belief.slow[candidate]))
    return by_interval(ratios.get(bad), ratios.get(sha, ratios.get(build)))


def blamed(verdict: Verdict | None, commits: tuple[str, ...]) -> set[str]:
    """The commits that a verdict names as changes for the worse."""
    match verdict:
        case Found(step):
            return {commits[step.candidate]}
        case Several(steps):
            return {commits[step.candidate] for step in steps}
        case _:
            return set()


def by_belief(state: HuntState, slow: float) -> Classification:
    """For a build that is slow with this probability. Without a change between the ends there are no sides."""
    if state.belief is None or state.belief.change < SURE or isinstance(state.verdict, NotReproduced | CodePlacement):
        return Classification.UNCLEAR
    return Classification.BAD if slow > SURE else Classification.GOOD if slow < 1 - SURE else Classification.UNCLEAR


def by_interval(bad: Interval | None, own: Interval | None) -> Classification:
    """The end to which the whole of the commit's own interval is nearer, if the bad end differs from the good one."""
    if bad is None or own is None or bad.low <= 1 <= bad.high:
        return Classification.UNCLEAR
    lowest, highest = math.log(own.low) if own.low else -math.inf, math.log(own.high)
    near, far = sorted((lowest / math.log(bad.middle), highest / math.log(bad.middle)))
    return Classification.GOOD if far < 0.5 else Classification.BAD if near > 0.5 else Classification.UNCLEAR
