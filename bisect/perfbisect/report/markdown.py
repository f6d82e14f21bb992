"""A document as Markdown, to be pasted into an issue; and its tables as CSV or TSV."""

import re
from collections.abc import Iterable, Iterator, Sequence

from perfbisect.report.document import Cell, Code, Document, Facts, Figure, Notes, Part, Prose, Section, Table
from perfbisect.wording.quantities import moment
from perfbisect.wording.table import separated
from perfbisect.wording.text import advised, line_of, printable

SPECIAL = re.compile(r"([\\`*_\[\]<>|#~&])")
# Words that GitHub, GitLab and Gitea make links or notifications of, whatever is escaped in them: @user, owner/repo#12,
# !7, GH-3, a URL, an address; or emoji and formulas: :name:, $x$. In a code span they stay text.
ACTIVE = re.compile(r"[^\s|]*(?:[@#!%&~^][\w-]|\$|://|www\.|GH-\d|:[a-z+-][\w+-]*:(?![:\w]))[^\s|]*", re.IGNORECASE)
BACKTICKS = re.compile("`+")
# A span of code of a sentence; "|" would end it in a table.
SPAN = re.compile(r"(?<!`)`([^`|\s](?:[^`|]*[^`|\s])?)`(?!`)")
BOLD = "Bold: 0.95 or less, or 1.05 or more, and a real difference (5 % false discoveries at most are expected in the table)."


def markdown(document: Document) -> Iterator[str]:
    """The whole report."""
    yield f"## {escape(document.what)}"
    yield ""
    yield from prose(document.summary)
    yield from [""] if document.summary else []
    yield f"- {escape(f'{document.session}, {moment(document.started)}: {document.state}')}"
    yield from facts(document.facts)
    for section in document.sections:
        yield from of_section(section)


def of_section(section: Section) -> Iterator[str]:
    """A title and what is below it."""
    if section.folded:
        yield from ("", f"<details><summary>{escape(section.title)}</summary>")
    elif not section.quiet:
        yield from ("", f"### {escape(section.title)}")
    for part in section.parts:
        yield ""
        yield from of_part(part)
    yield from ("", "</details>") if section.folded else ()


def of_part(part: Part) -> Iterator[str]:
    """The lines of one part."""
    match part:
        case Prose(texts):
            yield from prose(texts)
        case Facts():
            yield from facts(part)
        case Notes(texts):
            yield from (f"- {escape(advised(text, advice))}" for text, advice in texts)
        case Code(lines, title):
            yield from (f"{escape(title)}:", "") if title else ()
            yield from fenced(map(line_of, lines), "sh" if title else "")
        case Figure():
            yield from fenced(map(line_of, part.lines))
        case Table():
            yield from table(part)


def prose(texts: Iterable[str]) -> Iterator[str]:
    """Sentences, a line each, and entries of a list."""
    for text in texts:
        yield f"- {escape(text.strip())}" if text.startswith("  ") else f"{escape(text)}  "


def facts(found: Facts) -> Iterator[str]:
    """Names and what they are."""
    return (f"- {escape(name)}: {text if name == 'link' else escape(text)}" for name, text in found.pairs)


def table(found: Table) -> Iterator[str]:
    """The lines above a table, and the table, with its columns aligned by the reader's program."""
    yield from (f"{escape(text)}  " for text in found.above)
    if found.above:
        yield ""
    yield f"| {' | '.join(map(escape, found.head))} |"
    yield f"|{'|'.join('--:' if title in found.right else '---' for title in found.head)}|"
    for row in found.rows:
        if row.cells:  # Markdown has no empty rows
            yield f"| {' | '.join(map(entry, row.cells))} |"
    if found.name == "relative":
        yield from ("", BOLD)


def entry(cell: Cell) -> str:
    """A cell, in bold type where it is a real difference, and what is behind it."""
    text = escape(cell.text)
    text = f"**{text}**" if cell.tone else text
    return f"{text} {escape(cell.note)}" if cell.note else text


def delimited(document: Document, delimiter: str) -> Iterator[str]:
    """The lines of CSV or TSV: tables with their headers, numbers before names, and the text around them; empty lines between."""
    blocks = [
        list(rows_of(part))
        for section in document.sections
        for part in section.parts
        if isinstance(part, Table | Notes) or any(isinstance(one, Table) for one in section.parts)
    ]
    for number, block in enumerate(filter(None, blocks)):
        if number:
            yield ""
        for texts in block:
            # Lines that begin with dashes are no formula, and written as they are.
            yield texts[0] if texts[0].startswith("---") else separated(map(printable, texts), delimiter)


def rows_of(part: Part) -> Iterator[Sequence[str]]:
    """The rows of a part as programs read them."""
    match part:
        case Prose(texts):
            yield from ([text] for text in texts)
        case Notes(texts):
            yield from ([text] for text, _ in texts)
        case Table():
            yield from ([text] for text in part.above)
            yield part.plain_head or part.head
            for row in part.rows:
                if row.cells:
                    yield [one for cell in row.cells for one in cell.plain or (cell.text,)]
        case _:
            pass


def fenced(lines: Iterable[str], language: str = "") -> Iterator[str]:
    """Lines as a block of code, which none of them can end."""
    body = list(lines)
    fence = "`" * max(3, _longest("\n".join(body)) + 1)
    yield f"{fence}{language}"
    yield from body
    yield fence


def escape(text: str) -> str:
    """Text that Markdown shows as it is, on one line: no markup but spans of code, no links, and no mentions."""
    shown = printable(text)
    parts, end = [], 0
    for word in re.finditer(f"{SPAN.pattern}|{ACTIVE.pattern}", shown, re.IGNORECASE):
        parts += [SPECIAL.sub(r"\\\1", shown[end : word.start()]), code(word[1] or word[0])]
        end = word.end()
    return "".join([*parts, SPECIAL.sub(r"\\\1", shown[end:])])


def code(text: str) -> str:
    """A span of code."""
    marks = "`" * (_longest(text) + 1)
    space = " " if text.startswith("`") or text.endswith("`") else ""
    return f"{marks}{space}{text}{space}{marks}"


def _longest(text: str) -> int:
    return max(map(len, BACKTICKS.findall(text)), default=0)
