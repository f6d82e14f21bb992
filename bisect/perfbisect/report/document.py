"""A report as a document: what it says, in parts that every renderer writes in its way.

Builders make documents (``report/hunt.py``, ``report/trial.py``); renderers write them as text, Markdown, CSV and pages.
Texts are as they came: renderers make them safe to show. Paragraphs that begin with two spaces are entries of a list.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from perfbisect.core.domain.facts import HostFacts
from perfbisect.core.domain.orders import Interval
from perfbisect.wording.quantities import MISSING, count

if TYPE_CHECKING:
    from markupsafe import Markup


@dataclass(frozen=True, slots=True)
class Cell:
    """One entry of a table: for people, for programs, and what it looks like."""

    text: str
    plain: tuple[str, ...] = ()  # one for each column of CSV that it fills; empty for the text
    tone: str = ""  # "worse" or "better" for a real difference
    note: str = ""  # what people read behind the text
    link: str = ""  # where it leads on a page


@dataclass(frozen=True, slots=True)
class Row:
    """The cells of a row; none in a row that separates groups."""

    cells: tuple[Cell, ...]
    plot: Interval | tuple[float, float] | None = None  # what a page draws in it: a ratio, or two costs
    tone: str = ""  # the class of its colour on a page


@dataclass(frozen=True, slots=True)
class Table:
    """One table below some lines of text."""

    head: tuple[str, ...]
    rows: tuple[Row, ...]
    right: Collection[str] = ()  # columns that are aligned at their right ends
    above: tuple[str, ...] = ()
    name: str = ""  # its kind on a page
    axis: str = ""  # what its plots show; empty without any
    minor: tuple[str, ...] = ()  # columns that are left out where there is little room, in this order
    field: bool = False  # in the form of the field: numbers first, and behind them the untitled name of the row
    plain_head: tuple[str, ...] = ()  # where columns for programs differ from those for people


@dataclass(frozen=True, slots=True)
class Facts:
    """Names and what they are."""

    pairs: tuple[tuple[str, str], ...]
    fold: str = ""  # the title below which a page folds them


@dataclass(frozen=True, slots=True)
class Prose:
    """Paragraphs."""

    texts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Notes:
    """Remarks about what is before them, each with what is advised, if anything is."""

    texts: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Code:
    """Lines to be read as they are; below a title they are one command, to be copied."""

    lines: tuple[str, ...]
    title: str = ""


@dataclass(frozen=True, slots=True)
class Figure:
    """A drawing of a page; ``lines`` show the same in text, if anything does."""

    draw: "Callable[[], Markup]"
    above: str = ""
    legend: tuple[tuple[str, str], ...] = ()  # class of colour, its meaning
    name: str = ""  # its kind on a page
    lines: tuple[str, ...] = ()
    y: str = ""  # what is drawn upwards, with its unit
    x: str = ""  # what is drawn from left to right


Part = Facts | Prose | Notes | Code | Figure | Table


@dataclass(frozen=True, slots=True)
class Section:
    """Some parts below a title."""

    title: str
    parts: tuple[Part, ...]
    anchor: str = ""  # by which a page links to it
    quiet: bool = False  # the title is for pages alone
    folded: bool = False  # in Markdown, where it is long
    charted: bool = False  # a chart before it shows the same to people at a terminal
    within: bool = False  # it belongs to the section before


@dataclass(frozen=True, slots=True)
class Document:
    """A report."""

    session: str  # Hunt 12, Comparison c3
    what: str  # system, workload and range
    started: float  # seconds since the epoch
    state: str
    facts: Facts  # how it was measured
    summary: tuple[str, ...]  # what came out, in sentences
    sections: tuple[Section, ...]
    headline: str = ""  # the answer in a line with one number, for a page


def row(*texts: str) -> Row:
    """A row of texts."""
    return Row(tuple(map(Cell, texts)))


def missing(wide: int = 1) -> Cell:
    """A value that nobody knows, which fills so many columns for programs."""
    return Cell(MISSING, ("",) * wide)


def sections(*found: Section | None) -> tuple[Section, ...]:
    """Those that have something in their parts."""
    empty = (Facts(()), Prose(()), Notes(()))
    kept = ((one, tuple(part for part in one.parts if part not in empty)) for one in found if one)
    return tuple(replace(one, parts=parts) for one, parts in kept if parts)


def host_line(host: HostFacts) -> str:
    """A host with what is known of it."""
    if not host.cores:
        return host.name
    size = f"{count(host.cores, 'core')}, {host.memory_mib / 1024:.0f} GiB"
    return f"{host.name}: {host.cpu}, {size}, kernel {host.kernel}, {host.compiler}"


def tools(hosts: Sequence[HostFacts]) -> tuple[Facts, ...]:
    """The tools and settings of hosts, folded."""
    known = ((host.name, (*host.tools.items(), *host.settings.items())) for host in hosts)
    return tuple(Facts(pairs, f"Tools and settings of {name}") for name, pairs in known if pairs)
