"""One made-up hunt for all tests of the views, told once."""

import pytest

from perfbisect.core.domain.events import Event
from perfbisect.ui.sample import Story
from perfbisect.ui.state import View, update

Told = list[tuple[float, Event]]


@pytest.fixture(scope="session")
def told() -> Told:
    """Every event of the hunt with its time."""
    return list(Story().events())


@pytest.fixture(scope="session")
def views(told: Told) -> list[View]:
    """The view after each of them."""
    found, view = [], View()
    for at, event in told:
        view = update(view, event, at)
        found.append(view)
    return found
