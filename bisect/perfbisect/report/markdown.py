"""Renders a report as Markdown, for example for an issue tracker, and the tables of a report as CSV or TSV."""

import re
from collections.abc import Iterable, Iterator, Sequence

from perfbisect.report.document import Cell, Code, Document, Facts, Figure, Part, Prose, Remarks, Section, Table
from perfbisect.wording.quantities import moment
from perfbisect.wording.table import delimited_line
from perfbisect.wording.text import advised, printable, safe_line

SPECIAL = re.compile(r"([\\`*_\[\]<>|#~&])")
# Words that GitHub, GitLab and Gitea turn into links or notifications in spite of escapes (@user, owner/repo#12, !7, GH-3, a
# URL, an address), or into emoji and formulas (:name:, $x$). In a code span they stay text.
ACTIVE = re.compile(r"[^\s|]*(?:[@#!%&~^][\w-]|\$|://|www\.|GH-\d|:[a-z+-][\w+-]*:(?![:\w]))[^\s|]*", re.IGNORECASE)
BACKTICKS = re.compile("`+")
# A code span in a sentence; without "|", which would end it in a table.
SPAN = re.compile(r"(?<!`)`([^`|\s](?:[^`|]*[^`|\s])?)`(?!`)")
BOLD = "Bold: a real difference of 5 % or more. At most 5 % of the differences that the table calls real are expected to be false."


def document_lines(document: Document) -> Iterator[str]:
    """The lines of the whole report."""
    yield f"## {escaped(document.subject)}"
    yield ""
    yield from prose_lines(document.summary)
    yield from [""] if document.summary else []
    yield f"- {escaped(f'{document.session}, {moment(document.started)}: {document.state}')}"
    yield from fact_lines(document.facts)
    for section in document.sections:
        yield from section_lines(section)


def section_lines(section: Section) -> Iterator[str]:
    """The lines of a section of a report: the title, and the parts (such as tables)."""
    if section.is_folded:
        yield from ("", f"<details><summary>{escaped(section.title)}</summary>")
    elif not section.hide_title:
        yield from ("", f"### {escaped(section.title)}")
    for part in section.parts:
        yield ""
        yield from part_lines(part)
    yield from ("", "</details>") if section.is_folded else ()


def part_lines(part: Part) -> Iterator[str]:
    """The lines of a part of a section."""
    match part:
        case Prose(texts):
            yield from prose_lines(texts)
        case Facts():
            yield from fact_lines(part)
        case Remarks(texts):
            yield from (f"- {escaped(advised(text, advice))}" for text, advice in texts)
        case Code(lines, title):
            yield from (f"{escaped(title)}:", "") if title else ()
            yield from code_block_lines(map(safe_line, lines), "sh" if title else "")
        case Figure():
            yield from code_block_lines(map(safe_line, part.text_lines))
        case Table():
            yield from table_lines(part)


def prose_lines(texts: Iterable[str]) -> Iterator[str]:
    """A line for each text of ``texts``; a text is a sentence, or an entry of a list."""
    for text in texts:
        yield f"- {escaped(text.strip())}" if text.startswith("  ") else f"{escaped(text)}  "


def fact_lines(section: Facts) -> Iterator[str]:
    """The lines of a Markdown list of names and values."""
    return (f"- {escaped(name)}: {text if name == 'link' else escaped(text)}" for name, text in section.pairs)


def table_lines(part: Table) -> Iterator[str]:
    """The texts above a table, and the table. Cells are not padded with blanks, because a Markdown viewer aligns
    columns."""
    yield from (f"{escaped(text)}  " for text in part.lines_above)
    if part.lines_above:
        yield ""
    yield f"| {' | '.join(map(escaped, part.head))} |"
    yield f"|{'|'.join('--:' if title in part.right_aligned else '---' for title in part.head)}|"
    for row in part.rows:
        if row.cells:  # Markdown has no empty rows
            yield f"| {' | '.join(map(cell_text, row.cells))} |"
    if part.kind == "relative":
        yield from ("", BOLD)


def cell_text(cell: Cell) -> str:
    """The text of a cell, in bold if the cell shows a real difference, then the note of the cell."""
    text = escaped(cell.text)
    text = f"**{text}**" if cell.tone else text
    return f"{text} {escaped(cell.note)}" if cell.note else text


def delimited_lines(document: Document, delimiter: str) -> Iterator[str]:
    """The report as lines of CSV or TSV: its tables with headers, and the texts around the tables, with empty lines
    between them. In a table, columns of numbers come before columns of names.
    """
    blocks = [
        list(csv_rows(part))
        for section in document.sections
        for part in section.parts
        if isinstance(part, Table | Remarks) or any(isinstance(neighbour, Table) for neighbour in section.parts)
    ]
    for number, block in enumerate(filter(None, blocks)):
        if number:
            yield ""
        for texts in block:
            # Lines that begin with dashes are titles, not formulas of a spreadsheet: they are written unchanged.
            yield texts[0] if texts[0].startswith("---") else delimited_line(map(printable, texts), delimiter)


def csv_rows(part: Part) -> Iterator[Sequence[str]]:
    """The CSV rows of a part of a report."""
    match part:
        case Prose(texts):
            yield from ([text] for text in texts)
        case Remarks(texts):
            yield from ([text] for text, _ in texts)
        case Table():
            yield from ([text] for text in part.lines_above)
            yield part.csv_head or part.head
            for row in part.rows:
                if row.cells:
                    yield [text for cell in row.cells for text in cell.csv_texts or (cell.text,)]
        case _:
            pass


def code_block_lines(lines: Iterable[str], language: str = "") -> Iterator[str]:
    """The lines as a Markdown code block, whose fence is longer than any row of backticks in the lines."""
    body = list(lines)
    fence = "`" * max(3, _longest("\n".join(body)) + 1)
    yield f"{fence}{language}"
    yield from body
    yield fence


def escaped(text: str) -> str:
    """Markdown that shows ``text`` on one line as it is, without markup (except code spans), links or mentions of
    users."""
    shown = printable(text)
    parts, end = [], 0
    for word in re.finditer(f"{SPAN.pattern}|{ACTIVE.pattern}", shown, re.IGNORECASE):
        parts += [SPECIAL.sub(r"\\\1", shown[end : word.start()]), code_span(word[1] or word[0])]
        end = word.end()
    return "".join([*parts, SPECIAL.sub(r"\\\1", shown[end:])])


def code_span(text: str) -> str:
    """``text`` as a Markdown code span."""
    marks = "`" * (_longest(text) + 1)
    space = " " if text.startswith("`") or text.endswith("`") else ""
    return f"{marks}{space}{text}{space}{marks}"


def _longest(text: str) -> int:
    return max(map(len, BACKTICKS.findall(text)), default=0)
