"""How often the proof of a culprit passes by chance."""

import math

import numpy as np
import pytest

from perfbisect.core.search.verdicts import PROVEN, _centre, _variance


@pytest.mark.parametrize("runs", [2, 3, 4, 5, 7, 16])
def test_a_proof_by_chance_is_as_rare_as_its_standard_errors_say(runs: int) -> None:
    """Of culprits that do not differ from their parents, of known noise: 1.4 % are 2.2 standard errors away, 0.023 % 3.5."""
    values, samples = np.random.default_rng(runs).normal(size=(2, 20_000, runs)), 20_000
    far = [(_centre(low) - _centre(high)) / math.sqrt(2 * _variance(runs)) for low, high in zip(*values, strict=True)]
    assert np.std(far) == pytest.approx(1.0, abs=0.015)
    assert sum(each > PROVEN for each in far) / samples == pytest.approx(0.0139, abs=0.003)
