"""A verdict as sentences, the same in every view and report, and as an exit status."""

from collections.abc import Callable, Sequence

from perfbisect.core.domain.events import Commit
from perfbisect.core.domain.metrics import INSTRUCTIONS, find_metric, is_speed
from perfbisect.core.domain.orders import (
    CodePlacement,
    Effect,
    Found,
    Inconclusive,
    Interval,
    MergeBase,
    NotReproduced,
    Purpose,
    Reason,
    Several,
    Step,
    Unsettled,
    Verdict,
)
from perfbisect.core.inference.classification import Classification
from perfbisect.wording.not_hunted import why_not_hunted
from perfbisect.wording.quantities import chance, change, count, figure, percent, ratio
from perfbisect.wording.text import cited, listed, metric_title

CommitOf = Callable[[int], Commit]
SpeedOf = Callable[[Step], Interval | None]  # what a step does to QPS; None where that was not measured
SystemOf = Callable[[int], str]  # the build system of a candidate; "" where it has none, or was not built

PURPOSES = {
    Purpose.ENDS: "the ends",
    Purpose.SEARCH: "search",
    Purpose.CONFIRM: "confirmation",
    Purpose.EXPLAIN: "the reason",
}

CLASSIFICATIONS = {Classification.BASELINE: "good", Classification.UNCLEAR: "unclear"}

LISTED = 10  # candidates of an inconclusive hunt that are listed; the others are summed up
LIKELY = 0.5  # from this probability of more than one change on, a single culprit is named with an "if" only
# The smallest change that could be seen, below which nothing smaller matters: such are those of exact counts.
EXACTLY = 1e-3

REASONS = {
    Reason.UNBUILDABLE: "the commits that would separate the candidates do not build or run",
    Reason.LEFT_OUT: "commits that would separate the candidates were left out by --skip",
    Reason.NOT_CONFIRMED: "runs in turns did not confirm the commit that the search suggested",
    Reason.TOO_NOISY: "the runs vary too much to decide",
    Reason.BY_CHANCE: "the ends may differ by chance; if they do not, the culprit is known",
    Reason.LAYOUT_TIE: "neighbouring builds differ by no more than code layout alone can cause",
    Reason.MANY_STEPS: "several changes together make the difference, and none of them stands out as the largest",
    Reason.BRANCH_POINT_UNKNOWN: (
        "it depends on a branch older than good, and it is not known whether its branch point is as fast as good"
    ),
    Reason.NOT_IN_BAD: (
        "bad does not contain the change that separates it from good: its branch point differs from good as much"
    ),
    Reason.GOOD_UNMEASURABLE: "the good end cannot be measured",
    Reason.BAD_UNMEASURABLE: "the bad end cannot be measured",
    Reason.NO_HOST: "no host is left",
    Reason.STOPPED_RUNS: "runs were stopped, and how slow they would have been decides which change is the largest",
    Reason.BUILDS_SPENT: "the budget of builds is used up",
    Reason.RUNS_SPENT: "the budget of runs is used up",
    Reason.MINUTES_SPENT: "the budget of time is used up",
}

HELP = {
    Reason.TOO_NOISY: "What would help: longer runs (--time), a quieter host, or a metric that varies less (instructions/o).",
    Reason.NOT_CONFIRMED: "What would help: longer runs (--time) or a quieter host.",
    Reason.BY_CHANCE: "What would help: longer runs (--time), or another variant, which changes the code layout.",
    Reason.LAYOUT_TIE: "What would help: another compiler or variant, which changes the code layout; more runs do not help.",
    Reason.MANY_STEPS: "What would help: --all, which names every change of at least --min-effect.",
    Reason.UNBUILDABLE: (
        "What would help: a recipe or a --patch with which these commits build; --retry-failed, if the host was the"
        " cause."
    ),
    Reason.LEFT_OUT: "What would help: fewer commits in --skip, and a recipe or a --patch with which they build.",
    Reason.BRANCH_POINT_UNKNOWN: "What would help: a recipe with which the branch point builds, or a larger budget.",
    Reason.STOPPED_RUNS: "What would help: a larger --slow-after; or a hunt between the two suspects.",
    Reason.NOT_IN_BAD: "To find the change, hunt between the branch point of bad and good.",
}


def classification_name(what: Classification) -> str:
    """The classification of a commit in a table: good, bad, culprit, unclear, …"""
    return CLASSIFICATIONS.get(what, what.value)


def exit_status(verdict: Verdict) -> int:
    """0: a culprit is named. 1: nothing was found on this host. 2: part of the range is undecided."""
    match verdict:
        case Found():
            return 0
        case Several(steps, _, unsettled):
            return 2 if unsettled else 0 if steps else 1
        case NotReproduced() | CodePlacement():
            return 1
        case Inconclusive():
            return 2


