"""Plans of statements: what is another plan, and what only looks so."""

import pytest

from perfbisect.core.domain.facts import PlanFacts
from perfbisect.core.explain.plans import comparable, different

INDEX = "Index Only Scan using k_1 on sbtest1\n  Index Cond: ((k >= 41) AND (k <= 140))"
BITMAP = """\
Bitmap Heap Scan on sbtest1
  Recheck Cond: ((k >= 41) AND (k <= 140))
  ->  Bitmap Index Scan on k_1
        Index Cond: ((k >= 41) AND (k <= 140))"""
MYSQL = "id=1 select_type=SIMPLE table=sbtest1 type=range possible_keys=k_1 key=k_1 key_len=4 rows=99 Extra=Using where; Using index"


def plan(text: str, statement: str = "SELECT k FROM sbtest1 WHERE k BETWEEN ? AND ?", commit: str = "a") -> PlanFacts:
    return PlanFacts(commit, "key", "here", statement, text)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (INDEX, INDEX.replace("41", "7").replace("140", "106")),
        (MYSQL, MYSQL.replace("rows=99", "rows=112").replace("possible_keys=k_1", "possible_keys=PRIMARY,k_1")),
        (MYSQL.replace("Extra", "filtered=100.00 Extra"), MYSQL.replace("Extra", "filtered=11.11 Extra")),
        ("Seq Scan on t  (cost=0.00..35.50 rows=2550 width=4)", "Seq Scan on t  (cost=0.00..36.75 rows=2675 width=4)"),
        ("-> Table scan on t  (cost=1.25 rows=10)", "-> Table scan on t  (cost=4.1 rows=33)"),
        ("Filter: (c = 'it''s'::bpchar)", "Filter: (c = 'x'::bpchar)"),
        ("SCAN TABLE t1 USING INDEX k_1 (~100000 rows)", "SCAN t1 USING INDEX k_1"),
        ("SEARCH SUBQUERY 0x55d0c8 AS x", "SEARCH SUBQUERY 0x7f11 AS x"),
    ],
)  # fmt: skip
def test_estimates_values_and_wording_are_no_difference(one: str, other: str) -> None:
    assert comparable(one) == comparable(other)
    assert different([plan(one)], [plan(other)]) == ()


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (INDEX, BITMAP),
        (BITMAP, BITMAP.replace("      ", "    ")),
        (MYSQL, MYSQL.replace("key=k_1", "key=PRIMARY")),
        (MYSQL, MYSQL.replace("key_len=4", "key_len=8")),
        (MYSQL, MYSQL.replace("; Using index", "; Using filesort")),
        ("SCAN t1\nSCAN t2", "SCAN t2\nSCAN t1"),
        ("SEARCH t1 USING INDEX k_1 (k=?)", "SCAN t1"),
        ("SEARCH sbtest1 USING INDEX k_1 (k=?)", "SEARCH sbtest1 USING INDEX k_2 (k=?)"),
    ],
)
def test_another_plan(one: str, other: str) -> None:
    [row] = different([plan(one)], [plan(other, commit="b")])
    assert (row.parent, row.culprit) == (one, other)


def test_each_statement_is_compared_with_itself() -> None:
    parent = [plan("SCAN a", "one"), plan("SCAN b", "two"), plan("SCAN c", "only there")]
    culprit = [plan("SEARCH b", "two"), plan("SCAN a", "one"), plan("SCAN d", "only here")]
    assert [row.statement for row in different(parent, culprit)] == ["two"]
