"""A hunt with two build hosts, as the views show it: builds beside runs."""

from dataclasses import replace
from itertools import accumulate

import pytest

from example_hunt import HOST
from perfbisect.core.domain.events import (
    BuildCancelled,
    BuildFinished,
    BuildProgress,
    BuildStarted,
    Commit,
    Event,
    HuntStarted,
    LabEvent,
    RunFinished,
    RunProgress,
    RunStarted,
    Warned,
)
from perfbisect.hunt.watching import Completed
from perfbisect.ui.lines import decode, encode, lines
from perfbisect.ui.screen import lines as drawn
from perfbisect.ui.view_model import Running, ViewModel, update

Events = list[tuple[float, Event]]
AHEAD = BuildStarted | BuildProgress | BuildFinished


@pytest.fixture(scope="session")
def ahead(events: Events) -> Events:
    """The hunt of the sample: what it builds is built on b1 and b2 in turns."""
    found: Events = []
    for at, event in events[:400]:
        match event:
            case HuntStarted():
                found.append((at, replace(event, build_hosts=("b1", "b2"))))
            case Warned():
                found.append((at, event))
            case _ if isinstance(event, AHEAD):
                found.append((at, replace(event, host=f"b{1 + event.candidate % 2}")))
            case _ if isinstance(event, LabEvent):
                found.append((at, replace(event, host=HOST.name)))
            case _:
                found.append((at, event))
    return found


@pytest.fixture(scope="session")
def views(ahead: Events) -> list[ViewModel]:
    return list(accumulate(ahead, lambda view, entry: update(view, entry[1], entry[0]), initial=ViewModel()))[1:]


def screen(view: ViewModel, at: float) -> list[str]:
    return [line.plain for line in drawn(view, 110, 40, at)]


def of(shown: list[str], host: str) -> str:
    [line] = [line for line in shown if line.startswith(f" {host} ")]
    return line


def test_a_run_and_two_builds_at_once(ahead: Events, views: list[ViewModel]) -> None:
    place = next(place for place, (_, event) in enumerate(ahead) if isinstance(event, RunProgress))
    at, view = ahead[place][0], views[place]
    assert of(screen(view, at), HOST.name).split()[1] == "run"
    for candidate, host in ((4, "b1"), (5, "b2")):
        view = update(view, BuildStarted(candidate, Commit(view.sha(candidate)), host), at)
        view = update(view, BuildProgress(candidate, 30, 120, "compile", host), at)
    shown = screen(view, at + 65)
    assert of(shown, HOST.name).split()[1] == "run"
    assert f"building  {view.sha(4)[:10]}" in of(shown, "b1")
    assert "30 of 120" in of(shown, "b2")
    assert "compile" in of(shown, "b2")
    assert "1:05" in of(shown, "b2")
    ended = update(view, BuildCancelled(5, Commit(view.sha(5)), 65.0, "b2"), at + 65)
    assert of(screen(ended, at), "b2").split() == ["b2", "free"]
    assert isinstance(ended.now, Running), "what is measured is not disturbed"
    [told] = lines(ended, BuildCancelled(5, Commit(view.sha(5)), 65.0, "b2"), at)
    assert f"{'ended':9} b2  {view.sha(5)[:10]}  its build is of no use any more, after 1 min 5 s" in told


def test_between_two_runs_the_host_waits_for_a_build(ahead: Events, views: list[ViewModel]) -> None:
    place = max(
        place for place, (_, event) in enumerate(ahead) if isinstance(event, RunFinished) and at_end(views[place])
    )
    at, view = ahead[place][0], views[place]
    assert of(screen(view, at), HOST.name).split()[1] == "run"
    view = update(view, BuildStarted(4, Commit(view.sha(4)), "b1"), at)
    assert "waiting for a build, after  " in of(screen(view, at), HOST.name)


def at_end(view: ViewModel) -> bool:
    return isinstance(view.now, Running) and view.now.number == view.now.of


def test_while_only_builds_are_made_the_host_waits_for_one(ahead: Events, views: list[ViewModel]) -> None:
    place = next(place for place, (_, event) in enumerate(ahead) if isinstance(event, BuildProgress))
    shown = screen(views[place], ahead[place][0])
    assert of(shown, HOST.name).split(maxsplit=1)[1] == "waiting for a build"


def test_lines_name_the_host(ahead: Events, views: list[ViewModel]) -> None:
    said = [text for (at, event), view in zip(ahead, views, strict=True) for text in lines(view, event, at)]
    assert any("on local, built on b1 and b2" in text for text in said)
    for word, host in (("building", "b1"), ("built", "b2"), ("ran", HOST.name), ("decided", HOST.name)):
        assert any(f"{word:9} {host}  " in text for text in said), word


def test_runs_that_begin_are_found_in_a_stored_log(ahead: Events) -> None:
    completed = Completed()
    kept = (RunStarted, RunProgress, BuildProgress)
    begun = [
        (at, each)
        for at, event in ahead
        if not isinstance(event, kept)
        for each in completed.after(event)
        if isinstance(each, RunStarted)
    ]
    real = [(event.candidate, event.number, event.host) for _, event in ahead if isinstance(event, RunStarted)]
    assert [(event.candidate, event.number, event.host) for _, event in begun][: len(real)] == real
    assert real


def test_as_json(ahead: Events) -> None:
    for at, event in [*ahead, (1.0, BuildCancelled(3, Commit("a" * 40), 2.5, "b1"))]:
        if isinstance(event, AHEAD | BuildCancelled | HuntStarted):
            assert decode(encode(event, at)) == (event, at)
