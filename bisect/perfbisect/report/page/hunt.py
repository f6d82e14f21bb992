"""Sections of a hunt's page: the course of the search; and for a commit its runs, its functions with links into the
diff, and its flame graph.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

from markupsafe import escape

from perfbisect.core.domain.facts import DiffPart
from perfbisect.core.domain.metrics import find_metric
from perfbisect.core.explain.evidence import Explanation, FunctionRow
from perfbisect.core.explain.profiles import scope_and_name, short_name
from perfbisect.core.inference.classification import classify
from perfbisect.report.document import Cell, Figure, Prose, Row, Section, Table, row
from perfbisect.report.hunt_report import (
    COSTS,
    TONES,
    DiffOf,
    HuntReport,
    NamedChange,
    function_cost_cells,
    is_skipped_by_user,
    titled_function_rows,
)
from perfbisect.report.page import pages
from perfbisect.report.page.charts import paired_runs_figure, run_drawings, runs_figure, search_drawing
from perfbisect.report.page.flame_graph import flame_graph
from perfbisect.wording.quantities import count, divisor_and_unit, figure
from perfbisect.wording.reasons import function_notes
from perfbisect.wording.text import metric_title, with_unit

HUNK = re.compile(r"@@ -(\d+)(?:,\d+)? \+(\d+)(?:,\d+)? @@ ?(.*)")
LONGEST = 400  # characters of a line in the page
LETTERS = 250_000  # characters of a diff in the page, escaped
SMALL, LISTED = 0.005, 40  # listed functions: their smallest share of the whole difference, and their largest number
SIDES = (("parent", "parent"), ("culprit", "culprit"))  # (class of a colour on the page, its meaning)
RANGE = (("parent", "good"), ("culprit", "bad, or the culprit"), ("gray", "unclear"), ("muted", "× skipped"))
OPEN = 3  # number of files that are unfolded if no file is marked


@dataclass(slots=True)
class DiffLine:
    """A line of a hunk; ``kind`` is "add", "del" or "same"; the line number is 0 for a side that does not have the
    line.
    """

    kind: str
    old_number: int
    new_number: int
    text: str
    anchor: str = ""  # target of links in the page; empty: none


@dataclass(slots=True)
class PageHunk:
    """Changed lines with their context; ``scope`` is the text that git prints after the line numbers, often the name of
    a function.
    """

    scope: str
    lines: list[DiffLine] = field(default_factory=list)
    anchor: str = ""  # target of links in the page
    is_marked: bool = False  # whether the hunk changes a named function or part


@dataclass(slots=True)
class ChangedFile:
    """A file of a diff."""

    path: str
    hunks: list[PageHunk] = field(default_factory=list)
    note: str = ""  # "binary", "renamed from …"; "" for a usual change
    anchor: str = ""
    is_open: bool = False

    @property
    def has_marked_hunk(self) -> bool:
        """Whether a hunk of the file is marked."""
        return any(hunk.is_marked for hunk in self.hunks)

    def line_count(self, kind: str) -> int:
        """The number of added ("add") or removed ("del") lines."""
        return sum(line.kind == kind for hunk in self.hunks for line in hunk.lines)


def search_sections(report: HuntReport) -> Iterator[Section]:
    """The section about the course of the search; no section before the first decision."""
    state = report.state
    if not report.decisions:
        return
    tested = {
        state.node[sha]: (report.commit(sha), TONES.get(classify(state, sha, report.ratios_to_good), "unclear"))
        for sha, row in report.tested_commits
        if sha in state.node and not is_skipped_by_user(row)
    }
    above = (
        "From the top: at each decision, the commits that together have 95 % of the probability, and the measured commits."
        " At the bottom: the probability of each commit at the end."
    )
    size, settings = count(report.summary.candidates, "candidate"), report.settings
    ends = f"{size}, oldest first: {settings.good} to {settings.bad}"
    figure = Figure(partial(search_drawing, tested, report.decisions), above, RANGE, x_title=ends)
    yield Section("The range", (figure,), "range")


def page_sections_of_change(report: HuntReport, diff_of: DiffOf, position: int) -> Iterator[Section]:
    """The sections of the HTML page about a change; only the first change has a flame graph."""
    change, anchor = report.changes[position], f"case-{position + 1}"
    explanation, profiles = change.explanation, report.profiles if position == 0 else None
    yield from run_sections(report, change, anchor)
    if change.pairs:
        drawing = paired_runs_figure(change.pairs, with_unit(report.pairs_metric), SIDES)
        yield Section("Paired runs", (drawing,), f"{anchor}-pairs", is_subsection=True)
    between = (change.parents[0].sha, change.commit.sha) if change.parents else None
    if report.named_diff_parts:
        between = report.settings.good_commit, report.settings.bad_commit
    files, note = marked_diff(between, anchor, diff_of, changed_function_names(explanation), report.named_diff_parts)
    tables = tuple(linked_function_tables(explanation, files))
    if tables:
        yield Section("Functions", tables, f"{anchor}-functions", is_subsection=True)
    elif not report.state.explanation_events:
        missing = Prose(("Functions were not recorded: this hunt has no explanation.",))
        yield Section("Functions", (missing,), is_subsection=True)
    if files or note:
        drawing = Figure(partial(pages.rendered_macro, "diff", files), note)
        yield Section("The change", (drawing,), f"{anchor}-change", is_subsection=True)
    if profiles:
        sides = profiles.parent, profiles.culprit
        divisor, unit = divisor_and_unit(max(sum(stacks.values()) for stacks in sides), profiles.unit, smallest=10.0)
        of_parent, of_culprit = ({stack: cost / divisor for stack, cost in stacks.items()} for stacks in sides)
        graph = partial(flame_graph, of_parent, of_culprit, unit)
        remarks = (f"Widths are costs per {explanation.operation}, in {unit}.", *profiles.notes)
        drawing = Figure(graph, " ".join(remarks), kind="flame")
        yield Section("Flame graph", (drawing,), f"{anchor}-flame", is_subsection=True)


def possible_parts_sections(report: HuntReport, diff_of: DiffOf) -> Iterator[Section]:
    """The section with the diff if `bisect narrow` names no single part of the commit (such as a hunk); the parts that
    may be slow are marked.
    """
    settings = report.settings
    if report.named_diff_parts and not report.changes:
        commits = (settings.good_commit, settings.bad_commit)
        files, note = marked_diff(commits, "case-1", diff_of, (), report.named_diff_parts)
        yield Section("The change", (Figure(partial(pages.rendered_macro, "diff", files), note),), "case-1-change")


def linked_function_tables(explanation: Explanation, files: Sequence[ChangedFile]) -> Iterator[Table]:
    """Tables of the functions whose costs differ most between the builds, with links to the hunks that change these
    functions.
    """
    for above, measured in titled_function_rows(explanation):
        notable = [row for row in measured if abs(row.part) >= SMALL or row.has_changed_code or row.partner]
        rows = [linked_function_row(row, files, explanation.changed) for row in (notable or measured)[:LISTED]]
        yield Table(("function", *COSTS), tuple(rows), COSTS, (above,), "functions")


def linked_function_row(function: FunctionRow, files: Sequence[ChangedFile], changed_functions: Sequence[str]) -> Row:
    """The row of a function, with a link to the hunk that changes the function; ``changed_functions`` are all functions
    that the commit changes.
    """
    remarks = [function.binary, *function_notes(function, changed_functions)]
    if function.callers:
        remarks.append(f"called by {', '.join(map(short_name, function.callers[:3]))}")
    links = (function_link(name, files) for name in explaining_functions(function))
    name = Cell(function.function, note="; ".join(remarks), link=next(filter(None, links), ""))
    error = f" ± {figure(2 * function.error)}" if function.error else ""
    parent, culprit, difference, part = function_cost_cells(function)
    cells = (name, *row(parent, culprit, difference + error, part).cells)
    return Row(cells, (function.parent, function.culprit), "changed" if function.has_changed_code else "")


def explaining_functions(function: FunctionRow) -> tuple[str, ...]:
    """The changed functions that explain a function's cost: the function itself, or changed functions that are inlined
    into it or that it calls.
    """
    return (function.function,) if function.changed else (*function.inlined, function.below_changed)


def changed_function_names(explanation: Explanation) -> tuple[str, ...]:
    """The functions that the commit changes, in the order of the tables; measured functions come first."""
    titled = titled_function_rows(explanation)
    measured = (name for _, rows in titled for row in rows for name in explaining_functions(row) if name)
    return tuple(dict.fromkeys((*measured, *explanation.changed)))


def run_sections(report: HuntReport, change: NamedChange, anchor: str) -> Iterator[Section]:
    """The section with the runs of a commit and its parents in order of time; no section if the commit or its parents
    have no runs.

    The section shows timed runs if the commit and its parents have timed runs, otherwise runs whose instructions were
    counted exactly.
    """
    metric = report.settings.metric
    sides = {"parent": [parent.sha for parent in change.parents], "culprit": [change.commit.sha]}
    finished = {
        side: [run for run in report.state.runs_of_equal_binaries(*of) if not run.slower_than]
        for side, of in sides.items()
    }
    timed, counted = (
        [(side, [run for run in runs_of_side if bool(run.counted) is exact]) for side, runs_of_side in finished.items()]
        for exact in (False, True)
    )
    shown = run_drawings(timed if all(runs_of_side for _, runs_of_side in timed) else counted, find_metric(metric).read)
    if {run.side for run in shown} != {*sides}:
        return
    title = "QPS in each second" if len(shown[0].values) > 1 else f"{metric_title(metric)} of each run"
    yield Section(title, (runs_figure(shown, with_unit(metric), SIDES),), f"{anchor}-runs", is_subsection=True)


def parsed_diff(diff: str) -> list[ChangedFile]:
    """The files of a git diff with the prefixes a/ and b/."""
    files: list[ChangedFile] = []
    old = new = 0
    for line in diff.split("\n"):
        if line.startswith("diff --git "):
            files.append(ChangedFile(line.rpartition(" b/")[2]))
        elif not files:
            continue
        elif match := HUNK.match(line):
            old, new = int(match[1]), int(match[2])
            files[-1].hunks.append(PageHunk(match[3]))
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


def marked_diff(
    commits: tuple[str, str] | None, anchor: str, diff_of: DiffOf, functions: Sequence[str], parts: Sequence[DiffPart] = ()
) -> tuple[Sequence[ChangedFile], str]:  # fmt: skip
    """The files of the diff of ``commits``, which are a parent and a commit, marked files first; and a note about
    omitted files, or "".

    Hunks that change one of ``functions`` are marked; if ``parts`` (pieces of the diff) are given, only hunks of these
    parts are marked.
    """
    if not commits:
        return (), ""
    if (text_and_omitted := diff_of(*commits)) is None:
        return (), "The diff is not shown: the repository of the hunt, or its commits, are not on this machine."
    files, left_out = parsed_diff(text_and_omitted[0]), text_and_omitted[1]
    word = functions_pattern(functions)
    for index, file in enumerate(files):
        file.anchor = f"{anchor}-file-{index}"
        for number, hunk in enumerate(file.hunks):
            hunk.anchor = f"{anchor}-hunk-{index}-{number}"
            hunk.is_marked = word is not None and is_about_function(hunk, word)
            if parts:
                hunk.is_marked = any(part.path == file.path and is_hunk_of_part(hunk, part) for part in parts)
    files.sort(key=lambda file: not file.has_marked_hunk)
    shown, letters = [], 0
    for file in files:
        size = sum(len(escape(line.text)) for hunk in file.hunks for line in hunk.lines)
        if letters + size <= LETTERS:
            shown.append(file)
            letters += size
    for index, file in enumerate(shown):
        file.is_open = file.has_marked_hunk if shown[0].has_marked_hunk else index < OPEN
    left_out += len(files) - len(shown)
    hint = f"without large changes; `git show {commits[1][:10]}` prints the whole diff."
    return shown, f"{count(left_out, 'file')} {hint}" if left_out else ""


def is_hunk_of_part(hunk: PageHunk, part: DiffPart) -> bool:
    """Whether the hunk has lines of a part of its file; a part without lines includes the whole file."""
    numbers = [line.new_number for line in hunk.lines if line.new_number]
    return not part.first or (bool(numbers) and min(numbers) <= part.last and part.first <= max(numbers))


def functions_pattern(functions: Sequence[str]) -> re.Pattern[str] | None:
    """A regular expression for definitions and calls of ``functions``; None if no function has a name."""
    names = dict.fromkeys(name for function in functions if (name := scope_and_name(function)[1]))
    return re.compile(rf"(?<![\w~])(?:{'|'.join(map(re.escape, names))})\s*\(") if names else None


def is_about_function(hunk: PageHunk, pattern: re.Pattern[str]) -> bool:
    """Whether the hunk is in a function whose name matches ``pattern``, or defines or calls such a function.

    ``pattern`` is searched for in the hunk's scope, in changed lines, and in lines without indentation, because
    functions begin at such lines.
    """
    lines = (line.text for line in hunk.lines if line.kind != "same" or not line.text[:1].isspace())
    return bool(pattern.search(hunk.scope) or any(pattern.search(text) for text in lines))


def function_link(function: str, files: Sequence[ChangedFile]) -> str:
    """A link from a function to the diff: to the line at which the function begins, or to its first hunk; "" if the
    diff shows neither.

    Stores the anchor in the line, so that the page has a target for the link.
    """
    word = functions_pattern([function])
    hunks = [hunk for file in files for hunk in file.hunks if word and is_about_function(hunk, word)]
    for hunk in hunks:
        for number, line in enumerate(hunk.lines):
            if word and word.search(line.text) and not (line.text[:1].isspace() or line.text.endswith(";")):
                line.anchor = f"{hunk.anchor}-{number}"
                return f"#{line.anchor}"
    return f"#{hunks[0].anchor}" if hunks else ""
