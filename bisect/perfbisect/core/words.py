"""Foreign text, warnings and counts as every output writes them."""

import re

UNSAFE = re.compile(r"[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]+")


def printable(text: str) -> str:
    """Text from a repository or a tool on one line, without anything that could steer a terminal."""
    return " ".join(UNSAFE.sub(" ", text).split())


def advised(text: str, advice: str) -> str:
    """A warning and what to do about it, as sentences."""
    stop = "" if text.endswith((".", "!", "?")) or not advice else "."
    return printable(f"{text}{stop} {advice}")


def count(number: int, one: str) -> str:
    """A number with its noun: 1 run, 23 runs."""
    return f"{number:,} {one if number == 1 else one + 's'}"
