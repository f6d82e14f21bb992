"""What the page of a hunt is made of: its report, and the events behind the drawings."""

from collections.abc import Iterator
from dataclasses import dataclass

from perfbisect.core.domain.events import Decided, Event, HuntStarted
from perfbisect.core.domain.explanation import Explanation
from perfbisect.core.domain.orders import Measure
from perfbisect.core.inference.hunt_state import HuntState, fold
from perfbisect.report.content import Story
from perfbisect.report.folded import Profiles, profiles
from perfbisect.report.page.posterior import Narrowing
from perfbisect.report.reader import Describe, story_of
from perfbisect.store.history import History


@dataclass(frozen=True, slots=True, eq=False)
class HuntData:
    """One hunt."""

    story: Story
    state: HuntState
    course: tuple[Narrowing, ...]  # the decisions about the range of the hunt, in order
    explanation: Explanation | None
    profiles: Profiles | None


def read_hunt(history: History, hunt: int, describe: Describe) -> HuntData:
    """The hunt of that number. Raises UsageError when there is none."""
    entries = [(entry.at, entry.event) for entry in history.events(hunt)]
    state = fold(entries, history.sessions(hunt))
    story = story_of(history, hunt, state, describe)
    events = [event for _, event in entries]
    explanation = story.cases[0].explanation if story.cases and state.studied else None
    return HuntData(story, state, tuple(course(events, state.commits)), explanation, profiles(state.studied))


def course(events: list[Event], commits: tuple[str, ...]) -> Iterator[Narrowing]:
    """The decisions about this range: a hunt may have compared good with the merge base before."""
    present: tuple[str, ...] = ()
    for event in events:
        match event:
            case HuntStarted():
                present = event.candidates
            case Decided(decision) if present == commits and decision.belief.culprit.sum() > 0:
                order = decision.order
                measured = tuple(share.candidate for share in order.plan) if isinstance(order, Measure) else ()
                yield Narrowing(decision.belief.culprit, measured)
            case _:
                pass
