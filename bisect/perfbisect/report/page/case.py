"""The part of a page that is about one named commit: its runs, its reason, its functions and its diff."""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from markupsafe import Markup, escape

from perfbisect.core.domain.explanation import CounterRow, Explanation, FunctionRow, PlanRow
from perfbisect.core.domain.metrics import find_metric
from perfbisect.core.explain.profiles import short, split
from perfbisect.report import cells
from perfbisect.report.content import Case
from perfbisect.report.page import intervals
from perfbisect.report.page.data import HuntData
from perfbisect.report.page.diff import ChangedFile, Hunk, parsed
from perfbisect.report.page.flame import flame_graph
from perfbisect.report.page.seconds import by_second, timeline
from perfbisect.report.page.svg import Scale, chart, element, percent
from perfbisect.wording import functions as function_words
from perfbisect.wording.functions import UNITS, own, waits_of
from perfbisect.wording.quantities import MISSING, count, figure, share, signed
from perfbisect.wording.reasons import abridged
from perfbisect.wording.text import metric_title

# Of a parent and a commit: the diff, and how many files it leaves out; None where it cannot be read.
DiffOf = Callable[[str, str], tuple[str, int] | None]

FUNCTIONS = 40  # that are listed
SMALL = (
    0.005  # share of the whole difference below which one is listed only if the commit changes it, or its cost moved
)
LETTERS = 250_000  # of a diff, as it is written in the page
LINES = 1500  # of a diff
OPEN = 3  # files that are unfolded where no function is known


@dataclass(frozen=True, slots=True)
class CounterCells:
    """One row of the table of counters."""

    name: str
    parent: str
    culprit: str
    ratio: str
    plot: Markup | None = None
    tone: str = ""
    share: str = ""  # of the time in which it was counted, where that is not all
    mark: str = ""


@dataclass(frozen=True, slots=True)
class FunctionCells:
    """One row of the table of functions."""

    name: str
    binary: str
    parent: str
    culprit: str
    difference: str
    part: str
    plot: Markup
    changed: bool
    anchor: str  # of the hunk that changes it; empty if none does
    notes: tuple[str, ...]


@dataclass(slots=True)
class ShownHunk:
    """A hunk with its place in the page; ``marked`` where it changes a function of the list."""

    hunk: Hunk
    anchor: str
    marked: bool


@dataclass(slots=True)
class ShownFile:
    """A file of the diff."""

    file: ChangedFile
    anchor: str
    hunks: list[ShownHunk]
    open: bool = False


@dataclass(frozen=True, slots=True)
class CasePage:
    """The values of one case in the template ``hunt.html``."""

    case: Case
    anchor: str
    why: tuple[str, ...]
    counters: tuple[CounterCells, ...]
    counter_axis: Markup | None = None
    timeline: Markup | None = None
    timeline_title: str = ""
    timeline_note: str = ""
    plans: tuple[PlanRow, ...] = ()
    waits: tuple[FunctionCells, ...] = ()
    functions: tuple[FunctionCells, ...] = ()
    unit: str = ""
    flame: Markup | None = None
    flame_note: str = ""
    diff: tuple[ShownFile, ...] = ()
    diff_note: str = ""
    missing: tuple[str, ...] = field(default_factory=tuple)

    @property
    def sections(self) -> Iterator[tuple[str, str]]:
        """The anchors of what it contains, with their titles."""
        present = (
            ("plans", "plan", self.plans),
            ("runs", "runs", self.timeline),
            ("why", "why", True),
            ("functions", "functions", self.waits or self.functions),
            ("change", "the change", self.diff),
            ("flame", "flame graph", self.flame),
        )
        return ((f"{self.anchor}-{name}", title) for name, title, there in present if there)


def case_page(data: HuntData, place: int, diff_of: DiffOf) -> CasePage:
    """The case at that place of the report. The explanation of a hunt is about the first of its cases."""
    case, anchor = data.story.cases[place], f"case-{place + 1}"
    found = data.explanation if data.explanation and data.explanation.culprit == case.commit.sha else None
    profiles = data.profiles if place == 0 else None
    files, note = change(case, anchor, diff_of, names_of(found))
    title, runs, text = runs_of(data, case)
    rows, axis = counters(case, found)
    return CasePage(
        case=case,
        anchor=anchor,
        why=(case.why,),
        counters=rows,
        counter_axis=axis,
        timeline=runs,
        timeline_title=title,
        timeline_note=text,
        plans=tuple(PlanRow(row.statement, abridged(row.parent), abridged(row.culprit)) for row in case.plans),
        waits=functions(waits_of(found), found.changed, files) if found else (),
        functions=functions(found.functions, found.changed, files) if found else (),
        unit=UNITS.get(found.unit, found.unit) if found else "",
        flame=flame_graph(profiles.parent, profiles.culprit, UNITS.get(profiles.unit, profiles.unit))
        if profiles
        else None,
        flame_note=" ".join(("Widths are costs per operation.", *profiles.notes)) if profiles else "",
        diff=files,
        diff_note=note,
        missing=missing(case, found),
    )


