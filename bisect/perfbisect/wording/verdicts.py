"""A verdict as sentences, the same in every view and report, and as an exit status."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from perfbisect.core.domain.events import Commit
from perfbisect.core.domain.facts import SkipFacts
from perfbisect.core.domain.metrics import INSTRUCTIONS, find_metric, is_speed
from perfbisect.core.domain.orders import (
    UNKNOWN,
    ClassEffect,
    CodePlacement,
    Found,
    Inconclusive,
    Interval,
    NotReproduced,
    Purpose,
    Reason,
    Several,
    Step,
    UnsettledRange,
    Verdict,
)
from perfbisect.core.domain.session_state import SessionState
from perfbisect.core.inference.classification import Classification, step_ratio_in_metric
from perfbisect.core.inference.instruction_counts import RESOLVED, instruction_change
from perfbisect.wording.quantities import NOTHING, chance, change, count, figure, percent, ratio
from perfbisect.wording.text import cited, listed, metric_title, printable
from perfbisect.wording.trials import by_cpu, part_proofs
from perfbisect.wording.unnamed import DOUBTED, what_next, why, why_not_hunted

CommitOf = Callable[[int], Commit]

PURPOSES = {
    Purpose.ENDS: "the ends",
    Purpose.SEARCH: "search",
    Purpose.CONFIRM: "confirmation",
    Purpose.EXPLAIN: "the reason",
}

PHASES = {  # what is done in orders of a purpose, each run in another layout or not
    (Purpose.ENDS, False): "checking that the ends differ",
    (Purpose.ENDS, True): "checking that the ends differ in any code placement",
    (Purpose.SEARCH, False): "searching",
    (Purpose.SEARCH, True): "searching again, each run in another code placement",
    (Purpose.CONFIRM, False): "checking the commit that leads against its parent",
    (Purpose.CONFIRM, True): "checking that the difference is not code placement",
}

CLASSIFICATIONS = {Classification.BASELINE: "good", Classification.UNCLEAR: "unclear"}

LISTED = 100  # candidates of an inconclusive hunt that are listed; the others are summed up
REGAINED = 0.5  # share of the effect of the culprit, as a logarithm, below which bad is said to have most of it no more
LIKELY = 0.5  # from this probability of more than one change on, a single culprit is named with an "if" only
# The smallest change that could be seen, below which nothing smaller matters: such are those of exact counts.
WHOLE, ALL_OF_IT = 0.05, ", which is all that changes between good and bad"
EXACTLY = 1e-3


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


def effect(ratio: Interval, metric: str) -> str:
    """A ratio in words; where runs were stopped, by how much at least: at least 4.9 times slower."""
    if not ratio.only_bound:
        return change(ratio.middle, 0.0 if ratio.excludes_one else NOTHING)
    factor = 1 / ratio.high if ratio.only_bound < 0 else ratio.low
    slower = (ratio.only_bound < 0) is find_metric(metric).higher_is_better
    return f"at least {figure(factor)} times {'slower' if slower else 'faster'}"


@dataclass(frozen=True, slots=True)
class Teller:
    """Says what a hunt has found in its present state."""

    state: SessionState
    commit_of: CommitOf

    @property
    def metric(self) -> str:
        """What was measured: "qps", "cpu/o", …"""
        return self.state.metric

    def skip_of(self, candidate: int) -> SkipFacts | None:
        """Why a candidate could not be measured."""
        return self.state.facts_of(self.commit_of(candidate).sha).skip

    def sentences(self, verdict: Verdict) -> tuple[str, ...]:
        """The verdict, one sentence or list entry an element; list entries begin with two spaces."""
        match verdict:
            case Found(step):
                return tuple(self.found(step))
            case Several():
                return tuple(self.several(verdict))
            case NotReproduced():
                return tuple(self.not_reproduced(verdict))
            case CodePlacement():
                return tuple(self.code_placement(verdict))
            case Inconclusive():
                return tuple(self.inconclusive(verdict))

    def so_far(self, steps: Sequence[Step]) -> tuple[str, ...]:
        """The changes that are proven before there is a verdict, if there are any."""
        first = f"As found so far, {count(len(steps), 'change')} of {self.what}:"
        return (first, *self.entries(steps)) if steps else ()

    @property
    def what(self) -> str:
        """What is compared, in a sentence: QPS, or QPS by CPU time."""
        return f"{metric_title(self.metric)}{by_cpu(self.state.pairing)}"

    @property
    def older(self) -> str:
        """What to try where nothing became worse."""
        return f"bisect run OLDER {self.commit_of(0).short}, where OLDER is fast, if good is slow already"

    def of_ends(self, found: Interval) -> str:
        """What the metric is at the bad end."""
        return f"{self.what} of bad is {ratio(found)} of that of good"

    def changed(self, found: Interval, what: str = "") -> str:
        """What a metric is after a commit."""
        return f"{what or self.what} after it is {ratio(found)} of what it was before it"

    def found(self, step: Step) -> Iterator[str]:
        """The culprit, its effect, and its proof."""
        commit, started = self.commit_of(step.candidate), self.state.started
        named = (
            f"The part of {started.bad} is {commit.subject}"
            if started and started.parts
            else f"The culprit is {cited(commit)}"
        )
        yield f"{named}: {chance(step.probability)} sure."
        yield f"{self.changed(step.ratio)}: {effect(step.ratio, self.metric)}."
        yield from self.by_host_class(step.effects)
        yield from self.regained(step.ratio)
        if not is_speed(self.metric):
            state, classes = self.state, self.state.started.host_classes if self.state.started else ()
            # What the step does to the metric of the workload; None where that was not measured.
            yield self.in_time(step_ratio_in_metric(state, step, state.chosen.usual, state.hosts, classes), step.ratio)
        yield self.proof(step)
        yield from part_proofs(self.state)
        yield from self.in_layouts(step)
        yield from self.in_counts(step)
        yield from self.build_changed(step)
        if step.prior != 1.0:
            yield (
                f"Its prior probability was {step.prior:g} times that of an ordinary commit, because of the paths it touches."
            )

    def regained(self, found: Interval) -> Iterator[str]:
        """That bad hardly has the effect of the culprit any more, if it is so."""
        ends = self.state.belief.effect if self.state.belief else UNKNOWN
        known = ends.has_bound and not (ends.only_bound or found.only_bound)
        if known and max(math.log(end) / math.log(found.middle) for end in (ends.low, ends.high)) < REGAINED:
            yield f"Other commits take most of that back: {self.of_ends(ends)}."

    def in_time(self, found: Interval | None, effect: Interval) -> str:
        """What the culprit does to the metric of the workload, where another led to it by that effect."""
        usual, more = self.state.chosen.usual, ""
        what, better = metric_title(usual), find_metric(usual).higher_is_better
        if self.metric == INSTRUCTIONS and effect.low > 1:
            adds = percent(effect.middle - 1)
            more = f"This commit adds {adds} instructions per operation; that it costs time is not shown: "
        if found is None:
            compare = f"effect on {what} was not measured; `bisect compare` of it and its parent shows it."
            return f"{more}its {compare}" if more else f"Its {compare}"
        after = f"after it {what} is {ratio(found)} of what it was before it"
        if not found.excludes_one:
            expected = effect.middle if find_metric(self.metric).higher_is_better is better else 1 / effect.middle
            if not found.low <= expected <= found.high:
                return f"{what} does not confirm it: {after}."
            if more:
                return f"{more}{self.changed(found, what)}, and varies too much."
            return f"{what} varies too much to show it: {after}."
        if (found.middle > 1) is better:
            return f"{what} gets better nevertheless: {after}."
        return f"{what} confirms it: {after}, {change(found.middle)}."

    def build_changed(self, step: Step) -> Iterator[str]:
        """That the commit is built in another way than those it was compared with, or runs another file, if it does."""
        ways = []  # the build system, and the files that are run where these are not installed: make (out-static/db_bench)
        for build in map(self.state.latest_build, (step.candidate, *step.parents)):
            files = ", ".join(paths[0] for paths in build.programs.values()) if build else ""
            system = build.system if build else ""
            ways.append(printable(f"{system} ({files})" if system and files else system))
        after, *others = ways
        if after and (before := {*others} - {"", after}):
            between = f"from {listed(sorted(before))} to {after}"
            part = "a part of the change may come from other compiler options"
            yield f"The build changed at this commit too, {between}: {part}."

    def by_host_class(self, effects: Sequence[ClassEffect]) -> Iterator[str]:
        """The effect on each host class, if there are several."""
        for on_class in effects:
            ends = ", bad against good" * on_class.ends
            yield f"  On {on_class.host_class}: {ratio(on_class.ratio)}, {effect(on_class.ratio, self.metric)}{ends}."

    def in_layouts(self, step: Step) -> Iterator[str]:
        """How it compares where both sides were linked again with other layouts, if they were."""
        if layouts := step.layouts:
            way = "lower" if step.ratio.middle < 1 else "higher"
            where = f"{self.what} was {way} in {layouts.changed} of {layouts.compared} layouts: {ratio(layouts.ratio)}"
            yield f"With its functions linked in another order each time, {where}."
            if (others := layouts.measured - layouts.compared) > 0:
                modes = "it is uncertain in which of two modes of speed it ran"
                yield f"{count(layouts.measured, 'layout')} of each were measured; {others} of them do not count, as {modes}."

    def in_counts(self, step: Step | None = None) -> Iterator[str]:
        """How many more instructions a commit executes than its parents, or bad than good, where they were counted beside time."""
        if self.metric == INSTRUCTIONS:
            return
        good, bad = (
            [run for run in self.state.runs_of_equal_binaries(self.state.commits[end]) if run.counted]
            for end in (0, -1)
        )
        ends = instruction_change(good, bad)
        if step is None:
            if ends:
                yield f"Counted, {executed('bad', 'good', ends.ratio)}."
            return
        after = [run for run in self.state.runs_of_equal_binaries(self.state.commits[step.candidate]) if run.counted]
        parents = {p: self.state.runs_of_equal_binaries(self.state.commits[p]) for p in step.parents}
        known = {p: instruction_change([run for run in runs if run.counted], after) for p, runs in parents.items()}
        if compared := {p: own for p, own in known.items() if own}:
            parent, own = min(
                compared.items(), key=lambda each: abs(each[1].log_rise)
            )  # a merge has what its branches had
            than = "its parent" if step.parents == (parent,) and not step.stand_ins else self.commit_of(parent).short
            whole = ends and abs(own.log_rise - ends.log_rise) <= WHOLE * abs(ends.log_rise)
            between = f"; {executed('bad', 'good', ends.ratio)}" if ends else ""
            yield f"Counted, {executed('it', than, own.ratio)}{ALL_OF_IT if whole else between}."

    def proof(self, step: Step) -> str:
        """What the culprit was compared with."""
        if not step.parents:
            return "None of its parents could be measured, so it is not proven against them."
        real = [self.commit_of(parent).short for parent in step.parents if parent not in step.stand_ins]
        others = [self.commit_of(parent).short for parent in step.parents if parent in step.stand_ins]
        against = []
        if real:
            in_diff = self.state.started is not None and bool(self.state.started.parts)
            who = "which lacks it" if in_diff else f"its parent{'s' * (len(real) > 1)}"
            against.append(f"{listed(real)}, {who}")
        if others:
            who = f"its nearest tested ancestor{'s' * (len(others) > 1)}"
            missing = "a parent" if real else "parents"
            against.append(f"{listed(others)}, {who} in place of {missing} that could not be measured")
        way = "with paired runs" if step.together else "with interleaved runs"
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
        excluded = f"a change of {percent(verdict.detectable)} or more is excluded"
        yield f"Over layouts, {self.of_ends(verdict.ratio)}: {excluded}."
        yield "Try next: a variant that aligns functions, loops and jumps, or optimisation with a profile."

    def several(self, verdict: Several) -> Iterator[str]:
        """Every change, oldest first; improvements; what is undecided."""
        steps, improvements, unsettled = verdict.steps, verdict.improvements, verdict.unsettled
        if steps:
            yield f"{some(len(steps), 'change')} of {self.what} in the range, oldest first:"
        else:
            yield f"No change of {self.what} for the worse {'can be named' if unsettled else 'is in the range'}."
        yield from self.entries(steps)
        if improvements:
            yield f"{some(len(improvements), 'improvement')}:"
            yield from self.entries(improvements)
        if unsettled:
            parts = some(len(unsettled), "subrange")
            yield f"{parts} could not be searched completely and may contain more changes:"
        for subrange in unsettled:
            yield from self.left_open(subrange)
        if verdict.detectable:
            yield f"Elsewhere, a change of {percent(verdict.detectable)} or more is excluded."
        if verdict.left:
            least = f"What is left beside them adds up to less than {percent(verdict.left)}"
            yield f"{least}; changes that cancel each other were not sought."
        if steps and self.metric == INSTRUCTIONS:
            yield "Whether these cost time was not measured; `bisect compare` of a commit and its parent shows it."
        yield from dict.fromkeys(what_next(subrange.known, self.skip_of, self.state.id) for subrange in unsettled)
        if not (steps or unsettled):
            yield f"Try next: {self.older}."

    def entries(self, steps: Sequence[Step]) -> Iterator[str]:
        """One line for each step; then its effect on each host class, and whether the build changed."""
        for step in steps:
            size = f"{effect(step.ratio, self.metric)}, {ratio(step.ratio)}"
            yield f"  {cited(self.commit_of(step.candidate))}: {size}, {chance(step.probability)} sure."
            yield from (f"  {sentence}" for sentence in self.by_host_class(step.effects))
            yield from (f"    {sentence}" for sentence in self.build_changed(step))

    def left_open(self, one: UnsettledRange) -> Iterator[str]:
        """What is known of a subrange whose search did not end: a line, and one for each suspect."""
        known = one.known
        if not known.ratio.has_bound:
            ends = "not measured"
        elif not known.ratio.excludes_one:
            ends = f"no change shown, {ratio(known.ratio)}"
        else:
            ends = f"{effect(known.ratio, self.metric)}, {ratio(known.ratio)}"
        within = f"  after {self.commit_of(one.good).short}, up to {self.commit_of(one.bad).short}"
        part = f"{within}: {ends}; {why(known, self.metric, self.skip_of)}"
        if not known.candidates:
            yield f"{part}."
            return
        one_of = "this commit" if len(known.candidates) == 1 else f"one of these {len(known.candidates)}"
        yield f"{part}; if it is one change, {one_of}, {chance(sum(known.probabilities))} sure:"
        yield from (f"  {line}" for line in self.listing(known))

    def listing(self, known: Inconclusive) -> Iterator[str]:
        """The suspects, oldest first, a line each; the least probable of very many in one line."""
        pairs = list(zip(known.candidates, known.probabilities, strict=True))
        shown = sorted(pairs[:LISTED])
        yield from (f"  {chance(p):>6}  {cited(self.commit_of(candidate))}" for candidate, p in shown)
        if rest := pairs[LISTED:]:
            yield f"  {chance(sum(p for _, p in rest)):>6}  the {len(rest)} others together"

    def not_reproduced(self, verdict: NotReproduced) -> Iterator[str]:
        """That the ends do not differ, or not in the requested way; and what to try."""
        ends = self.of_ends(verdict.ratio)
        if verdict.ratio.low == verdict.ratio.high:  # nothing was measured
            yield "Not reproduced: good and bad are the same binary, or differ in nothing that the recipe builds."
            yield "Try next: a recipe or a variant that builds what changed between them."
        elif verdict.ratio.excludes_one:
            reason, options = why_not_hunted(verdict)
            yield f"Not reproduced: {ends}, {effect(verdict.ratio, self.metric)}; {reason}."
            yield f"Try next: {options or self.older}."
        else:
            seen = f"{ends}, and a change of {percent(verdict.detectable)} or more is excluded"
            yield f"Not reproduced: on this host {seen}."
            yield from self.in_counts()
            yield from self.by_host_class(verdict.effects)
            smaller = "; or longer runs, another host or another metric, which show smaller changes"
            yield f"Try next: {self.older}{smaller * (verdict.detectable >= EXACTLY)}."

    def inconclusive(self, verdict: Inconclusive) -> Iterator[str]:
        """Why no commit is named, the set that contains the culprit, and what is excluded; and what to try."""
        yield f"Inconclusive, as {why(verdict, self.metric, self.skip_of)}: {self.narrowed(verdict)}."
        if verdict.ratio.has_bound:
            differ = effect(verdict.ratio, self.metric) if verdict.ratio.excludes_one else "no change is shown"
            yield f"{self.of_ends(verdict.ratio)}: {differ}."
        yield from self.in_counts()
        yield from self.by_host_class(verdict.effects)
        yield from self.listing(verdict)
        yield what_next(verdict, self.skip_of, self.state.id)

    def narrowed(self, known: Inconclusive) -> str:
        """To which commits the culprit was narrowed, how surely, and how many are excluded."""
        size = len(known.candidates)
        if not size:
            none = "no commit of the range is the culprit" if known.reason is Reason.NOT_IN_BAD else ""
            return none or "no commit can be named, and none is excluded"
        noun = "part" if self.state.started and self.state.started.parts else "commit"
        many = f"this {noun}" if size == 1 else f"one of these {count(size, noun)}"
        left = (self.state.started.possible_culprits if self.state.started else 0) - size
        others = "none" if left <= 0 else "the other one" if left == 1 else f"the {left:,} others"
        sure = f"is {many}, {chance(sum(known.probabilities))} sure, which excludes {others}"
        if known.reason in DOUBTED or (known.ratio.has_bound and not known.ratio.excludes_one):
            return f"if anything changed, the culprit {sure}"
        if known.several > LIKELY and known.reason not in (Reason.UNBUILDABLE, Reason.LEFT_OUT):
            some = "" if known.reason is Reason.MANY_STEPS else "probably more than one commit made the difference; "
            return f"{some}the largest change {sure}"
        return f"the culprit {sure}"


def some(number: int, noun: str) -> str:
    """A number with its noun at the beginning of a sentence: One change, 2 changes."""
    return f"One {noun}" if number == 1 else f"{number} {noun}s"


def executed(who: str, than: str, ratio: float) -> str:
    """How many instructions a build executes, of those that another one does."""
    if abs(math.log(ratio)) <= RESOLVED:
        return f"{who} executes as many instructions as {than}"
    return f"{who} executes {percent(abs(ratio - 1))} {'more' if ratio > 1 else 'fewer'} instructions than {than}"
