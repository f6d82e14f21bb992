"""Quantities as every output writes them."""

import time
from collections.abc import Callable

import pytest

from perfbisect.core.domain.orders import Interval
from perfbisect.wording.quantities import (
    between,
    chance,
    change,
    clock,
    count,
    duration,
    estimate,
    figure,
    moment,
    percent,
    ratio,
    share,
    time_of_day,
)

FORMS: list[tuple[Callable[[float], str], dict[float, str]]] = [
    (figure, {280_000.4: "280,000", 12345.4: "12,345", 999.7: "1,000", 100.0: "100", 87.12: "87.1", 48.0: "48.0",
              0.4419: "0.442", 0.0: "0.00"}),
    (percent, {0.0: "0.00 %", 3.1e-6: "0.00031 %", 0.000996: "0.10 %", 0.0043: "0.43 %", 0.0213: "2.1 %", 0.0999: "10 %", 0.29: "29 %", 0.0099: "0.99 %", 0.00996: "1.0 %"}),
    (share, {0.0: "0 %", 0.824: "82 %"}),
    (chance, {0.0: "<0.1 %", 0.004: "0.4 %", 0.0996: "10 %", 0.5: "50 %", 0.9899: "99 %", 0.995: "99.5 %",
              0.9999: "99.5 %", 1.0: "99.5 %"}),
    (change, {0.712: "a drop of 29 %", 1.0: "no change", 1.2: "a rise of 20 %", 2.0: "a rise of 100 %",
              0.0006231: "a drop to 1/1,605", 0.099: "a drop to 1/10", 12.2: "a rise to 12 times"}),
    (duration, {0.44: "0.4 s", 9.96: "10 s", 59.6: "1 min", 61: "1 min 1 s", 3600: "1 h", 12_345: "3 h 26 min"}),
    (clock, {-1.0: "0:00", 7.9: "0:07", 750.0: "12:30", 3723.0: "1:02:03"}),
    (estimate, {0.3: "under a minute", 0.8: "about 1 min", 3.6: "about 4 min", 33.0: "about 35 min",
                58.0: "about 60 min", 59.9: "about 1 h", 81.0: "about 1 h 20 min", 119.0: "about 2 h",
                1000.0: "about 17 h"}),
]  # fmt: skip


@pytest.mark.parametrize(("form", "expected"), FORMS, ids=[form.__name__ for form, _ in FORMS])
def test_a_quantity(form: Callable[[float], str], expected: dict[float, str]) -> None:
    assert {value: form(value) for value in expected} == expected


def test_a_missing_value_is_a_dash() -> None:
    assert [figure(None), share(None), between(None)] == ["–", "–", "–"]


def test_counts_agree_with_their_nouns() -> None:
    assert [count(1, "run"), count(2300, "run"), count(0, "merge")] == ["1 run", "2,300 runs", "0 merges"]


def test_intervals() -> None:
    assert between(Interval(0.698, 0.712, 0.7264)) == "0.698–0.726"
    assert ratio(Interval(0.698, 0.712, 0.7264)) == "0.712 (0.698–0.726)"
    assert ratio(Interval(0.000424, 0.000623, 0.105)) == "0.000623 (0.000424–0.105)"


def test_moments_are_local() -> None:
    at = 1_700_000_000.7
    assert moment(at) == time.strftime("%Y-%m-%d %H:%M", time.localtime(at))
    assert time_of_day(at) == time.strftime("%H:%M:%S", time.localtime(at))
