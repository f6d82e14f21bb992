"""The documentation agrees with the repository: links, paths, options and the commands of the hooks."""

import re
import shlex
import subprocess
import warnings
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from pictures import make

from perfbisect.cli.main import VERBS, bisect
from perfbisect.cli.options.stored import LazyClone
from perfbisect.store.history import History
from reference import GUIDE, with_keys

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "bisect" / "perfbisect"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(r"^ *```.*?^ *```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
# A file below one of the repository's folders, or below the package: `lab/building/pipeline.py`, `core/search/`.
TREES = ("bisect", "benchmarks", "builders", "workloads", "tests", "docs", "setup", ".ci")
ROOMS = tuple(path.name for path in PACKAGE.iterdir() if path.is_dir())
PATH = re.compile(rf"`((?:{'|'.join(map(re.escape, TREES + ROOMS))})/[\w./-]*|[\w/]+\.py)`")
DOTTED = re.compile(r"\bperfbisect(?:\.\w+)+")


def prose(page: Path) -> str:
    """A page without its fenced blocks."""
    return FENCE.sub("", page.read_text())


def anchors(page: Path) -> set[str]:
    """The fragments of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def exists(path: str) -> bool:
    """A path of the repository or of the package; a word in capitals, as in builders/NAME/, may be any name."""
    pattern = re.sub(r"[A-Z]{3,}", "*", path.rstrip("/"))
    return any(True for folder in (ROOT, PACKAGE) for _ in folder.glob(pattern))


def broken_links(page: Path) -> Iterator[str]:
    for target in LINK.findall(prose(page)):
        name, _, fragment = target.partition("#")
        file = (page.parent / name).resolve() if name else page
        if "://" not in target and (not file.exists() or (fragment and fragment not in anchors(file))):
            yield target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_paths_and_modules_exist(page: Path) -> None:
    modules = {name: "/".join(name.split(".")[1:]) for name in DOTTED.findall(prose(page))}
    missing = [name for name, path in modules.items() if not exists(path) and not exists(f"{path}.py")]
    assert [*broken_links(page), *(path for path in PATH.findall(prose(page)) if not exists(path)), *missing] == []


def test_check_of_paths_finds_missing_files() -> None:
    named = PATH.findall(
        "`core/search/no_such.py` `levels.py` `builders/NAME` `builders/NAME/no.toml` `lab/` `--metric` `v1.0`"
    )
    assert named == ["core/search/no_such.py", "levels.py", "builders/NAME", "builders/NAME/no.toml", "lab/"]
    assert [exists(path) for path in named] == [False, False, True, False, True]


def test_options_named_in_readme_and_on_the_page_of_commands_exist() -> None:
    known = {"--help"}
    for verb in VERBS:
        command = bisect.get_command(click.Context(bisect), verb)
        assert command is not None
        known |= {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", prose(ROOT / "docs" / "commands.md") + PAGES[0].read_text()))
    assert named
    assert named <= known


def test_tables_of_keys_in_the_guide_are_up_to_date() -> None:
    assert GUIDE.read_text() == with_keys(GUIDE.read_text()), "stale: run `.venv/bin/python tests/reference.py`"


def test_readme_is_short_and_links_to_every_command_and_page() -> None:
    text = PAGES[0].read_text()
    assert len(text.split()) <= 900
    table = text.partition("## Commands")[2].partition("##")[0]
    assert sorted(re.findall(r"`(\w+)`", table)) == sorted(VERBS)
    assert {str(page.relative_to(ROOT)) for page in PAGES[1:]} <= {
        link.partition("#")[0] for link in LINK.findall(text)
    }


def test_pre_commit_hooks_run_the_commands_of_make_lint() -> None:
    recipe = re.search(r"^lint:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert recipe
    lint = [shlex.split(line) for line in recipe[1].replace("$(VENV)", ".venv").splitlines()]
    hooks = re.findall(r"^ +entry: (.+)$", (ROOT / ".pre-commit-config.yaml").read_text(), re.MULTILINE)
    assert [shlex.split(entry) for entry in hooks] == lint


@pytest.mark.filterwarnings("always:the search has changed")
def test_calibration_report_states_the_hash_of_its_core() -> None:
    """A later change of the core is only a warning, because a calibration takes long."""
    known = re.search(r"^- core ([0-9a-f]{40})", (ROOT / "benchmarks" / "calibration.md").read_text(), re.MULTILINE)
    assert known
    asked = ["git", "-C", str(ROOT), "rev-parse", "HEAD:bisect/perfbisect/core"]
    now = subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()
    if now and now != known[1]:  # no answer without a repository
        warnings.warn("the search has changed since it was calibrated: benchmarks/calibration.md", stacklevel=1)


# The pictures and transcripts of README.md show what the program prints of the stored hunt, except numbers and hashes.


STALE = "stale: run `.venv/bin/python docs/pictures/make.py --stored`"


@pytest.fixture(scope="module")
def hunt() -> Iterator[tuple[History, LazyClone]]:
    with make.stored() as opened:
        yield opened


def test_picture_of_the_live_view_is_up_to_date(hunt: tuple[History, LazyClone]) -> None:
    assert make.text_of_svg(make.LIVE.read_text()) == make.text_of_svg(make.live(hunt[0])), STALE


def test_picture_of_the_page_is_up_to_date(hunt: tuple[History, LazyClone]) -> None:
    seen = make.words(make.TEXT.read_text())
    assert seen
    assert seen == make.text_of_page(make.page(*hunt))[: len(seen)], STALE


def test_transcripts_in_the_readme_are_up_to_date(hunt: tuple[History, LazyClone]) -> None:
    """Only words are compared, because numbers depend on rounding."""
    readme = make.README.read_text()
    assert make.BLOCK.search(readme)
    assert make.words(readme) == make.words(make.with_transcripts(readme, *hunt)), STALE
