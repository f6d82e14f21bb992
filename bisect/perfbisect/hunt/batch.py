"""Carries out the hunts of a batch, each hunt in a separate process. Hunts run at the same time if they need different
hosts.

An error, a signal or a lack of memory that ends the process of one hunt does not end other hunts. The process of a hunt
runs `bisect run`, and takes the same locks of hosts as a `bisect run` in a terminal. The process of a hunt continues if
the process of the batch is killed. The process of the batch reads the states of the hunts from the history, like
`bisect watch`.

A host measures for one hunt at a time. Hunts begin in the order in which the batch lists them. A hunt does not begin on
a host for which an earlier hunt of the batch waits, so no hunt waits forever. The *home* of a range is the set of hosts
that earlier hunts of this range have used. A hunt that may run on several hosts prefers the home of its range, because
the builds on these hosts can be used again. If all hosts of the home are busy, the hunt takes another host, but only
after hunts of ranges without a home have chosen their hosts.
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

from perfbisect.errors import ENVIRONMENT, INTERRUPTED, EnvironmentFailure, PerfBisectError, as_perfbisect_error
from perfbisect.hunt.watching import POLL_SECONDS, RUNNING, FollowedHunt, View
from perfbisect.recipes.configuration import HOSTS
from perfbisect.recipes.inventory import load_host
from perfbisect.store.batches import Batch, PlannedHunt, end_batch, enter_batch_hunt_status, read_batch
from perfbisect.store.history import History
from perfbisect.store.listing import STATES
from perfbisect.wording.quantities import chance

PROGRAM = (sys.executable, "-P", "-c", "from perfbisect.cli.main import main; main()")
SIGNALLED = 128  # the exit status of a process that signal n has ended is 128 + n
STATUS = {  # state of a hunt of another process → the exit status for this state; other states: 2
    "found": 0, "several": 0, "not reproduced": 1, "code placement": 1, "failed": ENVIRONMENT, "interrupted": INTERRUPTED,
}  # fmt: skip
LEASED = ":"  # the names of leased hosts have this character: slurm:quiet
VERDICTS = (0, 1, 2)  # exit statuses of hunts with a verdict
OF_PYTHON = (1, 2)  # exit statuses that Python also has if it cannot start or cannot import perfbisect
TAIL = 20_000  # bytes at the end of a log, in which the error is looked for

Hosts = tuple[str, ...]


class Stage(StrEnum):
    """The stage of a task."""

    WAITING = "waiting"
    RUNNING = "running"
    ELSEWHERE = "running elsewhere"  # another process has begun the hunt
    ENDED = "ended"


@dataclass(eq=False)
class Task:
    """A hunt that is carried out by a separate process: a hunt of a batch, or an interrupted hunt that is resumed."""

    title: str
    arguments: tuple[str, ...]  # of `bisect run`
    folder: str
    choices: tuple[Hosts, ...]  # the hunt measures on all hosts of one choice
    range: str  # a key that is equal for hunts that can share builds
    batch: int | None = None
    number: int = 0  # the index of the hunt in the batch
    hunt: int | None = None  # the number of the hunt in the history, once the hunt has begun
    stage: Stage = Stage.WAITING
    hosts: Hosts = ()
    status: int | None = None
    failure: str = ""
    unfit: dict[str, str] = field(default_factory=dict)  # unfit host of a former choice → why the host is unfit
    log_start: int = 0  # length of the log, in bytes, when this process began
    process: "subprocess.Popen[bytes] | None" = field(default=None, repr=False)

    @property
    def is_running(self) -> bool:
        """Whether a process works on the hunt."""
        return self.stage in (Stage.RUNNING, Stage.ELSEWHERE)

    def output_file(self, history: History) -> Path:
        """The file with the output of the hunt. Each batch has its own folder for output, because several batches may
        run at the same time."""
        if self.batch:
            return hunt_output_file(history, self.batch, self.number)
        return hunt_output_folder(history) / f"hunt-{self.hunt}.log"


def hunt_output_folder(history: History) -> Path:
    """The folder that contains the output of the hunts of all batches."""
    return history.path.with_name(f"{history.path.stem}-batches")


def hunt_output_file(history: History, batch: int, number: int) -> Path:
    """The file with the output of a hunt in a batch; ``number`` is the position of the hunt in the batch, from 0."""
    return hunt_output_folder(history) / f"b{batch}" / f"{number + 1}.log"


def tasks_of(batch: Batch, history: History, ranges: Sequence[str] = ()) -> list[Task]:
    """The hunts of a batch as tasks; hunts with a verdict are tasks that have ended."""
    tasks = []
    for hunt in batch.hunts:
        planned = hunt.planned
        span = ranges[hunt.number] if ranges else build_sharing_key(planned.folder, planned.arguments[-2:])
        task = Task(
            title_of(planned), planned.arguments, planned.folder, planned.hosts, span, batch.id, hunt.number, hunt.hunt
        )
        if hunt.hunt is not None:
            with suppress(PerfBisectError) if hunt.status in VERDICTS else errors_end_task(task, history):
                task.choices = (history.settings(hunt.hunt).hosts,)
        if hunt.status in VERDICTS:
            task.stage, task.status = Stage.ENDED, hunt.status
        tasks.append(task)
    return tasks


def title_of(planned: PlannedHunt) -> str:
    """The title of a hunt: the system or repository, the workload, and the range."""
    *options, good, bad = planned.arguments
    values = option_values(options)
    system = values.get("builder") or Path(planned.folder, values.get("repo", "")).name
    return " ".join(filter(None, (system, values.get("workload") or values.get("run", ""), f"{good}..{bad}")))


def option_values(arguments: Sequence[str]) -> dict[str, str]:
    """The values of the options of a command line, by the option's name without dashes; options without a value are
    left out."""
    return dict(word.removeprefix("--").split("=", 1) for word in arguments if word.startswith("--") and "=" in word)


def end_batch_if_complete(history: History, number: int) -> Batch:
    """The batch ``number``. If all hunts of the batch have verdicts, the time of the batch's end is stored first."""
    batch = read_batch(history, number)
    if not batch.ended and all(hunt.status in VERDICTS for hunt in batch.hunts):
        end_batch(history, number, time.time())
    return batch


