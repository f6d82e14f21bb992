"""Texts that state why a hunt names no culprit, or why a hunt ignores a difference; and advice for these cases."""

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from perfbisect.core.domain.facts import SkipFacts
from perfbisect.core.domain.metrics import INSTRUCTIONS
from perfbisect.core.domain.orders import Inconclusive, Interval, MergeBaseComparison, NotReproduced, Reason
from perfbisect.core.domain.settings import ChangeDirection, Policy
from perfbisect.wording.quantities import change, count, duration, percent, ratio
from perfbisect.wording.text import metric_title

if TYPE_CHECKING:
    from perfbisect.core.inference.instruction_counts import InstructionChange

REASONS = {
    Reason.UNBUILDABLE: "the suspects cannot be told apart, because some of them {fail}",
    Reason.LEFT_OUT: "the suspects cannot be told apart, because --skip excludes some of them",
    Reason.NOT_CONFIRMED: "interleaved runs did not confirm the commit that the search suggested",
    Reason.TOO_NOISY: "the runs vary too much to decide",
    Reason.BY_CHANCE: "good and bad may differ by chance alone",
    Reason.LAYOUT_TIE: "neighbouring builds differ by no more than code layout alone can cause",
    Reason.MANY_STEPS: "several changes together make the difference, and no change is clearly the largest",
    Reason.BRANCH_POINT_UNKNOWN: (
        "the culprit may be on a branch that began before good, and its branch point is not known to be as fast as good"
    ),
    Reason.NOT_IN_BAD: (
        "bad does not contain the change that separates bad from good (the branch point of bad differs from good as much)"
    ),
    Reason.GOOD_UNMEASURABLE: "good cannot be measured",
    Reason.BAD_UNMEASURABLE: "bad cannot be measured",
    Reason.NO_HOST: "no host can be reached any more",
    Reason.STOPPED_RUNS: "runs were stopped (--slow-after), and the largest change depends on the full duration of these runs",
    Reason.BUILDS_SPENT: "the limit of builds (--max-builds) is reached",
    Reason.RUNS_SPENT: "the limit of runs (--max-runs) is reached",
    Reason.MINUTES_SPENT: "the time limit (--max-time) is reached",
}

RESUME_WITH = "bisect resume {{hunt}} {}{{history}} (MORE: {}). Finished work is not repeated."
DOUBTED = (Reason.NOT_CONFIRMED, Reason.BY_CHANCE)  # with these reasons, even a single suspect may not be the culprit
NEXT = {  # reason → advice
    Reason.TOO_NOISY: "longer runs (--time), a quieter host, or a metric with less noise (--metric instructions/o).",
    Reason.NOT_CONFIRMED: "longer runs (--time) or a quieter host.",
    Reason.BY_CHANCE: "longer runs (--time); or another --variant, because other compiler settings change the code layout.",
    Reason.LAYOUT_TIE: "another --variant or compiler, which changes the code layout. More runs do not help.",
    Reason.RUNS_SPENT: RESUME_WITH.format("--max-runs MORE", "a number of further runs"),
    Reason.BUILDS_SPENT: RESUME_WITH.format("--max-builds MORE", "a number of further builds"),
    Reason.MINUTES_SPENT: RESUME_WITH.format("--max-time MORE", "further time, such as 30m"),
    Reason.GOOD_UNMEASURABLE: "another good revision; or make good build and run, with --patch FILE or a change of the recipe.",
    Reason.BAD_UNMEASURABLE: "another bad revision; or make bad build and run, with --patch FILE or a change of the recipe.",
    Reason.NO_HOST: "repeat the hunt when a host can be reached.",
    Reason.NOT_IN_BAD: "a hunt from the branch point of bad to good, for the change that good has and bad lacks.",
    Reason.MANY_STEPS: "repeat the hunt with --all, which names every change of at least --min-effect.",
    Reason.UNBUILDABLE: "make the failing commits {succeed}, with --patch FILE or a change of the recipe. If the host caused the failures: {again}.",
    Reason.LEFT_OUT: "exclude fewer commits with --skip, and make them build, with --patch FILE or a change of the recipe.",
    Reason.BRANCH_POINT_UNKNOWN: "make the branch point build, with --patch FILE or a change of the recipe; or repeat the hunt with higher limits (--max-…).",
    Reason.STOPPED_RUNS: "repeat the hunt with a larger --slow-after; or hunt between the two suspects.",
}


BUILDS_FAIL, RUNS_FAIL = "do not build", "build, but fail when they run"
SkipOf = Callable[[int], SkipFacts | None]  # candidate → the reason for which it could not be measured


def inconclusive_reason(verdict: Inconclusive, metric: str, skip_of: SkipOf) -> str:
    """A clause that states why an inconclusive hunt names no culprit."""
    match verdict.reason, verdict.detail:
        case Reason.RUNS_SPENT, float(limit):
            return f"the limit of {count(int(limit), 'run')} (--max-runs) is reached"
        case Reason.MINUTES_SPENT, float(limit):
            time = duration(60 * limit).replace(".0 s", " s")
            return f"the limit of {time} (--max-time) is reached"
        case Reason.MERGE_BASE, MergeBaseComparison(commit, good, search_result):
            comparison = f"{metric_title(metric)} of good is {ratio(search_result.ratio)} of {metric_title(metric)} of the merge base, and "
            return (
                f"the merge base {commit} is not shown to be as fast as good {good}"
                f" ({comparison if search_result.ratio.has_known_bound else ''}{inconclusive_reason(search_result, metric, skip_of)})"
            )
        case reason, _:
            return REASONS[reason].format(fail=suspect_failure_clause(verdict, skip_of))


