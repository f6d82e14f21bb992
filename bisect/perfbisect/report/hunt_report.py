"""The data of a hunt's report: the hunt's row and settings in the history, its state, and computed values.

Text, Markdown, JSON and pages are made from a ``HuntReport``.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, reduce
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from perfbisect.core.domain.events import BuildFinished, Commit, Decided, Event, RunFinished, SessionStarted
from perfbisect.core.domain.facts import (
    LEFT_OUT,
    BuildFacts,
    DiffPart,
    KnownError,
    RunFacts,
    SkipFacts,
    ccache_hit_rate,
    pair_runs,
    remote_share_of_hits,
)
from perfbisect.core.domain.metrics import COMPARED, INSTRUCTIONS, median_metric, second_and_first_values
from perfbisect.core.domain.orders import Inconclusive, Interval, Measure, Several, Step, all_steps, explained_step
from perfbisect.core.domain.session_state import SessionState, TestedCommit, fold
from perfbisect.core.domain.settings import Settings
from perfbisect.core.explain.evidence import Explanation, FunctionRow
from perfbisect.core.explain.explanation import profiles_with_operations, step_explanation, waits_if_cause
from perfbisect.core.inference.classification import Classification, ratios_to_good
from perfbisect.report.command_line import bisect_command, command_to_run
from perfbisect.report.profiles import HuntProfiles, hunt_profiles
from perfbisect.store.batches import batch_of_one_process
from perfbisect.store.connection import with_history
from perfbisect.store.history import History
from perfbisect.store.listing import SessionSummary
from perfbisect.wording import reasons
from perfbisect.wording.quantities import MISSING, count, divisor_and_unit, figure, share, signed
from perfbisect.wording.text import listed, printable, printable_commit
from perfbisect.wording.trials import proof_sentences
from perfbisect.wording.verdicts import VerdictSentences

SUSPECTS = 10  # most suspects of an unfinished hunt that its report lists
UNKNOWN = 0.005  # a table mentions the share of a cost whose callers are unknown if it is at least this

IN_DIFF = "SELECT id FROM sessions WHERE kind = 'hunt' AND about = ? ORDER BY id"  # the searches in the diff of a hunt's culprit
COSTS = ("parent", "culprit", "difference", "share")
TONES = {  # classification of a commit → class of the colour
    Classification.BASELINE: "good",
    Classification.GOOD: "good",
    Classification.BAD: "bad",
    Classification.CULPRIT: "culprit",
    Classification.SKIPPED: "skipped",
}

Describe = Callable[[str], Commit]  # full hash → commit
LinkOf = Callable[[str], str]  # full hash → address
# (Parent, commit) → (their diff, number of files that the diff leaves out); None if the diff cannot be read.
DiffOf = Callable[[str, str], tuple[str, int] | None]
NO_LINK: LinkOf = "".format  # "" for each commit


@dataclass(frozen=True, slots=True)
class SearchDecision:
    """A decision of the search: its belief, and the candidates that are measured next."""

    probabilities: NDArray[np.float64]  # probability of each candidate
    ordered_candidates: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class NamedChange:
    """A change that the verdict names, or that was proven before the verdict, and the measured reason of the change."""

    step: Step
    commit: Commit
    parents: tuple[Commit, ...]  # the parents with which the proof compared the commit
    explanation: Explanation  # explanation of the difference from the first parent
    reason_sentences: tuple[str, ...]  # three sentences at most
    unknown_reasons: tuple[str, ...]  # a sentence for each part that was not measured, or is not known
    pairs: tuple[tuple[float, float], ...]  # the metric of a parent and of the commit in their paired runs


@dataclass(frozen=True, slots=True)
class Suspect:
    """A commit that may be the culprit."""

    commit: Commit
    probability: float


@dataclass(frozen=True, slots=True)
class HuntCosts:
    """The costs of a hunt. Rates are fractions between 0 and 1; an unknown rate is None."""

    builds: int  # number of builds, without reused builds
    build_seconds: float  # seconds of builds, with the fetching of shared builds
    hit_rate: float | None  # hit rate of ccache
    runs: int
    run_seconds: float  # seconds of runs, with starts and warm-up
    seconds: float  # seconds of all attempts
    ahead: "BuiltAhead | None" = None
    shared: int = 0  # builds that were taken from the shared builds
    remote_rate: float | None = None  # share of ccache's hits that came from the remote store
    incremental: int = 0  # builds in the tree of another build


@dataclass(frozen=True, slots=True)
class BuiltAhead:
    """The builds that build hosts made while other hosts measured."""

    builds: Mapping[str, int]  # build host → number of its builds, including reused builds
    unused: int  # builds that were not measured
    unused_seconds: float
    ended: int  # number of builds that were ended because no hunt needed them any more
    ended_seconds: float
    in_flight: Mapping[str, Commit]  # build host → the commit that it builds now


@dataclass(eq=False)
class HuntReport:
    """The data of a hunt's report. ``state`` has the range from good to bad, never from the merge base to good."""

    summary: SessionSummary
    settings: Settings
    state: SessionState
    history: Path
    describe: Describe = Commit  # describes the commits that the log does not describe
    link_of: LinkOf = NO_LINK  # returns a commit's page at a forge
    decisions: tuple[SearchDecision, ...] = ()  # the decisions about the range of the hunt, in order
    shared_builds_text: str = ""  # the hunts with which the hunt shares builds, in words
    proof_sentences: Mapping[str, Sequence[str]] = field(default_factory=dict)  # p5, or hunt 13 → its sentences

    def commit(self, sha: str) -> Commit:
        """The commit with the hash ``sha``, with its description if this is known. Its texts are safe to print."""
        commit = self.state.facts_of(sha).commit
        return printable_commit(self.describe(sha) if commit == Commit(sha) else commit)

    def commit_of_candidate(self, candidate: int) -> Commit:
        """The commit of a candidate."""
        commit, started = self.commit(self.state.commits[candidate]), self.state.started
        return printable_commit(started.with_part_title(commit, candidate)) if started else commit

    @cached_property
    def ratios_to_good(self) -> dict[str, Interval]:
        """The metric of each measured commit relative to the good end."""
        classes = self.settings.prior.host_classes
        return ratios_to_good(self.state, self.settings.metric, self.state.hosts_if_several, classes)

    @property
    def wording(self) -> VerdictSentences:
        """The object that makes sentences about the results of the hunt."""
        return VerdictSentences(self.state, self.commit_of_candidate, with_history("", self.history))

    @property
    def verdict_sentences(self) -> tuple[str, ...]:
        """Sentences about the verdict, and how commits that did not build could be built; empty before the verdict."""
        verdict = self.state.verdict
        return (*self.wording.sentences(verdict), *self.state.remedy) if verdict else ()

    @property
    def proven_so_far_sentences(self) -> tuple[str, ...]:
        """Sentences about the changes that are proven before the verdict; empty after the verdict."""
        return () if self.state.verdict else self.wording.changes_so_far(self.state.found)

    @property
    def ends_are_measured(self) -> bool:
        """Whether both ends were measured. If not, the probabilities of the candidates are only prior probabilities."""
        return self.state.is_measured(self.state.commits[0]) and self.state.is_measured(self.state.commits[-1])

    @property
    def ratio_of_ends(self) -> Interval | None:
        """The ratio of bad to good; None if it is unknown."""
        believed = self.state.belief.effect if self.state.belief and self.ends_are_measured else None
        return self.ratios_to_good.get(self.state.commits[-1]) or believed

    @cached_property
    def changes(self) -> tuple[NamedChange, ...]:
        """All changes that the verdict names, also improvements; before the verdict, the proven changes."""
        verdict = self.state.verdict
        changes = [*map(self._change, all_steps(verdict) if verdict else self.state.found)]
        if verdict and changes and not self.summary.origin:
            command, studied = bisect_command("why", self.summary.id, self.history), bool(self.state.explanation_events)
            helps = reasons.missing_reason_advice(changes[0].explanation, command, was_measured=studied)
            changes[0] = replace(changes[0], unknown_reasons=tuple(filter(None, (*changes[0].unknown_reasons, helps))))
        return tuple(changes)

    def _change(self, step: Step) -> NamedChange:
        """The change at ``step``, with its reason and its paired runs."""
        commits, explained = self.state.commits, step_explanation(self.state, step)
        sides = {commits[step.candidate]: 1, **{commits[parent]: 0 for parent in step.parents}}
        all_pairs = pair_runs(event.facts for _, event in self.state.log if isinstance(event, RunFinished))
        pairs_of_step = (pair for pair in all_pairs if {sides.get(run.commit) for run in pair} == {0, 1})
        ordered = ((first, second) if sides[first.commit] else (second, first) for first, second in pairs_of_step)
        return NamedChange(
            step,
            self.commit_of_candidate(step.candidate),
            tuple(map(self.commit_of_candidate, step.parents)),
            explained,
            reasons.reason_sentences(explained),
            tuple(reasons.open_questions(explained)),
            tuple(second_and_first_values(ordered, self.pairs_metric)),
        )

    @property
    def named_diff_parts(self) -> tuple[DiffPart, ...]:
        """After `bisect narrow`, the parts of the diff that the verdict names or, if inconclusive, suspects."""
        verdict, added = self.state.verdict, self.state.started.parts if self.state.started else ()
        named = [step.candidate for step in all_steps(verdict)]
        nodes = verdict.candidates if isinstance(verdict, Inconclusive) else named
        return tuple(part for node in sorted(nodes) if 0 < node <= len(added) for part in added[node - 1])

    def typical_values(self, step: Step) -> dict[str, tuple[float | None, float | None]]:
        """For each metric, the median of the parents' runs, and of the commit's runs; None if no run has the metric."""
        parent_runs = self.state.runs_of_equal_binaries(*(self.state.commits[parent] for parent in step.parents))
        culprit_runs = self.state.runs_of_equal_binaries(self.state.commits[step.candidate])
        exact_runs = self.state.runs_of_step(step, counted=self.settings.prior.exact)
        all_counted = all(run.counted for run in (*parent_runs, *culprit_runs))
        counters = {}
        only_instructions = all_counted and (parent_runs or culprit_runs)  # counted runs have no other metric
        for metric in [INSTRUCTIONS] if only_instructions else COMPARED:
            # Only exact counts of instructions compare: timed runs also count the kernel, and other work of the server.
            low, high = exact_runs if metric == INSTRUCTIONS else (parent_runs, culprit_runs)
            counters[metric] = median_metric(low, metric), median_metric(high, metric)
        return counters

    @property
    def pairs_metric(self) -> str:
        """The metric in which paired runs are compared."""
        chosen, metric = self.state.pairing, self.settings.metric
        return chosen.metric_of_paired_runs(metric) if chosen else metric

    @property
    def tested_commits(self) -> list[tuple[str, TestedCommit]]:
        """Each commit that was built, measured or skipped, oldest first; commits outside of the range come first."""
        rows = sorted(self.state.tested.items(), key=lambda entry: self.state.node.get(entry[0], -1))
        return [(sha, row) for sha, row in rows if row.builds or row.runs or row.skip]

    def search_runs(self, row: TestedCommit) -> list[RunFacts]:
        """The runs of a commit that the search uses: exact counts if the hunt counts exactly, otherwise timed runs."""
        return [run for run in row.runs if bool(run.counted) is self.settings.prior.exact]

    @property
    def suspects(self) -> tuple[Suspect, ...]:
        """Possible culprits, most probable first; empty if the verdict names the culprit or an end is unmeasured."""
        pairs: Sequence[tuple[float, int]] = ()
        if isinstance(verdict := self.state.verdict, Inconclusive):
            pairs = sorted(zip(verdict.probabilities, verdict.candidates, strict=True), reverse=True)
        elif verdict is None and self.state.belief and self.ends_are_measured:
            believed = self.state.belief.culprit.tolist()
            pairs = sorted(((p, node) for node, p in enumerate(believed) if p >= 0.01), reverse=True)[:SUSPECTS]
        return tuple(Suspect(self.commit_of_candidate(node), probability) for probability, node in pairs)

    @cached_property
    def advice_by_warning(self) -> dict[str, str]:
        """The advice for each warning. Known build errors of commits that may be the culprit are also warnings."""
        state, verdict = self.state, self.state.verdict
        texts = state.warnings | dict.fromkeys(state.belief.warnings if state.belief else (), "")
        subranges = verdict.unsettled if isinstance(verdict, Several) else ()
        open_nodes = (node for subrange in subranges for node in subrange.known.candidates)
        shas = {suspect.commit.sha for suspect in self.suspects} | {state.commits[node] for node in open_nodes}
        failures = advice_by_known_error(state, self.settings, self.history, shas if verdict else state.tested.keys())
        return {printable(text): printable(advice) for text, advice in texts.items()} | failures

    @cached_property
    def profiles(self) -> HuntProfiles | None:
        """The profiles of the culprit and of its parent; None if they were not recorded."""
        step = explained_step(self.state.verdict)
        usual = self.state.runs_of_step(step, counted=self.settings.prior.exact) if step else ([], [])
        return hunt_profiles(profiles_with_operations(self.state.explanation_events, usual, self.settings.metric))

    @property
    def made_builds(self) -> list[BuildFacts]:
        """The builds that this hunt made; reused builds are left out."""
        return [build for row in self.state.tested.values() for build in row.new_builds]

    @property
    def costs(self) -> HuntCosts:
        """The costs of the hunt so far."""
        rows, builds_made = self.state.tested.values(), self.made_builds
        return HuntCosts(
            builds=self.state.build_count,
            build_seconds=sum(row.build_seconds for row in rows),
            hit_rate=ccache_hit_rate(builds_made),
            runs=self.state.run_count,
            run_seconds=sum(row.run_seconds for row in rows),
            seconds=self.state.elapsed,
            ahead=self._built_ahead() if self.state.build_hosts else None,
            shared=sum(build.shared for row in rows for build in row.builds),
            remote_rate=remote_share_of_hits(builds_made),
            incremental=sum(build.incremental for build in builds_made),
        )

    def _built_ahead(self) -> BuiltAhead:
        state = self.state
        # Unused builds: neither the commit nor another commit with the same binary was measured.
        unused = [row for sha, row in state.tested.items() if row.new_builds and not state.is_measured(sha)]
        makers = [event.host for _, event in state.log if isinstance(event, BuildFinished)]
        return BuiltAhead(
            builds={name: makers.count(name) for name in state.build_hosts},
            unused=sum(len(row.new_builds) for row in unused),
            unused_seconds=sum(build.seconds for row in unused for build in row.new_builds),
            ended=len(state.cancelled),
            ended_seconds=sum(state.cancelled),
            in_flight={name: self.commit(sha) for name, (sha, _) in state.in_flight.items()},
        )


