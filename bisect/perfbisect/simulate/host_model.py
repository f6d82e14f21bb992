"""How a simulated host and its workload disturb readings, and how long builds and runs take."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Habits:
    """Fractions are changes or s.d. of the log metric, times are seconds; 0 disables a habit."""

    noise: float = 0.01  # s.d. of a run
    slow_noise: float = 1.0  # the same of builds with the culprit in them, as a multiple
    layout: float = 0.005  # s.d. of a build: repeating its runs does not average it away
    # layouts have two modes besides, this far apart: from, to. Neighbours share theirs, until a commit switches it
    modes: tuple[float, float] = (0.0, 0.0)
    mode_length: tuple[float, float] = (20.0, 200.0)  # commits from one switch to the next: from, to
    visits: float = 0.0  # s.d. of a visit: all runs of one start of the server share it
    outliers: float = 0.02  # share of runs that are slowed down, typically by ten times the noise
    lucky: float = 0.0  # share of the outliers that are sped up instead
    second_speed: tuple[float, float] = (0.0, 0.0)  # share of runs, change
    second_build: tuple[float, float] = (0.0, 0.0)  # share of builds, all of whose runs have a change
    drift: float = 0.0  # s.d. of a stationary drift
    drift_memory: float = 7200.0
    ramp: float = 0.0  # change an hour, up or down
    daily: float = 0.0  # amplitude of a cycle of 24 hours
    jumps: tuple[float, float] = (0.0, 0.0)  # abrupt lasting changes: rate per second, s.d.
    phases: tuple[float, float, float] = (0.0, 0.0, 1.0)  # a second speed for a while: share of time, change, length
    host_spread: float = 0.0  # s.d. between hosts
    bad_host: float = 1.0  # noise of host 1, as a multiple
    run_seconds: float = 60.0
    build_seconds: float = 600.0  # of a build with an empty compiler cache
    cached_share: float = 1.0  # of that, for a build next to an existing one; the rest grows with distance
    cache_reach: float = 180.0  # distance in candidates from which the compiler cache is of no use
    link_seconds: float = 0.0  # to link a build again, with a layout of its own
    flaky: float = 0.0  # share of attempts to build that fail by chance; never of the ends
    failed_share: float = 1.0  # time of a build that fails, as a share of one that works
