"""The only loop: ask the search, obey, save, tell.

The log is the state. What the lab reports is in the history before it is told to anybody, and the next order is
always derived from the whole log; so a hunt that was killed goes on exactly where its log ends.
"""

import time
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import partial

from perfbisect.core.domain.events import (
    BuildFinished,
    CandidateSkipped,
    Decided,
    Event,
    HuntEnded,
    HuntStarted,
    RunFinished,
    Warned,
)
from perfbisect.core.domain.facts import SkipFacts
from perfbisect.core.domain.fleet import Fleet
from perfbisect.core.domain.graph import Graph
from perfbisect.core.domain.observations import Observation, Reading
from perfbisect.core.domain.orders import Decision, Found, Measure, Verdict
from perfbisect.core.domain.policy import Direction, Policy
from perfbisect.core.domain.prior_knowledge import NOTHING_KNOWN, PriorKnowledge
from perfbisect.core.inference.from_log import Logged, observations, readable
from perfbisect.core.search.decide import decide
from perfbisect.errors import EnvironmentFailure
from perfbisect.hunt.event_queue import EventQueue
from perfbisect.hunt.workers import Crew
from perfbisect.lab.protocol import Lab
from perfbisect.store.history import History

Told = tuple[float, Event]  # seconds since the epoch, what happened
LabFor = Callable[[tuple[str, ...]], Lab | Crew]  # commits of a graph's nodes → who measures them


@dataclass(frozen=True, slots=True)
class SearchProblem:
    """One question put to the search: a graph, the commit of each node, and the rules."""

    graph: Graph
    commits: tuple[str, ...]
    policy: Policy
    metric: str
    hosts: tuple[str, ...] = ()  # their names, where there are several
    prior: PriorKnowledge = NOTHING_KNOWN

    def told(self, entries: Sequence[tuple[float, Logged]], began: float) -> list[Observation]:
        """What the search is told of a log."""
        node = {commit: index for index, commit in enumerate(self.commits)}
        return observations(entries, node, self.metric, began, self.hosts)


class Log:
    """The log of one hunt: what earlier sessions left in the history, and everything since."""

    def __init__(self, history: History, hunt: int) -> None:
        self.history = history
        self.hunt = hunt
        self.began = history.began(hunt)
        self.entries: list[tuple[float, Logged]] = list(history.log(hunt))

    def append(self, event: Event) -> Told:
        """Make ``event`` durable, then return it with its time."""
        at = time.time()
        self.history.append(self.hunt, event, at)
        if isinstance(event, BuildFinished | CandidateSkipped | RunFinished):
            self.entries.append((at, event))
        return at, event


def pursue(quest: SearchProblem, log: Log, lab: Lab | Crew) -> Iterator[Told]:
    """Ask and obey until there is a verdict; the last event told is the Decided that carries it.

    Raises EnvironmentFailure when a build's runs have no value for the metric.
    """
    if isinstance(lab, Crew):
        yield from together(quest, log, lab)
        return
    while True:
        decision = decide(quest.graph, quest.told(log.entries, log.began), quest.policy, quest.prior)
        yield log.append(Decided(decision))
        if not isinstance(decision.order, Measure):
            return
        yield from obey(decision.order, quest, log, lab)


def obey(order: Measure, quest: SearchProblem, log: Log, lab: Lab) -> Iterator[Told]:
    """Carry out one order. Raises EnvironmentFailure as ``OrderResult.check``."""
    heard = OrderResult(quest)
    for event in lab.measure(order):
        yield log.append(event)
        heard.note(event)
    heard.check()


@dataclass(slots=True)
class OrderResult:
    """What one order has brought so far."""

    quest: SearchProblem
    measured: set[int] = field(default_factory=set)
    telling: set[int] = field(default_factory=set)

    def note(self, event: Event) -> None:
        """Take note of an event."""
        if isinstance(event, RunFinished):
            self.measured.add(event.candidate)
            if readable(event.facts, self.quest.metric) is not None:
                self.telling.add(event.candidate)

    def check(self) -> None:
        """Raise EnvironmentFailure when no run of a build had a value for the metric.

        The search would only give the same order again.
        """
        if silent := self.measured - self.telling:
            raise EnvironmentFailure(
                f"The last runs of {self.quest.commits[min(silent)][:10]} have no value for {self.quest.metric}, or it is"
                " 0 or infinite, so there is nothing to compare.",
                "Choose another metric with --metric.",
            )


