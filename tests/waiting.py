"""Waiting in tests: for conditions, processes of this machine, and generators."""

import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import TypeVar

PATIENCE = 600  # seconds; far more than a busy machine needs


def until(condition: Callable[[], object]) -> None:
    """Wait for a condition."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


def ended(pid: int | str) -> bool:
    """Whether a process has ended. A zombie has ended, too: an init process may not wait for its children."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return True


def processes(mark: str) -> dict[int, str]:
    """The command lines that contain ``mark``, with a NUL after each word, of processes that run."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command = (folder / "cmdline").read_text(errors="replace")
        except OSError:
            continue
        if mark in command:
            found[int(folder.name)] = command
    return found


Item = TypeVar("Item")
Result = TypeVar("Result")


def finish(generator: Generator[Item, None, Result]) -> tuple[list[Item], Result]:
    """The items that a generator yields, and its return value."""
    items = []
    while True:
        try:
            items.append(next(generator))
        except StopIteration as end:
            return items, end.value