def sentences(
    verdict: Verdict,
    commit_of: CommitOf,
    metric: str,
    system_of: SystemOf = lambda _: "",
    speed_of: SpeedOf | None = None,
) -> tuple[str, ...]:
    """The verdict, one sentence or list entry an element; list entries begin with two spaces.

    ``commit_of`` gives the commit of a candidate, ``metric`` is the name of what was measured ("qps", "cpu/o", …).
    """
    match verdict:
        case Found(step):
            return found(step, commit_of, metric, system_of, speed_of)
        case Several():
            return several(verdict, commit_of, metric, system_of)
        case NotReproduced():
            return not_reproduced(verdict, commit_of, metric)
        case CodePlacement():
            return code_placement(verdict, commit_of, metric)
        case Inconclusive():
            return inconclusive(verdict, commit_of, metric)


def found(
    step: Step, commit_of: CommitOf, metric: str, system_of: SystemOf, speed_of: SpeedOf | None
) -> tuple[str, ...]:
    """The culprit, its effect, and its proof."""
    return (
        f"The culprit is {cited(commit_of(step.candidate))}: {chance(step.probability)} sure.",
        f"{metric_title(metric)} after it is {ratio(step.ratio)} of what it was before it: {effect(step.ratio, metric)}.",
        *by_host_class(step.effects, metric),
        *(in_qps(speed_of(step), step.ratio, metric) if speed_of and not is_speed(metric) else ()),
        proof(step, commit_of),
        *in_layouts(step, metric),
        *build_changed(step, system_of),
        *prior_weight(step),
    )


def in_qps(found: Interval | None, effect: Interval, metric: str) -> tuple[str, ...]:
    """What the culprit does to QPS, where another metric led to it by that effect."""
    after = f"QPS after it is {ratio(found)} of what it was before it" if found else ""
    adds = metric == INSTRUCTIONS and effect.low > 1
    more = (
        f"This commit adds {percent(effect.middle - 1)} instructions per operation; that it costs time is not shown: "
    )
    if found is None:
        if adds:
            return (f"{more}its effect on QPS was not measured; `bisect compare` of it and its parent shows it.",)
        return ("Its effect on QPS was not measured; `bisect compare` of it and its parent shows it.",)
    if found.low <= 1 <= found.high:
        expected = effect.middle if find_metric(metric).higher_is_better else 1 / effect.middle
        if found.low <= expected <= found.high:
            if adds:
                return (f"{more}{after}, and varies too much.",)
            return (f"QPS varies too much to show it: after it QPS is {ratio(found)} of what it was before it.",)
        return (f"QPS does not confirm it: after it QPS is {ratio(found)} of what it was before it.",)
    if found.middle > 1:
        return (f"QPS gets better nevertheless: after it QPS is {ratio(found)} of what it was before it.",)
    return (f"QPS confirms it: after it QPS is {ratio(found)} of what it was before it, {change(found.middle)}.",)


def effect(ratio: Interval, metric: str) -> str:
    """A ratio in words; where runs were stopped, by how much at least: at least 4.9 times slower."""
    if not ratio.bound:
        return change(ratio.middle)
    factor = 1 / ratio.high if ratio.bound < 0 else ratio.low
    slower = (ratio.bound < 0) is find_metric(metric).higher_is_better
    return f"at least {figure(factor)} times {'slower' if slower else 'faster'}"


def build_changed(step: Step, system_of: SystemOf) -> tuple[str, ...]:
    """That the commit is built in another way than those it was compared with, if it is."""
    after = system_of(step.candidate)
    others = {system_of(parent) for parent in step.parents} - {"", after}
    if not after or not others:
        return ()
    between = f"from {listed(sorted(others))} to {after}"
    return (
        f"The build changed at this commit too, {between}: a part of the change may come from other compiler options.",
    )


def by_host_class(effects: Sequence[Effect], metric: str) -> tuple[str, ...]:
    """The effect on each host class, if there are several."""
    return tuple(
        f"  On {one.host_class}: {ratio(one.ratio)}, {effect(one.ratio, metric)}{', bad against good' * one.ends}."
        for one in effects
    )


def in_layouts(step: Step, metric: str) -> tuple[str, ...]:
    """How it compares where both sides were linked again with other layouts, if they were."""
    if step.layouts is None:
        return ()
    seen = step.layouts
    way = "lower" if step.ratio.middle < 1 else "higher"
    where = f"{metric_title(metric)} was {way} in {seen.changed} of {seen.compared} layouts: {ratio(seen.ratio)}"
    return (f"With its functions linked in another order each time, {where}.",)


