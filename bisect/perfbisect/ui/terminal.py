"""Terminals for rich, which adds colours and moves the cursor. All text that they draw is made safe."""

import os
import termios
from collections.abc import Iterable
from contextlib import suppress
from typing import IO, TextIO

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from perfbisect.ui.stream import guarded
from perfbisect.wording.glyphs import writable
from perfbisect.wording.text import safe

LOCAL = 3  # the place of the flags of echo among the attributes of a terminal


class Terminal(Console):
    """A console without markup, emoji names and highlighting. Only control sequences of rich itself reach the stream."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__(file=guarded(stream).raw, markup=False, emoji=False, highlight=False, stderr=False)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """The segments of ``renderable``, made safe."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(writable(safe(segment.text), self.encoding), segment.style)


def echo_control(stream: IO[str], *, on: bool) -> bool:
    """Whether a terminal prints ^C where Ctrl-C is typed, as it did before; from here on it does so if ``on``.

    False, without effect, where there is no terminal, or it would stop this process in the background for that.
    """
    with suppress(OSError, termios.error):
        terminal = stream.fileno()
        if os.tcgetpgrp(terminal) == os.getpgrp():
            attributes = termios.tcgetattr(terminal)
            before = bool(attributes[LOCAL] & termios.ECHOCTL)
            attributes[LOCAL] = attributes[LOCAL] & ~termios.ECHOCTL | termios.ECHOCTL * on
            termios.tcsetattr(terminal, termios.TCSANOW, attributes)
            return before
    return False
