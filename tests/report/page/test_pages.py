"""Whole pages of hunts: self-contained, escaped, small, without empty parts. The dashboard of `bisect serve`."""

import base64
import hashlib
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest

import explained_hunt as reason
import sample_hunt as sample
from explained_hunt import hostile_page
from perfbisect.core.domain.events import MetricChosen, PairingChosen
from perfbisect.core.explain.evidence import PlanRow
from perfbisect.report.document import Cell
from perfbisect.report.hunt import document as hunt_document
from perfbisect.report.hunt_report import read_hunt_report
from perfbisect.report.page import pages
from perfbisect.report.page.pages import (
    CULPRITS,
    LATEST,
    LINES,
    RUNNING,
    WEEK,
    LineChart,
    branch_or_series_charts,
    dashboard_page,
    with_code_spans,
)
from perfbisect.store.history import History
from perfbisect.store.listing import SessionSummary

VOID = {"meta", "br", "hr", "img", "input", "link"}
EMBEDDED = ("src", "href", "data", "action", "formaction", "poster", "srcset", "xlink:href", "background", "ping")


class Reader(HTMLParser):
    """A parser that collects the tags, attributes and texts of a page, and asserts that tags close in order."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.inside: dict[str, list[str]] = {"text": [], "script": [], "style": []}
        self.feed(page)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.inside.get(self.open[-1] if self.open else "text", self.inside["text"]).append(data)

    @property
    def shown(self) -> str:
        """The text of the page with single spaces."""
        return " ".join(" ".join(self.inside["text"]).split())

    def values(self, attribute: str) -> list[str]:
        return [value for _, name, value in self.attributes if name == attribute]


def page(history: History, plans: tuple[PlanRow, ...] = ()) -> str:
    """The page of the sample hunt, with the explanation of its culprit."""
    return pages.session_page(hunt_document(reason.explained(history, sample.write(history), plans), reason.diff_of))


def test_page_contains_all_parts_of_a_report(history: History) -> None:
    read = Reader(page(history, plans=(reason.PLAN,)))
    commit = sample.COMMITS[sample.CULPRIT]
    for text in (
        f"The culprit is {commit.short_sha}", "a drop of 28 % in QPS", "97 % sure", commit.subject, "A. Author",
        "SEARCH t USING INDEX", "SCAN t", "instructions/o", "×1.35", "check_order", "changed by this commit",
        "+8.60 ± 0.600", "return PAGE_DAMAGED;", "reuse_cell: gone from the culprit", "compare_keys", "baseline",
        "was skipped", "A CPU", "gcc 12.2", "powersave", "bisect run 1.0 1.1", "bisect prove 1", "6 builds in", "16 runs in",
        "Plans were not asked for", "74 %",
    ):  # fmt: skip
        assert text in read.shown, text


def test_a_page_loads_nothing_and_runs_only_its_own_script(history: History) -> None:
    """Links lead only to places of the page."""
    text = page(history)
    read = Reader(text)
    assert len(text.encode()) < 200_000
    links = read.values("href")
    assert len(links) > 8 and {link.removeprefix("#") for link in links} <= set(read.values("id"))
    assert len(read.values("id")) == len(set(read.values("id")))
    assert all(value.startswith("#") for name in EMBEDDED for value in read.values(name))
    assert not [name for _, name, _ in read.attributes if name.startswith("on") or name == "style"]
    assert not {"link", "iframe", "object", "embed", "img", "image", "use", "base", "form"} & set(read.tags)
    assert read.tags.count("script") == read.tags.count("style") == 1
    [policy] = [value for value in read.values("content") if "default-src 'none'" in value]
    for tag in ("script", "style"):
        wanted = base64.b64encode(hashlib.sha256("".join(read.inside[tag]).encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{wanted}'" in policy
    assert "unsafe" not in policy
    assert not re.search(r"@import|url\((?!#)", "".join(read.inside["style"]))


def test_hostile_text_is_shown_but_is_never_markup(history: History) -> None:
    read = Reader(hostile_page(history))
    assert read.tags.count("script") == 1 and "img" not in read.tags
    assert not [name for _, name, _ in read.attributes if name.startswith("on")]
    assert "EVIL" not in "".join(read.inside["script"])
    assert [part in read.shown for part in ("EVIL", "{{7*7}}", "\\u202e", "\u202e")] == [True, True, True, False]


def test_passwords_are_masked(history: History) -> None:
    password = "https://user:geheim@host/x.git"
    report = reason.explained(history, sample.write(history))
    report.settings, report.advice_by_warning = replace(report.settings, repository=password), {password: ""}
    diff = f"diff --git a/x b/x\n@@ -1 +1 @@\n+{password}\n"
    assert "geheim" not in pages.session_page(hunt_document(report, lambda *_: (diff, 0)))


def test_parts_without_data_are_left_out(history: History) -> None:
    told = read_hunt_report(history, sample.write(history))
    read = Reader(pages.session_page(hunt_document(told, lambda *_: None)))
    places = set(read.values("id"))
    assert not {"case-1-functions", "case-1-flame", "case-1-plans"} & places
    assert {"case-1-runs", "ladder", "range", "costs", "repeat"} <= places
    assert "Functions were not recorded" in read.shown and "The diff is not shown" in read.shown
    assert "The diff is not shown" not in pages.session_page(hunt_document(told, lambda *_: ("", 0))), "no diff"


def test_paired_runs_are_drawn(history: History) -> None:
    report = read_hunt_report(history, sample.write(history))
    said = [pages.session_page(hunt_document(report, lambda *_: None))]
    (change,) = report.changes
    report.changes = (replace(change, pairs=((20.0, 15.0), (30.0, 22.5))),)
    report.state.pairing = PairingChosen(True, "", by_cpu=True)
    said.append(pages.session_page(hunt_document(report, lambda *_: None)))
    assert ["Paired runs" in text for text in said] == [False, True]
    assert 'aria-label="cpu/o, µs of both builds in each pair, and their ratio: ×0.750 as the median"' in said[1]
    assert "━" not in said[1]


def test_an_unfinished_hunt_has_a_page(history: History) -> None:
    """The page also says why the metric was chosen."""
    hunt = sample.begin(history)
    history.append(hunt, MetricChosen("qps", "The metric is QPS, which shows <most>."), sample.BEGAN)
    read = Reader(pages.session_page(hunt_document(read_hunt_report(history, hunt), lambda *_: ("", 0))))
    assert "There is no verdict yet." in read.shown and "bisect resume 1" in read.shown
    assert "metric QPS chosen The metric is QPS, which shows <most>. " in read.shown
    assert "range" not in read.values("id")


def test_names_in_backticks_become_code_elements() -> None:
    assert with_code_spans("in `f<int>`, by `a`") == "in <code>f&lt;int&gt;</code>, by <code>a</code>"
    assert with_code_spans("one ` alone & <b>") == "one ` alone &amp; &lt;b&gt;"


# The dashboard of `bisect serve`: its content, and the limits of its lists.


NOW = sample.BEGAN + 5 * WEEK


def cell(one: SessionSummary) -> Cell:
    return Cell(str(one.id), link=f"page-{one.id}")


def shown(*sessions: SessionSummary, lines: tuple[LineChart, ...] = ()) -> str:
    return dashboard_page(sessions, lines, cell, NOW)


def texts(page: str, table: str) -> list[list[str]]:
    """The texts of the rows of a table."""
    [body] = re.findall(rf'<table class="{table}">.*?<tbody>(.*?)</tbody>', page, re.DOTALL)
    rows = re.findall(r"<tr.*?</tr>", body, re.DOTALL)
    return [[re.sub("<.*?>", "", each) for each in re.findall(r"<t[hd].*?</t[hd]>", row)] for row in rows]


@pytest.fixture
def found(history: History) -> SessionSummary:
    """The sample hunt."""
    return history.session_summary(sample.write(history))


def test_dashboard_of_an_empty_history() -> None:
    for said in ("0 sessions run, 0 hunts of the last 4 weeks named a culprit", "Nothing runs.", "No line yet."):
        assert said in shown()
    assert "No hunt has named one." in shown()


def test_dashboard_lists_culprits_of_four_weeks_newest_first(found: SessionSummary) -> None:
    ages = {1: 4.1, 2: 3.9, 3: 0.0, 4: 1.0}
    hunts = [replace(found, id=number, started=NOW - age * WEEK) for number, age in ages.items()]
    others = [replace(found, id=9, started=NOW, state=state) for state in ("inconclusive", "code placement", "failed")]
    assert [row[-1] for row in texts(shown(*hunts, *others), "culprits")] == ["3", "4", "2"]
    page = shown(*(replace(found, id=number, started=NOW) for number in range(CULPRITS + 3)))
    assert len(texts(page, "culprits")) == CULPRITS
    assert '<a href="all">3 more</a>' in page


def test_dashboard_lists_running_sessions(found: SessionSummary, history: History) -> None:
    trial = sample.begin_trial(history, sample.comparison(2, sample.WORKS).request)
    compared = replace(history.trials_except_fitness_checks()[0], state="running", started=NOW)
    begun = replace(found, id=7, state="running", culprit=None, probability=None, suspect="ab" * 20, suspicion=0.5)
    proven = replace(found, id=8, state="running", name="slow")
    assert [(row[0], *row[4:8]) for row in texts(shown(found, proven, begun, compared), "listing")] == [
        (f"c{trial}", "3 workloads", "v0, v1", "running", "–"),
        ("8", "update-index", "slow: 1.0..1.1", "running 6da84d17ef", "97 %"),
        ("7", "update-index", "1.0..1.1", "running ababababab", "50 %"),
    ]
    assert '<a href="all">2 more</a>' in shown(*[replace(begun, id=number) for number in range(RUNNING + 2)])


def test_line_has_the_latest_points_and_the_steps_between_the_points() -> None:
    points = (1.0, None, 0.98, 0.97, 0.7, 0.7)
    drawing = LineChart("scan, main", points, ((4, True), (0, False)), "c1.html").draw()
    assert drawing.count('class="line"') == 4, "a gap is bridged"
    assert re.findall(r'x1="([\d.]+)%"[^>]*class="step (\w+)"', drawing) == [("70", "bad")]
    assert "scan, main: ×0.700 of the first, 1 step for the worse, 1 for the better" in drawing
    long = LineChart("scan", (*[1.0] * 500, None), ((3, True), (499, True)), "c1.html")
    assert [long.draw().count(each) for each in ('class="line"', "step bad")] == [LATEST - 2, 1]
    assert long.latest_ratio == "×1.000"


def test_line_with_few_points_can_be_drawn() -> None:
    for points in ((), (None,), (None, None), (1.0,), (0.5, 0.5)):
        line = LineChart("scan", points, (), "c1.html")
        assert "nan" not in line.draw() + shown(lines=(line,) * (LINES + 1))


def test_line_has_a_point_for_each_night_or_release() -> None:
    nights = [sample.night(number) for number in range(8)]
    [line] = branch_or_series_charts(nights, "c8.html")
    assert (line.title, line.steps, line.latest_ratio, len(line.ratios)) == ("scan, main", ((5, True),), "×0.800", 8)
    other = replace(nights[-1].request.works[0], time=99.0)
    nights[-1].request = replace(nights[-1].request, works=(other,))
    assert len(branch_or_series_charts(nights, "c8.html")[0].ratios) == 1, "tips of another workload are not compared"
    [scan, update, point] = branch_or_series_charts(
        [sample.series({"scan": ((8, -0.1),), "point-query": ((12, 0.06),)})], "c1.html"
    )
    assert (scan.title, scan.steps, len(scan.ratios)) == ("scan, 1.0..1.19", ((8, True),), 20)
    assert (update.steps, point.steps) == ((), ((12, False),))
