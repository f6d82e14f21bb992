"""The reasons for which a hunt names no culprit or ignores a difference, and advice."""

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from perfbisect.core.domain.facts import SkipFacts
from perfbisect.core.domain.metrics import INSTRUCTIONS
from perfbisect.core.domain.orders import Inconclusive, Interval, MergeBase, NotReproduced, Reason
from perfbisect.core.domain.settings import Direction, Policy
from perfbisect.wording.quantities import change, count, duration, percent, ratio
from perfbisect.wording.text import metric_title

if TYPE_CHECKING:
    from perfbisect.core.inference.instruction_counts import InstructionChange

REASONS = {
    Reason.UNBUILDABLE: "the commits that would separate the candidates do not {fail}",
    Reason.LEFT_OUT: "commits that would separate the candidates were left out by --skip",
    Reason.NOT_CONFIRMED: "interleaved runs did not confirm the commit that the search suggested",
    Reason.TOO_NOISY: "the runs vary too much to decide",
    Reason.BY_CHANCE: "the ends may differ by chance alone",
    Reason.LAYOUT_TIE: "neighbouring builds differ by no more than code layout alone can cause",
    Reason.MANY_STEPS: "several changes together make the difference, and no change is clearly the largest",
    Reason.BRANCH_POINT_UNKNOWN: (
        "the culprit may be on a branch that began before good, and its branch point is not known to be as fast as good"
    ),
    Reason.NOT_IN_BAD: (
        "bad does not contain the change that separates bad from good (the branch point of bad differs from good as much)"
    ),
    Reason.GOOD_UNMEASURABLE: "the good end cannot be measured",
    Reason.BAD_UNMEASURABLE: "the bad end cannot be measured",
    Reason.NO_HOST: "no host can be reached any more",
    Reason.STOPPED_RUNS: "runs were stopped, and the largest change depends on the duration of these runs",
    Reason.BUILDS_SPENT: "the budget of builds is used up",
    Reason.RUNS_SPENT: "the budget of runs is used up",
    Reason.MINUTES_SPENT: "the budget of time is used up",
}

RESUME_WITH = "bisect resume {{hunt}} {}, which continues with all results."
DOUBTED = (Reason.NOT_CONFIRMED, Reason.BY_CHANCE)  # with these reasons, even a single suspect may not be the culprit
NEXT = {  # reason → advice
    Reason.TOO_NOISY: "longer runs (--time), a quieter host, or a metric that varies less (instructions/o).",
    Reason.NOT_CONFIRMED: "longer runs (--time) or a quieter host.",
    Reason.BY_CHANCE: "longer runs (--time), or another variant, which changes the code layout.",
    Reason.LAYOUT_TIE: "another compiler or variant, which changes the code layout; more runs do not help.",
    Reason.RUNS_SPENT: RESUME_WITH.format("--max-runs MORE"),
    Reason.BUILDS_SPENT: RESUME_WITH.format("--max-builds MORE"),
    Reason.MINUTES_SPENT: RESUME_WITH.format("--max-time MORE"),
    Reason.GOOD_UNMEASURABLE: "another good; or a recipe or a --patch with which good builds and runs.",
    Reason.BAD_UNMEASURABLE: "another bad; or a recipe or a --patch with which bad builds and runs.",
    Reason.NO_HOST: "the same hunt when a host can be reached.",
    Reason.NOT_IN_BAD: "a hunt between the branch point of bad and good, for the change that good has and bad lacks.",
    Reason.MANY_STEPS: "--all, which names every change of at least --min-effect.",
    Reason.UNBUILDABLE: "a recipe or a --patch with which these commits {succeed}; {again}, if the host was the cause.",
    Reason.LEFT_OUT: "fewer commits in --skip, and a recipe or a --patch with which they build.",
    Reason.BRANCH_POINT_UNKNOWN: "a recipe with which the branch point builds, or a larger budget.",
    Reason.STOPPED_RUNS: "a larger --slow-after; or a hunt between the two suspects.",
}


SkipOf = Callable[[int], SkipFacts | None]  # candidate → the reason for which it could not be measured


def inconclusive_reason(verdict: Inconclusive, metric: str, skip_of: SkipOf) -> str:
    """The reason for which no culprit is named, as a clause."""
    match verdict.reason, verdict.detail:
        case Reason.RUNS_SPENT, float(limit):
            return f"the budget of {count(int(limit), 'run')} is used up"
        case Reason.MINUTES_SPENT, float(limit):
            time = duration(60 * limit).replace(".0 s", " s")
            return f"the budget of {time} is used up"
        case Reason.MERGE_BASE, MergeBase(commit, good, search_result):
            comparison = f"{metric_title(metric)} of good is {ratio(search_result.ratio)} of {metric_title(metric)} of the merge base, and "
            return (
                f"the merge base {commit} is not shown to be as fast as good {good}"
                f" ({comparison if search_result.ratio.has_bound else ''}{inconclusive_reason(search_result, metric, skip_of)})"
            )
        case reason, _:
            return REASONS[reason].format(fail=failed_steps(verdict, skip_of))


