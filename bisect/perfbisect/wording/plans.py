"""Statements that a commit makes a server execute in another way, with both plans."""

from collections.abc import Iterator, Sequence

from perfbisect.core.domain.explanation import PlanRow
from perfbisect.wording.quantities import count
from perfbisect.wording.text import printable


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
            for number, line in enumerate(plan.splitlines()):
                yield f"  {'' if number else title:8}{line_of(line)}"


def line_of(text: str) -> str:
    """A line that is safe to print, as far indented as it was: that says which step of a plan belongs to which."""
    return " " * (len(text) - len(text.lstrip(" "))) + printable(text)
