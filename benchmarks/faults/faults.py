"""What is done to a hunt: each fault, and the moments at which it can happen."""

import signal
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Protocol

from places import Disk, Far, Place
from processes import Process
from session import Session

KILL, STOP, CONT, TERM = signal.SIGKILL, signal.SIGSTOP, signal.SIGCONT, signal.SIGTERM
COMPILERS = {"make", "gcc", "cc", "cc1", "as", "collect2", "ld", "ccache"}
LONGEST_FREEZE = 4.0  # seconds
LONGEST_CUT = 12.0
FLOODS = 10e6, 300e6  # bytes, the least and the most
STYLES = ("lines", "one", "binary", "rates", "errors")


class Stage(Protocol):
    """A hunt that takes place."""

    place: Place
    state: Disk  # with the history
    random: Random
    session: Session

    def later(self, seconds: float, undo: Callable[[], object]) -> None:
        """Call ``undo`` after so many seconds, or before the next session that has to end well."""

    def workers(self) -> list[Process]:
        """Its processes, but for the controllers."""

    def second_controller(self) -> bool:
        """Resume the hunt while a controller already works on it; False when it is in no history yet."""

    def executions(self, kind: str) -> int:
        """How many runs or builds have begun."""

    def saved(self) -> object:
        """Changes with each write to the history."""


@dataclass(frozen=True, slots=True)
class Moment:
    """When a fault happens: at random up to ``spread`` seconds after what ``sign`` returns has changed.

    Without a sign the last fault, or the start of the session, is what it follows.
    """

    name: str
    spread: float
    sign: Callable[[Stage], object] | None = None


ANY = Moment("any time", 3.0)
BURST = Moment("just after another", 0.2)
LOCKING = Moment("locking", 0.05, lambda stage: (stage.place.root / "lock").exists())
SENDING = Moment("sources", 0.4, lambda stage: (stage.place.root / "git").exists())
BUILDING = Moment("build", 0.3, lambda stage: stage.executions("build"))
RUNNING = Moment("run", 0.2, lambda stage: stage.executions("run"))
SAVING = Moment("saving", 0.01, lambda stage: stage.saved())
ALL_MOMENTS = (ANY, ANY, BURST, LOCKING, SENDING, BUILDING, RUNNING, SAVING)

Act = Callable[[Stage], bool]
"""Lets the fault happen; False where it found nothing to happen to."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault."""

    name: str
    act: Act
    moments: tuple[Moment, ...] = ALL_MOMENTS
    far: bool = False  # only over ssh


def kill_controller(stage: Stage) -> bool:
    """As the kernel does when memory runs out."""
    return stage.session.send(KILL)


def interrupt(stage: Stage) -> bool:
    """One signal that a user may send, or two: the second may be ``kill -9``."""
    if not stage.session.is_up():
        return False
    session, several = stage.session, (signal.SIGINT, TERM, signal.SIGHUP)
    sent = session.send(stage.random.choice(several))
    if stage.random.random() < 0.3:
        again = stage.random.choice((*several, KILL))
        stage.later(stage.random.uniform(0, 0.8), lambda: session.is_up() and session.send(again))
    return sent


def kill(fits: Callable[[Process], bool]) -> Act:
    """Kill one of the processes that fit."""

    def act(stage: Stage) -> bool:
        found = [each for each in stage.workers() if fits(each)]
        return bool(found) and stage.random.choice(found).send(KILL)

    return act


def freeze(fits: Callable[[Process], bool]) -> Act:
    """Stop one of the processes that fit, for a while."""

    def act(stage: Stage) -> bool:
        found = [each for each in stage.workers() if fits(each)]
        return bool(found) and _freeze(stage, stage.random.choice(found))

    return act


def freeze_controller(stage: Stage) -> bool:
    """A controller that is suspended."""
    return not stage.session.poll() and _freeze(stage, Process(stage.session.pid, "", ()))


def full_root(stage: Stage) -> bool:
    """No space below the root of the host."""
    return _fill(stage, stage.place.disk, 1 << 20)


def full_history(stage: Stage) -> bool:
    """No space for the history."""
    return _fill(stage, stage.state, 1 << 15)