def read_hunt_report(history: History, hunt: int, describe: Describe = Commit, link_of: LinkOf = NO_LINK) -> HuntReport:
    """The report of a hunt. Raises UsageError if the history does not have the hunt."""
    entries = [(entry.at, entry.event) for entry in history.events(hunt)]
    state = fold(entries, history.attempt_starts(hunt))
    state.renumber_candidates(history.candidates(hunt))
    searches_in_diff = [number for (number,) in history.select(IN_DIFF, [hunt])]
    return HuntReport(
        history.session_summary(hunt),
        history.settings(hunt),
        state,
        history.path,
        describe,
        link_of,
        tuple(search_decisions([event for _, event in entries], state.commits)),
        shared_builds_text(history, hunt),
        {trial.name: tuple(proof_sentences(trial, with_history("", history.path))) for trial in history.proofs(hunt)}
        | {f"hunt {number}": read_hunt_report(history, number).verdict_sentences[:2] for number in searches_in_diff},
    )


def advice_by_known_error(state: SessionState, settings: Settings, path: Path, shas: Collection[str]) -> dict[str, str]:
    """For each known build error, a warning with the number of ``shas`` that have it, and advice with a command."""
    classes: dict[str, list[SkipFacts]] = {}
    for sha, row in state.tested.items():
        if row.skip and row.skip.known and sha in shas:
            classes.setdefault(row.skip.known.name, []).append(row.skip)
    advice = {}
    for name, skips in classes.items():
        remedy = reduce(KnownError.combined, (skip.known for skip in skips if skip.known))
        again = command_to_run(replace(settings, flags=settings.flags.with_missing(remedy.flags)), path)
        text = f"{count(len(skips), 'commit')} did not build for {name}, such as {skips[0].commit[:10]}"
        advice[text] = f"Mended by {remedy.remedy}" + (f": {again}" if remedy.flags.options else ".")
    return advice


