"""Pages in a real browser: charts are drawn, nothing is fetched, keys work, hostile text does nothing."""

import base64
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import explained_hunt as reason
import sample_hunt as sample
from explained_hunt import hostile_page
from perfbisect.report.page.case import hunt_page
from perfbisect.store.history import History

PROGRAM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
LIMIT = 60.0  # seconds for one command
KEYS = {
    "ArrowDown": 40, "ArrowUp": 38, "ArrowLeft": 37, "ArrowRight": 39, "Enter": 13, "Escape": 27, "Tab": 9, "Home": 36,
}  # fmt: skip


class Browser:
    """One page of a browser."""

    def __init__(self, to: int, reader: int) -> None:
        self.to, self.reader = to, reader
        self.buffer = b""
        self.number = 0
        self.session = ""
        self.events: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> Any:
        """The result of a command of the DevTools protocol."""
        self.number += 1
        message = {"id": self.number, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self.receive()
            if answer.get("id") == self.number:
                assert "error" not in answer, answer["error"]
                return answer["result"]

    def receive(self) -> dict[str, Any]:
        """The next message; events are kept."""
        end = time.monotonic() + LIMIT
        while b"\0" not in self.buffer:
            assert select.select([self.reader], [], [], max(0.0, end - time.monotonic()))[0], "the browser is silent"
            self.buffer += os.read(self.reader, 1 << 20)
        line, _, self.buffer = self.buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        if "method" in message:
            self.events.append(message)
        return message

    def open(self, page: Path, *, width: int = 1280, height: int = 900, dark: bool = False) -> None:
        """Load a file at a size of the window, and wait until it has loaded."""
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.events.clear()
        self.call("Page.navigate", url=page.as_uri())
        while not self.seen("Page.loadEventFired"):
            self.receive()

    def seen(self, method: str) -> list[dict[str, Any]]:
        """What was reported of one type since the page was opened."""
        return [event["params"] for event in self.events if event["method"] == method]

    def ask(self, expression: str) -> Any:
        """The value of a JavaScript expression."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def press(self, key: str) -> None:
        """Press a key."""
        if key in KEYS:
            about = {"key": key, "code": key, "windowsVirtualKeyCode": KEYS[key]}
            about |= {"text": "\r"} if key == "Enter" else {}
        else:
            about = {"key": key, "text": key, "windowsVirtualKeyCode": ord(key.upper())}
        self.call("Input.dispatchKeyEvent", type="keyDown", **about)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key)

    def screenshot(self, to: Path, *, whole: bool = True) -> None:
        """Save a picture of the page."""
        picture = self.call("Page.captureScreenshot", captureBeyondViewport=whole)
        if whole:
            size = self.call("Page.getLayoutMetrics")["cssContentSize"]
            clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
            picture = self.call("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)
        to.write_bytes(base64.b64decode(picture["data"]))


@contextmanager
def browser(profile: Path) -> Iterator[Browser]:
    """A browser with a profile of its own in that folder, ended at the end."""
    assert PROGRAM
    commands, to = os.pipe()
    reader, answers = os.pipe()
    script = 'exec 3<&"$0" 4>&"$1"; shift; exec "$@"'
    arguments = [
        PROGRAM, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
        "--disable-background-networking", "--disable-component-update", "--disable-sync", "--hide-scrollbars",
        "--remote-debugging-pipe", f"--user-data-dir={profile}",
    ]  # fmt: skip
    with subprocess.Popen(
        ["bash", "-c", script, str(commands), str(answers), *arguments],
        pass_fds=(commands, answers),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "HOME": str(profile)},
    ) as process:
        os.close(commands)
        os.close(answers)
        try:
            yield Browser(to, reader)
        finally:
            os.close(to)  # at the end of its commands the browser ends
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
            os.close(reader)


pytestmark = [
    pytest.mark.slow,
    pytest.mark.tools,
    pytest.mark.skipif(PROGRAM is None, reason="no Chromium on this machine: apt-get install chromium"),
]


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """One browser for all tests."""
    with browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.fixture
def page(history: History, tmp_path: Path) -> Path:
    """The page of the sample hunt, with its reason."""
    file = tmp_path / "hunt.html"
    told = reason.explained(history, sample.write(history), plans=(reason.PLAN,))
    file.write_text(hunt_page(*told, reason.diff_of, None))
    return file


def complaints(opened: Browser) -> list[object]:
    """Errors of scripts, and what the policy refused."""
    logged = [entry["entry"] for entry in opened.seen("Log.entryAdded")]
    return [*opened.seen("Runtime.exceptionThrown"), *(entry for entry in logged if entry["level"] == "error")]


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (1280, True), (390, False), (390, True)])
def test_charts_are_drawn_and_nothing_is_fetched(chromium: Browser, page: Path, width: int, dark: bool) -> None:
    chromium.open(page, width=width, dark=dark)
    assert complaints(chromium) == []
    assert [asked["request"]["url"] for asked in chromium.seen("Network.requestWillBeSent")] == [page.as_uri()]
    for chart in (".timeline", ".range", ".flame", ".ladder .chart", ".counters .chart", ".functions .chart"):
        box = chromium.ask(f"(b => [b.width, b.height])(document.querySelector('{chart}').getBoundingClientRect())")
        assert min(box) > 10, chart
    assert chromium.ask("document.documentElement.scrollWidth <= innerWidth")
    back = chromium.ask("getComputedStyle(document.body).backgroundColor.match(/\\d+/g).slice(0, 3).map(Number)")
    assert (sum(back) < 200) is dark


def test_the_theme_can_be_chosen(chromium: Browser, page: Path) -> None:
    chromium.open(page)
    for theme in ("light", "dark", "system"):
        chromium.ask("document.getElementById('theme').click()")
        assert chromium.ask("document.getElementById('theme').textContent") == f"Theme: {theme}"
    assert complaints(chromium) == []


def test_the_flame_graph_obeys_keys(chromium: Browser, page: Path) -> None:
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


def test_what_vanished_is_shown_with_either_width(chromium: Browser, page: Path) -> None:
    chromium.open(page)
    gone = "[...document.querySelectorAll('.f.gone')].filter(f => f.getBoundingClientRect().width > 5).length"
    new = "[...document.querySelectorAll('.f.new')].filter(f => f.getBoundingClientRect().width > 5).length"
    assert chromium.ask(gone) == 1
    assert chromium.ask(new) == 2
    chromium.ask("document.querySelectorAll('.view')[1].click()")
    assert chromium.ask(gone) == 1
    assert chromium.ask(new) == 0


def test_a_link_of_a_function_unfolds_and_shows_its_change(chromium: Browser, page: Path) -> None:
    chromium.open(page)
    chromium.ask("document.querySelectorAll('.diff details').forEach(one => { one.open = false; })")
    chromium.ask("document.querySelector('.functions tr.changed a').click()")
    target = chromium.ask("document.querySelector(':target').textContent")
    assert "check_order" in target
    assert chromium.ask("document.querySelector(':target').closest('details').open")


def test_hostile_text_does_nothing(chromium: Browser, history: History, tmp_path: Path) -> None:
    file = tmp_path / "hostile.html"
    file.write_text(hostile_page(history))
    chromium.open(file)
    assert chromium.ask("document.title").startswith("The culprit is ")
    assert chromium.ask("document.images.length") == 0
    assert chromium.ask("document.scripts.length") == 1
    assert complaints(chromium) == []
    assert [asked["request"]["url"] for asked in chromium.seen("Network.requestWillBeSent")] == [file.as_uri()]
