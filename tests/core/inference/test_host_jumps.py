"""A host that jumps: ratios are those of the builds, or are not stated; where nothing jumped, nothing changes."""

import math
from collections.abc import Sequence

import numpy as np
import pytest

from perfbisect.core.domain.settings import Policy
from perfbisect.core.inference.host_jumps import split_hosts_at_jumps
from perfbisect.core.inference.noise_model import EXACT, USUAL
from perfbisect.core.inference.observations import Reading
from perfbisect.core.inference.record import arrange_observations
from perfbisect.core.inference.relative_speed import candidate_ratios

LEVELS = {0: 0.0, 9: -0.05, 3: 0.0, 6: -0.05, 7: -0.05}
HALF = math.log(0.5)
ENDS = [0, 9, 9, 0] * 2


def runs(plan: Sequence[int], slow: Sequence[int], noise: float = 0.01) -> list[Reading]:
    """Runs of the builds of ``plan``, a minute apart, those at the places ``slow`` at half of the host's speed."""
    own = np.random.default_rng(2).normal(size=len(plan)) * noise
    values = [7.0 + LEVELS[build] + wobble for build, wobble in zip(plan, own, strict=True)]
    return [
        Reading(build, value + HALF * (at in slow), float(at), at)
        for at, (build, value) in enumerate(zip(plan, values, strict=True))
    ]


@pytest.mark.parametrize("jump", [8, 14])
def test_a_build_that_was_run_on_one_side_of_a_jump_alone_is_compared_with_runs_of_that_side(jump: int) -> None:
    plan = [*ENDS, 3, 0, 3, 0, 3, 0, 6, 9, 0, 6, 9, 0, 6]
    for slow in (range(jump), range(jump, len(plan))):
        found = candidate_ratios(runs(plan, slow), 9)
        for build, ratio in found.items():
            assert ratio.low < math.exp(LEVELS[build]) < ratio.high
            assert ratio.high - ratio.low < 0.06
        assert found.keys() == {3, 6, 9}


def test_a_build_that_no_run_ties_to_good_has_no_interval() -> None:
    """Of its runs at the jump nobody knows on which side they were."""
    plan = [*ENDS, 3, 3, 9, 0, 0, 9, 6, 0, 6]
    found = candidate_ratios(runs(plan, range(8, len(plan))), 9)
    assert found.keys() == {6, 9} and found[6].low < math.exp(-0.05) < found[6].high < 1


def test_between_two_jumps_a_part_alone_is_slow() -> None:
    plan = [*ENDS, 3, 0, 3, 6, 9, 6, 0, 9, 0, 9, 0, 9, *ENDS, 7, 9, 0, 7]
    found = candidate_ratios(runs(plan, range(8, 20)), 9)
    assert {build: ratio.middle for build, ratio in found.items()} == pytest.approx(
        {build: math.exp(LEVELS[build]) for build in (3, 6, 7, 9)}, abs=0.02
    )


@pytest.mark.parametrize(("slow", "drift"), [((), 0.0), ((5,), 0.0), ((2, 11), 0.0), ((), 0.02)])
def test_noise_single_slow_runs_and_drift_are_no_jumps(slow: tuple[int, ...], drift: float) -> None:
    drifting = [
        Reading(one.candidate, one.value - drift * one.at, one.at, one.visit) for one in runs([*ENDS, 3, 0, 3, 9], slow)
    ]
    record = arrange_observations(drifting, Policy(), 9)
    assert split_hosts_at_jumps(record, USUAL) is record


def test_counts_and_rounds_do_not_depend_on_the_speed_of_the_host() -> None:
    record = arrange_observations(runs(ENDS * 2, range(8, 16)), Policy(), 9)
    assert split_hosts_at_jumps(record, USUAL) is not record
    assert split_hosts_at_jumps(record, EXACT) is split_hosts_at_jumps(record, USUAL.for_paired_runs) is record
