"""A document as text for a terminal."""

from collections.abc import Iterable, Iterator
from itertools import groupby
from textwrap import wrap
from typing import TYPE_CHECKING

from rich.cells import cell_len

from perfbisect.report.document import Cell, Code, Document, Facts, Figure, Notes, Part, Prose, Section, Table
from perfbisect.wording.quantities import moment
from perfbisect.wording.table import GAP, aligned, table
from perfbisect.wording.text import line_of, printable

if TYPE_CHECKING:
    from rich.text import Text  # slow to import, and needed for tables in colours alone

COLOURS = {"worse": "red", "better": "green", "": ""}
NOTE = 96  # columns of a remark
Lines = Iterator["str | Text"]


def lines(document: Document, width: int | None = None, *, header: bool = True) -> Lines:
    """The whole report; where ``width`` is given, tables that can spare columns are no wider. ``header``: with how it was measured."""
    parts: list[Lines] = [iter(document.summary and map(line_of, document.summary))]
    if header:
        title = f"{document.session}, {moment(document.started)}: {document.state}"
        parts.insert(0, iter([printable(title), *facts(document.facts)]))
    parts += [of_section(one, width) for one in document.sections if not one.charted]
    for number, part in enumerate(found for one in parts if (found := list(one))):
        if number:
            yield ""
        yield from part


def text(document: Document, width: int | None = None) -> str:
    """The same without colours."""
    return "".join(f"{line}\n" for line in lines(document, width))


def of_section(section: Section, width: int | None) -> Lines:
    """A title, which a paragraph continues, and parts between empty lines; remarks and tables follow closely upon a title."""
    title = "" if section.quiet else section.title
    closed = True  # nothing is before the next part that an empty line must separate
    for part in section.parts:
        if title and isinstance(part, Prose):
            yield f"{printable(title)}: {line_of(part.texts[0])}"
            yield from map(line_of, part.texts[1:])
        else:
            if title:
                yield printable(title)
            elif not (closed or isinstance(part, Notes)):
                yield ""
            yield from of_part(part, width, "" if section.quiet else "  ")
        title, closed = "", isinstance(part, Code) and bool(part.title)


def of_part(part: Part, width: int | None, indent: str) -> Lines:
    """The lines of one part; remarks are indented below a title."""
    match part:
        case Prose(texts):
            yield from map(line_of, texts)
        case Facts():
            yield from facts(part)
        case Notes(texts):
            for text, advice in texts:
                yield from notes(text, indent, width)
                yield from notes(advice, indent and f"  {indent}", width)
        case Code([line], title) if title:
            yield f"{f'{title}:':11} {line_of(line)}"
        case Code(found, title):
            yield from [f"{title}:"] if title else []
            yield from (f"  {line_of(line)}" for line in found)
        case Figure():
            yield from map(line_of, part.lines)
        case Table(field=True):
            yield from map(printable, part.above)
            yield from grid(part)
        case Table():
            yield from (f"  {printable(line)}" for line in part.above)
            yield from (f"  {line}" for line in listing(part, width))


def facts(found: Facts) -> Iterator[str]:
    """Names and what they are; a name that repeats is left out."""
    wide = max(len(name) for name, _ in found.pairs)
    for name, group in groupby(found.pairs, key=lambda pair: pair[0]):
        for number, (_, text) in enumerate(group):
            yield f"  {'' if number else printable(name):{wide}}  {printable(text)}"


def notes(text: str, indent: str, width: int | None) -> Iterable[str]:
    """A remark in lines; in one below no title."""
    if not indent:
        return [printable(text)] if text else []
    wide = max(20, min(NOTE + 2, width or NOTE + 2))
    return wrap(printable(text), wide, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False)


def listing(found: Table, width: int | None) -> list[str]:
    """A table; where there is little room it loses its minor columns, and the end of its last one."""
    rows = [[printable(cell.text) for cell in row.cells] for row in found.rows]
    inner = width - 2 if width and found.minor else None
    return table(found.head, rows, right=found.right, width=inner, drop=found.minor)


def grid(found: Table) -> "Iterator[Text]":
    """Right-aligned numbers in their colours with what is behind them, and at the end of a line the name of its row."""
    from rich.text import Text

    rows = [tuple(Cell(printable(title)) for title in found.head[:-1]), *(row.cells for row in found.rows)]
    columns = [[row[place] for row in rows if row] for place in range(len(found.head) - 1)]
    wide = [max(cell_len(cell.text) for cell in column) for column in columns]
    behind = [max(cell_len(f" {cell.note}") if cell.note else 0 for cell in column) for column in columns]
    for row in rows:
        texts = []
        for cell, width, room in zip(row, wide, behind, strict=False):
            note = aligned(f" {printable(cell.note)}" if cell.note else "", room, right=False)
            texts.append(Text.assemble((aligned(cell.text, width, right=True), COLOURS[cell.tone]), note))
        line = Text(GAP).join([*texts, *(Text(printable(cell.text)) for cell in row[len(wide) :])])
        line.rstrip()
        yield line
