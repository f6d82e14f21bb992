import math

import pytest
from markupsafe import Markup

from perfbisect.report.page.svg import Scale, element, linear, plain, shown


def test_text_and_attributes_are_escaped() -> None:
    made = element("text", "<b>&\"'", x='"><script>', class_="a")
    assert isinstance(made, Markup)
    assert "<script>" not in made
    assert "<b>" not in made
    assert made.startswith('<text x="')
    assert made.endswith("</text>")


def test_elements_nest_without_being_escaped_twice() -> None:
    assert element("g", element("title", "a & b")) == "<g><title>a &amp; b</title></g>"


def test_what_steers_a_reader_is_shown_as_an_escape() -> None:
    assert shown("a\u202eb\x1b[2J") == "a\\u202eb\\x1b[2J"


def test_attributes_that_are_none_are_left_out() -> None:
    assert element("line", x1=1.0, class_=None) == '<line x1="1"></line>'


@pytest.mark.parametrize(
    "scale", [Scale(0.7, 1.02, True), Scale(0.001, 900.0, True), Scale(0.0, 37.5), Scale(9_990, 10_010)]
)
def test_ticks_are_round_and_inside(scale: Scale) -> None:
    ticks = scale.ticks(5)
    assert 2 <= len(ticks) <= 12
    assert ticks == sorted(ticks)
    assert all(scale.low <= tick <= scale.high * (1 + 1e-9) for tick in ticks)
    assert all(float(f"{tick:.6g}") == pytest.approx(tick) for tick in ticks)


def test_a_scale_keeps_what_is_outside_at_its_edges() -> None:
    scale = Scale(0.5, 2.0, logarithmic=True)
    assert scale(1.0) == pytest.approx(0.5)
    assert (scale(0.0), scale(math.inf)) == (0.0, 1.0)


def test_a_scale_of_equal_values_has_room() -> None:
    scale = linear([5.0, 5.0])
    assert scale.low < 5.0 < scale.high
    assert 0 < scale(5.0) < 1


def test_labels_of_ticks() -> None:
    assert [plain(value) for value in (1.05, 20_000.0, 0.5, 3e9, 0.0)] == ["1.05", "20,000", "0.5", "3e+09", "0"]
