"""A comparison as CSV, TSV and Markdown."""

from collections.abc import Iterator

from perfbisect.core.domain.trials import Trial
from perfbisect.report import series
from perfbisect.report.blocks import ABSOLUTE, RELATIVE, Block, Cell
from perfbisect.report.comparison import blocks, header, remarks
from perfbisect.report.markdown import escape, fenced
from perfbisect.wording.table import separated

BOLD = "Bold: 0.95 or less, or 1.05 or more, and a real difference (5 % false discoveries at most are expected in the table)."


def delimited(trial: Trial, delimiter: str) -> Iterator[str]:
    """The lines of CSV or TSV: the legend, then each table with a header, numbers before names, and empty lines between."""
    for place, block in enumerate(blocks(trial, detailed=True)):
        if place:
            yield ""
        yield from (text if text in (ABSOLUTE, RELATIVE) else separated([text], delimiter) for text in block.above)
        if not place:
            yield ""
        yield separated([*(block.plain_head or block.head), block.named], delimiter)
        for row in block.rows:
            if row.cells:
                yield separated([*(part for cell in row.cells for part in cell.plain), row.name], delimiter)
    if texts := list(remarks(trial)):
        yield ""
        yield from (separated([text], delimiter) for text in texts)


def markdown(trial: Trial, *, detailed: bool) -> Iterator[str]:
    """Markdown for an issue: the tables of the field, those of counters collapsed."""
    yield from (f"{escape(str(text))}  " for text in header(trial) if text)
    yield ""
    first, *others = blocks(trial, detailed=detailed)
    if trial.request.series:
        yield from fenced(list(series.lines(trial)))
        yield ""
    yield from as_markdown(first)
    yield ""
    yield series.RULE if trial.request.series else BOLD
    folded = False
    for block in others:
        yield ""
        if block.named in ("build", "per operation") and not folded:
            folded = True
            yield from ("<details><summary>Per operation</summary>", "")
        yield from as_markdown(block)
    if folded:
        yield from ("", "</details>")
    if texts := list(remarks(trial)):
        yield ""
        yield from (f"- {escape(text)}" for text in texts)


def as_markdown(block: Block) -> Iterator[str]:
    """The lines above a table, and the table."""
    yield from (f"{escape(text)}  " for text in block.above)
    if block.above:
        yield ""
    yield f"| {' | '.join(map(escape, (*block.head, block.named)))} |"
    yield f"|{'--:|' * len(block.head)}---|"
    for row in block.rows:
        if row.cells:  # Markdown has no empty rows
            yield f"| {' | '.join((*map(number, row.cells), escape(row.name)))} |"


def number(cell: Cell) -> str:
    """A number, in bold type where it is a real difference, and what is behind it."""
    text = f"**{cell.text}**" if cell.tone else cell.text
    return f"{text} {escape(cell.note)}" if cell.note else text
