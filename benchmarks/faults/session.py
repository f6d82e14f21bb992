"""One start of the program: its process, its output, its exit status, the memory that it took."""

import json
import os
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import processes
from processes import Process

_MAIN = "from perfbisect.cli.main import main; main()"
# Lost connections are given up after seconds in place of minutes, so that a link can be down for longer.
_IMPATIENT = "from perfbisect.host import remote as c; c.SILENCE, c.PATIENCE = 3, 4; "
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
    memory: int = 0  # bytes at the peak, as of the last poll
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
            signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # ignored in the background, and under nohup
            pid = os.posix_spawnp("env", argv, env, file_actions=actions, setsid=True, setsigdef=signals)
        finally:
            os.close(target)
            os.close(nothing)
        return cls(tuple(words), output, pid)

    def poll(self) -> bool:
        """Whether it has ended."""
        if self.status is None:
            self.memory = processes.peak_memory(self.pid) or self.memory
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.status = os.waitstatus_to_exitcode(status)
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

    def rates(self) -> set[float]:
        """The rates of the runs that it has shown."""
        found = set()
        for line in self._lines():
            if line.startswith('{"event":"RunFinished"') and line.endswith("}"):  # not cut short by its end
                found.add(float(json.loads(line)["facts"]["reported"]))
        return found

    def messages(self) -> list[str]:
        """What it has printed beside events."""
        return [line for line in self._lines() if not line.startswith("{")]

    def last_words(self) -> str:
        """The end of that."""
        return " / ".join(self.messages()[-4:])

    def _lines(self) -> Iterator[str]:
        with self.output.open(errors="replace") as output:
            for line in output:
                yield line.removesuffix("\n")
