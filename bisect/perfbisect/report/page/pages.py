"""Renders HTML pages: pages of sessions, lists of sessions, and the start page. Each page is a single file, which
contains its style sheet and script.

The start page of `bisect serve` fits on one screen. It shows running sessions, the culprits of the last weeks, and line
charts of the speed of watched branches.

Values that are put into templates are first made safe (control characters and characters that reorder text are written
as escapes, and passwords in URLs are masked), and then escaped for HTML. The content security policy in a page's head
allows the browser only to use the script and the style sheet with the given hashes, and to load nothing.
"""

import hashlib
from base64 import b64encode
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from perfbisect import __version__
from perfbisect.core.domain.session_state import SessionState
from perfbisect.core.domain.settings import TrialType
from perfbisect.core.stats.release_series import SpeedLine, makes_worse, speed_lines
from perfbisect.core.stats.watched_branch import BranchLevels
from perfbisect.report.document import Cell, Document, Row, Table, row
from perfbisect.report.page import svg
from perfbisect.report.page.svg import Scale, chart, element, line_scale_ends, percent, vertical_line
from perfbisect.report.series import requested_series
from perfbisect.store.listing import NAMED, SessionSummary
from perfbisect.wording.quantities import MISSING, chance, change, count, decimals, factor, figure, moment, one_or_count
from perfbisect.wording.text import safe

TEMPLATES = Path(__file__).parent / "templates"
# Kind of table → number of the column before which the table's plots are inserted.
PLOTTED_AT = {"ladder": 2, "counters": 3, "functions": 3, "ratios": 2}

WEEKS = 4
WEEK = 7 * 86400.0  # seconds
RUNNING, CULPRITS, LINES = 6, 10, 6  # most sessions, culprits and speed lines of the page: one screen
HEIGHT = 40.0  # of a line, in pixels
LATEST = 120  # points of a line at most

# Session → a cell with its id, and a link to its page if it has one.
CellOf = Callable[[SessionSummary], Cell]


def session_page(document: Document, index_address: str = "") -> str:
    """The HTML page of a session; ``index_address`` is the address of the list of sessions, "" if there is no list."""
    return rendered_template("document.html", index_address, document=document)


def index_page(sessions: Iterable[SessionSummary], id_cell: CellOf, parent_address: str = "") -> str:
    """The page that lists the sessions of a history, newest first; ``parent_address`` is the address of the start page,
    or "" if there is no start page.
    """
    every = sorted(sessions, key=lambda session: session.started, reverse=True)
    return rendered_template("index.html", parent_address, table=session_table(every, id_cell))


def session_table(sessions: Iterable[SessionSummary], id_cell: CellOf) -> Table:
    """The table of hunts and trials. For a running hunt, the column of results has the most probable culprit so far."""
    rows = []
    for entry in sessions:
        if entry.kind == "hunt":
            commit, sure = (entry.culprit, entry.probability) if entry.culprit else (entry.suspect, entry.suspicion)
            result = f"{entry.state} {commit[:10]}" if commit else entry.state
            ratio = MISSING if entry.ratio is None else decimals(entry.ratio, 3)
            texts = ("hunt", entry.builder, *entry.workloads, entry.range_or_builds, result, chance(sure), ratio)
        else:
            names = one_or_count(entry.workloads)
            noun = TrialType(entry.kind).trial_noun
            texts = noun, entry.builder, names, entry.range_or_builds, entry.state, MISSING, MISSING
        rows.append(Row((id_cell(entry), *row(moment(entry.started), *texts, str(entry.runs), entry.host).cells)))
    head = ("id", "when", "kind", "builder", "workload", "range or builds", "result", "prob.", "ratio", "runs", "host")
    return Table(head, tuple(rows), ("prob.", "ratio", "runs"), kind="listing")


