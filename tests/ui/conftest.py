"""One invented hunt for all tests of the views."""

import pytest

from example_hunt import SampleHunt, followed
from perfbisect.core.domain.events import Event
from perfbisect.ui.view_model import ViewModel

Events = list[tuple[float, Event]]


@pytest.fixture(scope="session")
def events() -> Events:
    """Every event of the hunt with its time."""
    return list(SampleHunt().events())


@pytest.fixture(scope="session")
def views(events: Events) -> list[ViewModel]:
    """The view after each of them."""
    return followed(events)
