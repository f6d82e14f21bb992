"""What `bisect batch` and `bisect resume --all` share: hunts are carried out, shown, and their ends are told."""

import os
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from perfbisect.cli.options.common import say
from perfbisect.errors import INTERRUPTED, Interrupted, PerfBisectError
from perfbisect.hunt.batches.carry_out import BatchView, Task, TimedEvent, carry_out, failing, log_of, range_of
from perfbisect.report.command_line import command_on, command_to_show
from perfbisect.store.batches import Batch, Planned, end_batch, read_batch
from perfbisect.store.history import History
from perfbisect.ui.batch import BatchLines, BatchScreen, Row
from perfbisect.ui.stream import note
from perfbisect.wording.quantities import MISSING, chance, count
from perfbisect.wording.text import printable

LEASED = ":"  # in the name of a host that is leased: slurm:quiet
VERDICTS = (0, 1, 2)  # exit statuses of hunts that have one


class Shown:
    """A view of a batch, with the states of its hunts in words."""

    def __init__(self, view: BatchScreen | BatchLines, history: History) -> None:
        self.view = view
        self.history = history

    def recall(self, hunt: int, events: "Sequence[TimedEvent] | object") -> None:
        """Take the events of earlier sessions of a hunt."""
        self.view.recall(hunt, events)  # type: ignore[arg-type]

    def show(self, hunt: int, events: Sequence[TimedEvent]) -> None:
        """Take events of its present session."""
        self.view.show(hunt, events)

    def states(self, tasks: Sequence[Task]) -> None:
        """Take the states of all."""
        self.view.states([row(task, self.history) for task in tasks])

    def close(self) -> None:
        """Leave the terminal as it was."""
        self.view.close()


def row(task: Task, history: History) -> Row:
    """The line of a hunt."""
    return task.title, task.hunt, state_of(task, history)


def state_of(task: Task, history: History) -> str:
    """How far a hunt is, in words."""
    if task.state == "waiting":
        return "waiting"
    if task.state != "ended":
        state = "starting" if task.state == "running" and task.hunt is None else task.state  # not in the history yet
        return f"{state} on {', '.join(task.hosts)}"
    if task.status == INTERRUPTED:
        return "interrupted"
    if task.status in VERDICTS and task.hunt is not None:
        with suppress(PerfBisectError):  # of damaged rows: its exit status is known
            listed = history.listed(task.hunt)
            sure = MISSING if listed.probability is None else chance(listed.probability)
            return f"{listed.state} {listed.culprit[:10]} {sure}" if listed.culprit else listed.state
        return "ended"
    return f"failed: {task.failure or f'status {task.status}'}"


def open_batch_view(history: History, given: Path | None, plain: bool) -> BatchView:
    """The view that suits standard output."""

    def report(hunt: int) -> str:
        return command_to_show(str(hunt), given)

    if plain or not sys.stdout.isatty() or os.environ.get("TERM") == "dumb":
        return Shown(BatchLines(sys.stdout, report), history)
    from perfbisect.ui.terminal import Terminal

    return Shown(BatchScreen(Terminal(sys.stdout), report), history)


def title_of(planned: Planned) -> str:
    """The name of a hunt in all lines, before and after it has begun: system or repository, workload, range."""
    *options, good, bad = planned.arguments
    given = dict(word.removeprefix("--").split("=", 1) for word in options if "=" in word)
    system = given.get("builder") or Path(planned.folder, given.get("repo", "")).name
    workload = given.get("workload") or given.get("run", "")
    return " ".join(filter(None, (system, workload, f"{good}..{bad}")))


def tasks_of(batch: Batch, history: History, ranges: Sequence[str] = ()) -> list[Task]:
    """The hunts of a batch that have no verdict yet, and those that have, which are shown only."""
    tasks: list[Task] = []
    for one in batch.hunts:
        planned = one.planned
        title = title_of(planned)
        span = ranges[one.number] if ranges else range_of(planned.folder, planned.arguments[-2:])
        task = Task(
            len(tasks), title, planned.arguments, planned.folder, planned.hosts, span, batch.id, one.number, one.hunt
        )
        if one.hunt is not None:
            with suppress(PerfBisectError) if one.status in VERDICTS else failing(task, history):
                task.choices = (history.settings(one.hunt).hosts,)
        if one.status in VERDICTS:
            task.state, task.status = "ended", one.status
        tasks.append(task)
    return tasks


