"""Numbers and times as they appear on a screen."""

import time

import pytest

from perfbisect.core.domain.orders import Interval
from perfbisect.ui.words import clock, ends, of_day, rate, rough, spent
from perfbisect.wording.text import advised, count, printable


@pytest.mark.parametrize(
    ("minutes", "said"),
    [
        (0.3, "under a minute"),
        (0.8, "about 1 min"),
        (3.6, "about 4 min"),
        (33.0, "about 35 min"),
        (58.0, "about 60 min"),
        (59.9, "about 1 h"),
        (81.0, "about 1 h 20 min"),
        (119.0, "about 2 h"),
        (1000.0, "about 17 h"),
    ],
)
def test_guesses_are_round(minutes: float, said: str) -> None:
    assert rough(minutes) == said


def test_durations() -> None:
    assert [clock(s) for s in (-1.0, 7.9, 750.0, 3723.0)] == ["0:00", "0:07", "12:30", "1:02:03"]
    assert [spent(s) for s in (0.42, 12.3, 205.0)] == ["0.4 s", "12 s", "3:25"]


def test_numbers() -> None:
    assert [rate(v) for v in (12345.4, 87.12, 0.4419, 100.0)] == ["12,345", "87.1", "0.442", "100"]
    assert [count(1, "run"), count(2300, "run"), count(0, "merge")] == ["1 run", "2,300 runs", "0 merges"]
    assert ends(Interval(0.698, 0.712, 0.7264)) == "0.698–0.726"


def test_time_of_day() -> None:
    assert of_day(1_700_000_000.7) == time.strftime("%H:%M:%S", time.localtime(1_700_000_000))


def test_control_characters_become_spaces() -> None:
    assert printable("a\tb\r\nc\x1b[1m\x9b") == "a b c [1m"


def test_a_warning_reads_as_sentences() -> None:
    assert advised("the host is busy", "Look at `top`.") == "the host is busy. Look at `top`."
    assert advised("The host drifts.", "Wait.") == "The host drifts. Wait."
    assert advised("the host drifts", "") == "the host drifts"
