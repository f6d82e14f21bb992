"""Carries out hunts, each as a process of its own.

They are processes and not threads, so that whatever ends one (a signal, a lack of memory, an error) ends no other, that
each is the same as `bisect run` in a terminal, with the same locks, and that they go on where this process ends. The
history is the only channel: what runs, and how it ends, is read from there, as `bisect watch` does.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Protocol

from perfbisect.core.domain.events import Event
from perfbisect.errors import ENVIRONMENT, INTERRUPTED, PerfBisectError, in_words
from perfbisect.hunt.batches.order import Waiting, next_ones
from perfbisect.hunt.watching import EVERY, RUNNING, Followed
from perfbisect.store.batches import enter_status, read_batch
from perfbisect.store.history import History

PROGRAM = (sys.executable, "-P", "-c", "from perfbisect.cli.main import main; main()")
SIGNALLED = 128  # the exit status of a process that signal n has ended is 128 + n
TAIL = 20_000  # bytes at the end of a log in which the error is looked for

TimedEvent = tuple[float, Event]


@dataclass
class Task:
    """One hunt of a batch, or an interrupted one."""

    number: int
    title: str
    arguments: tuple[str, ...]  # of `bisect run`
    folder: str
    choices: tuple[tuple[str, ...], ...]  # it measures on all hosts of one of these
    range: str  # equal for hunts that can share builds
    batch: int | None = None
    place: int = 0  # its number in the batch
    hunt: int | None = None
    state: str = "waiting"
    hosts: tuple[str, ...] = ()
    status: int | None = None
    failure: str = ""
    logged: int = 0  # bytes that its log had when it was started: what follows is of this process
    process: "subprocess.Popen[bytes] | None" = field(default=None, repr=False)


class BatchView(Protocol):
    """Shows several hunts."""

    def recall(self, hunt: int, events: Iterator[TimedEvent]) -> None:
        """Take the events of earlier sessions of a hunt that begins or goes on."""

    def show(self, hunt: int, events: Sequence[TimedEvent]) -> None:
        """Take events of its present session."""

    def states(self, tasks: Sequence[Task]) -> None:
        """Take the states of all."""

    def close(self) -> None:
        """Leave the terminal as it was."""


def carry_out(
    tasks: Sequence[Task],
    history: History,
    logs: Path,
    view: BatchView,
    pause: Callable[[float], None],
    locked: Callable[[Task, str], Sequence[str]],
) -> None:
    """Carry out all tasks, as many at once as hosts allow; their states say how each has ended.

    ``logs`` is a folder for what they print, ``locked`` names the hosts that a hunt locks for one of its own; it is asked
    once for each. Raises KeyboardInterrupt when that arrives, once all have stopped.
    """

    @cache
    def needed(number: int, hosts: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(dict.fromkeys(each for host in hosts for each in locked(tasks[number], host)))

    followed: dict[int, Followed] = {}
    homes: dict[str, set[tuple[str, ...]]] = {}
    for task in tasks:
        if task.state == "waiting":
            with failing(task, history):
                find_elsewhere(task, history)
    with closing(view), stopped_at_the_end(tasks):
        while any(task.state != "ended" for task in tasks):
            begin(tasks, history, logs, homes, needed)
            for task in tasks:
                observe(task, history, logs, view, followed)
            view.states(tasks)
            if any(task.state != "ended" for task in tasks):
                pause(EVERY)


def begin(
    tasks: Sequence[Task],
    history: History,
    logs: Path,
    homes: dict[str, set[tuple[str, ...]]],
    needed: Callable[[int, tuple[str, ...]], tuple[str, ...]],
) -> None:
    """Start what can be started now; ``needed`` says what the hunt of that number locks to measure on these hosts."""
    busy = {host for task in tasks if task.state.startswith("running") for host in needed(task.number, task.hosts)}
    waiting = [
        Waiting(task.number, tuple(needed(task.number, hosts) for hosts in task.choices), task.range)
        for task in tasks
        if task.state == "waiting"
    ]
    for number, hosts in next_ones(waiting, busy, homes):
        homes.setdefault(tasks[number].range, set()).add(hosts)
        task = tasks[number]
        with failing(task, history):
            start(task, next(each for each in task.choices if needed(number, each) == hosts), history, logs)


@contextmanager
def failing(task: Task, history: History) -> Iterator[None]:
    """An error within is how this task ends, unless its process is still at work: it stops no other."""
    try:
        yield
    except (OSError, PerfBisectError) as trouble:
        if task.process and task.process.poll() is None:  # only what is shown of it is lost; the next look may succeed
            return
        task.state, task.status, task.failure = "ended", ENVIRONMENT, str(in_words(trouble))
        if task.batch is not None:
            with suppress(PerfBisectError):  # of the history itself
                enter_status(history, task.batch, task.place, task.status, task.failure)


def claimed(task: Task, history: History) -> bool:
    """Whether a process works on a hunt of a batch that has no number yet; takes the number where it has one now."""
    if task.hunt is not None or task.batch is None:
        return False
    one = read_batch(history, task.batch).hunts[task.place]
    if one.hunt is None and not one.running:  # or its process has entered the number between the look at either
        one = read_batch(history, task.batch).hunts[task.place]
    task.hunt = one.hunt
    return one.hunt is None and one.running


def find_elsewhere(task: Task, history: History) -> None:
    """Enter that another process works on a hunt, if one does."""
    if claimed(task, history) or (task.hunt is not None and history.listed(task.hunt).state == RUNNING):
        task.state, task.hosts = "running elsewhere", task.choices[0]


def start(task: Task, hosts: tuple[str, ...], history: History, logs: Path) -> None:
    """Start the process of a hunt, in a session of its own: Ctrl-C reaches it through this process."""
    task.hosts, task.state = hosts, "running"
    place = ("--history", str(history.path.absolute()), "--wait", "--plain")
    if task.hunt is not None:
        words = ["resume", *place, str(task.hunt)]
    else:
        member = ("--in-batch", f"{task.batch}:{task.place}")
        words = ["run", *place, *member, *(f"--host={host}" for host in hosts), *task.arguments]
    file = log_of(task, logs)
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("ab") as log:
        task.logged = log.tell()
        task.process = subprocess.Popen(
            [*PROGRAM, *words],
            cwd=task.folder,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def log_of(task: Task, logs: Path) -> Path:
    """What a hunt prints, and why it failed. Each batch has a folder, as several may be carried out together."""
    return logs / f"b{task.batch}" / f"{task.place + 1}.log" if task.batch else logs / f"hunt-{task.hunt}.log"


def observe(task: Task, history: History, logs: Path, view: BatchView, followed: dict[int, Followed]) -> None:
    """Read from the history what a hunt does now, and whether it has ended."""
    if not task.state.startswith("running"):
        return
    status = task.process.poll() if task.process else None
    earlier: list[TimedEvent] | None = None
    events: list[TimedEvent] = []
    with failing(task, history):
        if not claimed(task, history) and task.hunt is None and task.process is None:
            task.state, task.hosts = "waiting", ()  # the process elsewhere has ended before the hunt began
        if task.hunt is not None:
            listed = history.listed(task.hunt)
            if task.hunt not in followed and listed.state == RUNNING:
                found = Followed(history, task.hunt)
                earlier = [*found.earlier()]
                followed[task.hunt] = found
            if task.hunt in followed:
                events = [*followed[task.hunt].new()]
            if task.process is None and listed.state != RUNNING:
                status = status_of(listed.state)
    if task.hunt is not None and earlier is not None:  # errors of the view are not the hunt's
        view.recall(task.hunt, iter(earlier))
    if task.hunt is not None and events:
        view.show(task.hunt, events)
    if status is not None and task.state != "ended":
        with failing(task, history):
            end(task, status, history, logs)


def end(task: Task, status: int, history: History, logs: Path) -> None:
    """Enter how a hunt has ended, and why it failed."""
    if status < 0:  # as a shell tells it
        task.failure, status = f"killed by signal {-status}", SIGNALLED - status
    task.state, task.status = "ended", status
    if status not in (0, 1, 2):
        task.failure = task.failure or (history.listed(task.hunt).failure if task.hunt is not None else "")
        task.failure = task.failure or error_in(log_of(task, logs), task.logged)
    if task.batch is not None:
        enter_status(history, task.batch, task.place, None if status == INTERRUPTED else status, task.failure)


def status_of(state: str) -> int:
    """The exit status that a hunt had which another process worked on."""
    match state:
        case "found" | "several":
            return 0
        case "not reproduced" | "code placement":
            return 1
        case "failed":
            return 4
        case "interrupted":
            return INTERRUPTED
        case _:
            return 2


def error_in(log: Path, start: int = 0) -> str:
    """The last error that a log names after its first ``start`` bytes."""
    with suppress(OSError), log.open("rb") as file:
        file.seek(max(start, log.stat().st_size - TAIL))
        lines = file.read().decode(errors="replace").splitlines()
        errors = [line.removeprefix("Error: ") for line in lines if line.startswith("Error: ")]
        return errors[-1] if errors else (lines[-1] if lines else "")
    return ""


@contextmanager
def stopped_at_the_end(tasks: Sequence[Task]) -> Iterator[None]:
    """Stop what still runs when this ends: as by Ctrl-C, then, at a second one, at once, which loses no more."""
    try:
        yield
    finally:
        left = [task.process for task in tasks if task.process and task.process.poll() is None]
        for process in left:
            process.send_signal(signal.SIGINT)
        try:
            for process in left:
                process.wait()
        except KeyboardInterrupt:
            for process in left:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            raise


def range_of(folder: str, parts: Sequence[object]) -> str:
    """A name for hunts that can share builds: those of one folder and the same system, clone, ends and variant."""
    return json.dumps([folder, *map(str, parts)])
