"""One invented hunt for all tests of the views."""

import pytest

from example_hunt import SampleHunt, followed
from perfbisect.core.domain.events import Event
from perfbisect.ui.session_view import SessionView

Events = list[tuple[float, Event]]


@pytest.fixture(scope="session")
def events() -> Events:
    """Every event of the hunt with its time."""
    return list(SampleHunt().events())


@pytest.fixture(scope="session")
def views(events: Events) -> list[SessionView]:
    """The view after each of them."""
    return followed(events)