def state_text(task: Task, history: History) -> str:
    """The state of a task in words, such as "running on c8-1"."""
    if task.stage is Stage.WAITING:
        return str(task.stage)
    if task.stage is not Stage.ENDED:
        is_starting = task.stage is Stage.RUNNING and task.hunt is None  # the hunt is not in the history yet
        not_on = f", not on {', '.join(task.unfit)}, which is unfit" if task.unfit else ""
        return f"{'starting' if is_starting else str(task.stage)} on {', '.join(task.hosts)}{not_on}"
    if task.status == INTERRUPTED:
        return "interrupted"
    if task.status in VERDICTS and task.hunt is not None:
        with suppress(PerfBisectError):  # if rows are damaged, only "ended" is shown
            hunt = history.session_summary(task.hunt)
            return f"{hunt.state} {hunt.culprit[:10]} {chance(hunt.probability)}" if hunt.culprit else hunt.state
        return "ended"
    return f"failed: {task.failure or f'status {task.status}'}"


def carry_out(
    tasks: Sequence[Task],
    history: History,
    view: View,
    show: Callable[[], None],
    pause: Callable[[float], None],
    locked_hosts: Callable[[Task, str], Sequence[str]],
) -> None:
    """Carry out all tasks; tasks that need different hosts run at the same time. At the end, ``stage``, ``status`` and
    ``failure`` of each task say how its hunt ended.

    ``show`` is called whenever the state of a task may have changed. ``locked_hosts(task, host)`` returns the hosts
    that the hunt must lock in order to measure on ``host``. After Ctrl-C, raises KeyboardInterrupt when all processes
    have stopped.
    """

    @cache
    def needed_hosts(task: Task, hosts: Hosts) -> Hosts:
        return tuple(dict.fromkeys(locked for host in hosts for locked in locked_hosts(task, host)))

    followed: dict[int, FollowedHunt] = {}
    homes: dict[str, set[Hosts]] = {}
    for task in tasks:
        if task.stage is Stage.WAITING:
            with errors_end_task(task, history):
                # Another process may already work on the hunt.
                claimed = is_begun_without_number(task, history)
                if claimed or (task.hunt is not None and history.session_summary(task.hunt).state == RUNNING):
                    task.stage, task.hosts = Stage.ELSEWHERE, task.choices[0]
    with closing(view), stop_processes_at_end(tasks):
        while any(task.stage is not Stage.ENDED for task in tasks):
            busy = {host for task in tasks if task.is_running for host in needed_hosts(task, task.hosts)}
            waiting = [task for task in tasks if task.stage is Stage.WAITING]
            for task, hosts in tasks_to_start(waiting, busy, homes, needed_hosts).items():
                with errors_end_task(task, history):
                    if remove_unfit_choice(task, hosts, history):
                        continue
                    homes.setdefault(task.range, set()).add(needed_hosts(task, hosts))
                    start_hunt_process(task, hosts, history)
            for task in tasks:
                if task.is_running:
                    follow(task, history, view, followed)
            show()
            if any(task.stage is not Stage.ENDED for task in tasks):
                pause(POLL_SECONDS)