@dataclass(frozen=True, slots=True)
class LineChart:
    """The data of a line chart of the speed of a branch or a series: ratios to the first point, oldest first. None is a
    gap in the line."""

    title: str
    ratios: tuple[float | None, ...]
    steps: tuple[tuple[int, bool], ...]  # (index of the first point after a step, whether the step is for the worse)
    link: str  # address of a page with details

    @property
    def latest_ratio(self) -> str:
        """The latest ratio as text."""
        return next((factor(ratio) for ratio in reversed(self.ratios) if ratio is not None), MISSING)

    def draw(self) -> Markup:
        """The chart of the latest points, with a vertical line where the speed changed."""
        points = self.ratios[-LATEST:]
        first, wide = len(self.ratios) - len(points), max(1, len(points) - 1)
        measured = [(index, ratio) for index, ratio in enumerate(points) if ratio]
        low, high = line_scale_ends([ratio for _, ratio in measured] or [1.0])
        scale = Scale(low, high, logarithmic=True)
        spots = [(percent(index / wide), 3 + (HEIGHT - 6) * (1 - scale(ratio))) for index, ratio in measured]
        parts = [element("line", x1=a, y1=b, x2=c, y2=d, class_="line") for (a, b), (c, d) in pairwise(spots)]
        parts += [element("circle", cx=x, cy=y, r=2.5) for x, y in spots[-1:]]
        steps = [(index - first - 0.5, "bad" if worse else "good") for index, worse in self.steps if index > first]
        parts += [vertical_line(index / wide, HEIGHT, f"step {tone}") for index, tone in steps]
        worse = sum(worse for _, worse in self.steps)
        label = f"{self.title}: {self.latest_ratio} of the first, {count(worse, 'step')} for the worse"
        return chart(HEIGHT, f"{label}, {len(self.steps) - worse} for the better", *parts, class_="series spark")


def branch_or_series_charts(trials: Sequence[SessionState], link: str) -> list[LineChart]:
    """The line charts of a series of releases, or of a branch, from the trials of successive nights, oldest first.
    ``link`` is the address of the page of the last trial.
    """
    request = trials[-1].request
    if text := request.branch:
        nights = [trial for trial in trials if trial.request.works == request.works]
        lines: Sequence[SpeedLine] = BranchLevels.from_nights(nights).lines
    else:
        lines, text = speed_lines(trials[-1]), requested_series(trials[-1]).text
    steps = (tuple((step.after, makes_worse(step, request.metric)) for step in line.steps) for line in lines)
    pairs = zip(lines, steps, strict=True)
    return [LineChart(f"{line.work}, {text}", line.ratios, of_line, link) for line, of_line in pairs]


def dashboard_page(sessions: Iterable[SessionSummary], charts: Sequence[LineChart], id_cell: CellOf, now: float) -> str:
    """The HTML of the start page. ``now`` is the present time in seconds since 1970."""
    every = sorted(sessions, key=lambda session: session.started, reverse=True)
    running = [session for session in every if session.state == "running"]
    ended = [session for session in every if session.state in NAMED]
    named = [session for session in ended if session.started > now - WEEKS * WEEK]
    runs = f"{count(len(running), 'session')} {'runs' if len(running) == 1 else 'run'}"
    return rendered_template(
        "dashboard.html",
        headline=f"{runs}, {count(len(named), 'hunt')} of the last {WEEKS} weeks named a culprit",
        now=now,
        weeks=WEEKS,
        total=len(every),
        running=(session_table(running[:RUNNING], id_cell), len(running) - RUNNING),
        culprits=(culprit_table(named[:CULPRITS], id_cell), len(named) - CULPRITS),
        lines=charts[:LINES],
    )


