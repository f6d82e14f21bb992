"""One hunt, begun, disturbed and resumed until it has a verdict."""

import os
import signal
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from checks import check, leftovers
from faults import Fault, Moment
from history import Kept, read_history
from ledger import Ledger, read_ledger
from places import Disk, Far, Place
from processes import Process
from session import VERDICTS, Session

from repository import BUILD, RATE, RUN, Range, make_repository

MOST_FAULTS = 12  # of one hunt
PATIENCE = 6.0  # seconds that a fault waits for its moment
STUCK = 240.0  # seconds without the end of a session
CURED = 3  # sessions in a row that may fail although nothing disturbs them: the next ones find what is left


@dataclass(slots=True)
class Outcome:
    """A hunt that has ended."""

    seed: str
    far: bool
    faults: Counter[str]
    moments: Counter[str]
    sessions: int
    runs: int  # that printed a rate
    entered: int  # of them in the history
    memory: int  # bytes at the peak of a controller
    flooded: bool
    troubles: list[str]


@dataclass
class Hunt:
    """A hunt that takes place; see ``faults.Stage``."""

    seed: str
    place: Place
    state: Disk
    folder: Path
    faults: Sequence[Fault]

    def __post_init__(self) -> None:
        """Write the repository; nothing is started."""
        self.random = Random(self.seed)
        self.mark = f"hunt-{self.seed}-"
        self.folder.mkdir()
        self.place.renew(self.mark)
        self.repository = self.folder / "repo"
        self.span: Range = make_repository(self.repository, self.random)
        (self.folder / "hosts.toml").write_text(self.place.inventory())
        (self.folder / "tmp").mkdir()
        (self.folder / "sessions").mkdir()
        self.history = self.state.folder / self.mark / "history.db"
        self.session: Session
        self.impatient = isinstance(self.place, Far) and self.random.random() < 0.5
        self.sessions: list[Session] = []
        self.met: Counter[str] = Counter()
        self.moments: Counter[str] = Counter()
        self.undoing: list[tuple[float, Callable[[], object]]] = []
        self.seen: dict[int, tuple[str, str]] = {}  # events of the history, when a session had ended
        self.troubles: list[str] = []
        self._next: tuple[Fault, Moment] | None = None
        self._before: object = None
        self._due = self._armed = 0.0

    # What faults do

    def later(self, seconds: float, undo: Callable[[], object]) -> None:
        """See ``Stage``."""
        self.undoing.append((time.monotonic() + seconds, undo))

    def workers(self) -> list[Process]:
        """See ``Stage``."""
        controllers = {session.pid for session in self.sessions}
        return [each for each in self.place.processes() if each.pid not in controllers]

    def second_controller(self) -> bool:
        """See ``Stage``."""
        first, kept = self.session, self._read()
        if not (kept and kept.hunts):
            return False
        self._start()
        if self.random.random() < 0.5:  # which of them is disturbed from now on
            self.session = first
        return True

    def executions(self, kind: str) -> int:
        """See ``Stage``."""
        ledger = self.place.side / "ledger"
        return ledger.read_text().count(f"begin {kind} ") if ledger.exists() else 0

    def saved(self) -> object:
        """See ``Stage``."""
        log = self.history.with_name("history.db-wal")
        return log.stat().st_mtime_ns if log.exists() else None

    # The course of the hunt

    def play(self) -> Outcome:
        """Hunt to a verdict; then check everything."""
        failures = 0
        self._start()
        while True:
            self._undo(time.monotonic())
            if all(session.poll() for session in self.sessions):
                self._look()
                if any(session.status in VERDICTS for session in self.sessions):
                    break
                failures = 0 if self.session.faults else failures + 1
                if failures > CURED:
                    self.troubles.append(f"no resume cures it: {self.session.last_words()}")
                    break
                if failures or self.random.random() < 0.7:
                    self._undo()
                self._start()
            elif time.monotonic() - self._started > STUCK:
                self.troubles.append(f"it hangs: {self.session.last_words()}")
                break
            elif self.faults and self.met.total() < MOST_FAULTS:
                self._disturb()
            time.sleep(0.004)
        self._undo()
        self._finish()
        taken = [path.name.split("-")[1] for path in self.place.side.glob("flooded-*")]
        for kind in taken:
            self.met[f"flooding {kind}"] += 1
        return Outcome(
            self.seed,
            isinstance(self.place, Far),
            self.met,
            self.moments,
            len(self.sessions),
            len(self.ledger.ended_runs),
            self.entered,
            max(session.memory for session in self.sessions),
            bool(taken),
            self.troubles,
        )

    def _start(self) -> None:
        kept = self._read()
        words = self._resume() if kept and kept.hunts else self._run()
        output = self.folder / "sessions" / f"{len(self.sessions):02}"
        self.session = Session.start(words, output, self._env(), self.repository, impatient=self.impatient)
        self.sessions.append(self.session)
        self._started = time.monotonic()
        self._next = None

    def _run(self) -> list[str]:
        commands = ["--build", BUILD.format(side=self.place.side), "--run", RUN.format(side=self.place.side)]
        where = ["--host", self.place.name, "--hosts", str(self.folder / "hosts.toml"), "--history", str(self.history)]
        ends = [self.span.commits[0], self.span.commits[-1]]
        return ["run", *ends, *commands, "--rate", RATE, "--min-effect", "10%", *where, "--json"]

    def _resume(self) -> list[str]:
        return ["resume", "--history", str(self.history), "--json"]

    def _env(self) -> Mapping[str, str]:
        folders = {f"XDG_{name}_HOME": str(self.folder / name.lower()) for name in ("CONFIG", "CACHE", "STATE")}
        own = {"HOME": str(self.place.home), "TMPDIR": str(self.folder / "tmp"), "FAULTS_HUNT": self.mark}
        return {"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8", **folders, **own}

    def _disturb(self) -> None:
        """Let the next fault happen if its moment has come."""
        now = time.monotonic()
        if self._next is None:
            fault = self.random.choice(self.faults)
            moment = self.random.choice(fault.moments)
            self._next = fault, moment
            self._before, self._armed = moment.sign and moment.sign(self), now
            self._due = 0.0 if moment.sign else now + self.random.uniform(0, moment.spread)
        fault, moment = self._next
        if moment.sign and not self._due and (moment.sign(self) != self._before or now - self._armed > PATIENCE):
            self._due = now + self.random.uniform(0, moment.spread)
        if not self._due or now < self._due:
            return
        self._next = None
        session = self.session
        if fault.act(self):
            session.faults += 1
            if not fault.name.startswith("flooding"):  # these are counted when they happen
                self.met[fault.name] += 1
            self.moments[moment.name] += 1

    def _undo(self, until: float | None = None) -> None:
        """End the faults that last, by default all of them."""
        due = [entry for entry in self.undoing if until is None or entry[0] <= until]
        for entry in due:
            self.undoing.remove(entry)
            entry[1]()
            for session in self.sessions:
                if session.status is None:
                    session.faults += 1

    def _look(self) -> None:
        """What a session has kept must be kept by the next."""
        if not (kept := self._read()):
            if self.seen:
                self.troubles.append("the history is gone")
            return
        if lost := [entry for entry, row in self.seen.items() if kept.events.get(entry) != row]:
            self.troubles.append(f"{len(lost)} events of the history are gone or changed: {lost[:5]}")
        self.seen = dict(kept.events)

    def _read(self) -> Kept | None:
        """The history; for that, its disk has space."""
        self.state.free()
        try:
            return read_history(self.history)
        except sqlite3.DatabaseError as error:
            self.troubles.append(f"the history cannot be read: {error}")
            return None

    def _finish(self) -> None:
        for session in self.sessions:
            if not session.wait(60):
                self.troubles.append("a second controller does not end")
                session.send(signal.SIGKILL)
                session.wait(10)
        self.ledger: Ledger = read_ledger(self.place.side / "ledger")
        kept = self._read()
        self.entered = len(kept.runs) if kept else 0
        self.troubles += check(kept, self.ledger, self.span, self.sessions)
        self.troubles += leftovers(self.place, self.folder / "tmp", self.sessions, cut=self.met["cut link"] > 0)
