"""The page of a comparison, a proof or an A/A."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from markupsafe import Markup

from perfbisect.core.domain.metrics import find_metric
from perfbisect.core.domain.settings import TrialType
from perfbisect.core.domain.trials import Trial
from perfbisect.core.stats.noise import noise_of_trial
from perfbisect.core.stats.noise import rows as detectable
from perfbisect.core.stats.noise import sentences as advice
from perfbisect.core.stats.paired_comparison import Compared, Ratio, compared, spent_per_operation, tone
from perfbisect.core.stats.release_series import hunts_of, lines_of
from perfbisect.report import blocks as tables
from perfbisect.report import comparison, series
from perfbisect.report.blocks import Block
from perfbisect.report.command_line import command_on
from perfbisect.report.noise import of_placement
from perfbisect.report.page import intervals
from perfbisect.report.page.hunt import Tile
from perfbisect.report.page.pages import render
from perfbisect.report.page.seconds import by_second, timeline
from perfbisect.report.page.series import drawing as line_drawing
from perfbisect.report.page.svg import Scale
from perfbisect.wording import proofs
from perfbisect.wording.quantities import MISSING, between, count, decimals, duration, figure, percent
from perfbisect.wording.text import metric_title, printable

KINDS = {TrialType.COMPARE: "Comparison", TrialType.PROVE: "Proof", TrialType.NOISE: "A/A"}
SIDES = ("parent", "culprit", "third")  # classes of the colours of builds; all after the third share its own
TONES = {"worse": "bad", "better": "good", "": "unclear"}


@dataclass(frozen=True, slots=True)
class RatioCells:
    """A build in a workload, against the first build."""

    work: str
    build: str
    ratio: str
    between: str
    rounds: int
    plot: Markup
    tone: str


@dataclass(frozen=True, slots=True)
class WorkPage:
    """The counters and the runs of one workload."""

    name: str
    head: tuple[str, ...]
    counters: tuple[tuple[str, ...], ...]
    spent: tuple[Block, ...]  # what an operation costs: absolute, and relative to the first build
    timeline: Markup | None


@dataclass(frozen=True, slots=True)
class SeriesPage:
    """The lines of a series of releases."""

    rule: str
    drawings: tuple[tuple[str, Markup], ...]  # workload, its drawing
    steps: tuple[str, ...]
    commands: tuple[tuple[str, str], ...]  # what it hunts, the command


@dataclass(frozen=True, slots=True)
class TrialPage:
    """The values of the template ``trial.html``."""

    trial: Trial
    kind: str
    headline: str
    sentences: tuple[str, ...]
    tiles: tuple[Tile, ...]
    metric: str
    builds: tuple[tuple[str, str, str], ...]  # name, commit, version or path
    axis: Markup | None
    legend: tuple[str, ...]
    blocks: tuple[Block, ...]  # the tables of a comparison: ratios, groups
    ratios: tuple[RatioCells, ...]
    series: SeriesPage | None
    detectable: tuple[tuple[str, ...], ...]
    works: tuple[WorkPage, ...]
    remarks: tuple[str, ...]
    settings: tuple[tuple[str, str], ...]
    command: str


def trial_page(trial: Trial, *, history: Path | None, index: str = "") -> str:
    """The page."""
    request = trial.request
    rows = compared(trial, request.metric) if request.kind is not TrialType.NOISE and not request.series else []
    scale = intervals.scale_of([each.interval for row in rows for each in row.ratios if each and each.interval])
    noise = noise_of_trial(trial) if request.kind is TrialType.NOISE else None
    texts: tuple[str, ...] = ()
    tiles: tuple[Tile, ...] = ()
    table: tuple[tuple[str, ...], ...] = ()
    if request.kind is TrialType.PROVE:
        texts = tuple(proofs.sentences(trial))
    elif noise is not None:
        groups = "visits" if noise.shared else "rounds"
        tiles = (
            Tile(
                f"between {groups}",
                MISSING if noise.between is None else percent(noise.between),
                "drift of the host included",
            ),
            Tile(f"within {groups}", MISSING if noise.within is None else percent(noise.within)),
            Tile("of one run", percent(noise.run), f"{percent(noise.low)} to {percent(noise.high)}"),
        )
        texts = (*advice(trial, noise), *filter(None, of_placement(trial, noise)))
        table = tuple(
            (str(each.runs), str(each.visits), duration(each.seconds), percent(each.drop))
            for each in detectable(trial, noise)
        )
    page = TrialPage(
        trial=trial,
        kind=KINDS[request.kind],
        headline=headline(trial, rows),
        sentences=texts,
        tiles=tiles,
        metric=metric_title(request.metric),
        builds=tuple((each.name, each.commit[:10], each.version or each.path) for each in request.subjects),
        axis=intervals.axis(scale, "ratio to the first build") if rows else None,
        legend=tables.legend(trial) if rows else (),
        blocks=tuple(comparison.blocks(trial, detailed=False))
        if request.series
        else tuple(filter(None, (tables.ratios(trial, rows), tables.groups(trial, rows))))
        if rows
        else (),
        series=series_page(trial) if request.series else None,
        ratios=tuple(ratios(trial, rows, scale)),
        detectable=table,
        works=tuple(works(trial, rows)),
        remarks=tuple(comparison.remarks(trial)) if rows or request.series else (),
        settings=tuple(settings(trial)),
        command=command_on("show", trial.name, history),
    )
    return render("trial.html", page=page, index=index)


def headline(trial: Trial, rows: Sequence[Compared]) -> str:
    """What was measured, or the result where it is one number."""
    request = trial.request
    names = [each.name for each in request.subjects]
    if request.kind is TrialType.NOISE:
        return f"{names[0]} against itself: {request.builder} {request.works[0].name} on {request.host}"
    if request.kind is TrialType.PROVE:
        return next(iter(proofs.sentences(trial)), f"{names[-1]} against {names[0]}")
    if request.series:
        steps = sum(len(line.steps) for line in lines_of(trial))
        return f"{names[0]} to {names[-1]} of {request.builder}: {count(steps, 'step')} in {count(len(request.works), 'workload')}"
    if len(rows) == 1 and len(names) == 2 and (only := rows[0].ratios[0]) and only.interval:
        return f"{metric_title(request.metric)} of {names[1]} is {only.ratio:.3f} ({between(only.interval)}) of that of {names[0]} in {rows[0].work}"
    return (
        f"{', '.join(names[1:])} relative to {names[0]}: {count(len(request.works), 'workload')} of {request.builder}"
    )


def series_page(trial: Trial) -> SeriesPage:
    """The lines of a series, and the commands that hunt their steps."""
    names = [printable(each.name) for each in trial.request.subjects]
    found = lines_of(trial)
    return SeriesPage(
        series.RULE,
        tuple((line.work, line_drawing(line, names, trial.request.metric)) for line in found if any(line.ratios)),
        tuple(f"{line.work}, {series.sentence(step, names)}" for line in found for step in line.steps),
        tuple(
            (f"{names[hunt.good]} to {names[hunt.bad]}, {', '.join(hunt.works)}", series.command(trial, hunt))
            for hunt in hunts_of(found, trial.request.metric)
        ),
    )


def ratios(trial: Trial, rows: Sequence[Compared], scale: Scale) -> Iterator[RatioCells]:
    """A row for each workload and build."""
    for row in rows:
        for subject, found in zip(trial.request.subjects[1:], row.ratios, strict=True):
            interval = found.interval if found else None
            colour = tone_of(found, trial.request.metric)
            yield RatioCells(
                row.work,
                subject.name,
                decimals(found.ratio, 3) if found else MISSING,
                between(interval),
                found.rounds if found else 0,
                intervals.row(interval, scale, colour),
                colour,
            )


def tone_of(found: Ratio | None, metric: str) -> str:
    """The class of the colour of a ratio."""
    return TONES[tone(found, metric)] if found else "unclear"


def works(trial: Trial, rows: Sequence[Compared]) -> Iterator[WorkPage]:
    """Counters relative to the first build, and the runs in order of time."""
    subjects = trial.request.subjects
    by_name = {row.work: row for row in rows}
    spent = {found.work: found for found in spent_per_operation(trial)} if rows or trial.request.series else {}
    names, unit = [each.name for each in subjects], tables.cpu_unit(trial)
    for number, work in enumerate(trial.request.works):
        measured = [run for run in trial.runs if run.work == number]
        sides = [
            (SIDES[min(place, 2)], [run.facts for run in measured if run.subject == place])
            for place in range(len(subjects))
        ]
        runs = by_second(sides, find_metric(trial.request.metric).read)
        counters = by_name[work.name].counters if work.name in by_name else {}
        body = tuple(
            (name, figure(base), *(MISSING if one is None else f"×{decimals(one, 3)}" for one in others))
            for name, (base, *others) in counters.items()
        )
        yield WorkPage(
            work.name,
            ("counter", *(each.name for each in subjects)),
            body,
            tuple(tables.metric_blocks(spent[work.name], names, unit)) if work.name in spent else (),
            timeline(runs, metric_title(trial.request.metric)) if runs else None,
        )


def settings(trial: Trial) -> Iterator[tuple[str, str]]:
    """How it was measured."""
    request = trial.request
    yield "builder", ", ".join(filter(None, (request.builder, request.variant)))
    yield "metric", metric_title(request.metric)
    yield "rounds", f"{request.rounds}, of {count(request.runs, 'run')} each"
    if request.overrides:
        yield "changed", ", ".join(f"{name} {value}" for name, value in request.overrides.items())
    if trial.origin:
        yield "origin", comparison.imported(trial)
    yield "state", ": ".join(filter(None, (trial.state, trial.failure)))