def suspect_failure_clause(verdict: Inconclusive, skip_of: SkipOf) -> str:
    """A clause that states how the suspects of a verdict fail that could not be measured, such as "do not build"."""
    of_build = {skip.is_build_failure for candidate in verdict.candidates if (skip := skip_of(candidate))}
    if len(of_build) == 1:
        return BUILDS_FAIL if True in of_build else RUNS_FAIL
    return f"{BUILDS_FAIL}, or fail when they run"


def next_advice(verdict: Inconclusive, skip_of: SkipOf, hunt: int, history: str = "") -> str:
    """Advice after a hunt that named no culprit; ``hunt`` is the hunt's number, or 0 if the hunt is not stored.

    ``history`` is appended to each printed command: the option --history with a path, or "" for the default history.
    """
    if isinstance(base := verdict.detail, MergeBaseComparison):
        advice = next_advice(base.known, skip_of, hunt, history)
        return f"{advice} Or start from the merge base instead of good: bisect run {base.commit} BAD"
    failure = suspect_failure_clause(verdict, skip_of)
    succeed = {BUILDS_FAIL: "build", RUNS_FAIL: "run"}.get(failure, "build and run")
    # A new hunt repeats failed runs, but repeats failed builds only with --retry-failed.
    again = "repeat the hunt" if failure == RUNS_FAIL else "repeat the hunt with --retry-failed"
    advice = NEXT[verdict.reason].format(succeed=succeed, again=again, hunt=hunt or "HUNT", history=history)
    return f"Try next: {advice}"


def metric_switch_sentence(rise: "InstructionChange", metric: str, time_ratio: Interval) -> str:
    """The sentence that states that a hunt continues with the metric "instructions/o", instructions per operation; and
    the reason."""
    reason = f"{metric_title(metric)} of bad is {ratio(time_ratio)} of good, which is not enough to find the change"
    return f"The metric is {INSTRUCTIONS} from here on, which shows {instruction_change_clause(rise)}; {reason}."


def instruction_change_clause(rise: "InstructionChange") -> str:
    """A clause that states how much the instructions of bad and good differ, and how much runs vary."""
    noise = "less than 0.01 %" if rise.noise < 0.0001 else percent(rise.noise)
    return f"{change(rise.ratio)}, and runs are assumed to vary by {noise}"


def ignored_instructions_warning(rise: "InstructionChange", time_metric: str, policy: Policy) -> tuple[str, str]:
    """Two texts: a warning that bad and good differ in instructions, with the reason why the hunt does not search for
    this change; and the options with which a new hunt searches for the change."""
    is_small = not rise.is_large(policy)
    different = f"{metric_title(time_metric)} may show a different change"
    reason = "this change is too small to search for" if is_small else different
    option = f" {min_effect_option(rise.ratio)}" * is_small
    advice = f"To find its commit: --metric {INSTRUCTIONS}{option}"
    return f"{INSTRUCTIONS} shows {instruction_change_clause(rise)}: {reason}", advice


TOO_SMALL = 1.5e-4  # the smallest log ratio that a search can find


def why_not_hunted(verdict: NotReproduced) -> tuple[str, str]:
    """Two texts: the reason why the hunt does not search for the difference between good and bad, and advice. The
    advice is "" if no option can help."""
    change_size, direction = abs(math.log(verdict.ratio.middle)), verdict.direction
    direction_found = ChangeDirection.DROP if verdict.ratio.middle < 1 else ChangeDirection.RISE
    smallest_change = -math.log1p(-verdict.least) if direction is ChangeDirection.DROP else math.log1p(verdict.least)
    is_small = change_size < smallest_change
    is_other_direction = direction not in (direction_found, ChangeDirection.ANY)
    direction_option = [f"--direction {direction_found}"] * is_other_direction
    options = " ".join(direction_option + [min_effect_option(verdict.ratio.middle)] * is_small)
    too_small = f"that is smaller than the smallest change to search for, {percent(verdict.least)} (--min-effect)"
    if is_small and change_size < TOO_SMALL:
        return f"{too_small}, and too small to be hunted", ""
    if is_other_direction:
        swapped = "if good and bad were swapped, write the older revision first"
        advice = f"{swapped}; or {options}, to hunt this {direction_found}"
        return f"the hunt is for a {direction}, which is excluded", advice
    if is_small:
        return too_small, f"{options}, to hunt this change"
    advice = "longer runs (--time), or another variant, which changes the code layout"
    return "that is no more than noise or code layout can cause", advice


def min_effect_option(ratio: float) -> str:
    """The option ``--min-effect`` with which a hunt finds a change by ``ratio``: 70 % of the change, rounded to one
    digit."""
    return f"--min-effect {float(f'{70 * -math.expm1(-abs(math.log(ratio))):.1g}'):g}%"
