"""How much of a belief is still open."""

import numpy as np
import pytest

from perfbisect.core.domain.orders import Belief, Interval
from perfbisect.ui.view_model import bits, within


def belief(*culprit: float) -> Belief:
    return Belief(np.array(culprit), 0.99, 0.01, Interval(0.6, 0.7, 0.8))


def test_bits_are_the_questions_still_open() -> None:
    assert bits(belief(0.0, 1.0, 0.0)) == 0.0
    assert bits(belief(0.0, *[1 / 16] * 16)) == pytest.approx(4.0)
    assert bits(belief(0.0, 3.0, 3.0)) == pytest.approx(1.0)  # need not be normalised


def test_how_many_candidates_hold_most_of_it() -> None:
    assert within(belief(0.0, 0.96, 0.02, 0.02), 0.95) == 1
    assert within(belief(0.0, *[0.1] * 10), 0.95) == 10