def runs_of(data: HuntData, case: Case) -> tuple[str, Markup | None, str]:
    """Title, drawing and note of the runs of a commit and of those it was compared with, in order of time.

    Timed runs where both sides have some, or else those that were counted exactly.
    """
    metric = data.story.settings.metric
    sides = [
        ("parent", data.state.runs_like(*(parent.sha for parent in case.parents))),
        ("culprit", data.state.runs_like(case.commit.sha)),
    ]
    whole = [(side, [run for run in runs if not run.slower_than]) for side, runs in sides]
    timed, exact = (
        [(side, [run for run in runs if bool(run.counted) is counted]) for side, runs in whole]
        for counted in (False, True)
    )
    sides = timed if all(runs for _, runs in timed) else exact
    runs = by_second(sides, find_metric(metric).read)
    if {run.side for run in runs} != {"parent", "culprit"}:
        return "", None, ""
    note = f"{count(len(runs), 'run')} in order of time"
    if not any(len(run.values) > 1 for run in runs):
        what = metric_title(metric)
        return f"{what} of each run", timeline(runs, what), note
    return "QPS in each second", timeline(runs, "QPS"), f"{note}; a line is one run, flat lines are medians"


def counters(case: Case, found: Explanation | None) -> tuple[tuple[CounterCells, ...], Markup | None]:
    """The rows of the table of counters and its axis: those with intervals, or else what the runs of the proof show."""
    if found is None or not found.counters:
        compared = any(each.ratio is not None for each in case.counters)
        rows = [CounterCells(name, before, after, ratio) for name, before, after, ratio, _ in cells.counters(case)]
        return tuple(rows) if compared else (), None
    scale = intervals.scale_of([row.ratio for row in found.counters])
    return tuple(counter(row, scale) for row in found.counters), intervals.axis(scale, "ratio of culprit to parent")


def counter(row: CounterRow, scale: Scale) -> CounterCells:
    """A ratio of counters with its interval; what has not moved beyond noise is grey."""
    tone = "unclear" if not row.moved else "bad" if row.ratio.middle > 1 else "good"
    unit = UNITS.get(row.unit, row.unit)
    partly = row.share < 1
    return CounterCells(
        name=f"{row.name}, {unit}" if unit else row.name,
        parent=figure(row.parent),
        culprit=figure(row.culprit),
        ratio=f"×{row.ratio.middle:.3f}",
        plot=intervals.row(row.ratio, scale, tone),
        tone=tone,
        share=share(row.share) if partly else "",
        mark="counted during this share of the time, the rest is extrapolated" if partly else "",
    )


def missing(case: Case, found: Explanation | None) -> tuple[str, ...]:
    """A line for each part that was not measured."""
    absent = cells.not_counted(case) if found is None or not found.counters else ""
    none = "Functions were not recorded: this hunt has no explanation." if found is None else ""
    return (
        *(found.missing if found else ()),
        *filter(None, [f"Not counted on this host: {absent}." if absent else "", none]),
    )


def names_of(found: Explanation | None) -> tuple[str, ...]:
    """The functions that the commit changes, those that cost more first."""
    if found is None:
        return ()
    measured = (name for row in found.functions for name in ([row.function] if row.changed else row.inlined))
    return tuple(dict.fromkeys((*measured, *found.changed)))


def functions(
    measured: Sequence[FunctionRow], by_commit: Sequence[str], files: Sequence[ShownFile]
) -> tuple[FunctionCells, ...]:
    """The functions whose cost moved most, without those of no interest; ``by_commit`` are all that the commit changes."""
    notable = [row for row in measured if abs(row.part) >= SMALL or own(row) or row.partner]
    rows = (notable or measured)[:FUNCTIONS]
    largest = max((max(row.parent, row.culprit) for row in rows), default=0.0) or 1.0
    return tuple(function(row, largest, files, by_commit) for row in rows)


