"""The sample hunt for the tests of views: its events, and the view after each event."""

import pytest

from perfbisect.ui.session_view import SessionView
from sample_hunt import Events, Tale, followed


@pytest.fixture(scope="session")
def events() -> Events:
    """Every event of the hunt with its time."""
    return list(Tale(hunt=12, progress=True).events())


@pytest.fixture(scope="session")
def views(events: Events) -> list[SessionView]:
    """The view after each event."""
    return followed(events)
