"""What a BUILD of `bisect compare` may mean: REV, REV@VARIANT, REV+CONFIG or REV@VARIANT+CONFIG.

A revision may itself contain @ and +, as in ``HEAD@{1}`` or a tag ``v1+2``, and so may the path of a configuration. So a
word has several readings; the first one whose revision exists counts, beginning with the whole word as a revision.
"""

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Reading:
    """One way to read a word."""

    revision: str
    variant: str = ""
    config: str = ""

    @property
    def word(self) -> str:
        """The word that is read so."""
        return self.revision + (f"@{self.variant}" if self.variant else "") + (f"+{self.config}" if self.config else "")


def readings(word: str, variants: Collection[str], is_config: Callable[[str], bool]) -> Iterator[Reading]:
    """The readings of a word, those with the longest revision first.

    ``variants`` are the builder's, ``is_config`` is whether a configuration has that name, or a file that path.
    """
    yield Reading(word)
    for end in range(len(word) - 1, 0, -1):
        if word[end] == "+" and is_config(word[end + 1 :]):
            yield Reading(word[:end], config=word[end + 1 :])
        if word[end] == "@":
            for variant, config in suffixes(word[end + 1 :]):
                if variant in variants and (not config or is_config(config)):
                    yield Reading(word[:end], variant, config)


def suffixes(text: str) -> Iterator[tuple[str, str]]:
    """What may stand behind an @, as variant and configuration; the longest variants first."""
    yield text, ""
    for plus in range(len(text) - 2, 0, -1):
        if text[plus] == "+":
            yield text[:plus], text[plus + 1 :]


def guesses(word: str) -> Iterator[Reading]:
    """The readings of a word whose variant and configuration may have any name: what an error is about."""
    for end in range(len(word) - 2, 0, -1):
        if word[end] == "+":
            yield Reading(word[:end], config=word[end + 1 :])
        if word[end] == "@" and word[end + 1] != "{":
            yield from (Reading(word[:end], *suffix) for suffix in suffixes(word[end + 1 :]))
