"""How long a hunt will still take."""

import numpy as np
import pytest

from perfbisect.core.domain.orders import Belief, Interval
from perfbisect.ui.estimate import CONFIRMING, RUNS_PER_BIT, Pace, bits, remaining, within


def belief(*culprit: float) -> Belief:
    return Belief(np.array(culprit), 0.99, 0.01, Interval(0.6, 0.7, 0.8))


def test_bits_are_the_questions_still_open() -> None:
    assert bits(belief(0.0, 1.0, 0.0)) == 0.0
    assert bits(belief(0.0, *[1 / 16] * 16)) == pytest.approx(4.0)
    assert bits(belief(0.0, 3.0, 3.0)) == pytest.approx(1.0)  # need not be normalised


def test_a_first_guess_before_anything_was_gained() -> None:
    pace = Pace(searching=0.0, gained=0.0, build=2.0, run=0.5)
    assert remaining(5.0, pace, False) == pytest.approx(5 * (2.0 + RUNS_PER_BIT * 0.5) + CONFIRMING * 0.5)


def test_what_bits_have_cost_outweighs_the_guess() -> None:
    guess = Pace(searching=0.0, gained=0.0, build=2.0, run=0.5)
    dear = Pace(searching=90.0, gained=9.0, build=2.0, run=0.5)  # 10 minutes a bit against a guess of 4
    assert remaining(1.0, guess, False) < remaining(1.0, dear, False) < 10.0 + CONFIRMING * 0.5


def test_lost_bits_do_not_turn_time_around() -> None:
    assert remaining(2.0, Pace(10.0, -3.0, 1.0, 1.0), False) > 0


def test_a_confirmation_under_way_is_half_done() -> None:
    pace = Pace(10.0, 5.0, 1.0, 1.0)
    assert remaining(0.0, pace, True) == remaining(0.0, pace, False) / 2


def test_how_many_candidates_hold_most_of_it() -> None:
    assert within(belief(0.0, 0.96, 0.02, 0.02), 0.95) == 1
    assert within(belief(0.0, *[0.1] * 10), 0.95) == 10
