"""Completes events that are read from a history, which does not keep that a run begins: views show what is done now."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from perfbisect.core.domain.events import (
    BuildFinished,
    CandidateSkipped,
    Counted,
    Decided,
    Event,
    HuntStarted,
    Planned,
    Profiled,
    RunFinished,
    RunStarted,
)
from perfbisect.core.domain.orders import Measure, Purpose, first_step, interleave


@dataclass
class Completed:
    """The events of a hunt in order, with each RunStarted that follows from them.

    A run begins when its order was given, its builds were made and the run before it has ended. How long it will take is
    not known here. Once there is a verdict, its reason is measured, which is shown as one run after the other.
    """

    hosts: tuple[str, ...] = ()
    build_hosts: tuple[str, ...] = ()
    built: set[tuple[str, int]] = field(default_factory=set)  # host and candidate, in this session
    orders: dict[str, Measure] = field(default_factory=dict)  # that a host carries out
    done: dict[str, int] = field(default_factory=dict)  # its runs so far
    begun: dict[str, int] = field(default_factory=dict)  # those of them that have begun

    def after(self, event: Event) -> Iterator[Event]:
        """The event, and what begins then."""
        yield event
        match event:
            case HuntStarted():
                self.hosts = tuple(facts.name for facts in event.hosts)
                self.build_hosts = event.build_hosts
                self.built.clear()
                self.orders.clear()
            case Decided(decision) if isinstance(decision.order, Measure) and self.hosts:
                host = self.hosts[decision.order.host]
                self.orders[host], self.done[host], self.begun[host] = decision.order, 0, 0
                yield from self._begins(host)
            case Decided(decision) if not isinstance(decision.order, Measure):
                self.orders.clear()
                if (step := first_step(decision.order)) and len(self.hosts) == 1 and not self.build_hosts:
                    yield RunStarted(step.candidate, 1, 1, Purpose.EXPLAIN, 0.0)
            case Planned() | Profiled() | Counted():
                yield RunStarted(event.candidate, 1, 1, Purpose.EXPLAIN, 0.0, event.host)
            case BuildFinished(candidate):
                host = self._host(event.host)
                self.built.add((host, candidate))
                for each in (host,) if host in self.hosts else self.hosts:
                    yield from self._begins(each)
            case RunFinished():
                host = self._host(event.host)
                self.done[host] = self.done.get(host, 0) + 1
                yield from self._begins(host)
            case CandidateSkipped():
                self.orders.pop(self._host(event.host), None)
            case _:
                pass

    def _host(self, name: str) -> str:
        """The host of an event, which has its name only where there are several."""
        return name or self.hosts[0]

    def _begins(self, host: str) -> Iterator[RunStarted]:
        """The next run of a host, if nothing remains to be done before it."""
        order = self.orders.get(host)
        makers = (host, *self.build_hosts)
        if order is None or not all(
            any((maker, share.candidate) in self.built for maker in makers) for share in order.plan
        ):
            return
        turns, number = interleave(order.plan), self.done[host]
        if self.begun[host] <= number < len(turns):
            self.begun[host] = number + 1
            name = host if len(self.hosts) > 1 or self.build_hosts else ""
            yield RunStarted(turns[number], number + 1, len(turns), order.purpose, 0.0, name)
