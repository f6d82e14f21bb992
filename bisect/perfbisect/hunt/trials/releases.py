"""The releases that `bisect compare --each-release A..B` measures, and what that costs."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from perfbisect.core.domain.settings import PAIRS_FIRST, Pairing, Series, Settings, TrialBuild
from perfbisect.core.stats.release_series import FEWEST
from perfbisect.errors import UsageError
from perfbisect.hunt.resolve import resolve_commits, worse_direction
from perfbisect.hunt.setup import SessionSetup
from perfbisect.hunt.trials.rounds import BOTH
from perfbisect.recipes.builder import Builder
from perfbisect.report.command_line import history_option, of_settings
from perfbisect.repository.commits import ReleaseRange, release_ends, release_range
from perfbisect.repository.discovery import Progress, cached_clone, open_repository
from perfbisect.store.connection import NoHistory
from perfbisect.store.history import History
from perfbisect.store.prior_data import read_costs
from perfbisect.wording.quantities import count, duration


def read_releases(
    text: str, settings: Settings, builder: Builder, history: Path | None, clone_progress: Progress | None = None
) -> tuple[Settings, list[TrialBuild], Series]:
    """The releases of ``A..B`` as builds, oldest first, and the settings with what they need to be built.

    ``settings`` has the metric. Raises UsageError where there are too few for a line.
    """
    if not settings.repository:
        settings = replace(settings, repository=str(cached_clone(builder, release_ends(text), clone_progress)))
    found = release_range(open_repository(Path(settings.repository)), text, builder.release_tags)
    if len(found.taken) < FEWEST:
        raise UsageError(
            f"{text} has {count(len(found.taken), 'release')}, and a line with steps needs {FEWEST}.{skipped(found)}",
            f"Name them instead, with the same options: bisect compare {' '.join(found.taken)} …",
        )
    settings = replace(settings, good=found.taken[0], bad=found.taken[-1])
    settings, commits = resolve_commits(settings, builder, found.taken)
    subjects = [TrialBuild(name, commit) for name, commit in zip(found.taken, commits, strict=True)]
    # A hunt compares layouts and explains, unless it is told not to.
    policy = replace(settings.policy, layouts=True, direction=worse_direction(settings.metric))
    hunt = replace(settings, policy=policy, explain=True)
    options = ("--builder", builder.name, *of_settings(hunt), *history_option(history))
    return settings, subjects, Series(text, found.left_out, options)


def skipped(found: ReleaseRange) -> str:
    """What of the range is left out, in a sentence behind another."""
    left = ", ".join(f"{name} ({reason})" for name, reason in found.left_out)
    return f" Left out: {left}." if left else ""


def cost(setup: SessionSetup, settings: Settings, history: Path | None) -> Iterator[str]:
    """What a comparison would measure, and how long that takes as far as it is known."""
    request = setup.request
    builds, works = len(request.subjects), len(request.works)
    yield f"{count(builds, 'build')}: {', '.join(subject.name for subject in request.subjects)}"
    if request.series:
        yield from (f"left out: {name}, {reason}" for name, reason in request.series.left_out)
    visits = builds * works
    timed = builds * sum(request.runs * (work.warmup + work.time) for work in request.works)
    yield f"{count(request.rounds, 'round')} of {count(visits, 'visit')}, {count(request.runs, 'run')} each"
    if request.pairing is Pairing.AUTO:
        yield f"to choose how: the first {BOTH} rounds in turns, then {count(PAIRS_FIRST, 'pair')} of runs at the same time"
    start = "a start of the server on a copy of its data" if setup.builder.server else "a copy of the data"
    commands = [" ".join(workload.command) for workload in setup.works if workload.command]
    if any("{time}" not in command for command in commands):  # it ends by itself
        yield f"a round: runs of unknown length, since a command ends by itself, and in each visit {start}"
    else:
        yield (
            f"a round: {duration(timed)} of runs, and in each visit {start}; all rounds: {duration(timed * request.rounds)}"
        )
    each = build_seconds(settings, history)
    if each is None:
        yield "builds: of unknown length, as no hunt of the history has made any; those that the host has are used again"
    else:
        yield f"builds: {duration(each)} each in earlier hunts, {duration(each * builds)} if the host has none of them"


def build_seconds(settings: Settings, history: Path | None) -> float | None:
    """What a build takes in earlier hunts; None where there are none."""
    try:
        with closing(History.open(history, read_only=True)) as opened:
            return read_costs(opened, settings).build
    except (NoHistory, UsageError):
        return None