def tasks_to_start(
    waiting: Sequence[Task],
    busy: Collection[str],
    homes: Mapping[str, Collection[Hosts]],
    needed_hosts: Callable[[Task, Hosts], Hosts],
) -> dict[Task, Hosts]:
    """The tasks that can start now, each with the hosts on which it starts.

    ``busy`` are hosts in use. ``homes`` maps each range to the hosts that hunts of this range have used.
    ``needed_hosts(task, hosts)`` returns the hosts that the task must lock in order to measure on ``hosts``.
    """
    busy_hosts, started = set(busy), dict[Task, Hosts]()
    range_homes = {name: set(locked_sets) for name, locked_sets in homes.items()}
    for only_at_home in (True, False):
        held = set(busy_hosts)  # hosts in use, and hosts for which earlier tasks wait
        for task in waiting:
            if task in started:
                continue
            home = range_homes.setdefault(task.range, set())
            locked_of = {hosts: needed_hosts(task, hosts) for hosts in task.choices}
            choices = [hosts for hosts in locked_of if not only_at_home or not home or locked_of[hosts] in home]
            if free := [hosts for hosts in choices if held.isdisjoint(locked_of[hosts])]:
                started[task] = min(free, key=lambda hosts: locked_of[hosts] not in home)
                locked = locked_of[started[task]]
                home.add(locked)
                busy_hosts |= {*locked}
                held |= {*locked}
            elif len(locked_of) == 1:
                held |= {*locked_of[task.choices[0]]}
    return started


@contextmanager
def errors_end_task(task: Task, history: History) -> Iterator[None]:
    """Within the ``with`` block, an error ends only this task, so that other tasks continue. If the task's process
    still runs, the error is ignored."""
    try:
        yield
    except (OSError, PerfBisectError) as error:
        if task.process and task.process.poll() is None:  # the hunt continues; only the view lacks events
            return
        task.stage, task.status, task.failure = Stage.ENDED, ENVIRONMENT, str(as_perfbisect_error(error))
        if task.batch is not None:
            with suppress(PerfBisectError):  # errors of the history
                enter_batch_hunt_status(history, task.batch, task.number, task.status, task.failure)


def is_begun_without_number(task: Task, history: History) -> bool:
    """Whether a process has begun the hunt of a batch, but the hunt has no number in the history yet.

    If the hunt has a number in the history by now, the number is stored in the task.
    """
    if task.hunt is not None or task.batch is None:
        return False
    stored = read_batch(history, task.batch).hunts[task.number]
    if stored.hunt is None and not stored.running:  # the process may have ended after the number was read: read again
        stored = read_batch(history, task.batch).hunts[task.number]
    task.hunt = stored.hunt
    return stored.hunt is None and stored.running


def remove_unfit_choice(task: Task, hosts: Hosts, history: History) -> bool:
    """If the fitness check of one of ``hosts`` failed, remove ``hosts`` from the task's ``choices``. Returns whether
    ``hosts`` were removed.

    If ``hosts`` were always the only choice, they are kept. Raises EnvironmentFailure if no choice is left.
    """
    from perfbisect.hunt.fitness import unfit_hosts  # imported when used, so that `bisect history` answers at once

    unfit = unfit_hosts(history.path, hosts) if len(task.choices) > 1 or task.unfit else {}
    if unfit:
        task.unfit |= unfit
        task.choices = tuple(choice for choice in task.choices if choice != hosts)
    if not task.choices:
        raise EnvironmentFailure("none of its hosts is fit")
    return bool(unfit)


