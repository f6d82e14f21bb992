"""Many simulated hunts: is the stated confidence the truth, and is little spent for it?"""

import math
from collections.abc import Iterator

import numpy as np
import pytest

from perfbisect.core.domain.graph import Graph
from perfbisect.core.domain.orders import Found, Inconclusive, NotReproduced
from perfbisect.core.domain.settings import Policy, PriorKnowledge
from perfbisect.simulate.hunt import Outcome, hunt
from perfbisect.simulate.world import Habits, World

HUNTS = 40

STEADY = Habits(noise=0.01)
NOISY = Habits(noise=0.1, drift=0.08, drift_memory=6, run_seconds=1, build_seconds=5)
PHASES = Habits(noise=0.05, phases=(0.3, -0.2, 15), run_seconds=1, build_seconds=5)
DRIFTING = Habits(noise=0.03, drift=0.02)
TWO_SPEEDS = Habits(noise=0.01, second_speed=(0.3, -0.04))
JUMPING = Habits(noise=0.01, jumps=(1 / 3600, 0.04))

pytestmark = [pytest.mark.calibration, pytest.mark.slow]


def hunts(commits: int, effect: float, habits: Habits, decoys: bool = False) -> Iterator[tuple[int, Outcome]]:
    """The culprit and the outcome of each of HUNTS hunts."""
    prior = PriorKnowledge(build_cost=habits.build_seconds / habits.run_seconds)
    for seed in range(HUNTS):
        rng = np.random.default_rng([seed, commits])
        culprit, drop = int(rng.integers(1, commits + 1)), -math.log1p(-effect)
        steps = {culprit: -drop}
        for share in (-0.35, 0.3, -0.2) if decoys else ():
            decoy = int(rng.integers(1, commits + 1))
            steps[decoy] = steps.get(decoy, 0.0) + share * drop
        yield culprit, hunt(World(Graph.line(commits), steps, habits, seed=seed), Policy(), prior)


@pytest.mark.parametrize(
    ("commits", "effect", "habits", "decoys", "runs"),
    [
        pytest.param(1000, 0.10, STEADY, False, 30, id="steady"),
        pytest.param(1000, 0.05, STEADY, True, 60, id="decoys"),
        pytest.param(1000, 0.10, DRIFTING, True, 60, id="drift and decoys"),
        pytest.param(60, 0.30, NOISY, True, 70, id="noisy and decoys"),
        pytest.param(60, 0.25, PHASES, False, 45, id="phases"),
        pytest.param(1000, 0.10, TWO_SPEEDS, False, 40, id="two speeds"),
        pytest.param(1000, 0.10, JUMPING, False, 45, id="jumps"),
    ],
)
def test_named_culprits_are_right(commits: int, effect: float, habits: Habits, decoys: bool, runs: float) -> None:
    named, right, stated, spent = 0, 0, [], []
    for culprit, outcome in hunts(commits, effect, habits, decoys):
        spent.append(outcome.runs)
        match outcome.verdict:
            case Found(step):
                named += 1
                right += step.candidate == culprit
                stated.append(step.probability)
            case Inconclusive(candidates):
                assert culprit in candidates
    assert named >= 0.9 * HUNTS
    doubt = float(np.sum(1 - np.array(stated)))  # as many errors as this were announced
    assert named - right <= doubt + 2 * math.sqrt(doubt) + 0.5
    assert np.mean(spent) <= runs


@pytest.mark.parametrize("habits", [STEADY, NOISY, PHASES, DRIFTING], ids=["steady", "noisy", "phases", "drifting"])
def test_nothing_is_found_where_there_is_nothing(habits: Habits) -> None:
    outcomes = [outcome for _, outcome in hunts(60, 0.0, habits)]
    verdicts = [outcome.verdict for outcome in outcomes]
    assert np.mean([outcome.runs for outcome in outcomes]) <= 34
    assert sum(isinstance(verdict, NotReproduced) for verdict in verdicts) >= HUNTS - 3
    assert sum(isinstance(verdict, Found) for verdict in verdicts) <= 1


@pytest.mark.parametrize("commits", [1, 2])
def test_a_short_range_is_no_evidence_of_a_change(commits: int) -> None:
    """With one candidate there is no doubt who it would be, only whether anything changed: layout alone is no proof."""
    habits = Habits(noise=0.01, layout=0.01)
    verdicts = [outcome.verdict for _, outcome in hunts(commits, 0.0, habits)]
    assert sum(isinstance(verdict, Found) for verdict in verdicts) <= 2


def test_what_runs_cannot_decide_ends() -> None:
    """A drop of 8 % where runs vary by 13 %: often too little to find, never a reason to go on for ever."""
    outcomes = [outcome for _, outcome in hunts(60, 0.08, Habits(noise=0.13, run_seconds=1, build_seconds=5))]
    assert max(outcome.runs for outcome in outcomes) < 900
    assert np.mean([outcome.runs for outcome in outcomes]) < 250
