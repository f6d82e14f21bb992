"""A batch: hunts that are carried out by processes of their own, as many at once as their hosts allow.

They are processes and not threads, so that whatever ends one (a signal, a lack of memory, an error) ends no other, that
each is the same as `bisect run` in a terminal, with the same locks, and that they go on where this process ends. The
history is the only channel: what runs, and how it ends, is read from there, as `bisect watch` does.

A host measures for one hunt at a time. Hunts begin in their order in the file, and a later one only on hosts that no
earlier one waits for: so each hunt begins at some time. Where a hunt has a choice of hosts, the first choice is one on which
hunts of its range have been built: they share their builds there. A hunt whose range is at home on a busy host
leaves a free one to a range without a home, and takes it only if no such range waits.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache, partial
from pathlib import Path

from perfbisect.errors import ENVIRONMENT, INTERRUPTED, EnvironmentFailure, PerfBisectError, in_words
from perfbisect.hunt.watching import EVERY, RUNNING, Followed, View
from perfbisect.recipes.configuration import HOSTS
from perfbisect.recipes.inventory import load_host
from perfbisect.store.batches import Batch, PlannedHunt, end_batch, enter_status, read_batch
from perfbisect.store.history import History
from perfbisect.store.listing import STATES
from perfbisect.wording.quantities import chance

PROGRAM = (sys.executable, "-P", "-c", "from perfbisect.cli.main import main; main()")
SIGNALLED = 128  # the exit status of a process that signal n has ended is 128 + n
STATUS = {  # exit status of hunts that another process has worked on, by their states; of others 2
    "found": 0, "several": 0, "not reproduced": 1, "code placement": 1, "failed": ENVIRONMENT, "interrupted": INTERRUPTED,
}  # fmt: skip
LEASED = ":"  # in the name of a host that is leased: slurm:quiet
VERDICTS = (0, 1, 2)  # exit statuses of hunts that have one
OF_PYTHON = (1, 2)  # those of Python itself, where it cannot start or import the program, too
TAIL = 20_000  # bytes at the end of a log in which the error is looked for

Hosts = tuple[str, ...]


class Stage(StrEnum):
    """How far a task is."""

    WAITING = "waiting"
    RUNNING = "running"
    ELSEWHERE = "running elsewhere"  # another process has begun it
    ENDED = "ended"


@dataclass(eq=False)
class Task:
    """One hunt of a batch, or an interrupted one."""

    title: str
    arguments: tuple[str, ...]  # of `bisect run`
    folder: str
    choices: tuple[Hosts, ...]  # it measures on all hosts of one of these
    range: str  # equal for hunts that can share builds
    batch: int | None = None
    place: int = 0  # its number in the batch
    hunt: int | None = None
    stage: Stage = Stage.WAITING
    hosts: Hosts = ()
    status: int | None = None
    failure: str = ""
    unfit: dict[str, str] = field(default_factory=dict)  # host that it has not chosen → why
    logged: int = 0  # bytes that its log had when it was started: what follows is of this process
    process: "subprocess.Popen[bytes] | None" = field(default=None, repr=False)

    @property
    def runs(self) -> bool:
        """Whether a process works on it."""
        return self.stage in (Stage.RUNNING, Stage.ELSEWHERE)

    def log(self, history: History) -> Path:
        """What it prints, and why it failed. Each batch has a folder, as several may be carried out together."""
        return log_of(history, self.batch, self.place) if self.batch else logs_of(history) / f"hunt-{self.hunt}.log"


def logs_of(history: History) -> Path:
    """The folder of what hunts of batches print."""
    return history.path.with_name(f"{history.path.stem}-batches")


def log_of(history: History, batch: int, place: int) -> Path:
    """What a hunt of a batch prints."""
    return logs_of(history) / f"b{batch}" / f"{place + 1}.log"


def tasks_of(batch: Batch, history: History, ranges: Sequence[str] = ()) -> list[Task]:
    """The hunts of a batch that have no verdict yet, and those that have, which are shown only."""
    tasks = []
    for one in batch.hunts:
        planned = one.planned
        span = ranges[one.number] if ranges else range_of(planned.folder, planned.arguments[-2:])
        what = title_of(planned), planned.arguments, planned.folder, planned.hosts, span
        task = Task(*what, batch.id, one.number, one.hunt)
        if one.hunt is not None:
            with suppress(PerfBisectError) if one.status in VERDICTS else failing(task, history):
                task.choices = (history.settings(one.hunt).hosts,)
        if one.status in VERDICTS:
            task.stage, task.status = Stage.ENDED, one.status
        tasks.append(task)
    return tasks


def title_of(planned: PlannedHunt) -> str:
    """The name of a hunt in all lines, before and after it has begun: system or repository, workload, range."""
    *options, good, bad = planned.arguments
    given = values_of(options)
    system = given.get("builder") or Path(planned.folder, given.get("repo", "")).name
    return " ".join(filter(None, (system, given.get("workload") or given.get("run", ""), f"{good}..{bad}")))


def values_of(arguments: Sequence[str]) -> dict[str, str]:
    """The options among these arguments that have a value."""
    return dict(word.removeprefix("--").split("=", 1) for word in arguments if word.startswith("--") and "=" in word)


def read_batch_at_end(history: History, number: int) -> Batch:
    """The batch of that number; enters that it has ended where all of its hunts have verdicts."""
    batch = read_batch(history, number)
    if not batch.ended and all(one.status in VERDICTS for one in batch.hunts):
        end_batch(history, number, time.time())
    return batch


def state_of(task: Task, history: History) -> str:
    """How far a hunt is, in words."""
    if task.stage is Stage.WAITING:
        return str(task.stage)
    if task.stage is not Stage.ENDED:
        begins = task.stage is Stage.RUNNING and task.hunt is None  # not in the history yet
        not_on = f", not on {', '.join(task.unfit)}, which is unfit" if task.unfit else ""
        return f"{'starting' if begins else str(task.stage)} on {', '.join(task.hosts)}{not_on}"
    if task.status == INTERRUPTED:
        return "interrupted"
    if task.status in VERDICTS and task.hunt is not None:
        with suppress(PerfBisectError):  # of damaged rows: its exit status is known
            listed = history.listed(task.hunt)
            return (
                f"{listed.state} {listed.culprit[:10]} {chance(listed.probability)}" if listed.culprit else listed.state
            )
        return "ended"
    return f"failed: {task.failure or f'status {task.status}'}"


def carry_out(
    tasks: Sequence[Task],
    history: History,
    view: View,
    show: Callable[[], None],
    pause: Callable[[float], None],
    locked: Callable[[Task, str], Sequence[str]],
) -> None:
    """Carry out all tasks, as many at once as hosts allow; their stages say how each has ended.

    ``show`` is called when they may have changed, ``locked`` names the hosts that a hunt locks for one of its own; it is asked
    once for each. Raises KeyboardInterrupt when that arrives, once all have stopped.
    """

    @cache
    def needed(task: Task, hosts: Hosts) -> Hosts:
        return tuple(dict.fromkeys(each for host in hosts for each in locked(task, host)))

    followed: dict[int, Followed] = {}
    homes: dict[str, set[Hosts]] = {}
    for task in tasks:
        if task.stage is Stage.WAITING:
            with failing(task, history):
                # Another process may work on it.
                if claimed(task, history) or (task.hunt is not None and history.listed(task.hunt).state == RUNNING):
                    task.stage, task.hosts = Stage.ELSEWHERE, task.choices[0]
    with closing(view), stopped_at_the_end(tasks):
        while any(task.stage is not Stage.ENDED for task in tasks):
            busy = {host for task in tasks if task.runs for host in needed(task, task.hosts)}
            waiting = [task for task in tasks if task.stage is Stage.WAITING]
            for task, hosts in next_ones(waiting, busy, homes, needed).items():
                with failing(task, history):
                    if leave_out(task, hosts, history):
                        continue
                    homes.setdefault(task.range, set()).add(needed(task, hosts))
                    start(task, hosts, history)
            for task in tasks:
                if task.runs:
                    observe(task, history, view, followed)
            show()
            if any(task.stage is not Stage.ENDED for task in tasks):
                pause(EVERY)


def next_ones(
    waiting: Sequence[Task],
    busy: Collection[str],
    homes: Mapping[str, Collection[Hosts]],
    needed: Callable[[Task, Hosts], Hosts],
) -> dict[Task, Hosts]:
    """The hunts that begin now, each with its hosts.

    ``busy`` are hosts in use, ``homes`` the hosts that hunts of each range have used, ``needed`` says what a hunt
    locks to measure on these hosts.
    """
    taken, begun = set(busy), dict[Task, Hosts]()
    known = {name: set(places) for name, places in homes.items()}
    for share in (True, False):
        held = set(taken)  # also what earlier ones wait for
        for task in waiting:
            if task in begun:
                continue
            home = known.setdefault(task.range, set())
            choices = {hosts: needed(task, hosts) for hosts in task.choices}
            wanted = [each for each in choices if not share or not home or choices[each] in home]
            if free := [each for each in wanted if held.isdisjoint(choices[each])]:
                begun[task] = min(free, key=lambda each: choices[each] not in home)
                locked = choices[begun[task]]
                home.add(locked)
                taken |= {*locked}
                held |= {*locked}
            elif len(choices) == 1:
                held |= {*choices[task.choices[0]]}
    return begun


@contextmanager
def failing(task: Task, history: History) -> Iterator[None]:
    """An error within is how this task ends, unless its process is still at work: it stops no other."""
    try:
        yield
    except (OSError, PerfBisectError) as trouble:
        if task.process and task.process.poll() is None:  # only what is shown of it is lost; the next look may succeed
            return
        task.stage, task.status, task.failure = Stage.ENDED, ENVIRONMENT, str(in_words(trouble))
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


def leave_out(task: Task, hosts: Hosts, history: History) -> bool:
    """Whether one of these hosts is unfit, and the hunt may choose another: then it does, with the next look.

    Raises EnvironmentFailure where none is left.
    """
    from perfbisect.hunt.fitness import unfit_hosts  # imported when used: `bisect history` must answer at once

    unfit = unfit_hosts(history.path, hosts) if len(task.choices) > 1 or task.unfit else {}
    if unfit:
        task.unfit |= unfit
        task.choices = tuple(each for each in task.choices if each != hosts)
    if not task.choices:
        raise EnvironmentFailure("none of its hosts is fit")
    return bool(unfit)


def start(task: Task, hosts: Hosts, history: History) -> None:
    """Start the process of a hunt, in a session of its own: Ctrl-C reaches it through this process."""
    task.hosts, task.stage = hosts, Stage.RUNNING
    place = ("--history", str(history.path.absolute()), "--wait", "--plain")
    if task.hunt is not None:
        words = ["resume", *place, str(task.hunt)]
    else:
        member = ("--in-batch", f"{task.batch}:{task.place}")
        words = ["run", *place, *member, *(f"--host={host}" for host in hosts), *task.arguments]
    file = task.log(history)
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


def observe(task: Task, history: History, view: View, followed: dict[int, Followed]) -> None:
    """Read from the history what a hunt that runs does now, and whether it has ended."""
    status = task.process.poll() if task.process else None
    news: list[Callable[[], None]] = []
    with failing(task, history):
        if not claimed(task, history) and task.hunt is None and task.process is None:
            task.stage, task.hosts = Stage.WAITING, ()  # the process elsewhere has ended before the hunt began
        if task.hunt is not None:
            listed = history.listed(task.hunt)
            if task.hunt not in followed and listed.state == RUNNING:
                followed[task.hunt] = Followed(history, task.hunt)
                news.append(partial(view.recall, task.hunt, [*followed[task.hunt].earlier()]))
            if task.hunt in followed and (events := [*followed[task.hunt].new()]):
                news.append(partial(view.show, task.hunt, events))
            if task.process is None and listed.state != RUNNING:
                status = STATUS.get(listed.state, 2)
    for show in news:  # errors of the view are not the hunt's
        show()
    if status is not None and task.stage is not Stage.ENDED:
        with failing(task, history):
            end(task, status, history)


def end(task: Task, status: int, history: History) -> None:
    """Enter how a hunt has ended, and why it failed."""
    if status < 0:  # as a shell tells it
        task.failure, status = f"killed by signal {-status}", SIGNALLED - status
    if status in OF_PYTHON and (task.hunt is None or history.listed(task.hunt).state not in STATES.values()):
        status = ENVIRONMENT
    task.stage, task.status = Stage.ENDED, status
    if status not in VERDICTS:
        task.failure = task.failure or (history.listed(task.hunt).failure if task.hunt is not None else "")
        task.failure = task.failure or error_in(task.log(history), task.logged)
    if task.batch is not None:
        enter_status(history, task.batch, task.place, None if status == INTERRUPTED else status, task.failure)


def error_in(log: Path, start: int = 0) -> str:
    """The last error that a log names after its first ``start`` bytes."""
    with suppress(OSError), log.open("rb") as file:
        file.seek(max(start, log.stat().st_size - TAIL))
        lines = file.read().decode(errors="replace").splitlines()
        errors = [line.removeprefix("Error: ") for line in lines if line.startswith("Error: ")]
        return (errors or lines or [""])[-1]
    return ""


@contextmanager
def stopped_at_the_end(tasks: Sequence[Task]) -> Iterator[None]:
    """Stop what still runs when this ends: as by Ctrl-C, then, at a second one, at once, which loses no more.

    By SIGTERM, as what a script starts in its background ignores SIGINT.
    """
    try:
        yield
    finally:
        left = [task.process for task in tasks if task.process and task.process.poll() is None]
        for process in left:
            process.terminate()
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


def locked_hosts(task: Task, host: str) -> tuple[str, ...]:
    """A host and those that build for it, which a hunt locks; none of those that a scheduler gives out."""
    if LEASED in host:  # its hunt waits in the queue of the scheduler
        return ()
    given = values_of(task.arguments).get("hosts", "")
    file = Path(task.folder, given or HOSTS)
    with suppress(PerfBisectError):  # which its hunt will tell
        builders = load_host(host, str(file) if given or file.exists() else "").built_elsewhere
        return (host, *(builder for builder in builders if LEASED not in builder))
    return (host,)
