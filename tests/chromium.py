"""A real browser, controlled by its DevTools protocol."""

import base64
import json
import os
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

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
        """Send a command of the DevTools protocol. Return its result."""
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
        """The next message. Events are also stored in ``events``."""
        end = time.monotonic() + LIMIT
        while b"\0" not in self.buffer:
            assert select.select([self.reader], [], [], max(0.0, end - time.monotonic()))[0], "the browser is silent"
            self.buffer += os.read(self.reader, 1 << 20)
        line, _, self.buffer = self.buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        if "method" in message:
            self.events.append(message)
        return message

    def open(self, page: Path | str, *, width: int = 1280, height: int = 900, dark: bool = False) -> None:
        """Load a file or an address in a window of this size, and wait until the page has loaded."""
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.events.clear()
        self.call("Page.navigate", url=page if isinstance(page, str) else page.as_uri())
        while not self.seen("Page.loadEventFired"):
            self.receive()

    def seen(self, method: str) -> list[dict[str, Any]]:
        """The parameters of all events ``method`` since the page was opened."""
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
    """A browser with its profile in ``profile``; it ends with the context."""
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
            os.close(to)  # the browser ends if its command pipe is closed
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
            os.close(reader)


def complaints(opened: Browser) -> list[object]:
    """Errors of scripts, and other logged errors, such as violations of the content security policy."""
    logged = [entry["entry"] for entry in opened.seen("Log.entryAdded")]
    return [*opened.seen("Runtime.exceptionThrown"), *(entry for entry in logged if entry["level"] == "error")]


def axe_core(folder: Path) -> str:
    """The script of axe-core, which pip installs into ``folder``. Without a network, the test is skipped."""
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(folder)]
    if subprocess.run([*pip, "axe-playwright-python~=0.1.8"], check=False, capture_output=True).returncode:
        pytest.skip("pip cannot install axe-playwright-python")
    return (folder / "axe_playwright_python" / "axe.min.js").read_text()


def violations(opened: Browser, axe: str) -> Any:
    """The violations of accessibility rules that axe-core finds in the page."""
    opened.ask(f"{axe}; 0")
    run = "axe.run().then(found => found.violations.map(each => [each.id, each.impact, each.nodes[0].html]))"
    found = opened.call("Runtime.evaluate", expression=run, awaitPromise=True, returnByValue=True)
    return found["result"]["value"]
