"""Signs for terminals with and without Unicode."""

from dataclasses import astuple

import pytest
from rich.cells import cell_len

from perfbisect.wording.glyphs import ASCII, UNICODE, bar, dumbbell, glyphs_for, sparkline, writable


@pytest.mark.parametrize(
    ("encoding", "expected"), [("utf-8", UNICODE), ("ascii", ASCII), ("latin-1", ASCII), ("no such thing", ASCII)]
)
def test_the_set_follows_the_encoding(encoding: str, expected: object) -> None:
    assert glyphs_for(encoding) is expected


def test_both_sets_have_the_same_shape() -> None:
    assert "".join(astuple(ASCII)).isascii()
    for one, other in zip(astuple(UNICODE), astuple(ASCII), strict=True):
        assert cell_len(one) == len(one) and (len(one) == len(other) or one == UNICODE.arrow)


def test_replaced_signs_keep_the_length() -> None:
    text = "“Füße” · 日本 … ok"
    assert writable(text, "utf-8") == text
    assert writable(text, "ascii") == "'F??e' | ?? ~ ok"
    assert writable(text, "latin-1") == "'Füße' · ?? ~ ok"


def test_a_sparkline_starts_at_zero_and_shows_the_latest() -> None:
    assert sparkline([0.0, 50.0, 100.0], 100.0, 10, UNICODE) == "▁▅█"
    assert sparkline(list(range(100)), 100.0, 3, UNICODE) == "███"
    assert sparkline([], 0.0, 5, UNICODE) == ""


@pytest.mark.parametrize(
    ("before", "after", "drawn"),
    [
        (2.0, 1.0, "●━━━━━━━○"),
        (1.0, 1.5, "○━━━●────"),
        (1.5, 2.0, "────○━━━●"),
        (1.25, 1.25, "──●──────"),
        (1.0, 1.1, "○●───────"),
    ],
)
def test_a_dumbbell_joins_two_values(before: float, after: float, drawn: str) -> None:
    assert "".join(dumbbell(before, after, (1.0, 2.0), 9, UNICODE)) == drawn


def test_values_that_are_all_equal_are_one_sign() -> None:
    assert dumbbell(3.0, 3.0, (3.0, 3.0), 9, ASCII) == ("", "@", "--------")


def test_a_bar_has_one_length() -> None:
    assert [bar(f, 4, ASCII) for f in (0.0, 0.5, 1.0, 7.0)] == [("", "----"), ("==", "--"), ("====", ""), ("====", "")]
