"""What the search knows: readings, failures and equal binaries, in the order in which they happened.

The list of observations is the whole state of a hunt between two decisions.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Reading:
    """One timed run of a build."""

    candidate: int
    value: float  # natural logarithm of the metric
    at: float  # minutes since the hunt began, at the middle of the run
    visit: int  # runs with the same number share one start of the server
    host: int = 0
    seconds: float = 1.0  # cost of the run, with its share of the visit
    bound: int = (
        0  # of a run that was stopped as too slow: -1 if the value was at most that, +1 if at least; 0: it is exact
    )
    layout: int = 0  # 0: the build as it is linked; n: linked again, its functions in another order by seed n


@dataclass(frozen=True, slots=True)
class Built:
    """A candidate was built; ``same_as`` is an earlier candidate with the same binary, if there is one."""

    candidate: int
    seconds: float
    same_as: int | None = None
    host: int | None = None  # which has it; None: every host
    fixed: bool = False  # it cannot be linked again in other layouts, though that was wanted
    build_host: int | None = None  # which made it, with a compiler cache of its own; None: the host that measures it


@dataclass(frozen=True, slots=True)
class Skipped:
    """A candidate cannot be measured: it does not build or start, or it crashes. It never counts as slow."""

    candidate: int
    reason: str
    seconds: float = 0.0
    left_out: bool = False  # by --skip: nothing was tried, so it is no evidence that others fail


Observation = Reading | Built | Skipped
