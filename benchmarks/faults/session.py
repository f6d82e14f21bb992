"""One start of the program: its process, its output, its exit status, the memory that it took."""

import json
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import processes
from processes import Process

_MAIN = "from perfbisect.cli.main import main; main()"
# Lost connections are given up after seconds in place of minutes, so that a link can be down for longer.
_IMPATIENT = "from perfbisect.host import ssh_connection as c; c.SILENCE, c.PATIENCE = 3, 4; "
ENDED_BY_US = {-signal.SIGKILL}
DOCUMENTED = {0, 1, 2, 4, 130}
VERDICTS = {0, 1, 2}


@dataclass(slots=True)
class Session:
    """A process of the program."""

    words: tuple[str, ...]
    output: Path  # events as JSON, and messages
    pid: int
    status: int | None = None  # None: it runs
    memory: int = 0  # bytes at the peak, once it has ended
    faults: int = 0  # that happened while it ran

    @classmethod
    def start(
        cls, words: Sequence[str], output: Path, env: Mapping[str, str], folder: Path, *, impatient: bool
    ) -> "Session":
        """Start the program in ``folder``."""
        code = (_IMPATIENT if impatient else "") + _MAIN
        target = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        nothing = os.open(os.devnull, os.O_RDONLY)
        actions = [
            (os.POSIX_SPAWN_DUP2, nothing, 0),
            (os.POSIX_SPAWN_DUP2, target, 1),
            (os.POSIX_SPAWN_DUP2, target, 2),
        ]
        argv = ["env", f"--chdir={folder}", sys.executable, "-c", code, *words]
        try:
            pid = os.posix_spawnp("env", argv, env, file_actions=actions, setsid=True)
        finally:
            os.close(target)
            os.close(nothing)
        return cls(tuple(words), output, pid)

    def poll(self) -> bool:
        """Whether it has ended."""
        if self.status is None:
            pid, status, usage = os.wait4(self.pid, os.WNOHANG)
            if pid:
                self.status, self.memory = os.waitstatus_to_exitcode(status), usage.ru_maxrss * 1024
        return self.status is not None

    def wait(self, seconds: float) -> bool:
        """Wait for its end, for so long; whether it has ended."""
        deadline = time.monotonic() + seconds
        while not self.poll():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.01)
        return True

    def send(self, number: signal.Signals) -> bool:
        """Send it a signal; False when it has ended."""
        return not self.poll() and Process(self.pid, "", ()).send(number)

    def is_up(self) -> bool:
        """Whether it answers signals itself: before, the interpreter does."""
        return not self.poll() and processes.is_handling(self.pid, signal.SIGTERM)

    def events(self) -> list[dict[str, Any]]:
        """The events that it has shown."""
        found = []
        for line in self.text().splitlines():
            if line.startswith("{"):
                try:
                    found.append(json.loads(line))
                except ValueError:  # it was killed while it wrote
                    continue
        return found

    def text(self) -> str:
        """All that it has printed."""
        return self.output.read_text(errors="replace")

    def last_words(self) -> str:
        """The last that it has printed beside events."""
        lines = [line for line in self.text().splitlines() if not line.startswith("{")]
        return " / ".join(lines[-4:])
