"""What hunts of several workloads over one range will cost, before they begin.

Builds: each halves the part of the range in which a culprit is. As long as several culprits are in one part, a build
halves it for all of them; culprits at different commits soon lie in different parts. Runs: those that tell most for their
price, by the formulas of ``acquisition.py``, and those of the ends and the proof.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from perfbisect.core.search import mutual_information
from perfbisect.core.search.acquisition import BUILD_EXPONENT, RUNS

LAYOUT = 0.005  # s.d. of a build
# Runs that the ends and the proof take where the drop is at least CLEAR times the noise; smaller ones take more, until they
# are given up. As simulated hunts through 20 to 1,000 commits spent for drops of 2, 3, 5 and 10 times a noise of 1 %.
FIXED, CLEAR, MOST_FIXED = 12.0, 6.0, 80.0


@dataclass(frozen=True, slots=True)
class Foreseen:
    """What a group of hunts will probably cost, its ends included."""

    fewest: float  # builds, where one commit changed all workloads
    most: float  # builds, where each was changed by another commit
    runs: float


def foreseen(candidates: int, drops: Sequence[float], noises: Sequence[float], build_runs: float) -> Foreseen:
    """The cost for workloads that lost these shares (0.05: 5 %) with these s.d. of a run; all above 0, as are the candidates.

    ``build_runs`` is what a build costs, in runs. Every build is taken to work.
    """
    runs = sum(runs_of_one(candidates, drop, noise, build_runs) for drop, noise in zip(drops, noises, strict=True))
    return Foreseen(builds(candidates, min(len(drops), 1)), builds(candidates, len(drops)), runs)


def builds(candidates: int, culprits: int) -> float:
    """The mean number of builds, the two ends included, that find so many culprits at independent places of a line.

    Without noise no rule needs less, but for half a per cent; merges change it little.
    """
    if not culprits:
        return 2.0
    halvings = math.log2(candidates)
    whole = int(halvings)
    parts = [_occupied(level, culprits) for level in range(whole + 1)]
    return 2 + sum(parts[:whole]) + (halvings - whole) * parts[whole]


def _occupied(level: int, culprits: int) -> float:
    """How many of the parts that so many halvings make have a culprit, on average."""
    parts = 2.0**level
    return float(-parts * math.expm1(culprits * math.log1p(-1 / parts))) if level else 1.0


def runs_of_one(candidates: int, drop: float, noise: float, build_runs: float) -> float:
    """The runs of the hunt of one workload."""
    size = -math.log1p(-drop) / noise
    gain = mutual_information.bits(np.full(len(RUNS), 0.5), size**2 / (2 * (LAYOUT / noise) ** 2 + 1 / RUNS))
    best = int((gain / (build_runs**BUILD_EXPONENT + RUNS)).argmax())
    fixed = min(FIXED * max(1.0, (CLEAR / size) ** 2), MOST_FIXED)
    return fixed + float(RUNS[best] / gain[best]) * math.log2(candidates)
