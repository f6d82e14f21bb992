"""A verdict as sentences, the same in every view and report, and as an exit status."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

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
from perfbisect.core.inference.hunt_state import Classification
from perfbisect.wording.quantities import chance, change, count, figure, percent, ratio
from perfbisect.wording.reasons import why_not_hunted
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

PHASES = {  # what is done in orders of a purpose, each run in another layout or not
    (Purpose.ENDS, False): "checking that the ends differ",
    (Purpose.ENDS, True): "checking that the ends differ whatever the code placement",
    (Purpose.SEARCH, False): "searching",
    (Purpose.SEARCH, True): "searching again, each run in another code placement",
    (Purpose.CONFIRM, False): "checking the commit that leads against its parent",
    (Purpose.CONFIRM, True): "checking that the difference is not code placement",
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

HELP = {  # what would help
    Reason.TOO_NOISY: "longer runs (--time), a quieter host, or a metric that varies less (instructions/o).",
    Reason.NOT_CONFIRMED: "longer runs (--time) or a quieter host.",
    Reason.BY_CHANCE: "longer runs (--time), or another variant, which changes the code layout.",
    Reason.LAYOUT_TIE: "another compiler or variant, which changes the code layout; more runs do not help.",
    Reason.MANY_STEPS: "--all, which names every change of at least --min-effect.",
    Reason.UNBUILDABLE: (
        "a recipe or a --patch with which these commits build; --retry-failed, if the host was the cause."
    ),
    Reason.LEFT_OUT: "fewer commits in --skip, and a recipe or a --patch with which they build.",
    Reason.BRANCH_POINT_UNKNOWN: "a recipe with which the branch point builds, or a larger budget.",
    Reason.STOPPED_RUNS: "a larger --slow-after; or a hunt between the two suspects.",
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
    teller = Teller(commit_of, metric, system_of, speed_of)
    match verdict:
        case Found(step):
            return tuple(teller.found(step))
        case Several():
            return tuple(teller.several(verdict))
        case NotReproduced():
            return tuple(teller.not_reproduced(verdict))
        case CodePlacement():
            return tuple(teller.code_placement(verdict))
        case Inconclusive():
            return tuple(teller.inconclusive(verdict))


def found_so_far(steps: Sequence[Step], commit_of: CommitOf, metric: str, system_of: SystemOf) -> tuple[str, ...]:
    """The changes that are proven before there is a verdict, if there are any."""
    teller = Teller(commit_of, metric, system_of)
    first = f"As found so far, {count(len(steps), 'change')} of {teller.what}:"
    return (first, *teller.entries(steps)) if steps else ()


def effect(ratio: Interval, metric: str) -> str:
    """A ratio in words; where runs were stopped, by how much at least: at least 4.9 times slower."""
    if not ratio.bound:
        return change(ratio.middle)
    factor = 1 / ratio.high if ratio.bound < 0 else ratio.low
    slower = (ratio.bound < 0) is find_metric(metric).higher_is_better
    return f"at least {figure(factor)} times {'slower' if slower else 'faster'}"


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


def help_of(reasons: Iterable[Reason]) -> Iterator[str]:
    """What would help against each of these, if anything is known."""
    for reason in dict.fromkeys(reasons):
        if reason is Reason.NOT_IN_BAD:
            yield "To find the change, hunt between the branch point of bad and good."
        elif reason in HELP:
            yield f"What would help: {HELP[reason]}"


@dataclass(frozen=True, slots=True)
class Teller:
    """Says what a hunt has found of one metric."""

    commit_of: CommitOf
    metric: str
    system_of: SystemOf
    speed_of: SpeedOf | None = None

    @property
    def what(self) -> str:
        """The metric in a sentence."""
        return metric_title(self.metric)

    def changed(self, found: Interval, what: str = "") -> str:
        """What a metric is after a commit."""
        return f"{what or self.what} after it is {ratio(found)} of what it was before it"

    def found(self, step: Step) -> Iterator[str]:
        """The culprit, its effect, and its proof."""
        yield f"The culprit is {cited(self.commit_of(step.candidate))}: {chance(step.probability)} sure."
        yield f"{self.changed(step.ratio)}: {effect(step.ratio, self.metric)}."
        yield from self.by_host_class(step.effects)
        if self.speed_of and not is_speed(self.metric):
            yield self.in_qps(self.speed_of(step), step.ratio)
        yield self.proof(step)
        yield from self.in_layouts(step)
        yield from self.build_changed(step)
        if step.prior != 1.0:
            yield (
                f"Its prior probability was {step.prior:g} times that of an ordinary commit, because of the paths it touches."
            )

    def in_qps(self, found: Interval | None, effect: Interval) -> str:
        """What the culprit does to QPS, where another metric led to it by that effect."""
        more = ""
        if self.metric == INSTRUCTIONS and effect.low > 1:
            adds = percent(effect.middle - 1)
            more = f"This commit adds {adds} instructions per operation; that it costs time is not shown: "
        if found is None:
            compare = "effect on QPS was not measured; `bisect compare` of it and its parent shows it."
            return f"{more}its {compare}" if more else f"Its {compare}"
        after = f"after it QPS is {ratio(found)} of what it was before it"
        if not found.excludes_one:
            expected = effect.middle if find_metric(self.metric).higher_is_better else 1 / effect.middle
            if not found.low <= expected <= found.high:
                return f"QPS does not confirm it: {after}."
            if more:
                return f"{more}{self.changed(found, 'QPS')}, and varies too much."
            return f"QPS varies too much to show it: {after}."
        if found.middle > 1:
            return f"QPS gets better nevertheless: {after}."
        return f"QPS confirms it: {after}, {change(found.middle)}."

    def build_changed(self, step: Step) -> Iterator[str]:
        """That the commit is built in another way than those it was compared with, if it is."""
        after = self.system_of(step.candidate)
        others = {self.system_of(parent) for parent in step.parents} - {"", after}
        if after and others:
            between = f"from {listed(sorted(others))} to {after}"
            part = "a part of the change may come from other compiler options"
            yield f"The build changed at this commit too, {between}: {part}."

    def by_host_class(self, effects: Sequence[Effect]) -> Iterator[str]:
        """The effect on each host class, if there are several."""
        for one in effects:
            ends = ", bad against good" * one.ends
            yield f"  On {one.host_class}: {ratio(one.ratio)}, {effect(one.ratio, self.metric)}{ends}."

    def in_layouts(self, step: Step) -> Iterator[str]:
        """How it compares where both sides were linked again with other layouts, if they were."""
        if seen := step.layouts:
            way = "lower" if step.ratio.middle < 1 else "higher"
            where = f"{self.what} was {way} in {seen.changed} of {seen.compared} layouts: {ratio(seen.ratio)}"
            yield f"With its functions linked in another order each time, {where}."

    def proof(self, step: Step) -> str:
        """What the culprit was compared with."""
        if not step.parents:
            return "None of its parents could be measured, so it is not proven against them."
        real = [self.commit_of(parent).short for parent in step.parents if parent not in step.stand_ins]
        others = [self.commit_of(parent).short for parent in step.parents if parent in step.stand_ins]
        against = []
        if real:
            against.append(f"{listed(real)}, its parent{'s' * (len(real) > 1)}")
        if others:
            who = f"its nearest tested ancestor{'s' * (len(others) > 1)}"
            missing = "a parent" if real else "parents"
            against.append(f"{listed(others)}, {who} in place of {missing} that could not be measured")
        way = "each time with both run at the same time" if step.together else "with runs taken in turns"
        return f"Proven against {', and '.join(against)}, {way}."

    def code_placement(self, verdict: CodePlacement) -> Iterator[str]:
        """That a commit makes a difference with the usual layout only; and what would help."""
        step = verdict.step
        yield f"Code placement: {cited(self.commit_of(step.candidate))} changes {self.what} with the usual layout only."
        yield f"As it is linked usually, {self.changed(step.ratio)}: {effect(step.ratio, self.metric)}."
        yield from self.in_layouts(step)
        if verdict.same_counts:
            yield "It moves code, and executes the same instructions as the code before it."
        elif verdict.same_counts is False:
            yield "It does not execute the same number of instructions as the code before it."
        yield f"Over layouts, {self.what} of bad is {ratio(verdict.ratio)} of that of good."
        yield f"A change of {percent(verdict.detectable)} or more would have been detected."
        yield "What would help: a variant that aligns functions, loops and jumps, or optimisation with a profile."

    def several(self, verdict: Several) -> Iterator[str]:
        """Every change, oldest first; improvements; what is undecided."""
        steps, improvements, unsettled = verdict.steps, verdict.improvements, verdict.unsettled
        if steps:
            yield f"{some(len(steps), 'change')} of {self.what} in the range, oldest first:"
        else:
            yield f"No change of {self.what} for the worse was found in the range."
        yield from self.entries(steps)
        if improvements:
            yield f"{some(len(improvements), 'improvement')}:"
            yield from self.entries(improvements)
        if unsettled:
            parts = some(len(unsettled), "subrange")
            yield f"{parts} could not be searched completely and may contain more changes:"
        for one in unsettled:
            yield from self.left_open(one)
        if verdict.detectable:
            yield f"Elsewhere, a change of {percent(verdict.detectable)} or more would have been detected."
        if verdict.left:
            least = f"What is left beside them adds up to less than {percent(verdict.left)}"
            yield f"{least}; changes that cancel each other were not sought."
        if steps and self.metric == INSTRUCTIONS:
            yield "Whether these cost time was not measured; `bisect compare` of a commit and its parent shows it."
        yield from help_of(one.known.reason for one in unsettled)

    def entries(self, steps: Sequence[Step]) -> Iterator[str]:
        """One line for each step; then its effect on each host class, and whether the build changed."""
        for step in steps:
            size = f"{effect(step.ratio, self.metric)}, {ratio(step.ratio)}"
            yield f"  {cited(self.commit_of(step.candidate))}: {size}, {chance(step.probability)} sure."
            yield from (f"  {sentence}" for sentence in self.by_host_class(step.effects))
            yield from (f"    {sentence}" for sentence in self.build_changed(step))

    def left_open(self, one: Unsettled) -> Iterator[str]:
        """What is known of a subrange whose search did not end: a line, and one for each suspect."""
        known = one.known
        if not known.ratio.known:
            ends = "not measured"
        elif not known.ratio.excludes_one:
            ends = f"no change shown, {ratio(known.ratio)}"
        else:
            ends = f"{effect(known.ratio, self.metric)}, {ratio(known.ratio)}"
        within = f"  after {self.commit_of(one.good).short}, up to {self.commit_of(one.bad).short}"
        part = f"{within}: {ends}; {why(known, self.metric)}"
        if not known.candidates:
            yield f"{part}."
            return
        one_of = "this commit" if len(known.candidates) == 1 else f"one of these {len(known.candidates)}"
        yield f"{part}; if it is one change, {one_of}, {chance(sum(known.probabilities))} sure:"
        yield from (f"  {line}" for line in self.listing(known))

    def listing(self, known: Inconclusive) -> Iterator[str]:
        """The suspects, a line each; the least probable of many in one line."""
        pairs = list(zip(known.candidates, known.probabilities, strict=True))
        yield from (f"  {chance(p):>6}  {cited(self.commit_of(candidate))}" for candidate, p in pairs[:LISTED])
        if rest := pairs[LISTED:]:
            yield f"  {chance(sum(p for _, p in rest)):>6}  the {len(rest)} others together"

    def not_reproduced(self, verdict: NotReproduced) -> Iterator[str]:
        """That the ends do not differ, or not in the requested way; and what to try."""
        ends = f"{self.what} of bad is {ratio(verdict.ratio)} of that of good"
        if verdict.ratio.low == verdict.ratio.high:  # nothing was measured
            yield "Not reproduced: good and bad are the same binary, or differ in nothing that the recipe builds."
            yield "To hunt what changed between them, use a recipe or a variant that builds it."
        elif verdict.ratio.excludes_one:
            yield f"Not reproduced: {ends}, {effect(verdict.ratio, self.metric)}."
            yield from why_not_hunted(verdict)
        else:
            yield f"Not reproduced: on this host the two ends are not shown to differ in {self.what}."
            yield f"{ends}."
            yield from self.by_host_class(verdict.effects)
            yield f"A change of {percent(verdict.detectable)} or more would have been detected."
            if verdict.detectable >= EXACTLY:
                yield "To detect smaller changes, use longer runs, another host or another metric."
            older = f"bisect run OLDER {self.commit_of(0).short}, where OLDER is fast"
            yield f"If good is slow already, the change is older: {older}."

    def inconclusive(self, verdict: Inconclusive) -> Iterator[str]:
        """The set that contains the culprit, and why it could not be made smaller."""
        yield f"Inconclusive: {why(verdict, self.metric)}."
        if verdict.ratio.known:
            ends = f"{self.what} of bad is {ratio(verdict.ratio)} of that of good"
            yield f"{ends}: {effect(verdict.ratio, self.metric)}."
        else:
            yield "The ratio of bad to good is not known."
        yield from self.by_host_class(verdict.effects)
        size = len(verdict.candidates)
        many = "this commit" if size == 1 else f"one of these {size} commits"
        sure = f"{many}, {chance(sum(verdict.probabilities))} sure:"
        if not size:
            yield "No commit can be named."
        elif verdict.several > LIKELY:
            yield "Probably more than one commit made the difference."
            yield f"If it is a single commit, it is {sure}"
        else:
            yield f"The culprit is {sure}"
        yield from self.listing(verdict)
        yield from help_of([verdict.reason])


def some(number: int, noun: str) -> str:
    """A number with its noun at the beginning of a sentence: One change, 2 changes."""
    return f"One {noun}" if number == 1 else f"{number} {noun}s"
