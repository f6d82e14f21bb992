"""Foreign text and counts as every output writes them."""

import re

UNSAFE = re.compile(r"[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]+")


def printable(text: str) -> str:
    """Text from a repository or a tool on one line, without anything that could steer a terminal."""
    return " ".join(UNSAFE.sub(" ", text).split())


def count(number: int, one: str) -> str:
    """A number with its noun: 1 run, 23 runs."""
    return f"{number:,} {one if number == 1 else one + 's'}"