def batch_table(batch: Batch, history: History, width: int | None) -> list[str]:
    """The hunts of a batch with what has become of each, for `bisect show b1`."""
    from perfbisect.wording.table import table

    rows = []
    for task, one in zip(tasks_of(batch, history), batch.hunts, strict=True):
        if one.status is not None:
            task.state, task.status, task.failure = "ended", one.status, one.failure
            state = state_of(task, history)
        else:
            state = "waiting" if one.hunt is None else history.listed(one.hunt).state
        rows.append((MISSING if one.hunt is None else str(one.hunt), printable(task.title), printable(state)))
    return [
        f"Batch {batch.name} {origin(batch)}",
        *table(("hunt", "what", "state"), rows, right=("hunt",), width=width, drop=()),
    ]


def origin(batch: Batch) -> str:
    """What a batch consists of: the hunts of a file, or of workloads that share all builds."""
    return f"of {printable(batch.file)}" if batch.file else "of hunts that share all builds"


def batch_line(batch: Batch) -> str:
    """A batch in a line, for `bisect history`."""
    begun = map(str, sorted(one.hunt for one in batch.hunts if one.hunt is not None))  # they begin in any order
    ended = sum(one.status in VERDICTS for one in batch.hunts)
    hunts = ", ".join(begun)
    hunts = f", hunts {hunts}" if hunts else ""
    what = printable(batch.file) if batch.file else "together"
    return f"{batch.name}: {what}{hunts}; {ended} of {len(batch.hunts)} with a verdict"


def follow(tasks: Sequence[Task], history: History, given: Path | None, view: BatchView, go_on: str) -> int:
    """Carry out hunts and tell how they end; returns the highest of their exit statuses."""
    logs = history.path.with_name(f"{history.path.stem}-batches")
    batches = dict.fromkeys(task.batch for task in tasks if task.batch is not None)
    try:
        carry_out(tasks, history, logs, view, time.sleep, locked_hosts)
    except KeyboardInterrupt:
        ended = [task for task in tasks if task.state == "ended" and task.status != INTERRUPTED]
        failed = sum(task.status not in VERDICTS for task in ended)
        raise Interrupted(
            f"Interrupted; {count(len(ended), 'hunt')} of {len(tasks)} ended before, {failed} of them without a verdict. What"
            f" was measured is kept; go on with: {go_on}"
        ) from None
    for batch in batches:
        if all(one.status in VERDICTS for one in read_batch(history, batch).hunts):
            end_batch(history, batch, time.time())
    for task in tasks:
        if task.status not in VERDICTS:
            note(f"{printable(task.title)}: {printable(state_of(task, history))}")
            note(f"  its output: {log_of(task, logs)}")
    done = sum(task.status in VERDICTS for task in tasks)
    say(f"{done} of {count(len(tasks), 'hunt')} ended with a verdict.")
    for batch in batches:
        say(f"Their page: {command_on('report', f'b{batch}', given)}")
    if done < len(tasks):
        note(f"Go on with the others: {go_on}")
    return max((task.status or 0 for task in tasks), default=0)


def locked_hosts(task: Task, host: str) -> tuple[str, ...]:
    """A host and those that build for it, which a hunt locks; none of those that a scheduler gives out."""
    from perfbisect.recipes.configuration import HOSTS
    from perfbisect.recipes.inventory import load_host

    if LEASED in host:  # its hunt waits in the queue of the scheduler
        return ()
    given = [word.removeprefix("--hosts=") for word in task.arguments if word.startswith("--hosts=")]
    file = Path(task.folder, given[0] if given else HOSTS)
    with suppress(PerfBisectError):  # which its hunt will tell
        builders = load_host(host, str(file) if given or file.exists() else "").built_elsewhere
        return (host, *(builder for builder in builders if LEASED not in builder))
    return (host,)
