"""The line of a watched branch: what a night says of it, and its page. A trial here is all nights merged: its builds are tips."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial

from perfbisect.core.domain.trials import DropHunt, Trial
from perfbisect.core.stats.paired_comparison import levels, paired
from perfbisect.core.stats.release_series import Line, Step, is_worse
from perfbisect.report import series
from perfbisect.report.document import Cell, Document, Facts, Figure, Prose, Row, Section, Table, host_line
from perfbisect.report.trial import draw_line
from perfbisect.wording.quantities import count, moment, ratio
from perfbisect.wording.text import metric_title, printable


def night(trial: Trial) -> Iterator[str]:
    """What one night has measured: the tip against the one before it, in each workload; and what has failed."""
    request = trial.request
    *earlier, tip = (build.name for build in request.subjects)
    if trouble := request.subjects[-1].trouble:
        yield printable(f"{tip} cannot be built, so nothing is measured: {trouble}")
        return
    failures = {each.work: each.facts.reason for each in trial.skips if each.subject == len(earlier)}
    for work, workload in enumerate(request.works):
        visits, said = levels(trial, work, request.metric), ""
        if work in failures:
            said = f"fails: {failures[work]}"
        elif not earlier:
            said = "is the first tip of the line: there is nothing to compare it with yet"
        elif (found := paired(visits.get(0, {}), visits.get(len(earlier), {}))) and found.interval:
            said = f"is ×{ratio(found.interval)} of {earlier[0]}, in {count(found.rounds, 'round')}"
        yield printable(f"{workload.name}: {tip} {said or 'has too few rounds'}")


def steps(trial: Trial, lines: Sequence[Line]) -> Iterator[tuple[Line, Step, DropHunt | None]]:
    """The steps of the line, oldest first in each workload, with the hunt of each that is for the worse."""
    for work, line in enumerate(lines):
        for step in line.steps:
            hunts = [
                hunt for hunt in trial.hunts if hunt.work == work and hunt.first < step.last and step.first < hunt.last
            ]
            best = max(hunts, key=lambda hunt: (bool(hunt.culprit), hunt.hunt), default=None)
            yield line, step, best if is_worse(step, trial.request.metric) else None


def outcome(trial: Trial, step: Step, hunt: DropHunt | None) -> str:
    """What has become of a step."""
    if hunt is None:
        return "not hunted" if is_worse(step, trial.request.metric) else "an improvement"
    if hunt.culprit:
        return f"{hunt.culprit[:10]} {hunt.subject} (hunt {hunt.hunt})"
    return f"hunt {hunt.hunt}: {hunt.state}"


def summary(trial: Trial, lines: Sequence[Line]) -> Iterator[str]:
    """The steps of the line in sentences."""
    names = [build.name for build in trial.request.subjects]
    found = [*steps(trial, lines)]
    yield f"The line has {count(len(names), 'tip')} and {count(len(found), 'step')}{':' if found else '.'}"
    for line, step, hunt in found:
        yield f"  {printable(f'{line.work}, {series.sentence(step, names)}: {outcome(trial, step, hunt)}')}"


def document(trial: Trial, lines: Sequence[Line], link: Callable[[int], str]) -> Document:
    """The page of the line; ``link`` gives the address of the page of a hunt, "" without one."""
    request, names = trial.request, [build.name for build in trial.request.subjects]
    y, x = f"{metric_title(request.metric)} relative to the first tip", "tips, oldest first"
    drawings = (
        Figure(partial(draw_line, trial, line), line.work, series.STEPS, "", tuple(series.chart(trial, line)), y, x)
        for line in lines
    )
    rows = []
    for line, step, hunt in steps(trial, lines):
        tone = "worse" if is_worse(step, request.metric) else "better"
        said = Cell(outcome(trial, step, hunt), link=link(hunt.hunt) if hunt else "")
        ends = (Cell(names[step.before]), Cell(names[step.after]), Cell(ratio(step.size), tone=tone))
        rows.append(Row((*ends, said, Cell(line.work))))
    table = Table(("after", "since", "ratio (95 %)", "commit", "workload"), tuple(rows), ("after", "since"), field=True)
    branch = request.series.text if request.series else ""
    return Document(
        session=f"Branch {printable(branch)}",
        what=f"{request.builder} {', '.join(work.name for work in request.works)}",
        started=trial.started,
        state=f"last night {trial.name}, {moment(trial.started)}",
        facts=Facts((("metric", metric_title(request.metric)), ("host", host_line(trial.host)))),
        summary=(),
        headline=f"{branch}: {count(len(names), 'tip')}, {count(len(rows), 'step')}",
        sections=(
            Section("Tips", tuple(drawings), "tips"),
            Section("Steps", (table,) if rows else (Prose(("No step is announced.",)),), "steps"),
        ),
    )
