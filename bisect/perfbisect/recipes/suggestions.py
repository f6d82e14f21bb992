"""Sentences that suggest the word which the user probably meant."""

from collections.abc import Iterable
from difflib import get_close_matches


def hint(word: str, known: Iterable[str]) -> str:
    """A sentence with the known word most similar to ``word``; "" when none is similar."""
    near = get_close_matches(word, list(known), 1)
    return f" Did you mean '{near[0]}'?" if near else ""


def listed(words: Iterable[str]) -> str:
    """The words in alphabetical order, for a sentence; "none" when there are none."""
    return ", ".join(sorted(words)) or "none"
