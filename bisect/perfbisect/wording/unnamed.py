"""Why a hunt names no culprit, or does not hunt a difference, and what to try next."""

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
    Reason.MANY_STEPS: "several changes together make the difference, and none of them stands out as the largest",
    Reason.BRANCH_POINT_UNKNOWN: (
        "the culprit may be on a branch older than good, whose branch point is not known to be as fast as good"
    ),
    Reason.NOT_IN_BAD: (
        "bad does not contain the change that separates it from good (its branch point differs from good as much)"
    ),
    Reason.GOOD_UNMEASURABLE: "the good end cannot be measured",
    Reason.BAD_UNMEASURABLE: "the bad end cannot be measured",
    Reason.NO_HOST: "no host is left",
    Reason.STOPPED_RUNS: "runs were stopped, and how slow they would have been decides which change is the largest",
    Reason.BUILDS_SPENT: "the budget of builds is used up",
    Reason.RUNS_SPENT: "the budget of runs is used up",
    Reason.MINUTES_SPENT: "the budget of time is used up",
}

BUDGET = "bisect resume {{hunt}} {}, which goes on with all that is known."
DOUBTED = (Reason.NOT_CONFIRMED, Reason.BY_CHANCE)  # reasons for which even a single suspect may be none
NEXT = {  # what to try
    Reason.TOO_NOISY: "longer runs (--time), a quieter host, or a metric that varies less (instructions/o).",
    Reason.NOT_CONFIRMED: "longer runs (--time) or a quieter host.",
    Reason.BY_CHANCE: "longer runs (--time), or another variant, which changes the code layout.",
    Reason.LAYOUT_TIE: "another compiler or variant, which changes the code layout; more runs do not help.",
    Reason.RUNS_SPENT: BUDGET.format("--max-runs MORE"),
    Reason.BUILDS_SPENT: BUDGET.format("--max-builds MORE"),
    Reason.MINUTES_SPENT: BUDGET.format("--max-time MORE"),
    Reason.GOOD_UNMEASURABLE: "another good; or a recipe or a --patch with which this one builds and runs.",
    Reason.BAD_UNMEASURABLE: "another bad; or a recipe or a --patch with which this one builds and runs.",
    Reason.NO_HOST: "the same hunt once a host can be reached.",
    Reason.NOT_IN_BAD: "a hunt between the branch point of bad and good, for what good has and bad lacks.",
    Reason.MANY_STEPS: "--all, which names every change of at least --min-effect.",
    Reason.UNBUILDABLE: "a recipe or a --patch with which these commits {succeed}; {again}, if the host was the cause.",
    Reason.LEFT_OUT: "fewer commits in --skip, and a recipe or a --patch with which they build.",
    Reason.BRANCH_POINT_UNKNOWN: "a recipe with which the branch point builds, or a larger budget.",
    Reason.STOPPED_RUNS: "a larger --slow-after; or a hunt between the two suspects.",
}


SkipOf = Callable[[int], SkipFacts | None]  # why a candidate could not be measured


def why(verdict: Inconclusive, metric: str, skip_of: SkipOf) -> str:
    """Why no culprit is named, as a clause."""
    match verdict.reason, verdict.detail:
        case Reason.RUNS_SPENT, float(limit):
            return f"the budget of {count(int(limit), 'run')} is used up"
        case Reason.MINUTES_SPENT, float(limit):
            time = duration(60 * limit).replace(".0 s", " s")
            return f"the budget of {time} is used up"
        case Reason.MERGE_BASE, MergeBase(commit, good, known):
            differ = f"{metric_title(metric)} of good is {ratio(known.ratio)} of that of the merge base, and "
            return (
                f"the merge base {commit} is not shown to be as fast as good {good}"
                f" ({differ if known.ratio.has_bound else ''}{why(known, metric, skip_of)})"
            )
        case reason, _:
            return REASONS[reason].format(fail=failing(verdict, skip_of))


def failing(known: Inconclusive, skip_of: SkipOf) -> str:
    """What those commits of the set that were skipped do not do: build, run, or either."""
    skips = [skip for candidate in known.candidates if (skip := skip_of(candidate))]
    return " or ".join(sorted({"build" if skip.of_build else "run" for skip in skips})) or "build or run"


def what_next(known: Inconclusive, skip_of: SkipOf, hunt: int) -> str:
    """What to try where the hunt of that number names no culprit."""
    if isinstance(base := known.detail, MergeBase):
        return f"{what_next(base.known, skip_of, hunt)} Or, without good: bisect run {base.commit} BAD"
    fail = failing(known, skip_of)
    again = "--retry-failed" if "build" in fail else "a new hunt"  # which remembers builds that failed, and no runs
    named = hunt or "HUNT"
    return f"Try next: {NEXT[known.reason].format(succeed=fail.replace(' or ', ' and '), again=again, hunt=named)}"


def changed_over(shown: "InstructionChange", usual: str, time: Interval) -> str:
    """That a hunt goes on by instructions."""
    seen = f"{metric_title(usual)}, of which bad has {ratio(time)} of good, is not enough to find it"
    return f"The metric is {INSTRUCTIONS} from here on, which shows {shown_by(shown)}; {seen}."


def shown_by(one: "InstructionChange") -> str:
    """The change, and the noise that it is seen in."""
    noise = "less than 0.01 %" if one.noise < 0.0001 else percent(one.noise)
    return f"{change(one.ratio)}, where runs are taken to vary by {noise}"


def not_taken(shown: "InstructionChange", usual: str, policy: Policy) -> tuple[str, str]:
    """Why a rise of the instructions is not hunted, and how it is."""
    small = not shown.is_large(policy)
    seen = "that is no change of interest" if small else f"{metric_title(usual)} may show another change than this one"
    option = f" {smaller_option(shown.ratio)}" * small
    return f"{INSTRUCTIONS} shows {shown_by(shown)}: {seen}", f"To hunt it: --metric {INSTRUCTIONS}{option}"


TOO_SMALL = 1.5e-4  # log ratio below which the search takes no change for one


def why_not_hunted(verdict: NotReproduced) -> tuple[str, str]:
    """Why a difference between the ends that is shown is not hunted; and what to try, "" where nothing hunts it."""
    seen, wanted = abs(math.log(verdict.ratio.middle)), verdict.direction
    way = Direction.DROP if verdict.ratio.middle < 1 else Direction.RISE
    least = -math.log1p(-verdict.least) if wanted is Direction.DROP else math.log1p(verdict.least)
    small, other = seen < least, wanted not in (way, Direction.ANY)
    options = " ".join([*([f"--direction {way}"] * other), *([smaller_option(verdict.ratio.middle)] * small)])
    less = f"that is less than the smallest change of interest, {percent(verdict.least)} (--min-effect)"
    if small and seen < TOO_SMALL:
        return f"{less}, and too small to be hunted", ""
    if other:
        swapped = "the older revision first, if good and bad were swapped"
        return f"a {wanted} is hunted, and excluded", f"{swapped}; or {options}, which hunts this {way}"
    if small:
        return less, f"{options}, which hunts it"
    more = "longer runs (--time), or another variant, which changes the code layout"
    return "that is no more than noise or code layout can cause", more


def smaller_option(ratio: float) -> str:
    """The option with which a change by that factor is large enough to be hunted: three quarters of it, in one digit."""
    return f"--min-effect {float(f'{70 * -math.expm1(-abs(math.log(ratio))):.1g}'):g}%"
