"""Shows hunts of other processes in a view: reads the history again and again until the hunts end. The history is not
changed.

A history does not store when a run begins, but a view shows the run in progress. Therefore this module adds RunStarted
events to the events that a view gets.
"""

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Protocol

from perfbisect.core.domain.events import (
    BuildFinished,
    CandidateSkipped,
    Counted,
    Decided,
    Event,
    Planned,
    Profiled,
    RunFinished,
    RunStarted,
    SessionEnded,
    SessionStarted,
)
from perfbisect.core.domain.orders import Measure, Purpose, explained_step, interleave
from perfbisect.store.history import History
from perfbisect.store.listing import SessionSummary
from perfbisect.ui.session_view import SessionRow, TimedEvent

POLL_SECONDS = 1.0  # between two reads of the history; a read takes a millisecond of CPU beside the measurements
RUNNING = "running"


class View(Protocol):
    """A display of sessions. Each session is identified by its number in the history. Closing a view restores the
    terminal."""

    def add_earlier_events(self, hunt: int, events: Iterable[TimedEvent]) -> None:
        """Give the view the events of earlier attempts; called before ``add_events``."""

    def add_events(self, hunt: int, events: Iterable[TimedEvent]) -> None:
        """Give the view new events of the present attempt."""

    def set_rows(self, rows: Sequence[SessionRow]) -> None:
        """Show ``rows``, a row for each hunt. Only called if other processes carry out the hunts."""

    def show_hunt_end(self, hunt: int, at: float) -> None:
        """Show the end of a session; ``at`` is the time of its latest event."""

    def close(self) -> None:
        """End the display."""


def running_sessions(history: History) -> list[int]:
    """The numbers of the hunts and trials on which processes of this machine work now."""
    sessions = (*history.hunts(), *history.trials_except_fitness_checks())
    return [session.number for session in sessions if session.state == RUNNING]


def watch(
    history: History, sessions: Sequence[int], view: View, pause: Callable[[float], None]
) -> Generator[SessionSummary]:
    """Show hunts and trials until all have ended. Yields the summary of each session when the session ends.

    ``pause`` waits for a number of seconds.
    """
    followed = {session: FollowedHunt(history, session) for session in sessions}
    with closing(view):
        for number, session in followed.items():
            view.add_earlier_events(number, session.events_of_earlier_attempts())
        while followed:
            for number, session in [*followed.items()]:
                # read before the events, so that all events of an ended session are read
                state = history.session_summary(number)
                if events := [*session.new()]:
                    view.add_events(number, events)
                if state.state != RUNNING and not (session.reason_follows and history.has_running_process(number)):
                    del followed[number]
                    view.show_hunt_end(number, session.at)
                    yield state
            if followed:
                pause(POLL_SECONDS)


class FollowedHunt:
    """A session of another process that is shown, and the last log entry that was read."""

    def __init__(self, history: History, hunt: int) -> None:
        self.history, self.hunt = history, hunt
        self.last = 0  # the id of the last entry that was read
        self.at = history.start_time(hunt)  # the time of the last entry that was read
        self.events = RunStartAdder()
        self.began = (history.attempt_starts(hunt) or [history.start_time(hunt)])[-1]
        self.reason_follows = False

    def events_of_earlier_attempts(self) -> Iterator[TimedEvent]:
        """The events of all attempts at the session except the latest attempt."""
        for entry in self.history.events(self.hunt):
            if entry.at >= self.began:
                return
            self.last, self.at = entry.id, entry.at
            yield entry.at, entry.event

    def new(self) -> Iterator[TimedEvent]:
        """The events that were stored since the last call, and the RunStarted events that ``RunStartAdder`` adds."""
        for entry in self.history.events(self.hunt, self.last):
            self.last, self.at = entry.id, entry.at
            if isinstance(entry.event, SessionEnded):
                self.reason_follows = entry.event.reason_follows
            for event in self.events.with_run_starts(entry.event):
                yield entry.at, event


@dataclass
class RunStartAdder:
    """Adds RunStarted events to the stored events of a hunt. The caller must pass the stored events in the sequence in
    which they were stored.

    A run begins as soon as the log has its work order, its builds are made, and the previous run has ended. The added
    events lack the expected duration of the run. Measurements after the verdict, which show the reason of the change,
    also get RunStarted events.
    """

    hosts: tuple[str, ...] = ()
    build_hosts: tuple[str, ...] = ()
    built: set[tuple[str, int]] = field(default_factory=set)  # host and candidate, in this attempt
    orders: dict[str, Measure] = field(default_factory=dict)  # host → its present order
    finished_runs: dict[str, int] = field(default_factory=dict)  # host → runs of its order that have ended
    started_runs: dict[str, int] = field(default_factory=dict)  # host → runs of its order that have begun

    def with_run_starts(self, event: Event) -> Iterator[Event]:
        """First ``event`` itself, then a RunStarted event for each run that begins as a result of ``event``."""
        yield event
        match event:
            case SessionStarted():
                self.hosts = tuple(facts.name for facts in event.hosts)
                self.build_hosts = event.build_hosts
                self.built.clear()
                self.orders.clear()
            case Decided(decision) if isinstance(decision.order, Measure) and self.hosts:
                host = self.hosts[decision.order.host]
                self.orders[host], self.finished_runs[host], self.started_runs[host] = decision.order, 0, 0
                yield from self._run_that_begins_now(host)
            case Decided(decision) if not isinstance(decision.order, Measure):
                self.orders.clear()
                if (step := explained_step(decision.order)) and len(self.hosts) == 1 and not self.build_hosts:
                    yield RunStarted(step.candidate, 1, 1, Purpose.EXPLAIN, 0.0)
            case Planned() | Profiled() | Counted():
                yield RunStarted(event.candidate, 1, 1, Purpose.EXPLAIN, 0.0, event.host)
            case BuildFinished(candidate):
                host = self._host_name(event.host)
                self.built.add((host, candidate))
                for waiting_host in (host,) if host in self.hosts else self.hosts:
                    yield from self._run_that_begins_now(waiting_host)
            case RunFinished():
                host = self._host_name(event.host)
                self.finished_runs[host] = self.finished_runs.get(host, 0) + 1
                yield from self._run_that_begins_now(host)
            case CandidateSkipped():
                self.orders.pop(self._host_name(event.host), None)
            case _:
                pass

    def _host_name(self, event_host: str) -> str:
        """The name of the host of an event. ``event_host`` is "" in an event of a session with only one host."""
        return event_host or self.hosts[0]

    def _run_that_begins_now(self, host: str) -> Iterator[RunStarted]:
        """The RunStarted event of a host's next run if this run begins now: its builds are made, and the previous run
        has ended."""
        order, built = self.orders.get(host), self.built
        makers = (host, *self.build_hosts)
        if order is None or not all(any((maker, share.candidate) in built for maker in makers) for share in order.plan):
            return
        first, number = order.plan[0], self.finished_runs[host]
        turns = interleave(order.plan)
        if order.together:  # two paired runs are shown as one run of the first build
            turns, number = (first.candidate,) * first.runs, number // len(order.plan)
        if self.started_runs[host] <= number < len(turns):
            self.started_runs[host] = number + 1
            name = host if len(self.hosts) > 1 or self.build_hosts else ""
            yield RunStarted(turns[number], number + 1, len(turns), order.purpose, 0.0, name)
