"""The time of this process: seconds since the epoch that never jump.

The clock of the machine is read once. From then on passes what has passed, time in suspension included, also when that
clock is set. So differences are durations.
"""

import time


class Clock:
    """Begins with the time of the machine."""

    def __init__(self) -> None:
        self._begin = time.time() - elapsed()

    def now(self) -> float:
        """Seconds since the epoch."""
        return self._begin + elapsed()

    def go_on_from(self, at: float) -> None:
        """Never return less than ``at``: an earlier process may have recorded it before the clock was set back."""
        self._begin = max(self._begin, at - elapsed())


def elapsed() -> float:
    """Seconds since the machine was started."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


CLOCK = Clock()
