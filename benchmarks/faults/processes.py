"""The processes of a hunt, found in /proc."""

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class Process:
    """A process that lives."""

    pid: int
    name: str
    words: tuple[str, ...]  # its command line

    @property
    def is_leader(self) -> bool:
        """Whether it leads a job of perfbisect."""
        return self.words[:2] == ("sh", "-c") and self.words[3:4] == ("leader",)

    def send(self, number: signal.Signals) -> bool:
        """Send a signal; False when the process has ended."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)
            return True
        return False

    def __str__(self) -> str:
        words = " ".join(word if len(word) < 60 else f"{word[:20]}…" for word in self.words)
        return f"{self.pid} {self.name}: {words}"


def marked(mark: str) -> Iterator[Process]:
    """Processes that have ``mark`` in their command line, environment or folder."""
    for folder in _folders():
        with suppress(OSError):
            of_process = (folder / "cmdline").read_bytes() + (folder / "environ").read_bytes()
            if mark.encode() in of_process or mark in str((folder / "cwd").readlink()):
                yield from _read(folder)


def in_space(pid: int) -> Iterator[Process]:
    """Processes in the pid namespace of the process ``pid``."""
    space = (PROC / str(pid) / "ns" / "pid").readlink()
    for folder in _folders():
        with suppress(OSError):
            if (folder / "ns" / "pid").readlink() == space:
                yield from _read(folder)


def is_handling(pid: int, number: signal.Signals) -> bool:
    """Whether a process has a handler for a signal."""
    return bool(int(_status(pid, "SigCgt") or "0", 16) >> (number - 1) & 1)


def peak_memory(pid: int) -> int:
    """Bytes that a process had in memory at most; 0 when it has ended."""
    return int((_status(pid, "VmHWM") or "0 kB").split()[0]) * 1024


def _status(pid: int, name: str) -> str:
    """A field of a process's status; "" when it has ended."""
    with suppress(OSError):
        for line in (PROC / str(pid) / "status").read_text(errors="replace").splitlines():
            if line.startswith(f"{name}:"):
                return line.partition(":")[2].strip()
    return ""


def _folders() -> Iterator[Path]:
    return (folder for folder in PROC.iterdir() if folder.name.isdecimal())


def _read(folder: Path) -> Iterator[Process]:
    words = (folder / "cmdline").read_bytes().decode(errors="replace").split("\0")[:-1]
    state = (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()[0]
    if state not in "ZX":
        yield Process(int(folder.name), (folder / "comm").read_text().strip(), tuple(words))