def function(row: FunctionRow, largest: float, files: Sequence[ShownFile], by_commit: Sequence[str]) -> FunctionCells:
    """One function; ``by_commit`` are all that the commit changes."""
    notes = [*function_words.notes(row, by_commit)]
    if row.callers:
        notes.append(f"called by {', '.join(map(short, row.callers[:3]))}")
    named = next(filter(None, (row.function if row.changed else "", *row.inlined[:1], row.below)), "")
    return FunctionCells(
        name=row.function,
        binary=row.binary,
        parent=figure(row.parent),
        culprit=figure(row.culprit),
        difference=signed(row.difference) + (f" ± {figure(2 * row.error)}" if row.error else ""),
        part=share(row.part) if row.part else MISSING,
        plot=difference(row, largest),
        changed=own(row),
        anchor=anchor_of(named, files) if named else "",
        notes=tuple(notes),
    )


def difference(row: FunctionRow, largest: float) -> Markup:
    """The cost of a function: what both builds spend, and what one of them spends more."""
    low, high = sorted((max(row.parent, 0.0), max(row.culprit, 0.0)))
    side = "bad" if row.culprit > row.parent else "good"
    text = f"{row.function}: {figure(row.parent)} in the parent, {figure(row.culprit)} in the culprit"
    return chart(
        intervals.ROW,
        text,
        element("rect", x="0%", y=6.0, width=percent(low / largest), height=10.0, class_="common"),
        element(
            "rect", x=percent(low / largest), y=6.0, width=percent((high - low) / largest), height=10.0, class_=side
        ),
    )


def change(case: Case, anchor: str, diff_of: DiffOf, names: Sequence[str]) -> tuple[tuple[ShownFile, ...], str]:
    """The diff against the first of the parents, files that change a function of the list first; and what it lacks."""
    if not case.parents:
        return (), ""
    if (found := diff_of(case.parents[0].sha, case.commit.sha)) is None:
        return (), "The diff is not shown: the repository of the hunt, or its commits, are not on this machine."
    files, left_out = parsed(found[0]), found[1]
    word = any_of(names)
    shown = [
        ShownFile(
            file,
            f"{anchor}-file-{place}",
            [
                ShownHunk(hunk, f"{anchor}-hunk-{place}-{number}", word is not None and place_in(hunk, word))
                for number, hunk in enumerate(file.hunks)
            ],
        )
        for place, file in enumerate(files)
    ]
    shown.sort(key=lambda one: not any(hunk.marked for hunk in one.hunks))
    kept = within_budget(shown)
    left_out += len(shown) - len(kept)
    some = any(hunk.marked for one in kept for hunk in one.hunks)
    for place, one in enumerate(kept):
        one.open = any(hunk.marked for hunk in one.hunks) if some else place < OPEN
    note = (
        f"{count(left_out, 'file')} with large changes left out; `git show {case.commit.short}` prints all."
        if left_out
        else ""
    )
    return tuple(kept), note


def within_budget(files: Sequence[ShownFile]) -> list[ShownFile]:
    """The files that fit into the page, in their order."""
    kept, letters, lines = [], 0, 0
    for one in files:
        texts = [line.text for hunk in one.hunks for line in hunk.hunk.lines]
        size = sum(len(escape(text)) for text in texts)
        if letters + size <= LETTERS and lines + len(texts) <= LINES:
            kept.append(one)
            letters, lines = letters + size, lines + len(texts)
    return kept


def any_of(functions: Sequence[str]) -> re.Pattern[str] | None:
    """What a definition or a call of one of these functions looks like; None where they have no names."""
    names = dict.fromkeys(name for function in functions if (name := split(function)[1]))
    return re.compile(rf"(?<![\w~])(?:{'|'.join(map(re.escape, names))})\s*\(") if names else None


def place_in(hunk: Hunk, word: re.Pattern[str]) -> bool:
    """Whether the hunk is in one of the functions that ``word`` finds, or has a line that defines or calls one.

    git's line of its scope has the name, a changed line, or one without an indent beside them: there functions begin.
    """
    lines = (line.text for line in hunk.lines if line.kind != "same" or not line.text[:1].isspace())
    return bool(word.search(hunk.scope) or any(word.search(text) for text in lines))


def anchor_of(function: str, files: Sequence[ShownFile]) -> str:
    """The place of the first hunk of a function; empty if none is shown."""
    word = any_of([function])
    return next((hunk.anchor for one in files for hunk in one.hunks if word and place_in(hunk.hunk, word)), "")
