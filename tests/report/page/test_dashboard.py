"""The start page of what is served: what is on it, and what a screen has no room for."""

import re
from dataclasses import replace

import pytest

import sample_hunt as sample
from perfbisect.report.document import Cell
from perfbisect.report.page.dashboard import CULPRITS, LATEST, LINES, RUNNING, WEEK, Watched, dashboard_page, watched_of
from perfbisect.store.history import History
from perfbisect.store.listing import Listed, ListedTrial

NOW = sample.BEGAN + 5 * WEEK


def cell(one: Listed | ListedTrial) -> Cell:
    return Cell(str(one.id), link=f"page-{one.id}")


def shown(*sessions: Listed | ListedTrial, lines: tuple[Watched, ...] = ()) -> str:
    return dashboard_page(sessions, lines, cell, NOW)


def texts(page: str, table: str) -> list[list[str]]:
    """The texts of the rows of a table."""
    [body] = re.findall(rf'<table class="{table}">.*?<tbody>(.*?)</tbody>', page, re.DOTALL)
    rows = re.findall(r"<tr.*?</tr>", body, re.DOTALL)
    return [[re.sub("<.*?>", "", each) for each in re.findall(r"<t[hd].*?</t[hd]>", row)] for row in rows]


@pytest.fixture
def found(history: History) -> Listed:
    """The sample hunt."""
    return history.listed(sample.write(history))


def test_nothing() -> None:
    page = shown()
    assert "0 sessions run, 0 hunts of the last 4 weeks named a culprit" in page
    assert "Nothing runs." in page and "No hunt has named one." in page and "No line yet." in page


def test_culprits_of_four_weeks_the_newest_first(found: Listed) -> None:
    ages = {1: 4.1, 2: 3.9, 3: 0.0, 4: 1.0}
    hunts = [replace(found, id=number, started=NOW - age * WEEK) for number, age in ages.items()]
    others = [replace(found, id=9, started=NOW, state=state) for state in ("inconclusive", "code placement", "failed")]
    assert [row[-1] for row in texts(shown(*hunts, *others), "culprits")] == ["3", "4", "2"]
    many = [replace(found, id=number, started=NOW) for number in range(CULPRITS + 3)]
    page = shown(*many)
    assert len(texts(page, "culprits")) == CULPRITS
    assert '<a href="all">3 more</a>' in page


def test_what_runs(found: Listed, history: History) -> None:
    trial = sample.begin_trial(history, sample.comparison(2, sample.WORKS).request)
    compared = replace(history.trials()[0], state="running", started=NOW)
    assert compared.id == f"c{trial}"
    begun = replace(found, id=7, state="running", culprit=None, probability=None, suspect="ab" * 20, suspicion=0.5)
    proven = replace(found, id=8, state="running", name="slow")
    page = shown(found, proven, begun, compared)
    assert [(row[0], *row[4:8]) for row in texts(page, "listing")] == [
        (f"c{trial}", "3 workloads", "v0 v1", "running", "–"),
        ("8", "update-index", "slow: 1.0..1.1", "running 6da84d17ef", "97 %"),
        ("7", "update-index", "1.0..1.1", "running ababababab", "50 %"),
    ]
    many = [replace(begun, id=number) for number in range(RUNNING + 2)]
    assert '<a href="all">2 more</a>' in shown(*many)


def test_hostile_text_is_shown_as_it_is(found: Listed) -> None:
    evil = "<script>alert(1)</script>\u202e"
    hunt = replace(found, name=evil, subject=evil, workload=evil, host=evil, good=evil, started=NOW)
    page = shown(hunt, replace(hunt, state="running"), lines=(Watched(evil, (1.0, 0.9), (), "x"),))
    assert page.count("<script>") == 1
    assert "\u202e" not in page
    assert "&lt;script&gt;alert(1)" in page


def test_a_line_has_the_latest_points_and_the_steps_between_them() -> None:
    points = (1.0, None, 0.98, 0.97, 0.7, 0.7)
    drawing = Watched("scan, main", points, ((4, True), (0, False)), "c1.html").draw()
    assert drawing.count('class="line"') == 4, "a gap is bridged"
    assert re.findall(r'x1="([\d.]+)%"[^>]*class="step (\w+)"', drawing) == [("70", "bad")]
    assert "scan, main: ×0.700 of the first, 1 step for the worse, 1 for the better" in drawing
    long = Watched("scan", (*[1.0] * 500, None), ((3, True), (499, True)), "c1.html")
    assert long.draw().count('class="line"') == LATEST - 2
    assert long.draw().count("step bad") == 1
    assert long.latest == "×1.000"


@pytest.mark.parametrize("points", [(), (None,), (None, None), (1.0,), (0.5, 0.5)])
def test_a_line_of_almost_nothing(points: tuple[float | None, ...]) -> None:
    line = Watched("scan", points, (), "c1.html")
    assert "nan" not in line.draw() + shown(lines=(line,) * (LINES + 1))


def test_the_line_of_a_branch_is_that_of_its_nights() -> None:
    nights = [sample.night(number) for number in range(8)]
    [line] = watched_of(nights, "c8.html")
    assert (line.title, line.steps, line.latest) == ("scan, main", ((5, True),), "×0.800")
    assert len(line.points) == 8
    other = replace(nights[-1].request.works[0], time=99.0)
    nights[-1].request = replace(nights[-1].request, works=(other,))
    assert len(watched_of(nights, "c8.html")[0].points) == 1, "tips of another workload are not compared"


def test_the_lines_of_a_series() -> None:
    [scan, update, point] = watched_of([sample.series({"scan": ((8, -0.1),), "point-query": ((12, 0.06),)})], "c1.html")
    assert (scan.title, scan.steps, len(scan.points)) == ("scan, 1.0..1.19", ((8, True),), 20)
    assert (update.steps, point.steps) == ((), ((12, False),))