def start_hunt_process(task: Task, hosts: Hosts, history: History) -> None:
    """Start the process of a hunt. The process leads a new process session (setsid), so that Ctrl-C in the terminal
    does not interrupt the hunt."""
    task.hosts, task.stage = hosts, Stage.RUNNING
    options = ("--history", str(history.path.absolute()), "--wait", "--plain")
    if task.hunt is not None:
        words = ["resume", *options, str(task.hunt)]
    else:
        in_batch = ("--in-batch", f"{task.batch}:{task.number}")
        words = ["run", *options, *in_batch, *(f"--host={host}" for host in hosts), *task.arguments]
    file = task.output_file(history)
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("ab") as log:
        task.log_start = log.tell()
        task.process = subprocess.Popen(
            [*PROGRAM, *words],
            cwd=task.folder,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def follow(task: Task, history: History, view: View, followed: dict[int, FollowedHunt]) -> None:
    """Show the new events of a running hunt in the view. If the hunt has ended, store how it ended."""
    status = task.process.poll() if task.process else None
    view_updates: list[Callable[[], None]] = []
    with errors_end_task(task, history):
        if not is_begun_without_number(task, history) and task.hunt is None and task.process is None:
            task.stage, task.hosts = Stage.WAITING, ()  # the other process has ended before the hunt began
        if task.hunt is not None:
            listed = history.session_summary(task.hunt)
            if task.hunt not in followed and listed.state == RUNNING:
                followed[task.hunt] = added = FollowedHunt(history, task.hunt)
                view_updates.append(partial(view.add_earlier_events, task.hunt, [*added.events_of_earlier_attempts()]))
            if task.hunt in followed and (events := [*followed[task.hunt].new()]):
                view_updates.append(partial(view.add_events, task.hunt, events))
            if task.process is None and listed.state != RUNNING:
                status = STATUS.get(listed.state, 2)
    for update_view in view_updates:  # outside of errors_end_task: an error of the view must not end a hunt
        update_view()
    if status is not None and task.stage is not Stage.ENDED:
        with errors_end_task(task, history):
            note_end(task, status, history)


def note_end(task: Task, status: int, history: History) -> None:
    """Store the end of a hunt and the reason of a failure; ``status`` is the exit status of the hunt's process."""
    if status < 0:  # -n: signal n ended the process; a shell would report 128 + n
        task.failure, status = f"killed by signal {-status}", SIGNALLED - status
    if status in OF_PYTHON and (task.hunt is None or history.session_summary(task.hunt).state not in STATES.values()):
        status = ENVIRONMENT
    task.stage, task.status = Stage.ENDED, status
    if status not in VERDICTS:
        task.failure = task.failure or (history.session_summary(task.hunt).failure if task.hunt is not None else "")
        task.failure = task.failure or last_error(task.output_file(history), task.log_start)
    if task.batch is not None:
        stored = None if status == INTERRUPTED else status
        enter_batch_hunt_status(history, task.batch, task.number, stored, task.failure)


def last_error(log: Path, start: int = 0) -> str:
    """The last error message in the log file ``log`` after its first ``start`` bytes; if there is no error message, the
    last line; "" if the file cannot be read."""
    with suppress(OSError), log.open("rb") as file:
        file.seek(max(start, log.stat().st_size - TAIL))
        lines = file.read().decode(errors="replace").splitlines()
        errors = [line.removeprefix("Error: ") for line in lines if line.startswith("Error: ")]
        return (errors or lines or [""])[-1]
    return ""


@contextmanager
def stop_processes_at_end(tasks: Sequence[Task]) -> Iterator[None]:
    """At the end of the ``with`` block, send SIGTERM to the processes that still run, which interrupts their hunts like
    Ctrl-C. SIGINT is not used, because programs that a script has started in the background ignore SIGINT. If the user
    presses Ctrl-C while the processes are stopping, the processes are killed; no data is lost."""
    try:
        yield
    finally:
        running = [task.process for task in tasks if task.process and task.process.poll() is None]
        for process in running:
            process.terminate()
        try:
            for process in running:
                process.wait()
        except KeyboardInterrupt:
            for process in running:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            raise


def build_sharing_key(folder: str, parts: Sequence[object]) -> str:
    """A key that is equal for hunts that can share builds, because folder, system, clone, ends and variant are the
    same."""
    return json.dumps([folder, *map(str, parts)])


def locked_hosts(task: Task, host: str) -> tuple[str, ...]:
    """The hosts that a hunt locks to measure on ``host``: ``host`` and its build hosts, except leased hosts."""
    if LEASED in host:  # a leased host needs no lock: the scheduler's queue decides
        return ()
    hosts_option = option_values(task.arguments).get("hosts", "")
    file = Path(task.folder, hosts_option or HOSTS)
    with suppress(PerfBisectError):  # the hunt itself will raise the error
        builders = load_host(host, str(file) if hosts_option or file.exists() else "").build_hosts_except_itself
        return (host, *(builder for builder in builders if LEASED not in builder))
    return (host,)
