"""Carries out hunts for the drops of a stored comparison.

One session hunts for all drops between the same two builds, so that its hunts share builds. When a hunt begins, the
history stores for which drop of the comparison it is, so that an interrupted command can be repeated: hunts with a
verdict are not repeated, unfinished hunts continue, and missing hunts begin.
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
from perfbisect.core.domain.settings import NOTHING_KNOWN, Policy, PrintedResult, Settings, TrialBuild, TrialType
from perfbisect.core.domain.trials import remaining_rounds
from perfbisect.core.stats.drops import Drop, DropRange, find_drops_to_hunt, huntable_builds_by_variant, ranges_of_drops
from perfbisect.core.stats.paired_comparison import compare_builds
from perfbisect.errors import EndsSwapped, Interrupted, PerfBisectError, RunsNotComparable, UsageError
from perfbisect.host.lock import WaitCallback
from perfbisect.hunt import session
from perfbisect.hunt.attempt import CommandCallbacks
from perfbisect.hunt.driver import as_build_of_another_hunt, event_of_shared_run
from perfbisect.hunt.resolve import builder_of, resolve_settings
from perfbisect.hunt.session import Resumption
from perfbisect.hunt.setup import SessionSetup, read_hunt_range
from perfbisect.hunt.trials.rounds import TrialDesign
from perfbisect.recipes.requested import requested_workloads
from perfbisect.report.command_line import bisect_command
from perfbisect.repository.commits import resolve_commit
from perfbisect.repository.discovery import open_repository
from perfbisect.store.batches import batch_of_one_process
from perfbisect.store.history import History
from perfbisect.store.listing import was_reason_interrupted
from perfbisect.wording.quantities import count, percent, ratio
from perfbisect.wording.text import listed, printable, shell_word
from perfbisect.wording.trials import difference_text

T = TypeVar("T", bound="HuntedComparison")

ROUNDS_OF_ENDS = 8  # rounds of one run for each build; enough to show one changed result among a hundred
FEWEST_ROUNDS = 2  # the ratio of fewer rounds has no interval
OPEN = ("running", "interrupted", "failed")  # states of hunts without a verdict


@dataclass(frozen=True, slots=True)
class DropOptions:
    """The options that `bisect compare --hunt` passes to the hunts for drops."""

    # The smallest drop of interest, as a fraction; None: the value that is stored with the comparison.
    min_effect: float | None = None
    explain: bool = True  # whether the reason is measured after each verdict


@dataclass(frozen=True, slots=True)
class HuntedComparison:
    """A stored comparison, and the settings for the hunts of its drops."""

    trial: SessionState
    settings: Settings

    def ranges_to_hunt(self) -> Iterable[DropRange]:
        """The drops to hunt, grouped by the two builds between which a drop is."""
        return ranges_of_drops(find_drops_to_hunt(self.trial, self.settings.policy.min_effect))

    def hunt_of(self, drop: Drop) -> DropHunt | None:
        """The hunt for a drop; None if no hunt for the drop has begun."""
        indexes = drop_indexes(drop)
        return next((hunt for hunt in self.trial.hunts if (hunt.work, hunt.first, hunt.last) == indexes), None)

    def store_begun_hunt(self, history: History, drop: Drop, hunt: int) -> None:
        """Store in the history that ``hunt`` is the hunt for a drop of this comparison."""
        history.enter_drop_hunt(self.trial.id, drop_indexes(drop), hunt)

    def range_title(self, span: DropRange) -> str:
        """A text that names the workloads and the two builds of a range."""
        subjects, works = self.trial.request.subjects, self.trial.request.works
        names = listed([works[drop.work].name for drop in span.drops])
        return printable(f"{names}, {subjects[span.first].name} to {subjects[span.last].name}")


def candidate_counts_between(settings: Settings, subjects: Sequence[TrialBuild]) -> dict[str, int | str]:
    """For each pair of successive builds of a comparison, by the title of the pair: the number of candidates between
    the two builds, or the reason why no hunt between the builds is possible.

    Raises UsageError if no hunt between any two builds is possible.
    """
    candidates: dict[str, int | str] = {}
    swapped = ""  # the sentence about two builds in the wrong order
    for first, last in (pair for line in huntable_builds_by_variant(subjects) for pair in pairwise(line)):
        good, bad = subjects[first], subjects[last]
        title = printable(f"{good.name} to {bad.name}")
        try:
            candidates[title] = candidate_count(replace(settings, good_commit=good.commit, bad_commit=bad.commit))
        except EndsSwapped:
            candidates[title] = swapped = printable(f"{bad.name} is older than {good.name}.")
        except UsageError as error:
            candidates[title] = printable(str(error))
    if all(isinstance(reason, str) for reason in candidates.values()):
        if swapped:
            raise UsageError(
                f"--hunt needs the oldest build first, but {swapped}", "Give the older build before the newer build."
            )
        reasons = [*candidates.values(), "there are no two revisions with the same variant and configuration."]
        raise UsageError(
            f"--hunt could not begin any hunt: {reasons[0]}",
            "Give at least two revisions of a repository, from the oldest to the newest. Or omit --hunt.",
        )
    paired = {build for line in huntable_builds_by_variant(subjects) if len(line) > 1 for build in line}
    for number, build in enumerate(subjects):
        if number not in paired:
            reason = "a hunt needs two revisions with the same variant and configuration, and no other build has these."
            candidates[printable(f"{build.name} and other builds")] = reason
    return candidates


def huntable_drops(history_path: Path | None, trial: SessionState) -> list[Drop]:
    """The drops of a comparison for which a hunt is useful, because there are several candidates between the two
    builds."""
    with closing(History.open(history_path, read_only=True)) as history, suppress(PerfBisectError):
        comparison = read_comparison(history, trial.name, DropOptions())
        drops = find_drops_to_hunt(trial, comparison.settings.policy.min_effect)
        return [drop for drop in drops if candidate_count(settings_for(comparison, drop)) > 1]
    return []


def candidate_count(settings: Settings) -> int:
    """The number of candidates in the range of a hunt. Raises UsageError if no hunt in the range is possible."""
    span, _ = read_hunt_range(settings, builder_of(settings))
    return len(span.graph.candidates)


def hunt_lines(comparison: HuntedComparison) -> Iterator[str]:
    """Lines of text that list the drops to hunt, the hunts for these drops so far, and the number of candidates between
    the two builds of each drop."""
    ranges = [*comparison.ranges_to_hunt()]
    trial, request = comparison.trial, comparison.trial.request
    if not ranges:
        least = percent(comparison.settings.policy.min_effect)
        line = f"No drop of {trial.name} is significant and at least {least}, so no hunt would begin."
        if trial.state != "done" and remaining_rounds(trial):
            line += f" The comparison was interrupted. To continue it: bisect resume {trial.name}"
        elif request.rounds < FEWEST_ROUNDS:
            line += f" A drop can be significant only with {FEWEST_ROUNDS} rounds or more: --visits {FEWEST_ROUNDS}"
        yield line
    for span in ranges:
        yield f"Drops to hunt in {comparison.range_title(span)}:"
        for drop in span.drops:
            hunt = comparison.hunt_of(drop)
            hunt_text = (
                f"; hunt {hunt.hunt}: {f'culprit {hunt.culprit[:10]}' if hunt.culprit else hunt.state}" if hunt else ""
            )
            work = printable(request.works[drop.work].name)
            yield f"  {work}: {difference_text(request.metric, drop.ratio.ratio)}{hunt_text}"
        try:
            yield f"  {count(candidate_count(settings_for(comparison, span.drops[0])), 'candidate commit')}"
        except PerfBisectError as error:  # an error in one range does not prevent the hunts in the other ranges
            yield f"  cannot be hunted: {error} {error.advice}".rstrip()


def read_comparison(history: History, name: str, options: DropOptions) -> HuntedComparison:
    """The comparison with the name ``name``, and the settings for its hunts. Raises UsageError if the trial is not a
    comparison or is imported, or if all its builds are installed binaries, which have no commits.
    """
    trial = history.trial(name)
    if trial.request.kind is not TrialType.COMPARE or trial.origin:
        reason = f"was imported from {trial.origin}" if trial.origin else "is no comparison"
        raise UsageError(f"{name} {reason}, so its drops cannot be hunted here.")
    if trial.request.series:
        raise UsageError(
            f"{name} is a series of releases, whose report has a command for each step that can be hunted.",
            f"See the commands: {bisect_command('show', name, history.path)}",
        )
    if trial.request.branch:
        branch = shell_word(trial.request.branch)
        raise UsageError(
            f"{name} is a comparison by `bisect nightly`. To hunt the drops of its branch: bisect nightly {branch}"
        )
    settings = history.settings(trial.id)
    if not settings.repository:
        raise UsageError(
            f"All builds of {name} are binaries, between which there are no commits to search.",
            "Compare revisions of a repository, or hunt between two revisions with `bisect run`.",
        )
    min_effect = options.min_effect or settings.policy.min_effect
    policy = replace(settings.policy, min_effect=min_effect, layouts=True, incremental=True)
    settings = replace(settings, policy=policy, explain=options.explain)
    return HuntedComparison(replace(trial, hunts=mark_interrupted_reasons(history, trial.hunts, settings)), settings)


def hunt_drops(compared: str, caller: CommandCallbacks, options: DropOptions) -> list[DropHunt | None]:
    """Hunt all drops of the comparison with the name ``compared``. Returns the hunt for each drop, or None if the hunt
    could not begin.

    Raises Interrupted, with the command that continues the hunts.
    """
    with closing(History.open(caller.history_path)) as history:
        comparison = read_comparison(history, compared, options)
        stored = replace(history.settings(comparison.trial.id), explain=options.explain)
        policy = replace(stored.policy, min_effect=comparison.settings.policy.min_effect)
        # The options are stored, so that a later call of `bisect compare --hunt` continues with the same options.
        history.update_settings(comparison.trial.id, replace(stored, policy=policy))
        how_to_continue = f"To continue: {bisect_command('compare', compared, caller.history_path)} --hunt{'' if options.explain else ' --no-explain'}"
        read_again = partial(read_comparison, history, compared, options)
        comparison, _ = hunt_all_drops(history, read_again, caller, how_to_continue)
        return [comparison.hunt_of(drop) for span in comparison.ranges_to_hunt() for drop in span.drops]


def hunt_all_drops(
    history: History, read_again: Callable[[], T], caller: CommandCallbacks, how_to_continue: str
) -> tuple[T, bool]:
    """Carry out the hunts in all ranges of a comparison in which builds differ. Returns the comparison at the end, and
    whether all hunts have ended.

    ``read_again`` reads the comparison from the history before the hunts of each range. If a hunt fails, ``caller.say``
    prints the reason, and the hunts in the next range begin. Raises Interrupted with the advice ``how_to_continue``.
    """
    tried, all_ended = set[tuple[int, int, int]](), True
    while True:
        comparison = read_again()
        open_ranges = (span for span in comparison.ranges_to_hunt() if not {*map(drop_indexes, span.drops)} <= tried)
        if not (span := next(open_ranges, None)):
            return comparison, all_ended
        tried |= {*map(drop_indexes, span.drops)}
        for drop in span.drops:
            if (size := drop.ratio.interval) and not comparison.hunt_of(drop):
                title, metric = comparison.range_title(replace(span, drops=(drop,))), comparison.trial.request.metric
                caller.say(f"{title}: {metric} is ×{ratio(size)} in all rounds, so a hunt begins.")
        try:
            hunt_drops_in_range(history, comparison, span, caller)
        except Interrupted:
            raise Interrupted(f"Interrupted. All measurements are kept. {how_to_continue}") from None
        except PerfBisectError as error:
            all_ended &= isinstance(error, UsageError)  # after a UsageError, no hunt between the builds is possible
            caller.say(printable(f"{comparison.range_title(span)}: {error} {error.advice}".rstrip()))


def mark_interrupted_reasons(history: History, hunts: Iterable[DropHunt], settings: Settings) -> tuple[DropHunt, ...]:
    """Returns ``hunts``. Each hunt whose measurement of the reason was interrupted gets the state "interrupted", so
    that the hunt is continued. If ``settings`` do not request the reason (``explain``), no state changes."""
    as_interrupted = partial(replace, state="interrupted", culprit="")
    return tuple(
        as_interrupted(hunt) if settings.explain and was_reason_interrupted(history, hunt.hunt) else hunt
        for hunt in hunts
    )


def hunt_drops_in_range(
    history: History, comparison: HuntedComparison, span: DropRange, caller: CommandCallbacks
) -> None:
    """Carry out the hunts for the drops of one range: hunts without a verdict continue, and missing hunts begin.

    A hunt that cannot go on, because its workload or its range has changed, is replaced by a new hunt.
    """
    begun = [hunt for drop in span.drops if (hunt := comparison.hunt_of(drop)) and hunt.state in OPEN]
    if running := [hunt for hunt in begun if hunt.state == "running"]:
        command = bisect_command("watch", str(running[0].hunt), history.path)
        raise UsageError(f"Another process works on hunt {running[0].hunt}.", f"See the hunt: {command}")
    resumed, replaced = set[int](), set[int]()
    for hunt in begun:
        if hunt.hunt in resumed:
            continue
        batch = batch_of_one_process(history, hunt.hunt)
        batch = None if batch and batch.ended else batch
        in_session = {member.hunt for member in batch.hunts if member.hunt is not None} if batch else {hunt.hunt}
        resumed |= in_session
        try:
            quiet_caller = replace(caller, history_path=history.path, on_begin=None)
            outcomes = session.resume(hunt.hunt, batch, quiet_caller, Resumption(lambda stored: stored))
        except RunsNotComparable:  # no hunt of the session can go on
            replaced |= in_session & {member.hunt for member in begun}
        else:
            replaced |= {outcome.hunt for outcome in outcomes if isinstance(outcome.failure, RunsNotComparable)}
    hunts = [(drop, comparison.hunt_of(drop)) for drop in span.drops]
    new_drops = [drop for drop, drop_hunt in hunts if drop_hunt is None or drop_hunt.hunt in replaced]
    if new_drops:
        run_drop_hunts(history, comparison, new_drops, caller)


def run_drop_hunts(
    history: History, comparison: HuntedComparison, drops: Sequence[Drop], caller: CommandCallbacks
) -> None:
    """Begin and carry out the hunts for drops of one range, as one session."""
    drops_to_store = iter(drops)

    def store(number: str) -> None:
        comparison.store_begun_hunt(history, next(drops_to_store), int(number))

    hunts = with_shared_runs([settings_for(comparison, drop) for drop in drops])
    setups = SessionSetup.set_up(hunts, caller.waiting)
    session.begin(setups, replace(caller, history_path=history.path, on_begin=store))


def settings_for(comparison: HuntedComparison, drop: Drop) -> Settings:
    """The settings of the hunt for a drop. Raises UsageError if no hunt between the builds of the drop is possible."""
    request = comparison.trial.request
    good, bad = request.subjects[drop.first], request.subjects[drop.last]
    work, settings = request.works[drop.work].name, comparison.settings
    settings = for_one_result(settings, work) if request.shared else replace(settings, workload=work)
    settings = replace(settings, good=good.commit, bad=bad.commit, metric=request.metric, further_hosts=())
    settings = resolve_settings(replace(settings, variant=good.variant or request.variant))
    return replace(settings, good=revision_name_or_commit(settings, good), bad=revision_name_or_commit(settings, bad))


def for_one_result(settings: Settings, result: str) -> Settings:
    """The settings of a hunt for one benchmark result, derived from the settings of a comparison of all results that
    the benchmark command prints.

    The hunt does not count instructions, because the command executes instructions for all its results.
    """
    [output] = (output for output in settings.outputs if output.result == result)
    quick, name = settings.quick, f"{settings.workload} {result}"
    quick, name = (replace(quick, only=result, name=name), name) if quick else (None, settings.workload)
    settings = replace(settings, output=output, outputs=(), filter=None, quick=quick, workload=name, counts=False)
    return replace(settings, metric=output.metric)


def comparison_of_ends(
    settings: Settings, outputs: Sequence[PrintedResult], waiting: WaitCallback | None
) -> SessionSetup:
    """The setup of a comparison of good with bad in all results that the benchmark command of a hunt prints."""
    # The comparison measures the same layouts as the hunts, so that the hunts can reuse its builds.
    policy = Policy(pairing=settings.policy.pairing, layouts=settings.policy.layouts)
    comparison = replace(settings, outputs=tuple(outputs), metric=outputs[0].metric, policy=policy)
    comparison = replace(comparison, prior=NOTHING_KNOWN, further_hosts=())
    ends = [TrialBuild(settings.good, settings.good_commit), TrialBuild(settings.bad, settings.bad_commit)]
    works = requested_workloads(settings, builder_of(settings), settings.workload)
    return TrialDesign(TrialType.COMPARE, ends, works, ROUNDS_OF_ENDS, 1).set_up(comparison, waiting)


def hunt_settings_by_result(common: Settings, comparison: SessionState) -> dict[int, Settings]:
    """The settings of a hunt for each benchmark result in which good and bad differ, by the index of the result in the
    comparison.

    ``common`` are the settings of a hunt for all results. Changes in the direction for which the hunt does not search
    are ignored. The false discovery rate over all results is controlled.
    """
    policy, metric = common.policy, comparison.request.metric
    names, changed = [work.name for work in comparison.request.works], list[str]()
    for row in compare_builds(comparison, metric):
        change = row.ratios[0]
        if change and change.real and policy.is_hunted(change.ratio) and abs(change.ratio - 1) >= policy.min_effect:
            changed.append(row.work)
    hunts = with_shared_runs([for_one_result(common, result) for result in changed])
    return {names.index(result): hunt for result, hunt in zip(changed, hunts, strict=True)}


def with_measured_ends(setup: SessionSetup, log: Sequence[Event], run_filter: tuple[str, ...]) -> SessionSetup:
    """The setup of a hunt for one benchmark result, with the builds and runs of good and bad from ``log``, the log of a
    comparison.

    ``run_filter`` is the filter by which the comparison's command selected benchmarks. The hunt uses the runs only if
    the command of the hunt has the filter ``run_filter``, too. The builds and runs are not copied if good is no
    ancestor of bad, because the hunt then measures the merge base in place of good.
    """
    output, span, events = setup.settings.output, setup.span, dict[tuple[str, type[Event]], Event]()
    assert output
    node = {commit: number for number, commit in enumerate(span.candidates)} if span.base == span.good else {}
    for event in log:
        match event:
            case BuildStarted(commit=commit) if commit.sha in node:
                events.setdefault((commit.sha, BuildStarted), replace(event, candidate=node[commit.sha], reused=True))
            case BuildFinished(facts=build) if build.commit in node:
                reused = as_build_of_another_hunt(replace(event, candidate=node[build.commit], same_as=None))
                events.setdefault((build.commit, BuildFinished), reused)
            case RunFinished(facts=run) if run.commit in node and output.result in run.results:
                of_hunt = replace(event, candidate=node[run.commit], workload=0, round=0)
                events[run.visit, RunFinished] = event_of_shared_run(of_hunt, output, is_ordered=False)
            case _:
                pass
    return replace(setup, measured_ends={run_filter: [(name, event) for (name, _), event in events.items()]})


def with_shared_runs(hunts: Sequence[Settings]) -> list[Settings]:
    """The settings of the hunts of one session, changed such that hunts for several results of one benchmark command
    share runs."""
    outputs = tuple(hunt.output for hunt in hunts if hunt.output)
    return [replace(hunt, outputs=outputs) for hunt in hunts] if len(outputs) == len(hunts) > 1 else [*hunts]


def revision_name_or_commit(settings: Settings, build: TrialBuild) -> str:
    """The name of a build without its variant, if git resolves this name to the build's commit; otherwise the hash of
    the commit."""
    name = build.name.removesuffix(f"@{build.variant}")
    with suppress(PerfBisectError):
        repository = open_repository(Path(settings.repository))
        if resolve_commit(repository, name, builder_of(settings).release_tags) == build.commit:
            return name
    return build.commit


def drop_indexes(drop: Drop) -> tuple[int, int, int]:
    """The indexes of the workload, the first build and the last build of a drop."""
    return drop.work, drop.first, drop.last
