"""Pages in a real browser: charts are drawn, nothing is fetched, keys work, and hostile text has no effect."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import explained_hunt as reason
import sample_hunt as sample
from chromium import PROGRAM, Browser, axe_core, browser, complaints, violations
from explained_hunt import hostile_page
from perfbisect.report.hunt import document as hunt_document
from perfbisect.report.page import pages
from perfbisect.store.history import History

pytestmark = [
    pytest.mark.tools,
    pytest.mark.xdist_group("chromium"),  # so that one browser starts
    pytest.mark.skipif(PROGRAM is None, reason="no Chromium on this machine: apt-get install chromium"),
]


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """One browser for all tests."""
    with browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.fixture
def page(history: History, tmp_path: Path) -> Path:
    """The page of the sample hunt with its explanation."""
    file = tmp_path / "hunt.html"
    report = reason.explained(history, sample.write(history), plans=(reason.PLAN,))
    file.write_text(pages.session_page(hunt_document(report, reason.diff_of)))
    return file


@pytest.fixture(scope="module")
def axe(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The script of axe-core, which checks accessibility."""
    return axe_core(tmp_path_factory.mktemp("axe"))


@pytest.mark.slow
@pytest.mark.parametrize(("width", "dark"), [(400, False), (1400, True)])
def test_page_has_no_accessibility_violations(chromium: Browser, page: Path, axe: str, width: int, dark: bool) -> None:
    chromium.open(page, width=width, dark=dark)
    assert violations(chromium, axe) == []


SLOW = [pytest.param(*each, marks=pytest.mark.slow) for each in ((800, False), (400, True))]


@pytest.mark.parametrize(("width", "dark"), [(1400, False), *SLOW])
def test_page_draws_its_charts_and_fetches_nothing(chromium: Browser, page: Path, width: int, dark: bool) -> None:
    chromium.open(page, width=width, dark=dark)
    assert complaints(chromium) == []
    assert [asked["request"]["url"] for asked in chromium.seen("Network.requestWillBeSent")] == [page.as_uri()]
    for chart in (".timeline", ".range", ".flame", ".ladder .chart", ".counters .chart", ".functions .chart"):
        box = chromium.ask(f"(b => [b.width, b.height])(document.querySelector('{chart}').getBoundingClientRect())")
        assert min(box) > 10, chart
    assert chromium.ask("document.documentElement.scrollWidth <= innerWidth")
    assert chromium.ask("document.querySelector('.functions tbody th').clientWidth") > 150, "room for twenty characters"
    back = chromium.ask("getComputedStyle(document.body).backgroundColor.match(/\\d+/g).slice(0, 3).map(Number)")
    assert (sum(back) < 200) is dark


@pytest.mark.slow
def test_flame_graph_is_controlled_by_keys(chromium: Browser, page: Path) -> None:
    chromium.open(page)
    chromium.ask("document.querySelector('.graph').focus()")
    status = "document.querySelector('.status').textContent"
    for _ in range(5):
        chromium.press("ArrowDown")
    assert chromium.ask(status).startswith("page_insert: ")
    narrow = chromium.ask("document.querySelector('.f.current').getBoundingClientRect().width")
    chromium.press("Enter")
    wide = chromium.ask("document.querySelector('.f.current').getBoundingClientRect().width")
    assert wide > 1.5 * narrow
    assert not chromium.ask("document.querySelector('.reset').disabled")
    chromium.press("Escape")
    assert chromium.ask("document.querySelector('.reset').disabled")
    chromium.press("/")
    assert chromium.ask("document.activeElement.type") == "search"
    for letter in "compare":
        chromium.press(letter)
    assert chromium.ask(status).startswith("2 frames, ")
    assert chromium.ask("document.querySelectorAll('.f.match').length") == 2
    chromium.press("Escape")
    assert chromium.ask("document.querySelectorAll('.f.match').length") == 0
    assert complaints(chromium) == []


@pytest.mark.slow
def test_page_buttons_and_links_work(chromium: Browser, page: Path) -> None:
    """Buttons set the theme and the widths of the flame graph. The link of a function opens its hunk of the diff."""
    chromium.open(page)
    for theme in ("light", "dark", "system"):
        chromium.ask("document.getElementById('theme').click()")
        assert chromium.ask("document.getElementById('theme').textContent") == f"Theme: {theme}"
    wide = "[...document.querySelectorAll('.f.{}')].filter(f => f.getBoundingClientRect().width > 5).length"
    assert [chromium.ask(wide.format(each)) for each in ("gone", "new")] == [1, 2]
    chromium.ask("document.querySelectorAll('.view')[1].click()")
    assert [chromium.ask(wide.format(each)) for each in ("gone", "new")] == [1, 0]
    chromium.ask("document.querySelectorAll('.diff details').forEach(one => { one.open = false; })")
    chromium.ask("document.querySelector('.functions tr.changed a').click()")
    assert "static int check_order(" in chromium.ask("document.querySelector(':target').textContent")
    assert chromium.ask("document.querySelector(':target').closest('details').open")
    assert complaints(chromium) == []


@pytest.mark.slow
def test_diff_starts_at_the_function_of_the_explanation(chromium: Browser, history: History, tmp_path: Path) -> None:
    file, before = tmp_path / "hunt.html", "".join(f"+int check_{number}(void);\n" for number in range(99))
    diff = reason.DIFF.replace("+static int check_order", f"{before}+static int check_order")
    file.write_text(
        pages.session_page(hunt_document(reason.explained(history, sample.write(history)), lambda *_: (diff, 0)))
    )
    chromium.open(file)
    down = "document.querySelector('[id=\"case-1-hunk-1-0-102\"]').getBoundingClientRect().top"
    assert 0 < chromium.ask(f"{down} - document.querySelector('.diff').getBoundingClientRect().top") < 400


@pytest.mark.slow
def test_hostile_text_has_no_effect_on_the_page(chromium: Browser, history: History, tmp_path: Path) -> None:
    file = tmp_path / "hostile.html"
    file.write_text(hostile_page(history))
    chromium.open(file)
    assert chromium.ask("document.title").startswith("6da84d17ef: a drop of ")
    assert chromium.ask("document.images.length") == 0
    assert chromium.ask("document.scripts.length") == 1
    assert complaints(chromium) == []
    assert [asked["request"]["url"] for asked in chromium.seen("Network.requestWillBeSent")] == [file.as_uri()]
