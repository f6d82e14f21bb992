"""Writes to standard output and standard error. All text that the program prints passes through this module, which
makes the text safe for a terminal (without control characters).

``make_streams_safe`` replaces both streams of the process by a ``SafeOutput``, so that texts of the library click,
warnings and tracebacks are made safe, too. Only the control sequences of perfbisect itself (cursor movements and
colours) are written unchanged, by ``replace_line`` and ``ui.live``.
"""

import io
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, TextIO, cast

from perfbisect.errors import EnvironmentFailure, StdoutClosed
from perfbisect.wording.glyphs import writable
from perfbisect.wording.text import safe

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

START_OF_LINE = "\r\x1b[K"  # moves the cursor to the start of the line, and clears the line


class BytesToText(io.RawIOBase):
    """A binary stream that writes to a SafeOutput. The class exists because the library click writes completions for a
    shell as bytes."""

    def __init__(self, output: "SafeOutput") -> None:
        self.output = output

    def write(self, data: "ReadableBuffer") -> int:
        """Write the UTF-8 text ``data`` after making the text safe; returns the number of bytes of ``data``."""
        self.output.write(bytes(data).decode(errors="backslashreplace"))
        return len(bytes(data))

    def flush(self) -> None:
        """Write what is buffered."""
        self.output.flush()

    def writable(self) -> bool:
        """True: always writable."""
        return True


class SafeOutput(io.TextIOBase):
    """A text stream that makes each text safe (`wording.text.safe`) before writing the text to the underlying stream.
    Characters that the stream's encoding lacks are replaced by similar characters.

    If ``raises`` is true, a failed write raises StdoutClosed or EnvironmentFailure. If ``raises`` is false, a failed
    write is ignored; standard error is such a stream, because an error message could not be printed.
    """

    def __init__(self, raw: TextIO, *, raises: bool) -> None:
        self.raw = raw
        self.reported = raises
        self.buffer = BytesToText(self)

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """The encoding of the underlying stream."""
        return self.raw.encoding or "utf-8"

    @property
    def errors(self) -> str | None:  # type: ignore[override]
        """The name of the underlying stream's error handler, for characters that the stream's encoding lacks."""
        return self.raw.errors

    def write(self, text: str) -> int:
        """Write ``text`` after making the text safe; returns the length of ``text``."""
        self.write_unchanged(writable(safe(text), self.encoding))
        return len(text)

    def write_unchanged(self, text: str) -> None:
        """Write ``text`` unchanged. Only for text that perfbisect itself makes, with control sequences for the
        terminal."""
        try:
            self.raw.write(text)
        except OSError as failure:
            self._report(failure)

    def flush(self) -> None:
        """Write what is buffered."""
        try:
            self.raw.flush()
        except OSError as failure:
            self._report(failure)

    def fileno(self) -> int:
        """The file descriptor of the underlying stream."""
        return self.raw.fileno()

    def isatty(self) -> bool:
        """Whether the underlying stream is a terminal."""
        return self.raw.isatty()

    def writable(self) -> bool:
        """True: always writable."""
        return True

    def _report(self, failure: OSError) -> None:
        if not self.reported:
            return
        if isinstance(failure, BrokenPipeError):
            raise StdoutClosed from None
        raise EnvironmentFailure(
            f"Standard output cannot be written: {failure.strerror}", "Redirect the output to a disk with free space."
        ) from failure


def as_safe_output(stream: TextIO, *, raises: bool = True) -> SafeOutput:
    """A SafeOutput that writes to ``stream``; if ``stream`` already is a SafeOutput, ``stream`` itself."""
    output: object = stream
    return output if isinstance(output, SafeOutput) else SafeOutput(stream, raises=raises)


def make_streams_safe() -> None:
    """Replace standard output and standard error by streams that make all text safe. Raises EnvironmentFailure if
    standard output is closed. A closed standard input or standard error is connected to /dev/null, because otherwise
    the next opened file would get its descriptor.
    """
    closed = sys.stdout is None
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    if sys.stderr is None:
        sys.stderr = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115  # until the process ends
    sys.stderr = cast("TextIO", as_safe_output(sys.stderr, raises=False))
    if closed:
        raise EnvironmentFailure("Standard output is closed.", "Redirect the output to a file or to /dev/null.")
    sys.stdout = cast("TextIO", as_safe_output(sys.stdout))


def write_line(text: str, stream: TextIO, line_end: str = "\n") -> None:
    """Write ``text`` to ``stream`` and flush the stream. If ``text`` does not end with ``line_end``, ``line_end`` is
    appended. Raises StdoutClosed or EnvironmentFailure if standard output cannot be written.
    """
    output = as_safe_output(stream)
    output.write(text if text.endswith(line_end) else f"{text}{line_end}")
    output.flush()


def note(text: str) -> None:
    """Write a line to standard error and flush."""
    write_line(text, cast("TextIO", as_safe_output(sys.stderr, raises=False)))


def ask(question: str, highest: int) -> int:
    """Ask the user for a number from 1 to ``highest``. Returns the number, or 1 if the user enters nothing."""
    import click

    return int(click.prompt(question, type=click.IntRange(1, highest), default=1))


def replace_line(text: str) -> None:
    """Overwrite the terminal's present line (the line with the cursor) with ``text``. Standard error must be a
    terminal."""
    output = as_safe_output(sys.stderr, raises=False)
    output.write_unchanged(START_OF_LINE)
    output.write(text)
    output.flush()
