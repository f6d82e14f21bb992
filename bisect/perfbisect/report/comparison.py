"""The report of a comparison: a column for each build, a row for each workload, relative to the first build."""

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
from rich.cells import cell_len
from rich.text import Text

from perfbisect.core.domain.settings import TrialBuild
from perfbisect.core.domain.trials import BY_HAND, Trial
from perfbisect.core.stats.paired_comparison import COLUMNS, RATE, compared, silent, spent_per_operation, summaries
from perfbisect.report import blocks as tables
from perfbisect.report import culprits, series, service_levels
from perfbisect.report.blocks import Block
from perfbisect.wording.quantities import count, moment
from perfbisect.wording.table import GAP, aligned
from perfbisect.wording.text import printable

COLOURS = {"worse": "red", "better": "green", "": ""}


def as_object(trial: Trial) -> str:
    """The whole report as JSON."""
    return encoded(contents(trial))


def encoded(contents: dict[str, Any]) -> str:
    """The JSON of a report."""
    return msgspec.json.format(msgspec.json.encode(contents), indent=2).decode()


def contents(trial: Trial) -> dict[str, Any]:
    """The whole report."""
    rows = compared(trial, trial.request.metric)
    return {
        "id": trial.name,
        "state": trial.state,
        "origin": trial.origin,
        "started": trial.started,
        "settings": msgspec.to_builtins(trial.request),
        "host": trial.host,
        "runs": len(trial.runs),
        "skips": trial.skips,
        "failure": trial.failure,
        "workloads": rows,
        "groups": summaries(rows),
        "false_discovery_rate": RATE,
        "service_levels": service_levels.service_levels(trial),
        "hunts": culprits.objects(trial),
        "operations": {"columns": COLUMNS, "workloads": spent_per_operation(trial)},
        **({"series": series.as_object(trial)} if trial.request.series else {}),
    }


def header(trial: Trial) -> Iterator[str]:
    """What was compared, where and when."""
    request, host = trial.request, trial.host
    state = "" if trial.state == "done" else trial.state
    how = [
        request.builder,
        *filter(None, [request.variant]),
        *(f"{name} {value}" for name, value in request.overrides.items()),
    ]
    yield printable(
        ": ".join(filter(None, [f"{trial.name}, {moment(trial.started)}", ", ".join(how), state, trial.failure]))
    )
    if host.cores:
        yield printable(f"on {host.name}: {host.cpu}, {count(host.cores, 'core')}, kernel {host.kernel}")
    else:
        yield printable(f"on {host.name}")
    if trial.origin:
        yield printable(imported(trial))
    yield ""


def imported(trial: Trial) -> str:
    """Where a trial is from that was imported."""
    if not trial.origin.startswith(BY_HAND):
        return f"imported from {trial.origin}"
    return f"Imported, made {trial.origin}: builds did not take turns, so that drift of the machine is in the ratios."


def blocks(trial: Trial, *, detailed: bool) -> Iterator[Block]:
    """The tables: ratios, their intervals, groups; in detail also costs per operation and counters.

    A series of releases has a row for each release instead of a column.
    """
    if trial.request.series:
        yield from series.blocks(trial)
        if detailed:
            yield from tables.metrics(trial)
        return
    rows = compared(trial, trial.request.metric)
    yield tables.ratios(trial, rows)
    yield tables.intervals(trial, rows)
    if found := tables.groups(trial, rows):
        yield found
    if found := service_levels.block(trial):
        yield found
    if detailed:
        yield from tables.metrics(trial)
        for row in rows:
            if row.counters.keys() - {"qps", *COLUMNS}:  # what the tables of costs do not have
                yield tables.counters(trial, row)
                yield tables.absolute_counters(trial, row)


def lines(trial: Trial, *, counters: bool = False) -> Iterator[str | Text]:
    """The table of ratios, their intervals, summaries of groups, and if wanted what an operation costs, by counters, too."""
    if trial.request.series:
        yield from series.lines(trial)
        for block in tables.metrics(trial) if counters else ():
            yield ""
            yield from block.above
            yield from grid(block)
        yield from remarked(trial)
        return
    for number, block in enumerate(blocks(trial, detailed=counters)):
        if number:
            yield ""
        yield from block.above
        if not number:
            yield ""
        yield from grid(block)
    yield from remarked(trial)


def remarked(trial: Trial) -> Iterator[str]:
    """The remarks below the tables, behind an empty line."""
    if texts := list(remarks(trial)):
        yield ""
        yield from map(printable, texts)


def remarks(trial: Trial) -> Iterator[str]:
    """What hunts have found, what is missing from the table, and why; and which builds are the same binary."""
    yield from culprits.sentences(trial)
    subjects, works = trial.request.subjects, trial.request.works
    yield from (f"{each.name} was not measured: {each.trouble}" for each in subjects if each.trouble)
    for skip in trial.skips:
        yield f"{subjects[skip.subject].name} fails in {works[skip.work].name}: {skip.facts.reason}"
    yield from service_levels.remarks(trial)
    for work, subject in silent(trial):
        yield f"{subjects[subject].name} has no value of {trial.request.metric} in {works[work].name}."
    yield from (f"{' and '.join(names)} are the same binary." for names in same(subjects))


def same(subjects: Sequence[TrialBuild]) -> list[list[str]]:
    """The names of builds that are the same binary in the same configuration."""
    alike: dict[tuple[str, str], list[str]] = {}
    for subject in subjects:
        if subject.binary:
            alike.setdefault((subject.binary, subject.config_hash), []).append(subject.name)
    return [names for names in alike.values() if len(names) > 1]


def grid(block: Block) -> Iterator[Text]:
    """Right-aligned numbers, and behind them the name of their row."""
    wide = [
        max(map(cell_len, (title, *(row.cells[place].text for row in block.rows if row.cells))))
        for place, title in enumerate(block.head)
    ]
    notes = [
        max((cell_len(row.cells[place].note) for row in block.rows if row.cells), default=0)
        for place in range(len(block.head))
    ]
    behind = [width and width + 1 for width in notes]  # a blank before each
    titles = (
        aligned(title, width, right=True) + " " * note
        for title, width, note in zip(block.head, wide, behind, strict=True)
    )
    yield Text(GAP.join(titles).rstrip() if any(notes) else GAP.join(titles))
    for row in block.rows:
        cells = (
            Text.assemble(
                (aligned(cell.text, width, right=True), COLOURS[cell.tone]),
                aligned(f" {cell.note}" if cell.note else "", note, right=False),
            )
            for cell, width, note in zip(row.cells, wide, behind, strict=False)
        )
        line = Text(GAP).join([*cells, Text(row.name)])
        line.rstrip()
        yield line
