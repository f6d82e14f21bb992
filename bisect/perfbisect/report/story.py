"""One hunt as a report tells it: plain values, ready for text, Markdown and JSON."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from perfbisect.core.domain.causes import Cause, classify
from perfbisect.core.domain.events import Commit
from perfbisect.core.domain.facts import HostFacts
from perfbisect.core.domain.metrics import COMPARED, quotient, typical
from perfbisect.core.domain.observations import Reading
from perfbisect.core.domain.orders import (
    Belief,
    Effect,
    Found,
    Inconclusive,
    Interval,
    NotReproduced,
    Several,
    Step,
    Verdict,
)
from perfbisect.core.domain.settings import Settings
from perfbisect.core.inference.from_log import observations
from perfbisect.core.stats.relative_speed import relative
from perfbisect.report.command import go_on_with, made_by
from perfbisect.report.hunt_log import Describe, HuntLog, bare
from perfbisect.store.history import History
from perfbisect.store.listing import Listed
from perfbisect.wording.text import printable
from perfbisect.wording.verdicts import sentences, why

SURE = 0.95  # a candidate is said to be on one side from here


class State(StrEnum):
    """What is known of a candidate."""

    BASE = "base"
    GOOD = "good"  # as fast as the good end
    BAD = "bad"  # as slow as the bad end
    CULPRIT = "culprit"
    MEASURED = "measured"  # between the two, or the ends are not known to differ
    BUILT = "built"  # and not measured enough to say anything
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class Candidate:
    """A candidate on which something was spent."""

    commit: Commit
    node: int | None  # in the range, 0 being the good end; None for a commit outside of it
    ratio: Interval | None  # of the metric to that of the base; None for the base itself, and when not known
    builds: int
    build_seconds: float
    hit_rate: float | None  # share of compilations that ccache answered
    reused: bool  # its build was still there from another hunt
    runs: int
    state: State
    same_as: Commit | None  # an earlier build with the same binary
    skipped: str  # why and where, empty when it was not


@dataclass(frozen=True, slots=True)
class Counted:
    """One metric of the culprit beside that of its parents; None where the host cannot count it."""

    metric: str
    parent: float | None
    culprit: float | None
    ratio: float | None


@dataclass(frozen=True, slots=True)
class Case:
    """One change that the verdict names, with its proof and its reason."""

    commit: Commit
    parents: tuple[Commit, ...]  # those it was proven against
    probability: float
    ratio: Interval  # after against before
    effects: tuple[Effect, ...]  # the same on each class of hosts, if they are of several
    cause: Cause
    why: str  # one sentence
    counters: tuple[Counted, ...]


@dataclass(frozen=True, slots=True)
class Suspect:
    """A commit that may be the culprit."""

    commit: Commit
    probability: float


@dataclass(frozen=True, slots=True)
class LeftOpen:
    """A piece of the range, what ``bad`` has and ``good`` has not, that could not be searched to its end."""

    good: Commit
    bad: Commit
    ratio: Interval | None  # bad against good; None where they were not both measured
    reason: str
    suspects: tuple[Suspect, ...]  # if it holds one change; most probable first


@dataclass(frozen=True, slots=True)
class Costs:
    """What a hunt has spent."""

    builds: int  # really made
    build_seconds: float
    hit_rate: float | None
    runs: int
    run_seconds: float  # warm-up and starts included
    seconds: float  # from begin to end, interruptions not included


@dataclass(frozen=True, slots=True)
class Story:
    """A hunt, told."""

    hunt: Listed
    settings: Settings
    hosts: tuple[HostFacts, ...]  # as they were when its latest session began
    effects: tuple[
        Effect, ...
    ]  # of the whole range, on each class of hosts if they are of several; cases have their own
    verdict: tuple[str, ...]  # sentences; empty when there is none yet
    cases: tuple[Case, ...]
    suspects: tuple[Suspect, ...]  # most probable first; of an inconclusive or unfinished hunt
    unsettled: tuple[LeftOpen, ...]  # what a hunt for every change leaves open, oldest first
    effect: Interval | None  # bad against good
    candidates: tuple[Candidate, ...]  # oldest first
    warnings: Mapping[str, str]  # text → what to do about it
    costs: Costs
    again: str  # command that makes this hunt anew
    go_on: str  # command that goes on with it


def read_story(history: History, hunt: int, describe: Describe = bare) -> Story:
    """Tell a hunt of the history; ``describe`` is asked for commits that its log does not describe.

    Raises UsageError when there is no such hunt.
    """
    listed = history.listed(hunt)
    settings = history.settings(hunt)
    ledger = HuntLog.of(history.events(hunt), history.sessions(hunt), describe)
    return tell(listed, settings, ledger, history.candidates(hunt), made_by(settings, history.path),
                go_on_with(hunt, history.path))  # fmt: skip


def tell(
    listed: Listed, settings: Settings, ledger: HuntLog, span: Sequence[str], again: str = "", go_on: str = ""
) -> Story:
    """The story of a hunt on the range ``span`` (commit of each node)."""
    verdict = ledger.verdict
    ratios = ratios_to(span[0], ledger, settings, listed.started)
    compared = all(ledger.runs_like(end) for end in (span[0], span[-1]))
    belief = ledger.belief if compared else None  # before that there is nothing but what was believed beforehand
    effect = ratios.get(span[-1]) or (belief.effect if belief is not None else None)
    cases = tuple(case(step, ledger, span) for step in steps_of(verdict))
    apart = verdict.improvements if isinstance(verdict, Several) else ()
    blamed = {span[step.candidate] for step in steps_of(verdict) if step not in apart}
    warnings = dict(ledger.warnings)
    if ledger.belief is not None:
        warnings |= {printable(text): "" for text in ledger.belief.warnings}
    return Story(
        hunt=listed,
        settings=settings,
        hosts=ledger.started.hosts if ledger.started is not None else (),
        effects=verdict.effects if isinstance(verdict, NotReproduced | Inconclusive) else (),
        verdict=sentences(verdict, lambda node: ledger.commit(span[node]), settings.metric) if verdict else (),
        cases=cases,
        suspects=tuple(suspects(ledger, belief, span)),
        unsettled=tuple(left_open(ledger, span, settings.metric)),
        effect=effect,
        candidates=tuple(candidates(ledger, span, ratios, blamed, effect)),
        warnings=warnings,
        costs=costs(ledger),
        again=again,
        go_on=go_on,
    )


def steps_of(verdict: Verdict | None) -> tuple[Step, ...]:
    """The changes that a verdict names."""
    match verdict:
        case Found(step):
            return (step,)
        case Several(steps, improvements):
            return steps + improvements
        case NotReproduced() | Inconclusive() | None:
            return ()


def ratios_to(base: str, ledger: HuntLog, settings: Settings, began: float) -> dict[str, Interval]:
    """The ratio of each measured commit to the base, equal binaries taken together."""
    shas = list(dict.fromkeys(event.facts.commit for _, event in ledger.logged))
    node = {sha: shas.index(ledger.twin(sha) or sha) for sha in shas}
    if base not in node:
        return {}
    told = observations(ledger.logged, node, settings.metric, began, settings.hosts if settings.further_hosts else ())
    found = relative([one for one in told if isinstance(one, Reading)], node[base], settings.policy.kinds)
    ratios = {sha: found[node[sha]] for sha in shas if node[sha] in found}
    return ratios | {sha: Interval(1.0, 1.0, 1.0) for sha in shas if node[sha] == node[base] and sha != base}


def case(step: Step, ledger: HuntLog, span: Sequence[str]) -> Case:
    """A step with what the counters of both sides say."""
    culprit, parents = span[step.candidate], [span[parent] for parent in step.parents]
    before, after = ledger.runs_like(*parents), ledger.runs_like(culprit)
    explained = classify(before, after)
    counters = []
    for metric in COMPARED:
        low, high = typical(before, metric), typical(after, metric)
        counters.append(Counted(metric, low, high, quotient(high, low)))
    return Case(
        commit=ledger.commit(culprit),
        parents=tuple(ledger.commit(parent) for parent in parents),
        probability=step.probability,
        ratio=step.ratio,
        effects=step.effects,
        cause=explained.cause,
        why=explained.sentence,
        counters=tuple(counters),
    )


def suspects(ledger: HuntLog, belief: Belief | None, span: Sequence[str], most: int = 10) -> Iterator[Suspect]:
    """Who may be the culprit while nobody is named."""
    match ledger.verdict:
        case Inconclusive(nodes, probabilities):
            pairs = sorted(zip(probabilities, nodes, strict=True), reverse=True)
        case None if belief is not None and len(belief.culprit) == len(span):
            believed = belief.culprit.tolist()
            pairs = sorted(((p, node) for node, p in enumerate(believed) if p >= 0.01), reverse=True)[:most]
        case _:
            pairs = []
    for probability, node in pairs:
        yield Suspect(ledger.commit(span[node]), probability)


def left_open(ledger: HuntLog, span: Sequence[str], metric: str) -> Iterator[LeftOpen]:
    """The pieces that a hunt for every change could not search to their ends."""
    for one in ledger.verdict.unsettled if isinstance(ledger.verdict, Several) else ():
        pairs = zip(one.known.candidates, one.known.probabilities, strict=True)
        yield LeftOpen(
            good=ledger.commit(span[one.good]),
            bad=ledger.commit(span[one.bad]),
            ratio=one.known.ratio if math.isfinite(one.known.ratio.high) else None,
            reason=why(one.known, metric),
            suspects=tuple(Suspect(ledger.commit(span[node]), probability) for node, probability in pairs),
        )


def candidates(
    ledger: HuntLog, span: Sequence[str], ratios: Mapping[str, Interval], culprits: set[str], effect: Interval | None
) -> Iterator[Candidate]:
    """Everything that was built, skipped or measured, oldest first; what is not in the range comes before it."""
    place = {sha: node for node, sha in enumerate(span)}
    chances = believed_slow(ledger, span)
    touched = dict.fromkeys([*ledger.builds, *ledger.skips, *ledger.runs])
    for sha in sorted(touched, key=lambda sha: place.get(sha, -1)):
        builds, skip, twin = ledger.builds.get(sha, []), ledger.skips.get(sha), ledger.twin(sha)
        made = [build for build in builds if not build.reused]
        hits, misses = sum(build.cache_hits for build in made), sum(build.cache_misses for build in made)
        yield Candidate(
            commit=ledger.commit(sha),
            node=place.get(sha),
            ratio=ratios.get(sha),
            builds=len(made),
            build_seconds=sum(build.seconds for build in made),
            hit_rate=quotient(hits, hits + misses),
            reused=bool(builds) and not made,
            runs=len(ledger.runs.get(sha, ())),
            state=state(
                sha,
                skip is not None,
                bool(ledger.runs_like(sha)),
                span[0],
                ratios.get(sha),
                culprits,
                effect,
                chances.get(twin or sha),
            ),
            same_as=ledger.commit(twin) if twin else None,
            skipped=printable(f"{skip.stage}: {skip.reason}") if skip else "",
        )


def believed_slow(ledger: HuntLog, span: Sequence[str]) -> dict[str, float]:
    """For each commit the probability that it is slow, where the record says so and the ends are known to differ."""
    belief = ledger.belief
    if belief is None or len(belief.slow) != len(span):
        return {}
    alike = belief.change < SURE or isinstance(ledger.verdict, NotReproduced)
    return {sha: 0.5 if alike else float(slow) for sha, slow in zip(span, belief.slow, strict=True)}


def state(
    sha: str,
    skipped: bool,
    measured: bool,
    base: str,
    ratio: Interval | None,
    culprits: set[str],
    effect: Interval | None,
    slow: float | None = None,
) -> State:
    """Which side a candidate is on: the one believed, or, in old records, that to which its whole interval is nearer.

    ``slow`` is the probability that it is slow, as far as the record says; it means nothing without a change.
    """
    if skipped:
        return State.SKIPPED
    if sha == base:
        return State.BASE
    if sha in culprits:
        return State.CULPRIT
    if ratio is None:
        return State.MEASURED if measured else State.BUILT
    if slow is not None:
        return State.GOOD if slow < 1 - SURE else State.BAD if slow > SURE else State.MEASURED
    if effect is None or effect.low <= 1 <= effect.high:
        return State.MEASURED
    whole = math.log(effect.middle)
    near, far = sorted((math.log(ratio.low) / whole, math.log(ratio.high) / whole))
    return State.GOOD if far < 0.5 else State.BAD if near > 0.5 else State.MEASURED


def costs(ledger: HuntLog) -> Costs:
    """What was spent."""
    made = [build for builds in ledger.builds.values() for build in builds if not build.reused]
    hits, misses = sum(build.cache_hits for build in made), sum(build.cache_misses for build in made)
    skipped = sum(skip.seconds for skip in ledger.skips.values() if skip.stage in ("configure", "compile", "install"))
    return Costs(
        builds=len(made),
        build_seconds=sum(build.seconds for build in made) + skipped,
        hit_rate=quotient(hits, hits + misses),
        runs=sum(map(len, ledger.runs.values())),
        run_seconds=ledger.run_seconds,
        seconds=ledger.elapsed,
    )
