"""The report of a comparison: a column for each build, a row for each workload, relative to the first build."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import msgspec
from rich.cells import cell_len
from rich.text import Text

from perfbisect.core.domain.trials import Trial, TrialBuild, TrialRequest
from perfbisect.core.stats.paired_comparison import Compared, Ratio, Summary, compared, silent, summaries, tone
from perfbisect.wording.quantities import MISSING, between, count, decimals, figure, moment
from perfbisect.wording.table import GAP, aligned
from perfbisect.wording.text import metric_title, printable

Cell = tuple[str, str]  # text, and "worse" or "better" or ""
Row = tuple[Sequence[Cell], str]  # numbers, and the name of the row

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
        "started": trial.started,
        "settings": request_object(trial.request),
        "host": trial.host,
        "runs": len(trial.runs),
        "skips": trial.skips,
        "failure": trial.failure,
        "workloads": rows,
        "groups": summaries(rows),
    }


def request_object(request: TrialRequest) -> dict[str, Any]:
    """The settings of a trial for JSON, with the published keys."""
    found: dict[str, Any] = msgspec.to_builtins(request)
    for workload in found["works"]:
        workload["told"] = workload.pop("run_hash")
    return found


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
    yield printable(f"on {host.name}: {host.cpu}, {count(host.cores, 'core')}, kernel {host.kernel}")
    yield ""


def lines(trial: Trial, *, counters: bool = False) -> Iterator[str | Text]:
    """The table of ratios, their intervals, summaries of groups, and if wanted the counters per operation."""
    request = trial.request
    rows = compared(trial, request.metric)
    columns = [f"col-{number}" for number in range(1, len(request.subjects))]
    what = "Throughput" if request.metric == "qps" else metric_title(request.metric)
    yield f"{what} relative to: {named(request.subjects[0])}"
    yield from (f"{column} : {named(subject)}" for column, subject in zip(columns, request.subjects[1:], strict=True))
    yield ""
    yield from grid(columns, by_group(rows, lambda ratio: (decimals(ratio.ratio, 2), tone(ratio, request.metric))))
    yield ""
    rounds = max((ratio.rounds for row in rows for ratio in row.ratios if ratio), default=0)
    yield f"95 % intervals, from {count(rounds, 'round')} of {count(request.runs, 'run')} each"
    yield from grid(columns, by_group(rows, lambda ratio: (between(ratio.interval), "")))
    if found := summaries(rows):
        yield ""
        parts = ((each, (each.least, each.most, each.average, each.median)) for each in found)
        yield from grid(
            ("min", "max", "avg", "median"),
            [([(decimals(part, 2), "") for part in four], label(each, columns)) for each, four in parts],
        )
    if counters:
        for row in rows:
            yield ""
            yield printable(f"{row.work}, relative to {request.subjects[0].name}")
            yield from grid(
                ("baseline", *columns), [(list(relative(each)), name) for name, each in row.counters.items()]
            )
    if texts := list(remarks(trial)):
        yield ""
        yield from map(printable, texts)


def remarks(trial: Trial) -> Iterator[str]:
    """What is missing from the table, and why; and which builds are the same binary."""
    subjects, works = trial.request.subjects, trial.request.works
    yield from (f"{each.name} was not measured: {each.trouble}" for each in subjects if each.trouble)
    for skip in trial.skips:
        yield f"{subjects[skip.subject].name} fails in {works[skip.work].name}: {skip.facts.reason}"
    for work, subject in silent(trial):
        yield f"{subjects[subject].name} has no value of {trial.request.metric} in {works[work].name}."
    yield from (f"{' and '.join(names)} are the same binary." for names in same(subjects))


def named(subject: TrialBuild) -> str:
    """A build with its version and path."""
    version = f" ({subject.version})" if subject.version and subject.version not in subject.name else ""
    return printable(f"{subject.name}{version}" + (f" = {subject.path}" if subject.path else ""))


def by_group(rows: Sequence[Compared], cell: Callable[[Ratio], Cell]) -> Iterator[Row]:
    """A row for each workload, with an empty one where another group begins, unless each is a group by itself."""
    several = len({row.group for row in rows}) < len(rows)
    for number, row in enumerate(rows):
        if number and several and row.group != rows[number - 1].group:
            yield (), ""
        yield [cell(ratio) if ratio else (MISSING, "") for ratio in row.ratios], row.work


def label(summary: Summary, columns: Sequence[str]) -> str:
    """A group, and where there are several builds which one."""
    return f"{summary.group}, {columns[summary.subject - 1]}" if len(columns) > 1 else summary.group


def relative(counted: tuple[float | None, ...]) -> Iterator[Cell]:
    """A counter of the baseline, and of the others relative to it."""
    baseline, *others = counted
    yield figure(baseline), ""
    yield from ((MISSING if other is None else decimals(other, 2), "") for other in others)


def same(subjects: Sequence[TrialBuild]) -> list[list[str]]:
    """The names of builds that are the same binary."""
    alike: dict[str, list[str]] = {}
    for subject in subjects:
        if subject.binary:
            alike.setdefault(subject.binary, []).append(subject.name)
    return [names for names in alike.values() if len(names) > 1]


def grid(head: Sequence[str], rows: Iterable[Row]) -> Iterator[Text]:
    """Right-aligned numbers, and behind them the name of their row."""
    body = list(rows)
    wide = [max(map(cell_len, (title, *(row[place][0] for row, _ in body if row)))) for place, title in enumerate(head)]
    yield Text(GAP.join(aligned(title, width, right=True) for title, width in zip(head, wide, strict=True)))
    for row, name in body:
        cells = (
            Text(aligned(text, width, right=True), COLOURS[tone])
            for (text, tone), width in zip(row, wide, strict=False)
        )
        line = Text(GAP).join([*cells, Text(printable(name))])
        line.rstrip()
        yield line
