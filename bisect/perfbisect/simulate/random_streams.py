"""Randomness of a simulated world: one generator for each purpose, so that no draw disturbs another.

Two rules that search the same world in different ways then find the same culprit, the same layouts, the same drift at
the same hour, and the same noise in the n-th run of a build.
"""

from enum import IntEnum

import numpy as np


class Purpose(IntEnum):
    """What is drawn."""

    CULPRIT = 0
    DECOYS = 1
    FAILURES = 2
    BINARIES = 3
    LAYOUT = 4
    BUILD = 5
    NOISE = 6
    DRIFT = 7
    JUMPS = 8
    PHASES = 9
    DAY = 10
    RAMP = 11
    HOST = 12
    RULE = 13
    GRAPH = 14
    FLAKES = 15
    VISITS = 16
    NEUTRAL = 17
    MODES = 18
    LINKS = 19


def generator(seed: int, purpose: Purpose, which: int = 0) -> np.random.Generator:
    """The generator of one purpose; ``which`` is the number of a host or a build."""
    return np.random.default_rng([seed, int(purpose), which])
