"""Statements that a commit makes a server execute in another way, with both plans."""

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise

from perfbisect.core.domain.explanation import PlanRow
from perfbisect.wording.quantities import count
from perfbisect.wording.text import printable

VALUE = re.compile(r"'(?!\{)(?:[^']|'')*'|(?<![\w.])(?:-?\d[\d.]*|\(?\$\d+\)?)(?:::\w+)?(?!\w)")  # not a quoted array
LISTED = 3  # values of a list that are shown
LONG = 8  # values of a list that is shortened


def sentence(rows: Sequence[PlanRow], commit: str) -> str:
    """What is said before any other reason."""
    has = "has" if len(rows) == 1 else "have"
    return f"Since {commit}, {count(len(rows), 'statement')} of the workload {has} another plan."


def lines(rows: Sequence[PlanRow]) -> Iterator[str]:
    """Each statement, the plan before the commit, and the plan since."""
    for place, row in enumerate(rows):
        if place:
            yield ""
        yield from map(line_of, row.statement.splitlines())
        for title, plan in (("before", row.parent), ("since", row.culprit)):
            for number, line in enumerate(abridged(plan).splitlines()):
                yield f"  {'' if number else title:8}{line_of(line)}"


def abridged(plan: str) -> str:
    """A plan in which long lists of values have only their first ones, and how many more there are."""
    return "\n".join(map(_abridged_line, plan.splitlines()))


def _abridged_line(line: str) -> str:
    values = list(VALUE.finditer(line))
    starts = [0, *(place for place, (left, right) in enumerate(pairwise(values), 1) if not _listed(line, left, right))]
    kept, shown = [], 0
    for first, following in pairwise([*starts, len(values)]):
        if following - first >= LONG:
            kept.append(line[shown : values[first + LISTED - 1].end()])
            kept.append(f", … {following - first - LISTED} more")
            shown = values[following - 1].end()
    return "".join((*kept, line[shown:]))


def _listed(line: str, left: re.Match[str], right: re.Match[str]) -> bool:
    """Whether there is only a comma between two values."""
    return line[left.end() : right.start()].strip() == ","


def line_of(text: str) -> str:
    """A line that is safe to print, as far indented as it was: that says which step of a plan belongs to which."""
    return " " * (len(text) - len(text.lstrip(" "))) + printable(text)
