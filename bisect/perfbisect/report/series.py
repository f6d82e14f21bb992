"""The report of a series of releases: the line of each workload with its steps, and what to hunt between which neighbours.

The chart has a row for each release, from the oldest to the newest, so that a terminal shows names of any length and as many
releases as there are. A dot is the level of a release, and the bar behind it that of the releases up to the next step.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from perfbisect.core.domain.metrics import find_metric
from perfbisect.core.domain.session_state import SessionState
from perfbisect.core.domain.settings import Direction, Policy, Series
from perfbisect.core.stats.release_series import FEWEST, RATE, Hunt, LevelStep, SpeedLine, hunts_of, is_worse, lines_of
from perfbisect.report.document import Cell, Code, Figure, Prose, Row, Section, Table, missing
from perfbisect.wording.quantities import MISSING, change, count, decimals, percent, ratio
from perfbisect.wording.table import aligned
from perfbisect.wording.text import metric_title, printable, shell_words

if TYPE_CHECKING:
    from markupsafe import Markup

    Draw = Callable[[SessionState, SpeedLine], Markup]

WIDE = 48  # columns of the chart
NARROWEST = 0.04  # of the ratios that the chart spans, in logarithms
STEPS = (("culprit", "step for the worse"), ("parent", "for the better"), ("muted", "dark lines: levels between steps"))
LEVEL, PLATEAU = "●", "│"
RULE = (
    f"Of 100 series without a change, at most {100 * RATE:.0f} announce a step in any workload,"
    " where releases scatter as errors of measurement do."
)


def drawings(trial: SessionState, lines: Sequence[SpeedLine], draw: "Draw", y: str, builds: str) -> tuple[Figure, ...]:
    """The line of each workload, which a page draws; ``y`` says what the levels are, ``builds`` what they are of."""
    x = f"{builds}, oldest first"
    return tuple(
        Figure(partial(draw, trial, one), one.work, STEPS, "", tuple(chart(trial, one)), y, x) for one in lines
    )


def sections(trial: SessionState, draw: "Draw") -> Iterator[Section]:
    """The line of each workload, which a page draws; the steps, and what to hunt; and as tables all levels and steps."""
    found, names = lines_of(trial), [subject.name for subject in trial.request.subjects]
    y = f"{metric_title(trial.request.metric)} relative to the first release that was measured"
    hunts = tuple(command(trial, hunt) for hunt in hunts_of(found, trial.request.metric))
    said = (Prose(tuple(texts(found, names))), *((Code(hunts, "To find the commits"),) if hunts else ()))
    yield Section("Releases", (*drawings(trial, found, draw, y, "releases"), *said), "series", quiet=True)
    reasons: dict[str, list[str]] = {}
    for name, reason in series_of(trial).left_out:
        reasons.setdefault(reason, []).append(name)
    left = tuple(
        f"Left out of {series_of(trial).text}: {', '.join(names)} ({reason})." for reason, names in reasons.items()
    )
    yield Section("Left out", (Prose(left),), quiet=True)
    tables = [levels(trial, found), *([steps(trial, found)] if any(line.steps for line in found) else [])]
    yield Section("Tables", (Prose((y,)), *tables), "tables", quiet=True, charted=True)


def steps_in(trial: SessionState) -> int:
    """How many steps all lines have."""
    return sum(len(line.steps) for line in lines_of(trial))


def levels(trial: SessionState, lines: Sequence[SpeedLine]) -> Table:
    """A row for each release, a column for each workload."""
    rows = []
    for number, subject in enumerate(trial.request.subjects):
        known = [line.ratios[number] for line in lines]
        cells = (missing() if each is None else Cell(decimals(each, 3), (f"{each:.6f}",)) for each in known)
        rows.append(Row((*cells, Cell(subject.name))))
    head = tuple(line.work for line in lines)
    return Table((*head, "release"), tuple(rows), head, field=True)


def steps(trial: SessionState, lines: Sequence[SpeedLine]) -> Table:
    """A row for each step."""
    rows = [Row((*step_cells(trial, step), Cell(line.work))) for line in lines for step in line.steps]
    head = ("after", "since", "within (95 %)", "ratio (95 %)")
    plain = ("after", "since", "not before", "not after", "ratio", "low", "high", "real", "workload")
    return Table((*head, "workload"), tuple(rows), head, ("Steps",), field=True, plain_head=plain)


def step_cells(trial: SessionState, step: LevelStep) -> tuple[Cell, Cell, Cell, Cell]:
    """The builds before and after a step, those that it is within, and its size."""
    names = [subject.name for subject in trial.request.subjects]
    tone = "worse" if is_worse(step, trial.request.metric) else "better"
    size = (f"{step.size.middle:.6f}", f"{step.size.low:.6f}", f"{step.size.high:.6f}")
    within = Cell(f"{names[step.first]}–{names[step.last]}", (names[step.first], names[step.last]))
    return Cell(names[step.before]), Cell(names[step.after]), within, Cell(ratio(step.size), (*size, tone), tone)


def texts(found: Sequence[SpeedLine], names: Sequence[str]) -> Iterator[str]:
    """The steps in sentences, and what they are judged by."""
    yield "Steps:" if any(line.steps for line in found) else "No step is announced."
    yield from (f"  {line.work}, {sentence(step, names)}" for line in found for step in line.steps)
    yield RULE
    for line in found:
        if line.scatter is None:
            yield f"{line.work}: steps are looked for from {count(FEWEST, 'release')} on."
        else:
            own = "" if line.error is None else f", of which {percent(line.error)} by measuring"
            yield f"{line.work}: releases scatter by {percent(line.scatter)} around their neighbours{own}."


def sentence(step: LevelStep, names: Sequence[str]) -> str:
    """One step: where, how large, how sure."""
    where = f"{names[step.before]} → {names[step.after]}"
    if (step.first, step.last) != (step.before, step.after):
        where += f" (95 %: within {names[step.first]} to {names[step.last]})"
    alone = "; one release alone, which may be its code placement" if step.alone else ""
    return f"{where}: ×{ratio(step.size)}, {change(step.size.middle)}{alone}"


def command(trial: SessionState, hunt: Hunt) -> str:
    """The `bisect run` between two releases, for all workloads that have a step there."""
    request = trial.request
    names = [subject.name for subject in request.subjects]
    words = ["bisect", "run", names[hunt.good], names[hunt.bad], "--workload", ",".join(hunt.works)]
    if not hunt.worse:
        words += ["--direction", Direction.RISE if find_metric(request.metric).higher_is_better else Direction.DROP]
    if hunt.least < 1.5 * Policy().min_effect:
        words += ["--min-effect", f"{100 * hunt.least / 2:.1g}%"]
    return shell_words([*words, *series_of(trial).options])


def chart(trial: SessionState, line: SpeedLine) -> Iterator[str]:
    """The line of one workload, a row for each release."""
    names = [printable(subject.name) for subject in trial.request.subjects]
    known = [ratio for ratio in line.ratios if ratio is not None]
    if not known:
        yield f"{printable(line.work)}: nothing was measured"
        return
    first = next(name for name, value in zip(names, line.ratios, strict=True) if value is not None)
    yield f"{printable(line.work)}: {metric_title(trial.request.metric)} relative to {first}"
    low, high = spanned(known)
    wide = max(map(len, names))
    head = aligned(decimals(low, 2), WIDE // 2, right=False) + aligned(decimals(high, 2), WIDE - WIDE // 2, right=True)
    yield f"{' ' * (wide + 9)}{head}"
    plateaus = plateaus_of(line)
    since = {step.after: step for step in line.steps}
    for number, (name, value) in enumerate(zip(names, line.ratios, strict=True)):
        row = [" "] * WIDE
        if (level := plateaus[number]) is not None:
            row[place(level, low, high)] = PLATEAU
        if value is not None:
            row[place(value, low, high)] = LEVEL
        note = f"  {change(since[number].size.middle)}" if number in since else ""
        text = MISSING if value is None else decimals(value, 3)
        yield f"{aligned(name, wide, right=False)}  {aligned(text, 5, right=True)}  {''.join(row)}{note}".rstrip()


def plateaus_of(line: SpeedLine) -> list[float | None]:
    """The mean level of the releases between two steps, for each release; None before the first that was measured."""
    bounds = [0, *(step.after for step in line.steps), len(line.ratios)]
    found: list[float | None] = []
    for start, end in pairwise(bounds):
        logs = [math.log(ratio) for ratio in line.ratios[start:end] if ratio]
        found += [math.exp(sum(logs) / len(logs)) if logs else None] * (end - start)
    return found


def spanned(known: Sequence[float]) -> tuple[float, float]:
    """The ends of the scale."""
    low, high = min(known), max(known)
    room = max(0.0, NARROWEST - math.log(high / low)) / 2
    return low * math.exp(-room), high * math.exp(room)


def place(value: float, low: float, high: float) -> int:
    """The column of a ratio."""
    return round((WIDE - 1) * math.log(value / low) / math.log(high / low))


def series_of(trial: SessionState) -> Series:
    """What the series was asked for."""
    assert trial.request.series is not None
    return trial.request.series


def as_object(trial: SessionState) -> dict[str, Any]:
    """The lines, their steps and the hunts as JSON has them."""
    found, names = lines_of(trial), [subject.name for subject in trial.request.subjects]
    return {
        "rate": RATE,
        "lines": [
            {
                "workload": line.work,
                "error": line.error,
                "scatter": line.scatter,
                "releases": [{"release": name, "ratio": value} for name, value in zip(names, line.ratios, strict=True)],
                "steps": [
                    {
                        "after": names[step.before],
                        "since": names[step.after],
                        "not_before": names[step.first],
                        "not_after": names[step.last],
                        "ratio": step.size,
                        "worse": is_worse(step, trial.request.metric),
                        "alone": step.alone,
                    }
                    for step in line.steps
                ],
            }
            for line in found
        ],
        "hunts": [
            {
                "good": names[hunt.good],
                "bad": names[hunt.bad],
                "workloads": hunt.works,
                "command": command(trial, hunt),
            }
            for hunt in hunts_of(found, trial.request.metric)
        ],
    }
