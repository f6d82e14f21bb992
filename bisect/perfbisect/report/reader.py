"""From the history of a hunt to what its report contains."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from perfbisect.core.domain.events import (
    BuildFinished,
    Commit,
    Decided,
    Event,
    HuntStarted,
    Profiled,
    RunFinished,
    Studied,
)
from perfbisect.core.domain.facts import LEFT_OUT, Known, RunFacts, SkipFacts, hit_rate, pairs_of, remote_rate
from perfbisect.core.domain.metrics import COMPARED, INSTRUCTIONS, quotient, typical, values_of
from perfbisect.core.domain.orders import (
    Inconclusive,
    Interval,
    Measure,
    NotReproduced,
    Several,
    Step,
    all_steps,
    first_step,
)
from perfbisect.core.domain.settings import Settings
from perfbisect.core.explain.explanation import done, explanation, usual_value
from perfbisect.core.inference.hunt_state import HuntState, classify, fold, ratios
from perfbisect.report.command_line import command_on, command_to_compare, command_to_run
from perfbisect.report.document import host_line
from perfbisect.report.profiles import Profiles, profiles
from perfbisect.report.story import BuiltAhead, Candidate, Case, Costs, Counted, LeftOpen, Story, Suspect
from perfbisect.store.batches import batch_together
from perfbisect.store.history import History
from perfbisect.store.listing import Listed
from perfbisect.wording import reasons
from perfbisect.wording.quantities import chance, count, slower_than
from perfbisect.wording.text import cited, listed, printable, printable_commit
from perfbisect.wording.unnamed import why
from perfbisect.wording.verdicts import Teller, effect

MOST = 10  # suspects of an unfinished hunt

Describe = Callable[[str], Commit]  # by full hash
LinkOf = Callable[[str], str]
NO_LINK: LinkOf = "".format  # "" for each commit


@dataclass(frozen=True, slots=True)
class Narrowing:
    """One decision: what was believed, and which candidates were ordered."""

    culprit: NDArray[np.float64]  # probability of each candidate
    measured: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Drawn:
    """What the drawings of a page are made of."""

    state: HuntState
    course: tuple[Narrowing, ...]  # the decisions about the range of the hunt, in order
    profiles: Profiles | None


def read_story(history: History, hunt: int, describe: Describe = Commit, link_of: LinkOf = NO_LINK) -> Story:
    """The report of a hunt; ``describe`` gives commits that its log does not describe, ``link_of`` their pages at a forge.

    Raises UsageError when there is no such hunt.
    """
    return read_hunt(history, hunt, describe, link_of)[0]


def read_hunt(
    history: History, hunt: int, describe: Describe = Commit, link_of: LinkOf = NO_LINK
) -> tuple[Story, Drawn]:
    """The same, and what a page draws."""
    entries = [(entry.at, entry.event) for entry in history.events(hunt)]
    state = fold(entries, history.sittings(hunt))
    settings = history.settings(hunt)
    state.use_range(history.candidates(hunt))
    story = Reader(history.listed(hunt), settings, state, describe, link_of).story(
        command_to_run(settings, history.path), *(command_on(verb, hunt, history.path) for verb in ("resume", "prove"))
    )
    if story.verdict and story.cases and not story.hunt.origin:
        first, *others = story.cases
        helps = reasons.what_helps(
            first.explanation, command_on("why", hunt, history.path), studied=bool(state.studied)
        )
        story = replace(story, cases=(replace(first, why=f"{first.why} {helps}".strip()), *others))
    shown = {trial.name: tuple(reasons.proof_sentences(trial)) for trial in history.proofs(hunt)}
    studied: Sequence[Studied] = state.studied
    if step := first_step(state.verdict):
        value = usual_value(state.runs_of(step, exact=settings.prior.exact), settings.metric)
        studied = [
            replace(one, facts=done(one.facts, value, settings.metric)) if isinstance(one, Profiled) else one
            for one in studied
        ]
    several = (story.suspects, *(one.suspects for one in story.unsettled))
    of_set = {each.commit.sha for some in several for each in some} if story.verdict else state.tested.keys()
    story = replace(story, warnings={**story.warnings, **known_failures(state, settings, history.path, of_set)})
    drawn = Drawn(state, tuple(course([event for _, event in entries], state.commits)), profiles(studied))
    return replace(story, proofs=shown, together=together_with(history, hunt)), drawn


def known_failures(state: HuntState, settings: Settings, path: Path, of_set: Collection[str]) -> dict[str, str]:
    """Of each class of known errors in how many commits ``of_set`` it was seen, and the command that mends it."""
    classes: dict[str, list[SkipFacts]] = {}
    for sha, row in state.tested.items():
        if row.skip and row.skip.known and sha in of_set:
            classes.setdefault(row.skip.known.name, []).append(row.skip)
    said = {}
    for name, skips in classes.items():
        known = reduce(Known.also, (skip.known for skip in skips if skip.known))
        again = command_to_run(replace(settings, flags=settings.flags.plus(known.flags)), path)
        seen = f"{count(len(skips), 'commit')} did not build for {name}, such as {skips[0].commit[:10]}"
        said[seen] = f"Mended by {known.option}" + (f": {again}" if known.flags.options else ".")
    return said


def course(events: Sequence[Event], commits: tuple[str, ...]) -> Iterator[Narrowing]:
    """The decisions about this range: a hunt may have compared good with the merge base before."""
    present: tuple[str, ...] = ()
    for event in events:
        match event:
            case HuntStarted():
                present = event.candidates
            case Decided(decision) if present == commits and decision.belief.culprit.sum() > 0:
                order = decision.order
                measured = tuple(share.candidate for share in order.plan) if isinstance(order, Measure) else ()
                yield Narrowing(decision.belief.culprit, measured)
            case _:
                pass


def together_with(history: History, hunt: int) -> str:
    """The batch and the other hunts with which a hunt shares its builds; "" for one of its own."""
    batch = batch_together(history, hunt)
    if batch is None:
        return ""
    others = [str(one.hunt) for one in batch.hunts if one.hunt not in (None, hunt)]
    return f"with hunt{'s' * (len(others) > 1)} {listed(others)} ({batch.name}): what is built for one is used by all"


@dataclass(frozen=True, slots=True)
class Reader:
    """Derives the report of one hunt from its state, whose range is that of the hunt."""

    listed: Listed
    settings: Settings
    state: HuntState
    describe: Describe = Commit
    link_of: LinkOf = NO_LINK

    def story(self, again: str = "", go_on: str = "", prove: str = "") -> Story:
        """The report, with the commands that repeat, resume and prove the hunt."""
        state, settings, verdict = self.state, self.settings, self.state.verdict
        hosts = settings.hosts if settings.further_hosts else ()
        found = ratios(state, settings.metric, hosts, settings.prior.host_classes)
        ends_measured = state.measured(state.commits[0]) and state.measured(state.commits[-1])
        belief = state.belief if ends_measured else None  # until then it is only the prior
        warnings = {printable(text): printable(advice) for text, advice in state.warnings.items()}
        if state.belief is not None:
            warnings |= {printable(text): "" for text in state.belief.warnings}
        return Story(
            hunt=self.listed,
            settings=settings,
            hosts=state.started.hosts if state.started is not None else (),
            effects=verdict.effects if isinstance(verdict, NotReproduced | Inconclusive) else (),
            verdict=(*self.teller.sentences(verdict), *state.remedy) if verdict else (),
            found=() if verdict else self.teller.so_far(state.found),
            cases=tuple(map(self.case, all_steps(verdict) if verdict else state.found)),
            suspects=tuple(self.suspects(searched=belief is not None)),
            unsettled=tuple(self.left_open()),
            effect=found.get(state.commits[-1]) or (belief.effect if belief is not None else None),
            candidates=tuple(self.candidates(found)),
            warnings=warnings,
            costs=self.costs(),
            again=again,
            go_on=go_on,
            prove=prove,
            why_metric=state.chosen.why,
            pairing=state.pairing,
        )

    @property
    def teller(self) -> Teller:
        """Says what the hunt has found."""
        settings = self.settings
        hosts = settings.hosts if settings.further_hosts else ()
        size, classes = self.listed.candidates, settings.prior.host_classes
        return Teller.of(self.state, self.candidate, settings.metric, size, hosts, classes)

    def commit(self, sha: str) -> Commit:
        """A commit as far as it is known, with texts that are safe to print."""
        known = self.state.row(sha).commit
        return printable_commit(self.describe(sha) if known == Commit(sha) else known)

    def candidate(self, node: int) -> Commit:
        """The commit of a candidate."""
        return self.commit(self.state.commits[node])

    def case(self, step: Step) -> Case:
        """A step with the counters of both its sides."""
        commits = self.state.commits
        before = self.state.runs_like(*(commits[parent] for parent in step.parents))
        after = self.state.runs_like(commits[step.candidate])
        own = self.state.runs_of(step, exact=self.settings.prior.exact)
        explained = explanation(
            self.state.studied,
            commits[step.parents[0]] if step.parents else "",
            commits[step.candidate],
            own,
            step,
            self.settings.metric,
        )
        all_counted = all(run.counted for run in (*before, *after))
        counters = []
        for metric in [INSTRUCTIONS] if all_counted and (before or after) else COMPARED:  # a counted run has no other
            # Those of timed runs are of another sort: with the work of the kernel, and with that beside the workload.
            sides = own if metric == INSTRUCTIONS else (before, after)
            low, high = (typical(runs, metric) for runs in sides)
            counters.append(Counted(metric, low, high, quotient(high, low)))
        commit, why = self.candidate(step.candidate), " ".join(reasons.sentences(explained))
        return Case(
            commit=commit,
            parents=tuple(map(self.candidate, step.parents)),
            probability=step.probability,
            ratio=step.ratio,
            effects=step.effects,
            cause=explained.classes[0].cause,
            why=why,
            counters=tuple(counters),
            explanation=explained,
            plans=explained.plans,
            pairs=tuple(self.pairs(step)),
            pairs_metric=self.pairs_metric,
            link=(link := self.link_of(commit.sha)),
            issue=tuple(self.issue(step, commit, link, why)),
        )

    def issue(self, step: Step, commit: Commit, link: str, why: str) -> Iterator[str]:
        """What a mail or an issue about a step says."""
        settings, state, teller = self.settings, self.state, self.teller
        parent = self.candidate(step.parents[0]).short if step.parents else f"{commit.short}^"
        yield f"{teller.what}: {effect(step.ratio, settings.metric)} since {cited(commit)}"
        yield f"Commit: {link or commit.sha}{f', by {commit.author}' if commit.author else ''}"
        host = host_line(state.started.hosts[0]) if state.started else settings.host
        yield f"Effect: {teller.changed(step.ratio)}; {self.listed.title} on {host}."
        yield f"Sure: {chance(step.probability)}. {teller.proof(step)}"
        yield f"Why: {why}"
        yield f"Reproduce: {command_to_compare(settings, parent, commit.short)}"

    @property
    def pairs_metric(self) -> str:
        """What is compared in rounds."""
        chosen, metric = self.state.pairing, self.settings.metric
        return chosen.compared(metric) if chosen else metric

    def pairs(self, step: Step) -> list[tuple[float, float]]:
        """The metric of a parent and of the commit in each round in which both were measured."""
        commits = self.state.commits
        sides = {commits[step.candidate]: 1, **{commits[parent]: 0 for parent in step.parents}}
        made = pairs_of(event.facts for _, event in self.state.log if isinstance(event, RunFinished))
        both = (pair for pair in made if {sides.get(run.commit) for run in pair} == {0, 1})
        ordered = ((one, other) if sides[one.commit] else (other, one) for one, other in both)
        return values_of(ordered, self.pairs_metric)

    def own(self, runs: Sequence[RunFacts]) -> list[RunFacts]:
        """Those of the runs that were made as the hunt's are: counted exactly, or timed."""
        return [run for run in runs if bool(run.counted) is self.settings.prior.exact]

    def suspects(self, *, searched: bool) -> Iterator[Suspect]:
        """The commits that may be the culprit, where none is named; none before the search has begun."""
        pairs: Sequence[tuple[float, int]] = ()
        if isinstance(verdict := self.state.verdict, Inconclusive):
            pairs = sorted(zip(verdict.probabilities, verdict.candidates, strict=True), reverse=True)
        elif verdict is None and searched and self.state.belief is not None:
            believed = self.state.belief.culprit.tolist()
            pairs = sorted(((p, node) for node, p in enumerate(believed) if p >= 0.01), reverse=True)[:MOST]
        for probability, node in pairs:
            yield Suspect(self.candidate(node), probability)

    def left_open(self) -> Iterator[LeftOpen]:
        """The subranges whose search did not end, in a hunt for every change."""
        for one in self.state.verdict.unsettled if isinstance(self.state.verdict, Several) else ():
            pairs = zip(one.known.candidates, one.known.probabilities, strict=True)
            yield LeftOpen(
                good=self.candidate(one.good),
                bad=self.candidate(one.bad),
                ratio=one.known.ratio if one.known.ratio.known else None,
                reason=why(one.known, self.settings.metric, self.teller.skip_of),
                suspects=tuple(Suspect(self.candidate(node), probability) for node, probability in pairs),
            )

    def candidates(self, found: Mapping[str, Interval]) -> Iterator[Candidate]:
        """Every commit that was tested, oldest first; those outside of the range come before it."""
        state = self.state
        for sha in sorted(state.tested, key=lambda sha: state.node.get(sha, -1)):
            row = state.row(sha)
            if not (row.builds or row.runs or row.skip):
                continue
            yield Candidate(
                commit=self.commit(sha),
                node=state.node.get(sha),
                ratio=found.get(sha),
                builds=len(row.made),
                build_seconds=row.build_seconds,
                hit_rate=row.hit_rate,
                reused=bool(row.builds) and not row.made,
                shared=row.shared,
                runs=len(own := self.own(row.runs)),
                further=len(row.runs) - len(own),
                state=classify(state, sha, found),
                same_as=self.commit(row.same_as) if row.same_as else None,
                skipped=printable(f"{row.skip.stage}: {row.skip.reason}") if row.skip else "",
                patches=row.builds[-1].patches if row.builds else {},
                left_out=row.skip is not None and row.skip.stage == LEFT_OUT,
                stopped=stopped(row.runs),
            )

    def costs(self) -> Costs:
        """What the hunt has cost."""
        rows = self.state.tested.values()
        made = [build for row in rows for build in row.made]
        return Costs(
            builds=len(made),
            build_seconds=sum(row.build_seconds for row in rows),
            hit_rate=hit_rate(made),
            runs=sum(len(row.runs) for row in rows),
            run_seconds=sum(row.run_seconds for row in rows),
            seconds=self.state.elapsed,
            ahead=self.built_ahead(),
            shared=sum(build.shared for row in rows for build in row.builds),
            remote_rate=remote_rate(made),
        )

    def built_ahead(self) -> BuiltAhead | None:
        """What was built ahead; None without build hosts."""
        state = self.state
        if not state.build_hosts:
            return None
        makers = [event.host for _, event in state.log if isinstance(event, BuildFinished)]
        unused = state.unused
        return BuiltAhead(
            builds={name: makers.count(name) for name in state.build_hosts},
            unused=sum(len(row.made) for row in unused),
            unused_seconds=sum(build.seconds for row in unused for build in row.made),
            ended=len(state.cancelled),
            ended_seconds=sum(state.cancelled),
            in_flight={name: self.commit(sha) for name, (sha, _) in state.in_flight.items()},
        )


def stopped(runs: Sequence[RunFacts]) -> str:
    """What the first of the runs shows that was stopped; empty if none was."""
    first = next((run for run in runs if run.slower_than), None)
    return slower_than(first.slower_than, first.seconds) if first else ""