def search_decisions(events: Sequence[Event], commits: tuple[str, ...]) -> Iterator[SearchDecision]:
    """The decisions of the search in the range ``commits``; decisions about the merge base and good are left out."""
    present: tuple[str, ...] = ()
    for event in events:
        match event:
            case SessionStarted():
                present = event.candidates
            case Decided(decision) if present == commits and decision.belief.culprit.sum() > 0:
                order = decision.order
                measured = tuple(share.candidate for share in order.plan) if isinstance(order, Measure) else ()
                yield SearchDecision(decision.belief.culprit, measured)
            case _:
                pass


def shared_builds_text(history: History, hunt: int) -> str:
    """Words for the batch and the hunts that share builds with ``hunt``; "" if no hunt shares its builds."""
    batch = batch_of_one_process(history, hunt)
    if batch is None:
        return ""
    numbers = [str(task.hunt) for task in batch.hunts if task.hunt not in (None, hunt)]
    return f"with hunt{'s' * (len(numbers) > 1)} {listed(numbers)} (batch {batch.name}), with shared builds"


def is_skipped_by_user(row: TestedCommit) -> bool:
    """Whether perfbisect never built the commit, because of --skip."""
    return row.skip is not None and row.skip.stage == LEFT_OUT


def titled_function_rows(explanation: Explanation) -> Iterator[tuple[str, Sequence[FunctionRow]]]:
    """The titles and rows of the tables of functions: waits (if waiting is a reason), own costs, instructions."""
    unknown = f"; callers of {share(explanation.share_without_callers)} of the cost are unknown"
    unknown *= explanation.share_without_callers >= UNKNOWN
    for sort, of, unit, measured, note in (
        ("Waiting", explanation.operation, "us", waits_if_cause(explanation), ""),
        ("Cost", explanation.operation, explanation.unit, explanation.functions, unknown),
        ("Instructions", "run" if explanation.whole_runs else "operation", "", explanation.counts, ""),
    ):
        if measured:
            divisor, name = divisor_and_unit(max(max(row.parent, row.culprit) for row in measured), unit, smallest=10.0)
            head = f"{sort} of each function without its callees, per {of}{name and f', in {name}'}; share of the whole"
            yield f"{head} difference (–: noise){note}", [with_scaled_costs(row, divisor) for row in measured]


def with_scaled_costs(row: FunctionRow, divisor: float) -> FunctionRow:
    """The row of a function with its costs divided by ``divisor``."""
    costs = row.parent, row.culprit, row.error
    parent, culprit, error = (cost / divisor if divisor == 1 else round(cost / divisor, 4) for cost in costs)
    return replace(row, parent=parent, culprit=culprit, error=error)


def function_cost_cells(function: FunctionRow) -> tuple[str, ...]:
    """The cells of the columns COSTS: a function's cost in each build, the difference, and its share of the total."""
    part = share(function.part) if function.part and function.beyond_noise else MISSING
    return figure(function.parent), figure(function.culprit), signed(function.difference), part
