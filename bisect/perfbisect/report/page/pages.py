"""HTML pages: one self-contained file each, whose style and script are inside it.

Everything that a template shows is escaped, and before that made safe to show: control characters and characters that
reorder text are written as escapes, passwords in URLs are masked. The policy in the page's head lets a browser run this
script and use this style, known by their hashes, and load nothing.
"""

import hashlib
from base64 import b64encode
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from perfbisect import __version__
from perfbisect.report.document import Cell, Document, Row, Table, row
from perfbisect.report.page import svg
from perfbisect.store.listing import SessionSummary
from perfbisect.wording.quantities import MISSING, chance, decimals, figure, moment, workloads
from perfbisect.wording.text import safe

TEMPLATES = Path(__file__).parent / "templates"
KINDS = {"compare": "comparison", "prove": "proof", "noise": "A/A"}
# Kind of table → the column before which it has plots.
BEFORE = {"ladder": 2, "counters": 3, "functions": 3, "ratios": 2}

CellOf = Callable[[SessionSummary], Cell]  # with the id of a session, and a link to its page, if it has one


def page(document: Document, index: str = "") -> str:
    """The page of a session; ``index`` is the address of the page that lists all, if there is one."""
    return render("document.html", index, document=document)


def index_page(sessions: Iterable[SessionSummary], cell: CellOf, index: str = "") -> str:
    """The page that lists a history, the newest first; ``index`` is the address of a page above it, if there is one."""
    every = sorted(sessions, key=lambda one: one.started, reverse=True)
    return render("index.html", index, table=listing(every, cell))


def listing(sessions: Iterable[SessionSummary], cell: CellOf) -> Table:
    """The table of these hunts and trials."""
    head = ("id", "when", "what", "builder", "workload", "range or builds", "result", "sure", "ratio", "runs", "host")
    rows = tuple(entry(one, cell(one)) for one in sessions)
    return Table(head, rows, ("sure", "ratio", "runs"), name="listing")


def entry(one: SessionSummary, cell: Cell) -> Row:
    """The row of a hunt or a trial, which begins with that cell; of a hunt that runs with the candidate that leads."""
    if one.kind == "hunt":
        commit, sure = (one.culprit, one.probability) if one.culprit else (one.suspect, one.suspicion)
        result = f"{one.state} {commit[:10]}" if commit else one.state
        ratio = MISSING if one.ratio is None else decimals(one.ratio, 3)
        texts = ("hunt", one.builder, *one.workloads, one.span, result, chance(sure), ratio)
    else:
        texts = (KINDS[one.kind], one.builder, workloads(one.workloads), one.span, one.state, MISSING, MISSING)
    return Row((cell, *row(moment(one.started), *texts, str(one.runs), one.host).cells))


def plots(table: Table) -> tuple[int, Markup, list[Markup]]:
    """The column before which a table has plots (-1 without any), their axis, and the plot of each row."""
    place = BEFORE.get(table.name, -1)
    if not table.axis:  # costs
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
        return Markup.escape(safe(text))
    marked = (Markup("<code>{}</code>").format(part) if number % 2 else part for number, part in enumerate(parts))
    return Markup("").join(marked)


def render(template: str, index: str = "", **values: object) -> str:
    """The page of a template."""
    style, script = asset("page.css"), asset("page.js")
    loaded = f"style-src '{digest(style)}'; script-src '{digest(script)}'"
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
        finalize=visible,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters.update(with_code=with_code, plots=plots, moment=moment, kind=lambda part: type(part).__name__)
    return made


def visible(value: Any) -> Any:
    """A value as a template may show it: text is made safe; what is markup already stays."""
    return safe(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def asset(name: str) -> Markup:
    """A style sheet or a script of ours."""
    return Markup((TEMPLATES / name).read_text(encoding="utf-8"))


def digest(content: str) -> str:
    """The hash by which a content security policy knows an inline style or script."""
    return f"sha256-{b64encode(hashlib.sha256(content.encode()).digest()).decode()}"
