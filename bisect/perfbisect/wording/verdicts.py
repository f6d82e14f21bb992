"""Expresses the verdict of a hunt in sentences, which are equal in all views and reports, and as an exit status."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from perfbisect.core.domain.events import Commit
from perfbisect.core.domain.facts import RunFacts, SkipFacts
from perfbisect.core.domain.metrics import INSTRUCTIONS, find_metric, is_noticed_by_users
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
from perfbisect.wording.trials import cpu_time_suffix, part_proofs
from perfbisect.wording.unnamed import DOUBTED, inconclusive_reason, next_advice, why_not_hunted

CommitOf = Callable[[int], Commit]
PURPOSES = {
    Purpose.ENDS: "good and bad",
    Purpose.SEARCH: "search",
    Purpose.CONFIRM: "confirmation",
    Purpose.EXPLAIN: "the reason",
}
PHASES = {  # (purpose of an order, whether each run has a randomized layout) → the phase of the hunt
    (Purpose.ENDS, False): "checking that good and bad differ",
    (Purpose.ENDS, True): "checking that good and bad differ in every code placement",
    (Purpose.SEARCH, False): "searching",
    (Purpose.SEARCH, True): "searching again, each run in another code placement",
    (Purpose.CONFIRM, False): "comparing the most probable commit with its parent",
    (Purpose.CONFIRM, True): "checking that the difference is not caused by code placement",
}
CLASSIFICATIONS = {Classification.BASELINE: "good", Classification.UNCLEAR: "unclear"}
LISTED = 100  # most candidates that an inconclusive verdict lists; a sum covers the other candidates
REGAINED = 0.5  # if bad has less than this share of the culprit's log effect, other commits undo most of the effect
SEVERAL_LIKELY = 0.5  # if several changes are more probable, the culprit is called the largest change
SAME_CHANGE, ALL_OF_IT = 0.05, ", which is the whole difference between good and bad"
EXACTLY = 1e-3  # only exact counts detect smaller changes; then no advice on smaller changes is printed


def classification_name(classification: Classification) -> str:
    """The word for the classification of a commit: good, bad, culprit, unclear, …"""
    return CLASSIFICATIONS.get(classification, classification.value)


def exit_status(verdict: Verdict) -> int:
    """The exit status of a verdict: 0 if a culprit is named, 1 if no change was found, 2 if inconclusive."""
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
    """A ratio in words: "a drop of 29 %"; if slow runs were stopped early, a bound: "at least 4.9 times slower"."""
    if not ratio.only_known_bound:
        return change(ratio.middle, 0.0 if ratio.excludes_one else NOTHING)
    factor = 1 / ratio.high if ratio.only_known_bound < 0 else ratio.low
    slower = (ratio.only_known_bound < 0) is find_metric(metric).higher_is_better
    return f"at least {figure(factor)} times {'slower' if slower else 'faster'}"


@dataclass(frozen=True, slots=True)
class VerdictSentences:
    """Makes the sentences about the verdict of a hunt, from the present state of the hunt's log."""

    state: SessionState
    commit_of: CommitOf
    history: str = ""  # the option --history for commands, with a space before it; "" for the default history

    @property
    def metric(self) -> str:
        """The name of the measured metric: "qps", "cpu/o", …"""
        return self.state.metric

    def skip_of(self, candidate: int) -> SkipFacts | None:
        """Why a candidate could not be measured; None if the candidate could be measured."""
        return self.state.facts_of(self.commit_of(candidate).sha).skip

    def sentences(self, verdict: Verdict) -> tuple[str, ...]:
        """The sentences about a verdict, and lines of lists, which begin with two spaces."""
        match verdict:
            case Found(step):
                return tuple(self.culprit_sentences(step))
            case Several():
                return tuple(self.several_changes(verdict))
            case NotReproduced():
                return tuple(self.not_reproduced(verdict))
            case CodePlacement():
                return tuple(self.code_placement(verdict))
            case Inconclusive():
                return tuple(self.inconclusive(verdict))

    def changes_so_far(self, steps: Sequence[Step]) -> tuple[str, ...]:
        """Lines about the changes that a hunt with several changes has proven so far; empty if there are none."""
        first = f"Found so far: {count(len(steps), 'change')} of {self.metric_text}:"
        return (first, *self.change_lines(steps)) if steps else ()

    @property
    def metric_text(self) -> str:
        """The name of the compared metric in a sentence: "QPS", or "QPS by CPU time"."""
        return f"{metric_title(self.metric)}{cpu_time_suffix(self.state.pairing)}"

    @property
    def older_advice(self) -> str:
        """The advice to search older commits, for a hunt that found no change for the worse in the range."""
        return f"if good may already be slow, start from an older revision: bisect run OLDER {self.commit_of(0).short_sha} (the good revision of this hunt becomes bad)"

    def ends_ratio(self, interval: Interval) -> str:
        """The clause with the ratio of bad to good: QPS of bad is 0.712 (0.698–0.726) of QPS of good."""
        return f"{self.metric_text} of bad is {ratio(interval)} of {self.metric_text} of good"

    def change_ratio_clause(self, interval: Interval) -> str:
        """The clause that states the ratio of a metric after a change to the metric before the change."""
        return f"After this change, {self.metric_text} is {ratio(interval)} of {self.metric_text} before"

    def culprit_sentences(self, step: Step) -> Iterator[str]:
        """The sentences about the culprit, its effect, and its proof."""
        commit, started = self.commit_of(step.candidate), self.state.started
        part = f"The part of {started.bad} is {commit.subject}" if started and started.parts else ""
        beginning = part or f"The culprit is {cited(commit)}"
        yield f"{beginning}: {chance(step.probability)} sure."
        yield f"{self.change_ratio_clause(step.ratio)}: {effect(step.ratio, self.metric)}."
        yield from self.class_effect_lines(step.effects)
        yield from self.undone_by_others(step.ratio)
        if not is_noticed_by_users(self.metric):
            state, classes = self.state, self.state.started.host_classes if self.state.started else ()
            in_usual_metric = step_ratio_in_metric(state, step, state.chosen.usual, state.hosts_if_several, classes)
            yield self.usual_metric_effect(in_usual_metric, step.ratio)
        yield self.proven_against_sentence(step)
        yield from part_proofs(self.state, self.history)
        yield from self.layout_sentences(step)
        yield from self.count_sentences(step)
        yield from self.build_change_sentence(step)
        if step.prior != 1.0:
            yield f"Its prior probability was {step.prior:g} times that of an ordinary commit, because of its changed paths."

    def undone_by_others(self, interval: Interval) -> Iterator[str]:
        """A sentence if bad has less than half of the culprit's effect, because other commits undo the change."""
        ends = self.state.belief.effect if self.state.belief else UNKNOWN
        are_comparable = ends.has_known_bound and not (ends.only_known_bound or interval.only_known_bound)
        shares = (math.log(end) / math.log(interval.middle) for end in (ends.low, ends.high))
        if are_comparable and max(shares) < REGAINED:
            yield f"Other commits undo most of this change: {self.ends_ratio(ends)}."

    def usual_metric_effect(self, interval: Interval | None, effect: Interval) -> str:
        """The sentence about the culprit's effect on the workload's usual metric, for a hunt by another metric."""
        workload_metric, beginning = self.state.chosen.usual, ""
        metric, higher_is_better = metric_title(workload_metric), find_metric(workload_metric).higher_is_better
        if self.metric == INSTRUCTIONS and effect.low > 1:
            adds = percent(effect.middle - 1)
            beginning = f"This commit adds {adds} instructions per operation, but a cost in time is not shown: "
        if interval is None:
            text = f"effect of this commit on {metric} was not measured; `bisect compare` with its parent measures it."
            return f"{beginning}the {text}" if beginning else f"The {text}"
        after = f"after this change, {metric} is {ratio(interval)} of {metric} before"
        if not interval.excludes_one:
            is_same_direction = find_metric(self.metric).higher_is_better is higher_is_better
            expected = effect.middle if is_same_direction else 1 / effect.middle
            if not interval.low <= expected <= interval.high:
                return f"{metric} does not confirm the change: {after}."
            if beginning:
                return f"{beginning}{after}, and varies too much."
            return f"{metric} varies too much to confirm the change: {after}."
        if (interval.middle > 1) is higher_is_better:
            return f"{metric} gets better nevertheless: {after}."
        return f"{metric} confirms the change: {after}, {change(interval.middle)}."

    def build_change_sentence(self, step: Step) -> Iterator[str]:
        """A sentence if the commit has another build system, or another path of the executable, than its parents."""
        ways = []  # the build system, and files that run where they were built: make (out-static/db_bench)
        for build in map(self.state.latest_build, (step.candidate, *step.parents)):
            files = ", ".join(paths[0] for paths in build.programs.values()) if build else ""
            system = build.system if build else ""
            ways.append(printable(f"{system} ({files})" if system and files else system))
        build_of_commit, *builds_of_parents = ways
        if build_of_commit and (other_builds := {*builds_of_parents} - {"", build_of_commit}):
            between = f"from {listed(sorted(other_builds))} to {build_of_commit}"
            part = "other compiler options may cause a part of the change"
            yield f"The build also changed at this commit, {between}: {part}."

    def class_effect_lines(self, effects: Sequence[ClassEffect]) -> Iterator[str]:
        """A line with the effect on each host class, if the hunt has several host classes."""
        for on_class in effects:
            ends = ", bad against good" * on_class.ends
            yield f"  On {on_class.host_class}: {ratio(on_class.ratio)}, {effect(on_class.ratio, self.metric)}{ends}."

    def layout_sentences(self, step: Step) -> Iterator[str]:
        """The sentences about the comparison in randomized layouts, if the hunt has made this comparison."""
        if layouts := step.layouts:
            direction = "lower" if step.ratio.middle < 1 else "higher"
            layouts_text = count(layouts.compared, "layout")
            comparison = f"{self.metric_text} after this change is on average {ratio(layouts.ratio)} of {self.metric_text} before"
            yield f"With functions linked in random orders ({layouts_text}), {comparison}; it was {direction} in {layouts.changed} of {layouts.compared}."
            if (not_compared := layouts.measured - layouts.compared) > 0:
                modes = "each of these may have run in either of two modes of speed"
                yield f"{count(layouts.measured, 'layout')} of each build were measured; {not_compared} do not count, because {modes}."

    def count_sentences(self, step: Step | None = None) -> Iterator[str]:
        """The sentence about exact counts of instructions: of a commit and its parents, or of good and bad."""
        if self.metric == INSTRUCTIONS:
            return

        def runs_with_exact_counts(candidate: int) -> list[RunFacts]:
            """The runs of a candidate in which instructions were counted exactly."""
            return [run for run in self.state.runs_of_equal_binaries(self.state.commits[candidate]) if run.counted]

        ends = instruction_change(runs_with_exact_counts(0), runs_with_exact_counts(-1))
        if step is None:
            if ends:
                yield f"By exact counts, {executed_instructions('bad', 'good', ends.ratio)}."
            return
        after = runs_with_exact_counts(step.candidate)
        changes = {parent: instruction_change(runs_with_exact_counts(parent), after) for parent in step.parents}
        if compared := {parent: own_change for parent, own_change in changes.items() if own_change}:
            # A merge contains the changes of all its parents, so it is compared with the parent whose count is nearest.
            parent, own_change = min(compared.items(), key=lambda parent_and_change: abs(parent_and_change[1].log_rise))
            ref = "its parent" if step.parents == (parent,) and not step.stand_ins else self.commit_of(parent).short_sha
            is_whole_change = ends and abs(own_change.log_rise - ends.log_rise) <= SAME_CHANGE * abs(ends.log_rise)
            between = f"; {executed_instructions('bad', 'good', ends.ratio)}" if ends else ""
            count_text = executed_instructions("this commit", ref, own_change.ratio)
            yield f"By exact counts, {count_text}{ALL_OF_IT if is_whole_change else between}."

    def proven_against_sentence(self, step: Step) -> str:
        """The sentence that names the builds with which the proof compared the culprit."""
        if not step.parents:
            return "No parent of this commit could be measured, so the culprit is not proven."
        measured_parents = [self.commit_of(parent).short_sha for parent in step.parents if parent not in step.stand_ins]
        stand_ins = [self.commit_of(parent).short_sha for parent in step.parents if parent in step.stand_ins]
        against = []
        if measured_parents:
            in_diff = self.state.started is not None and bool(self.state.started.parts)
            who = "which lacks it" if in_diff else f"its parent{'s' * (len(measured_parents) > 1)}"
            against.append(f"{listed(measured_parents)}, {who}")
        if stand_ins:
            who = f"its nearest tested ancestor{'s' * (len(stand_ins) > 1)}"
            missing = "a parent" if measured_parents else "parents"
            against.append(f"{listed(stand_ins)}, {who} in place of {missing} that could not be measured")
        way = "with paired runs" if step.together else "with interleaved runs"
        return f"Proven against {', and '.join(against)}, {way}."

    def code_placement(self, verdict: CodePlacement) -> Iterator[str]:
        """Sentences for the verdict that a commit changes the metric only in the usual layout, and not in randomized
        layouts (functions in random order); and advice."""
        step = verdict.step
        yield f"Code placement: {cited(self.commit_of(step.candidate))} changes {self.metric_text} only in the usual layout."
        change_text = f"{ratio(step.ratio)} of {self.metric_text} before: {effect(step.ratio, self.metric)}"
        yield f"In the usual layout, {self.metric_text} after this change is {change_text}."
        yield from self.layout_sentences(step)
        if verdict.same_counts:
            yield "This commit moves code, and executes the same instructions as its parent."
        elif verdict.same_counts is False:
            yield "This commit does not execute the same number of instructions as its parent."
        yield f"Over all layouts, {self.ends_ratio(verdict.ratio)}: a change of {percent(verdict.detectable)} or more is excluded."
        yield "Try next: another --variant: o2nofp-aligned aligns functions, loops and jumps; pgo optimises with a profile."

    def several_changes(self, verdict: Several) -> Iterator[str]:
        """The sentences about all changes for the worse, oldest first, all improvements, and undecided subranges."""
        steps, improvements, unsettled = verdict.steps, verdict.improvements, verdict.unsettled
        if steps:
            yield f"{counted_at_start(len(steps), 'change')} of {self.metric_text} in the range, oldest first:"
        else:
            yield f"No change of {self.metric_text} for the worse {'can be named' if unsettled else 'is in the range'}."
        yield from self.change_lines(steps)
        if improvements:
            yield f"{counted_at_start(len(improvements), 'improvement')}:"
            yield from self.change_lines(improvements)
        if unsettled:
            undecided = f"{counted_at_start(len(unsettled), 'part')} of the range"
            yield f"{undecided} could not be searched completely and may contain more changes:"
        for subrange in unsettled:
            yield from self.unsettled_lines(subrange)
        if verdict.detectable:
            yield f"Elsewhere, a change of {percent(verdict.detectable)} or more is excluded."
        if verdict.left:
            yield f"All other changes add up to less than {percent(verdict.left)}; changes that cancel each other are not found."
        if steps and self.metric == INSTRUCTIONS:
            yield "The effect of these changes on time was not measured; `bisect compare` of a commit and its parent measures it."
        advice = (next_advice(subrange.known, self.skip_of, self.state.id, self.history) for subrange in unsettled)
        yield from dict.fromkeys(advice)
        if not (steps or unsettled):
            yield f"Try next: {self.older_advice}."

    def change_lines(self, steps: Sequence[Step]) -> Iterator[str]:
        """For each change: a line, lines with its effect on each host class, and a line if the build changed."""
        for step in steps:
            size = f"{effect(step.ratio, self.metric)}, {ratio(step.ratio)}"
            yield f"  {cited(self.commit_of(step.candidate))}: {size}, {chance(step.probability)} sure."
            yield from (f"  {sentence}" for sentence in self.class_effect_lines(step.effects))
            yield from (f"    {sentence}" for sentence in self.build_change_sentence(step))

    def unsettled_lines(self, subrange: UnsettledRange) -> Iterator[str]:
        """A line about a subrange whose search is undecided, and a line for each suspect in the subrange."""
        verdict = subrange.known
        if not verdict.ratio.has_known_bound:
            ends = "not measured"
        elif not verdict.ratio.excludes_one:
            ends = f"no change shown, {ratio(verdict.ratio)}"
        else:
            ends = f"{effect(verdict.ratio, self.metric)}, {ratio(verdict.ratio)}"
        within = f"  after {self.commit_of(subrange.good).short_sha}, up to {self.commit_of(subrange.bad).short_sha}"
        part = f"{within}: {ends}; {inconclusive_reason(verdict, self.metric, self.skip_of)}"
        if not verdict.candidates:
            yield f"{part}."
            return
        suspects = "this commit" if len(verdict.candidates) == 1 else f"one of these {len(verdict.candidates)}"
        yield f"{part}; if there is a single change: {suspects}, {chance(sum(verdict.probabilities))} sure:"
        yield from (f"  {line}" for line in self.suspect_lines(verdict))

    def suspect_lines(self, verdict: Inconclusive) -> Iterator[str]:
        """A line for each of the ``LISTED`` most probable suspects, oldest first, and a line for all other suspects."""
        pairs = list(zip(verdict.candidates, verdict.probabilities, strict=True))
        shown = sorted(pairs[:LISTED])
        yield from (f"  {chance(p):>6}  {cited(self.commit_of(candidate))}" for candidate, p in shown)
        if further := pairs[LISTED:]:
            yield f"  {chance(sum(p for _, p in further)):>6}  the {len(further)} other candidates together"

    def not_reproduced(self, verdict: NotReproduced) -> Iterator[str]:
        """The sentences that good and bad do not differ, or not in the requested direction, and advice."""
        ends = self.ends_ratio(verdict.ratio)
        if verdict.ratio.low == verdict.ratio.high:  # without measurements, the interval has no width
            yield "Not reproduced: good and bad are the same binary, or do not differ in any file that the recipe builds."
            yield "Try next: a recipe or a variant that builds the files that changed between good and bad."
        elif verdict.ratio.excludes_one:
            reason, options = why_not_hunted(verdict)
            yield f"Not reproduced: {ends}, {effect(verdict.ratio, self.metric)}; {reason}."
            yield f"Try next: {options or self.older_advice}."
        else:
            yield f"Not reproduced: on this host, {ends}; a change of {percent(verdict.detectable)} or more is excluded."
            yield from self.count_sentences()
            yield from self.class_effect_lines(verdict.effects)
            further = f" If the change may be smaller than {percent(verdict.detectable)}, use longer runs (--time) or a metric with less noise."
            further += " If the change may depend on the machine, use another host."
            yield f"Try next: {self.older_advice}.{further * (verdict.detectable >= EXACTLY)}"

    def inconclusive(self, verdict: Inconclusive) -> Iterator[str]:
        """The sentences about an inconclusive hunt: the reason, the commits that can be the culprit, and advice."""
        yield f"Inconclusive: {inconclusive_reason(verdict, self.metric, self.skip_of)}. {self.narrowed(verdict)}."
        if verdict.ratio.has_known_bound:
            change_text = effect(verdict.ratio, self.metric) if verdict.ratio.excludes_one else "no change is shown"
            yield f"{self.ends_ratio(verdict.ratio)}: {change_text}."
        yield from self.count_sentences()
        yield from self.class_effect_lines(verdict.effects)
        yield from self.suspect_lines(verdict)
        yield next_advice(verdict, self.skip_of, self.state.id, self.history)

    def narrowed(self, verdict: Inconclusive) -> str:
        """A clause about the commits that can be the culprit: their number, probability, and the number of others."""
        size = len(verdict.candidates)
        if not size:
            is_outside = verdict.reason is Reason.NOT_IN_BAD
            return f"No commit {'of the range is the culprit' if is_outside else 'can be named, and no commit is excluded'}"
        noun = "part" if self.state.started and self.state.started.parts else "commit"
        suspects = f"this {noun}" if size == 1 else f"one of these {count(size, noun)}"
        others = (self.state.started.possible_culprits if self.state.started else 0) - size
        clause = f"is {suspects}, {chance(sum(verdict.probabilities))} sure"
        if others > 0:
            verb = "has" if others == 1 else "share"
            clause += f"; {count(others, f'other {noun}')} {verb} the remaining probability"
        if verdict.reason in DOUBTED or (verdict.ratio.has_known_bound and not verdict.ratio.excludes_one):
            return f"If anything changed, the culprit {clause}"
        if verdict.several > SEVERAL_LIKELY and verdict.reason not in (Reason.UNBUILDABLE, Reason.LEFT_OUT):
            several = "Probably several commits make the difference. " * (verdict.reason is not Reason.MANY_STEPS)
            return f"{several}The largest change {clause}"
        return f"The culprit {clause}"


def counted_at_start(number: int, noun: str) -> str:
    """A number and its noun for the beginning of a sentence: "One change", "2 changes"."""
    return f"One {noun}" if number == 1 else f"{number} {noun}s"


def executed_instructions(build: str, reference: str, ratio: float) -> str:
    """The clause that compares the instructions of a build with the instructions of a reference build."""
    if abs(math.log(ratio)) <= RESOLVED:
        return f"{build} executes as many instructions as {reference}"
    comparison = "more" if ratio > 1 else "fewer"
    return f"{build} executes {percent(abs(ratio - 1))} {comparison} instructions than {reference}"
