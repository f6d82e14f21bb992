"""How fast the commits of a hunt are relative to the good end, and whether a commit is before or after the change."""

import math
from collections.abc import Mapping, Sequence
from enum import StrEnum

from perfbisect.core.domain.orders import SAME, CodePlacement, Interval, NotReproduced, Step, worsening_steps
from perfbisect.core.domain.session_state import SessionState
from perfbisect.core.inference.noise_model import EXACT, USUAL
from perfbisect.core.inference.observations import Observation, Reading, has_exact_counts, read_observations
from perfbisect.core.inference.relative_speed import ratios_of_candidates_to_good, step_ratio

SURE = 0.95  # probability above which a commit is classified


def hunt_observations(
    state: SessionState,
    candidate_by_commit: Mapping[str, int],
    metric: str,
    hosts: Sequence[str],
    *,
    by_wall_clock: bool = False,
) -> list[Observation]:
    """The observations about the commits in ``candidate_by_commit``; paired runs are left out if the hunt compares
    interleaved runs.

    If the hunt compares paired runs by CPU time, the readings are CPU times, unless ``by_wall_clock`` is true.
    """
    chosen = state.pairing
    by_cpu = chosen is not None and chosen.by_cpu and not by_wall_clock
    began, build_hosts = state.log[0][0], state.build_hosts
    history = read_observations(state.log, candidate_by_commit, metric, began, hosts, build_hosts, by_cpu=by_cpu)
    if chosen is None or chosen.together:
        return history
    return [item for item in history if not isinstance(item, Reading) or item.partner is None]


def ratios_to_good(
    state: SessionState, metric: str, hosts: Sequence[str] = (), host_classes: Sequence[str] = ()
) -> dict[str, Interval]:
    """The metric of each measured commit (by hash) relative to the good end; commits with equal binaries share their
    readings.

    ``hosts`` and ``host_classes`` are the names and host classes of the hosts, if there are several hosts. The good end
    is not in the result. The ratio of a commit of the range is computed without the runs of commits outside of the
    range, as in the search.
    """
    if not state.commits or not state.log:
        return {}
    outside = dict.fromkeys(event.facts.commit for _, event in state.log if event.facts.commit not in state.node)
    wider = state.node | {sha: len(state.commits) + index for index, sha in enumerate(outside)}
    by_commit: dict[str, Interval] = {}
    model = EXACT if has_exact_counts(state.log, metric) else USUAL
    for node in (wider, state.node) if outside else (state.node,):
        history = hunt_observations(state, node, metric, hosts)
        speeds = ratios_of_candidates_to_good(history, len(state.commits) - 1, host_classes, model)
        by_commit |= {sha: speeds[number] for sha, number in node.items() if number in speeds}
    good = state.commits[0]
    same_as_good = state.first_with_same_binary(good)
    equal_to_good = [sha for sha in state.tested if sha != good and state.first_with_same_binary(sha) == same_as_good]
    return by_commit | dict.fromkeys(equal_to_good, SAME)


def step_ratio_in_metric(
    state: SessionState, step: Step, metric: str, hosts: Sequence[str] = (), host_classes: Sequence[str] = ()
) -> Interval | None:
    """The ratio of a step in a metric that was not hunted, estimated from runs of the step's commit and of the commit's
    parents.

    If the commit has several parents, the ratio that is nearest to 1 is returned. The ratio is None if a commit has
    fewer than two runs with a value, or if the hosts belong to several host classes (models).
    """
    if len(set(host_classes)) > 1 or not state.log:
        return None
    history = hunt_observations(state, state.node, metric, hosts, by_wall_clock=True)
    per_parent = [step_ratio(history, len(state.commits) - 1, step.candidate, parent) for parent in step.parents]
    measured = [ratio for ratio in per_parent if ratio is not None]
    is_complete = measured and len(measured) == len(per_parent)
    return min(measured, key=lambda ratio: abs(math.log(ratio.middle))) if is_complete else None


class Classification(StrEnum):
    """The classification of a commit that was built, measured or skipped; JSON reports have these values."""

    BASELINE = "base"  # the good end
    GOOD = "good"  # as fast as the good end
    BAD = "bad"  # as slow as the bad end
    CULPRIT = "culprit"
    UNCLEAR = "measured"
    BUILT = "built"  # built, and not measured
    SKIPPED = "skipped"
    NOW = "now"  # being built or measured; for live views


def classify(state: SessionState, sha: str, ratios: Mapping[str, Interval]) -> Classification:
    """The classification of a commit; ``ratios`` are relative to the good end.

    The ends that the user named are classified as good and bad. A commit between good and bad is classified by the
    probabilities of the search. A commit outside of the range is classified by the interval of its ratio.
    """
    good, bad = state.commits[0], state.commits[-1]
    build = state.first_with_same_binary(sha)
    if state.facts_of(sha).skip is not None:
        return Classification.SKIPPED
    if sha == good:
        return Classification.BASELINE
    if sha in {state.commits[step.candidate] for step in worsening_steps(state.verdict)}:
        return Classification.CULPRIT
    if build == state.first_with_same_binary(good):
        return Classification.GOOD
    if not state.is_measured(sha):
        return Classification.BUILT
    if build == state.first_with_same_binary(bad):
        return Classification.BAD
    candidate = state.node.get(build, state.node.get(sha))
    if candidate is not None and state.belief is not None and len(state.belief.slow) == len(state.commits):
        slow = float(state.belief.slow[candidate])
        # Without a change between the ends, no commit is on either side of a change.
        if state.belief.change < SURE or isinstance(state.verdict, NotReproduced | CodePlacement):
            return Classification.UNCLEAR
        return Classification.BAD if slow > SURE else Classification.GOOD if slow < 1 - SURE else Classification.UNCLEAR
    return side_by_interval(ratios.get(bad), ratios.get(sha, ratios.get(build)))


def side_by_interval(bad_ratio: Interval | None, commit_ratio: Interval | None) -> Classification:
    """GOOD if the whole interval of the commit's ratio is nearer to good than to bad, BAD if it is nearer to bad;
    otherwise UNCLEAR. Also UNCLEAR if the interval of bad's ratio contains 1.
    """
    if bad_ratio is None or commit_ratio is None or not bad_ratio.excludes_one:
        return Classification.UNCLEAR
    lowest, highest = math.log(commit_ratio.low) if commit_ratio.low else -math.inf, math.log(commit_ratio.high)
    near, far = sorted((lowest / math.log(bad_ratio.middle), highest / math.log(bad_ratio.middle)))
    return Classification.GOOD if far < 0.5 else Classification.BAD if near > 0.5 else Classification.UNCLEAR
