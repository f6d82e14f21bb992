"""What a page draws of a commit: its runs, its functions joined with its diff, and its flame graph."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

from markupsafe import escape

from perfbisect.core.domain.facts import DiffPart
from perfbisect.core.domain.metrics import find_metric
from perfbisect.core.explain.evidence import Explanation, FunctionRow
from perfbisect.core.explain.profiles import short, split
from perfbisect.core.inference.classification import classify
from perfbisect.report.document import Cell, Figure, Prose, Row, Section, Table, row
from perfbisect.report.hunt_report import (
    COSTS,
    TONES,
    DiffOf,
    HuntReport,
    NamedChange,
    costs_of,
    function_costs,
    is_left_out,
)
from perfbisect.report.page import pages
from perfbisect.report.page.charts import by_second, of_pairs, of_runs, posterior
from perfbisect.report.page.flame_graph import flame_graph
from perfbisect.wording.functions import notes
from perfbisect.wording.quantities import count, figure, scale
from perfbisect.wording.text import metric_title, titled

HUNK = re.compile(r"@@ -(\d+)(?:,\d+)? \+(\d+)(?:,\d+)? @@ ?(.*)")
LONGEST = 400  # characters of a line that are shown
LETTERS = 250_000  # of a diff, as it is written in the page
SMALL, MOST = 0.005, 40  # functions: share of the whole difference from which on one is listed; how many
SIDES = (("parent", "parent"), ("culprit", "culprit"))  # class of colour, its meaning
RANGE = (("parent", "good"), ("culprit", "bad, or the culprit"), ("gray", "unclear"), ("muted", "× skipped"))
OPEN = 3  # files that are unfolded where no function is known


@dataclass(slots=True)
class DiffLine:
    """One line of a hunk: ``kind`` is "add", "del" or "same"; numbers are 0 on the side that does not have it."""

    kind: str
    old: int
    new: int
    text: str
    anchor: str = ""  # its place in the page, where something leads to it


@dataclass(slots=True)
class PageHunk:
    """Changed lines with their surroundings; ``scope`` is what git prints after the line numbers, as a function's name."""

    scope: str
    lines: list[DiffLine] = field(default_factory=list)
    anchor: str = ""  # its place in the page
    marked: bool = False  # whether it changes a function of the list


@dataclass(slots=True)
class ChangedFile:
    """One file of a change."""

    path: str
    hunks: list[PageHunk] = field(default_factory=list)
    note: str = ""  # "binary", "renamed from …"; "" for a usual change
    anchor: str = ""
    open: bool = False

    @property
    def marked(self) -> bool:
        """Whether a function of the list is changed in it."""
        return any(hunk.marked for hunk in self.hunks)

    def count(self, kind: str) -> int:
        """How many lines were added ("add") or removed ("del")."""
        return sum(line.kind == kind for hunk in self.hunks for line in hunk.lines)


def narrowed(report: HuntReport) -> Iterator[Section]:
    """How the search narrowed the range, if it has begun."""
    state = report.state
    if not report.course:
        return
    tested = {
        state.node[sha]: (report.commit(sha), TONES.get(classify(state, sha, report.ratios), "unclear"))
        for sha, row in report.tested
        if sha in state.node and not is_left_out(row)
    }
    above = (
        "From the top: at each decision, the commits that together held 95 % of the probability, and what was measured then."
        " At the bottom: the probability of each commit at the end."
    )
    size, settings = count(report.listed.candidates, "candidate"), report.settings
    ends = f"{size}, oldest first: {settings.good} to {settings.bad}"
    yield Section("The range", (Figure(partial(posterior, tested, report.course), above, RANGE, x=ends),), "range")


