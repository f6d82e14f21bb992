"""What the user probably meant."""

from collections.abc import Iterable
from difflib import get_close_matches


def hint(word: str, known: Iterable[str]) -> str:
    """A sentence naming the known word nearest to ``word``, or nothing when none is near."""
    near = get_close_matches(word, list(known), 1)
    return f" Did you mean '{near[0]}'?" if near else ""


def listed(words: Iterable[str]) -> str:
    """The words in alphabetical order, for a sentence; "none" when there are none."""
    return ", ".join(sorted(words)) or "none"