def code_placement(verdict: CodePlacement, commit_of: CommitOf, metric: str) -> tuple[str, ...]:
    """That a commit makes a difference with the usual layout only; and what would help."""
    step, what = verdict.step, metric_title(metric)
    usual = f"{what} after it is {ratio(step.ratio)} of what it was before it: {effect(step.ratio, metric)}"
    counted = {
        True: ("It moves code, and executes the same instructions as the code before it.",),
        False: ("It does not execute the same number of instructions as the code before it.",),
        None: (),
    }
    return (
        f"Code placement: {cited(commit_of(step.candidate))} changes {what} with the usual layout only.",
        f"As it is linked usually, {usual}.",
        *in_layouts(step, metric),
        *counted[verdict.same_counts],
        f"Over layouts, {what} of bad is {ratio(verdict.ratio)} of that of good.",
        f"A change of {percent(verdict.detectable)} or more would have been detected.",
        "What would help: a variant that aligns functions, loops and jumps, or optimisation with a profile.",
    )


def prior_weight(step: Step) -> tuple[str, ...]:
    """Its prior weight, if that was not the usual one."""
    if step.prior == 1.0:
        return ()
    return (
        f"Its prior probability was {step.prior:g} times that of an ordinary commit, because of the paths it touches.",
    )


def several(verdict: Several, commit_of: CommitOf, metric: str, system_of: SystemOf) -> tuple[str, ...]:
    """Every change, oldest first; improvements; what is undecided."""
    steps, improvements, unsettled = verdict.steps, verdict.improvements, verdict.unsettled
    many = f"{len(steps)} changes" if len(steps) != 1 else "One change"
    better = "One improvement" if len(improvements) == 1 else f"{len(improvements)} improvements"
    lines = [f"{many} of {metric_title(metric)} in the range, oldest first:"] if steps else []
    if not steps:
        lines.append(f"No change of {metric_title(metric)} for the worse was found in the range.")
    lines += entries(steps, commit_of, metric, system_of)
    if improvements:
        lines += [f"{better}:", *entries(improvements, commit_of, metric, system_of)]
    if unsettled:
        parts = "One subrange" if len(unsettled) == 1 else f"{len(unsettled)} subranges"
        lines.append(f"{parts} could not be searched completely and may contain more changes:")
        lines += [line for one in unsettled for line in left_open(one, commit_of, metric)]
    if verdict.detectable:
        lines.append(f"Elsewhere, a change of {percent(verdict.detectable)} or more would have been detected.")
    if verdict.left:
        least = percent(verdict.left)
        lines.append(
            f"What is left beside them adds up to less than {least}; changes that cancel each other were not sought."
        )
    if steps and metric == INSTRUCTIONS:
        lines.append("Whether these cost time was not measured; `bisect compare` of a commit and its parent shows it.")
    reasons = dict.fromkeys(one.known.reason for one in unsettled)
    return (*lines, *(HELP[reason] for reason in reasons if reason in HELP))


def found_so_far(steps: Sequence[Step], commit_of: CommitOf, metric: str, system_of: SystemOf) -> tuple[str, ...]:
    """The changes that are proven before there is a verdict, if there are any."""
    lines = entries(steps, commit_of, metric, system_of)
    return (f"As found so far, {count(len(steps), 'change')} of {metric_title(metric)}:", *lines) if steps else ()


def left_open(one: Unsettled, commit_of: CommitOf, metric: str) -> list[str]:
    """What is known of a subrange whose search did not end: a line, and one for each suspect."""
    known = one.known
    if not known.ratio.known:
        ends = "not measured"
    elif known.ratio.low <= 1 <= known.ratio.high:
        ends = f"no change shown, {ratio(known.ratio)}"
    else:
        ends = f"{effect(known.ratio, metric)}, {ratio(known.ratio)}"
    part = f"  after {commit_of(one.good).short}, up to {commit_of(one.bad).short}: {ends};"
    if not known.candidates:
        return [f"{part} {why(known, metric)}."]
    one_of = "this commit" if len(known.candidates) == 1 else f"one of these {len(known.candidates)}"
    sure = f"if it is one change, {one_of}, {chance(sum(known.probabilities))} sure"
    return [
        f"{part} {why(known, metric)}; {sure}:",
        *(f"  {line}" for line in listing(known, commit_of)),
    ]


def listing(known: Inconclusive, commit_of: CommitOf) -> list[str]:
    """The suspects, a line each; the least probable of many in one line."""
    pairs = list(zip(known.candidates, known.probabilities, strict=True))
    lines = [f"  {chance(p):>6}  {cited(commit_of(candidate))}" for candidate, p in pairs[:LISTED]]
    if rest := pairs[LISTED:]:
        lines.append(f"  {chance(sum(p for _, p in rest)):>6}  the {len(rest)} others together")
    return lines