def drawn_change(report: HuntReport, diff_of: DiffOf, place: int) -> Iterator[Section]:
    """The sections of one change; profiles are of the first."""
    change, anchor = report.changes[place], f"case-{place + 1}"
    found, profiles = change.explanation, report.profiles if place == 0 else None
    yield from runs(report, change, anchor)
    if change.pairs:
        drawing = of_pairs(change.pairs, titled(report.pairs_metric), SIDES)
        yield Section("Paired runs", (drawing,), f"{anchor}-pairs", within=True)
    between = (change.parents[0].sha, change.commit.sha) if change.parents else None
    if report.parts:
        between = report.settings.good_commit, report.settings.bad_commit
    files, note = diff(between, anchor, diff_of, names_of(found), report.parts)
    tables = tuple(functions(found, files))
    if tables:
        yield Section("Functions", tables, f"{anchor}-functions", within=True)
    elif not report.state.studied:
        missing = Prose(("Functions were not recorded: this hunt has no explanation.",))
        yield Section("Functions", (missing,), within=True)
    if files or note:
        drawing = Figure(partial(pages.part, "diff", files), note)
        yield Section("The change", (drawing,), f"{anchor}-change", within=True)
    if profiles:
        sides = profiles.parent, profiles.culprit
        divisor, unit = scale(max(sum(stacks.values()) for stacks in sides), profiles.unit, least=10.0)
        before, after = ({stack: cost / divisor for stack, cost in stacks.items()} for stacks in sides)
        graph = partial(flame_graph, before, after, unit)
        said = (f"Widths are costs per {found.operation}, in {unit}.", *profiles.notes)
        drawing = Figure(graph, " ".join(said), name="flame")
        yield Section("Flame graph", (drawing,), f"{anchor}-flame", within=True)


def set_in_diff(report: HuntReport, diff_of: DiffOf) -> Iterator[Section]:
    """The diff of a commit in which no part is named, but a set of them, which are marked."""
    settings = report.settings
    if report.parts and not report.changes:
        files, note = diff((settings.good_commit, settings.bad_commit), "case-1", diff_of, (), report.parts)
        yield Section("The change", (Figure(partial(pages.part, "diff", files), note),), "case-1-change")


def functions(found: Explanation, files: Sequence[ChangedFile]) -> Iterator[Table]:
    """The functions whose costs differ most, with links to what changes them."""
    for above, measured in function_costs(found):
        notable = [each for each in measured if abs(each.part) >= SMALL or each.own or each.partner]
        rows = [on_page(each, files, found.changed) for each in (notable or measured)[:MOST]]
        yield Table(("function", *COSTS), tuple(rows), COSTS, (above,), "functions")


def on_page(each: FunctionRow, files: Sequence[ChangedFile], changed: Sequence[str]) -> Row:
    """One function, with a link to the hunk that changes it; ``changed`` are all that the commit changes."""
    said = [each.binary, *notes(each, changed)]
    if each.callers:
        said.append(f"called by {', '.join(map(short, each.callers[:3]))}")
    places = (place_of(one, files) for one in due_to(each))
    name = Cell(each.function, note="; ".join(said), link=next(filter(None, places), ""))
    error = f" ± {figure(2 * each.error)}" if each.error else ""
    parent, culprit, difference, part = costs_of(each)
    cells = (name, *row(parent, culprit, difference + error, part).cells)
    return Row(cells, (each.parent, each.culprit), "changed" if each.own else "")


def due_to(each: FunctionRow) -> tuple[str, ...]:
    """The functions that the commit changes and to which the cost of one is due."""
    return (each.function,) if each.changed else (*each.inlined, each.below)


def names_of(found: Explanation) -> tuple[str, ...]:
    """The functions that the commit changes, in the order in which the reason names them."""
    measured = (name for _, rows in function_costs(found) for each in rows for name in due_to(each) if name)
    return tuple(dict.fromkeys((*measured, *found.changed)))


def runs(report: HuntReport, change: NamedChange, anchor: str) -> Iterator[Section]:
    """The runs of a commit and of those it was compared with, in order of time.

    Timed runs where both sides have some, or else those that were counted exactly.
    """
    metric = report.settings.metric
    sides = {"parent": [parent.sha for parent in change.parents], "culprit": [change.commit.sha]}
    whole = {side: [run for run in report.state.runs_like(*of) if not run.slower_than] for side, of in sides.items()}
    timed, counted = (
        [(side, [run for run in made if bool(run.counted) is exact]) for side, made in whole.items()]
        for exact in (False, True)
    )
    shown = by_second(timed if all(made for _, made in timed) else counted, find_metric(metric).read)
    if {run.side for run in shown} != {*sides}:
        return
    title = "QPS in each second" if len(shown[0].values) > 1 else f"{metric_title(metric)} of each run"
    yield Section(title, (of_runs(shown, titled(metric), SIDES),), f"{anchor}-runs", within=True)


