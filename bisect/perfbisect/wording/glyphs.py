"""The signs that views draw with, in two sets: one for Unicode terminals, one for those that can show ASCII only."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Glyphs:
    """One set of signs; each is one column wide, but for the arrow."""

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


UNICODE = Glyphs("▁▂▃▄▅▆▇█", "─", "○", "●", "◐", "×", "◆", "━", "─", "·", "→")
ASCII = Glyphs("_.:-=+*#", "-", "o", "@", "?", "x", "^", "=", "-", "|", "->")

# Of each sign one that is similar, never a double quote: in JSON text it would end a string.
ASCII_SIGNS = dict(zip("“”’…×–·→●○━─│", "'''~x-|>o.=-|", strict=True))


def glyphs_for(encoding: str) -> Glyphs:
    """The set that can be written in ``encoding``."""
    signs = "".join(str(getattr(UNICODE, name)) for name in UNICODE.__slots__)
    return UNICODE if encodable(signs, encoding) else ASCII


def writable(text: str, encoding: str) -> str:
    """``text``, of the same length; what ``encoding`` lacks is replaced by a similar sign, or by "?"."""
    if encodable(text, encoding):
        return text
    return "".join(sign if encodable(sign, encoding) else ASCII_SIGNS.get(sign, "?") for sign in text)


def encodable(text: str, encoding: str) -> bool:
    """True when ``encoding`` has all of these signs; an unknown encoding is taken for ASCII."""
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return False
    except LookupError:
        return text.isascii()
    return True


def sparkline(values: Sequence[float], top: float, width: int, glyphs: Glyphs) -> str:
    """The latest ``width`` values as blocks between 0 and ``top``."""
    steps = len(glyphs.blocks) - 1
    return "".join(glyphs.blocks[min(steps, max(0, round(steps * v / top)))] for v in values[-width:] if top > 0)


def bar(fraction: float, width: int, glyphs: Glyphs) -> tuple[str, str]:
    """The two parts of a progress bar: done, and still to do."""
    done = int(min(1.0, max(0.0, fraction)) * width)
    return glyphs.done * done, glyphs.todo * (width - done)


def dumbbell(
    before: float, after: float, span: tuple[float, float], width: int, glyphs: Glyphs
) -> tuple[str, str, str]:
    """Two values that belong together on a line of ``width`` columns, and the line before and after them.

    ``span`` is what the line stands for, from end to end.
    """
    low, size = span[0], max(span[1] - span[0], 1e-12)
    ends = sorted(
        (round((value - low) / size * (width - 1)), sign)
        for value, sign in ((before, glyphs.good), (after, glyphs.bad))
    )
    (first, left), (last, right) = ends
    drawn = left + glyphs.done * (last - first - 1) + right if last > first else glyphs.bad
    return glyphs.line * first, drawn, glyphs.line * (width - 1 - last)