def flood(kind: str) -> Act:
    """Order the next run or build to flood its output."""

    def act(stage: Stage) -> bool:
        least, most = FLOODS
        size = least * (most / least) ** stage.random.random()
        order = stage.place.side / f"flood-{kind}"
        order.with_suffix(".new").write_text(f"{size:.0f} {stage.random.choice(STYLES)}\n")
        order.with_suffix(".new").rename(order)
        return True

    return act


def second_controller(stage: Stage) -> bool:
    """Two controllers on one hunt; the first may be killed in the same moment."""
    first = stage.session
    if not stage.second_controller():
        return False
    if stage.random.random() < 0.5:
        first.send(KILL)
    return True


def cut_link(stage: Stage) -> bool:
    """The link is down for a while."""
    machine = _far(stage).machine
    machine.link("down")
    stage.later(stage.random.uniform(0.1, 1) ** 2 * LONGEST_CUT, lambda: machine.link("up"))
    return True


def kill_sshd(stage: Stage) -> bool:
    """All of sshd ends, with its connections."""
    _far(stage).machine.kill_sshd()
    return True


def kill_connection(stage: Stage) -> bool:
    """One connection ends."""
    sessions = _far(stage).sessions()
    return bool(sessions) and stage.random.choice(sessions).send(KILL)


def freeze_connection(stage: Stage) -> bool:
    """A connection that does not answer."""
    sessions = _far(stage).sessions()
    return bool(sessions) and _freeze(stage, stage.random.choice(sessions))


def restart(stage: Stage) -> bool:
    """All processes of the host end at once."""
    _far(stage).restart()
    return True


def _freeze(stage: Stage, process: Process) -> bool:
    if not process.send(STOP):
        return False
    stage.later(stage.random.uniform(0.05, 1) ** 2 * LONGEST_FREEZE, lambda: process.send(CONT))
    return True


def _fill(stage: Stage, disk: Disk, most: int) -> bool:
    disk.fill(int(most * stage.random.random() ** 3))
    stage.later(stage.random.uniform(0.1, 3), disk.free)
    return True


def _far(stage: Stage) -> Far:
    assert isinstance(stage.place, Far)
    return stage.place


def _is_run(process: Process) -> bool:
    return process.name == "bench"


def _is_compiler(process: Process) -> bool:
    return process.name in COMPILERS


def _is_leader(process: Process) -> bool:
    return process.is_leader


def _is_any(process: Process) -> bool:
    return process.name != "sshd"


_WORK = (RUNNING, RUNNING, BUILDING)

FAULTS: Sequence[Fault] = (
    Fault("kill -9 of the controller", kill_controller),
    Fault("signals to the controller", interrupt),
    Fault("kill -9 of the benchmark", kill(_is_run), (RUNNING,)),
    Fault("kill -9 of a compiler", kill(_is_compiler), (BUILDING,)),
    Fault("kill -9 of a job's leader", kill(_is_leader), _WORK),
    Fault("kill -9 of any process", kill(_is_any)),
    Fault("freeze the controller", freeze_controller),
    Fault("freeze the benchmark", freeze(_is_run), (RUNNING,)),
    Fault("freeze a job's leader", freeze(_is_leader), _WORK),
    Fault("freeze any process", freeze(_is_any)),
    Fault("full disk of the host", full_root),
    Fault("full disk of the history", full_history),
    Fault("flooding run", flood("run"), (ANY,)),
    Fault("flooding build", flood("build"), (ANY,)),
    Fault("two controllers", second_controller),
    Fault("cut link", cut_link, far=True),
    Fault("kill -9 of sshd", kill_sshd, far=True),
    Fault("kill -9 of a connection", kill_connection, far=True),
    Fault("freeze a connection", freeze_connection, far=True),
    Fault("restart of the host", restart, far=True),
)


def chosen(words: Iterable[str]) -> tuple[Fault, ...]:
    """The faults whose names contain one of the words; all without any."""
    words = tuple(words)
    return tuple(fault for fault in FAULTS if not words or any(word in fault.name for word in words))
