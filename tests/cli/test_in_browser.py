"""Pages of `bisect serve` in a real browser: the login, and the dashboard, which fits on a screen."""

import math
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

import sample_hunt as sample
from chromium import PROGRAM, axe_core, browser, complaints, violations
from perfbisect.cli.guard import add_user
from perfbisect.store.history import History
from program import served

pytestmark = [
    pytest.mark.slow,
    pytest.mark.tools,
    pytest.mark.skipif(PROGRAM is None, reason="no Chromium on this machine: apt-get install chromium"),
]

DAY = 86400.0


@pytest.fixture
def history(tmp_path: Path) -> Iterator[History]:
    """Three hunts with a culprit, two running hunts, a series of releases with two steps, and eight nights."""
    now = time.time()
    with closing(History.open(tmp_path / "history.db")) as opened:
        for age in (60, 4, 1):
            hunt = sample.begin(opened, at=now - age * DAY)
            for at, event in sample.events():
                opened.append(hunt, event, at)
        lines = sample.series({"scan": ((8, -0.1),), "point-query": ((12, 0.06),)}, releases=24)
        sample.write_trial(opened, lines, now - DAY)
        for number in range(8):
            sample.write_trial(opened, sample.night(number), now - DAY + number)
        for name in ("<b>slow updates</b>", ""):
            sample.begin(opened, replace(sample.SETTINGS, name=name), now)
        yield opened


def test_login_opens_the_dashboard_which_links_to_all_pages(history: History, tmp_path: Path) -> None:
    axe, users = axe_core(tmp_path / "axe"), tmp_path / "users"
    add_user(users, "reader", "correct horse")
    kept = ("--history", str(history.path), "--password-file", str(users))
    with browser(tmp_path / "profile") as chromium, served(*kept) as port:
        chromium.open(f"http://reader:wrong@127.0.0.1:{port}/")
        assert not chromium.ask("document.querySelector('.dash') !== null")
        assert {event["response"]["status"] for event in chromium.seen("Network.responseReceived")} <= {401}
        here = f"http://reader:correct%20horse@127.0.0.1:{port}/"
        for width, dark in ((1280, False), (1280, True), (400, False), (400, True)):
            chromium.open(here, width=width, height=800, dark=dark)
            assert (violations(chromium, axe), complaints(chromium)) == ([], [])
            assert chromium.ask("document.documentElement.scrollWidth <= innerWidth")
            assert chromium.ask("document.documentElement.scrollHeight <= innerHeight") is (width == 1280)
        said = "2 sessions run, 2 hunts of the last 4 weeks named a culprit"
        assert chromium.ask("document.querySelector('h1').textContent") == said
        rows = "[...document.querySelectorAll('.listing tbody tr')].map(row => row.children[5].textContent)"
        assert "<b>slow updates</b>: 1.0..1.1" in chromium.ask(rows)
        scan = "document.querySelector('.spark').getBoundingClientRect()"
        step = "document.querySelector('.spark .step.bad').getBoundingClientRect().left"
        assert math.isclose(chromium.ask(f"({step} - {scan}.left) / {scan}.width"), 4.5 / 7, abs_tol=0.01)
        titles = {
            "hunt-3.html": "6da84d17ef",
            "c4.html": "",
            "c12.html": "",
            "all": "perfbisect: hunts and comparisons",
        }
        for page, title in titles.items():
            chromium.open(here)
            chromium.events.clear()
            chromium.ask(f"document.querySelector('a[href=\"{page}\"]').click()")
            while not chromium.seen("Page.loadEventFired"):
                chromium.receive()
            assert chromium.ask("document.title").startswith(title)
            assert chromium.ask("location.pathname") == f"/{page}"
            assert chromium.ask("document.querySelector('.brand a').pathname") == "/"
