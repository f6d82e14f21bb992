"""The few signs that views draw with, in two sets: one for Unicode terminals, one where only ASCII can be written."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Glyphs:
    """One set of signs; each is one column wide."""

    blocks: str  # eight heights, lowest first
    line: str  # of the axis where nothing was tested
    good: str
    bad: str
    unclear: str
    skipped: str
    now: str
    done: str  # of a progress bar
    todo: str
    dot: str  # between two facts on a line
    arrow: str
    cut: str  # where text was cut off


UNICODE = Glyphs("▁▂▃▄▅▆▇█", "─", "○", "●", "◐", "×", "◆", "━", "─", "·", "→", "…")
ASCII = Glyphs("_.:-=+*#", "-", "o", "@", "?", "x", "^", "=", "-", "|", "->", "~")

PLAIN = {"“": '"', "”": '"', "’": "'", "…": "~", "×": "x", "–": "-", "·": "|", "→": ">"}


def glyphs_for(encoding: str) -> Glyphs:
    """The signs that can be written in ``encoding``."""
    try:
        "".join(str(getattr(UNICODE, name)) for name in UNICODE.__slots__).encode(encoding)
    except (UnicodeEncodeError, LookupError):
        return ASCII
    return UNICODE


def writable(text: str, encoding: str) -> str:
    """``text``, of the same length, with what ``encoding`` cannot write replaced by something close, or by "?"."""
    try:
        text.encode(encoding)
    except LookupError:
        return writable(text, "ascii")
    except UnicodeEncodeError:
        return "".join(sign if can_write(sign, encoding) else PLAIN.get(sign, "?") for sign in text)
    return text


def can_write(sign: str, encoding: str) -> bool:
    """True when ``encoding`` has this character."""
    try:
        sign.encode(encoding)
    except UnicodeEncodeError:
        return False
    return True


def sparkline(values: Sequence[float], top: float, width: int, glyphs: Glyphs) -> str:
    """The latest ``width`` values as blocks between 0 and ``top``."""
    steps = len(glyphs.blocks) - 1
    return "".join(glyphs.blocks[min(steps, max(0, round(steps * v / top)))] for v in values[-width:] if top > 0)


def bar(fraction: float, width: int, glyphs: Glyphs) -> tuple[str, str]:
    """The two parts of a progress bar: done and still to do."""
    done = int(min(1.0, max(0.0, fraction)) * width)
    return glyphs.done * done, glyphs.todo * (width - done)
