"""Terminals for rich, which adds colours and moves the cursor. All text on them is made safe."""

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

LOCAL = 3  # index of the local flags, with echo, among a terminal's attributes (tcgetattr)


class Terminal(Console):
    """A console without markup, emoji names and highlighting. Only control sequences of rich itself reach the stream."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__(file=guarded(stream).raw, markup=False, emoji=False, highlight=False, stderr=False)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """The segments of ``renderable``, made safe."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(writable(safe(segment.text), self.encoding), segment.style)


def echo_control(stream: IO[str], *, on: bool) -> bool:
    """Set whether the terminal prints ^C when Ctrl-C is typed; return whether it did before.

    Without effect, and False, if there is no terminal, or this process runs in the background: the terminal would stop it.
    """
    with suppress(OSError, termios.error):
        terminal = stream.fileno()
        if os.tcgetpgrp(terminal) == os.getpgrp():
            attributes = termios.tcgetattr(terminal)
            echoed = bool(attributes[LOCAL] & termios.ECHOCTL)
            attributes[LOCAL] = attributes[LOCAL] & ~termios.ECHOCTL | termios.ECHOCTL * on
            termios.tcsetattr(terminal, termios.TCSANOW, attributes)
            return echoed
    return False
