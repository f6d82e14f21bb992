"""The characters (signs) with which views draw: a set of signs for Unicode terminals, and a set for terminals that can
show only ASCII.
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Glyphs:
    """A set of signs. Each sign is one column wide, except the arrow."""

    blocks: str  # blocks of eight heights, lowest first
    line: str  # the part of an axis without tested commits
    good: str
    bad: str
    unclear: str
    skipped: str
    now: str
    done: str  # the part of a progress bar that is done
    todo: str
    dot: str  # separates two facts on a line
    arrow: str


UNICODE = Glyphs("▁▂▃▄▅▆▇█", "─", "○", "●", "◐", "×", "◆", "━", "─", "·", "→")
ASCII = Glyphs("_.:-=+*#", "-", "o", "@", "?", "x", "^", "=", "-", "|", "->")

# Sign → a similar ASCII sign; never a double quote, which would end a string in JSON.
ASCII_SIGNS = dict(zip("“”’…×–·→●○━─│", "'''~x-|>o.=-|", strict=True))


def glyphs_for(encoding: str) -> Glyphs:
    """The set of signs for a terminal with ``encoding``: the Unicode signs if the encoding has them, otherwise the
    ASCII signs."""
    signs = "".join(str(getattr(UNICODE, name)) for name in UNICODE.__slots__)
    return UNICODE if encodable(signs, encoding) else ASCII


def writable(text: str, encoding: str) -> str:
    """``text``, in which each character that ``encoding`` lacks is replaced by a similar character or "?". The length
    of the text does not change.
    """
    if encodable(text, encoding):
        return text
    return "".join(sign if encodable(sign, encoding) else ASCII_SIGNS.get(sign, "?") for sign in text)


def encodable(text: str, encoding: str) -> bool:
    """Whether ``encoding`` has all characters of a text. An unknown encoding is treated as ASCII."""
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return False
    except LookupError:
        return text.isascii()
    return True


def sparkline(values: Sequence[float], top: float, width: int, glyphs: Glyphs) -> str:
    """The latest ``width`` values as a line of block characters. The full height of a character is the value
    ``top``."""
    steps = len(glyphs.blocks) - 1
    return "".join(glyphs.blocks[min(steps, max(0, round(steps * v / top)))] for v in values[-width:] if top > 0)


def bar(fraction: float, width: int, glyphs: Glyphs) -> tuple[str, str]:
    """The two parts of a progress bar of ``width`` columns: the finished part, and the rest."""
    done = int(min(1.0, max(0.0, fraction)) * width)
    return glyphs.done * done, glyphs.todo * (width - done)


def dumbbell(
    before: float, after: float, span: tuple[float, float], width: int, glyphs: Glyphs
) -> tuple[str, str, str]:
    """A line of ``width`` columns on which two values are marked, as three texts: the text left of the two marks, the
    two marks and the bar between them, and the text right of the two marks.

    ``span`` is a pair: the value that the left end of the line represents, and the value that the right end represents.
    """
    low, size = span[0], max(span[1] - span[0], 1e-12)
    signs = ((before, glyphs.good), (after, glyphs.bad))
    (first, left), (last, right) = sorted((round((value - low) / size * (width - 1)), sign) for value, sign in signs)
    drawn = left + glyphs.done * (last - first - 1) + right if last > first else glyphs.bad
    return glyphs.line * first, drawn, glyphs.line * (width - 1 - last)
