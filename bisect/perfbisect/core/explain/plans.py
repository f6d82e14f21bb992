"""Statements that two builds execute in another way.

Plans are compared without what differs between two servers of one build, or between versions in wording only: estimates of
rows and costs, sizes, possible keys, values of the statement.
"""

import re
from collections.abc import Iterable

from perfbisect.core.domain.explanation import PlanRow
from perfbisect.core.domain.facts import PlanFacts

ESTIMATES = re.compile(
    r"""
      \s*\((?:cost|actual\ time|actual\ rows|never\ executed)[^()]*\)  # PostgreSQL, and trees of MySQL
    | \s*\(~\d+\ rows?\)                                              # SQLite before 3.8
    | \b(?:rows|filtered|possible_keys)=\S+\ ?                        # the table of MySQL
    """,
    re.VERBOSE,
)
OLD_WORDS = re.compile(r"\b(SCAN|SEARCH) (?:TABLE|SUBQUERY) ")  # SQLite before 3.36
VALUES = re.compile(r"'(?:[^']|'')*'|(?<![\w.])-?\d[\d.]*(?![\w.])|\b0x[0-9a-f]+\b")
COLUMN = re.compile(r"\b(?:id|key_len)=\d+")  # a number that is a part of the plan


def comparable(plan: str) -> str:
    """A plan without what is no difference; lines keep their order and how far they are indented."""
    kept = []
    for line in plan.splitlines():
        text = OLD_WORDS.sub(r"\1 ", ESTIMATES.sub("", line))
        parts = COLUMN.split(text)
        columns = [*COLUMN.findall(text), ""]
        kept.append(
            "".join(VALUES.sub("?", part) + column for part, column in zip(parts, columns, strict=True)).rstrip()
        )
    return "\n".join(line for line in kept if line)


def different(parent: Iterable[PlanFacts], culprit: Iterable[PlanFacts]) -> tuple[PlanRow, ...]:
    """The statements whose plan differs, in the order of the culprit's, with both plans as they were printed.

    A statement that only one of the builds has explained is left out: a plan that is missing is no other plan.
    """
    before = {facts.statement: facts.plan for facts in parent}
    return tuple(
        PlanRow(facts.statement, before[facts.statement], facts.plan)
        for facts in culprit
        if facts.statement in before and comparable(before[facts.statement]) != comparable(facts.plan)
    )
