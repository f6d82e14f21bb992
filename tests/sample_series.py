"""A series of releases that was never measured, with the steps that a test wants."""

import math
import random

import sample_hunt as sample
from perfbisect.core.domain.settings import Series, TrialBuild, TrialRequest, TrialType, TrialWorkload
from perfbisect.core.domain.trials import Trial, TrialRun, order

WORKS = ("scan", "update-index", "point-query")


def series(
    steps: dict[str, tuple[tuple[int, float], ...]],
    *,
    releases: int = 20,
    rounds: int = 4,
    gaps: tuple[int, ...] = (),
    metric: str = "qps",
    noise: float = 0.01,
    lost: tuple[tuple[int, int], ...] = (),
) -> Trial:
    """A series on a machine that is slower from round to round; ``lost`` are visits (round, release) that failed."""
    chance = random.Random(5)
    builds = tuple(TrialBuild(f"1.{number}", trouble="error" if number in gaps else "") for number in range(releases))
    works = tuple(TrialWorkload(name, "all", 1.0, 1.0) for name in WORKS)
    asked = Series(f"1.0..1.{releases - 1}", (("1.3.1", "a pre-release"),), ("--builder", "demo"))
    request = TrialRequest(TrialType.COMPARE, "demo", "", "local", metric, {}, builds, works, rounds, 1, series=asked)
    trial = Trial(1, request, sample.HOST, 0.0, state="done")
    for number in range(rounds):
        for work, name in enumerate(WORKS):
            for release in order(range(releases), number, shuffled=True):
                if release in gaps or (number, release) in lost:
                    continue
                log = -0.3 * number + chance.gauss(0, noise)
                log += sum(size for place, size in steps.get(name, ()) if place <= release)
                run = sample.run(0, 0.0, qps=1e4 * math.exp(log))
                trial.runs.append(TrialRun(number, work, release, 0.0, 1.0, run))
    return trial
