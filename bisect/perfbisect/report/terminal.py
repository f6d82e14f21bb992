"""Renders a document as text for a terminal."""

from collections.abc import Iterable, Iterator
from itertools import groupby
from textwrap import wrap
from typing import TYPE_CHECKING

from rich.cells import cell_len

from perfbisect.report.document import Cell, Code, Document, Facts, Figure, Part, Prose, Remarks, Section, Table
from perfbisect.wording.quantities import moment
from perfbisect.wording.table import GAP, in_width, table
from perfbisect.wording.text import printable, safe_line

if TYPE_CHECKING:
    from rich.text import Text  # slow to import, and only needed for coloured tables

COLOURS = {"worse": "red", "better": "green", "": ""}
NOTE = 96  # columns of a remark
Lines = Iterator["str | Text"]


def document_lines(document: Document, width: int | None = None, *, header: bool = True) -> Lines:
    """The lines of a report. Tables with minor columns are shortened to ``width``. If ``header`` is true, the report
    begins with its title and facts."""
    parts: list[Lines] = [iter(document.summary and map(safe_line, document.summary))]
    if header:
        title = f"{document.session}, {moment(document.started)}: {document.state}"
        parts.insert(0, iter([printable(title), *fact_lines(document.facts)]))
    parts += [section_lines(section, width) for section in document.sections if not section.omitted_on_terminal]
    for number, texts in enumerate(block for part in parts if (block := list(part))):
        if number:
            yield ""
        yield from texts


def document_text(document: Document, width: int | None = None) -> str:
    """The report as text without colours; ``width`` is as in ``document_lines``."""
    return "".join(f"{line}\n" for line in document_lines(document, width))


def section_lines(section: Section, width: int | None) -> Lines:
    """The lines of a section: its title and its parts, with empty lines between the parts. If the first part is a
    paragraph, the paragraph begins in the line of the title."""
    title = "" if section.hide_title else section.title
    closed = True  # whether the next part needs no empty line before it
    for part in section.parts:
        if title and isinstance(part, Prose):
            yield f"{printable(title)}: {safe_line(part.texts[0])}"
            yield from map(safe_line, part.texts[1:])
        else:
            if title:
                yield printable(title)
            elif not (closed or isinstance(part, Remarks)):
                yield ""
            yield from part_lines(part, width, "" if section.hide_title else "  ")
        title, closed = "", isinstance(part, Code) and bool(part.title)


def part_lines(part: Part, width: int | None, indent: str) -> Lines:
    """The lines of one part of a report. ``indent`` is put before remarks; it is "" for remarks that are not below a
    title."""
    match part:
        case Prose(texts):
            yield from map(safe_line, texts)
        case Facts():
            yield from fact_lines(part)
        case Remarks(texts):
            for text, advice in texts:
                yield from remark_lines(text, indent, width)
                yield from remark_lines(advice, indent and f"  {indent}", width)
        case Code([line], title) if title:
            yield f"{f'{title}:':20} {safe_line(line)}"
        case Code(code, title):
            yield from [f"{title}:"] if title else []
            yield from (f"  {safe_line(line)}" for line in code)
        case Figure():
            yield from map(safe_line, part.text_lines)
        case Table(numbers_first=True):
            yield from map(printable, part.lines_above)
            yield from numbers_first_table_lines(part)
        case Table():
            yield from (f"  {printable(line)}" for line in part.lines_above)
            yield from (f"  {line}" for line in table_lines(part, width))


def fact_lines(section: Facts) -> Iterator[str]:
    """A line for each fact, with its name and its value. A name that is equal to the name in the line above is
    omitted."""
    wide = max(len(name) for name, _ in section.pairs)
    for name, group in groupby(section.pairs, key=lambda pair: pair[0]):
        for number, (_, text) in enumerate(group):
            yield f"  {'' if number else printable(name):{wide}}  {printable(text)}"


def remark_lines(text: str, indent: str, width: int | None) -> Iterable[str]:
    """The lines of a remark, wrapped to the width of the terminal; a single line if ``indent`` is ""."""
    if not indent:
        return [printable(text)] if text else []
    wide = max(20, min(NOTE + 2, width or NOTE + 2))
    return wrap(printable(text), wide, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False)


def table_lines(part: Table, width: int | None) -> list[str]:
    """The lines of a table. If ``width`` is too small, minor columns are left out, and then the last column is
    shortened."""
    rows = [[printable(cell.text) for cell in row.cells] for row in part.rows]
    inner = width - 2 if width and part.minor_columns else None
    return table(part.head, rows, right=part.right_aligned, width=inner, drop=part.minor_columns)


def numbers_first_table_lines(part: Table) -> "Iterator[Text]":
    """The lines of a table whose rows begin with their numbers (``numbers_first``). Numbers are coloured, aligned to
    the right and followed by their notes; the name of the row is at the end."""
    from rich.text import Text

    rows = [tuple(Cell(printable(title)) for title in part.head[:-1]), *(row.cells for row in part.rows)]
    columns = [[row[position] for row in rows if row] for position in range(len(part.head) - 1)]
    wide = [max(cell_len(cell.text) for cell in column) for column in columns]
    behind = [max(cell_len(f" {cell.note}") if cell.note else 0 for cell in column) for column in columns]
    for row in rows:
        texts = []
        for cell, width, room in zip(row, wide, behind, strict=False):
            note = in_width(f" {printable(cell.note)}" if cell.note else "", room, right=False)
            texts.append(Text.assemble((in_width(cell.text, width, right=True), COLOURS[cell.tone]), note))
        line = Text(GAP).join([*texts, *(Text(printable(cell.text)) for cell in row[len(wide) :])])
        line.rstrip()
        yield line
