"""Reasons in words: plans. What proofs show is in test_endings.py."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfbisect.wording.reasons import LONG, abridged


@pytest.mark.parametrize(
    ("plan", "shown"),
    [
        ("Filter: (id = ANY ('{11,12,13,14,15,16,17,18,19,20}'::integer[]))", "Filter: (id = ANY ('{11,12,13, … 7 more}'::integer[]))"),
        ("  where id in (1, 2, 3, 4, 5, 6, 7, 8) and k > 5", "  where id in (1, 2, 3, … 5 more) and k > 5"),
        (
            "a IN ('x, y', 'b''c', '3', '4', '5', '6', '7', '8', '9')",
            "a IN ('x, y', 'b''c', '3', … 6 more)",
        ),
        (
            "ANY (ARRAY[$1, $2, $3, $4, $5, $6, $7, $8, $9])",
            "ANY (ARRAY[$1, $2, $3, … 6 more])",
        ),
        ("id in (1, 2, 3, 4, 5, 6, 7)", "id in (1, 2, 3, 4, 5, 6, 7)"),
        ("Output: t1.a, t2.b, t3.c, t4.d, t5.e, t6.f, t7.g, t8.h, t9.i", "Output: t1.a, t2.b, t3.c, t4.d, t5.e, t6.f, t7.g, t8.h, t9.i"),
    ],
)  # fmt: skip
def test_long_lists_of_values_are_shortened(plan: str, shown: str) -> None:
    assert abridged(plan) == shown


@given(st.lists(st.integers(), min_size=LONG, max_size=60), st.lists(st.integers(), min_size=LONG, max_size=60))
def test_every_list_of_a_line_is_shortened(one: list[int], other: list[int]) -> None:
    line = "a IN ({}) OR b IN ({})"
    shown = line.format(*(", ".join(map(str, [*each[:3]])) + f", … {len(each) - 3} more" for each in (one, other)))
    assert abridged(line.format(*(", ".join(map(str, each)) for each in (one, other)))) == shown
    assert abridged(shown) == shown
