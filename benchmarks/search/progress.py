"""The progress of a benchmark, and the time that is left, on standard error."""

import sys
import time
from collections import Counter
from collections.abc import Sequence

Task = tuple[str, str, list[int]]  # cell, rule, seeds
EVERY = 60.0  # seconds between two lines in a log
ON_TERMINAL = 1.0  # the same on a terminal, where a line replaces the one before


class Progress:
    """Counts tasks; estimates the time left from the mean time of a hunt by each rule."""

    def __init__(self, tasks: Sequence[Task], jobs: int) -> None:
        self._left = Counter[str]()  # hunts by rule
        for _, rule, seeds in tasks:
            self._left[rule] += len(seeds)
        self._jobs = jobs
        self._total = self._left.total()
        self._played = Counter[str]()
        self._seconds = dict.fromkeys(self._left, 0.0)
        self._terminal = sys.stderr.isatty()
        self._last = time.monotonic()

    def add(self, task: Task, seconds: float) -> None:
        """One task is done."""
        _, rule, seeds = task
        self._left[rule] -= len(seeds)
        self._played[rule] += len(seeds)
        self._seconds[rule] += seconds
        if time.monotonic() - self._last > (ON_TERMINAL if self._terminal else EVERY):
            self._last = time.monotonic()
            line = f"{self._played.total()} of {self._total} hunts, about {self.minutes_left():.0f} minutes left"
            print(f"\r\x1b[K{line}" if self._terminal else f"{line}\n", end="", file=sys.stderr, flush=True)

    def minutes_left(self) -> float:
        """The estimate; a rule that has not played yet counts as an average one."""
        usual = sum(self._seconds.values()) / max(self._played.total(), 1)
        each = {rule: self._seconds[rule] / self._played[rule] if self._played[rule] else usual for rule in self._left}
        return sum(each[rule] * hunts for rule, hunts in self._left.items()) / self._jobs / 60

    def end(self) -> None:
        """Print the hunts by rule, their mean time, and what is left."""
        if self._terminal and self._total:
            print("\r\x1b[K", end="", file=sys.stderr)
        for rule, hunts in self._played.items():
            print(f"{rule}: {hunts} hunts, {self._seconds[rule] / hunts:.3f} s each", file=sys.stderr)
        if left := self._left.total():
            rest = f"{left} of {self._total} hunts left, about {self.minutes_left():.0f} minutes"
            print(f"Stopped with {rest}.", file=sys.stderr)
