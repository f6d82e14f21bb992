"""The pictures and transcripts of README.md show what the program prints of the stored hunt, but for numbers and hashes."""

from collections.abc import Iterator

import pytest
from pictures import make

from perfbisect.cli.options.forms import Clone
from perfbisect.store.history import History

STALE = "stale: run `.venv/bin/python docs/pictures/make.py --stored`"


@pytest.fixture(scope="module")
def hunt() -> Iterator[tuple[History, Clone]]:
    with make.stored() as opened:
        yield opened


def test_the_picture_of_the_live_view(hunt: tuple[History, Clone]) -> None:
    assert make.text_of_svg(make.LIVE.read_text()) == make.text_of_svg(make.live(hunt[0])), STALE


def test_the_picture_of_the_page(hunt: tuple[History, Clone]) -> None:
    seen = make.words(make.TEXT.read_text())
    assert seen
    assert seen == make.text_of_page(make.page(*hunt))[: len(seen)], STALE


def test_the_transcripts(hunt: tuple[History, Clone]) -> None:
    """Every word of them; which numbers they have is a matter of rounding."""
    readme = make.README.read_text()
    assert make.BLOCK.search(readme)
    assert make.words(readme) == make.words(make.with_transcripts(readme, *hunt)), STALE
