"""The content of a report, independent of the output format: a document consists of sections, and a section consists of
tables, paragraphs, drawings and other parts.

``report/hunt.py`` and ``report/trial.py`` make documents. Renderers write documents as text, Markdown, CSV and HTML
pages. Texts in a document are not escaped; the renderers escape the texts. Paragraphs that begin with two spaces are
entries of a list.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from perfbisect.core.domain.facts import HostFacts
from perfbisect.core.domain.orders import Interval
from perfbisect.wording.quantities import MISSING, count, decimals, figure

if TYPE_CHECKING:
    from markupsafe import Markup


@dataclass(frozen=True, slots=True)
class Cell:
    """One cell of a table: the text for people, the texts for programs (CSV), and the colour, note and link."""

    text: str
    csv_texts: tuple[str, ...] = ()  # a text for each column of CSV that the cell fills; empty: only ``text``
    tone: str = ""  # "worse" or "better" for a real difference
    note: str = ""  # a text for people that follows ``text``
    link: str = ""  # on a page, the text of the cell is a link to this address


@dataclass(frozen=True, slots=True)
class Row:
    """A row of a table. A row without cells is an empty line between groups of rows."""

    cells: tuple[Cell, ...]
    plot: Interval | tuple[float, float] | None = None  # drawn in the row of a page: a ratio, or two costs
    tone: str = ""  # class of the row's colour on a page


@dataclass(frozen=True, slots=True)
class Table:
    """A table of a report; ``lines_above`` are lines of text that are printed above the table."""

    head: tuple[str, ...]
    rows: tuple[Row, ...]
    right_aligned: Collection[str] = ()  # titles of the columns that are aligned right
    lines_above: tuple[str, ...] = ()
    kind: str = ""  # a page selects columns, colours and plots by the kind: "ratios", "functions", …
    plot_title: str = ""  # title of the plots; empty: the table has no plots
    minor_columns: tuple[str, ...] = ()  # titles of the columns that are omitted in this order if the table is too wide
    numbers_first: bool = False  # whether the last column, without a title, has the names of the rows
    csv_head: tuple[str, ...] = ()  # titles of the columns of CSV, if they differ from ``head``


@dataclass(frozen=True, slots=True)
class Facts:
    """Names and their values."""

    pairs: tuple[tuple[str, str], ...]
    fold_title: str = ""  # title of the fold that a page puts the facts into; empty: no fold


@dataclass(frozen=True, slots=True)
class Prose:
    """Paragraphs."""

    texts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Remarks:
    """Remarks about a section of the report, as pairs (remark, advice); "" for no advice."""

    texts: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Code:
    """Preformatted lines. If ``title`` is not empty, each of ``texts`` is a command that the reader can copy."""

    texts: tuple[str, ...]
    title: str = ""


@dataclass(frozen=True, slots=True)
class Figure:
    """A drawing on a page. ``text_lines`` show the drawing in text reports, and are empty if the drawing cannot be
    shown as text.
    """

    draw: "Callable[[], Markup]"
    line_above: str = ""
    legend: tuple[tuple[str, str], ...] = ()  # (class of a colour, its meaning)
    kind: str = ""  # "flame": a flame graph, which can be searched and zoomed
    text_lines: tuple[str, ...] = ()
    y_title: str = ""  # title of the vertical axis, with its unit
    x_title: str = ""  # title of the horizontal axis


Part = Facts | Prose | Remarks | Code | Figure | Table


@dataclass(frozen=True, slots=True)
class Section:
    """Parts below a title."""

    title: str
    parts: tuple[Part, ...]
    anchor: str = ""  # the target of links in the page to this section
    hide_title: bool = False  # only pages show the title
    is_folded: bool = False  # whether Markdown folds the section, because it is long
    omitted_on_terminal: bool = False  # whether a terminal omits it, because a chart before it shows the content
    is_subsection: bool = False  # whether this section is a subsection of the section before


@dataclass(frozen=True, slots=True)
class Document:
    """A report."""

    session: str  # Hunt 12, Comparison c3
    subject: str  # system, workload and range
    started: float  # seconds since the epoch
    state: str
    facts: Facts  # how the session was measured
    summary: tuple[str, ...]  # the result, in sentences
    sections: tuple[Section, ...]
    headline: str = ""  # the result in one line with one number, for a page


def row(*texts: str) -> Row:
    """A row with a cell for each text, without colours, notes and links."""
    return Row(tuple(map(Cell, texts)))


def missing_cell(csv_columns: int = 1) -> Cell:
    """The cell of an unknown value. In CSV, the cell fills ``csv_columns`` columns."""
    return Cell(MISSING, ("",) * csv_columns)


def row_with_name_last(name: str, cells: Iterable[Cell]) -> Row:
    """A row whose last cell is ``name``."""
    return Row((*cells, Cell(name)))


def ratio_cell(value: float) -> Cell:
    """The cell of a ratio, with two decimals."""
    return Cell(decimals(value, 2), (f"{value:.2f}",))


def value_cell(value: float) -> Cell:
    """The cell of a number that is no ratio."""
    return Cell(figure(value), (f"{value:.6g}",))


def nonempty_sections(*sections: Section | None) -> tuple[Section, ...]:
    """The given sections without empty parts; a section without other parts is left out."""
    empty = (Facts(()), Prose(()), Remarks(()))
    filled = ((section, tuple(part for part in section.parts if part not in empty)) for section in sections if section)
    return tuple(replace(section, parts=parts) for section, parts in filled if parts)


def host_line(host: HostFacts) -> str:
    """A line about a host: processor, cores, memory, kernel, compiler; only the name of the host if these facts are
    unknown.
    """
    if not host.cores:
        return host.name
    size = f"{count(host.cores, 'core')}, {host.memory_mib / 1024:.0f} GiB"
    return f"{host.name}: {host.cpu}, {size}, kernel {host.kernel}, {host.compiler}"


def tools_and_settings(hosts: Sequence[HostFacts]) -> tuple[Facts, ...]:
    """The tools and settings of each host, which a page shows after a click. Hosts without known tools and settings are
    left out."""
    by_host = ((host.name, (*host.tools.items(), *host.settings.items())) for host in hosts)
    return tuple(Facts(pairs, f"Tools and settings of {name}") for name, pairs in by_host if pairs)
