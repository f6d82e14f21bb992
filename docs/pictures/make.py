"""Makes the pictures and the transcripts of README.md, from one hunt of the demo, a comparison, a proof, and releases side by side.

`.venv/bin/python docs/pictures/make.py` hunts first; with `--stored` it draws what was stored again, for a change of
views, reports or pages. tests/test_docs.py says when they are stale.
"""

import argparse
import lzma
import os
import re
import shutil
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from contextlib import closing, contextmanager
from html.parser import HTMLParser
from io import StringIO
from pathlib import Path
from xml.etree import ElementTree

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console, Group

from perfbisect.cli.options.stored import LazyClone
from perfbisect.core.domain.events import RunStarted
from perfbisect.core.domain.orders import Purpose
from perfbisect.demo.history import write_history
from perfbisect.hunt.watching import FollowedHunt
from perfbisect.report import hunt as hunts
from perfbisect.report import terminal, trial
from perfbisect.report.hunt_report import read_hunt_report
from perfbisect.report.page import pages
from perfbisect.store.history import History
from perfbisect.ui.screen import screen_lines
from perfbisect.ui.session_update import view_after_events
from perfbisect.ui.session_view import SessionView

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
README = ROOT / "README.md"
STORED, LIVE, PAGE, TEXT = (HERE / name for name in ("hunt.db.xz", "live.svg", "page.png", "page.txt"))
RELEASES = ROOT / "benchmarks" / "releases" / "postgres.db.xz"  # releases side by side
CHART = HERE / "releases.png"
SEED = 3
PLACE = Path("/tmp/demo")  # what commands and reports name
OF_RECIPES = "--builder demo --workload update-index --repo repository"
COMMANDS = {  # session → the command that measured it
    "1": f"bisect demo --seed {SEED}",
    "c2": f"bisect compare v1.0 v1.1 {OF_RECIPES}",
    "p3": "bisect prove 1",
}
COLUMNS = 100  # of the live view
WIDE = 100  # of transcripts
SIZE = 1000, 1000  # of the picture of the page, which goes on to the next heading
HIGHEST = 2000  # pixels of a picture
# A transcript in README: its session, and how the paragraphs begin that it has of the report.
BLOCK = re.compile(r"(<!-- docs/pictures/make.py: (\w+): ([^\n]*) -->\n)(.*?)(?=<!-- end -->)", re.DOTALL)
FONTS = re.compile(r"^ *@font-face \{\{.*?^ *\}\}\n", re.DOTALL | re.MULTILINE)  # of another machine
END = """Math.min(...[...document.querySelectorAll("main h2, main h3")].map(each => each.getBoundingClientRect().top)
    .filter(top => top > innerHeight)) - 1"""
DRAWN = """(() => {
    const nodes = document.createTreeWalker(document.querySelector("main"), NodeFilter.SHOW_TEXT), found = []
    for (const range = document.createRange(); nodes.nextNode(); found.push(nodes.currentNode.data.trim())) {
        range.selectNodeContents(nodes.currentNode)
        if (range.getBoundingClientRect().top >= innerHeight) break
    }
    return found.filter(Boolean).join("\\n")
})()"""


def words(text: str) -> list[str]:
    """What of a text must be as it was: all but numbers and hashes."""
    return [word for word in text.split() if not re.search(r"\d", word)]


class Main(HTMLParser):
    """The text of a page's main part."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.parts: list[str] = []
        self.feed(page[page.index("<main") : page.index("</main>")])

    def handle_data(self, data: str) -> None:
        """Keep it."""
        self.parts.append(data)


def text_of_page(page: str) -> list[str]:
    """The words of a page's main part."""
    return words(" ".join(Main(page).parts))


def text_of_svg(picture: str) -> list[str]:
    """The words of a picture."""
    return words("".join(ElementTree.fromstring(picture).itertext()))


