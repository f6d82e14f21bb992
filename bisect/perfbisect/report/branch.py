"""The line of a watched branch: what a night says of it, and its page. A trial here is all nights merged: its builds are tips."""

from collections.abc import Callable, Iterator, Sequence

from perfbisect.core.domain.session_state import DropHunt, SessionState
from perfbisect.core.stats.paired_comparison import levels, paired, step_of
from perfbisect.core.stats.release_series import LevelStep, SpeedLine, is_worse
from perfbisect.core.stats.watched_branch import Branch
from perfbisect.report import series
from perfbisect.report.document import Cell, Document, Facts, Prose, Row, Section, Table, host_line
from perfbisect.report.trial import draw_line
from perfbisect.wording.quantities import count, moment, ratio
from perfbisect.wording.text import listed, metric_title, printable


def night(trial: SessionState) -> Iterator[str]:
    """What one night has measured: the tip against the one before it, in each workload; and what has failed."""
    request = trial.request
    *earlier, tip = (build.name for build in request.subjects)
    if trouble := request.subjects[-1].trouble:
        yield printable(f"{tip} cannot be built, so nothing is measured: {trouble}")
        return
    failures = {each.work: each.facts.reason for each in trial.skips if each.subject == len(earlier)}
    for work, workload in enumerate(request.works):
        visits, said = levels(trial, work, request.metric), ""
        found = paired(visits.get(0, {}), visits.get(len(earlier), {}), step_of(trial, work, request.metric))
        if work in failures:
            said = f"fails: {failures[work]}"
        elif not earlier:
            said = "is the first tip of the line: there is nothing to compare it with yet"
        elif found and found.interval:
            said = f"is ×{ratio(found.interval)} of {earlier[0]}, in {count(found.rounds, 'round')}"
        yield printable(f"{workload.name}: {tip} {said or 'has too few rounds'}")


def steps(
    trial: SessionState, lines: Sequence[SpeedLine]
) -> Iterator[tuple[SpeedLine, LevelStep, DropHunt | None, str]]:
    """The steps of the line, oldest first in each workload, with the hunt of each for the worse and what became of it."""
    for work, line in enumerate(lines):
        for step in line.steps:
            hunts = [
                hunt for hunt in trial.hunts if hunt.work == work and hunt.first < step.last and step.first < hunt.last
            ]
            best = max(hunts, key=lambda hunt: (bool(hunt.culprit), hunt.hunt), default=None)
            if not is_worse(step, trial.request.metric):
                yield line, step, None, "an improvement"
            elif best is None:
                yield line, step, None, "not hunted"
            elif best.culprit:
                yield line, step, best, f"{best.culprit[:10]} {best.subject} (hunt {best.hunt})"
            else:
                yield line, step, best, f"hunt {best.hunt}: {best.state}"


def summary(trial: SessionState, branch: Branch) -> Iterator[str]:
    """The line in sentences: its steps, and the tips since its last one that could not be built."""
    names = [build.name for build in trial.request.subjects]
    found = [*steps(trial, branch.lines)]
    yield f"The line has {count(len(names), 'tip')} and {count(len(found), 'step')}{':' if found else '.'}"
    for line, step, _, outcome in found:
        yield f"  {printable(f'{line.work}, {series.sentence(step, names)}: {outcome}')}"
    yield from broken(branch)


def broken(branch: Branch) -> Iterator[str]:
    """That the latest tips could not be built, if it is so."""
    if tips := [tip.name for tip in branch.broken]:
        yield printable(f"{count(len(tips), 'later tip')} could not be built: {listed(tips)}.")


def document(trial: SessionState, branch: Branch, page_name: Callable[[int], str]) -> Document:
    """The page of the line; ``page_name`` is the address of the page of a hunt that names a commit."""
    request = trial.request
    y = f"{metric_title(request.metric)} relative to the first tip"
    drawings = series.drawings(trial, branch.lines, draw_line, y, "tips")
    rows = []
    for line, step, hunt, outcome in steps(trial, branch.lines):
        after, since, _, size = series.step_cells(trial, step)
        said = Cell(outcome, link=page_name(hunt.hunt) if hunt and hunt.culprit else "")
        rows.append(Row((after, since, size, said, Cell(line.work))))
    table = Table(("after", "since", "ratio (95 %)", "commit", "workload"), tuple(rows), ("after", "since"), field=True)
    return Document(
        session=f"Branch {printable(request.branch)}",
        what=f"{request.builder} {', '.join(work.name for work in request.works)}",
        started=trial.began,
        state=f"last night {trial.name}, {moment(trial.began)}",
        facts=Facts((("metric", metric_title(request.metric)), ("host", host_line(trial.host)))),
        summary=tuple(broken(branch)),
        headline=f"{request.branch}: {count(len(request.subjects), 'tip')}, {count(len(rows), 'step')}",
        sections=(
            Section("Tips", drawings, "tips"),
            Section("Steps", (table,) if rows else (Prose(("No step is announced.",)),), "steps"),
        ),
    )
