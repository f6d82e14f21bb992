"""What the hunts for the drops of a comparison will cost: before anything is measured, and by what it has measured."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import median

from perfbisect.core.domain.settings import Settings, TrialBuild
from perfbisect.core.domain.trials import Trial
from perfbisect.core.search.together import builds, foreseen
from perfbisect.core.stats.drops import Drop, DropRange, lines, loss, noise_of
from perfbisect.errors import PerfBisectError, UsageError
from perfbisect.hunt.resolve import builder_of
from perfbisect.hunt.setup import read_hunt_range
from perfbisect.hunt.trials.drop_hunts import OPEN, Comparison, DropOptions, read_comparison, settings_for
from perfbisect.store.history import History
from perfbisect.store.prior_data import read_costs
from perfbisect.wording.quantities import count, duration, percent
from perfbisect.wording.text import printable

FEWEST_ROUNDS = 2  # from which on a ratio has an interval


@dataclass(frozen=True, slots=True)
class Between:
    """Two neighbouring builds of a comparison, as it is requested."""

    title: str
    candidates: int  # for a culprit; 0 where nothing can be hunted
    reason: str = ""  # why


def check_ranges(settings: Settings, subjects: Sequence[TrialBuild]) -> list[Between]:
    """What each neighbouring pair of builds has between it. Raises UsageError where nothing can be hunted in any."""
    builder = builder_of(settings)
    found = []
    for first, last in (pair for line in lines(subjects) for pair in pairwise(line)):
        good, bad = subjects[first], subjects[last]
        title = printable(f"{good.name} to {bad.name}")
        try:
            span, _ = read_hunt_range(replace(settings, good_commit=good.commit, bad_commit=bad.commit), builder)
            found.append(Between(title, len(span.candidates) - 1))
        except UsageError as nothing:
            found.append(Between(title, 0, printable(str(nothing))))
    if not any(each.candidates for each in found):
        reason = found[0].reason if found else "there are no two revisions that are built and configured alike."
        raise UsageError(
            f"--hunt would hunt nothing: {reason}",
            "Give revisions of a repository, from the oldest to the newest; or leave out --hunt.",
        )
    paired = {build for line in lines(subjects) if len(line) > 1 for build in line}
    alone = [build for number, build in enumerate(subjects) if number not in paired]
    reason = "no other is a revision that is built and configured alike."
    return [*found, *(Between(printable(f"{build.name} and other builds"), 0, reason) for build in alone)]


def cost_before(spans: Sequence[Between], works: int) -> Iterator[str]:
    """What is known of the hunts before anything is measured."""
    for each in spans:
        if not each.candidates:
            yield f"hunts, {each.title}: none: {each.reason}"
            continue
        one, most = builds(each.candidates, 1), builds(each.candidates, works)
        more = f", at most {most:.0f} if each workload has its own culprit" if works > 1 else ""
        yield (
            f"hunts, {each.title}: {count(each.candidates, 'candidate')}; where there is a drop about {one:.0f} builds{more},"
            " the two ends included"
        )


def cost_of_hunts(history: History, name: str, how: DropOptions) -> Iterator[str]:
    """What the hunts for the drops of a stored comparison will cost, by what it has measured."""
    found = read_comparison(history, name, how)
    every = found.ranges()
    if not every:
        yield f"No drop of {name} is real and {percent(found.least)} or more: nothing would be hunted.{too_little(found.trial)}"
        return
    total = 0.0
    for span in every:
        yield f"{found.named(span)}:"
        yield from (f"  {lost(found, drop)}" for drop in span.drops)
        left = [drop for drop in span.drops if not ended(found, drop)]
        if left:
            try:
                text, seconds = expected(history, found, replace(span, drops=tuple(left)))
            except PerfBisectError as trouble:  # the others are hunted nevertheless
                text, seconds = f"cannot be hunted: {trouble} {trouble.advice}".rstrip(), 0.0
            yield f"  {text}"
            total += seconds
    if total:
        yield f"All together: at most about {duration(total)}, and what is measured for the reason of each drop."


def too_little(trial: Trial) -> str:
    """A sentence behind another, where so little was measured that no drop can be seen."""
    if trial.state != "done" and trial.rounds_to_do():
        return " It was interrupted: the command that began it continues it."
    if trial.request.rounds < FEWEST_ROUNDS:
        return f" A drop is seen from {FEWEST_ROUNDS} rounds on: --visits."
    return ""


def lost(found: Comparison, drop: Drop) -> str:
    """One drop, and its hunt if that has ended."""
    request, hunt = found.trial.request, found.hunt_of(drop)
    known = f"; hunt {hunt.hunt}: {hunt.culprit[:10] or hunt.state}" if hunt else ""
    return f"{printable(request.works[drop.work].name)}: {percent(loss(drop.ratio, request.metric))} lost{known}"


def ended(found: Comparison, drop: Drop) -> bool:
    """Whether the hunt for a drop has a verdict."""
    hunt = found.hunt_of(drop)
    return hunt is not None and hunt.state not in OPEN


def expected(history: History, found: Comparison, span: DropRange) -> tuple[str, float]:
    """What the hunts of one range will cost, in words and in seconds; builds count only where it is known what one takes."""
    request = found.trial.request
    settings = settings_for(found, span.drops[0])
    candidates = len(read_hunt_range(settings, builder_of(settings))[0].candidates) - 1
    taken = [build.seconds for build in request.subjects if build.seconds]
    build = median(taken) if taken else read_costs(history, settings).build
    run = median([each.cost for each in found.trial.runs if each.work in {drop.work for drop in span.drops}])
    losses = [loss(drop.ratio, request.metric) for drop in span.drops]
    will = foreseen(candidates, losses, [noise_of(drop, request.runs) for drop in span.drops], (build or run) / run)
    few, many = round(will.fewest), round(will.most)
    seconds = will.most * (build or 0.0) + will.runs * run
    text = (
        f"{count(candidates, 'candidate')}; about {few if few == many else f'{few} to {many}'} builds and {will.runs:.0f} runs:"
        f" {duration(seconds)}{' and the builds, of unknown length' if build is None else ''}"
    )
    return text, seconds
