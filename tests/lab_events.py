"""Orders to a lab, and its events."""

from perfbisect.core.domain.events import CandidateSkipped, LabEvent, RunFinished, Warned
from perfbisect.core.domain.facts import RunFacts, SkipFacts
from perfbisect.core.domain.orders import Measure, Purpose, Share
from perfbisect.lab.host_lab import HostLab


def measure(lab: HostLab, *shares: Share) -> list[LabEvent]:
    """All events of an order with these shares."""
    return list(lab.measure(Measure(shares, Purpose.SEARCH)))


def finished(events: list[LabEvent]) -> list[tuple[int, RunFacts]]:
    """Candidate and facts of each run among the events."""
    return [(event.candidate, event.facts) for event in events if isinstance(event, RunFinished)]


def runs(events: list[LabEvent]) -> list[RunFacts]:
    """The runs among the events."""
    return [event.facts for event in events if isinstance(event, RunFinished)]


def warnings(events: list[LabEvent]) -> list[str]:
    """The texts of the warnings among the events."""
    return [event.text for event in events if isinstance(event, Warned)]


def skipped(events: list[LabEvent]) -> SkipFacts:
    """Why the last candidate was skipped."""
    assert isinstance(events[-1], CandidateSkipped), events
    return events[-1].facts