def culprit_table(hunts: Sequence[SessionSummary], id_cell: CellOf) -> Table:
    """The table of culprits. For each hunt, the table has the first commit that the verdict names."""
    rows = []
    for hunt in hunts:
        effect = MISSING if hunt.ratio is None else f"{hunt.metric}: {change(hunt.ratio)}"
        day, *_ = moment(hunt.started).split()
        where = " ".join((hunt.builder, *hunt.workloads))
        cells = row(hunt.subject, where, effect, chance(hunt.probability), day, id_cell(hunt).text).cells
        rows.append(Row((replace(id_cell(hunt), text=(hunt.culprit or MISSING)[:10]), *cells)))
    head = ("commit", "subject", "measured", "effect", "prob.", "day", "hunt")
    return Table(head, tuple(rows), ("prob.",), kind="culprits")


def plots_of_table(table: Table) -> tuple[int, Markup, list[Markup]]:
    """Three values: the index of the column before which the plots of a table are shown (-1: no plots), the drawing of
    the axis, and the plot of each row.
    """
    column = PLOTTED_AT.get(table.kind, -1)
    if not table.plot_title:
        pairs = [line.plot if isinstance(line.plot, tuple) else (0.0, 0.0) for line in table.rows]
        largest = max((max(pair) for pair in pairs), default=0.0) or 1.0
        return column, Markup(""), [cost_drawing(*pair, largest) for pair in pairs]
    ratios = [None if isinstance(line.plot, tuple) else line.plot for line in table.rows]
    scale = svg.log_ratio_scale([ratio for ratio in ratios if ratio])
    drawn = [svg.interval_drawing(ratio, scale, line.tone) for ratio, line in zip(ratios, table.rows, strict=True)]
    return column, svg.axis_drawing(scale, table.plot_title), drawn


def cost_drawing(parent: float, culprit: float, largest: float) -> Markup:
    """The bar that shows a function's cost: first the smaller of the two builds' costs, then the excess of the larger
    cost. A cost of ``largest`` fills the width.
    """
    low, high = sorted((max(parent, 0.0), max(culprit, 0.0)))
    text = f"{figure(parent)} in the parent, {figure(culprit)} in the culprit"
    bars = (("common", 0.0, low), ("bad" if culprit > parent else "good", low, high - low))
    rects = (svg.rectangle(start / largest, width / largest, 6.0, 10.0, tone) for tone, start, width in bars)
    return svg.chart(svg.ROW, text, *rects)


def with_code_spans(text: str) -> Markup:
    """The text as HTML, in which words between backticks are marked up as code. If a backtick has no closing backtick,
    nothing is marked up.
    """
    parts = safe(text).split("`")
    if len(parts) % 2 == 0:
        parts = [safe(text)]
    marked = (Markup("<code>{}</code>").format(part) if number % 2 else part for number, part in enumerate(parts))
    return Markup("").join(marked)


def rendered_template(template: str, index: str = "", **values: object) -> str:
    """The HTML of a template that is filled with ``values``."""
    style, script = (Markup((TEMPLATES / f"page.{kind}").read_text(encoding="utf-8")) for kind in ("css", "js"))
    hashes = (b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in (style, script))
    loaded = "style-src 'sha256-{}'; script-src 'sha256-{}'".format(*hashes)
    policy = Markup(f"default-src 'none'; base-uri 'none'; form-action 'none'; {loaded}")
    page_template = template_environment().get_template(template)
    return page_template.render(**values, index=index, style=style, script=script, policy=policy, version=__version__)


def rendered_macro(name: str, value: object) -> Markup:
    """The HTML that the Jinja macro ``name`` of ``parts.html`` makes of ``value``."""
    return Markup(getattr(template_environment().get_template("parts.html").module, name)(value))


@cache
def template_environment() -> Environment:
    """The Jinja environment for the page templates, with the folder of the templates, escaping, and the filters."""
    templates = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=lambda value: value if isinstance(value, Markup) or not isinstance(value, str) else safe(value),
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.filters.update(
        with_code=with_code_spans, plots=plots_of_table, moment=moment, kind=lambda part: type(part).__name__
    )
    return templates
