"""Foreign text, warnings, counts, shares and probabilities as every output writes them."""

import math
import re

from perfbisect.core.domain.policy import CAP

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


def percent(fraction: float) -> str:
    """A fraction as a percentage of two digits: 29 %, 2.1 %."""
    return f"{fraction * 100:.1f} %" if fraction < 0.0995 else f"{fraction * 100:.0f} %"


def chance(probability: float) -> str:
    """A probability as a percentage, never 0 and never above the cap: 97 %, 99.5 %, <0.1 %."""
    if probability < 0.001:
        return "<0.1 %"
    if probability >= 0.99:
        return f"{math.floor(1000 * min(probability, CAP) + 1e-9) / 10:.1f} %"
    return percent(probability)
