"""Hosts whose speed jumps: ratios of builds stay correct, or are not given. Without a jump, nothing changes."""

import math
from collections.abc import Sequence

import numpy as np
import pytest

from perfbisect.core.domain.settings import Policy
from perfbisect.core.inference.host_jumps import split_hosts_at_jumps
from perfbisect.core.inference.noise_model import EXACT, USUAL
from perfbisect.core.inference.observations import Reading
from perfbisect.core.inference.record import arrange_observations
from perfbisect.core.inference.relative_speed import ratios_of_candidates_to_good

LEVELS = {0: 0.0, 9: -0.05, 3: 0.0, 6: -0.05, 7: -0.05}
HALF = math.log(0.5)
ENDS = [0, 9, 9, 0] * 2


def runs(plan: Sequence[int], slow: Sequence[int], noise: float = 0.01) -> list[Reading]:
    """Runs of the builds of ``plan``, one a minute. At the indices ``slow``, the host has half its speed."""
    own = np.random.default_rng(2).normal(size=len(plan)) * noise
    values = [7.0 + LEVELS[build] + wobble for build, wobble in zip(plan, own, strict=True)]
    return [
        Reading(build, value + HALF * (at in slow), float(at), at)
        for at, (build, value) in enumerate(zip(plan, values, strict=True))
    ]


@pytest.mark.parametrize("jump", [8, 14])
def test_build_run_on_one_side_of_a_jump_is_compared_on_that_side(jump: int) -> None:
    plan = [*ENDS, 3, 0, 3, 0, 3, 0, 6, 9, 0, 6, 9, 0, 6]
    for slow in (range(jump), range(jump, len(plan))):
        found = ratios_of_candidates_to_good(runs(plan, slow), 9)
        for build, ratio in found.items():
            assert ratio.low < math.exp(LEVELS[build]) < ratio.high
            assert ratio.high - ratio.low < 0.06
        assert found.keys() == {3, 6, 9}


def test_build_whose_runs_may_be_on_either_side_of_a_jump_has_no_interval() -> None:
    """The jump is next to the only runs of build 3."""
    plan = [*ENDS, 3, 3, 9, 0, 0, 9, 6, 0, 6]
    found = ratios_of_candidates_to_good(runs(plan, range(8, len(plan))), 9)
    assert found.keys() == {6, 9} and found[6].low < math.exp(-0.05) < found[6].high < 1


def test_ratios_are_correct_if_the_host_is_slow_between_two_jumps() -> None:
    plan = [*ENDS, 3, 0, 3, 6, 9, 6, 0, 9, 0, 9, 0, 9, *ENDS, 7, 9, 0, 7]
    found = ratios_of_candidates_to_good(runs(plan, range(8, 20)), 9)
    assert {build: ratio.middle for build, ratio in found.items()} == pytest.approx(
        {build: math.exp(LEVELS[build]) for build in (3, 6, 7, 9)}, abs=0.02
    )


@pytest.mark.parametrize(("slow", "drift"), [((), 0.0), ((5,), 0.0), ((2, 11), 0.0), ((), 0.02)])
def test_noise_single_slow_runs_and_drift_are_no_jumps(slow: tuple[int, ...], drift: float) -> None:
    drifting = [
        Reading(run.candidate, run.value - drift * run.at, run.at, run.visit) for run in runs([*ENDS, 3, 0, 3, 9], slow)
    ]
    record = arrange_observations(drifting, Policy(), 9)
    assert split_hosts_at_jumps(record, USUAL) is record


def test_counts_and_paired_runs_are_not_split_at_jumps() -> None:
    record = arrange_observations(runs(ENDS * 2, range(8, 16)), Policy(), 9)
    assert split_hosts_at_jumps(record, USUAL) is not record
    assert split_hosts_at_jumps(record, EXACT) is split_hosts_at_jumps(record, USUAL.for_paired_runs) is record