def parsed(diff: str) -> list[ChangedFile]:
    """The files of a diff that git printed with the prefixes a/ and b/."""
    files: list[ChangedFile] = []
    old = new = 0
    for line in diff.split("\n"):
        if line.startswith("diff --git "):
            files.append(ChangedFile(line.rpartition(" b/")[2]))
        elif not files:
            continue
        elif found := HUNK.match(line):
            old, new = int(found[1]), int(found[2])
            files[-1].hunks.append(PageHunk(found[3]))
        elif files[-1].hunks and line[:1] in ("+", "-", " "):
            kind = {"+": "add", "-": "del", " ": "same"}[line[0]]
            text = line[1:].rstrip("\r")
            text = text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"
            files[-1].hunks[-1].lines.append(DiffLine(kind, old * (kind != "add"), new * (kind != "del"), text))
            old, new = old + (kind != "add"), new + (kind != "del")
        elif line.startswith("Binary files "):
            files[-1].note = "binary"
        elif line.startswith("rename from "):
            files[-1].note = f"renamed from {line.removeprefix('rename from ')}"
    return files


def diff(
    sides: tuple[str, str] | None, anchor: str, diff_of: DiffOf, names: Sequence[str], parts: Sequence[DiffPart] = ()
) -> tuple[Sequence[ChangedFile], str]:  # fmt: skip
    """The diff of a commit against its parent, marked files first, and what it lacks.

    Marked are changes of a function of the list, or with ``parts`` these alone.
    """
    if not sides:
        return (), ""
    if (found := diff_of(*sides)) is None:
        return (), "The diff is not shown: the repository of the hunt, or its commits, are not on this machine."
    files, left_out = parsed(found[0]), found[1]
    word = any_of(names)
    for place, file in enumerate(files):
        file.anchor = f"{anchor}-file-{place}"
        for number, hunk in enumerate(file.hunks):
            hunk.anchor = f"{anchor}-hunk-{place}-{number}"
            hunk.marked = word is not None and place_in(hunk, word)
            if parts:
                hunk.marked = any(part.path == file.path and is_in(hunk, part) for part in parts)
    files.sort(key=lambda file: not file.marked)
    kept, letters = [], 0
    for file in files:
        size = sum(len(escape(line.text)) for hunk in file.hunks for line in hunk.lines)
        if letters + size <= LETTERS:
            kept.append(file)
            letters += size
    for place, file in enumerate(kept):
        file.open = file.marked if kept[0].marked else place < OPEN
    left_out += len(files) - len(kept)
    more = f"with large changes left out; `git show {sides[1][:10]}` prints all."
    return kept, f"{count(left_out, 'file')} {more}" if left_out else ""


def is_in(hunk: PageHunk, part: DiffPart) -> bool:
    """Whether the hunk shows lines of a part of the same file; a part without lines is all of it."""
    numbers = [line.new for line in hunk.lines if line.new]
    return not part.first or (bool(numbers) and min(numbers) <= part.last and part.first <= max(numbers))


def any_of(functions: Sequence[str]) -> re.Pattern[str] | None:
    """What a definition or a call of one of these functions looks like; None where they have no names."""
    names = dict.fromkeys(name for function in functions if (name := split(function)[1]))
    return re.compile(rf"(?<![\w~])(?:{'|'.join(map(re.escape, names))})\s*\(") if names else None


def place_in(hunk: PageHunk, word: re.Pattern[str]) -> bool:
    """Whether the hunk is in one of the functions that ``word`` finds, or has a line that defines or calls one.

    git's line of its scope has the name, a changed line, or one without an indent beside them: there functions begin.
    """
    lines = (line.text for line in hunk.lines if line.kind != "same" or not line.text[:1].isspace())
    return bool(word.search(hunk.scope) or any(word.search(text) for text in lines))


def place_of(function: str, files: Sequence[ChangedFile]) -> str:
    """Where a function is changed: the line at which it begins, or else its first hunk; empty if neither is shown."""
    word = any_of([function])
    hunks = [hunk for one in files for hunk in one.hunks if word and place_in(hunk, word)]
    for hunk in hunks:
        for number, line in enumerate(hunk.lines):
            if word and word.search(line.text) and not (line.text[:1].isspace() or line.text.endswith(";")):
                line.anchor = f"{hunk.anchor}-{number}"
                return f"#{line.anchor}"
    return f"#{hunks[0].anchor}" if hunks else ""
