"""The report of a series of releases: a chart of the speed of each workload, the steps (lasting changes of the speed)
in each chart, and the `bisect run` commands that hunt for the steps.

This module also reports a branch that `bisect nightly` watches, as one trial whose builds are the branch's tips of all
nights; and imported series that were measured by other programs, whose builds are commits.

The chart has a row for each release, from the oldest to the newest, so that names of any length and any number of
releases fit a terminal. In the chart, a dot is the speed of a release, and a bar is the common speed of all releases
between two steps.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from perfbisect.core.domain.facts import DropHunt
from perfbisect.core.domain.metrics import find_metric
from perfbisect.core.domain.session_state import SessionState
from perfbisect.core.domain.settings import ChangeDirection, Policy, ReleaseSeries
from perfbisect.core.stats.paired_comparison import compare_builds
from perfbisect.core.stats.release_series import (
    FEWEST,
    RATE,
    LevelStep,
    SpeedLine,
    SuggestedHunt,
    makes_worse,
    speed_lines,
    suggested_hunts,
)
from perfbisect.core.stats.watched_branch import BranchLevels
from perfbisect.report.document import (
    Cell,
    Code,
    Document,
    Facts,
    Figure,
    Prose,
    Row,
    Section,
    Table,
    host_line,
    missing_cell,
)
from perfbisect.report.page.charts import release_line_drawing
from perfbisect.report.page.svg import Scale, line_scale_ends
from perfbisect.wording.quantities import MISSING, chance, change, count, decimals, moment, percent, ratio
from perfbisect.wording.table import in_width, table
from perfbisect.wording.text import listed, metric_title, printable, shell_words
from perfbisect.wording.trials import step_sentence

WIDE = 48  # columns of the chart
STEPS = (("culprit", "step for the worse"), ("parent", "for the better"), ("muted", "dark lines: levels between steps"))
RELEASE = "measured release"
LEVEL, PLATEAU = "●", "│"
RULE = (
    f"False alarms: if no release changed the speed, at most {100 * RATE:.0f} % of such tables would show a step, provided that"
    " the scatter of releases is random."
)


def level_title(trial: SessionState, reference: str) -> str:
    """The title of the vertical axis of a chart: the metric, relative to the first release or tip."""
    return f"{metric_title(trial.request.metric)} relative to the first {reference}"


def line_figures(
    trial: SessionState, lines: Sequence[SpeedLine], reference: str = RELEASE, x_title: str = "releases, oldest first"
) -> tuple[Figure, ...]:
    """A chart of the speed of each workload, relative to the first build; ``reference`` is the word for a build,
    "release" or "tip"."""
    names, y = [build.name for build in trial.request.subjects], level_title(trial, reference)
    draws = (partial(release_line_drawing, line, names, trial.request.metric) for line in lines)
    return tuple(
        Figure(draw, line.work, STEPS if line.scatter else (), "", tuple(text_chart(trial, line)), y, x_title)
        for draw, line in zip(draws, lines, strict=True)
    )


def installed_release_sections(trial: SessionState) -> Iterator[Section]:
    """The charts of a comparison of installed releases. Steps are marked if there are enough releases to detect
    steps."""
    if trial.request.is_release_line:
        lines, names = speed_lines(trial), [subject.name for subject in trial.request.subjects]
        steps_part = (Prose(tuple(series_sentences(lines, names))),) if any(line.scatter for line in lines) else ()
        yield Section("Releases", (*line_figures(trial, lines, x_title="in the given order"), *steps_part), "series")


def series_sections(trial: SessionState) -> Iterator[Section]:
    """The sections of the report of a series: the chart of each workload, the steps with the commands that hunt for the
    steps, and tables of all speeds and steps.
    """
    lines, names = speed_lines(trial), [subject.name for subject in trial.request.subjects]
    hunts = tuple(hunt_command(trial, hunt) for hunt in suggested_hunts(lines, trial.request.metric))
    parts = (Prose(tuple(series_sentences(lines, names))), *((Code(hunts, "To find the commits"),) if hunts else ()))
    yield Section("Releases", (*line_figures(trial, lines), *parts), "series", hide_title=True)
    reasons: dict[str, list[str]] = {}
    for name, reason in requested_series(trial).left_out:
        reasons.setdefault(reason, []).append(name)
    requested = requested_series(trial).text
    omitted = tuple(f"Omitted from {requested}: {', '.join(names)} ({reason})." for reason, names in reasons.items())
    yield Section("Omitted releases", (Prose(omitted),), hide_title=True)
    tables = [level_table(trial, lines), *([step_table(trial, lines)] if any(line.steps for line in lines) else [])]
    yield Section(
        "Tables", (Prose((level_title(trial, RELEASE),)), *tables), "tables", hide_title=True, omitted_on_terminal=True
    )


def level_table(trial: SessionState, lines: Sequence[SpeedLine]) -> Table:
    """The table of the relative speeds, with a row for each release and a column for each workload."""
    rows = []
    for number, subject in enumerate(trial.request.subjects):
        ratios = [line.ratios[number] for line in lines]
        cells = (missing_cell() if value is None else Cell(decimals(value, 3), (f"{value:.6f}",)) for value in ratios)
        rows.append(Row((*cells, Cell(subject.name))))
    head = tuple(line.work for line in lines)
    return Table((*head, "release"), tuple(rows), head, numbers_first=True)


def step_table(trial: SessionState, lines: Sequence[SpeedLine]) -> Table:
    """The table of steps, with a row for each step."""
    rows = [Row((*step_cells(trial, step), Cell(line.work))) for line in lines for step in line.steps]
    head = ("last before", "first after", "step within (95 %)", "ratio (95 %)")
    plain = ("after", "since", "not before", "not after", "ratio", "low", "high", "real", "workload")
    return Table((*head, "workload"), tuple(rows), head, ("Steps",), numbers_first=True, csv_head=plain)


def step_cells(trial: SessionState, step: LevelStep) -> tuple[Cell, Cell, Cell, Cell]:
    """The cells of a step: the build before the step, the build after the step, the two builds between which the step
    is with a probability of 95 %, and the ratio of the speeds after and before the step.
    """
    names = [subject.name for subject in trial.request.subjects]
    tone = "worse" if makes_worse(step, trial.request.metric) else "better"
    size = (f"{step.size.middle:.6f}", f"{step.size.low:.6f}", f"{step.size.high:.6f}")
    within = Cell(f"{names[step.first]}–{names[step.last]}", (names[step.first], names[step.last]))
    return Cell(names[step.before]), Cell(names[step.after]), within, Cell(ratio(step.size), (*size, tone), tone)


def series_sentences(lines: Sequence[SpeedLine], names: Sequence[str]) -> Iterator[str]:
    """Sentences that list the steps, state the error rate of the rule that finds steps, and state for each workload how
    much the releases scatter around the line.
    """
    yield "Steps:" if any(line.steps for line in lines) else "No step was found."
    yield from (f"  {line.work}, {step_sentence(step, names)}" for line in lines for step in line.steps)
    yield RULE
    for line in lines:
        if line.scatter is None:
            yield f"{line.work}: a search for steps needs at least {count(FEWEST, 'release')}."
        else:
            by_measuring = "" if line.error is None else f"; noise of the measurements: {percent(line.error)}"
            yield f"{line.work}: standard deviation of a release from its neighbours: {percent(line.scatter)}{by_measuring}."


def hunt_command(trial: SessionState, hunt: SuggestedHunt) -> str:
    """The command `bisect run` that hunts between two releases, for all workloads that have a step there."""
    names = [subject.name for subject in trial.request.subjects]
    words = hunt_argv(hunt, names, trial.request.metric, ["--workload", ",".join(hunt.works)])
    return shell_words([*words, *requested_series(trial).options])


def hunt_argv(hunt: SuggestedHunt, names: Sequence[str], metric: str, measurement_options: Sequence[str]) -> list[str]:
    """The words of a `bisect run` command; ``measurement_options`` are options such as --metric."""
    words = ["bisect", "run", names[hunt.good], names[hunt.bad], *measurement_options]
    if not hunt.worse and "--direction" not in measurement_options:
        words += ["--direction", ChangeDirection.RISE if find_metric(metric).higher_is_better else ChangeDirection.DROP]
    if hunt.smallest_change < 1.5 * Policy().min_effect and "--min-effect" not in measurement_options:
        words += ["--min-effect", f"{100 * hunt.smallest_change / 2:.1g}%"]
    return words


@dataclass(frozen=True, slots=True)
class ImportedLine:
    """A series of values, one for each commit, that another program has measured; and its steps."""

    line: SpeedLine
    commits: Sequence[str]  # commits as they are printed, oldest first
    metric: str  # "rate" or "cost"
    measurement_options: Sequence[str]  # options of the hunts

    def hunt_argv(self, step: LevelStep) -> list[str]:
        """The words of the `bisect run` command that hunts for a step."""
        worse, least = makes_worse(step, self.metric), abs(step.size.middle - 1)
        hunt = SuggestedHunt(step.first, step.last, worse, (self.line.work,), least)
        options = [word.replace("{series}", self.line.work) for word in self.measurement_options]
        return hunt_argv(hunt, self.commits, self.metric, options)

    def summary_sentence(self) -> str:
        """A line of text about the series: the number of commits, the scatter, the number of outliers that were left
        out, and the number of steps."""
        outliers, scatter_of_line = self.line.ratios.count(None), self.line.scatter
        scatter = "" if scatter_of_line is None else f" with a scatter of {percent(scatter_of_line)}"
        omitted = f", {count(outliers, 'outlier')} omitted" if outliers else ""
        steps = count(len(self.line.steps), "step") if self.line.steps else "no step"
        return printable(f"{self.line.work}: {count(len(self.commits), 'commit')}{scatter}{omitted}: {steps}")

    def json_object(self) -> dict[str, Any]:
        """The series as an object for JSON output."""
        steps = [
            step_object(step, self.commits, self.metric)
            | {"false_alarm": step.chance, "command": shell_words(self.hunt_argv(step))}
            for step in self.line.steps
        ]
        omitted = [commit for commit, ratio in zip(self.commits, self.line.ratios, strict=True) if ratio is None]
        return {"series": self.line.work, "commits": len(self.commits), "scatter": self.line.scatter, "left_out": omitted, "steps": steps}  # fmt: skip


def imported_line_texts(lines: Sequence[ImportedLine]) -> Iterator[str]:
    """A line of text for each imported series, and a table of all steps; below each step is the command that hunts for
    the step."""
    yield from (entry.summary_sentence() for entry in lines)
    rows, hunts = [], []
    for entry in lines:
        for step in entry.line.steps:
            names = entry.commits
            within = f"{names[step.first]}–{names[step.last]}"
            how = "worse" if makes_worse(step, entry.metric) else "better"
            before, after = names[step.before], names[step.after]
            cells = (before, after, within, ratio(step.size), how, chance(step.chance), entry.line.work)
            rows.append(tuple(map(printable, cells)))
            hunts.append(f"    {shell_words(entry.hunt_argv(step))}")
    if rows:
        columns = ("last before", "first after", "step within (95 %)", "ratio (95 %)", "", "false alarm", "series")
        head, *table_lines = table(columns, rows, right=("false alarm",))
        yield from ["", head]
        for line, hunt in zip(table_lines, hunts, strict=True):
            yield from (line, hunt)
    yield f"\nA step is a change that lasts. If no series of the file has a step, a step is shown with a probability of at most {100 * RATE:.0f} %. 'false alarm' is the probability that a series without a step shows such a step."


def text_chart(trial: SessionState, line: SpeedLine) -> Iterator[str]:
    """The chart of a workload as lines of text, with a row for each release."""
    names = [printable(subject.name) for subject in trial.request.subjects]
    measured = [ratio for ratio in line.ratios if ratio is not None]
    if not measured:
        yield f"{printable(line.work)}: nothing was measured"
        return
    first = next(name for name, value in zip(names, line.ratios, strict=True) if value is not None)
    yield f"{printable(line.work)}: {metric_title(trial.request.metric)} relative to {first}"
    low, high = line_scale_ends(measured)
    scale = Scale(low, high, logarithmic=True)
    wide = max(map(len, names))
    head = in_width(decimals(low, 2), WIDE // 2, right=False) + in_width(
        decimals(high, 2), WIDE - WIDE // 2, right=True
    )
    yield f"{' ' * (wide + 9)}{head}"
    since = {step.after: step for step in line.steps}
    for number, (name, value) in enumerate(zip(names, line.ratios, strict=True)):
        row = [" "] * WIDE
        if (level := line.plateaus[number]) is not None:
            row[round((WIDE - 1) * scale(level))] = PLATEAU
        if value is not None:
            row[round((WIDE - 1) * scale(value))] = LEVEL
        note = f"  {change(since[number].size.middle)}" if number in since else ""
        text = MISSING if value is None else decimals(value, 3)
        yield f"{in_width(name, wide, right=False)}  {in_width(text, 5, right=True)}  {''.join(row)}{note}".rstrip()


def requested_series(trial: SessionState) -> ReleaseSeries:
    """The series of releases that the trial was requested to measure."""
    assert trial.request.series is not None
    return trial.request.series


def series_object(trial: SessionState) -> dict[str, Any]:
    """The speeds of the releases in each workload, the steps, and the hunts for the steps, as an object for JSON
    output."""
    lines, names = speed_lines(trial), [subject.name for subject in trial.request.subjects]
    return {
        "rate": RATE,
        "lines": [
            {
                "workload": line.work,
                "error": line.error,
                "scatter": line.scatter,
                "releases": [{"release": name, "ratio": value} for name, value in zip(names, line.ratios, strict=True)],
                "steps": [step_object(step, names, trial.request.metric) for step in line.steps],
            }
            for line in lines
        ],
        "hunts": [
            {
                "good": names[hunt.good],
                "bad": names[hunt.bad],
                "workloads": hunt.works,
                "command": hunt_command(trial, hunt),
            }
            for hunt in suggested_hunts(lines, trial.request.metric)
        ],
    }


def step_object(step: LevelStep, names: Sequence[str], metric: str) -> dict[str, Any]:
    """A step as an object for JSON output."""
    places = {"after": step.before, "since": step.after, "not_before": step.first, "not_after": step.last}
    size = {"ratio": step.size, "worse": makes_worse(step, metric), "alone": step.alone}
    return {key: names[build] for key, build in places.items()} | size


def night_sentences(trial: SessionState) -> Iterator[str]:
    """Sentences with the result of a night: for each workload, the speed of the new tip relative to the previous tip,
    or the failure of the tip.
    """
    request = trial.request
    *earlier, tip = (build.name for build in request.subjects)
    if trouble := request.subjects[-1].trouble:
        yield printable(f"{tip} cannot be built, so it is not measured: {trouble}")
        return
    reasons = {request.works[skip.work].name: skip.facts.reason for skip in trial.skips if skip.subject == len(earlier)}
    ratios = {row.work: row.ratios[-1] for row in compare_builds(trial, request.metric) if earlier}
    for name in (work.name for work in request.works):
        sentence, comparison = "has too few rounds", ratios.get(name)
        if name in reasons:
            sentence = f"fails: {reasons[name]}"
        elif not earlier:
            sentence = "is the first tip of the series, so it has no ratio yet"
        elif comparison and comparison.interval:
            sentence = f"is ×{ratio(comparison.interval)} of {earlier[0]}, in {count(comparison.rounds, 'round')}"
        yield printable(f"{name}: {tip} {sentence}")


def steps_with_hunts(
    trial: SessionState, lines: Sequence[SpeedLine]
) -> Iterator[tuple[SpeedLine, LevelStep, DropHunt | None, str]]:
    """For each step, oldest first: the workload's line, the step, the hunt for the step (or None), and the outcome of
    the hunt in words. Only steps for the worse are hunted."""
    for work, line in enumerate(lines):
        for step in line.steps:
            hunts = [
                hunt for hunt in trial.hunts if hunt.work == work and hunt.first < step.last and step.first < hunt.last
            ]
            best = max(hunts, key=lambda hunt: (bool(hunt.culprit), hunt.hunt), default=None)
            if not makes_worse(step, trial.request.metric):
                yield line, step, None, "an improvement"
            elif best is None:
                yield line, step, None, "not hunted"
            elif best.culprit:
                yield line, step, best, f"{best.culprit[:10]} {best.subject} (hunt {best.hunt})"
            else:
                yield line, step, best, f"hunt {best.hunt}: {best.state}"


def branch_sentences(trial: SessionState, branch: BranchLevels) -> Iterator[str]:
    """Sentences about a watched branch: its steps and, if the latest tips could not be built, a sentence about these
    tips."""
    names = [build.name for build in trial.request.subjects]
    found_steps = [*steps_with_hunts(trial, branch.lines)]
    yield f"The series has {count(len(names), 'tip')} and {count(len(found_steps), 'step')} in speed{':' if found_steps else '.'}"
    for line, step, hunt, outcome in found_steps:
        found = f"culprit {outcome}" if hunt and hunt.culprit else outcome
        yield f"  {printable(f'{line.work}, {step_sentence(step, names)}: {found}')}"
    yield from unbuilt_tip_sentences(branch)


def unbuilt_tip_sentences(branch: BranchLevels) -> Iterator[str]:
    """A sentence if the latest tips could not be built."""
    if tips := [tip.name for tip in branch.broken]:
        yield printable(f"{count(len(tips), 'later tip')} could not be built: {listed(tips)}.")


def branch_document(trial: SessionState, branch: BranchLevels, page_name: Callable[[int], str]) -> Document:
    """The page of a watched branch. If a hunt names a commit, the page links to the page of the hunt, whose file name
    ``page_name`` returns."""
    request = trial.request
    figures = line_figures(trial, branch.lines, "tip", "tips, oldest first")
    rows = []
    for line, step, hunt, outcome in steps_with_hunts(trial, branch.lines):
        former, since, _, size = step_cells(trial, step)
        outcome_cell = Cell(outcome, link=page_name(hunt.hunt) if hunt and hunt.culprit else "")
        rows.append(Row((former, since, size, outcome_cell, Cell(line.work))))
    head = ("after", "since", "ratio (95 %)", "commit", "workload")
    table = Table(head, tuple(rows), ("after", "since"), numbers_first=True)
    return Document(
        session=f"Branch {printable(request.branch)}",
        subject=f"{request.builder} {', '.join(work.name for work in request.works)}",
        started=trial.began,
        state=f"last night {trial.name}, {moment(trial.began)}",
        facts=Facts((("metric", metric_title(request.metric)), ("host", host_line(trial.host)))),
        summary=tuple(unbuilt_tip_sentences(branch)),
        headline=f"{request.branch}: {count(len(request.subjects), 'tip')}, {count(len(rows), 'step')}",
        sections=(
            Section("Tips", figures, "tips"),
            Section("Steps", (table,) if rows else (Prose(("No step was found.",)),), "steps"),
        ),
    )
