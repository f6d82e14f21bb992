"""When the builds that are being made ahead will be there, by what builds have cost so far."""

import numpy as np
from numpy.typing import NDArray

from perfbisect.core.domain.fleet import Building
from perfbisect.core.search.build_cost import price
from perfbisect.core.search.situation import Situation

Array = NDArray[np.float64]

OVERDUE = 0.1  # of the expected time: what is still expected of a build that has taken longer than that


def remaining(now: Situation) -> dict[int, float]:
    """For each candidate in flight, the runs that its build will still take."""
    return {one.candidate: left(now, one) for one in now.fleet.building if not one.cancelled}


def left(now: Situation, one: Building) -> float:
    """The runs that a build in flight will still take."""
    expected = float(price(now.record, now.build_runs, [one.candidate], np.ones(1), build_host=one.build_host)[0])
    return max(expected - one.seconds / now.record.run_seconds, OVERDUE * expected)


def attempt(now: Situation, candidates: list[int], chance: Array, build_host: int) -> Array:
    """The expected cost in runs to build each of ``candidates`` on a build host."""
    return price(now.record, now.build_runs, candidates, chance, build_host=build_host)


def waiting(now: Situation, candidates: list[int], chance: Array) -> Array:
    """The runs until the build of each of ``candidates``, none of which is there, can be: in flight, or begun now.

    ``chance`` is the probability that each builds.
    """
    fleet, soon = now.fleet, remaining(now)
    hosts = fleet.free_build_hosts or tuple(h for h in range(fleet.build_hosts) if h not in fleet.gone_build_hosts)
    cost = np.min([attempt(now, candidates, chance, host) for host in hosts], axis=0)
    result: Array = np.array([soon.get(v, full) for v, full in zip(candidates, cost.tolist(), strict=True)])
    return result
