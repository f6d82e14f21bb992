"""A hunt on two hosts, as the views show it: who does what."""

from dataclasses import replace
from itertools import accumulate

import pytest

from example_hunt import HOST
from perfbisect.core.domain.events import BuildProgress, BuildStarted, Event, HuntStarted, LabEvent, RunProgress, Warned
from perfbisect.core.inference.hunt_state import Classification
from perfbisect.ui.lines import lines
from perfbisect.ui.screen import lines as drawn
from perfbisect.ui.view_model import ViewModel, recalled, update

Events = list[tuple[float, Event]]


@pytest.fixture(scope="session")
def two(events: Events) -> Events:
    """The hunt of the sample, on a; meanwhile b does the same a little later."""
    found: Events = []
    for at, event in events[:400]:
        match event:
            case HuntStarted():
                found.append((at, replace(event, further=(replace(event.host, name="b"),), host_classes=("x", "x"))))
            case Warned():
                found.append((at, event))
            case _ if isinstance(event, LabEvent):
                found += [(at, replace(event, host=name)) for name in (HOST.name, "b")]
            case _:
                found.append((at, event))
    return found


@pytest.fixture(scope="session")
def views_of_two(two: Events) -> list[ViewModel]:
    return list(accumulate(two, lambda view, entry: update(view, entry[1], entry[0]), initial=ViewModel()))[1:]


def test_each_host_has_two_lines(two: Events, views_of_two: list[ViewModel]) -> None:
    drawings = [
        (at, event, view)
        for (at, event), view in zip(two, views_of_two, strict=True)
        if isinstance(event, BuildProgress | RunProgress) and event.host == "b"
    ]
    for at, event, view in drawings[:: len(drawings) // 9]:
        shown = [line.plain for line in drawn(view, 100, 40, at)]
        assert len([line for line in shown if line.startswith((" local  ", " b      "))]) == 2
        assert view.classification(event.candidate) is Classification.NOW
        assert drawn(view, 60, 20, at)


def test_lines_name_the_host(two: Events, views_of_two: list[ViewModel]) -> None:
    said = [text for (at, event), view in zip(two, views_of_two, strict=True) for text in lines(view, event, at)]
    assert any("on local and b" in text for text in said)
    for word in ("building", "built", "ran", "decided"):
        assert any(f"{word:9} local  " in text for text in said), word
    assert any(f"{'ran':9} b  " in text for text in said)


def test_what_one_host_does_does_not_disturb_the_other(two: Events, views_of_two: list[ViewModel]) -> None:
    first = next(place for place, (_, event) in enumerate(two) if isinstance(event, BuildStarted))
    view = views_of_two[first]
    other = replace(two[first][1], candidate=9, host="b")  # type: ignore[call-arg]
    after = update(view, other, 1.0)
    assert after.busy["local"] == view.busy["local"]
    assert not recalled(after, []).busy
