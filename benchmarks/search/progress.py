"""How far a benchmark is and how long it will take, told to whoever watches."""

import sys
import time
from collections import Counter
from collections.abc import Sequence

Task = tuple[str, str, list[int]]  # cell, rule, seeds
EVERY = 60.0  # seconds between two lines where nobody watches
WATCHED = 1.0


class Progress:
    """Counts tasks; the time left is guessed from the mean time of a hunt by each rule."""

    def __init__(self, tasks: Sequence[Task], jobs: int) -> None:
        self._left = Counter[str]()  # hunts by rule
        for _, rule, seeds in tasks:
            self._left[rule] += len(seeds)
        self._jobs = jobs
        self._total = self._left.total()
        self._played = Counter[str]()
        self._seconds = dict.fromkeys(self._left, 0.0)
        self._watched = sys.stderr.isatty()
        self._told = time.monotonic()

    def add(self, task: Task, seconds: float) -> None:
        """One task is done."""
        _, rule, seeds = task
        self._left[rule] -= len(seeds)
        self._played[rule] += len(seeds)
        self._seconds[rule] += seconds
        if time.monotonic() - self._told > (WATCHED if self._watched else EVERY):
            self._told = time.monotonic()
            line = f"{self._played.total()} of {self._total} hunts, about {self.minutes_left():.0f} minutes left"
            print(
                f"\r\x1b[K{line}" if self._watched else line,
                end="" if self._watched else "\n",
                file=sys.stderr,
                flush=True,
            )

    def minutes_left(self) -> float:
        """A rule that has not played yet is taken for an average one."""
        usual = sum(self._seconds.values()) / max(self._played.total(), 1)
        each = {rule: self._seconds[rule] / self._played[rule] if self._played[rule] else usual for rule in self._left}
        return sum(each[rule] * hunts for rule, hunts in self._left.items()) / self._jobs / 60

    def end(self) -> None:
        """Say how it went: hunts by rule and what one took, and what is left."""
        if self._watched and self._total:
            print("\r\x1b[K", end="", file=sys.stderr)
        for rule, hunts in self._played.items():
            print(f"{rule}: {hunts} hunts, {self._seconds[rule] / hunts:.3f} s each", file=sys.stderr)
        if left := self._left.total():
            print(
                f"Stopped with {left} of {self._total} hunts left, about {self.minutes_left():.0f} minutes.",
                file=sys.stderr,
            )