def entries(steps: Sequence[Step], commit_of: CommitOf, metric: str, system_of: SystemOf) -> list[str]:
    """One line for each step; then its effect on each host class, and whether the build changed."""
    lines: list[str] = []
    for step in steps:
        lines.append(
            f"  {cited(commit_of(step.candidate))}: {effect(step.ratio, metric)}, {ratio(step.ratio)},"
            f" {chance(step.probability)} sure."
        )
        lines += [f"  {sentence}" for sentence in by_host_class(step.effects, metric)]
        lines += [f"    {sentence}" for sentence in build_changed(step, system_of)]
    return lines


def not_reproduced(verdict: NotReproduced, commit_of: CommitOf, metric: str) -> tuple[str, ...]:
    """That the ends do not differ, or not in the requested way; and what to try."""
    if verdict.ratio.low == verdict.ratio.high:  # nothing was measured
        return (
            "Not reproduced: good and bad are the same binary, or differ in nothing that the recipe builds.",
            "To hunt what changed between them, use a recipe or a variant that builds it.",
        )
    ends = f"{metric_title(metric)} of bad is {ratio(verdict.ratio)} of that of good"
    if not verdict.ratio.low <= 1 <= verdict.ratio.high:
        return (
            f"Not reproduced: {ends}, {effect(verdict.ratio, metric)}.",
            *why_not_hunted(verdict),
        )
    return (
        f"Not reproduced: on this host the two ends are not shown to differ in {metric_title(metric)}.",
        f"{ends}.",
        *by_host_class(verdict.effects, metric),
        f"A change of {percent(verdict.detectable)} or more would have been detected.",
        *(
            ()
            if verdict.detectable < EXACTLY
            else ("To detect smaller changes, use longer runs, another host or another metric.",)
        ),
        f"If good is slow already, the change is older: bisect run OLDER {commit_of(0).short}, where OLDER is fast.",
    )


def inconclusive(verdict: Inconclusive, commit_of: CommitOf, metric: str) -> tuple[str, ...]:
    """The set that contains the culprit, and why it could not be made smaller."""
    size = len(verdict.candidates)
    many = "this commit" if size == 1 else f"one of these {size} commits"
    sure = f"{many}, {chance(sum(verdict.probabilities))} sure:"
    who = [f"The culprit is {sure}"]
    if verdict.several > LIKELY:
        who = [
            "Probably more than one commit made the difference.",
            f"If it is a single commit, it is {sure}",
        ]
    known = verdict.ratio.known
    ends = f"{metric_title(metric)} of bad is {ratio(verdict.ratio)} of that of good: {effect(verdict.ratio, metric)}."
    return (
        f"Inconclusive: {why(verdict, metric)}.",
        ends if known else "The ratio of bad to good is not known.",
        *by_host_class(verdict.effects, metric),
        *(who if size else ["No commit can be named."]),
        *listing(verdict, commit_of),
        *([HELP[verdict.reason]] if verdict.reason in HELP else []),
    )


def why(verdict: Inconclusive, metric: str) -> str:
    """Why no culprit is named, as a clause."""
    match verdict.reason, verdict.detail:
        case Reason.RUNS_SPENT, float(limit):
            return f"the budget of {count(int(limit), 'run')} is used up"
        case Reason.MINUTES_SPENT, float(limit):
            return f"the budget of {limit:g} minute{'s' * (limit != 1)} is used up"
        case Reason.MERGE_BASE, MergeBase(commit, good, known):
            differ = f"{metric_title(metric)} of good is {ratio(known.ratio)} of that of the merge base, and "
            return (
                f"the merge base {commit} is not shown to be as fast as good {good}: "
                f"{differ if known.ratio.known else ''}{why(known, metric)}"
            )
        case reason, _:
            return REASONS[reason]


def proof(step: Step, commit_of: CommitOf) -> str:
    """What the culprit was compared with."""
    if not step.parents:
        return "None of its parents could be measured, so it is not proven against them."
    real = [commit_of(parent).short for parent in step.parents if parent not in step.stand_ins]
    others = [commit_of(parent).short for parent in step.parents if parent in step.stand_ins]
    against = []
    if real:
        against.append(f"{listed(real)}, {'its parent' if len(real) == 1 else 'its parents'}")
    if others:
        who = "its nearest tested ancestor" if len(others) == 1 else "its nearest tested ancestors"
        against.append(
            f"{listed(others)}, {who} in place of {'a parent' if real else 'parents'} that could not be measured"
        )
    return f"Proven against {', and '.join(against)}, with runs taken in turns."
