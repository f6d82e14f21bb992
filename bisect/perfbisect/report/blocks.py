"""The tables of a comparison as data, which text, CSV, TSV, Markdown and the page write each in its way.

Their form is that of the field: numbers first, and the name of the row behind them.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from perfbisect.core.domain.settings import TrialBuild
from perfbisect.core.domain.trials import Trial
from perfbisect.core.stats.paired_comparison import (
    COLUMNS,
    Compared,
    Ratio,
    Spent,
    Summary,
    Values,
    by_machine,
    spent_per_operation,
    summaries,
    tone,
)
from perfbisect.report import culprits
from perfbisect.wording.quantities import MISSING, between, count, decimals, figure
from perfbisect.wording.text import metric_title, printable

ABSOLUTE, RELATIVE = "--- absolute", "--- relative to first result"


@dataclass(frozen=True, slots=True)
class Cell:
    """One number: for people, for programs, and whether it is to be coloured."""

    text: str
    plain: tuple[str, ...]  # one for each column of CSV that it fills
    tone: str = ""  # "worse" or "better" for a real difference, else ""
    note: str = ""  # what people read behind the number


@dataclass(frozen=True, slots=True)
class Row:
    """The numbers of a row and its name; neither in a row that separates groups."""

    cells: tuple[Cell, ...]
    name: str


@dataclass(frozen=True, slots=True)
class Block:
    """One table below some lines of text."""

    above: tuple[str, ...]
    head: tuple[str, ...]
    rows: tuple[Row, ...]
    named: str  # what the names of the rows are: "workload", "group" …
    plain_head: tuple[str, ...] = ()  # where columns for programs differ from those for people


def columns(trial: Trial) -> tuple[str, ...]:
    """col-1, col-2 …: a column for each build but the baseline."""
    return tuple(f"col-{number}" for number in range(1, len(trial.request.subjects)))


def legend(trial: Trial) -> tuple[str, ...]:
    """Which build each column is, and what they are relative to."""
    request = trial.request
    what = "Throughput" if request.metric == "qps" else metric_title(request.metric)
    further = zip(columns(trial), request.subjects[1:], strict=True)
    return (
        f"{what} relative to: {named(request.subjects[0])}",
        *(f"{column} : {named(subject)}" for column, subject in further),
    )


def ratios(trial: Trial, rows: Sequence[Compared]) -> Block:
    """The relative table, with the culprits of drops that were hunted; for programs these are columns of their own."""
    hunts = culprits.in_cells(trial)

    def cell(work: str, build: int, ratio: Ratio) -> Cell:
        colour, hunt = tone(ratio, trial.request.metric), hunts.get((work, build))
        named = (culprits.brief(hunt), hunt.culprit or hunt.state) if hunt else ("", "")
        plain = (f"{ratio.ratio:.2f}", *((printable(named[1]),) if hunts else ()))
        return Cell(decimals(ratio.ratio, 2), plain, colour, printable(named[0]))

    head = columns(trial)
    plain = tuple(text for column in head for text in (column, f"{column} culprit")) if hunts else ()
    return Block(legend(trial), head, tuple(by_group(rows, cell, 2 if hunts else 1)), "workload", plain)


def intervals(trial: Trial, rows: Sequence[Compared]) -> Block:
    """The intervals of all ratios; for programs, which of them are coloured, too."""
    rounds = max((ratio.rounds for row in rows for ratio in row.ratios if ratio), default=0)

    def cell(_work: str, _build: int, ratio: Ratio) -> Cell:
        ends = (f"{ratio.interval.low:.4f}", f"{ratio.interval.high:.4f}") if ratio.interval else ("", "")
        return Cell(between(ratio.interval), (*ends, tone(ratio, trial.request.metric)))

    title = f"95 % intervals, from {count(rounds, 'round')} of {count(trial.request.runs, 'run')} each"
    head = columns(trial)
    plain = tuple(f"{column} {part}" for column in head for part in ("low", "high", "real"))
    return Block((title,), head, tuple(by_group(rows, cell, 3)), "workload", plain)


def groups(trial: Trial, rows: Sequence[Compared]) -> Block | None:
    """Least, most, average and median of each group; None where no group has several workloads."""
    found = [
        Row(tuple(map(two, (each.least, each.most, each.average, each.median))), label(each, columns(trial)))
        for each in summaries(rows)
    ]
    return Block((), ("min", "max", "avg", "median"), tuple(found), "group") if found else None


def metrics(trial: Trial) -> Iterator[Block]:
    """For each workload what an operation costs: absolute, and relative to the first build."""
    names = [printable(each.name) for each in trial.request.subjects]
    unit = cpu_unit(trial)
    for found in spent_per_operation(trial):
        yield from metric_blocks(found, names, unit)


def cpu_unit(trial: Trial) -> str:
    """What cpu/o is in these tables."""
    return "cpu/o in % of the machine per o/s" if by_machine(trial) else "cpu/o in µs"


def metric_blocks(found: Spent, names: Sequence[str], unit: str) -> Iterator[Block]:
    """The two tables of one workload; none where nothing is known."""
    if all(value is None for row in found.absolute for value in row):
        return

    def row(values: Values, name: str, cell: Callable[[float], Cell]) -> Row:
        return Row(tuple(missing(1) if value is None else cell(value) for value in values), name)

    whole = tuple(row(values, name, exact) for values, name in zip(found.absolute, names, strict=True))
    others = tuple(row(values, name, two) for values, name in zip(found.relative, names[1:], strict=True))
    yield Block((f"{printable(found.work)}, {unit}", ABSOLUTE), COLUMNS, whole, "build")
    if others:
        yield Block((RELATIVE,), COLUMNS, others, "build")


def counters(trial: Trial, row: Compared) -> Block:
    """The counters of a workload per operation: of the baseline, and of the others relative to it."""
    title = f"{printable(row.work)}, relative to {printable(trial.request.subjects[0].name)}"
    found = tuple(
        Row((exact(base), *(missing(1) if other is None else two(other) for other in others)), name)
        for name, (base, *others) in row.counters.items()
        if base is not None
    )
    return Block((title,), ("baseline", *columns(trial)), found, "per operation")


def absolute_counters(trial: Trial, row: Compared) -> Block:
    """The same in absolute numbers."""
    found = tuple(
        Row((exact(base), *(missing(1) if other is None else exact(base * other) for other in others)), name)
        for name, (base, *others) in row.counters.items()
        if base is not None
    )
    return Block((f"{printable(row.work)}, absolute",), ("baseline", *columns(trial)), found, "per operation")


def by_group(rows: Sequence[Compared], cell: Callable[[str, int, Ratio], Cell], wide: int) -> Iterator[Row]:
    """A row for each workload, with an empty one where another group begins, unless each is a group by itself.

    ``cell`` is given the workload, the number of the build and its ratio.
    """
    several = len({row.group for row in rows}) < len(rows)
    for number, row in enumerate(rows):
        if number and several and row.group != rows[number - 1].group:
            yield Row((), "")
        cells = (cell(row.work, build, ratio) if ratio else missing(wide) for build, ratio in enumerate(row.ratios, 1))
        yield Row(tuple(cells), printable(row.work))


def named(subject: TrialBuild) -> str:
    """A build with its version and path."""
    version = f" ({subject.version})" if subject.version and subject.version not in subject.name else ""
    config = f"+{subject.config}" if subject.config else ""
    return printable(f"{subject.name}{version}" + (f" = {subject.path}{config}" if subject.path else ""))


def label(summary: Summary, titles: Sequence[str]) -> str:
    """A group, and where there are several builds which one."""
    return printable(f"{summary.group}, {titles[summary.subject - 1]}" if len(titles) > 1 else summary.group)


def missing(wide: int) -> Cell:
    """A value that nobody knows, which fills so many columns for programs."""
    return Cell(MISSING, ("",) * wide)


def two(value: float) -> Cell:
    """A ratio."""
    return Cell(decimals(value, 2), (f"{value:.2f}",))


def exact(value: float) -> Cell:
    """An absolute number."""
    return Cell(figure(value), (f"{value:.6g}",))