def failed_steps(verdict: Inconclusive, skip_of: SkipOf) -> str:
    """The steps that fail for the skipped commits of the set: build, run, or "build or run"."""
    skips = [skip for candidate in verdict.candidates if (skip := skip_of(candidate))]
    return " or ".join(sorted({"build" if skip.of_build else "run" for skip in skips})) or "build or run"


def next_advice(verdict: Inconclusive, skip_of: SkipOf, hunt: int) -> str:
    """The advice after a hunt that named no culprit; ``hunt`` is the number of the hunt, or 0 if it is not stored."""
    if isinstance(base := verdict.detail, MergeBase):
        return f"{next_advice(base.known, skip_of, hunt)} Or, without good: bisect run {base.commit} BAD"
    steps = failed_steps(verdict, skip_of)
    again = "--retry-failed" if "build" in steps else "a new hunt"  # a new hunt repeats failed runs, not builds
    hunt_name = hunt or "HUNT"
    return (
        f"Try next: {NEXT[verdict.reason].format(succeed=steps.replace(' or ', ' and '), again=again, hunt=hunt_name)}"
    )


def metric_change_sentence(shown: "InstructionChange", usual: str, time: Interval) -> str:
    """The sentence that a hunt continues with the metric instructions."""
    reason = f"{metric_title(usual)} of bad is {ratio(time)} of good, which is not enough to find the change"
    return f"The metric is {INSTRUCTIONS} from here on, which shows {visible_change(shown)}; {reason}."


def visible_change(shown: "InstructionChange") -> str:
    """The clause with a change of a metric and the noise of its runs."""
    noise = "less than 0.01 %" if shown.noise < 0.0001 else percent(shown.noise)
    return f"{change(shown.ratio)}, and runs are assumed to vary by {noise}"


def ignored_instructions_warning(shown: "InstructionChange", usual: str, policy: Policy) -> tuple[str, str]:
    """The reason for which a rise of instructions is not hunted, and the option that hunts it."""
    is_small = not shown.is_large(policy)
    reason = "this change is too small to be of interest"
    if not is_small:
        reason = f"{metric_title(usual)} may show a different change"
    option = f" {min_effect_option(shown.ratio)}" * is_small
    return (
        f"{INSTRUCTIONS} shows {visible_change(shown)}: {reason}",
        f"To hunt this change: --metric {INSTRUCTIONS}{option}",
    )


TOO_SMALL = 1.5e-4  # the smallest log ratio that a search can find


def why_not_hunted(verdict: NotReproduced) -> tuple[str, str]:
    """The reason for which a difference between the ends is not hunted, and advice; "" if no option can hunt it."""
    change_size, direction = abs(math.log(verdict.ratio.middle)), verdict.direction
    direction_found = Direction.DROP if verdict.ratio.middle < 1 else Direction.RISE
    smallest_change = -math.log1p(-verdict.least) if direction is Direction.DROP else math.log1p(verdict.least)
    is_small, is_other_direction = change_size < smallest_change, direction not in (direction_found, Direction.ANY)
    options = " ".join(
        [
            *([f"--direction {direction_found}"] * is_other_direction),
            *([min_effect_option(verdict.ratio.middle)] * is_small),
        ]
    )
    too_small = f"that is less than the smallest change of interest, {percent(verdict.least)} (--min-effect)"
    if is_small and change_size < TOO_SMALL:
        return f"{too_small}, and too small to be hunted", ""
    if is_other_direction:
        swapped = "if good and bad were swapped, the older revision first"
        return (
            f"the hunt is for a {direction}, which is excluded",
            f"{swapped}; or {options}, to hunt this {direction_found}",
        )
    if is_small:
        return too_small, f"{options}, to hunt this change"
    advice = "longer runs (--time), or another variant, which changes the code layout"
    return "that is no more than noise or code layout can cause", advice


def min_effect_option(ratio: float) -> str:
    """The option that hunts a change by this factor: ``--min-effect`` of 70 % of the change, with one digit."""
    return f"--min-effect {float(f'{70 * -math.expm1(-abs(math.log(ratio))):.1g}'):g}%"
