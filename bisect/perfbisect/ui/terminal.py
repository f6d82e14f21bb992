"""Terminals for rich, which adds colours and moves the cursor. All text that they draw is made safe."""

from collections.abc import Iterable
from typing import TextIO

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from perfbisect.ui.stream import guarded
from perfbisect.wording.glyphs import writable
from perfbisect.wording.text import safe


class Terminal(Console):
    """A console without markup, emoji names and highlighting. Only control sequences of rich itself reach the stream."""

    def __init__(self, stream: TextIO) -> None:
        raw = guarded(stream).raw
        super().__init__(file=raw, markup=False, emoji=False, highlight=False, stderr=False)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """The segments of ``renderable``, made safe."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(writable(safe(segment.text), self.encoding), segment.style)
