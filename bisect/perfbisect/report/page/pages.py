"""HTML pages: one self-contained file each, whose style and script are inside it; of sessions, lists of them, and the start page.

The start page of `bisect serve` is one screen: what runs, the culprits of the last weeks, the lines of what is watched.

Everything that a template shows is escaped, and before that made safe to show: control characters and characters that
reorder text are written as escapes, passwords in URLs are masked. The policy in the page's head lets a browser run this
script and use this style, known by their hashes, and load nothing.
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
from perfbisect.core.stats.release_series import SpeedLine, is_worse, lines_of
from perfbisect.core.stats.watched_branch import Branch
from perfbisect.report.document import Cell, Document, Row, Table, row
from perfbisect.report.page import svg
from perfbisect.report.page.svg import Scale, chart, element, percent, spanned, upright
from perfbisect.report.series import series_of
from perfbisect.store.listing import NAMED, SessionSummary
from perfbisect.wording.quantities import MISSING, chance, change, count, decimals, factor, figure, moment, workloads
from perfbisect.wording.text import safe

TEMPLATES = Path(__file__).parent / "templates"
# Kind of table → the column before which it has plots.
BEFORE = {"ladder": 2, "counters": 3, "functions": 3, "ratios": 2}

WEEKS = 4
WEEK = 7 * 86400.0  # seconds
RUNNING, CULPRITS, LINES = 6, 10, 6  # at most: what a screen holds
HEIGHT = 40.0  # of a line
LATEST = 120  # points of a line at most

CellOf = Callable[[SessionSummary], Cell]  # with the id of a session, and a link to its page, if it has one


def page(document: Document, index: str = "") -> str:
    """The page of a session; ``index`` is the address of the page that lists all, if there is one."""
    return render("document.html", index, document=document)


def index_page(sessions: Iterable[SessionSummary], cell: CellOf, index: str = "") -> str:
    """The page that lists a history, the newest first; ``index`` is the address of a page above it, if there is one."""
    every = sorted(sessions, key=lambda one: one.started, reverse=True)
    return render("index.html", index, table=listing(every, cell))


def listing(sessions: Iterable[SessionSummary], cell: CellOf) -> Table:
    """The table of these hunts and trials; of a hunt that runs with the candidate that leads."""
    rows = []
    for each in sessions:
        if each.kind == "hunt":
            commit, sure = (each.culprit, each.probability) if each.culprit else (each.suspect, each.suspicion)
            result = f"{each.state} {commit[:10]}" if commit else each.state
            ratio = MISSING if each.ratio is None else decimals(each.ratio, 3)
            texts = ("hunt", each.builder, *each.workloads, each.span, result, chance(sure), ratio)
        else:
            names = workloads(each.workloads)
            texts = (TrialType(each.kind).noun, each.builder, names, each.span, each.state, MISSING, MISSING)
        rows.append(Row((cell(each), *row(moment(each.started), *texts, str(each.runs), each.host).cells)))
    head = ("id", "when", "what", "builder", "workload", "range or builds", "result", "sure", "ratio", "runs", "host")
    return Table(head, tuple(rows), ("sure", "ratio", "runs"), name="listing")


@dataclass(frozen=True, slots=True)
class WatchedLine:
    """The line of a branch or a series: ratios to its first point, oldest first, None for a gap."""

    title: str
    points: tuple[float | None, ...]
    steps: tuple[tuple[int, bool], ...]  # the first point with it, and whether it is for the worse
    link: str  # to a page that has more

    @property
    def latest(self) -> str:
        """Its last ratio."""
        return next((factor(ratio) for ratio in reversed(self.points) if ratio is not None), MISSING)

    def draw(self) -> Markup:
        """Its latest points, and a vertical line before each step."""
        points = self.points[-LATEST:]
        first, wide = len(self.points) - len(points), max(1, len(points) - 1)
        known = [(place, ratio) for place, ratio in enumerate(points) if ratio]
        low, high = spanned([ratio for _, ratio in known] or [1.0])
        scale = Scale(low, high, logarithmic=True)
        spots = [(percent(place / wide), 3 + (HEIGHT - 6) * (1 - scale(ratio))) for place, ratio in known]
        parts = [element("line", x1=a, y1=b, x2=c, y2=d, class_="line") for (a, b), (c, d) in pairwise(spots)]
        parts += [element("circle", cx=x, cy=y, r=2.5) for x, y in spots[-1:]]
        steps = [(place - first - 0.5, "bad" if worse else "good") for place, worse in self.steps if place > first]
        parts += [upright(place / wide, HEIGHT, f"step {tone}") for place, tone in steps]
        worse = sum(worse for _, worse in self.steps)
        label = f"{self.title}: {self.latest} of the first, {count(worse, 'step')} for the worse"
        return chart(HEIGHT, f"{label}, {len(self.steps) - worse} for the better", *parts, class_="series spark")


def watched_of(trials: Sequence[SessionState], link: str) -> list[WatchedLine]:
    """The lines of a series of releases, or of the nights of a branch, oldest first; ``link`` leads to the page of the last one."""
    request = trials[-1].request
    if text := request.branch:
        lines: Sequence[SpeedLine] = Branch.of([each for each in trials if each.request.works == request.works]).lines
    else:
        lines, text = lines_of(trials[-1]), series_of(trials[-1]).text
    steps = (tuple((step.after, is_worse(step, request.metric)) for step in line.steps) for line in lines)
    return [
        WatchedLine(f"{line.work}, {text}", line.ratios, of_line, link)
        for line, of_line in zip(lines, steps, strict=True)
    ]


def dashboard_page(sessions: Iterable[SessionSummary], lines: Sequence[WatchedLine], cell: CellOf, now: float) -> str:
    """The page; ``now`` is in seconds since the epoch."""
    every = sorted(sessions, key=lambda one: one.started, reverse=True)
    running = [one for one in every if one.state == "running"]
    ended = [one for one in every if one.state in NAMED]
    named = [one for one in ended if one.started > now - WEEKS * WEEK]
    runs = f"{count(len(running), 'session')} {'runs' if len(running) == 1 else 'run'}"
    return render(
        "dashboard.html",
        headline=f"{runs}, {count(len(named), 'hunt')} of the last {WEEKS} weeks named a culprit",
        now=now,
        weeks=WEEKS,
        total=len(every),
        running=(listing(running[:RUNNING], cell), len(running) - RUNNING),
        culprits=(culprits(named[:CULPRITS], cell), len(named) - CULPRITS),
        lines=lines[:LINES],
    )


def culprits(named: Sequence[SessionSummary], cell: CellOf) -> Table:
    """The first commits that verdicts name."""
    rows = []
    for one in named:
        effect = MISSING if one.ratio is None else f"{one.metric}: {change(one.ratio)}"
        day, *_ = moment(one.started).split()
        where = " ".join((one.builder, *one.workloads))
        cells = row(one.subject, where, effect, chance(one.probability), day, cell(one).text).cells
        rows.append(Row((replace(cell(one), text=(one.culprit or MISSING)[:10]), *cells)))
    head = ("commit", "subject", "measured", "effect", "sure", "day", "hunt")
    return Table(head, tuple(rows), ("sure",), name="culprits")


def plots(table: Table) -> tuple[int, Markup, list[Markup]]:
    """The column before which a table has plots (-1 without any), their axis, and the plot of each row."""
    place = BEFORE.get(table.name, -1)
    if not table.axis:
        pairs = [each.plot if isinstance(each.plot, tuple) else (0.0, 0.0) for each in table.rows]
        largest = max((max(pair) for pair in pairs), default=0.0) or 1.0
        return place, Markup(""), [costs(*pair, largest) for pair in pairs]
    ratios = [None if isinstance(each.plot, tuple) else each.plot for each in table.rows]
    scale = svg.scale_of([each for each in ratios if each])
    drawn = [svg.interval(each, scale, one.tone) for each, one in zip(ratios, table.rows, strict=True)]
    return place, svg.axis(scale, table.axis), drawn


def costs(parent: float, culprit: float, largest: float) -> Markup:
    """The cost of a function: what both builds spend, and what one of them spends more."""
    low, high = sorted((max(parent, 0.0), max(culprit, 0.0)))
    text = f"{figure(parent)} in the parent, {figure(culprit)} in the culprit"
    bars = (("common", 0.0, low), ("bad" if culprit > parent else "good", low, high - low))
    rects = (svg.bar(left / largest, width / largest, 6.0, 10.0, tone) for tone, left, width in bars)
    return svg.chart(svg.ROW, text, *rects)


def with_code(text: str) -> Markup:
    """A sentence with the names in it, which are between backticks, as code; as it is where these are no pairs."""
    parts = safe(text).split("`")
    if len(parts) % 2 == 0:
        parts = [safe(text)]
    marked = (Markup("<code>{}</code>").format(part) if number % 2 else part for number, part in enumerate(parts))
    return Markup("").join(marked)


def render(template: str, index: str = "", **values: object) -> str:
    """The page of a template."""
    style, script = (Markup((TEMPLATES / f"page.{kind}").read_text(encoding="utf-8")) for kind in ("css", "js"))
    hashes = (b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in (style, script))
    loaded = "style-src 'sha256-{}'; script-src 'sha256-{}'".format(*hashes)
    policy = Markup(f"default-src 'none'; base-uri 'none'; form-action 'none'; {loaded}")
    found = environment().get_template(template)
    return found.render(**values, index=index, style=style, script=script, policy=policy, version=__version__)


def part(name: str, value: object) -> Markup:
    """What a macro of ``parts.html`` writes."""
    return Markup(getattr(environment().get_template("parts.html").module, name)(value))


@cache
def environment() -> Environment:
    """The templates' settings."""
    made = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=lambda value: value if isinstance(value, Markup) or not isinstance(value, str) else safe(value),
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters.update(with_code=with_code, plots=plots, moment=moment, kind=lambda part: type(part).__name__)
    return made