def together(quest: SearchProblem, log: Log, crew: Crew) -> Iterator[Told]:
    """As ``pursue``, on several hosts: one that is free is given the next order.

    Once a culprit stands, what other hosts are at is ended; every other verdict waits for it.
    A host that fails takes no further part as long as another is left; the last one raises its failure.
    """
    desk = EventQueue()
    orders: dict[int, Measure] = {}
    futures: dict[int, Future[None]] = {}
    heard: dict[int, OrderResult] = {}
    gone: dict[int, EnvironmentFailure] = {}
    try:
        while True:
            if len(orders) + len(gone) < len(crew.hosts):
                fleet = Fleet(tuple(orders.values()), tuple(gone))
                decision = decide(quest.graph, quest.told(log.entries, log.began), quest.policy, quest.prior, fleet)
                order = decision.order
                if isinstance(order, Measure) and fleet.is_free(order.host):
                    yield log.append(Decided(decision, fleet))
                    orders[order.host], heard[order.host] = order, OrderResult(quest)
                    futures[order.host] = crew.submit(order.host, order, partial(desk.bring, order.host))
                    futures[order.host].add_done_callback(partial(desk.leave, order.host))
                    continue
                if not orders and isinstance(order, Measure):
                    raise gone[order.host]
                if not orders or isinstance(order, Found):
                    yield log.append(Decided(decision, fleet))
                    return
            host, event = desk.next()
            while event is not None:
                yield log.append(event)
                heard[host].note(event)
                host, event = desk.next()
            del orders[host]
            try:
                futures.pop(host).result()
                heard[host].check()
            except EnvironmentFailure as failure:
                gone[host] = failure
                if len(gone) == len(crew.hosts):
                    raise
                yield log.append(
                    Warned(f"host {crew.hosts[host]} takes no further part: {failure}", "The others go on without it.")
                )
    finally:
        if futures:  # a culprit stands, somebody interrupts us, or we fail
            crew.stop()
            desk.close(futures.values())


def hunt(
    quest: SearchProblem, started: HuntStarted, log: Log, lab_for: LabFor, failed: Sequence[SkipFacts] = ()
) -> Iterator[Told]:
    """The hunt itself: ``started`` is told first, HuntEnded last.

    ``failed`` are builds that failed in earlier hunts; they are not tried again, except at the ends.
    """
    yield log.append(started)
    inner = {commit: node for node, commit in enumerate(quest.commits) if 0 < node < len(quest.commits) - 1}
    for facts in failed:
        if facts.commit in inner:
            remembered = replace(facts, reason=f"{facts.reason} (in an earlier hunt)", seconds=0.0)
            yield log.append(CandidateSkipped(inner[facts.commit], remembered))
    verdict: Verdict | None = None
    for at, event in pursue(quest, log, lab_for(quest.commits)):
        yield at, event
        verdict = verdict_of(event)
    assert verdict is not None, "the search ends only with a verdict"
    yield log.append(HuntEnded(verdict))


def check_base(
    quest: SearchProblem, started: HuntStarted, good: str, log: Log, lab_for: LabFor
) -> Generator[Told, None, Verdict]:
    """Where good is not an ancestor of bad, compare it with the merge base, which is to stand in for it.

    Returns the verdict on a change in either direction from the merge base to good. It obeys the budgets of the hunt.
    """
    base = quest.commits[0]
    side = replace(
        quest,
        graph=Graph.line(1),
        commits=(base, good),
        policy=replace(quest.policy, direction=Direction.ANY, all_steps=False),
    )
    yield log.append(replace(started, candidates=side.commits, commits=1, merges=0, branch_points=0))
    verdict: Verdict | None = None
    for at, event in pursue(side, log, lab_for(side.commits)):
        yield at, event
        verdict = verdict_of(event)
    assert verdict is not None, "the search ends only with a verdict"
    return verdict


def replay(quest: SearchProblem, told: Sequence[Told], began: float) -> Iterator[tuple[int, Decision]]:
    """What the search would have decided at each point of a log where it was asked, under the rules of ``quest``.

    Yields (runs of the range made so far, decision) and ends with the first verdict. No host is touched.
    """
    entries: list[tuple[float, Logged]] = []
    for at, event in told:
        if isinstance(event, BuildFinished | CandidateSkipped | RunFinished):
            entries.append((at, event))
        if isinstance(event, Decided):
            seen = quest.told(entries, began)
            decision = decide(quest.graph, seen, quest.policy, quest.prior, event.fleet)
            yield sum(isinstance(each, Reading) for each in seen), decision
            if not isinstance(decision.order, Measure):
                return


def verdict_of(event: Event) -> Verdict | None:
    """The verdict an event carries, if it does."""
    if isinstance(event, Decided) and not isinstance(event.decision.order, Measure):
        return event.decision.order
    return None
