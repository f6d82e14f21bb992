"""Carry out the hunts for the drops of a stored comparison.

All drops between the same two builds are hunted together, with common builds. Each hunt is entered in the comparison as it
begins. So the same call goes on where an earlier one was interrupted: hunts with a verdict are left as they are, begun ones
continue, and the others begin.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TypeVar

from perfbisect.core.domain.events import BuildFinished, BuildStarted, Event, RunFinished
from perfbisect.core.domain.facts import DropHunt
from perfbisect.core.domain.session_state import SessionState
from perfbisect.core.domain.settings import NOTHING_KNOWN, Output, Policy, Settings, TrialBuild, TrialType
from perfbisect.core.domain.trials import rounds_to_do
from perfbisect.core.stats.drops import Drop, DropRange, comparable_builds, find_drops, ranges_of_drops
from perfbisect.core.stats.paired_comparison import compared
from perfbisect.errors import CannotGoOn, Interrupted, PerfBisectError, UsageError
from perfbisect.host.lock import WaitCallback
from perfbisect.hunt import session
from perfbisect.hunt.attempt import Caller
from perfbisect.hunt.driver import as_build_for_another, run_of_result
from perfbisect.hunt.resolve import builder_of, resolve_settings
from perfbisect.hunt.session import Resumption
from perfbisect.hunt.setup import SessionSetup, read_hunt_range
from perfbisect.hunt.trials.rounds import TrialDesign
from perfbisect.recipes.requested import requested_workloads
from perfbisect.report.command_line import command_on
from perfbisect.repository.commits import resolve
from perfbisect.repository.discovery import open_repository
from perfbisect.store.batches import batch_together
from perfbisect.store.history import History
from perfbisect.store.listing import reason_is_open
from perfbisect.wording.quantities import count, percent, ratio
from perfbisect.wording.text import listed, printable, shell_word
from perfbisect.wording.trials import difference

T = TypeVar("T", bound="HuntedComparison")

ROUNDS_OF_ENDS = 8  # of one run each: so many that a result is seen to differ among a hundred
FEWEST_ROUNDS = 2  # from which on a ratio has an interval
OPEN = ("running", "interrupted", "failed")  # states of hunts that have no verdict


@dataclass(frozen=True, slots=True)
class DropOptions:
    """What is chosen for hunts for drops."""

    least: float | None = None  # the smallest drop of interest, as a fraction; None: the one that the comparison keeps
    explain: bool = True  # measure for the reason after each verdict


@dataclass(frozen=True, slots=True)
class HuntedComparison:
    """A stored comparison, and the settings that its drops are hunted with."""

    trial: SessionState
    settings: Settings

    def ranges(self) -> Iterable[DropRange]:
        """What is hunted: its drops, by the builds that they are between."""
        return ranges_of_drops(find_drops(self.trial, self.settings.policy.min_effect))

    def hunt_of(self, drop: Drop) -> DropHunt | None:
        """The hunt for a drop, if it has begun."""
        same = (each for each in self.trial.hunts if (each.work, each.first, each.last) == ends_of(drop))
        return next(same, None)

    def enter(self, history: History, drop: Drop, hunt: int) -> None:
        """Enter that a hunt for a drop has begun."""
        history.enter_drop_hunt(self.trial.id, ends_of(drop), hunt)

    def named(self, span: DropRange) -> str:
        """The workloads and the builds of a range."""
        subjects, works = self.trial.request.subjects, self.trial.request.works
        names = listed([works[drop.work].name for drop in span.drops])
        return printable(f"{names}, {subjects[span.first].name} to {subjects[span.last].name}")


def between(settings: Settings, subjects: Sequence[TrialBuild]) -> dict[str, int | str]:
    """Neighbouring builds, in words → the number of candidates between them, or why nothing can be hunted there.

    Raises UsageError where nothing can be hunted in any.
    """
    found: dict[str, int | str] = {}
    for first, last in (pair for line in comparable_builds(subjects) for pair in pairwise(line)):
        good, bad = subjects[first], subjects[last]
        title = printable(f"{good.name} to {bad.name}")
        try:
            found[title] = candidates_in(replace(settings, good_commit=good.commit, bad_commit=bad.commit))
        except UsageError as nothing:
            found[title] = printable(str(nothing))
    if all(isinstance(each, str) for each in found.values()):
        reasons = [*found.values(), "there are no two revisions that are built and configured alike."]
        raise UsageError(
            f"--hunt would hunt nothing: {reasons[0]}",
            "Give revisions of a repository, from the oldest to the newest; or leave out --hunt.",
        )
    paired = {build for line in comparable_builds(subjects) if len(line) > 1 for build in line}
    for number, build in enumerate(subjects):
        if number not in paired:
            reason = "no other is a revision that is built and configured alike."
            found[printable(f"{build.name} and other builds")] = reason
    return found


def to_find(path: Path | None, trial: SessionState) -> list[Drop]:
    """The drops of a comparison whose commit is not known yet: there are several candidates between their builds."""
    with closing(History.open(path, read_only=True)) as history, suppress(PerfBisectError):
        found = read_comparison(history, trial.name, DropOptions())
        drops = find_drops(trial, found.settings.policy.min_effect)
        return [drop for drop in drops if candidates_in(settings_for(found, drop)) > 1]
    return []


def candidates_in(settings: Settings) -> int:
    """The number of candidates in the range of a hunt. Raises UsageError where nothing can be hunted."""
    span, _ = read_hunt_range(settings, builder_of(settings))
    return len(span.graph.candidates)


def outlook(found: HuntedComparison) -> Iterator[str]:
    """The drops that are hunted, the hunts that have ended, and the sizes of their ranges."""
    every = [*found.ranges()]
    if not every:
        least = percent(found.settings.policy.min_effect)
        unseen = f"No drop of {found.trial.name} is real and {least} or more: nothing would be hunted."
        if found.trial.state != "done" and rounds_to_do(found.trial):
            unseen += f" It was interrupted: bisect resume {found.trial.name} continues it."
        elif found.trial.request.rounds < FEWEST_ROUNDS:
            unseen += f" A drop is seen from {FEWEST_ROUNDS} rounds on: --visits."
        yield unseen
    request = found.trial.request
    for span in every:
        yield f"{found.named(span)}:"
        for drop in span.drops:
            hunt = found.hunt_of(drop)
            known = f"; hunt {hunt.hunt}: {hunt.culprit[:10] or hunt.state}" if hunt else ""
            said = printable(request.works[drop.work].name), difference(request.metric, drop.ratio.ratio)
            yield f"  {': '.join(said)}{known}"
        try:
            yield f"  {count(candidates_in(settings_for(found, span.drops[0])), 'candidate')}"
        except PerfBisectError as trouble:  # the others are hunted nevertheless
            yield f"  cannot be hunted: {trouble} {trouble.advice}".rstrip()


def read_comparison(history: History, name: str, how: DropOptions) -> HuntedComparison:
    """The comparison of that name.

    Raises UsageError for what is no comparison of our own, or of binaries alone.
    """
    trial = history.trial(name)
    if trial.request.kind is not TrialType.COMPARE or trial.origin:
        why = f"was imported from {trial.origin}" if trial.origin else "is no comparison"
        raise UsageError(f"{name} {why}, so its drops are not hunted here.")
    if trial.request.series:
        raise UsageError(
            f"{name} is a series of releases: its report has a command for each step that can be hunted.",
            f"See them: {command_on('show', name, history.path)}",
        )
    if trial.request.branch:
        raise UsageError(
            f"{name} is a night: `bisect nightly {shell_word(trial.request.branch)}` hunts the drops of its line."
        )
    settings = history.settings(trial.id)
    if not settings.repository:
        raise UsageError(
            f"{name} was made of binaries alone: how to hunt in it is not known.",
            "Compare the revisions again, or hunt between two of them with `bisect run`.",
        )
    policy = replace(
        settings.policy, min_effect=how.least or settings.policy.min_effect, layouts=True, incremental=True
    )
    settings = replace(settings, policy=policy, explain=how.explain)
    return HuntedComparison(replace(trial, hunts=with_open_reasons(history, trial.hunts, settings)), settings)


def hunt_drops(name: str, caller: Caller, how: DropOptions) -> list[DropHunt | None]:
    """Hunt all drops of a comparison. Returns the hunt for each; None where it could not begin.

    Raises Interrupted, with the command that goes on.
    """
    with closing(History.open(caller.path)) as history:
        found = read_comparison(history, name, how)
        kept = replace(history.settings(found.trial.id), explain=how.explain)  # so that this goes on with the same
        policy = replace(kept.policy, min_effect=found.settings.policy.min_effect)
        history.update_settings(found.trial.id, replace(kept, policy=policy))
        again = (
            f"to continue: {command_on('compare', name, caller.path)} --hunt{'' if how.explain else ' --no-explain'}"
        )
        found, _ = hunt_all(history, partial(read_comparison, history, name, how), caller, again)
        return [found.hunt_of(drop) for span in found.ranges() for drop in span.drops]


def hunt_all(history: History, read: Callable[[], T], caller: Caller, again: str) -> tuple[T, bool]:
    """Hunt the ranges of what is ``read`` before each and at last. Returns its state then, and whether all hunts have ended.

    What keeps one range from being hunted is said, and the next begins. Raises Interrupted, which says how to go on: ``again``.
    """
    tried, ended = set[tuple[int, int, int]](), True
    while True:
        found = read()
        left = (span for span in found.ranges() if not {*map(ends_of, span.drops)} <= tried)
        if not (span := next(left, None)):
            return found, ended
        tried |= {*map(ends_of, span.drops)}
        for drop in span.drops:
            if (size := drop.ratio.interval) and not found.hunt_of(drop):
                caller.say(
                    f"{found.named(replace(span, drops=(drop,)))}: ×{ratio(size)} in all rounds, so it is hunted."
                )
        try:
            hunt_range(history, found, span, caller)
        except Interrupted:
            raise Interrupted(f"Interrupted. What was measured is kept; {again}") from None
        except PerfBisectError as trouble:
            ended &= isinstance(trouble, UsageError)  # nothing between the builds can be hunted
            caller.say(printable(f"{found.named(span)}: {trouble} {trouble.advice}".rstrip()))


def with_open_reasons(history: History, hunts: Iterable[DropHunt], settings: Settings) -> tuple[DropHunt, ...]:
    """The hunts. One whose reason was cut short is interrupted, where reasons are wanted: it goes on with that."""
    cut = partial(replace, state="interrupted", culprit="")
    return tuple(cut(each) if settings.explain and reason_is_open(history, each.hunt) else each for each in hunts)


def hunt_range(history: History, found: HuntedComparison, span: DropRange, caller: Caller) -> None:
    """Hunt the drops of one range that have no verdict: begun hunts continue, the others begin.

    In place of one that cannot go on, since its workload or the range has changed, another begins.
    """
    begun = [hunt for drop in span.drops if (hunt := found.hunt_of(drop)) and hunt.state in OPEN]
    if running := [hunt for hunt in begun if hunt.state == "running"]:
        see = command_on("watch", str(running[0].hunt), history.path)
        raise UsageError(f"Another process works on hunt {running[0].hunt}.", f"See it: {see}")
    carried_on, replaced = set[int](), set[int]()
    for hunt in begun:
        if hunt.hunt in carried_on:
            continue
        batch = batch_together(history, hunt.hunt)
        batch = None if batch and batch.ended else batch
        together = {one.hunt for one in batch.hunts if one.hunt is not None} if batch else {hunt.hunt}
        carried_on |= together
        try:
            outcomes = session.resume(
                hunt.hunt, batch, replace(caller, path=history.path, begun=None), Resumption(lambda stored: stored)
            )
        except CannotGoOn:  # none of them can
            replaced |= together & {each.hunt for each in begun}
        else:
            replaced |= {each.hunt for each in outcomes if isinstance(each.failure, CannotGoOn)}
    new = [drop for drop in span.drops if (begun_one := found.hunt_of(drop)) is None or begun_one.hunt in replaced]
    if new:
        begin(history, found, new, caller)


def begin(history: History, found: HuntedComparison, drops: Sequence[Drop], caller: Caller) -> None:
    """Begin the hunts for drops of one range: together."""
    left = iter(drops)

    def enter(number: str) -> None:
        found.enter(history, next(left), int(number))

    every = with_common_runs([settings_for(found, drop) for drop in drops])
    session.begin(SessionSetup.set_up(every, caller.waiting), replace(caller, path=history.path, begun=enter))


def settings_for(found: HuntedComparison, drop: Drop) -> Settings:
    """The settings of the hunt for a drop. Raises UsageError where its builds cannot be hunted between."""
    request = found.trial.request
    good, bad = request.subjects[drop.first], request.subjects[drop.last]
    work, settings = request.works[drop.work].name, found.settings
    settings = of_result(settings, work) if request.shared else replace(settings, workload=work)
    settings = replace(
        settings,
        good=good.commit,
        bad=bad.commit,
        metric=request.metric,
        variant=good.variant or request.variant,
        further_hosts=(),
    )
    settings = resolve_settings(settings)
    return replace(settings, good=as_written(settings, good), bad=as_written(settings, bad))


def of_result(settings: Settings, result: str) -> Settings:
    """The settings of a hunt for one of the results that a comparison has measured.

    Instructions of the whole command say nothing of it, so none are counted.
    """
    [output] = (each for each in settings.outputs if each.result == result)
    quick, name = settings.quick, f"{settings.workload} {result}"
    quick, name = (replace(quick, only=result, name=name), name) if quick else (None, settings.workload)
    known = replace(settings, output=output, outputs=(), filter=None, quick=quick, workload=name, counts=False)
    return replace(known, metric=output.metric)


def ends_in_results(settings: Settings, outputs: Sequence[Output], waiting: WaitCallback | None) -> SessionSetup:
    """The comparison of both ends of a hunt in all results of its command."""
    policy = Policy(
        pairing=settings.policy.pairing, layouts=settings.policy.layouts
    )  # so that the hunts use its builds
    known = replace(
        settings, outputs=tuple(outputs), metric=outputs[0].metric, policy=policy, prior=NOTHING_KNOWN, further_hosts=()
    )
    ends = [TrialBuild(settings.good, settings.good_commit), TrialBuild(settings.bad, settings.bad_commit)]
    works = requested_workloads(settings, builder_of(settings), settings.workload)
    return TrialDesign(TrialType.COMPARE, ends, works, ROUNDS_OF_ENDS, 1).set_up(known, waiting)


def for_results(settings: Settings, trial: SessionState) -> dict[int, Settings]:
    """The hunts for the results of a comparison of both ends that differ, in the direction that is hunted: by their numbers in it.

    ``settings`` are those of a hunt for all of them. False discoveries are controlled over all results.
    """
    policy, metric = settings.policy, trial.request.metric
    names, found = [work.name for work in trial.request.works], list[str]()
    for row in compared(trial, metric):
        seen = row.ratios[0]
        if seen and seen.real and policy.hunts(seen.ratio) and abs(seen.ratio - 1) >= policy.min_effect:
            found.append(row.work)
    hunts = with_common_runs([of_result(settings, result) for result in found])
    return {names.index(result): each for result, each in zip(found, hunts, strict=True)}


def with_ends(setup: SessionSetup, log: Sequence[Event], filtered: tuple[str, ...]) -> SessionSetup:
    """The setup of a hunt for a result, which begins with what the log of a comparison has of its ends: it was made just before,
    its runs ``filtered`` so.

    Nothing is taken over where good is no ancestor of bad: such a hunt begins with another commit.
    """
    output, span, events = setup.settings.output, setup.span, dict[tuple[str, type[Event]], Event]()
    assert output
    node = {commit: number for number, commit in enumerate(span.candidates)} if span.base == span.good else {}
    for event in log:
        match event:
            case BuildStarted(commit=commit) if commit.sha in node:
                events.setdefault((commit.sha, BuildStarted), replace(event, candidate=node[commit.sha], reused=True))
            case BuildFinished(facts=build) if build.commit in node:
                kept = as_build_for_another(replace(event, candidate=node[build.commit], same_as=None))
                events.setdefault((build.commit, BuildFinished), kept)
            case RunFinished(facts=run) if run.commit in node and output.result in run.results:
                own = replace(event, candidate=node[run.commit], workload=0, round=0)
                events[run.visit, RunFinished] = run_of_result(own, output, is_ordered=False)
            case _:
                pass
    return replace(setup, measured_ends={filtered: [(name, event) for (name, _), event in events.items()]})


def with_common_runs(every: Sequence[Settings]) -> list[Settings]:
    """The settings of hunts that are carried out together, of which those for results of one command share its runs."""
    outputs = tuple(each.output for each in every if each.output)
    return [replace(each, outputs=outputs) for each in every] if len(outputs) == len(every) > 1 else [*every]


def as_written(settings: Settings, build: TrialBuild) -> str:
    """The name of a build as a revision, if that still is its commit; else the commit."""
    written = build.name.removesuffix(f"@{build.variant}")
    with suppress(PerfBisectError):
        repository = open_repository(Path(settings.repository))
        if resolve(repository, written, builder_of(settings).release_tags) == build.commit:
            return written
    return build.commit


def ends_of(drop: Drop) -> tuple[int, int, int]:
    """Workload, first and last build."""
    return drop.work, drop.first, drop.last