@contextmanager
def unpacked(compressed: Path) -> Iterator[History]:
    """The history in a compressed file."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "history.db")
        file.write_bytes(lzma.decompress(compressed.read_bytes()))
        with closing(History.open(file, read_only=True)) as history:
            yield history


@contextmanager
def stored() -> Iterator[tuple[History, LazyClone]]:
    """The stored history, and the repository of its hunt, which is written anew."""
    with tempfile.TemporaryDirectory() as folder, unpacked(STORED) as history:
        repository = Path(folder, "repository")
        write_history(repository, SEED)
        yield history, LazyClone(repository)


def live(history: History) -> str:
    """The live view in the last run of the first confirmation."""
    view, at = SessionView(), 0.0
    for at, event in FollowedHunt(history, 1).new():
        view = view_after_events(view, [(at, event)])
        if isinstance(event, RunStarted) and event.purpose is Purpose.CONFIRM and event.number == event.of:
            break
    console = Console(record=True, file=StringIO(), width=COLUMNS, markup=False, emoji=False, highlight=False)
    console.print(Group(*screen_lines(view, COLUMNS, None, at + 1)))
    return console.export_svg(title=COMMANDS["1"], code_format=FONTS.sub("", CONSOLE_SVG_FORMAT), unique_id="live")


def page(history: History, clone: LazyClone) -> str:
    """The page of the hunt."""
    return pages.session_page(hunts.document(read_hunt_report(history, 1, clone.describe), clone.diff))


def report(history: History, clone: LazyClone, session: str) -> str:
    """What `bisect show` prints of a session."""
    if session == "1":
        return terminal.document_text(hunts.document(read_hunt_report(history, 1, clone.describe)))
    return terminal.document_text(trial.document(history.trial(session)))


def with_transcripts(readme: str, history: History, clone: LazyClone) -> str:
    """README with its transcripts as they are now."""

    def block(found: re.Match[str]) -> str:
        paragraphs = report(history, clone, found[2]).split("\n\n")
        wanted = [next(each for each in paragraphs if each.startswith(begin)) for begin in found[3].split("; ")]
        folded = [textwrap.fill(line, WIDE) for each in wanted for line in each.strip("\n").split("\n")]
        return "\n".join([found[1] + "```console", f"$ {COMMANDS[found[2]]}", "…", *folded, "```\n"])

    return BLOCK.sub(block, readme)


def measure() -> None:
    """Hunt, compare and prove in an empty home, and store the history."""
    home = PLACE / "home"
    home.mkdir(parents=True)  # fails where somebody else uses it
    program = [sys.executable, "-c", "from perfbisect.cli.main import main; main()"]
    try:
        for command in (COMMANDS["1"] + " --folder .", COMMANDS["c2"], COMMANDS["p3"], "bisect history export out.db"):
            environment = {name: value for name, value in os.environ.items() if not name.startswith("XDG_")}
            environment |= {"HOME": str(home)}
            subprocess.run([*program, *command.split()[1:]], cwd=PLACE, env=environment, check=True)
        STORED.write_bytes(lzma.compress((PLACE / "out.db").read_bytes(), preset=9 | lzma.PRESET_EXTREME))
    finally:
        shutil.rmtree(PLACE)


def photograph(page: str, picture: Path, *, section: str = "", text: Path | None = None) -> None:
    """Write the beginning of a page, or a section, as the browser of the tests draws it, and the text in that picture."""
    sys.path.insert(0, str(ROOT / "tests"))
    from chromium import browser

    with tempfile.TemporaryDirectory() as folder, browser(Path(folder)) as opened:
        file = Path(folder, "page.html")
        file.write_text(page)
        opened.open(file, width=SIZE[0], height=SIZE[1])
        height = opened.ask(f"document.getElementById('{section}').offsetHeight" if section else END)
        opened.open(file, width=SIZE[0], height=min(int(height), HIGHEST))
        if section:
            opened.ask(f"document.getElementById('{section}').scrollIntoView({{behavior: 'instant'}})")
        opened.screenshot(picture, whole=False)
        if text:
            text.write_text(f"{opened.ask(DRAWN)}\n")


def main() -> None:
    """Make all of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stored", action="store_true", help="draw the stored history again")
    if not parser.parse_args().stored:
        measure()
    with stored() as (history, clone):
        LIVE.write_text(live(history))
        photograph(page(history, clone), PAGE, text=TEXT)
        README.write_text(with_transcripts(README.read_text(), history, clone))
    with unpacked(RELEASES) as history:
        photograph(pages.session_page(trial.document(history.trial("c1"), for_page=True)), CHART, section="series")


if __name__ == "__main__":
    main()
